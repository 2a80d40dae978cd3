"""``metrics``: what is exported for Prometheus."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.health import a_failed_attempt, a_healthy_job, an_effect, families, of
from support.rows import a_job, a_run
from yamlsched.extras.metrics import metrics

HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


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
    assert {s.labels["status"]: s.value for s in runs.samples} == {
        "queued": 1,
        "running": 1,
        "failed": 1,
        "dead": 1,
    }
    assert of(found["yamlsched_recent_runs"], status="succeeded") == 3
    histogram = found["yamlsched_recent_run_duration_seconds"]
    assert histogram.type == "histogram"
    assert [of(histogram, le=bound) for bound in ("0.01", "0.1", "0.5", "60", "300", "+Inf")] == [
        0,
        1,
        2,
        2,
        3,
        3,
    ]
    [total] = [s.value for s in histogram.samples if s.name.endswith("_sum")]
    assert total == pytest.approx(70.200001)
    assert 3600 <= of(found["yamlsched_oldest_due_seconds"]) < 3700
    assert 3600 <= of(found["yamlsched_job_late_seconds"], job_name="purge") < 3700
    assert of(found["yamlsched_tick_age_seconds"]) < 60
    assert of(found["yamlsched_stuck_runs"]) == 0
    assert of(found["yamlsched_other_files"]) == 0
    assert of(found["yamlsched_job_failure_streak"], job_name="purge") == 2
    assert (
        abs(
            of(found["yamlsched_job_last_success_timestamp_seconds"])
            - datetime.now(UTC).timestamp()
        )
        < 60
    )


def test_an_empty_namespace_has_metrics_that_parse(cli: Cli) -> None:
    found = families(cli("metrics").out)

    assert of(found["yamlsched_oldest_due_seconds"]) == 0
    assert "yamlsched_tick_age_seconds" not in found


def test_a_textfile_is_replaced_atomically_and_readable_by_its_collector(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
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
    a_run(db, job, "dead")
    a_run(db, job, "succeeded")
    a_job(db, "paused", paused_at=datetime.now(UTC), paused_by="yamlsched", paused_after=3)
    written = set(families(metrics.text(db, "default")))

    rules = (Path(__file__).parents[3] / "deploy" / "prometheus-alerts.yml").read_text()
    named = {
        re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"yamlsched_[a-z_]+", rules)
    }

    assert named
    assert named <= written


def test_every_alert_has_a_page_in_the_runbook() -> None:
    import yaml

    root = Path(__file__).parents[3]
    rules = yaml.safe_load((root / "deploy" / "prometheus-alerts.yml").read_text())
    book = (root / "docs" / "runbook.md").read_text()

    for alert in [rule["alert"] for group in rules["groups"] for rule in group["rules"]]:
        assert f"## {alert}\n" in book


def test_failed_attempts_are_counted_by_job_and_type_of_error(db: Db) -> None:
    job = a_healthy_job(db, overlap="allow")
    run = a_run(db, job, "succeeded", failed_at="(now())")
    old = a_run(db, job, "failed", failed_at="(now() - interval '61 minutes')")
    for of_run, attempt, minutes, error_type in (
        (run, 1, 59, "OSError"),
        (run, 2, 58, "KeyError"),
        (run, 3, 1, "OSError"),
        (run, 4, 0, None),
        (run, 5, 61, "TooOld"),
        (old, 1, 61, "TooOld"),
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
    assert {s.labels["error_type"] for s in found["yamlsched_recent_failed_attempts"].samples} == {
        shown,
        "x" * 200,
    }


def test_metrics_of_jobs_name_their_owner(db: Db) -> None:
    for name, owner in (("purge", "team-data"), ("mail", "")):
        job = a_job(db, name, owner=owner)
        a_failed_attempt(db, a_run(db, job, "failed"), 1, "OSError")
        an_effect(db, a_run(db, job, "succeeded"), "in_doubt")
    an_effect(db, 999_999, "in_doubt")  # of a pruned run

    found = families(metrics.text(db, "default")).values()

    of_jobs = [
        sample for family in found for sample in family.samples if sample.labels.get("job_name")
    ]
    owners = {sample.labels["job_name"]: sample.labels.get("owner") for sample in of_jobs}
    assert owners == {"purge": "team-data", "mail": None}
    assert {
        sample.labels.get("owner") for sample in of_jobs if sample.labels["job_name"] == "purge"
    } == {"team-data"}
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


def test_queues_have_what_is_due_what_executes_and_their_workers(db: Db) -> None:
    earlier = "(now() - interval '1 minute')"
    job = a_healthy_job(db, overlap="allow")
    a_run(db, job, queue="gpu", run_at=earlier, created_at=earlier)
    for _ in range(2):
        a_run(db, job, "running", queue="gpu")
    db.execute(
        "insert into yamlsched.workers (namespace, id, queue, host, path, reported_at, seen_at)"
        " values ('default', 'gpu-1', 'gpu', 'node-1', '/srv/schedules.yaml', now(), now())"
    )

    found = families(metrics.text(db, "default"))

    runs, workers = (
        {s.labels["state"]: s.value for s in found[name].samples if s.labels["queue"] == "gpu"}
        for name in ("yamlsched_queue_runs", "yamlsched_queue_workers")
    )
    assert (runs, workers) == ({"due": 1, "running": 2}, {"live": 1, "starting": 0, "leaving": 0})
    assert of(found["yamlsched_queue_oldest_due_seconds"], queue="gpu") >= 60


def failed_attempts(db: Db) -> dict[str, float]:
    found = families(metrics.text(db, "default"))["yamlsched_recent_failed_attempts"]
    return {sample.labels["error_type"]: sample.value for sample in found.samples}
