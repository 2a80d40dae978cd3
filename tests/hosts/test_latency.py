"""A network on which every packet takes 200 ms: a round trip takes 0.4 s, and opening a session about 2 s."""

from __future__ import annotations

import signal

import pytest

from support.project import until

from .conftest import HostsProject
from .handlers import beats_of

pytestmark = pytest.mark.hosts

ONCE = ("succeeded", 1, 1, 1, 0)
NOTHING = {"handler": "support.handlers.nothing", "lease": "2m"}


def test_a_slow_network_costs_time_but_no_lease_and_no_attempt(project: HostsProject) -> None:
    # given a job with a slot that is due, and others
    project.network.slow_down(0.2)
    project.db.execute("create table public.ledger (run_id bigint primary key)")
    lasting = {"beats_until_go": {"lease": "12s"}, "inserts_until_go": {"lease": "12s"}}
    project.write(
        nothing=NOTHING, yearly={"cron": "@yearly", "catchup_window": "700d", **NOTHING}, **lasting
    )
    sync = project.start("sync", host="a")
    assert sync.wait() == 0, sync.text
    project.db.execute(
        "update yamlsched.job_definitions set next_slot_at = date_trunc('year', now()), "
        "effective_from = date_trunc('year', now()) - interval '1 min' where job_type = 'yearly'"
    )

    # when two loops and a tick work, and handlers last for longer than their leases
    runs = [project.enqueue(name)[0] for name in lasting]
    loops = [project.start("work", "--loop", host=host) for host in ("b", "c")]
    many = project.enqueue("nothing", count=300)
    tick = project.start("tick", host="a")
    for run in runs:
        until(lambda run=run: beats_of(project.folder, run, 1), "it is alive")
    alive_since = max(beats_of(project.folder, run, 1)[0] for run in runs)
    for run in runs:
        until(
            lambda run=run: beats_of(project.folder, run, 1)[-1] > alive_since + 13,
            "it has outlived its lease",
        )
    project.touch("go")
    assert tick.wait(120) == 0, tick.text
    until(lambda: set(project.statuses()) == {"succeeded"}, "all runs have ended")
    for loop in loops:
        loop.signal(signal.SIGTERM)
        assert loop.wait() == 0, loop.text

    # then each run was executed once
    assert {project.summary(run) for run in (*runs, *many)} == {ONCE}
    [slot] = project.db.execute(
        "select id from yamlsched.job_runs where scheduled_for is not null"
    ).fetchall()
    assert project.summary(slot.id) == ONCE
    for process in (tick, *loops):
        assert "lease." not in process.text


def test_on_a_slow_network_a_short_lease_costs_no_other_lease(project: HostsProject) -> None:
    # given a lease that ends before a session is opened, and one on the same worker that does not
    project.network.slow_down(0.2)
    project.sync(beats={"lease": "2s"}, beats_until_go={"lease": "12s"})
    project.enqueue("beats")
    [run] = project.enqueue("beats_until_go")
    worker = project.start("work", "--loop", host="a")
    until(lambda: beats_of(project.folder, run, 1), "it is alive")
    alive_since = beats_of(project.folder, run, 1)[0]

    until(
        lambda: beats_of(project.folder, run, 1)[-1] > alive_since + 13, "it has outlived its lease"
    )
    project.touch("go")

    project.until_status(run, "succeeded")
    assert project.summary(run) == ONCE
    assert f"lease.unrenewed job=beats_until_go run={run}" not in worker.text
