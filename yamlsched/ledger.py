"""The claim under which an attempt acts, and what it records of its effects. See ``docs/handlers.md``."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

from yamlsched import jsontext
from yamlsched.errors import EffectInDoubt, EnvironmentFailed, LeaseLost, Refused, Snooze

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


def effect_key(run_id: int, name: str, scope: str) -> str:
    """Return the key of an effect. Raises Refused for a name that cannot be one."""
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
        raise Refused(f"an effect's name is a text of 1 to {LONGEST_NAME} characters, not {name!r:.300}")
    if fault := jsontext.text_fault(name):
        raise Refused(f"the name of an effect {fault}")
    if name.startswith("run:"):
        raise Refused(f'effect "{name}": names that begin with "run:" are reserved')
    return f"run:{run_id}:{name}" if scope == "run" else name


def enter(claim: Claim, key: effects.Key, in_doubt: str, is_begun: bool) -> Effect:
    """Return the effect as this attempt is to treat it; ``is_begun``: it has been inside before.

    Between two statements others may act: then it looks again. Raises LeaseLost, EffectInDoubt, or Snooze.
    """
    from yamlsched.store import effects

    for _ in range(10):
        found = claim.record(effects.claim, key)
        if found is None:
            raise LeaseLost(f"run {key.run_id}: attempt {key.attempt} outlived its lease")
        is_our_claim = found.state == "claimed" and found.holder == (key.run_id, key.attempt, key.locked_by)
        if found.is_first or (is_our_claim and not is_begun):
            return Effect(True, key.key)  # the second: ours by a statement whose answer was lost
        if found.state == "done":
            return Effect(False, key.key, found.result)
        if found.state == "claimed":
            if found.holder_is_live and not is_our_claim:
                raise Snooze(SNOOZE, f'effect "{key.key}" is held by run {found.run_id}, which is running')
            claim.record(effects.doubt, key, found)
        elif found.state == "in_doubt":
            if in_doubt == "skip":
                return Effect(False, key.key)
            if in_doubt == "raise":
                raise EffectInDoubt(_what_to_look_up(key, found))
            if claim.record(effects.take_over, key):
                return Effect(True, key.key)
    raise Snooze(1, f'effect "{key.key}" changes hands too quickly')


def leave(
    claim: Claim,
    key: effects.Key,
    how: Callable[[psycopg.Connection[Any], effects.Key], object],
    log: logging.Logger,
) -> None:
    """Record how an effect was left by an exception, which is the news: what fails here must not hide it."""
    import psycopg

    try:
        claim.record(how, key)
    except (psycopg.Error, EnvironmentFailed) as error:
        log.warning("effect %s stays in doubt, because the database does not answer: %s", key.key, error)


def _what_to_look_up(key: effects.Key, found: effects.Claimed) -> str:
    whose = "" if found.run_id == key.run_id else f" of run {found.run_id}"
    when = f"{found.claimed_at:%Y-%m-%d %H:%M:%SZ}" if found.claimed_at else "some time"
    name = shlex.quote(key.key)
    return (
        f'effect "{key.key}" is in doubt: attempt {found.attempt}{whose} began it at {when} and could not say how it '
        f"ended. Look up whether it happened, then: yamlsched settle {name} --done (or --not-done), and: "
        f"yamlsched retry {key.run_id}"
    )
