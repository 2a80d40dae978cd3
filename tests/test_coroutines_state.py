"""What a coroutine does to the process that it shares is refused, undone when its run ends, or blamed on that run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.coroutine_jobs import child_of, coroutine, error, once, start
from support.database import temporary_database
from support.project import Project, a_project, until

pytestmark = pytest.mark.story

UNDONE = [
    *(f"handler {name}" for name in ("SIGALRM", "SIGCHLD", "SIGUSR1", "SIGINT", "SIGPIPE")),
    *(f"default {name}" for name in ("SIGTERM", "SIGHUP", "SIGPIPE")),
    *(f"timer {name}" for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")),
    "alarm",
    *(f"mask {name}" for name in ("SIGTERM", "SIGUSR1")),
    *(f"limit {name}" for name in ("RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CPU", "RLIMIT_CORE")),
]
REFUSED = {
    "signal": "signal.signal() changes a process that other runs share: catch asyncio.CancelledError",
    "alarm": "signal.alarm() changes a process that other runs share: use asyncio.timeout()",
    "setitimer": "signal.setitimer() changes a process that other runs share: use asyncio.timeout()",
    "siginterrupt": "signal.siginterrupt() changes a process that other runs share",
    "set_wakeup_fd": "signal.set_wakeup_fd() changes a process that other runs share",
    "fork": "os.fork() changes a process that other runs share: use multiprocessing",
    "set_debug": "loop.set_debug() changes a process that other runs share",
    "shutdown_asyncgens": "loop.shutdown_asyncgens() changes a process that other runs share",
}


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project


def run(project: Project, job: str, payload: dict[str, Any] | None = None) -> Any:
    """Run a job, and return its row."""
    [number] = project.enqueue(job, payload)
    until(lambda: project.row(number).finished_at, f"{job} {payload} has ended")
    return project.row(number)


def test_what_a_coroutine_leaves_of_signals_timers_and_limits_is_undone_when_it_ends(
    project: Project,
) -> None:
    limits = {
        "command": ["/bin/sh", "-c", "ulimit -n; ulimit -f; ulimit -t"],
        "output": {"keep": "always"},
    }
    project.sync(
        state=once("state"), changes=once("changes"), waits=coroutine("waits"), limits=limits
    )
    [neighbour] = project.enqueue("waits")
    worker = start(project, neighbour, more=("--loop",))
    before, program = run(project, "state").result, run(project, "limits")

    for what in UNDONE:
        assert run(project, "changes", {"what": what}).status == "succeeded", what
        assert run(project, "state").result == before, what  # of the same process
        next_program = run(project, "limits")
        assert next_program.status == "succeeded", what
        outputs = [project.outputs(each.id)[0].output for each in (program, next_program)]
        assert outputs[0] == outputs[1], what

    project.touch("go")
    project.until_status(neighbour, "succeeded")
    assert project.summary(neighbour) == ("succeeded", 1, 1, 1, 0)
    assert child_of(project, neighbour) == before["pid"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_process_is_replaced_if_a_limit_cannot_be_raised_again(project: Project) -> None:
    project.sync(state=once("state"), changes=once("changes"))
    worker = project.start("work", "--loop")
    before = run(project, "state").result

    assert run(project, "changes", {"what": "hard_limit"}).status == "succeeded"

    after = run(project, "state").result
    assert after["pid"] != before["pid"]
    assert after["limits"] == before["limits"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_coroutine_cannot_set_signal_handlers_or_timers_or_reconfigure_the_loop(
    project: Project,
) -> None:
    project.sync(state=once("state"), refused=once("calls_refused"), waits=coroutine("waits"))
    [neighbour] = project.enqueue("waits")
    worker = start(project, neighbour, more=("--loop",))
    before = run(project, "state").result

    for what, message in REFUSED.items():
        row = run(project, "refused", {"what": what})
        assert (row.status, row.error_type) == ("dead", "YamlschedError"), what
        assert message in row.last_error
        assert "queue with mode: process" in row.last_error
        assert run(project, "state").result == before, what

    project.touch("go")
    project.until_status(neighbour, "succeeded")
    assert project.summary(neighbour) == ("succeeded", 1, 1, 1, 0)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_coroutine_that_closes_the_descriptors_of_its_process_is_reported_in_one_line(
    project: Project,
) -> None:
    project.sync(
        closes=once("closes_descriptors"),
        idles=coroutine("idles"),
        command={"command": ["/bin/true"]},
    )
    [closing], [neighbour] = project.enqueue("closes"), project.enqueue("idles")
    worker = start(project, closing, neighbour, more=("--loop",))

    project.touch("go")
    project.until_status(closing, "dead")
    project.until_status(neighbour, "succeeded")

    cause = "the handler closed file descriptors that it did not open, including its connection to yamlsched"
    for failed in (closing, neighbour):
        [failure] = project.failures(failed)
        assert failure.error == f"{cause} (its process executed 2 runs)"
    assert run(project, "command").status == "succeeded"
    assert "Traceback" not in worker.text
    assert worker.text.count("a child process exits") == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_the_reason_of_a_lost_process_counts_the_runs_that_have_ended_in_it(
    project: Project,
) -> None:
    project.sync(state=once("state"), waits=once("waits"))
    worker = project.start("work", "--loop")
    for _ in range(3):
        run(project, "state")
    [waiting] = project.enqueue("waits")
    project.until_started(waiting)

    os.kill(child_of(project, waiting), signal.SIGKILL)
    project.until_status(waiting, "dead")

    why = "killed by SIGKILL (signal 9), possibly out of memory (its process executed 4 runs)"
    assert error(project, waiting) == why
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
