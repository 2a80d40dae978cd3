"""What a handler sees of its run: the parameter named ``run``."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from yamlsched import client, jsonb
from yamlsched.errors import Discard, LeaseLost, YamlschedError
from yamlsched.handling import once as effect_ledger
from yamlsched.handling.backends import PostgresBackend
from yamlsched.handling.once import DEFAULT_RELEASE_ON, Effect, requires_in_doubt

if TYPE_CHECKING:
    import psycopg

SESSION_TIMEOUT_STATES = ("25P03", "25P04")
"""SQLSTATE of a session that the server ended because its handler was idle, or took longer, than the server allows."""


@dataclass(slots=True)
class Run:
    """One attempt of a run, as its handler sees it.

    ``scheduled_for`` is the slot, in UTC; None for a run that was enqueued. ``attempt`` counts from 1. ``is_catchup``
    says that the slot's run was made more than two minutes late.
    """

    id: int
    job_type: str
    key: str | None
    scheduled_for: datetime | None
    attempt: int
    max_attempts: int
    payload: dict[str, Any]
    is_catchup: bool
    backend: PostgresBackend = field(repr=False)
    last_error: str | None = None  # of a dead run, which is handed to on_dead
    error_type: str | None = None
    result: Any = None  # set it inside transaction(); otherwise return it
    enqueued: list[Any] = field(default_factory=list, repr=False)
    committed: bool = field(default=False, repr=False)
    broken_by: BaseException | None = field(default=None, repr=False)  # how the session of transaction() broke
    _outside: int | None = field(default=None, repr=False)  # inside transaction(): what had been enqueued before it
    _entered: set[str] = field(default_factory=set, repr=False)  # effects that this attempt was the first to enter
    _open: dict[str, str] = field(default_factory=dict, repr=False)  # effects that it is inside of, and their entries
    _report: Run | None = field(default=None, repr=False)  # of a dead run: the run that calls on_dead, which acts

    @property
    def log(self) -> logging.Logger:
        """A logger; its lines carry the run's id on the worker's stderr."""
        return logging.getLogger(self.job_type)

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    def enqueue(
        self,
        job: str,
        payload: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        run_at: datetime | timedelta | None = None,
    ) -> None:
        """Enqueue a run of ``job``, written together with this run's success: a crash never leaves half of a fan-out.

        ``run_at`` is an aware datetime, or a timedelta from the instant at which this run succeeds. A ``key`` that has
        a run already makes nothing. Raises Refused for a payload that is no JSON object or is too large, and for a
        ``run_at`` that is out of range or has no time zone. What only the database knows (whether there is such a job)
        fails the attempt when it ends.
        """
        self.enqueue_many(job, [{} if payload is None else payload], keys=[key], run_at=run_at)

    def enqueue_many(
        self,
        job: str,
        payloads: Iterable[dict[str, Any]],
        *,
        keys: Iterable[str | None] | None = None,
        run_at: datetime | timedelta | None = None,
    ) -> None:
        """Enqueue a run of ``job`` for each payload, with the key at the same place in ``keys``; see ``enqueue``."""
        if self._report is not None:
            self._report.enqueue_many(job, payloads, keys=keys, run_at=run_at)
            return
        if self.committed:
            raise YamlschedError("run.transaction() has ended, and the run with it: enqueue inside it, or before")
        texts, names = client.validate_payloads(job, payloads, keys)
        when = client.run_at_parameters(run_at)
        if len(self.enqueued) > (self._outside or 0) and self.enqueued[-1][::3] == (job, when):
            self.enqueued[-1][1].extend(texts)  # one statement for all that a loop enqueues one by one
            self.enqueued[-1][2].extend(names)
        else:
            self.enqueued.append((job, texts, names, when))

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection to the scheduler's database; the run succeeds in the same transaction, or nothing commits.

        What is written through it happens exactly once: the last statement before the commit is the run's success,
        and it holds only while the run is ours. Set ``result`` inside. Once per attempt; an exception after it is
        logged, and changes nothing. Raises LeaseLost, and rolls back, when the run was taken over meanwhile.
        """
        if self._report is not None:
            with self._report.transaction() as connection:
                yield connection
                self._report.result = self.result
            return
        if self.committed or self._outside is not None:
            raise YamlschedError("run.transaction() is to be used once in an attempt: its end is the run's success")
        self._outside = len(self.enqueued)
        session: psycopg.Connection[Any] | None = None
        try:
            with ExitStack() as block:
                session = self.backend.begin(block)
                yield session
                self._succeed_in(session)
            self.committed = True
        except BaseException as error:
            is_own_fault = getattr(error, "sqlstate", None) in SESSION_TIMEOUT_STATES
            if isinstance(error, Exception) and (session is None or session.broken) and not is_own_fault:
                self.broken_by = error
            del self.enqueued[self._outside :]  # rolled back with the rest, should the handler go on all the same
            raise
        finally:
            self._outside = None

    def _succeed_in(self, connection: psycopg.Connection[Any]) -> None:
        from psycopg.pq import TransactionStatus

        from yamlsched.store import runs as store

        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise YamlschedError(
                "a statement inside run.transaction() failed, and its error was caught: nothing can be committed. "
                "Put a statement that may fail into a block of its own: with connection.transaction(): ..."
            )
        if status != TransactionStatus.INTRANS:
            raise YamlschedError("run.transaction() was ended inside its block, by a commit or rollback of its own")
        result = jsonb.encode_result(self.result, "the result")
        with client.translate_errors():
            store.enqueue_from(connection, self.backend.namespace, self.id, self.enqueued)
        if not store.succeed_in(connection, (self.id, self.attempt, self.backend.locked_by), result):
            raise LeaseLost(f"run {self.id}: attempt {self.attempt} outlived its lease; nothing was committed")

    @requires_in_doubt
    @contextmanager
    def once(
        self,
        name: str,
        *,
        in_doubt: Literal["raise", "skip", "repeat"],
        scope: Literal["run", "namespace"] = "run",
        release_on: tuple[type[Exception], ...] = DEFAULT_RELEASE_ON,
    ) -> Iterator[Effect]:
        """Keep an effect on the world from being repeated.

            with run.once("mail", in_doubt="skip") as effect:
                if effect.first:
                    effect.result = send(...)

        The key is claimed before the effect and the result stored after it, each at once, outside of any transaction.
        A later attempt gets ``first`` false and the stored result. An exception that leaves the block, or a process
        that dies inside it, leaves the effect in doubt, because nobody can know whether it happened. Only an exception
        of ``release_on``, or one that such an exception caused, proves that nothing happened: it frees the key.

        The next attempt does as ``in_doubt`` says: ``raise`` ends the run dead at once, and says what to look up;
        ``skip`` counts the effect as done (at most once); ``repeat`` does it again with the same ``effect.key`` (at
        least once; a receiver that knows idempotency keys makes it once).

        ``scope="namespace"`` shares the name, a business key, with all runs of the namespace; while a live attempt of
        another run holds it, this attempt snoozes. Raises LeaseLost if the run is not ours any more.
        """
        from yamlsched.store import effects

        if self._report is not None:
            with self._report.once(name, in_doubt=in_doubt, scope=scope, release_on=release_on) as effect:
                yield effect
            return
        if self.committed:
            raise YamlschedError(
                "run.transaction() has ended, and the run with it: use run.once() inside it, or before"
            )
        effect_ledger.check_options(name, in_doubt, release_on)
        entry = effects.EffectEntry(
            self.backend.namespace,
            effect_ledger.effect_key(self.id, name, scope),
            self.id,
            self.attempt,
            self.backend.locked_by,
            str(uuid4()),
        )
        if self._open.setdefault(entry.key, entry.entry) != entry.entry:
            raise YamlschedError(f'effect "{entry.key}" is used inside itself, or by two threads at once')
        try:
            effect = effect_ledger.enter(self.backend, entry, in_doubt, entry.key in self._entered, self.log)
            if effect.first:
                self._entered.add(entry.key)
                process = os.getpid()
                try:
                    yield effect
                except BaseException as error:
                    if os.getpid() == process:
                        effect_ledger.leave(self.backend, entry, error, release_on, self.log)
                    raise
                if os.getpid() == process:  # a process that the handler forked inside the block records nothing
                    effect_ledger.finish(self.backend, entry, name, effect.result, self.log)
        finally:
            del self._open[entry.key]
        if not effect.first:
            yield effect

    def is_session_lost(self, error: BaseException) -> bool:
        """Return whether ``error``, which ends the attempt, is or comes from the break of the transaction's session."""
        cause: BaseException | None = error
        seen: set[int] = set()
        while cause is not None and id(cause) not in seen:
            if cause is self.broken_by:
                return True
            seen.add(id(cause))
            cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        return False

    def dead_run(self, run_id: int) -> Run:
        """Return the dead run that this run, a call of ``on_dead``, is about.

        What its handler does by it (effects, a transaction, enqueueing) belongs to this run: the dead one is over.
        """
        from yamlsched.store import runs as store

        row = self.backend.record(store.dead_run, run_id)
        if row is None:
            raise Discard(f"run {run_id}, whose death this run reports, has been pruned")
        return Run(
            id=row.id,
            job_type=row.job_type,
            key=row.key,
            scheduled_for=row.scheduled_for,
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            payload=_readable(row.payload),
            is_catchup=False,
            backend=self.backend,
            last_error=row.last_error,
            error_type=row.error_type,
            _report=self,
        )


def _readable(payload: str) -> dict[str, Any]:
    """Return a dead run's payload; empty where Python cannot read it, of which the run has died."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
