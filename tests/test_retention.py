"""Housekeeping prunes only finished runs whose retention has ended."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from support.command_line import Cli, command_line
from support.rows import a_job, a_place, a_run, row, value
from yamlsched import db as store
from yamlsched.act import prune as retention
from yamlsched.act.prune import HousekeepingReport, housekeep

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
PLENTY = 60.0
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def ended(db: Db, job: int, status: str, at: datetime, **values: Any) -> int:
    return a_run(db, job, status, finished_at=at, **values)


def left(db: Db) -> set[int]:
    return {r.id for r in db.execute("select id from yamlsched.job_runs").fetchall()}


@pytest.mark.parametrize(("status", "days"), [("succeeded", 30), ("dead", 90), ("cancelled", 30)])
def test_each_status_is_kept_for_its_retention_from_the_end_of_the_run(
    db: Db, status: str, days: int
) -> None:
    job = a_job(db)
    ended(db, job, status, NOON - days * DAY - SECOND)
    kept = ended(db, job, status, NOON - days * DAY)

    done = housekeep(db, "default", PLENTY, NOON)

    assert left(db) == {kept}
    assert done == HousekeepingReport(runs=1, complete=True)


def test_retention_comes_from_the_file_in_use(db: Db) -> None:
    job = a_job(db)
    a_place(db, applied_at=NOON, retention=Jsonb({"succeeded": "2d", "dead": "90d"}))
    ended(db, job, "succeeded", NOON - 3 * DAY)
    kept = ended(db, job, "succeeded", NOON - DAY)

    housekeep(db, "default", PLENTY, NOON)

    assert left(db) == {kept}
    assert value(db, "select housekept_at from yamlsched.namespaces") == NOON


def test_unfinished_runs_are_never_pruned(db: Db) -> None:
    job = a_job(db)
    long_ago = NOON - 3650 * DAY
    unfinished = {
        a_run(db, job, "queued", run_at=long_ago, created_at=long_ago),
        a_run(db, job, "failed", run_at=long_ago, failed_at=long_ago),
        a_run(db, job, "running", started_at=long_ago),
    }

    housekeep(db, "default", PLENTY, NOON)

    assert left(db) == unfinished


def test_a_key_is_remembered_after_its_run_for_its_own_retention(db: Db) -> None:
    # given a run with a key and one without
    job = a_job(db)
    run = ended(
        db,
        job,
        "succeeded",
        NOON - 31 * DAY,
        idempotency_key="purge:2025-12-14",
        scheduled_for=NOON - 31 * DAY,
    )
    ended(db, job, "succeeded", NOON - 31 * DAY)

    # when they are pruned
    housekeep(db, "default", PLENTY, NOON)

    # then the key is remembered, with its run
    [used] = db.execute("select * from yamlsched.used_keys").fetchall()
    assert (used.idempotency_key, used.run_id, used.job_type) == ("purge:2025-12-14", run, "purge")
    assert (used.scheduled_for, used.pruned_at) == (NOON - 31 * DAY, NOON)

    # and a year later it is not
    assert housekeep(db, "default", PLENTY, NOON + 365 * DAY).keys == 0
    assert housekeep(db, "default", PLENTY, NOON + 365 * DAY + SECOND).keys == 1


def test_the_failures_the_outputs_and_the_progress_of_a_run_are_pruned_with_it(db: Db) -> None:
    run = ended(db, a_job(db), "dead", NOON - 100 * DAY)
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error) "
        "values (%s, 1, 'w', now(), 'e')",
        [run],
    )
    db.execute(
        "insert into yamlsched.attempt_outputs values (%s, 1, 'w', now(), 0, 'printed')", [run]
    )
    kept = ended(db, value(db, "select max(id) from yamlsched.job_definitions"), "dead", NOON - DAY)
    for id in (run, kept):
        db.execute(
            "insert into yamlsched.attempt_progress values (%s, 1, now(), 1, 2, 'w', '')", [id]
        )

    housekeep(db, "default", PLENTY, NOON)

    assert value(db, "select count(*) from yamlsched.job_failures") == 0
    assert value(db, "select count(*) from yamlsched.attempt_outputs") == 0
    assert value(db, "select array_agg(run_id) from yamlsched.attempt_progress") == [kept]


AN_EFFECT = """
insert into yamlsched.effects
    (namespace, key, run_id, attempt, locked_by, entry, provider_key, state, claimed_at, done_at)
