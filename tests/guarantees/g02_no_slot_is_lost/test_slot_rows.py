"""The statements of sync about slots: each changes only its own rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_job
from yamlsched.db.query import load
from yamlsched.sync import slot_rows as store
from yamlsched.sync.slot_plan import CursorMove, Gap

Db = psycopg.Connection[Any]
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def lock_due_jobs(db: Db, ids: list[int]) -> list[int]:
    rows = db.execute(load("slots")["lock_due_jobs"], {"ids": ids, "now": NOON})
    return [row.id for row in rows]


def gaps(db: Db) -> list[tuple[int, datetime, int, str]]:
    rows = db.execute(
        "select definition_id, last_slot, slots, reason from yamlsched.skipped_slots order by id"
    )
    return [tuple(row) for row in rows.fetchall()]


def test_a_gap_extends_only_a_gap_of_its_job_and_reason(db: Db) -> None:
    # given gaps of two jobs, with two reasons, that end at the same instant
    one, other, third = a_job(db, "one"), a_job(db, "other"), a_job(db, "third")
    recorded = [(one, "overlap"), (other, "overlap"), (third, "paused")]
    store.write_rows(
        db,
        "slots.record_gaps",
        [Gap(job, "", NOON, NOON, 1, reason) for job, reason in recorded],
        now=NOON,
    )

    # when one of them continues, and another continues for another reason
    later = NOON + MINUTE
    going_on = [Gap(job, "", later, later, 1, "overlap", follows=NOON) for job in (one, third)]
    store.write_rows(db, "slots.record_gaps", going_on, now=later)

    # then the first is longer, the other job's gap is unchanged, and the other reason has its own row
    assert gaps(db) == [
        (one, later, 2, "overlap"),
        (other, NOON, 1, "overlap"),
        (third, NOON, 1, "paused"),
        (third, later, 1, "overlap"),
    ]


def test_slots_that_another_outage_cost_have_a_row_of_their_own(db: Db) -> None:
    # given a weekly slot that was recorded as late, two days after it
    job, found = a_job(db), NOON + 48 * 60 * MINUTE
    store.write_rows(db, "slots.record_gaps", [Gap(job, "", NOON, NOON, 1, "late")], now=found)

    # when the next one is lost in the same outage, and the one after it in another one, a week later
    week = 7 * 24 * 60 * MINUTE
    for nth, at in ((1, found + 10 * MINUTE), (2, found + 2 * week)):
        slot = NOON + nth * week
        store.write_rows(
            db,
            "slots.record_gaps",
            [Gap(job, "", slot, slot, 1, "late", follows=slot - week)],
            now=at,
        )

    # then the time at which each was found is known
    rows = db.execute(
        "select slots, recorded_at from yamlsched.skipped_slots order by id"
    ).fetchall()
    assert [tuple(row) for row in rows] == [(2, found), (1, found + 2 * week)]


def test_a_gap_of_another_calendar_has_a_row_of_its_own(db: Db) -> None:
    job = a_job(db)
    store.write_rows(
        db,
        "slots.record_gaps",
        [Gap(job, "", NOON, NOON, 1, "calendar", detail="holidays")],
        now=NOON,
    )

    later = NOON + MINUTE
    store.write_rows(
        db,
        "slots.record_gaps",
        [Gap(job, "", later, later, 1, "calendar", follows=NOON, detail="freeze")],
        now=later,
    )

    rows = db.execute("select detail, slots from yamlsched.skipped_slots order by id").fetchall()
    assert [tuple(row) for row in rows] == [("holidays", 1), ("freeze", 1)]


def test_a_job_that_another_session_has_is_left_to_it_without_a_wait(db: Db, dsn: str) -> None:
    taken, free = a_job(db, "taken", next_slot_at=NOON), a_job(db, "free", next_slot_at=NOON)
    with psycopg.connect(dsn) as other, db.transaction():
        other.execute(
            "select from yamlsched.job_definitions where id = %s for no key update", [taken]
        )
        db.execute("set local lock_timeout = '1ms'")

        assert lock_due_jobs(db, [taken, free]) == [free]

        # the one that it locked stays its own
        other.execute("set lock_timeout = '1ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(
                "select from yamlsched.job_definitions where id = %s for no key update", [free]
            )


def test_a_job_that_another_sync_has_processed_is_not_locked(db: Db) -> None:
    due = a_job(db, "due", next_slot_at=NOON)
    done = a_job(db, "done", next_slot_at=NOON + MINUTE)
    off = a_job(db, "off", next_slot_at=None)

    assert lock_due_jobs(db, [due, done, off]) == [due]


def test_a_cursor_that_moved_after_it_was_read_is_not_moved_again(db: Db) -> None:
    moved = a_job(db, "moved", last_slot_at=NOON)
    first = a_job(db, "first", last_slot_at=None)
    later = NOON + MINUTE

    store.write_rows(
        db,
        "slots.move_cursors",
        [CursorMove(moved, NOON - MINUTE, later, None), CursorMove(first, None, later, None)],
    )

    found = db.execute(
        "select id, last_slot_at from yamlsched.job_definitions order by id"
    ).fetchall()
    assert [tuple(row) for row in found] == [(moved, NOON), (first, later)]
