"""Converge job_definitions to a file, in one transaction that first accounts for what the old
definitions owe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from yamlsched import secret_forms
from yamlsched.db.query import fetch_column, load
from yamlsched.errors import ScheduleError, YamlschedError
from yamlsched.runs import follow
from yamlsched.runs.lifecycle import Keep
from yamlsched.schedule.job import DEFAULT_ROW, KEYS, Job, Limit, Output, from_row, to_row
from yamlsched.schedule.load import Loaded
from yamlsched.sync import definitions, due, field_changes, slot_plan
from yamlsched.sync.definitions import Definition, Difference
from yamlsched.sync.due import CHANGES, Changes
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.revision import Revision
from yamlsched.sync.slot_plan import CursorMove, NewRun, SlotPlan
from yamlsched.timetable import keys


def edited_definitions(connection: Connection[Any], ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return whole rows of job_definitions."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(load("edits")["definitions"], {"ids": list(ids)}).fetchall()


def latest_settings(connection: Connection[Any], namespace: str) -> dict[str, Any] | None:
    """Return what the file that was applied last says outside of its jobs; None if
    there is none.
    """
    return next(
        iter(fetch_column(connection, load("edits")["latest_settings"], {"namespace": namespace})),
        None,
    )


def insert_edit(
    connection: Connection[Any], edit: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]
) -> int:
    """Record an edit, in the caller's transaction; return how many of ``jobs`` were recorded.

    ``edit`` has the columns that are not JSON as they are, and those that are as JSON values.
    """
    as_json = {name: Jsonb(edit[name]) for name in ("counts", "after", "settings")}
    before = None if edit["before"] is None else Jsonb(edit["before"])
    parameters = {**edit, **as_json, "before": before, "jobs": Jsonb(jobs)}
    return connection.execute(load("edits")["record"], parameters).rowcount


MAX_VALUE_CHARS = 2_000
"""Of one value, as JSON, that are recorded."""
DEFAULTS = Job("")
COMMAND_DEFAULTS = Job("", output=Output(Keep.ALWAYS))
_values = attrgetter(*KEYS)


class StoredJob(NamedTuple):
    """A job as it is stored; None if this release cannot read it. ``schedule`` is its cron,
    readable or not.
    """

    job: Job | None
    schedule: str | None


def stored_jobs(connection: Connection[Any], ids: list[int]) -> dict[str, StoredJob]:
    """Return jobs as they are stored, by name."""
    return {
        row["job_type"]: StoredJob(_job(row), row["schedule"])
        for row in edited_definitions(connection, ids)
    }


def _job(row: dict[str, Any]) -> Job | None:
    try:
        return from_row(row)
    except (YamlschedError, ValueError, KeyError, TypeError):
        return None


def of_jobs(
    differences: Iterable[Difference], before: Mapping[str, StoredJob], jobs: Mapping[str, Job]
) -> list[dict[str, Any]]:
    """Return how each job changes, as the columns of edited_jobs with the job's name."""
    return [
        _of_job(change, before.get(change.job_type), jobs.get(change.job_type))
        for change in differences
    ]


def _of_job(difference: Difference, stored: StoredJob | None, new: Job | None) -> dict[str, Any]:
    old = stored.job if stored else None
    one_side = new or old or DEFAULTS
    defaults = COMMAND_DEFAULTS if one_side.command else DEFAULTS
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    if stored and new:
        differing = list(_differing(old or defaults, new))
        fields = field_changes.of_job(
            _keys(old, differing) if old else None,
            _keys(new, differing),
            _keys(defaults, differing),
        )
        before = {change.field: _shown(change.field, change.before) for change in fields}
        after = {change.field: _shown(change.field, change.after) for change in fields}
        if old and old.cron is None and "cron" in before:
            before["cron"] = stored.schedule
    elif stored:
        before = _set_keys(old or defaults, defaults)
    elif new:
        after = _set_keys(new, defaults)
    return {
        "job_type": difference.job_type,
        "change": difference.change,
        "before": before,
        "after": after,
    }


def _differing(job: Job, other: Job) -> Iterator[str]:
    """Yield the keys that differ. Most are alike: only the others are made readable."""
    for key, a, b in zip(KEYS, _values(job), _values(other), strict=True):
        if a is not b and (
            a != b or (a and isinstance(a, dict) and not field_changes.is_same(a, b))
        ):
            yield key


