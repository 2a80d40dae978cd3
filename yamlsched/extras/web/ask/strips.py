"""The last days of many jobs, in one word for each day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from yamlsched.db.query import fetch, load
from yamlsched.extras.web.ask import timeline
from yamlsched.extras.web.ask.timeline import MAX_RUNS_OF_DAY, DayOfJob
from yamlsched.runs.lifecycle import error_text
from yamlsched.timetable.times import bounds
from yamlsched.timetable.zones import zone_or_utc

if TYPE_CHECKING:
    from psycopg import Connection


STRIP_DAYS = 14


@dataclass(frozen=True)
class Day:
    """A local date of a job. ``state`` is the worst of: dead, retrying, retried, ok, cancelled, skipped, none."""

    date: date
    state: str
    text: str
    reasons: Sequence[str] = ()


def strips(
    connection: Connection[Any],
    namespace: str,
    jobs: Sequence[tuple[str, str]],
    now: datetime,
    number: int = STRIP_DAYS,
) -> dict[str, list[Day]]:
    """Return the last ``number`` days of each job, given by name and time zone, oldest first; the last one is today."""
    days = {timezone: _last_days(timezone, now, number) for timezone in {timezone for _, timezone in jobs}}
    spans = {timezone: [(start, end) for _, start, end in parts] for timezone, parts in days.items()}
    zones, found = dict(jobs), {name: list[Day]() for name, _ in jobs}
    for row in timeline.day_rows(connection, namespace, zones, spans):
        day, _, _ = days[zones[row.job_type]][row.nth]
        found[row.job_type].append(_day(day, row))
    return found


class LatestRun(NamedTuple):
    """One of the newest runs of a job that have ended."""

    job_type: str
    id: int
    status: str
    retried: bool
    finished_at: datetime
    took: timedelta | None
    error_type: str | None
    last_error: str | None

    @property
    def state(self) -> str:
        """The state of a day with this run alone."""
        return "retried" if self.retried else "ok" if self.status == "succeeded" else self.status

    @property
    def error(self) -> str:
        return error_text(self.error_type, self.last_error) if self.status == "dead" else ""


def latest_runs(
    connection: Connection[Any], namespace: str, jobs: Sequence[str], limit: int
) -> dict[str, list[LatestRun]]:
    """Return the newest ``limit`` runs of each job that have ended, oldest first."""
    found: dict[str, list[LatestRun]] = {name: [] for name in jobs}
    given = {"namespace": namespace, "jobs": list(jobs), "limit": limit}
    for run in fetch(connection, LatestRun, load("timeline")["latest"], given):
        found[run.job_type].insert(0, run)
    return found


def summary(days: Sequence[Day]) -> str:
    """Return the days in words: those that need a look one by one, the others counted."""
    notable = [f"{day.date:%-d %b} {day.text}" for day in days if day.state in ("dead", "retrying", "skipped")]
    good = sum(day.state in ("ok", "retried") for day in days)
    return "; ".join([f"{len(days)} days: {good} with successes only", *notable])


def skipped_by_pause(days: Sequence[Day]) -> str:
    """Return a note if the newest slots among ``days`` were skipped by a pause, and nothing ran on that day."""
    newest = next((day for day in reversed(days) if day.state != "none"), None)
    if newest is None or newest.state != "skipped" or "paused" not in newest.reasons:
        return ""
    return f"the latest slots, of {newest.date}, were skipped: the job was paused"


def _last_days(timezone: str, now: datetime, number: int) -> list[tuple[date, datetime, datetime]]:
    """Return local dates up to today, each with its start and that of the next."""
    where = zone_or_utc(timezone)
    today = now.astimezone(where).date()
    dates = [today - timedelta(days=ago) for ago in range(number - 1, -2, -1)]
    starts = [bounds(day, where)[0] for day in dates]
    return list(zip(dates, starts, starts[1:], strict=False))


def _day(day: date, row: DayOfJob) -> Day:
    parts = [
        f"{_number(number)} {what}"
        for number, what in (
            (row.dead, "dead"),
            (row.retrying, "to be retried"),
            (row.retried, "succeeded after a retry"),
        )
        if number
    ]
    if row.succeeded and not row.retried:
        parts.append("succeeded")
    if row.cancelled:
        parts.append("cancelled")
    if row.reasons:
        parts.append(f"slots skipped ({', '.join(row.reasons)})")
    return Day(day, _state(row), ", ".join(parts) or "no runs", row.reasons)


def _state(row: DayOfJob) -> str:
    if row.dead:
        return "dead"
    if row.retrying:
        return "retrying"
    if row.retried:
        return "retried"
    if row.succeeded:
        return "ok"
    if row.cancelled:
        return "cancelled"
    return "skipped" if row.reasons else "none"


def _number(number: int) -> str:
    return f"{number}+" if number >= MAX_RUNS_OF_DAY else str(number)