values ('default', %s, %s, 1, 'w', gen_random_uuid(), gen_random_uuid(), 'done', %s, %s)
"""


def test_an_effect_outlives_its_run(db: Db) -> None:
    # given two effects of equal age, one of an existing run that could be retried
    kept = ended(db, a_job(db), "dead", NOON - DAY)
    for run in (kept, 999_999):
        db.execute(AN_EFFECT, [f"run:{run}:mail", run, NOON - 400 * DAY, NOON - 400 * DAY])

    done = housekeep(db, "default", PLENTY, NOON)

    assert done.effects == 1
    assert value(db, "select run_id from yamlsched.effects") == kept


@pytest.mark.parametrize(
    "age, kept",
    [(0 * SECOND, 1), (DAY, 1), (365 * DAY - SECOND, 1), (365 * DAY, 1), (365 * DAY + SECOND, 0)],
)
def test_a_business_key_is_kept_for_the_retention_of_effects_although_its_run_was_pruned(
    db: Db, age: timedelta, kept: int
) -> None:
    db.execute(AN_EFFECT, ["weekly_report:12345:2026-W03", 999_999, NOON - age, NOON - age])

    housekeep(db, "default", PLENTY, NOON)

    assert value(db, "select count(*) from yamlsched.effects") == kept


def test_another_namespace_is_not_pruned(db: Db) -> None:
    ended(db, a_job(db, namespace="billing"), "succeeded", NOON - 100 * DAY)

    assert housekeep(db, "default", PLENTY, NOON).runs == 0
    assert housekeep(db, "billing", PLENTY, NOON).runs == 1


def test_batches_continue_where_the_last_one_ended_until_nothing_is_left(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given runs of several jobs, mixed with some that are kept longer, and batches of three
    monkeypatch.setattr(retention, "BATCH_ROWS", 3)
    jobs = [a_job(db, name) for name in ("purge", "mail", "sync")]
    kept = set()
    for nth in range(24):
        status = "dead" if nth % 4 == 0 else "succeeded"
        run = ended(db, jobs[nth % 3], status, NOON - 40 * DAY + nth * SECOND)
        if status == "dead":
            kept.add(run)

    done = housekeep(db, "default", PLENTY, NOON)

    assert left(db) == kept
    assert done.runs == 18


def test_at_its_time_limit_it_stops_between_batches_and_reports_that_there_is_more(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH_ROWS", 3)
    job = a_job(db)
    a_place(db)
    for nth in range(10):
        ended(db, job, "succeeded", NOON - 40 * DAY + nth * SECOND)

    done = housekeep(db, "default", -1.0, NOON)

    assert (done.runs, done.complete, len(left(db))) == (3, False, 7)
    assert value(db, "select housekept_at is null from yamlsched.namespaces")


def test_a_locked_run_is_left_for_the_next_time(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an operator's transaction that locks every run of a batch, all with the same end
    monkeypatch.setattr(retention, "BATCH_ROWS", 2)
    job = a_job(db)
    for _ in range(2):
        ended(db, job, "dead", NOON - 100 * DAY)
    with store.connect(dsn) as operator:
        operator.execute("begin")
        operator.execute(
            "update yamlsched.job_runs set status = 'queued', attempts = 0, finished_at = null, dead_at = null"
        )

        # when housekeeping runs
        done = housekeep(db, "default", PLENTY, NOON)
        operator.execute("commit")

    # then it neither waits nor prunes what is queued again
    assert (done.runs, len(left(db))) == (0, 2)


def test_unfinished_runs_of_a_retired_job_are_cancelled_a_day_later(db: Db) -> None:
    job = a_job(db, retired_at=NOON)
    run = a_run(db, job, "queued")

    assert housekeep(db, "default", PLENTY, NOON + DAY - SECOND).cancelled == 0
    assert housekeep(db, "default", PLENTY, NOON + DAY).cancelled == 1

    assert row(db, run).status == "cancelled"
    assert "removed from schedules.yaml" in row(db, run).last_error


def test_an_endless_retention_is_valid(db: Db) -> None:
    a_place(db, retention=Jsonb({"succeeded": "999999d", "keys": "999999d"}))
    kept = ended(db, a_job(db), "succeeded", NOON - 3650 * DAY)

    assert housekeep(db, "default", PLENTY, NOON).complete
    assert left(db) == {kept}


def test_prune_reports_its_work(db: Db, cli: Cli) -> None:
    ended(db, a_job(db), "succeeded", NOON - 100 * DAY)

    assert cli("prune").out == "pruned 1 run, 0 keys, 0 effects; cancelled 0 runs of removed jobs\n"
    assert json.loads(cli("prune", "--format", "json").out)["complete"] is True


STATES = st.sampled_from(["queued", "failed", "running", "succeeded", "dead", "cancelled"])
KEPT = {"succeeded": 30, "dead": 90, "cancelled": 30}


@settings(max_examples=15)
@given(runs=st.lists(st.tuples(STATES, st.integers(0, 120)), max_size=12), batch=st.integers(1, 4))
def test_for_any_runs_only_expired_ones_are_pruned_and_every_key_remains_used(
    db: Db, runs: list[tuple[str, int]], batch: int
) -> None:
    for table in ("job_runs", "used_keys", "job_days", "job_definitions"):
        db.execute(f"delete from yamlsched.{table}".encode())
    job = a_job(db)
    over, keys = set(), set()
    for nth, (status, days) in enumerate(runs):
        values: dict[str, Any] = {"idempotency_key": f"k{nth}"}
        if status in KEPT:
            values["finished_at"] = NOON - days * DAY
        run = a_run(db, job, status, **values)
        keys.add(f"k{nth}")
        if days > KEPT.get(status, 1000):
            over.add(run)
    before = left(db)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "BATCH_ROWS", batch)
        housekeep(db, "default", PLENTY, NOON)

    assert left(db) == before - over
    known = db.execute(
        "select idempotency_key from yamlsched.job_runs union select idempotency_key from yamlsched.used_keys"
    ).fetchall()
    assert {r.idempotency_key for r in known} == keys


@pytest.mark.parametrize(
    "value", ['{"succeeded": "garbage"}', '{"succeeded": 7}', '{"dead": null}']
)
def test_a_retention_that_was_changed_by_hand_is_reported_without_a_traceback(
    db: Db, cli: Cli, value: str
) -> None:
    a_job(db)
    a_place(db, retention=value)

    result = cli("prune")

    assert result.code == 3
    assert "the retention of the file in use is not valid in the database" in result.err
    assert "Traceback" not in result.err
