"""Call your handlers in your own tests: no worker, no row, and no database unless the handler uses
one.

from yamlsched.testing import FakeRun, call, call_command

run = FakeRun(payload={"user_id": 12})
call(handler, run)
call(handler, run.next_attempt())       # finds what the first attempt has done
call_command("schedules.yaml", "backup_database").exit_code
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from yamlsched import db, jsonb, plugin_manager
from yamlsched.db.query import execute, load
from yamlsched.errors import Refused
from yamlsched.handler import programs
from yamlsched.handler.backends import IN_DOUBT, Backend, MemoryBackend, provider_key
from yamlsched.handler.once import effect_key
from yamlsched.handler.run import AttemptState, Run
from yamlsched.handler.run import Trigger as Trigger
from yamlsched.handler.run import UpstreamRun as UpstreamRun
from yamlsched.runs import enqueue
from yamlsched.runs.frameworks import Sync, driver_connection
from yamlsched.runs.lifecycle import ClaimedRun, EnqueueBatch, error_text
from yamlsched.runs.progress import Progress
from yamlsched.schedule import include
from yamlsched.schedule.load import load_file
from yamlsched.sync import flow
from yamlsched.sync.files import ScheduleFile

__all__ = [
    "IN_DOUBT",
    "CommandResult",
    "Enqueue",
    "FakeRun",
    "Progress",
    "assert_enqueued",
    "call",
    "call_command",
    "delete_runs",
    "prepare_database",
    "provider_key",
    "use_test_database",
]


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


class Enqueue(NamedTuple):
    """A run that a handler has enqueued."""

    job: str
    payload: dict[str, Any]
    key: str | None = None
    run_at: datetime | None = None
    priority: str | None = None
    delay: timedelta | None = None


@dataclass(slots=True)
class FakeRun(Run):
    """A run in memory. What a handler does can be read from ``result``, ``enqueued``, ``effects``
    and ``reports``.

    ``connection`` is what ``transaction`` yields, inside a transaction, or a savepoint if your test
    has one open, so that it can roll back everything. ``commit_fails`` makes that transaction fail
    at its end. ``effects`` holds results by key, ``IN_DOUBT`` for an effect in doubt. Later
    attempts share it. ``reports`` has the progress that this attempt has reported, each call.
    """

    id: int = 1
    job_type: str = "a_job"
    key: str | None = None
    scheduled_for: datetime | None = None
    attempt: int = 1
    max_attempts: int = 5
    payload: dict[str, Any] = field(default_factory=dict)
    is_catchup: bool = False
    upstream: dict[str, UpstreamRun] = field(default_factory=dict)
    trigger: Trigger | None = None
    backend: Backend = field(init=False, repr=False)
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None = field(
        default=None, repr=False
    )
    commit_fails: bool = False
    effects: dict[str, Any] = field(default_factory=dict)
    dsn: str = field(default="", repr=False)
    reports: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend = MemoryBackend(
            self.id,
            self.attempt,
            self.effects,
            self.connection,
            self.commit_fails,
            dsn=self.dsn,
            report=self.reports.append,
        )

    @property
    def enqueued(self) -> list[Enqueue]:
        """The runs that the handler has enqueued, in their order."""
        return [
            Enqueue(batch.job_type, json.loads(payload), key, *_run_at(batch))
            for batch in self.state.enqueued
            for payload, key in zip(batch.payloads, batch.keys, strict=True)
        ]

    def next_attempt(self) -> FakeRun:
        """Return the run as its next attempt finds it."""
        return replace(
            self,
            attempt=self.attempt + 1,
            result=None,
            commit_fails=False,
            state=AttemptState(),
            reports=[],
        )

    def leave_in_doubt(self, name: str, *, scope: Literal["run", "namespace"] = "run") -> None:
        """Act as if an earlier attempt had died inside the effect ``name``."""
        self.effects[effect_key(self.id, name, scope)] = IN_DOUBT


def call(handler: Callable[..., Any], run: FakeRun) -> Any:
    """Call ``handler`` as a worker does, and return what would be stored as the run's result.

    The payload is passed as keyword arguments, after a round trip through JSON. A parameter named
    ``run`` gets the run. An ``async def`` gets its own event loop. Raises Refused if the payload or
    the result cannot be stored.
    """
    arguments = json.loads(enqueue.encode_payload(run.job_type, run.payload))
    if "run" in inspect.signature(handler).parameters:
        arguments["run"] = run
    value = handler(**arguments)
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    has_succeeded = run.committed or run.state.succeeded_in is not None
    text = jsonb.encode_result(run.result if has_succeeded else value, "the result")
    return None if text is None else json.loads(text)


class CommandResult(NamedTuple):
    """How a command has ended.

    ``exit_code`` is minus the signal that killed it, and None if it could not be started.
    ``output`` has what it and its processes had printed by then, stdout and stderr. ``retry_after``
    is the delay that the exit code asks for.
    """

    outcome: Literal["succeeded", "failed", "dead"]
    exit_code: int | None
    output: str
    error: str
    retry_after: timedelta | None


def call_command(
    file: str | Path, job: str, run: FakeRun | None = None, *, env: str | None = None
) -> CommandResult:
    """Run the command of ``job`` in the schedule ``file`` as a worker does, and return how it
    ended.

    Without ``run``, its payload is the job's. ``env`` is the environment of the schedule, as
    ``--env``. Raises Refused if the file has no valid job of this name with a command.
    """
    definition = load_file(Path(file), env).jobs.get(job)
    if definition is None or not definition.command:
        raise Refused(f'no valid job "{job}" with a command in {file}')
    run = replace(
        run or FakeRun(payload=definition.payload),
        job_type=job,
        max_attempts=definition.max_attempts,
    )
    with tempfile.TemporaryFile() as output:
        called = programs.call(
            definition, str(Path(file).resolve().parent), claimed(run), stdout=output, stderr=output
        )
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    end = programs.with_last_lines(called.end, text)
    return CommandResult(
        called.outcome, called.status, text, error_text(end.error_type, end.error), end.delay
    )


def claimed(run: FakeRun) -> ClaimedRun:
    """Return ``run`` as a worker has claimed it."""
    slot = None if run.scheduled_for is None else run.scheduled_for.isoformat()
    payload = enqueue.encode_payload(run.job_type, run.payload)
    upstream = {name: asdict(upstream_run) for name, upstream_run in run.upstream.items()}
    known = (
        run.id,
        run.job_type,
        run.key,
        slot,
        run.attempt,
        run.max_attempts,
        payload,
        run.is_catchup,
        0.0,
        "",
    )
    trigger = None
    if run.trigger is not None:
        inner = {name: json.dumps(getattr(run.trigger, name)) for name in ("payload", "result")}
        trigger = asdict(run.trigger) | inner
    return ClaimedRun(*known, upstream=_json(upstream), trigger=_json(trigger))


def _json(values: dict[str, Any] | None) -> str | None:
    return json.dumps(values, default=datetime.isoformat) if values else None


async def _awaited(value: Any) -> Any:
    return await value


def _run_at(batch: EnqueueBatch) -> tuple[datetime | None, str | None, timedelta | None]:
    run_at = None if batch.run_at is None else datetime.fromisoformat(batch.run_at)
    return run_at, batch.priority, None if batch.delay is None else timedelta(seconds=batch.delay)
