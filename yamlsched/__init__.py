"""yamlsched: jobs in schedules.yaml, state in PostgreSQL, one crontab line.

For handlers: ``Run``, ``Discard``, ``RetryAfter``, ``Snooze``. For applications: ``enqueue``,
``enqueue_many``, ``next_slot``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yamlsched.client import Enqueued, enqueue, enqueue_many
    from yamlsched.errors import Discard, EffectInDoubt, Refused, RetryAfter, Snooze, YamlschedError
    from yamlsched.handling.detached import detached
    from yamlsched.handling.once import DEFAULT_RELEASE_ON
    from yamlsched.handling.run import Run
    from yamlsched.upcoming import next_slot

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_RELEASE_ON",
    "Discard",
    "EffectInDoubt",
    "Enqueued",
    "Refused",
    "RetryAfter",
    "Run",
    "Snooze",
    "YamlschedError",
    "__version__",
    "detached",
    "enqueue",
    "enqueue_many",
    "next_slot",
]

_HOMES = {
    "DEFAULT_RELEASE_ON": "yamlsched.handling.once",
    "detached": "yamlsched.handling.detached",
    "Run": "yamlsched.handling.run",
    "Enqueued": "yamlsched.client",
    "enqueue": "yamlsched.client",
    "enqueue_many": "yamlsched.client",
    "next_slot": "yamlsched.upcoming",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: an idle tick pays for none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "yamlsched.errors")), name)
