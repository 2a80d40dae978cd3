"""Effects that must happen once: what releases one, how an attempt enters and leaves it. See
docs/handlers.md.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import psycopg

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
from yamlsched.runs.effects import EffectEntry, FoundEffect
from yamlsched.timetable.times import rfc3339

if TYPE_CHECKING:
    from yamlsched.handler.run import Run

SNOOZE_INTERVAL = timedelta(seconds=15)
"""How long a run waits for an effect that a live attempt of another run holds."""
MAX_CLAIMS = 10
"""Statements that try to claim a key while other attempts act on it."""
MAX_NAME_CHARS = 200
MAX_COMMAND_CHARS = 260
"""Length of a command in an error message. The whole message must fit into ``last_error``."""
MAX_CAUSES = 50
"""Depth to which the causes of an error are searched."""
ReleaseOn: TypeAlias = tuple[type[Exception], ...]
DEFAULT_RELEASE_ON: ReleaseOn = (
    ConnectionRefusedError,
    socket.gaierror,
    Discard,
    RetryAfter,
    Snooze,
)
"""Exceptions that prove that the effect did not happen: no server was reached, or the handler
raised it on purpose.
"""


class NothingHappened(Exception):
    """Raised inside an effect that was entered while its attempt was cancelled: its handler has not
    started it.
    """


@dataclass(slots=True)
class Effect:
    """What ``once`` yields. If ``first``, do the effect, and set ``result`` to what a later attempt
    needs.

    ``key`` is a UUID, the same for all attempts, and unique to this effect, run and database: pass
    it to a provider as its idempotency key.
    """

    first: bool
    key: str
    result: Any = None


def effect_key(run_id: int, name: str, scope: str) -> str:
    """Return the key under which an effect is recorded. Raises Refused for a name or a scope that
    is not valid.
    """
    is_string = isinstance(name, str) and name.isprintable() and not name.startswith("run:")
    if not is_string or not 0 < len(name) <= MAX_NAME_CHARS:
        raise Refused(
            f"the name of an effect must be a string of 1 to {MAX_NAME_CHARS} printable characters,"
            f' which does not start with "run:", not {name!r:.300}'
        )
    _check_choice("scope", scope, ("run", "namespace"))
    return f"run:{run_id}:{name}" if scope == "run" else name


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        names = ", ".join(f'"{choice}"' for choice in choices)
        raise Refused(f"{option} of an effect must be one of {names}, not {value!r:.100}")


def _check_options(in_doubt: str, release_on: ReleaseOn) -> None:
    """Raise Refused for options that are not valid, before anything is claimed."""
    _check_choice("in_doubt", in_doubt, ("raise", "skip", "repeat"))
    kinds = release_on if isinstance(release_on, tuple) else (None,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise Refused(
            f"release_on must be a tuple of exception classes, not {release_on!r:.100}. Write for"
            " example release_on=(*yamlsched.DEFAULT_RELEASE_ON, MyError)"
        )


def proves_nothing_happened(error: BaseException, release_on: ReleaseOn) -> bool:
    """Return whether ``error`` is one of ``release_on``, or was caused by such an error.

    Libraries wrap the cause: in ``__cause__`` (httpx, aiohttp, urllib3), or as an argument
    (URLError, requests). For a group, all of its errors must prove it. An error that was only being
    handled (``__context__``) is not a cause.
    """
    visited: set[int] = set()

    def proves(error: object, depth: int = 0) -> bool:
        if not isinstance(error, Exception) or id(error) in visited or depth > MAX_CAUSES:
            return False  # any other BaseException stopped the process inside the effect
        visited.add(id(error))
        if isinstance(error, (*release_on, NothingHappened)):
            return True
        if isinstance(error, ExceptionGroup):
            return all(proves(each, depth + 1) for each in error.exceptions)
        return any(proves(cause, depth + 1) for cause in (error.__cause__, *error.args))

    return proves(error)


@contextmanager
def perform(
    run: Run, name: str, in_doubt: str, scope: str, release_on: ReleaseOn
) -> Iterator[Effect]:
    """Yield the effect ``name``, claimed before the block and recorded after it. See
    ``Run.once``.
    """
    run.require_uncommitted("use run.once()")
    _check_options(in_doubt, release_on)
    backend, state = run.backend, run.state
    key = effect_key(backend.run_id, name, scope)
    entry = EffectEntry(
        backend.namespace, key, backend.run_id, backend.attempt, backend.locked_by, str(uuid4())
    )
    if state.inside.setdefault(key, entry.entry) != entry.entry:
        raise YamlschedError(f'effect "{key}" is entered inside itself, or by two threads at once')
    try:
        effect = _enter(run, entry, in_doubt)
        if effect.first:
            state.entered.add(key)
            process = os.getpid()
            try:
                yield effect
            except BaseException as error:
                if os.getpid() == process:
                    _record_exception(run, entry, error, release_on)
                raise
            # a process that the handler forked inside the block records nothing
            if os.getpid() == process:
                _record_result(run, entry, name, effect.result)
    finally:
        del state.inside[key]
    if not effect.first:
        yield effect


def _enter(run: Run, entry: EffectEntry, in_doubt: str) -> Effect:
    """Return the effect as this attempt must treat it. Raises LeaseLost, EffectInDoubt, or Snooze.

    Other attempts may act between two statements. Then it claims the key again.
    """
    backend = run.backend
    for _ in range(MAX_CLAIMS):
        effect = backend.claim(entry)
        if effect is None:
            raise LeaseLost(f"run {entry.run_id}: attempt {entry.attempt} outlived its lease")
        if effect.is_first or effect.entry == entry.entry:
            # the second: claimed by a statement whose answer was lost
            return Effect(True, effect.provider_key)
        if effect.state == "done":
            return Effect(False, effect.provider_key, effect.result)
        if effect.state == "claimed":
            if effect.holder_is_live and effect.run_id != entry.run_id:
                raise Snooze(
                    SNOOZE_INTERVAL,
                    f'effect "{entry.key}" is held by run {effect.run_id}, which is running',
                )
            if effect.holder_is_live and entry.key not in run.state.entered:
                raise YamlschedError(
                    f'effect "{entry.key}" is entered by two processes of one attempt'
                )
            backend.write("mark_in_doubt", entry, doubted=effect.entry)
        elif effect.state == "in_doubt":
            if in_doubt == "raise":
                raise EffectInDoubt(_what_to_look_up(entry, effect))
            if in_doubt == "skip" and backend.write("assume_done", entry):
                run.log.warning(
                    'effect "%s" was in doubt and now counts as done: in_doubt="skip"', entry.key
                )
                return Effect(False, effect.provider_key)
            if in_doubt == "repeat" and backend.write("take_over", entry):
                return Effect(True, effect.provider_key)
    raise Snooze(
        1, f'effect "{entry.key}" is still changing hands after {MAX_CLAIMS} attempts to enter it'
    )


def _record_exception(
    run: Run, entry: EffectEntry, error: BaseException, release_on: ReleaseOn
) -> None:
    """Record that ``error`` left the effect. A failure to record it must not hide ``error``."""
    is_released = proves_nothing_happened(error, release_on)
    if not is_released:
        error.add_note(
            f'effect "{entry.key}" is in doubt: this error does not prove that nothing happened'
        )
    try:
        run.backend.write("release" if is_released else "mark_in_doubt", entry)
    except (psycopg.Error, EnvironmentFailed) as failure:
        run.log.warning(
            "effect %s remains in doubt, because the database does not answer: %s",
            entry.key,
            failure,
        )


def _record_result(run: Run, entry: EffectEntry, name: str, result: Any) -> None:
    """Record that the effect was done. Raises Refused for a result that cannot be stored."""
    try:
        text = jsonb.encode_result(result, f'the result of effect "{name}"')
    except Refused:
        # it was done, but the result that a later attempt needs is lost
        run.backend.write("mark_in_doubt", entry)
        raise
    if not run.backend.write("mark_done", entry, result=text):
        run.log.warning("effect %s was done, but it has been started again or settled", entry.key)


def _what_to_look_up(entry: EffectEntry, effect: FoundEffect) -> str:
    when = f" at {rfc3339(effect.claimed_at, 'seconds')}" if effect.claimed_at else ""
    settle = settle_command(entry.namespace, entry.key)
    if len(settle) > MAX_COMMAND_CHARS:
        settle = f"the settle command that `yamlsched show {entry.run_id}` prints"
    return (
        f"effect in doubt: attempt {effect.attempt} of run {effect.run_id} started it{when} and did"
        f" not report its end. Look up whether it happened (idempotency key {effect.provider_key}),"
        f" then run: {settle}, then: yamlsched retry {entry.run_id}"
    )


def settle_command(namespace: str, key: str) -> str:
    """Return the command that settles an effect in doubt."""
    where = "" if namespace == "default" else f" --namespace {namespace}"
    name = shlex.quote(key) if not key.startswith("-") else f"-- {shlex.quote(key)}"
    return f"yamlsched settle --done{where} {name} (or --not-done)"
