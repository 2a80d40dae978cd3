"""A network between a worker and its server: a proxy that can become silent, and one that behaves as PgBouncer does."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo


class Proxy:
    """A TCP proxy in front of the server, which can become silent without closing a connection."""

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            self._host, self._port = connection.info.host, connection.info.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(
            dsn, host="127.0.0.1", port=self._listener.getsockname()[1], sslmode="disable"
        )
        self.is_silent = False
        self._sockets = [self._listener]
        self._clients: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _to_server(self, client: socket.socket, chunk: bytes) -> bytes:
        return chunk

    def _to_client(self, chunk: bytes) -> bytes:
        return chunk

    def _server(self) -> socket.socket:
        if self._host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return server
        return socket.create_connection((self._host, self._port))

    def _pass_on(self) -> None:
        other: dict[socket.socket, socket.socket] = {}
        while self._listener.fileno() >= 0:
            ready, _, _ = select.select([] if self.is_silent else self._sockets, [], [], 0.02)
            for source in ready:
                if source is self._listener:
                    try:
                        client, _ = self._listener.accept()
                    except OSError:
                        return  # closed by close()
                    server = self._server()
                    other |= {client: server, server: client}
                    self._clients.add(client)
                    self._sockets += [client, server]
                    continue
                if source.fileno() < 0:
                    continue
                try:
                    chunk = source.recv(1 << 16)
                    chunk = (
                        self._to_server(source, chunk)
                        if source in self._clients
                        else self._to_client(chunk)
                    )
                    other[source].sendall(chunk)
                except OSError:
                    chunk = b""
                if not chunk:
                    for end in (source, other[source]):
                        self._sockets.remove(end)
                        end.close()

    def close(self) -> None:
        self.is_silent = True
        sockets, self._sockets = self._sockets, []
        for end in sockets:
            end.close()
        self._thread.join()


class Pooler(Proxy):
    """A proxy that behaves as PgBouncer does: it refuses startup options and sends clients a made-up process id."""

    refuses_options = True

    def _to_server(self, client: socket.socket, chunk: bytes) -> bytes:
        if self.refuses_options and b"\0options\0" in chunk:
            fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
            client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
            return b""
        return chunk

    def _to_client(self, chunk: bytes) -> bytes:
        start, key, rest = chunk.partition(b"K" + (12).to_bytes(4, "big"))
        return start + key + (4711).to_bytes(4, "big") + rest[4:] if key else chunk


@contextmanager
def a_proxy(dsn: str, kind: type[Proxy] = Proxy) -> Iterator[Proxy]:
    proxy = kind(dsn)
    try:
        yield proxy
    finally:
        proxy.close()
