"""The claim under which an attempt acts, and what it records of its effects. See ``docs/handlers.md``."""

from __future__ import annotations

import logging
import shlex
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from yamlsched import jsonb
from yamlsched.errors import (
    Discard,
    EffectInDoubt,
    EnvironmentFailed,
    LeaseLost,
    Refused,
    RetryAfter,
    Snooze,
    YamlschedError,
)
from yamlsched.handler_sessions import persist, sessions
from yamlsched.times import rfc3339

if TYPE_CHECKING:
    import psycopg

    from yamlsched.store import effects
    from yamlsched.store.session import HandlerSession

SNOOZE = timedelta(seconds=15)
"""For how long a run waits for an effect that a live attempt of another run holds."""
PATIENCE = 30.0
"""Seconds for which the database may be away before an attempt fails."""
BEGIN_WITHIN_SECONDS = 8.0
"""A server that does not begin a transaction within this time counts as gone, and another session is opened."""
LONGEST_NAME = 200
"""Characters of an effect's name."""
MAX_COMMAND_CHARS = 260
"""Characters of a command that an error message repeats: the whole message must fit into ``last_error``."""
MAX_CAUSES = 50
"""Errors of a chain of causes that are looked at."""
DEFAULT_RELEASE_ON: tuple[type[Exception], ...] = (
    ConnectionRefusedError,
    socket.gaierror,
    Discard,
    RetryAfter,
    Snooze,
)
"""Exceptions that prove that the effect did not happen: nobody was reached, or the handler says so on purpose."""
IN_DOUBT_CHOICES = {
    "raise": "the run is dead at once, and a person looks it up",
    "skip": "it counts as done: at most once",
    "repeat": "it is done again with the same effect.key: for a receiver that knows idempotency keys",
}

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Claim:
    """By what right the attempt acts: it fences whatever is written about the run."""

    def __init__(self, dsn: str, namespace: str, locked_by: str, timeout: float | None = None) -> None:
        self.dsn, self.namespace, self.locked_by = dsn, namespace, locked_by
        self.timeout = timeout  # seconds that the attempt may take

    def begin(self, block: ExitStack) -> psycopg.Connection[Any]:
        """Enter a transaction on the session for handlers, which ends with ``block``.

        A session that the server has closed since its last use, or that cannot be opened yet, costs nothing: the
        handler has not seen it. Raises EnvironmentFailed or psycopg's error when that lasts.
        """

        def enter() -> psycopg.Connection[Any]:
            with ExitStack() as opening:
                use = sessions.use(self.dsn, "transaction", self.timeout or PATIENCE)
                session: HandlerSession = opening.enter_context(use)
                session.answer_within = BEGIN_WITHIN_SECONDS  # the network may have dropped it since its last use
                opening.enter_context(session.transaction())
                session.configure_transaction(self.timeout)
                session.answer_within = None
                block.push(opening.pop_all())
                return session

        return persist(enter, PATIENCE)

    def record(
        self,
        statement: Callable[Concatenate[psycopg.Connection[Any], Given], Answer],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Answer:
        """Carry out a statement about the run, again on a new session while the database does not answer.

        A mail that has left must not be forgotten because the server restarted meanwhile. The session is not that of
        the transaction: what is recorded stands even if the transaction is rolled back.
        """

        def execute() -> Answer:
            with sessions.lock, sessions.use(self.dsn, "effects", self.timeout or PATIENCE) as session:
                return statement(session, *given, **named)

        return persist(execute, PATIENCE)


@dataclass(slots=True)
class Effect:
    """What ``once`` yields. Where ``first`` is true, do it, and set ``result`` to what a later attempt must know.

    ``key`` is a UUID, the same for all attempts, and unique to this effect, run and database: pass it to a provider as
    its idempotency key.
    """

    first: bool
    key: str
    result: Any = None


def effect_key(run_id: int, name: str, scope: str) -> str:
    """Return the key under which an effect is recorded. Raises Refused for a name or a scope that is not valid."""
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
        raise Refused(f"the name of an effect must be a string of 1 to {LONGEST_NAME} characters, not {name!r:.300}")
    if fault := jsonb.string_problem(name):
        raise Refused(f"the name of an effect {fault}")
    if not name.isprintable():
        raise Refused(f"the name of an effect must have printable characters only, not {name!r:.300}")
    if name.startswith("run:"):
        raise Refused(f'effect "{name}": names that start with "run:" are reserved')
    if scope not in ("run", "namespace"):
        raise Refused(f'effect "{name}": scope must be "run" or "namespace", not {scope!r:.100}')
    return f"run:{run_id}:{name}" if scope == "run" else name


def requires_in_doubt(once: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Let a call of ``once`` without ``in_doubt`` fail with an explanation: there is no default that is right."""

    @wraps(once)
    def checked(*given: Given.args, **named: Given.kwargs) -> Answer:
        if "in_doubt" not in named:
            choices = "; ".join(f'in_doubt="{choice}": {meaning}' for choice, meaning in IN_DOUBT_CHOICES.items())
            raise TypeError(
                "run.once() needs the argument in_doubt, which says what the next attempt does if nobody knows "
                f"whether the effect happened. {choices}"
            )
        return once(*given, **named)

    return checked


def check_options(name: str, in_doubt: str, release_on: tuple[type[Exception], ...]) -> None:
    """Raise Refused for what ``once`` does not support, before anything is claimed."""
    if in_doubt not in IN_DOUBT_CHOICES:
        choices = ", ".join(f'"{choice}"' for choice in IN_DOUBT_CHOICES)
        raise Refused(f'effect "{name}": in_doubt must be one of {choices}, not {in_doubt!r:.100}')
    if not isinstance(release_on, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in release_on
    ):
        raise Refused(
            f'effect "{name}": release_on must be a tuple of exception classes, not {release_on!r:.100}. Write for '
            "example release_on=(*yamlsched.DEFAULT_RELEASE_ON, MyError)"
        )


def proves_nothing_happened(error: BaseException, release_on: tuple[type[Exception], ...]) -> bool:
    """Return whether ``error`` is one of ``release_on``, or says that such an error is its cause.

    Libraries wrap the error that says it: in ``__cause__`` (httpx, aiohttp, urllib3), or as an argument (URLError,
    requests). A group says it if all of its errors do. What merely happened while another error was handled
    (``__context__``) is not a cause.
    """
    seen: set[int] = set()

    def proves(error: object, depth: int = 0) -> bool:
        if not isinstance(error, Exception) or id(error) in seen or depth > MAX_CAUSES:
            return False  # what is not an Exception stopped us in the middle
        seen.add(id(error))
        if isinstance(error, release_on):
            return True
        if isinstance(error, ExceptionGroup):
            return all(proves(each, depth + 1) for each in error.exceptions)
        return any(proves(cause, depth + 1) for cause in (error.__cause__, *error.args))

    return proves(error)


def enter(claim: Claim, key: effects.Key, in_doubt: str, is_over: bool, log: logging.Logger) -> Effect:
    """Return the effect as this attempt must treat it; ``is_over``: it has entered and left the effect before.

    Between two statements others may act: then it looks again. Raises LeaseLost, EffectInDoubt, or Snooze.
    """
    from yamlsched.store import effects

    for _ in range(10):
        found = claim.record(effects.claim, key)
        if found is None:
            raise LeaseLost(f"run {key.run_id}: attempt {key.attempt} outlived its lease")
        if found.is_first or found.entry == key.entry:
            return Effect(True, found.provider_key)  # the second: ours by a statement whose answer was lost
        if found.state == "done":
            return Effect(False, found.provider_key, found.result)
        if found.state == "claimed":
            if found.holder_is_live and found.run_id != key.run_id:
                raise Snooze(SNOOZE, f'effect "{key.key}" is held by run {found.run_id}, which is running')
            if found.holder_is_live and not is_over:
                raise YamlschedError(f'effect "{key.key}" is entered by two processes of one attempt')
            claim.record(effects.doubt, key, found.entry)
        elif found.state == "in_doubt":
            if in_doubt == "raise":
                raise EffectInDoubt(_what_to_look_up(key, found))
            if in_doubt == "skip" and claim.record(effects.assume_done, key):
                log.warning('effect "%s" was in doubt and now counts as done: in_doubt="skip"', key.key)
                return Effect(False, found.provider_key)
            if in_doubt == "repeat" and claim.record(effects.take_over, key):
                return Effect(True, found.provider_key)
    raise Snooze(1, f'effect "{key.key}" changes hands too quickly')


def leave(
    claim: Claim,
    key: effects.Key,
    error: BaseException,
    release_on: tuple[type[Exception], ...],
    log: logging.Logger,
) -> None:
    """Record that ``error`` left the effect. It is the news: what fails here must not hide it."""
    import psycopg

    from yamlsched.store import effects

    is_released = proves_nothing_happened(error, release_on)
    if not is_released:
        error.add_note(f'effect "{key.key}" is in doubt: this error does not prove that nothing happened')
    try:
        claim.record(effects.release if is_released else effects.doubt, key)
    except (psycopg.Error, EnvironmentFailed) as failure:
        log.warning("effect %s stays in doubt, because the database does not answer: %s", key.key, failure)


def finish(claim: Claim, key: effects.Key, name: str, result: Any, log: logging.Logger) -> None:
    """Record that the effect was done, with its result. Raises Refused for a result that cannot be stored."""
    from yamlsched.store import effects

    try:
        text = jsonb.encode_result(result, f'the result of effect "{name}"')
    except Refused:
        claim.record(effects.doubt, key)  # it was done, and what a later attempt must know of it is lost
        raise
    if not claim.record(effects.done, key, text):
        log.warning("effect %s was done, but meanwhile it was started again, or settled", key.key)


def _what_to_look_up(key: effects.Key, found: effects.Claimed) -> str:
    when = rfc3339(found.claimed_at, "seconds") if found.claimed_at else "an unknown time"
    settle = settle_command(key.namespace, key.key)
    if len(settle) > MAX_COMMAND_CHARS:
        settle = f"the settle command that `yamlsched show {key.run_id}` prints"
    return (
        f"effect in doubt: attempt {found.attempt} of run {found.run_id} started it at {when} and did not report its "
        f"end. Look up whether it happened (idempotency key {found.provider_key}), then run: {settle}, "
        f"then: yamlsched retry {key.run_id}"
    )


def settle_command(namespace: str, key: str) -> str:
    """Return the command that settles an effect in doubt."""
    where = "" if namespace == "default" else f" --namespace {namespace}"
    name = shlex.quote(key) if not key.startswith("-") else f"-- {shlex.quote(key)}"
    return f"yamlsched settle --done{where} {name} (or --not-done)"