def _set_keys(job: Job, defaults: Job) -> dict[str, Any]:
    """Return the keys of a job that differ from the defaults."""
    pairs = ((key, KEYS[key](getattr(job, key))) for key in _differing(job, defaults))
    return {key: _shown(key, value) for key, value in pairs if value is not None}


def _keys(job: Job, keys: Iterable[str]) -> dict[str, Any]:
    return {key: KEYS[key](getattr(job, key)) for key in keys}


def _shown(field: str, value: Any) -> Any:
    """Return a value as it is recorded: without secrets, and as a string if it is long."""
    if value is None:
        return None
    if field == "command":
        kept = secret_forms.mask_command(value)
    else:
        kept = secret_forms.mask_value(field.rpartition(".")[2], value)
    if not isinstance(kept, (str, list, dict)):
        return kept
    text = kept if isinstance(kept, str) else json.dumps(kept, ensure_ascii=False)
    return kept if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "…"


def record(
    connection: Connection[Any],
    schedule: ScheduleFile,
    loaded: Loaded,
    revision: Revision,
    changes: Changes,
) -> None:
    """Record the edit that applies a file, in the caller's transaction."""
    namespace = str(loaded.namespace)
    settings = field_changes.settings(loaded)
    former = latest_settings(connection, namespace)
    fields = list(field_changes.of_settings(former, settings)) if former is not None else []
    recorded = insert_edit(
        connection,
        {
            "namespace": namespace,
            "environment": schedule.environment,
            "hash": schedule.sha256,
            "host": schedule.host,
            "path": schedule.path,
            "yamlsched_version": schedule.version.yamlsched_version,
            "commit": revision.commit,
            "is_dirty": revision.is_dirty,
            "author": revision.author,
            "subject": revision.subject,
            "counts": changes.summary(),
            "before": (
                None if former is None else {change.field: change.before for change in fields}
            ),
            "after": {change.field: change.after for change in fields},
            "settings": settings,
            "now": changes.now,
        },
        changes.edits,
    )
    assert recorded == len(changes.edits)


