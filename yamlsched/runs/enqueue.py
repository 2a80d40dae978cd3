"""Enqueue runs from an application, inside its own transaction: no commit, no run.

The work is done by the SQL functions ``yamlsched.enqueue`` and ``yamlsched.enqueue_many``, which
any language can call. Everything that can be checked without the database is checked first, because
an error there aborts the transaction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack, get_args, overload

import psycopg
from psycopg.rows import tuple_row

from yamlsched import durations, plugin_manager
from yamlsched.db.query import load
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.jsonb import encode, problems, string_problem
from yamlsched.runs.frameworks import Async, Sync, driver_connection
from yamlsched.runs.lifecycle import EnqueueBatch

Payload: TypeAlias = Mapping[str, Any]
Key: TypeAlias = str | None
Keys: TypeAlias = Iterable[Key] | None
RunAt: TypeAlias = datetime | None
"""An aware datetime; None is now."""
Delay: TypeAlias = timedelta | str | None
"""How long from now on the database's clock: a timedelta, or a duration as in schedules.yaml, such
as "90m".
"""
PriorityName: TypeAlias = Literal["high", "normal", "low"]
PRIORITIES = get_args(PriorityName)

MAX_PAYLOAD_BYTES = 65_536
"""Size of a payload as JSON."""
MAX_DELAY = timedelta(days=36_525)
PROPAGATE = "YAMLSCHED_TRACE_PROPAGATE"
"""The variable that lets runs keep the trace of what enqueues them."""
MAX_KEY_CHARS = 500
RESERVED_KEY = re.compile(
    r"[a-z][a-z0-9_]{0,62}:([0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}Z)?"
    r"|(dead|failed|succeeded):[0-9]+:[0-9]+)"
)
"""The forms of the keys of slots and of hooks' runs, of any job."""


class Enqueued(NamedTuple):
    """The result of an enqueue.

    ``created`` is false if a run with this key existed, or, of a job with ``unique``, with these
    values; then ``run_id`` is that run. ``run_id`` is None if that run has been pruned: its work is
    done, and no run was created.
    """

    run_id: int | None
    created: bool


class Options(TypedDict, total=False):
    """The arguments that all ways to enqueue share."""

    run_at: RunAt
    delay: Delay
    priority: PriorityName | None
    namespace: str


@overload
def enqueue(
    connection: Sync,
    job: str,
    payload: Payload | None = None,
    *,
    key: Key = None,
    **options: Unpack[Options],
) -> Enqueued: ...


@overload
def enqueue(
    connection: Async,
    job: str,
    payload: Payload | None = None,
    *,
    key: Key = None,
    **options: Unpack[Options],
) -> Awaitable[Enqueued]: ...


def enqueue(
    connection: Sync | Async,
    job: str,
    payload: Payload | None = None,
    *,
    key: Key = None,
    run_at: RunAt = None,
    delay: Delay = None,
    priority: PriorityName | None = None,
    namespace: str = "default",
) -> Enqueued | Awaitable[Enqueued]:
    """Enqueue a run of ``job`` in the caller's transaction. With an asynchronous ``connection``,
    await the result.

    ``connection`` is one of psycopg 3, ``django.db.connection``, or a session or connection of
    SQLAlchemy whose driver is psycopg 3.

    ``payload`` becomes the handler's keyword arguments. If a run with this ``key`` exists, none is
    created, and the result names that run. If another open transaction has enqueued this key, the
    call waits for its end. The run is due at ``run_at``, an aware datetime; or after ``delay``, a
    timedelta or a duration such as "90m", which the database adds to its clock; or now. Without a
    ``priority`` the job's applies.

    Raises Refused, and writes nothing, for a job that is unknown or disabled, a payload that is not
    a JSON object or exceeds 64 KiB, a ``run_at`` that is out of range or has no time zone, a
    ``delay`` that is not a duration or comes with a ``run_at``, and a key that is not valid or that
    another job has.
    """
    batch = make_batch(job, [{} if payload is None else payload], [key], run_at, delay, priority)
    result: Enqueued | Awaitable[Enqueued]
    result = _execute(connection, _parameters(batch, namespace), itemgetter(0), key)
    return result


