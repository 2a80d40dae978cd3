"""``spread``: when the run of a slot is due, and what happens to a run between its slot and that time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.schedules import HOUR, MINUTE, a_file, at, definition, finish, gaps
from yamlsched.act import pause as pausing
from yamlsched.extras.preview.slot_changes import pile_ups
from yamlsched.schedule.load import load
from yamlsched.sync.flow import sync
from yamlsched.timetable import keys, slots
from yamlsched.timetable.cron import parse_cron, smallest_gap
from yamlsched.timetable.zones import zone

Db = psycopg.Connection[Any]
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
CRONS = [
    "0 2 * * *",
    "30 1,2,3 * * *",
    "0 * * * *",
    "*/20 * * * *",
    "0 0,1 * * *",
    "59 23 31,1 * *",
    "0 0 29 2 *",
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Gaza"]


def waiting(db: Db) -> list[datetime]:
    """Return when the unfinished runs are due."""
    rows = db.execute("select run_at from yamlsched.job_runs where finished_at is null order by id")
    return [row.run_at for row in rows]


# -- the offset --------------------------------------------------------------------------------------------------------


@given(st.text(max_size=5), st.text(min_size=1, max_size=20), st.integers(0, 86_400))
def test_an_offset_is_a_whole_second_below_the_spread_and_always_the_same(
    namespace: str, name: str, seconds: int
) -> None:
    found = keys.offset(namespace, name, seconds * SECOND)

    assert timedelta(0) <= found < max(seconds, 1) * SECOND
    assert found % SECOND == timedelta(0)
    assert found == keys.offset.__wrapped__(namespace, name, seconds * SECOND)


def test_the_offset_of_a_name_never_changes_between_releases() -> None:
    assert [keys.offset("default", "backup", hours * HOUR) for hours in (0, 1, 24)] == [
        timedelta(0),
        1880 * SECOND,
        37880 * SECOND,
    ]


def test_the_same_job_has_another_offset_in_each_namespace_that_never_changes_between_releases() -> (
    None
):
    assert [keys.offset(host, "backup", HOUR) for host in ("web_01", "web_02", "web_03")] == [
        1297 * SECOND,
        2542 * SECOND,
        1776 * SECOND,
    ]


@pytest.mark.parametrize(
    "cron, gap",
    [
        ("* * * * *", MINUTE),
        ("0 * * * *", HOUR),
        ("0 0,1 * * *", HOUR),
        ("0 23,1 * * *", 2 * HOUR),
        ("0 2 * * *", DAY),
        ("0 0,23 1 * *", 23 * HOUR),
        ("59 23 31 12 *", 365 * DAY),
        ("59 23 1 1,12 *", 31 * DAY),
        ("0 20,23 1,L * *", 3 * HOUR),
        ("0 0,22 1,31 1,12 *", 2 * HOUR),  # 31 December and 1 January
        ("0 0,22 1,29 2,3 *", 2 * HOUR),  # 29 February and 1 March
        ("0 0 29 2 *", 1461 * DAY),
        ("0 0 * * 1", 7 * DAY),
        ("0 0 1 * 1", DAY),
    ],
)
def test_the_smallest_gap_is_the_shortest_time_between_two_slots(cron: str, gap: timedelta) -> None:
    assert smallest_gap(parse_cron(cron)) == gap


@given(
    st.sampled_from(CRONS),
    st.sampled_from(ZONES),
    st.text(max_size=5),
    st.integers(0, 366),
    st.floats(0, 1),
)
def test_a_run_is_due_at_or_after_its_slot_and_before_the_next_on_clock_change_nights_too(
    cron: str, timezone: str, name: str, day: int, part: float
) -> None:
    rule, where = parse_cron(cron), zone(timezone)
    longest = min(smallest_gap(rule), DAY)
    length = timedelta(seconds=int(longest.total_seconds() * part))
    first = slots.next_slot(rule, where, datetime(2026, 1, 1, tzinfo=UTC) + day * DAY)
    assert first is not None
    second = slots.next_slot(rule, where, first.at)
    assert second is not None

    offset = keys.offset("default", name, length)

    due = keys.run_at(offset, rule, where, first.at)

    assert first.at <= due < second.at
    assert due == min(first.at + offset, second.at - SECOND)


def test_a_spread_of_defaults_is_limited_to_what_fits_each_job() -> None:
    text = b"""
version: 1
defaults: {spread: 24h}
jobs:
  often: {handler: a.b, cron: "*/5 * * * *"}
  twice: {handler: a.b, cron: "0 0,1 * * *"}
  nightly: {handler: a.b, cron: "0 2 * * *"}
  weekly: {handler: a.b, cron: "0 2 * * 1"}
  by_hand: {handler: a.b}
