"""How many runs ended in each hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_long_history, a_run, rows_read
from yamlsched.ask.runs import on_dead_calls
from yamlsched.db.query import load
from yamlsched.extras.web.ask import strips

NOW = datetime(2026, 1, 14, 12, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
Db = psycopg.Connection[Any]


def ended(db: Db, job: int, status: str, ago: timedelta, **more: Any) -> int:
    at = NOW - ago
    if status == "dead":
        more["failed_at"] = at
    return a_run(db, job, status, finished_at=at, **more)


def test_each_hour_counts_the_runs_that_ended_in_it(db: Db) -> None:
    purge, mail = a_job(db, "purge"), a_job(db, "mail")
    other = a_job(db, "purge", namespace="billing")
    ended(db, purge, "succeeded", timedelta(minutes=20))  # at 12:00, in the last hour
    ended(db, purge, "dead", timedelta(minutes=20, microseconds=1))
    ended(db, mail, "cancelled", HOUR)
    ended(db, other, "succeeded", HOUR)
    ended(db, mail, "succeeded", 47 * HOUR + timedelta(minutes=20))  # 13:00 two days ago, the first hour
    ended(db, mail, "succeeded", 47 * HOUR + timedelta(minutes=20, microseconds=1))
    a_run(db, mail, "queued")

    hours = strips.per_hour(db, "default", None, NOW)

    assert len(hours) == 48
    assert (hours[0].at, hours[-1].at) == (NOW.replace(day=12, hour=13, minute=0), NOW.replace(minute=0))
    assert [(hour.ended, hour.dead) for hour in (hours[0], hours[-2], hours[-1])] == [(1, 0), (2, 1), (1, 0)]
    assert sum(hour.ended for hour in hours) == 4
    assert sum(hour.ended for hour in strips.per_hour(db, "default", "mail", NOW)) == 2


@pytest.mark.parametrize(("limit", "hours"), [(5, 48), (4, 12), (2, 3), (1, 1), (0, 0)])
def test_a_span_with_too_many_runs_gives_way_to_a_shorter_one(
    db: Db, monkeypatch: pytest.MonkeyPatch, limit: int, hours: int
) -> None:
    job = a_job(db)
    for ago in (timedelta(0), 2 * HOUR, 5 * HOUR, 10 * HOUR, 20 * HOUR):
        ended(db, job, "succeeded", ago)
    monkeypatch.setattr(strips, "MAX_COUNTED", limit)
    assert len(strips.per_hour(db, "default", None, NOW)) == hours


def test_the_calls_of_on_dead_of_a_run_are_found_by_their_keys(db: Db) -> None:
    job = a_job(db)
    dead = a_run(db, job, "dead")
    first = a_run(db, job, "succeeded", idempotency_key=f"on_dead:{dead}")
    second = a_run(db, job, "queued", idempotency_key=f"on_dead:{dead}:10")
    a_run(db, job, "queued", idempotency_key=f"on_dead:{dead}1")
    a_run(db, a_job(db, namespace="billing"), "queued", idempotency_key=f"on_dead:{dead}")
    assert [run.id for run in on_dead_calls(db, "default", dead, 10)] == [first, second]
    assert [run.id for run in on_dead_calls(db, "default", dead, 9)] == [first]


def test_summaries_read_only_the_runs_that_they_count(own_dsn: str) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as db:
        a_long_history(db)
        now = datetime.now(UTC)
        span = {"namespace": "default", "job": None, "start": now - timedelta(minutes=90), "end": now, "limit": 1_000}
        assert rows_read(db, load("overview")["ended"], span) <= 4 * 90 + 4
        assert rows_read(db, load("overview")["ended"], {**span, "start": now - 100 * HOUR}) <= 1_000 + 10
