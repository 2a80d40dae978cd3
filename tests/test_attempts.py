"""What is recorded beside each attempt: the revision of its code, and what it used. Real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.project import Project, a_project
from support.rows import a_job, a_run
from yamlsched.ask import failures, health
from yamlsched.db.query import now
from yamlsched.worker.local import usage
from yamlsched.worker.local.protocol import Memory

pytestmark = pytest.mark.story

Db = psycopg.Connection[Any]
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def project(tmp_path: Path, dsn: str) -> Iterator[Project]:
    with a_project(tmp_path, dsn) as project:
        yield project


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


# -- the revision ------------------------------------------------------------------------------------------------------


def test_each_attempt_has_the_revision_of_its_worker(project: Project, cli: Cli) -> None:
    # given a run that fails with one release, and one whose job takes turns
    project.limits = {"one": 1}
    project.sync(fails_once={"max_attempts": 2}, nothing={"limit": "one"})
    [run], [limited] = project.enqueue("fails_once"), project.enqueue("nothing")
    project.work("--max-runs", "2", YAMLSCHED_REVISION="v1")
    assert project.row(limited).revision == "v1"

    # when it succeeds with the next one
    project.work(YAMLSCHED_REVISION="v2")

    # then each attempt has its own
    [failed] = project.db.execute(
        "select * from yamlsched.job_failures where run_id = %s", [run]
    ).fetchall()
    assert (failed.revision, project.row(run).revision) == ("v1", "v2")
    shown = cli("show", str(run)).out
    [first, second] = [line for line in shown.splitlines() if line.startswith("attempt ")]
    assert first.endswith("  revision v1")
    assert second.endswith("  revision v2")
    document = json.loads(cli("show", str(run), "--format", "json").out)
    assert (document["run"]["revision"], document["failures"][0]["revision"]) == ("v2", "v1")


def test_a_worker_that_is_lost_leaves_its_revision(project: Project) -> None:
    project.sync(waits_for_file={"max_attempts": 1})
    [run] = project.enqueue("waits_for_file")
    worker = project.start("work", YAMLSCHED_REVISION="v1")
    project.until_started(run)
    worker.signal(signal.SIGKILL)
    worker.wait()

    project.end_leases()
    project.work(YAMLSCHED_REVISION="v2", code=1)

    [failure] = project.db.execute(
        "select * from yamlsched.job_failures where run_id = %s", [run]
    ).fetchall()
    assert (failure.error_type, failure.revision) == ("LostWorker", "v1")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("v1", True),
        ("v2", False),  # its code had succeeded before
        (None, False),  # nothing is known of the code before
    ],
)
def test_since_which_revision_a_job_fails_is_said_in_report_and_status(
    db: Db, cli: Cli, before: str | None, said: bool
) -> None:
    at = now(db)
    job = a_job(db, overlap="allow")
    a_run(db, job, "succeeded", finished_at=at - 2 * HOUR, revision=before)
    dead = a_run(db, job, "dead", failed_at=at - HOUR, finished_at=at - HOUR, revision="v2")
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, error_type, revision)"
        " values (%s, 1, 'host', %s, 'no route to host', 'OSError', 'v2')",
        [dead, at - HOUR],
    )

    a_run(db, job, "dead", failed_at=at - MINUTE, finished_at=at - MINUTE, revision="v3")

    changed = "fails since revision v2, 2 runs ago; last good v1"
    [of_job] = health.read(db, "default", HOUR).jobs
    [group] = failures.groups(db, "default", at - 2 * HOUR).groups
    report, status = cli("report", "--since", "2h").out, cli("status", "--check").out

    assert of_job.changed == group.changed == (changed if said else None)
    assert (f"2 runs died: OSError: no route to host; {changed}" in report) is said
    assert (f"2 dead; {changed}" in report) is said
    assert (changed in status) is said

    # a job that has succeeded since fails no more
    a_run(db, job, "succeeded", finished_at=at, revision="v3")
    assert health.read(db, "default", HOUR).jobs[0].changed is None


# -- what it used ------------------------------------------------------------------------------------------------------

MIB = 1 << 20
ALLOCATE = (
    "import sys, time; content = bytearray(int(sys.argv[1]) << 20); t = time.process_time()\n"
)
ALLOCATE += "while time.process_time() - t < 0.2: pass"


def test_the_peak_of_memory_is_that_of_the_attempt_and_not_of_its_process(project: Project) -> None:
    # given a large attempt and small ones, before and after it in the same child, none so quick that it has no figures
    project.sync(uses={"max_attempts": 1})
    runs = [
        project.enqueue("uses", {"megabytes": size, "cpu_seconds": 0.02})[0]
        for size in (0, 200, 0, 20, 0)
    ]
    project.work("--concurrency", "1")

    peaks = [project.row(run).peak_memory_bytes // MIB for run in runs]

    small = peaks[0]
    assert small < 150
    assert peaks[1] >= 200
    assert peaks[2] < small + 50
    assert small < peaks[3] < small + 70
    assert peaks[4] < small + 50


def test_the_cpu_seconds_are_those_of_the_attempt(project: Project) -> None:
    project.sync(uses={"max_attempts": 1})
    busy, idle = project.enqueue("uses", {"cpu_seconds": 0.5})[0], project.enqueue("uses")[0]
    project.work("--concurrency", "1")

    assert 0.5 <= project.row(busy).cpu_seconds < 5
    assert project.row(idle).cpu_seconds < 0.5


@pytest.mark.parametrize("then", ["fail", "die", "commit"])
def test_an_attempt_has_figures_however_it_ends(project: Project, then: str) -> None:
    project.sync(uses={"max_attempts": 1})
    [before] = project.enqueue("uses", {"cpu_seconds": 0.5})
    [run] = project.enqueue("uses", {"megabytes": 200, "cpu_seconds": 0.2, "then": then})
    project.work("--concurrency", "1", code=0 if then == "commit" else 1)

    row = project.row(run)
    found = [row] if then == "commit" else [row, *project.failures(run)]

    assert project.row(before).status == "succeeded"
    for one in found:
        assert one.peak_memory_bytes > 200 * MIB
        assert 0.2 <= one.cpu_seconds < 0.7


def test_a_retry_and_a_claim_leave_no_figures_of_the_attempt_before(project: Project) -> None:
    project.sync(uses={"max_attempts": 2}, waits_for_file={})
    [run] = project.enqueue("uses", {"megabytes": 200, "then": "fail"})
    project.work("--concurrency", "1", code=1)
    project.db.execute("update yamlsched.job_runs set payload = '{}' where id = %s", [run])
    project.db.execute(
        "update yamlsched.job_runs set status = 'queued', finished_at = null, dead_at = null, max_attempts = 3"
        " where id = %s",
        [run],
    )
    project.work("--concurrency", "1")

    assert [failure.peak_memory_bytes > 200 * MIB for failure in project.failures(run)] == [
        True,
        True,
    ]
    assert project.row(run).peak_memory_bytes < 200 * MIB


def test_of_a_command_the_largest_of_its_programs_counts(project: Project) -> None:
    # given a shell that starts a program that starts a large one
    script = f"{sys.executable} -c '{ALLOCATE}' 200; {sys.executable} -c 'pass'"
    project.sync(
        large={"command": ["/bin/sh", "-c", script]},
        small={"command": ["/bin/true"]},
        own={"command": [sys.executable, "-c", ALLOCATE, "150"]},
    )
    runs = {name: project.enqueue(name)[0] for name in ("large", "small", "own")}
    project.work("--concurrency", "1")
    rows = {name: project.row(run) for name, run in runs.items()}

    assert rows["large"].peak_memory_bytes > 200 * MIB
    assert 0.2 <= rows["large"].cpu_seconds < 5
    assert rows["own"].peak_memory_bytes > 150 * MIB

    # then a program that is smaller than the process that started it has only that bound
    assert -150 * MIB < rows["small"].peak_memory_bytes < 0
    assert rows["small"].cpu_seconds < 1


def test_attempts_that_share_a_process_have_no_figures(project: Project) -> None:
    project.sync(shared_job={"handler": "support.coroutine_handlers.nothing", "queue": "shared"})
    [run] = project.enqueue("shared_job")
    project.work()

    assert (project.row(run).status, project.row(run).cpu_seconds) == ("succeeded", None)


def test_where_the_system_does_not_reset_the_peak_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any) -> int:
        raise PermissionError(13, "Permission denied")

    memory = Memory()
    monkeypatch.setattr(os, "open", refuse)
    usage.start(memory.shared)
    cpu_seconds, peak = usage.read(memory.shared)

    assert cpu_seconds >= 0
    assert peak is None


def test_many_runs_that_do_nothing_are_not_measured_each(project: Project) -> None:
    project.sync(nothing={})
    project.enqueue("nothing", count=2000)
    project.work("--concurrency", "1")

    measured = project.db.execute(
        "select count(cpu_seconds) as runs from yamlsched.job_runs where status = 'succeeded'"
    ).fetchone()

    assert measured is not None
    assert 0 < measured.runs < 1000


def test_figures_are_shown_of_each_attempt(project: Project, cli: Cli) -> None:
    project.sync(uses={"max_attempts": 1}, small={"command": ["/bin/true"]})
    [run], [small] = (
        project.enqueue("uses", {"megabytes": 200, "cpu_seconds": 0.2}),
        project.enqueue("small"),
    )
    project.work()

    assert re.search(r"took \S+  cpu \d\S*s, memory 2\d\d\.\d MiB  ", cli("show", str(run)).out)
    assert re.search(r"memory < \d+\.\d MiB  ", cli("show", str(small)).out)
    document = json.loads(cli("show", str(run), "--format", "json").out)["run"]
    assert document["cpu_seconds"] >= 0.2
    assert document["peak_memory_bytes"] > 200 * MIB
    assert document["peak_memory_is_bound"] is False
    bound = json.loads(cli("show", str(small), "--format", "json").out)["run"]
    assert bound["peak_memory_bytes"] > 0
    assert bound["peak_memory_is_bound"] is True


def test_the_report_has_the_largest_runs_and_their_growth_over_the_week(db: Db, cli: Cli) -> None:
    at = now(db)
    grown, stable, bound, none = (
        a_job(db, name, overlap="allow") for name in ("grown", "stable", "bound", "none")
    )
    ends = {"started_at": at - 2 * HOUR, "finished_at": at - HOUR}
    week_ago = {"started_at": at - 170 * HOUR, "finished_at": at - 160 * HOUR}
    a_run(db, grown, "succeeded", peak_memory_bytes=200 * MIB, cpu_seconds=None, **week_ago)
    a_run(db, grown, "succeeded", peak_memory_bytes=100 * MIB, **ends)
    largest = a_run(
        db, grown, "dead", peak_memory_bytes=300 * MIB, cpu_seconds=2.0, failed_at=at - HOUR, **ends
    )
    a_run(db, stable, "succeeded", peak_memory_bytes=400 * MIB, **ends)
    a_run(db, bound, "succeeded", peak_memory_bytes=-500 * MIB, **ends)
    a_run(db, none, "succeeded", **ends)

    text = cli("report", "--since", "12h").out
    document = json.loads(cli("report", "--since", "12h", "--format", "json").out)

    lines = [line.split() for line in text[text.index("Most memory") :].splitlines()[2:4]]
    assert lines[0][:4] == ["400.0", "MiB", "-", "stable"]
    assert lines[1][:8] == ["300.0", "MiB", "200.0", "MiB", "(+50", "%)", "grown", str(largest)]
    assert [(one["job_type"], one["peak"], one["week_ago"]) for one in document["largest"]] == [
        ("stable", 400 * MIB, None),
        ("grown", 300 * MIB, 200 * MIB),
    ]
    assert document["largest"][1]["run_id"] == largest
