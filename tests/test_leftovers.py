"""What a handler leaves behind in its process, and what runs next in the same worker: a handler, and a command.

And the processes that it forks: how they end, and which of them are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import leftovers
from support.leftovers import ENDS_PROCESS, FORK_ENDS, IS_KEPT, IS_RESET
from support.project import Process, Project, a_project, is_alive, until

pytestmark = pytest.mark.story


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        project.sync(
            leave={"handler": "support.leftovers.leave", "max_attempts": 1, "lease": "1m"},
            handler={
                "handler": "support.leftovers.observe",
                "max_attempts": 1,
                "lease": "1m",
                "output": {"keep": "always"},
            },
            command={
                "command": [sys.executable, leftovers.__file__],
                "max_attempts": 1,
                "lease": "1m",
            },
        )
        yield project


def observed(project: Project, run: int) -> dict[str, Any]:
    """Return what a run of ``handler`` or of ``command`` has seen."""
    row = project.row(run)
    assert row.status == "succeeded", row.last_error
    [output] = project.outputs(run)
    if row.job_type == "command":
        return json.loads(output.output)  # type: ignore[no-any-return]
    assert output.output == "printed\n"
    return row.result  # type: ignore[no-any-return]


class Left(NamedTuple):
    """The process of a handler that left something, and what the next handler and the next command see."""

    process: int
    handler: dict[str, Any]
    command: dict[str, Any]


def observe(project: Project, kinds: Iterable[str]) -> tuple[Left, dict[str, Left]]:
    """Return what is seen before anything is left, and after each of ``kinds``, one after the other in one worker."""
    first = [project.enqueue(job)[0] for job in ("handler", "command")]
    runs = {
        kind: [
            project.enqueue("leave", {"kind": kind})[0],
            project.enqueue("command")[0],
            # after what it prints its process waits for the worker, once more if it must end
            project.enqueue("leave", {"kind": kind, "prints": True})[0],
            project.enqueue("handler")[0],
        ]
        for kind in kinds
    }

    project.work("--concurrency", "1")

    handler, command = (observed(project, run) for run in first)
    seen = {}
    for kind, (earlier, next_command, leave, next_handler) in runs.items():
        for run in (earlier, leave):
            assert project.row(run).status == "succeeded", (kind, project.row(run).last_error)
        seen[kind] = Left(
            project.row(leave).result,
            observed(project, next_handler),
            observed(project, next_command),
        )
    attempts = project.db.execute("select distinct attempts from yamlsched.job_runs").fetchall()
    assert [row.attempts for row in attempts] == [1]
    return Left(handler["pid"], handler, command), seen


def test_what_is_reset_after_a_handler_is_as_before_for_the_next_one_and_for_a_command(
    project: Project,
) -> None:
    before, seen = observe(project, IS_RESET)

    for kind, left in seen.items():
        assert (kind, left) == (kind, before)
        assert left.process != left.command["parent"]


def test_what_cannot_be_reset_ends_the_process_and_is_as_before_for_the_next_handler_and_for_a_command(
    project: Project,
) -> None:
    before, seen = observe(project, ENDS_PROCESS)

    for kind, left in seen.items():
        assert (kind, left.handler["state"]) == (kind, before.handler["state"])
        assert (kind, left.command) == (kind, before.command)
        assert left.process != left.command["parent"]


def test_state_of_python_is_kept_for_the_next_handler_and_hidden_from_a_command(
    project: Project,
) -> None:
    before, seen = observe(project, IS_KEPT)

    for kind, left in seen.items():
        assert (kind, left.command) == (kind, before.command)
        assert left.process == before.process == left.handler["pid"]
        assert (kind, left.handler["state"]) == (kind, before.handler["state"])
        kept_before = before.handler["python"]["kept"]
        changed = {
            key
            for key, value in left.handler["python"]["kept"].items()
            if value != kept_before[key]
        }
        assert changed == {kind}
        before = left  # it is kept for the handlers of the next kinds, too


# -- the exit codes of commands


def test_a_command_is_executed_once_after_a_handler_that_ignores_the_end_of_its_children(
    project: Project,
) -> None:
    project.sync(
        leave={"handler": "support.leftovers.leave"},
        charge={"command": ["/bin/sh", "-c", "echo charged >> charges; exit 0"], "max_attempts": 3},
        fail={"command": ["/bin/sh", "-c", "exit 3"], "max_attempts": 1},
    )
    project.enqueue("leave", {"kind": "sigchld_ignored"})
    [charge], [fail] = project.enqueue("charge"), project.enqueue("fail")

    project.work("--concurrency", "1", code=1)

    assert (project.row(charge).status, project.row(charge).attempts) == ("succeeded", 1)
    assert (project.folder / "charges").read_text() == "charged\n"
    assert project.failures(fail)[0].error_type == "exit code 3"


IGNORES_CHILDREN = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
WITHOUT_PIDFD = "import os; del os.pidfd_open"


@pytest.mark.parametrize(
    "before", [IGNORES_CHILDREN, f"{IGNORES_CHILDREN}; {WITHOUT_PIDFD}"], ids=["linux", "other"]
)
def test_exit_codes_are_known_to_a_worker_whose_launcher_ignores_the_end_of_children(
    project: Project, before: str
) -> None:
    project.sync(fail={"command": ["/bin/sh", "-c", "exit 3"], "max_attempts": 1})
    [run] = project.enqueue("fail")

    project.work(code=1, before=before)

    assert project.failures(run)[0].error_type == "exit code 3"


def test_invoke_knows_the_exit_code_of_a_command_if_its_launcher_ignores_the_end_of_children(
    project: Project,
) -> None:
    project.sync(fail={"command": ["/bin/sh", "-c", "exit 3"]})

    invoked = project.start("invoke", "fail", before=IGNORES_CHILDREN)

    assert invoked.wait() == 1
    assert "exit code 3" in invoked.text


# -- what a handler forks


def plain_python(how: str) -> tuple[int, str]:
    """Return the exit code and the last line of a plain process that ends in this way."""
    program = (
        f"from support.leftovers import FORK_ENDS\nif error := FORK_ENDS[{how!r}]: raise error"
    )
    folder = Path(leftovers.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, "".join(done.stderr.splitlines()[-1:])


def test_a_process_that_a_handler_forks_ends_as_in_plain_python(project: Project) -> None:
    project.sync(
        **{
            function: {
                "handler": f"support.leftovers.{function}",
                "max_attempts": 1,
                "output": {"keep": "always"},
            }
            for function in ("fork", "fork_async")
        }
    )
    runs = {
        (how, function): project.enqueue(function, {"how": how})[0]
        for how in FORK_ENDS
        for function in ("fork", "fork_async")
    }

    project.work()

    plain = {how: plain_python(how) for how in FORK_ENDS}
    for (how, function), run in runs.items():
        code, last_line = plain[how]
        assert (how, function, project.row(run).result) == (how, function, code)
        printed = "".join(output.output for output in project.outputs(run))
        assert printed.splitlines()[-1:] == ([last_line] if last_line else [])
        assert ("Traceback" in printed) is (how == "raises")


TERMINATED = -signal.SIGTERM
EXIT_CODES = {
    "terminate_processes": [TERMINATED] * 20,
    "terminate_processes_from_thread": [TERMINATED] * 20,
    "terminate_pool": [TERMINATED] * 2,
    "terminate_handled": [7] * 20,
}
CODES_OF_SIGNALS = {signal.SIGHUP: -signal.SIGHUP, signal.SIGINT: 1}


def test_a_signal_ends_a_process_that_a_handler_forks_as_in_plain_python_unless_the_handler_handles_it(
    project: Project,
) -> None:
    once = {"max_attempts": 1, "timeout": "60s", "lease": "1m"}
    project.sync(
        **{name: {"handler": f"support.leftovers.{name}", **once} for name in EXIT_CODES},
        signal_process={"handler": "support.leftovers.signal_process", **once},
    )
    runs: dict[int, Any] = {
        project.enqueue(name)[0]: codes for name, codes in EXIT_CODES.items()
    } | {
        project.enqueue("signal_process", {"number": int(number)})[0]: code
        for number, code in CODES_OF_SIGNALS.items()
    }

    project.work()

    assert {run: project.row(run).result for run in runs} == runs


def test_a_pool_of_a_handler_works_during_the_grace_period_and_ends_when_the_handler_is_stopped(
    project: Project,
) -> None:
    project.sync(stop={"handler": "support.leftovers.stop_pool", "max_attempts": 1, "lease": "1m"})
    [run] = project.enqueue("stop")
    loop = project.start("work", "--loop", "--concurrency", "1", "--grace", "1s")
    paths = [project.folder / f"worker{index}" for index in range(2)]
    until(lambda: all(path.exists() for path in paths), "the pool is working")
    processes = [int(path.read_text()) for path in paths]

    loop.signal(signal.SIGTERM)
    until(lambda: "worker.stopping" in loop.text, "the worker is stopping")

    assert all(map(is_alive, processes))
    assert loop.wait() == 0
    assert not any(map(is_alive, processes))
    assert (project.row(run).status, project.row(run).attempts) == ("queued", 0)


@pytest.fixture
def deaf(project: Project) -> Iterator[Project]:
    """Yield a project with a job that forks a process which ignores SIGTERM; it is killed afterwards."""
    project.sync(
        fork_deaf={"handler": "support.leftovers.fork_deaf", "max_attempts": 1, "timeout": "1m"}
    )
    yield project
    with contextlib.suppress(ProcessLookupError):
        os.kill(forked(project), signal.SIGKILL)


def forked(project: Project) -> int:
    path = project.folder / "deaf"
    until(path.exists, "the handler has forked")
    return int(path.read_text())


def by_timeout(project: Project, run: int, loop: Process) -> None:
    pass


def by_cancel(project: Project, run: int, loop: Process) -> None:
    assert project.start("cancel", str(run), "--yes").wait() == 0


def by_loss(project: Project, run: int, loop: Process) -> None:
    project.db.execute(
        "update yamlsched.job_runs set locked_by = 'b:1:x', attempts = 2 where id = %s", [run]
    )


def by_shutdown(project: Project, run: int, loop: Process) -> None:
    loop.signal(signal.SIGTERM)


@pytest.mark.parametrize("stop", [by_timeout, by_cancel, by_loss, by_shutdown])
def test_what_a_stopped_handler_has_forked_is_killed(deaf: Project, stop: Any) -> None:
    timeout = "2s" if stop is by_timeout else "1m"
    deaf.sync(
        fork_deaf={"handler": "support.leftovers.fork_deaf", "max_attempts": 2, "timeout": timeout}
    )
    [run] = deaf.enqueue("fork_deaf", {"end": "waits"})
    loop = deaf.start("work", "--loop", "--concurrency", "1", "--grace", "1s")
    process = forked(deaf)

    stop(deaf, run, loop)

    until(lambda: not is_alive(process), "the forked process was killed")
    if stop is not by_shutdown:
        loop.signal(signal.SIGTERM)
    assert loop.wait() == 0


@pytest.mark.parametrize(("end", "code"), [("returns", 0), ("raises", 1)])
def test_what_a_handler_has_forked_goes_on_if_the_handler_ends_by_itself(
    deaf: Project, end: str, code: int
) -> None:
    deaf.enqueue("fork_deaf", {"end": end})

    deaf.work(code=code)

    assert is_alive(forked(deaf))
