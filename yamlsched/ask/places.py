"""What places have: a version of schedules.yaml, errors in it, and jobs that they cannot start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from yamlsched.durations import between
from yamlsched.sync.hosts import MAX_STORED_ERRORS
from yamlsched.text import join_first
from yamlsched.timetable.times import rfc3339

MAX_HOSTS = 3
"""Hosts that are named in a sentence."""
DRIFT_TOLERANCE = timedelta(minutes=10)
"""How long places may have another file than the one in use: a rolling deploy has ended by then."""


@dataclass(frozen=True)
class HeldFile:
    """A version of schedules.yaml that is in use, or that places have."""

    hash: str
    environment: str
    in_use: bool
    applied_at: datetime | None
    applied_by: str | None  # host:path
    yamlsched_version: str | None
    tzdata_version: str | None
    commit: str | None  # this and the next three: of the file in use, if they are known
    is_dirty: bool
    author: str | None
    subject: str | None
    since: datetime | None  # when the first of its places got it
    seen_at: datetime | None  # when the latest of its places ticked
    places: list[str]  # host:path
    # of the file in use: nothing is pruned until an operator acts
    prune_failing_since: datetime | None = None
    prune_error: str | None = None  # host: reason

    @property
    def pruning(self) -> str:
        """Why nothing is pruned by the file in use; "" if pruning works."""
        if self.prune_failing_since is None:
            return ""
        since = rfc3339(self.prune_failing_since, "seconds")
        return f"pruning has failed since {since}: {self.prune_error}"

    @property
    def first_places(self) -> str:
        return join_first(self.places, MAX_HOSTS)

    def time_held(self, current: HeldFile | None) -> timedelta:
        """Return how long places have had this file since ``current`` was applied."""
        if self.since is None or self.seen_at is None:
            return timedelta(0)
        applied_at = current.applied_at if current is not None else None
        return self.seen_at - max(self.since, applied_at or self.since)


@dataclass(frozen=True)
class RefusedFile:
    """A place whose file has errors, or is of another environment, and is not applied."""

    place: str  # host:path
    mistakes: int  # at most as many as are stored
    since: datetime
    first_error: str | None = None
    is_other_environment: bool = False

    @property
    def sentence(self) -> str:
        """That the file is refused, and the first error."""
        _, _, path = self.place.partition(":")
        first = (self.first_error or "").removeprefix(path).lstrip(": ")
        since = rfc3339(self.since, "seconds")
        if self.is_other_environment:
            return f"{self.place} {first or 'is not applied'}, since {since}"
        more = " or more" if self.mistakes == MAX_STORED_ERRORS else ""
        errors = "1 error" if self.mistakes == 1 else f"{self.mistakes}{more} errors"
        return f"{self.place} has {errors} since {since}; not applied" + (first and f": {first}")


@dataclass(frozen=True)
class UnstartableJob:
    """A job that a place cannot start: it claims none of its runs."""

    job_type: str
    place: str  # host:path
    reason: str
    since: datetime
    is_everywhere: bool  # no place that counts can start it
    down: list[str] = field(default_factory=list)  # hosts that could, and have stopped ticking
    down_at: datetime | None = None  # when the latest of them ticked

    def able_but_down(self, now: datetime) -> str:
        """Return which hosts could start the job and have stopped ticking; "" if there is none, or
        another host can.
        """
        if not self.is_everywhere or not self.down or self.down_at is None:
            return ""
        hosts = join_first(self.down, MAX_HOSTS)
        return f"{hosts}, which can start it, last ticked {between(self.down_at, now)} ago"


def cannot_start(entries: Sequence[UnstartableJob], now: datetime) -> str:
    """Return a sentence that says why places do not claim the runs of a job, and which host that
    could is down.
    """
    places = join_first([entry.place for entry in entries], MAX_HOSTS)
    text = f"{places} cannot start job {entries[0].job_type}: {entries[0].reason}"
    return text + (f"; {able}" if (able := entries[0].able_but_down(now)) else "")