@overload
def enqueue_many(
    connection: Sync,
    job: str,
    payloads: Iterable[Payload],
    keys: Keys = None,
    **options: Unpack[Options],
) -> list[Enqueued]: ...


@overload
def enqueue_many(
    connection: Async,
    job: str,
    payloads: Iterable[Payload],
    keys: Keys = None,
    **options: Unpack[Options],
) -> Awaitable[list[Enqueued]]: ...


def enqueue_many(
    connection: Sync | Async,
    job: str,
    payloads: Iterable[Payload],
    keys: Keys = None,
    *,
    run_at: RunAt = None,
    delay: Delay = None,
    priority: PriorityName | None = None,
    namespace: str = "default",
) -> list[Enqueued] | Awaitable[list[Enqueued]]:
    """Enqueue a run of ``job`` for each of ``payloads``, all or none, in one statement. The results
    keep their order.

    ``keys`` has a key, or None, for each payload. Everything else works as in ``enqueue``.
    """
    batch = make_batch(job, payloads, keys, run_at, delay, priority)
    result: list[Enqueued] | Awaitable[list[Enqueued]]
    result = _execute(connection, _parameters(batch, namespace), list)
    return result


def make_batch(
    job: str,
    payloads: Iterable[Payload],
    keys: Keys,
    run_at: RunAt = None,
    delay: Delay = None,
    priority: PriorityName | None = None,
) -> EnqueueBatch:
    """Validate what can be validated without the database. Raises Refused for the first error."""
    _check_string("job", job)
    encoded = [encode_payload(job, payload) for payload in payloads]
    names: list[Key] = [None] * len(encoded) if keys is None else list(keys)
    if len(names) != len(encoded):
        raise Refused(
            f'{len(encoded)} payloads for job "{job}", but {len(names)} keys: pass one, or None,'
            " for each"
        )
    for name in names:
        if name is not None:
            _check_key(name)
    if priority is not None and priority not in PRIORITIES:
        raise Refused(
            f"priority {priority!r:.100} is not supported: pass high, normal or low, or None for"
            " the job's"
        )
    return EnqueueBatch(job, encoded, names, _instant(run_at, delay), _seconds(delay), priority)


def encode_payload(job: str, payload: Payload) -> str:
    """Return ``payload`` as JSON. Raises Refused for one that is not a JSON object or
    is too large.
    """
    if not isinstance(payload, Mapping):
        raise Refused(
            f'payload of job "{job}" is of type {type(payload).__name__}: '
            "pass a dict, whose keys become keyword arguments"
        )
    for where, problem in problems(payload, "payload"):
        raise Refused(f'{where} of job "{job}" {problem}')
    text = encode(dict(payload))
    if (size := len(text.encode())) > MAX_PAYLOAD_BYTES:
        raise Refused(
            f'payload of job "{job}" has {size} bytes, over the limit of 64 KiB: store the data and'
            " pass a reference"
        )
    return text


def _check_key(key: str) -> None:
    _check_string("key", key)
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise Refused(
            f"the key has {len(key)} characters: pass 1 to {MAX_KEY_CHARS}, or None for a run"
            " without a key"
        )
    if RESERVED_KEY.fullmatch(key):
        job = key.partition(":")[0]
        raise Refused(
            f'key "{key}" has a reserved form: slots and hooks of job "{job}" have such keys'
        )


