"""What a handler sees of its run: the parameter named ``run``."""

from __future__ import annotations

import json
import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Literal, ParamSpec, TypeVar

from yamlsched import enqueueing, jsontext
from yamlsched.errors import EffectInDoubt, EnvironmentFailed, LeaseLost, Refused, Snooze, YamlschedError

if TYPE_CHECKING:
    import psycopg

    from yamlsched.store import effects

SNOOZE = timedelta(seconds=15)
"""For how long a run waits for an effect that a live attempt of another run holds."""
PATIENCE = 30.0
"""Seconds for which a statement about an effect is tried again while the database is away."""
LONGEST_NAME = 200
"""Characters of an effect's name."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Claim:
    """By what right the attempt acts: it fences whatever is written about the run."""

    def __init__(self, dsn: str, namespace: str, locked_by: str) -> None:
        self.dsn, self.namespace, self.locked_by = dsn, namespace, locked_by

    # of this process, for whatever runs it carries out
    _sessions: ClassVar[dict[tuple[str, str], psycopg.Connection[Any]]] = {}
    _lock: ClassVar[threading.RLock] = threading.RLock()  # a handler's threads may enter effects side by side

    def session(self, use: str) -> psycopg.Connection[Any]:
        """Return this process's session for ``use``: an effect is recorded beside the transaction, not inside."""
        from psycopg.pq import TransactionStatus
        from psycopg.rows import namedtuple_row

        from yamlsched import store

        connection = self._sessions.get((self.dsn, use))
        if connection is not None and connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()  # it broke, or was left in the middle of something
        if connection is None or connection.closed:
            # no time-outs of ours: how long a handler may take is said by its job
            connection = self._sessions[self.dsn, use] = store.connect(self.dsn, session="")
        connection.row_factory = namedtuple_row  # whatever the handler before has chosen
        return connection

    def record(
        self,
        statement: Callable[Concatenate[psycopg.Connection[Any], Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Answer:
        """Carry out a statement about an effect, again on a new session while the database does not answer.

        A mail that has left must not be forgotten because the server restarted meanwhile.
        """
        import psycopg

        wait, end = 0.1, time.monotonic() + PATIENCE
        while True:
            try:
                with self._lock:
                    return statement(self.session("effects"), *given, **named)
            except (psycopg.OperationalError, psycopg.InterfaceError, EnvironmentFailed):
                if time.monotonic() + wait > end:
                    raise
                time.sleep(wait)
                wait = min(2 * wait, 2.0)


@dataclass(slots=True)
class Effect:
    """What ``once`` yields. Where ``first`` is true, do it, and set ``result`` to what a later attempt must know.

    ``key`` is the same for all attempts: pass it to a provider as its idempotency key.
    """

    first: bool
    key: str
    result: Any = None


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
    claim: Claim = field(repr=False)
    last_error: str | None = None  # of a dead run, which is handed to on_dead
    error_type: str | None = None
    result: Any = None  # set it inside transaction(); otherwise return it
    enqueued: list[Any] = field(default_factory=list, repr=False)
    committed: bool = field(default=False, repr=False)
    _outside: int | None = field(default=None, repr=False)  # inside transaction(): what had been enqueued before it
    _begun: set[str] = field(default_factory=set, repr=False)  # effects that this attempt was the first to enter
    _open: set[str] = field(default_factory=set, repr=False)  # effects that it is inside of

    @property
    def log(self) -> logging.Logger:
        """A logger; its lines carry the run's id on the worker's stderr."""
        return logging.getLogger(self.job_type)

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    def enqueue(
        self, job: str, payload: dict[str, Any] | None = None, *, key: str | None = None, run_at: datetime | None = None
    ) -> None:
        """Enqueue a run of ``job``, written together with this run's success: a crash never leaves half of a fan-out.

        A ``key`` that has a run already makes nothing. Raises Refused for a payload that is no JSON object or is too
        large, and for a ``run_at`` without a time zone. What only the database knows (whether there is such a job)
        fails the attempt when it ends.
        """
        self.enqueue_many(job, [{} if payload is None else payload], keys=[key], run_at=run_at)

    def enqueue_many(
        self,
        job: str,
        payloads: Iterable[dict[str, Any]],
        *,
        keys: Iterable[str | None] | None = None,
        run_at: datetime | None = None,
    ) -> None:
        """Enqueue a run of ``job`` for each payload, with the key at the same place in ``keys``; see ``enqueue``."""
        if self.committed:
            raise YamlschedError("run.transaction() has ended, and the run with it: enqueue inside it, or before")
        texts, names = enqueueing.checked(job, payloads, keys)
        at = enqueueing.aware(run_at)
        when = None if at is None else at.isoformat()
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
        if self.committed or self._outside is not None:
            raise YamlschedError("run.transaction() is to be used once in an attempt: its end is the run's success")
        self._outside = len(self.enqueued)
        try:
            connection = self.claim.session("transaction")
            with connection.transaction():
                yield connection
                self._succeed_in(connection)
            self.committed = True
        except BaseException:
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
        result = jsontext.dumps(self.result, "the result")
        with enqueueing.in_our_words():
            store.enqueue_from(connection, self.claim.namespace, self.id, self.enqueued)
        if not store.succeed_in(connection, (self.id, self.attempt, self.claim.locked_by), result):
            raise LeaseLost(f"run {self.id}: attempt {self.attempt} outlived its lease; nothing was committed")

    @contextmanager
    def once(
        self,
        name: str,
        *,
        scope: Literal["run", "namespace"] = "run",
        on_error: Literal["release", "in_doubt"] = "release",
        in_doubt: Literal["raise", "skip", "repeat"] = "raise",
    ) -> Iterator[Effect]:
        """Keep an effect on the world from being repeated: ``with run.once("mail") as effect: if effect.first: ...``.

        The key is claimed before the effect and the result stored after it, each at once, outside of any transaction.
        A later attempt gets ``first`` false and the stored result. An exception inside releases the key, or leaves the
        effect in doubt (``on_error``). A process that dies inside leaves it in doubt, and the next attempt does as
        ``in_doubt`` says: ``raise`` fails it and says what to look up, ``skip`` takes it for done (at most once),
        ``repeat`` does it again (at least once; the provider's idempotency key makes it once).

        ``scope="namespace"`` shares the name, a business key, with all runs of the namespace; while a live attempt of
        another run holds it, this attempt snoozes. Raises LeaseLost where the run is not ours any more.
        """
        from yamlsched.store import effects

        if self.committed:
            raise YamlschedError(
                "run.transaction() has ended, and the run with it: use run.once() inside it, or before"
            )
        key = effects.Key(
            self.claim.namespace, self._effect_key(name, scope), self.id, self.attempt, self.claim.locked_by
        )
        if key.key in self._open:
            raise YamlschedError(f'effect "{key.key}" is used inside itself')
        effect = self._enter(key, in_doubt)
        if not effect.first:
            yield effect
            return
        self._begun.add(key.key)
        self._open.add(key.key)
        try:
            yield effect
        except BaseException as error:
            # what is no Exception has stopped us in the middle: nobody knows
            is_undone = on_error == "release" and isinstance(error, Exception)
            self._leave(key, effects.release if is_undone else effects.doubt)
            raise
        finally:
            self._open.discard(key.key)
        try:
            result = jsontext.dumps(effect.result, f'the result of effect "{name}"')
        except Refused:
            self._leave(key, effects.doubt)  # it was done, and what a later attempt must know of it is lost
            raise
        if not self.claim.record(effects.done, key, result):
            self.log.warning("effect %s was done, but meanwhile it was begun again, or settled", key.key)

    def _effect_key(self, name: str, scope: str) -> str:
        if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
            raise Refused(f"an effect's name is a text of 1 to {LONGEST_NAME} characters, not {name!r:.300}")
        if fault := jsontext.text_fault(name):
            raise Refused(f"the name of an effect {fault}")
        if name.startswith("run:"):
            raise Refused(f'effect "{name}": names that begin with "run:" are reserved')
        return f"run:{self.id}:{name}" if scope == "run" else name

    def _enter(self, key: effects.Key, in_doubt: str) -> Effect:
        """Return the effect as this attempt is to treat it. Between two statements others may act: then look again."""
        from yamlsched.store import effects

        for _ in range(10):
            found = self.claim.record(effects.claim, key)
            if found is None:
                raise LeaseLost(f"run {self.id}: attempt {self.attempt} outlived its lease")
            is_our_claim = found.state == "claimed" and found.holder == (key.run_id, key.attempt, key.locked_by)
            if found.is_first or (is_our_claim and key.key not in self._begun):
                return Effect(True, key.key)  # the second: ours by a statement whose answer was lost
            if found.state == "done":
                return Effect(False, key.key, found.result)
            if found.state == "claimed":
                if found.holder_is_live and not is_our_claim:
                    raise Snooze(SNOOZE, f'effect "{key.key}" is held by run {found.run_id}, which is running')
                self.claim.record(effects.doubt, key, found)
            elif found.state == "in_doubt":
                if in_doubt == "skip":
                    return Effect(False, key.key)
                if in_doubt == "raise":
                    raise EffectInDoubt(_in_doubt(key, found))
                if self.claim.record(effects.take_over, key):
                    return Effect(True, key.key)
        raise Snooze(1, f'effect "{key.key}" changes hands too quickly')

    def _leave(self, key: effects.Key, how: Callable[[psycopg.Connection[Any], effects.Key], object]) -> None:
        """Record how an effect was left by an exception, which is the news: what fails here must not hide it."""
        import psycopg

        try:
            self.claim.record(how, key)
        except (psycopg.Error, EnvironmentFailed) as error:
            self.log.warning("effect %s stays in doubt, because the database does not answer: %s", key.key, error)

    def dead_run(self, run_id: int) -> Run:
        """Return the dead run that this run, a call of ``on_dead``, is about."""
        from yamlsched.store import runs as store

        row = store.dead_run(self.claim.session("effects"), run_id)
        return Run(
            id=row.id,
            job_type=row.job_type,
            key=row.key,
            scheduled_for=row.scheduled_for,
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            payload=json.loads(row.payload),
            is_catchup=False,
            claim=self.claim,
            last_error=row.last_error,
            error_type=row.error_type,
        )


def _in_doubt(key: effects.Key, found: effects.Claimed) -> str:
    whose = "" if found.run_id == key.run_id else f" of run {found.run_id}"
    when = f"{found.claimed_at:%Y-%m-%d %H:%M:%SZ}" if found.claimed_at else "some time"
    name = shlex.quote(key.key)
    return (
        f'effect "{key.key}" is in doubt: attempt {found.attempt}{whose} began it at {when} and could not say how it '
        f"ended. Look up whether it happened, then: yamlsched settle {name} --done (or --not-done), and: "
        f"yamlsched retry {key.run_id}"
    )
