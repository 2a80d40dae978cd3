"""What the next sync would do to a database: the pure parts of sync, on one state of it that is
only read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.rows import dict_row

from yamlsched.db.query import execute, fetch_column, load
from yamlsched.errors import ScheduleError
from yamlsched.extras.preview import model, notes, slot_changes
from yamlsched.extras.preview.diff import compare, file_side
from yamlsched.extras.preview.model import Entry, Preview, Side, SyncPlan, note, warning
from yamlsched.schedule.job import Job, Retention, from_row
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.values import parse
from yamlsched.sync import (
    converge,
    definitions,
    due,
    edits,
    field_changes,
    hosts,
    slot_plan,
    slot_rows,
)
from yamlsched.sync.definitions import Definition
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.in_use import decide, explain, is_newer
from yamlsched.sync.slot_plan import KeyHolder
from yamlsched.timetable.times import rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedDefinition(Definition):
    """A whole row of job_definitions."""

    job: Job
    paused_by: str | None
    paused_reason: str | None


@contextmanager
def snapshot(connection: Connection[Any]) -> Iterator[None]:
    """Execute the block in one read-only snapshot of the database; it is always rolled back."""
    with connection.transaction():
        execute(connection, "preview.begin")
        yield
        raise psycopg.Rollback


def applied_definitions(connection: Connection[Any], namespace: str) -> list[AppliedDefinition]:
    """Return all jobs of a namespace, by name."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(load("history")["jobs"], {"namespace": namespace})
        rows = cursor.fetchall()
    names = [field.name for field in fields(AppliedDefinition) if field.name != "job"]
    return [
        AppliedDefinition(job=from_row(row), **{name: row[name] for name in names}) for row in rows
    ]


DAY = timedelta(days=1)
DATABASE = "the database"
"""The name of the base of a plan."""


def read(
    connection: Connection[Any],
    schedule: ScheduleFile,
    loaded: Loaded,
    days: int,
    now: datetime | None = None,
) -> Preview:
    """Return what syncing a valid file would do. The database is only read, in a transaction that
    is rolled back.
    """
    namespace = loaded.namespace or "default"
    parameters = {"namespace": namespace, "host": schedule.host, "path": schedule.path}
    with snapshot(connection):
        seen = hosts.poll(connection, schedule, now, namespace, is_valid=True, writes=False)
        in_use, at = seen.in_use, seen.now
        until = at + days * DAY
        stored = applied_definitions(connection, namespace)
        differences = definitions.differences(connection, namespace, loaded.jobs)
        is_recomputed = in_use is not None and is_newer(schedule.version, in_use)
        changed = {change.id for change in differences if change.id is not None}
        retires = any(change.change == "retired" for change in differences)
        verdict = decide(seen, schedule, retires)
        plan = SyncPlan(
            schedule.path,
            schedule.version,
            verdict,
            explain(verdict, seen, schedule),
            seen,
        )
        closing = changed.union(definitions.followers(connection, namespace, changed))
        _account(plan, connection, namespace, stored, closing, at, is_recomputed, loaded.jobs)

        entries = {
            row.job_type: Entry(row.job, row.job.enabled, None)
            for row in stored
            if row.retired_at is None
        }
        retired = tuple(row.job_type for row in stored if row.retired_at is not None)
        base = Side(DATABASE, namespace, entries, retired=retired)
        kept = execute(connection, "retention.in_use", **parameters, now=None)
        if stored_retention := kept.fetchall()[0].retention:
            base = replace(base, retention=parse(Retention, stored_retention))
        head = file_side(schedule.path, loaded, schedule.environment)
        head = replace(
            head,
            entries={
                name: replace(new, is_enabled=new.job.enabled, environments=None)
                for name, new in head.entries.items()
            },
        )
        keys = list(_edited_keys(base, head, at, until))
        holders = slot_rows.key_holders(connection, namespace, keys)
        holders |= {
            run.idempotency_key: KeyHolder(run.job_type, run.scheduled_for) for run in plan.runs
        }
        others = fetch_column(connection, "preview.other_namespaces", **parameters)
        former = edits.latest_settings(connection, namespace)
        retired_at = {
            row.id: row.retired_at or at
            for row in stored
            if row.job_type not in loaded.jobs and (row.retired_at is not None or row.id in changed)
        }
        unfinished = execute(
            connection, "history.unfinished", **parameters, ids=list(retired_at)
        ).fetchall()
    edit = compare(base, head, at, until, schedule.environment or None, holders)
    if former is not None:
        settings = field_changes.settings(loaded)
        edit = replace(edit, fields=tuple(field_changes.settings_changes(former, settings)))
    returned = {
        row.job_type: row.retired_at
        for row in stored
        if row.retired_at is not None and row.job_type in loaded.jobs
    }
    plan.returned += sorted(returned)
    names = {row.id: row.job_type for row in stored}
    plan.leaving += [
        model.LeavingRuns(
            names[row.definition_id], row.runs, row.running, retired_at[row.definition_id] + DAY
        )
        for row in sorted(unfinished, key=lambda row: names[row.definition_id])
    ]
    plan.paused += _paused(stored, head, at)
    return replace(_with_database_notes(edit, returned, others), plan=plan)