def _check_string(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise Refused(f"the {what} {text!r} is of type {type(text).__name__}: pass a string")
    if problem := string_problem(text):
        raise Refused(f"the {what} {problem}")


def _instant(run_at: RunAt, delay: Delay) -> str | None:
    """Return an instant in RFC 3339. Raises Refused for one that is ambiguous, or passed in
    addition to ``delay``.
    """
    if run_at is None:
        return None
    if delay is not None:
        raise Refused(f"run_at {run_at} and delay {delay} were both passed: pass one of them")
    if not isinstance(run_at, datetime) or run_at.utcoffset() is None:
        raise Refused(
            f"run_at {run_at!r:.100} is not a datetime with a time zone: write for example"
            ' datetime.now(UTC), or pass a delay such as delay="5m"'
        )
    return run_at.isoformat()


def _seconds(delay: Delay) -> float | None:
    """Return a delay in seconds. Raises Refused for one that is not a duration or is
    out of range.
    """
    if delay is None:
        return None
    if isinstance(delay, str):
        try:
            delay = durations.parse(delay)
        except ValueError as error:
            raise Refused(f"delay: {error}") from error
    if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= MAX_DELAY:
        raise Refused(
            f"delay {delay!r:.100} is not valid: pass a timedelta, or a string such as"
            ' "90s" or "5m", of at most 100 years'
        )
    return delay.total_seconds()


def _parameters(batch: EnqueueBatch, namespace: str) -> dict[str, Any]:
    _check_string("namespace", namespace)
    keys = batch.keys if any(key is not None for key in batch.keys) else None
    return {**batch._asdict(), "keys": keys, "namespace": namespace, "parent_id": None}


def _execute(
    connection: Any, parameters: dict[str, Any], select: Callable[..., Any], key: Key = None
) -> Any:
    """Enqueue, with any factories of the connection. Return ``select`` of the results, or await
    it.
    """
    sql = load("enqueue")["enqueue_many"]
    driver = driver_connection(connection)
    if isinstance(driver, psycopg.Connection):
        cursor = psycopg.Cursor(driver, row_factory=tuple_row)
        with cursor, _sending(parameters, key) as sending:
            cursor.execute(sql, parameters)
            return select(sending.results(cursor.fetchall()))

    async def execute() -> Any:
        session = driver if isinstance(driver, psycopg.AsyncConnection) else await driver
        async with psycopg.AsyncCursor(session, row_factory=tuple_row) as cursor:
            with _sending(parameters, key) as sending:
                await cursor.execute(sql, parameters)
                return select(sending.results(await cursor.fetchall()))

    return execute()


@dataclass
class Enqueuing:
    """What plugins know of an enqueue. ``trace_context`` is what the runs keep; None: nothing."""

    trace_context: str | None
    run_ids: list[int | None] = field(default_factory=list)

    def contexts(self, count: int) -> list[str] | None:
        """Return ``trace_context`` for each of ``count`` runs."""
        return None if self.trace_context is None else [self.trace_context] * count

    def results(self, rows: Iterable[tuple[Any, ...]]) -> list[Enqueued]:
        """Note which runs a statement has enqueued, and return them."""
        runs = [Enqueued(*row) for row in rows]
        self.run_ids = [enqueued.run_id for enqueued in runs]
        return runs


@contextmanager
def _sending(parameters: dict[str, Any], key: Key) -> Iterator[Enqueuing]:
    """Report the enqueue by a statement to plugins, and let its ``parameters`` keep the trace."""
    job, count = parameters["job_type"], len(parameters["payloads"])
    with (
        enqueuing(job, count, parameters["namespace"], key) as sending,
        translate_errors(),
    ):
        parameters["trace_contexts"] = sending.contexts(count)
        yield sending


@contextmanager
def enqueuing(
    job: str, count: int, namespace: str | None = None, key: str | None = None
) -> Iterator[Enqueuing]:
    """Report an enqueue to plugins, before and after."""
    end = plugin_manager.start("run_enqueued", job=job, count=count, namespace=namespace, key=key)
    if end is None:
        yield Enqueuing(None)
        return
    keeps = os.environ.get(PROPAGATE) == "1"
    sending = Enqueuing(plugin_manager.trace_context() if keeps else None)
    try:
        yield sending
    except BaseException as error:
        end(sending.run_ids, error)
        raise
    end(sending.run_ids, None)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise Refused for what the SQL functions reject (YS001 to YS004), EnvironmentFailed for
    missing tables.
    """
    try:
        yield
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
        raise EnvironmentFailed(
            "the tables of yamlsched are missing or outdated: run yamlsched migrate"
        ) from error
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith("YS"):
            raise
        hint = f". {error.diag.message_hint}" if error.diag.message_hint else ""
        raise Refused(f"{error.diag.message_primary}{hint}") from error
