"""The health of a namespace: the state of its jobs, and the files that its hosts present. Pure,
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
from yamlsched.runs.lifecycle import Status, error_text
from yamlsched.text import join_first
from yamlsched.timetable.calendars import of_rows, without_skipped
from yamlsched.timetable.cron import parse_schedule
from yamlsched.timetable.slots import next_slot
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.zones import zone

Row = TypeVar("Row")
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
class PresentedFile:
    """A version of schedules.yaml that is in force, or that hosts presented most recently."""

    hash: str
    environment: str
    in_force: bool
    applied_at: datetime | None
    applied_by: str | None  # host:path
    yamlsched_version: str | None
    tzdata_version: str | None
    commit: str | None  # this and the next three: of the file in force, if they are known
    is_dirty: bool
    author: str | None
    subject: str | None
    presented_since_at: datetime | None
    last_presented_at: datetime | None
    presented_by: list[str]  # host:path
    # of the file in force: nothing is pruned until an operator acts
    prune_failing_since: datetime | None = None
    prune_error: str | None = None  # host: reason


@dataclass(frozen=True)
class RefusedFile:
    """A place whose file has errors and is not applied."""

    place: str  # host:path
    mistakes: int
    since: datetime
    first_error: str | None = None


@dataclass(frozen=True)
class LackingHost:
    """A place that cannot start a job. It claims none of its runs."""

    job_type: str
    place: str  # host:path
    reason: str
    waits: bool  # for a variable of requires_env
    since: datetime
    is_everywhere: bool  # no place that ticks can start it
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

    ``due`` and ``executing`` are counted to some thousands.
    """

    queue: str
    due: int
    executing: int
    oldest_due_at: datetime | None
    live: int
    leaving: int


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
    files: list[PresentedFile]
    refused: list[RefusedFile]
    lacks: list[LackingHost]  # at most MAX_EFFECTS_IN_DOUBT
    workers: list[WorkerHost]
    queues: list[QueueHealth]
    lost_slots: list[LostSlots]
    limits: list[str]  # those for which runs wait, with who holds them
    calendars: list[EndingCalendar] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)  # targets of notifications that get none
    unwritten: list[UnwrittenJob] = field(default_factory=list)  # at most MAX_EFFECTS_IN_DOUBT
    held_up: list[HeldUp] = field(default_factory=list)


LISTS: dict[str, type[Any]] = {
    "stuck": StuckRun,
    "in_doubt": DoubtfulEffect,
    "files": PresentedFile,
    "refused": RefusedFile,
    "lacks": LackingHost,
    "workers": WorkerHost,
    "queues": QueueHealth,
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
"""How long hosts may present another file than the one in force: a rolling deploy has ended by
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
    """Return a sentence that says that a file is refused, and the first error, if it
    is recorded.
    """
    errors = "1 error" if file.mistakes == 1 else f"{file.mistakes} errors"
    _, _, path = file.place.partition(":")
    first = ": " + file.first_error.removeprefix(f"{path}:") if file.first_error else ""
    return (
        f"{file.place} has presented a file with {errors} since {rfc3339(file.since, 'seconds')};"
        f" not applied{first}"
    )


def lacks_by_reason(health: Health, job: str | None = None) -> list[list[LackingHost]]:
    """Return the places that cannot start a job for one reason, for each job and reason; with
    ``job``, of this one.
    """
    groups: dict[tuple[str, str], list[LackingHost]] = {}
    for host in health.lacks:
        if job is None or host.job_type == job:
            groups.setdefault((host.job_type, host.reason), []).append(host)
    return list(groups.values())


def lack(hosts: Sequence[LackingHost], now: datetime) -> str:
    """Return a sentence that says why hosts do not claim the runs of a job, and which host that
    could is down.
    """
    places = join_first([host.place for host in hosts], MAX_HOSTS)
    text = f"{places} cannot start job {hosts[0].job_type}: {hosts[0].reason}"
    return text + (f"; {able}" if (able := able_but_down(hosts[0], now)) else "")


def able_but_down(host: LackingHost, now: datetime) -> str:
    """Return which hosts could start the job and have stopped ticking; "" if there is none, or
    another host can.
    """
    if not host.is_everywhere or not host.down or host.down_at is None:
        return ""
    return (
        f"{join_first(host.down, MAX_HOSTS)}, which can start it, last ticked"
        f" {between(host.down_at, now)} ago"
    )


def lack_of(job: str, health: Health) -> list[str]:
    """Return why no host claims the runs of ``job``; empty if one that ticks can."""
    return [
        lack(hosts, health.now) for hosts in lacks_by_reason(health, job) if hosts[0].is_everywhere
    ]


def lacks_of_run(connection: psycopg.Connection[Any], run: StoredRun, now: datetime) -> list[str]:
    """Return why no host claims a run that is late to begin; empty for any other run."""
    if run.status not in (Status.QUEUED, Status.FAILED) or run.waits or run.run_at > now:
        return []
    return lack_of(run.job_type, read(connection, run.namespace, timedelta(hours=1), []))


def pruning(file: PresentedFile) -> str:
    """Return why nothing is pruned by the file in force; "" if pruning works."""
    if file.prune_failing_since is None:
        return ""
    return (
        f"pruning has failed since {rfc3339(file.prune_failing_since, 'seconds')}:"
        f" {file.prune_error}"
    )


def first_places(file: PresentedFile) -> str:
    return ", ".join(file.presented_by[:3]) + (" and others" if len(file.presented_by) > 3 else "")


def environment(file: PresentedFile) -> str:
    return f'environment "{file.environment}"' if file.environment else "no environment"


def in_force(health: Health) -> PresentedFile | None:
    """Return the file that was applied last."""
    return next((file for file in health.files if file.in_force), None)


def not_in_force(health: Health) -> Sequence[PresentedFile]:
    """Return the other files that hosts present: held back, of another environment, or not updated
    yet.
    """
    return [file for file in health.files if not file.in_force]


def drift(health: Health) -> list[PresentedFile]:
    """Return the files that have been presented for longer than a rolling deploy takes, but are not
    in force.
    """
    current = in_force(health)
    return [
        file for file in not_in_force(health) if time_presented(file, current) > DRIFT_TOLERANCE
    ]


def time_presented(file: PresentedFile, current: PresentedFile | None) -> timedelta:
    """Return how long ``file`` was presented since ``current`` was applied."""
    if file.presented_since_at is None or file.last_presented_at is None:
        return timedelta(0)
    applied_at = current.applied_at if current is not None else None
    return file.last_presented_at - max(
        file.presented_since_at, applied_at or file.presented_since_at
    )


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
