"""The extras, as the core reaches them: each is imported when it is first used. Nothing else in the core names one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yamlsched.extras import embedded
    from yamlsched.extras import otel as tracing
    from yamlsched.extras.monitors import outbox as monitors
    from yamlsched.extras.notify import sending as notify
    from yamlsched.extras.remote import executor as remote
    from yamlsched.extras.shared import pool as shared

__all__ = ["embedded", "monitors", "notify", "remote", "shared", "tracing"]

EXTRAS = {
    "embedded": "yamlsched.extras.embedded",
    "monitors": "yamlsched.extras.monitors.outbox",
    "notify": "yamlsched.extras.notify.sending",
    "remote": "yamlsched.extras.remote.executor",
    "shared": "yamlsched.extras.shared.pool",
    "tracing": "yamlsched.extras.otel",
}
VERBS = {
    "attempt": "yamlsched.extras.remote.cli",
    "db": "yamlsched.extras.embedded.cli",
    "diff": "yamlsched.extras.preview.cli_diff",
    "doctor": "yamlsched.extras.doctor.cli",
    "import": "yamlsched.extras.importing.cli",
    "init": "yamlsched.extras.scaffold.cli",
    "mcp": "yamlsched.extras.mcp.cli",
    "metrics": "yamlsched.extras.metrics.cli",
    "plan": "yamlsched.extras.preview.cli_plan",
    "web": "yamlsched.extras.web.cli",
}
"""The verbs of extras: each module defines ``command``."""


def __getattr__(name: str) -> Any:
    if name not in EXTRAS:
        raise AttributeError(f"there is no extra {name}")
    module = globals()[name] = importlib.import_module(EXTRAS[name])
    return module
