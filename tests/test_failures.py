"""Failures by job and type of error, and what shows them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.rows import a_job, a_long_history, a_run, rows_read
from yamlsched.ask import failures
from yamlsched.ask.failures import how_they_ended
from yamlsched.db.query import load

NOW = datetime(2026, 1, 14, 12, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def ended(db: Db, job: int, status: str, ago: timedelta, **more: Any) -> int:
    at = NOW - ago
    if status == "dead":
        more["failed_at"] = at
    return a_run(db, job, status, finished_at=at, **more)


def a_failure(
    db: Db, run: int, attempt: int, ago: timedelta, error_type: str | None = "OSError"
) -> None:
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, error_type)"
        " values (%s, %s, 'web-1:1:ff', %s, 'no route to host', %s)",
        [run, attempt, NOW - ago, error_type],
    )


# -- groups


def test_dead_runs_are_grouped_by_job_and_type_of_error(db: Db) -> None:
    purge, mail = a_job(db, "purge"), a_job(db, "mail", timezone="Europe/Berlin")
    ended(db, purge, "dead", 5 * HOUR, last_error="first")
    last = ended(db, purge, "dead", 2 * HOUR, last_error="last", idempotency_key="purge:x")
    untyped = ended(db, purge, "dead", 3 * HOUR, error_type=None, last_error="exited with code 3")
    timeout = ended(db, mail, "dead", 50 * HOUR, error_type="Timeout")
    a_run(db, mail, "succeeded")
    ended(db, a_job(db, "purge", namespace="billing"), "dead", HOUR)

    found = failures.groups(db, "default", None, only_dead=True)

    assert found.is_complete
    assert [(g.job_type, g.error_type, g.runs, g.example_id) for g in found.groups] == [
        ("purge", "OSError", 2, last),
        ("purge", "", 1, untyped),
        ("mail", "Timeout", 1, timeout),
    ]
    group = found.groups[0]
    assert (group.first_at, group.last_at) == (NOW - 5 * HOUR, NOW - 2 * HOUR)
    assert (group.example_error, group.example_key, group.examined, group.total) == (
        "last",
        "purge:x",
        3,
        4,
    )
    assert found.groups[2].timezone == "Europe/Berlin"
    assert [
        g.example_id for g in failures.groups(db, "default", NOW - 3 * HOUR, only_dead=True).groups
    ] == [last, untyped]
    assert failures.groups(db, "billing", NOW, only_dead=True).groups == []


def test_the_number_of_dead_runs_that_are_read_is_bounded(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = a_job(db), a_job(db, "other")
    for nth in range(5):
        ended(db, job, "dead", nth * HOUR)
    ended(db, other, "dead", 9 * HOUR)
    monkeypatch.setattr(failures, "MAX_OF_JOB", 3)
    found = failures.groups(db, "default", None, only_dead=True)
    assert [(g.runs, g.examined) for g in found.groups] == [(3, 3), (1, 1)]
    assert (found.groups[0].first_at, found.is_complete) == (NOW - 2 * HOUR, True)
    monkeypatch.setattr(failures, "MAX_FAILED", 4)
    assert not failures.groups(db, "default", None, only_dead=True).is_complete
    monkeypatch.setattr(failures, "MAX_FAILED", 5)
    assert failures.groups(db, "default", None, only_dead=True).is_complete


@pytest.mark.parametrize("only_dead", [True, False])
def test_of_too_many_failed_runs_those_of_the_jobs_with_most_are_read(
    db: Db, monkeypatch: pytest.MonkeyPatch, only_dead: bool
) -> None:
    # given jobs with one, three and two dead runs, and runs that died before the span
    few, most, some = (a_job(db, name) for name in ("few", "most", "some"))
    for job, runs in ((few, 1), (most, 3), (some, 2)):
        for nth in range(runs):
            ended(db, job, "dead", nth * HOUR)
    for _ in range(9):
        ended(db, few, "dead", 9 * HOUR)

    def read(limit: int) -> tuple[dict[str, int], bool]:
        monkeypatch.setattr(failures, "MAX_FAILED", limit)
        found = failures.groups(db, "default", NOW - 5 * HOUR, only_dead=only_dead)
        return {group.job_type: group.runs for group in found.groups}, found.is_complete

    # then a limit leaves out those of the jobs with fewest
    assert read(3) == ({"most": 3}, False)
    assert read(5) == ({"most": 3, "some": 2}, False)
    assert read(6) == ({"most": 3, "some": 2, "few": 1}, False)
    assert read(7) == ({"most": 3, "some": 2, "few": 1}, True)


def test_a_group_counts_its_failed_attempts_and_what_became_of_the_runs(db: Db) -> None:
    # given four runs whose latest error was of one type: dead, to be retried, running again, and succeeded since
    job = a_job(db, overlap="allow")
    typed = {"error_type": "OSError", "last_error": "no route to host"}
    runs = [
        ended(db, job, "dead", HOUR),
        a_run(db, job, "failed", failed_at=NOW - 30 * MINUTE, **typed),
        a_run(db, job, "running", failed_at=NOW - 20 * MINUTE, attempts=3, **typed),
        a_run(db, job, "succeeded", failed_at=NOW - 10 * MINUTE, **typed),
        a_run(db, job, "cancelled", failed_at=NOW - 5 * MINUTE, **typed),
    ]
    for run, (attempt, ago) in zip(
        [runs[0], runs[0], runs[1], runs[2], runs[2], runs[3], runs[4]],
        [(4, 61 * MINUTE), (5, HOUR), (1, 30 * MINUTE), (1, 40 * MINUTE), (2, 20 * MINUTE), (1, 10 * MINUTE),
         (1, 5 * MINUTE)],
        strict=True,
    ):  # fmt: skip
        a_failure(db, run, attempt, ago)

    [group] = failures.groups(db, "default", NOW - 2 * HOUR).groups

    assert (group.runs, group.dead, group.failing, group.recovered, group.attempts) == (
        5,
        1,
        2,
        1,
        7,
    )
    assert (group.first_at, group.last_at) == (NOW - 61 * MINUTE, NOW - 5 * MINUTE)
    assert (group.example_id, group.example_error) == (runs[0], "no route to host")
    assert how_they_ended(group) == "1 dead, 2 retrying, 1 recovered, 1 cancelled"


def test_the_example_is_the_worst_run_and_of_these_the_latest(db: Db) -> None:
    job = a_job(db, overlap="allow")
    found = []
    for status, ago in (
        ("succeeded", 0),
        ("cancelled", 1),
        ("failed", 9),
        ("queued", 8),
        ("dead", 20),
        ("dead", 19),
    ):
        at = NOW - ago * MINUTE
        more = {"finished_at": at} if status in ("succeeded", "cancelled", "dead") else {}
        run = a_run(db, job, status, failed_at=at, error_type="OSError", **more)
        [group] = failures.groups(db, "default", None).groups
        found.append(group.example_id == run)

    assert found == [True, False, True, True, True, True]


def test_only_attempts_within_the_span_count(db: Db) -> None:
    # given a run that failed before, within and after the span, and one that failed only before and after it
    job = a_job(db, overlap="allow")
    both = a_run(db, job, "failed", failed_at=NOW, error_type="OSError", attempts=3)
    for attempt, ago in ((1, 3 * HOUR), (2, HOUR), (3, timedelta(0))):
        a_failure(db, both, attempt, ago)
    outside = a_run(db, job, "failed", failed_at=NOW, error_type="KeyError", attempts=2)
    a_failure(db, outside, 1, 3 * HOUR)
    a_failure(db, outside, 2, timedelta(0))

    [group] = failures.groups(db, "default", NOW - 2 * HOUR, NOW - MINUTE).groups

    assert (group.error_type, group.attempts, group.first_at, group.last_at) == (
        "OSError",
        1,
        NOW - HOUR,
        NOW - HOUR,
    )


@pytest.mark.parametrize(("since", "until", "found"), [(0, 1, True), (1, 2, False), (-1, 0, False)])
def test_the_span_includes_its_start_and_not_its_end(
    db: Db, since: int, until: int, found: bool
) -> None:
    job = a_job(db)
    ended(db, job, "dead", timedelta(0))
    a_run(db, job, "failed", failed_at=NOW)

    groups = failures.groups(db, "default", NOW + since * MINUTE, NOW + until * MINUTE).groups

    assert sum(group.runs for group in groups) == (2 if found else 0)


def test_many_runs_that_recovered_do_not_hide_a_dead_one(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(db)
    ended(db, job, "dead", 5 * HOUR, error_type="Died")
    for nth in range(4):
        a_run(db, job, "succeeded", failed_at=NOW - nth * MINUTE, error_type="Flaky")
    monkeypatch.setattr(failures, "MAX_OF_JOB", 3)

    found = failures.groups(db, "default", NOW - 6 * HOUR)

    assert [(g.error_type, g.runs, found.is_bounded(g)) for g in found.groups] == [
        ("Died", 1, True),
        ("Flaky", 3, True),
    ]


def test_the_worst_group_is_the_one_with_most_dead_runs_then_with_most_failing_ones(db: Db) -> None:
    job = a_job(db, overlap="allow")
    for error_type, status, number in (
        ("Recovered", "succeeded", 3),
        ("Failing", "failed", 2),
        ("Died", "dead", 1),
    ):
        for _ in range(number):
            a_run(db, job, status, failed_at=NOW, error_type=error_type)

    assert [g.error_type for g in failures.groups(db, "default", None).groups] == [
        "Died",
        "Failing",
        "Recovered",
    ]


def test_failures_are_found_without_reading_the_history(own_dsn: str) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as db:
        a_long_history(db)
        given = {
            "namespace": "default",
            "definitions": None,
            "since": "-infinity",
            "until": "infinity",
        }
        given |= {"of_job": 1_000, "limit": 50_000}
        for only_dead in (False, True):
            # of each of the two groups also the run before
            assert (
                rows_read(db, load("failures")["groups"], {**given, "only_dead": only_dead}) <= 10
            )
        assert rows_read(db, load("failures")["attempts"], {**given, "by_hour": True}) <= 2


# -- runs --group-by error_type


def test_runs_are_counted_by_job_and_type_of_error(db: Db, cli: Cli) -> None:
    job, other = a_job(db, overlap="allow"), a_job(db, "mail", tags=["nightly"])
    first = a_run(db, job, "dead", finished_at=NOW, failed_at=NOW)
    second = a_run(db, job, "dead", finished_at=NOW, failed_at=NOW, error_type="KeyError")
    waiting = a_run(db, other, "failed", failed_at=NOW, last_error="two\nlines", error_type=None)

    shown = cli("runs", "--group-by", "error_type")

    assert shown.code == 0
    at = "2026-01-14T12:20:00Z"
    assert [line.split() for line in shown.out.splitlines()] == [
        ["RUNS", "JOB", "NOW", "ATTEMPTS", "FIRST", "LAST", "EXAMPLE", "ERROR"],
        [
            "1",
            "purge",
            "1",
            "dead",
            "1",
            at,
            at,
            str(second),
            "KeyError:",
            "no",
            "route",
            "to",
            "host",
        ],
        [
            "1",
            "purge",
            "1",
            "dead",
            "1",
            at,
            at,
            str(first),
            "OSError:",
            "no",
            "route",
            "to",
            "host",
        ],
        ["1", "mail", "1", "retrying", "1", at, at, str(waiting), "two", "lines"],
    ]
    document = json.loads(
        cli("runs", "--group-by", "error_type", "--tag", "nightly", "--format", "json").out
    )
    assert (document["groups"][0]["job_type"], document["groups"][0]["failing"]) == ("mail", 1)


@pytest.mark.parametrize(
    ("options", "jobs"),
    [
        (("--status", "dead"), {"purge"}),
        (("--status", "failed"), {"mail"}),
        (("--status", "dead", "--status", "failed"), {"purge", "mail"}),
        (("--error-type", "OSError"), {"purge"}),
        (("--job", "mail"), {"mail"}),
        (
            ("--since", "2026-01-14T12:20Z", "--until", "2026-01-14T12:21Z"),
            {"purge", "mail"},
        ),
        (("--until", "2026-01-14T12:20Z"), set()),
    ],
)
def test_groups_can_be_filtered(db: Db, cli: Cli, options: tuple[str, ...], jobs: set[str]) -> None:
    ended(db, a_job(db), "dead", timedelta(0))
    a_run(db, a_job(db, "mail"), "failed", failed_at=NOW)

    shown = cli("runs", "--group-by", "error_type", "--format", "json", *options)

    assert {group["job_type"] for group in json.loads(shown.out)["groups"]} == jobs


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            ("--key", "a*", "--worker", "web-1"),
            "cannot be combined with --key, --worker: remove one of them",
        ),
        (("--before", "7"), "cannot be combined with --before: remove one of them"),
    ],
)
def test_groups_refuse_filters_of_single_runs(
    db: Db, cli: Cli, options: tuple[str, ...], what: str
) -> None:
    shown = cli("runs", "--group-by", "error_type", *options)

    assert (shown.code, shown.out) == (2, "")
    assert f"--group-by error_type {what}" in shown.err


def test_of_many_groups_the_rest_is_counted(
    db: Db, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(db)
    assert cli("runs", "--group-by", "error_type").err == "no failed attempts match\n"
    for nth in range(4):
        a_run(db, job, "dead", error_type=f"E{nth}")

    for limit, more in ((3, "and 1 more group: pass --limit 4\n"), (4, ""), (5, "")):
        shown = cli("runs", "--group-by", "error_type", "--limit", limit)
        assert (len(shown.out.splitlines()), shown.err) == (min(limit, 4) + 1, more)

    monkeypatch.setattr(failures, "MAX_FAILED", 4)
    assert cli("runs", "--group-by", "error_type").out.endswith(
        "\nOnly 4 runs were read, of the jobs with most. A shorter span counts all.\n"
    )
