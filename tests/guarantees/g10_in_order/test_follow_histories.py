"""Jobs that follow others: interleaved sessions, edits, pauses, deaths and retention lose nothing that waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.database import delete_rows, while_waiting
from support.followers import DEAD, HOURLY, SUCCESS, Db, World, world
from support.schedules import HOUR, MINUTE, at, gaps
from yamlsched import db as database
from yamlsched.act import pause
from yamlsched.act import runs as actions
from yamlsched.db.query import load
from yamlsched.runs.release import ReleaseResult, release_followers
from yamlsched.sync.flow import sync
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

__all__ = ["world"]

SECOND = timedelta(seconds=1)


def test_retention_spares_what_is_waited_for_and_the_latest_run_of_a_followed_job(
    world: World,
) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow"},
        load={"after": ["extract"], "overlap": "allow", "catchup": "all"},
    )
    for instant in ("02:00", "03:00", "04:00"):
        world.tick(f"2026-01-14 {instant}")
        world.claim()
        world.end(f"extract {instant}")
    assert world.claim() == ["load 04:00"]
    for instant in ("02:00", "04:00"):
        world.end(f"load {instant}")  # the run of 03:00 is still executing

    prune_all(world)

    assert world.states() == [
        "extract 03:00 succeeded",
        "extract 04:00 succeeded",
        "load 03:00 running",
    ]


def prune_all(world: World) -> None:
    later = world.now + timedelta(days=400)
    ages = dict.fromkeys(("succeeded", "dead", "cancelled"), later)
    sql = load("retention")
    given = {"namespace": "default", "definition": 0, "from": "-infinity", "limit": 100, **ages}
    row: Any = world.db.execute(sql["hold_runs"], given).fetchone()
    world.db.execute(sql["delete_runs"], {"ids": row.ids, "now": later})


# -- interleavings


def test_a_success_that_commits_while_a_claim_decides_is_not_overlooked(
    world: World, dsn: str
) -> None:
    # given a session that has ended the run, and holds its gate, and has not committed
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    load = world.job("load")
    world.db.execute("update yamlsched.job_runs set blocked_on = null")
    with database.connect(dsn) as ending:
        ending.execute("begin")
        ending.execute(
            "update yamlsched.job_runs set status = 'succeeded', locked_until = null, finished_at = %s "
            "where job_type = 'extract'",
            [world.now],
        )
        ending.execute(
            "select yamlsched.promote('default', %s, 0, %s)",
            [[f"after/{world.job('extract')}"], world.now],
        )

        settled = world.runner.run(
            release_followers(world.connection, "default", [load], world.now)
        )

        assert settled == ReleaseResult(busy={load})
        assert world.states()[-1] == "load 02:00 queued"
        ending.execute("commit")

    assert world.claim() == ["load 02:00"]


def test_a_run_that_another_session_changes_is_left_to_the_next_decision(
    world: World, dsn: str
) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00")
    with database.connect(dsn) as other:
        other.execute("begin")
        actions.cancel(other, [world.id("load 02:00")], "ann", now=world.now)

        assert world.settle() == ReleaseResult()

        other.execute("rollback")

    assert world.settle().released == 1


def test_an_end_waits_for_a_decision_and_then_lets_it_be_made_again(world: World, dsn: str) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    assert world.claim() == ["extract 02:00"]
    world.db.execute("update yamlsched.job_runs set blocked_on = null")
    [run] = world.held.values()
    sql = load("follow")
    with database.connect(dsn) as deciding, database.connect(dsn) as ending:
        ids = [world.id("load 02:00")]
        deciding.execute("begin")
        deciding.execute(sql["hold"], {"namespace": "default", "jobs": [world.job("load")]})
        deciding.execute(sql["gates"], {"namespace": "default", "ids": ids})

        def end() -> None:
            ending.execute("begin")
            ending.execute(
                "update yamlsched.job_runs set status = 'succeeded', locked_until = null, finished_at = %s "
                "where id = %s",
                [world.now, run.id],
            )
            ending.execute(
                "select yamlsched.promote('default', %s, 0, %s)",
                [[f"after/{world.job('extract')}"], world.now],
            )
            ending.execute("commit")

        def decide() -> None:
            gate = f"after/{world.job('extract')}"
            deciding.execute(sql["block"], {"ids": ids, "gates": [gate]})
            deciding.execute("commit")

        while_waiting(world.db, ending, end, decide)

    assert world.states()[-1] == "load 02:00 queued"
    assert world.claim() == ["load 02:00"]


# -- any history

ACTION = st.sampled_from(
    [
        "tick",
        "tick",
        "claim",
        "claim",
        "end",
        "end",
        "end",
        "die",
        "retry",
        "cancel",
        "pause",
        "resume",
        "edit",
        "lose",
    ]
)
POLICIES = st.sampled_from(["wait", "skip", "run"])
JOBS = ("a", "b", "c", "d")


def jobs_of(choices: list[int], policy: str, after: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    overlap, catchup = ("wait", "skip", "allow")[choices[0] % 3], ("latest", "all")[choices[1] % 2]
    if (overlap, catchup) == ("skip", "all"):
        overlap = "wait"
    follower = {"overlap": overlap, "catchup": catchup, "on_upstream_failure": policy}
    return {
        "a": {**HOURLY, "overlap": "allow" if choices[2] % 2 else "wait"},
        "b": {"after": ["a"], **follower},
        "c": {"cron": "0 */2 * * *", "after": list(after), **follower},
        "d": {"after": ["c"], **follower, "catchup_window": "5h"},
    }


@settings(max_examples=25)
@given(
    choices=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    policies=st.lists(POLICIES, min_size=2, max_size=2),
    history=st.lists(st.tuples(ACTION, st.integers(0, 7)), max_size=40),
)
def test_after_any_history_each_slot_has_a_run_or_a_gap_and_nothing_waits_for_nothing(
    db: Db, world: World, choices: list[int], policies: list[str], history: list[tuple[str, int]]
) -> None:
    delete_rows(db)
    world.held.clear()
    world.now = start = at("2026-01-14 01:30")
    world.apply(**jobs_of(choices, policies[0]))
    policy = policies[0]
    for action, which in [*history, ("tick", 0)]:
        world.now += SECOND
        job = JOBS[which % 4]
        if action == "tick":
            world.tick()
        elif action == "claim":
            for name in world.claim(which + 1):
                check_what_it_waited_for(world, world.id_of_held(name), policy)
        elif action in ("end", "die") and world.held:
            names = sorted(world.name(run) for run in world.held)
            world.end(names[which % len(names)], SUCCESS if action == "end" else DEAD)
        elif action == "lose":
            world.now += 3 * MINUTE
            world.runner.run(claiming.reclaim(world.connection, "default", now=world.now))
            world.held.clear()
        elif action in ("retry", "cancel"):
            ids = [
                one.id
                for one in db.execute("select id from yamlsched.job_runs order by id").fetchall()
            ]
            act: Callable[..., Any] = actions.cancel if action == "cancel" else actions.retry
            act(db, ids[which : which + 2], "ann", now=world.now)
            cancelled = [run for run in world.held.values() if world.is_over(run.id)]
            world.runner.run(store.unlock(world.connection, "default", cancelled, now=world.now))
            world.held = {id: run for id, run in world.held.items() if run not in cancelled}
        elif action == "pause":
            pause.pause(db, "default", [world.job(job)], "ann", now=world.now)
        elif action == "resume":
            pause.resume(db, "default", [world.job(job)], "ann", now=world.now)
        elif action == "edit":
            policy = policies[which % 2]
            after = ("a", "b")[
                : which % 3
            ]  # at least one, as c is a follower: its overlap does not wait
            world.apply(**jobs_of(choices[::-1] if which > 4 else choices, policy, after or ("b",)))
        assert world.settle().repaired == 0, action

    # when all is let go, everything ends
    pause.resume(db, "default", [world.job(job) for job in JOBS], "ann", now=world.now)
    for _ in range(100):
        sync(db, world.file, world.now)
        dead = db.execute(
            "select id from yamlsched.job_runs where status in ('dead', 'cancelled')"
        ).fetchall()
        actions.retry(db, [one.id for one in dead], "ann", now=world.now)
        world.settle()
        if not world.claim() and not world.held:
            break
        for name in sorted(world.name(run) for run in world.held):
            world.end(name)
        world.now += 6 * MINUTE
    assert (
        db.execute(
            "select job_type, status, blocked_on from yamlsched.job_runs where finished_at is null"
        ).fetchall()
        == []
    )
    for job, step in (("a", 1), ("b", 1), ("c", 2), ("d", 2)):
        hours = [
            hour
            for hour in range(2, int((world.now - start.replace(hour=0, minute=0)) / HOUR) + 1)
            if hour % step == 0
        ]
        counted = db.execute(
            "select (select count(*) from yamlsched.job_runs where job_type = %s) + (select coalesce(sum(s.slots), 0) "
            "from yamlsched.skipped_slots s join yamlsched.job_definitions d on d.id = s.definition_id "
            "where d.job_type = %s)",
            [job, job],
        ).fetchone()
        assert counted == (len(hours),), (job, gaps(db, job), world.states())


def check_what_it_waited_for(world: World, run_id: int, policy: str) -> None:
    rows = world.db.execute(
        "select outcome from yamlsched.awaits where run_id = %s", [run_id]
    ).fetchall()
    assert all(row.outcome is not None for row in rows)
