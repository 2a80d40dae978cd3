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
from yamlsched.store.files import Standing
from yamlsched.sync import ScheduleFile, Synced, converge, files
from yamlsched.sync.files import Verdict

if TYPE_CHECKING:
    from psycopg import Connection

NOT_APPLIED = (Verdict.HELD_BACK, Verdict.OTHER_ENVIRONMENT)


def read(
    connection: Connection[Any], schedule: ScheduleFile, now: datetime | None, at_once: bool, synced: Synced
) -> None:
    """Decide about a file that is not in force, and apply it if it is to be."""
    if synced.namespace is not None:
        # A file that was read before: one that is held back is not read again every minute.
        standing = store.standing(connection, synced.namespace, schedule.presented(), now)
        synced.verdict = files.verdict(standing, schedule.ours, at_once)
        if synced.verdict in NOT_APPLIED:
            _hold_back(schedule, standing, synced)
            return

    loaded, checked = _check(schedule)
    synced.jobs, synced.is_readable = checked.jobs, loaded.is_readable
    if checked.errors or loaded.namespace is None:
        _refuse(connection, schedule, now, loaded, checked, synced)
        return
    synced.namespace = loaded.namespace
    # before the transaction, which may take long: the next tick of this host presents the file, too
    store.present(connection, loaded.namespace, schedule.presented(), now)
    with connection.transaction():
        _apply(connection, schedule, now, at_once, loaded, synced)
    if synced.changes:
        log.info(
            "sync.applied",
            file=schedule.path,
            hash=schedule.ours.hash[:8],
            added=len(synced.changes.added),
            changed=len(synced.changes.changed),
            retired=len(synced.changes.retired),
            returned=len(synced.changes.returned) or None,
        )
        synced.find(*synced.changes.problems)


def fail(
    connection: Connection[Any], schedule: ScheduleFile, now: datetime | None, error: Exception, synced: Synced
) -> None:
    """Report that a file could not be applied now. The work goes on, except in another environment."""
    synced.verdict, synced.changes = None, None
    why = reason(error) if isinstance(error, psycopg.Error) else str(error)
    log.warning("sync.failed", file=schedule.path, hash=schedule.ours.hash[:8], error=why)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        why = "another session holds a lock that this needs (pg_stat_activity shows which)"
    synced.find(f"{schedule.path} is not applied: {why}. The next tick tries again")
    if synced.namespace is not None:
        standing = store.standing(connection, synced.namespace, schedule.presented(), now)
        if files.is_of_another_environment(standing, schedule.ours):
            synced.verdict = Verdict.OTHER_ENVIRONMENT
            _hold_back(schedule, standing, synced)


def _check(schedule: ScheduleFile) -> tuple[Loaded, Checked]:
    loaded = load.load(schedule.data, schedule.path, schedule.environment or None)
    return loaded, checks.check(loaded, Path(schedule.path), schedule.handler_path)


def _refuse(
    connection: Connection[Any],
    schedule: ScheduleFile,
    now: datetime | None,
    loaded: Loaded,
    checked: Checked,
    synced: Synced,
) -> None:
    """Report the errors of a file, and let the one that this host presented before stand for it."""
    presented, errors = schedule.presented(), max(1, len(checked.errors))
    synced.namespace = store.stand_in(connection, presented, now, errors, loaded.namespace) or loaded.namespace
    synced.find(*(formats.text(found) for found in checked.errors))
    log.error("sync.refused", file=schedule.path, hash=schedule.ours.hash[:8], mistakes=errors)
    _report_left_out(schedule, loaded, checked.jobs, errors)
    if synced.namespace is not None:
        standing = store.standing(connection, synced.namespace, presented, now)
        if files.is_of_another_environment(standing, schedule.ours):
            synced.verdict = Verdict.OTHER_ENVIRONMENT
            _hold_back(schedule, standing, synced)


