"""A primary that is killed, and a standby that is promoted, under a DSN that names both."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from support.project import is_alive, until

from .conftest import Pair
from .handlers import beats_of, effects_of

pytestmark = pytest.mark.hosts

ONCE = ("succeeded", 1, 1, 1, 0)
AGAIN = ("succeeded", 1, 2, 2, 0)  # one attempt, as far as the database knows
SLOT = {"cron": "@yearly", "handler": "hosts.handlers.works", "catchup_window": "700d"}
BEFORE_LAST_SLOT = (
    "update yamlsched.job_definitions set next_slot_at = date_trunc('year', now()), last_slot_at = null, "
    "effective_from = date_trunc('year', now()) - interval '1 min' where job_type = 'yearly'"
)


def slots(pair: Pair) -> list[Any]:
    return pair.project.db.execute(
        "select id, idempotency_key from yamlsched.job_runs where scheduled_for is not null"
    ).fetchall()


def replicate_synchronously(pair: Pair) -> None:
    """Let each commit wait for the standby."""
    pair.primary.execute("alter system set synchronous_standby_names = '*'")
    pair.primary.execute("select pg_reload_conf()")
    until(
        lambda: pair.primary.execute("select 1 from pg_stat_replication where sync_state = 'sync'"),
        "it is",
    )


@pytest.mark.parametrize("is_silent", [False, True], ids=["killed", "vanished"])
def test_a_failover_to_a_synchronous_standby_loses_nothing_and_doubles_nothing(
    pair: Pair, is_silent: bool
) -> None:
    # given a pair whose commits wait for the standby
    project = pair.project
    replicate_synchronously(pair)
    project.sync(works={"lease": "5m"}, yearly={**SLOT, "lease": "5m"})
    project.db.execute(BEFORE_LAST_SLOT)
    doctor = project.start("doctor", host="a")
    doctor.wait()
    assert "1, and commits wait for one" in (project.folder / f"out-{project.number}").read_text()

    # when it fails over while three workers are busy
    runs = project.enqueue("works", count=300)
    workers = [
        project.start("work", "--loop", "--concurrency", "2", host=host) for host in ("a", "b", "c")
    ]
    until(lambda: project.calls("completed") >= 60, "60 runs have completed")
    pair.fail_over(is_silent)
    until(lambda: set(project.statuses()) == {"succeeded"}, "all runs have ended", seconds=180)
    tick = project.start("tick", host="a")
    assert tick.wait() == 0, tick.text
    for worker in workers:
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.text

    # then each run has succeeded, and each of its effects has happened once
    [slot] = slots(pair)
    runs.append(slot.id)
    # though an attempt whose transaction was open has failed
    for run in runs:
        assert project.summary(run)[0] == "succeeded"
        assert effects_of(project.folder, run) == 1
    ledger = project.db.execute("select run_id from public.ledger order by 1").fetchall()
    assert [row.run_id for row in ledger] == runs


def test_a_failover_to_an_asynchronous_standby_loses_the_last_commits_as_the_docs_say(
    pair: Pair,
) -> None:
    # given a standby that no longer receives anything
    project = pair.project
    project.sync(works={}, yearly=SLOT)
    [before] = project.enqueue("works")
    [written] = project.db.execute("select pg_current_wal_lsn()::text").fetchone()
    replayed = f"select 1 where pg_last_wal_replay_lsn() >= '{written}'"
    until(lambda: pair.standby.execute(replayed), "the standby has the first run")
    doctor = project.start("doctor", host="a")
    doctor.wait()
    assert (
        "1 standby, and no commit waits for one"
        in (project.folder / f"out-{project.number}").read_text()
    )
    project.network.separate(["db1"], ["db2"])

    # when runs succeed, a slot is fired, a run is enqueued, and the primary dies
    project.db.execute(BEFORE_LAST_SLOT)
    tick = project.start("tick", host="b")
    assert tick.wait() == 0, tick.text
    [slot] = slots(pair)
    loop = project.start("work", "--loop", host="a")
    [after] = project.enqueue("works")
    project.until_status(after, "succeeded")
    project.check(dict.fromkeys((before, slot.id, after), ONCE))
    pair.fail_over()
    until(
        lambda: "database.back" in loop.text,
        "the worker has found the promoted server",
        seconds=120,
    )
    project.until_status(before, "succeeded")

    # then a run that had succeeded was executed again, its effect was repeated, with the same key
    project.check({before: AGAIN})
    posts = [
        line.split()[1]
        for line in (project.folder / "effects").read_text().splitlines()
        if line.endswith(f" {before}")
    ]
    assert (len(posts), len(set(posts))) == (2, 1)
    # the enqueued run is lost, and the slot is fired again
    assert project.db.execute("select id from yamlsched.job_runs").fetchall() == [(before,)]
    project.db.execute(BEFORE_LAST_SLOT)
    assert project.start("tick", host="b").wait() == 0
    [again] = slots(pair)
    assert again.idempotency_key == slot.idempotency_key
    project.until_status(again.id, "succeeded")

    doctor = project.start("doctor", host="a")
    doctor.wait()
    assert (
        "the DSN names 2 servers, and no standby replicates this one"
        in (project.folder / f"out-{project.number}").read_text()
    )

    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0


def test_while_a_synchronous_standby_is_lost_no_handler_outlives_its_lease_and_nothing_is_doubled(
    pair: Pair,
) -> None:
    # given a handler with a short lease and one with a long lease
    project = pair.project
    replicate_synchronously(pair)
    handler = "hosts.handlers.beats_until_go"
    project.sync(short={"handler": handler}, long={"handler": handler, "lease": "5m"})
    [short], [long] = project.enqueue("short"), project.enqueue("long")
    worker = project.start("work", "--loop", host="a")
    for run in (short, long):
        until(lambda run=run: beats_of(project.folder, run, 1), "it is alive")
    handlers = worker.children()

    # when commits wait for a standby that does not answer
    project.network.separate(["db1"], ["db2"])
    until(lambda: not all(map(is_alive, handlers)), "a handler was stopped", seconds=120)
    assert f"lease.unrenewed job=short run={short}" in worker.text
    project.network.heal()
    project.touch("go")

    # then both succeed, and the long lease was kept
    for run in (short, long):
        until(lambda run=run: project.row(run).finished_at, "it has ended", seconds=120)
    assert project.summary(long) == ONCE
    assert (project.row(short).status, project.calls("started", short)) == ("succeeded", 2)
    assert project.calls("completed", short) == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
