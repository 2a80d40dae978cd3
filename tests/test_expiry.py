"""expires_after: an enqueued run that has not begun in time is cancelled, whatever held it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

import yamlsched
from support.command_line import command_line
from support.database import while_waiting
from support.gates import LEASE, MINUTE, NOW, RELEASED, SECOND, Worker, ids, is_at_rest, limit
from support.gates import worker as worker
from support.project import a_project
from support.rows import a_job, a_run, value
from yamlsched.act import runs as actions
from yamlsched.schedule.load import load
from yamlsched.worker import claiming

Db = psycopg.Connection[Any]
EXPIRES = {"schedule": None, "expires_after": 15 * MINUTE}
OLD = {"run_at": NOW - 16 * MINUTE}


def states(db: Db) -> dict[int, tuple[str, str | None]]:
    rows = db.execute("select id, status, error_type from yamlsched.job_runs order by id")
    return {row.id: (row.status, row.error_type) for row in rows}


EXPIRED = ("cancelled", "Expired")


# -- who ends it


def test_a_claim_ends_what_has_expired_and_takes_what_is_behind_it(db: Db, worker: Worker) -> None:
    job = a_job(db, **EXPIRES)
    old = a_run(db, job, **OLD)
    new = a_run(db, job, run_at=NOW - 15 * MINUTE + SECOND)
    other = a_run(db, a_job(db, "other", schedule=None), run_at=NOW - 60 * MINUTE)

    assert ids(worker.claim()) == sorted([new, other])
    assert states(db)[old] == EXPIRED
    row = db.execute("select * from yamlsched.job_runs where id = %s", [old]).fetchone()
    assert row is not None
    assert (row.finished_at, row.attempts, row.failed_at, row.dead_at) == (NOW, 0, None, None)


def test_a_claim_ends_only_what_it_has_met(db: Db, worker: Worker) -> None:
    job = a_job(db, **EXPIRES)
    met, blocked, elsewhere = a_run(db, job, **OLD), a_run(db, job, **OLD), a_run(db, job, **OLD)
    for run, values in ((elsewhere, "queue = 'gpu'"), (blocked, "blocked_on = 'limit/x'")):
        db.execute(f"update yamlsched.job_runs set {values} where id = %s".encode(), [run])

    assert worker.claim() == []

    assert [states(db)[run][0] for run in (met, blocked, elsewhere)] == [
        "cancelled",
        "queued",
        "queued",
    ]


def test_what_a_pause_or_a_full_limit_holds_expires_and_the_room_that_it_had_is_offered(
    db: Db, worker: Worker
) -> None:
    # given a run that holds the limit, one that waits for it, and one of a paused job
    limit(db, 1)
    job = a_job(db, **EXPIRES, limit_name="warehouse")
    paused = a_job(db, "paused", **EXPIRES, paused_at=NOW - 60 * MINUTE, paused_by="ann")
    [holder] = [a_run(db, job, run_at=NOW - 10 * MINUTE)]
    held = [worker.claim(1)[0]]
    waiting = a_run(db, job, run_at=NOW - 9 * MINUTE)
    closed = a_run(db, paused, run_at=NOW - 9 * MINUTE)
    last = a_run(db, job, run_at=NOW - MINUTE)
    assert worker.claim() == []

    # when the time of both is over
    later = NOW + 7 * MINUTE
    worker.call(claiming.repair, "default", now=later)

    assert [states(db)[run] for run in (waiting, closed)] == [EXPIRED, EXPIRED]
    assert states(db)[holder] == ("running", None)
    worker.finish(held[0], now=later)
    assert ids(worker.claim(now=later)) == [last]
    assert is_at_rest(db, later)


def test_one_that_was_offered_the_room_of_a_limit_leaves_it_to_the_next(
    db: Db, worker: Worker
) -> None:
    limit(db, 1)
    job = a_job(db, **EXPIRES, limit_name="warehouse")
    first = a_run(db, job, run_at=NOW - 12 * MINUTE)
    held = worker.claim(1)
    offered = a_run(db, job, run_at=NOW - 11 * MINUTE)
    last = a_run(db, job, run_at=NOW)
    assert worker.claim() == []
    worker.finish(held[0])  # which offers the room to the next one
    assert value(db, "select blocked_on from yamlsched.job_runs where id = %s", offered) is None

    assert worker.claim(now=NOW + 5 * MINUTE) == []
    assert states(db)[offered] == EXPIRED
    assert ids(worker.claim(now=NOW + 5 * MINUTE)) == [last]
    assert states(db)[first] == ("succeeded", None)


def test_runs_of_queues_that_nobody_serves_expire(db: Db, worker: Worker) -> None:
    run = a_run(db, a_job(db, **EXPIRES, queue="gpu"), queue="gpu", **OLD)
    future = a_run(db, a_job(db, "b", **EXPIRES), run_at=NOW + MINUTE)

    worker.call(claiming.repair, "default", now=NOW)

    assert states(db) == {run: EXPIRED, future: ("queued", None)}


# -- what does not expire


def test_what_is_of_a_slot_was_backfilled_was_retried_or_has_begun_does_not_expire(
    db: Db, worker: Worker
) -> None:
    job = a_job(db, **EXPIRES)
    slot = a_run(db, job, scheduled_for=NOW - 60 * MINUTE, **OLD)
    backfilled = a_run(db, job, scheduled_for=NOW - 61 * MINUTE, by_hand=True, **OLD)
    retried = a_run(db, job, **OLD)
    worker.call(claiming.repair, "default", now=NOW)
    assert actions.retry(db, [retried], "ann", now=NOW - 20 * MINUTE)[0].changed
    begun = a_run(db, job, begun_at=NOW - 60 * MINUTE, started_at=NOW - 60 * MINUTE, **OLD)
    failed = a_run(db, job, "failed", **OLD)

    worker.call(claiming.repair, "default", now=NOW)

    assert {one[0] for one in states(db).values()} == {"queued", "failed"}
    assert ids(worker.claim()) == sorted([slot, backfilled, retried, begun, failed])


def test_a_run_that_was_released_or_lost_goes_on_and_one_that_never_started_expires(
    db: Db, worker: Worker
) -> None:
    job = a_job(db, **EXPIRES, max_attempts=9)
    for number in range(3):
        a_run(db, job, run_at=NOW + number * SECOND)
    first, second, third = worker.claim(now=NOW + MINUTE)
    worker.finish(first, RELEASED._replace(has_begun=True), now=NOW + MINUTE)
    worker.finish(second, RELEASED._replace(has_begun=False), now=NOW + MINUTE)
    later = NOW + MINUTE + LEASE + 15 * MINUTE
    worker.call(claiming.reclaim, "default", now=later)
    worker.call(claiming.repair, "default", now=later)

    assert [states(db)[run.id][0] for run in (first, second, third)] == [
        "queued",
        "cancelled",
        "failed",
    ]


def test_of_some_runs_those_end_that_have_expired_and_that_no_other_session_has(
    db: Db, dsn: str
) -> None:
    job, slower = a_job(db, **EXPIRES), a_job(db, "b", schedule=None, expires_after=20 * MINUTE)
    expired, held, begun = a_run(db, job, **OLD), a_run(db, job, **OLD), a_run(db, job, "running")
    young, never = a_run(db, slower, **OLD), a_run(db, a_job(db, "c", schedule=None), **OLD)
    cancelled = a_run(db, job, "cancelled", **OLD)
    runs = [expired, held, begun, young, never]
    db.execute("set lock_timeout = '2s'")

    with psycopg.connect(dsn) as other:
        other.execute("select from yamlsched.job_runs where id = %s for no key update", [held])
        db.execute("select yamlsched.expire('default', %s, %s)", [[*runs, cancelled], NOW])

    assert [states(db)[run][0] for run in runs] == [
        "cancelled",
        "queued",
        "running",
        "queued",
        "queued",
    ]
    assert states(db)[cancelled] == ("cancelled", None)


def test_an_edit_counts_at_once(db: Db, worker: Worker) -> None:
    run = a_run(db, a_job(db, schedule=None), **OLD)
    worker.call(claiming.repair, "default", now=NOW)
    assert states(db)[run] == ("queued", None)

    db.execute("update yamlsched.job_definitions set expires_after = '1 minute'")
    assert worker.claim() == []
    assert states(db)[run] == EXPIRED


# -- with unique


def test_an_enqueue_beside_a_run_that_has_expired_creates_one_and_the_next_claim_ends_it(
    db: Db, worker: Worker
) -> None:
    rule = Jsonb({"by": ["to"], "while": "unfinished"})
    a_job(db, "mail", **EXPIRES, unique_rule=rule)
    old = yamlsched.enqueue(db, "mail", {"to": 1})
    kept = yamlsched.enqueue(db, "mail", {"to": 2})
    db.execute(
        "update yamlsched.job_runs set run_at = now() - interval '16 min' where id = %s",
        [old.run_id],
    )

    made = yamlsched.enqueue_many(db, "mail", [{"to": 1}, {"to": 2}, {"to": 1}])

    assert [one.created for one in made] == [True, False, False]
    assert made[0].run_id == made[2].run_id != old.run_id
    at = db.execute("select clock_timestamp() as now").fetchone()
    assert at is not None
    worker.claim(now=at.now)
    assert states(db)[old.run_id or 0] == EXPIRED
    assert made[1].run_id == kept.run_id


def test_an_enqueue_gives_the_place_only_of_what_has_the_same_values(db: Db) -> None:
    rule = Jsonb({"by": ["to"], "while": "unfinished"})
    a_job(db, "mail", **EXPIRES, unique_rule=rule)
    a_job(db, "charge", schedule=None, unique_rule=rule)
    old = [yamlsched.enqueue(db, job, {"to": 2}) for job in ("mail", "charge")]
    db.execute("update yamlsched.job_runs set run_at = now() - interval '16 min'")

    yamlsched.enqueue(db, "mail", {"to": 1})

    assert yamlsched.enqueue(db, "charge", {"to": 2}) == (old[1].run_id, False)
    keys = "select unique_key is not null from yamlsched.job_runs where id = %s"
    assert value(db, keys, old[0].run_id)


def test_one_that_begins_while_an_enqueue_waits_for_it_keeps_its_place(db: Db, dsn: str) -> None:
    # given a run that has expired, which a session claims by the rules of before an edit
    rule = Jsonb({"by": ["to"], "while": "unfinished"})
    a_job(db, "mail", **EXPIRES, unique_rule=rule)
    old = yamlsched.enqueue(db, "mail", {"to": 1})
    db.execute("update yamlsched.job_runs set run_at = now() - interval '16 min'")
    with psycopg.connect(dsn) as claim, psycopg.connect(dsn, autocommit=True) as application:
        claim.execute(
            "update yamlsched.job_runs set status = 'running', attempts = 1, locked_by = 'a',"
            " begun_at = now(), locked_until = now() + interval '1 min'"
        )

        found = while_waiting(
            db, application, lambda: yamlsched.enqueue(application, "mail", {"to": 1}), claim.commit
        )

    assert found == (old.run_id, False)


# -- what people see


def test_it_is_shown_as_expired_and_nobody_is_notified(
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = command_line(dsn, monkeypatch, capsys, tmp_path)
    with a_project(tmp_path, dsn) as project:
        project.notify = {"ops": {"url_env": "OPS"}}
        project.sync(returns_number={"expires_after": "15m", "notify": ["ops"]})
        [run] = project.enqueue("returns_number")
        assert ", expires 20" in cli("show", run).out
        assert ", expires 20" in cli("why", "returns_number").out
        project.db.execute("update yamlsched.job_runs set run_at = now() - interval '16 min'")

        project.work()

        assert project.row(run).status == "cancelled"
        assert project.calls("started") == 0
        assert project.db.execute("select from yamlsched.notifications").fetchall() == []
    error = "Expired: it did not start within expires_after"
    assert f"error     {error}" in cli("show", run).out
    assert json.loads(cli("show", run, "--format", "json").out)["run"]["error_type"] == "Expired"
    assert error in cli("runs").out
    assert f"run {run} expired " in cli("why", "returns_number").out
    assert "1 run of 1 job: 1 cancelled (1 expired)" in cli("report").out
    assert json.loads(cli("report", "--format", "json").out)["ran"]["expired"] == 1
    assert cli("status", "--check").code == 0
    assert "is queued again" in cli("retry", run).out
    assert ", expires" not in cli("show", run).out


def test_the_example_of_the_page_is_valid() -> None:
    page = (Path(__file__).parents[1] / "docs" / "handlers.md").read_text()
    example = page.partition("### One run for each value")[2].split("```yaml\n")[1].split("```")[0]

    jobs = load(f"version: 1\n{example}".encode(), "schedules.yaml", None).jobs

    assert {name: job.unique.while_.value for name, job in jobs.items() if job.unique} == {
        "refresh": "unfinished",
        "index": "waiting",
        "send_code": "unfinished",
    }
    assert jobs["send_code"].expires_after == timedelta(minutes=15)
