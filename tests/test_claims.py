"""Which runs a worker claims, and how often it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_run, row
from yamlsched.worker import claiming, clock
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.claims import (
    LOOK_INTERVAL_SECONDS,
    MAX_BUSY_CLAIMS,
    POLL_INTERVAL_SECONDS,
    Claims,
)
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, WorkerSession

Claiming = Callable[[int], list[int]]


class Worker:
    """The claims of one worker for the queue default."""

    def __init__(self, runner: asyncio.Runner, dsn: str, polls: bool = False) -> None:
        self.runner, self.session = runner, WorkerSession(Database(dsn), WORKER_SETTINGS)
        self.claims = Claims(self.session, "default", "web-1:1", "default", polls)

    def claim(self, limit: int = 10) -> list[int]:
        """Claim once; return the ids of the runs."""
        return sorted(run.id for run in self.runner.run(self.claims.claim(limit, ClaimScope())))


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def worker(runner: asyncio.Runner, dsn: str) -> Iterator[Worker]:
    made = Worker(runner, dsn)
    yield made
    runner.run(made.session.drop())


def test_one_claim_takes_slot_runs_and_others_in_the_order_of_their_time(
    db: psycopg.Connection[Any], worker: Worker
) -> None:
    ad_hoc = a_job(db, "ad_hoc")
    runs = []
    for number in range(4):
        ago = f"(now() - interval '{100 - number} s')"
        job = ad_hoc if number % 2 else a_job(db, f"nightly_{number}")
        runs.append(a_run(db, job, run_at=ago, exclusive=job != ad_hoc))

    assert worker.claim(3) == runs[:3]
    assert not worker.claims.is_exhausted
    assert worker.claim(3) == runs[3:]
    assert worker.claims.is_exhausted


def test_behind_many_runs_that_may_not_be_claimed_the_others_are_claimed_by_few_claims(
    db: psycopg.Connection[Any], worker: Worker
) -> None:
    # given 2,500 runs of a paused job, and later ones of an open job
    paused, job = a_job(db, "paused", paused_at="now"), a_job(db)
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
        "select 'default', %s, 'paused', now() - interval '1 h', 5 from generate_series(1, 2500)",
        [paused],
    )
    runs = [a_run(db, job, run_at="(now() - interval '1 s')") for _ in range(3)]

    taken = [worker.claim(10) for _ in range(4)]

    assert taken == [[], [], [], runs]
    assert db.execute(
        "select count(*) from yamlsched.job_runs where blocked_on like 'closed/%'"
    ).fetchone() == (2500,)
    assert worker.claim() == []
    assert worker.claims.is_exhausted


def test_a_claim_waits_for_no_gate_but_steps_over_its_job_and_comes_back(
    db: psycopg.Connection[Any], dsn: str, worker: Worker
) -> None:
    # given slot runs of two jobs, of which one's gate is locked
    busy, free = a_job(db, "busy"), a_job(db, "free")
    first = a_run(db, busy, exclusive=True, run_at="(now() - interval '9 s')")
    second = a_run(db, free, exclusive=True)
    with psycopg.connect(dsn) as other:
        other.execute(
            "select from yamlsched.gates where name = %s for no key update", [f"job/{busy}"]
        )

        assert worker.claim(1) == []
        assert not worker.claims.is_exhausted
        assert worker.claim(1) == [second]
        for _ in range(3):
            assert worker.claim() == []
        assert worker.claims.retries

    assert sorted(worker.claim() + worker.claim()) == [first]


def test_a_worker_gives_up_on_a_gate_that_stays_locked_until_the_next_poll(
    db: psycopg.Connection[Any], dsn: str, worker: Worker
) -> None:
    job = a_job(db)
    a_run(db, job, exclusive=True)
    with psycopg.connect(dsn) as other:
        other.execute("select from yamlsched.gates for no key update")

        for _ in range(2 * MAX_BUSY_CLAIMS):
            assert worker.claim() == []

        assert len(worker.claims.retries) == MAX_BUSY_CLAIMS - 1


def test_a_claim_whose_second_statement_is_not_answered_is_released(
    db: psycopg.Connection[Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a claim of one run at a gate and one without, and a session that breaks after the gate was passed
    plain, gated = a_run(db, a_job(db, "ad_hoc")), a_run(db, a_job(db), exclusive=True)
    claim_gated = claiming.claim_gated

    async def break_after(connection: Any, *given: Any, **more: Any) -> None:
        await claim_gated(connection, *given, **more)
        db.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
        await connection.execute("select")

    monkeypatch.setattr(claiming, "claim_gated", break_after)

    # when it claims
    taken = worker.claim()
    monkeypatch.undo()

    # then it executes what it knows of, and releases the rest at no cost
    assert plain in taken
    assert worker.claims.lost
    worker.runner.run(worker.claims.release_lost_claims())
    assert (row(db, plain).status, row(db, gated).status, row(db, gated).attempts) == (
        "running",
        "queued",
        0,
    )
    assert worker.claim() == [gated]


def test_a_run_that_was_created_for_another_queue_is_moved_to_that_of_its_job(
    db: psycopg.Connection[Any], worker: Worker
) -> None:
    mail = a_job(db, "mail", queue="mail")
    there, here = a_run(db, mail, queue="mail"), a_run(db, mail)
    hook, at_gate = a_run(db, mail, hook="dead"), a_run(db, mail, exclusive=True)

    assert worker.claim() == []

    assert [row(db, run).queue for run in (there, here, hook, at_gate)] == ["mail"] * 4
    assert [row(db, run).status for run in (there, here, hook, at_gate)] == ["queued"] * 4
    assert not worker.claims.is_exhausted or worker.claim() == []


def test_a_busy_worker_that_is_notified_looks_again_once_in_each_interval(
    db: psycopg.Connection[Any], dsn: str, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, now = Worker(runner, dsn, polls=True), 1000.0
    monkeypatch.setattr(clock, "now", lambda: now)
    assert worker.claim() == []
    assert worker.claims.is_exhausted
    assert worker.claims.idle_seconds == POLL_INTERVAL_SECONDS

    worker.claims.poll_soon()
    assert worker.claims.is_exhausted
    assert worker.claims.idle_seconds == pytest.approx(LOOK_INTERVAL_SECONDS)

    now += LOOK_INTERVAL_SECONDS
    worker.claims.check_clock()
    assert not worker.claims.is_exhausted
    runner.run(worker.session.drop())


def test_a_worker_that_does_not_poll_looks_after_each_end(worker: Worker) -> None:
    assert worker.claim() == []
    worker.claims.poll_soon()
    assert not worker.claims.is_exhausted