"""

    jobs = load(text, "schedules.yaml", None).jobs

    assert {name: job.spread for name, job in jobs.items()} == {
        "often": 5 * MINUTE,
        "twice": HOUR,
        "nightly": DAY,
        "weekly": DAY,
        "by_hand": timedelta(0),
    }


def test_a_pile_up_counts_runs_whose_slot_was_before_the_edit() -> None:
    # given a nightly job whose run of today starts at 13:04, and four jobs that start then
    others = "".join(f'  job_{n}: {{handler: a.b, cron: "4 13 * * *"}}\n' for n in range(4))
    before = 'version: 1\njobs:\n  x: {handler: a.b, cron: "0 2 * * *", spread: 24h}\n' + others
    after = before + '  added: {handler: a.b, cron: "4 13 * * *"}\n'
    old, new = (load(text.encode(), "schedules.yaml", None).jobs for text in (before, after))

    # when another one is added at noon
    [found] = pile_ups("default", old, new, at("2026-01-14 12:00"), at("2026-01-14 14:00"))

    # then six start together, five of which were there before
    assert found.jobs == ("added", "job_0", "job_1", "job_2", "job_3", "x")
    assert pile_ups("default", old, old, at("2026-01-14 12:00"), at("2026-01-14 14:00")) == ()


# -- between the slot and the time of the run --------------------------------------------------------------------------

NIGHTLY = {"cron": "0 2 * * *", "spread": "24h"}
OFFSET = keys.offset("default", "x", DAY)
SLOT = at("2026-01-14 02:00")


@pytest.fixture
def pending(db: Db) -> Db:
    """A database with a run of a nightly job that waits for its spread time; the offset of "x" is several hours."""
    sync(db, a_file(x=NIGHTLY), SLOT - HOUR)
    sync(db, a_file(x=NIGHTLY), SLOT)
    assert waiting(db) == [SLOT + OFFSET]
    assert 2 * HOUR < OFFSET < DAY - 2 * HOUR
    return db


def test_ticks_of_several_hosts_between_slot_and_run_create_nothing_more(pending: Db) -> None:
    for host, instant in (
        ("web-2", SLOT + MINUTE),
        ("web-1", SLOT + HOUR),
        ("web-2", SLOT + OFFSET),
    ):
        assert sync(pending, a_file(x=NIGHTLY, host=host), instant).runs == 0

    assert waiting(pending) == [SLOT + OFFSET]
    assert gaps(pending) == []


def test_hosts_with_namespaces_of_their_own_run_the_same_job_at_different_times(db: Db) -> None:
    hosts = ("web_01", "web_02", "default")
    for host in hosts:
        for instant in (SLOT - HOUR, SLOT):
            sync(
                db,
                a_file(
                    host=host, path=f"/{host}/schedules.yaml", top=f"namespace: {host}", x=NIGHTLY
                ),
                instant,
            )

    expected = [SLOT + keys.offset(host, "x", DAY) for host in hosts]
    assert waiting(db) == expected
    assert len(set(expected)) == 3
    assert expected[2] == SLOT + OFFSET

    # a shorter spread moves each by its own hash
    for host in hosts:
        file = a_file(
            host=host,
            path=f"/{host}/schedules.yaml",
            top=f"namespace: {host}",
            x={**NIGHTLY, "spread": "9h"},
        )
        sync(db, file, SLOT + SECOND)
    assert sorted(waiting(db)) == sorted(SLOT + keys.offset(host, "x", 9 * HOUR) for host in hosts)


def test_a_run_created_after_downtime_keeps_the_time_of_its_slot(db: Db) -> None:
    sync(db, a_file(x=NIGHTLY), SLOT - HOUR)

    sync(db, a_file(x=NIGHTLY), SLOT + 2 * HOUR)

    assert waiting(db) == [SLOT + OFFSET]


def test_without_a_spread_a_waiting_run_is_due_at_once(pending: Db) -> None:
    sync(pending, a_file(x={"cron": "0 2 * * *"}), SLOT + HOUR)

    assert waiting(pending) == [SLOT]


def test_a_shorter_spread_moves_a_waiting_run(pending: Db) -> None:
    sync(pending, a_file(x={**NIGHTLY, "spread": "90m"}), SLOT + MINUTE)

    assert waiting(pending) == [SLOT + keys.offset("default", "x", 90 * MINUTE)]


def test_a_new_cron_with_an_earlier_slot_is_not_delayed_by_a_waiting_run(pending: Db) -> None:
    sync(pending, a_file(x={**NIGHTLY, "cron": "30 3 * * *"}), SLOT + HOUR)

    assert definition(pending).next_slot_at == at("2026-01-14 03:30")
    assert waiting(pending) == [at("2026-01-14 03:30") - SECOND]


def test_an_edit_does_not_move_a_run_that_has_been_claimed_or_waits_for_a_retry(
    pending: Db,
) -> None:
    retry_at = SLOT + 20 * HOUR
    pending.execute(
        "update yamlsched.job_runs set status = 'failed', attempts = 1, started_at = %s, run_at = %s",
        [SLOT, retry_at],
    )

    sync(pending, a_file(x={"cron": "0 2 * * *"}), SLOT + HOUR)

    assert waiting(pending) == [retry_at]


def test_a_job_that_loses_its_cron_keeps_the_time_of_its_waiting_run(pending: Db) -> None:
    sync(pending, a_file(x={}), SLOT + HOUR)

    assert definition(pending).schedule is None
    assert waiting(pending) == [SLOT + OFFSET]


def test_an_edit_of_another_key_does_not_move_a_waiting_run(pending: Db) -> None:
    sync(pending, a_file(x={**NIGHTLY, "timeout": "5m"}), SLOT + HOUR)

    assert waiting(pending) == [SLOT + OFFSET]


def test_a_job_that_is_paused_and_resumed_or_removed_and_restored_keeps_its_waiting_run(
    pending: Db,
) -> None:
    ids = [definition(pending).id]
    pausing.pause(pending, "default", ids, "ann", now=SLOT + HOUR)
    pausing.resume(pending, "default", ids, "ann", now=SLOT + 2 * HOUR)
    sync(pending, a_file(), SLOT + 2 * HOUR)
    sync(pending, a_file(x=NIGHTLY, y=NIGHTLY), SLOT + 2 * HOUR)

    assert waiting(pending) == [SLOT + OFFSET]
    assert gaps(pending) == []


def test_the_next_slot_follows_a_waiting_run_in_time(pending: Db) -> None:
    finish(pending, SLOT + OFFSET + MINUTE)
    sync(pending, a_file(x=NIGHTLY), SLOT + DAY)

    assert waiting(pending) == [SLOT + DAY + OFFSET]
