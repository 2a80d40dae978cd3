"""From a file and a database to a worker at work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yamlsched.definitions.job import Job
from yamlsched.store import runs as store
from yamlsched.worker.permits import ConcurrencyPermits, default_concurrency, permit_folder
from yamlsched.worker.worker import Limits, Work, Worker

if TYPE_CHECKING:
    from psycopg import Connection


def create_worker(
    connection: Connection[Any],
    dsn: str,
    namespace: str,
    jobs: Mapping[str, Job],
    file: Path,
    limits: Limits,
    concurrency: int | None = None,
    path: Iterable[str] = (),
    is_continuous: bool = False,
) -> Worker:
    """Return a worker for what is due of ``jobs``, those of ``file``.

    A worker claims only what its own file maps to a handler: a row in the database can never name code to run.
    Closes ``connection``: no session must be open when it forks.
    """
    scope = store.scope(connection, namespace, jobs)
    connection.close()
    count = concurrency or default_concurrency()
    work = Work(dsn, namespace, jobs, scope, file.resolve(), tuple(path))
    return Worker(work, ConcurrencyPermits(permit_folder(file), count), count, limits, is_continuous)
