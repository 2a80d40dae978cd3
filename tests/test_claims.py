"""When a worker asks for which runs."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_run
from yamlsched.store.runs import Scope
from yamlsched.worker import claims
from yamlsched.worker.claims import Claims
from yamlsched.worker.sessions import Database, Session
from yamlsched.worker.worker import SESSION


async def claims_of(dsn: str, *limits: int) -> list[tuple[int, int]]:
    """Claim so many runs after each other, as one worker; return how many slot runs and others each claim took."""
    session = Session(Database(dsn), SESSION)
    claims = Claims(session, "default", "web-1:1")
    taken = []
    for limit in limits:
        answer = await claims.claim(limit, Scope(), lambda: False)
        assert answer is not None
        kinds = [run.job_type.startswith("nightly") for run in answer[0].runs]
        taken.append((kinds.count(True), kinds.count(False)))
    assert claims.is_exhausted == (taken[-1] == (0, 0))
    await session.drop()
    return taken


def due(db: psycopg.Connection[Any], slot_runs: int, others: int) -> None:
    ad_hoc = a_job(db, "ad_hoc")
    for _ in range(others):
        a_run(db, ad_hoc)
    for number in range(slot_runs):
        a_run(db, a_job(db, f"nightly_{number}"), exclusive=True)


def test_the_first_claim_asks_for_all_kinds_of_runs_because_it_may_be_the_only_one(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    due(db, slot_runs=5, others=5)

    assert asyncio.run(claims_of(dsn, 4)) == [(2, 2)]


def test_while_others_are_due_slot_runs_are_asked_for_once_in_a_while_and_never_by_each_claim(
    db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "POLL_INTERVAL_SECONDS", 0.0)  # the while
    due(db, slot_runs=20, others=20)

    assert asyncio.run(claims_of(dsn, 4, 4, 4, 4)) == [(2, 2), (0, 4), (2, 2), (0, 4)]


def test_when_the_usual_ones_run_short_all_kinds_are_asked_for_until_nothing_is_left(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    due(db, slot_runs=5, others=5)

    assert asyncio.run(claims_of(dsn, 2, 2, 4, 4, 4, 4, 4, 4)) == [
        (1, 1), (0, 2), (0, 2), (4, 0), (0, 0), (0, 0), (0, 0), (0, 0),
    ]  # fmt: skip


def test_while_runs_are_found_that_lost_their_worker_every_other_claim_asks_for_them(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    # given a backlog, and runs whose worker has died, as many as three claims take
    ad_hoc = a_job(db, "ad_hoc")
    for _ in range(20):
        a_run(db, ad_hoc)
    lost = "(now() - interval '1 hour')"
    for _ in range(6):
        a_run(db, a_job(db, f"nightly_{_}"), status="running", run_at=lost, locked_until=lost, attempts=1)

    assert asyncio.run(claims_of(dsn, 2, 2, 2, 2, 2, 2)) == [(2, 0), (0, 2), (2, 0), (0, 2), (2, 0), (0, 2)]
