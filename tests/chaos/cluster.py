"""The processes under test, their PostgreSQL server, and the journal of faults and actions."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.project import ForkServer, Process, is_alive, until
from yamlsched.extras import embedded

from .proxy import Proxy
from .schedule import ENVIRONMENT

HOSTS = ("a", "b", "c")
PATIENTLY = "import yamlsched.extras.notify.sending as s; s.MAX_SECONDS = s.MAX_LOOP_SECONDS = 12.0"
"""More time to send messages: on a busy machine, to import Apprise takes seconds."""
LOOPS = 3


@dataclass(frozen=True)
class Entry:
    """A fault or an action at ``at`` (monotonic) and ``wall`` that concerns the processes ``pids``."""

    at: float
    wall: float
    what: str
    pids: tuple[int, ...] = ()
    detail: str = ""


@dataclass(eq=False)
class Member:
    """A process under test."""

    process: Process
    kind: str  # "loop", "tick" or a verb
    host: str
    is_behind_proxy: bool
    name: str = ""  # the application_name of its sessions and its handlers' sessions
    started: float = field(default_factory=time.time)
    ended: float | None = None
    code: int | None = None
    expected: str = ""  # the reason of its end: "killed" or "terminated"
    was_ready: bool = False  # it has installed its signal handlers

    @property
    def pid(self) -> int:
        return self.process.pid


class Cluster:
    """Starts and watches processes. All journal times are from one machine, so they are comparable."""

    def __init__(self, folder: Path, server_file: Path, fork_server: ForkServer, dsn: str) -> None:
        self.folder, self.server_file, self.dsn = folder, server_file, dsn
        self.fork_server, self.proxy = fork_server, Proxy(dsn)
        self.journal: list[Entry] = []
        self.members: list[Member] = []
        self.stopped: dict[Member, float] = {}  # stopped members, and when to continue them
        self.number = 0
        self.env: dict[str, str] = {}  # of all processes

    def record(self, what: str, *pids: int, detail: str = "") -> None:
        self.journal.append(Entry(time.monotonic(), time.time(), what, pids, detail))

    # -- processes -------------------------------------------------------------------------------------------------

    def start(
        self, kind: str, words: list[str], host: str, by_proxy: bool, file: Path | None = None
    ) -> Member:
        self.number += 1
        (temporary := self.folder / f"host-{host}").mkdir(exist_ok=True)
        file = file or self.folder / "schedules.yaml"
        verb, *rest = words
        argv = [verb, "--file", str(file), "--dsn", self.proxy.dsn if by_proxy else self.dsn]
        log = self.folder / f"{kind}-{self.number}.log"
        pid = self.fork_server.start(
            argv=[*argv, *rest],
            env={
                "CHAOS": str(self.folder),
                "TMPDIR": str(temporary),
                "PGAPPNAME": f"member-{self.number}",
                "YAMLSCHED_ENV": ENVIRONMENT,
                **self.env,
            },
            stdout=str(log.with_suffix(".out")),
            stderr=str(log),
            before=PATIENTLY,
        )
        member = Member(
            Process(self.fork_server, pid, log), kind, host, by_proxy, f"member-{self.number}"
        )
        self.members.append(member)
        self.record(f"start {kind}", pid, detail=f"{log.name} {'by proxy' if by_proxy else ''}")
        return member

    def start_loop(self, host: str, by_proxy: bool) -> Member:
        return self.start(
            "loop", ["work", "--loop", "--concurrency", "3", "--grace", "1s"], host, by_proxy
        )

    def start_tick(self, host: str, by_proxy: bool, file: Path | None = None) -> Member:
        words = ["tick", "--concurrency", "3", "--grace", "1s", "--max-time", "5s"]
        return self.start("tick", words, host, by_proxy, file)

    def alive(self, kind: str | None = None) -> list[Member]:
        for member in self.members:
            member.was_ready = member.was_ready or (
                member.ended is None and handles_sighup(member.pid)
            )
            if member.ended is None and not member.process.is_alive:
                member.ended, member.code = time.time(), self.fork_server.code(member.pid, 0)
                self.record(f"end {member.kind}", member.pid, detail=f"exit {member.code}")
        return [m for m in self.members if m.ended is None and kind in (None, m.kind)]

    def workers(self) -> list[Member]:
        return [member for member in self.alive() if member.kind in ("loop", "tick")]

    def kill(self, member: Member, number: signal.Signals, *, with_children: bool = False) -> None:
        """Send a signal to a process, and before that to its children if ``with_children``."""
        children = children_of(member) if with_children else []
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            member.expected = (
                "killed" if number == signal.SIGKILL else member.expected or "terminated"
            )
        self.record(number.name, member.pid, *children, detail=member.kind)
        for pid in (*children, member.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, member: Member, seconds: float) -> None:
        """Stop a worker and its children, as when its host is suspended."""
        if member not in self.stopped:
            # the parent first, so that it does not fork while its children are stopped
            os.kill(member.pid, signal.SIGSTOP)
            children = children_of(member)
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            self.stopped[member] = time.monotonic() + seconds
            self.record("SIGSTOP", member.pid, *children, detail=f"{seconds:.1f}s")

    def continue_stopped(self, now: float) -> None:
        """Continue the members whose stop has ended."""
        for member, end in list(self.stopped.items()):
            if now >= end:
                del self.stopped[member]
                children = children_of(member)
                self.record("SIGCONT", member.pid, *children)
                for pid in (*children, member.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    # -- the server ------------------------------------------------------------------------------------------------

    def restart_server(self, how: signal.Signals, after: float) -> None:
        """Stop the server, immediately (SIGQUIT) or fast (SIGINT), and start it again ``after`` seconds."""
        pid = embedded.status(self.server_file).pid
        assert pid is not None
        self.record("server down", detail=how.name)
        os.kill(pid, how)
        until(lambda: not is_alive(pid), "the server ends")
        time.sleep(after)
        with embedded.running(self.server_file):
            self.record("server up")

    def close(self) -> None:
        self.fork_server.close()
        self.proxy.close()


def handles_sighup(pid: int) -> bool:
    """Return whether a process handles SIGHUP, which a worker does from its start."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(mask & 1 << (signal.SIGHUP - 1))


def children_of(member: Member) -> list[int]:
    try:
        return member.process.children()
    except (FileNotFoundError, ProcessLookupError):
        return []


def as_lines(journal: list[Entry], start: float) -> list[str]:
    return [
        f"{e.at - start:8.3f} {e.what} {' '.join(map(str, e.pids))} {e.detail}" for e in journal
    ]


def count_entries(journal: list[Entry]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for entry in journal:
        counts[entry.what] = counts.get(entry.what, 0) + 1
    return dict(sorted(counts.items()))
