"""Every statement that writes about a running run names its state, its owner and its attempt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from operating import a_job, a_run, row

from yamlsched.runs import Claimed, Outcome, Status
from yamlsched.store import runs as store
from yamlsched.store.statements import load

Db = psycopg.Connection[Any]
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
OUTCOMES = {
    "succeeded": Outcome(Status.SUCCEEDED, result='{"n": 1}'),
    "failed": Outcome(Status.FAILED, error="no route to host"),
    "dead": Outcome(Status.DEAD, error="no route to host"),
    "released": Outcome(Status.QUEUED, refund=True),
}


def claimed(run: int, attempt: int, token: str) -> Claimed:
    return Claimed(run, "purge", None, None, attempt, 5, "{}", False, 120.0, token)


def fence(run: int, attempt: int, token: str) -> dict[str, Any]:
    return {"ids": [run], "attempts": [attempt], "tokens": [token], "now": NOON}


def write(db: Db, statement: str, run: int, attempt: int, token: str) -> int:
    """Carry out a fenced statement about one run; return how many runs it changed."""
    name, _, outcome = statement.partition(" ")
    parameters: dict[str, Any]
    if name in ("heartbeat", "succeed"):
        parameters = fence(run, attempt, token)
    elif name == "succeed_claim":
        parameters = {"ids": [run], "attempt": attempt, "token": token, "now": None}
    elif name == "succeed_in":
        return int(store.succeed_in(db, (run, attempt, token), None))
    else:
        parameters = {**store.outcome_parameters([(claimed(run, attempt, token), OUTCOMES[outcome])]), "now": None}
    return db.execute(load("runs")[name], parameters).rowcount


STATEMENTS = ["heartbeat", "succeed", "succeed_claim", "succeed_in", *(f"finish {name}" for name in OUTCOMES)]


def a_held_run(db: Db, **values: Any) -> int:
    return a_run(db, a_job(db, overlap="allow"), "running", attempts=2, locked_by="ours", **values)


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("attempt, token", [(2, "theirs"), (1, "ours"), (3, "ours")], ids=["owner", "older", "newer"])
def test_a_write_under_another_claim_changes_nothing(db: Db, statement: str, attempt: int, token: str) -> None:
    run = a_held_run(db)
    before = row(db, run)

    assert write(db, statement, run, attempt, token) == 0

    assert row(db, run) == before
    assert db.execute("select 1 from yamlsched.job_failures").fetchone() is None


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("status", ["queued", "failed", "succeeded", "dead", "cancelled"])
def test_a_write_about_a_run_that_has_left_the_running_state_changes_nothing(
    db: Db, statement: str, status: str
) -> None:
    run = a_run(db, a_job(db, overlap="allow"), status, attempts=2, locked_by="ours")
    before = row(db, run)

    assert write(db, statement, run, 2, "ours") == 0

    assert row(db, run) == before
    assert db.execute("select 1 from yamlsched.job_failures").fetchone() is None


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_write_changes_the_run_it_names_and_no_other_of_the_same_claim(db: Db, statement: str) -> None:
    run = a_held_run(db, held_until="(now() + interval '1 second')")
    other = a_run(db, row(db, run).definition_id, "running", attempts=2, locked_by="ours")
    before = row(db, other)

    assert write(db, statement, run, 2, "ours") == 1

    assert row(db, other) == before
    after = row(db, run)
    if statement == "heartbeat":
        assert after.held_until == after.locked_until
    else:
        assert (after.locked_until, after.held_until, after.exclusive_of) == (None, None, None)
        assert after.locked_by == "ours"


@pytest.mark.parametrize(
    "status, values, is_released",
    [
        ("running", {"locked_by": "lost"}, True),
        ("running", {"locked_by": "lost", "exclusive": True}, True),
        ("running", {"locked_by": "theirs"}, False),
        ("queued", {"attempts": 1, "locked_by": "lost"}, False),
        ("cancelled", {"attempts": 1, "locked_by": "lost"}, False),
        ("succeeded", {"locked_by": "lost"}, False),
    ],
)
def test_a_claim_that_was_lost_is_released_where_it_is_still_held(
    db: Db, status: str, values: dict[str, Any], is_released: bool
) -> None:
    run = a_run(db, a_job(db), status, **values)
    before = row(db, run)

    found = db.execute(load("runs")["give_back_claim"], {"namespace": "default", "token": "lost", "now": None})

    assert [each.id for each in found.fetchall()] == ([run] if is_released else [])
    if is_released:
        assert (row(db, run).status, row(db, run).attempts, row(db, run).exclusive_of) == ("queued", 0, None)
    else:
        assert row(db, run) == before


@pytest.mark.parametrize("status", ["queued", "failed", "running", "succeeded", "dead", "cancelled"])
@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_an_operator_changes_a_run_in_the_states_it_was_chosen_in_only(db: Db, verb: str, status: str) -> None:
    run = a_run(db, a_job(db), status)
    before = row(db, run)
    others = [state for state in Status if state != status]

    changed = db.execute(
        load("actions")[verb], {"ids": [run], "expected": others, "force": True, "now": None}
    ).fetchall()

    assert changed == []
    assert row(db, run) == before
