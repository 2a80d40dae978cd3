"""Due slots become runs, or gaps with a reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from support.schedules import MINUTE, a_file, at, definition, finish, gaps, prune, runs, slots
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.sync.hosts import poll
from yamlsched.timetable import keys

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
HOURLY = {"cron": "0 * * * *"}


def ticks(db: Db, file: ScheduleFile, *instants: str) -> None:
    for instant in instants:
        sync(db, file, at(instant))


# -- slots and keys ----------------------------------------------------------------------------------------------------


def test_a_job_has_slots_from_its_first_application_on(db: Db) -> None:
    file = a_file(x=HOURLY)

    ticks(db, file, "2026-01-14 12:00", "2026-01-14 12:59", "2026-01-14 13:00", "2026-01-14 13:01")

    assert runs(db) == [("x:2026-01-14T13:00Z", at("2026-01-14 13:00"))]
    assert definition(db).next_slot_at == at("2026-01-14 14:00")


@pytest.mark.parametrize(
    "cron, applied, now, expected",
    [
        # a repeated hour: a daily job runs only in its first occurrence
        (
            "30 1 * * *",
            "2026-10-31 12:00",
            "2026-11-01 12:00",
            [("x:2026-11-01", at("2026-11-01 05:30"))],
        ),
        # a skipped hour: it runs immediately after the gap, under its nominal date and time
        (
            "30 2 * * *",
            "2026-03-07 12:00",
            "2026-03-08 12:00",
            [("x:2026-03-08", at("2026-03-08 07:00"))],
        ),
        # an hourly job runs in both occurrences of a repeated hour, under two keys
        (
            "0 * * * *",
            "2026-11-01 04:30",
            "2026-11-01 06:30",
            [
                ("x:2026-11-01T05:00Z", at("2026-11-01 05:00")),
                ("x:2026-11-01T06:00Z", at("2026-11-01 06:00")),
            ],
        ),
    ],
)
def test_clock_changes_neither_duplicate_nor_lose_a_run(
    db: Db, cron: str, applied: str, now: str, expected: list[Any]
) -> None:
    file = a_file(x={"cron": cron, "timezone": "America/New_York", "overlap": "allow"})

    sync(db, file, at(applied))
    instant = at(applied)
    while instant < at(now):
        instant += 30 * MINUTE
        sync(db, file, instant)

    assert runs(db) == expected
    assert gaps(db) == []


def test_a_second_sync_at_the_same_time_creates_nothing(db: Db) -> None:
    file = a_file(x=HOURLY)
    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00")

    again = sync(db, file, at("2026-01-14 13:00"))

    assert (again.runs, again.gaps, again.has_findings) == (0, [], False)
    assert len(runs(db)) == 1


def test_a_run_keeps_the_values_of_its_definition_at_its_creation(db: Db) -> None:
    job = {**HOURLY, "payload": {"days": 30}, "max_attempts": 3, "spread": "10m"}
    ticks(db, a_file(x=job), "2026-01-14 12:00", "2026-01-14 13:00")
    sync(db, a_file(x={**job, "payload": {"days": 60}, "max_attempts": 9}), at("2026-01-14 13:30"))

    [run] = db.execute(
        "select payload, max_attempts, run_at, scheduled_for, status from yamlsched.job_runs"
    ).fetchall()

    assert (run.payload, run.max_attempts, run.status) == ({"days": 30}, 3, "queued")
    assert run.run_at == run.scheduled_for + keys.offset("default", "x", timedelta(minutes=10))


# -- several slots due at once -----------------------------------------------------------------------------------------


def test_after_downtime_the_latest_slot_runs_and_the_others_are_superseded(db: Db) -> None:
    ticks(db, a_file(x=HOURLY), "2026-01-14 12:00", "2026-01-14 16:10")

    assert slots(db) == ["01-14 16:00"]
    assert gaps(db) == [("01-14 13:00", "01-14 15:00", 3, "superseded")]


def test_catchup_all_creates_each_slot_oldest_first_and_a_hundred_per_sync(db: Db) -> None:
    file = a_file(x={"cron": "* * * * *", "catchup": "all", "overlap": "allow"})
    sync(db, file, NOON)

    first = sync(db, file, NOON + 150 * MINUTE)
    assert (first.runs, definition(db).next_slot_at) == (100, NOON + 101 * MINUTE)
    second = sync(db, file, NOON + 150 * MINUTE)

    assert second.runs == 50
    assert [slot for _, slot in runs(db)] == [NOON + n * MINUTE for n in range(1, 151)]
    assert gaps(db) == []


def test_catchup_none_runs_only_slots_of_the_last_two_minutes(db: Db) -> None:
    file = a_file(x={"cron": "* * * * *", "catchup": "none", "overlap": "allow"})

    ticks(db, file, "2026-01-14 12:00", "2026-01-14 12:05", "2026-01-14 12:10")

    assert slots(db) == ["01-14 12:04", "01-14 12:05", "01-14 12:09", "01-14 12:10"]
    assert gaps(db) == [
        ("01-14 12:01", "01-14 12:03", 3, "late"),
        ("01-14 12:06", "01-14 12:08", 3, "late"),
    ]


def test_a_slot_older_than_the_window_is_late_and_one_exactly_as_old_is_not(db: Db) -> None:
    file = a_file(
        x={"cron": "* * * * *", "catchup": "all", "overlap": "allow", "catchup_window": "3m"}
    )

    ticks(db, file, "2026-01-14 12:00", "2026-01-14 12:06")

    assert slots(db) == ["01-14 12:03", "01-14 12:04", "01-14 12:05", "01-14 12:06"]
    assert gaps(db) == [("01-14 12:01", "01-14 12:02", 2, "late")]


def test_a_gap_that_continues_is_one_row(db: Db) -> None:
    file = a_file(x={"cron": "* * * * *", "overlap": "skip"})
    ticks(db, file, "2026-01-14 12:00", *(f"2026-01-14 12:{minute:02}" for minute in range(1, 30)))

    assert slots(db) == ["01-14 12:01"]
    assert gaps(db) == [("01-14 12:02", "01-14 12:29", 28, "overlap")]


# -- overlap -----------------------------------------------------------------------------------------------------------


def test_wait_creates_the_latest_run_once_the_earlier_one_has_ended(db: Db) -> None:
    file = a_file(x=HOURLY)
    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00")

    ticks(db, file, "2026-01-14 14:00", "2026-01-14 15:00")
    assert slots(db) == ["01-14 13:00"]
    assert not poll(db, file, at("2026-01-14 15:00")).has_due_jobs

    finish(db, at("2026-01-14 15:05"))
    assert poll(db, file, at("2026-01-14 15:06")).has_due_jobs
    ticks(db, file, "2026-01-14 15:06")
    assert slots(db) == ["01-14 13:00", "01-14 15:00"]
    assert gaps(db) == [("01-14 14:00", "01-14 14:00", 1, "superseded")]


def test_the_catchup_window_includes_the_time_of_waiting(db: Db) -> None:
    file = a_file(x={**HOURLY, "catchup_window": "10m"})
    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00")
    db.execute("update yamlsched.job_runs set attempts = 1, begun_at = run_at")
    ticks(db, file, "2026-01-14 14:00")

    finish(db, at("2026-01-14 14:30"))
    ticks(db, file, "2026-01-14 14:31")

    assert slots(db) == ["01-14 13:00"]
    assert gaps(db) == [("01-14 14:00", "01-14 14:00", 1, "late")]


def test_wait_with_catchup_all_creates_all_missed_slots_once_no_earlier_run_is_unfinished(
    db: Db,
) -> None:
    file = a_file(x={**HOURLY, "catchup": "all"})
    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00", "2026-01-14 14:00", "2026-01-14 15:00")
    assert slots(db) == ["01-14 13:00"]

    finish(db, at("2026-01-14 15:05"))
    ticks(db, file, "2026-01-14 15:06")

    assert slots(db) == ["01-14 13:00", "01-14 14:00", "01-14 15:00"]


@pytest.mark.parametrize("unfinished", ["queued", "failed", "running"])
def test_skip_records_the_slot_while_an_earlier_run_is_unfinished(db: Db, unfinished: str) -> None:
    file = a_file(x={**HOURLY, "overlap": "skip"})
    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00")
    db.execute(
        "update yamlsched.job_runs set status = %(s)s, attempts = 1, locked_by = 'w', "
        "locked_until = case when %(s)s = 'running' then now() end",
        {"s": unfinished},
    )

    ticks(db, file, "2026-01-14 14:00")
    finish(db, at("2026-01-14 14:30"))
    ticks(db, file, "2026-01-14 15:00")

    assert slots(db) == ["01-14 13:00", "01-14 15:00"]
    assert gaps(db) == [("01-14 14:00", "01-14 14:00", 1, "overlap")]


def test_allow_creates_each_run_despite_unfinished_ones(db: Db) -> None:
    file = a_file(x={**HOURLY, "overlap": "allow"})

    ticks(db, file, "2026-01-14 12:00", "2026-01-14 13:00", "2026-01-14 14:00")

    assert slots(db) == ["01-14 13:00", "01-14 14:00"]
    assert not db.execute("select 1 from yamlsched.job_runs where exclusive").fetchone()


def test_queued_runs_follow_a_new_overlap_policy(db: Db) -> None:
    ticks(
        db,
        a_file(x={**HOURLY, "overlap": "allow"}),
        "2026-01-14 12:00",
        "2026-01-14 13:00",
        "2026-01-14 14:00",
    )

    sync(db, a_file(x={**HOURLY, "overlap": "skip"}), at("2026-01-14 14:10"))

    assert [row.exclusive for row in db.execute("select exclusive from yamlsched.job_runs")] == [
        True,
        True,
    ]
    sync(db, a_file(x={**HOURLY, "overlap": "allow", "owner": "me"}), at("2026-01-14 14:20"))
    assert [row.exclusive for row in db.execute("select exclusive from yamlsched.job_runs")] == [
        False,
        False,
    ]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_nightly_job_that_moves_to_a_later_hour_does_not_run_again_on_that_day(db: Db) -> None:
    ticks(db, a_file(x={"cron": "0 2 * * *"}), "2026-01-13 12:00", "2026-01-14 02:00")
    finish(db, at("2026-01-14 02:05"))

    ticks(
        db,
        a_file(x={"cron": "0 23 * * *"}),
        "2026-01-14 12:00",
        "2026-01-14 23:00",
        "2026-01-15 23:00",
    )

    assert runs(db) == [
        ("x:2026-01-14", at("2026-01-14 02:00")),
        ("x:2026-01-15", at("2026-01-15 23:00")),
    ]
    assert gaps(db) == [("01-14 23:00", "01-14 23:00", 1, "key_taken")]


def test_the_key_of_a_pruned_run_is_not_used_again(db: Db) -> None:
    ticks(db, a_file(x={"cron": "0 2 * * *"}), "2026-01-13 12:00", "2026-01-14 02:00")
    prune(db, "true")

    ticks(db, a_file(x={"cron": "0 23 * * *"}), "2026-01-14 12:00", "2026-01-14 23:00")

    assert runs(db) == []
    assert gaps(db) == [("01-14 23:00", "01-14 23:00", 1, "key_taken")]


def test_a_slot_whose_own_run_exists_already_is_accounted_for_without_a_gap(db: Db) -> None:
    file = a_file(x={**HOURLY, "overlap": "skip"})
    sync(db, file, NOON)
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, idempotency_key, scheduled_for, run_at, "
        "max_attempts, exclusive) select namespace, id, job_type, 'x:2026-01-14T13:00Z', %(slot)s, %(slot)s, 5, true "
        "from yamlsched.job_definitions",
        {"slot": at("2026-01-14 13:00")},
    )

    sync(db, file, at("2026-01-14 13:00"))

    assert len(runs(db)) == 1
    assert gaps(db) == []
    assert definition(db).last_slot_at == at("2026-01-14 13:00")
