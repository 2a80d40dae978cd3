"""Run what is due, once, without a sync."""

from __future__ import annotations

from dataclasses import replace

from yamlsched import db
from yamlsched.plugins import WorkerTask
from yamlsched.service.steps import (
    OnMessages,
    Target,
    WorkOptions,
    WorkResult,
    inspect,
    notify,
    poll_database,
)
from yamlsched.service.workers import claimable, create_worker, register, run_worker


def work(
    target: Target, options: WorkOptions, on_messages: OnMessages, *tasks: WorkerTask
) -> WorkResult:
    """Run everything that is due. ``tasks`` are executed beside the worker until it ends.

    Raises Refused if the file has not been applied to the database.
    """
    result = WorkResult()
    schedule = replace(target.read_file(), syncs=False)
    with target.database() as dsn, db.connect(dsn) as connection:
        snapshot = poll_database(connection, schedule, target.may_migrate)
        state = inspect(connection, schedule, snapshot)
        on_messages(result.add(state))
        if not state.may_claim:
            return result
        namespace = str(state.namespace)
        claims = claimable(connection, schedule, state)
        result.has_findings |= state.has_findings
        registration = register(connection, namespace, claims, schedule, options)
        worker = create_worker(
            connection, dsn, namespace, claims, schedule, options, registration=registration
        )
        run_worker(worker, target, result, *tasks)
        notify(dsn, schedule, snapshot, state)
    return result
