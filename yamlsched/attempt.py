"""What a handler sees of its run: the parameter named ``run``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from yamlsched import enqueueing, jsontext
from yamlsched.errors import EffectInDoubt, LeaseLost, Refused, Snooze, YamlschedError

if TYPE_CHECKING:
    import psycopg

SNOOZE = timedelta(seconds=15)
"""For how long a run waits for an effect that a live attempt of another run holds."""


class Claim:
    """By what right the attempt acts: it fences whatever is written about the run."""

    def __init__(self, dsn: str, namespace: str, locked_by: str) -> None:
        self.dsn, self.namespace, self.locked_by = dsn, namespace, locked_by

    _sessions: ClassVar[dict[str, psycopg.Connection[Any]]] = {}  # of this process, for whatever runs it carries out

    def session(self, use: str) -> psycopg.Connection[Any]:
        """Return this process's session for ``use``: an effect is recorded beside the transaction, not inside."""
        from yamlsched import store

        connection = self._sessions.get(use)
        if connection is None or connection.closed or connection.broken:
            # no time-outs of ours: how long a handler may take is said by its job
            connection = self._sessions[use] = store.connect(self.dsn, session="")
        return connection


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
    _in_transaction: bool = field(default=False, repr=False)

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

        Raises Refused for a payload that is no JSON object or is too large.
        """
        self.enqueue_many(job, [payload or {}], keys=None if key is None else [key], run_at=run_at)

    def enqueue_many(
        self,
        job: str,
        payloads: Iterable[dict[str, Any]],
        *,
        keys: Iterable[str | None] | None = None,
        run_at: datetime | None = None,
    ) -> None:
        """Enqueue a run of ``job`` for each payload, with the key at the same place in ``keys``; see ``enqueue``."""
        texts, names = enqueueing.checked(job, payloads, keys)
        self.enqueued.append((job, texts, names, None if run_at is None else run_at.isoformat()))

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection to the scheduler's database; the run succeeds in the same transaction, or nothing commits.

        What is written through it happens exactly once: the last statement before the commit is the run's success,
        and it holds only while the run is ours. Set ``result`` inside. Once per attempt; an exception after it is
        logged, and changes nothing. Raises LeaseLost, and rolls back, when the run was taken over meanwhile.
        """
        from yamlsched.store import runs as store

        if self.committed or self._in_transaction:
            raise YamlschedError("run.transaction() is to be used once in an attempt: its end is the run's success")
        self._in_transaction = True
        try:
            connection = self.claim.session("transaction")
            with connection.transaction():
                yield connection
                fence = (self.id, self.attempt, self.claim.locked_by)
                store.enqueue_from(connection, self.claim.namespace, self.id, self.enqueued)
                if not store.succeed_in(connection, fence, jsontext.dumps(self.result, "the result")):
                    raise LeaseLost(f"run {self.id}: attempt {self.attempt} outlived its lease; nothing was committed")
            self.committed = True
        finally:
            self._in_transaction = False

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
        another run holds it, this attempt snoozes.
        """
        from yamlsched.store import effects

        session = self.claim.session("effects")
        key = effects.Key(
            self.claim.namespace, self._effect_key(name, scope), self.id, self.attempt, self.claim.locked_by
        )
        effect = self._claim_effect(session, key, name, in_doubt)
        if not effect.first:
            yield effect
            return
        try:
            yield effect
        except Exception:
            effects.doubt(session, key) if on_error == "in_doubt" else effects.release(session, key)
            raise
        except BaseException:
            effects.doubt(session, key)  # stopped in the middle: nobody knows
            raise
        if not effects.done(session, key, jsontext.dumps(effect.result, "the effect's result")):
            self.log.warning("effect %s was done, but by then another attempt had taken it over", key.key)

    def _effect_key(self, name: str, scope: str) -> str:
        if scope == "run":
            return f"run:{self.id}:{name}"
        if name.startswith("run:"):
            raise Refused(f'effect "{name}": names that begin with "run:" are reserved')
        return name

    def _claim_effect(self, session: psycopg.Connection[Any], key: Any, name: str, in_doubt: str) -> Effect:
        from yamlsched.store import effects

        found = effects.claim(session, key)
        if found is None:
            raise LeaseLost(f"run {self.id}: attempt {self.attempt} outlived its lease")
        if found.is_first:
            return Effect(True, key.key)
        if found.state == "done":
            return Effect(False, key.key, found.result)
        if found.state is None:
            raise Snooze(1, f'effect "{name}" was released this moment')
        if found.state == "claimed":
            if (found.run_id, found.attempt, found.locked_by) == (self.id, self.attempt, self.claim.locked_by):
                raise YamlschedError(f'effect "{name}" is used inside itself, or twice in one attempt')
            if found.holder_is_live:
                raise Snooze(SNOOZE, f'effect "{name}" is held by run {found.run_id}, which is running')
            effects.doubt(session, key, found)
        if in_doubt == "skip":
            return Effect(False, key.key)
        if in_doubt == "repeat":
            if effects.take_over(session, key):
                return Effect(True, key.key)
            raise Snooze(1, f'effect "{name}" was taken over by another run')
        when = f"{found.claimed_at:%Y-%m-%d %H:%M:%SZ}" if found.claimed_at else "some time"
        raise EffectInDoubt(
            f'effect "{key.key}" is in doubt: attempt {found.attempt} of run {found.run_id} began it at {when} and '
            f"died before it said how it ended. Look up whether it happened, then settle it: yamlsched show {self.id}"
        )

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
