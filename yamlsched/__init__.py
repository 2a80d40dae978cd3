"""yamlsched: jobs in schedules.yaml, state in PostgreSQL, one crontab line.

For handlers: ``Run``, ``Discard``, ``RetryAfter``, ``Snooze``. For applications: ``enqueue``,
``enqueue_many``, ``next_slot``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yamlsched.errors import Discard, EffectInDoubt, Refused, RetryAfter, Snooze, YamlschedError
    from yamlsched.handler.detached import detached
    from yamlsched.handler.once import DEFAULT_RELEASE_ON
    from yamlsched.handler.run import Run
    from yamlsched.runs.enqueue import Enqueued, enqueue, enqueue_many
    from yamlsched.timetable.upcoming import next_slot

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
    "DEFAULT_RELEASE_ON": "yamlsched.handler.once",
    "detached": "yamlsched.handler.detached",
    "Run": "yamlsched.handler.run",
    "Enqueued": "yamlsched.runs.enqueue",
    "enqueue": "yamlsched.runs.enqueue",
    "enqueue_many": "yamlsched.runs.enqueue",
    "next_slot": "yamlsched.timetable.upcoming",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: an idle tick pays for none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "yamlsched.errors")), name)
