"""What is imported when it is first used, nowhere else in the core: the extras, and what most ticks
do not need.

Imports are most of what an idle tick does. Each of ``ON_DEMAND`` would add to that, or to the time
from the start of a worker to its first claim (``benchmarks idle`` and ``latency``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import croniter
    import jsonschema

    from yamlsched import plugins
    from yamlsched.extras import otel as tracing
    from yamlsched.extras import words
    from yamlsched.extras.monitors import outbox as monitors
    from yamlsched.extras.notify import sending as notify
    from yamlsched.extras.shared import pool as shared
    from yamlsched.schedule import load
    from yamlsched.show import tables
    from yamlsched.sync import apply
    from yamlsched.worker.local import bootstrap

__all__ = [
    "apply", "bootstrap", "croniter", "jsonschema", "load",
    "monitors", "notify", "plugins", "shared", "tables", "tracing", "words",
]  # fmt: skip

ENTRY_POINTS = re.compile(rb"^\s*\[\s*yamlsched\s*\]", re.MULTILINE)
EXTRAS = {
    "monitors": "yamlsched.extras.monitors.outbox",
    "notify": "yamlsched.extras.notify.sending",
    "shared": "yamlsched.extras.shared.pool",
    "tracing": "yamlsched.extras.otel",
    "words": "yamlsched.extras.words",
}
ON_DEMAND = {
    # and with it YAML, the schema and all checks: a file that is not in force yet
    "apply": "yamlsched.sync.apply",
    # the code of children, which is not needed for the first claim
    "bootstrap": "yamlsched.worker.local.bootstrap",
    "croniter": "croniter",
    "jsonschema": "jsonschema",  # a file in force is read, and not checked again
    "load": "yamlsched.schedule.load",
    "plugins": "yamlsched.plugins",  # pluggy, and what reads entry points
    "tables": "yamlsched.show.tables",
}


def has_plugins() -> bool:
    """Return whether a plugin may be installed, in 2 ms: reading all entry points takes 30 ms."""
    for folder in sys.path:
        if os.path.isfile(folder):  # an archive
            return True
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                is_package = name.endswith((".dist-info", ".egg-info"))
                if is_package and _is_plugin(os.path.join(folder, name, "entry_points.txt")):
                    return True
    return False


def _is_plugin(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return ENTRY_POINTS.search(file.read()) is not None
    return False


def __getattr__(name: str) -> Any:
    path = EXTRAS.get(name) or ON_DEMAND.get(name)
    if path is None:
        raise AttributeError(f"there is no extra {name}")
    module = globals()[name] = importlib.import_module(path)
    return module
