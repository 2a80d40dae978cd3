"""Executors of ``type: command`` whose agents run on other hosts: partitions, and hosts that lose their power.

The program is as ssh: it starts the agent on a host, where signals do not reach it, and waits for it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.project import agent_exports, until

from .conftest import HostsProject
from .handlers import beats_of, effects_of

pytestmark = pytest.mark.hosts

SECOND_ATTEMPT = ("succeeded", 2, 2, 1, 1)
SILENT = "lost its worker"


def engine(project: HostsProject) -> None:
    """Give the project the executor ``engine``, whose agents start on the host that ``enter-host`` enters."""
    exports = agent_exports(project.folder, project.remote_dsn)
    (project.folder / "ssh").write_text(f'{exports}$(cat enter-host) setsid "$@" &\nwait $!\n')
    project.executors = {"engine": {"type": "command", "command": ["/bin/sh", "ssh"]}}


def start_agents_on(project: HostsProject, host: str) -> None:
    (project.folder / "enter-host").write_text(" ".join(project.network.hosts[host].enter()))


def on_engine(**job: Any) -> dict[str, Any]:
    return {"executor": "engine", **job}


def agent_of(project: HostsProject, run: int, attempt: int) -> str:
    """Return the host of the agent that began an attempt."""
    [row] = project.db.execute(
        "select split_part(agent, ':', 1) as host from yamlsched.attempt_begins where (run_id, attempt) = (%s, %s)",
        [run, attempt],
    )
    return str(row.host)


def started_on_b(project: HostsProject) -> tuple[Any, dict[str, int]]:
    """Start a worker on host a, and on host b handlers that are between statements and after an effect."""
    engine(project)
    start_agents_on(project, "b")
    project.sync(beats=on_engine(), posts=on_engine())
    runs = {name: project.enqueue(name)[0] for name in ("beats", "posts")}
    worker = project.start("work", "--loop", host="a")
    for run in runs.values():
        until(lambda run=run: beats_of(project.folder, run, 1), "the handler is alive")
    assert {agent_of(project, run, 1) for run in runs.values()} == {"b"}
    start_agents_on(project, "c")
    return worker, runs


def check_second_attempts(project: HostsProject, runs: dict[str, int], error: str) -> None:
    """Check that attempts on c followed those on b, whose handlers had ended, and that effects happened once."""
    for name, run in runs.items():
        until(lambda run=run: project.row(run).finished_at, f"{name} has ended", seconds=120)
        assert project.summary(run) == SECOND_ATTEMPT
        assert error in project.failures(run)[0].error
        assert agent_of(project, run, 2) == "c"
        assert beats_of(project.folder, run, 1)[-1] < beats_of(project.folder, run, 2)[0]
    assert effects_of(project.folder, runs["posts"]) == 1


def until_no_agent(project: HostsProject, host: str) -> None:
    """Wait until only the process that starts others is alive on a host."""
    until(
        lambda: len(project.network.hosts[host].pids()) == 1,
        f"no agent is left on {host}",
        seconds=150,
    )


def test_an_agent_that_is_cut_off_from_the_database_stops_its_handler_before_the_next_attempt(
    project: HostsProject,
) -> None:
    worker, runs = started_on_b(project)

    project.network.separate(["b"], ["db"])

    check_second_attempts(project, runs, SILENT)
    ended = project.states(runs)
    project.network.heal()
    until_no_agent(project, "b")
    assert project.states(runs) == ended
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.text


def test_a_host_of_agents_that_loses_its_power_costs_one_attempt(project: HostsProject) -> None:
    worker, runs = started_on_b(project)

    # when the program waits on, as ssh does that gets no answer
    launchers = worker_launchers(project)
    for launcher in launchers:
        os.kill(launcher, signal.SIGSTOP)
    project.network.separate(["b"], ["a", "c", "db"])
    project.network.hosts["b"].kill()

    check_second_attempts(project, runs, SILENT)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.text


def worker_launchers(project: HostsProject) -> list[int]:
    """Return the process ids of the programs on host a that started agents."""
    launchers = []
    for pid in project.network.hosts["a"].pids():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ends meanwhile
            if (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .startswith(b"/bin/sh\0ssh\0yamlsched\0attempt\0")
            ):
                launchers.append(pid)
    return launchers


def test_agents_go_on_when_the_host_of_their_worker_is_cut_off_from_the_database(
    project: HostsProject,
) -> None:
    cut_off, runs = started_on_b(project)
    other = project.start("work", "--loop", host="c")

    # when their worker cannot renew a lease, for two of them
    project.network.separate(["a"], ["db"])
    since = {run: beats_of(project.folder, run, 1)[-1] for run in runs.values()}
    for run in runs.values():
        until(
            lambda run=run: beats_of(project.folder, run, 1)[-1] > since[run] + 12,
            "the handler goes on",
            seconds=60,
        )
        assert project.row(run).attempts == 1

    # and then they cannot, either
    project.network.separate(["b"], ["db"])
    check_second_attempts(project, runs, "lost its worker")
    project.network.heal()
    until_no_agent(project, "b")
    for worker in (cut_off, other):
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.text
