"""A real PgBouncer in front of a server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.project import until

MODES = ("transaction", "session")


def program() -> str | None:
    """Return where PgBouncer is, if it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@dataclass
class PgBouncer:
    """Runs PgBouncer on a port of its own; ``dsn`` is that of a database behind it."""

    folder: Path
    mode: str
    server: dict[str, object]
    words: dict[str, object]
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    def dsn_of(self, dsn: str) -> str:
        """Return the DSN that reaches the database of ``dsn`` through PgBouncer."""
        return make_conninfo(dsn, host="127.0.0.1", port=self.port, sslmode="disable")

    def start(self) -> None:
        """Start it, and return when it accepts clients."""
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.port = listener.getsockname()[1]
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",  # everyone is the user that is named below
            "admin_users": self.server["user"],
            "pool_mode": self.mode,
            "max_client_conn": 200,
            "default_pool_size": 20,
            "log_connections": 0,
            "log_disconnections": 0,
            **self.words,
        }
        server = " ".join(f"{name}={value}" for name, value in self.server.items())
        lines = [
            "[databases]",
            f"* = {server}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        with (self.folder / "log").open("ab") as log:
            found = program()
            assert found is not None
            self.process = subprocess.Popen(
                [found, str(self.folder / "pgbouncer.ini")], stdout=log, stderr=log, cwd="/"
            )
        until(self._answers, "PgBouncer answers")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False

    def execute(self, command: str) -> None:
        """Execute a command of its console, such as ``pause`` or ``reconnect``."""
        dsn = make_conninfo(
            host="127.0.0.1", port=self.port, dbname="pgbouncer", user=str(self.server["user"])
        )
        with psycopg.connect(dsn, autocommit=True) as console:
            console.pgconn.exec_(command.encode())

    def stop(self) -> None:
        """Kill it: its clients see a closed connection."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def a_pgbouncer(dsn: str, mode: str, **settings: object) -> Iterator[PgBouncer]:
    """Yield a PgBouncer in front of the server of ``dsn``, in a folder that the server's user can read."""
    given = conninfo_to_dict(dsn)
    host = str(given["host"])
    server: dict[str, object] = {
        "host": host,
        "port": given.get("port") or 5432,
        "user": given["user"],
    }
    if given.get("password"):
        server["password"] = given["password"]
    words: dict[str, object] = dict(settings)
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name:
        folder = Path(name)
        if os.geteuid() == 0:  # as root it does not run
            owner = os.stat(host).st_uid if host.startswith("/") else 65534
            import pwd

            words["user"] = pwd.getpwuid(owner or 65534).pw_name
            folder.chmod(0o755)
        found = PgBouncer(folder, mode, server, words)
        found.start()
        try:
            yield found
        finally:
            found.stop()