def converge(
    connection: Connection[Any],
    namespace: str,
    jobs: dict[str, Job],
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
    rows = {name: to_row(job) for name, job in jobs.items()}
    differences = definitions.differences(connection, namespace, list(rows.values()), DEFAULT_ROW)
    known = {d.id for d in differences if d.id is not None}
    scheduled: list[int] = []
    if recompute:
        scheduled = fetch_column(
            connection, load("definitions")["ids_with_next_slot"], {"namespace": namespace}
        )
    followers = definitions.followers(connection, namespace, known)
    locked = definitions.lock(connection, known.union(scheduled, followers))
    instant = due.start_batch(connection, now)
    unreadable = _recompute(connection, locked) if recompute else []
    # what follows a job waits for slots of its former cron
    owing = [
        d
        for d in locked
        if d.id in known.union(followers) and not (is_behind and _is_ahead(d, instant))
    ]
    owed = due.account_for_locked(connection, namespace, owing, instant)

    before = {d.job_type: d for d in definitions.lock(connection, known)}
    changed = of_jobs(differences, stored_jobs(connection, list(known)) if known else {}, jobs)
    at = dict.fromkeys(("created_at", "applied_at", "updated_at"), instant.isoformat())
    common = {"namespace": namespace, "retired_at": None, **at}
    if put := [
        DEFAULT_ROW | rows[name] | placement(jobs[name], before.get(name), instant) | common
        for name in (d.job_type for d in differences if not d.is_gone)
    ]:
        _execute(connection, "put", jobs=Jsonb(put))
    if gone := [d.id for d in differences if d.is_gone and d.id is not None]:
        _execute(connection, "retire", ids=gone, now=instant)
    _move_runs(connection, namespace, differences, jobs, limits, instant)
    edited = {
        name: d for name, d in before.items() if name in jobs and _has_other_starts(d, jobs[name])
    }
    if edited:
        offsets = [keys.offset(namespace, name, jobs[name].spread) for name in edited]
        seconds = [offset.total_seconds() for offset in offsets]
        ids = [d.id for d in edited.values()]
        _execute(connection, "apply_spread", ids=ids, seconds=seconds, now=instant)
    return Changes(
        now=instant,
        **{kind: tuple(d.job_type for d in differences if d.change == kind) for kind in CHANGES},
        owed=owed,
        unreadable=tuple(job for job in unreadable if job not in owed.unreadable),
        edits=tuple(changed),
    )


def _move_runs(
    connection: Connection[Any],
    namespace: str,
    differences: Sequence[Difference],
    jobs: Mapping[str, Job],
    limits: Mapping[str, Limit],
    now: datetime,
) -> None:
    """Let the runs that exist follow the new definitions: their gates, their queues, and what they
    wait for.
    """
    known = sorted(d.id for d in differences if d.id is not None)
    if overlap := [d.id for d in differences if d.id is not None and d.changes_overlap]:
        _execute(connection, "apply_overlap", ids=overlap, now=now)
    former, numbers = definitions.limits(connection, namespace), _numbers(limits)
    gates: list[str] = []
    if differences or former != numbers:
        names = [d.job_type for d in differences]
        gates = definitions.lock_gates(connection, namespace, names, sorted({*former, *limits}))
    if overlap:
        _execute(connection, "grant_turns", ids=overlap)
    followed = sorted({name for job in jobs.values() for name in job.after})
    _execute(connection, "mark_followed", "follow", namespace=namespace, names=followed)
    if known:
        _execute(connection, "free", "follow", ids=known)
        _execute(connection, "apply_queue", ids=known)
        _execute(connection, "leave_gates", namespace=namespace, ids=known, now=now)
        due.wake_followers(connection, namespace, known, now)
    _put_limits(connection, namespace, former, numbers)
    if gates:
        _execute(connection, "promote", "runs", namespace=namespace, names=gates, now=now)


def _execute(
    connection: Connection[Any], name: str, file: str = "definitions", **values: Any
) -> None:
    connection.execute(load(file)[name], values)


def repair_limits(
    connection: Connection[Any], namespace: str, limits: Mapping[str, Limit], now: datetime | None
) -> None:
    """Write the limits of the file in use again if the database has others, for example after a
    partial restore.
    """
    former, numbers = definitions.limits(connection, namespace), _numbers(limits)
    if former != numbers:
        gates = definitions.lock_gates(connection, namespace, [], sorted({*former, *limits}))
        _put_limits(connection, namespace, former, numbers)
        instant = due.start_batch(connection, now)
        _execute(connection, "promote", "runs", namespace=namespace, names=gates, now=instant)


def _numbers(limits: Mapping[str, Limit]) -> dict[str, int]:
    """Return how many runs may execute under each limit. Its jobs have by which values."""
    return {name: limit.max for name, limit in limits.items()}


def _put_limits(
    connection: Connection[Any],
    namespace: str,
    former: Iterable[str],
    numbers: Mapping[str, int],
) -> None:
    if former or numbers:
        names = sorted({*former, *numbers})
        put = [numbers.get(name) for name in names]
        _execute(connection, "put_limits", namespace=namespace, names=names, numbers=put)


def _has_other_starts(before: Definition, job: Job) -> bool:
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


def moved(namespace: str, plan: SlotPlan, job: Job, now: datetime) -> list[NewRun]:
    """Return the runs of a plan that remain once their job is edited, with the starts that
    ``apply_spread`` gives them.

    Runs that wait for no other job any more are decided about at once, if their job is enabled: see
    ``follow.decide``.
    """
    before, runs = plan.definition, plan.runs
    if _has_other_starts(before, job):
        offset = keys.offset(namespace, job.name, job.spread)
        next_slot = placement(job, before, now)["next_slot_at"]
        latest = (
            datetime.fromisoformat(next_slot) - keys.SECOND
            if next_slot
            else datetime.max.replace(tzinfo=UTC)
        )
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


def placement(job: Job, before: Definition | None, now: datetime) -> dict[str, str | None]:
    """Return the slot columns of a definition written at ``now``, when its slots up to then are
    accounted for.

    A job that is new, returned, re-enabled, or whose cron or timezone changed counts slots from now
    on.
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
        slot_plan.next_slot_at(schedule, job.timezone, after, paused_at, paused_until)
        if job.enabled
        else None
    )
    return {
        "effective_from": effective_from.isoformat(),
        "next_slot_at": next_slot_at.isoformat() if next_slot_at else None,
    }


def _recompute(connection: Connection[Any], locked: list[Definition]) -> list[due.FailedJob]:
    """Compute the next slots again; return the jobs whose definition cannot be read, which keep
    theirs.
    """
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
        due.move_cursors(connection, moves)
    return unreadable
