"""Limits: at most so many runs of several jobs execute at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support.effects import succeed_in
from support.gates import (
    FAILURE,
    LEASE,
    MINUTE,
    NOW,
    RELEASED,
    SECOND,
    Worker,
    due,
    ids,
    is_at_rest,
    limit,
)
from support.gates import worker as worker
from support.project import a_project
from support.rows import a_job, a_place, row, value
from support.schedules import a_file
from yamlsched import db as database
from yamlsched.act import pause as pauses
from yamlsched.act import runs as actions
from yamlsched.act.backfill import definition_for
from yamlsched.ask import history, why
from yamlsched.ask import runs as records
from yamlsched.runs.lifecycle import Outcome
from yamlsched.sync.flow import sync
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

Db = psycopg.Connection[Any]
OPEN, LIMIT = None, "limit"


def blocked(db: Db, *runs: int) -> list[str | None]:
    """Return of which kind the gates are at which runs wait."""
    return [(row(db, run).blocked_on or "").split("/")[0] or None for run in runs]


def number(db: Db, run: int) -> int | None:
    """Return the number of the permit of a limit that a run holds."""
    sql = "select n from yamlsched.permits where run_id = %s and name like 'limit/%%'"
    permit: Any = db.execute(sql, [run]).fetchone()
    return permit and int(permit.n)


def test_at_most_so_many_runs_of_all_jobs_execute_and_the_next_starts_when_one_ends(
    db: Db, worker: Worker
) -> None:
    limit(db)
    cubes, export = (
        a_job(db, "cubes", limit_name="warehouse"),
        a_job(db, "export", limit_name="warehouse"),
    )
    runs = [due(db, (cubes, export)[number % 2], number) for number in range(5)]
    free = due(db, a_job(db, "free"), 9)

    first = worker.claim()
    assert ids(first) == [*runs[:2], free]
    assert [number(db, run) for run in runs] == [1, 2, None, None, None]
    assert worker.claim() == []
    assert blocked(db, *runs) == [OPEN, OPEN, LIMIT, LIMIT, LIMIT]

    worker.finish(first[1])
    assert blocked(db, *runs[2:]) == [OPEN, LIMIT, LIMIT]
    [third] = worker.claim()
    assert (third.id, number(db, third.id), number(db, first[1].id)) == (
        runs[2],
        2,
        None,
    )
    assert is_at_rest(db)


@pytest.mark.parametrize("outcome", [FAILURE, RELEASED], ids=["fails", "is released"])
def test_a_run_that_waits_again_holds_no_number(db: Db, worker: Worker, outcome: Outcome) -> None:
    limit(db, 1)
    job = a_job(db, limit_name="warehouse")
    runs = [due(db, job, number) for number in range(2)]
    [first] = worker.claim()

    worker.finish(first, outcome)

    assert number(db, first.id) is None
    taken = worker.claim(now=NOW + SECOND)
    assert len(taken) == 1
    assert is_at_rest(db, NOW + SECOND)
    assert blocked(db, *runs).count(LIMIT) == (outcome is RELEASED)


def test_a_lost_worker_frees_its_number_when_its_lease_has_ended(db: Db, worker: Worker) -> None:
    limit(db, 1)
    job = a_job(db, limit_name="warehouse")
    runs = [due(db, job, number) for number in range(2)]
    worker.claim()

    worker.call(claiming.reclaim, "default", is_complete=False, now=NOW + LEASE - SECOND)
    assert blocked(db, *runs) == [OPEN, LIMIT]
    worker.call(claiming.reclaim, "default", is_complete=False, now=NOW + LEASE + SECOND)

    assert (row(db, runs[0]).status, number(db, runs[0])) == ("failed", None)
    assert len(worker.claim(now=NOW + LEASE + SECOND)) == 1


def test_a_cancelled_run_holds_its_number_until_its_worker_has_ended_the_handler(
    db: Db, worker: Worker
) -> None:
    limit(db, 1)
    job = a_job(db, limit_name="warehouse")
    runs = [due(db, job, number) for number in range(2)]
    [first] = worker.claim()
    actions.cancel(db, [first.id], "ann", now=NOW)

    assert worker.claim() == []
    worker.call(store.unlock, "default", [first])

    assert ids(worker.claim()) == runs[1:]


def test_a_success_in_the_transaction_of_a_handler_holds_its_number_until_its_worker_knows(
    db: Db, dsn: str, worker: Worker
) -> None:
    limit(db, 1)
    job = a_job(db, limit_name="warehouse")
    runs = [due(db, job, number) for number in range(2)]
    [first] = worker.claim()
    with database.connect(dsn) as own:
        assert succeed_in(own, first)

    assert worker.claim() == []
    worker.call(claiming.reclaim, "default", is_complete=False, now=NOW + LEASE + SECOND)

    assert ids(worker.claim(now=NOW + LEASE + SECOND)) == runs[1:]
    assert db.execute("select repairs from yamlsched.namespaces").fetchone() == (0,)


@pytest.mark.parametrize("keys", [[], ["tenant"]], ids=["one limit", "a limit for each tenant"])
@pytest.mark.parametrize("by", ["a pause", "a claim"])
def test_a_run_that_leaves_the_front_of_the_line_lets_the_next_one_go(
    db: Db, worker: Worker, by: str, keys: list[str]
) -> None:
    limit(db, 1)
    jobs = [
        a_job(db, f"job_{number}", limit_name="warehouse", limit_by=keys, schedule=None)
        for number in range(3)
    ]
    runs = [
        due(db, job, number, payload=Jsonb({"tenant": "acme"})) for number, job in enumerate(jobs)
    ]
    [first] = worker.claim()
    worker.finish(first)
    assert blocked(db, *runs[1:]) == [OPEN, LIMIT]

    if by == "a pause":
        pauses.pause(db, "default", [jobs[1]], "ann", now=NOW)
    else:
        db.execute(
            "update yamlsched.job_definitions set paused_at = %s where id = %s", [NOW, jobs[1]]
        )
        assert worker.claim(1) == []

    assert blocked(db, *runs[1:]) == ["closed", OPEN]
    assert ids(worker.claim()) == runs[2:]


def test_a_cancel_of_the_front_of_the_line_lets_the_next_one_go(db: Db, worker: Worker) -> None:
    limit(db, 1)
    job = a_job(db, limit_name="warehouse")
    runs = [due(db, job, number) for number in range(3)]
    [first] = worker.claim()
    worker.finish(first)

    actions.cancel(db, [runs[1]], "ann", now=NOW)

    assert blocked(db, runs[2]) == [OPEN]


def test_the_next_run_is_chosen_by_priority_and_then_by_age(db: Db, worker: Worker) -> None:
    limit(db, 1)
    job = a_job(db, limit_name="warehouse")
    [held] = [due(db, job)]
    [first] = worker.claim()
    runs = [
        due(db, job, number, priority=priority) for number, priority in ((1, 3), (3, 1), (2, 1))
    ]
    assert worker.claim() == []
    worker.finish(first)

    order = []
    while taken := worker.claim():
        order += ids(taken)
        worker.finish(taken[0])

    # one time in eight the lowest level is offered first
    assert first.id == held
    assert (set(order), [run for run in order if run != runs[0]]) == (set(runs), [runs[2], runs[1]])


@pytest.mark.parametrize("level, least, most", [(1, 0.25, 1.0), (2, 0.125, 0.25), (3, 0.0, 0.125)])
def test_room_is_offered_to_the_highest_level_and_one_time_in_eight_to_each_of_the_others(
    db: Db, level: int, least: float, most: float
) -> None:
    limit(db, 1)
    job = a_job(db, limit_name="warehouse")
    runs = {
        priority: due(db, job, -priority, priority=priority, blocked_on="limit/warehouse")
        for priority in (1, 2, 3)
    }
    seed = next(
        seed
        for seed in (number / 100 for number in range(100))
        if least < value(db, "select random() from setseed(%s)", seed) < most
    )

    db.execute("select setseed(%s)", [seed])
    db.execute("select yamlsched.offer('default', '{limit/warehouse}', 0, %s)", [NOW])

    assert [priority for priority, run in runs.items() if blocked(db, run) == [OPEN]] == [level]


def test_a_turn_and_a_limit_hold_the_same_run(db: Db, worker: Worker) -> None:
    limit(db, 1)
    job, other = a_job(db, limit_name="warehouse"), a_job(db, "other", limit_name="warehouse")
    runs = [due(db, job, number, exclusive=True) for number in range(2)]
    third = due(db, other, 5)

    order = []
    while taken := worker.claim():
        assert len(taken) == 1
        order += ids(taken)
        worker.finish(taken[0])
        assert is_at_rest(db)

    assert sorted(order) == [*runs, third]


def test_a_slot_run_whose_turn_has_come_and_whose_limit_is_reached_waits_for_the_limit(
    db: Db, worker: Worker
) -> None:
    # given a run that was let go for its turn and waits for the limit, and one behind it that waits for the turn
    limit(db, 1)
    job, other = a_job(db, limit_name="warehouse"), a_job(db, "other", limit_name="warehouse")
    runs = [due(db, job, number, exclusive=True) for number in range(3)]
    [first] = worker.claim()
    urgent = due(db, other, priority=1)
    worker.finish(first)
    assert [run.id for run in worker.claim(1)] == [urgent]
    assert worker.claim() == []
    assert blocked(db, *runs[1:]) == [LIMIT, "job"]
    assert is_at_rest(
        db
    )  # the one behind waits for the first, which has the turn and waits for the limit

    # the sweep offers the turn, which nobody has, to those behind it: they wait for the limit, too
    worker.call(claiming.sweep, "default", now=NOW)
    assert worker.claim() == []

    assert blocked(db, *runs[1:]) == [LIMIT, LIMIT]
    assert db.execute("select repairs from yamlsched.namespaces").fetchone() == (0,)
    assert is_at_rest(db)


def test_a_queue_without_workers_holds_up_no_other_queue(db: Db, worker: Worker) -> None:
    limit(db, 1)
    away, here = (
        a_job(db, name, limit_name="warehouse", queue=queue)
        for name, queue in (("a", "shared"), ("b", "default"))
    )
    held = due(db, here)
    other, local = due(db, away, 1, queue="shared"), due(db, here, 2)
    [first] = worker.claim()
    assert worker.claim(queue="shared") == []
    assert worker.claim() == []
    assert blocked(db, other, local) == [LIMIT, LIMIT]

    worker.finish(first)
    worker.call(claiming.sweep, "default", now=NOW)  # it passes what nobody claims

    assert (first.id, blocked(db, other, local)) == (held, [OPEN, OPEN])
    assert ids(worker.claim(now=NOW + 2 * SECOND)) == [local]
    assert worker.claim(queue="shared") == []


def test_a_job_that_a_host_cannot_start_holds_up_no_other_job(db: Db, worker: Worker) -> None:
    limit(db, 1)
    lacked, job = (
        a_job(db, "lacked", limit_name="warehouse"),
        a_job(db, "job", limit_name="warehouse"),
    )
    a_place(db)
    held, waits, next_ = due(db, job), due(db, lacked, 1), due(db, job, 2)
    [first] = worker.claim()
    assert worker.claim() == []
    db.execute('update yamlsched.hosts set cannot_start = \'{"lacked": {"reason": "no module"}}\'')

    worker.finish(first)
    assert (first.id, blocked(db, waits, next_)) == (held, [OPEN, LIMIT])

    worker.call(claiming.sweep, "default", now=NOW)  # nobody has claimed what was offered

    assert blocked(db, waits, next_) == [OPEN, OPEN]


def test_a_backlog_behind_a_limit_delays_no_other_run(db: Db, worker: Worker) -> None:
    limit(db, 1)
    job, other = a_job(db, limit_name="warehouse"), a_job(db, "other")
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
        "select 'default', %s, 'purge', %s, 5 from generate_series(1, 2500)",
        [job, NOW - 5 * MINUTE],
    )
    last = due(db, other)

    taken = [run.id for _ in range(5) for run in worker.claim(10)]

    assert last in taken
    assert db.execute(
        "select count(*) from yamlsched.job_runs where blocked_on = 'limit/warehouse'"
    ).fetchone() == (2499,)


def test_an_end_lets_no_run_of_another_limit_or_namespace_go(db: Db, worker: Worker) -> None:
    there = due(db, a_job(db, namespace="elsewhere"), blocked_on="limit/warehouse")
    runs = {}
    for name in ("warehouse", "licences"):
        limit(db, 1, name)
        job = a_job(db, name, limit_name=name)
        runs[name] = [due(db, job, number) for number in range(2)]
    taken = {run.job_type: run for run in worker.claim()}

    worker.finish(taken["warehouse"])

    assert [blocked(db, *of) for of in runs.values()] == [[OPEN, OPEN], [OPEN, LIMIT]]
    assert blocked(db, there) == [LIMIT]


def test_numbers_of_another_limit_or_namespace_are_not_those_of_this_one(
    db: Db, worker: Worker
) -> None:
    for name in ("warehouse", "licences"):
        limit(db, 1, name)
    db.execute("insert into yamlsched.gates values ('elsewhere', 'limit/warehouse', 5)")
    running = {"status": "running", "locked_until": NOW + LEASE}
    holders = {
        due(db, a_job(db, namespace="elsewhere"), **running): ("elsewhere", "limit/warehouse"),
        due(db, a_job(db, "licensed"), **running): ("default", "limit/licences"),
    }
    for holder, gate in holders.items():
        db.execute("insert into yamlsched.permits values (%s, %s, 1, %s)", [*gate, holder])
    runs = [
        due(db, a_job(db, name, limit_name="warehouse"), number)
        for number, name in enumerate(("a", "b"))
    ]

    assert ids(worker.claim()) == runs[:1]
    assert blocked(db, runs[1]) == [LIMIT]


def test_a_claim_takes_no_number_while_another_session_has_the_gate(
    db: Db, dsn: str, worker: Worker
) -> None:
    limit(db, 1)
    run = due(db, a_job(db, limit_name="warehouse"))
    with database.connect(dsn) as other, other.transaction():
        other.execute(
            "select from yamlsched.gates where name = 'limit/warehouse' for no key update"
        )

        assert worker.claim() == []
        assert blocked(db, run) == [OPEN]

    assert ids(worker.claim()) == [run]


# -- edits


def file(most: int | None, **jobs: Any) -> Any:
    return a_file(top=f"limits: {{warehouse: {{max: {most}}}}}" if most else "", **jobs)


def test_a_sync_that_raises_a_limit_frees_what_waits_and_one_that_lowers_it_ends_nothing(
    db: Db, worker: Worker
) -> None:
    cubes: dict[str, Any] = {"limit": "warehouse"}
    sync(db, file(2, cubes=cubes), NOW - MINUTE)
    job = db.execute("select id from yamlsched.job_definitions").fetchone()[0]  # type: ignore[index]
    runs = [due(db, job, number) for number in range(6)]
    first = worker.claim()
    assert ids(first) == runs[:2]

    sync(db, file(3, cubes=cubes), NOW)
    assert ids(worker.claim()) == runs[2:3]
    sync(db, file(1, cubes=cubes), NOW + SECOND)
    for run in first:
        worker.finish(run)
    assert worker.claim() == []  # the third one is still executing

    sync(db, file(None, cubes={}), NOW + 2 * SECOND)
    assert ids(worker.claim()) == runs[3:]
    assert is_at_rest(db)


def test_a_limit_that_a_file_lacks_is_refused(db: Db) -> None:
    result = sync(db, file(None, cubes={"limit": "warehouse"}), NOW)

    assert "YS123" in "\n".join(result.messages)


# -- workers


def test_a_limit_whose_row_was_lost_has_no_room_while_a_job_has_it(db: Db) -> None:
    a_job(db, limit_name="warehouse")
    a_job(db, limit_name="elsewhere", namespace="elsewhere")
    a_job(db, "retired", limit_name="former", retired_at=NOW)

    names = ["limit/warehouse", "limit/elsewhere", "limit/former"]
    rooms = db.execute("select * from yamlsched.rooms('default', %s, %s)", [names, NOW]).fetchall()

    assert [(room.name, room.capacity) for room in rooms] == [
        (names[0], 0),
        (names[1], None),
        (names[2], None),
    ]


def test_workers_together_execute_no_more_runs_than_the_limit_and_all_of_them(
    own_dsn: str, tmp_path: Path
) -> None:
    with a_project(tmp_path, own_dsn) as project:
        project.limits = {"warehouse": 2}
        project.sync(nap={"limit": "warehouse", "payload": {"seconds": 0.05}})
        runs = project.enqueue("nap", count=12)

        workers = [project.start("work") for _ in range(3)]
        assert {worker.wait() for worker in workers} == {0}
        project.work()

        assert {project.row(run).status for run in runs} == {"succeeded"}
        spans = [(project.row(run).started_at, project.row(run).finished_at) for run in runs]
    assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) == 2


# -- to see


def test_show_names_who_holds_the_limit_and_since_when_the_first_in_line_waits(
    db: Db, worker: Worker
) -> None:
    limit(db)
    job = a_job(db, limit_name="warehouse")
    runs = [due(db, job, number) for number in range(4)]
    worker.claim()

    waiting = records.run(db, runs[3])

    assert waiting is not None
    assert history.waits_for(waiting, NOW) == (
        f", waits for limit warehouse, held by run {runs[0]}, {runs[1]}; the first in line since 2026-01-14T11:59:02Z"
    )


def test_show_names_the_run_that_has_the_turn(db: Db, worker: Worker) -> None:
    job = a_job(db)
    runs = [due(db, job, number, exclusive=True) for number in range(2)]
    worker.claim()

    waiting = records.run(db, runs[1])

    assert waiting is not None
    assert history.waits_for(waiting, NOW) == f", waits for run {runs[0]}"


def test_why_names_who_holds_the_limit(db: Db, worker: Worker) -> None:
    limit(db, 1)
    job = a_job(db, limit_name="warehouse", schedule="* * * * *")
    slot = NOW - MINUTE
    key = {"scheduled_for": slot, "idempotency_key": "purge:2026-01-14T11:59Z"}
    holder, _ = due(db, job, -1), due(db, job, **key)
    worker.claim()

    report = why.explain(db, "default", definition_for(db, "default", "purge"), slot)

    assert (
        report.lines[1]
        == f"it waits for limit warehouse, held by run {holder}; the first in line since 2026-01-14T11:59:00Z"
    )
