"""The gateway: the process that speaks with the engine of one executor, so that the worker need
not.

It starts a launcher for each attempt, and reads the begin tickets until an agent has begun, or none
can. After that it has nothing to do with the attempt: its agent renews the lease and writes the
outcome, which any worker applies.

A frame from the worker is one of these tuples:

    ("start", number, launch, name, ticket, begin_within, is_adopted)
    ("withdraw", number)  # null: all, and whatever is started later
    ("leave", number)

``launch`` says how the agent is started: ("command", argv, withdraw), or ("dask", address, key,
argument, resources). ``is_adopted``: an earlier gateway has started the launcher. "leave": there is
no time to find out whether the attempt has begun. Each start is answered with one tuple, unless it
is to leave it:

    ("begun", number, "")
    ("unstarted", number, why, delay)    # it costs no attempt, and is due again after `delay` seconds
    ("unavailable", number, why, delay)  # the same, and this host can start nothing at present

It also sends ("ready", 0, "") before it reads, ("alive", 0, "") each second, ("failed", 0, error)
before it exits with an error, ("fault", 0, why) when the engine cannot be reached or does not begin
attempts, and ("fault", 0, "") when it can be, or an agent has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import psycopg

from yamlsched import durations, log
from yamlsched.db.connection import in_utc
from yamlsched.extras.remote import tickets as begins
from yamlsched.extras.remote.dask_cluster import DaskCluster
from yamlsched.extras.remote.launcher import TERMINATED, Launcher, ProgramLauncher
from yamlsched.extras.remote.tickets import Ticket
from yamlsched.handler import programs
from yamlsched.worker import clock, forking
from yamlsched.worker.local.protocol import Frames, frame
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, Unanswered, WorkerSession
from yamlsched.worker.stderr import non_blocking_stderr
from yamlsched.worker.tickets import return_delay


@dataclass(slots=True, eq=False)
class Flight:
    """An attempt that no agent has begun yet. Instants are those of ``clock.now``."""

    number: int
    ticket: Ticket
    begin_by: float
    begin_within: float
    withdraw: Sequence[
        str
    ] = ()  # a program, and its arguments, that takes it out of the queue of the engine
    launcher: Launcher | None = None  # None: an earlier gateway's, or it could not be started
    failure: str = ""  # why the launcher could not be started
    is_unwanted: bool = False  # its run is lost or cancelled, or the worker ends
    is_withdrawing: bool = False  # the ticket may be ours

    def status(self) -> int | None:
        return None if self.launcher is None else self.launcher.status

    def why_not(self, now: float) -> str:
        """Return why the attempt is not to begin any more; empty while it may."""
        if self.is_unwanted:
            return "stopped before it had begun"
        if self.failure:
            return self.failure
        if self.launcher is not None and self.launcher.status:
            return (
                f"{self.launcher.title} ended before the attempt had begun:"
                f" {self.launcher.describe()}"
            )
        if now >= self.begin_by:
            return (
                "it had not begun after"
                f" {durations.show(timedelta(seconds=round(self.begin_within)))}"
            )
        return ""


@dataclass(slots=True, eq=False)
class Ending:
    """A launcher that is to exit, or a program of ``withdraw``: terminated after a while, then
    killed.
    """

    launcher: Launcher
    terminate_at: float
    is_withdrawal: bool = False
    is_terminated: bool = False


CHECK_INTERVAL_SECONDS = 0.1
POLL_INTERVAL_SECONDS = 1.0  # of the tickets; at once after a launcher has exited
TIMEOUT_SECONDS = 20.0
LEAVE_SECONDS = 5.0  # for a launcher to exit after SIGTERM
WITHDRAW_SECONDS = 10.0  # for a program of ``withdraw``
MAX_DESCRIPTORS = 4_096
MAX_ERROR_CHARS = 300
OF_THIS_HOST = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOEXEC, errno.ENOSPC),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM),
}
"""Why a program cannot be started that another host, or this one later, may start: it is missing,
or resources are.
"""
WITHHELD = "its job was paused, disabled or retired before the engine started it"


class Gateway:
    """That of the executor ``name``. ``folder`` is that of schedules.yaml, in which launchers are
    started.
    """

    def __init__(self, commands: int, results: int, dsn: str, folder: str, name: str) -> None:
        self._commands, self._results, self._folder, self._name = commands, results, folder, name
        self._session = WorkerSession(Database(dsn), WORKER_SETTINGS)
        self._frames = Frames()
        self._flights: dict[int, Flight] = {}
        self._clusters: dict[str, DaskCluster] = {}  # by address: the file may change it
        self._ending: list[Ending] = []
        self._left: list[Launcher] = []  # whose attempts have begun: they are only read and reaped
        self._is_closed = self._is_draining = False
        self._poll_at = 0.0

    async def run(self) -> None:
        """Work until the worker closes the pipe, or dies."""
        asyncio.get_running_loop().add_reader(self._commands, self._receive)
        self._send("ready", 0, "")
        with in_utc(), non_blocking_stderr():
            while not self._is_closed:
                await asyncio.sleep(CHECK_INTERVAL_SECONDS)
                for cluster in self._clusters.values():
                    cluster.check()
                if any(
                    flight.status() is not None and flight.why_not(0.0)
                    for flight in self._flights.values()
                ):
                    self._poll_at = 0.0
                if clock.now() >= self._poll_at:
                    self._poll_at = clock.now() + POLL_INTERVAL_SECONDS
                    self._send("alive", 0, "")
                    await self._poll()
                self._let_go()
            await self._close()

    # -- the worker --------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            piece = os.read(self._commands, 1 << 20)
        except BlockingIOError:
            return
        self._is_closed = not piece
        for content in self._frames.feed(piece):
            match content:
                case ("start", number, launch, name, ticket, begin_within, is_adopted):
                    flight = Flight(
                        number, Ticket(*ticket), clock.now() + begin_within, begin_within
                    )
                    flight.is_unwanted = self._is_draining
                    self._flights[number] = flight
                    self._start(flight, launch, name, is_adopted)
                case ("leave", number):
                    if number in self._flights:
                        self._leave(self._flights[number])
                case ("withdraw", number):
                    self._is_draining |= number is None
                    for flight in self._flights.values():
                        flight.is_unwanted |= number in (None, flight.number)
                    self._poll_at = 0.0

    def _start(self, flight: Flight, launch: tuple[Any, ...], name: str, is_adopted: bool) -> None:
        match launch:
            case (
                "dask",
                address,
                key,
                argument,
                resources,
            ):  # if it is adopted: Dask forgets tasks with their client
                if address not in self._clusters:
                    self._clusters[address] = DaskCluster(self._name, address, self._note_fault)
                flight.launcher = self._clusters[address].start(key, argument, resources)
            case ("command", argv, withdraw):
                flight.withdraw = withdraw
                if is_adopted:
                    return
                try:
                    flight.launcher = ProgramLauncher(argv, self._folder, name)
                except (OSError, ValueError) as error:
                    number = error.errno if isinstance(error, OSError) else None
                    flight.failure = (
                        f'"{argv[0]}" cannot be started: {os.strerror(number) if number else error}'
                    )
                    self._poll_at = 0.0
                    if number in OF_THIS_HOST:
                        del self._flights[flight.number]
                        self._send("unavailable", flight.number, flight.failure, 0.0)

    def _note_fault(self, why: str) -> None:
        """Report why the engine cannot be used; "": it can."""
        self._send("fault", 0, why)

    def _send(self, *content: Any) -> None:
        unsent = memoryview(frame(content))
        with contextlib.suppress(BrokenPipeError):
            while unsent:
                unsent = unsent[os.write(self._results, unsent) :]

    # -- the tickets -------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Read the tickets of all attempts in flight, and act on what they say. If there is no
        answer, later again.
        """
        flights = list(self._flights.values())
        if not flights:
            return
        with contextlib.suppress(Unanswered, psycopg.OperationalError):
            tickets = [flight.ticket for flight in flights]
            agents = await self._session.run(
                lambda connection: begins.read(connection, tickets), TIMEOUT_SECONDS
            )
            for flight in flights:
                if flight.ticket in agents and flight.number in self._flights:
                    self._note(flight, agents[flight.ticket])
            now = clock.now()
            await self._withdraw(
                [flight for flight in self._flights.values() if flight.why_not(now)]
            )

    def _note(self, flight: Flight, agent: str | None) -> None:
        if agent is None:
            self._leave_unstarted(
                flight, flight.why_not(clock.now()) if flight.is_withdrawing else WITHHELD
            )
            return
        self._note_fault("")
        self._leave(flight)
        self._send("begun", flight.number, "")

    def _leave(self, flight: Flight) -> None:
        del self._flights[flight.number]
        if flight.launcher is not None:
            flight.launcher.leave()
            self._left.append(flight.launcher)

    async def _withdraw(self, flights: list[Flight]) -> None:
        """Take the tickets of ``flights``, so that no agent can begin them, and report them."""
        if not flights:
            return
        for flight in flights:
            flight.is_withdrawing = True
        tickets = [flight.ticket for flight in flights]
        taken = await self._session.run(
            lambda connection: begins.withdraw(connection, tickets), TIMEOUT_SECONDS
        )
        self._poll_at = 0.0  # the others have begun just now, or a withdrawal's answer was lost
        for flight in flights:
            if (count := taken.get(flight.ticket)) is None or flight.number not in self._flights:
                continue
            why, delay = flight.why_not(clock.now()), return_delay(count).total_seconds()
            if flight.is_unwanted:
                self._leave_unstarted(flight, why)
            elif flight.failure or flight.status() not in (None, 0, *TERMINATED):
                self._leave_unstarted(flight, why, delay, "unavailable")
            else:
                self._note_fault(why)
                self._leave_unstarted(flight, why, delay)

    def _leave_unstarted(
        self, flight: Flight, why: str, delay: float = 0.0, kind: str = "unstarted"
    ) -> None:
        del self._flights[flight.number]
        if flight.launcher is not None:
            self._ending.append(Ending(flight.launcher, clock.now()))
        if flight.withdraw and flight.status() in (None, 0) and not flight.failure:
            try:
                program = ProgramLauncher(flight.withdraw, self._folder, "")
                self._ending.append(
                    Ending(program, clock.now() + WITHDRAW_SECONDS, is_withdrawal=True)
                )
            except (OSError, ValueError) as error:
                self._note_failed_withdrawal(str(error))
        self._send(kind, flight.number, why, delay)

    # -- the launchers -----------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Close launchers that have exited; terminate those that should have, and then
        kill them.
        """
        now, endings = clock.now(), self._ending
        self._ending = []
        for ending in endings:
            status = ending.launcher.status
            if status is None and now <= ending.terminate_at + LEAVE_SECONDS:
                if now > ending.terminate_at and not ending.is_terminated:
                    ending.is_terminated = True
                    ending.launcher.terminate()
                self._ending.append(ending)
                continue
            if ending.is_withdrawal and status != 0:
                how = (
                    f"no end within {WITHDRAW_SECONDS:.0f} s"
                    if ending.is_terminated
                    else ending.launcher.describe()
                )
                self._note_failed_withdrawal(f"{ending.launcher.title}: {how}")
            ending.launcher.close()
        for launcher in [launcher for launcher in self._left if launcher.status is not None]:
            self._left.remove(launcher)
            launcher.close(kills=False)

    def _note_failed_withdrawal(self, why: str) -> None:
        log.warning("executor.withdraw_failed", executor=self._name, error=why)

    async def _close(self) -> None:
        """Withdraw what has not begun, and stop its launchers. Those of attempts that have begun go
        on.
        """
        for flight in self._flights.values():
            flight.is_unwanted = True
        await self._poll()
        deadline = clock.now() + LEAVE_SECONDS + WITHDRAW_SECONDS
        while self._ending and clock.now() < deadline:
            self._let_go()
            await asyncio.sleep(0.01)
        for cluster in self._clusters.values():
            await cluster.close()
        await self._session.drop()


def main(parent: int, commands: int, results: int, dsn: str, folder: str, name: str) -> NoReturn:
    """Be the gateway to the executor ``name`` of the worker ``parent``, in a process that it has
    forked.
    """
    try:
        forking.detach(parent, keep=(0, 1, 2, commands, results))
        sys.stderr = sys.__stderr__  # the worker's own replacement belongs to its event loop
        programs.survive_parent()  # its launchers are to be stopped first: the pipe closes
        os.set_blocking(commands, False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        asyncio.run(Gateway(commands, results, dsn, folder, name).run())
    except BaseException as error:
        os.write(
            results, frame(("failed", 0, f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]))
        )
        os._exit(1)
    os._exit(0)
