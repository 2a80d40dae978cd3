"""Begin tickets of attempts on executors other than "local", see ``sql/begins.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from yamlsched.db.query import load

Connection = psycopg.AsyncConnection[Any]


class Ticket(NamedTuple):
    """Which attempt a ticket is for: a run, the number of the attempt, and its claim."""

    run_id: int
    attempt: int
    locked_by: str


class Begun(NamedTuple):
    """What the agent that has the ticket needs. ``lease_seconds`` is what is left of the lease."""

    payload: str
    lease_seconds: float


async def begin(
    connection: Connection, ticket: Ticket, agent: str, is_repeated: bool = False
) -> Begun | None:
    """Take the ticket for ``agent``, which is new for each execution. None: the handler must not be
    called.

    ``is_repeated``: the answer to the first call was lost, so that the agent may have the ticket
    already.
    """
    parameters = {**ticket._asdict(), "agent": agent}
    row: Any = await (await connection.execute(load("begins")["begin"], parameters)).fetchone()
    if row is None and is_repeated:
        row = await (
            await connection.execute(load("begins")["begun_by"], ticket._asdict())
        ).fetchone()
        row = None if row is None or row.agent != agent else row
    return None if row is None else Begun(row.payload, row.lease_seconds or 0.0)


async def count(connection: Connection, ticket: Ticket) -> int:
    """Return how many tickets the run has, those of earlier claims included."""
    row: Any = await (
        await connection.execute(load("begins")["count"], {"run_id": ticket.run_id})
    ).fetchone()
    return int(row.tickets)


async def check(connection: Connection, ticket: Ticket, agent: str, lease: float) -> Any:
    """Renew the lease, for ``lease`` seconds. Return whose the run is and until when; None:
    ``agent`` has no ticket.
    """
    parameters = {**ticket._asdict(), "agent": agent, "lease": lease}
    cursor = await connection.execute(load("begins")["check"], parameters)
    return await cursor.fetchone()


async def end(connection: Connection, ticket: Ticket, agent: str, outcome: str) -> None:
    """Write how the attempt ended. A repetition changes nothing."""
    await connection.execute(
        load("begins")["end"], {**ticket._asdict(), "agent": agent, "outcome": outcome}
    )


async def withdraw(connection: Connection, tickets: Sequence[Ticket]) -> dict[Ticket, int]:
    """Take the tickets that no agent has, so that none can begin. Return how many each of their
    runs has by now.
    """
    cursor = await connection.execute(load("begins")["withdraw"], _parameters(tickets))
    counts = {(row.run_id, row.locked_by): row.tickets for row in await cursor.fetchall()}
    withdrawn = ((ticket, counts.get((ticket.run_id, ticket.locked_by))) for ticket in tickets)
    return {ticket: count for ticket, count in withdrawn if count is not None}


async def read(connection: Connection, tickets: Sequence[Ticket]) -> dict[Ticket, str | None]:
    """Return who has those of ``tickets`` that are taken: an agent, or None if no agent can have it
    any more.
    """
    cursor = await connection.execute(load("begins")["read"], _parameters(tickets))
    agents = {(row.run_id, row.locked_by): row.agent for row in await cursor.fetchall()}
    return {
        ticket: agents[key]
        for ticket in tickets
        if (key := (ticket.run_id, ticket.locked_by)) in agents
    }


def _parameters(tickets: Sequence[Ticket]) -> dict[str, Any]:
    return {
        "run_ids": [ticket.run_id for ticket in tickets],
        "attempts": [ticket.attempt for ticket in tickets],
        "tokens": [ticket.locked_by for ticket in tickets],
    }
