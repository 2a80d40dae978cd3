"""A host that is cut off from the database while its handlers run: for longer than a lease, and for less."""

from __future__ import annotations

import signal

import pytest

from support.project import is_alive, until

from .conftest import HostsProject
from .handlers import beats_of, effects_of

pytestmark = pytest.mark.hosts

SECOND_ATTEMPT = (
    "succeeded",
    2,
    2,
    1,
    1,
)  # status, attempts, calls started and completed, failures
IN_DOUBT = ("dead", 2, 2, 0, 2)


@pytest.mark.parametrize("how", ["unplugged", "silent"])
def test_a_host_that_is_cut_off_stops_its_handlers_before_another_host_takes_their_runs(
    project: HostsProject, how: str
) -> None:
    # given handlers on host a: between statements, inside a transaction, after and inside an effect
    project.db.execute("create table public.ledger (run_id bigint primary key)")
    effects: dict[str, dict[str, object]] = {"skip": {}, "repeat": {}, "raise": {}}
    project.sync(
        beats={}, inserts={}, posts={}, posts_forever={"max_attempts": 2}, beats_until_go={}
    )
    runs = {name: project.enqueue(name)[0] for name in ("beats", "inserts", "posts")}
    runs |= {name: project.enqueue("posts_forever", {"in_doubt": name})[0] for name in effects}
    cut_off = project.start("work", "--loop", "--concurrency", "8", host="a")
    for run in runs.values():
        until(lambda run=run: beats_of(project.folder, run, 1), f"run {run} is alive on host a")
    handlers = cut_off.children()
    others = [project.start("work", "--loop", host=host) for host in ("b", "c")]

    # when the host is cut off for longer than a lease
    if how == "unplugged":
        project.network.unplug("a")
    else:
        project.network.separate(["a"], ["b", "c", "db", "db2"])
    # a second attempt waits for the row that the first one has inserted, until the server misses host a
    for run in runs.values():
        until(lambda run=run: project.row(run).finished_at, f"run {run} has ended", seconds=150)
    assert not any(map(is_alive, handlers))

    # then no handler was alive when the next attempt of its run began
    for run in runs.values():
        second = beats_of(project.folder, run, 2)
        assert not second or beats_of(project.folder, run, 1)[-1] < second[0]
    project.check(
        {run: IN_DOUBT if name == "raise" else SECOND_ATTEMPT for name, run in runs.items()}
    )
    # and transactions and effects happened once; one that may be repeated was
    assert [row.run_id for row in project.db.execute("select run_id from public.ledger")] == [
        runs["inserts"]
    ]
    counts = {name: effects_of(project.folder, run) for name, run in runs.items()}
    assert counts == {"beats": 0, "inserts": 0, "posts": 1, "skip": 1, "repeat": 2, "raise": 1}
    assert project.row(runs["raise"]).error_type == "EffectInDoubt"
    assert cut_off.text.count("lease.unrenewed") == len(runs)

    # when it is back, then it changes nothing that it held, and works on
    before = project.states(runs)
    project.network.heal()
    until(lambda: "database.back" in cut_off.text, "host a is back")
    for other in others:
        other.signal(signal.SIGTERM)
        assert other.wait() == 0
    project.touch("go")
    [late] = project.enqueue("beats_until_go")
    project.until_status(late, "succeeded")
    assert project.row(late).locked_by.startswith("a:")
    assert project.states(runs) == before
    cut_off.signal(signal.SIGTERM)
    assert cut_off.wait() == 0, cut_off.text


def test_a_host_that_is_back_before_its_leases_end_loses_nothing(project: HostsProject) -> None:
    project.sync(beats_until_go={"lease": "40s"})
    [run] = project.enqueue("beats_until_go")
    worker = project.start("work", "--loop", host="a")
    until(lambda: beats_of(project.folder, run, 1), "the handler is alive")
    other = project.start("work", "--loop", host="b")

    project.network.separate(["a"], ["db"])
    until(lambda: "database.away" in worker.text, "host a has noticed", seconds=120)
    project.network.heal()
    until(lambda: "database.back" in worker.text, "host a is back")
    project.touch("go")

    project.until_status(run, "succeeded")
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    assert project.row(run).locked_by.startswith("a:")
    for process in (worker, other):
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.text
