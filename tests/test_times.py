"""Times as people write them, and times of day on a wall clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from yamlsched import times

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "before", "after"),
    [
        ("2026-01-14T12:00Z", "2026-01-14T01:30Z", "2026-01-15T01:30Z"),
        ("2026-01-14T01:30Z", "2026-01-14T01:30Z", "2026-01-15T01:30Z"),  # now counts as before
        ("2026-01-14T01:29Z", "2026-01-13T01:30Z", "2026-01-14T01:30Z"),
        ("2026-01-14T23:30Z", "2026-01-14T01:30Z", "2026-01-15T01:30Z"),  # another date there than in UTC
        ("2026-03-28T12:00Z", "2026-03-28T01:30Z", "2026-03-29T01:30Z"),  # 02:30 does not exist on the 29th
    ],
)
def test_a_time_of_day_is_the_last_or_the_next_on_the_clock_of_the_zone(now: str, before: str, after: str) -> None:
    at, half_past_two = datetime.fromisoformat(now), time(2, 30)
    assert times.last_occurrence(half_past_two, BERLIN, at) == datetime.fromisoformat(before)
    assert times.next_occurrence(half_past_two, BERLIN, at) == datetime.fromisoformat(after)


def test_the_next_time_of_day_is_never_more_than_a_day_and_an_hour_away() -> None:
    start = datetime(2026, 10, 24, tzinfo=UTC)
    for minutes in range(0, 3 * 24 * 60, 7):
        now = start + timedelta(minutes=minutes)
        assert timedelta(0) < times.next_occurrence(time(2, 30), BERLIN, now) - now <= timedelta(hours=25)
        assert timedelta(0) <= now - times.last_occurrence(time(2, 30), BERLIN, now) <= timedelta(hours=25)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-01-14T12:00Z", NOON),
        ("2026-01-14T12:00:00+00:00", NOON),
        ("2026-01-14 13:00+01:00", NOON),
        ("2026-01-14T13:00", NOON),  # without an offset: the wall clock of Berlin
        ("2026-01-14", NOON.replace(day=13, hour=23)),
        ("1h30m", NOON + timedelta(minutes=90)),
        ("now", NOON),
        ("13:30", NOON + timedelta(minutes=30)),
        ("12:30", NOON + timedelta(hours=23, minutes=30)),
    ],
)
def test_a_time_is_an_instant_a_duration_or_local_to_the_zone(text: str, meant: datetime) -> None:
    value = times.parse(text)

    assert times.resolve(value, lambda: BERLIN, NOON, is_future=True) == meant


@pytest.mark.parametrize(("text", "meant"), [("1h30m", timedelta(minutes=90)), ("12:30", timedelta(minutes=30))])
def test_a_duration_and_a_time_of_day_count_back_if_the_time_is_past(text: str, meant: timedelta) -> None:
    assert NOON - times.resolve(times.parse(text), lambda: BERLIN, NOON, is_future=False) == meant


def test_the_time_zone_is_not_asked_for_if_the_time_has_an_offset() -> None:
    def fail() -> ZoneInfo:
        raise AssertionError

    for text in ("2026-01-14T12:00Z", "90m", "now"):
        value = times.parse(text)
        assert not times.is_local(value)
        assert times.resolve(value, fail, NOON, is_future=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", '"soon" is not a valid time: write a date such as 2026-01-14, a local time such as'),
        ("", '"" is not a valid time: write a date'),
        ("90", '90 has no unit: write "90s" for seconds or "90m" for minutes'),
        ("999999d", "999999d is longer than 100 years: write a time such as 2026-01-14T02:00Z"),
        ("25:00", '"25:00" is not a valid time of day: write 00:00 to 23:59'),
        ("1899-12-31", '"1899-12-31" is out of range: write a year from 1900 to 9900'),
    ],
)
def test_an_invalid_time_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        times.parse(text)
