"""With overlap wait and skip, two runs of a job's slots never execute at once, also after edits and actions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.claiming import claim_due
from support.database import while_waiting
from support.rows import row
from support.schedules import HOUR, MINUTE, a_file, at
from yamlsched import db as database
from yamlsched.act import runs as actions
from yamlsched.act.backfill import backfill, definition_for
from yamlsched.db.query import load
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.sync import definitions
from yamlsched.sync.flow import sync
from yamlsched.worker import statements as store

Db = psycopg.Connection[Any]
HOURLY = {"cron": "0 * * * *", "max_attempts": 2}
SECOND, LEASE = timedelta(seconds=1), timedelta(minutes=2)
FIRST, EDIT = at("2026-01-14 12:00"), at("2026-01-14 14:10")
SUCCESS, DEATH = Outcome(Status.SUCCEEDED), Outcome(Status.DEAD, error="no route to host")
FAILURE = Outcome(Status.FAILED, delay=MINUTE, error="no route to host")
RELEASED = Outcome(Status.QUEUED, refund=True)


class Worker:
    """Claims runs on its own session, each time under a new token."""

    def __init__(self, dsn: str) -> None:
        self.runner = asyncio.Runner()
        connect = psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=namedtuple_row)
        self.connection = self.runner.run(connect)
        self.claims = 0

    def claim(self, now: Any, limit: int = 10) -> list[ClaimedRun]:
        self.claims += 1
        claimed: list[ClaimedRun] = self.call(
            claim_due, "default", f"claim {self.claims}", limit, now=now
        )
        return claimed

    def finish(self, run: ClaimedRun, outcome: Outcome, now: Any) -> None:
        assert run.id in self.call(store.finish, "default", [(run, outcome)], now=now)

    def call(self, function: Any, *given: Any, **named: Any) -> Any:
        return self.runner.run(function(self.connection, *given, **named))

    def close(self) -> None:
        self.runner.run(self.connection.close())
        self.runner.close()


@pytest.fixture
def worker(dsn: str) -> Iterator[Worker]:
    worker = Worker(dsn)
    yield worker
    worker.close()


def edit(db: Db, overlap: str, now: Any = EDIT) -> None:
    """Apply an edit. The file is new each time, because an older version would not be applied at once."""
    sync(db, a_file(x={**HOURLY, "overlap": overlap, "description": str(now)}), now)


def two_slots(db: Db, overlap: str = "allow") -> None:
    """Sync an hourly job with two runs, for 13:00 and 14:00."""
    edit(db, overlap, FIRST)
    if overlap == "allow":
        for hour in (1, 2):
            edit(db, overlap, FIRST + hour * HOUR)
    else:
        backfill_two(db)


def backfill_two(db: Db) -> None:
    job = definition_for(db, "default", "x")
    backfill(db, "default", job, FIRST + HOUR, FIRST + 2 * HOUR, "ann", now=EDIT - MINUTE)


@pytest.mark.parametrize(
    "overlap, outcome, status",
    [
        ("wait", FAILURE, None),
        ("skip", FAILURE, None),
        ("wait", RELEASED, None),
        ("wait", DEATH, "dead"),
        ("wait", SUCCESS, "succeeded"),
        ("wait", None, "cancelled"),
    ],
    ids=[
        "fails and is retried",
        "fails and is retried, overlap skip",
        "is released",
        "dies and is retried",
        "is run again",
        "is cancelled and retried",
    ],
)
def test_after_overlap_allow_is_removed_a_run_that_is_released_or_retried_excludes_the_others(
    db: Db, worker: Worker, overlap: str, outcome: Outcome | None, status: str | None
) -> None:
    # given two runs that execute side by side when an edit forbids it
    two_slots(db)
    first, second = worker.claim(EDIT - MINUTE)
    edit(db, overlap)

    # when both become due again, each through a worker or an operator
    later = EDIT + SECOND
    for run in (first, second):
        if outcome is not None:
            worker.finish(run, outcome, later)
        else:
            actions.cancel(db, [run.id], "ann", now=later)
        if status is not None:
            actions.retry(db, [run.id], "ann", force=True, now=later)

    # then they execute one after the other
    again = later + HOUR
    [one] = worker.claim(again)
    assert worker.claim(again) == []
    worker.finish(one, SUCCESS, again)
    [other] = worker.claim(again)
    assert {one.id, other.id} == {first.id, second.id}


def test_no_run_starts_while_a_run_from_before_the_edit_is_running(db: Db, worker: Worker) -> None:
    # given a job with overlap allow, two running runs and one queued run
    two_slots(db)
    first, second = worker.claim(EDIT - MINUTE)
    backfill(
        db,
        "default",
        definition_for(db, "default", "x"),
        FIRST - HOUR,
        FIRST - HOUR,
        "ann",
        now=EDIT - SECOND,
    )
    edit(db, "wait")
    assert worker.claim(EDIT) == []

    # when the worker of the first dies, and that of the second continues
    assert worker.call(store.heartbeat, [second], now=EDIT + MINUTE) == {second.id}
    assert worker.claim(EDIT + MINUTE + SECOND) == []

    # then the others execute one at a time, after the second has ended
    now = EDIT + 2 * MINUTE
    worker.finish(second, SUCCESS, now)
    order = []
    for _ in range(2):
        [run] = worker.claim(now)
        assert worker.claim(now) == []
        worker.finish(run, SUCCESS, now)
        order.append((run.id, run.attempt))
    assert sorted(order)[0] == (first.id, 2)
    assert sorted(order)[1][1] == 1


@pytest.mark.parametrize("status", ["running", "expired"])
def test_runs_that_lose_their_worker_after_the_edit_execute_one_at_a_time(
    db: Db, worker: Worker, status: str
) -> None:
    two_slots(db)
    first, second = worker.claim(EDIT - MINUTE)
    if status == "expired":  # their leases end before the edit
        edit(db, "skip", EDIT + 5 * MINUTE)
    else:
        edit(db, "skip")

    now = EDIT + 10 * MINUTE
    [one] = worker.claim(now)
    assert worker.claim(now) == []
    worker.finish(one, SUCCESS, now)
    [other] = worker.claim(now)

    assert [(one.id, one.attempt), (other.id, other.attempt)] == [(first.id, 2), (second.id, 2)]


def test_a_run_that_is_claimed_during_the_edit_excludes_the_others(
    db: Db, dsn: str, worker: Worker
) -> None:
    # given an uncommitted claim of one of two runs
    two_slots(db)
    [first, second] = [
        r.id for r in db.execute("select id from yamlsched.job_runs order by id").fetchall()
    ]
    with database.connect(dsn) as claimer, database.connect(dsn) as syncer:
        claimer.execute("begin")
        claimer.execute(
            "update yamlsched.job_runs set status = 'running', attempts = 1, locked_by = 'B', started_at = %s, "
            "locked_until = %s where id = %s",
            [EDIT, EDIT + LEASE, first],
        )

        # when the claim is committed while the edit waits for it
        while_waiting(db, syncer, lambda: edit(syncer, "wait"), lambda: claimer.execute("commit"))

    # then the other run waits for the end of the first
    assert worker.claim(EDIT + SECOND) == []
    assert [run.id for run in worker.claim(EDIT + LEASE + SECOND)] == [first]
    assert row(db, second).status == "queued"


def test_a_run_that_is_retried_during_the_edit_excludes_the_others(db: Db, dsn: str) -> None:
    # given an uncommitted edit that has skipped a dead run
    two_slots(db)
    db.execute(
        "update yamlsched.job_runs set status = 'dead', attempts = 1, finished_at = %(now)s, dead_at = %(now)s",
        {"now": EDIT},
    )
    ids = [run.id for run in db.execute("select id from yamlsched.job_runs").fetchall()]
    job = definition_for(db, "default", "x").id
    with database.connect(dsn) as syncer, database.connect(dsn) as operator:
        syncer.execute("begin")
        definitions.lock(syncer, [job])
        syncer.execute("update yamlsched.job_definitions set overlap = 'wait' where id = %s", [job])
        syncer.execute(load("definitions")["apply_overlap"], {"ids": [job], "now": EDIT})

        # when the runs are retried before it commits
        answers = while_waiting(
            db,
            operator,
            lambda: actions.retry(operator, ids, "ann", now=EDIT),
            lambda: syncer.execute("commit"),
        )

    assert [answer.changed for answer in answers] == [True, True]
    assert [row(db, id).exclusive for id in ids] == [True, True]


def test_when_wait_becomes_allow_the_others_start_at_once(db: Db, worker: Worker) -> None:
    two_slots(db, "wait")
    [first] = worker.claim(EDIT - MINUTE)
    assert worker.claim(EDIT - MINUTE) == []

    edit(db, "allow")

    [second] = worker.claim(EDIT)
    assert second.id != first.id
    assert worker.call(store.heartbeat, [first, second], now=EDIT) == {first.id, second.id}
    worker.finish(first, FAILURE, EDIT)
    assert not row(db, first.id).exclusive
    # and back: running runs exclude new ones
    edit(db, "wait", EDIT + SECOND)
    assert worker.claim(EDIT + MINUTE + SECOND) == []
    worker.finish(second, SUCCESS, EDIT + MINUTE)
    assert [run.id for run in worker.claim(EDIT + MINUTE + SECOND)] == [first.id]


# -- a cancelled handler that is still alive


@pytest.mark.parametrize("overlap", ["wait", "skip", "allow"])
def test_a_run_that_is_cancelled_and_retried_starts_when_its_former_lease_would_have_ended(
    db: Db, worker: Worker, overlap: str
) -> None:
    two_slots(db, overlap)
    run = worker.claim(EDIT)[0]
    actions.cancel(db, [run.id], "ann", now=EDIT + SECOND)

    # retried twice, the second time while it waits
    for now in (EDIT + 2 * SECOND, EDIT + 3 * SECOND):
        [answer] = actions.retry(db, [run.id], "ann", now=now)

    assert (
        answer.what
        == "is queued again, and starts when its cancelled handler has ended, at 2026-01-14T14:12Z at the latest"
    )
    db.execute("delete from yamlsched.job_runs where id <> %s", [run.id])
    assert worker.claim(EDIT + LEASE - SECOND) == []
    assert [claimed.id for claimed in worker.claim(EDIT + LEASE + SECOND)] == [run.id]


@pytest.mark.parametrize("overlap", ["wait", "skip"])
def test_the_next_run_of_a_job_waits_for_the_former_lease_of_the_cancelled_one(
    db: Db, worker: Worker, overlap: str
) -> None:
    two_slots(db, overlap)
    [run] = worker.claim(EDIT)
    actions.cancel(db, [run.id], "ann", now=EDIT + SECOND)

    assert worker.claim(EDIT + LEASE) == []
    [other] = worker.claim(EDIT + LEASE + SECOND)
    assert other.id != run.id


@pytest.mark.parametrize("overlaps", [["allow", "wait"], ["wait", "allow", "wait"]], ids=" ".join)
def test_a_cancelled_and_retried_run_excludes_the_next_one_also_after_an_edit(
    db: Db, worker: Worker, overlaps: list[str]
) -> None:
    # given a retried run that waits for the end of its former lease, because its cancelled handler may be alive
    two_slots(db, overlaps[0])
    run, *others = worker.claim(EDIT)
    for other in others:
        worker.finish(other, RELEASED, EDIT)
    actions.cancel(db, [run.id], "ann", now=EDIT + SECOND)
    actions.retry(db, [run.id], "ann", now=EDIT + 2 * SECOND)

    for number, overlap in enumerate(overlaps[1:], 3):
        edit(db, overlap, EDIT + number * SECOND)

    assert worker.claim(EDIT + LEASE) == []
    assert len(worker.claim(EDIT + LEASE + SECOND)) == 1


def test_a_run_that_was_cancelled_under_allow_excludes_the_next_one_after_the_edit(
    db: Db, worker: Worker
) -> None:
    two_slots(db, "allow")
    run, other = worker.claim(EDIT)
    actions.cancel(db, [run.id], "ann", now=EDIT + SECOND)
    worker.finish(other, RELEASED, EDIT + SECOND)

    edit(db, "wait", EDIT + 2 * SECOND)

    assert worker.claim(EDIT + LEASE) == []
    assert [claimed.id for claimed in worker.claim(EDIT + LEASE + SECOND)] == [other.id]


def test_a_run_that_is_cancelled_while_it_waits_excludes_nothing(db: Db, worker: Worker) -> None:
    two_slots(db, "wait")
    [first, second] = [
        r.id for r in db.execute("select id from yamlsched.job_runs order by id").fetchall()
    ]
    actions.cancel(db, [first], "ann", now=EDIT)

    assert [run.id for run in worker.claim(EDIT)] == [second]
    [answer] = actions.retry(db, [first], "ann", now=EDIT)
    assert (answer.what, row(db, first).run_at) == ("is queued again", EDIT)
