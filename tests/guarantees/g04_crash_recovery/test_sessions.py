"""A worker's sessions: prepared statements on direct connections, and none behind a pooler."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.claiming import claim_due
from support.rows import a_job, a_run
from yamlsched.db.connection import connect_async
from yamlsched.db.dsn import conninfo
from yamlsched.errors import EnvironmentFailed
from yamlsched.runs.lifecycle import ClaimedRun
from yamlsched.worker import claiming
from yamlsched.worker import statements as runs
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, Unanswered, WorkerSession, look_up

T = TypeVar("T")
KEY = b"K" + struct.pack(">I", 12)
"""The start of the message that contains the process id of the server."""


class Pooler:
    """A proxy that sends the client a made-up process id, as PgBouncer does."""

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
            server, to_server = await asyncio.open_unix_connection(
                f"{self.host}/.s.PGSQL.{self.port}"
            )
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
    """Claim twice on a worker's session; return its prepared statements."""
    connection = await connect_async(dsn, WORKER_SETTINGS, look_up)
    async with connection:
        for token in ("A", "B"):
            assert await claim_due(connection, "default", token, 10) == []
        return await prepared(connection)


async def prepared(connection: psycopg.AsyncConnection[Any]) -> list[str]:
    cursor = await connection.execute("select statement from pg_prepared_statements", prepare=False)
    return [row.statement for row in await cursor.fetchall()]


def test_a_session_plans_claims_once_whatever_they_ask_for(dsn: str) -> None:
    async def claim() -> list[str]:
        async with await connect_async(dsn, WORKER_SETTINGS, look_up) as connection:
            for limit, chance in ((1, 0.1), (1, 0.95), (10, 0.5), (10_000, 0.0)):
                for scope in (claiming.ClaimScope(), claiming.ClaimScope(7, (3, 1 << 40))):
                    await claiming.claim(
                        connection, "default", "A", limit, scope, busy=(limit,), chance=chance
                    )
            return await prepared(connection)

    statements = asyncio.run(claim())

    assert len(statements) == 1, statements


def test_statements_are_prepared_on_a_direct_connection(dsn: str) -> None:
    statements = asyncio.run(claim_twice(dsn))

    assert any("skip locked" in statement for statement in statements)


def test_nothing_is_prepared_behind_a_pooler_which_gives_each_transaction_another_session(
    dsn: str,
) -> None:
    reported, real = asyncio.run(behind_a_pooler(dsn, process_ids))
    statements = asyncio.run(behind_a_pooler(dsn, claim_twice))

    assert reported == 4711 != real
    assert statements == []


async def behind_a_pooler(dsn: str, do: Callable[[str], Awaitable[T]]) -> T:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # the path of a socket must be short
        async with Pooler(dsn, path) as pooler:
            return await do(pooler.dsn)


async def process_ids(dsn: str) -> tuple[int, int]:
    """Return the process id that the client received, and the real one."""
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    async with connection:
        cursor = await connection.execute("select pg_backend_pid()")
        row: Any = await cursor.fetchone()
        return connection.info.backend_pid, row[0]


def test_a_statement_that_fails_at_its_first_use_leaves_nothing_prepared(
    dsn: str, db: psycopg.Connection[Any]
) -> None:
    a_run(db, a_job(db), "running", locked_by="A", attempts=1)
    held = ClaimedRun(0, "purge", None, None, 1, 5, "{}", False, 120.0, "A")

    async def fail() -> list[str]:
        session = WorkerSession(Database(dsn), {**WORKER_SETTINGS, "lock_timeout": "10ms"})
        row: Any = db.execute("select id from yamlsched.job_runs").fetchone()
        async with await psycopg.AsyncConnection.connect(dsn) as locker:
            await locker.execute("select from yamlsched.job_runs for update")
            for _ in range(3):
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    await session.run(
                        partial(runs.succeed, runs=[(held._replace(id=row.id), None)]), 10
                    )
            found = await session.run(prepared, 10)
        await session.drop()
        return found

    assert asyncio.run(fail()) == []


def test_a_session_keeps_its_prepared_statements_after_refused_statements(dsn: str) -> None:
    async def claim(connection: psycopg.AsyncConnection[Any]) -> int:
        return len(await claim_due(connection, "default", "A", 10))

    async def refused(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(
            "do $$ begin raise exception using errcode = 'lock_not_available'; end $$"
        )

    async def refuse_now_and_then() -> list[int]:
        session = WorkerSession(Database(dsn), WORKER_SETTINGS)
        found = []
        for _ in range(3):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await session.run(refused, 10)
            found += [await session.run(claim, 10) for _ in range(3)]
        await session.drop()
        return found

    assert asyncio.run(refuse_now_and_then()) == [0] * 9


def test_a_session_whose_prepared_statements_a_migration_invalidated_is_replaced(
    own_dsn: str,
) -> None:
    async def claim(connection: psycopg.AsyncConnection[Any]) -> int:
        return len((await claiming.claim(connection, "default", "A", 10))[0].runs)

    async def migrate_meanwhile() -> int:
        session = WorkerSession(Database(own_dsn), WORKER_SETTINGS)
        await session.run(claim, 10)
        async with await psycopg.AsyncConnection.connect(own_dsn, autocommit=True) as other:
            await other.execute(
                "drop view yamlsched.open_runs, yamlsched.dead_runs, yamlsched.effects_in_doubt cascade; "
                "alter table yamlsched.job_runs alter attempts type bigint"
            )
        with pytest.raises(Unanswered):
            await session.run(claim, 10)
        found = await session.run(claim, 10)
        await session.drop()
        return found

    assert asyncio.run(migrate_meanwhile()) == 0


@pytest.mark.parametrize(
    ("dsn", "message"),
    [
        (
            "postgresql+psycopg://app:s3cret@db/app",
            "the DSN is a SQLAlchemy URL: leave out the driver",
        ),
        ("host=db prot=1 password=s3cret", 'Did you mean "port"?'),
        ("postgresql://app:s3cret@db/app?sslmod=require", 'Did you mean "sslmode"?'),
        ("host=db password=s3cret port", "the DSN cannot be parsed: write postgresql://"),
        ("mysql://app:s3cret@db/app", "the DSN cannot be parsed: write postgresql://"),
    ],
)
def test_the_error_for_an_invalid_dsn_shows_the_format_and_no_part_of_it(dsn, message):
    with pytest.raises(EnvironmentFailed) as failed:
        conninfo(dsn)
    assert message in str(failed.value)
    assert "s3cret" not in str(failed.value)
