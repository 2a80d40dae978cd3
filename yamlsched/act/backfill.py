"""Create the runs of a past range of slots, each under its own key. No slot runs twice. The cursor
does not move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from psycopg import Connection

from yamlsched.act import audit
from yamlsched.act.audit import ActionRecord
from yamlsched.ask.history import unknown_job
from yamlsched.db.query import execute
from yamlsched.errors import Refused
from yamlsched.sync import definitions, hosts, slot_plan, slot_rows
from yamlsched.sync.definitions import Definition
from yamlsched.sync.in_use import disabled
from yamlsched.sync.slot_plan import KeyHolder, NewRun
from yamlsched.timetable import times
from yamlsched.timetable.calendars import of_rows
from yamlsched.timetable.cron import parse_schedule, without_skipped
from yamlsched.timetable.keys import slot_key
from yamlsched.timetable.slots import Slot, next_slot, slots
from yamlsched.timetable.slots import span as slot_span
from yamlsched.timetable.times import TimeInput, bounds, short_utc
from yamlsched.timetable.zones import zone

MAX_COUNTED_SLOTS = 100_000
"""Of more slots, those that calendars skip are not looked for before they are listed."""
MICROSECOND = timedelta(microseconds=1)
LONGEST_GAP = timedelta(days=400)
"""Between two slots of a job, as far as it is looked for."""
CHUNK_SLOTS = 1000
"""Slots of one transaction: a sync waits no longer than for these."""


@dataclass(frozen=True)
class BackfillSlot:
    """A slot of the range; ``holder`` is the run that has its key already.

    ``upstream`` is a job that it follows and that has no run for it to wait for.
    """

    key: str
    scheduled_for: datetime
    holder: KeyHolder | None = None
    upstream: str = ""


@dataclass
class BackfillResult:
    """The slots that got a run, those that have one, and those whose key was used: by a pruned run,
    or another slot's.

    ``left_out`` are those whose upstream has no run. ``with_run`` are all slots that have a run
    now, by job.
    """

    made: list[BackfillSlot] = field(default_factory=list)
    existing: list[BackfillSlot] = field(default_factory=list)
    used: list[BackfillSlot] = field(default_factory=list)
    left_out: list[BackfillSlot] = field(default_factory=list)
    with_run: dict[str, set[datetime]] = field(default_factory=dict)
    future: bool = False

    @property
    def done(self) -> int:
        return len(self.made) + len(self.existing) + len(self.used) + len(self.left_out)


def definition_for(
    connection: Connection[Any], namespace: str, job_type: str, is_range: bool = True
) -> Definition:
    """Return the definition of a job with slots. Raises Refused if there is none.

    In a range, calendars skip slots. Without ``is_range``, one date or slot was named on purpose,
    and they do not.
    """
    definition = definitions.find(connection, namespace, job_type)
    if definition is None:
        raise unknown_job(job_type, namespace, definitions.names(connection, namespace))
    if definition.schedule is None:
        raise Refused(
            f'job "{job_type}" has no cron, so it has no slots: it runs when it is enqueued'
        )
    return definition if is_range else replace(definition, skip_on=[], only_on=[])


def read_range(
    first: TimeInput, last: TimeInput | None, where: ZoneInfo, now: datetime
) -> tuple[datetime, datetime]:
    """Return the first and the last instant of a range; without ``last``, those of the one date or
    time ``first``.
    """
    ends = [
        times.anchor(value, lambda: where, now, is_future=False)
        for value in (first, last)
        if value is not None
    ]
    return bounds(ends[0], where)[0], bounds(ends[-1], where)[1]


class Range(NamedTuple):
    """The slots of a job in [first, last], and how many of them are not in the future.

    Slots before ``left_out_before`` were asked for and are left out: the job was first applied on
    that date. So are ``skipped`` slots, on dates that calendars skip. These are not counted of very
    many slots.
    """

    job: Definition
    first: datetime
    last: datetime
    slots: int
    left_out_before: date | None = None
    skipped: int = 0


def select(
    connection: Connection[Any],
    job: Definition,
    first: datetime,
    last: datetime,
    before_first: bool = False,
) -> Range:
    """Return the slots in [first, last], with ``before_first`` also those from before the job was
    first applied.

    Raises Refused if all of the range is before that.
    """
    where = zone(job.timezone)
    day = job.created_at.astimezone(where).date()
    oldest = bounds(day, where)[0]
    is_cut = first < oldest and not before_first
    if is_cut and last < oldest:
        raise Refused(
            f'job "{job.job_type}" was first applied on {day}: pass --before-first to create runs'
            " of earlier slots"
        )
    first = oldest if is_cut else first
    end = min(last, slot_rows.start_batch(connection, None))
    assert job.schedule is not None
    span = slot_span(parse_schedule(job.schedule), where, first - MICROSECOND, end)
    number = all_slots = span.count if span else 0
    if (job.skip_on or job.only_on) and all_slots <= MAX_COUNTED_SLOTS:
        number = sum(1 for _ in slots_between(job, first, end))
    return Range(job, first, last, number, day if is_cut else None, all_slots - number)


def backfill(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    first: datetime,
    last: datetime,
    who: str,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    now: datetime | None = None,
    result: BackfillResult | None = None,
    is_downstream: bool = False,
) -> BackfillResult:
    """Create the missing runs of the slots in [first, last], oldest first, due at once, and add
    them to ``result``.

    Each chunk of slots is one transaction: an interruption keeps those before, and the same call
    continues. Future slots are left to sync. A dry run locks nothing, so that a role that may only
    read can make one. ``is_downstream`` leaves out slots without a run to wait for: one that
    exists, or that ``result`` has of jobs before. Raises Refused for a job that is retired or
    disabled, also during the backfill.
    """
    _check_active(connection, namespace, job)
    at = slot_rows.start_batch(connection, now)
    result = BackfillResult() if result is None else result
    result.future = last > at
    for chunk in _chunks(job, first, min(last, at)):
        with connection.transaction():
            slot_rows.start_batch(connection, now)
            # the lock waits for a sync that is creating the same runs, or is retiring the job
            for locked in [] if dry_run else definitions.lock(connection, [job.id]):
                _check_active(connection, namespace, locked)
            missing = _missing(connection, namespace, job, chunk, result)
            if is_downstream:
                missing = _startable(connection, namespace, job, missing, result, at)
            if missing and not dry_run:
                _create(connection, namespace, job, missing, who, at)
        result.made += missing
        result.with_run.setdefault(job.job_type, set()).update(
            slot.scheduled_for for slot in missing
        )
        progress(result.done)
    return result


def downstream(
    connection: Connection[Any], namespace: str, job: Definition, first: datetime, last: datetime
) -> list[Range]:
    """Return the slots of enabled jobs that wait for slots of ``job`` in [first, last], in the
    order of execution.

    They reach from its first slot to the next slot after the range: until then they wait for its
    last one.
    """
    ids = definitions.followers(connection, namespace, [job.id])
    followers = {follower.job_type: follower for follower in definitions.read(connection, ids)}
    ranges = {job.job_type: Range(job, first, last, 0)}
    while followers:
        ready = [each for each in followers.values() if not followers.keys() & set(each.after)]
        for follower in ready:
            del followers[follower.job_type]
            before = [ranges[name] for name in follower.after if name in ranges]
            if follower.enabled and before:
                first = min(_next_slot(one, one.first - MICROSECOND) or one.first for one in before)
                last = max(_end(one) for one in before)
                ranges[follower.job_type] = select(connection, follower, first, last, True)
    return list(ranges.values())[1:]


def _end(upstream: Range) -> datetime:
    following = _next_slot(upstream, upstream.last)
    return upstream.last if following is None else following - MICROSECOND


def _next_slot(upstream: Range, after: datetime) -> datetime | None:
    assert upstream.job.schedule is not None
    following = next_slot(parse_schedule(upstream.job.schedule), zone(upstream.job.timezone), after)
    return following.at if following else None


def _check_active(connection: Connection[Any], namespace: str, job: Definition) -> None:
    if job.retired_at is not None:
        raise Refused(
            f'job "{job.job_type}" is retired: it was removed from schedules.yaml, and no worker'
            " would run its slots"
        )
    if not job.enabled:
        why = disabled(hosts.environment_in_use(connection, namespace))
        raise Refused(f'job "{job.job_type}" {why}: enable it to run its slots')


def _chunks(job: Definition, first: datetime, last: datetime) -> Iterator[list[BackfillSlot]]:
    assert job.schedule is not None
    cron, slots = parse_schedule(job.schedule), slots_between(job, first, last)
    while chunk := [
        BackfillSlot(slot_key(job.job_type, cron, slot), slot.at)
        for slot in islice(slots, CHUNK_SLOTS)
    ]:
        yield chunk


def slots_between(job: Definition, first: datetime, last: datetime) -> Iterator[Slot]:
    """Yield the slots in [first, last] that no calendar skips."""
    assert job.schedule is not None
    fires = without_skipped(
        parse_schedule(job.schedule), of_rows(job.skip_on), of_rows(job.only_on)
    )
    return slots(fires, zone(job.timezone), first - MICROSECOND, last)


def _missing(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    chunk: list[BackfillSlot],
    result: BackfillResult,
) -> list[BackfillSlot]:
    """Return the slots of a chunk that have no run; add the others to ``result``."""
    holders = slot_rows.key_holders(connection, namespace, [slot.key for slot in chunk])
    for slot in chunk:
        holder = holders.get(slot.key)
        if holder is not None:
            has_run = holder.status is not None and holder.belongs_to(
                job.job_type, slot.scheduled_for
            )
            (result.existing if has_run else result.used).append(replace(slot, holder=holder))
            if has_run:
                result.with_run.setdefault(job.job_type, set()).add(slot.scheduled_for)
    return [slot for slot in chunk if slot.key not in holders]


def _startable(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    missing: list[BackfillSlot],
    result: BackfillResult,
    now: datetime,
) -> list[BackfillSlot]:
    """Return the slots that have a run of each upstream to wait for; add the others to
    ``result``.
    """
    lacking: dict[str, str] = {}
    others = []
    for name, upstream in slot_rows.followed(connection, namespace, [job]).items():
        with_run = result.with_run.get(name)
        for slot in missing:
            start = (
                upstream.effective_from if with_run is None else slot.scheduled_for - LONGEST_GAP
            )
            awaited = slot_plan.awaited_slot(
                upstream.schedule, upstream.timezone, start, slot.scheduled_for
            )
            if with_run is None:
                others.append((slot.key, upstream.id, awaited, slot.scheduled_for))
            elif awaited not in with_run:
                lacking[slot.key] = name
    if others:
        columns = zip(
            ("key", "upstream", "slot", "at"), map(list, zip(*others, strict=True)), strict=True
        )
        rows = execute(connection, "follow.without_run", **dict(columns), now=now)
        lacking = {row.key: row.upstream for row in rows} | lacking
    result.left_out += [
        replace(slot, upstream=lacking[slot.key]) for slot in missing if slot.key in lacking
    ]
    return [slot for slot in missing if slot.key not in lacking]


def _create(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    missing: list[BackfillSlot],
    who: str,
    at: datetime,
) -> None:
    runs = [NewRun(job.id, slot.key, slot.scheduled_for, at) for slot in missing]
    common = {"namespace": namespace, "now": at}
    written = slot_rows.write_rows(connection, "slots.create_runs", runs, **common, by_hand=True)
    if written != len(runs):
        raise Refused(
            f'keys of job "{job.job_type}" were used by other sessions in the meantime: run'
            " backfill again"
        )
    upstreams = slot_rows.followed(connection, namespace, [job])
    slot_rows.await_upstreams(connection, namespace, [job], runs, upstreams, at)
    execute(connection, "follow.wake", ids=[job.id], **common)
    execute(connection, "runs.wake", namespace=namespace)
    detail = {
        "first": short_utc(missing[0].scheduled_for),
        "last": short_utc(missing[-1].scheduled_for),
        "runs": len(runs),
    }
    record = ActionRecord(namespace, f"job:{job.job_type}", job.job_type, detail)
    audit.record(connection, who, "backfill", [record], at)
