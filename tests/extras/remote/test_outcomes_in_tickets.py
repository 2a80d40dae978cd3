"""An outcome in a ticket is the end of its attempt: actions and retirements apply it before they do anything else."""

from __future__ import annotations

import signal
from typing import Any

import psycopg
import pytest
from extras.remote.test_remote_executor import engine, on_engine, project, tickets

from support.project import Project, until

pytestmark = pytest.mark.story

__all__ = ["project"]

WAITS = ["/bin/sh", "-c", 'while ! [ -e go ]; do sleep 0.01; done; exit "$(cat go)"']


def ended_and_not_applied(project: Project, code: int, **job: Any) -> int:
    """Return a run whose agent has written how it ended, with this exit code, after its worker has gone."""
    engine(project)
    project.sync(nap={}, waits=on_engine(command=WAITS, lease="1m", **job))
    [run] = project.enqueue("waits")
    project.work()
    (project.folder / "going").write_text(str(code))
    (project.folder / "going").rename(project.folder / "go")
    until(lambda: tickets(project, run)[0].outcome, "the agent has written the outcome")
    assert project.row(run).status == "running"
    return run


def said(project: Project, *words: str) -> str:
    process = project.start(*words)
    process.wait()
    return (project.folder / f"out-{project.number}").read_text() + process.text


# exit code, max_attempts, the verb, what it says, and the run afterwards: status, attempts, failures
ACTIONS = [
    (0, 2, "cancel", "is already succeeded", ("succeeded", 1, 0)),
    (3, 2, "cancel", "is cancelled", ("cancelled", 1, 1)),
    (3, 1, "cancel", "is already dead", ("dead", 1, 1)),
    (0, 2, "retry", "has succeeded: --force", ("succeeded", 1, 0)),
    (3, 2, "retry", "is due now", ("failed", 1, 1)),
    (3, 1, "retry", "is queued again", ("queued", 1, 1)),
]


@pytest.mark.parametrize("code, attempts, verb, says, becomes", ACTIONS)
def test_an_action_acts_on_what_the_run_has_become(
    project: Project, code: int, attempts: int, verb: str, says: str, becomes: Any
) -> None:
    run = ended_and_not_applied(
        project,
        code,
        max_attempts=attempts,
        backoff={"policy": "fixed", "delay": "1h", "max_delay": "1h"},
    )

    text = said(project, verb, str(run))

    assert says in text
    row = project.row(run)
    assert (row.status, row.attempts, len(project.failures(run))) == becomes
    if becomes[0] in ("failed", "queued"):
        assert row.run_at <= row.updated_at
    worker = project.start("work")
    worker.wait()
    assert worker.text.count("attempt.begun") == (becomes[0] in ("failed", "queued"))


@pytest.mark.parametrize("code, status", [(0, "succeeded"), (3, "cancelled")])
def test_a_job_that_was_retired_a_day_ago_has_its_outcome_applied_before_what_is_left_is_cancelled(
    project: Project, code: int, status: str
) -> None:
    run = ended_and_not_applied(project, code)
    project.sync(nap={})
    project.db.execute(
        "update yamlsched.job_definitions set retired_at = now() - interval '2 days' where retired_at is not null"
    )
    project.end_leases()

    for _ in range(2):
        project.start("tick").wait()

    row = project.row(run)
    assert (row.status, len(project.failures(run))) == (status, code and 1)
    assert row.last_error is None or "lost its worker" not in row.last_error


def test_a_worker_that_is_stopped_while_it_applies_an_outcome_waits_for_the_server_and_reports_it(
    project: Project,
) -> None:
    run = ended_and_not_applied(project, 0)
    with psycopg.connect(project.dsn) as other:
        other.execute("select from yamlsched.job_runs where id = %s for update", [run])
        worker = project.start("work", "--loop")
        waits = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        until(lambda: project.db.execute(waits).fetchall(), "the worker applies the outcome")

        worker.signal(signal.SIGTERM)
        until(lambda: "worker.stopping" in worker.text)

    assert worker.wait() == 0
    assert f"attempt.succeeded job=waits run={run}" in worker.text
    assert "database.away" not in worker.text
