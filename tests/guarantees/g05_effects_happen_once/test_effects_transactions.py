"""``run.transaction()``: the changes of a handler and the outcome of its run are one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.effects import a_job_with_a_ledger, status
from support.rows import a_started_run
from yamlsched import Refused, YamlschedError
from yamlsched.db import blocking
from yamlsched.db.query import load
from yamlsched.errors import LeaseLost
from yamlsched.runs import own_transaction
from yamlsched.runs.lifecycle import ClaimedRun, EnqueueBatch
from yamlsched.worker import statements as store


@pytest.fixture
def job(db: psycopg.Connection[Any]) -> Iterator[str]:
    with a_job_with_a_ledger(db) as name:
        yield name


# -- run.transaction()


def test_rows_result_fan_out_and_success_are_committed_together(db, dsn, job):
    run = a_started_run(db, dsn)
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        run.enqueue("mail", {"n": 1}, key="a")
        run.result = {"sent": 3}
        assert db.execute("select count(*) as n from ledger").fetchone().n == 0

    row = db.execute("select * from yamlsched.job_runs where id = %s", [run.id]).fetchone()
    assert (row.status, row.result, row.locked_until, row.locked_by) == (
        "succeeded", {"sent": 3}, None, run.backend.locked_by,
    )  # fmt: skip
    assert db.execute(
        "select payload, parent_id from yamlsched.job_runs where idempotency_key = 'a'"
    ).fetchone() == (
        {"n": 1},
        run.id,
    )
    assert db.execute("select count(*) as n from ledger").fetchone().n == 1


def test_an_exception_in_the_transaction_rolls_everything_back_also_enqueued_runs(db, dsn, job):
    run = a_started_run(db, dsn)
    run.enqueue("mail", {"n": "before"})
    with pytest.raises(ZeroDivisionError), run.transaction() as connection:  # noqa: PT012
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        run.enqueue("mail", {"n": "inside"})
        raise ZeroDivisionError

    assert (status(db, run), db.execute("select count(*) as n from ledger").fetchone().n) == (
        "running",
        0,
    )
    assert [batch.payloads for batch in run.state.enqueued] == [['{"n": "before"}']]


def test_an_attempt_whose_run_was_taken_over_commits_nothing(db, dsn, job):
    zombie = a_started_run(db, dsn)
    lost = pytest.raises(LeaseLost, match="outlived its lease; nothing was committed")
    with lost, zombie.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [zombie.id])
        a_started_run(db, dsn, zombie.id)

    assert (status(db, zombie), db.execute("select count(*) as n from ledger").fetchone().n) == (
        "running",
        0,
    )


def test_an_effect_inside_a_transaction_that_is_rolled_back_is_known_to_the_next_attempt(
    db, dsn, job
):
    run = a_started_run(db, dsn)
    with pytest.raises(ZeroDivisionError), run.transaction():  # noqa: PT012
        with run.once("post", in_doubt="raise") as effect:
            effect.result = "posted"
        raise ZeroDivisionError

    with a_started_run(db, dsn, run.id).once("post", in_doubt="raise") as effect:
        assert (effect.first, effect.result) == (False, "posted")


def test_after_the_transaction_the_run_accepts_no_further_call(db, dsn, job):
    run = a_started_run(db, dsn)
    with run.transaction(), pytest.raises(YamlschedError, match="once in an attempt"):
        run.transaction().__enter__()

    for use in (
        lambda: run.transaction().__enter__(),
        lambda: run.once("post", in_doubt="raise").__enter__(),
        lambda: run.enqueue("mail"),
    ):
        with pytest.raises(
            YamlschedError, match=r"once in an attempt|has ended, and the run with it"
        ):
            use()
    assert status(db, run) == "succeeded"


def test_a_swallowed_statement_error_is_reported_unless_it_was_in_a_nested_transaction(
    db, dsn, job
):
    run = a_started_run(db, dsn)
    caught = pytest.raises(YamlschedError, match="its error was caught: nothing can be committed")
    with caught, run.transaction() as connection, suppress(psycopg.Error):
        connection.execute("select 1/0")

    with run.transaction() as connection:
        with suppress(psycopg.Error), connection.transaction():
            connection.execute("select 1/0")
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
    assert status(db, run) == "succeeded"


def test_a_commit_by_the_handler_is_reported(db, dsn, job):
    run = a_started_run(db, dsn)
    with (
        pytest.raises(YamlschedError, match="ended inside its block"),
        run.transaction() as connection,
    ):
        connection.execute("commit")

    assert status(db, run) == "running"


@pytest.mark.parametrize(
    "enqueue, message",
    [
        (lambda run: run.enqueue("mial"), 'no job "mial" in namespace "default"'),
        (
            lambda run: run.enqueue("mail", {"at": timedelta()}),
            r"payload\.at of job \"mail\" is of type timedelta",
        ),
        (lambda run: run.enqueue("mail", []), 'payload of job "mail" is of type list'),
        (
            lambda run: run.enqueue("mail", run_at=datetime(2030, 1, 1)),
            "is not a datetime with a time zone",
        ),
        (
            lambda run: run.enqueue("mail", run_at=datetime(2030, 1, 1, tzinfo=UTC), delay="5m"),
            "pass one of them",
        ),
        (lambda run: setattr(run, "result", {1}), "the result is of type set"),
    ],
)
def test_a_fan_out_that_cannot_be_written_fails_the_attempt_with_a_clear_error(
    db, dsn, job, enqueue, message
):
    run = a_started_run(db, dsn)
    with pytest.raises(Refused, match=message), run.transaction() as connection:  # noqa: PT012
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        enqueue(run)

    assert (status(db, run), db.execute("select count(*) as n from ledger").fetchone().n) == (
        "running",
        0,
    )


def test_enqueues_in_a_loop_are_written_by_one_statement_for_each_job_and_time(db, dsn, job):
    run = a_started_run(db, dsn)
    for n in range(100):
        run.enqueue("mail", {"n": n}, key=f"mail:{n}")
    run.enqueue("mail", {"n": 100}, run_at=datetime(2030, 1, 1, tzinfo=UTC))
    run.enqueue("mail", {"n": 101}, delay="1h")

    assert len(run.state.enqueued) == 3
    with run.transaction():
        pass
    made = db.execute(
        "select payload, idempotency_key from yamlsched.job_runs where parent_id = %s order by id",
        [run.id],
    )
    assert made.fetchall() == [
        *(({"n": n}, f"mail:{n}") for n in range(100)),
        ({"n": 100}, None),
        ({"n": 101}, None),
    ]
    later = "select run_at - created_at between '59 minutes' and '61 minutes' as so from yamlsched.job_runs"
    assert db.execute(f"{later} where payload->>'n' = '101'").fetchone().so


def test_session_state_of_one_handler_does_not_reach_the_next(db, dsn, job):
    with a_started_run(db, dsn).transaction() as connection:
        connection.row_factory = psycopg.rows.dict_row
        first = connection

    with a_started_run(db, dsn).transaction() as connection:
        assert connection is first
        assert connection.execute("select 1 as one").fetchone().one == 1


def test_a_transaction_before_its_commit_blocks_no_lease_of_other_runs(db, dsn, job):
    # given a transaction that has written its run's success but not committed
    one, other = a_started_run(db, dsn), a_started_run(db, dsn)
    with psycopg.connect(dsn, row_factory=namedtuple_row) as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [one.id])
        for part in own_transaction.fan_out(
            "default", one.id, [EnqueueBatch("mail", ["{}"], [None], None, None)]
        ):
            connection.execute(load("enqueue")["enqueue_many"], part)
        fence = one.id, 1, one.backend.locked_by
        session = blocking.Session(connection)
        assert blocking.run(own_transaction.succeed_in(session, fence, None))

        # when the leases of both are renewed
        async def renew() -> set[int]:
            factory: Any = namedtuple_row
            async with await psycopg.AsyncConnection.connect(dsn, row_factory=factory) as session:
                await session.execute("set statement_timeout = '5s'")
                held = [
                    ClaimedRun(
                        r.id, "mail", None, None, 1, 5, "{}", False, 60.0, r.backend.locked_by
                    )
                    for r in (one, other)
                ]
                return await store.heartbeat(session, held)

        renewed = asyncio.run(renew())

    # then the lease of the other run is renewed without waiting
    assert renewed == {other.id}
