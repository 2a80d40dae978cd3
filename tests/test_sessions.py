"""A worker's sessions: what they keep where they are the server's own, and that they keep nothing behind a pooler."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from yamlsched.store import runs
from yamlsched.store.connection import connect_async
from yamlsched.worker.sessions import look_up
from yamlsched.worker.worker import SESSION

T = TypeVar("T")
KEY = b"K" + struct.pack(">I", 12)
"""How the message begins that tells the client which server process is its own."""


class Pooler:
    """Stands between client and server, and tells the client a process id of its own, as PgBouncer does."""

    def __init__(self, dsn: str, path: str) -> None:
        parts = conninfo_to_dict(dsn)
        self.host, self.port = str(parts["host"]), int(parts.get("port") or 5432)
        self.path = f"{path}/.s.PGSQL.6432"
        self.dsn = make_conninfo(dsn, host=path, port=6432)

    async def __aenter__(self) -> Pooler:
        self.server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.host.startswith("/"):
            server, to_server = await asyncio.open_unix_connection(f"{self.host}/.s.PGSQL.{self.port}")
        else:
            server, to_server = await asyncio.open_connection(self.host, self.port)
        await asyncio.gather(self._pass_on(client, to_server), self._pass_on(server, to_client))

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(65536):
            start, key, rest = piece.partition(KEY)
            sink.write(start + key + struct.pack(">i", 4711) + rest[4:] if key else piece)
            await sink.drain()
        sink.close()


async def claim_twice(dsn: str) -> list[Any]:
    """Claim twice on a worker's session; return the statements that are prepared there."""
    connection = await connect_async(dsn, SESSION, look_up)
    async with connection:
        for token in ("A", "B"):
            assert (await runs.claim_waiting(connection, "default", token, 10)).runs == []
        cursor = await connection.execute("select statement from pg_prepared_statements", prepare=False)
        return [row.statement for row in await cursor.fetchall()]


def test_statements_are_prepared_in_a_session_of_the_server_s_own(dsn: str) -> None:
    prepared = asyncio.run(claim_twice(dsn))

    assert any("skip locked" in statement for statement in prepared)


def test_nothing_is_prepared_behind_a_pooler_which_gives_each_transaction_another_session(dsn: str) -> None:
    told, true = asyncio.run(behind_a_pooler(dsn, process_ids))
    prepared = asyncio.run(behind_a_pooler(dsn, claim_twice))

    assert told == 4711 != true
    assert prepared == []


async def behind_a_pooler(dsn: str, do: Callable[[str], Awaitable[T]]) -> T:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # a socket's path must be short
        async with Pooler(dsn, path) as pooler:
            return await do(pooler.dsn)


async def process_ids(dsn: str) -> tuple[int, int]:
    """Return the id that the client was told, and the true one."""
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    async with connection:
        cursor = await connection.execute("select pg_backend_pid()")
        row: Any = await cursor.fetchone()
        return connection.info.backend_pid, row[0]
