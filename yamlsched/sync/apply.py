"""Reading a file that is not known to be in force: checking it, applying it, or saying why not."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched import log
from yamlsched.definitions import checks, formats, load
from yamlsched.definitions.checks import Checked
from yamlsched.definitions.job import Job
from yamlsched.definitions.load import Loaded
from yamlsched.store import definitions
from yamlsched.store import files as store
from yamlsched.store.connection import reason
from yamlsched.store.files import FileState
from yamlsched.sync import converge, in_force
from yamlsched.sync.model import ScheduleFile, SyncResult, Verdict, is_older, newest_version

if TYPE_CHECKING:
    from psycopg import Connection

NOT_APPLIED = (Verdict.HELD_BACK, Verdict.OTHER_ENVIRONMENT)


def read(
    connection: Connection[Any], schedule: ScheduleFile, now: datetime | None, at_once: bool, result: SyncResult
) -> None:
    """Decide about a file that is not in force, and apply it if it is to be."""
    if result.namespace is not None:
        # A file that was read before: one that is held back is not read again every minute.
        state = store.state(connection, result.namespace, schedule.presented(), now)
        result.verdict = in_force.decide(state, schedule.version, at_once)
        if result.verdict in NOT_APPLIED:
            _hold_back(schedule, state, result)
            return

    loaded, checked = _check(schedule)
    result.jobs, result.is_readable = checked.jobs, loaded.is_readable
    if checked.errors or loaded.namespace is None:
        _refuse(connection, schedule, now, loaded, checked, result)
        return
    result.namespace = loaded.namespace
    # before the transaction, which may take long: the next tick of this host presents the file, too
    store.present(connection, loaded.namespace, schedule.presented(), now)
    with connection.transaction():
        _apply(connection, schedule, now, at_once, loaded, result)
    if result.changes:
        log.info(
            "sync.applied",
            file=schedule.path,
            hash=schedule.version.hash[:8],
            added=len(result.changes.added),
            changed=len(result.changes.changed),
            retired=len(result.changes.retired),
            returned=len(result.changes.returned) or None,
        )
        result.find(*result.changes.problems)


def fail(
    connection: Connection[Any], schedule: ScheduleFile, now: datetime | None, error: Exception, result: SyncResult
) -> None:
    """Report that a file could not be applied now. The work goes on, except in another environment."""
    result.verdict, result.changes = None, None
    why = reason(error) if isinstance(error, psycopg.Error) else str(error)
    log.warning("sync.failed", file=schedule.path, hash=schedule.version.hash[:8], error=why)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        why = "another session holds a lock that this needs (pg_stat_activity shows which)"
    result.find(f"{schedule.path} is not applied: {why}. The next tick tries again")
    if result.namespace is not None:
        state = store.state(connection, result.namespace, schedule.presented(), now)
        if in_force.is_of_another_environment(state, schedule.version):
            result.verdict = Verdict.OTHER_ENVIRONMENT
            _hold_back(schedule, state, result)


def _check(schedule: ScheduleFile) -> tuple[Loaded, Checked]:
    loaded = load.load(schedule.data, schedule.path, schedule.environment or None)
    return loaded, checks.check(loaded, Path(schedule.path), schedule.handler_path)


def _refuse(
    connection: Connection[Any],
    schedule: ScheduleFile,
    now: datetime | None,
    loaded: Loaded,
    checked: Checked,
    result: SyncResult,
) -> None:
    """Report the errors of a file, and let the one that this host presented before stand for it."""
    presented, errors = schedule.presented(), max(1, len(checked.errors))
    result.namespace = store.keep_presenting(connection, presented, now, errors, loaded.namespace) or loaded.namespace
    result.find(*(formats.text(found) for found in checked.errors))
    log.error("sync.refused", file=schedule.path, hash=schedule.version.hash[:8], mistakes=errors)
    _report_left_out(schedule, loaded, checked.jobs, errors)
    if result.namespace is not None:
        state = store.state(connection, result.namespace, presented, now)
        if in_force.is_of_another_environment(state, schedule.version):
            result.verdict = Verdict.OTHER_ENVIRONMENT
            _hold_back(schedule, state, result)


def _apply(
    connection: Connection[Any],
    schedule: ScheduleFile,
    now: datetime | None,
    at_once: bool,
    loaded: Loaded,
    result: SyncResult,
) -> None:
    """Apply a valid file inside the caller's transaction, if it is not held back."""
    version, presented, namespace = schedule.version, schedule.presented(), loaded.namespace
    assert namespace is not None
    store.lock_namespace(connection, namespace, in_force.OPERATOR_LOCK_WAIT if at_once else in_force.LOCK_WAIT)
    state = store.state(connection, namespace, presented, now)
    result.verdict = in_force.decide(state, version, at_once)
    if result.verdict in NOT_APPLIED:
        _hold_back(schedule, state, result)
    if result.verdict in (Verdict.APPLY, Verdict.RENEW):
        is_newer_here = state.in_force_id is not None and not version.is_covered_by(
            state.in_force_yamlsched, state.in_force_tzdata
        )
        is_behind = is_older(version.tzdata_version, state.in_force_tzdata or "")
        changes = converge.converge(connection, namespace, loaded.jobs, now, is_newer_here, is_behind)
        if result.verdict is Verdict.APPLY:
            retention = loaded.retention.to_row()
            store.mark_applied(connection, namespace, presented, retention, changes.now)
        elif state.in_force_id is not None:
            # of hosts with crossed versions each would otherwise find the other's older, again and again
            newest = newest_version(state.in_force_yamlsched, version.yamlsched_version)
            tzdata = newest_version(state.in_force_tzdata, version.tzdata_version)
            store.mark_renewed(connection, state.in_force_id, newest, tzdata)
        result.changes = changes


