"""A run's success as the last statement of a transaction: of ``run.transaction()``, or of the
handler's own.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from yamlsched import jsonb
from yamlsched.db import blocking
from yamlsched.errors import LeaseLost, YamlschedError
from yamlsched.runs.frameworks import Async, Sync, driver_connection

if TYPE_CHECKING:
    from yamlsched.handler.run import Run

Session = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


def succeed_in(run: Run, connection: Sync | Async) -> Awaitable[None] | None:
    """Write the success of ``run`` in the transaction that ``connection`` has open; see
    ``Run.succeed_in``.
    """
    if run.state.transaction_start is not None:
        raise YamlschedError(
            "run.succeed_in() was called inside run.transaction(), at whose end the run succeeds"
        )
    driver = driver_connection(connection)
    if isinstance(driver, psycopg.Connection):
        if run.backend.is_shared:
            raise YamlschedError(
                "run.succeed_in() would block the other runs of this process: pass an asynchronous"
                " connection"
            )
        return blocking.run(_succeed(run, driver, blocking.Session(driver)))

    async def succeed() -> None:
        session = driver if isinstance(driver, psycopg.AsyncConnection) else await driver
        await _succeed(run, session, session)

    return succeed()


async def _succeed(run: Run, connection: Session, session: Any) -> None:
    """Write the success by ``session``, which executes the statements of ``connection``."""
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise YamlschedError(
            "run.succeed_in() needs an open transaction, and this connection has none: call it as"
            " the last statement of yours, in Django inside transaction.atomic()"
        )
    result = jsonb.encode_result(run.result, "the result")
    run.state.succeeded_in, run.state.result = connection, run.result
    try:
        await run.backend.succeed(session, result, run.state.enqueued, run.state.progress)
    except LeaseLost as error:
        raise LeaseLost(
            f"{error}. Or the connection of run.succeed_in() is not to the worker's database"
        ) from error


def require_ended(run: Run) -> None:
    """Raise if the transaction of ``run.succeed_in()`` is still open when the handler has returned.

    Its lock on the run would keep the worker from writing how the run has ended, so its connection
    is closed. On a loop that is shared with other attempts, one of them may have the connection by
    now.
    """
    session: Session | None = run.state.succeeded_in
    if session is None or session.closed or run.backend.is_shared:
        return
    if session.info.transaction_status != TransactionStatus.IDLE:
        session.pgconn.finish()
        raise YamlschedError(
            "the handler returned before it committed the transaction of run.succeed_in()"
        )


def require_open(session: Session) -> None:
    """Raise if the transaction of ``run.transaction()`` cannot be committed at the end of its
    block.
    """
    status = session.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise YamlschedError(
            "a statement inside run.transaction() failed, and its error was caught: nothing can be"
            " committed. Put a statement that may fail into a nested block: with"
            " connection.transaction(): ..."
        )
    if status != TransactionStatus.INTRANS:
        raise YamlschedError(
            "run.transaction() was ended inside its block, by a commit or rollback"
        )
