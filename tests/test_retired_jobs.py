"""The statements about definitions: each changes only its own runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from support.rows import a_job, a_run
from yamlsched.sync.definitions import cancel_retired

Db = psycopg.Connection[Any]
NOW = datetime(2026, 1, 14, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=2)


def statuses(db: Db) -> dict[int, str]:
    return dict(
        tuple(row) for row in db.execute("select id, status from yamlsched.job_runs").fetchall()
    )


def test_only_unfinished_runs_of_jobs_retired_a_day_ago_are_cancelled_and_none_under_a_lease(
    db: Db,
) -> None:
    # given a job retired two days ago, one retired now, and an active one, with runs in each state
    retired = a_job(db, "retired", retired_at=LONG_AGO)
    just_now = a_job(db, "just_now", retired_at=NOW - timedelta(hours=23))
    at_work = a_job(db, "at_work")
    before = {
        (job, status): a_run(db, job, status)
        for job in (retired, just_now, at_work)
        for status in ("queued", "failed", "running", "succeeded", "dead", "cancelled")
    }
    db.execute(
        "update yamlsched.job_runs set locked_until = %s where status = 'running'",
        [NOW + timedelta(minutes=1)],
    )
    lost = a_run(db, retired, "running", locked_until="('2026-01-14 11:59Z'::timestamptz)")
    finished = (
        "select id, finished_at, updated_at from yamlsched.job_runs where id = any (%s) order by id"
    )
    ids = [id for (_, status), id in before.items() if status in ("succeeded", "dead", "cancelled")]
    as_it_was = db.execute(finished, [ids]).fetchall()

    # when runs of retired jobs are cancelled
    cancelled = cancel_retired(db, "default", NOW)

    # then these are the waiting runs of the first job; the one whose lease has ended is left to reclaim
    expected = {before[retired, "queued"], before[retired, "failed"]}
    assert statuses(db)[lost] == "running"
    assert {run.id for run in cancelled} == expected
    assert {id for id, status in statuses(db).items() if status == "cancelled"} == expected | {
        before[job, "cancelled"] for job in (retired, just_now, at_work)
    }
    assert len(as_it_was) == len(ids)
    assert db.execute(finished, [ids]).fetchall() == as_it_was


def test_a_batch_of_retired_runs_continues_after_the_previous_one(db: Db) -> None:
    one, other = (a_job(db, name, retired_at=LONG_AGO) for name in ("one", "other"))
    runs = [a_run(db, job) for job in (one, one, one, other)]

    batches = [{run.id for run in cancel_retired(db, "default", NOW, limit=2)} for _ in range(3)]

    assert batches == [set(runs[:2]), set(runs[2:]), set()]
