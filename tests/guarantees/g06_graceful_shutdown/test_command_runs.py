"""Runs of commands, from the claim to the outcome: cancelled, lost, stopped with their worker, killed with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.project import Process, Project, a_project, is_alive, until

GROUP = "sleep 1000 & echo $! > grandchild; echo $$ > program; "


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def sh(script: str, **job: object) -> dict[str, object]:
    return {"command": ["/bin/sh", "-c", script], "lease": "1m", **job}


def started(project: Project, *names: str) -> list[int]:
    """Wait until programs have written their process ids into these files, and return them."""

    def read(name: str) -> int:
        path = project.folder / name
        text = until(
            lambda: path.exists() and path.read_text().endswith("\n") and path.read_text(), name
        )
        path.unlink()
        if name == "grandchild":  # before, a signal to it would be one to the shell
            until(lambda: Path(f"/proc/{int(text)}/comm").read_text() == "sleep\n")
        return int(text)

    return [read(name) for name in names]


def end(loop: Process) -> None:
    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0, loop.text


def are_dead(pids: list[int]) -> None:
    for pid in pids:
        until(lambda pid=pid: not is_alive(pid), f"process {pid} has ended")


def test_a_command_is_retried_and_its_error_and_output_are_stored(project: Project) -> None:
    script = 'echo "attempt $YAMLSCHED_ATTEMPT of $YAMLSCHED_JOB"; echo "dump: no disk" >&2; [ "$YAMLSCHED_ATTEMPT" = 2 ]'
    project.sync(backup=sh(script))
    [run] = project.enqueue("backup", {"x": 1})

    worker = project.work()

    assert (project.row(run).status, project.row(run).attempts) == ("succeeded", 2)
    [failure] = project.failures(run)
    assert (failure.error_type, failure.error) == (
        "exit code 1",
        "attempt 1 of backup / dump: no disk",
    )
    assert failure.output == "attempt 1 of backup\ndump: no disk\n"
    assert 'error="exit code 1: attempt 1 of backup / dump: no disk"' in worker.text
    assert f"[backup {run}] attempt 2 of backup\n" in worker.text


def test_exit_codes_discard_runs_and_postpone_retries(project: Project) -> None:
    codes = {"discard": [64], "retry_after": {"75": "1h"}}
    project.sync(bad=sh("exit 64", exit_codes=codes), later=sh("exit 75", exit_codes=codes))
    [bad], [later] = project.enqueue("bad"), project.enqueue("later")

    project.work(code=1)

    assert (project.row(bad).status, project.row(bad).attempts) == ("dead", 1)
    assert project.row(later).status == "failed"
    [row] = project.db.execute(
        "select run_at - failed_at between interval '59 min' and interval '61 min' as is_later "
        "from yamlsched.job_runs where id = %s",
        [later],
    ).fetchall()
    assert row.is_later


def test_a_hook_of_a_command_gets_the_dead_run(project: Project) -> None:
    project.sync(backup=sh("echo broken; exit 3", max_attempts=1, on_dead=["tells"]), tells={})
    [run] = project.enqueue("backup")

    project.work(code=1)

    until(lambda: (project.folder / "told").exists(), "the hook has run")
    assert (project.folder / "told").read_text() == f"{run} exit code 3: broken"


def test_a_cancelled_command_gets_sigterm_and_the_time_until_kill_after(project: Project) -> None:
    script = "trap 'sleep 0.7; echo tidy > report; exit 0' TERM; " + GROUP + "wait"
    project.sync(backup=sh(script, lease="4s", kill_after="1m"))
    [run] = project.enqueue("backup")
    loop = project.start("work", "--loop", "--concurrency", "1")
    pids = started(project, "program", "grandchild")

    assert project.start("cancel", str(run), "--yes").wait() == 0

    are_dead(pids)
    assert (project.folder / "report").read_text() == "tidy\n"
    assert project.row(run).status == "cancelled"
    end(loop)


def test_a_command_whose_lease_another_worker_got_is_killed(project: Project) -> None:
    project.sync(
        backup=sh(
            "trap '' TERM; " + GROUP + "while :; do sleep 0.01; done", lease="2s", kill_after="1h"
        )
    )
    [run] = project.enqueue("backup")
    first = project.start("work", "--loop", "--concurrency", "1")
    pids = started(project, "program", "grandchild")
    project.db.execute(
        "update yamlsched.job_runs set locked_by = 'b:1:x', attempts = 2 where id = %s", [run]
    )

    are_dead(pids)

    assert (project.row(run).locked_by, project.row(run).status) == ("b:1:x", "running")
    end(first)


def test_a_shutdown_stops_commands_after_the_grace_period_and_refunds_them(
    project: Project,
) -> None:
    script = "trap 'echo tidy > report; exit 1' TERM; " + GROUP + "wait"
    project.sync(backup=sh(script, max_attempts=1))
    [run] = project.enqueue("backup")
    worker = project.start("work", "--grace", "1s")
    pids = started(project, "program", "grandchild")

    # a signal to all processes of the worker does not reach the program
    for pid in (*worker.children(), worker.pid):
        os.kill(pid, signal.SIGTERM)

    assert worker.wait() == 0
    are_dead(pids)
    assert (project.folder / "report").read_text() == "tidy\n"
    assert (project.row(run).status, project.row(run).attempts) == ("queued", 0)


@pytest.mark.parametrize(
    "script", [GROUP + "wait", "trap 'exit 143' TERM; " + GROUP + "wait"], ids=["killed", "exits"]
)
def test_a_signal_to_all_processes_and_programs_at_once_is_a_graceful_shutdown(
    project: Project, script: str
) -> None:
    # as by systemd's KillMode=control-group
    project.sync(backup=sh(script, max_attempts=1))
    [run] = project.enqueue("backup")
    worker = project.start("work")
    pids = started(project, "program", "grandchild")

    worker.signal(signal.SIGSTOP)
    for pid in (*pids, *worker.children(), worker.pid):
        os.kill(pid, signal.SIGTERM)
    worker.signal(signal.SIGCONT)

    assert worker.wait() == 0
    assert (project.row(run).status, project.row(run).attempts) == ("queued", 0)


def test_a_command_may_finish_within_the_grace_period(project: Project) -> None:
    project.sync(backup=sh("echo $$ > program; while [ ! -e go ]; do sleep 0.01; done"))
    [run] = project.enqueue("backup")
    worker = project.start("work")
    started(project, "program")

    worker.signal(signal.SIGTERM)
    until(lambda: "worker.stopping" in worker.text)
    project.touch("go")

    assert worker.wait() == 0
    assert project.row(run).status == "succeeded"


WITHOUT_LINUX = "import os; from yamlsched.handler import programs as orphans; orphans.LIBC = None; del os.pidfd_open"


@pytest.mark.parametrize("before", ["", WITHOUT_LINUX], ids=["linux", "other"])
def test_the_death_of_a_worker_kills_the_process_group_of_its_command(
    project: Project, before: str
) -> None:
    project.sync(backup=sh(GROUP + "wait"))
    [run] = project.enqueue("backup")
    worker = project.start("work", before=before)
    pids = [*started(project, "program", "grandchild"), *worker.children()]

    worker.signal(signal.SIGKILL)

    are_dead(pids)
    assert project.row(run).status == "running"


def test_the_death_of_a_worker_together_with_its_child_processes_kills_its_command(
    project: Project,
) -> None:
    project.sync(backup=sh(GROUP + "wait"))
    project.enqueue("backup")
    worker = project.start("work")
    program, grandchild = started(project, "program", "grandchild")
    family = [*worker.children(), worker.pid]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in family:
            os.kill(pid, signal.SIGKILL)

        are_dead([program, *family])
    finally:
        os.kill(grandchild, signal.SIGKILL)  # nobody was left to do it: see docs/commands.md


def test_the_file_of_the_worker_and_not_the_database_says_what_is_started(project: Project) -> None:
    project.sync(backup=sh("echo $A > report", env={"A": "of the file"}))
    [run] = project.enqueue("backup")
    project.db.execute(
        "update yamlsched.job_definitions set command = '{/bin/sh,-c,touch hacked}', cwd = '/', stdin = 'x', "
        """env = '{"A": "of the database"}'"""
    )

    project.work()

    assert project.row(run).status == "succeeded"
    assert (project.folder / "report").read_text() == "of the file\n"
    assert not (project.folder / "hacked").exists()


def test_a_worker_does_not_claim_a_command_that_its_file_does_not_have(project: Project) -> None:
    project.sync(backup=sh("touch report"), other=sh("true"))
    [run], [other] = project.enqueue("backup"), project.enqueue("other")
    project.write(other=sh("true"))

    project.work("--max-runs", "1")

    assert [project.row(id).status for id in (run, other)] == ["queued", "succeeded"]
    assert not (project.folder / "report").exists()


def test_show_names_the_command_of_a_run(project: Project) -> None:
    project.sync(backup=sh("echo 'a b'"))
    [run] = project.enqueue("backup")

    process = project.start("show", str(run), "--format", "text")

    assert process.wait() == 0
    text = (project.folder / f"out-{project.number}").read_text()
    assert f"{run} of backup (/bin/sh -c 'echo '\"'\"'a b'\"'\"'')" in text
