"""Shared jobs when the database is away, a worker reloads or is short of connections, and when much is printed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.coroutine_jobs import child_of, coroutine, once, start
from support.database import temporary_database
from support.project import Project, a_project, is_alive, until
from support.proxy import a_proxy

pytestmark = pytest.mark.story


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project


def test_a_coroutine_that_cannot_be_stopped_is_killed_if_its_lease_cannot_be_renewed(
    project: Project,
) -> None:
    project.sync(deaf=coroutine("hangs_deaf", lease="4s"))
    [run] = project.enqueue("deaf")
    with a_proxy(project.dsn) as proxy:
        worker = project.start("work", "--loop", dsn=proxy.dsn)
        project.until_started(run)
        child = child_of(project, run)

        proxy.is_silent = True
        until(lambda: not is_alive(child))

        assert project.calls("caught", run) >= 1
        worker.signal(signal.SIGTERM)
        proxy.is_silent = False
        assert worker.wait() == 0
    assert project.row(run).status == "queued"
    assert project.row(run).attempts == 0


def test_a_reload_lets_coroutines_end_in_their_process_and_starts_others_in_a_new_one(
    project: Project,
) -> None:
    project.sync(waits=coroutine("waits"))
    [before] = project.enqueue("waits")
    worker = start(project, before, more=("--loop",))

    worker.signal(signal.SIGHUP)
    until(lambda: "worker.reloading" in worker.text)
    [after] = project.enqueue("waits")
    project.until_started(after)
    assert child_of(project, after) != child_of(project, before)
    project.touch("go")

    for run in (before, after):
        project.until_status(run, "succeeded")
    until(lambda: not is_alive(child_of(project, before)))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert [project.row(run).attempts for run in (before, after)] == [1, 1]


def test_what_waits_behind_long_coroutines_is_returned_and_costs_nothing(project: Project) -> None:
    project.queues["shared"]["concurrency"] = 2
    project.sync(waits=coroutine("waits"), naps=coroutine("naps"))
    quick = project.enqueue("naps", {"seconds": 0.001}, count=300)
    long = project.enqueue("waits", count=10)
    worker = project.start("work")
    until(lambda: project.statuses().get("succeeded") == len(quick))
    until(lambda: sum(project.calls("started", run) for run in long) == 2)

    worker.signal(signal.SIGTERM)
    until(lambda: "worker.stopping" in worker.text)
    project.touch("go")

    assert worker.wait() == 0
    assert sorted(project.row(run).attempts for run in long) == [0] * 8 + [1] * 2
    assert project.statuses() == {"succeeded": len(quick) + 2, "queued": 8}


def test_a_signal_to_all_processes_is_a_graceful_shutdown_whatever_a_handler_has_set(
    project: Project,
) -> None:
    project.sync(changes=once("changes"), waits=coroutine("waits"))
    [changing] = project.enqueue("changes", {"what": "default SIGTERM"})
    worker = start(project, changing, more=("--loop",))
    project.until_status(changing, "succeeded")
    [waiting] = project.enqueue("waits")
    project.until_started(waiting)

    for pid in (child_of(project, waiting), worker.pid):
        os.kill(pid, signal.SIGTERM)
    until(lambda: "worker.stopping" in worker.text)
    project.touch("go")

    assert child_of(project, waiting) == child_of(project, changing)
    assert worker.wait() == 0
    assert project.summary(waiting) == ("succeeded", 1, 1, 1, 0)


def test_a_coroutine_that_prints_much_keeps_its_last_lines_and_its_neighbour_is_not_delayed(
    project: Project,
) -> None:
    project.sync(much=once("prints_much", output={"keep": "always"}), naps=once("naps"))
    [much] = project.enqueue("much", {"megabytes": 8})
    naps = project.enqueue("naps", count=5)

    worker = project.work()

    assert {project.row(run).status for run in (much, *naps)} == {"succeeded"}
    [output] = project.outputs(much)
    assert len(output.output.encode()) == 65_536
    assert output.omitted_bytes == 8 * 1024 * 1024 - 65_536
    assert "of output" in worker.text


def test_a_coroutine_enqueues_thousands_of_runs(project: Project) -> None:
    project.sync(fans_out=once("fans_out"), nothing=coroutine("nothing"))
    project.enqueue("fans_out", {"count": 3_000})

    project.work()

    assert project.statuses() == {"succeeded": 3_001}


def test_a_transaction_that_is_stopped_or_whose_session_breaks_commits_nothing(
    project: Project,
) -> None:
    project.db.execute("create table shop (run bigint)")
    project.sync(
        sleeps=coroutine("sleeps_in_server", timeout="1s"),
        breaks=coroutine("session_breaks"),
        writes=once("writes"),
        nothing={},
    )
    sleeping = project.enqueue("sleeps", count=11)  # more than there are sessions
    [breaking], written = project.enqueue("breaks"), project.enqueue("writes", count=5)

    project.work()

    assert {(project.row(run).status, project.row(run).attempts) for run in sleeping} == {
        ("succeeded", 2)
    }
    assert (project.row(breaking).status, project.row(breaking).attempts) == ("succeeded", 2)
    rows = project.db.execute("select run from shop order by 1").fetchall()
    assert [row.run for row in rows] == sorted([*sleeping, *written])


def test_an_effect_of_a_stopped_coroutine_is_recorded_and_an_error_is_reported_once(
    project: Project,
) -> None:
    project.sync(mails=coroutine("mails", timeout="1s"), doubts=coroutine("doubts"))
    [mailing], [doubting] = project.enqueue("mails", {"hangs": True}), project.enqueue("doubts")

    text = project.work(code=1).text

    assert project.row(mailing).status == "succeeded"  # in_doubt="skip"
    assert project.calls("mailed", mailing) == 1
    assert "effect in doubt" in project.row(doubting).last_error
    assert "never retrieved" not in text


def test_many_runs_whose_handler_cannot_be_imported_fail_one_by_one(project: Project) -> None:
    project.queues["shared"]["concurrency"] = 500
    project.sync(missing=once("does_not_exist"))
    runs = project.enqueue("missing", count=500)

    project.work(code=1)

    assert project.statuses() == {"dead": 500}
    assert "has no attribute 'does_not_exist'" in project.row(runs[0]).last_error


def test_an_attempt_that_is_stopped_while_its_handler_is_imported_ends_and_its_neighbours_go_on(
    project: Project,
) -> None:
    module = "support.coroutine_slow_import"
    project.sync(
        hangs={**coroutine("hangs", timeout="1s"), "handler": f"{module}.hangs"},
        naps={**coroutine("naps"), "handler": f"{module}.naps"},
    )
    [stopped], naps = project.enqueue("hangs"), project.enqueue("naps", count=20)
    worker = project.start("work")
    until((project.folder / "importing").exists)

    assert project.start("cancel", str(stopped), "--yes").wait() == 0
    until(lambda: "lease.lost" in worker.text)
    project.touch("go")

    assert worker.wait() == 0
    assert project.row(stopped).status == "cancelled"
    assert {project.summary(run) for run in naps} == {("succeeded", 1, 1, 1, 0)}
