"""Each alert of deploy/ fires when it should, and only then: Prometheus' own test tool evaluates the rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from yamlsched.extras.metrics import metrics

FILE = Path(__file__).parents[3] / "deploy" / "prometheus-alerts.yml"
ALERTS = [
    rule["alert"]
    for group in yaml.safe_load(FILE.read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
NAMESPACE = {"namespace": "default"}
JOB = {**NAMESPACE, "job_name": "cleanup_nightly", "owner": "team-data"}
Series = tuple[str, dict[str, str], str]


class Case(NamedTuple):
    """What is exported, minute by minute in the notation of promtool, and the alerts at an instant: labels, summary."""

    alert: str
    name: str
    series: list[Series]
    at: str
    alerts: list[tuple[dict[str, str], str]]


def fresh(minutes: int) -> Series:
    """Return the timestamp of metrics that are written each minute. Tests start at 1970."""
    return ("metrics_timestamp_seconds", NAMESPACE, f"0+60x{minutes}")


def limit(
    alert: str,
    metric: str,
    labels: dict[str, str],
    healthy: str,
    broken: str,
    at: str,
    summary: str,
) -> list[Case]:
    """Return that ``alert`` fires at a value of one metric and not at another one, nor before its time is up."""
    return [
        Case(alert, "broken", [(metric, labels, f"{broken}x6000")], at, [(labels, summary)]),
        Case(alert, "healthy", [(metric, labels, f"{healthy}x6000")], at, []),
    ]


DIED, IN_DOUBT = {**JOB, "status": "dead"}, {**JOB, "waits_for": "person"}
CASES = [
    Case("YamlschedMetricsMissing", "written", [fresh(4320)], "3d", []),
    Case(
        "YamlschedMetricsMissing",
        "a file that nobody writes stays",
        [
            ("metrics_timestamp_seconds", NAMESPACE, "60x4320"),
            ("tick_age_seconds", NAMESPACE, "12x4320"),
        ],
        "3d",
        [(NAMESPACE, "No new metrics from yamlsched")],
    ),
    Case("YamlschedMetricsMissing", "none", [], "10m", [({}, "No new metrics from yamlsched")]),
    Case(
        "YamlschedNoTick",
        "ticks",
        [fresh(600), ("tick_age_seconds", NAMESPACE, "20x600")],
        "1h",
        [],
    ),
    Case(
        "YamlschedNoTick",
        "ticks stopped",
        [fresh(600), ("tick_age_seconds", NAMESPACE, "0+60x600")],
        "1h",
        [(NAMESPACE, "No tick for 1h 0m 0s in namespace default")],
    ),
    Case(
        "YamlschedNoTick",
        "one namespace never ticked",
        [
            fresh(600),
            ("metrics_timestamp_seconds", {"namespace": "shop"}, "0+60x600"),
            ("tick_age_seconds", NAMESPACE, "20x600"),
        ],
        "1h",
        [({"namespace": "shop"}, "No tick ever in namespace shop")],
    ),
    *limit(
        "YamlschedRunDied",
        "recent_runs",
        DIED,
        "0",
        "2",
        "5m",
        "2 runs of cleanup_nightly died within the hour",
    ),
    Case(
        "YamlschedRunDied",
        "succeeded",
        [("recent_runs", {**JOB, "status": "succeeded"}, "9x60")],
        "5m",
        [],
    ),
    *limit(
        *("YamlschedJobFailing", "job_failure_streak", JOB, "2", "3", "6m"),
        "cleanup_nightly has failed 3 times since its last success",
    ),
    *limit(
        *("YamlschedAttemptsFailing", "job_failure_streak_attempts", JOB, "2", "3", "6m"),
        "Attempts of cleanup_nightly fail (3): its runs are still retried",
    ),
    *limit(
        *("YamlschedAttemptsFailing", "job_failing_runs", JOB, "0", "1", "6m"),
        "Attempts of cleanup_nightly fail (1): its runs are still retried",
    ),
    *limit(
        *("YamlschedHeldUp", "job_held_up_seconds", JOB, "14400", "14460", "3m"),
        "cleanup_nightly has waited for the jobs that it follows for 4h 1m 0s",
    ),
    *limit(
        "YamlschedJobLate",
        "job_late_seconds",
        JOB,
        "0",
        "960",
        "1m",
        "cleanup_nightly is late by 16m 0s",
    ),
    *limit(
        *("YamlschedBacklog", "oldest_due_seconds", NAMESPACE, "900", "960", "6m"),
        "The oldest due run of namespace default has waited for 16m 0s",
    ),
    *limit(
        "YamlschedRunStuck",
        "stuck_runs",
        NAMESPACE,
        "0",
        "1",
        "6m",
        "1 runs are past their lease or their timeout",
    ),
    *limit(
        *("YamlschedEffectInDoubt", "effects_in_doubt", IN_DOUBT, "0", "1", "5m"),
        "1 effects of cleanup_nightly are in doubt: it is unknown whether they happened",
    ),
    Case(
        "YamlschedEffectInDoubt",
        "a retry",
        [("effects_in_doubt", {**JOB, "waits_for": "retry"}, "1x60")],
        "5m",
        [],
    ),
    *limit(
        *("YamlschedFileRefused", "refused_files", NAMESPACE, "0", "1", "3m"),
        "A schedules.yaml of namespace default has errors and is not applied",
    ),
    *limit(
        *("YamlschedFileDrift", "other_files", NAMESPACE, "0", "1", "5m"),
        "Hosts of namespace default have different versions of schedules.yaml",
    ),
    *limit(
        *("YamlschedPruneFailing", "prune_failing_seconds", NAMESPACE, "0", "7200", "61m"),
        "Nothing has been pruned in namespace default for 2h 0m 0s",
    ),
    *limit(
        *("YamlschedPausedAfter", "job_paused_after", JOB, "_", "5", "1m"),
        "cleanup_nightly was paused after 5 dead runs in a row",
    ),
    *limit(
        "YamlschedPausedLong",
        "job_paused",
        JOB,
        "0",
        "1",
        "25h",
        "cleanup_nightly has been paused for a day",
    ),
    Case("YamlschedPausedLong", "an hour", [("job_paused", JOB, "1x600")], "1h", []),
    Case(
        "YamlschedNoSuccess",
        "succeeded once",
        [("job_last_success_timestamp_seconds", JOB, "0x6000")],
        "27h",
        [(JOB, "cleanup_nightly has not succeeded for 1d 3h 0m 0s")],
    ),
    Case(
        "YamlschedNoSuccess",
        "succeeds",
        [("job_last_success_timestamp_seconds", JOB, "0+60x6000")],
        "27h",
        [],
    ),
    Case(
        "YamlschedNeverSucceeded",
        "never",
        [fresh(6000)],
        "27h",
        [({"job_name": "cleanup_nightly"}, "cleanup_nightly has never succeeded")],
    ),
    Case("YamlschedNeverSucceeded", "not yet", [fresh(6000)], "25h", []),
    Case(
        "YamlschedNeverSucceeded",
        "once",
        [("job_last_success_timestamp_seconds", JOB, "0x6000")],
        "27h",
        [],
    ),
]


def rule_of(alert: str) -> Any:
    [rule] = [
        rule
        for group in yaml.safe_load(FILE.read_text("utf-8"))["groups"]
        for rule in group["rules"]
        if rule["alert"] == alert
    ]
    return rule


def test_each_alert_is_tested_to_fire_and_not_to_fire() -> None:
    for fires in (True, False):
        assert {case.alert for case in CASES if bool(case.alerts) == fires} == set(ALERTS)


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    assert program, "install promtool: it is in Debian's package prometheus"
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


@pytest.mark.promtool
def test_prometheus_accepts_the_file_of_the_alerts() -> None:
    result = promtool("check", "rules", FILE)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.promtool
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}, {case.name}, {case.at}")
def test_an_alert_fires_only_when_it_should(case: Case, tmp_path: Path) -> None:
    # only its own rule: promtool evaluates all of a file for each minute, and there are days of them
    rule = rule_of(case.alert)
    rules = {"groups": [{"name": "yamlsched", "rules": [rule]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    expected: list[dict[str, Any]] = [
        {
            "exp_labels": {**labels, "severity": rule["labels"]["severity"]},
            "exp_annotations": {"summary": summary},
        }
        for labels, summary in case.alerts
    ]
    series = [
        {"series": f"yamlsched_{metric}{{{metrics.pairs(labels)}}}", "values": values}
        for metric, labels, values in case.series
    ]
    test = {
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected}
        ],
    }
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]})
    )

    result = promtool("test", "rules", tmp_path / "test.yml")

    assert result.returncode == 0, result.stdout + result.stderr
