"""The child: carries out runs one at a time and tells its parent how each attempt ended.

It is forked, holds no session of the parent's, and may be killed at any instant: what the parent must know then stands
in the shared memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import inspect
import json
import logging
import os
import select
import signal
import struct
import sys
import termios
import time
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, NoReturn

from yamlsched import jsonb
from yamlsched.errors import Discard, EffectInDoubt, RetryAfter, Snooze
from yamlsched.handling.backends import PostgresBackend
from yamlsched.handling.run import Run
from yamlsched.handling.sessions import sessions
from yamlsched.runs import MAX_STACK_CHARS, ClaimedRun, End, EnqueueBatch, storable
from yamlsched.worker.executors.processes.protocol import (
    GO_ON,
    MAX_FRAME_BYTES,
    WITHDRAWN,
    Frames,
    Memory,
    Report,
    Task,
    frame,
)

IDLE_SESSION_SECONDS = 1.0  # after which the sessions of handlers are closed
FLUSH_EVERY = 0.02  # seconds for which the news of a success may be held back
SLOW = 0.002  # seconds: of a run that takes longer the news is sent at once, so that the parent sends the next in time
MAX_ERROR_CHARS = 4_000  # characters of an error that are sent to the parent
BAD_EXIT = 70  # of a child that cannot go on
decode = json.JSONDecoder().raw_decode  # of text as PostgreSQL writes it: without anything before and behind
NOTHING = struct.pack("i", 0)  # the count of bytes in an empty pipe
CLOSED_PIPES = 71  # of a child whose handler closed the descriptors by which it talks


class Stopped(BaseException):
    """Raised in the handler by SIGTERM, so that its ``finally`` blocks run before it is killed."""


class Runner:
    """One child process, from fork to end."""

    def __init__(self, commands: int, results: int, output: int, memory: Memory, dsn: str, namespace: str) -> None:
        self.commands, self.results, self.output = commands, results, output
        self.memory, self.dsn, self.namespace = memory, dsn, namespace
        self.pid = os.getpid()
        self.pipes = [(fd, os.fstat(fd).st_ino) for fd in (commands, results, output)]
        self.tasks: deque[Task] = deque()
        self.may_go_on = True
        self.handlers: dict[str, Callable[..., Any]] = {}  # that have been imported
        self.import_seconds = 0.0  # what of the attempt's time went into importing its handler
        self.begun = 0.0  # when the handler that is executing was called
        self.is_calling = self.was_stopped = False
        self.unread = bytearray(NOTHING)  # of the output's pipe
        self.successes: list[tuple[int, float]] = []  # that the parent has not been told of
        self.sent_at = time.perf_counter()
        self.frames = Frames()
        self.stdout, self.stderr = sys.stdout, sys.stderr

    def main(self) -> NoReturn:
        """Work until the parent closes the pipe. Never returns: whatever happens ends this process here."""
        try:
            self.memory.set_ready()
            while True:
                while not self.tasks:
                    self._receive()
                self._carry_out(self.tasks.popleft())
        except BaseException as error:
            if os.getpid() == self.pid:
                with contextlib.suppress(OSError):
                    os.write(2, f"yamlsched: a child process exits: {type(error).__name__}: {error}\n".encode())
            os._exit(BAD_EXIT)

    def _receive(self) -> None:
        """Wait for a piece of what the parent sends, which may be less than a frame. Ends this process at its end."""
        self._close_idle_sessions()
        piece = os.read(self.commands, 1 << 16)
        if not piece:
            os._exit(0)
        for content in self.frames.feed(piece):
            if content == GO_ON:
                self.may_go_on = True
            else:
                signal.signal(signal.SIGTERM, self._on_sigterm)  # a handler may have set its own
                self.tasks.extend(content)

    def _close_idle_sessions(self) -> None:
        """Close the sessions of handlers once there has been nothing to do for a moment: the server has a limit."""
        if sessions.has_open:
            news = select.poll()
            news.register(self.commands, select.POLLIN)
            if not news.poll(IDLE_SESSION_SECONDS * 1000):
                sessions.close()

    def _carry_out(self, task: Task) -> None:
        place = task[0]
        if not self.memory.start(place):
            self._tell(time.perf_counter(), Report(place, WITHDRAWN))
            return
        self.begun, self.import_seconds = time.perf_counter(), 0.0
        report = self._attempt(task)
        if os.getpid() != self.pid:
            os._exit(0)  # the handler forked, and this is its child, come back from the handler
        self._flush_output()
        has_output = self._has_output()
        now = time.perf_counter()
        took = now - self.begun
        is_plain = report is None and not has_output and not self.import_seconds
        is_due = not is_plain or not self.tasks or took > SLOW or now - self.sent_at > FLUSH_EVERY
        if is_due:
            self._check_pipes()
        if report is None:
            self.memory.done(place)
        else:
            self.memory.ended(place)
        if is_plain:
            self.successes.append((place, took))
            if is_due:
                self._tell(now)
        else:
            report = report or Report(place, End.RETURNED.value)
            self._tell(now, report._replace(took=took, import_seconds=self.import_seconds, has_output=has_output))
        if has_output:
            # what the pipe holds is this run's: the next one begins when the parent has read it
            self.may_go_on = False
            while not self.may_go_on:
                self._receive()

    def _attempt(self, task: Task) -> Report | None:
        """Call the handler; return None where it returned nothing and left nothing to be told.

        This is the one place where any exception is caught: whatever it is, it is an outcome.
        """
        place, path, text, dead_run, timeout, claimed = task
        run: Run | None = None
        try:
            payload = {} if text == "{}" or dead_run is not None else read_payload(text)
            if (handler := self.handlers.get(path)) is None:
                handler = self.handlers[path] = resolve(path)
                self.import_seconds = time.perf_counter() - self.begun
            if dead_run is not None or _takes_run(handler):
                run = self._run(ClaimedRun._make(claimed), payload, timeout)
            if dead_run is None and (misfit := payload_misfit(handler, path, tuple(payload), run is not None)):
                return Report(place, End.DISCARDED.value, misfit, "PayloadMismatch")
            value = self._call(handler, payload, run, dead_run)
            if value is None and run is None and not self.was_stopped:
                return None
            if run is not None and run.committed:
                if value is not None and value != run.state.result:
                    run.log.warning("the result is what was set inside the transaction; the returned value is dropped")
                return Report(place, End.COMMITTED.value)
            if self.was_stopped:
                raise Stopped("stopped by yamlsched, but it returned")
            result = jsonb.encode_result(value, "the result")
            enqueued = _plain(run.state.enqueued) if run is not None and run.state.enqueued else None
            if result is None and enqueued is None:
                return None
            return Report(place, End.RETURNED.value, result=result, enqueued=enqueued)
        except BaseException as error:
            if run is not None and run.committed:
                logging.getLogger(run.job_type).exception("an exception after the commit: the run has succeeded")
                return Report(place, End.COMMITTED.value)
            report = _report_of(place, error)
            if run is not None and run.is_session_lost(error):
                report = report._replace(end=End.SESSION_LOST.value)
            return report

    def _call(self, handler: Callable[..., Any], payload: dict[str, Any], run: Run | None, dead_run: int | None) -> Any:
        """Call the handler so that SIGTERM stops it, and nothing but it."""
        self.was_stopped = False
        try:
            self.is_calling = True
            if run is None:
                value = handler(**payload)
            elif dead_run is not None:
                value = handler(run.dead_run(dead_run))
            else:
                value = handler(**payload, run=run)
            return asyncio.run(_awaited(value)) if value is not None and inspect.isawaitable(value) else value
        finally:
            self.is_calling = False

    def _on_sigterm(self, signum: int, frame: object) -> None:
        """Stop the handler if the parent wants that; else somebody has signalled all processes, and it decides."""
        if self.is_calling and self.memory.is_stop_requested:
            self.was_stopped = True
            raise Stopped("stopped by yamlsched")

    def _run(self, run: ClaimedRun, payload: dict[str, Any], timeout: float) -> Run:
        slot = None if run.scheduled_for is None else datetime.fromisoformat(run.scheduled_for).astimezone(UTC)
        return Run(
            id=run.id,
            job_type=run.job_type,
            key=run.key,
            scheduled_for=slot,
            attempt=run.attempt,
            max_attempts=run.max_attempts,
            payload=payload,
            is_catchup=run.is_catchup,
            backend=PostgresBackend(self.dsn, self.namespace, run.id, run.attempt, run.locked_by, timeout),
        )

    def _tell(self, now: float, report: Report | None = None) -> None:
        whole = frame((self.successes, report and tuple(report)))
        if report is not None and len(whole) > MAX_FRAME_BYTES:
            runs = sum(len(payloads) for _, payloads, *_ in report.enqueued or [])
            text = f"it enqueued {runs} runs, {len(whole) >> 20} MiB, over the limit of {MAX_FRAME_BYTES >> 20} MiB: "
            text += "enqueue fewer in one attempt, and let some of them enqueue the rest"
            refused = Report(report.place, End.RAISED.value, text, "EnqueueRefused", took=report.took)
            whole = frame((self.successes, tuple(refused._replace(has_output=report.has_output))))
        content = memoryview(whole)
        while content:
            content = content[os.write(self.results, content) :]
        self.successes.clear()
        self.sent_at = now

    def _check_pipes(self) -> None:
        """End this process if the handler closed its pipes: by now their numbers may mean a file of the handler's."""
        for descriptor, inode in self.pipes:
            try:
                if os.fstat(descriptor).st_ino == inode:
                    continue
            except OSError:
                pass
            os._exit(CLOSED_PIPES)

    def _flush_output(self) -> None:
        """Flush what the handler printed, and undo what it did to where its successors print."""
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:
            self.stdout = None  # whatever they are now: both are made anew
        if sys.stdout is not self.stdout or sys.stderr is not self.stderr:
            sys.stdout, sys.stderr = self.stdout, self.stderr = standard_streams()

    def _has_output(self) -> bool:
        """Say whether there is something unread in the pipe of stdout and stderr."""
        try:
            fcntl.ioctl(self.output, termios.FIONREAD, self.unread)
            return self.unread != NOTHING
        except OSError:
            return False  # the handler closed it


