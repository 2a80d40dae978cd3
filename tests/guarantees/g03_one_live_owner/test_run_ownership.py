"""The statements for claims, heartbeats, outcomes and ownership. Tests pass ``now``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.rows import a_job, a_run, row, value
from support.schedules import prune
from yamlsched import db as database
from yamlsched.act import runs as actions
from yamlsched.db.query import load
from yamlsched.handler.run import Trigger
from yamlsched.runs.lifecycle import LOST_WORKER, ClaimedRun, EnqueueBatch, Outcome, Status
from yamlsched.worker import claiming
from yamlsched.worker import statements as store
from yamlsched.worker.claiming import ClaimScope
from yamlsched.worker.statements import LOST, OURS

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, LEASE = (
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
    timedelta(minutes=2),
)
SUCCESS = Outcome(Status.SUCCEEDED)
PRINTED = Outcome(Status.SUCCEEDED, result='{"n": 1}', output="printed")
FAILURE = Outcome(
    Status.FAILED,
    delay=MINUTE,
    error="no route to host",
    error_type="OSError",
    stack="at x",
    output="o",
    omitted_bytes=7,
)
DEATH = Outcome(Status.DEAD, error="no route to host")
RELEASED = Outcome(Status.QUEUED, refund=True)
Ask = Callable[..., Any]


@pytest.fixture
def ask(dsn: str) -> Iterator[Ask]:
    """Call a function of the store on its own session, at noon by default."""
    with asyncio.Runner() as runner:
        connection = runner.run(
            psycopg.AsyncConnection.connect(
                dsn,
                autocommit=True,
                prepare_threshold=None,
                row_factory=namedtuple_row,
                options="-c lock_timeout=10s",
            )
        )

        def call(function: Callable[..., Awaitable[Any]], *given: Any, **named: Any) -> Any:
            if function is not store.ownership:
                named.setdefault("now", NOON)
            return runner.run(function(connection, *given, **named))  # type: ignore[arg-type]

        yield call
        runner.run(connection.close())


@dataclass
class Taken:
    """What a worker takes that looks for due runs."""

    runs: list[ClaimedRun]
    lost: list[ClaimedRun]
    dead: list[ClaimedRun]


def claim(ask: Ask, token: str = "A", limit: int = 10, **named: Any) -> Taken:
    """Reclaim and claim as a worker does."""
    at = {"now": named["now"]} if "now" in named else {}
    reclaimed = ask(claiming.reclaim, "default", **at)
    claimed, gated = ask(claiming.claim, "default", token, limit, **named)
    ask(claiming.claim_gated, "default", claimed, token, gated, **at)
    return Taken(sorted(claimed.runs), reclaimed.lost, reclaimed.dead)


def due(db: psycopg.Connection[Any], job: int, **values: Any) -> int:
    """Insert a run that has been due for a minute."""
    return a_run(db, job, **{"run_at": NOON - MINUTE, **values})


def one(ask: Ask, token: str = "A", **named: Any) -> ClaimedRun:
    [run] = claim(ask, token, **named).runs
    return run


def test_a_claim_takes_due_runs_oldest_first_and_counts_the_attempt(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db, overlap="allow", max_attempts=5)
    later = due(db, job, run_at=NOON - SECOND)
    earlier = due(db, job, run_at=NOON - MINUTE)
    due(db, job, run_at=NOON + SECOND)

    first = one(ask, "A", limit=1)
    second = one(ask, "B", limit=1)
    nothing = claim(ask, "C")

    assert (first.id, second.id, nothing.runs) == (earlier, later, [])
    assert (first.attempt, first.max_attempts, first.lease, first.locked_by) == (1, 5, 120.0, "A")
    run = row(db, earlier)
    assert (run.status, run.attempts, run.locked_by, run.locked_until) == (
        "running",
        1,
        "A",
        NOON + LEASE,
    )
    assert (run.started_at, run.updated_at) == (NOON, NOON)


def test_a_claim_and_a_reclaim_take_only_what_waits_or_is_lost_in_their_queue_and_namespace(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job, there = a_job(db, overlap="allow"), a_job(db, namespace="elsewhere", overlap="allow")
    other = a_job(db, "other", queue="other", overlap="allow")
    over = {"locked_until": NOON - SECOND}
    waits = due(db, job)
    lost = due(db, job, status="running", **over)
    cancelled = due(db, job, status="cancelled", finished_at=NOON - HOUR, **over)
    left = [
        due(db, job, locked_until=NOON + SECOND),
        due(db, job, blocked_on="limit/y"),
        due(db, job, status="running", locked_until=NOON + SECOND),
        due(db, job, status="succeeded"),
        due(db, other, queue="other"),
        due(db, there),
        due(db, there, status="running", **over),
    ]
    for run in (cancelled, *left):
        db.execute(
            "insert into yamlsched.permits"
            " select namespace, 'limit/x', id, id from yamlsched.job_runs where id = %s",
            [run],
        )
    before = [row(db, run) for run in left]

    taken = claim(ask, "A")

    assert [run.id for run in taken.lost] == [lost]
    assert [run.id for run in taken.runs] == [waits, lost]
    assert [row(db, run) for run in left] == before
    run = row(db, cancelled)
    assert (run.status, run.finished_at, run.locked_until) == ("cancelled", NOON - HOUR, None)
    assert value(db, "select count(*) from yamlsched.job_failures") == 1


def test_a_claim_does_not_wait_for_locks(db: psycopg.Connection[Any], dsn: str, ask: Ask) -> None:
    job = a_job(db, overlap="allow")
    held, other = due(db, job), due(db, job)
    with database.connect(dsn) as session, session.transaction():
        session.execute("select from yamlsched.job_runs where id = %s for no key update", [held])
        assert one(ask).id == other

    assert one(ask, "B").id == held


def test_a_claim_takes_at_most_its_limit_of_both_kinds_together(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    ad_hoc = a_job(db, "ad_hoc")
    for _ in range(5):
        due(db, ad_hoc)
    for number in range(5):
        due(db, a_job(db, f"nightly_{number}"), exclusive=True)

    for limit in (1, 2, 3):
        assert len(claim(ask, f"limit {limit}", limit).runs) == limit


def test_runs_of_a_job_with_overlap_wait_execute_one_at_a_time_in_order(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db)
    runs = [
        due(db, job, exclusive=True, run_at=NOON - MINUTE + number * SECOND) for number in range(3)
    ]

    order = []
    for number in range(3):
        run = one(ask, f"A{number}")
        assert claim(ask, f"B{number}").runs == []
        order.append(run.id)
        assert ask(store.finish, "default", [(run, SUCCESS)])

    assert order == runs


@pytest.mark.parametrize(
    "values",
    [
        {"enabled": False},
        {"retired_at": NOON},
        {"paused_at": NOON, "paused_until": NOON + MINUTE},
        {"paused_at": NOON},
    ],
    ids=["disabled", "retired", "paused until later", "paused"],
)
@pytest.mark.parametrize("exclusive", [True, False])
def test_runs_of_a_paused_disabled_or_retired_job_are_not_claimed(
    db: psycopg.Connection[Any], ask: Ask, values: dict[str, Any], exclusive: bool
) -> None:
    due(db, a_job(db, **values), exclusive=exclusive)

    assert claim(ask).runs == []


def test_a_pause_that_has_ended_prevents_no_claim(db: psycopg.Connection[Any], ask: Ask) -> None:
    run = due(db, a_job(db, paused_at=NOON - LEASE, paused_until=NOON))

    assert one(ask).id == run


def test_a_worker_claims_only_jobs_of_its_scope(db: psycopg.Connection[Any], ask: Ask) -> None:
    # given two jobs of the worker's file, one of another file, and one that was added later
    jobs = {name: a_job(db, name) for name in ("first", "foreign", "second")}
    scope = claiming.scope(db, "default", ["first", "second", "in the file only"])
    jobs["added since"] = a_job(db, "added_since")
    for job in jobs.values():
        due(db, job)
        due(db, job, exclusive=True)

    claimed = claim(ask, limit=100, scope=scope)

    assert scope == ClaimScope(jobs["second"], (jobs["foreign"],))
    assert sorted(run.job_type for run in claimed.runs) == ["first", "first", "second", "second"]


def test_concurrent_claims_take_each_run_once(db: psycopg.Connection[Any], dsn: str) -> None:
    job = a_job(db)
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
        "select 'default', %s, 'purge', %s, 5 from generate_series(1, 2000)",
        [job, NOON],
    )

    async def take(name: int) -> list[int]:
        taken: list[int] = []
        connection = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, row_factory=namedtuple_row
        )
        async with connection:
            while runs := (await claiming.claim(connection, "default", f"{name}:{len(taken)}", 30))[
                0
            ].runs:
                assert {run.attempt for run in runs} == {1}
                taken += [run.id for run in runs]
        return taken

    async def race() -> list[list[int]]:
        return await asyncio.gather(*map(take, range(4)))

    taken = asyncio.run(race())

    ids = [id for part in taken for id in part]
    assert len(ids) == len(set(ids)) == 2000
    assert min(map(len, taken)) > 0


def test_all_runs_behind_many_that_may_not_be_claimed_are_claimed_once(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    # given runs of several jobs behind many runs of a paused job; one is lost, and one is lost for good
    paused = a_job(db, "paused", paused_at=NOON - HOUR)
    for number in range(60):
        due(db, paused, run_at=NOON - HOUR + number * SECOND)
    jobs = [a_job(db, f"job_{number}") for number in range(5)]
    due(db, jobs[0], status="running", locked_until=NOON - SECOND, attempts=1)
    exhausted = due(
        db, jobs[1], status="running", locked_until=NOON - SECOND, attempts=3, max_attempts=3
    )
    for job in jobs:
        for number in range(3):
            due(db, job, run_at=NOON - number * SECOND)

    claims = [claim(ask, f"token {number}", 2, scope=ClaimScope(jobs[-1])) for number in range(10)]

    ids = [run.id for taken in claims for run in taken.runs]
    assert len(ids) == len(set(ids)) == 16
    assert {run.job_type for taken in claims for run in taken.runs} == {
        f"job_{number}" for number in range(5)
    }
    assert [run.id for taken in claims for run in taken.dead] == [exhausted]
    assert sum(len(taken.lost) for taken in claims) == 2
    assert (
        db.execute(
            "select status from yamlsched.job_runs where job_type = 'paused' and status <> 'queued'"
        ).fetchall()
        == []
    )


def test_a_claim_leaves_each_run_on_its_page_so_that_no_index_changes(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    a_job(db, overlap="allow")
    db.execute(
        "select count(*) from yamlsched.enqueue_many('purge', array_fill('{}'::jsonb, array[500]))"
    )
    pages = "select id, (ctid::text::point)[0]::int as page from yamlsched.job_runs order by id"
    before = db.execute(pages).fetchall()

    taken = claim(ask, "reports-7d9f8b6c5d-x2x9z:12345:0123456789ab", 500, now=None)

    assert len(taken.runs) == 500
    assert db.execute(pages).fetchall() == before


def test_successes_in_bulk_are_written_each_under_its_own_fence(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db, overlap="allow")
    for _ in range(7):
        due(db, job)
    mine = claim(ask, "A", 3).runs
    more = claim(ask, "B", 2).runs
    others = claim(ask, "C", 2).runs

    def succeed(*runs: ClaimedRun) -> Any:
        return ask(store.succeed, [(run, (0.5, run.id)) for run in runs])

    assert succeed(*mine[1::-1])
    assert succeed(mine[2], more[0])
    foreign = [run._replace(locked_by="B") for run in others]
    assert not succeed(*foreign)
    assert not succeed(more[1]._replace(attempt=2))
    assert not succeed(more[1], foreign[0])  # the other outcomes are written

    states = {run.id: row(db, run.id).status for run in (*mine, *more, *others)}
    assert [states[run.id] for run in (*mine, *more)] == ["succeeded"] * 5
    assert [row(db, run.id).peak_memory_bytes for run in (*mine, *more)] == [
        run.id for run in (*mine, *more)
    ]
    assert [states[run.id] for run in others] == ["running"] * 2
    assert not succeed(mine[0])
    done = row(db, mine[0].id)
    assert (done.finished_at, done.updated_at, done.locked_until, done.locked_by) == (
        NOON,
        NOON,
        None,
        "A",
    )


@pytest.mark.parametrize("host", ["web,1", '{"a"}', "back\\slash", "NULL", " ", "büro 7", "it's"])
def test_the_name_of_a_host_may_be_any_string(
    db: psycopg.Connection[Any], ask: Ask, host: str
) -> None:
    job = a_job(db, overlap="allow")
    due(db, job)
    due(db, job)
    runs = claim(ask, f"{host}:7:x", 2).runs

    assert ask(store.heartbeat, runs) == {run.id for run in runs}
    assert ask(store.succeed, [(runs[0], None)])
    assert ask(store.finish, "default", [(runs[1], SUCCESS)])
    assert [row(db, run.id).status for run in runs] == ["succeeded"] * 2


def test_a_heartbeat_renews_only_the_leases_of_its_own_runs(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db, overlap="allow")
    for _ in range(3):
        due(db, job)
    ours, foreign, older = claim(ask).runs
    foreign, older = foreign._replace(locked_by="B"), older._replace(attempt=2)

    renewed = ask(store.heartbeat, [ours, foreign, older], now=NOON + MINUTE)

    assert renewed == {ours.id}
    assert row(db, ours.id).locked_until == NOON + MINUTE + LEASE
    assert row(db, foreign.id).locked_until == row(db, older.id).locked_until == NOON + LEASE


@pytest.mark.parametrize("edited", [LEASE / 10, LEASE * 10])
def test_a_heartbeat_uses_the_lease_of_the_claim_after_an_edit_of_the_job(
    db: psycopg.Connection[Any], ask: Ask, edited: timedelta
) -> None:
    # given runs with leases of two lengths, of jobs whose lease was edited after the claim
    due(db, job := a_job(db, "usual"))
    due(db, brief := a_job(db, "brief"))
    db.execute("update yamlsched.job_definitions set lease = %s where id = %s", [LEASE / 4, brief])
    runs = {run.job_type: run for run in claim(ask).runs}
    db.execute(
        "update yamlsched.job_definitions set lease = %s where id = any (%s)",
        [edited, [job, brief]],
    )

    # when their worker renews them
    assert len(ask(store.heartbeat, list(runs.values()), now=NOON + MINUTE)) == 2

    # then they last as long as the worker computes
    assert row(db, runs["usual"].id).locked_until == NOON + MINUTE + LEASE
    assert row(db, runs["brief"].id).locked_until == NOON + MINUTE + LEASE / 4


def test_a_heartbeat_does_not_wait_for_locks(
    db: psycopg.Connection[Any], dsn: str, ask: Ask
) -> None:
    # given a run that a transaction of its handler is finishing, and one that a foreign key references
    job = a_job(db, overlap="allow")
    locked, pointed_at = due(db, job), due(db, job)
    runs = claim(ask).runs
    with database.connect(dsn) as other, other.transaction():
        other.execute("select 1 from yamlsched.job_runs where id = %s for no key update", [locked])
        other.execute("select 1 from yamlsched.job_runs where id = %s for key share", [pointed_at])

        assert ask(store.heartbeat, runs, now=NOON + MINUTE) == {pointed_at}


def test_a_reclaim_does_not_wait_for_locks(db: psycopg.Connection[Any], dsn: str, ask: Ask) -> None:
    job = a_job(db, overlap="allow")
    locked = due(db, job)
    lost = due(db, job)
    claim(ask)
    with database.connect(dsn) as other, other.transaction():
        other.execute("select 1 from yamlsched.job_runs where id = %s for no key update", [locked])

        reclaimed = ask(claiming.reclaim, "default", now=NOON + LEASE + SECOND)

    assert [run.id for run in reclaimed.lost] == [lost]


@pytest.mark.parametrize("outcome", [SUCCESS, PRINTED, FAILURE, DEATH, RELEASED])
def test_only_the_claim_that_holds_the_run_can_write_an_outcome(
    db: psycopg.Connection[Any], ask: Ask, outcome: Outcome
) -> None:
    due(db, a_job(db))
    run = one(ask)
    for wrong in (
        run._replace(locked_by="B"),
        run._replace(attempt=2),
        run._replace(id=run.id + 1),
    ):
        assert ask(store.finish, "default", [(wrong, outcome)]) == {}
    assert row(db, run.id).status == "running"
    assert db.execute("select * from yamlsched.attempt_outputs").fetchall() == []

    assert set(ask(store.finish, "default", [(run, outcome)])) == {run.id}
    assert ask(store.finish, "default", [(run, outcome)]) == {}
    assert row(db, run.id).status == outcome.status


def test_a_success_stores_a_result_and_adds_no_row_to_job_failures(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    due(db, a_job(db))
    run = one(ask)

    ask(store.finish, "default", [(run, SUCCESS._replace(result='{"n": 1}'))], now=NOON + SECOND)

    after = row(db, run.id)
    assert (after.status, after.result, after.finished_at, after.locked_until) == (
        "succeeded",
        {"n": 1},
        NOON + SECOND,
        None,
    )
    assert after.locked_by == "A"
    assert db.execute("select * from yamlsched.job_failures").fetchall() == []


def test_a_failure_is_stored_on_the_run_and_in_job_failures_and_the_run_is_due_again_later(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    due(db, a_job(db))
    run = one(ask)

    written = ask(store.finish, "default", [(run, FAILURE)], now=NOON + SECOND)

    after = row(db, run.id)
    assert written == {run.id: NOON + SECOND + MINUTE}
    assert (after.status, after.attempts, after.run_at, after.finished_at) == (
        "failed",
        1,
        written[run.id],
        None,
    )
    assert (after.last_error, after.error_type) == ("no route to host", "OSError")
    [kept] = db.execute("select * from yamlsched.job_failures").fetchall()
    assert (kept.run_id, kept.attempt, kept.worker, kept.started_at, kept.failed_at) == (
        run.id,
        1,
        "A",
        NOON,
        NOON + SECOND,
    )
    assert (kept.error, kept.error_type, kept.stack) == ("no route to host", "OSError", "at x")
    [output] = db.execute("select * from yamlsched.attempt_outputs").fetchall()
    assert output == (run.id, 1, "A", NOON + SECOND, 7, "o")
    assert claim(ask, "B", now=NOON + MINUTE).runs == []
    assert one(ask, "B", now=NOON + MINUTE + SECOND).attempt == 2


def test_a_released_run_gets_its_attempt_back(db: psycopg.Connection[Any], ask: Ask) -> None:
    due(db, a_job(db))
    run = one(ask)

    ask(store.finish, "default", [(run, RELEASED)])

    assert (row(db, run.id).status, row(db, run.id).attempts) == ("queued", 0)
    assert one(ask, "B").attempt == 1


def test_the_output_of_an_attempt_replaces_that_of_a_released_one_of_its_number(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    due(db, a_job(db))
    ask(store.finish, "default", [(one(ask, "A"), RELEASED._replace(output="of the released one"))])
    ask(
        store.finish,
        "default",
        [(one(ask, "B"), SUCCESS._replace(output="of the next one", omitted_bytes=3))],
    )

    [kept] = db.execute("select * from yamlsched.attempt_outputs").fetchall()
    assert (kept.attempt, kept.worker, kept.omitted_bytes, kept.output) == (
        1,
        "B",
        3,
        "of the next one",
    )


def test_output_is_written_without_an_outcome_unless_a_later_attempt_has_written_its_own(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    # given an attempt that was released and started again under the same number, and one whose run was pruned
    due(db, a_job(db))
    released = one(ask, "A")
    ask(store.finish, "default", [(released, RELEASED)])
    running = one(ask, "B")
    pruned = running._replace(id=running.id + 1)

    # when what they printed arrives late
    late = RELEASED._replace(output="late", omitted_bytes=5)
    ask(store.keep_outputs, [(released, late), (pruned, late), (released, RELEASED)], now=NOON)

    # then it is kept until the later attempt has its own
    [kept] = db.execute("select * from yamlsched.attempt_outputs").fetchall()
    assert kept == (running.id, 1, "A", NOON, 5, "late")
    ask(store.finish, "default", [(running, SUCCESS._replace(output="in time"))])
    ask(store.keep_outputs, [(released, late)])
    assert [row.output for row in db.execute("select output from yamlsched.attempt_outputs")] == [
        "in time"
    ]
    assert row(db, running.id).status == "succeeded"


def test_after_a_lease_ends_another_worker_claims_the_run_and_the_first_one_can_write_nothing(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    due(db, a_job(db))
    held_by_a = one(ask, "A")
    assert claim(ask, "B", now=NOON + LEASE).runs == []

    later = NOON + LEASE + SECOND
    taken = claim(ask, "B", now=later)
    [held_by_b] = taken.runs

    assert (held_by_b.id, held_by_b.attempt) == (held_by_a.id, 2)
    assert [(lost.id, lost.attempt, lost.locked_by) for lost in taken.lost] == [
        (held_by_a.id, 1, "A")
    ]
    assert ask(store.heartbeat, [held_by_a], now=later) == set()
    assert ask(store.finish, "default", [(held_by_a, SUCCESS)], now=later) == {}
    assert ask(store.ownership, [held_by_a]) == {held_by_a.id: LOST}
    [failure] = db.execute(
        "select attempt, worker, error, error_type from yamlsched.job_failures"
    ).fetchall()
    lost = "lost its worker A: it stopped answering, and its lease ended at 2026-01-14T12:02:00Z"
    assert tuple(failure) == (1, "A", lost, "LostWorker")


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_lease_that_ends_in_the_last_attempt_marks_the_run_dead(
    db: psycopg.Connection[Any], ask: Ask, exclusive: bool
) -> None:
    job = a_job(db, on_dead=["page"])
    a_job(db, "page", schedule=None, max_attempts=3)
    run_id = due(db, job, max_attempts=1, exclusive=exclusive)
    one(ask, "A")

    taken = claim(ask, "B", now=NOON + LEASE + SECOND)

    [report] = taken.runs
    assert [dead.id for dead in taken.dead] == [run_id]
    run = row(db, run_id)
    assert (run.status, run.attempts) == ("dead", 1)
    assert run.last_error.startswith("lost its worker A: ")
    assert db.execute("select * from yamlsched.permits").fetchall() == []
    assert db.execute("select count(*) as n from yamlsched.job_failures").fetchone().n == 1  # type: ignore[union-attr]
    assert (report.key, report.job_type, report.scheduled_for, report.max_attempts) == (
        f"page:dead:{run_id}:1",
        "page",
        None,
        3,
    )
    trigger = Trigger.read(report.trigger)
    assert trigger is not None
    assert (trigger.run_id, trigger.error_type) == (run_id, "LostWorker")


def test_a_lost_run_of_a_retired_job_is_marked_dead_as_well(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db)
    run_id = due(db, job, max_attempts=1)
    one(ask)
    db.execute("update yamlsched.job_definitions set retired_at = %s", [NOON])

    taken = claim(ask, "B", now=NOON + LEASE + SECOND, scope=ClaimScope(0))

    assert [dead.id for dead in taken.dead] == [run_id]


def test_each_death_of_a_run_is_reported_once(db: psycopg.Connection[Any], ask: Ask) -> None:
    # given a run that died, was retried, died again, was retried, and died with its worker
    job = a_job(db, on_dead=["page"], max_attempts=2)
    a_job(db, "page", schedule=None)
    run_id = due(db, job, max_attempts=1)
    keys = []
    for number in range(3):
        run = one(ask, f"A{number}", limit=1)
        assert run.id == run_id
        if number < 2:
            ask(store.finish, "default", [(run, DEATH)])
        else:
            claim(ask, "late", now=NOON + LEASE + SECOND)
            ask(claiming.reclaim, "default", now=NOON + 2 * LEASE + 2 * SECOND)
        # when each death is reported, and its hook succeeds
        report = one(ask, f"R{number}", now=NOON + HOUR)
        assert (row(db, report.id).parent_id, row(db, report.id).hook) == (run_id, "dead")
        keys.append(report.key)
        ask(store.finish, "default", [(report, SUCCESS)])
        if number == 0:  # a pruned hook is not created again
            prune(db, f"id = {report.id}")
        actions.retry(db, [run_id], "ann", now=NOON)

    # then each death has a run of its own
    assert keys == [f"page:dead:{run_id}:{attempt}" for attempt in (1, 2, 4)]
    assert one(ask, "last", limit=1).id == run_id


@pytest.mark.parametrize("status", ["queued", "failed"])
def test_a_run_cannot_wait_without_an_attempt_left(
    db: psycopg.Connection[Any], status: str
) -> None:
    job = a_job(db)
    with pytest.raises(psycopg.errors.CheckViolation, match="attempts_within_budget"):
        due(db, job, status=status, attempts=3, max_attempts=3)


def test_a_run_whose_attempts_were_edited_is_lost_and_claimed_again_after_its_lease(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    due(db, a_job(db))
    run = one(ask)
    db.execute("update yamlsched.job_runs set attempts = 3")

    assert ask(store.finish, "default", [(run, SUCCESS)]) == {}
    assert ask(store.heartbeat, [run]) == set()
    assert ask(store.ownership, [run]) == {run.id: LOST}
    assert one(ask, "B", now=NOON + LEASE + SECOND).attempt == 4


def test_a_slot_at_the_maximum_timestamp_stops_no_claim(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db)
    for slot in ("(timestamptz 'infinity')", "(timestamptz '-infinity')"):
        due(db, job, scheduled_for=slot)
        due(db, a_job(db, f"waits_{len(slot)}"), scheduled_for=slot, exclusive=True)

    assert len(claim(ask, "A", 1).runs) == 1
    assert len(claim(ask, "B").runs) == 3


def held_up(
    db: psycopg.Connection[Any],
    dsn: str,
    name: str,
    read: bytes,
    given: dict[str, Any],
    meanwhile: Callable[[], Any],
) -> list[Any]:
    """Execute a statement, and ``meanwhile`` once it has begun to ``read`` and has locked no run; return its rows."""
    statement, rows = load("runs")[name], []
    assert statement.count(read) == 1
    waiting = statement.replace(
        read, read + b" cross join (select pg_advisory_xact_lock(4711)) held_up"
    )
    with database.connect(dsn) as holder, database.connect(dsn) as session:
        holder.execute("select pg_advisory_lock(4711)")
        thread = threading.Thread(
            target=lambda: rows.extend(session.execute(waiting, given).fetchall())
        )
        thread.start()
        waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
        while thread.is_alive() and not db.execute(waits).fetchone():
            pass
        meanwhile()
        holder.execute("select pg_advisory_unlock(4711)")
        thread.join()
    return rows


def test_a_run_that_is_delayed_while_the_claim_reads_is_not_claimed(
    db: psycopg.Connection[Any], dsn: str, ask: Ask
) -> None:
    run = due(db, a_job(db))
    given = {"namespace": "default", "queue": "default", "token": "A", "limit": 10, "now": NOON}
    given |= {
        "priorities": claiming.levels(0.0),
        "newest": 10**9,
        "skipped": [],
        "ended": [],
        "revision": None,
    }

    # when another worker claims the run meanwhile, and its attempt fails
    def claim_and_fail() -> None:
        ask(store.finish, "default", [(one(ask, "B"), FAILURE)])

    # then the claim does not take it before its backoff ends
    assert held_up(db, dsn, "claim", b"order by u.nth) p", given, claim_and_fail) == []
    assert (row(db, run).status, row(db, run).run_at) == ("failed", NOON + MINUTE)


def test_a_run_that_ends_or_is_renewed_while_a_reclaim_reads_is_not_lost(
    db: psycopg.Connection[Any], dsn: str, ask: Ask
) -> None:
    # given two runs in their last attempts, whose leases are over
    job = a_job(db, overlap="allow")
    for _ in range(2):
        due(db, job, max_attempts=1)
    ended, renewed = claim(ask).runs
    later = NOON + LEASE + SECOND
    given = {"namespace": "default", "most": None, "held": [], "now": later, **LOST_WORKER}

    # when their worker, which was suspended, writes about them meanwhile
    def write() -> None:
        ask(store.finish, "default", [(ended, SUCCESS)])
        ask(store.heartbeat, [renewed], now=later)

    assert (
        held_up(db, dsn, "reclaim", b"from yamlsched.queue_levels(%(namespace)s) l", given, write)
        == []
    )

    assert [row(db, run.id).status for run in (ended, renewed)] == ["succeeded", "running"]


def test_the_ownership_of_a_run_states_who_changed_it(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db, overlap="allow")
    for _ in range(6):
        due(db, job)
    running, succeeded, failed, back, cancelled, lost = claim(ask).runs
    ask(store.finish, "default", [(succeeded, SUCCESS), (failed, FAILURE), (back, RELEASED)])
    db.execute(
        "update yamlsched.job_runs set status = 'cancelled', locked_until = null, finished_at = now() where id = %s",
        [cancelled.id],
    )
    db.execute("update yamlsched.job_runs set locked_by = 'B' where id = %s", [lost.id])

    ownership = ask(store.ownership, [running, succeeded, failed, back, cancelled, lost])

    assert list(ownership.values()) == [OURS, "succeeded", "failed", "queued", "cancelled", LOST]


def test_a_claim_whose_answer_was_lost_is_released_at_no_cost(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db)
    for _ in range(3):
        due(db, job)
    claim(ask, "lost", limit=2)
    [other] = claim(ask, "B").runs

    async def give_back(connection: Any, now: Any) -> int:
        return await claiming.release_claim(connection, "default", "lost")

    assert ask(give_back) == 2
    assert ask(give_back) == 0
    assert row(db, other.id).status == "running"
    states = db.execute(
        "select status, attempts from yamlsched.job_runs where id <> %s", [other.id]
    ).fetchall()
    assert {tuple(state) for state in states} == {("queued", 0)}


def test_enqueued_runs_are_written_with_the_success_or_not_at_all(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    job = a_job(db, overlap="allow")
    due(db, job)
    run = one(ask)
    enqueued = [EnqueueBatch("purge", ['{"n": 1}', '{"n": 2}'], ["purge:a", "purge:b"], None, None)]

    async def finish(connection: Any, now: Any, held: ClaimedRun) -> Any:
        return await store.finish(connection, "default", [(held, SUCCESS)], enqueued=enqueued)

    assert ask(finish, held=run._replace(locked_by="B")) == {}
    assert db.execute("select count(*) as n from yamlsched.job_runs").fetchone().n == 1  # type: ignore[union-attr]

    assert set(ask(finish, held=run)) == {run.id}
    children = db.execute(
        "select idempotency_key from yamlsched.job_runs where parent_id = %s", [run.id]
    ).fetchall()
    assert sorted(child.idempotency_key for child in children) == ["purge:a", "purge:b"]


def test_the_longest_delay_and_the_largest_strings_can_be_written(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    due(db, a_job(db))
    run = one(ask)
    huge = FAILURE._replace(
        delay=timedelta(days=365), error="é" * 500, stack="é" * 16_000, output="é" * 65_536
    )

    assert ask(store.finish, "default", [(run, huge)]) == {run.id: NOON + timedelta(days=365)}


def test_no_statement_on_a_few_runs_reads_a_table_of_many(
    db: psycopg.Connection[Any], ask: Ask
) -> None:
    # given many finished runs
    job = a_job(db, overlap="allow")
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, status, attempts, max_attempts, "
        "locked_by, finished_at) select 'default', %s, 'purge', now(), 'succeeded', 1, 5, 'A', now() "
        "from generate_series(1, 20000)",
        [job],
    )
    db.execute("vacuum analyze yamlsched.job_runs")
    for _ in range(50):
        due(db, job)

    def rows_read() -> int:
        db.execute("select pg_stat_clear_snapshot()")
        found: Any = db.execute(
            "select seq_tup_read from pg_stat_user_tables where relname = 'job_runs'"
        ).fetchone()
        return int(found.seq_tup_read)

    # when runs are claimed, kept and finished, by a session that then reports its statistics
    before = rows_read()
    runs = claim(ask, limit=50).runs
    ask(store.heartbeat, runs)
    ask(
        store.finish,
        "default",
        [(run, outcome) for run, outcome in zip(runs, [SUCCESS, FAILURE] * 25, strict=True)],
    )
    ask(store.ownership, runs)
    plans = "\n".join(
        line[0] for line in db.execute(
            "explain update yamlsched.job_runs r set status = 'succeeded' where r.id = any (%(ids)s::bigint[]) "
            "and ((r.id, r.attempts, r.locked_by) in (select * from unnest(%(ids)s::bigint[], %(n)s::int[], "
            "%(t)s::text[]))) is true", {"ids": [r.id for r in runs], "n": [1] * 50, "t": ["A"] * 50},
        )
    )  # fmt: skip

    # then no table was scanned
    async def flush(connection: Any, now: Any) -> None:
        await connection.execute("select pg_stat_force_next_flush()")

    if db.info.server_version >= 150000:
        ask(flush)
    assert rows_read() == before
    assert "hashed SubPlan" in plans
