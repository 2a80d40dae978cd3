"""The server of ``yamlsched web``. On SIGINT and SIGTERM it answers the requests in progress, and
then exits.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.web import connections
from yamlsched.extras.web.options import Listen, WebOptions

SOCKET_MODE = 0o660
"""A unix socket is for its owner and its group, which a proxy can join: not for everyone on the
host.
"""
GRACE_SECONDS = 5


class Server(uvicorn.Server):
    """A server that exits normally on a signal; uvicorn's would send itself the signal again."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(connections.exception_handler())
        await super().serve(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(app: ASGIApp, options: WebOptions, listen: Listen, announce: Callable[[str], None]) -> None:
    """Serve ``app``; ``announce`` gets its address once it accepts connections. Raises
    EnvironmentFailed.
    """
    connections.raise_file_limit()
    connections.quiet_server()
    with _listening(listen) as (sock, address):
        config = uvicorn.Config(
            app,
            http=connections.limited(options),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the address of the peer decides whether its headers count
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        announce(address)
        Server(config).run(sockets=[sock])


@contextmanager
def _listening(listen: Listen) -> Iterator[tuple[socket.socket, str]]:
    if listen.path is not None:
        with _unix_socket(Path(listen.path)) as sock:
            yield sock, f"unix:{listen.path}"
        return
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                listen.host, listen.port, type=socket.SOCK_STREAM
            )[0]
            sock = stack.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen()
        except OSError as error:
            hint = "; pass another --listen" if error.errno == errno.EADDRINUSE else ""
            raise EnvironmentFailed(
                f"cannot listen on {listen.host}:{listen.port}: {error.strerror}{hint}"
            ) from error
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        yield sock, f"http://{host}:{sock.getsockname()[1]}"


@contextmanager
def _unix_socket(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            _remove_abandoned(path)
            umask = os.umask(0o777 & ~SOCKET_MODE)
            try:
                sock.bind(str(path))
            finally:
                os.umask(umask)
            sock.listen()
        except OSError as error:
            raise EnvironmentFailed(
                f"cannot listen on unix:{path}: {error.strerror or error}"
            ) from error
        own = path.stat().st_ino
        try:
            yield sock
        finally:
            with suppress(OSError):
                if path.stat().st_ino == own:  # not the socket of a successor
                    path.unlink()


def _remove_abandoned(path: Path) -> None:
    """Remove the socket of a process that was killed. Raises EnvironmentFailed if ``path`` is
    anything else.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise EnvironmentFailed(f"cannot listen on unix:{path}: it exists, and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise EnvironmentFailed(f"cannot listen on unix:{path}: another process listens there")
