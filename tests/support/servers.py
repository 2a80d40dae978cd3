"""PostgreSQL servers on the hosts of a test network, from the programs of the extra ``embedded``."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from support.network import Host
from support.project import TIMEOUT_SECONDS, until
from yamlsched.extras.embedded.binaries import find_binaries, within_reach
from yamlsched.extras.embedded.location import Account

SETTINGS = {
    "listen_addresses": "*",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "fsync": "off",  # no test lets the machine crash
    "timezone": "UTC",
    "jit": "off",
    "wal_receiver_timeout": "5s",
    "wal_retrieve_retry_interval": "100ms",
}
HBA = "local all all trust\nhost all all 10.77.0.0/24 trust\nhost replication all 10.77.0.0/24 trust\n"


def account() -> Account:
    """Return the user that PostgreSQL runs as."""
    found = pwd.getpwnam("nobody")
    return Account(found.pw_uid, found.pw_gid, found.pw_name)


@dataclass
class Server:
    """A server on ``host``. The test itself reaches it by its unix socket, whatever happens to the network."""

    host: Host
    folder: Path
    programs: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def local_dsn(self) -> str:
        return f"host={self.folder} dbname=postgres user=yamlsched"

    @property
    def dsn(self) -> str:
        return f"host={self.host.address} dbname=postgres user=yamlsched"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def create(self) -> None:
        self._make_folder()
        words = [
            "--username=yamlsched",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        self._call("initdb", "-D", str(self.data), *words)
        (self.data / "pg_hba.conf").write_text(HBA)

    def follow(self, primary: Server) -> None:
        """Become a standby of ``primary``: copy its data, and start."""
        self._make_folder()
        source = f"host={primary.host.address} user=yamlsched application_name={self.host.name}"
        self._call(
            "pg_basebackup",
            "-D",
            str(self.data),
            "-d",
            source,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        )
        self.start()
        until(
            lambda: primary.execute("select 1 from pg_stat_replication where state = 'streaming'"),
            "it streams",
        )

    def start(self) -> None:
        """Start it, and return when it answers."""
        words = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        words += ["-c", f"unix_socket_directories={self.folder}"]
        with (self.folder / "log").open("ab") as log:
            argv = self._words("postgres", "-D", str(self.data), *words)
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, cwd="/")
        until(self._answers, f"{self.host.name} answers")

    def kill(self) -> None:
        """Kill all its processes."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.host.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        """Stop it at once, if it runs."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
            self.process = None

    def promote(self) -> None:
        self.execute("select pg_promote(true, 60)")

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.local_dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def database(self, name: str) -> str:
        """Return the local DSN of one of its databases."""
        return make_conninfo(self.local_dsn, dbname=name)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        try:
            return bool(self.execute("select 1"))
        except psycopg.OperationalError:
            time.sleep(0.05)
            return False

    def _make_folder(self) -> None:
        self.folder.mkdir()
        os.chown(self.folder, account().uid, account().gid)

    def _call(self, program: str, *words: str) -> None:
        argv = self._words(program, *words)
        done = subprocess.run(
            argv, capture_output=True, text=True, cwd="/", timeout=TIMEOUT_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr

    def _words(self, program: str, *words: str) -> list[str]:
        """Return the words that run a program on the host, without root's rights; it dies with this process."""
        user = account()
        drop = [
            "setpriv",
            f"--reuid={user.uid}",
            f"--regid={user.gid}",
            "--clear-groups",
            "--pdeathsig=KILL",
        ]
        return [*self.host.enter(), *drop, str(self.programs / program), *words]


@contextmanager
def a_server(host: Host, folder: Path) -> Iterator[Server]:
    """Yield a new server with empty data, which is started; it is killed afterwards."""
    server = Server(host, folder / host.name, within_reach(find_binaries(False), account()))
    server.create()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def a_standby(host: Host, folder: Path, primary: Server) -> Iterator[Server]:
    """Yield a new standby of ``primary``, which is started; it is killed afterwards."""
    standby = Server(host, folder / host.name, primary.programs)
    standby.follow(primary)
    try:
        yield standby
    finally:
        standby.stop()
