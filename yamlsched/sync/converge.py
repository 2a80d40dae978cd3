"""Converge job_definitions to a file, in one transaction that first accounts for what the old definitions owe."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from yamlsched import spread
from yamlsched.definitions.garbage import no_garbage_collection
from yamlsched.definitions.job import DEFAULT_ROW, Job, to_row
from yamlsched.errors import ScheduleError
from yamlsched.store import definitions, slots
from yamlsched.store.definitions import Definition
from yamlsched.store.edits import CHANGES
from yamlsched.store.slots import CursorMove
from yamlsched.sync import due, edits, slot_plan

if TYPE_CHECKING:
    from psycopg import Connection

MAX_STORED_NAMES = 20
"""Jobs of one kind of change that are stored by name."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of the jobs that a file changed, and the runs and gaps of what their old definitions ``owed``."""

    now: datetime
    added: tuple[str, ...]
    changed: tuple[str, ...]
    retired: tuple[str, ...]
    returned: tuple[str, ...]
    owed: due.DueResult
    unreadable: tuple[due.FailedJob, ...] = ()
    edits: tuple[dict[str, Any], ...] = ()  # how each of them changed: see edits.py

    def summary(self) -> dict[str, Any]:
        """Return how many jobs were added, changed, retired and returned, and the first of each, as JSON values."""
        found = {kind: getattr(self, kind) for kind in CHANGES}
        return {
            kind: {"jobs": len(names), "first": list(names[:MAX_STORED_NAMES])}
            for kind, names in found.items()
            if names
        }

    @property
    def problems(self) -> list[str]:
        """What needs attention, one line per job."""
        return [
            f'job "{job}" was changed, and its stored definition could not be read: {why}. Its slots since the last '
            "processed one are recorded as one gap, late"
            for job, why in self.owed.unreadable
        ] + due.DueResult(unreadable=list(self.unreadable)).problems


@no_garbage_collection()
def converge(
    connection: Connection[Any],
    namespace: str,
    jobs: dict[str, Job],
    now: datetime | None,
    recompute: bool,
    is_behind: bool,
) -> Changes:
    """Write what differs, inside the caller's transaction and under the namespace's lock.

    ``recompute``: the rules or the time zone data are newer than those that computed the stored next slots.
    ``is_behind``: the time zone data is older. Then a job whose stored next slot is in the future owes nothing.
    """
    rows = {name: to_row(job) for name, job in jobs.items()}
    differences = definitions.differences(connection, namespace, list(rows.values()), DEFAULT_ROW)
    known = {d.id for d in differences if d.id is not None}
    scheduled = definitions.ids_with_next_slot(connection, namespace) if recompute else []
    locked = definitions.lock(connection, known.union(scheduled))
    instant = slots.start_batch(connection, now)
    unreadable = _recompute(connection, locked) if recompute else []
    owing = [d for d in locked if d.id in known and not (is_behind and _is_ahead(d, instant))]
    owed = due.account_for_locked(connection, namespace, owing, instant)

    before = {d.job_type: d for d in definitions.lock(connection, known)}
    changed = edits.of_jobs(differences, edits.stored_jobs(connection, list(known)) if known else {}, jobs)
    written = [d.job_type for d in differences if not d.is_gone]
    if written:
        at = {"retired_at": None, "created_at": instant.isoformat(), "applied_at": instant.isoformat()}
        at["updated_at"] = at["applied_at"]
        definitions.put(
            connection,
            [
                DEFAULT_ROW
                | rows[name]
                | placement(jobs[name], before.get(name), instant)
                | at
                | {"namespace": namespace}
                for name in written
            ],
        )
    gone = [d for d in differences if d.is_gone and d.id is not None]
    if gone:
        definitions.retire(connection, [d.id for d in gone if d.id is not None], instant)
    overlap = [d.id for d in differences if d.id is not None and d.changes_overlap]
    if overlap:
        definitions.apply_overlap(connection, overlap, instant)
    edited = {name: d for name, d in before.items() if name in jobs and _has_other_starts(d, jobs[name])}
    if edited:
        offsets = {d.id: spread.offset(namespace, name, jobs[name].spread) for name, d in edited.items()}
        definitions.apply_spread(connection, offsets, instant)
    return Changes(
        now=instant,
        **{kind: tuple(d.job_type for d in differences if d.change == kind) for kind in CHANGES},
        owed=owed,
        unreadable=tuple(found for found in unreadable if found not in owed.unreadable),
        edits=tuple(changed),
    )


def _has_other_starts(before: Definition, job: Job) -> bool:
    """Return whether an edit changes when the runs of slots start. A job that loses its cron changes no run."""
    if job.cron is None:
        return False
    return (before.schedule, before.timezone, before.spread) != (job.cron.source, job.timezone, job.spread)


def _is_ahead(definition: Definition, now: datetime) -> bool:
    next_slot_at = definition.next_slot_at
    return next_slot_at is not None and next_slot_at > now and definition.paused_at is None


def placement(job: Job, before: Definition | None, now: datetime) -> dict[str, str | None]:
    """Return the slot columns of a definition written at ``now``, when its slots up to then are accounted for.

    A job that is new, returned, re-enabled, or whose cron or timezone changed counts slots from now on.
    """
    schedule = job.cron.source if job.cron else None
    effective_from, paused_at, paused_until = now, None, None
    if before is not None:
        paused_at, paused_until = before.paused_at, before.paused_until
        is_fresh = (
            before.retired_at is not None
            or (job.enabled and not before.enabled)
            or (schedule, job.timezone) != (before.schedule, before.timezone)
        )
        effective_from = now if is_fresh else before.effective_from
    after = max(now, effective_from, (before.last_slot_at if before else None) or now)
    next_slot_at = (
        slot_plan.next_slot_at(schedule, job.timezone, after, paused_at, paused_until) if job.enabled else None
    )
    return {
        "effective_from": effective_from.isoformat(),
        "next_slot_at": next_slot_at.isoformat() if next_slot_at else None,
    }


def _recompute(connection: Connection[Any], locked: list[Definition]) -> list[due.FailedJob]:
    """Compute the next slots again; return the jobs whose definition cannot be read, which keep theirs."""
    moves, unreadable = [], []
    for definition in locked:
        try:
            next_slot_at = slot_plan.next_slot_of(definition, definition.accounted_to)
        except ScheduleError as error:
            unreadable.append(due.FailedJob(definition.job_type, str(error)))
            continue
        if next_slot_at != definition.next_slot_at:
            cursor = definition.last_slot_at
            moves.append(CursorMove(definition.id, cursor, cursor, next_slot_at))
    if moves:
        slots.move_cursors(connection, moves)
    return unreadable
