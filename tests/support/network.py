"""Hosts in network namespaces, on a network whose packets a test can drop and delay. Needs Linux, root and ``ip``.

Names contain the process id of the test, and ``sweep`` removes what tests that were killed have left.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.project import ForkServer, until

PREFIX = f"ys{os.getpid()}-"
LEFTOVER_PATTERN = re.compile(r"ys(\d+)-.+")


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def why_unavailable() -> str:
    """Return why this machine cannot have hosts of its own; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if missing := [
        program
        for program in ("ip", "unshare", "nsenter", "setpriv")
        if shutil.which(program) is None
    ]:
        return f"{missing[0]} is not installed (Debian: iproute2, util-linux)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    try:
        with a_network("a") as network:
            subprocess.run([*network.hosts["a"].enter(), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"a network namespace cannot be used: {error}"
    return ""


@dataclass
class Host:
    """A host with one network device. Its processes share the file system with all others."""

    name: str
    namespace: str
    address: str
    fork_server: ForkServer | None = None

    def enter(self) -> list[str]:
        """Return the words before a command that is to run on this host: with its host name too, once it has booted."""
        if self.fork_server is not None:
            return ["nsenter", f"--target={self.fork_server.pid}", "--net", "--uts"]
        return ["ip", "netns", "exec", self.namespace]

    def boot(self, environment: dict[str, str] | None = None) -> None:
        """Let commands of yamlsched be started here."""
        self.fork_server = ForkServer([*self.enter(), "unshare", "--uts"], [self.name], environment)

    def until_named(self) -> None:
        """Wait until the process that ``boot`` started has given the host its name."""
        command = [*self.enter(), "cat", "/proc/sys/kernel/hostname"]
        until(
            lambda: (
                subprocess.run(command, capture_output=True, text=True).stdout.strip() == self.name
            )
        )

    def pids(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """Kill all processes of this host, as when it loses its power."""
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.fork_server is not None:
                self.fork_server.close()
                self.fork_server = None


@dataclass
class Network:
    """Hosts that reach each other through the router, a process."""

    router: subprocess.Popen[str]
    hosts: dict[str, Host] = field(default_factory=dict)
    delay: float = 0.0
    blocked: set[tuple[str, str]] = field(default_factory=set)

    def add(self, name: str) -> Host:
        host = Host(name, PREFIX + name, f"10.77.0.{len(self.hosts) + 1}")
        device = f"{PREFIX}{len(self.hosts)}"  # at most 15 characters
        ip("netns", "add", host.namespace)
        self.hosts[name] = host
        self._command(f'{{"attach": "{device}", "address": "{host.address}"}}')
        ip("link", "set", device, "netns", host.namespace)
        ip("-n", host.namespace, "link", "set", device, "name", "net0")
        ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "net0")
        for link in ("lo", "net0"):
            ip("-n", host.namespace, "link", "set", link, "up")
        return host

    def unplug(self, name: str) -> None:
        """Take the link of a host down: its processes get errors for what they send."""
        ip("-n", self.hosts[name].namespace, "link", "set", "net0", "down")

    def plug(self, name: str) -> None:
        ip("-n", self.hosts[name].namespace, "link", "set", "net0", "up")

    def drop(self, source: str, to: str) -> None:
        """Drop all packets from one host to another, without an error on either side."""
        self.blocked.add((self.hosts[source].address, self.hosts[to].address))
        self._apply()

    def separate(self, ones: Sequence[str], others: Sequence[str]) -> None:
        """Drop all packets between two groups of hosts, in both directions."""
        for one in ones:
            for other in others:
                self.drop(one, other)
                self.drop(other, one)

    def slow_down(self, seconds: float) -> None:
        """Delay every packet."""
        self.delay = seconds
        self._apply()

    def heal(self) -> None:
        self.blocked.clear()
        self.delay = 0.0
        self._apply()
        for name in self.hosts:
            self.plug(name)

    def _apply(self) -> None:
        pairs = ", ".join(f'["{source}", "{to}"]' for source, to in sorted(self.blocked))
        self._command(f'{{"blocked": [{pairs}], "delay": {self.delay}}}')

    def _command(self, line: str) -> None:
        assert self.router.stdin is not None
        assert self.router.stdout is not None
        self.router.stdin.write(line + "\n")
        self.router.stdin.flush()
        if self.router.stdout.readline() != "ok\n":
            raise OSError("the router of the test network has ended")

    def close(self) -> None:
        for host in self.hosts.values():
            host.kill()
            ip("netns", "delete", host.namespace)
        assert self.router.stdin is not None
        assert self.router.stdout is not None
        self.router.stdin.close()
        self.router.wait()
        self.router.stdout.close()


@contextmanager
def a_network(*names: str) -> Iterator[Network]:
    """Yield a network of hosts. Their processes are killed afterwards."""
    program = str(Path(__file__).with_name("router.py"))
    router = subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    network = Network(router)
    try:
        for name in names:
            network.add(name)
        yield network
    finally:
        network.close()


@contextmanager
def a_public_folder() -> Iterator[Path]:
    """Yield a temporary folder that every user can reach, as PostgreSQL, which does not run as root, must."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def sweep() -> None:
    """Remove the namespaces, processes and folders of test runs that were killed."""
    for name in ip("netns", "list").split():
        if _is_leftover(name):
            Host(name, name, "").kill()
            with suppress(OSError):  # another test run was faster
                ip("netns", "delete", name)
    for folder in Path("/tmp").glob("ys*-*"):
        if _is_leftover(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _is_leftover(name: str) -> bool:
    found = LEFTOVER_PATTERN.fullmatch(name)
    return found is not None and not Path(f"/proc/{found[1]}").exists()
