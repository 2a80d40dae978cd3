"""What a valid schedules.yaml says, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from yamlsched.backoff import Backoff
from yamlsched.cron.expression import Cron


class Overlap(StrEnum):
    """What happens to a slot that comes while a run of an earlier slot is unfinished."""

    WAIT = "wait"
    SKIP = "skip"
    ALLOW = "allow"


class Catchup(StrEnum):
    """Which slots are run when several are due at once."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished runs, keys of pruned runs and effects are kept."""

    succeeded: timedelta = timedelta(days=7)
    dead: timedelta = timedelta(days=90)
    cancelled: timedelta = timedelta(days=30)
    keys: timedelta = timedelta(days=365)
    effects: timedelta = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it holds here: defaults merged in, ``enabled`` already joined with the environment."""

    name: str
    handler: str
    cron: Cron | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    timezone: str = "UTC"
    enabled: bool = True
    max_attempts: int = 5
    backoff: Backoff = Backoff()
    timeout: timedelta = timedelta(hours=1)
    lease: timedelta = timedelta(minutes=2)
    overlap: Overlap = Overlap.WAIT
    catchup: Catchup = Catchup.LATEST
    catchup_window: timedelta = timedelta(days=365)
    spread: timedelta = timedelta(0)
    on_dead: str | None = None
    description: str = ""
    owner: str = ""
    tags: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()  # of the file: where the handler is imported from
