"""The claim under which an attempt acts, and what it records of its effects. See ``docs/handlers.md``."""

from __future__ import annotations

import logging
import shlex
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

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
from yamlsched.times import rfc3339

if TYPE_CHECKING:
    from yamlsched.handling.backends import PostgresBackend
    from yamlsched.store import effects

SNOOZE_INTERVAL = timedelta(seconds=15)
"""For how long a run waits for an effect that a live attempt of another run holds."""
MAX_NAME_CHARS = 200
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
IN_DOUBT_POLICIES = {
    "raise": "the run is dead at once, and a person looks it up",
    "skip": "it counts as done: at most once",
    "repeat": "it is done again with the same effect.key: for a receiver that knows idempotency keys",
}

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


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
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARS:
        raise Refused(f"the name of an effect must be a string of 1 to {MAX_NAME_CHARS} characters, not {name!r:.300}")
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
            choices = "; ".join(f'in_doubt="{choice}": {meaning}' for choice, meaning in IN_DOUBT_POLICIES.items())
            raise TypeError(
                "run.once() needs the argument in_doubt, which says what the next attempt does if nobody knows "
                f"whether the effect happened. {choices}"
            )
        return once(*given, **named)

    return checked


def check_options(name: str, in_doubt: str, release_on: tuple[type[Exception], ...]) -> None:
    """Raise Refused for what ``once`` does not support, before anything is claimed."""
    if in_doubt not in IN_DOUBT_POLICIES:
        choices = ", ".join(f'"{choice}"' for choice in IN_DOUBT_POLICIES)
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


def enter(
    backend: PostgresBackend, entry: effects.EffectEntry, in_doubt: str, is_over: bool, log: logging.Logger
) -> Effect:
    """Return the effect as this attempt must treat it; ``is_over``: it has entered and left the effect before.

    Between two statements others may act: then it looks again. Raises LeaseLost, EffectInDoubt, or Snooze.
    """
    from yamlsched.store import effects

    for _ in range(10):
        found = backend.record(effects.claim, entry)
        if found is None:
            raise LeaseLost(f"run {entry.run_id}: attempt {entry.attempt} outlived its lease")
        if found.is_first or found.entry == entry.entry:
            return Effect(True, found.provider_key)  # the second: ours by a statement whose answer was lost
        if found.state == "done":
            return Effect(False, found.provider_key, found.result)
        if found.state == "claimed":
            if found.holder_is_live and found.run_id != entry.run_id:
                raise Snooze(SNOOZE_INTERVAL, f'effect "{entry.key}" is held by run {found.run_id}, which is running')
            if found.holder_is_live and not is_over:
                raise YamlschedError(f'effect "{entry.key}" is entered by two processes of one attempt')
            backend.record(effects.mark_in_doubt, entry, found.entry)
        elif found.state == "in_doubt":
            if in_doubt == "raise":
                raise EffectInDoubt(_what_to_look_up(entry, found))
            if in_doubt == "skip" and backend.record(effects.assume_done, entry):
                log.warning('effect "%s" was in doubt and now counts as done: in_doubt="skip"', entry.key)
                return Effect(False, found.provider_key)
            if in_doubt == "repeat" and backend.record(effects.take_over, entry):
                return Effect(True, found.provider_key)
    raise Snooze(1, f'effect "{entry.key}" changes hands too quickly')


def leave(
    backend: PostgresBackend,
    entry: effects.EffectEntry,
    error: BaseException,
    release_on: tuple[type[Exception], ...],
    log: logging.Logger,
) -> None:
    """Record that ``error`` left the effect. It is the news: what fails here must not hide it."""
    import psycopg

    from yamlsched.store import effects

    is_released = proves_nothing_happened(error, release_on)
    if not is_released:
        error.add_note(f'effect "{entry.key}" is in doubt: this error does not prove that nothing happened')
    try:
        backend.record(effects.release if is_released else effects.mark_in_doubt, entry)
    except (psycopg.Error, EnvironmentFailed) as failure:
        log.warning("effect %s stays in doubt, because the database does not answer: %s", entry.key, failure)


def finish(backend: PostgresBackend, entry: effects.EffectEntry, name: str, result: Any, log: logging.Logger) -> None:
    """Record that the effect was done, with its result. Raises Refused for a result that cannot be stored."""
    from yamlsched.store import effects

    try:
        text = jsonb.encode_result(result, f'the result of effect "{name}"')
    except Refused:
        backend.record(effects.mark_in_doubt, entry)  # it was done, and what a later attempt must know of it is lost
        raise
    if not backend.record(effects.mark_done, entry, text):
        log.warning("effect %s was done, but meanwhile it was started again, or settled", entry.key)


def _what_to_look_up(entry: effects.EffectEntry, found: effects.FoundEffect) -> str:
    when = rfc3339(found.claimed_at, "seconds") if found.claimed_at else "an unknown time"
    settle = settle_command(entry.namespace, entry.key)
    if len(settle) > MAX_COMMAND_CHARS:
        settle = f"the settle command that `yamlsched show {entry.run_id}` prints"
    return (
        f"effect in doubt: attempt {found.attempt} of run {found.run_id} started it at {when} and did not report its "
        f"end. Look up whether it happened (idempotency key {found.provider_key}), then run: {settle}, "
        f"then: yamlsched retry {entry.run_id}"
    )


def settle_command(namespace: str, key: str) -> str:
    """Return the command that settles an effect in doubt."""
    where = "" if namespace == "default" else f" --namespace {namespace}"
    name = shlex.quote(key) if not key.startswith("-") else f"-- {shlex.quote(key)}"
    return f"yamlsched settle --done{where} {name} (or --not-done)"
