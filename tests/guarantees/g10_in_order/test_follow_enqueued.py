"""Jobs that wait also for the runs that an upstream's run has enqueued."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.database import delete_rows
from support.effects import succeed_in
from support.followers import DEAD, HOURLY, SUCCESS, Db, World, world
from support.schedules import HOUR, MINUTE, at
from yamlsched.act import prune
from yamlsched.act import runs as actions
from yamlsched.db.query import load, now
from yamlsched.runs.lifecycle import Outcome, Status
from yamlsched.sync.flow import sync
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

__all__ = ["world"]

SEND = {"max_attempts": 1}
CHILDREN = "select id from yamlsched.job_runs where parent_id is not null"


def apply(world: World, mode: str = "ended", policy: str = "wait") -> None:
    """Apply a schedule with a job that enqueues, one that waits for all of that, and start the first."""
    follows = {"after": ["fan_out"], "on_upstream_failure": policy}
    summary = follows | ({"after_enqueued": mode} if mode else {})
    world.apply(fan_out=HOURLY, send=SEND, summary=summary)
    world.tick("2026-01-14 02:00")
    assert world.claim() == ["fan_out 02:00"]


def summary(world: World) -> str:
    """Return the state of the job that waits, or why its slot was skipped."""
    states = [state for state in world.states() if state.startswith("summary ")]
    if states:
        return states[0].removeprefix("summary 02:00 ")
    row: Any = world.db.execute("select reason, detail from yamlsched.skipped_slots").fetchone()
    return f"{row.reason} {row.detail}"


def waits(world: World) -> str:
    row: Any = world.db.execute(
        "select yamlsched.waits_for(r) as line from yamlsched.job_runs r where r.job_type = 'summary'"
    ).fetchone()
    return str(row.line)


def upstream(world: World) -> Any:
    [run] = [run for run in world.held.values() if run.job_type == "summary"]
    return json.loads(run.upstream or "")["fan_out"]


@pytest.mark.parametrize("mode", ["ended", "succeeded"])
@pytest.mark.parametrize("count", [1, 3, 1_000])
def test_a_slot_waits_until_all_have_ended_that_the_run_before_has_enqueued(
    world: World, mode: str, count: int
) -> None:
    apply(world, mode)
    world.end("fan_out 02:00", enqueued={"send": count})

    assert world.claim() == ["send"] * count
    for _ in range(min(2, count - 1)):
        world.end("send")
        assert world.claim() == []
        assert summary(world) == "queued (waits)"
    world.end_all("send")

    assert world.claim() == ["summary 02:00"]
    assert upstream(world) == {
        "run_id": world.id("fan_out 02:00"),
        "scheduled_for": "2026-01-14T02:00:00+00:00",
        "status": "succeeded",
        "result": None,
        "enqueued": {"succeeded": count},
    }


def test_a_slot_waits_for_nothing_more_if_nothing_was_enqueued(world: World) -> None:
    apply(world)
    world.end("fan_out 02:00")

    assert world.claim() == ["summary 02:00"]
    assert upstream(world)["enqueued"] == {}


def test_a_slot_without_after_enqueued_does_not_wait_for_what_was_enqueued(world: World) -> None:
    apply(world, mode="")
    world.end("fan_out 02:00", enqueued={"send": 1})

    assert world.claim() == ["send", "summary 02:00"]
    assert upstream(world)["enqueued"] is None


@pytest.mark.parametrize("status", [Status.DEAD, Status.CANCELLED])
@pytest.mark.parametrize(
    "mode, policy, expected",
    [
        ("ended", "wait", "running"),
        ("ended", "skip", "running"),
        ("succeeded", "wait", "queued (waits)"),
        ("succeeded", "skip", "upstream send"),
        ("succeeded", "run", "running"),
    ],
)
def test_what_is_dead_or_cancelled_counts_as_a_dead_run_of_the_job_before(
    world: World, mode: str, policy: str, expected: str, status: Status
) -> None:
    apply(world, mode, policy)
    world.end("fan_out 02:00", enqueued={"send": 3})
    assert world.claim() == ["send"] * 3
    [dead, *_] = [run.id for run in sorted(world.held.values())]

    world.end("send", Outcome(status, error="no route to host"))
    assert world.claim() == []  # all have to end first
    world.end_all("send")

    world.claim()
    detail = f"upstream send:{dead}" if expected == "upstream send" else expected
    assert summary(world) == detail
    if expected == "running":
        run = upstream(world)
        assert run["enqueued"] == {"succeeded": 2, str(status): 1}
        assert (run["status"], run["run_id"]) == ("succeeded", world.id("fan_out 02:00"))


def test_the_slot_waits_again_for_what_is_retried_until_it_is_released(world: World) -> None:
    apply(world, "succeeded")
    world.end("fan_out 02:00", enqueued={"send": 2})
    world.claim()
    dead = sorted(world.held)
    world.end_all("send", DEAD)
    assert world.claim() == []

    # when one after the other is retried
    for left, run in enumerate(dead):
        [outcome] = actions.retry(world.db, [run], "ann", now=world.now)
        assert "summary (run" in outcome.what
        assert world.claim() == ["send"]
        assert world.settle().released == 0
        world.end("send")
        assert world.claim() == (["summary 02:00"] if left else [])

    # then what is retried after that holds up nothing
    actions.retry(world.db, dead[:1], "ann", force=True, now=world.now)
    world.end("summary 02:00")
    assert summary(world) == "succeeded"


def test_what_waits_is_not_awaited_once_its_job_is_retired_and_what_executes_is(
    world: World,
) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 2})
    world.db.execute(
        "update yamlsched.job_runs set run_at = run_at + interval '1 day' where id ="
        " (select min(id) from yamlsched.job_runs where job_type = 'send')"
    )
    assert world.claim() == ["send"]

    world.apply(fan_out=HOURLY, summary={"after": ["fan_out"], "after_enqueued": "ended"})
    assert world.claim() == []
    assert summary(world) == "queued (waits)"
    world.end("send")

    assert world.claim() == ["summary 02:00"]
    assert upstream(world)["enqueued"] == {"succeeded": 1, "queued": 1}


def test_what_waits_for_a_retired_job_is_as_cancelled_until_the_job_is_back(world: World) -> None:
    apply(world, "succeeded")
    world.end("fan_out 02:00", enqueued={"send": 1})
    follows = {"after": ["fan_out"], "after_enqueued": "succeeded"}

    world.apply(fan_out=HOURLY, summary=follows)
    assert world.settle().released == 0
    assert summary(world) == "queued (waits)"

    world.apply(fan_out=HOURLY, send=SEND, summary=follows)
    assert world.claim() == ["send"]
    world.end("send")
    assert world.claim() == ["summary 02:00"]


def test_the_chain_of_a_slot_that_waits_for_what_was_enqueued_has_no_run_that_succeeded(
    world: World,
) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 1})

    [job] = world.db.execute("select id from yamlsched.job_definitions where job_type = 'summary'")
    chain = world.db.execute(load("history")["chain"], {"id": job.id, "limit": 10}).fetchall()

    assert [run.run_id for run in chain] == [world.id("summary 02:00")]
    assert (
        waits(world)
        == f"waits for 1 of 1 runs that fan_out enqueued (run {world.id('fan_out 02:00')})"
    )


def test_a_cancelled_run_is_awaited_while_its_handler_may_be_alive(world: World) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 2})
    world.claim()
    executing, other = sorted(world.held.values())
    done = store.finish(world.connection, "default", [(other, SUCCESS)], now=world.now)
    assert world.runner.run(done)

    actions.cancel(world.db, [executing.id], "ann", now=world.now)
    assert world.claim() == []

    world.runner.run(store.unlock(world.connection, "default", [executing], world.now))
    assert world.claim() == ["summary 02:00"]


def test_what_waits_and_is_cancelled_has_ended(world: World) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 1})
    [waiting] = [row.id for row in world.db.execute(CHILDREN)]

    actions.cancel(world.db, [waiting], "ann", now=world.now)

    assert world.claim() == ["summary 02:00"]


def test_a_run_whose_key_existed_was_not_enqueued_by_the_run_before(world: World) -> None:
    apply(world)
    world.db.execute("select yamlsched.enqueue('send', '{}', idempotency_key => 'send:a')")
    world.end("fan_out 02:00", enqueued={"send": 1}, key="send:a")

    assert world.claim() == ["summary 02:00"]


def test_what_is_enqueued_by_what_was_enqueued_is_not_awaited(world: World) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 1})
    world.claim()
    world.end("send", enqueued={"send": 1})

    assert world.claim() == ["send", "summary 02:00"]


def test_each_job_of_a_chain_waits_for_what_the_one_before_has_enqueued(world: World) -> None:
    follows = {"after": ["summary"], "after_enqueued": "ended"}
    summary = {"after": ["fan_out"], "after_enqueued": "ended"}
    world.apply(fan_out=HOURLY, send=SEND, summary=summary, report=follows)
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("fan_out 02:00", enqueued={"send": 1})
    assert world.claim() == ["send"]
    world.end("send")
    assert world.claim() == ["summary 02:00"]
    world.end("summary 02:00", enqueued={"send": 2})
    assert world.claim() == ["send", "send"]
    world.end("send")
    assert world.claim() == []
    world.end("send")
    assert world.claim() == ["report 02:00"]


def test_what_an_earlier_attempt_has_enqueued_counts_too(world: World) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 1})
    world.claim()
    actions.retry(world.db, [world.id("fan_out 02:00")], "ann", force=True, now=world.now)
    assert world.claim() == ["fan_out 02:00"]
    world.end("fan_out 02:00", enqueued={"send": 1})
    assert world.claim() == ["send"]

    world.end("send")
    assert world.claim() == []
    world.end("send")
    assert world.claim() == ["summary 02:00"]
    assert upstream(world)["enqueued"] == {"succeeded": 2}


@pytest.mark.parametrize("policy", ["wait", "run"])
def test_what_ends_before_the_run_that_has_enqueued_it_releases_nothing(
    world: World, policy: str
) -> None:
    apply(world, policy=policy)
    enqueue = "select yamlsched.enqueue_many('send', array['{}'::jsonb], parent_id => %s)"
    world.db.execute(enqueue, [world.id("fan_out 02:00")])
    world.db.execute(
        "update yamlsched.job_runs set run_at = %s where job_type = 'send'", [world.now]
    )
    assert world.claim() == ["send"]
    world.end("send")

    assert world.claim() == []
    assert summary(world) == "queued (waits)"
    world.end("fan_out 02:00", DEAD if policy == "run" else SUCCESS)
    assert world.claim() == ["summary 02:00"]
    assert upstream(world)["enqueued"] == {"succeeded": 1}


def test_with_run_a_slot_waits_for_what_a_dead_run_has_enqueued(world: World) -> None:
    apply(world, policy="run")
    enqueue = "select yamlsched.enqueue_many('send', array['{}'::jsonb], parent_id => %s)"
    world.db.execute(enqueue, [world.id("fan_out 02:00")])
    world.db.execute(
        "update yamlsched.job_runs set run_at = %s where job_type = 'send'", [world.now]
    )
    world.end("fan_out 02:00", DEAD)

    assert world.claim() == ["send"]
    assert "waits for 1 of 1 runs that fan_out enqueued" in waits(world)
    world.end("send")
    assert world.claim() == ["summary 02:00"]
    assert upstream(world)["status"] == "dead"


def test_the_end_in_a_transaction_of_the_handler_is_released_by_its_worker(world: World) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 1})
    world.claim()
    [run] = world.held.values()

    assert succeed_in(world.db, run)
    assert world.claim() == []
    assert summary(world) == "queued (waits)"
    world.runner.run(store.unlock(world.connection, "default", [run], world.now))

    world.now = now(world.db)  # by which the transaction has written the end
    assert world.claim() == ["summary 02:00"]


def test_a_lost_worker_ends_what_it_executed(world: World) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 1})
    world.claim()
    world.now += 5 * MINUTE

    world.runner.run(claiming.reclaim(world.connection, "default", now=world.now))

    assert world.claim() == ["summary 02:00"]
    assert upstream(world)["enqueued"] == {"dead": 1}


@pytest.mark.parametrize("net", ["sync", "worker"])
def test_an_end_that_was_not_followed_by_its_release_is_found(world: World, net: str) -> None:
    # given the last of three that a session has ended, without a release
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 3})
    world.claim()
    world.db.execute(
        "update yamlsched.job_runs set status = 'succeeded', finished_at = %s, locked_until = null "
        "where job_type = 'send'",
        [world.now],
    )
    assert world.claim() == []

    if net == "sync":
        sync(world.db, world.file, world.now)
    else:
        assert world.settle().repaired == 1
    assert world.claim() == ["summary 02:00"]


def test_retry_by_force_starts_the_slot_without_waiting(world: World) -> None:
    apply(world)
    world.end("fan_out 02:00", enqueued={"send": 2})
    world.claim()
    world.end("send")

    actions.retry(world.db, [world.id("summary 02:00")], "ann", force=True, now=world.now)

    assert world.claim() == ["summary 02:00"]
    run = upstream(world)
    assert (run["status"], run["enqueued"]) == ("succeeded", {"running": 1, "succeeded": 1})


def test_an_edit_of_after_enqueued_counts_for_slots_that_wait(world: World) -> None:
    apply(world, "succeeded")
    world.end("fan_out 02:00", enqueued={"send": 1})
    world.claim()
    world.end("send", DEAD)
    assert world.claim() == []

    follows = {"after": ["fan_out"], "after_enqueued": "ended"}
    world.apply(fan_out=HOURLY, send=SEND, summary=follows)

    assert world.claim() == ["summary 02:00"]


def test_a_slot_says_what_it_waits_for(world: World) -> None:
    apply(world, "succeeded")
    fan_out = world.id("fan_out 02:00")
    world.end("fan_out 02:00", enqueued={"send": 4})
    world.claim()
    world.end("send")
    line = f"waits for 3 of 4 runs that fan_out enqueued (run {fan_out})"
    assert waits(world) == line

    dead = min(world.held)
    world.end_all("send", DEAD)
    world.claim()
    assert waits(world) == f"waits for fan_out, which enqueued run {dead} of send: it is dead"


def test_what_a_slot_waits_for_is_not_pruned(world: World) -> None:
    apply(world, "succeeded")
    world.end("fan_out 02:00", enqueued={"send": 3})
    world.claim()
    world.end("send", DEAD)
    world.end_all("send")
    world.claim()
    world.db.execute(
        "update yamlsched.job_definitions set last_slot_at = '2027-01-01' where schedule is not null"
    )

    later = world.now + timedelta(days=400)
    assert prune.housekeep(world.db, "default", 60, later).runs == 0
    actions.cancel(world.db, [world.id("summary 02:00")], "ann", now=world.now)
    assert prune.housekeep(world.db, "default", 60, later).runs == 5


def test_runs_of_hooks_are_not_awaited(world: World) -> None:
    # given hooks of the job before, and of what it enqueues
    hooks = {"on_success": ["ping"]}
    follows = {"after": ["fan_out"], "after_enqueued": "ended"}
    world.apply(fan_out=HOURLY | hooks, send=SEND | hooks, ping={}, summary=follows)
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("fan_out 02:00", enqueued={"send": 1})
    [pings] = world.db.execute(
        "select count(*) as runs from yamlsched.job_runs where job_type = 'ping' and parent_id is not null"
    )
    assert pings.runs == 1
    assert "waits for 1 of 1 runs" in waits(world)

    world.claim()
    world.end("send")

    # then they wait for themselves only
    world.db.execute("update yamlsched.job_runs set run_at = '2100-01-01' where job_type = 'ping'")
    assert world.claim() == ["summary 02:00"]
    assert upstream(world)["enqueued"] == {"succeeded": 1}


def test_a_run_that_has_expired_has_ended(world: World) -> None:
    follows = {"after": ["fan_out"], "after_enqueued": "ended"}
    world.apply(fan_out=HOURLY, send=SEND | {"expires_after": "15m"}, summary=follows)
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("fan_out 02:00", enqueued={"send": 2})
    world.db.execute(
        "update yamlsched.job_runs set run_at = %s where id = (select max(id) from yamlsched.job_runs)",
        [world.now - HOUR],
    )
    assert world.claim() == ["send"]
    world.end("send")

    assert world.claim() == ["summary 02:00"]
    assert upstream(world)["enqueued"] == {"succeeded": 1, "cancelled": 1}


def expected(mode: str, policy: str, states: Collection[str]) -> str:
    """The model: what becomes of the slot, given the states of what was enqueued."""
    if "running" in states:
        return "queued (waits)"
    if mode == "ended" or policy == "run" or {"succeeded"}.issuperset(states):
        return "running"
    return "upstream" if policy == "skip" else "queued (waits)"


@settings(max_examples=15)
@given(
    mode=st.sampled_from(["ended", "succeeded"]),
    policy=st.sampled_from(["wait", "skip", "run"]),
    count=st.integers(1, 4),
    history=st.lists(
        st.tuples(st.sampled_from(["succeed", "die", "cancel", "retry"]), st.integers(0, 3)),
        max_size=15,
    ),
)
def test_after_any_history_the_slot_is_released_exactly_when_the_model_says(
    db: Db, world: World, mode: str, policy: str, count: int, history: list[tuple[str, int]]
) -> None:
    delete_rows(db)
    world.held.clear()
    world.now = at("2026-01-14 01:30")
    apply(world, mode, policy)
    world.end("fan_out 02:00", enqueued={"send": count})
    world.claim()
    states, verdict = dict.fromkeys(sorted(world.held), "running"), "queued (waits)"
    for action, which in history:
        run = list(states)[which % count]
        if action in ("succeed", "die") and states[run] == "running":
            outcome = SUCCESS if action == "succeed" else DEAD
            end = store.finish(
                world.connection, "default", [(world.held.pop(run), outcome)], now=world.now
            )
            assert world.runner.run(end)
            states[run] = str(outcome.status)
        elif action == "cancel" and states[run] == "running":
            actions.cancel(db, [run], "ann", now=world.now)
            world.runner.run(
                store.unlock(world.connection, "default", [world.held.pop(run)], world.now)
            )
            states[run] = "cancelled"
        elif action == "retry" and states[run] in ("dead", "cancelled"):
            actions.retry(db, [run], "ann", now=world.now)
            states[run] = "running"

        world.claim()

        if verdict == "queued (waits)":
            verdict = expected(mode, policy, states.values())
        assert summary(world).partition(" send:")[0] == verdict, (action, states)
        assert world.settle().repaired == 0
