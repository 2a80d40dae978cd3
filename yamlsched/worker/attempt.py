"""An attempt: a run that this worker has claimed, until its outcome is in the database. And a
worker's workload, and what the pools of processes report to their worker, through its
``EventQueue``: of each attempt that was submitted one of ``Succeeded``, ``Ended`` and
``ReturnedUnstarted``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from yamlsched import log
from yamlsched.handler.programs import was_terminated
from yamlsched.runs.lifecycle import (
    PROCESS_ENDED,
    AttemptEnd,
    ClaimedRun,
    EndKind,
    Keep,
    Usage,
)
from yamlsched.runs.progress import Progress
from yamlsched.schedule.job import Job, Overlap
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.output import AttemptOutput

STOPPED = AttemptEnd(EndKind.RELEASED, "stopped by a shutdown")


class Kind(Enum):
    """What a child executes: each child does one of them."""

    HANDLER = auto()  # one at a time
    COMMAND = auto()  # likewise, where no handler was executed
    COROUTINE = auto()  # many at once


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a run. Instants are those of ``clock.now``."""

    run: ClaimedRun
    job: Job
    lease_ends_at: float  # counted from before the claim was sent
    renewed_at: float
    # why it is being stopped: recorded as its end, unless it succeeds first
    stopped: AttemptEnd | None = None
    took: float | None = None  # seconds that it executed, once it has ended
    usage: Usage | None = None  # of a plain success
    # another claim has the run, or it was cancelled: the outcome is discarded
    is_lost: bool = False
    has_lost_lease: bool = False  # or was about to: it was stopped for that
    progress: Progress | None = None  # as its handler has reported it last
    written_progress: Progress | None = None  # what of it is in the database
    output: AttemptOutput | None = None  # once it has printed something
    seen_at: float | None = None  # when it was first seen executing
    is_suspect: bool = False  # a child died before it could start it
    kill_at: float | None = None  # when the process of a coroutine that was stopped is killed
    # what of it may be in the database, and the bytes before that
    live_output: tuple[str, int] | None = None

    @property
    def is_command(self) -> bool:
        """Whether it executes a program, and not a handler."""
        return bool(self.job.command)

    @property
    def is_coroutine(self) -> bool:
        """Whether it shares a process with other attempts of its queue.

        A handler whose last attempt ended with its process is called in a process of its own:
        otherwise one run could end others until they are dead.
        """
        return self.job.is_async and self.run.error_type not in PROCESS_ENDED

    @property
    def kind(self) -> Kind:
        """What its child executes."""
        if self.is_command:
            return Kind.COMMAND
        return Kind.COROUTINE if self.is_coroutine else Kind.HANDLER

    @property
    def has_turn(self) -> bool:
        """Whether other runs may wait for its end: of its job, of its limit, of jobs that follow
        its job, or of hooks.
        """
        job = self.job
        has_turn = self.run.scheduled_for is not None and job.overlap is not Overlap.ALLOW
        return has_turn or job.limit is not None or job.is_followed or bool(job.on_success)

    @property
    def kill_after(self) -> float:
        """Seconds between SIGTERM and SIGKILL to a program."""
        return self.job.kill_after.total_seconds()

    def keeps_output(self, end: AttemptEnd) -> bool:
        """Return whether what it printed is kept, now that its handler has ended with ``end``."""
        keep = self.job.output.keep
        if keep is not Keep.FAILED:
            return keep is Keep.ALWAYS
        return (
            self.is_lost
            or self.has_lost_lease
            or (end if end.is_success else self.stopped or end).is_failure
        )

    def mark_lost(self, why: str) -> bool:
        """Note and log that the run does not belong to this attempt any more; return False if that
        is known already.

        A heartbeat and an outcome may find it out at the same time.
        """
        if self.is_lost:
            return False
        self.is_lost, run = True, self.run
        number = log.NumberOf(run.attempt, run.max_attempts)
        log.warning(
            "lease.lost", job=run.job_type, run=run.id, key=run.key, attempt=number, why=why
        )
        return True


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of one worker; None: unlimited."""

    max_time: timedelta | None = None  # after which it claims no more
    max_runs: int | None = None
    idle_exit: timedelta | None = None  # after which it ends if it has nothing to do
    grace: timedelta = timedelta(seconds=30)  # for handlers, after SIGTERM


@dataclass(frozen=True)
class Workload:
    """The jobs that a worker may claim, and where their handlers are imported from.

    ``file`` has no links: it stays of one release. ``place`` is the path that the worker was
    started with.
    """

    dsn: str
    namespace: str
    jobs: Mapping[str, Job]
    scope: ClaimScope
    file: Path
    path: tuple[str, ...] = ()  # of --path
    place: Path | None = None  # None: it is not followed


class Succeeded(NamedTuple):
    """The handlers of ``attempts`` returned nothing, and enqueued nothing."""

    attempts: list[Attempt]


class Ended(NamedTuple):
    """An attempt ended in any other way, its loss by the pool included."""

    attempt: Attempt
    end: AttemptEnd

    @property
    def is_terminated(self) -> bool:
        """Whether SIGTERM ended a command, and this worker has not sent it."""
        attempt = self.attempt
        return attempt.stopped is None and attempt.is_command and was_terminated(self.end)


class ReturnedUnstarted(NamedTuple):
    """``attempts`` were not started, and will not be: this costs them nothing."""

    attempts: list[Attempt]


class Failed(NamedTuple):
    """A task of the worker raised ``error``, or a pool can start nothing at all."""

    error: BaseException


class Capacity(NamedTuple):
    """How many attempts a pool can take."""

    # that may execute at once; 0: none at present, others on this host use all permits
    parallel: int
    total: int  # that it can hold and start within some tens of milliseconds
    held: int  # that it holds, of ``total``


class EventQueue:
    """Events in order, and one wakeup for their consumer."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._wakeup = asyncio.Event()

    def put(self, event: object) -> None:
        self._events.append(event)
        self._wakeup.set()

    def wake(self) -> None:
        """Wake the consumer without an event."""
        self._wakeup.set()

    async def wait(self) -> list[Any]:
        """Wait for an event or a wakeup, and return the events."""
        await self._wakeup.wait()
        self._wakeup.clear()
        events, self._events = self._events, []
        return events


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for ``event``, at most ``seconds``, and clear it."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
    event.clear()