def _account(
    plan: SyncPlan,
    connection: Connection[Any],
    namespace: str,
    stored: Iterable[AppliedDefinition],
    closing: set[int],
    now: datetime,
    is_recomputed: bool,
    file: Mapping[str, Job],
) -> None:
    """Add to ``plan`` what happens to due slots: all of the jobs ``closing``, else those that a
    sync processes now.

    ``is_recomputed``: this release or its time zone data is newer than what computed the stored
    next slots.
    """
    owing: list[AppliedDefinition] = []
    for definition in stored:
        next_slot_at = definition.next_slot_at
        if is_recomputed and next_slot_at is not None and definition.id not in closing:
            try:
                next_slot_at = slot_plan.next_slot_at(definition, definition.accounted_to)
            except ScheduleError as error:
                plan.unreadable.append(f"{definition.job_type}: {error}")
                continue
        if definition.id in closing or (next_slot_at is not None and next_slot_at <= now):
            owing.append(definition)
    open_slots = slot_rows.earliest_open_slots(connection, namespace, [row.id for row in owing])
    ready: dict[bool, list[AppliedDefinition]] = {True: [], False: []}
    for row in owing:
        if row.id in closing or not due.is_waiting(row, open_slots):
            ready[row.id in closing].append(row)
        else:
            assert row.next_slot_at is not None
            plan.waiting.append(
                model.WaitingSlot(row.job_type, row.next_slot_at, open_slots[row.id])
            )
    for is_closing, jobs in ready.items():
        plans, unreadable = due.plan_slots(connection, namespace, jobs, open_slots, now, is_closing)
        plan.unreadable += [f"{job}: {why}" for job, why in unreadable]
        for decided in plans:
            job, edited = decided.definition.job_type, file.get(decided.definition.job_type)
            for run in (
                converge.rescheduled_runs(namespace, decided, edited, now)
                if edited
                else decided.runs
            ):
                plan.runs.append(model.PlannedRun(job, run.key, run.slot, run.run_at, is_closing))
            plan.skipped += [
                model.SkippedSlots(job, g.first, g.last, g.slots, g.reason) for g in decided.gaps
            ]
    plan.runs.sort(key=lambda run: run.job_type)
    plan.skipped.sort(key=lambda skipped: skipped.job_type)


def _edited_keys(base: Side, head: Side, at: datetime, until: datetime) -> Iterator[str]:
    """Yield the keys of future slots that the edit may have made collide."""
    for name, entry in head.entries.items():
        before = base.entries.get(name)
        if slot_changes.rule(entry.job) != slot_changes.rule(before.job if before else None):
            yield from (key for key, _ in slot_changes.date_keys(entry.job, at, until))


def _with_database_notes(
    edit: Preview, returned: Mapping[str, datetime | None], others: list[str]
) -> Preview:
    """Add what only the database knows: jobs that return, and other namespaces of this file."""
    jobs = list(edit.jobs)
    for nth, job in enumerate(jobs):
        since = returned.get(job.job_type)
        if since is not None:
            text = (
                f"it was retired at {rfc3339(since, 'seconds')} and returns with its history and"
                " its keys"
            )
            jobs[nth] = replace(job, notes=(note(text), *job.notes), looks_like=None)
    about_file = edit.notes
    if others:
        text = (
            f"this host has also applied this path to {', '.join(others)}: the jobs there are not"
            f" retired by a file that names {edit.head.namespace}"
        )
        about_file = (*about_file, warning(text))
    return replace(edit, jobs=tuple(jobs), notes=about_file)


def _paused(
    stored: Iterable[AppliedDefinition], head: Side, now: datetime
) -> Iterator[model.PausedJob]:
    for row in stored:
        name, since, until = row.job_type, row.paused_at, row.paused_until
        is_over = until is not None and until <= now
        if since is not None and not is_over and (row.retired_at is None or name in head.entries):
            yield model.PausedJob(
                name, since, until, row.paused_by, row.paused_reason, notes.followers(name, head)
            )
