"""Begin tickets: each statement changes the ticket of its run, attempt, claim and agent, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.rows import a_job, a_run
from yamlsched.extras.remote import tickets
from yamlsched.extras.remote.tickets import Ticket
from yamlsched.runs import claiming

Db = psycopg.Connection[Any]
AGENT = "engine-1:4711:a"


def ask(dsn: str, statement: Callable[[tickets.Connection], Awaitable[Any]]) -> Any:
    async def call() -> Any:
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, row_factory=namedtuple_row
        ) as own:
            return await statement(own)

    return asyncio.run(call())


def put(db: Db, ticket: Ticket, agent: str = AGENT, has_ended: bool = False) -> None:
    db.execute(
        "insert into yamlsched.attempt_begins "
        "(run_id, attempt, locked_by, agent, begun_at, seen_at, ended_at, outcome) "
        "select %s, %s, %s, %s, t, t, case when %s then t end, case when %s then 'first' end "
        "from (select now() - interval '1 hour') x (t)",
        [*ticket, agent, has_ended, has_ended],
    )


@pytest.fixture
def runs(db: Db) -> list[int]:
    job = a_job(db, executor="engine")
    return [a_run(db, job, "running", attempts=2, locked_by="A") for _ in range(2)]


def changed(db: Db) -> list[Ticket]:
    """Return the tickets that have been changed since ``put``."""
    rows = db.execute(
        "select run_id, attempt, locked_by from yamlsched.attempt_begins "
        "where seen_at > now() - interval '30 minutes' or outcome <> 'first' order by 1, 2, 3"
    ).fetchall()
    return [Ticket(*row) for row in rows]


STATEMENTS: dict[str, Callable[[tickets.Connection, Ticket], Awaitable[Any]]] = {
    "check": lambda connection, ticket: tickets.check(connection, ticket, AGENT, 60.0),
    "end": lambda connection, ticket: tickets.end(connection, ticket, AGENT, "second"),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_changes_the_ticket_of_this_run_attempt_and_claim_only(
    db: Db, dsn: str, runs: list[int], name: str
) -> None:
    own = Ticket(runs[0], 2, "A")
    for ticket in (
        own,
        own._replace(run_id=runs[1]),
        own._replace(attempt=1),
        own._replace(locked_by="B"),
    ):
        put(db, ticket)

    ask(dsn, lambda connection: STATEMENTS[name](connection, own))

    assert changed(db) == [own]


@pytest.mark.parametrize("name", ["check", "end"])
def test_an_agent_that_has_not_got_the_ticket_changes_nothing(
    db: Db, dsn: str, runs: list[int], name: str
) -> None:
    own = Ticket(runs[0], 2, "A")
    put(db, own, agent="engine-2:4711:b")

    ask(dsn, lambda connection: STATEMENTS[name](connection, own))

    assert changed(db) == []


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_ticket_whose_attempt_has_ended_stays_as_it_is(
    db: Db, dsn: str, runs: list[int], name: str
) -> None:
    own = Ticket(runs[0], 2, "A")
    put(db, own, has_ended=True)

    answer = ask(dsn, lambda connection: STATEMENTS[name](connection, own))

    assert (answer, changed(db)) == (None, [])


@pytest.mark.parametrize("which", [0, 1])
def test_an_agent_renews_and_reads_the_lease_of_its_own_run(
    db: Db, dsn: str, runs: list[int], which: int
) -> None:
    own = Ticket(runs[which], 2, "A")
    put(db, own)
    db.execute(
        "update yamlsched.job_runs set locked_until = now() + interval '5 s', "
        "locked_by = case when id = %s then 'A' else 'B' end",
        [runs[which]],
    )

    row = ask(dsn, lambda connection: tickets.check(connection, own, AGENT, 60.0))

    assert (row.status, row.is_same_claim) == ("running", True)
    renewed = db.execute(
        "select id from yamlsched.job_runs where locked_until > now() + interval '50 s'"
    ).fetchall()
    assert [run.id for run in renewed] == [runs[which]]


def test_the_ticket_of_a_run_that_was_pruned_cannot_be_withdrawn(
    db: Db, dsn: str, runs: list[int]
) -> None:
    own, gone = Ticket(runs[0], 2, "A"), Ticket(runs[1] + 1, 2, "A")

    withdrawn = ask(dsn, lambda connection: tickets.withdraw(connection, [own, gone]))

    assert withdrawn == {own: 1}
    assert db.execute("select run_id from yamlsched.attempt_begins").fetchall() == [(own.run_id,)]


def test_a_reclaim_ends_only_attempts_that_an_agent_has_begun_and_not_ended(
    db: Db, dsn: str
) -> None:
    # given runs whose leases are over, each with another ticket, or without one
    job, over = a_job(db, executor="engine"), {"locked_until": "(now() - interval '1 s')"}
    names = ("begun", "ended", "withdrawn", "of_former_attempt", "none")
    runs = {
        name: a_run(db, job, "running", lane="engine", attempts=2, locked_by="A", **over)
        for name in names
    }
    own = {name: Ticket(run, 2, "A") for name, run in runs.items()}
    put(db, own["begun"])
    put(db, own["ended"], has_ended=True)
    put(db, own["of_former_attempt"]._replace(attempt=1))
    ask(dsn, lambda connection: tickets.withdraw(connection, [own["withdrawn"]]))

    reclaimed = ask(dsn, lambda connection: claiming.reclaim(connection, "default"))

    assert [run.id for run in reclaimed.lost] == [runs["begun"]]
