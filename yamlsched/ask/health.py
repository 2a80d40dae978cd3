"""The health of namespaces: the state of their jobs, files and queues. Pure, except for reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg

from yamlsched.ask.gaps import pause_words
from yamlsched.ask.places import (
    DRIFT_TOLERANCE,
    HeldFile,
    RefusedFile,
    UnstartableJob,
    cannot_start,
)
from yamlsched.ask.queues import HeldUp, QueueHealth, UnservedQueue
from yamlsched.ask.runs import StoredRun
from yamlsched.db.query import execute, fetch_grouped
from yamlsched.durations import between
from yamlsched.errors import YamlschedError
from yamlsched.runs.lifecycle import Status, error_text
from yamlsched.timetable.calendars import of_rows
from yamlsched.timetable.cron import parse_schedule, without_skipped
from yamlsched.timetable.slots import next_slot
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.zones import zone

Row = TypeVar("Row")
MAX_EFFECTS_IN_DOUBT = 100
"""Effects in doubt that are read, of which all are counted, and jobs that hosts cannot start."""
LAST = datetime.max.replace(tzinfo=UTC)
HEALTHY_STATES = ("ok", "running", "new", "ended")


@dataclass(frozen=True)
class JobHealth:
    """A row of the view job_health, and how many runs of the job died recently."""

    job_type: str
    definition_id: int
    description: str
    owner: str
    tags: list[str]
    schedule: str | None
    timezone: str
    enabled: bool
    retired_at: datetime | None
    effective_from: datetime
    next_slot_at: datetime | None  # that no calendar skips
    last_slot_at: datetime | None
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    paused_after: int | None  # dead runs in a row, if that is why
    paused: bool
    state: str
    last_success_at: datetime | None
    last_success_run_id: int | None  # None: it was pruned
    last_failure_at: datetime | None
    last_failure_run_id: int | None
    last_error: str | None
    last_error_type: str | None
    failure_streak: int
    attempt_streak: int  # failed attempts of these runs
    failing: int  # unfinished runs that fail again and again
    queued: int
    running: int
    failed: int
    oldest_due_at: datetime | None
    open_slot_run_id: int | None
    late_since: datetime | None
    late_why: str | None
    late_slot: datetime | None
    overlap: str
    dead_within: int
    dead_last_hour: int
    dead_last_day: int
    dead_since: datetime | None  # when the first of the runs in dead_within died
    dead_run_id: int | None  # the one of them that died last; and its error
    dead_error: str | None
    dead_error_type: str | None
    failing_run_id: int | None  # the failing run that failed last
    failing_error: str | None
    failing_error_type: str | None
    failing_attempts: int | None  # that have failed
    failing_max_attempts: int | None
    late_run_id: int | None  # the dead run of that slot
    queue: str
    changed: str | None  # since which revision it fails, in words

    @property
    def is_present(self) -> bool:
        """Whether the job is not retired, or has unfinished runs."""
        return self.retired_at is None or self.queued + self.running + self.failed > 0

    @property
    def text(self) -> str:
        """What a search looks at."""
        return " ".join([self.job_type, self.description, self.owner, *self.tags])


@dataclass(frozen=True)
class StuckRun:
    """A run past its lease or its timeout."""

    run_id: int
    job_type: str
    worker: str
    started_at: datetime
    locked_until: datetime
    why: str


@dataclass(frozen=True)
class DoubtfulEffect:
    """An effect of which it is unknown whether it happened. ``job_type`` is None if its run was
    pruned.
    """

    key: str
    provider_key: str  # effect.key
    run_id: int
    job_type: str | None
    run_status: str | None
    attempt: int
    since: datetime
    waits_for: str  # person or retry


@dataclass(frozen=True)
class WorkerHost:
    """A host that executes runs, or served a queue within the hour."""

    host: str
    running: int
    seen_at: datetime


@dataclass(frozen=True)
class LostSlots:
    """Slots of a job that were recorded recently as too old to be run."""

    job_type: str
    slots: int
    first_slot: datetime
    last_slot: datetime


@dataclass(frozen=True)
class UnwrittenJob:
    """A job whose due slots the last sync could not write."""

    job_type: str
    error: str


@dataclass(frozen=True)
class EndingCalendar:
    """A calendar that so many jobs use, and that ends soon, or has ended."""

    name: str
    jobs: int
    until: str  # a date
    has_ended: bool

    @property
    def what(self) -> str:
        """A sentence about it."""
        users = "1 job uses" if self.jobs == 1 else f"{self.jobs} jobs use"
        ends = "ended" if self.has_ended else "ends"
        return f"the calendar {self.name}, which {users}, {ends} on {self.until}"


@dataclass(frozen=True)
class Health:
    """The state of a namespace at an instant. ``jobs`` are those that were asked for."""

    namespace: str
    now: datetime
    last_tick_at: datetime | None
    last_tick_host: str | None
    jobs: list[JobHealth]
    stuck: list[StuckRun]
    in_doubt: list[DoubtfulEffect]  # at most MAX_EFFECTS_IN_DOUBT
    in_doubt_counts: dict[tuple[str | None, str], int]  # by job and what they wait for
    files: list[HeldFile]
    refused: list[RefusedFile]
    cannot_start: list[UnstartableJob]  # at most MAX_EFFECTS_IN_DOUBT
    workers: list[WorkerHost]
    lost_slots: list[LostSlots]
    limits: list[str]  # those for which runs wait, with who holds them
    calendars: list[EndingCalendar] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)  # targets of notifications that get none
    unwritten: list[UnwrittenJob] = field(default_factory=list)  # at most MAX_EFFECTS_IN_DOUBT
    held_up: list[HeldUp] = field(default_factory=list)
    queues: list[QueueHealth] = field(default_factory=list)
    unserved: list[UnservedQueue] = field(default_factory=list)

    @property
    def queue(self) -> dict[str, Any]:
        """The numbers of jobs that are not retired, of unfinished and of dead runs over all jobs,
        and since when the oldest due run waits.
        """
        names = ("queued", "running", "failed", "failing", "dead_last_hour", "dead_last_day")
        return {
            "jobs": sum(job.state != "retired" for job in self.jobs),
            **{name: sum(getattr(job, name) for job in self.jobs) for name in names},
            "oldest_due_at": min(
                (at for job in self.jobs if (at := job.oldest_due_at)), default=None
            ),
        }

    @property
    def file_in_use(self) -> HeldFile | None:
        """The file that was applied last."""
        return next((file for file in self.files if file.in_use), None)

    @property
    def other_files(self) -> list[HeldFile]:
        """The files that places have and that are not in use: superseded, or not applied yet."""
        return [file for file in self.files if not file.in_use]

    @property
    def drift(self) -> list[HeldFile]:
        """The files that places have had for longer than a rolling deploy takes, but are not in
        use.
        """
        current = self.file_in_use
        return [file for file in self.other_files if file.time_held(current) > DRIFT_TOLERANCE]

    def effects_in_doubt(self, waits_for: str) -> int:
        """Return how many effects in doubt wait for a ``person``, or for a ``retry``, which
        resolves them.
        """
        return sum(
            effects for (_, what), effects in self.in_doubt_counts.items() if what == waits_for
        )

    def cannot_start_by_reason(self, job: str | None = None) -> list[list[UnstartableJob]]:
        """Return the places that cannot start a job for one reason, for each job and reason; with
        ``job``, of this one.
        """
        groups: dict[tuple[str, str], list[UnstartableJob]] = {}
        for entry in self.cannot_start:
            if job is None or entry.job_type == job:
                groups.setdefault((entry.job_type, entry.reason), []).append(entry)
        return list(groups.values())

    def why_no_worker(self, job: str, queue: str) -> list[str]:
        """Return why no worker claims the runs of ``job``, which are in ``queue``; empty if one
        can.
        """
        lines = [
            cannot_start(entries, self.now)
            for entries in self.cannot_start_by_reason(job)
            if entries[0].is_everywhere
        ]
        lines += [each.in_words(self.now) for each in self.unserved if each.queue == queue]
        return lines + [
            f"queue {queue}: {words}"
            for each in self.queues
            if each.queue == queue and (words := each.starts_in_words)
        ]


def _job(*values: Any) -> JobHealth:
    """Return the job of a row, whose last two values are its calendars: its next slot is one that
    they do not skip.
    """
    *columns, skip_on, only_on = values
    job = JobHealth(*columns)
    if not (skip_on or only_on) or job.next_slot_at is None or job.schedule is None:
        return job
    with suppress(YamlschedError):  # a later release has written it
        fires = without_skipped(parse_schedule(job.schedule), of_rows(skip_on), of_rows(only_on))
        slot = next_slot(fires, zone(job.timezone), job.next_slot_at - timedelta(minutes=1))
        return replace(job, next_slot_at=slot.at if slot else None)
    return job


LISTS: dict[str, Callable[..., Any]] = {
    "jobs": _job,
    "held_up": HeldUp,
    "stuck": StuckRun,
    "in_doubt": DoubtfulEffect,
    "files": HeldFile,
    "refused": RefusedFile,
    "cannot_start": UnstartableJob,
    "workers": WorkerHost,
    "queues": QueueHealth,
    "unserved": UnservedQueue,
    "lost_slots": LostSlots,
    "limits": str,
    "calendars": EndingCalendar,
    "unsent": str,
    "unwritten": UnwrittenJob,
}
"""The fields of ``Health`` that are lists, by the statement that returns their rows."""


def read(
    connection: psycopg.Connection[Any],
    namespace: str,
    within: timedelta,
    jobs: Sequence[int] | None = None,
) -> Health:
    """Return the health of ``namespace``; see ``read_all``."""
    [health] = read_all(connection, [namespace], within, jobs)
    return health


def read_all(
    connection: psycopg.Connection[Any],
    namespaces: Sequence[str],
    within: timedelta,
    jobs: Sequence[int] | None = None,
) -> list[Health]:
    """Return the health of each of ``namespaces``; ``dead_within`` counts the runs that died in the
    last ``within``.

    With ``jobs``, their ids, only these are read. The number of statements does not depend on that
    of namespaces.
    """
    parameters = {
        "namespaces": list(namespaces),
        "within": within,
        "jobs": None if jobs is None else list(jobs),
        "limit": MAX_EFFECTS_IN_DOUBT,
    }
    with connection.transaction():
        clocks = execute(connection, "health.clock", **parameters).fetchall()
        counts: defaultdict[str, dict[tuple[str | None, str], int]] = defaultdict(dict)
        for row in execute(connection, "health.in_doubt_counts", **parameters):
            counts[row.namespace][row.job_type, row.waits_for] = row.effects
        lists = {
            name: fetch_grouped(connection, kind, f"health.{name}", **parameters)
            for name, kind in LISTS.items()
        }
    healths = []
    for clock in clocks:
        rows: dict[str, Any] = {
            name: by_namespace[clock.namespace] for name, by_namespace in lists.items()
        }
        waiting = {each.job_type for each in rows["held_up"]}
        rows["jobs"] = [_held_up(job, waiting) for job in rows["jobs"]]
        rows["in_doubt_counts"] = counts[clock.namespace]
        healths.append(Health(*clock, **rows))
    return healths


def _held_up(job: JobHealth, waiting: set[str]) -> JobHealth:
    """Return the job, which is held up if it is ``waiting`` and in no state that is more severe."""
    is_held_up = job.job_type in waiting and job.state in (*HEALTHY_STATES, "retrying")
    return replace(job, state="held_up") if is_held_up else job


def why_not_claimed(
    connection: psycopg.Connection[Any], run: StoredRun, now: datetime
) -> list[str]:
    """Return why no worker claims a run that is late to begin; empty for any other run."""
    if run.status not in (Status.QUEUED, Status.FAILED) or run.waits or run.run_at > now:
        return []
    health = read(connection, run.namespace, timedelta(hours=1), [])
    return health.why_no_worker(run.job_type, run.queue)


def note(job: JobHealth, health: Health) -> str:
    """Return what explains the state of ``job``; "" if nothing has to be explained."""
    if job.paused:
        age = f" {between(job.paused_at, health.now)} ago" if job.paused_at else ""
        return f"paused{age}{pause_words(job)}"
    held_up = [each for each in health.held_up if each.job_type == job.job_type]
    root = f"held up by {held_up[0].because(health.now)}" if held_up else ""
    parts = [root]
    if job.late_since:
        parts = [f"since {rfc3339(job.late_since, 'seconds')}: {job.late_why}", root]
    elif job.failure_streak:
        parts = [root, error_text(job.last_error_type, job.last_error), job.changed or ""]
    if any(parts):
        return "; ".join(part for part in parts if part)
    if job.open_slot_run_id and job.next_slot_at and job.next_slot_at < health.now:
        if job.overlap == "skip":
            return f"the next slot will be skipped: run {job.open_slot_run_id} is unfinished"
        return f"the next slot waits for run {job.open_slot_run_id}"
    return ""
