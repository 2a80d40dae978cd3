"""Summaries of runs: per hour, and the dead ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_long_history, a_run, rows_read
from yamlsched.operations import overview
from yamlsched.store.history import on_dead_calls
from yamlsched.store.statements import load

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

    hours = overview.per_hour(db, "default", None, NOW)

    assert len(hours) == 48
    assert (hours[0].at, hours[-1].at) == (NOW.replace(day=12, hour=13, minute=0), NOW.replace(minute=0))
    assert [(hour.ended, hour.dead) for hour in (hours[0], hours[-2], hours[-1])] == [(1, 0), (2, 1), (1, 0)]
    assert sum(hour.ended for hour in hours) == 4
    assert sum(hour.ended for hour in overview.per_hour(db, "default", "mail", NOW)) == 2


@pytest.mark.parametrize(("limit", "hours"), [(5, 48), (4, 12), (2, 3), (1, 1), (0, 0)])
def test_a_span_with_too_many_runs_gives_way_to_a_shorter_one(
    db: Db, monkeypatch: pytest.MonkeyPatch, limit: int, hours: int
) -> None:
    job = a_job(db)
    for ago in (timedelta(0), 2 * HOUR, 5 * HOUR, 10 * HOUR, 20 * HOUR):
        ended(db, job, "succeeded", ago)
    monkeypatch.setattr(overview, "MAX_COUNTED", limit)
    assert len(overview.per_hour(db, "default", None, NOW)) == hours


def test_dead_runs_are_grouped_by_job_and_type_of_error(db: Db) -> None:
    purge, mail = a_job(db, "purge"), a_job(db, "mail", timezone="Europe/Berlin")
    first = ended(db, purge, "dead", 5 * HOUR, last_error="first")
    last = ended(db, purge, "dead", 2 * HOUR, last_error="last", idempotency_key="purge:x")
    untyped = ended(db, purge, "dead", 3 * HOUR, error_type=None, last_error="exited with code 3")
    call = ended(db, purge, "dead", HOUR, idempotency_key=f"on_dead:{first}")
    timeout = ended(db, mail, "dead", 50 * HOUR, error_type="Timeout")
    a_run(db, mail, "succeeded")
    ended(db, a_job(db, "purge", namespace="billing"), "dead", HOUR)

    found = overview.dead(db, "default", None)

    assert found.is_complete
    assert [(g.job_type, g.error_type, g.is_call, g.runs, g.example_id) for g in found.groups] == [
        ("purge", "OSError", True, 1, call),
        ("purge", "OSError", False, 2, last),
        ("purge", "", False, 1, untyped),
        ("mail", "Timeout", False, 1, timeout),
    ]
    group = found.groups[1]
    assert (group.first_at, group.last_at) == (NOW - 5 * HOUR, NOW - 2 * HOUR)
    assert (group.example_error, group.example_key, group.examined, group.total) == ("last", "purge:x", 4, 5)
    assert found.groups[3].timezone == "Europe/Berlin"
    assert [g.example_id for g in overview.dead(db, "default", NOW - 3 * HOUR).groups] == [call, last, untyped]
    assert overview.dead(db, "billing", NOW).groups == []


def test_the_number_of_dead_runs_that_are_read_is_bounded(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    job, other = a_job(db), a_job(db, "other")
    for nth in range(5):
        ended(db, job, "dead", nth * HOUR)
    ended(db, other, "dead", 9 * HOUR)
    monkeypatch.setattr(overview, "MAX_OF_JOB", 3)
    found = overview.dead(db, "default", None)
    assert [(g.runs, g.examined) for g in found.groups] == [(3, 3), (1, 1)]
    assert (found.groups[0].first_at, found.is_complete) == (NOW - 2 * HOUR, True)
    monkeypatch.setattr(overview, "MAX_DEAD", 4)
    assert not overview.dead(db, "default", None).is_complete
    monkeypatch.setattr(overview, "MAX_DEAD", 5)
    assert overview.dead(db, "default", None).is_complete


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
        dead = {"namespace": "default", "since": "-infinity", "of_job": 1_000, "limit": 50_000}
        assert rows_read(db, load("overview")["dead_groups"], dead) <= 4
