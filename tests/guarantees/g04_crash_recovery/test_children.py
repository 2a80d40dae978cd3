"""Child processes: signals that are sent to all processes at once, a parent that dies early, a child that hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.project import Process, Project, a_project, is_alive, until
from yamlsched.worker.local.protocol import NOT_STARTED, STARTED, Memory

pytestmark = pytest.mark.story

DONE = ("succeeded", 1, 1, 1, 0)
RELEASED = ("queued", 0, 1, 0, 0)


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


# -- shared memory


def test_a_run_starts_or_is_withdrawn_and_never_both() -> None:
    memory = Memory()

    assert memory.start(1)
    assert memory.state(1) == STARTED

    assert not memory.withdraw(1)
    assert memory.withdraw(2)
    assert not memory.start(2)
    assert memory.state(2) == NOT_STARTED


# -- signals


@pytest.mark.parametrize(
    "number, send",
    [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg), (signal.SIGHUP, os.killpg)],
    ids=["TERM to each process", "INT to each process group", "HUP to each process group"],
)
def test_a_signal_to_all_processes_at_once_is_a_graceful_shutdown(
    project: Project, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    # as at a reboot, by systemd's default KillMode, or by pkill -f yamlsched
    project.sync(waits_for_file={"max_attempts": 1, "lease": "1m"})
    runs = project.enqueue("waits_for_file", count=3)
    worker = project.start("work", "--concurrency", "3")
    for run in runs:
        project.until_started(run)

    for pid in (*worker.children(), worker.pid):
        send(pid, number)
    until(lambda: "worker.stopping" in worker.text)
    project.touch("go")

    assert worker.wait() == 0
    assert {project.summary(run) for run in runs} == {DONE}


def test_children_ignore_signals_that_are_sent_only_to_them(project: Project) -> None:
    project.sync(waits_for_file={"max_attempts": 1, "lease": "1m"})
    [run] = project.enqueue("waits_for_file")
    worker = project.start("work")
    project.until_started(run)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) * 20:
        os.kill(worker.children()[0], number)
    project.touch("go")

    assert worker.wait() == 0
    assert project.summary(run) == DONE


def test_unfinished_runs_cost_no_attempt_when_all_processes_are_signalled(
    project: Project,
) -> None:
    project.sync(hangs={"max_attempts": 1, "lease": "1m"})
    [run] = project.enqueue("hangs")
    worker = project.start("work", "--grace", "1s")
    project.until_started(run)

    for pid in (*worker.children(), worker.pid):
        os.kill(pid, signal.SIGTERM)

    assert worker.wait() == 0
    assert project.summary(run) == RELEASED


def test_a_run_that_no_worker_lives_long_enough_for_ends(project: Project) -> None:
    project.sync(hangs={"max_attempts": 1, "lease": "1m"})
    [run] = project.enqueue("hangs")
    for releases in range(4):
        assert (project.row(run).status, project.row(run).releases) == ("queued", releases)
        worker = project.start("work", "--grace", "0s")
        until(lambda count=releases + 1: project.calls("started", run) == count)  # type: ignore[misc]

        worker.signal(signal.SIGTERM)

        assert worker.wait() == (1 if releases == 3 else 0)
    row = project.row(run)
    assert (row.status, row.attempts, row.error_type) == ("dead", 1, "Released")


def test_a_program_that_a_handler_starts_does_not_inherit_ignored_signals(project: Project) -> None:
    project.sync(ignored_signals={"lease": "1m"})
    [run] = project.enqueue("ignored_signals")

    project.work()

    ignored = int(project.row(run).result, 16)
    assert not any(
        ignored >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    )


# -- a parent that dies

WAIT_FOR_ITS_DEATH = """
import os, pathlib, select, time
from yamlsched.worker.local import bootstrap
worker, real = os.getpid(), bootstrap.run
def run(parent, channel, environment, kind):
    select.select([channel.commands], [], [])
    pathlib.Path(os.environ["TEST_FOLDER"], "handed").touch()
    while os.getppid() == worker:
        time.sleep(0.01)
    real(parent, channel, environment, kind)
