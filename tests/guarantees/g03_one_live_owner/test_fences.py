"""Every part of every fence: a different status, owner or attempt alone prevents each write of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.claiming import claim_due
from support.database import while_waiting
from support.project import until
from support.rows import a_job, a_run, row, value
from yamlsched import db as database
from yamlsched.db.query import load
from yamlsched.runs import effects, own_transaction
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.runs.progress import Progress
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

Connection = psycopg.AsyncConnection[Any]
Write = Callable[[Connection, ClaimedRun], Awaitable[Any]]


def finish(outcome: Outcome) -> Write:
    return lambda connection, run: store.finish(connection, "default", [(run, outcome)])


def fence(run: ClaimedRun) -> own_transaction.Fence:
    return run.id, run.attempt, run.locked_by


async def succeed_in(connection: Connection, run: ClaimedRun) -> Any:
    return await own_transaction.succeed_in(connection, fence(run), None, Progress(1.0))


WRITES: dict[str, Write] = {
    "heartbeat": lambda connection, run: store.heartbeat(connection, [run]),
    # beside a run that does not exist
    "succeed": lambda connection, run: store.succeed(
        connection, [(run, None), (run._replace(id=-1, locked_by="B"), None)]
    ),
    "succeed_in": succeed_in,
    "report": lambda connection, run: store.report_progress(connection, [(run, Progress(1.0))]),
    "finish with a success": finish(Outcome(Status.SUCCEEDED, result="{}")),
    "finish with a failure": finish(
        Outcome(Status.FAILED, delay=timedelta(minutes=1), error="no route to host")
    ),
    "finish with a death": finish(Outcome(Status.DEAD, error="no route to host")),
    "finish with a refund": finish(Outcome(Status.QUEUED, refund=True)),
}
# changes of the run since A claimed it as attempt 1; each differs from that in one respect
SINCE = {
    "another owner": "locked_by = 'B'",
    "another attempt": "attempts = 2",
    "cancelled": "status = 'cancelled', locked_until = null, finished_at = now()",
    "succeeded": "status = 'succeeded', locked_until = null, finished_at = now()",
    "dead": "status = 'dead', locked_until = null, finished_at = now(), dead_at = now()",
    "waiting": "status = 'failed', locked_until = null",
}


def a_claimed_run(db: psycopg.Connection[Any]) -> ClaimedRun:
    """Insert a run that A holds as attempt 1."""
    run = a_run(
        db,
        a_job(db, overlap="allow", on_dead=["page"], on_failure=["page"], on_success=["page"]),
        "running",
        locked_by="A",
    )
    return ClaimedRun(run, "purge", None, None, 1, 5, "{}", False, 120.0, "A")


def write(dsn: str, how: Write, run: ClaimedRun) -> Any:
    async def on_a_session() -> Any:
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, row_factory=namedtuple_row
        ) as connection:
            return await how(connection, run)

    return asyncio.run(on_a_session())


@pytest.mark.parametrize("since", SINCE)
@pytest.mark.parametrize("name", WRITES)
def test_a_write_about_a_run_needs_its_owner_its_attempt_and_the_status_running(
    db: psycopg.Connection[Any], dsn: str, name: str, since: str
) -> None:
    run = a_claimed_run(db)
    db.execute(f"update yamlsched.job_runs set {SINCE[since]} where id = %s".encode(), [run.id])
    before = row(db, run.id)

    assert not write(dsn, WRITES[name], run)

    assert row(db, run.id) == before
    assert value(db, "select count(*) from yamlsched.job_runs") == 1  # no hook
    assert value(db, "select count(*) from yamlsched.job_failures") == 0
    assert value(db, "select count(*) from yamlsched.attempt_progress") == 0


@pytest.mark.parametrize("name", [name for name in WRITES if name != "succeed"])
def test_a_write_about_a_run_does_not_change_other_runs_of_its_claim(
    db: psycopg.Connection[Any], dsn: str, name: str
) -> None:
    run = a_claimed_run(db)
    job = value(db, "select definition_id from yamlsched.job_runs")
    other = a_run(db, job, "running", locked_by="A")
    before = row(db, other)

    assert write(dsn, WRITES[name], run)

    assert row(db, other) == before


@pytest.mark.parametrize("since", [since for since in SINCE if since != "another attempt"])
def test_releasing_a_claim_without_an_answer_releases_only_runs_that_it_still_holds(
    db: psycopg.Connection[Any], dsn: str, since: str
) -> None:
    run = a_claimed_run(db)
    db.execute(f"update yamlsched.job_runs set {SINCE[since]} where id = %s".encode(), [run.id])
    before = row(db, run.id)

    assert (
        write(dsn, lambda connection, run: claiming.release_claim(connection, "default", "A"), run)
        == 0
    )

    assert row(db, run.id) == before


@pytest.mark.parametrize("since", ["another owner", "succeeded"])
def test_a_run_that_changes_while_its_claim_is_released_is_not_released(
    db: psycopg.Connection[Any], dsn: str, since: str
) -> None:
    run = a_claimed_run(db)

    # given a transaction that is about to change the run
    with ThreadPoolExecutor() as threads, database.connect(dsn) as other, other.transaction():
        other.execute(
            f"update yamlsched.job_runs set {SINCE[since]} where id = %s".encode(), [run.id]
        )
        changed = row(other, run.id)

        # when the claim is released, which waits for that transaction
        answer = threads.submit(
            write,
            dsn,
            lambda connection, _: claiming.release_claim(connection, "default", "A"),
            run,
        )
        until(
            lambda: value(
                db,
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
        )

    # then the change of the other transaction remains
    assert answer.result() == 0
    assert row(db, run.id) == changed


@pytest.mark.parametrize("has_hooks", [True, False])
@pytest.mark.parametrize("name", [name for name in WRITES if name.startswith("finish")])
def test_each_end_that_has_a_hook_gets_its_run_once(
    db: psycopg.Connection[Any], dsn: str, name: str, has_hooks: bool
) -> None:
    run = a_claimed_run(db)
    if has_hooks:
        a_job(db, "page", schedule=None)

    assert write(dsn, WRITES[name], run)
    write(dsn, WRITES[name], run)

    status = row(db, run.id).status
    ended = status in ("dead", "failed", "succeeded")
    found = db.execute("select idempotency_key from yamlsched.job_runs where hook is not null")
    assert [one[0] for one in found.fetchall()] == [f"page:{status}:{run.id}:1"] * (
        ended and has_hooks
    )


CHANGED_SINCE_ITS_END = {
    "another owner": "locked_by = 'B'",
    "another attempt": "attempts = 2",
    "waiting": "status = 'failed', finished_at = null, locked_until = null",
    "running": "status = 'running', finished_at = null, locked_until = now() + interval '1 minute'",
}


def an_ended_run_that_holds(db: psycopg.Connection[Any], since: str | None) -> ClaimedRun:
    """Insert a run that was cancelled while A held it, changed ``since``, and another one of its claim."""
    run = a_claimed_run(db)
    a_run(db, value(db, "select definition_id from yamlsched.job_runs"), "running", locked_by="A")
    db.execute(
        "update yamlsched.job_runs set status = 'cancelled', finished_at = now(), "
        "locked_until = now() + interval '1 hour'"
    )
    if since:
        db.execute(
            f"update yamlsched.job_runs set {CHANGED_SINCE_ITS_END[since]} where id = %s".encode(),
            [run.id],
        )
    return run


@pytest.mark.parametrize(
    "since", [None, *(since for since in CHANGED_SINCE_ITS_END if since != "another attempt")]
)
def test_only_a_run_that_has_ended_under_its_claim_is_unlocked(
    db: psycopg.Connection[Any], dsn: str, since: str | None
) -> None:
    run = an_ended_run_that_holds(db, since)
    before = db.execute("select * from yamlsched.job_runs order by id").fetchall()

    write(dsn, lambda connection, run: store.unlock(connection, "default", [run]), run)

    changed = [before[0] if since else before[0]._replace(locked_until=None), before[1]]
    assert db.execute("select * from yamlsched.job_runs order by id").fetchall() == changed


@pytest.mark.parametrize("since", [None, *CHANGED_SINCE_ITS_END])
def test_what_an_attempt_used_is_noted_only_of_the_run_that_it_has_ended(
    db: psycopg.Connection[Any], dsn: str, since: str | None
) -> None:
    run = an_ended_run_that_holds(db, since)
    before = db.execute("select * from yamlsched.job_runs order by id").fetchall()

    for usage in ((0.5, 7), None):  # what is not known changes nothing
        outcome = Outcome(Status.SUCCEEDED, usage=usage)
        write(
            dsn,
            lambda connection, run, outcome=outcome: store.keep_outputs(
                connection, [(run, outcome)]
            ),
            run,
        )

    changed = [
        before[0] if since else before[0]._replace(cpu_seconds=0.5, peak_memory_bytes=7),
        before[1],
    ]
    assert db.execute("select * from yamlsched.job_runs order by id").fetchall() == changed


def test_the_output_of_a_run_that_is_being_pruned_is_not_kept(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    run = a_claimed_run(db)
    given = {**store.fence([run]), "omitted": [0], "outputs": ["printed"], "now": None}
    with database.connect(dsn) as pruning, database.connect(dsn) as keeping:
        pruning.execute("begin")
        pruning.execute("delete from yamlsched.job_runs")

        while_waiting(
            db,
            keeping,
            lambda: keeping.execute(load("runs")["keep_outputs"], given),
            lambda: pruning.execute("commit"),
        )

    assert value(db, "select count(*) from yamlsched.attempt_outputs") == 0


def test_a_claim_without_an_answer_is_released_only_in_its_namespace(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    run = a_claimed_run(db)

    assert (
        write(
            dsn, lambda connection, run: claiming.release_claim(connection, "elsewhere", "A"), run
        )
        == 0
    )
    assert (
        write(dsn, lambda connection, run: claiming.release_claim(connection, "default", "A"), run)
        == 1
    )

    assert (row(db, run.id).status, row(db, run.id).attempts) == ("queued", 0)


def test_a_claim_takes_only_due_unfinished_and_unowned_runs_of_its_namespace(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    job = a_job(db, overlap="allow")
    there = a_job(db, namespace="elsewhere", overlap="allow")
    a_run(db, there)
    a_run(db, job, run_at="(now() + interval '1 hour')")
    a_run(db, job, "failed")
    for status in ("running", "succeeded", "dead", "cancelled"):
        a_run(db, job, status)
    before = db.execute("select * from yamlsched.job_runs order by id").fetchall()

    async def claim(connection: Connection, run: Any) -> Any:
        return await claim_due(connection, "default", "C", 10)

    assert write(dsn, claim, None) == []  # type: ignore[arg-type]
    assert db.execute("select * from yamlsched.job_runs order by id").fetchall() == before


def test_every_fenced_statement_is_tested() -> None:
    """Add each new statement that writes about a claimed run to WRITES."""
    fenced = {
        name
        for name, text in load("runs").items()
        if b"'running'" in text and b"update yamlsched" in text
    }

    assert fenced == {
        "heartbeat",
        "succeed",
        "finish",
        "claim",
        "reclaim",
        "unlock",
    }


# -- effects

ENTRY, OTHER_ENTRY = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
STATES = {
    "claimed": "null, null",
    "in_doubt": "now(), null",
    "done": "null, now()",
}  # doubted_at, done_at
EffectWrite = Callable[[psycopg.Connection[Any], effects.EffectEntry], Any]


def effect_write(statement: effects.EffectStatement) -> EffectWrite:
    return lambda connection, entry: effects.write(connection, statement, entry)


# the statement, the state that it expects, and the states that it must not change
EFFECT_WRITES: dict[str, tuple[EffectWrite, str, list[str]]] = {
    "mark_in_doubt": (effect_write("mark_in_doubt"), "claimed", ["in_doubt", "done"]),
    "mark_done": (effect_write("mark_done"), "claimed", []),
    "release": (effect_write("release"), "claimed", ["in_doubt", "done"]),
    "take_over": (effect_write("take_over"), "in_doubt", ["claimed", "done"]),
    "assume_done": (effect_write("assume_done"), "in_doubt", ["claimed", "done"]),
}


def an_effect(
    db: psycopg.Connection[Any],
    state: str,
    namespace: str = "default",
    key: str = "k",
    entry: str = ENTRY,
) -> None:
    db.execute(
        f"insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, provider_key, entry, state, "
        f"doubted_at, done_at) values (%s, %s, 1, 1, 'B', gen_random_uuid(), %s, %s, {STATES[state]})".encode(),
        [namespace, key, entry, state],
    )


def all_effects(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute("select * from yamlsched.effects order by id").fetchall()


def entry_of(run: ClaimedRun) -> effects.EffectEntry:
    return effects.EffectEntry("default", "k", run.id, run.attempt, run.locked_by, ENTRY)


@pytest.mark.parametrize("name", EFFECT_WRITES)
def test_a_write_about_an_effect_does_not_change_other_keys_and_namespaces(
    db: psycopg.Connection[Any], name: str
) -> None:
    do, state, _ = EFFECT_WRITES[name]
    run = a_claimed_run(db)
    an_effect(db, state, namespace="elsewhere", entry=OTHER_ENTRY)
    an_effect(db, state, key="other", entry=OTHER_ENTRY)
    others = all_effects(db)
    an_effect(db, state)
    before = all_effects(db)

    do(db, entry_of(run))

    assert all_effects(db)[:2] == others
    assert all_effects(db) != before


@pytest.mark.parametrize(
    ("name", "state"), [(name, state) for name in EFFECT_WRITES for state in EFFECT_WRITES[name][2]]
)
def test_a_write_about_an_effect_needs_the_expected_state(
    db: psycopg.Connection[Any], name: str, state: str
) -> None:
    an_effect(db, state)
    before = all_effects(db)

    assert not EFFECT_WRITES[name][0](db, entry_of(a_claimed_run(db)))

    assert all_effects(db) == before


@pytest.mark.parametrize("name", ["mark_in_doubt", "mark_done", "release"])
def test_a_former_attempt_cannot_write_about_an_effect_that_was_claimed_again(
    db: psycopg.Connection[Any], name: str
) -> None:
    an_effect(db, "claimed", entry=OTHER_ENTRY)
    before = all_effects(db)

    assert not EFFECT_WRITES[name][0](db, entry_of(a_claimed_run(db)))

    assert all_effects(db) == before


@pytest.mark.parametrize("since", SINCE)
@pytest.mark.parametrize("name", ["take_over", "assume_done"])
def test_only_the_current_owner_of_a_run_decides_about_its_effect_in_doubt(
    db: psycopg.Connection[Any], name: str, since: str
) -> None:
    run = a_claimed_run(db)
    db.execute(f"update yamlsched.job_runs set {SINCE[since]} where id = %s".encode(), [run.id])
    an_effect(db, "in_doubt")
    before = all_effects(db)

    assert not EFFECT_WRITES[name][0](db, entry_of(run))

    assert all_effects(db) == before


def test_settling_an_effect_does_not_change_the_same_key_in_another_namespace(
    db: psycopg.Connection[Any],
) -> None:
    for namespace in ("default", "shop"):
        db.execute(
            "insert into yamlsched.effects "
            "(namespace, key, run_id, attempt, locked_by, entry, provider_key, state, doubted_at) "
            "values (%s, 'mail:1', 1, 1, 'a', gen_random_uuid(), gen_random_uuid(), 'in_doubt', now())",
            [namespace],
        )

    assert effects.settle_effect(db, "shop", "mail:1", happened=True)

    found = db.execute(
        "select namespace, state from yamlsched.effects order by namespace"
    ).fetchall()
    assert [tuple(row) for row in found] == [("default", "in_doubt"), ("shop", "done")]
