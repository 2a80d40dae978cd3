"""Edits and pauses: they first account for owed slots, and never change past ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from support.schedules import (
    HOUR,
    MINUTE,
    a_file,
    at,
    definition,
    finish,
    gaps,
    runs,
    slots,
    sync_by_hand,
)
from yamlsched.sync.definitions import cancel_retired
from yamlsched.sync.due import account_for_owed_slots
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.sync.slot_plan import next_slot_at

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
HOURLY = {"cron": "0 * * * *"}


def ticks(db: Db, file: ScheduleFile, *instants: str) -> None:
    for instant in instants:
        sync(db, file, at(instant))


# -- edits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        {"cron": "30 * * * *"},
        {"cron": "0 * * * *", "timezone": "Asia/Kolkata"},
        {"cron": "0 * * * *", "payload": {"a": 1}},
        {"cron": "0 * * * *", "enabled": False},
        {"cron": "0 * * * *", "catchup": "none"},
        {},
    ],
)
def test_an_edit_first_accounts_for_the_owed_slots_of_the_old_definition(
    db: Db, edit: dict[str, Any]
) -> None:
    ticks(db, a_file(x=HOURLY), "2026-01-14 12:00")

    sync(db, a_file(x=edit), at("2026-01-14 14:10"))

    assert slots(db) == ["01-14 14:00"]
    assert gaps(db) == [("01-14 13:00", "01-14 13:00", 1, "superseded")]


def test_accounting_for_owed_slots_neither_limits_them_nor_waits(db: Db) -> None:
    job = {"cron": "* * * * *", "catchup": "all"}
    sync(db, a_file(x=job), NOON)
    sync(db, a_file(x=job), NOON + MINUTE)

    changed = sync(db, a_file(x={**job, "description": "new"}), NOON + 151 * MINUTE)

    assert changed.runs == 150
    assert len(runs(db)) == 151
    assert all(row.exclusive for row in db.execute("select exclusive from yamlsched.job_runs"))


def test_an_edit_never_fires_the_past(db: Db) -> None:
    ticks(db, a_file(x={"cron": "0 23 * * *"}), "2026-01-14 12:00")

    ticks(db, a_file(x={"cron": "0 2 * * *"}), "2026-01-14 12:30", "2026-01-14 12:31")

    assert runs(db) == []
    assert gaps(db) == []
    assert definition(db).next_slot_at == at("2026-01-15 02:00")


def test_an_edit_of_other_keys_does_not_change_slots(db: Db) -> None:
    ticks(db, a_file(x=HOURLY), "2026-01-14 12:00", "2026-01-14 13:00")
    before = definition(db)

    sync(db, a_file(x={**HOURLY, "max_attempts": 7}), at("2026-01-14 13:10"))

    after = definition(db)
    assert (after.id, after.effective_from, after.next_slot_at) == (
        before.id,
        before.effective_from,
        before.next_slot_at,
    )
    assert after.max_attempts == 7


def test_starts_on_a_week_later_exchanges_the_weeks_from_then_on(db: Db) -> None:
    weekly = {"cron": "0 9 * * mon", "every": "2w", "catchup": "all", "overlap": "allow"}
    before = a_file(x={**weekly, "starts_on": "2026-01-05"})
    after = a_file(x={**weekly, "starts_on": "2026-01-12"}, y={"after": ["x"]})
    ticks(db, before, "2026-01-05 08:00", "2026-01-12 09:00", "2026-01-20 08:00")

    # the last slot before the edit is accounted for, the off week before it has none
    ticks(db, after, "2026-01-20 09:00", "2026-02-10 09:00")

    assert runs(db) == [
        ("x:2026-01-05", at("2026-01-05 09:00")),
        ("x:2026-01-19", at("2026-01-19 09:00")),
        ("x:2026-01-26", at("2026-01-26 09:00")),
        ("x:2026-02-09", at("2026-02-09 09:00")),
    ]
    assert gaps(db) == []
    # a follower without a cron of its own has the same weeks
    assert slots(db, "y")[-1] == "02-09 09:00"
    assert definition(db, "y").schedule == definition(db).schedule
    assert definition(db).next_slot_at == at("2026-02-23 09:00")


def test_a_row_is_written_only_if_something_differs(db: Db) -> None:
    sync(db, a_file(x=HOURLY, y={"cron": "@daily", "payload": {"a": 1.0, "b": [True]}}), NOON)

    changes = sync(
        db,
        a_file(y={"payload": {"b": [True], "a": 1.0}, "cron": "@daily"}, x={"cron": "5 * * * *"}),
        NOON + HOUR,
    ).changes

    assert changes is not None
    assert (changes.added, changes.changed, changes.retired) == ((), ("x",), ())
    assert definition(db, "y").updated_at == NOON


def test_true_and_1_differ_in_a_payload(db: Db) -> None:
    sync(db, a_file(x={"payload": {"a": True}}), NOON)

    changes = sync(db, a_file(x={"payload": {"a": 1}}), NOON + HOUR).changes

    assert changes is not None
    assert changes.changed == ("x",)
    assert definition(db).payload == {"a": 1}


def test_a_job_that_leaves_the_file_is_retired_and_continues_when_it_returns(db: Db) -> None:
    ticks(db, a_file(x=HOURLY, y=HOURLY), "2026-01-14 12:00", "2026-01-14 13:00")
    finish(db, at("2026-01-14 13:05"))
    before = definition(db)

    retired = sync_by_hand(db, a_file(y=HOURLY), at("2026-01-14 14:10"))
    assert retired.changes is not None
    assert retired.changes.retired == ("x",)
    assert definition(db).retired_at == at("2026-01-14 14:10")
    finish(db, at("2026-01-14 14:20"))
    sync_by_hand(db, a_file(y=HOURLY), at("2026-01-14 15:00"))
    ticks(db, a_file(y=HOURLY), "2026-01-14 16:00")
    returned = sync(
        db, a_file(x={**HOURLY, "description": "back"}, y=HOURLY), at("2026-01-14 17:30")
    )
    assert returned.changes is not None
    assert returned.changes.returned == ("x",)
    sync(db, a_file(x={**HOURLY, "description": "back"}, y=HOURLY), at("2026-01-14 18:00"))

    assert definition(db).id == before.id
    assert slots(db) == ["01-14 13:00", "01-14 14:00", "01-14 18:00"]
    assert gaps(db) == [("01-14 15:00", "01-14 17:00", 3, "retired")]


def test_a_disabled_job_creates_no_runs_and_records_its_slots_when_it_is_enabled_again(
    db: Db,
) -> None:
    ticks(db, a_file(x=HOURLY), "2026-01-14 12:00")
    off = a_file(x={**HOURLY, "enabled": False})
    ticks(db, off, "2026-01-14 12:30", "2026-01-14 13:30", "2026-01-14 14:30")
    assert (slots(db), gaps(db), definition(db).next_slot_at) == ([], [], None)

    ticks(db, a_file(x={**HOURLY, "description": "on"}), "2026-01-14 15:30", "2026-01-14 16:00")

    assert slots(db) == ["01-14 16:00"]
    assert gaps(db) == [("01-14 13:00", "01-14 15:00", 3, "disabled")]


def test_a_job_without_cron_has_no_slots_and_gets_them_with_one(db: Db) -> None:
    ticks(db, a_file(x={}), "2026-01-14 12:00", "2026-01-14 15:00")
    assert definition(db).next_slot_at is None

    ticks(db, a_file(x=HOURLY), "2026-01-14 15:30", "2026-01-14 16:00")

    assert slots(db) == ["01-14 16:00"]
    assert gaps(db) == []


def test_unfinished_runs_of_a_retired_job_are_cancelled_a_day_later_with_the_reason(db: Db) -> None:
    ticks(db, a_file(x=HOURLY), "2026-01-14 12:00", "2026-01-14 13:00")
    sync_by_hand(db, a_file(), at("2026-01-14 13:30"))

    assert cancel_retired(db, "default", at("2026-01-15 13:29")) == []
    assert len(cancel_retired(db, "default", at("2026-01-15 13:30"))) == 1

    [run] = db.execute("select status, last_error from yamlsched.job_runs").fetchall()
    assert run.status == "cancelled"
    assert (
        run.last_error == "job retired: it was removed from schedules.yaml at 2026-01-14T13:30:00Z"
    )


def pause(db: Db, now: str, until: str | None = None) -> None:
    with db.transaction():
        id = definition(db).id
        instant, [job], _ = account_for_owed_slots(db, "default", [id], at(now))
        end = at(until) if until else None
        following = next_slot_at(replace(job, paused_at=instant, paused_until=end), instant)
        db.execute(
            "update yamlsched.job_definitions set paused_at = %s, paused_until = %s, next_slot_at = %s where id = %s",
            [instant, end, following, id],
        )


def resume(db: Db, now: str) -> None:
    with db.transaction():
        id = definition(db).id
        instant, [job], _ = account_for_owed_slots(db, "default", [id], at(now))
        following = next_slot_at(replace(job, paused_at=None, paused_until=None), instant)
        db.execute(
            "update yamlsched.job_definitions set paused_at = null, paused_until = null, next_slot_at = %s "
            "where id = %s",
            [following, id],
        )


def test_a_pause_first_accounts_for_owed_slots_and_its_own_are_recorded_at_its_end(db: Db) -> None:
    file = a_file(x=HOURLY)
    ticks(db, file, "2026-01-14 12:00")

    pause(db, "2026-01-14 13:30")
    ticks(db, file, "2026-01-14 14:00", "2026-01-14 15:00")
    resume(db, "2026-01-14 15:30")
    finish(db, at("2026-01-14 15:31"))
    ticks(db, file, "2026-01-14 16:00")

    assert slots(db) == ["01-14 13:00", "01-14 16:00"]
    assert gaps(db) == [("01-14 14:00", "01-14 15:00", 2, "paused")]


def test_a_pause_with_an_end_ends_by_itself_and_includes_its_last_instant(db: Db) -> None:
    file = a_file(x=HOURLY)
    ticks(db, file, "2026-01-14 12:00")

    pause(db, "2026-01-14 12:30", until="2026-01-14 15:00")
    ticks(db, file, "2026-01-14 13:00", "2026-01-14 15:00")
    assert (slots(db), gaps(db), definition(db).next_slot_at) == ([], [], at("2026-01-14 16:00"))
    ticks(db, file, "2026-01-14 16:00")

    assert slots(db) == ["01-14 16:00"]
    assert gaps(db) == [("01-14 13:00", "01-14 15:00", 3, "paused")]


def test_no_sync_changes_a_pause(db: Db) -> None:
    ticks(db, a_file(x=HOURLY), "2026-01-14 12:00")
    pause(db, "2026-01-14 12:30")

    ticks(db, a_file(x={"cron": "30 * * * *"}), "2026-01-14 13:10", "2026-01-14 15:00")

    assert definition(db).paused_at == at("2026-01-14 12:30")
    assert definition(db).next_slot_at is None
    resume(db, "2026-01-14 15:10")
    assert slots(db) == []
    assert gaps(db) == [("01-14 13:00", "01-14 14:30", 3, "paused")]
