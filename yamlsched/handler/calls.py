"""Calling a handler, wherever that is: how the call ends its attempt, with the stack of an
exception.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from os.path import exists, samefile
from typing import Any, NoReturn

from yamlsched import jsonb
from yamlsched.errors import Discard, EffectInDoubt, RetryAfter, Snooze
from yamlsched.handler.backends import Backend
from yamlsched.handler.run import Run, Trigger, UpstreamRun
from yamlsched.handler.transaction import require_ended
from yamlsched.runs.lifecycle import (
    MAX_STACK_CHARS,
    AttemptEnd,
    ClaimedRun,
    EndKind,
    EnqueueBatch,
    storable,
)
from yamlsched.schedule.handlers import Parameters

decode = json.JSONDecoder().raw_decode  # what PostgreSQL stores has no spaces around it
MAX_FRAMES = 50  # of one exception: the last ones
OWN_FILES = {__file__}
"""Files whose frames are left out at the start of stacks; modules that call handlers add their own.
"""


def resolve(path: str) -> Callable[..., Any]:
    """Import and return the callable that ``pkg.mod.func`` or ``pkg.mod:func`` names."""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    target: Any = importlib.import_module(module)
    _refuse_other_origin(module.partition(".")[0])
    for part in name.split("."):
        target = getattr(target, part)
    if not callable(target):
        raise TypeError(f"{path} is not a function (got a {type(target).__name__})")
    return target  # type: ignore[no-any-return]


def _refuse_other_origin(name: str) -> None:
    """Raise ImportError if a top-level module was loaded from another place than the one that comes
    first now.

    That is a library module of which a module of the project has the name.
    """
    spec = PathFinder.find_spec(name)
    if spec is None or not spec.has_location or spec.origin is None:
        return
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is None and name not in sys.builtin_module_names:
        return  # it has replaced itself by another object
    if loaded is None or not (exists(loaded) and samefile(loaded, spec.origin)):
        place = loaded or "the interpreter"
        raise ImportError(
            f"{name} is already loaded from {place}, and not from {spec.origin}: rename the latter"
        )


def read_payload(text: str) -> dict[str, Any]:
    """Return the payload. Raises Discard where Python cannot read what PostgreSQL stores: no retry
    changes that.
    """
    try:
        payload, _ = decode(text)
    except RecursionError as error:
        raise _unreadable("it is nested too deeply") from error
    except ValueError as error:
        raise _unreadable("it contains a number with too many digits") from error
    if not isinstance(payload, dict):
        kind = type(payload).__name__
        raise Discard(
            f"the payload is of type {kind}, not an object: its keys become keyword arguments"
        )
    return payload


def _unreadable(why: str) -> Discard:
    return Discard(f"the payload cannot be read: {why}. Enqueue the run again with another payload")


@lru_cache(1024)
def payload_mismatch(handler: Callable[..., Any], path: str, names: tuple[str, ...]) -> str:
    """Return why a payload with keys ``names`` cannot be passed to ``handler``; empty if it can.

    A decorator may pass on other arguments than it gets: of a decorated handler its own signature
    counts.
    """
    try:
        fault = Parameters.of(path, handler, follow_wrapped=False).fault(names)
    except (TypeError, ValueError):
        return ""  # some builtins have no signature
    return f"the payload does not fit: {fault}" if fault else ""


@cache
def takes_run(handler: Callable[..., Any]) -> bool:
    """Return whether ``handler`` has a parameter ``run``."""
    try:
        return "run" in inspect.signature(handler).parameters
    except (TypeError, ValueError):
        return False


MAX_REPORTED_ERROR_CHARS = 4_000


class Stopped(BaseException):
    """Raised in a handler that is stopped, so that its ``finally`` blocks run before
    it is killed.
    """


def make_run(run: ClaimedRun, payload: dict[str, Any], backend: Backend) -> Run:
    """Return ``run`` as its handler gets it."""
    slot = (
        None
        if run.scheduled_for is None
        else datetime.fromisoformat(run.scheduled_for).astimezone(UTC)
    )
    return Run(
        id=run.id,
        job_type=run.job_type,
        key=run.key,
        scheduled_for=slot,
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        payload=payload,
        is_catchup=run.is_catchup,
        backend=backend,
        upstream=UpstreamRun.read(run.upstream),
        trigger=Trigger.read(run.trigger),
    )


def returned(value: Any, run: Run | None, was_stopped: bool) -> AttemptEnd | None:
    """Return the end of an attempt whose handler returned ``value``; None for a success and nothing
    else to report.

    Raises Stopped if it ``was_stopped`` before, and Refused for a value that cannot be stored.
    """
    if value is None and run is None and not was_stopped:
        return None
    if run is not None and run.committed:
        if value is not None and value != run.state.result:
            run.log.warning(
                "the result is what was set inside the transaction; the returned value is dropped"
            )
        return AttemptEnd(EndKind.COMMITTED)
    if was_stopped:
        raise Stopped("stopped by yamlsched, but it returned")
    if run is not None and run.state.succeeded_in is not None:
        # whether by a commit is found out by the worker, which writes the same success again
        require_ended(run)
        if value is not None and value != run.state.result:
            run.log.warning(
                "the result is what was set before run.succeed_in(); the returned value is dropped"
            )
        value = run.state.result
    result = jsonb.encode_result(value, "the result")
    enqueued = _plain(run.state.enqueued) if run is not None else []
    if result is None and not enqueued:
        return None
    return AttemptEnd(EndKind.RETURNED, result=result, enqueued=enqueued)


def raised(error: BaseException, run: Run | None) -> AttemptEnd:
    """Return the end of an attempt whose handler raised ``error``."""
    if run is not None and run.committed:
        logging.getLogger(run.job_type).exception(
            "an exception after the commit: the run has succeeded"
        )
        return AttemptEnd(EndKind.COMMITTED)
    return _end_of(error)


def exit_fork(error: BaseException | None) -> NoReturn:
    """End a process that a handler forked as Python would, now that it has returned or raised
    ``error``.
    """
    code: object = None
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        code = _stack(error).rstrip()
    try:
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _plain(enqueued: list[EnqueueBatch]) -> list[EnqueueBatch]:
    """Return ``enqueued`` in types that the worker knows: a job's name or a key may be of a class
    of the handler's.
    """
    return [
        batch._replace(
            job_type=str(batch.job_type),
            keys=[key if key is None else str(key) for key in batch.keys],
            priority=batch.priority and str(batch.priority),
        )
        for batch in enqueued
    ]


def _end_of(error: BaseException) -> AttemptEnd:
    kind, delay, stack = EndKind.RAISED, None, _stack(error)
    error = _effect_in_doubt(error) or error
    if isinstance(error, (Discard, EffectInDoubt)):
        kind = EndKind.DISCARDED  # a retry knows no more about an effect in doubt than this attempt
    elif isinstance(error, RetryAfter):
        kind, delay = EndKind.RETRY_AFTER, error.delay
    elif isinstance(error, Snooze):
        kind, delay = EndKind.SNOOZED, error.delay
    try:
        text = str(error) or repr(error)
        if isinstance(error, SystemExit):
            text = f"called sys.exit({error.code!r})"
        text = storable(text[:MAX_REPORTED_ERROR_CHARS])
    except BaseException:  # whatever it is, it must not hide the end of the attempt
        text = "exception has no printable message"
    if delay is not None:
        delay = timedelta(seconds=delay.total_seconds())  # may be of a class of the handler's
    name = storable(type(error).__name__[:MAX_REPORTED_ERROR_CHARS])
    return AttemptEnd(kind, text, name, storable(stack[-MAX_STACK_CHARS:]), delay=delay)


def _effect_in_doubt(error: BaseException) -> EffectInDoubt | None:
    """Return the effect in doubt, also of a task of an asynchronous handler."""
    while (
        isinstance(error, BaseExceptionGroup)
        and (group := error.subgroup(EffectInDoubt)) is not None
    ):
        error = group.exceptions[0]
    return error if isinstance(error, EffectInDoubt) else None


def _stack(error: BaseException) -> str:
    """Return the traceback, without our own frames before the handler's."""
    try:
        whole = traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES)
        while whole.stack and whole.stack[0].filename in OWN_FILES:
            del whole.stack[0]
        return "".join(whole.format())
    except BaseException:  # of its __str__
        return ""
