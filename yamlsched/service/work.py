"""Run what is due, once, without a sync."""

from __future__ import annotations

from yamlsched import db
from yamlsched.errors import Refused
from yamlsched.plugins import WorkerTask
from yamlsched.service.steps import (
    OnMessages,
    Target,
    WorkOptions,
    WorkResult,
    has_targets,
    notify,
    poll_database,
)
from yamlsched.service.workers import claimable, create_worker, run_worker
from yamlsched.sync.apply import inspect_file
from yamlsched.sync.files import current


def work(
    target: Target, options: WorkOptions, on_messages: OnMessages, *tasks: WorkerTask
) -> WorkResult:
    """Run everything that is due. ``tasks`` are executed beside the worker until it ends.

    Raises Refused if the file has not been applied to the database.
    """
    result = WorkResult()
    schedule = target.read_file()
    with target.database() as dsn, db.connect(dsn) as connection:
        snapshot = poll_database(connection, schedule, target.may_migrate)
        state = current(snapshot, schedule)
        if state is None:
            state = inspect_file(connection, schedule, snapshot)
        on_messages(result.add(state))
        if state.namespace is None:
            raise Refused(
                f'{target.file} has not been applied to this database yet: run "yamlsched sync"'
                " first"
            )
        if not state.may_claim:
            return result
        jobs, scope = claimable(connection, schedule, state)
        result.has_findings |= state.has_findings
        worker = create_worker(connection, dsn, state.namespace, jobs, scope, schedule, options)
        run_worker(worker, target, result, *tasks)
        if has_targets(schedule, snapshot):
            messages = notify(dsn, schedule, state)
            on_messages(messages)
            result.has_findings |= bool(messages)
    return result
