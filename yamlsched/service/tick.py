"""One tick: sync, then work, then housekeeping."""

from __future__ import annotations

from yamlsched import db, plugin_manager
from yamlsched.errors import EnvironmentFailed
from yamlsched.service.start_commands import StartContext
from yamlsched.service.starts import queue_starts, starting
from yamlsched.service.steps import (
    OnMessages,
    Target,
    WorkOptions,
    WorkResult,
    housekeep,
    note_unreadable,
    notify,
    poll_database,
    sync_if_needed,
)
from yamlsched.service.workers import (
    claimable,
    create_worker,
    report_unknown_queues,
    run_worker,
)


def tick(target: Target, options: WorkOptions, on_messages: OnMessages) -> WorkResult:
    """Apply the file if it changed, create the runs of due slots, run everything that is due, and
    prune.

    A step that fails does not stop those after it if they can be done. It is reported to
    plugins in any case.
    """
    result = WorkResult()
    is_healthy = False
    try:
        _tick(target, options, on_messages, result)
        is_healthy = not result.has_findings
    finally:
        report = plugin_manager.start(
            "tick_ended",
            environment=target.environment,
            namespace=result.namespace,
            is_healthy=is_healthy,
            skipped=result.skipped,
        )
        if report is not None:
            report()
    return result


def _tick(
    target: Target, options: WorkOptions, on_messages: OnMessages, result: WorkResult
) -> None:
    try:
        schedule = target.read_file()
    except EnvironmentFailed as error:
        if not target.may_migrate:  # else it may be the embedded database of no schedule
            note_unreadable(target, error)
        raise
    with target.database() as dsn:
        with db.connect(dsn) as connection:
            snapshot = poll_database(connection, schedule, target.may_migrate)
            synced = sync_if_needed(connection, schedule, snapshot)
            on_messages(result.add(synced))
            if not synced.may_claim:
                return
            namespace = result.namespace = str(synced.namespace)
            is_idle = not snapshot.has_claimable_runs and synced.due is None
            if is_idle:
                report_unknown_queues(schedule, synced)
            else:
                claims = claimable(connection, schedule, synced)
                connection.close()
                context = StartContext.from_file(schedule, dsn, namespace)
                with starting(context, queue_starts(schedule, synced)):
                    # also without jobs: it reclaims and sweeps
                    worker = create_worker(connection, dsn, namespace, claims, schedule, options)
                    run_worker(worker, target, result)
        result.has_findings |= synced.has_findings
        is_due = not is_idle or snapshot.needs_housekeeping or any(snapshot.messages_due or ())
        if is_due:
            notify(dsn, schedule, snapshot, synced)
        result.has_findings |= not housekeep(dsn, namespace, snapshot, schedule)
