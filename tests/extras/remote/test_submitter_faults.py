"""The submitting host dies, is deployed, or is cut off, in each phase of an attempt, also with the database away.

The rows are those of docs/executors.md: each run is executed once, and costs one attempt.
"""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import pytest
from extras.remote.test_remote_executor import APART, engine, launchers, on_engine, project, tickets

from support.project import Process, Project, until
from support.proxy import Proxy, a_proxy

__all__ = ["project"]

pytestmark = pytest.mark.slow

PHASES = ["queued", "begun", "running", "written"]


def reach(project: Project, worker: Process, run: int, phase: str) -> list[int]:
    """Bring the attempt of ``run`` into the phase; return the processes of the submitting host."""
    until(lambda: launchers(project), "the program has started")
    launcher = launchers(project)[0]
    gateway = int(Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[1])
    processes = [worker.pid, gateway, launcher]
    if phase == "begun":  # and neither the worker nor its gateway knows it
        for pid in processes[:2]:
            os.kill(pid, signal.SIGSTOP)
    if phase != "queued":
        project.touch("begin")
        project.until_started(run)
    if phase in ("running", "written"):
        until(lambda: "attempt.begun" in worker.text)
    if phase == "written":
        for pid in processes[:2]:
            os.kill(pid, signal.SIGSTOP)
        project.touch("end")
        until(lambda: tickets(project, run)[0].outcome)
    return processes


def inflict(fault: str, worker: Process, processes: list[int], proxy: Proxy) -> None:
    if fault == "cut off":
        proxy.is_silent = True
    if fault == "dies":
        os.kill(worker.pid, signal.SIGSTOP)  # all of the host at one moment
        for pid in reversed(processes):
            os.kill(pid, signal.SIGKILL)
        return
    for pid in processes[:2]:
        os.kill(pid, signal.SIGCONT)
    if fault == "deployed":
        worker.signal(signal.SIGTERM)


def catches_sigterm(process: Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> signal.SIGTERM - 1 & 1)


@pytest.mark.parametrize("is_away", [False, True], ids=["database there", "database away"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", ["dies", "deployed", "cut off"])
def test_a_fault_of_the_submitting_host_costs_no_attempt_and_executes_nothing_twice(
    project: Project, fault: str, phase: str, is_away: bool
) -> None:
    with a_proxy(project.dsn) as of_worker, a_proxy(project.dsn) as of_agent:
        engine(project, "while ! [ -e begin ]; do sleep 0.01; done; " + APART)
        launch = project.folder / "launch"
        launch.write_text(
            launch.read_text().replace(shlex.quote(project.dsn), shlex.quote(of_agent.dsn))
        )
        project.sync(waits_for_file=on_engine(lease="20s", max_attempts=1))
        [run] = project.enqueue("waits_for_file", {"name": "end"})
        worker = project.start("work", "--loop", "--grace", "0s", dsn=of_worker.dsn)
        processes = reach(project, worker, run, phase)

        for proxy in (of_worker, of_agent):
            proxy.is_silent = is_away
        inflict(fault, worker, processes, of_worker)
        if is_away:  # for a moment in which all of it is noticed
            project.touch("begin")
            until(lambda: phase == "queued" or project.calls("started", run))
        of_agent.is_silent = False
        of_worker.is_silent = fault == "cut off"

        # then another worker finishes it
        other = project.start("work", "--loop")
        for name in ("begin", "end"):
            project.touch(name)
        project.until_status(run, "succeeded")
        of_worker.is_silent = False
        until(
            lambda: catches_sigterm(other),
            "the other worker has started: the first one may have applied the outcome",
        )
        for each in (worker, other):
            if each.is_alive:
                each.signal(signal.SIGTERM)
                assert each.wait() == 0, each.text
        assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
