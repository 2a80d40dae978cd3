"""What the sweep and the repair continue and clean up: edits, gates of values, permits, missing gates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_run, row
from yamlsched import db as database

Db = psycopg.Connection[Any]
NOW = datetime(2026, 1, 14, 12, tzinfo=UTC)
MINUTE, LEASE = timedelta(minutes=1), timedelta(minutes=2)


@pytest.fixture
def db(db: Db) -> Db:
    """Two namespaces, and a session that waits for no lock."""
    db.execute("insert into yamlsched.namespaces values ('default'), ('elsewhere')")
    db.execute("set lock_timeout = '2s'")
    return db


def call(db: Db, function: str, *given: Any) -> Any:
    """Call a function of the database for the namespace default."""
    marks = ", ".join(["'default'", *["%s"] * len(given)])
    return db.execute(f"select yamlsched.{function}({marks})".encode(), given).fetchone()[0]  # type: ignore[index]


def gate(db: Db, name: str, namespace: str = "default", **values: Any) -> None:
    db.execute(
        "insert into yamlsched.gates values (%s, %s, %s, %s)",
        [namespace, name, values.get("capacity"), values.get("is_edited", False)],
    )


def names(db: Db, condition: str, namespace: str = "default") -> set[str]:
    """Return the names of the gates of a namespace for which the condition is true."""
    sql = f"select name from yamlsched.gates where namespace = %s and {condition}"
    return {one.name for one in db.execute(sql.encode(), [namespace]).fetchall()}


def waiting(db: Db, job: int, name: str, **values: Any) -> int:
    return a_run(db, job, **{"run_at": NOW - MINUTE, "blocked_on": name, **values})


def permit(db: Db, run: int, name: str, namespace: str = "default") -> None:
    db.execute("insert into yamlsched.permits values (%s, %s, 1, %s)", [namespace, name, run])


def test_an_edit_skips_a_run_that_another_session_has_and_the_sweep_continues_it(
    db: Db, dsn: str
) -> None:
    # given runs that wait for a limit that their job has left, and others that still have it
    for namespace in ("default", "elsewhere"):
        gate(db, "limit/old", namespace, capacity=1)
    job, stays = a_job(db, limit_name="new"), a_job(db, "stays", limit_name="old")
    there = a_job(db, limit_name="new", namespace="elsewhere")
    free, taken = waiting(db, job, "limit/old"), waiting(db, job, "limit/old")
    turn = waiting(db, job, f"job/{job}")
    others = [waiting(db, stays, "limit/old"), waiting(db, there, "limit/old")]

    # when the edit comes while another session has one of them
    with database.connect(dsn) as other, other.transaction():
        other.execute("select from yamlsched.job_runs where id = %s for no key update", [taken])
        db.execute("select yamlsched.leave_gates('default', %s, %s)", [[job], NOW])
        left = [row(db, run).blocked_on for run in (free, taken, turn, *others)]
        assert left == [None, "limit/old", f"job/{job}", "limit/old", "limit/old"]
        assert names(db, "is_edited") == {"limit/old"}
        assert call(db, "continue_edits", NOW) == 0
        assert names(db, "is_edited") == {"limit/old"}
        assert names(db, "is_edited", "elsewhere") == set()

    # and another session has the gate, then it is left to that one, and another edit is continued
    gate(db, "limit/also", is_edited=True)
    with database.connect(dsn) as other, other.transaction():
        other.execute("select from yamlsched.gates where name = 'limit/old' for no key update")
        assert call(db, "continue_edits", NOW) == 0
        assert names(db, "is_edited") == {"limit/old"}

    # then the sweep frees it, and nothing else
    db.execute(
        "update yamlsched.gates set is_edited = true where namespace = 'elsewhere' and name = 'limit/old'"
    )
    assert call(db, "continue_edits", NOW) == 1
    left = [row(db, run).blocked_on for run in (free, taken, turn, *others)]
    assert left == [None, None, f"job/{job}", "limit/old", "limit/old"]
    assert names(db, "is_edited") == set()
    assert names(db, "is_edited", "elsewhere") == {"limit/old"}


def test_an_edit_that_skips_nothing_leaves_nothing_to_the_sweep(db: Db) -> None:
    for name in ("limit/old", "limit/other"):
        gate(db, name)
    job, other = a_job(db, limit_name="new"), a_job(db, "other", limit_name="new")
    runs = [waiting(db, job, "limit/old"), waiting(db, other, "limit/other")]

    db.execute("select yamlsched.leave_gates('default', %s, %s)", [[job], NOW])

    assert [row(db, run).blocked_on for run in runs] == [None, "limit/other"]
    assert names(db, "is_edited") == set()


def test_gates_of_values_that_nobody_uses_are_removed(db: Db, dsn: str) -> None:
    # given gates of values: with a permit, with a run that waits, with an edit, taken, and two that nobody uses,
    # which are used in another namespace
    job, there = a_job(db, limit_name="tenants"), a_job(db, namespace="elsewhere")
    used = {f'limit/tenants/["{value}"]' for value in ("holds", "waits", "edited", "taken")}
    unused = {f'limit/tenants/["{value}"]' for value in ("free", "also free")}
    for name in used | unused | {"limit/tenants"}:
        gate(db, name, is_edited="edited" in name)
        gate(db, name, "elsewhere")
        waiting(db, there, name)
        permit(db, a_run(db, there), name, "elsewhere")
    permit(db, a_run(db, job, "running"), 'limit/tenants/["holds"]')
    waiting(db, job, 'limit/tenants/["waits"]')

    with database.connect(dsn) as other, other.transaction():
        other.execute("select from yamlsched.gates where name like '%taken%' for no key update")
        call(db, "repair", NOW)

    assert names(db, "name like 'limit/%%'") == used | {"limit/tenants"}
    assert names(db, "name not like 'limit/%%'") == {
        f"{kind}/{job}" for kind in ("after", "closed", "job")
    }
    assert names(db, "name like 'limit/%%'", "elsewhere") == used | unused | {"limit/tenants"}


def test_permits_of_runs_that_have_ended_are_returned_and_others_stay(db: Db, dsn: str) -> None:
    # given permits of runs that have ended, were pruned, execute, are taken by a session, and in another namespace
    job, there = a_job(db), a_job(db, namespace="elsewhere")
    ended, pruned, taken = (a_run(db, job, "succeeded") for _ in range(3))
    executes = a_run(db, job, "running", locked_until=NOW + LEASE)
    elsewhere, gone = (a_run(db, there, "succeeded") for _ in range(2))
    held = [ended, pruned, taken, executes]
    for run in held:
        permit(db, run, f"limit/{run}")
    for run in (elsewhere, gone):
        permit(db, run, f"limit/{run}", "elsewhere")
    db.execute("delete from yamlsched.job_runs where id = any (%s)", [[pruned, gone]])

    with database.connect(dsn) as other, other.transaction():
        other.execute("select from yamlsched.job_runs where id = %s for no key update", [taken])
        assert call(db, "repair", NOW) == 2

    left = db.execute("select run_id from yamlsched.permits").fetchall()
    assert {one.run_id for one in left} == {taken, executes, elsewhere, gone}
    assert db.execute(
        "select namespace, repairs from yamlsched.namespaces order by namespace"
    ).fetchall() == [("default", 2), ("elsewhere", 0)]
    assert call(db, "repair", NOW) == 1
    assert call(db, "repair", NOW) == 0


def test_gates_of_jobs_that_were_lost_are_made_again(db: Db) -> None:
    jobs = [a_job(db, name) for name in ("a", "b")]
    a_job(db, namespace="elsewhere")
    db.execute("delete from yamlsched.gates where namespace = 'elsewhere'")
    db.execute(
        "delete from yamlsched.gates where name = any (%s)",
        [[f"job/{jobs[0]}", f"after/{jobs[1]}"]],
    )

    call(db, "repair", NOW)

    assert names(db, "true") == {
        f"{kind}/{job}" for kind in ("after", "closed", "job") for job in jobs
    }
    assert names(db, "true", "elsewhere") == set()


def test_runs_are_moved_to_the_queue_that_their_job_has_now(db: Db, dsn: str) -> None:
    # given runs in a queue that their job has left, and others that stay
    stays, job = a_job(db, "stays", queue="before"), a_job(db, queue="now")
    there = a_job(db, queue="now", namespace="elsewhere")
    before: dict[str, Any] = {"queue": "before"}
    moved = [a_run(db, job, **before, priority=priority) for priority in (1, 2, 3)]
    taken = a_run(db, job, **before)
    left = [
        a_run(db, job, "running", **before),
        a_run(db, job, "succeeded", **before),
        a_run(db, stays, **before),
        a_run(db, there, **before),
    ]

    with database.connect(dsn) as other, other.transaction():
        other.execute("select from yamlsched.job_runs where id = %s for no key update", [taken])
        call(db, "repair", NOW)

    assert {row(db, run).queue for run in moved} == {"now"}
    assert {row(db, run).queue for run in (taken, *left)} == {"before"}


def test_a_pause_blocks_the_due_runs_of_its_job_in_batches_and_nothing_else(
    db: Db, dsn: str
) -> None:
    # given a job that is paused, with runs that a claim would take, and others
    closed: dict[str, Any] = {"paused_at": NOW - MINUTE, "paused_by": "ann", "overlap": "allow"}
    job, other = a_job(db, **closed), a_job(db, "other", **closed)
    due = [a_run(db, job, run_at=NOW - MINUTE) for _ in range(3)]
    left = [
        a_run(db, job, run_at=NOW + MINUTE),
        a_run(db, job, run_at=NOW - MINUTE, unreleased=True),
        a_run(db, job, "running", run_at=NOW - MINUTE),
        a_run(db, job, "succeeded", run_at=NOW - MINUTE),
        a_run(db, other, run_at=NOW - MINUTE),
        taken := a_run(db, job, run_at=NOW - MINUTE),
    ]
    waits = waiting(db, job, "limit/old")

    # when it is blocked, while another session has one of them
    with database.connect(dsn) as session, session.transaction():
        session.execute("select from yamlsched.job_runs where id = %s for no key update", [taken])
        assert call(db, "block_closed", job, 0, 2, NOW) == due[1]
        assert call(db, "block_closed", job, due[1], 2, NOW) == due[2]
        assert call(db, "block_closed", job, due[2], 2, NOW) is None

    # then those wait for the end of the pause, and are not late
    assert {(row(db, run).blocked_on, row(db, run).late_at) for run in due} == {
        (f"closed/{job}", None)
    }
    assert {row(db, run).blocked_on for run in left} == {None}
    assert row(db, waits).blocked_on == "limit/old"


def test_the_sweep_counts_each_run_once_that_stands_at_a_gate_and_may_be_claimed(db: Db) -> None:
    # given runs that may be claimed, of two levels, two queues, and a job with a limit
    job, limited = a_job(db), a_job(db, "limited", limit_name="old", overlap="allow")
    free, elsewhere = a_job(db, "free", overlap="allow"), a_job(db, namespace="elsewhere")
    due = {"run_at": NOW - MINUTE, "exclusive": True}
    for values in ({}, {"priority": 1}, {"queue": "web2"}):
        a_run(db, job, **{**due, **values})
    a_run(db, limited, run_at=NOW - MINUTE)

    # and runs that may not, or stand at no gate
    waiting(db, job, f"job/{job}", exclusive=True)
    a_run(db, job, **{**due, "run_at": NOW + MINUTE})
    a_run(db, job, "running", **due)
    a_run(db, job, "succeeded", **due)
    a_run(db, free, run_at=NOW - MINUTE)
    a_run(db, elsewhere, **due)

    # then each of the first is counted once
    assert call(db, "unclaimed", NOW) == 4


def test_each_namespace_is_swept_once_a_second(db: Db, dsn: str) -> None:
    # given a run that waits at a gate with room
    job = a_job(db)
    run = waiting(db, job, f"job/{job}", exclusive=True)

    # then it is offered, unless another session is about to
    with database.connect(dsn) as other, other.transaction():
        other.execute("select from yamlsched.namespaces for no key update")
        assert call(db, "sweep", True, NOW) == 0
    assert call(db, "sweep", False, NOW) == 1

    # when it waits again, then the next sweep comes a second later, and another namespace has its own
    db.execute("update yamlsched.job_runs set blocked_on = 'job/' || definition_id")
    swept = "select namespace from yamlsched.namespaces where swept_at > '-infinity'"
    assert db.execute(swept.encode()).fetchall() == [("default",)]
    assert call(db, "sweep", False, NOW + MINUTE / 100) == 0
    assert call(db, "sweep", False, NOW + MINUTE) == 1
    assert row(db, run).blocked_on is None