def _apply(
    connection: Connection[Any],
    schedule: ScheduleFile,
    now: datetime | None,
    at_once: bool,
    loaded: Loaded,
    synced: Synced,
) -> None:
    """Apply a valid file inside the caller's transaction, if it is not held back."""
    ours, presented, namespace = schedule.ours, schedule.presented(), loaded.namespace
    assert namespace is not None
    store.lock(connection, namespace, files.MAX_WAIT_AT_ONCE if at_once else files.MAX_WAIT)
    standing = store.standing(connection, namespace, presented, now)
    synced.verdict = files.verdict(standing, ours, at_once)
    if synced.verdict in NOT_APPLIED:
        _hold_back(schedule, standing, synced)
    if synced.verdict in (Verdict.APPLY, Verdict.RENEW):
        is_older = standing.in_force_id is not None and not files.is_known(
            standing.in_force_yamlsched, standing.in_force_tzdata, ours
        )
        is_behind = files.is_older(ours.tzdata_version, standing.in_force_tzdata or "")
        changes = converge.converge(connection, namespace, loaded.jobs, now, is_older, is_behind)
        if synced.verdict is Verdict.APPLY:
            retention = converge.retention(loaded.retention)
            store.applied(connection, namespace, presented, retention, changes.now)
        elif standing.in_force_id is not None:
            # of hosts with crossed versions each would otherwise find the other's older, again and again
            version = files.newest(standing.in_force_yamlsched, ours.yamlsched_version)
            tzdata = files.newest(standing.in_force_tzdata, ours.tzdata_version)
            store.renewed(connection, standing.in_force_id, version, tzdata)
        synced.changes = changes


def _hold_back(schedule: ScheduleFile, standing: Standing, synced: Synced) -> None:
    assert synced.verdict is not None
    synced.messages.append(files.explain(synced.verdict, standing, schedule.path, schedule.ours))
    if synced.verdict is Verdict.OTHER_ENVIRONMENT or files.is_finding(standing):
        synced.has_findings = True


def locate(connection: Connection[Any], schedule: ScheduleFile, namespace: str | None, now: datetime | None) -> Synced:
    """Return where a file stands that is not known to be in force."""
    presented = schedule.presented()
    synced = Synced(namespace)
    if namespace is None:
        loaded, checked = _check(schedule)
        synced.jobs, synced.is_readable = checked.jobs, loaded.is_readable
        namespace = store.stand_in(connection, presented, now, None, loaded.namespace) or loaded.namespace
        synced.has_findings = bool(checked.errors)
        _report_left_out(schedule, loaded, checked.jobs, len(checked.errors))
    if namespace is not None:
        standing = store.standing(connection, namespace, presented, now)
        synced.namespace = namespace if standing.in_force_id is not None else None
        if files.is_of_another_environment(standing, schedule.ours):
            synced.verdict = Verdict.OTHER_ENVIRONMENT
            _hold_back(schedule, standing, synced)
        elif files.verdict(standing, schedule.ours, at_once=False) is Verdict.HELD_BACK:
            synced.verdict = Verdict.HELD_BACK
    return synced


def claimable_jobs(connection: Connection[Any], schedule: ScheduleFile, synced: Synced) -> dict[str, Job]:
    """Return the jobs whose runs this host may claim."""
    jobs = synced.jobs
    if jobs is None:
        loaded = load.load(schedule.data, schedule.path, schedule.environment or None, synced.is_validated)
        jobs = synced.jobs = loaded.jobs
        _report_left_out(schedule, loaded, jobs, sum(one.severity == "error" for one in loaded.diagnostics))
    if synced.verdict is Verdict.HELD_BACK and synced.namespace is not None:
        in_force = definitions.handlers(connection, synced.namespace)
        jobs = {name: job for name, job in jobs.items() if in_force.get(name) == job.handler}
    return jobs


def _report_left_out(schedule: ScheduleFile, loaded: Loaded, jobs: dict[str, Job], errors: int) -> None:
    left_out = [name for name in loaded.entries if name not in jobs]
    if errors and (left_out or not jobs):
        names = ",".join(left_out) or "all"
        log.warning("jobs.left_out", file=schedule.path, jobs=names, mistakes=errors, see="yamlsched validate")