def _hold_back(schedule: ScheduleFile, state: FileState, result: SyncResult) -> None:
    assert result.verdict is not None
    result.messages.append(in_force.explain(result.verdict, state, schedule.path, schedule.version))
    if result.verdict is Verdict.OTHER_ENVIRONMENT or in_force.is_held_too_long(state):
        result.has_findings = True


def inspect_file(
    connection: Connection[Any], schedule: ScheduleFile, namespace: str | None, now: datetime | None
) -> SyncResult:
    """Return where a file stands that is not known to be in force."""
    presented = schedule.presented()
    result = SyncResult(namespace)
    if namespace is None:
        loaded, checked = _check(schedule)
        result.jobs, result.is_readable = checked.jobs, loaded.is_readable
        namespace = store.keep_presenting(connection, presented, now, None, loaded.namespace) or loaded.namespace
        result.has_findings = bool(checked.errors)
        _report_left_out(schedule, loaded, checked.jobs, len(checked.errors))
    if namespace is not None:
        state = store.state(connection, namespace, presented, now)
        result.namespace = namespace if state.in_force_id is not None else None
        if in_force.is_of_another_environment(state, schedule.version):
            result.verdict = Verdict.OTHER_ENVIRONMENT
            _hold_back(schedule, state, result)
        elif in_force.decide(state, schedule.version, at_once=False) is Verdict.HELD_BACK:
            result.verdict = Verdict.HELD_BACK
    return result


def claimable_jobs(connection: Connection[Any], schedule: ScheduleFile, result: SyncResult) -> dict[str, Job]:
    """Return the jobs whose runs this host may claim."""
    jobs = result.jobs
    if jobs is None:
        loaded = load.load(schedule.data, schedule.path, schedule.environment or None, result.is_validated)
        jobs = result.jobs = loaded.jobs
        _report_left_out(schedule, loaded, jobs, sum(one.severity == "error" for one in loaded.diagnostics))
    if result.verdict is Verdict.HELD_BACK and result.namespace is not None:
        in_force = definitions.handlers(connection, result.namespace)
        jobs = {name: job for name, job in jobs.items() if in_force.get(name) == job.handler}
    return jobs


def _report_left_out(schedule: ScheduleFile, loaded: Loaded, jobs: dict[str, Job], errors: int) -> None:
    left_out = [name for name in loaded.entries if name not in jobs]
    if errors and (left_out or not jobs):
        names = ",".join(left_out) or "all"
        log.warning("jobs.left_out", file=schedule.path, jobs=names, mistakes=errors, see="yamlsched validate")
