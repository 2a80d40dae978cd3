"""How outcomes get into the database: many at once, none held up by others."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from operating import a_job

from yamlsched.definitions.job import Job
from yamlsched.runs import End, Ending, Status
from yamlsched.store import runs as store
from yamlsched.worker.children import Held
from yamlsched.worker.outcomes import SUCCESSES, Item, Outcomes
from yamlsched.worker.sessions import Database, Session
from yamlsched.worker.worker import SESSION


class Told:
    """What a worker would be told of, in order: the states of runs."""

    def __init__(self) -> None:
        self.states: list[Status] = []

    def one(self, item: Item, _: object) -> None:
        self.states.append(item.outcome.status)

    def many(self, ends: list[Any]) -> None:
        self.states += [Status.SUCCEEDED] * len(ends)


async def write(dsn: str, count: int, told: Told, enough: int, meanwhile: str = "select") -> Outcomes:
    """Claim ``count`` runs, let the last one have failed and all others succeeded, and write until enough is told.

    ``meanwhile`` is carried out on another session between claim and outcomes; a transaction stays open.
    """
    session = Session(Database(dsn), {**SESSION, "lock_timeout": "100ms"})

    async def claim(connection: Any) -> list[Any]:
        return (await store.claim_waiting(connection, "default", "A", count)).runs

    job = Job(name="purge", handler="h.f")
    held = [Held(run, job, 1e12, 0.0) for run in await session.run(claim, 20)]
    other = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await other.execute(meanwhile.encode())
    outcomes = Outcomes(session, "default", str, told.one, told.many, lambda: None)
    outcomes.add_successes([(each, 0.001) for each in held[:-1]])
    outcomes.add(held[-1], Ending(End.RAISED, "no route to host", "OSError"), [])
    writing = asyncio.create_task(outcomes.write())
    while len(told.states) < enough:
        await asyncio.sleep(0.001)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await session.drop()
    await other.close()
    return outcomes


def runs(db: psycopg.Connection[Any], count: int) -> None:
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
        "select 'default', %s, 'purge', now(), 5 from generate_series(1, %s)",
        [a_job(db), count],
    )


def statuses(db: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(db.execute("select status, count(*) from yamlsched.job_runs group by status").fetchall())


def test_successes_are_written_in_bulk_and_a_failure_does_not_wait_for_all_of_them(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    count = 2 * SUCCESSES + 500
    runs(db, count)
    told = Told()

    outcomes = asyncio.run(write(dsn, count, told, count))

    assert told.states.index(Status.FAILED) == SUCCESSES
    assert statuses(db) == {"succeeded": count - 1, "failed": 1}
    assert (len(outcomes), list(outcomes.held())) == (0, [])


def test_of_what_somebody_has_locked_the_others_are_written(db: psycopg.Connection[Any], dsn: str) -> None:
    runs(db, 4)
    told = Told()
    locked = "begin; select from yamlsched.job_runs where id = (select min(id) from yamlsched.job_runs) for update"

    outcomes = asyncio.run(write(dsn, 4, told, 3, locked))

    assert sorted(told.states) == [Status.FAILED, Status.SUCCEEDED, Status.SUCCEEDED]
    assert statuses(db) == {"succeeded": 2, "failed": 1, "running": 1}
    assert len(outcomes) == 1


def test_what_is_not_ours_any_more_is_discarded_and_the_rest_is_written(
    db: psycopg.Connection[Any], dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(db, 3)
    told = Told()
    taken_over = "update yamlsched.job_runs set locked_by = 'B' where id = (select min(id) from yamlsched.job_runs)"

    outcomes = asyncio.run(write(dsn, 3, told, 2, taken_over))

    assert sorted(told.states) == [Status.FAILED, Status.SUCCEEDED]
    assert statuses(db) == {"succeeded": 1, "failed": 1, "running": 1}
    assert len(outcomes) == 0
    assert "lease.lost" in capsys.readouterr().err
