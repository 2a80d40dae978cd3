"""What a handler sees of its run: the parameter named ``run``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar, overload

import psycopg

from yamlsched import jsonb
from yamlsched.db import blocking
from yamlsched.errors import YamlschedError
from yamlsched.handler import once
from yamlsched.handler.backends import Backend
from yamlsched.handler.once import DEFAULT_RELEASE_ON, Effect, NothingHappened, ReleaseOn
from yamlsched.handler.transaction import require_open, succeed_in
from yamlsched.runs import enqueue as client
from yamlsched.runs.enqueue import Delay, PriorityName, RunAt
from yamlsched.runs.frameworks import Async, Sync
from yamlsched.runs.lifecycle import EnqueueBatch
from yamlsched.runs.progress import Progress
from yamlsched.runs.progress import progress as make_progress

S = TypeVar("S")
A = TypeVar("A")


class Block(Generic[S, A]):
    """A block of a handler, entered by ``with``, or by ``async with``, which does not block the
    event loop.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        block: AbstractContextManager[S],
        async_block: AbstractAsyncContextManager[A],
    ) -> None:
        self._name, self._backend = name, backend
        self._block, self._async_block = block, async_block

    def __enter__(self) -> S:
        if self._backend.is_shared:
            raise YamlschedError(
                f"with {self._name}: would block the other runs of this process: write async with"
                f" {self._name}:"
            )
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._block.__exit__(*error)

    async def __aenter__(self) -> A:
        return await self._async_block.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._async_block.__aexit__(*error)


class AwaitableResult:
    """What ``run.enqueue()`` returns: an ``async def`` may await it, as it may await
    ``yamlsched.enqueue()``.
    """

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


DONE = AwaitableResult()


@asynccontextmanager
async def perform_async(
    backend: Backend, perform: AbstractContextManager[Effect]
) -> AsyncIterator[Effect]:
    """Yield the effect of ``perform``, whose statements do not block the event loop."""
    entered: list[Effect] = []
    try:
        await backend.offload(lambda: entered.append(perform.__enter__()))
    except asyncio.CancelledError:
        if entered:  # meanwhile; the handler has not seen it
            error = NothingHappened()
            with suppress(NothingHappened):
                await backend.offload(
                    partial(perform.__exit__, NothingHappened, error, None), must_finish=True
                )
        raise
    try:
        yield entered[0]
    except BaseException as error:
        leave = partial(perform.__exit__, type(error), error, error.__traceback__)
        if not await backend.offload(leave, must_finish=True):
            raise
    else:
        await backend.offload(partial(perform.__exit__, None, None, None), must_finish=True)


@dataclass(slots=True)
class AttemptState:
    """What an attempt has done so far."""

    committed: bool = False
    result: Any = None  # as the transaction has committed it
    enqueued: list[EnqueueBatch] = field(default_factory=list)
    progress: Progress | None = None
    # inside transaction(): the count of batches enqueued before it
    transaction_start: int | None = None
    # the connection in whose transaction succeed_in() has written the success
    succeeded_in: Any = None
    # keys of the effects that this attempt was the first to enter
    entered: set[str] = field(default_factory=set)
    # keys of the effects that it is inside of, and their entries
    inside: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpstreamRun:
    """What a job has done that this one follows, for the slot that was waited for.

    ``status`` is succeeded; with ``on_upstream_failure: run`` also dead, cancelled or skipped;
    after ``retry --force`` also waiting; none if this run did not wait for the job, for example
    because it was enqueued. ``result`` is what the handler returned, if it succeeded. Of skipped
    and none the rest is None. ``enqueued`` is how many runs it has enqueued, by their status when
    this run was released; None unless the job has ``after_enqueued``.
    """

    run_id: int | None = None
    scheduled_for: datetime | None = None
    status: str = "succeeded"
    result: Any = None
    enqueued: dict[str, int] | None = None

    @classmethod
    def read(cls, text: str | None) -> dict[str, UpstreamRun]:
        """Return by the names of the jobs what a claim has returned as JSON."""
        runs = json.loads(text) if text else {}
        slots = {name: run.pop("scheduled_for") for name, run in runs.items()}
        times = {
            name: slot and datetime.fromisoformat(slot).astimezone(UTC)
            for name, slot in slots.items()
        }
        return {name: cls(scheduled_for=times[name], **run) for name, run in runs.items()}


