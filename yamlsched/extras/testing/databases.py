"""Databases for tests of an application that enqueues."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from yamlsched import db, plugin_manager
from yamlsched.db.query import execute, load
from yamlsched.errors import Refused
from yamlsched.runs.frameworks import Sync, driver_connection
from yamlsched.schedule import include
from yamlsched.sync import flow
from yamlsched.sync.files import ScheduleFile


def use_test_database(variable: str = "YAMLSCHED_DSN") -> str:
    """Let ``variable`` name a database for tests, and return its DSN. Call it before the
    application reads it.

    It is the database that ``TEST_DSN`` names, else a new one, which ends with this process (extra
    ``embedded``). What the variable named before, perhaps production, is not used. Raises Refused
    if ``TEST_DSN`` names the same database, and EnvironmentFailed if there is neither.
    """
    before, dsn = os.environ.get(variable, ""), os.environ.get("TEST_DSN", "")
    if dsn and before and _database(dsn) == _database(before):
        raise Refused(
            f"TEST_DSN names the same database as {variable}: tests need one of their own"
        )
    if not dsn:
        held = contextlib.ExitStack()
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="yamlsched-test-"))
        (file := Path(folder, "schedules.yaml")).touch()
        dsn = held.enter_context(plugin_manager.database(file, is_requested=False))
        atexit.register(held.close)
    os.environ[variable] = dsn
    return dsn


def prepare_database(dsn: str, file: str | os.PathLike[str] = "schedules.yaml") -> None:
    """Create the tables in a database for tests, and apply ``file``, so that the application can
    enqueue.

    Raises Refused if ``file`` has errors, and EnvironmentFailed if the database cannot be reached.
    """
    schedule = replace(
        ScheduleFile.read(
            Path(file), os.environ.get("YAMLSCHED_ENV"), find_patterns=include.patterns
        ),
        is_manual=True,
    )
    with db.connect(dsn) as connection:
        db.migrations.migrate(connection)
        result = flow.sync(connection, schedule)
    if result.has_findings:
        raise Refused("\n".join(result.messages))


def delete_runs(dsn: str) -> None:
    """Delete all runs of a database for tests: call it after each test that commits, or the next
    one sees its runs.
    """
    with db.connect(dsn) as connection:
        execute(connection, "testing.delete_runs")


def assert_enqueued(connection: Sync, job: str, payload: Mapping[str, Any] | None = None) -> None:
    """Fail unless a run of ``job`` was enqueued whose payload has all of ``payload``.

    ``connection`` is what ``yamlsched.enqueue`` takes; its transaction may still be open.
    """
    parameters = {"job": job, "payload": json.dumps(payload or {})}
    with psycopg.Cursor(driver_connection(connection), row_factory=tuple_row) as cursor:
        runs = cursor.execute(load("testing")["enqueued"], parameters).fetchall()
    if not any(matches for _, matches in runs):
        payloads = [payload for payload, _ in runs]
        raise AssertionError(f"no run of {job} has {payload or {}}; its runs have {payloads}")


def _database(dsn: str) -> tuple[Any, ...]:
    """Return what tells a database from others."""
    values = conninfo_to_dict(dsn)
    return tuple(
        str(values.get(name) or default)
        for name, default in (("host", ""), ("port", "5432"), ("dbname", ""))
    )
