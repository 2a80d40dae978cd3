"""The health of a namespace: the state of its jobs, and the files of its places. Pure,
except for reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import psycopg

from yamlsched.ask.runs import StoredRun
from yamlsched.ask.states import (
    HeldUp,
    JobState,
    JobTotals,
    state_of,
    states,
    totals,
)
from yamlsched.db.query import fetch_grouped, load
from yamlsched.durations import between
from yamlsched.errors import YamlschedError
from yamlsched.runs.lifecycle import Status, error_text, one_line
from yamlsched.sync.hosts import MAX_STORED_ERRORS
from yamlsched.text import join_first
from yamlsched.timetable.calendars import of_rows, without_skipped
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.slots import next_slot
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.zones import zone

Row = TypeVar("Row")
MAX_COUNTED = 1_000
"""Runs of each level of a queue that are counted."""
MAX_EFFECTS_IN_DOUBT = 100
"""Effects in doubt that are read, of which all are counted, and jobs that hosts cannot start."""


class JobHealth(NamedTuple):
    """A row of the view job_health, and how many runs of the job died recently.

    A tuple, because a namespace may have 10,000 of them: a frozen dataclass takes three times as
    long.
    """

    job_type: str
    description: str
    owner: str
    tags: list[str]
    schedule: str | None
    timezone: str
    enabled: bool
    retired_at: datetime | None
    paused: bool
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    next_slot_at: datetime | None  # that no calendar skips
    last_slot_at: datetime | None
    effective_from: datetime
    last_success_at: datetime | None
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
    overdue_since: datetime | None
    overdue_why: str | None
    dead_within: int
    dead_last_hour: int
    dead_last_day: int
    dead_since: datetime | None  # when the first of the runs in dead_within died
    dead_run_id: int | None  # the one of them that died last; and its error
    dead_error: str | None
    dead_error_type: str | None
    dead_calls_within: int  # calls of on_dead; no other figure counts them
    call_error: str | None  # of the one of them that died last
    call_error_type: str | None
    overlap: str
    failing_run_id: int | None  # the failing run that failed last
    failing_error: str | None
    failing_error_type: str | None
    failing_attempts: int | None  # that have failed
    failing_max_attempts: int | None
    overdue_slot: datetime | None
    overdue_run_id: int | None  # the dead run of that slot
    queue: str
    state: str


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


@dataclass(frozen=True)
class RefusedFile:
    """A place whose file has errors, or is of another environment, and is not applied."""

    place: str  # host:path
    mistakes: int  # at most as many as are stored
    since: datetime
    first_error: str | None = None
    is_other_environment: bool = False


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


@dataclass(frozen=True)
class WorkerHost:
    """A host that holds runs, or was seen within the hour: see the view seen_hosts."""

    host: str
    running: int
    seen_at: datetime


class QueueHealth(NamedTuple):
    """How much there is to do in a queue, and who does it: see the view queue_load.

    ``due`` and ``executing`` are counted to some thousands. ``failed_starts`` counts those in a
    row, and ``error`` is that of the latest one.
    """

    queue: str
    due: int
    executing: int
    oldest_due_at: datetime | None
    live: int
    starting: int
    leaving: int
    failed_starts: int
    next_start_at: datetime | None
    error: str | None


class UnservedQueue(NamedTuple):
    """A queue of enabled jobs that nobody serves, and who did last, if it is known."""

    queue: str
    served_by: str | None  # host:path
    served_at: datetime | None
    is_on_demand: bool  # its workers are there only while runs wait

    def in_words(self, now: datetime) -> str:
        if self.served_at is None:
            return f"no worker serves queue {self.queue}"
        return (
            f"no worker has served queue {self.queue} for {between(self.served_at, now)};"
            f" {self.served_by} served it last"
        )


@dataclass(frozen=True)
class LostSlots:
    """Slots of a job that were recorded recently as too old to be run."""

    job_type: str
    slots: int
    first_slot: datetime
    last_slot: datetime


class UnwrittenJob(NamedTuple):
    """A job whose due slots the last sync could not write."""

    job_type: str
    error: str


class EndingCalendar(NamedTuple):
    """A calendar in use that ends soon, or has ended; ``what`` is a sentence about it."""

    what: str
    has_ended: bool


@dataclass(frozen=True)
class Health:
    """The state of a namespace at an instant. ``jobs`` are those that were asked for."""

    namespace: str
    now: datetime
    last_tick_at: datetime | None
    last_tick_host: str | None
    totals: JobTotals
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


LISTS: dict[str, type[Any]] = {
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
        return job._replace(next_slot_at=slot.at if slot else None)
    return job


def queue_loads(
    connection: psycopg.Connection[Any], namespace: str, most: int = MAX_COUNTED
) -> list[QueueHealth]:
    """Return the queues of a namespace, counted up to ``most`` runs of each level."""
    parameters = {"namespaces": [namespace], "most": most}
    return fetch_grouped(connection, QueueHealth, load("health")["queues"], parameters)[namespace]


def unserved_queues(connection: psycopg.Connection[Any], namespace: str) -> list[UnservedQueue]:
    """Return the queues of jobs that nobody serves."""
    parameters = {"namespaces": [namespace]}
    sql = load("health")["unserved"]
    return fetch_grouped(connection, UnservedQueue, sql, parameters)[namespace]


def read(
    connection: psycopg.Connection[Any],
    namespace: str,
    within: timedelta,
    jobs: Sequence[int] | None = None,
    known: Sequence[JobState] | None = None,
) -> Health:
    """Return the health of ``namespace``; see ``read_all``."""
    [health] = read_all(
        connection, [namespace], within, jobs, None if known is None else {namespace: known}
    )
    return health


def read_all(
    connection: psycopg.Connection[Any],
    namespaces: Sequence[str],
    within: timedelta,
    jobs: Sequence[int] | None = None,
    known: Mapping[str, Sequence[JobState]] | None = None,
) -> list[Health]:
    """Return the health of each of ``namespaces``; ``dead_within`` counts the runs that died in the
    last ``within``.

    With ``jobs``, their ids, only the rows of these are read. ``known`` are the states of all jobs,
    if they have been read already. The number of statements does not depend on that of namespaces.
    """
    sql = load("health")
    some = None if jobs is None else list(jobs)
    parameters = {
        "namespaces": list(namespaces),
        "within": within,
        "jobs": some,
        "limit": MAX_EFFECTS_IN_DOUBT,
        "most": MAX_COUNTED,
    }

    def grouped(kind: Callable[..., Row], name: str) -> defaultdict[str, list[Row]]:
        return fetch_grouped(connection, kind, sql[name], parameters)

    with connection.transaction():
        clocks = connection.execute(sql["clock"], parameters).fetchall()
        known = states(connection, namespaces, within) if known is None else known
        jobs_of: defaultdict[str, list[JobHealth]] = defaultdict(list)
        if some != []:
            jobs_of = grouped(_job, "jobs")
        counts: defaultdict[str, dict[tuple[str | None, str], int]] = defaultdict(dict)
        for row in connection.execute(sql["in_doubt_counts"], parameters):
            counts[row.namespace][row.job_type, row.waits_for] = row.effects
        lists = {name: grouped(kind, name) for name, kind in LISTS.items()}
    found = []
    for clock in clocks:
        name = clock.namespace
        held_up = [each for job in known.get(name, ()) for each in job.held_up]
        waits = {each.job_type for each in held_up}
        now = Health(
            namespace=name,
            now=clock.now,
            last_tick_at=clock.last_tick_at,
            last_tick_host=clock.last_tick_host,
            totals=totals(known.get(name, ())),
            jobs=[
                job._replace(state=state_of(job.state, job.job_type in waits))
                for job in jobs_of[name]
            ],
            in_doubt_counts=counts[name],
            held_up=held_up,
            **{key: rows[name] for key, rows in lists.items()},
        )
        found.append(now)
    return found


MAX_HOSTS = 3
"""Hosts that are named in a sentence."""
DRIFT_TOLERANCE = timedelta(minutes=10)
"""How long places may have another file than the one in use: a rolling deploy has ended by
then.
"""


def queue(health: Health) -> dict[str, Any]:
    """Return the numbers of unfinished and of dead runs over all jobs, and since when the oldest
    due run waits.
    """
    return {name: value for name, value in health.totals._asdict().items() if name != "jobs"}


def effects_in_doubt(health: Health, waits_for: str) -> int:
    """Return how many effects in doubt wait for a ``person``, or for a ``retry``, which resolves
    them.
    """
    return sum(
        effects for (_, what), effects in health.in_doubt_counts.items() if what == waits_for
    )


def refusal(file: RefusedFile) -> str:
    """Return a sentence that says that a file is refused, and the first error."""
    _, _, path = file.place.partition(":")
    first = (file.first_error or "").removeprefix(path).lstrip(": ")
    since = rfc3339(file.since, "seconds")
    if file.is_other_environment:
        return f"{file.place} {first or 'is not applied'}, since {since}"
    more = " or more" if file.mistakes == MAX_STORED_ERRORS else ""
    errors = "1 error" if file.mistakes == 1 else f"{file.mistakes}{more} errors"
    return f"{file.place} has {errors} since {since}; not applied" + (first and f": {first}")


def cannot_start_by_reason(health: Health, job: str | None = None) -> list[list[UnstartableJob]]:
    """Return the places that cannot start a job for one reason, for each job and reason; with
    ``job``, of this one.
    """
    groups: dict[tuple[str, str], list[UnstartableJob]] = {}
    for entry in health.cannot_start:
        if job is None or entry.job_type == job:
            groups.setdefault((entry.job_type, entry.reason), []).append(entry)
    return list(groups.values())


def cannot_start(entries: Sequence[UnstartableJob], now: datetime) -> str:
    """Return a sentence that says why places do not claim the runs of a job, and which host that
    could is down.
    """
    places = join_first([entry.place for entry in entries], MAX_HOSTS)
    text = f"{places} cannot start job {entries[0].job_type}: {entries[0].reason}"
    return text + (f"; {able}" if (able := able_but_down(entries[0], now)) else "")


def able_but_down(entry: UnstartableJob, now: datetime) -> str:
    """Return which hosts could start the job and have stopped ticking; "" if there is none, or
    another host can.
    """
    if not entry.is_everywhere or not entry.down or entry.down_at is None:
        return ""
    return (
        f"{join_first(entry.down, MAX_HOSTS)}, which can start it, last ticked"
        f" {between(entry.down_at, now)} ago"
    )


def failed_starts(queue: QueueHealth) -> str:
    """Return how many starts of workers have failed in a row, and why; "" if none has."""
    if not queue.failed_starts:
        return ""
    starts = "1 start" if queue.failed_starts == 1 else f"{queue.failed_starts} starts"
    what = f"queue {queue.queue}: {starts} of workers failed in a row"
    return what + (f": {one_line(queue.error)}" if queue.error else "")


def why_no_worker(job: str, queue: str, health: Health) -> list[str]:
    """Return why no worker claims the runs of ``job``, which are in ``queue``; empty if one can."""
    lines = [
        cannot_start(entries, health.now)
        for entries in cannot_start_by_reason(health, job)
        if entries[0].is_everywhere
    ]
    lines += [each.in_words(health.now) for each in health.unserved if each.queue == queue]
    return lines + [
        what for each in health.queues if each.queue == queue and (what := failed_starts(each))
    ]


def why_not_claimed(
    connection: psycopg.Connection[Any], run: StoredRun, now: datetime
) -> list[str]:
    """Return why no worker claims a run that is late to begin; empty for any other run."""
    if run.status not in (Status.QUEUED, Status.FAILED) or run.waits or run.run_at > now:
        return []
    health = read(connection, run.namespace, timedelta(hours=1), [])
    return why_no_worker(run.job_type, run.queue, health)


def pruning(file: HeldFile) -> str:
    """Return why nothing is pruned by the file in use; "" if pruning works."""
    if file.prune_failing_since is None:
        return ""
    return (
        f"pruning has failed since {rfc3339(file.prune_failing_since, 'seconds')}:"
        f" {file.prune_error}"
    )


def first_places(file: HeldFile) -> str:
    return join_first(file.places, MAX_HOSTS)


def in_use(health: Health) -> HeldFile | None:
    """Return the file that was applied last."""
    return next((file for file in health.files if file.in_use), None)


def not_in_use(health: Health) -> Sequence[HeldFile]:
    """Return the other files that places have: superseded, or not applied yet."""
    return [file for file in health.files if not file.in_use]


def drift(health: Health) -> list[HeldFile]:
    """Return the files that places have had for longer than a rolling deploy takes, but are not in
    use.
    """
    current = in_use(health)
    return [file for file in not_in_use(health) if time_held(file, current) > DRIFT_TOLERANCE]


def time_held(file: HeldFile, current: HeldFile | None) -> timedelta:
    """Return how long places have had ``file`` since ``current`` was applied."""
    if file.since is None or file.seen_at is None:
        return timedelta(0)
    applied_at = current.applied_at if current is not None else None
    return file.seen_at - max(file.since, applied_at or file.since)


def note(job: JobHealth, health: Health) -> str:
    """Return what explains the state of ``job``; "" if nothing has to be explained."""
    if job.paused:
        until = f" until {rfc3339(job.paused_until, 'seconds')}" if job.paused_until else ""
        reason = f": {job.paused_reason}" if job.paused_reason else ""
        age = f" {between(job.paused_at, health.now)} ago" if job.paused_at else ""
        return f"paused{age} by {job.paused_by or 'an operator'}{until}{reason}"
    if job.overdue_since:
        return f"since {rfc3339(job.overdue_since, 'seconds')}: {job.overdue_why}"
    if job.failure_streak:
        return error_text(job.last_error_type, job.last_error)
    if held_up := [each for each in health.held_up if each.job_type == job.job_type]:
        return f"held up by {held_up[0].because(health.now)}"
    if job.open_slot_run_id and job.next_slot_at and job.next_slot_at < health.now:
        if job.overlap == "skip":
            return f"the next slot will be skipped: run {job.open_slot_run_id} is unfinished"
        return f"the next slot waits for run {job.open_slot_run_id}"
    return ""
