"""A run in memory, and calling a handler with it."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple
from uuid import NAMESPACE_OID, uuid5

import psycopg

from yamlsched import jsonb
from yamlsched.db.connection import connect_for_handler_async
from yamlsched.errors import YamlschedError
from yamlsched.handler.backends import Backend
from yamlsched.handler.once import effect_key
from yamlsched.handler.run import AttemptState, Run, Trigger, UpstreamRun
from yamlsched.runs import enqueue
from yamlsched.runs.effects import EffectEntry, EffectStatement, FoundEffect
from yamlsched.runs.lifecycle import ClaimedRun, EnqueueBatch
from yamlsched.runs.progress import Progress

IN_DOUBT: Final = object()
"""The result of an effect that is in doubt."""


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
            dsn=self.dsn,
            namespace="default",
            run_id=self.id,
            attempt=self.attempt,
            locked_by="memory",
            report=self.reports.append,
            run=self,
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


@dataclass(slots=True, kw_only=True)
class MemoryBackend(Backend):
    """What ``run`` records, in memory."""

    run: FakeRun

    def redact(self, note: str) -> str:
        return note

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield the connection of the run, inside a transaction."""
        connection = self.run.connection
        if connection is None:
            raise YamlschedError(
                "the handler uses run.transaction(): pass FakeRun(connection=psycopg.connect(...))"
            )
        if isinstance(connection, psycopg.AsyncConnection):
            raise YamlschedError(
                "the handler uses run.transaction() without async: pass a psycopg.Connection"
            )
        with connection.transaction():
            yield connection

    @asynccontextmanager
    async def async_transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Yield the connection of the run if that is asynchronous, else one to its ``dsn``."""
        if isinstance(self.run.connection, psycopg.AsyncConnection):
            async with self.run.connection.transaction():
                yield self.run.connection
        elif self.dsn:
            async with await connect_for_handler_async(self.dsn) as session, session.transaction():
                yield session
        else:
            connect = "FakeRun(connection=await psycopg.AsyncConnection.connect(...))"
            raise YamlschedError(f"the handler uses async with run.transaction(): pass {connect}")

    async def succeed(
        self,
        session: Any,
        result: str | None,
        enqueued: list[EnqueueBatch],
        last: Progress | None,
    ) -> None:
        if self.run.commit_fails:
            raise psycopg.OperationalError("the commit failed, because the test requested it")

    def claim(self, entry: EffectEntry) -> FoundEffect | None:
        effects = self.run.effects
        is_first = entry.key not in effects
        result = effects.setdefault(entry.key, IN_DOUBT)
        state = None if is_first else "in_doubt" if result is IN_DOUBT else "done"
        return FoundEffect(
            is_first, state, result, provider_key(entry.key), entry.run_id, entry.attempt
        )

    def write(
        self,
        statement: EffectStatement,
        entry: EffectEntry,
        doubted: str | None = None,
        result: str | None = None,
    ) -> bool:
        effects = self.run.effects
        if statement == "release":
            del effects[entry.key]
        elif statement == "mark_in_doubt":
            effects[entry.key] = IN_DOUBT
        elif statement in ("mark_done", "assume_done"):
            effects[entry.key] = None if result is None else json.loads(result)
        return True


def provider_key(key: str) -> str:
    """Return ``effect.key`` of a run in memory: a UUID, always the same for the same ``key``."""
    return str(uuid5(NAMESPACE_OID, key))


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