@dataclass(frozen=True, slots=True)
class Trigger:
    """The run whose end a hook reports. ``status`` (dead, failed or succeeded), ``attempt``,
    ``error`` and ``error_type`` are those of the end; ``payload`` and ``result`` those of now.
    """

    job_type: str = "a_job"
    run_id: int = 1
    key: str | None = None
    scheduled_for: datetime | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    status: str = "dead"
    attempt: int = 1
    error: str | None = None
    error_type: str | None = None
    result: Any = None

    @classmethod
    def read(cls, text: str | None) -> Trigger | None:
        """Return what a claim has returned as JSON, whose payload and result are JSON again."""
        if not text:
            return None
        values = json.loads(text)
        slot = values["scheduled_for"]
        values["scheduled_for"] = slot and datetime.fromisoformat(slot).astimezone(UTC)
        values["payload"] = read_json(values["payload"]) or {}
        return cls(**{**values, "result": read_json(values["result"])})


def read_json(text: str | None) -> Any:
    """Return the value of a run that another one gets; None if Python cannot read it."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass(slots=True)
class Run:
    """One attempt of a run, as its handler sees it.

    ``scheduled_for`` is the slot, in UTC; None for a run that was enqueued. ``attempt`` counts from
    1. ``is_catchup`` is true if the run was created more than two minutes after its slot.
    ``upstream`` has what the jobs under ``after`` have done, by their names. ``trigger`` is the run
    whose end this one reports, as a hook; None of other runs, and if that run has been pruned.
    """

    id: int
    job_type: str
    key: str | None
    scheduled_for: datetime | None
    attempt: int
    max_attempts: int
    payload: dict[str, Any]
    is_catchup: bool
    backend: Backend = field(repr=False)
    result: Any = None  # set it inside transaction(); otherwise return it
    upstream: dict[str, UpstreamRun] = field(default_factory=dict)
    trigger: Trigger | None = None
    state: AttemptState = field(default_factory=AttemptState, repr=False)

    @property
    def log(self) -> logging.Logger:
        """A logger; on the worker's stderr its lines carry the run's id."""
        return logging.getLogger(self.job_type)

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def committed(self) -> bool:
        """Whether the transaction has committed, and the run has thereby succeeded."""
        return self.state.committed

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far this attempt has come, for people who look at it: ``run.progress(1200,
        5000, "customers")``.

        Call it as often as you like, from any thread: it takes microseconds, and the latest value
        is written once a second if it has changed, and when the attempt ends. Each call replaces
        all three values. ``total`` None is unknown. A ``done`` above ``total`` is shown as it is. A
        long ``note`` is cut, and a password in it removed. The next attempt starts without
        progress. Raises Refused for a number that is negative, infinite or NaN, and for values of
        other types.
        """
        if isinstance(note, str):
            note = self.backend.redact(note)
        self.state.progress = made = make_progress(done, total, note)
        self.backend.report(made)

    def enqueue(
        self,
        job: str,
        payload: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        run_at: RunAt = None,
        delay: Delay = None,
        priority: PriorityName | None = None,
    ) -> AwaitableResult:
        """Enqueue a run of ``job``, written together with this run's success: a crash never leaves
        half a fan-out.

        ``run_at`` is an aware datetime; ``delay`` is a timedelta, or a duration such as "90m", from
        the instant at which this run succeeds. Pass at most one of them. ``priority`` None is the
        job's. If a run with this ``key`` exists, no other is created. Raises Refused for a payload
        that is not a JSON object or is too large, for a ``run_at`` or ``delay`` that is out of
        range or not valid, and for an unknown ``priority``. An error that only the database can
        find, such as an unknown job, fails the attempt when it ends.
        """
        payloads = [{} if payload is None else payload]
        return self.enqueue_many(
            job, payloads, keys=[key], run_at=run_at, delay=delay, priority=priority
        )

    def enqueue_many(
        self,
        job: str,
        payloads: Iterable[dict[str, Any]],
        *,
        keys: Iterable[str | None] | None = None,
        run_at: RunAt = None,
        delay: Delay = None,
        priority: PriorityName | None = None,
    ) -> AwaitableResult:
        """Enqueue a run of ``job`` for each payload; ``keys`` has a key, or None, for each. See
        ``enqueue``.
        """
        self.require_uncommitted("enqueue")
        batch, enqueued = (
            client.make_batch(job, payloads, keys, run_at, delay, priority),
            self.state.enqueued,
        )
        count = len(batch.payloads)
        key = batch.keys[0] if count == 1 else None
        with client.enqueuing(str(job), count, self.backend.namespace, key) as sending:
            batch = batch._replace(trace_contexts=sending.contexts(count))
        last = enqueued[-1] if len(enqueued) > (self.state.transaction_start or 0) else None
        if last is not None and last.can_join(batch):
            last.join(batch)  # one statement for a loop that enqueues one by one
        else:
            enqueued.append(batch)
        return DONE

    def transaction(self) -> Block[psycopg.Connection[Any], psycopg.AsyncConnection[Any]]:
        """Yield a connection to the scheduler's database. The run succeeds in this transaction, or
        nothing commits.

        What is written through it happens exactly once: the last statement before the commit writes
        the run's success, and only while this attempt owns the run. Set ``result`` inside. Use it
        once per attempt. An exception that is raised after it is logged and changes nothing. Raises
        LeaseLost, and rolls back, if another attempt took over.

        In an ``async def``, ``async with`` yields an asynchronous connection.
        """
        block, async_block = self._transaction(), self._async_transaction()
        return Block("run.transaction()", self.backend, block, async_block)

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        with self._succeeding(), self.backend.transaction() as connection:
            yield connection
            require_open(connection)
            blocking.run(self._succeed(blocking.Session(connection)))

    @asynccontextmanager
    async def _async_transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        with self._succeeding():
            async with self.backend.async_transaction() as connection:
                yield connection
                require_open(connection)
                await self._succeed(connection)

    async def _succeed(self, session: Any) -> None:
        result = jsonb.encode_result(self.result, "the result")
        await self.backend.succeed(session, result, self.state.enqueued, self.state.progress)

    @overload
    def succeed_in(self, connection: Sync) -> None: ...

    @overload
    def succeed_in(self, connection: Async) -> Awaitable[None]: ...

    def succeed_in(self, connection: Sync | Async) -> Awaitable[None] | None:
        """Write the run's success in a transaction of your own, such as that of an ORM, as its last
        statement.

            with transaction.atomic():
                Account.objects.filter(pk=account_id).update(balance=F("balance") - fee)
                run.succeed_in(connection)

        Then the run succeeds together with what else that transaction writes, or neither happens.
        ``connection`` is what ``yamlsched.enqueue`` takes, in the scheduler's database, with the
        privileges of yamlsched_worker. With an asynchronous one, await the call. Set ``result``
        before. Use it once per attempt, and neither ``once`` nor ``enqueue`` after it. Raises
        LeaseLost, so that your transaction is rolled back, if another attempt took over.
        """
        self.require_uncommitted("use run.succeed_in()")
        return succeed_in(self, connection)

    @contextmanager
    def _succeeding(self) -> Iterator[None]:
        """Note that the run has succeeded, at the end of the block that commits its success."""
        state = self.state
        if state.succeeded_in is not None:
            self.require_uncommitted("use run.transaction()")
        if state.committed or state.transaction_start is not None:
            raise YamlschedError(
                "run.transaction() can be used once in an attempt: the run succeeds at its end"
            )
        state.transaction_start = len(state.enqueued)
        try:
            yield
            state.committed, state.result = True, self.result
        except BaseException:
            # rolled back as well, in case the handler continues
            del state.enqueued[state.transaction_start :]
            raise
        finally:
            state.transaction_start = None

    def once(
        self,
        name: str,
        *,
        in_doubt: Literal["raise", "skip", "repeat"],
        scope: Literal["run", "namespace"] = "run",
        release_on: ReleaseOn = DEFAULT_RELEASE_ON,
    ) -> Block[Effect, Effect]:
        """Keep a side effect from being repeated.

            with run.once("mail", in_doubt="skip") as effect:
                if effect.first:
                    effect.result = send(...)

        The key is claimed before the effect and the result is stored after it, outside of any
        transaction. A later attempt gets ``first`` false and the stored result. An exception that
        leaves the block, or a process that dies inside it, leaves the effect in doubt, because it
        is unknown whether it happened. Only an exception of ``release_on``, or one that such an
        exception caused, proves that nothing happened, and releases the key.

        The next attempt follows ``in_doubt``: ``raise`` marks the run dead at once, with an error
        that says what to look up; ``skip`` counts the effect as done (at most once); ``repeat``
        does it again with the same ``effect.key`` (at least once, or once if the receiver supports
        idempotency keys).

        ``scope="namespace"`` shares the name, a business key, with all runs of the namespace; while
        a live attempt of another run holds it, this attempt snoozes. Raises LeaseLost if another
        attempt has taken over the run. In an ``async def`` write ``async with``.
        """

        block = once.perform(self, name, in_doubt, scope, release_on)
        return Block("run.once()", self.backend, block, perform_async(self.backend, block))

    def require_uncommitted(self, action: str) -> None:
        if self.state.committed:
            raise YamlschedError(
                f"run.transaction() has ended, and the run with it: {action} inside it, or before"
            )
        if self.state.succeeded_in is not None:
            raise YamlschedError(
                f"run.succeed_in() was called, and the run has succeeded: {action} before it"
            )
