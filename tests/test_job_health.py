"""The view job_health: the state of each job."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.health import (
    a_failed_attempt,
    a_healthy_job,
    families,
    of_metrics,
    reasons,
    the_job,
)
from support.rows import a_job, a_long_history, a_place, a_run, rows_read, value
from yamlsched.ask import health
from yamlsched.ask.problem import Thresholds
from yamlsched.db.query import load
from yamlsched.extras.metrics import metrics

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_the_last_success_is_the_latest_by_its_end_also_of_an_old_run(db: Db) -> None:
    # given a run that succeeded, and an older one that was retried and succeeded later
    job = a_job(db)
    a_run(db, job, "succeeded", finished_at=NOON)
    a_run(db, job, "succeeded", finished_at=NOON - HOUR)

    assert the_job(db).last_success_at == NOON


def test_the_streak_counts_dead_and_failing_runs_since_the_last_success(db: Db) -> None:
    job = a_job(db)
    a_run(db, job, "dead", finished_at=NOON - HOUR, failed_at=NOON - HOUR)
    a_run(db, job, "succeeded", finished_at=NOON)
    a_run(db, job, "dead", finished_at=NOON + HOUR, failed_at=NOON + HOUR)
    a_run(db, job, "failed", failed_at=NOON + HOUR)

    assert the_job(db).failure_streak == 2


def test_a_run_that_failed_before_the_last_success_does_not_count_for_the_streak(db: Db) -> None:
    job = a_job(db)
    a_run(db, job, "queued", failed_at=NOON - HOUR)
    a_run(db, job, "succeeded", finished_at=NOON)

    assert the_job(db).failure_streak == 0


def test_the_streak_after_a_success_starts_with_the_failures_after_it(db: Db) -> None:
    # given five runs that failed and wait, a success, and a cancelled run
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    before, success, after = (datetime.now(UTC) - hours * HOUR for hours in (3, 2, 1))
    waiting = [a_run(db, job, "failed", created_at=before, failed_at=before) for _ in range(5)]
    for run in waiting:
        a_failed_attempt(db, run, 1, "OSError", 180)
    a_run(db, job, "succeeded", finished_at=success)
    assert (the_job(db).failure_streak, the_job(db).attempt_streak, the_job(db).state) == (
        0,
        0,
        "ok",
    )
    a_run(db, job, "cancelled", failed_at=after - SECOND)
    assert (the_job(db).failure_streak, the_job(db).state, the_job(db).failing) == (0, "ok", 0)

    # when
    db.execute(
        "update yamlsched.job_runs set attempts = 2, failed_at = %s where id = %s",
        [after, waiting[0]],
    )
    a_failed_attempt(db, waiting[0], 2, "OSError", 60)
    a_run(db, job, "failed", failed_at=after - SECOND, last_error="no route to host")

    # then
    assert (the_job(db).failure_streak, the_job(db).attempt_streak, the_job(db).state) == (
        2,
        2,
        "retrying",
    )
    assert of_metrics(db, "yamlsched_job_failure_streak") == 2
    assert reasons(db, Thresholds(max_streak=1)) == [
        "purge: 2 failed attempts since the last success: no route to host"
    ]


def test_a_host_is_seen_when_it_serves_a_queue_or_executes_a_run(db: Db) -> None:
    # given a place that ticks, and hosts of which one executes a run, and the other has ended one
    job = a_healthy_job(db, overlap="allow")
    [place] = db.execute("select host, seen_at from yamlsched.hosts where namespace = 'default'")
    started_at = datetime.now(UTC) - timedelta(minutes=5)
    a_run(db, job, "running", locked_by="host-1:1:x", started_at=started_at)
    a_run(db, job, "succeeded", locked_by="ended:1:x", finished_at=datetime.now(UTC))

    found = health.read(db, "default", HOUR).workers

    seen = [(place.host, place.seen_at), ("host-1", started_at)]
    assert [worker.running for worker in found] == [0, 1]
    assert [(worker.host, worker.seen_at) for worker in found] == seen
    shown = families(metrics.text(db, "default"))[
        "yamlsched_worker_last_seen_timestamp_seconds"
    ].samples
    assert [(one.labels["host"], one.value) for one in shown] == [
        (host, pytest.approx(at.timestamp())) for host, at in seen
    ]


@pytest.mark.parametrize(
    ("values", "age"), [({}, "8d"), ({"paused_until": datetime(2100, 1, 1, tzinfo=UTC)}, "")]
)
def test_a_pause_without_an_end_is_a_problem_after_a_week(
    db: Db, cli: Cli, values: dict[str, Any], age: str
) -> None:
    job = a_healthy_job(
        db, paused_at=datetime.now(UTC) - timedelta(days=8), paused_by="zoe", **values
    )
    db.execute(
        "update yamlsched.job_definitions set paused_reason = 'API migration' where id = %s", [job]
    )

    checked, reported = cli("status", "--check"), cli("report", "--since", "1h")

    what = "purge: paused for 8d by zoe: API migration"
    assert checked == ((1, f"{what}\n", "") if age else (0, checked.out, ""))
    assert (what in reported.out, reported.code) == (bool(age), int(bool(age)))
    assert "paused 8d ago by zoe" in cli("status").out
    assert cli("status", "--check", "--max-paused", "9d").code == 0


def test_a_slot_that_was_lost_in_a_long_outage_is_a_problem_when_it_is_found(
    db: Db, cli: Cli
) -> None:
    # given a slot of last week that was recorded as late just now, and one that was recorded two hours ago
    job, old = a_healthy_job(db), a_job(db, "old", schedule=None, next_slot_at=None)
    for one, ago in ((job, HOUR / 2), (old, 2 * HOUR)):
        db.execute(
            "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, recorded_at)"
            " values (%s, %s, %s, 1, 'late', now() - %s)",
            [one, NOON, NOON, ago],
        )

    checked, reported = cli("status", "--check"), cli("report", "--since", "1h")

    what = "purge: 1 slot was not run: too old when a run could start"
    assert checked == (1, f"{what}\n", "")
    assert (reported.code, what in reported.out, "old: 1 slot" in reported.out) == (1, True, False)
    assert reported.out.count(what) == 1
    assert "skipped 1 slot: 1 late" in re.sub(" +", " ", reported.out)
    assert f"{NOON:%Y-%m-%d %H:%M} UTC" in reported.out
    assert cli("status", "--check", "--within", "3h").out.count("1 slot was not run") == 2


def test_dead_runs_of_a_job_that_left_the_file_are_counted_until_they_are_pruned(db: Db) -> None:
    a_run(db, a_job(db, "gone", retired_at=NOON), "dead", finished_at=NOON)
    a_job(db, "empty", retired_at=NOON)

    [*samples] = families(metrics.text(db, "default"))["yamlsched_runs"].samples

    assert {(s.labels["job_name"], s.labels["status"]): s.value for s in samples if s.value} == {
        ("gone", "dead"): 1
    }
    assert {s.labels["job_name"] for s in samples} == {"gone"}


def test_a_slot_that_no_sync_has_processed_makes_the_job_late(db: Db) -> None:
    slot = datetime.now(UTC) - HOUR
    a_job(db, next_slot_at=slot)

    assert (the_job(db).late_since, the_job(db).late_why) == (
        slot,
        "no sync has created the run of its slot",
    )
    assert value(db, "select job_type from yamlsched.late_jobs") == "purge"


def test_a_due_run_that_no_worker_claims_makes_the_job_late(db: Db) -> None:
    due = datetime.now(UTC) - HOUR
    a_run(db, a_job(db), run_at=due, created_at=due)

    assert (the_job(db).late_since, the_job(db).late_why) == (
        due,
        "its run has not started",
    )


def test_a_run_is_late_at_the_earliest_from_its_creation_on(db: Db) -> None:
    created = datetime.now(UTC) - HOUR
    a_run(db, a_job(db), run_at=datetime(1970, 1, 1, tzinfo=UTC), created_at=created)

    assert the_job(db).late_since == created
    assert the_job(db).oldest_due_at == created


@pytest.mark.parametrize("values", [{"enabled": False}, {"paused_at": NOON}, {"retired_at": NOON}])
def test_a_paused_disabled_or_retired_job_is_never_late(db: Db, values: dict[str, Any]) -> None:
    long_ago = datetime.now(UTC) - HOUR
    a_run(db, a_job(db, next_slot_at=long_ago, **values), run_at=long_ago, created_at=long_ago)

    assert the_job(db).late_since is None


def test_a_job_with_nothing_due_is_not_late(db: Db) -> None:
    soon = datetime.now(UTC) + HOUR
    a_run(db, a_job(db, next_slot_at=soon), run_at=soon)

    assert the_job(db).late_since is None


def test_a_job_can_be_overdue_after_its_pause_has_ended(db: Db) -> None:
    a_job(db, next_slot_at=datetime.now(UTC) - HOUR, paused_at=NOON, paused_until=NOON + HOUR)

    assert the_job(db).late_since is not None
    assert not the_job(db).paused


def test_a_run_that_waits_for_another_slot_of_its_job_is_not_late(db: Db) -> None:
    # given a job with overlap wait and a long run, for which its next slot and another run wait
    job = a_job(db, overlap="wait", next_slot_at=datetime.now(UTC) - HOUR)
    running = a_run(db, job, "running", exclusive=True, scheduled_for=NOON)
    due = datetime.now(UTC) - HOUR
    a_run(db, job, run_at=due, created_at=due, exclusive=True, scheduled_for=NOON + HOUR)

    assert the_job(db).late_since is None
    assert the_job(db).open_slot_run_id == running


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"locked_until": "(now() - interval '2 minutes')"}, "past its lease"),
        ({"started_at": "(now() - interval '2 hours')"}, "past its timeout"),
    ],
)
def test_a_run_past_its_lease_or_its_timeout_is_stuck(
    db: Db, values: dict[str, Any], why: str
) -> None:
    run = a_run(db, a_job(db), "running", **values)

    assert reasons(db)[1:] == [
        f"run {run} of purge is stuck: {why}; its worker is web-1:4711:c0ffee"
    ]


def test_a_run_within_lease_and_timeout_is_not_stuck(db: Db) -> None:
    a_run(db, a_job(db), "running")

    assert value(db, "select count(*) from yamlsched.stuck_runs") == 0


def test_no_view_reads_the_succeeded_runs(own_dsn: str) -> None:
    # given jobs with twenty thousand finished runs, of which two died, and ten unfinished
    with psycopg.connect(own_dsn, autocommit=True) as db:
        a_long_history(db)

        # when each view is read completely
        db.execute(
            "insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, entry, provider_key, state, "
            "done_at) select 'default', 'run:' || r.id || ':mail', r.id, 1, 'w', gen_random_uuid(), gen_random_uuid(), "
            "'done', now() from yamlsched.job_runs r"
        )
        db.execute("analyze yamlsched.effects")
        views = (
            "dead_runs",
            "stuck_runs",
            "late_jobs",
            "job_health",
            "effects_in_doubt",
        )
        read = {view: rows_read(db, f"select * from yamlsched.{view}".encode()) for view in views}

    # then it reads only unfinished, dead and newest runs
    assert read["dead_runs"] == 2
    assert max(read.values()) < 100


def test_no_statement_about_the_last_hour_reads_the_runs_that_ended_before(own_dsn: str) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as db:
        # given the same history, and no run that ended within a day
        a_long_history(db)
        db.execute("delete from yamlsched.job_runs where finished_at > now() - interval '1 day'")
        db.execute("analyze yamlsched.job_runs")

        # when the health and the metrics are read
        given = {
            "namespace": "default",
            "namespaces": ["default"],
            "jobs": None,
            "limit": 100,
            "within": timedelta(hours=1),
            "bounds": [1.0, 10.0],
            "now": datetime.now(UTC),
        }
        names = {
            "health": ("jobs", "workers", "lost_slots"),
            "metrics": ("jobs", "ended"),
        }
        read = {(f, name): rows_read(db, load(f)[name], given) for f in names for name in names[f]}

    # then only unfinished and newest runs are read
    assert max(read.values()) < 100, read


@pytest.mark.parametrize(
    ("overlap", "note"),
    [
        ("wait", "the next slot waits for run"),
        ("skip", "the next slot will be skipped: run"),
        ("allow", ""),
    ],
)
def test_a_slot_beside_an_unfinished_run_waits_or_is_skipped(
    db: Db, cli: Cli, overlap: str, note: str
) -> None:
    job = a_healthy_job(db, overlap=overlap, next_slot_at=datetime.now(UTC) - timedelta(seconds=5))
    run = a_run(db, job, "running", exclusive=overlap != "allow")

    [found] = health.read(db, "default", HOUR).jobs

    text = health.note(found, health.read(db, "default", HOUR))
    assert text == (f"{note} {run}{' is unfinished' if overlap == 'skip' else ''}" if note else "")


def test_a_stuck_run_of_a_paused_job_is_taken_by_the_next_worker_as_any_other(
    db: Db, cli: Cli
) -> None:
    job = a_healthy_job(db, paused_at=datetime.now(UTC))
    run = a_run(db, job, "running", locked_until=datetime.now(UTC) - HOUR)

    shown, screen = cli("show", run).out, cli("status").out

    assert ", which stopped answering: its lease ended at 20" in shown
    assert f"      yamlsched show {run}" in screen


def test_the_next_slot_is_shown_in_utc_and_on_the_clock_of_the_job(db: Db, cli: Cli) -> None:
    a_healthy_job(
        db, timezone="Europe/Berlin", next_slot_at=datetime(2100, 1, 14, 1, 30, tzinfo=UTC)
    )
    a_job(db, "other", next_slot_at=datetime(2100, 1, 14, 1, 30, tzinfo=UTC))

    out = cli("status", "--all").out

    assert "  2100-01-14T01:30:00Z (02:30 CET)  " in out
    assert re.search(r"2100-01-14T01:30:00Z +-", out)


def test_status_of_an_unknown_namespace_names_the_one_that_was_meant(db: Db, cli: Cli) -> None:
    a_job(db, "mail", namespace="shop")

    assert cli("status", "--namespace", "shpo").out.endswith(
        '\nNo job and no file has namespace "shpo". Did you mean "shop"?\n'
    )
    assert 'namespace "billing". There are: shop\n' in cli("status", "--namespace", "billing").out
    assert "Did you mean" not in cli("status", "--namespace", "shop").out


def test_a_job_is_as_stuck_as_its_runs_however_many_there_are(db: Db) -> None:
    for number in range(3):
        job = a_job(db, f"job_{number}")
        for _ in range(number):
            a_run(db, job, "running", locked_until=datetime.now(UTC) - HOUR)
    a_job(db, "retired", retired_at=NOON)
    found = {job.job_type: job.state for job in health.read(db, "default", HOUR).jobs}
    assert found == {"job_0": "new", "job_1": "stuck", "job_2": "stuck", "retired": "retired"}


def test_the_state_of_a_job_is_that_of_its_row(db: Db) -> None:
    # given jobs whose latest runs succeeded, died, or were cancelled
    endings = {
        "ok": ["dead", "succeeded"],
        "dead": ["succeeded", "dead", "cancelled"],
        "new": ["cancelled"],
    }
    for name, ends in endings.items():
        job = a_job(db, name)
        for nth, end in enumerate(ends):
            at = NOON + nth * HOUR
            a_run(db, job, end, finished_at=at)

    found = health.read(db, "default", HOUR)

    states = {job.job_type: job.state for job in found.jobs}
    assert states == {"ok": "ok", "dead": "dead", "new": "new"}
    assert {job.job_type: job.failure_streak for job in found.jobs} == {
        "ok": 0,
        "dead": 1,
        "new": 0,
    }
    assert {job.last_success_at for job in found.jobs} == {NOON + HOUR, NOON, None}


def test_the_totals_are_the_sums_over_all_jobs(db: Db) -> None:
    # given jobs in many states, dead and unfinished runs, and another namespace
    now = datetime.now(UTC)
    a_place(db, host="web-1")
    jobs = {name: a_job(db, name, next_slot_at=now + HOUR) for name in ("a", "b", "c", "d")}
    a_run(db, jobs["a"], "succeeded", finished_at=now)
    a_run(db, jobs["b"], "dead", finished_at=now - timedelta(minutes=5))
    a_run(db, jobs["c"], "dead", finished_at=now - 2 * HOUR)
    a_run(db, jobs["d"], "running", locked_until=now + HOUR)
    a_run(db, jobs["d"], "failed", attempts=3)
    a_job(db, "late", next_slot_at=now - HOUR)
    a_run(db, a_job(db, "gone", retired_at=now), "queued", run_at=now - 2 * HOUR)
    a_job(db, "else", namespace="other")

    # when it is read
    jobs_read, totals = (found := health.read(db, "default", HOUR)).jobs, found.queue

    # then the totals are the sums over its jobs
    assert tuple(totals.values()) == (
        5,
        1,
        1,
        1,
        1,
        1,
        2,
        min(job.oldest_due_at for job in jobs_read if job.oldest_due_at),
    )
