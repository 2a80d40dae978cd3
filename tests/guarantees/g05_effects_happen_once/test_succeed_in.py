"""``run.succeed_in()``: a run succeeds in the transaction of an ORM, or of its handler, or nothing is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import yamlsched
from support.project import Project, a_project
from yamlsched import YamlschedError
from yamlsched.errors import LeaseLost
from yamlsched.handler.backends import Backend
from yamlsched.testing import FakeRun, call

HANDLE = "support.own_transactions.handle"
SET = {"set": "before"}


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        project.db.execute("create table written (run_id bigint, attempt int)")
        handle_async = "support.own_transactions.handle_async"
        project.sync(
            handle={"handler": HANDLE, "max_attempts": 2},
            handle_async={"handler": handle_async},
            shared={"handler": handle_async, "queue": "shared"},
            nothing={},
        )
        yield project


def work(project: Project, *words: str, code: int = 0) -> str:
    return project.work(*words, code=code, OWN_DSN=project.dsn).text


def written(project: Project, run: int) -> list[int]:
    """Return the attempts of ``run`` that have written, and committed."""
    rows = project.db.execute("select attempt from written where run_id = %s", [run]).fetchall()
    return [row.attempt for row in rows]


def enqueued(project: Project, run: int) -> int:
    rows = project.db.execute(
        "select from yamlsched.job_runs where idempotency_key = %s", [f"nothing:{run}"]
    )
    return len(rows.fetchall())


LEFT_OPEN = "the handler returned before it committed the transaction of run.succeed_in()"
ENDS = {  # what the first attempt does: the attempts, those that have written, the error of the first one
    "commits": (1, [1], []),
    "returns": (1, [1], []),
    "fails_after": (1, [1], []),
    "rolls_back": (1, [], []),
    "fails_before": (2, [2], ["on purpose"]),
    "leaves_it_open": (2, [2], [LEFT_OPEN]),
}


def test_a_run_succeeds_once_with_what_its_transaction_writes(project: Project) -> None:
    runs = {what: project.enqueue("handle", {"what": what})[0] for what in ENDS}

    text = work(project)

    for what, run in runs.items():
        row, errors = project.row(run), [failure.error for failure in project.failures(run)]
        assert (row.status, row.result, row.locked_until) == ("succeeded", SET, None), what
        assert (row.attempts, written(project, run), errors) == ENDS[what], what
        assert enqueued(project, run) == 1, what
    assert text.count("the returned value is dropped") == 1


@pytest.mark.parametrize(
    "point, attempts", [("is_killed_before_commit", 2), ("is_killed_after_commit", 1)]
)
def test_a_kill_next_to_the_commit_writes_once(project: Project, point: str, attempts: int) -> None:
    [run] = project.enqueue("handle", {"what": point})

    work(project, code=-9)
    project.end_leases()
    work(project)

    assert (project.row(run).status, project.row(run).attempts) == ("succeeded", attempts)
    assert written(project, run) == [attempts]
    assert enqueued(project, run) == 1


def test_a_handler_that_is_stopped_after_the_commit_has_succeeded(project: Project) -> None:
    [run] = project.enqueue("handle", {"what": "is_stopped_after"})

    work(project, "--grace", "0s")

    assert (project.row(run).status, project.row(run).attempts) == ("succeeded", 1)
    assert written(project, run) == [1]


def test_an_attempt_that_lost_its_run_commits_nothing(project: Project) -> None:
    [run] = project.enqueue("handle", {"what": "lost"})

    text = work(project)

    assert (project.row(run).status, project.row(run).locked_by) == ("running", "another")
    assert written(project, run) == []
    assert enqueued(project, run) == 0
    assert "lease.lost" in text


def test_an_async_def_passes_an_asynchronous_connection(project: Project) -> None:
    runs = [project.enqueue(job)[0] for job in ("handle_async", "shared")]

    work(project)

    for run in runs:
        assert (project.row(run).status, project.row(run).attempts, project.row(run).result) == (
            "succeeded",
            1,
            SET,
        )
        assert written(project, run) == [1]


# -- what is refused, and in tests of handlers


def test_what_cannot_work_is_refused_with_what_to_do(dsn: str) -> None:
    run = FakeRun(connection=psycopg.connect(dsn))
    with psycopg.connect(dsn, autocommit=True) as connection:
        with pytest.raises(
            YamlschedError, match="needs an open transaction, and this connection has none"
        ):
            run.succeed_in(connection)
        with (
            run.transaction(),
            pytest.raises(YamlschedError, match="at whose end the run succeeds"),
        ):
            run.succeed_in(connection)
    with pytest.raises(YamlschedError, match=r"run\.transaction\(\) has ended"):
        run.succeed_in(connection)
    with pytest.raises(yamlsched.Refused, match="str is not a connection of psycopg 3"):
        FakeRun().succeed_in("a connection")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "action",
    [
        lambda run, connection: run.succeed_in(connection),
        lambda run, connection: run.enqueue("mail"),
        lambda run, connection: run.once("mail", in_doubt="skip").__enter__(),
        lambda run, connection: run.transaction().__enter__(),
    ],
    ids=["succeed_in", "enqueue", "once", "transaction"],
)
def test_nothing_of_the_run_follows_its_success(dsn: str, action: Any) -> None:
    run = FakeRun()
    with psycopg.connect(dsn) as connection:
        run.succeed_in(connection)

        with pytest.raises(
            YamlschedError, match=r"run\.succeed_in\(\) was called, and the run has succeeded"
        ):
            action(run, connection)


def test_a_connection_to_another_database_is_an_error_that_names_it_as_a_reason(
    project: Project, dsn: str
) -> None:
    run = FakeRun()
    run.backend = Backend(project.dsn, "default", 1, 1, "a")

    with (
        psycopg.connect(dsn) as connection,
        pytest.raises(LeaseLost, match="is not to the worker's database"),
    ):
        run.succeed_in(connection)


def test_a_fake_run_has_the_result_and_its_commit_can_fail(dsn: str) -> None:
    def handler(run: yamlsched.Run) -> None:
        with psycopg.connect(dsn) as connection:
            run.result = SET
            run.succeed_in(connection)

    run = FakeRun(commit_fails=True)
    with pytest.raises(psycopg.OperationalError, match="the test requested it"):
        call(handler, run)
    assert call(handler, run.next_attempt()) == SET


def test_the_permit_of_a_run_that_has_succeeded_so_is_returned_at_once(project: Project) -> None:
    project.limits = {"pool": 1}
    handle = {"handler": "support.own_transactions.handle", "limit": "pool", "lease": "1h"}
    project.sync(handle=handle, nothing={})
    runs = project.enqueue("handle", {"what": "commits"}, count=3)

    work(project)

    assert [project.row(run).status for run in runs] == ["succeeded"] * 3
    assert project.db.execute("select from yamlsched.permits").fetchall() == []
