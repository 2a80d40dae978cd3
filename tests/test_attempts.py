"""What is recorded beside each attempt: the revision of its code, and what it used. Real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.project import Project, a_project
from support.rows import a_job, a_run
from yamlsched.ask import failures
from yamlsched.db.query import now

Db = psycopg.Connection[Any]
HOUR = timedelta(hours=1)


@pytest.fixture
def project(tmp_path: Path, dsn: str) -> Iterator[Project]:
    with a_project(tmp_path, dsn) as project:
        yield project


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
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
    [failed] = project.db.execute("select * from yamlsched.job_failures where run_id = %s", [run]).fetchall()
    assert (failed.revision, project.row(run).revision) == ("v1", "v2")
    shown = cli("show", str(run)).out
    [first, second] = [line for line in shown.splitlines() if line.startswith("attempt ")]
    assert first.endswith("  revision v1")
    assert second.endswith("  revision v2")
    document = json.loads(cli("show", str(run), "--format", "json").out)
    assert (document["run"]["revision"], document["attempts"][0]["revision"]) == ("v2", "v1")


def test_a_worker_that_is_lost_leaves_its_revision(project: Project) -> None:
    project.sync(waits_for_file={"max_attempts": 1})
    [run] = project.enqueue("waits_for_file")
    worker = project.start("work", YAMLSCHED_REVISION="v1")
    project.until_started(run)
    worker.signal(signal.SIGKILL)
    worker.wait()

    project.end_leases()
    project.work(YAMLSCHED_REVISION="v2", code=1)

    [failure] = project.db.execute("select * from yamlsched.job_failures where run_id = %s", [run]).fetchall()
    assert (failure.error_type, failure.revision) == ("LostWorker", "v1")


@pytest.mark.parametrize(
    ("before", "earlier_error", "said"),
    [
        ("v1", None, True),
        ("v2", None, False),  # its code had succeeded before
        (None, None, False),  # nothing is known of the code before
        ("v1", "OSError", False),  # the code before failed in the same way
        ("v1", "KeyError", True),
    ],
)
def test_a_failure_that_came_with_a_revision_is_reported_with_it(
    db: Db, cli: Cli, before: str | None, earlier_error: str | None, said: bool
) -> None:
    at = now(db)
    job = a_job(db, overlap="allow")
    if earlier_error:
        a_run(
            db, job, "succeeded", error_type=earlier_error, failed_at=at - 4 * HOUR, finished_at=at - 3 * HOUR,
            revision="v0",
        )  # fmt: skip
    a_run(db, job, "succeeded", finished_at=at - 2 * HOUR, revision=before)
    dead = a_run(db, job, "dead", failed_at=at - HOUR, finished_at=at - HOUR, revision="v2")
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, error_type, revision)"
        " values (%s, 1, 'host', %s, 'no route to host', 'OSError', 'v2')",
        [dead, at - HOUR],
    )

    [group] = [one for one in failures.groups(db, "default", at - 2 * HOUR).groups if one.dead]
    text = cli("report", "--since", "2h").out

    assert group.since_revision == ("v2" if said else None)
    assert ("1 run died, first failure after revision v2: OSError" in text) is said
    assert ("1 dead, first failure after revision v2" in text) is said
