"""Temporary databases, and sessions that wait for each other."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

TABLES = [
    "workers",
    "queue_states",
    "notifications",
    "notify_targets",
    "gates",
    "permits",
    "job_failures",
    "attempt_outputs",
    "attempt_progress",
    "effects",
    "used_keys",
    "skipped_slots",
    "job_days",
    "job_runs",
    "edited_jobs",
    "edits",
    "job_definitions",
    "files",
    "hosts",
    "namespaces",
    "operator_actions",
]


@contextmanager
def temporary_database(server: str, template: str) -> Iterator[str]:
    """Yield the DSN of a new database, a copy of ``template``; drop it afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'create database "{name}" template "{template}"'.encode())
        yield make_conninfo(server, dbname=name)
        admin.execute(f'drop database "{name}" with (force)'.encode())


def delete_rows(session: psycopg.Connection[Any]) -> None:
    """Delete all rows that tests write, which is faster than another database."""
    session.execute("; ".join(f"delete from yamlsched.{table}" for table in TABLES).encode())


def code_of_doctor(db: psycopg.Connection[Any]) -> int:
    """Return the exit code of ``doctor`` if all is well: 1 on a server without fsync, as that of the tests."""
    row = db.execute("select setting = 'on' from pg_settings where name = 'fsync'").fetchone()
    return 0 if row == (True,) else 1


def while_waiting(
    db: psycopg.Connection[Any],
    waiter: psycopg.Connection[Any],
    act: Callable[[], Any],
    release: Callable[[], Any],
) -> Any:
    """Call ``act`` on the session ``waiter``, call ``release`` once it waits for a lock, and return its result."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(act())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    waiting = "select count(*) from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    while thread.is_alive() and not db.execute(waiting, [waiter.info.backend_pid]).fetchone()[0]:  # type: ignore[index]
        thread.join(0.005)
    assert thread.is_alive(), f"did not wait for a lock; result: {results}"
    release()
    thread.join()
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]
