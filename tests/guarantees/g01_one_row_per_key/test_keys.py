"""The key of a slot. Never change these values: a change would run old slots again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from yamlsched.runs.enqueue import RESERVED_KEY
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.keys import is_daily, slot_key
from yamlsched.timetable.slots import slots


def keys(text: str, zone: str, after: str, until: str) -> list[str]:
    cron = parse_cron(text)
    start, end = (datetime.fromisoformat(end).replace(tzinfo=UTC) for end in (after, until))
    return [slot_key("x", cron, slot) for slot in slots(cron, ZoneInfo(zone), start, end)]


@pytest.mark.parametrize(
    "text, zone, after, until, expected",
    [
        # an hour that occurs twice: a daily job has one key, an hourly job has two
        ("30 1 * * *", "America/New_York", "2026-11-01", "2026-11-02", ["x:2026-11-01"]),
        (
            "0 * * * *",
            "America/New_York",
            "2026-11-01 04:00",
            "2026-11-01 06:00",
            ["x:2026-11-01T05:00Z", "x:2026-11-01T06:00Z"],
        ),
        # an hour that is skipped
        ("30 2 * * *", "America/New_York", "2026-03-08", "2026-03-09", ["x:2026-03-08"]),
        # the date is local: in UTC this is the evening before
        ("0 2 * * *", "Asia/Tokyo", "2026-01-13 12:00", "2026-01-14 12:00", ["x:2026-01-14"]),
        # the date is the nominal one, also where the slot itself moves to the next day
        (
            "30 23 * * *",
            "America/Scoresbysund",
            "2026-03-28 12:00",
            "2026-03-29 12:00",
            ["x:2026-03-28"],
        ),
        ("@weekly", "UTC", "2026-01-10", "2026-01-12", ["x:2026-01-11"]),
        (
            "0 2,14 * * *",
            "UTC",
            "2026-01-14",
            "2026-01-15",
            ["x:2026-01-14T02:00Z", "x:2026-01-14T14:00Z"],
        ),
        ("0 12 * * *", "UTC", "0999-01-01", "0999-01-02", ["x:0999-01-01"]),
        ("0 12,13 * * *", "UTC", "0999-01-01", "0999-01-01 12:30", ["x:0999-01-01T12:00Z"]),
    ],
)
def test_a_slot_has_its_key(text, zone, after, until, expected):
    assert keys(text, zone, after, until) == expected


@pytest.mark.parametrize(
    "text, daily",
    [
        ("0 2 * * *", True),
        ("0 2 1 * mon", True),
        ("0,0 2 * * *", True),
        ("59/15 23/2 * * *", True),
        ("@daily", True),
        ("@yearly", True),
        ("@hourly", False),
        ("0 2,3 * * *", False),
        ("0-1 2 * * *", False),
        # one time a day, but its star makes it fire in both occurrences of a repeated hour
        ("*/60 2 * * *", False),
        ("0 */24 * * *", False),
    ],
)
def test_a_daily_expression_has_one_minute_one_hour_and_no_star_in_front_of_them(text, daily):
    assert is_daily(parse_cron(text)) is daily


@pytest.mark.parametrize(
    "key, refused",
    [
        ("x:2026-01-14", True),
        ("x:2026-01-14T02:00Z", True),
        ("x:2026-13-99", True),
        ("x:2026-W03", False),
        ("x:2026-01-14T02:00", False),
        ("x:2026-01-14\n", False),
        ("x:٢٠٢٦-01-14", False),
        ("x:812", False),
        ("x", False),
        ("another_job:2026-01-14", True),
        ("Job:2026-01-14", False),
        ("2026-01-14", False),
        ("", False),
    ],
)
def test_keys_in_the_form_of_a_slots_key_are_recognized(key, refused):
    assert (RESERVED_KEY.fullmatch(key) is not None) is refused


@settings(max_examples=25)
@given(
    text=st.sampled_from(
        ["30 1 * * *", "30 23 * * *", "0 0 * * *", "* * * * *", "0 * * * *", "0,30 0-3 * * *"]
    ),
    zone=st.sampled_from(
        [
            "America/New_York",
            "America/Santiago",
            "Australia/Lord_Howe",
            "Africa/Cairo",
            "Pacific/Apia",
        ]
    ),
    start=st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1)),
)
def test_slots_of_a_job_have_distinct_keys_in_the_form_of_a_slots_key(text, zone, start):
    after = start.replace(tzinfo=UTC)
    length = timedelta(days=3) if text.startswith("*") else timedelta(days=200)

    cron = parse_cron(text)
    found = [
        slot_key("x", cron, slot) for slot in slots(cron, ZoneInfo(zone), after, after + length)
    ]

    assert found
    assert len(set(found)) == len(found)
    assert all(RESERVED_KEY.fullmatch(key) for key in found)
