"""Call your handlers in your own tests: no worker, no row, and no database unless the handler uses one.

from yamlsched.testing import FakeRun, call

run = FakeRun(payload={"user_id": 12})
call(handler, run)
call(handler, run.next_attempt())       # finds what the first attempt has done
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import psycopg

from yamlsched import client, jsonb
from yamlsched.handling.backends import IN_DOUBT, Backend, MemoryBackend, provider_key
from yamlsched.handling.once import effect_key
from yamlsched.handling.run import AttemptState, Run
from yamlsched.runs import ClaimedRun, EnqueueBatch

__all__ = ["IN_DOUBT", "Enqueue", "FakeRun", "call", "provider_key"]


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
    """A run in memory. What a handler does can be read from ``result``, ``enqueued`` and ``effects``.

    ``connection`` is what ``transaction`` yields, inside a transaction, or a savepoint if your test has one
    open, so that it can roll back everything. ``commit_fails`` makes that transaction fail at its end.
    ``effects`` holds results by key, ``IN_DOUBT`` for an effect in doubt. Later attempts share it.
    """

    id: int = 1
    job_type: str = "a_job"
    key: str | None = None
    scheduled_for: datetime | None = None
    attempt: int = 1
    max_attempts: int = 5
    payload: dict[str, Any] = field(default_factory=dict)
    is_catchup: bool = False
    backend: Backend = field(init=False, repr=False)
    connection: psycopg.Connection[Any] | None = field(default=None, repr=False)
    commit_fails: bool = False
    effects: dict[str, Any] = field(default_factory=dict)
    dsn: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.backend = MemoryBackend(
            self.id, self.attempt, self.effects, self.connection, self.commit_fails, dsn=self.dsn
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
        return replace(self, attempt=self.attempt + 1, result=None, commit_fails=False, state=AttemptState())

    def leave_in_doubt(self, name: str, *, scope: Literal["run", "namespace"] = "run") -> None:
        """Act as if an earlier attempt had died inside the effect ``name``."""
        self.effects[effect_key(self.id, name, scope)] = IN_DOUBT


def call(handler: Callable[..., Any], run: FakeRun) -> Any:
    """Call ``handler`` as a worker does, and return what would be stored as the run's result.

    The payload is passed as keyword arguments, after a round trip through JSON. A parameter named ``run`` gets the run.
    An ``async def`` gets its own event loop. Raises Refused if the payload or the result cannot be stored.
    """
    arguments = json.loads(client.encode_payload(run.job_type, run.payload))
    if "run" in inspect.signature(handler).parameters:
        arguments["run"] = run
    value = handler(**arguments)
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    text = jsonb.encode_result(run.result if run.committed else value, "the result")
    return None if text is None else json.loads(text)


def claimed(run: FakeRun) -> ClaimedRun:
    """Return ``run`` as a worker has claimed it."""
    slot = None if run.scheduled_for is None else run.scheduled_for.isoformat()
    payload = client.encode_payload(run.job_type, run.payload)
    return ClaimedRun(
        run.id, run.job_type, run.key, slot, run.attempt, run.max_attempts, payload, run.is_catchup, 0.0, ""
    )


async def _awaited(value: Any) -> Any:
    return await value


def _run_at(batch: EnqueueBatch) -> tuple[datetime | None, str | None, timedelta | None]:
    run_at = None if batch.run_at is None else datetime.fromisoformat(batch.run_at)
    return run_at, batch.priority, None if batch.delay is None else timedelta(seconds=batch.delay)
