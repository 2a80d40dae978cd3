"""Half-open connections: the network drops packets silently, in both directions or in one, while nothing is closed."""

from __future__ import annotations

import signal

import pytest

from support.project import until
from yamlsched.db.connection import connect_for_handler

from .conftest import HostsProject
from .handlers import beats_of

pytestmark = pytest.mark.hosts

ONCE = ("succeeded", 1, 1, 1, 0)
DIRECTIONS = {"both ways": ("ad", "da"), "to the server": ("ad",), "from the server": ("da",)}


def silence(project: HostsProject, which: str) -> None:
    if "ad" in DIRECTIONS[which]:
        project.network.drop("a", "db")
    if "da" in DIRECTIONS[which]:
        project.network.drop("db", "a")


@pytest.mark.parametrize("which", DIRECTIONS)
def test_an_idle_worker_notices_a_silent_network_and_works_on_once_it_is_back(
    project: HostsProject, which: str
) -> None:
    # given an idle worker with open sessions
    project.sync(beats_until_go={})
    worker = project.start("work", "--loop", host="a")
    project.touch("go")
    [first] = project.enqueue("beats_until_go")
    project.until_status(first, "succeeded")

    # when the network becomes silent
    silence(project, which)
    until(lambda: "database.away" in worker.text, "the worker notices", seconds=120)
    [run] = project.enqueue("beats_until_go")
    project.network.heal()

    # then it works on
    project.until_status(run, "succeeded")
    assert project.summary(run) == ONCE
    assert "database.back" in worker.text
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.text


@pytest.mark.parametrize("which", DIRECTIONS)
def test_ticks_that_lose_the_network_end_with_exit_code_3_and_say_why(
    project: HostsProject, which: str
) -> None:
    project.sync(beats={})
    [run] = project.enqueue("beats")
    executing = project.start("tick", "--max-time", "20s", host="a")
    until(lambda: beats_of(project.folder, run, 1), "the handler is alive")
    with connect_for_handler(project.dsn) as holder, holder.transaction():
        holder.execute("lock table yamlsched.hosts")
        asking = project.start("tick", host="a")
        waiting = (
            "select 1 from pg_locks where relation = 'yamlsched.hosts'::regclass and not granted"
        )
        until(lambda: project.db.execute(waiting).fetchall(), "a tick waits for a lock")

        # when the network becomes silent: while a handler runs, while a tick waits for an answer, before one connects
        silence(project, which)
        connecting = project.start("tick", host="a")

        assert [tick.wait(150) for tick in (executing, asking, connecting)] == [3, 3, 3]
    *_, last = executing.text.splitlines()
    assert "the database was lost and did not return" in last
    assert "its unfinished runs (1) are retried when their leases expire" in last
    assert "lease.unrenewed" in executing.text
    [line] = asking.text.splitlines()
    # either end may be the first to close the connection
    assert line.startswith("yamlsched: the database failed: ")
    assert (
        connecting.text == "yamlsched: no connection to the database: connection timeout expired\n"
    )

    # and the next tick continues where they ended
    project.network.heal()
    until(
        lambda: project.start("tick", host="a").wait() == 0 and project.row(run).finished_at,
        "the run has ended",
    )
    assert project.summary(run) == ("succeeded", 2, 2, 1, 1)


def test_the_server_ends_the_sessions_of_a_host_that_has_vanished(project: HostsProject) -> None:
    # given a worker with idle sessions
    project.sync(beats_until_go={})
    project.touch("go")
    project.start("work", "--loop", host="a")
    [run] = project.enqueue("beats_until_go")
    project.until_status(run, "succeeded")
    sessions = (
        "select pid from pg_stat_activity where datname = current_database() and client_addr = "
        f"'{project.network.hosts['a'].address}'"
    )
    assert project.db.execute(sessions).fetchall()

    # when its host loses its power
    project.network.separate(["a"], ["db"])
    project.network.hosts["a"].kill()

    # then they do not use up the connections of the server
    until(
        lambda: not project.db.execute(sessions).fetchall(),
        "the server has ended the sessions",
        seconds=120,
    )


def test_an_outcome_whose_answer_is_lost_is_not_written_again(project: HostsProject) -> None:
    # given a worker that has written outcomes before: another one is a single message
    project.sync(beats_until_go={"lease": "2m"})
    worker = project.start("work", "--loop", "--concurrency", "1", host="a")
    project.touch("go")
    for _ in range(3):
        [run] = project.enqueue("beats_until_go")
        project.until_status(run, "succeeded")
    (project.folder / "go").unlink()
    [run] = project.enqueue("beats_until_go")
    until(lambda: beats_of(project.folder, run, 1), "the handler is alive")

    # when the server gets it, and its answer is lost
    silence(project, "from the server")
    project.touch("go")
    written = project.until_status(run, "succeeded")
    until(lambda: "database.away" in worker.text, "the worker notices", seconds=120)
    project.network.heal()

    # then the worker reads what became of it
    until(
        lambda: f"attempt.succeeded job=beats_until_go run={run} " in worker.text,
        "the worker knows",
        seconds=120,
    )
    assert project.row(run) == written
    assert project.summary(run) == ONCE
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.text
