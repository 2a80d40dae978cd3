"""The gateway: the process that speaks with the engine of one executor, so that the worker need not.

It starts a launcher for each attempt, and reads the begin tickets: they say whether an agent has begun, whether it is
alive, and how the attempt ended. What it knows can be found again there, so that a new gateway takes over when it dies.

A frame from the worker is one of these tuples:

    ("start", number, launch, name, ticket, lease, begin_within, is_adopted)
    ("stop", number, grace)
    ("leave", number)
    ("withdraw",)

``launch`` says how the agent is started: ("command", argv), or ("dask", address, key, argument, resources).
``is_adopted``: an earlier gateway has started the launcher. "stop" is for runs that are lost: the end is reported after
``grace`` seconds, whatever is known of the agent. "leave": the attempt has begun, or may have; its agent needs neither
the worker nor this process. The gateway answers each start with one tuple, unless it is to leave it:

    ("ended", number, report)
    ("unstarted", number, why, delay)    # it costs no attempt, and is due again after `delay` seconds
    ("unavailable", number, why, delay)  # the same, and this host can start nothing at present

It also sends ("begun", number, "") when it has read that an agent has begun, ("ready", 0, "") before it reads,
("failed", 0, error) before it exits with an error, ("fault", 0, why) when the engine cannot be reached or does not
begin attempts, and ("fault", 0, "") when it can be, or an agent has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import resource
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import psycopg

from yamlsched import durations
from yamlsched.db.connection import in_utc
from yamlsched.extras.remote import tickets as begins
from yamlsched.extras.remote.dask_cluster import DaskCluster
from yamlsched.extras.remote.launcher import Launcher, ProgramLauncher
from yamlsched.extras.remote.tickets import Ticket
from yamlsched.handler import programs
from yamlsched.runs.lifecycle import AttemptEnd, EndKind
from yamlsched.worker import clock, forking
from yamlsched.worker.local.protocol import Frames, TaskEnd, frame
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, Unanswered, WorkerSession
from yamlsched.worker.stderr import non_blocking_stderr
from yamlsched.worker.tickets import AGENT_LOST, decode_outcome, return_delay

SLACK_SECONDS = 2.0  # for an agent to reach the database


@dataclass(slots=True, eq=False)
class Flight:
    """An attempt in flight. Instants are those of ``clock.now``."""

    number: int
    ticket: Ticket
    name: str
    lease: float
    begin_by: float
    begin_within: float
    launcher: Launcher | None = None  # None: an earlier gateway's, or it could not be started
    failure: str = ""  # why the launcher could not be started
    exited_at: float | None = None
    agent: str = ""  # that has begun the attempt
    seen_at: float = 0.0  # when that agent was last known to be alive
    is_stopping: bool = False
    kill_at: float | None = None
    is_withdrawing: bool = False  # the ticket may be ours

    def status(self) -> int | None:
        return None if self.launcher is None else self.launcher.status

    def why_lost(self, now: float) -> str:
        """Return why the agent that has begun an attempt counts as dead; empty while it may be alive.

        An agent that lives checks its lease each quarter of it, also if the connection to its launcher broke. One that
        cannot has killed its handler before the lease ends.
        """
        status, host = self.status(), self.agent.split(":")[0]
        is_silent = self.exited_at is not None and self.seen_at <= self.exited_at
        if self.launcher is not None and status and is_silent and now - (self.exited_at or now) > self._quarter():
            return f"its agent on {host} was lost, and {self.launcher.title} has ended: {self.launcher.describe()}"
        if now - self.seen_at > self.lease + SLACK_SECONDS:
            return f"its agent on {host} was lost: it has not checked its lease for {self.lease:.0f} s"
        return ""

    def _quarter(self) -> float:
        """Return the seconds within which a living agent checks its lease."""
        return self.lease / 4 + SLACK_SECONDS


CHECK_INTERVAL_SECONDS = 0.1
POLL_INTERVAL_SECONDS = 1.0  # of the tickets; at once after a launcher has exited
TIMEOUT_SECONDS = 20.0
LEAVE_SECONDS = 5.0  # for a launcher to exit after its attempt has ended, and again after SIGTERM
MAX_DESCRIPTORS = 4_096
MAX_ERROR_CHARS = 300
OF_THIS_HOST = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOEXEC),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM),
}
"""Why a program cannot be started that another host, or this one later, may start: it is missing, or resources are."""
TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # a program that was told to end: that is no fault of the engine
WITHHELD = "its job was paused, disabled or retired before the engine started it"


class Gateway:
    """That of the executor ``name``. ``folder`` is that of schedules.yaml, in which launchers are started."""

    def __init__(self, commands: int, results: int, dsn: str, folder: str, name: str) -> None:
        self._commands, self._results, self._folder, self._name = commands, results, folder, name
        self._session = WorkerSession(Database(dsn), WORKER_SETTINGS)
        self._frames = Frames()
        self._flights: dict[int, Flight] = {}
        self._clusters: dict[str, DaskCluster] = {}  # by address: the file may change it
        self._leaving: list[tuple[Launcher, float]] = []  # whose attempts have ended; when to terminate them
        self._stops: list[Flight] = []  # to be requested through their tickets
        self._is_closed = self._is_draining = False
        self._poll_at = 0.0

    async def run(self) -> None:
        """Work until the worker closes the pipe, or dies."""
        asyncio.get_running_loop().add_reader(self._commands, self._receive)
        self._send("ready", 0, "")
        with in_utc(), non_blocking_stderr():
            while not self._is_closed:
                await asyncio.sleep(CHECK_INTERVAL_SECONDS)
                now = clock.now()
                for cluster in self._clusters.values():
                    cluster.check()
                self._note_exits(now)
                if self._flights and (now >= self._poll_at or self._stops):
                    self._poll_at = now + POLL_INTERVAL_SECONDS
                    await self._poll()
                self._enforce(clock.now())
                self._let_go(clock.now())
            await self._close()

    # -- the worker ------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            piece = os.read(self._commands, 1 << 20)
        except BlockingIOError:
            return
        self._is_closed = not piece
        for content in self._frames.feed(piece):
            match content:
                case ("start", number, launch, name, ticket, lease, begin_within, is_adopted):
                    self._start(number, launch, name, Ticket(*ticket), lease, begin_within, is_adopted)
                case ("stop", number, grace):
                    self._stop(number, grace)
                case ("leave", number):
                    if number in self._flights:
                        self._leave(self._flights[number], math.inf)
                case ("withdraw",):
                    self._is_draining, self._poll_at = True, 0.0

    def _start(
        self,
        number: int,
        launch: tuple[Any, ...],
        name: str,
        ticket: Ticket,
        lease: float,
        begin_within: float,
        is_adopted: bool,
    ) -> None:
        now = clock.now()
        flight = Flight(number, ticket, name, lease, now + begin_within, begin_within)
        self._flights[number] = flight
        match launch:
            case ("dask", address, key, argument, resources):  # if it is adopted: Dask forgets tasks with their client
                if address not in self._clusters:
                    self._clusters[address] = DaskCluster(self._name, address, self._note_fault)
                flight.launcher = self._clusters[address].start(key, argument, resources)
            case ("command", argv) if not is_adopted:
                try:
                    flight.launcher = ProgramLauncher(argv, self._folder, name)
                except (OSError, ValueError) as error:
                    number_of_error = error.errno if isinstance(error, OSError) else None
                    why = os.strerror(number_of_error) if number_of_error else str(error)
                    failure = f'"{argv[0]}" cannot be started: {why}'
                    if number_of_error in OF_THIS_HOST:
                        del self._flights[number]
                        self._send("unavailable", number, failure, 0.0)
                        return
                    flight.failure, flight.exited_at = failure, now
                    self._poll_at = 0.0

    def _stop(self, number: int, grace: float) -> None:
        if (flight := self._flights.get(number)) is None:
            return
        kill_at = clock.now() + grace
        flight.kill_at = kill_at if flight.kill_at is None else min(flight.kill_at, kill_at)
        if not flight.is_stopping:
            flight.is_stopping, self._poll_at = True, 0.0
            self._stops.append(flight)
            if flight.launcher is not None and flight.status() is None:
                flight.launcher.signal(signal.SIGTERM)

    def _note_fault(self, why: str) -> None:
        """Report why the engine cannot be used; "": it can."""
        self._send("fault", 0, why)

    def _send(self, *content: Any) -> None:
        unsent = memoryview(frame(content))
        with contextlib.suppress(BrokenPipeError):
            while unsent:
                unsent = unsent[os.write(self._results, unsent) :]

    # -- the launchers ---------------------------------------------------------------------------------------------

    def _note_exits(self, now: float) -> None:
        for flight in self._flights.values():
            if flight.exited_at is None and flight.status() is not None:
                flight.exited_at, self._poll_at = now, 0.0

    def _enforce(self, now: float) -> None:
        """Kill the launchers of attempts that had their time to stop; end those that must end."""
        for flight in list(self._flights.values()):
            if flight.kill_at is None or now < flight.kill_at:
                continue
            if flight.launcher is not None:
                flight.launcher.signal(signal.SIGKILL)
            self._end(flight, AttemptEnd(EndKind.RELEASED, "stopped by its worker"))

    def _let_go(self, now: float) -> None:
        """Close launchers whose attempts have ended; terminate those that do not exit."""
        staying = []
        for launcher, terminate_at in self._leaving:
            if launcher.status is not None or now > terminate_at + LEAVE_SECONDS:
                launcher.close()
                continue
            if now > terminate_at:
                launcher.signal(signal.SIGTERM)
            staying.append((launcher, terminate_at))
        self._leaving = staying

    async def _close(self) -> None:
        """Withdraw what has not begun, and stop its launchers. Those of attempts that have begun go on."""
        self._is_draining = True
        if self._flights:
            await self._poll()
        launchers = [launcher for launcher, terminate_at in self._leaving if terminate_at < math.inf]
        for launcher in launchers:
            launcher.signal(signal.SIGTERM)
        deadline = clock.now() + LEAVE_SECONDS
        while any(launcher.status is None for launcher in launchers) and clock.now() < deadline:
            await asyncio.sleep(0.01)
        for launcher in launchers:
            launcher.close()
        for cluster in self._clusters.values():
            await cluster.close()
        await self._session.drop()

    # -- the tickets -----------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Read the tickets of all attempts in flight, and act on what they say. If there is no answer, later again."""
        stops, self._stops = [flight.ticket for flight in self._stops], []
        flights = list(self._flights.values())
        asked_at = clock.now()

        async def ask(connection: psycopg.AsyncConnection[Any]) -> dict[Ticket, Any]:
            if stops:
                await begins.request_stop(connection, stops)
            return await begins.read(connection, [flight.ticket for flight in flights])

        try:
            found = await self._session.run(ask, TIMEOUT_SECONDS)
            for flight in flights:
                if (row := found.get(flight.ticket)) is not None:
                    self._note(flight, row, asked_at)
            now = clock.now()
            await self._withdraw([flight for flight in flights if not flight.agent and self._why_not(flight, now)])
        except (Unanswered, psycopg.OperationalError):
            self._stops += [flight for flight in flights if flight.ticket in stops]
            return
        for flight in flights:
            if flight.agent and self._flights.get(flight.number) is flight and (why := flight.why_lost(now)):
                self._end(flight, AttemptEnd(EndKind.RAISED, why, AGENT_LOST))

    def _note(self, flight: Flight, row: Any, asked_at: float) -> None:
        if row.agent is None:
            self._leave_unstarted(flight, "it was withdrawn" if flight.is_withdrawing else WITHHELD)
            return
        if not flight.agent:
            self._note_fault("")
        if row.has_ended:
            report = decode_outcome(row.outcome)
            self._end(flight, report.end or AttemptEnd(EndKind.RELEASED), report.took)
            return
        if not flight.agent:
            self._send("begun", flight.number, "")
        flight.agent, flight.seen_at = row.agent, max(flight.seen_at, asked_at - row.seen_seconds_ago)

    def _why_not(self, flight: Flight, now: float) -> str:
        """Return why an attempt is not to begin any more; empty while it may."""
        if flight.is_stopping or self._is_draining:
            return "stopped before it had begun"
        if flight.failure:
            return flight.failure
        if flight.launcher is not None and flight.launcher.status:
            return f"{flight.launcher.title} ended before the attempt had begun: {flight.launcher.describe()}"
        if now >= flight.begin_by:
            return f"it had not begun after {durations.show(timedelta(seconds=round(flight.begin_within)))}"
        return ""

    async def _withdraw(self, flights: list[Flight]) -> None:
        """Take the tickets of ``flights``, so that no agent can begin them, and report them."""
        if not flights:
            return
        for flight in flights:
            flight.is_withdrawing = True
        tickets = [flight.ticket for flight in flights]
        taken = await self._session.run(lambda connection: begins.withdraw(connection, tickets), TIMEOUT_SECONDS)
        self._poll_at = 0.0  # the others have begun just now, or a withdrawal's answer was lost
        for flight in flights:
            if (count := taken.get(flight.ticket)) is None:
                continue
            why, delay = self._why_not(flight, clock.now()), return_delay(count).total_seconds()
            if flight.is_stopping or self._is_draining:
                self._leave_unstarted(flight, why)
            elif flight.failure or flight.status() not in (None, 0, *TERMINATED):
                self._leave_unstarted(flight, why, delay, "unavailable")
            else:
                self._note_fault(why)
                self._leave_unstarted(flight, why, delay)

    # -- reporting -------------------------------------------------------------------------------------------------

    def _end(self, flight: Flight, end: AttemptEnd, took: float = 0.0) -> None:
        self._leave(flight, clock.now() + LEAVE_SECONDS)
        self._send("ended", flight.number, TaskEnd(flight.number, end, took).encode())

    def _leave_unstarted(self, flight: Flight, why: str, delay: float = 0.0, kind: str = "unstarted") -> None:
        self._leave(flight, clock.now())
        self._send(kind, flight.number, why, delay)

    def _leave(self, flight: Flight, terminate_at: float) -> None:
        del self._flights[flight.number]
        if flight.launcher is not None:
            self._leaving.append((flight.launcher, terminate_at))


def main(parent: int, commands: int, results: int, dsn: str, folder: str, name: str) -> NoReturn:
    """Be the gateway to the executor ``name`` of the worker ``parent``, in a process that it has forked."""
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
        os.write(results, frame(("failed", 0, f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])))
        os._exit(1)
    os._exit(0)
