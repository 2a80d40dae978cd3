"""Who serves which queue, and what is said once nobody does."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.health import reasons
from support.rows import a_job, a_place, a_run, value
from support.schedules import HOUR, MINUTE, a_file, at, sync_by_hand, tick
from yamlsched.sync.files import ScheduleFile

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
TOP = (
    "queues: {mail: {concurrency: 9}, web2: {dedicated: true}, "
    "gpu: {concurrency: 1, start: {command: [sbatch], max_workers: 2}}}"
)


def a_place_of(host: str, *queues: str) -> ScheduleFile:
    """Return the file on a host, whose crontab line names ``queues``."""
    file = a_file(host, top=TOP, report={}, receipt={"queue": "mail"}, rotate={"queue": "web2"})
    return replace(file, queues=queues or None)


WEB1, WEB2 = a_place_of("web-1"), a_place_of("web-2", "web2")


def minutes_ago(minutes: int) -> datetime:
    return datetime.now(UTC) - minutes * MINUTE


def unserved(db: Db) -> list[str]:
    """Return what is said, as after 22 minutes: another one may begin meanwhile."""
    return [re.sub(r"\b23m", "22m", what) for what in reasons(db) if "serve" in what]


def served_until(db: Db, host: str, queue: str) -> datetime:
    sql = "select until from yamlsched.queue_servers where host = %s and queue = %s"
    until = value(db, sql, host, queue)
    assert isinstance(until, datetime)
    return until


# -- a queue that nobody serves any more -----------------------------------------------------------


def test_a_queue_whose_server_is_gone_is_a_problem_that_names_it(db: Db) -> None:
    for minutes in (23, 22):
        tick(db, WEB1, minutes_ago(minutes))
        tick(db, WEB2, minutes_ago(minutes))
    tick(db, WEB1)

    assert unserved(db) == [
        "no worker has served queue web2 for 22m; web-2:/app/schedules.yaml served it last"
    ]
    tick(db, WEB2)
    assert unserved(db) == []


def test_the_queues_that_are_not_dedicated_are_named_too(db: Db) -> None:
    tick(db, WEB1, minutes_ago(22))
    tick(db, WEB2, minutes_ago(22))
    tick(db, WEB2)

    assert unserved(db) == [
        f"no worker has served queue {queue} for 22m; web-1:/app/schedules.yaml served it last"
        for queue in ("default", "mail")
    ]


def test_a_queue_that_nobody_has_served_yet_is_a_problem(db: Db) -> None:
    tick(db, WEB1)
    assert unserved(db) == ["no worker serves queue web2"]


def test_a_line_that_left_the_crontab_of_a_place_is_noticed(db: Db) -> None:
    for line in (a_place_of("web-1", "default", "mail"), a_place_of("web-1", "web2")):
        tick(db, line, minutes_ago(22))
    assert unserved(db) == []  # no tick at all: that is the problem

    tick(db, a_place_of("web-1", "default", "mail"))

    assert unserved(db) == [
        "no worker has served queue web2 for 22m; web-1:/app/schedules.yaml served it last"
    ]


def test_what_an_operator_syncs_and_what_serves_no_queue_serves_none(db: Db) -> None:
    sync_by_hand(db, WEB1)
    tick(db, replace(WEB1, queues=()))

    assert [what.split()[-1] for what in unserved(db)] == ["default", "mail", "web2"]


def test_a_queue_whose_jobs_are_disabled_needs_nobody(db: Db) -> None:
    rotate = {"queue": "web2", "enabled": False}
    tick(db, a_file("web-1", top=TOP, report={}, rotate=rotate))
    assert unserved(db) == []


@pytest.mark.parametrize("served_by", ["dedicated", "started"])
def test_a_queue_of_workers_that_come_on_demand_is_a_problem_once_runs_wait(
    db: Db, served_by: str
) -> None:
    a_place(db, queues={"gpu": served_by})
    job = a_job(db, queue="gpu", overlap="allow")
    db.execute(
        "insert into yamlsched.workers (namespace, id, queue, host, path, reported_at, seen_at,"
        " ended_at) values ('default', 'gpu-1', 'gpu', 'node-1', '/srv/s.yaml',"
        " now() - interval '4 hours', now() - interval '3 hours', now() - interval '3 hours')"
    )
    assert unserved(db) == []

    earlier = "(now() - interval '22 minutes')"
    a_run(db, job, queue="gpu", run_at=earlier, created_at=earlier)

    [what] = unserved(db)
    assert what.startswith("no worker has served queue gpu for 3h")
    assert what.endswith("; node-1:/srv/s.yaml served it last")
    db.execute("update yamlsched.workers set seen_at = now(), ended_at = null")
    assert unserved(db) == []


# -- until when a place and its queues count -------------------------------------------------------


def place(db: Db, host: str = "web-1") -> Any:
    return db.execute("select * from yamlsched.hosts where host = %s", [host]).fetchone()


@pytest.mark.parametrize("seconds", [0, 2, 40])
def test_a_second_line_of_an_hourly_crontab_ends_nothing_that_the_first_has_promised(
    db: Db, seconds: int
) -> None:
    first, second = a_place_of("web-1", "default"), a_place_of("web-1", "web2", "default")
    for hour in range(3):
        tick(db, first, NOON + hour * HOUR)
        tick(db, second, NOON + hour * HOUR + timedelta(seconds=seconds))

    next_tick = NOON + 3 * HOUR
    assert place(db).expected_until > next_tick + 55 * MINUTE
    assert served_until(db, "web-1", "default") > next_tick + 55 * MINUTE
    assert served_until(db, "web-1", "web2") > next_tick + 55 * MINUTE


def test_a_place_that_ticks_each_minute_again_counts_for_five_minutes(db: Db) -> None:
    for minutes in (0, 60, 61):
        tick(db, WEB1, NOON + minutes * MINUTE)
    assert place(db).expected_until == NOON + 66 * MINUTE
    assert served_until(db, "web-1", "mail") == NOON + 66 * MINUTE


def test_hourly_containers_serve_their_queues_until_the_next_one(db: Db) -> None:
    for hour in range(3):
        tick(db, a_place_of(f"pod-{hour}"), NOON + hour * HOUR)
    assert served_until(db, "pod-2", "default") == NOON + 4 * HOUR