def standard_streams() -> tuple[Any, Any]:
    """Return stdout and stderr, on descriptors 1 and 2, which they leave open."""
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "buffering": 1, "closefd": False}
    return os.fdopen(1, "w", **how), os.fdopen(2, "w", **how)


def resolve(path: str) -> Callable[..., Any]:
    """Import and return the callable that ``pkg.mod.func`` or ``pkg.mod:func`` names."""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{path} is not a function (got a {type(found).__name__})")
    return found  # type: ignore[no-any-return]


def read_payload(text: str) -> dict[str, Any]:
    """Return the payload. Raises Discard where Python cannot read what PostgreSQL stores: no retry changes that."""
    try:
        payload = decode(text)[0]
    except (ValueError, RecursionError) as error:
        fault = (
            "it is nested too deeply"
            if isinstance(error, RecursionError)
            else "it contains a number with too many digits"
        )
        raise Discard(f"the payload cannot be read: {fault}. Enqueue the run again with another payload") from error
    if not isinstance(payload, dict):
        raise Discard(f"the payload is a {type(payload).__name__}, not an object: its keys become keyword arguments")
    return payload


@lru_cache(1024)
def payload_misfit(handler: Callable[..., Any], path: str, names: tuple[str, ...], gives_run: bool) -> str:
    """Return why a payload with keys ``names`` cannot be passed to ``handler``; empty if it can.

    A decorator may pass other arguments on than it gets: of a decorated handler its own signature counts.
    """
    try:
        parameters = inspect.signature(handler, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return ""  # some builtins have none
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    given = {*names, "run"} if gives_run else {*names}
    unknown = sorted(given - {p.name for p in named})
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        unknown = []
    missing = [p.name for p in named if p.default is p.empty and p.name not in given]
    missing += [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    faults = [f'it has no parameter "{name}"' for name in unknown] + [f'"{name}" is missing' for name in missing]
    if "run" in names and gives_run:
        faults.append('"run" is the run itself')
    if not faults:
        return ""
    takes = ", ".join(p.name for p in named if p.name != "run") or "no parameters"
    return f"the payload does not fit {path}: {', '.join(faults)}. It takes: {takes}"


@cache
def _takes_run(handler: Callable[..., Any]) -> bool:
    try:
        return "run" in inspect.signature(handler).parameters
    except (TypeError, ValueError):
        return False


async def _awaited(value: Any) -> Any:
    return await value


def _plain(enqueued: list[EnqueueBatch]) -> list[Any]:
    """Return what the handler enqueued in types that a frame can hold: a key may be of a class of the handler's."""
    return [
        tuple(
            batch._replace(job_type=str(batch.job_type), keys=[key if key is None else str(key) for key in batch.keys])
        )
        for batch in enqueued
    ]


def _report_of(place: int, error: BaseException) -> Report:
    end, delay, stack = End.RAISED, None, _stack(error)
    error = _doubt_in(error) or error
    if isinstance(error, (Discard, EffectInDoubt)):
        end = End.DISCARDED  # of an effect in doubt a retry knows as little as this attempt
    elif isinstance(error, RetryAfter):
        end, delay = End.RETRY_AFTER, error.delay.total_seconds()
    elif isinstance(error, Snooze):
        end, delay = End.SNOOZED, error.delay.total_seconds()
    try:
        text = str(error) or repr(error)
        if isinstance(error, SystemExit):
            text = f"called sys.exit({error.code!r})"
        text = storable(text[:MAX_ERROR_CHARS])
    except Exception:
        text = "exception has no printable message"
    name = storable(type(error).__name__[:MAX_ERROR_CHARS])
    return Report(place, end.value, text, name, storable(stack[-MAX_STACK_CHARS:]), delay=delay)


def _doubt_in(error: BaseException) -> EffectInDoubt | None:
    """Return the effect in doubt that a task of an asynchronous handler has come to."""
    while isinstance(error, BaseExceptionGroup) and (found := error.subgroup(EffectInDoubt)) is not None:
        error = found.exceptions[0]
    return error if isinstance(error, EffectInDoubt) else None


def _stack(error: BaseException) -> str:
    """Return the traceback, without the frames of this module."""
    try:
        whole = traceback.TracebackException.from_exception(error, limit=-50)
        while whole.stack and whole.stack[0].filename == __file__:
            whole.stack.pop(0)
        return "".join(whole.format())
    except Exception:
        return ""
