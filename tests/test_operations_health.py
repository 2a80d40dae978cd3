"""status, metrics, views and doctor: the state of a namespace, and what needs attention."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.command_line import Cli, command_line
from support.rows import a_file_row, a_job, a_long_history, a_run, rows_read, value
from yamlsched.ask import attention, health, states
from yamlsched.ask.attention import Thresholds
from yamlsched.db.query import load
from yamlsched.extras.doctor import doctor
from yamlsched.extras.doctor import server as doctor_server
from yamlsched.extras.metrics import metrics

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def the_job(db: Db) -> health.JobHealth:
    [job] = health.read(db, "default", HOUR).jobs
    return job


def reasons(db: Db, thresholds: Thresholds | None = None) -> list[str]:
    return [
        problem.what for problem in attention.problems(health.read(db, "default", HOUR), thresholds or Thresholds())
    ]


def of_metrics(db: Db, name: str) -> float:
    return of(families(metrics.text(db, "default"))[name])


def a_healthy_job(db: Db, job_type: str = "purge", **values: Any) -> int:
    a_file_row(db)
    return a_job(db, job_type, **{"next_slot_at": datetime.now(UTC) + HOUR, **values})


# -- the view job_health


def test_the_last_success_is_the_latest_by_its_end_also_of_an_old_run(db: Db) -> None:
    # given a run that succeeded, and an older one that was retried and succeeded later
    job = a_job(db)
    a_run(db, job, "succeeded", finished_at=NOON)
    a_run(db, job, "succeeded", finished_at=NOON - HOUR)

    assert the_job(db).last_success_at == NOON


def test_a_run_of_on_dead_is_neither_a_success_nor_a_failure_of_its_job(db: Db) -> None:
    job = a_job(db)
    dead = a_run(db, job, "dead", finished_at=NOON, failed_at=NOON)
    a_run(db, job, "succeeded", idempotency_key=f"on_dead:{dead}")

    assert (the_job(db).last_success_at, the_job(db).failure_streak) == (None, 1)


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
    # given five runs that failed and wait, a success, a cancelled run
    # and a call of on_dead that failed
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    before, success, after = (datetime.now(UTC) - hours * HOUR for hours in (3, 2, 1))
    waiting = [a_run(db, job, "failed", created_at=before, failed_at=before) for _ in range(5)]
    for run in waiting:
        a_failed_attempt(db, run, 1, "OSError", 180)
    a_run(db, job, "succeeded", finished_at=success)
    assert (the_job(db).failure_streak, the_job(db).attempt_streak, the_job(db).state) == (0, 0, "ok")
    a_run(db, job, "failed", failed_at=after, idempotency_key="on_dead:1")
    a_run(db, job, "cancelled", failed_at=after)
    assert (the_job(db).failure_streak, the_job(db).state, the_job(db).failing) == (0, "ok", 5)

    # when
    db.execute("update yamlsched.job_runs set attempts = 2, failed_at = %s where id = %s", [after, waiting[0]])
    a_failed_attempt(db, waiting[0], 2, "OSError", 60)
    a_run(db, job, "failed", failed_at=after)

    # then
    assert (the_job(db).failure_streak, the_job(db).attempt_streak, the_job(db).state) == (2, 2, "failing")
    assert of_metrics(db, "yamlsched_job_failure_streak") == 2
    assert reasons(db, Thresholds(max_streak=1)) == [
        "purge: 2 attempts have failed since the last success: no route to host"
    ]


def test_a_host_is_seen_when_it_claimed_a_run_or_ended_it_itself(db: Db) -> None:
    # given two hosts that took turns, one whose run was cancelled long after it had failed, one whose lease was ended
    # by another, and one that was seen two hours ago
    job = a_healthy_job(db, overlap="allow")
    now = datetime.now(UTC)
    for minutes in range(6):
        at = now - timedelta(minutes=minutes)
        a_run(db, job, "succeeded", locked_by=f"host-{minutes % 2}:1:x", started_at=at, finished_at=at)
    gone = {"started_at": now - 120 * HOUR, "failed_at": now - 120 * HOUR, "finished_at": now}
    a_run(db, job, "cancelled", locked_by="cancelled:1:x", **gone)
    lost = {"started_at": now - HOUR / 2, "finished_at": now, "error_type": "LostWorker"}
    a_run(db, job, "dead", locked_by="lost:1:x", **lost)
    a_run(db, job, "succeeded", locked_by="old:1:x", started_at=now - 3 * HOUR, finished_at=now - 2 * HOUR)

    found = health.read(db, "default", HOUR).workers

    seen = [("host-0", now), ("host-1", now - timedelta(minutes=1)), ("lost", now - HOUR / 2)]
    assert [(worker.host, worker.seen_at) for worker in found] == seen
    shown = families(metrics.text(db, "default"))["yamlsched_worker_last_seen_timestamp_seconds"].samples
    assert [(one.labels["host"], one.value) for one in shown] == [
        (host, pytest.approx(at.timestamp())) for host, at in seen
    ]


@pytest.mark.parametrize(("values", "age"), [({}, "8d"), ({"paused_until": datetime(2100, 1, 1, tzinfo=UTC)}, "")])
def test_a_pause_without_an_end_is_a_problem_after_a_week(db: Db, cli: Cli, values: dict[str, Any], age: str) -> None:
    job = a_healthy_job(db, paused_at=datetime.now(UTC) - timedelta(days=8), paused_by="zoe", **values)
    db.execute("update yamlsched.job_definitions set paused_reason = 'API migration' where id = %s", [job])

    checked, reported = cli("status", "--check"), cli("report", "--since", "1h")

    what = "purge: paused for 8d by zoe: API migration"
    assert checked == ((1, f"{what}\n", "") if age else (0, checked.out, ""))
    assert (what in reported.out, reported.code) == (bool(age), int(bool(age)))
    assert "paused 8d ago by zoe" in cli("status").out
    assert cli("status", "--check", "--max-paused", "9d").code == 0


def test_a_slot_that_was_lost_in_a_long_outage_is_a_problem_when_it_is_found(db: Db, cli: Cli) -> None:
    # given a slot of last week that was recorded as late just now, and one that was recorded two hours ago
    job, old = a_healthy_job(db), a_job(db, "old", schedule=None, next_slot_at=None)
    for one, ago in ((job, HOUR / 2), (old, 2 * HOUR)):
        db.execute(
            "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, recorded_at)"
            " values (%s, %s, %s, 1, 'late', now() - %s)",
            [one, NOON, NOON, ago],
        )

    checked, reported = cli("status", "--check"), cli("report", "--since", "1h")

    what = "purge: 1 slot was not run: too old when a run would have been created"
    assert checked == (1, f"{what}\n", "")
    assert (reported.code, what in reported.out, "old: 1 slot" in reported.out) == (1, True, False)
    assert reported.out.count(what) == 1
    assert "skipped 1 slot: 1 late" in re.sub(" +", " ", reported.out)
    assert f"{NOON:%Y-%m-%d %H:%M} UTC" in reported.out
    assert cli("status", "--check", "--within", "3h").out.count("1 slot was not run") == 2


def test_calls_of_on_dead_are_counted_by_themselves(db: Db, cli: Cli) -> None:
    # given a job of which two runs died and both calls of on_dead, and one of which only calls died
    job, quiet = a_healthy_job(db, tags=["max-dead:2"]), a_job(db, "quiet", schedule=None, next_slot_at=None)
    for nth in range(2):
        dead = a_run(db, job, "dead", error_type="ValueError", last_error="boom")
        a_run(db, job, "dead", idempotency_key=f"on_dead:{dead}", last_error="smtp")
        a_run(db, quiet, "dead", idempotency_key=f"on_dead:{9000 + nth}", last_error="smtp")

    # then each figure counts two runs and four calls
    assert cli("status", "--check", "--max-dead-total", "2").out.splitlines() == [
        "purge: 2 calls of on_dead died within 1h: OSError: smtp",
        "quiet: 2 calls of on_dead died within 1h: OSError: smtp",
    ]
    assert "dead       2 in the last hour, 2 in the last day; 4 calls of on_dead" in cli("status").out
    found = families(metrics.text(db, "default"))
    assert of(found["yamlsched_runs"], job_name="purge", status="dead") == 2
    assert of(found["yamlsched_runs"], job_name="quiet", status="dead") == 0
    recent = {(s.labels["job_name"], s.labels["status"]): s.value for s in found["yamlsched_recent_runs"].samples}
    assert recent == {("purge", "dead"): 2}
    calls = {s.labels["job_name"]: s.value for s in found["yamlsched_recent_dead_calls"].samples}
    assert calls == {"purge": 2, "quiet": 2}
    reported = cli("report", "--since", "1h")
    facts = re.sub(" +", " ", reported.out).splitlines()
    assert {"ran 2 runs of 1 job: 2 died", "dead 2, by type of error: ValueError 2", "on_dead 4 calls died"} <= {*facts}
    assert "quiet: 2 calls of on_dead died: OSError: smtp" in reported.out
    assert "purge: 2 runs died" not in reported.out


def test_dead_runs_of_a_job_that_left_the_file_are_counted_until_they_are_pruned(db: Db) -> None:
    a_run(db, a_job(db, "gone", retired_at=NOON), "dead", finished_at=NOON)
    a_job(db, "empty", retired_at=NOON)

    [*samples] = families(metrics.text(db, "default"))["yamlsched_runs"].samples

    assert {(s.labels["job_name"], s.labels["status"]): s.value for s in samples if s.value} == {("gone", "dead"): 1}
    assert {s.labels["job_name"] for s in samples} == {"gone"}


def test_a_slot_that_no_sync_has_processed_makes_the_job_overdue(db: Db) -> None:
    slot = datetime.now(UTC) - HOUR
    a_job(db, next_slot_at=slot)

    assert (the_job(db).overdue_since, the_job(db).overdue_why) == (slot, "no sync has created the run of its slot")
    assert value(db, "select job_type from yamlsched.overdue_jobs") == "purge"


def test_a_due_run_that_no_worker_claims_makes_the_job_overdue(db: Db) -> None:
    due = datetime.now(UTC) - HOUR
    a_run(db, a_job(db), run_at=due, created_at=due)

    assert (the_job(db).overdue_since, the_job(db).overdue_why) == (due, "no worker has claimed its run")


def test_a_run_is_late_at_the_earliest_from_its_creation_on(db: Db) -> None:
    created = datetime.now(UTC) - HOUR
    a_run(db, a_job(db), run_at=datetime(1970, 1, 1, tzinfo=UTC), created_at=created)

    assert the_job(db).overdue_since == created
    assert the_job(db).oldest_due_at == created


@pytest.mark.parametrize("values", [{"enabled": False}, {"paused_at": NOON}, {"retired_at": NOON}])
def test_a_paused_disabled_or_retired_job_is_never_overdue(db: Db, values: dict[str, Any]) -> None:
    long_ago = datetime.now(UTC) - HOUR
    a_run(db, a_job(db, next_slot_at=long_ago, **values), run_at=long_ago, created_at=long_ago)

    assert the_job(db).overdue_since is None


def test_a_job_with_nothing_due_is_not_overdue(db: Db) -> None:
    soon = datetime.now(UTC) + HOUR
    a_run(db, a_job(db, next_slot_at=soon), run_at=soon)

    assert the_job(db).overdue_since is None


def test_a_job_can_be_overdue_after_its_pause_has_ended(db: Db) -> None:
    a_job(db, next_slot_at=datetime.now(UTC) - HOUR, paused_at=NOON, paused_until=NOON + HOUR)

    assert the_job(db).overdue_since is not None
    assert not the_job(db).paused


def test_a_run_that_waits_for_another_slot_of_its_job_is_not_overdue(db: Db) -> None:
    # given a job with overlap wait and a long run, for which its next slot and another run wait
    job = a_job(db, overlap="wait", next_slot_at=datetime.now(UTC) - HOUR)
    running = a_run(db, job, "running", exclusive=True, scheduled_for=NOON)
    due = datetime.now(UTC) - HOUR
    a_run(db, job, run_at=due, created_at=due, exclusive=True, scheduled_for=NOON + HOUR)

    assert the_job(db).overdue_since is None
    assert the_job(db).open_slot_run_id == running


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"locked_until": "(now() - interval '2 minutes')"}, "past its lease"),
        ({"started_at": "(now() - interval '2 hours')"}, "past its timeout"),
    ],
)
def test_a_run_past_its_lease_or_its_timeout_is_stuck(db: Db, values: dict[str, Any], why: str) -> None:
    run = a_run(db, a_job(db), "running", **values)

    assert reasons(db)[1:] == [f"run {run} of purge is stuck: {why}, held by web-1:4711:c0ffee"]


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
        views = ("dead_runs", "stuck_runs", "overdue_jobs", "job_states", "job_health", "effects_in_doubt")
        read = {view: rows_read(db, f"select * from yamlsched.{view}".encode()) for view in views}

    # then it reads only unfinished, dead and newest runs
    assert read["dead_runs"] == 2
    assert max(read.values()) < 100


def test_the_hosts_that_were_seen_are_found_among_a_bounded_number_of_runs(own_dsn: str) -> None:
    # given two jobs of which twelve thousand runs each have ended within the hour, and as many before
    with psycopg.connect(own_dsn, autocommit=True) as db:
        for name in ("one", "two"):
            a_job(db, name)
        db.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, status,"
            " attempts, locked_by, started_at, finished_at)"
            " select d.namespace, d.id, d.job_type, now(), 1, 'succeeded', 1, 'web-' || n.n % 3 || ':1:x', at, at"
            " from yamlsched.job_definitions d, generate_series(1, 24000) n (n),"
            " lateral (select now() - n.n * interval '0.3 seconds') at (at)"
        )
        db.execute("analyze yamlsched.job_runs")

        statement, given = load("health")["workers"], {"namespaces": ["default"]}

        assert rows_read(db, statement, given) == 10_000
        assert {host for _, host, *_ in db.execute(statement, given)} == {"web-0", "web-1", "web-2"}


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
            "definitions": [one for (one,) in db.execute("select id from yamlsched.job_definitions").fetchall()],
            "now": datetime.now(UTC),
        }
        names = {
            "health": ("states", "jobs", "workers", "lost_slots"),
            "metrics": ("jobs", "ended"),
        }
        read = {(f, name): rows_read(db, load(f)[name], given) for f in names for name in names[f]}

    # then only unfinished and newest runs are read
    assert max(read.values()) < 100, read


@pytest.mark.parametrize(
    ("overlap", "note"),
    [("wait", "the next slot waits for run"), ("skip", "the next slot will be skipped: run"), ("allow", "")],
)
def test_a_slot_beside_an_unfinished_run_waits_or_is_skipped(db: Db, cli: Cli, overlap: str, note: str) -> None:
    job = a_healthy_job(db, overlap=overlap, next_slot_at=datetime.now(UTC) - timedelta(seconds=5))
    run = a_run(db, job, "running", exclusive=overlap != "allow")

    [found] = health.read(db, "default", HOUR).jobs

    text = health.note(found, health.read(db, "default", HOUR))
    assert text == (f"{note} {run}{' is unfinished' if overlap == 'skip' else ''}" if note else "")


def test_a_stuck_run_of_a_paused_job_is_taken_by_the_next_worker_as_any_other(db: Db, cli: Cli) -> None:
    job = a_healthy_job(db, paused_at=datetime.now(UTC))
    run = a_run(db, job, "running", locked_until=datetime.now(UTC) - HOUR)

    shown, screen = cli("show", run).out, cli("status").out

    assert f"its lease has ended, and the next worker takes it: yamlsched doctor, or yamlsched cancel {run}" in shown
    assert f"      yamlsched show {run}" in screen


def test_the_next_slot_is_shown_in_utc_and_on_the_clock_of_the_job(db: Db, cli: Cli) -> None:
    a_healthy_job(db, timezone="Europe/Berlin", next_slot_at=datetime(2100, 1, 14, 1, 30, tzinfo=UTC))
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
    # given jobs whose latest runs succeeded, died, were cancelled, or reported a dead run
    endings = {
        "ok": ["dead", "succeeded"],
        "failing": ["succeeded", "dead", "cancelled"],
        "new": ["cancelled"],
        "reported": ["dead", "succeeded", "on_dead"],
    }
    for name, ends in endings.items():
        job = a_job(db, name)
        for nth, end in enumerate(ends):
            at = NOON + nth * HOUR
            key = f"on_dead:{nth}" if end == "on_dead" else None
            status = "succeeded" if end == "on_dead" else end
            a_run(db, job, status, finished_at=at, idempotency_key=key and f"{key}:{job}")

    found = health.read(db, "default", HOUR)

    states = {job.job_type: job.state for job in found.jobs}
    assert states == {"ok": "ok", "failing": "failing", "new": "new", "reported": "ok"}
    assert {job.job_type: job.failure_streak for job in found.jobs} == {"ok": 0, "failing": 1, "new": 0, "reported": 0}
    assert {job.last_success_at for job in found.jobs} == {NOON + HOUR, NOON, None}


def test_the_suspects_are_the_jobs_that_have_problems(db: Db) -> None:
    # given a job with each kind of problem, and healthy ones, in two namespaces
    now = datetime.now(UTC)
    for namespace in ("default", "shop"):
        given = {"namespace": namespace}
        a_file_row(db, namespace=namespace, host=namespace)
        a_run(db, a_job(db, "fine", next_slot_at=now + HOUR, tags=["pager"], **given), "failed")
        a_run(db, a_job(db, "died", **given), "dead")
        a_run(db, a_job(db, "died_before", **given), "dead", finished_at=now - 2 * HOUR)
        a_run(db, a_job(db, "failing", tags=["max-failing:0"], **given), "failed")
        a_run(db, a_job(db, "streak", tags=["max-streak:0"], **given), "dead", finished_at=now - 2 * HOUR)
        a_job(db, "late", next_slot_at=now - HOUR, **given)
        old = a_job(db, "old", tags=["pager", "max-age:1h"], **given)
        a_run(db, old, "succeeded", finished_at=now - 2 * HOUR)
    problems = [
        ("dead", "died"), ("failing", "failing"), ("late", "late"), ("old", "old"), ("failing", "streak")
    ]  # fmt: skip

    # when all jobs are read, and when only the suspects are
    known = states.states(db, ["default", "shop"], HOUR)
    suspects = states.suspects([*known["default"], *known["shop"]])
    found = [*health.read_all(db, ["default", "shop"], HOUR), *health.read_all(db, ["default", "shop"], HOUR, suspects)]

    # then the problems are the same
    assert [len(one.jobs) for one in found] == [7, 7, 5, 5]
    for one in found:
        assert [(problem.kind, problem.job_type) for problem in attention.problems(one, Thresholds())] == problems
    assert found[0].totals == found[2].totals
    assert found[0].totals._asdict().items() >= {"jobs": 7, "failed": 2, "failing": 2, "dead_last_hour": 1}.items()
    assert found[0].totals.dead_last_day == 3
    first = states.suspects(known["shop"])[:2]
    assert [job.job_type for job in health.read(db, "shop", HOUR, first).jobs] == ["died", "late"]
    assert health.read(db, "shop", HOUR, []).jobs == []


def test_the_states_are_what_the_health_of_all_jobs_says(db: Db) -> None:
    # given jobs in many states, dead and unfinished runs, and another namespace
    now = datetime.now(UTC)
    a_file_row(db, host="web-1")
    jobs = {name: a_job(db, name, next_slot_at=now + HOUR) for name in ("a", "b", "c", "d")}
    a_run(db, jobs["a"], "succeeded", finished_at=now)
    a_run(db, jobs["b"], "dead", finished_at=now - timedelta(minutes=5))
    a_run(db, jobs["c"], "dead", finished_at=now - 2 * HOUR)
    a_run(db, jobs["d"], "running", locked_until=now + HOUR)
    a_run(db, jobs["d"], "failed")
    a_job(db, "late", next_slot_at=now - HOUR)
    a_run(db, a_job(db, "gone", retired_at=now), "queued", run_at=now - 2 * HOUR)
    a_job(db, "else", namespace="other")

    # when both are read
    jobs_read = health.read(db, "default", HOUR).jobs
    known = states.states(db, ["default", "other"], HOUR)

    # then they agree, and the totals are their sums
    assert [job[1:8] for job in known["default"]] == [
        (job.job_type, job.state, job.queued, job.running, job.failed, job.failing, job.oldest_due_at)
        for job in jobs_read
    ]
    assert [job.job_type for job in known["other"]] == ["else"]
    totals = states.totals(known["default"])
    assert totals == (5, 1, 1, 1, 1, 1, 2, 0, min(job.oldest_due_at for job in jobs_read if job.oldest_due_at))
    assert states.totals([]) == states.JobTotals()


# -- problems


def test_a_healthy_namespace_has_no_problems(db: Db) -> None:
    a_run(db, a_healthy_job(db), "succeeded")

    assert reasons(db) == []


def test_the_problem_for_dead_runs_contains_their_error(db: Db) -> None:
    job = a_healthy_job(db)
    dead = a_run(db, job, "dead", last_error="disk full")
    a_run(db, job, "dead", last_error="smtp refused", idempotency_key=f"on_dead:{dead}")
    a_run(db, job, "succeeded", failed_at="(now())", last_error="lost its worker")

    call = "purge: 1 call of on_dead died within 1h: OSError: smtp refused"
    assert reasons(db) == ["purge: 1 run died within 1h: OSError: disk full", call]

    db.execute("update yamlsched.job_runs set dead_at = now() - interval '2 hours' where id = %s", [dead])

    assert reasons(db) == [call]


def test_each_exceeded_threshold_is_a_problem(db: Db) -> None:
    job = a_healthy_job(db)
    a_run(db, job, "dead")
    due = datetime.now(UTC) - timedelta(minutes=20)
    a_run(db, job, run_at=due, created_at=due)

    assert [reason.split(" by ")[0] for reason in reasons(db)] == [
        "purge: 1 run died within 1h: OSError: no route to host",
        "purge: late",
    ]
    assert reasons(db, Thresholds(max_dead=1, max_late=HOUR)) == []


def test_runs_that_died_long_ago_are_not_a_problem(db: Db) -> None:
    a_run(db, a_healthy_job(db), "dead", finished_at="(now() - interval '2 hours')")

    assert reasons(db) == []


def test_the_tags_of_a_job_set_its_own_thresholds(db: Db) -> None:
    lenient = a_healthy_job(db, "lenient", tags=["max-dead:3", "max-late:2h"])
    strict = a_job(db, "strict", tags=["max-age:26h", "max-dead:x", "max-late:soon"])
    a_run(db, lenient, "dead")
    a_run(db, strict, "succeeded", finished_at="(now() - interval '27 hours')")

    assert reasons(db) == ["strict: no success for 1d3h, the limit is 1d2h"]


def test_a_paused_job_needs_no_recent_success(db: Db) -> None:
    a_healthy_job(db, tags=["max-age:1h"], paused_at=datetime.now(UTC) - 2 * HOUR)

    assert reasons(db) == []


def an_effect(db: Db, run: int, state: str, name: str = "mail", **values: Any) -> str:
    """Insert an effect of ``run``, claimed by the attempt that ``a_run`` makes; return its key."""
    given = {
        "namespace": "default", "key": f"run:{run}:{name}", "run_id": run, "attempt": 1,
        "locked_by": "web-1:4711:c0ffee", "state": state, "claimed_at": datetime.now(UTC) - HOUR, **values,
    }  # fmt: skip
    at = {"in_doubt": "doubted_at", "done": "done_at"}.get(state)
    columns = [*given, "entry", "provider_key", *([at] if at else [])]
    holes = [*(f"%({name})s" for name in given), "gen_random_uuid()", f"'{PROVIDER_KEY}'", *(["now()"] if at else [])]
    db.execute(f"insert into yamlsched.effects ({', '.join(columns)}) values ({', '.join(holes)})".encode(), given)
    return str(given["key"])


PROVIDER_KEY = "2f1b0c5e-0000-8000-8000-000000000001"


def in_doubt(db: Db) -> list[Any]:
    return db.execute("select key, waits_for from yamlsched.effects_in_doubt order by key").fetchall()


def test_an_effect_is_in_doubt_if_its_result_is_unknown_and_no_attempt_is_inside(db: Db) -> None:
    job = a_healthy_job(db, overlap="allow")
    dead, running, retried = (a_run(db, job, status) for status in ("dead", "running", "failed"))
    keys = {
        an_effect(db, dead, "in_doubt", "a"): "person",
        an_effect(db, dead, "claimed", "killed inside"): "person",
        an_effect(db, 999_999, "in_doubt", "of a pruned run"): "person",
        an_effect(db, 999_999, "claimed", "of another"): "person",
        an_effect(db, retried, "in_doubt", "b"): "retry",
        an_effect(db, running, "claimed", "by an earlier attempt", locked_by="web-1:1:ff"): "retry",
    }
    an_effect(db, running, "claimed", "inside")
    an_effect(db, dead, "done", "known")
    an_effect(db, dead, "in_doubt", namespace="shop")

    ours = [row for row in in_doubt(db) if row.key != f"run:{dead}:mail"]

    assert dict(ours) == dict(sorted(keys.items()))


def test_an_effect_in_doubt_is_a_problem_until_it_is_settled_unless_a_retry_resolves_it(db: Db, cli: Cli) -> None:
    job = a_healthy_job(db)
    dead = a_run(db, job, "dead", finished_at="(now() - interval '2 hours')")
    key = an_effect(db, dead, "in_doubt")
    an_effect(db, a_run(db, job, "failed"), "in_doubt", "other")

    result = cli("status", "--check")
    assert result.code == 1
    assert re.fullmatch(
        f'effect "{key}" of run {dead} of purge has been in doubt for \\d+s: look up whether it happened '
        f"\\(idempotency key {PROVIDER_KEY}\\)\n",
        result.out,
    )
    screen = cli("status").out
    assert "in doubt   1 effect to settle, 1 to be resolved by the run's retry\n" in screen
    assert f"      yamlsched settle --done {key} (or --not-done), then: yamlsched retry {dead}\n" in screen
    document = json.loads(cli("status", "--format", "json").out)
    assert document["in_doubt_counts"] == {"person": 1, "retry": 1}
    assert [(e["key"], e["waits_for"]) for e in document["in_doubt"]][:1] == [(key, "person")]
    found = families(metrics.text(db, "default"))["yamlsched_effects_in_doubt"]
    assert of(found, job_name="purge", waits_for="person") == 1
    assert of(found, job_name="purge", waits_for="retry") == 1

    assert cli("settle", key, "--done").code == 0
    assert cli("status", "--check").code == 0
    assert (
        of(families(metrics.text(db, "default"))["yamlsched_effects_in_doubt"], job_name="purge", waits_for="person")
        == 0
    )


def test_the_remedy_for_an_effect_in_doubt_of_a_succeeded_run_is_only_to_settle_it(db: Db) -> None:
    key = an_effect(db, a_run(db, a_healthy_job(db), "succeeded"), "in_doubt")

    [problem] = attention.problems(health.read(db, "default", HOUR), Thresholds())

    assert problem.remedy == f"yamlsched settle --done {key} (or --not-done)"


@pytest.mark.parametrize(
    "effects, more", [(10, None), (11, "1 more effect is in doubt"), (12, "2 more effects are in doubt")]
)
def test_only_the_oldest_ten_effects_in_doubt_are_named_but_all_are_counted(
    db: Db, effects: int, more: str | None
) -> None:
    a_healthy_job(db)
    for n in range(effects):
        an_effect(db, 999_000 + n, "in_doubt")
    db.execute("update yamlsched.effects set doubted_at = now() - interval '1 hour' * (1000000 - run_id)")

    found = reasons(db)

    assert found[0].startswith('effect "run:999000:mail" of run 999000 has been in doubt for ')
    assert found[10:] == ([more] if more else [])
    assert health.effects_in_doubt(health.read(db, "default", HOUR), "person") == effects


def test_a_missing_and_an_old_tick_are_problems(db: Db) -> None:
    assert reasons(db) == ['no tick has ever presented a schedule for namespace "default"']

    a_file_row(db, last_presented_at=datetime.now(UTC) - timedelta(hours=7))

    assert reasons(db) == ["no tick for 7h, the last came from web-1"]


def test_a_different_file_is_a_problem_after_the_time_of_a_rolling_deployment(db: Db) -> None:
    # given a host that has presented the old file for days when another one was applied
    now = datetime.now(UTC)
    newer = a_file_row(db, applied_at=now - timedelta(minutes=9))
    a_file_row(
        db, hash="b" * 64, host="web-2", applied_at=now - timedelta(days=9), presented_since_at=now - timedelta(days=9)
    )
    assert (reasons(db), of_metrics(db, "yamlsched_other_files")) == ([], 0)

    db.execute("update yamlsched.schedule_files set applied_at = %s where id = %s", [now - 3 * HOUR, newer])

    [reason] = reasons(db)
    assert reason == (
        "web-2:/srv/schedules.yaml has presented another file (bbbbbbbb) for 3h; "
        "in force is aaaaaaaa of web-1:/srv/schedules.yaml"
    )
    assert of_metrics(db, "yamlsched_other_files") == 1


def test_earlier_files_of_a_host_are_not_a_problem(db: Db) -> None:
    now = datetime.now(UTC)
    minute = timedelta(minutes=1)
    a_file_row(
        db,
        hash="b" * 64,
        applied_at=now - timedelta(days=9),
        presented_since_at=now - timedelta(days=9),
        last_presented_at=now - minute,
    )
    a_file_row(db, applied_at=now - timedelta(days=1))

    assert reasons(db) == []
    assert [file.hash[0] for file in health.read(db, "default", HOUR).files] == ["a"]


def test_status_shows_a_file_that_is_held_back_at_once(db: Db, cli: Cli) -> None:
    now = datetime.now(UTC)
    a_file_row(db, applied_at=now - HOUR)
    since = now - timedelta(minutes=1)
    a_file_row(db, hash="b" * 64, host="web-2", applied_at=now - 2 * HOUR, presented_since_at=since)

    shown = f"bbbbbbbb is presented by web-2:/srv/schedules.yaml since {since:%Y-%m-%dT%H:%M:%SZ}"
    assert f"{shown}, and is not in force\n" in cli("status").out
    assert reasons(db) == []
    [file] = json.loads(cli("status", "--format", "json").out)["files_not_in_force"]
    assert file["hash"] == "b" * 64


def test_status_and_doctor_show_a_host_of_another_environment(db: Db, cli: Cli) -> None:
    now = datetime.now(UTC)
    a_file_row(db, environment="production", applied_at=now - HOUR)
    a_file_row(db, environment="staging", host="web-2", applied_at=None, presented_since_at=now - HOUR)

    shown = 'aaaaaaaa is presented by web-2:/srv/schedules.yaml for environment "staging", but the namespace belongs'
    assert f'{shown} to environment "production": not applied\n' in cli("status").out
    [problem] = attention.problems(health.read(db, "default", HOUR), Thresholds())
    assert problem.what.endswith(
        'for environment "staging" for 1h, but the namespace belongs to environment "production"'
    )
    [check, _] = doctor.files(health.read(db, "default", HOUR), "2026a", "a" * 64, True, "staging")
    assert (check.level, check.what[:38]) == ("warn", 'the namespace belongs to environment "')


def test_two_environments_of_one_host_do_not_hide_each_others_files(db: Db) -> None:
    # given a host with a refused file of production, which presents a file of staging a moment later
    now = datetime.now(UTC)
    since = now - timedelta(minutes=20)
    a_file_row(db, environment="production", applied_at=now - HOUR, refused_at=since, mistakes=2, last_presented_at=now)
    later = {"presented_since_at": since, "last_presented_at": now + timedelta(seconds=1)}
    a_file_row(db, environment="staging", applied_at=None, **later)

    seen = health.read(db, "default", HOUR)

    assert [file.mistakes for file in seen.refused] == [2]
    assert {file.environment: file.presented_by for file in seen.files} == {
        "production": ["web-1:/srv/schedules.yaml"],
        "staging": ["web-1:/srv/schedules.yaml"],
    }


@pytest.mark.parametrize(("limit", "unhealthy"), [(4, True), (5, False), (6, False), (None, False)])
def test_the_dead_runs_of_all_jobs_have_a_limit_of_their_own(
    db: Db, cli: Cli, limit: int | None, unhealthy: bool
) -> None:
    # given five dead runs, none of more than three of one job, and an old one
    a_file_row(db)
    for name, dead in (("mail", 2), ("purge", 3)):
        job = a_job(db, name, schedule=None)
        for _ in range(dead):
            a_run(db, job, "dead")
    a_run(db, job, "dead", finished_at="(now() - interval '61 minutes')")

    shown = cli("status", "--check", "--max-dead", 3, *(() if limit is None else ("--max-dead-total", limit)))

    expected = f"5 runs of all jobs died within 1h, the limit is {limit}\n"
    assert (shown.code, shown.out if unhealthy else "") == ((1, expected) if unhealthy else (0, ""))


@pytest.mark.parametrize(("limit", "unhealthy"), [(1, True), (2, False), (3, False), (None, True)])
def test_the_dead_runs_of_one_job_have_a_limit(db: Db, cli: Cli, limit: int | None, unhealthy: bool) -> None:
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    for _ in range(2):
        a_run(db, job, "dead")

    shown = cli("status", "--check", *(() if limit is None else ("--max-dead", limit)))

    expected = "purge: 2 runs died within 1h: OSError: no route to host\n"
    assert (shown.code, shown.out if unhealthy else "") == ((1, expected) if unhealthy else (0, ""))


@pytest.mark.parametrize(("minutes", "unhealthy"), [(19, True), (21, False), (None, True)])
@pytest.mark.parametrize("option", ["--max-late", "--max-tick-age"])
def test_lateness_and_the_age_of_the_last_tick_have_limits(
    db: Db, cli: Cli, option: str, minutes: int | None, unhealthy: bool
) -> None:
    # given a run that has been due for 20 minutes, or a tick that long ago
    ago = datetime.now(UTC) - timedelta(minutes=20)
    a_file_row(db, **({"last_presented_at": ago} if option == "--max-tick-age" else {}))
    job = a_job(db, schedule=None)
    if option == "--max-late":
        a_run(db, job, run_at=ago, created_at=ago)

    shown = cli("status", "--check", *(() if minutes is None else (option, f"{minutes}m")))

    assert (shown.code, shown.out.startswith("ok: ")) == ((1, False) if unhealthy else (0, True))


@pytest.mark.parametrize(("limit", "unhealthy"), [(1, True), (2, False), (3, False), (None, False)])
def test_runs_whose_attempts_fail_have_a_limit(db: Db, cli: Cli, limit: int | None, unhealthy: bool) -> None:
    # given two runs that have failed and are retried, one of which runs again; a run without a failure;
    # and one that an operator queued again after its death
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    a_run(db, job, "failed", failed_at="(now())", error_type="OSError")
    a_run(db, job, "running", attempts=2, failed_at="(now() - interval '1 minute')")
    a_run(db, job, "running")
    a_run(db, job, "queued", attempts=5, prior_attempts=5, max_attempts=10, failed_at="(now() - interval '1 minute')")

    assert the_job(db).failing == 2
    assert of_metrics(db, "yamlsched_job_failing_runs") == 2
    shown = cli("status", "--check", *(() if limit is None else ("--max-failing", limit)))

    expected = "purge: 2 runs have failed attempts and will be retried: OSError: no route to host\n"
    assert (shown.code, shown.out if unhealthy else "") == ((1, expected) if unhealthy else (0, ""))


@pytest.mark.parametrize(("limit", "unhealthy"), [(8, True), (9, False), (10, False), (None, False)])
def test_failed_attempts_since_the_last_success_have_a_limit(
    db: Db, cli: Cli, limit: int | None, unhealthy: bool
) -> None:
    # given since the last success a dead run with five attempts, one with three failed attempts that is being retried,
    # one that failed once and runs again, and a dead call of on_dead; before it, another dead run
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    success = "(now() - interval '3 hours')"
    a_run(db, job, "dead", finished_at="(now() - interval '4 hours')")
    a_run(db, job, "succeeded", finished_at=success)
    dead = a_run(db, job, "dead", finished_at="(now() - interval '2 hours')", failed_at="(now() - interval '2 hours')")
    a_run(db, job, "dead", finished_at="(now() - interval '2 hours')", idempotency_key=f"on_dead:{dead}")
    last = a_run(db, job, "failed", attempts=3, failed_at="(now())", error_type="OSError")
    a_run(db, job, "running", attempts=2, failed_at="(now() - interval '1 hour')")

    assert (the_job(db).failure_streak, the_job(db).attempt_streak) == (3, 9)
    assert of_metrics(db, "yamlsched_job_failure_streak_attempts") == 9
    assert " 3 (9 attempts) " in cli("status").out
    shown = cli("status", "--check", *(() if limit is None else ("--max-streak", limit)))

    expected = "purge: 9 attempts have failed since the last success: OSError: no route to host\n"
    assert (shown.code, shown.out if unhealthy else "") == ((1, expected) if unhealthy else (0, ""))
    [problem] = attention.problems(health.read(db, "default", HOUR), Thresholds(max_streak=0))
    assert problem.remedy == f"yamlsched show {last}"


def test_a_success_ends_the_streak_of_attempts(db: Db) -> None:
    job = a_healthy_job(db)
    a_run(db, job, "failed", attempts=3, failed_at="(now() - interval '1 minute')")
    assert the_job(db).attempt_streak == 3

    a_run(db, job, "succeeded")

    assert (the_job(db).failure_streak, the_job(db).attempt_streak, the_job(db).failing) == (0, 0, 1)


@pytest.mark.parametrize("name", ["max-failing", "max-streak"])
@pytest.mark.parametrize(("limit", "found"), [("1", 1), ("2", 0), ("3", 0), ("many", 0)])
def test_tags_limit_the_failures_of_one_job(db: Db, name: str, limit: str, found: int) -> None:
    job = a_healthy_job(db, tags=[f"{name}:{limit}"], overlap="allow")
    for _ in range(2):
        a_run(db, job, "failed")
    a_run(db, a_job(db, "other", overlap="allow"), "failed")

    assert [reason.split(":")[0] for reason in reasons(db)] == ["purge"] * found


# -- status


def test_status_shows_everything_on_one_screen(db: Db, cli: Cli) -> None:
    # given one job of each kind
    a_file_row(db)
    a_run(db, a_job(db, "good", next_slot_at=NOON.replace(year=2100)), "succeeded")
    bad = a_job(db, "bad", schedule=None)
    a_run(db, bad, "dead")
    a_job(db, "held", paused_at=NOON, paused_by="ann", paused_reason="upgrade", paused_until=NOON.replace(year=2100))
    a_job(db, "off", enabled=False)
    a_job(db, "gone", retired_at=NOON)
    a_run(db, a_job(db, "busy", schedule=None), "running", locked_by="web-2:9:dead")

    # when
    result = cli("status")

    # then
    out = re.sub(r"\d+s ago", "just now", result.out)
    lines = out.splitlines()
    assert result.code == 0
    assert lines[1].startswith("file       aaaaaaaa in force since ")
    assert "last tick  just now, by web-1" in lines
    assert "queue      0 queued, 1 running, 0 waiting to retry" in lines
    assert "dead       1 in the last hour, 1 in the last day" in lines
    assert "workers    web-2 (1 running), web-1 (just now)" in lines
    states = {line.split()[0]: line.split()[1] for line in lines[8:13]}
    assert states == {"bad": "failing", "busy": "running", "good": "ok", "held": "paused", "off": "disabled"}
    assert re.search(r"paused \d+d\d* ?\w* ago by ann until 2100-01-14T12:00:00Z: upgrade", result.out)
    died = "  bad: 1 run died within 1h: OSError: no route to host\n"
    assert f"{died}      yamlsched runs --job bad --status dead --since 1h" in result.out
    assert "\x1b" not in result.out


def test_of_many_jobs_only_those_with_problems_are_listed(db: Db, cli: Cli) -> None:
    for number in range(40):
        a_job(db, f"job_{number}", schedule=None)
    a_run(db, a_job(db, "bad", schedule=None), "dead")

    result = cli("status").out

    assert "and 40 more are healthy: --all lists them" in result
    assert "bad" in result
    assert "job_7 " not in result
    assert "job_7 " in cli("status", "--all").out


@pytest.mark.parametrize("most", [None, 7, 8])
def test_the_rows_of_healthy_jobs_are_read_only_if_there_are_few_jobs(db: Db, most: int | None) -> None:
    # given eight jobs that are listed: of the healthy ones two have problems, and of the retired ones one has a run
    now = datetime.now(UTC)
    later = {"next_slot_at": now + HOUR}
    a_file_row(db)
    for name in ("ok", "died before it succeeded"):
        a_run(db, a_job(db, name, **later), "succeeded", finished_at=now)
    died = db.execute("select id from yamlsched.job_definitions where job_type like 'died%'").fetchone()
    a_run(db, died[0], "dead", finished_at=now - HOUR / 2)
    a_job(db, "too old", tags=["max-age:0s"], **later)
    a_job(db, "late", next_slot_at=now - HOUR)
    a_job(db, "off", enabled=False)
    a_job(db, "held", paused_at=now, **later)
    a_run(db, a_job(db, "failing", **later), "dead")
    a_job(db, "gone", retired_at=now)
    a_run(db, a_job(db, "gone with a run", retired_at=now), "queued")

    # when all rows are read, and those that are shown
    all_jobs = health.read(db, "default", HOUR)
    found, present = health.read_suspects(db, "default", HOUR, most)
    assert present == 8

    # then the second have all problems, and all jobs that are not healthy
    reported = {"died before it succeeded", "too old", "late", "failing"}
    unhealthy = {"late", "off", "held", "failing", "gone with a run"}
    read = {None: reported | {"held"}, 7: reported | unhealthy, 8: {job.job_type for job in all_jobs.jobs}}[most]
    assert {job.job_type for job in found.jobs} == read
    assert found.totals == all_jobs.totals
    what = {problem.what.split(":")[0] for problem in attention.problems(found, Thresholds())}
    assert what == reported
    assert attention.problems(replace(all_jobs, now=found.now), Thresholds()) == attention.problems(found, Thresholds())


def test_check_prints_each_problem_on_a_line_and_exits_1(db: Db, cli: Cli) -> None:
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    well = cli("status", "--check")
    assert (well.code, re.sub(r"\d+s", "now", well.out), well.err) == (0, "ok: 1 job, last tick now ago\n", "")

    a_run(db, job, "dead", last_error="two\nlines")

    assert cli("status", "--check") == (1, "purge: 1 run died within 1h: OSError: two lines\n", "")
    assert cli("status", "--check", "--max-dead", 1).code == 0
    document = json.loads(cli("status", "--check", "--format", "json").out)
    assert document["healthy"] is False
    assert document["problems"][0]["remedy"] == "yamlsched runs --job purge --status dead --since 1h"
    assert document["jobs"][0]["state"] == "failing"


def test_a_host_whose_first_file_is_refused_is_a_problem_until_its_file_is_valid(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
    # given a namespace with a file in force
    valid = "version: 1\njobs:\n  purge: {handler: gc.collect, cron: '0 2 * * *'}\n"
    (tmp_path / "schedules.yaml").write_text(valid)
    assert cli("sync").code == 0

    # when another path, from which nothing was ever applied, has a file with an error
    new = tmp_path / "new" / "schedules.yaml"
    new.parent.mkdir()
    new.write_text(valid.replace("cron", "crn"))
    assert [cli("tick", "--file", new).code for _ in range(2)] == [1, 1]

    # then it is reported, and is still not applied
    check = cli("status", "--check")
    assert check.out.startswith(f"{socket.gethostname()}:{new} has presented a file with 1 error since ")
    assert value(db, "select count(*) from yamlsched.job_definitions where retired_at is null") == 1

    # when its file is that of the others
    new.write_text(valid)
    assert cli("tick", "--file", new).code == 0
    assert cli("status", "--check").code == 0


@pytest.mark.parametrize("fixed", ["as before", "edited"])
def test_an_invalid_file_is_a_problem_until_it_is_replaced_by_a_valid_one(
    db: Db, cli: Cli, tmp_path: Path, fixed: str
) -> None:
    # given a path that presented a valid file
    file = tmp_path / "schedules.yaml"
    valid = "version: 1\njobs:\n  purge: {handler: gc.collect, cron: '0 2 * * *'}\n"
    file.write_text(valid)
    assert cli("sync").code == 0

    # when two invalid versions are deployed, and minutes pass
    file.write_text(
        "version: 1\njobs:\n  purge: {handler: gc.collect, cron: '0 2 * * *', retires: 3, max_attempts: 0}\n"
    )
    assert [cli("sync").code, cli("sync").code] == [1, 1]

    # then --check reports it with the time of the first
    since = value(db, "select refused_at from yamlsched.schedule_files where mistakes = 2")
    expected = (
        f"{socket.gethostname()}:{file} has presented a file with 2 errors since {since:%Y-%m-%dT%H:%M:%SZ}; "
        'not applied: 3:51: error[YS102]: unknown key "retires" in job "purge". Known keys: '
    )
    check = cli("status", "--check")
    assert (check.code, check.out.count("\n"), check.err) == (1, 1, "")
    assert check.out.startswith(expected)
    assert expected in cli("status").out
    [refused] = json.loads(cli("status", "--format", "json").out)["refused_files"]
    assert (refused["mistakes"], refused["place"]) == (2, f"{socket.gethostname()}:{file}")
    assert of_metrics(db, "yamlsched_refused_files") == 1

    # when a valid file is there again
    file.write_text(valid if fixed == "as before" else valid.replace("0 2", "0 3"))
    cli("sync")

    assert cli("status", "--check").code == 0
    assert of_metrics(db, "yamlsched_refused_files") == 0


def test_a_database_that_cannot_be_reached_is_exit_3_for_monitors(cli: Cli) -> None:
    result = cli("status", "--check", "--dsn", "host=/nowhere dbname=none")

    assert result.code == 3
    assert result.err.startswith("yamlsched: no connection to the database: ")


# -- metrics


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def of(family: Any, **labels: str) -> float:
    [sample] = [s for s in family.samples if labels.items() <= s.labels.items()]
    return float(sample.value)


def test_the_prometheus_parser_reads_the_metrics(db: Db, cli: Cli) -> None:
    # given runs in all states, with known durations
    job = a_healthy_job(db)
    for took in ("0.1 seconds", "0.100001 seconds", "70 seconds"):
        a_run(db, job, "succeeded", started_at=f"(now() - interval '{took}')")
    a_run(db, job, "dead")
    a_run(db, job, "failed")
    due = datetime.now(UTC) - HOUR
    a_run(db, job, run_at=due, created_at=due)
    a_run(db, job, "running")

    # when
    found = families(cli("metrics").out)

    # then
    runs = found["yamlsched_runs"]
    assert {s.labels["status"]: s.value for s in runs.samples} == {"queued": 1, "running": 1, "failed": 1, "dead": 1}
    assert of(found["yamlsched_recent_runs"], status="succeeded") == 3
    histogram = found["yamlsched_recent_run_duration_seconds"]
    assert histogram.type == "histogram"
    assert [of(histogram, le=bound) for bound in ("0.01", "0.1", "0.5", "60", "300", "+Inf")] == [0, 1, 2, 2, 3, 3]
    [total] = [s.value for s in histogram.samples if s.name.endswith("_sum")]
    assert total == pytest.approx(70.200001)
    assert 3600 <= of(found["yamlsched_oldest_due_seconds"]) < 3700
    assert 3600 <= of(found["yamlsched_job_late_seconds"], job_name="purge") < 3700
    assert of(found["yamlsched_tick_age_seconds"]) < 60
    assert of(found["yamlsched_stuck_runs"]) == 0
    assert of(found["yamlsched_other_files"]) == 0
    assert of(found["yamlsched_job_failure_streak"], job_name="purge") == 2
    assert abs(of(found["yamlsched_job_last_success_timestamp_seconds"]) - datetime.now(UTC).timestamp()) < 60


def test_a_run_of_on_dead_is_not_counted_as_a_recent_run_of_its_job(db: Db) -> None:
    job = a_healthy_job(db)
    dead = a_run(db, job, "dead")
    a_run(db, job, "succeeded", idempotency_key=f"on_dead:{dead}")
    a_run(db, job, "succeeded", idempotency_key="on-deadline")

    recent = families(metrics.text(db, "default"))["yamlsched_recent_runs"]

    assert {s.labels["status"]: s.value for s in recent.samples} == {"dead": 1, "succeeded": 1}


def test_an_empty_namespace_has_metrics_that_parse(cli: Cli) -> None:
    found = families(cli("metrics").out)

    assert of(found["yamlsched_oldest_due_seconds"]) == 0
    assert "yamlsched_tick_age_seconds" not in found


def test_a_textfile_is_replaced_atomically_and_readable_by_its_collector(db: Db, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "yamlsched.prom"
    file.write_text("old")
    a_job(db)

    assert cli("metrics", "--textfile", file) == (0, "", "")

    assert "yamlsched_runs" in families(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["yamlsched.prom"]
    missing = cli("metrics", "--textfile", tmp_path / "none" / "x.prom")
    assert (missing.code, missing.err.endswith("No such file or directory\n")) == (3, True)


def test_every_metric_that_an_alert_names_exists(db: Db) -> None:
    job = a_healthy_job(db)
    dead = a_run(db, job, "dead")
    a_run(db, job, "dead", idempotency_key=f"on_dead:{dead}")
    a_run(db, job, "succeeded")
    written = set(families(metrics.text(db, "default")))

    rules = (Path(__file__).parent.parent / "deploy" / "prometheus-alerts.yml").read_text()
    named = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"yamlsched_[a-z_]+", rules)}

    assert named
    assert named <= written


def test_every_alert_has_a_page_in_the_runbook() -> None:
    import yaml

    root = Path(__file__).parent.parent
    rules = yaml.safe_load((root / "deploy" / "prometheus-alerts.yml").read_text())
    book = (root / "docs" / "runbook.md").read_text()

    for alert in [rule["alert"] for group in rules["groups"] for rule in group["rules"]]:
        assert f"## {alert}\n" in book


# -- doctor


def test_the_doctor_finds_no_failure_in_a_valid_setup(db: Db, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("def run(): pass\n")
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs:\n  purge: {handler: gc.collect, cron: '0 2 * * *'}\n")
    cli("sync")

    result = cli("doctor", "--format", "json")

    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    assert result.code == 0
    assert {name for name, check in checks.items() if check["level"] == "ok"} >= {
        *("file", "handlers", "database", "server", "clock", "tables", "ticks", "in force", "time zones"),
    }


def test_the_doctor_finds_a_missing_handler(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs:\n  purge: {handler: nowhere.run, cron: '0 2 * * *'}\n")

    result = cli("doctor")

    assert result.code == 1
    assert "fail  handlers" in result.out
    assert "nowhere" in result.out

    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/nowhere.py").write_text("def run(): ...\n")
    assert re.search("ok +handlers", cli("doctor", "--path", tmp_path / "lib").out)


def test_the_doctor_does_not_report_that_an_invalid_file_will_be_applied(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs:\n  purge: {handler: jobs.run, retires: 3}\n")

    result = cli("doctor")

    assert result.code == 1
    assert "schedules.yaml has 1 error\n" in result.out
    assert "yamlsched sync" not in result.out
    assert "connected to a server, not to the embedded database" in result.out
    assert re.search("ok +pooler +none was detected", result.out)


def test_the_doctor_reports_what_to_do_without_a_database(cli: Cli) -> None:
    result = cli("doctor", "--dsn", "host=/nowhere")

    assert result.code == 1
    assert "fail  database" in result.out
    assert "check YAMLSCHED_DSN, the network and pg_hba.conf" in result.out


def test_the_doctor_reports_missing_migrations(own_dsn: str, cli: Cli) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as connection:
        connection.execute("delete from yamlsched.migrations where version > 1")

    result = cli("doctor", "--dsn", own_dsn)

    assert result.code == 1
    assert "yamlsched migrate" in result.out


def test_the_doctor_compares_the_clock_with_the_database(db: Db) -> None:
    [finding] = [f for f in doctor_server.server(db, host_now=datetime.now(UTC) + HOUR) if f.name == "clock"]

    assert (finding.level, finding.what[:21]) == ("warn", "this host's clock is ")
    assert finding.what.endswith("ahead of the database's")


@pytest.mark.parametrize(
    ("age", "level"), [(timedelta(seconds=30), "ok"), (timedelta(minutes=6), "fail"), (None, "warn")]
)
def test_the_doctor_reports_whether_there_are_ticks(db: Db, age: timedelta | None, level: str) -> None:
    now = health.read(db, "default", HOUR)
    measured = replace(now, last_tick_at=None if age is None else now.now - age, last_tick_host="web-1")

    assert doctor.ticking(measured, socket.gethostname()).level == level


def test_the_doctor_compares_the_file_in_force_and_the_time_zone_data(db: Db) -> None:
    def levels(tzdata: str, sha256: str | None) -> list[str]:
        return [finding.level for finding in doctor.files(health.read(db, "default", HOUR), tzdata, sha256)]

    assert levels("2026a", None) == ["warn", "ok"]
    a_file_row(db, tzdata_version="2026a")
    assert levels("2026a", "a" * 64) == ["ok", "ok"]
    assert levels("2025b", "b" * 64) == ["warn", "warn"]


def test_failed_attempts_are_counted_by_job_and_type_of_error(db: Db) -> None:
    job = a_healthy_job(db, overlap="allow")
    run = a_run(db, job, "succeeded", failed_at="(now())")
    old = a_run(db, job, "failed", failed_at="(now() - interval '61 minutes')")
    call = a_run(db, job, "dead", idempotency_key=f"on_dead:{old}")
    for of_run, attempt, minutes, error_type in (
        (run, 1, 59, "OSError"),
        (run, 2, 58, "KeyError"),
        (run, 3, 1, "OSError"),
        (run, 4, 0, None),
        (run, 5, 61, "TooOld"),
        (old, 1, 61, "TooOld"),
        (call, 1, 0, "OfOnDead"),
    ):
        a_failed_attempt(db, of_run, attempt, error_type, minutes)

    assert failed_attempts(db) == {"OSError": 2, "KeyError": 1, "none": 1}


@pytest.mark.parametrize("types", [4, 5, 6, 8])
def test_the_types_of_error_in_metrics_are_bounded(db: Db, types: int) -> None:
    # given more and less frequent types, and a lost worker
    run = a_run(db, a_healthy_job(db), "failed")
    attempts = [f"E{nth}" for nth in range(types) for _ in range(10 - nth)] + ["LostWorker"]
    for nth, error_type in enumerate(attempts):
        a_failed_attempt(db, run, nth, error_type)

    named = {f"E{nth}": 10 - nth for nth in range(min(types, metrics.MAX_ERROR_TYPES))}
    rest = sum(10 - nth for nth in range(metrics.MAX_ERROR_TYPES, types))
    assert failed_attempts(db) == {**named, "LostWorker": 1, **({"other": rest} if rest else {})}


def test_labels_are_escaped_and_of_bounded_length(db: Db) -> None:
    hostile = 'a"b\\c\nd\x1b[2J"} 1\n'
    run = a_run(db, a_healthy_job(db, owner=hostile), "failed")
    a_failed_attempt(db, run, 1, hostile)
    a_failed_attempt(db, run, 2, "x" * 10_000)

    found = families(metrics.text(db, "default"))

    shown = 'a"b\\c\\nd\\x1b[2J"} 1\\n'
    [streak] = found["yamlsched_job_failure_streak"].samples
    assert (streak.labels["owner"], streak.value) == (shown, 1)
    assert {s.labels["error_type"] for s in found["yamlsched_recent_failed_attempts"].samples} == {shown, "x" * 200}


def test_metrics_of_jobs_name_their_owner(db: Db) -> None:
    for name, owner in (("purge", "team-data"), ("mail", "")):
        job = a_job(db, name, owner=owner)
        a_failed_attempt(db, a_run(db, job, "failed"), 1, "OSError")
        an_effect(db, a_run(db, job, "succeeded"), "in_doubt")
    an_effect(db, 999_999, "in_doubt")  # of a pruned run

    found = families(metrics.text(db, "default")).values()

    of_jobs = [sample for family in found for sample in family.samples if sample.labels.get("job_name")]
    owners = {sample.labels["job_name"]: sample.labels.get("owner") for sample in of_jobs}
    assert owners == {"purge": "team-data", "mail": None}
    assert {sample.labels.get("owner") for sample in of_jobs if sample.labels["job_name"] == "purge"} == {"team-data"}
    assert {family.name for family in found if any("owner" in s.labels for s in family.samples)} > {
        "yamlsched_runs",
        "yamlsched_effects_in_doubt",
        "yamlsched_recent_runs",
        "yamlsched_recent_failed_attempts",
        "yamlsched_recent_run_duration_seconds",
    }


def test_hosts_that_were_seen_within_the_hour_are_metrics(db: Db) -> None:
    job = a_healthy_job(db, overlap="allow")
    for _ in range(2):
        a_run(db, job, "running", locked_by="web-2:9:dead")
    a_run(db, job, "succeeded")

    found = families(metrics.text(db, "default"))

    running = found["yamlsched_worker_running_runs"].samples
    assert {s.labels["host"]: s.value for s in running} == {"web-2": 2, "web-1": 0}
    seen = of(found["yamlsched_worker_last_seen_timestamp_seconds"], host="web-1")
    assert abs(seen - datetime.now(UTC).timestamp()) < 60


def a_failed_attempt(db: Db, run: int, attempt: int, error_type: str | None, minutes_ago: int = 1) -> None:
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, error_type)"
        " values (%s, %s, 'web-1:1:ff', now() - %s * interval '1 minute', 'no route to host', %s)",
        [run, attempt, minutes_ago, error_type],
    )


def failed_attempts(db: Db) -> dict[str, float]:
    found = families(metrics.text(db, "default"))["yamlsched_recent_failed_attempts"]
    return {sample.labels["error_type"]: sample.value for sample in found.samples}