bootstrap.run = run
"""


def test_a_child_whose_parent_dies_during_its_start_executes_nothing(project: Project) -> None:
    # given a child that has received a run, and starts slowly
    project.sync(waits_for_file={})
    project.enqueue("waits_for_file")
    worker = project.start("work", before=WAIT_FOR_ITS_DEATH)
    until((project.folder / "handed").exists)
    [child] = worker.children()

    # when its parent dies
    worker.signal(signal.SIGKILL)

    # then the child ends
    until(lambda: not is_alive(child), "the child has ended with its worker")
    assert project.calls("started") == 0


# -- no processes

ONE_FORK = """
import os
fork, forks = os.fork, []
def limited():
    if len(forks) == 1:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    forks.append(1)
    return fork()
os.fork = limited
"""


def test_runs_for_which_no_child_can_be_started_are_released_while_a_handler_executes(
    project: Project,
) -> None:
    # given a host on which a worker can start one process
    project.sync(waits_for_file={"lease": "1m"})
    [first] = project.enqueue("waits_for_file")
    worker = project.start("work", "--concurrency", "3", before=ONE_FORK)
    project.until_started(first)

    # when it has claimed two more runs
    more = project.enqueue("waits_for_file", count=3)
    until(lambda: project.row(more[1]).locked_by, "it has claimed two of them")

    # then it releases these, and another worker executes all three
    other = project.start("work", "--concurrency", "3", host="b")
    for run in more:
        project.until_started(run)
    project.touch("go")
    assert [worker.wait(), other.wait()] == [0, 0]
    assert {project.summary(run) for run in (first, *more)} == {DONE}


# -- a child that hangs


def end(loop: Process) -> None:
    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0, loop.text


def test_a_run_goes_to_another_child_if_the_first_one_hangs_before_starting_it(
    project: Project,
) -> None:
    # given a child in which a thread holds the interpreter lock after the handler has returned
    project.sync(
        leaves_a_thread_behind={"lease": "1m"}, environment={"lease": "1m", "timeout": "3s"}
    )
    [first] = project.enqueue("leaves_a_thread_behind")
    loop = project.start("work", "--loop", "--concurrency", "1")
    child = project.until_status(first, "succeeded").result
    project.touch(f"hold-{first}")
    until((project.folder / f"held-{first}").exists)

    # when it receives a run
    [run] = project.enqueue("environment")

    # then the run is executed by another child, at no cost, and the first one is killed
    assert project.until_status(run, "succeeded").result["pid"] != child
    assert project.summary(run) == DONE
    until(lambda: not is_alive(child), "the child that hangs is killed")
    end(loop)


def test_a_run_of_a_child_that_was_stopped_before_starting_it_goes_to_another_child(
    project: Project,
) -> None:
    project.sync(environment={"lease": "1m"})
    [first] = project.enqueue("environment")
    loop = project.start("work", "--loop", "--concurrency", "1")
    child = project.until_status(first, "succeeded").result["pid"]

    os.kill(child, signal.SIGSTOP)
    [run] = project.enqueue("environment")

    assert project.until_status(run, "succeeded").result["pid"] != child
    assert project.summary(run) == DONE
    until(lambda: not is_alive(child), "the child that is stopped is killed")
    end(loop)


HANG_AFTER_THE_HANDLER = """
import time
from yamlsched.worker.local import runner
real = runner.ProcessRunner.send
def send(self):
    if b"raised" in self.unsent:
        time.sleep(600)
    real(self)
runner.ProcessRunner.send = send
"""


def test_a_child_that_hangs_after_a_handler_and_before_its_report_costs_an_attempt(
    project: Project,
) -> None:
    project.sync(fails={"max_attempts": 1, "lease": "1m"})
    [run] = project.enqueue("fails")

    project.work(before=HANG_AFTER_THE_HANDLER, code=1)

    assert project.summary(run) == ("dead", 1, 1, 0, 1)
    assert (
        project.row(run).last_error
        == "its process hung, and was killed, before it could report how the handler ended"
    )
