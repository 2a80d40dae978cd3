"""Sessions that stop before each of their statements, also before those inside of functions of the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row

IDLE = TransactionStatus.IDLE
FUNCTIONS = (
    *("block_closed", "claim_gated", "continue_edits", "leave_gates", "lock_gates"),
    *("promote", "release", "repair", "sweep"),
)
"""Those of several statements. `block`, `grant_permits` and `offer` have one each."""
STOP = b"select public.stop()"
SETUP = """
create sequence public.stops;
create function public.stop() returns void language plpgsql as $$
declare
    nth integer;
begin
    if current_setting('application_name') = 'stops' then
        nth := nextval('public.stops');
        perform pg_advisory_lock_shared(1, nth);
        perform pg_advisory_unlock_shared(1, nth);
    end if;
end $$;
"""


def install(db: psycopg.Connection[Any]) -> None:
    """Have the functions of the database ``db`` stop before each of their statements."""
    db.execute(SETUP.encode())
    for name in FUNCTIONS:
        [definition] = db.execute(
            "select pg_get_functiondef(oid) from pg_proc where proname = %s", [name]
        ).fetchone()  # type: ignore[misc]
        db.execute(with_stops(definition).encode())


def with_stops(definition: str) -> str:
    """Return the definition of a function in plpgsql with a stop before each statement."""
    lines, is_body, is_start = [], False, False
    for line in definition.splitlines():
        code = line.partition("--")[0].strip()
        if is_start and code.split(" ")[0] not in ("", "if", "end", "end;", "get", "return"):
            lines.append("    perform public.stop();")
        lines.append(line)
        is_body |= code == "begin"
        if code:
            is_start = is_body and code.endswith((";", "begin", "then", "else", "loop"))
    return "\n".join(lines)


class StoppingCursor(psycopg.Cursor[Any]):
    def execute(self, *given: Any, **named: Any) -> Any:
        if self.connection.info.transaction_status == IDLE:
            with self.connection.transaction():
                return self.execute(*given, **named)
        psycopg.Cursor(self.connection).execute(STOP)
        return super().execute(*given, **named)


class StoppingAsyncCursor(psycopg.AsyncCursor[Any]):
    async def execute(self, *given: Any, **named: Any) -> Any:
        if self.connection.info.transaction_status == IDLE:
            async with self.connection.transaction():
                return await self.execute(*given, **named)
        await psycopg.AsyncCursor(self.connection).execute(STOP)
        return await super().execute(*given, **named)


class StoppingConnection(psycopg.Connection[Any]):
    """It stops also before each commit."""

    @contextmanager
    def transaction(self, *given: Any, **named: Any) -> Iterator[Any]:
        is_outer = self.info.transaction_status == IDLE
        with super().transaction(*given, **named) as transaction:
            yield transaction
            if is_outer:
                psycopg.Cursor(self).execute(STOP)


class StoppingAsyncConnection(psycopg.AsyncConnection[Any]):
    @asynccontextmanager
    async def transaction(self, *given: Any, **named: Any) -> AsyncIterator[Any]:
        is_outer = self.info.transaction_status == IDLE
        async with super().transaction(*given, **named) as transaction:
            yield transaction
            if is_outer:
                await psycopg.AsyncCursor(self).execute(STOP)


class Session:
    """What executes operations in a thread of its own: one that stops, or one that does not."""

    def __init__(self, dsn: str, stops: bool = False) -> None:
        options: dict[str, Any] = {
            "autocommit": True,
            "row_factory": namedtuple_row,
            "application_name": "stops" if stops else "goes on",
            "options": "-c lock_timeout=20s -c deadlock_timeout=50ms",
        }
        self.runner = asyncio.Runner()
        self.connection = (StoppingConnection if stops else psycopg.Connection).connect(
            dsn, **options, cursor_factory=StoppingCursor if stops else psycopg.Cursor
        )
        kind = StoppingAsyncConnection if stops else psycopg.AsyncConnection
        cursor = StoppingAsyncCursor if stops else psycopg.AsyncCursor
        self.of_worker = self.runner.run(kind.connect(dsn, **options, cursor_factory=cursor))
        self.pids = [c.info.backend_pid for c in (self.connection, self.of_worker)]

    def call(self, function: Any, *given: Any, **named: Any) -> Any:
        """Call a function of a worker."""
        return self.runner.run(function(self.of_worker, *given, **named))

    def start(self, act: Callable[[Session], object]) -> None:
        self.error: Exception | None = None

        def carry_out() -> None:
            try:
                act(self)
            except Exception as error:
                self.error = error

        self.thread = threading.Thread(target=carry_out)
        self.thread.start()

    def until(self, db: psycopg.Connection[Any], condition: bytes, *parameters: Any) -> bool:
        """Wait until the operation has ended, or the condition is true; return whether it is."""
        pause = 0.002
        while self.thread.is_alive():
            if db.execute(condition, parameters).fetchone()[0]:  # type: ignore[index]
                return True
            self.thread.join(pause)
            pause = min(pause * 1.5, 0.02)  # the locks of a whole server are read each time
        return False

    def close(self) -> None:
        self.connection.close()
        self.runner.run(self.of_worker.close())
        self.runner.close()


IS_STOPPED = b"""select exists (select from pg_locks where locktype = 'advisory' and not granted
    and classid = 1 and objid = %s and database = (
        select oid from pg_database where datname = current_database()))"""
WAITS = b"select bool_or(pg_blocking_pids(pid) && %s::int[]) from unnest(%s::int[]) pid"


def interleave(
    db: psycopg.Connection[Any],
    first: tuple[Session, Callable[[Session], object]],
    second: tuple[Session, Callable[[Session], object]],
    nth: int,
) -> tuple[bool, bool]:
    """Stop the first before its nth statement, and carry out the second until it ends or waits for the first; end both.

    Returns whether the first has so many statements, and whether the second waited.
    """
    db.execute("select setval('public.stops', 1, false), pg_advisory_lock(1, %s)", [nth])
    first[0].start(first[1])
    has_stopped = first[0].until(db, IS_STOPPED, nth)
    second[0].start(second[1])
    has_waited = second[0].until(db, WAITS, first[0].pids, second[0].pids)
    db.execute("select pg_advisory_unlock(1, %s)", [nth])
    for session, _ in (first, second):
        session.thread.join()
    return has_stopped, has_waited
