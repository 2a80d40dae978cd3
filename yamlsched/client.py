"""Enqueue runs from an application, inside its own transaction: no commit, no run.

The work is the SQL functions ``yamlsched.enqueue`` and ``yamlsched.enqueue_many``, the same for every language. What
can be known without the database is checked before it is asked, so that a mistake does not spoil the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.jsonb import encode, encode_flat, problems, string_problem
from yamlsched.runs import ON_DEAD_PREFIX

if TYPE_CHECKING:
    import psycopg

MAX_PAYLOAD_BYTES = 65_536
"""Bytes of a payload as JSON."""
MAX_DELAY = timedelta(days=36_525)
MAX_KEY_CHARS = 500
"""Characters of an idempotency key."""
SLOT_KEY_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,62}:[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}Z)?")
"""Keys that a slot of some job has, had or could have."""


class Enqueued(NamedTuple):
    """What became of an enqueue.

    ``created`` is false where a run with this key existed already, and ``run_id`` is that run. ``run_id`` is None
    where the key was used by a run that has been pruned since: what it named has been done, and nothing was made.
    """

    run_id: int | None
    created: bool


@overload
def enqueue(
    connection: psycopg.Connection[Any],
    job: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    run_at: datetime | timedelta | None = None,
    namespace: str = "default",
) -> Enqueued: ...


@overload
def enqueue(
    connection: psycopg.AsyncConnection[Any],
    job: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    run_at: datetime | timedelta | None = None,
    namespace: str = "default",
) -> Awaitable[Enqueued]: ...


def enqueue(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    job: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    run_at: datetime | timedelta | None = None,
    namespace: str = "default",
) -> Enqueued | Awaitable[Enqueued]:
    """Make a run of ``job`` in the caller's transaction; with an AsyncConnection, await the answer.

    ``payload`` becomes the handler's keyword arguments. A second enqueue with the same ``key`` makes nothing and
    answers with the first one's run; where another transaction has enqueued the key and not ended, it waits for that.
    ``run_at`` is an aware datetime, or a timedelta from now on the database's clock; None is now. Raises Refused,
    before anything is written, for a job that is not known or is disabled, for a payload that is not JSON or over
    64 KiB, and for a key that is not valid or is session by another job.
    """
    [text], _ = validate_payloads(job, [{} if payload is None else payload], [key])
    _check_name("namespace", namespace)
    parameters = {"job_type": job, "payload": text, "key": key, "namespace": namespace}
    parameters |= run_at_parameters(run_at)
    answer: Enqueued | Awaitable[Enqueued] = _execute(connection, "enqueue", parameters, lambda rows: rows[0])
    return answer


@overload
def enqueue_many(
    connection: psycopg.Connection[Any],
    job: str,
    payloads: Iterable[Mapping[str, Any]],
    keys: Iterable[str | None] | None = None,
    *,
    run_at: datetime | timedelta | None = None,
    namespace: str = "default",
) -> list[Enqueued]: ...


@overload
def enqueue_many(
    connection: psycopg.AsyncConnection[Any],
    job: str,
    payloads: Iterable[Mapping[str, Any]],
    keys: Iterable[str | None] | None = None,
    *,
    run_at: datetime | timedelta | None = None,
    namespace: str = "default",
) -> Awaitable[list[Enqueued]]: ...


def enqueue_many(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    job: str,
    payloads: Iterable[Mapping[str, Any]],
    keys: Iterable[str | None] | None = None,
    *,
    run_at: datetime | timedelta | None = None,
    namespace: str = "default",
) -> list[Enqueued] | Awaitable[list[Enqueued]]:
    """Make a run of ``job`` for each of ``payloads``, all or none, by one statement; answers stand in their order.

    ``keys`` has one key, or None, for each payload. Otherwise as ``enqueue``.
    """
    texts, names = validate_payloads(job, payloads, keys)
    _check_name("namespace", namespace)
    parameters = {
        "job_type": job,
        "payloads": texts,
        "keys": names if any(name is not None for name in names) else None,
        "namespace": namespace,
        "parent_id": None,
        **run_at_parameters(run_at),
    }
    answer: list[Enqueued] | Awaitable[list[Enqueued]] = _execute(connection, "enqueue_many", parameters, list)
    return answer


def validate_payloads(
    job: str, payloads: Iterable[Mapping[str, Any]], keys: Iterable[str | None] | None
) -> tuple[list[str], list[str | None]]:
    """Return ``payloads`` as JSON texts, and a key or None for each of them.

    Raises Refused for the first that cannot be stored, saying where in it the problem lies.
    """
    _check_name("job", job)
    texts = [_payload_text(job, payload) for payload in payloads]
    names: list[str | None] = [None] * len(texts) if keys is None else list(keys)
    if len(names) != len(texts):
        raise Refused(f'{len(texts)} payloads for job "{job}", but {len(names)} keys: pass one, or None, for each')
    for name in names:
        if name is not None:
            _check_key(name)
    return texts, names


def _payload_text(job: str, payload: Mapping[str, Any]) -> str:
    if not isinstance(payload, Mapping):
        raise Refused(
            f'payload of job "{job}" is a {type(payload).__name__}: pass a dict, whose keys become keyword arguments'
        )
    text = encode_flat(payload)
    if text is None:
        for where, problem in problems(payload, "payload"):
            raise Refused(f'{where} of job "{job}" {problem}')
        text = encode(dict(payload))
    if len(text) * 4 > MAX_PAYLOAD_BYTES and (size := len(text.encode())) > MAX_PAYLOAD_BYTES:
        raise Refused(
            f'payload of job "{job}" has {size} bytes, over the limit of 64 KiB: store the data and pass a reference'
        )
    return text


def _check_key(key: str) -> None:
    if not isinstance(key, str):
        raise Refused(f"the key {key!r} is a {type(key).__name__}: pass a string")
    if not key:
        raise Refused("an idempotency key cannot be empty: leave it out (None) for a run without a key")
    if len(key) > MAX_KEY_CHARS:
        raise Refused(f"an idempotency key has {len(key)} characters, over the limit of {MAX_KEY_CHARS}")
    if problem := string_problem(key):
        raise Refused(f"an idempotency key {problem}")
    if SLOT_KEY_PATTERN.fullmatch(key):
        job = key.partition(":")[0]
        raise Refused(f'key "{key}" has a reserved form: the slots of job "{job}" have such keys')
    if key.startswith(ON_DEAD_PREFIX):
        raise Refused(f'key "{key}" is reserved for runs that call on_dead')


def _check_name(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise Refused(f"the {what} {text!r} is a {type(text).__name__}: pass its name as a string")
    if problem := string_problem(text):
        raise Refused(f"the name of the {what} {problem}")


def run_at_parameters(run_at: datetime | timedelta | None) -> dict[str, Any]:
    """Return ``run_at`` as the parameters of a statement: an instant in RFC 3339, or a delay in seconds.

    Raises Refused for an instant without a time zone, which could be any of two dozen, and for a delay that is negative
    or over a hundred years.
    """
    if run_at is None:
        return {"run_at": None, "delay": None}
    if isinstance(run_at, timedelta):
        if not timedelta(0) <= run_at <= MAX_DELAY:
            raise Refused(f"run_at {run_at} is out of range: a delay is between 0 and 100 years")
        return {"run_at": None, "delay": run_at.total_seconds()}
    if not isinstance(run_at, datetime):
        raise Refused(
            f"run_at {run_at!r:.100} is not a datetime (got a {type(run_at).__name__}): pass an aware datetime, or a "
            "delay such as timedelta(minutes=5)"
        )
    if run_at.utcoffset() is None:
        raise Refused(f"run_at {run_at.isoformat()} has no time zone: write for example datetime.now(UTC)")
    return {"run_at": run_at.isoformat(), "delay": None}


def _execute(connection: Any, statement: str, parameters: dict[str, Any], answer: Any) -> Any:
    """Carry out ``statement`` whatever the caller's row and cursor factories are; return or await ``answer`` of it."""
    import psycopg
    from psycopg.rows import tuple_row

    from yamlsched.store.statements import load

    sql = load("enqueue")[statement]
    if isinstance(connection, psycopg.AsyncConnection):
        session: psycopg.AsyncConnection[Any] = connection

        async def execute() -> Any:
            with translate_errors():
                async with psycopg.AsyncCursor(session, row_factory=tuple_row) as cursor:
                    await cursor.execute(sql, parameters)
                    return answer([Enqueued(*row) for row in await cursor.fetchall()])

        return execute()
    if not isinstance(connection, psycopg.Connection):
        kind = f"{type(connection).__module__}.{type(connection).__name__}"
        remedy = "with another driver, execute select * from yamlsched.enqueue('a_job', '{...}')"
        if kind.startswith("sqlalchemy."):
            own = "session.connection()" if "Session" in kind else "connection"
            remedy = (
                f"pass {own}.connection.driver_connection, with SQLAlchemy's postgresql+psycopg driver, or execute "
                "text(\"select * from yamlsched.enqueue('a_job', '{...}')\")"
            )
        raise Refused(f"{kind} is not a connection of psycopg 3: {remedy}")
    with translate_errors(), psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(sql, parameters)
        return answer([Enqueued(*row) for row in cursor.fetchall()])


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn what the SQL functions refuse (YS001 to YS004) into Refused; missing tables are EnvironmentFailed."""
    import psycopg

    try:
        yield
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
        raise EnvironmentFailed("the tables of yamlsched are missing or outdated: run yamlsched migrate") from error
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith("YS"):
            raise
        hint = f". {error.diag.message_hint}" if error.diag.message_hint else ""
        raise Refused(f"{error.diag.message_primary}{hint}") from error
