"""The worker's side of an executor that is not local: a gateway process, and the attempts that no
agent has begun yet.

If the gateway dies, another one takes over: the begin tickets say what became of the attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from yamlsched import log
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.remote import dask_cluster, gateway, spec
from yamlsched.extras.remote.faults import Faults
from yamlsched.runs.lifecycle import AttemptEnd, EndKind
from yamlsched.schedule.job import DaskExecutor, Engine
from yamlsched.worker import clock, forking
from yamlsched.worker.attempt import Attempt, Workload
from yamlsched.worker.executor import Capacity, Ended, EventQueue, Left
from yamlsched.worker.forking import PipeWriter
from yamlsched.worker.local.protocol import Frames, frame

MAX_PAUSE_SECONDS = 60.0  # between tries to start a gateway or a program, after failures in a row
# for it to stop launchers and exit
CLOSE_TIMEOUT_SECONDS = gateway.LEAVE_SECONDS + gateway.WITHDRAW_SECONDS + 4.0
SILENCE_SECONDS = 2 * gateway.TIMEOUT_SECONDS + 20.0  # of a gateway that counts as dead: it hangs


@dataclass(slots=True, eq=False)
class RemoteAttempt:
    """An attempt that the gateway has."""

    number: int
    attempt: Attempt
    begin_by: float  # on ``clock.now``
    was_read: bool = False  # by a gateway, which may have started a launcher for it
    is_withdrawn: bool = False  # the gateway has been told to


@dataclass(slots=True)
class GatewayHandle:
    """One gateway process: its id and its pipes."""

    pid: int
    commands: PipeWriter
    results: int
    frames: Frames
    is_ready: bool = False  # it reads its commands
    error: str = ""  # that ended it
    is_closed: bool = False  # its pipe of commands is, so that it exits
    heard_at: float = 0.0


class RemoteExecutor:
    """Hands attempts to the engine of the executor ``name``. Claims keep to its concurrency, over
    all hosts.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        workload: Workload,
        events: EventQueue,
        place: tuple[str, str],
    ) -> None:
        """``place`` is that of the worker: its host, and the path of its file."""
        self._name, self._workload, self._events = name, workload, events
        self._concurrency = engine.concurrency
        self._faults = Faults(workload.dsn, workload.namespace, place, name)
        self._in_flight: dict[int, RemoteAttempt] = {}
        self._numbers: dict[Attempt, int] = {}
        self._next_number = 0
        self._gateway: GatewayHandle | None = None
        self._failures, self._usable_at = 0, 0.0  # in a row; until then nothing is claimed for it
        self._is_draining = False
        self._is_usable = _is_usable(name, engine)

    # -- the protocol of executors -----------------------------------------------------------------

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """Have a launcher started for each of ``attempts``."""
        self._open_gateway()
        for attempt in attempts:
            engine = attempt.job.engine
            if engine is None:
                self._events.put(
                    Ended(attempt, AttemptEnd(EndKind.RELEASED, "its executor has left the file"))
                )
                continue
            self._next_number += 1
            within = engine.begin_within.total_seconds()
            flight = RemoteAttempt(self._next_number, attempt, clock.now() + within)
            self._in_flight[flight.number] = flight
            self._numbers[attempt] = flight.number
            if self._gateway is None:
                self._release(flight.number, "no gateway process can be started")
            else:
                self._start(flight)

    def capacity(self) -> Capacity:
        """Return how many attempts this host may submit; how many may execute, the
        claim decides.
        """
        if not self._is_usable or clock.now() < self._usable_at:
            return Capacity(0, 0, 0, 0)
        most, held = self._concurrency, len(self._in_flight)
        return Capacity(most, max(0, most - held), most, held)

    def running(self) -> int:
        """Return how many attempts are in flight."""
        return len(self._in_flight)

    def stop(self, attempts: Iterable[Attempt], grace: float | None = None) -> None:
        """Withdraw attempts whose runs are lost or cancelled; leave those whose leases end, which
        may have begun.

        At a shutdown all have been withdrawn: the gateway says which have begun, unless there is no
        ``grace`` for it.
        """
        self.check()
        for attempt in attempts:
            if (number := self._numbers.get(attempt)) is None:
                continue
            flight = self._in_flight[number]
            if attempt.is_lost and self._gateway is not None and not flight.is_withdrawn:
                flight.is_withdrawn = True
                self._send("withdraw", number)
            elif attempt.is_lost or attempt.has_lost_lease or grace == 0 or self._gateway is None:
                self._send("leave", number)
                self._leave(number)

    def _leave(self, number: int) -> None:
        if (flight := self._in_flight.pop(number, None)) is not None:
            del self._numbers[flight.attempt]
            self._events.put(Left(flight.attempt))

    def release_unstarted(self) -> None:
        """Withdraw what has not begun."""
        self._is_draining, self._usable_at = True, 0.0
        self.check()
        self._send("withdraw", None)

    def release_idle_capacity(self) -> None:
        """Do nothing: no permits are shared."""

    def check(self) -> None:
        """Replace a gateway that has died or hangs. Timeouts are enforced by the agents."""
        if not self._in_flight:
            return
        if (
            handle := self._gateway
        ) is not None and clock.now() - handle.heard_at > SILENCE_SECONDS:
            handle.error = f"it has not answered for {SILENCE_SECONDS:.0f} s"
            self._kill(handle)
            self._note_death(handle)
        self._open_gateway()

    def reload(self, workload: Workload) -> None:
        """Let attempts that start from now on follow ``workload``."""
        self._workload = workload
        engines = (job.engine for job in workload.jobs.values() if job.executor == self._name)
        if (engine := next(engines, None)) is not None:
            self._concurrency = engine.concurrency
            self._is_usable = _is_usable(self._name, engine)

    async def close(self) -> None:
        """Let the gateway stop its launchers and exit; kill it if it does not."""
        if (handle := self._gateway) is not None:
            handle.is_closed = True
            handle.commands.disconnect()
            deadline = clock.now() + CLOSE_TIMEOUT_SECONDS
            while self._gateway is not None and clock.now() < deadline:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(handle.pid, os.WNOHANG) == (0, 0):
                        await asyncio.sleep(0.005)
                        continue
                self._forget(handle)
            if self._gateway is not None:
                self._kill(handle)
        await self._faults.close()

    # -- the gateway -------------------------------------------------------------------------------

    def _open_gateway(self) -> None:
        """Start a gateway if there is none and it did not fail just now; give it what earlier ones
        had.
        """
        if self._gateway is not None or clock.now() < self._usable_at:
            return
        try:
            self._gateway = self._fork()
        except EnvironmentFailed as error:
            self._note_failure(str(error))
            return
        for flight in self._in_flight.values():
            self._start(flight)
            if flight.is_withdrawn:
                self._send("withdraw", flight.number)
        if self._is_draining:
            self._send("withdraw", None)

    def _start(self, flight: RemoteAttempt) -> None:
        attempt, run = flight.attempt, flight.attempt.run
        engine = attempt.job.engine
        assert engine is not None
        launch_id = f"{run.id}-{run.attempt}-{run.locked_by.rpartition(':')[2]}"
        argument = spec.encode(attempt, self._workload.namespace)
        launch: tuple[Any, ...]
        if isinstance(engine, DaskExecutor):
            launch = (
                "dask",
                engine.address,
                f"yamlsched-{launch_id}",
                argument,
                attempt.job.resources,
            )
        else:
            argv, withdraw = (
                [word.replace("{id}", launch_id) for word in words]
                for words in (engine.command, engine.withdraw)
            )
            launch = ("command", [*argv, "yamlsched", "attempt", argument], withdraw)
        name, ticket = f"[{run.job_type} {run.id}] ", tuple(spec.ticket_of(run))
        within = max(0.0, flight.begin_by - clock.now())
        self._send("start", flight.number, launch, name, ticket, within, flight.was_read)
        flight.was_read |= self._gateway is not None and self._gateway.is_ready

    def _note_failure(self, why: str) -> None:
        """Claim nothing for a while, longer after each failure in a row: other executors and local
        jobs go on.
        """
        if clock.now() < self._usable_at:
            return  # one of several attempts that failed together
        self._failures += 1
        pause = min(2.0**self._failures, MAX_PAUSE_SECONDS)
        self._usable_at = clock.now() + pause
        self._faults.note(why)
        log.error(
            "executor.unavailable",
            executor=self._name,
            error=why,
            retry_in=timedelta(seconds=pause),
        )

    def _send(self, *content: Any) -> None:
        if self._gateway is not None:
            self._gateway.commands.write(frame(content))

    def _fork(self) -> GatewayHandle:
        workload, name = self._workload, self._name

        def run(parent: int, pipes: list[forking.Pipe]) -> None:
            (commands, _), (_, results) = pipes
            for variable in {
                variable for job in workload.jobs.values() for variable in job.secret_env
            }:
                os.environ.pop(variable, None)  # launchers inherit the rest
            gateway.main(parent, commands, results, workload.dsn, str(workload.file.parent), name)

        pid, [(command_read, commands), (results, result_write)] = forking.fork("gateway", 2, run)
        os.close(command_read)
        os.close(result_write)
        os.set_blocking(results, False)
        handle = GatewayHandle(pid, PipeWriter(commands), results, Frames(), heard_at=clock.now())
        asyncio.get_running_loop().add_reader(results, self._receive, handle)
        return handle

    def _receive(self, handle: GatewayHandle) -> None:
        try:
            piece = os.read(handle.results, 1 << 20)
        except BlockingIOError:
            return
        if not piece:
            if handle.is_closed:  # it exits because it is told to
                asyncio.get_running_loop().remove_reader(handle.results)
                return
            self._kill(handle)
            self._note_death(handle)
            return
        handle.heard_at = clock.now()
        for kind, number, content, *rest in handle.frames.feed(piece):
            if kind == "ready":
                handle.is_ready = True
                for flight in self._in_flight.values():
                    flight.was_read = True
            elif kind == "begun":
                self._failures = 0
                self._leave(number)
            elif kind == "failed":
                handle.error = content
            elif kind == "fault":
                self._faults.note(content)
            elif kind == "unavailable":
                self._note_failure(content)
                self._release(number, content, *rest)
            elif kind == "unstarted":
                self._end(
                    number,
                    AttemptEnd(EndKind.RELEASED, content, delay=timedelta(seconds=rest[0]) or None),
                )

    def _note_death(self, handle: GatewayHandle) -> None:
        """Have a gateway replaced: the first of several in a row at once. What none has read has
        not been started.
        """
        log.warning(
            "gateway.died",
            executor=self._name,
            in_flight=len(self._in_flight),
            error=handle.error or None,
        )
        if self._failures or not handle.is_ready:
            self._note_failure(
                "its gateway process dies" + (f": {handle.error}" if handle.error else "")
            )
        else:
            self._failures = 1
        for flight in list(self._in_flight.values()):
            if not flight.was_read:
                self._release(flight.number, "no gateway process can be started")

    def _release(self, number: int, why: str, least: float = 0.0) -> None:
        """Return an attempt that has not begun, to be claimed again after the pause, in ``least``
        seconds or later.
        """
        delay = timedelta(seconds=max(1.0, least, self._usable_at - clock.now()))
        self._end(number, AttemptEnd(EndKind.RELEASED, why, delay=delay))

    def _end(self, number: int, end: AttemptEnd) -> None:
        if (flight := self._in_flight.pop(number, None)) is not None:
            del self._numbers[flight.attempt]
            self._events.put(Ended(flight.attempt, end))

    def _kill(self, handle: GatewayHandle) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(handle.pid, signal.SIGKILL)
            os.waitpid(handle.pid, 0)
        self._forget(handle)

    def _forget(self, handle: GatewayHandle) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(handle.results)
        os.close(handle.results)
        handle.commands.close()
        self._gateway = None


def _is_usable(name: str, engine: Engine) -> bool:
    """Return whether this host can use the engine. If not, it claims nothing for it, and other
    hosts may.
    """
    if isinstance(engine, DaskExecutor) and not dask_cluster.is_installed():
        log.error("executor.unavailable", executor=name, error=dask_cluster.NOT_INSTALLED)
        return False
    return True
