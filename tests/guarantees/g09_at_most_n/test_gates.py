"""Why a run waits: stored by a claim, under the gate of the reason, and ended by whoever ends the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.database import while_waiting
from support.effects import succeed_in
from support.gates import FAILURE, LEASE, MINUTE, NOW, RELEASED, SECOND, Worker
from support.gates import worker as worker
from support.rows import a_job, a_long_history, a_run, row
from yamlsched import db as database
from yamlsched.act import pause as pauses
from yamlsched.act import runs as actions
from yamlsched.db.query import load
from yamlsched.runs.lifecycle import Outcome
from yamlsched.worker import claiming
from yamlsched.worker import statements as store
from yamlsched.worker.sessions import WORKER_SETTINGS

Db = psycopg.Connection[Any]
OPEN, JOB, TURN = None, "closed", "job"
AT_JOB, AT_TURN = "('closed/' || d.id)", "('job/' || d.id)"


@pytest.fixture
def other(dsn: str) -> Iterator[Worker]:
    worker = Worker(dsn)
    yield worker
    worker.close()


def due(db: Db, job: int, number: int = 0, **values: Any) -> int:
    return a_run(db, job, **{"run_at": NOW - MINUTE + number * SECOND, "exclusive": True, **values})


def blocked(db: Db, *runs: int) -> list[str | None]:
    """Return of which kind the gates are at which runs wait."""
    return [(row(db, run).blocked_on or "").split("/")[0] or None for run in runs]


def test_a_claim_stores_why_it_leaves_a_run_and_its_end_lets_the_next_one_go(
    db: Db, worker: Worker
) -> None:
    job = a_job(db)
    runs = [due(db, job, number) for number in range(3)]

    [first] = worker.claim()
    assert blocked(db, *runs) == [OPEN, TURN, TURN]
    worker.finish(first)

    assert blocked(db, *runs) == [OPEN, OPEN, TURN]
    assert [run.id for run in worker.claim()] == [runs[1]]


@pytest.mark.parametrize("outcome", [FAILURE, RELEASED], ids=["fails", "is released"])
def test_a_run_that_will_be_claimed_again_hands_its_turn_on(
    db: Db, worker: Worker, outcome: Outcome
) -> None:
    job = a_job(db)
    runs = [due(db, job, number) for number in range(2)]
    [first] = worker.claim()
    assert blocked(db, *runs) == [OPEN, TURN]

    worker.finish(first, outcome)

    assert blocked(db, *runs) == [OPEN, OPEN]


def test_a_reclaim_returns_the_turn_of_a_lost_run_and_a_paused_job_offers_it_when_it_is_resumed(
    db: Db, worker: Worker
) -> None:
    job = a_job(db)
    runs = [due(db, job, number, max_attempts=1) for number in range(2)]
    worker.claim()
    db.execute("update yamlsched.job_definitions set paused_at = %s", [NOW])

    reclaimed = worker.call(
        claiming.reclaim, "default", is_complete=False, now=NOW + LEASE + SECOND
    )

    assert [run.id for run in reclaimed.dead] == runs[:1]
    assert blocked(db, *runs) == [OPEN, TURN]
    pauses.resume(db, "default", [job], "ann", now=NOW)
    assert blocked(db, *runs) == [OPEN, OPEN]


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_reclaim_finds_a_lost_run_behind_thousands_if_it_has_a_turn_or_looks_at_all(
    db: Db, worker: Worker, is_complete: bool
) -> None:
    crowd = a_job(db, "crowd")
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
        "select 'default', %s, 'crowd', %s, 5 from generate_series(1, 1500)",
        [crowd, NOW - 2 * MINUTE],
    )
    lost = {"status": "running", "locked_until": NOW - SECOND}
    with_turn, plain = due(db, a_job(db), **lost), due(db, crowd, exclusive=False, **lost)

    worker.call(claiming.reclaim, "default", is_complete=is_complete, now=NOW)

    assert [row(db, run).status for run in (with_turn, plain)] == [
        "failed",
        "failed" if is_complete else "running",
    ]


def test_a_worker_does_not_reclaim_what_it_holds(db: Db, worker: Worker) -> None:
    runs = [due(db, a_job(db, f"job_{number}")) for number in range(2)]
    worker.claim()

    reclaimed = worker.call(claiming.reclaim, "default", runs[:1], now=NOW + LEASE + SECOND)

    assert [run.id for run in reclaimed.lost] == runs[1:]
    assert [row(db, run).status for run in runs] == ["running", "failed"]


def test_a_cancelled_run_that_is_retried_starts_when_its_worker_has_ended_the_handler(
    db: Db, worker: Worker
) -> None:
    run = due(db, a_job(db))
    [held] = worker.claim()
    actions.cancel(db, [run], "ann", now=NOW)
    actions.retry(db, [run], "ann", now=NOW)
    assert (row(db, run).run_at, worker.claim()) == (NOW, [])

    worker.call(store.unlock, "default", [held], now=NOW)

    assert [again.id for again in worker.claim()] == [run]


def test_a_cancelled_run_keeps_its_turn_until_its_worker_has_ended_the_handler(
    db: Db, worker: Worker
) -> None:
    job = a_job(db)
    runs = [due(db, job, number) for number in range(2)]
    [first] = worker.claim()
    assert blocked(db, *runs) == [OPEN, TURN]
    actions.cancel(db, [first.id], "ann", now=NOW)
    assert blocked(db, *runs) == [OPEN, TURN]

    worker.call(store.unlock, "default", [first._replace(locked_by="another claim")])
    assert blocked(db, *runs) == [OPEN, TURN]
    worker.call(store.unlock, "default", [first])

    assert blocked(db, *runs) == [OPEN, OPEN]


def test_a_success_in_the_transaction_of_a_handler_is_handed_on_by_its_worker(
    db: Db, dsn: str, worker: Worker
) -> None:
    job = a_job(db)
    runs = [due(db, job, number) for number in range(2)]
    [first] = worker.claim()

    with database.connect(dsn) as own:
        assert succeed_in(own, first)
    assert (row(db, first.id).status, blocked(db, runs[1])) == ("succeeded", [TURN])
    worker.call(store.unlock, "default", [first])

    assert blocked(db, runs[1]) == [OPEN]


def test_a_turn_that_nobody_hands_on_is_free_when_the_lease_would_have_ended(
    db: Db, worker: Worker
) -> None:
    job = a_job(db)
    runs = [due(db, job, number) for number in range(2)]
    [first] = worker.claim()
    worker.claim()
    actions.cancel(db, [first.id], "ann", now=NOW)
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")

    worker.call(claiming.reclaim, "default", is_complete=False, now=NOW + LEASE - SECOND)
    assert blocked(db, *runs) == [OPEN, TURN]
    worker.call(claiming.reclaim, "default", is_complete=False, now=NOW + LEASE + SECOND)

    assert blocked(db, *runs) == [OPEN, OPEN]
    assert db.execute("select repairs from yamlsched.namespaces").fetchone() == (0,)


def test_a_run_that_is_cancelled_after_it_was_let_go_lets_the_next_one_go(
    db: Db, worker: Worker
) -> None:
    job = a_job(db)
    runs = [due(db, job, number) for number in range(3)]
    [first] = worker.claim()
    worker.finish(first)
    assert blocked(db, *runs[1:]) == [OPEN, TURN]

    actions.cancel(db, [runs[1]], "ann", now=NOW)

    assert blocked(db, runs[2]) == [OPEN]


CHANGED: dict[str, dict[str, Any]] = {
    "it has met a gate": {"blocked_on": AT_TURN},
    "it was cancelled": {"status": "cancelled"},
    "it executes": {"status": "running"},
    "it was postponed": {"run_at": NOW + SECOND},
    "it waits for other jobs": {"unreleased": True},
}


@pytest.mark.parametrize("since", CHANGED)
def test_a_run_that_has_changed_since_it_was_picked_is_left_as_it_is(
    db: Db, worker: Worker, since: str
) -> None:
    run = due(db, a_job(db, overlap="allow"), exclusive=False, **CHANGED[since])
    before = row(db, run)
    claimed = claiming.ClaimResult()

    worker.call(claiming.claim_gated, "default", claimed, "A", [run], now=NOW)

    assert (claimed.runs, claimed.is_complete, row(db, run)) == ([], False, before)


def test_the_running_runs_of_a_closed_job_are_not_blocked(db: Db, worker: Worker) -> None:
    job = a_job(db, schedule=None, paused_at=NOW)
    running = due(db, job, exclusive=False, status="running", locked_until=NOW + LEASE)
    waiting = due(db, job, 1, exclusive=False)

    assert worker.claim() == []

    assert blocked(db, running, waiting) == [OPEN, JOB]


def test_a_due_run_of_a_closed_job_says_so_before_a_claim_has_met_it_and_after(
    db: Db, worker: Worker
) -> None:
    paused, disabled = a_job(db, "a", paused_at=NOW), a_job(db, "b", enabled=False)
    runs = [due(db, paused), due(db, disabled), due(db, a_job(db, "c"))]
    later = due(db, paused, 1, run_at=datetime.now(UTC) + timedelta(hours=1))

    def words() -> list[str | None]:
        waits = "select yamlsched.waits_for(r) as words from yamlsched.job_runs r where id = %s"
        return [db.execute(waits, [run]).fetchone()[0] for run in (*runs, later)]

    closed = "waits until its job is resumed or enabled"
    assert words() == [closed, closed, None, None]

    assert [run.id for run in worker.claim()] == runs[2:]

    assert words() == [closed, closed, None, None]


def test_an_end_lets_no_run_of_another_job_or_namespace_go(db: Db, worker: Worker) -> None:
    jobs = [a_job(db, "a"), a_job(db, "b"), a_job(db, "a", namespace="elsewhere")]
    runs = [due(db, job, number) for job in jobs for number in range(2)]
    taken = worker.claim()
    db.execute(
        "update yamlsched.job_runs set blocked_on = 'job/' || definition_id where namespace = 'elsewhere'"
    )
    assert blocked(db, *runs) == [OPEN, TURN, OPEN, TURN, TURN, TURN]

    worker.finish(taken[1])

    assert blocked(db, *runs) == [OPEN, TURN, OPEN, OPEN, TURN, TURN]


def test_a_resume_offers_the_runs_of_this_job_and_its_turn(db: Db, worker: Worker) -> None:
    jobs = [a_job(db, name, schedule=None, paused_at=NOW) for name in ("a", "b")]
    runs = [due(db, job, exclusive=False) for job in jobs] + [
        due(db, jobs[0], 1, blocked_on=AT_TURN)
    ]
    assert worker.claim() == []

    pauses.resume(db, "default", jobs[:1], "ann", now=NOW)

    assert blocked(db, *runs) == [OPEN, JOB, OPEN]


def test_a_reclaim_concerns_one_namespace_and_unlocks_no_run_that_executes(
    db: Db, worker: Worker
) -> None:
    job, there = a_job(db), a_job(db, namespace="elsewhere")
    past = {"locked_until": NOW - SECOND}
    running = due(db, job, status="running", locked_until=NOW + LEASE)
    over, elsewhere = (
        due(db, job, status="cancelled", **past),
        due(db, there, status="cancelled", **past),
    )
    db.execute(
        "insert into yamlsched.permits (namespace, name, n, run_id) "
        "select namespace, 'after/' || definition_id, -id, id from yamlsched.job_runs where finished_at is not null"
    )

    worker.call(claiming.reclaim, "default", is_complete=False, now=NOW)

    assert [row(db, run).locked_until for run in (running, over, elsewhere)] == [
        NOW + LEASE,
        None,
        NOW - SECOND,
    ]


# -- jobs that are closed


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("by", ["a pause", "a claim"])
def test_runs_of_a_paused_job_are_blocked_and_offered_by_resume(
    db: Db, worker: Worker, exclusive: bool, by: str
) -> None:
    job = a_job(db, schedule=None)
    runs = [due(db, job, number, exclusive=exclusive) for number in range(3)]
    if by == "a pause":
        pauses.pause(db, "default", [job], "ann", now=NOW)
    else:
        db.execute("update yamlsched.job_definitions set paused_at = %s", [NOW])
        assert worker.claim(1) == []
    assert blocked(db, *runs) == [JOB] * 3

    pauses.resume(db, "default", [job], "ann", now=NOW)

    assert blocked(db, *runs) == [OPEN] * 3
    assert len(worker.claim()) == (1 if exclusive else 3)


def test_a_pause_stores_the_reason_of_due_runs_that_wait_for_nothing_else_in_batches(
    db: Db, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given runs that wait, and others: executing, of another job, later, not released, waiting for a turn
    monkeypatch.setattr(pauses, "BATCH_RUNS", 2)
    job, other = a_job(db, schedule=None), a_job(db, "other", schedule=None)
    running = due(db, job, exclusive=False, status="running", locked_until=NOW + LEASE)
    waiting = [due(db, job, number, exclusive=False) for number in range(5)]
    values: list[dict[str, Any]] = [
        {"run_at": NOW + SECOND},
        {"unreleased": True},
        {"blocked_on": AT_TURN},
    ]
    left = [due(db, job, exclusive=False, **each) for each in values] + [running, due(db, other)]
    before = blocked(db, *left)

    # when the job is paused, then each batch has been a transaction of its own
    pauses.pause(db, "default", [job], "ann", now=NOW)
    assert (blocked(db, *waiting), blocked(db, *left)) == ([JOB] * 5, before)
    written = "select count(distinct xmin::text) from yamlsched.job_runs where id = any (%s)"
    assert db.execute(written, [waiting]).fetchone() == (3,)

    # and all of them are offered when it is resumed
    pauses.resume(db, "default", [job], "ann", now=NOW)
    assert (blocked(db, *waiting), blocked(db, *left)) == ([OPEN] * 5, [OPEN] * 5)


def test_a_pause_and_a_resume_leave_out_a_run_that_another_session_has_and_wait_for_nothing(
    db: Db, dsn: str
) -> None:
    job = a_job(db, schedule=None)
    taken, free = due(db, job, exclusive=False), due(db, job, exclusive=False)
    db.execute("set lock_timeout = '1ms'")
    with psycopg.connect(dsn) as other:
        other.execute("select from yamlsched.job_runs where id = %s for no key update", [taken])

        pauses.pause(db, "default", [job], "ann", now=NOW)
        assert blocked(db, taken, free) == [OPEN, JOB]
        pauses.resume(db, "default", [job], "ann", now=NOW)
        assert blocked(db, taken, free) == [OPEN, OPEN]


def test_the_end_of_a_pause_is_found_by_the_sweep(db: Db, worker: Worker) -> None:
    job = a_job(db, schedule=None)
    run = due(db, job)
    pauses.pause(db, "default", [job], "ann", until=NOW + MINUTE, now=NOW)
    assert worker.claim() == []
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")

    worker.call(claiming.sweep, "default", now=NOW + MINUTE - SECOND)
    assert blocked(db, run) == [JOB]
    worker.call(claiming.sweep, "default", now=NOW + MINUTE + SECOND)

    assert blocked(db, run) == [OPEN]
    assert db.execute("select repairs from yamlsched.namespaces").fetchone() == (0,)


def test_of_several_workers_one_sweeps_each_second(db: Db, worker: Worker, other: Worker) -> None:
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")
    for at, expected in ((NOW, NOW), (NOW + SECOND / 2, NOW), (NOW + 2 * SECOND, NOW + 2 * SECOND)):
        for one in (worker, other):
            one.call(claiming.sweep, "default", now=at)
        assert db.execute("select swept_at from yamlsched.namespaces").fetchone() == (expected,)


def test_a_sweep_waits_for_no_other_and_leaves_other_namespaces_to_theirs(
    db: Db, dsn: str, worker: Worker
) -> None:
    # given a run that waits for nothing, and another namespace that has been swept
    run = due(db, a_job(db), blocked_on=AT_TURN)
    db.execute(
        "insert into yamlsched.namespaces (namespace, swept_at) values ('elsewhere', %s)", [NOW]
    )
    db.execute("insert into yamlsched.namespaces values ('default')")

    # when another session sweeps, this one leaves it to that one
    with database.connect(dsn) as other, other.transaction():
        other.execute(
            "select from yamlsched.namespaces where namespace = 'default' for no key update"
        )
        worker.runner.run(worker.connection.execute("set lock_timeout = '2s'"))
        assert worker.call(claiming.sweep, "default", now=NOW) == 0

    # then it is the next one that offers
    assert worker.call(claiming.sweep, "default", now=NOW) == 1
    assert blocked(db, run) == [OPEN]
    # and the sweep of a namespace without a row does nothing, whatever others have
    assert worker.call(claiming.sweep, "nowhere", now=NOW + MINUTE) == 0
    swept = db.execute("select swept_at from yamlsched.namespaces order by namespace").fetchall()
    assert [one.swept_at for one in swept] == [NOW, NOW]
    worker.call(claiming.sweep, "default", now=NOW + MINUTE)
    swept = db.execute("select swept_at from yamlsched.namespaces order by namespace").fetchall()
    assert [one.swept_at for one in swept] == [NOW + MINUTE, NOW]


def test_a_sweep_with_the_settings_of_a_worker_reads_no_finished_run(db: Db) -> None:
    a_long_history(db)
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")
    with db.transaction():
        for name, value in WORKER_SETTINGS.items():
            db.execute("select set_config(%s, %s, true)", [name, value])
        db.execute("select yamlsched.sweep('default', false, clock_timestamp())")

        counts = "select seq_tup_read + idx_tup_fetch as rows from pg_stat_xact_user_tables where relname = 'job_runs'"
        read = db.execute(counts).fetchone()
        assert read is not None
        assert read.rows < 100


def test_room_that_nobody_was_offered_is_offered_by_the_sweep(db: Db, worker: Worker) -> None:
    # given a run that waits for a turn that nobody has
    run = due(db, a_job(db), blocked_on=AT_TURN)
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")

    assert worker.call(claiming.sweep, "default", now=NOW) == 1

    assert blocked(db, run) == [OPEN]
    assert db.execute("select repairs from yamlsched.namespaces").fetchone() == (0,)


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_permit_that_a_dead_session_left_is_returned_and_counted(
    db: Db, worker: Worker, is_pruned: bool
) -> None:
    job = a_job(db)
    runs = [due(db, job, number) for number in range(2)]
    worker.claim()
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")
    change = (
        "delete from yamlsched.job_runs where id = %s"
        if is_pruned
        else "update yamlsched.job_runs set status = 'succeeded', locked_until = null, finished_at = now() where id = %s"
    )
    db.execute(change.encode(), [runs[0]])

    assert worker.call(claiming.repair, "default", now=NOW) == 1

    assert blocked(db, runs[1]) == [OPEN]
    assert db.execute("select repairs from yamlsched.namespaces").fetchone() == (1,)
    assert worker.call(claiming.repair, "default", now=NOW) == 0


def test_a_reason_is_stored_behind_more_executing_runs_than_a_claim_looks_ahead(
    db: Db, worker: Worker
) -> None:
    crowd, paused = a_job(db, "crowd"), a_job(db, "paused", paused_at=NOW)
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, status, attempts, "
        "locked_by, started_at, locked_until) "
        "select 'default', %s, 'crowd', %s, 5, 'running', 1, 'w', %s, %s from generate_series(1, 1100)",
        [crowd, NOW - 5 * MINUTE, NOW, NOW + LEASE],
    )
    run = due(db, paused, exclusive=False)

    assert worker.claim() == []

    assert blocked(db, run) == [JOB]


# -- interleavings


def test_an_end_beside_a_claim_that_is_storing_a_reason_lets_the_run_go(
    db: Db, dsn: str, worker: Worker
) -> None:
    # given a claim that has stored that a run waits for its turn, and is not committed
    job = a_job(db)
    first, second = due(db, job), due(db, job, 1)
    [held] = worker.claim(1)
    db.execute("update yamlsched.job_runs set blocked_on = null where id = %s", [second])
    with database.connect(dsn) as claimer, database.connect(dsn) as ender:
        claimer.execute("begin")
        [left] = claimer.execute(
            "select * from yamlsched.claim_gated('default', %s, '{1,2,3}', 'B', %s)",
            [[second], NOW],
        ).fetchall()
        assert (left.status, left.blocked_on) == ("queued", f"job/{job}")
        ender.execute("begin")
        ender.execute(
            "update yamlsched.job_runs set status = 'succeeded', locked_until = null, finished_at = %s "
            "where id = %s",
            [NOW, held.id],
        )

        # when the turn is handed on, which waits for the gate
        freed = while_waiting(
            db,
            ender,
            lambda: ender.execute(
                "select yamlsched.release('default', %s, %s) as runs", [[held.id], NOW]
            ).fetchone(),
            lambda: claimer.execute("commit"),
        )
        ender.execute("commit")

    assert (first, freed.runs, blocked(db, second)) == (held.id, 1, [OPEN])


def test_a_resume_beside_a_claim_that_is_storing_a_reason_lets_the_run_go(db: Db, dsn: str) -> None:
    job = a_job(db, schedule=None, paused_at=NOW)
    run = due(db, job, exclusive=False)
    with database.connect(dsn) as claimer, database.connect(dsn) as operator:
        claimer.execute("begin")
        claimer.execute(
            "select from yamlsched.claim_gated('default', %s, '{1,2,3}', 'B', %s)", [[run], NOW]
        )

        while_waiting(
            db,
            operator,
            lambda: pauses.resume(operator, "default", [job], "ann", now=NOW),
            lambda: claimer.execute("commit"),
        )

    assert blocked(db, run) == [OPEN]


def test_a_later_batch_of_a_pause_lets_go_what_was_resumed_since_the_first_one(
    db: Db, dsn: str, worker: Worker
) -> None:
    # given a pause whose first batch is written, and whose next one is not
    job = a_job(db, schedule=None)
    runs = [due(db, job, number, exclusive=False) for number in range(4)]
    batch = "select yamlsched.block_closed('default', %s, %s, 2, %s) as last"
    with database.connect(dsn) as operator:
        with operator.transaction():
            pauses.pause(operator, "default", [job], "ann", now=NOW)
        assert operator.execute(batch, [job, 0, NOW]).fetchone().last == runs[1]
        assert blocked(db, *runs) == [JOB, JOB, OPEN, OPEN]

        # when the job is resumed in between, also beside the next batch, which waits for the gate
        with database.connect(dsn) as other, other.transaction():
            pauses.resume(other, "default", [job], "bob", now=NOW)
            pauses.mark(other, "default", [job], now=NOW)
            other.execute("select yamlsched.lock_gates('default', %s)", [[f"closed/{job}"]])
            while_waiting(
                db,
                operator,
                lambda: operator.execute(batch, [job, runs[1], NOW]),
                lambda: other.execute("commit; begin"),
            )

    assert blocked(db, *runs) == [OPEN] * 4
    assert len(worker.claim()) == 4


def test_a_resume_that_was_cut_off_is_finished_by_the_sweep_and_no_repair(
    db: Db, worker: Worker
) -> None:
    jobs = [a_job(db, name, schedule=None, paused_at=NOW) for name in ("a", "b", "c")]
    runs = [
        due(db, job, number, exclusive=False, blocked_on=AT_JOB)
        for job in jobs
        for number in range(2)
    ]
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")
    with db.transaction():
        pauses.resume(db, "default", jobs[:2], "ann", now=NOW)

    assert worker.call(claiming.sweep, "default", now=NOW) == 4

    assert blocked(db, *runs) == [OPEN] * 4 + [JOB] * 2
    assert db.execute("select repairs from yamlsched.namespaces").fetchone() == (0,)


def test_claims_take_the_runs_of_other_jobs_while_a_pause_has_the_gate(
    db: Db, dsn: str, worker: Worker
) -> None:
    paused, other = (
        a_job(db, "paused", schedule=None, paused_at=NOW),
        a_job(db, "other", schedule=None),
    )
    front = [due(db, paused, number, exclusive=False) for number in range(3)]
    behind = [due(db, other, number + 10, exclusive=False) for number in range(3)]
    with database.connect(dsn) as operator, operator.transaction():
        operator.execute("select yamlsched.block_closed('default', %s, 0, 1, %s)", [paused, NOW])

        async def ask(busy: set[int]) -> claiming.ClaimResult:
            claimed, gated = await claiming.claim(
                worker.connection, "default", f"c{busy}", 2, now=NOW, busy=busy
            )
            await claiming.claim_gated(
                worker.connection, "default", claimed, f"g{busy}", gated, now=NOW
            )
            return claimed

        first = worker.runner.run(ask(set()))
        assert (first.runs, first.busy) == ([], {paused})
        second = worker.runner.run(ask(first.busy))

    assert [run.id for run in second.runs] == behind[:2]
    assert blocked(db, *front) == [JOB, OPEN, OPEN]


def test_a_claim_beside_a_resume_leaves_the_run_as_it_is(db: Db, dsn: str, worker: Worker) -> None:
    job = a_job(db, schedule=None, paused_at=NOW)
    run = due(db, job, exclusive=False)
    with database.connect(dsn) as operator, operator.transaction():
        pauses.resume(operator, "default", [job], "ann", now=NOW)
        pauses.mark(operator, "default", [job], now=NOW)

        assert worker.claim() == []
        assert blocked(db, run) == [OPEN]

    assert [claimed.id for claimed in worker.claim()] == [run]


def test_a_claim_stores_no_reason_of_a_job_whose_gate_another_session_has(
    db: Db, dsn: str, worker: Worker
) -> None:
    jobs = [a_job(db, name, schedule=None, paused_at=NOW) for name in ("a", "b")]
    runs = [due(db, job, number, exclusive=False) for job in jobs for number in range(2)]
    with database.connect(dsn) as operator, operator.transaction():
        pauses.resume(operator, "default", jobs[:1], "ann", now=NOW)
        pauses.mark(operator, "default", jobs[:1], now=NOW)

        assert worker.claim() == []

        assert blocked(db, *runs) == [OPEN, OPEN, JOB, JOB]


@pytest.mark.parametrize("locked", [0, 1], ids=["a run that it has picked", "one like it"])
def test_a_claim_waits_for_no_run_that_another_session_has_locked(
    db: Db, dsn: str, worker: Worker, locked: int
) -> None:
    job = a_job(db, schedule=None, paused_at=NOW)
    runs = [due(db, job, number, exclusive=False) for number in range(2)]
    worker.runner.run(worker.connection.execute("set lock_timeout = '2s'"))
    with database.connect(dsn) as other, other.transaction():
        other.execute(
            "select from yamlsched.job_runs where id = %s for no key update", [runs[locked]]
        )

        worker.call(claiming.claim_gated, "default", claiming.ClaimResult(), "A", runs[:1], now=NOW)

        assert blocked(db, *runs) == ([JOB, OPEN] if locked else [OPEN, OPEN])


def test_a_run_that_is_not_due_gets_no_reason(db: Db, worker: Worker) -> None:
    job = a_job(db, schedule=None, paused_at=NOW)
    runs = [due(db, job, exclusive=False), due(db, job, run_at=NOW + SECOND, exclusive=False)]

    assert worker.claim() == []

    assert blocked(db, *runs) == [JOB, OPEN]


@pytest.mark.parametrize("which", ["of another job", "that needs no turn"])
def test_a_handler_that_is_left_to_itself_keeps_no_turn_of_others(
    db: Db, worker: Worker, which: str
) -> None:
    job, other = a_job(db), a_job(db, "other")
    of, exclusive = (other, True) if which == "of another job" else (job, False)
    ended = due(db, of, status="cancelled", exclusive=exclusive, locked_until=NOW + LEASE)
    db.execute(
        "insert into yamlsched.permits (namespace, name, n, run_id) "
        "select namespace, 'after/' || definition_id, -id, id from yamlsched.job_runs where id = %s",
        [ended],
    )
    if of == other:
        db.execute(
            "insert into yamlsched.permits values ('default', 'job/' || %s, 1, %s)", [other, ended]
        )
    run = due(db, job, 1)

    assert [taken.id for taken in worker.claim()] == [run]


@contextmanager
def a_claim_that_saw(db: Db, dsn: str, change: Callable[[], object]) -> Iterator[None]:
    """Hold a claim open that began before ``change``: it has locked what no longer is what it takes, and leaves it."""
    levels = b"from unnest(%(priorities)s::smallint[]) with ordinality as u (level, nth)"
    delayed = load("runs")["claim"].replace(
        levels, levels + b", (select pg_advisory_xact_lock(1)) l"
    )
    values = {
        "namespace": "default",
        "queue": "default",
        "token": "C",
        "limit": 10,
        "now": NOW,
        "priorities": claiming.levels(0),
    }
    values |= {"newest": str(2**62), "skipped": "{}", "ended": "{}", "revision": None}
    with database.connect(dsn) as claimer, database.connect(dsn) as latch:
        latch.execute("select pg_advisory_lock(1)")

        def end_of_wait() -> None:
            change()
            latch.execute("select pg_advisory_unlock(1)")

        claimer.execute("begin")
        taken = while_waiting(
            db, claimer, lambda: claimer.execute(delayed, values).fetchall(), end_of_wait
        )
        assert taken == []
        yield
        claimer.execute("commit")


@pytest.mark.parametrize("reason", [JOB, TURN], ids=["job", "turn"])
def test_what_a_claim_has_locked_that_began_before_a_reason_was_stored_is_offered_by_the_next_sweep(
    db: Db, dsn: str, worker: Worker, reason: int
) -> None:
    # given runs that wait, and a claim in whose snapshot they do not
    db.execute("insert into yamlsched.namespaces values ('default') on conflict do nothing")
    job = a_job(db, schedule=None)
    runs = [due(db, job, number, exclusive=reason == TURN) for number in range(2)]
    first = worker.claim(1)[0]
    db.execute("update yamlsched.job_runs set blocked_on = null")
    if reason == JOB:
        pauses.pause(db, "default", [job], "ann", now=NOW)
    with a_claim_that_saw(db, dsn, worker.claim):
        assert blocked(db, *runs) == [OPEN, reason]

        # when what they wait for ends before this claim does
        if reason == JOB:
            pauses.resume(db, "default", [job], "ann", now=NOW)
        else:
            worker.finish(first)

    # then they are not forgotten
    worker.call(claiming.sweep, "default", now=NOW)
    assert blocked(db, *runs) == [OPEN, OPEN]


def test_of_two_claims_at_one_gate_one_gets_the_turn_and_neither_waits(
    db: Db, dsn: str, worker: Worker, other: Worker
) -> None:
    job = a_job(db)
    runs = [due(db, job, number) for number in range(2)]
    with database.connect(dsn) as claimer:
        claimer.execute("begin")
        [taken] = claimer.execute(
            "select * from yamlsched.claim_gated('default', %s, '{1,2,3}', 'B', %s)",
            [runs[:1], NOW],
        ).fetchall()
        assert taken.status == "running"

        assert other.claim() == []
        assert blocked(db, *runs) == [OPEN, OPEN]
        claimer.execute("commit")

    assert other.claim() == []
    assert blocked(db, *runs) == [OPEN, TURN]


def test_a_run_that_a_session_claims_at_the_same_time_without_its_gate_is_claimed_by_one(
    db: Db, dsn: str, worker: Worker
) -> None:
    # given a claim that takes no gate, and is not committed
    job = a_job(db)
    first, second = due(db, job), due(db, job, 1)
    with database.connect(dsn) as careless, database.connect(dsn) as claimer:
        careless.execute("begin")
        careless.execute(
            "update yamlsched.job_runs set status = 'running', attempts = 1, locked_by = 'old', "
            "started_at = %s, locked_until = %s where id = %s",
            [NOW, NOW + LEASE, first],
        )
        careless.execute(
            "insert into yamlsched.permits values ('default', 'job/' || %s, 1, %s)", [job, first]
        )

        # when another run of the job is claimed, the key of the permits rejects it
        with pytest.raises(psycopg.errors.UniqueViolation):
            while_waiting(
                db,
                claimer,
                lambda: claimer.execute(
                    "select from yamlsched.claim_gated('default', %s, '{1,2,3}', 'B', %s)",
                    [[second], NOW],
                ),
                lambda: careless.execute("commit"),
            )

    assert worker.claim() == []
    assert blocked(db, second) == [TURN]
