"""Helper processes: a worker whose helpers cannot be started, or die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.project import Project, a_project, until
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.worker import sessions
from yamlsched.worker.sessions import run_in_helper


def refuse() -> int:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refused() -> None:
    raise Refused("not that")


def test_a_helper_returns_results_and_errors_of_any_size() -> None:
    for size in (0, 1, 65_535, 65_536, 65_537, 5_000_000):
        assert len(asyncio.run(run_in_helper(lambda size=size: "x" * size))) == size  # type: ignore[misc]
    with pytest.raises(Refused, match="not that"):
        asyncio.run(run_in_helper(refused))


def test_a_helper_ignores_a_signal_to_all_processes() -> None:
    def signal_itself() -> str:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        return "still here"

    assert asyncio.run(run_in_helper(signal_itself)) == "still here"


def half_an_answer(writing: int, do: Callable[[], object]) -> None:
    os.write(writing, b"\x80\x05\x95\x10")
    os._exit(1)


def test_a_helper_that_dies_before_or_during_its_result_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(EnvironmentFailed, match="the helper process died without a result"):
        asyncio.run(run_in_helper(die))

    monkeypatch.setattr(sessions, "_answer", half_an_answer)
    with pytest.raises(EnvironmentFailed, match="the helper process died without a result"):
        asyncio.run(run_in_helper(int))


def test_a_helper_that_cannot_be_started_is_an_error_and_leaks_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fork", refuse)

    with pytest.raises(
        EnvironmentFailed,
        match="no helper process can be started: Resource temporarily unavailable",
    ):
        asyncio.run(run_in_helper(int))

    assert os.listdir("/proc/self/fd") == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


REFUSE_HELPERS = """
import os, sys
fork = os.fork
def refuse():
    if sys._getframe(2).f_code.co_filename.endswith("sessions.py"):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = refuse
"""


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def test_a_loop_that_cannot_start_its_helpers_continues(project: Project) -> None:
    project.sync(nothing={})
    loop = project.start(
        "work",
        "--loop",
        before=REFUSE_HELPERS,
        YAMLSCHED_HEARTBEAT_URL="http://127.0.0.1:9/",
        PGHOSTADDR="",
    )
    project.until_status(project.enqueue("nothing")[0], "succeeded")

    loop.signal(signal.SIGHUP)

    until(lambda: "sync.failed" in loop.text and "sync.not_reported" in loop.text)
    project.until_status(project.enqueue("nothing")[0], "succeeded")
    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0, loop.text
