"""What needs attention: each problem is reported while it lasts, and nothing else is."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.health import (
    PROVIDER_KEY,
    a_healthy_job,
    an_effect,
    families,
    in_doubt,
    of,
    of_metrics,
    reasons,
    the_job,
)
from support.rows import a_job, a_place, a_run
from yamlsched.ask import attention, health
from yamlsched.ask.problem import Thresholds
from yamlsched.extras.doctor import doctor
from yamlsched.extras.metrics import metrics

HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_a_healthy_namespace_has_no_problems(db: Db) -> None:
    a_run(db, a_healthy_job(db), "succeeded")

    assert reasons(db) == []


@pytest.mark.parametrize("jobs", [3, 8])
def test_many_jobs_that_died_of_one_type_of_error_are_one_problem(db: Db, jobs: int) -> None:
    a_place(db)
    for nth in range(jobs):
        job = a_job(db, f"job_{nth}", owner=f"team-{nth % 2}")
        a_run(db, job, "dead", last_error="no route to host", error_type="DatabaseDown")
    a_run(db, a_job(db, "other", owner="shop"), "dead", error_type="KeyError")

    found = [each for each in attention.problems(health.read(db, "default", HOUR), Thresholds())
             if each.kind == "dead"]  # fmt: skip

    if jobs == 3:
        assert sorted(each.job_type or "" for each in found) == ["job_0", "job_1", "job_2", "other"]
    else:
        [cause] = [each for each in found if each.job_type is None]
        assert len(found) == 2
        assert cause.what == (
            "8 runs of 8 jobs died: DatabaseDown: no route to host (job_0, job_1, job_2 and 5 more)"
        )
        assert cause.remedy.endswith("yamlsched retry --dead --error-type DatabaseDown --since 1h")
        assert (cause.owner, cause.error_type) == ("team-0, team-1", "DatabaseDown")


def test_the_problem_for_dead_runs_contains_their_error(db: Db) -> None:
    job = a_healthy_job(db)
    dead = a_run(db, job, "dead", last_error="disk full")
    a_run(db, job, "succeeded", failed_at="(now())", last_error="lost its worker")

    assert reasons(db) == ["purge: 1 run died within 1h: OSError: disk full"]

    db.execute(
        "update yamlsched.job_runs set dead_at = now() - interval '2 hours' where id = %s", [dead]
    )

    assert reasons(db) == []


def test_each_exceeded_threshold_is_a_problem(db: Db) -> None:
    job = a_healthy_job(db)
    a_run(db, job, "dead")
    due = datetime.now(UTC) - timedelta(minutes=20)
    a_run(db, job, run_at=due, created_at=due)

    assert [reason.split(" by ")[0] for reason in reasons(db)] == [
        "purge: 1 run died within 1h: OSError: no route to host",
        "purge: late",
    ]
    assert reasons(db, Thresholds(max_dead=1)) == ["purge: late by 20m: its run has not started"]


def test_runs_that_died_long_ago_are_not_a_problem(db: Db) -> None:
    a_run(db, a_healthy_job(db), "dead", finished_at="(now() - interval '2 hours')")

    assert reasons(db) == []


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


def test_an_effect_in_doubt_is_a_problem_until_it_is_settled_unless_a_retry_resolves_it(
    db: Db, cli: Cli
) -> None:
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
    assert "in doubt   1 effect for you to settle, 1 that the run's retry resolves\n" in screen
    assert (
        f"      yamlsched settle --done {key} (or --not-done), then: yamlsched retry {dead}\n"
        in screen
    )
    document = json.loads(cli("status", "--format", "json").out)
    assert document["in_doubt_counts"] == {"person": 1, "retry": 1}
    assert [(e["key"], e["waits_for"]) for e in document["in_doubt"]][:1] == [(key, "person")]
    found = families(metrics.text(db, "default"))["yamlsched_effects_in_doubt"]
    assert of(found, job_name="purge", waits_for="person") == 1
    assert of(found, job_name="purge", waits_for="retry") == 1

    assert cli("settle", key, "--done").code == 0
    assert cli("status", "--check").code == 0
    assert (
        of(
            families(metrics.text(db, "default"))["yamlsched_effects_in_doubt"],
            job_name="purge",
            waits_for="person",
        )
        == 0
    )


def test_the_remedy_for_an_effect_in_doubt_of_a_succeeded_run_is_only_to_settle_it(db: Db) -> None:
    key = an_effect(db, a_run(db, a_healthy_job(db), "succeeded"), "in_doubt")

    [problem] = attention.problems(health.read(db, "default", HOUR), Thresholds())

    assert problem.remedy == f"yamlsched settle --done {key} (or --not-done)"


@pytest.mark.parametrize(
    "effects, more",
    [(10, None), (11, "1 more effect is in doubt"), (12, "2 more effects are in doubt")],
)
def test_only_the_oldest_ten_effects_in_doubt_are_named_but_all_are_counted(
    db: Db, effects: int, more: str | None
) -> None:
    a_healthy_job(db)
    for n in range(effects):
        an_effect(db, 999_000 + n, "in_doubt")
    db.execute(
        "update yamlsched.effects set doubted_at = now() - interval '1 hour' * (1000000 - run_id)"
    )

    found = reasons(db)

    assert found[0].startswith('effect "run:999000:mail" of run 999000 has been in doubt for ')
    assert found[10:] == ([more] if more else [])
    assert health.read(db, "default", HOUR).effects_in_doubt("person") == effects


def test_a_missing_and_an_old_tick_are_problems(db: Db) -> None:
    assert reasons(db) == ['there has been no tick in namespace "default"']

    a_place(db, seen_at=datetime.now(UTC) - timedelta(hours=7))

    assert reasons(db) == ["no tick for 7h; the last came from web-1"]


def test_a_different_file_is_a_problem_after_the_time_of_a_rolling_deployment(db: Db) -> None:
    # given a host that has had the old file for days when another one was applied
    now = datetime.now(UTC)
    a_place(db, applied_at=now - timedelta(minutes=9))
    a_place(db, in_use=False, hash="b" * 64, host="web-2", since=now - timedelta(days=9))
    assert (reasons(db), of_metrics(db, "yamlsched_other_files")) == ([], 0)

    db.execute("update yamlsched.namespaces set applied_at = %s", [now - 3 * HOUR])

    [reason] = reasons(db)
    assert reason == (
        "web-2:/srv/schedules.yaml has had another file (bbbbbbbb) for 3h; "
        "the file in use is aaaaaaaa of web-1:/srv/schedules.yaml"
    )
    assert of_metrics(db, "yamlsched_other_files") == 1


def test_status_shows_a_file_that_is_not_in_use_at_once(db: Db, cli: Cli) -> None:
    now = datetime.now(UTC)
    a_place(db, applied_at=now - HOUR)
    since = now - timedelta(minutes=1)
    a_place(db, in_use=False, hash="b" * 64, host="web-2", since=since)

    shown = f"web-2:/srv/schedules.yaml has bbbbbbbb since {since:%Y-%m-%dT%H:%M:%SZ}"
    assert f"{shown}, which is not in use\n" in cli("status").out
    assert reasons(db) == []
    [file] = json.loads(cli("status", "--format", "json").out)["files_not_in_use"]
    assert file["hash"] == "b" * 64


def test_status_and_doctor_show_a_host_of_another_environment(db: Db, cli: Cli) -> None:
    now = datetime.now(UTC)
    a_place(db, environment="production", applied_at=now - HOUR)
    why = "/srv/schedules.yaml is not applied: its namespace belongs to environment"
    a_place(
        db,
        in_use=False,
        environment="staging",
        host="web-2",
        refused_at=now - HOUR,
        errors=[f'{why} "production"'],
    )

    shown = "web-2:/srv/schedules.yaml is not applied: its namespace belongs to environment"
    assert f'{shown} "production", since ' in cli("status").out
    [problem] = attention.problems(health.read(db, "default", HOUR), Thresholds())
    assert problem.what.startswith(shown)
    assert problem.remedy.startswith("correct --env")
    [check, _] = doctor.files(health.read(db, "default", HOUR), "2026a", "a" * 64, True, "staging")
    assert (check.level, check.what[:38]) == ("warn", 'the namespace belongs to environment "')


@pytest.mark.parametrize(("limit", "unhealthy"), [(4, True), (5, False), (6, False), (None, False)])
def test_the_dead_runs_of_all_jobs_have_a_limit_of_their_own(
    db: Db, cli: Cli, limit: int | None, unhealthy: bool
) -> None:
    # given five dead runs, none of more than three of one job, and an old one
    a_place(db)
    for name, dead in (("mail", 2), ("purge", 3)):
        job = a_job(db, name, schedule=None)
        for _ in range(dead):
            a_run(db, job, "dead")
    a_run(db, job, "dead", finished_at="(now() - interval '61 minutes')")

    shown = cli(
        "status",
        "--check",
        "--max-dead",
        3,
        *(() if limit is None else ("--max-dead-total", limit)),
    )

    expected = f"5 runs of all jobs died within 1h; the limit is {limit}\n"
    assert (shown.code, shown.out if unhealthy else "") == ((1, expected) if unhealthy else (0, ""))


@pytest.mark.parametrize(("limit", "unhealthy"), [(1, True), (2, False), (3, False), (None, True)])
def test_the_dead_runs_of_one_job_have_a_limit(
    db: Db, cli: Cli, limit: int | None, unhealthy: bool
) -> None:
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    for _ in range(2):
        a_run(db, job, "dead")

    shown = cli("status", "--check", *(() if limit is None else ("--max-dead", limit)))

    expected = "purge: 2 runs died within 1h: OSError: no route to host\n"
    assert (shown.code, shown.out if unhealthy else "") == ((1, expected) if unhealthy else (0, ""))


@pytest.mark.parametrize(("minutes", "unhealthy"), [(19, True), (21, False), (None, True)])
def test_the_age_of_the_last_tick_has_a_limit(
    db: Db, cli: Cli, minutes: int | None, unhealthy: bool
) -> None:
    a_place(db, seen_at=datetime.now(UTC) - timedelta(minutes=20))

    shown = cli(
        "status", "--check", *(() if minutes is None else ("--max-tick-age", f"{minutes}m"))
    )

    assert (shown.code, shown.out.startswith("ok: ")) == ((1, False) if unhealthy else (0, True))


@pytest.mark.parametrize(("limit", "unhealthy"), [(None, True), (0, True), (1, True), (2, False)])
def test_runs_that_fail_again_and_again_have_a_limit(
    db: Db, cli: Cli, limit: int | None, unhealthy: bool
) -> None:
    # given a run that has failed three times, one of three attempts that has failed twice and runs again; one that has
    # failed twice of five, a run without a failure, and one that an operator queued again after its death
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    last = a_run(db, job, "failed", attempts=3, failed_at="(now())", error_type="OSError")
    a_run(db, job, "running", attempts=3, max_attempts=6, failed_at="(now() - interval '1 minute')")
    a_run(db, job, "running", attempts=3, max_attempts=3, failed_at="(now() - interval '1 minute')")
    a_run(db, job, "running")
    a_run(
        db,
        job,
        "queued",
        attempts=5,
        prior_attempts=5,
        max_attempts=10,
        failed_at="(now() - interval '1 minute')",
    )

    assert the_job(db).failing == 2
    assert of_metrics(db, "yamlsched_job_failing_runs") == 2
    shown = cli("status", "--check", *(() if limit is None else ("--max-failing", limit)))

    expected = f"purge: 2 runs are failing: run {last} has failed 3 of 5 attempts: OSError: no route to host\n"
    assert the_job(db).state == "failing"
    assert (shown.code, shown.out if unhealthy else "") == ((1, expected) if unhealthy else (0, ""))


@pytest.mark.parametrize(
    ("limit", "unhealthy"), [(8, True), (9, False), (10, False), (None, False)]
)
def test_failed_attempts_since_the_last_success_have_a_limit(
    db: Db, cli: Cli, limit: int | None, unhealthy: bool
) -> None:
    # given since the last success a dead run with five attempts, one with three failed attempts that is being retried,
    # one that failed once and runs again; before it, another dead run
    job = a_healthy_job(db, schedule=None, next_slot_at=None)
    success = "(now() - interval '3 hours')"
    a_run(db, job, "dead", finished_at="(now() - interval '4 hours')")
    a_run(db, job, "succeeded", finished_at=success)
    a_run(
        db,
        job,
        "dead",
        finished_at="(now() - interval '2 hours')",
        failed_at="(now() - interval '2 hours')",
    )
    last = a_run(db, job, "failed", attempts=3, failed_at="(now())", error_type="OSError")
    a_run(db, job, "running", attempts=2, failed_at="(now() - interval '1 hour')")

    assert (the_job(db).failure_streak, the_job(db).attempt_streak) == (3, 9)
    assert of_metrics(db, "yamlsched_job_failure_streak_attempts") == 9
    assert " 3 (9 attempts) " in cli("status").out
    options = () if limit is None else ("--max-streak", limit)
    shown = cli("status", "--check", "--max-failing", 1, *options)

    expected = "purge: 9 failed attempts since the last success: OSError: no route to host\n"
    assert (shown.code, shown.out if unhealthy else "") == ((1, expected) if unhealthy else (0, ""))
    [problem] = attention.problems(
        health.read(db, "default", HOUR), Thresholds(max_streak=0, max_failing=1)
    )
    assert problem.remedy == f"yamlsched show {last}"


def test_a_success_ends_the_streak_of_attempts(db: Db) -> None:
    job = a_healthy_job(db)
    a_run(db, job, "failed", attempts=3, failed_at="(now() - interval '1 minute')")
    assert the_job(db).attempt_streak == 3

    a_run(db, job, "succeeded")

    assert (the_job(db).failure_streak, the_job(db).attempt_streak, the_job(db).failing) == (
        0,
        0,
        1,
    )
