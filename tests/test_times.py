"""Times of day on a wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from yamlsched import times

BERLIN = ZoneInfo("Europe/Berlin")


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
