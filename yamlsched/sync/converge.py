"""Converge job_definitions to a file, in one transaction that first accounts for what the old
definitions owe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from psycopg.types.json import Jsonb

from yamlsched.db.query import Connection, execute, fetch_column
from yamlsched.errors import ScheduleError
from yamlsched.runs import follow
from yamlsched.schedule.job import DEFAULT_ROW, Job, Limit, to_row
from yamlsched.sync import definitions, due, slot_plan, slot_rows
from yamlsched.sync.definitions import Definition, Difference
from yamlsched.sync.due import CHANGES, Changes
from yamlsched.sync.edits import job_edits
from yamlsched.sync.slot_plan import CursorMove, NewRun, SlotPlan
from yamlsched.timetable import keys


def converge(
    connection: Connection,
    namespace: str,
    jobs: Mapping[str, Job],
    limits: Mapping[str, Limit],
    now: datetime | None,
    recompute: bool,
    is_behind: bool,
) -> Changes:
    """Write what differs, inside the caller's transaction and under the namespace's lock.

    ``recompute``: the rules or the time zone data are newer than those that computed the stored
    next slots. ``is_behind``: the time zone data is older. Then a job whose stored next slot is in
    the future owes nothing.
    """
    differences = definitions.differences(connection, namespace, jobs)
    known = {d.id for d in differences if d.id is not None}
    # what follows a job waits for slots of its former cron
    closing = known.union(definitions.followers(connection, namespace, known))
    scheduled: list[int] = []
    if recompute:
        statement = "definitions.ids_with_next_slot"
        scheduled = fetch_column(connection, statement, namespace=namespace)
    locked = definitions.lock(connection, closing.union(scheduled))
    instant = slot_rows.start_batch(connection, now)
    if recompute:
        _set_next_slots(connection, locked)
    owing = [d for d in locked if d.id in closing and not (is_behind and _is_ahead(d, instant))]
    owed = due.account_for_locked(connection, namespace, owing, instant)

    edits = job_edits(connection, differences, jobs)
    _write_definitions(connection, namespace, differences, jobs, instant)
    move_runs(connection, namespace, differences, jobs, limits, instant)
    _apply_spread(connection, namespace, jobs, locked, instant)
    return Changes(
        now=instant,
        **{kind: tuple(d.job_type for d in differences if d.change == kind) for kind in CHANGES},
        owed=owed,
        edits=tuple(edits),
    )


def _write_definitions(
    connection: Connection,
    namespace: str,
    differences: Sequence[Difference],
    jobs: Mapping[str, Job],
    now: datetime,
) -> None:
    times = ("created_at", "applied_at", "updated_at", "effective_from")
    at = dict.fromkeys(times, now.isoformat())
    common = {"namespace": namespace, "retired_at": None, "next_slot_at": None, **at}
    names = [d.job_type for d in differences if d.change != "retired"]
    known = [d for d in differences if d.id is not None and d.change != "retired"]
    ids, priorities = [d.id for d in known], [int(jobs[d.job_type].priority) for d in known]
    execute(connection, "definitions.apply_priority", ids=ids, priorities=priorities)
    if names:
        put = [DEFAULT_ROW | to_row(jobs[name]) | common for name in names]
        execute(connection, "definitions.put", jobs=Jsonb(put))
        _set_next_slots(connection, definitions.named(connection, namespace, names), now)
    gone = [d.id for d in differences if d.change == "retired"]
    execute(connection, "definitions.retire", ids=gone, now=now)


def move_runs(
    connection: Connection,
    namespace: str,
    differences: Sequence[Difference],
    jobs: Mapping[str, Job],
    limits: Mapping[str, Limit],
    now: datetime,
) -> None:
    """Let the runs that exist follow the new definitions: their gates, their queues, and what they
    wait for.

    Without differences only the limits are written again if the database has others, for example
    after a partial restore.
    """
    known = sorted(d.id for d in differences if d.id is not None)
    names = [d.job_type for d in differences]
    former = definitions.limits(connection, namespace)
    capacities = {name: limit.max for name, limit in limits.items()}
    if not differences and former == capacities:
        return
    values = {"namespace": namespace, "ids": known, "now": now}
    execute(connection, "definitions.apply_overlap", **values)
    limited = sorted({*former, *capacities})
    # no claim decides about their runs meanwhile
    rows = execute(
        connection, "definitions.gates", namespace=namespace, names=names, limits=limited
    )
    gates = [row.name for row in rows]
    execute(connection, "definitions.lock_gates", namespace=namespace, gates=gates)
    if differences:
        followed = sorted({name for job in jobs.values() for name in job.after})
        execute(connection, "follow.mark_followed", namespace=namespace, names=followed)
    for statement in (
        "definitions.grant_turns",
        "follow.free",
        "definitions.apply_queue",
        "definitions.leave_gates",
        "follow.wake",
    ):
        execute(connection, statement, **values)
    numbers = [capacities.get(name) for name in limited]
    execute(
        connection, "definitions.put_limits", namespace=namespace, names=limited, numbers=numbers
    )
    execute(connection, "runs.promote", namespace=namespace, names=gates, now=now)


def _apply_spread(
    connection: Connection,
    namespace: str,
    jobs: Mapping[str, Job],
    before: Sequence[Definition],
    now: datetime,
) -> None:
    """Move the runs of slots that wait for their time, where an edit changes it."""
    edited = [d for d in before if d.job_type in jobs and changes_starts(d, jobs[d.job_type])]
    offsets = [keys.offset(namespace, d.job_type, jobs[d.job_type].spread) for d in edited]
    seconds = [offset.total_seconds() for offset in offsets]
    ids = [definition.id for definition in edited]
    execute(connection, "definitions.apply_spread", ids=ids, seconds=seconds, now=now)


def changes_starts(before: Definition, job: Job) -> bool:
    """Return whether an edit changes when the runs of slots start. A job that loses its cron
    changes no run.
    """
    if job.cron is None:
        return False
    return (before.schedule, before.timezone, before.spread) != (
        job.cron.source,
        job.timezone,
        job.spread,
    )


def rescheduled_runs(namespace: str, plan: SlotPlan, job: Job, now: datetime) -> list[NewRun]:
    """Return the runs of a plan that remain once their job is edited, with the starts that
    ``apply_spread`` gives them.

    Runs that wait for no other job any more are decided about at once, if their job is enabled: see
    ``follow.decide``.
    """
    before, runs = plan.definition, plan.runs
    if changes_starts(before, job):
        offset = keys.offset(namespace, job.name, job.spread)
        assert job.cron is not None
        edited = replace(
            before,
            schedule=job.cron.source,
            timezone=job.timezone,
            enabled=job.enabled,
            retired_at=None,
        )
        next_slot = slot_plan.next_slot_at(edited, max(now, before.accounted_to))
        latest = next_slot - keys.SECOND if next_slot else datetime.max.replace(tzinfo=UTC)
        runs = [
            run if run.run_at <= now else run._replace(run_at=min(run.slot + offset, latest))
            for run in runs
        ]
    if not before.after or not job.enabled or set(before.after) & set(job.after):
        return runs
    rules = follow.Rules(job.overlap, job.catchup, job.catchup_window, job.on_upstream_failure)
    freed = [follow.UnreleasedRun(n, run.slot, run.run_at, ()) for n, run in enumerate(runs)]
    decisions = follow.decide(rules, freed, is_busy=False, now=now)
    return [runs[one.run.id] for one in decisions if one.verdict != follow.SlotDecision.SKIP]


def _is_ahead(definition: Definition, now: datetime) -> bool:
    next_slot_at = definition.next_slot_at
    return next_slot_at is not None and next_slot_at > now and definition.paused_at is None


def _set_next_slots(
    connection: Connection, jobs: Sequence[Definition], accounted_to: datetime | None = None
) -> None:
    """Compute the next slots of jobs, after ``accounted_to`` or the slots that are accounted for.

    A job whose definition cannot be read keeps its own: it is reported when that is due.
    """
    moves = []
    for job in jobs:
        with suppress(ScheduleError):
            after = max(job.accounted_to, accounted_to or job.accounted_to)
            next_slot_at = slot_plan.next_slot_at(job, after)
            moves.append(CursorMove(job.id, job.last_slot_at, job.last_slot_at, next_slot_at))
    slot_rows.write_rows(connection, "slots.move_cursors", moves)
