"""Hosts that lose their power, all at once or one by one, with clocks that differ."""

from __future__ import annotations

import signal

import pytest

from support.clock import WRONG_CLOCK
from support.project import until
from yamlsched.db.connection import connect_for_handler

from .conftest import WORKERS, HostsProject, Pair
from .handlers import beats_of

pytestmark = pytest.mark.hosts

ONCE = ("succeeded", 1, 1, 1, 0)
SECOND_ATTEMPT = ("succeeded", 2, 2, 1, 1)
SHIFTS = {"a": 5 * 3600, "b": -5 * 3600, "c": 0}


def test_nothing_is_lost_when_everything_is_killed_at_once_and_returns_in_another_order(
    pair: Pair,
) -> None:
    # given three busy hosts, and runs that wait
    project, network = pair.project, pair.project.network
    project.sync(beats={}, works={})
    running = project.enqueue("beats", count=3)
    for host in WORKERS:
        project.start("work", "--loop", "--concurrency", "1", host=host)
    for run in running:
        until(lambda run=run: beats_of(project.folder, run, 1), "it is alive")
    waiting = project.enqueue("works", count=20)

    # when all hosts lose their power
    pair.primary.kill()
    pair.standby.kill()
    for host in WORKERS:
        network.hosts[host].kill()

    # then, of what is back first, nothing works, and everything says why
    network.hosts["c"].boot()
    early = project.start("tick", host="c"), project.start("work", "--loop", host="c")
    for process in early:
        assert process.wait() == 3
        assert process.text.startswith("yamlsched: no connection to the database: ")
        assert "Traceback" not in process.text
    pair.standby.start()
    only_standby = project.start("tick", host="c")
    assert only_standby.wait() == 3
    assert "read-only" in only_standby.text

    # and once the primary is back, each run that was executed has lost one attempt, and no other has
    pair.primary.start()
    project.db.close()
    project.db = connect_for_handler(project.dsn)
    loop = project.start("work", "--loop", host="c")
    network.hosts["a"].boot()
    assert project.start("tick", host="a").wait() == 0
    until(lambda: set(project.statuses()) == {"succeeded"}, "all runs have ended", seconds=120)
    project.check(dict.fromkeys(running, SECOND_ATTEMPT) | dict.fromkeys(waiting, ONCE))
    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0


def test_hosts_with_different_clocks_take_no_run_from_each_other_before_its_lease_ends(
    project: HostsProject,
) -> None:
    # given hosts whose clocks differ by ten hours
    (clock := project.folder / "clock").mkdir()
    (clock / "sitecustomize.py").write_text(WRONG_CLOCK)
    for host in WORKERS:
        project.network.hosts[host].kill()
        project.network.hosts[host].boot({"PYTHONPATH": str(clock), "SHIFT": str(SHIFTS[host])})
    yearly = {"handler": "support.handlers.nothing", "cron": "@yearly", "catchup_window": "700d"}
    project.sync(yearly=yearly, beats_until_go={}, beats={})
    project.db.execute(
        "update yamlsched.job_definitions set next_slot_at = date_trunc('year', now()), "
        "effective_from = date_trunc('year', now()) - interval '1 min' where job_type = 'yearly'"
    )
    [kept], [lost] = project.enqueue("beats_until_go"), project.enqueue("beats")
    holder = project.start("work", "--loop", host="a")
    for run in (kept, lost):
        until(lambda run=run: beats_of(project.folder, run, 1), "it is alive")

    # when all of them tick and work, for longer than a lease
    others = [project.start("work", "--loop", host=host) for host in ("b", "c")]
    ticks = [project.start("tick", "--max-time", "1s", host=host) for host in ("b", "c")]
    alive_since = beats_of(project.folder, kept, 1)[0]
    until(
        lambda: beats_of(project.folder, kept, 1)[-1] > alive_since + 7, "it has outlived its lease"
    )
    project.touch("go")
    project.until_status(kept, "succeeded")
    assert [tick.wait() for tick in ticks] == [0, 0]

    # and when one that holds a run loses its power
    assert holder.is_alive
    project.network.separate(["a"], ["db"])
    project.network.hosts["a"].kill()
    lease_ends_at = project.row(lost).locked_until
    project.until_status(lost, "succeeded")

    # then nothing was taken early, and the slot has one run
    assert [project.summary(run) for run in (kept, lost)] == [ONCE, SECOND_ATTEMPT]
    assert project.row(lost).started_at >= lease_ends_at
    [slot] = project.db.execute(
        "select id from yamlsched.job_runs where scheduled_for is not null"
    ).fetchall()
    assert project.summary(slot.id) == ONCE
    for other in others:
        other.signal(signal.SIGTERM)
        assert other.wait() == 0
    shown = {host: process.text.split()[0][:13] for host, process in zip("bc", others, strict=True)}
    assert shown["b"] != shown["c"]  # the shift has reached the log
