"""The rule of docs/catchup.md, written down once more: places, their files, and the one in use."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from support.schedules import HOUR, MINUTE
from yamlsched.sync.in_use import Verdict

SHORTEST, LONGEST = 5 * MINUTE, 2 * HOUR
CONFIRMED_AFTER = timedelta(seconds=30)
SAME_CRONTAB = timedelta(seconds=50)
"""Ticks of a place that are closer are of two lines of its crontab."""


@dataclass(frozen=True)
class File:
    """A file: its name for content, and its jobs. One that is not valid has no jobs."""

    name: str
    jobs: frozenset[str]
    is_valid: bool = True
    environment: str = ""


@dataclass(frozen=True)
class Row:
    """What is known of a place."""

    file: str | None
    since: datetime
    first_seen: datetime
    seen: datetime
    until: datetime
    is_refused: bool = False


@dataclass
class Rule:
    """A namespace. ``applied`` are the files that came into use, in order."""

    places: dict[tuple[str, str], Row] = field(default_factory=dict)
    applied: list[File] = field(default_factory=list)
    path_in_use: str = ""

    @property
    def in_use(self) -> File | None:
        return self.applied[-1] if self.applied else None

    def tick(
        self, host: str, path: str, file: File, now: datetime, by_hand: bool = False
    ) -> Verdict | None:
        """Return what becomes of the file; None: it is not valid."""
        own = self.places.get((host, path))
        others = {name: row for name, row in self.places.items() if name != (host, path)}
        counting = [row for row in others.values() if row.until > now]
        same_path = [row for (_, other), row in others.items() if other == path]
        until = self._until(own, same_path, now, by_hand)
        if self.in_use is not None and file.environment != self.in_use.environment:
            self.places[host, path] = self._refused(own, same_path, path, now, until)
            return Verdict.OTHER_ENVIRONMENT
        if not file.is_valid:
            self.places[host, path] = self._refused(own, same_path, path, now, until)
            return None
        had_file = own is not None and own.file == file.name
        since = min((row.since for row in counting if row.file == file.name), default=now)
        if own is not None and had_file:
            since = own.since
        first_seen = own.first_seen if own is not None else now
        self.places[host, path] = Row(file.name, since, first_seen, now, until)
        verdict = self._verdict(file, counting, had_file or now - since >= CONFIRMED_AFTER, by_hand)
        if verdict is Verdict.APPLY:
            self.applied.append(file)
            self.path_in_use = path
        return verdict

    def _verdict(
        self, file: File, counting: list[Row], is_confirmed: bool, by_hand: bool
    ) -> Verdict:
        if self.in_use is None:
            return Verdict.APPLY
        if file == self.in_use:
            return Verdict.CURRENT
        if by_hand:
            return Verdict.APPLY
        if file in self.applied and any(row.file == self.in_use.name for row in counting):
            return Verdict.SUPERSEDED
        if self.in_use.jobs - file.jobs and not is_confirmed:
            return Verdict.UNCONFIRMED
        return Verdict.APPLY

    def _until(
        self, own: Row | None, same_path: list[Row], now: datetime, by_hand: bool
    ) -> datetime:
        """Return until when a place counts: twice the time since the tick before, in bounds."""
        if own is not None and (by_hand or now - own.seen < SAME_CRONTAB):
            return max(now + SHORTEST, own.until)
        if by_hand:
            return now + SHORTEST
        before = own.seen if own is not None else max((row.seen for row in same_path), default=now)
        return now + min(max(SHORTEST, 2 * (now - before)), LONGEST)

    def _refused(
        self, own: Row | None, same_path: list[Row], path: str, now: datetime, until: datetime
    ) -> Row:
        """Return the row of a place that keeps its file; a new name has the one of its path."""
        if own is not None:
            return replace(own, seen=now, until=until, is_refused=True)
        file = self.in_use.name if self.in_use is not None else None
        if path != self.path_in_use and all(row.file != file for row in same_path):
            file = None
        return Row(file, now, now, now, until, is_refused=True)

    def prune(self, now: datetime) -> None:
        self.places = {
            name: row
            for name, row in self.places.items()
            if row.seen >= now - 7 * 24 * HOUR
            and (row.first_seen != row.seen or row.seen >= now - LONGEST)
        }
