"""The next slots of jobs, as applications ask for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import yamlsched
from yamlsched.errors import CronError, ScheduleError
from yamlsched.timetable import upcoming
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.upcoming import ScheduledJob

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
CRONS = ["0 2 * * *", "30 1,2 * * *", "*/20 * * * *", "0 0 29 2 *", "@weekly", "59 23 L * *"]
ZONES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe"]


@given(
    st.sampled_from(CRONS),
    st.sampled_from(ZONES),
    st.datetimes(
        datetime(2020, 1, 1),
        datetime(2030, 1, 1),
        timezones=st.sampled_from([UTC, ZoneInfo("Asia/Tokyo")]),
    ),
)
def test_following_next_slot_yields_the_coming_slots_of_a_job(
    cron: str, zone: str, after: datetime
) -> None:
    found, at = [], after
    for _ in range(4):
        following = yamlsched.next_slot(cron, zone, at)
        assert following is not None
        found.append(following)
        at = following

    expected = islice(upcoming.merge([ScheduledJob("x", parse_cron(cron), zone)], after), 4)
    assert found == [slot.scheduled_for for slot in expected]
    assert {slot.tzinfo for slot in found} == {UTC}


def test_next_slot_is_strictly_after_and_takes_a_zone_info() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    at = datetime(2026, 1, 14, 1, tzinfo=UTC)

    assert yamlsched.next_slot("0 2 * * *", berlin, at - timedelta(microseconds=1)) == at
    assert yamlsched.next_slot("0 2 * * *", berlin, at) == at + timedelta(days=1)


def test_an_expression_without_a_slot_within_fifty_years_has_no_next_slot() -> None:
    assert yamlsched.next_slot("0 0 29 2 *", "UTC", datetime(9990, 1, 1, tzinfo=UTC)) is not None
    assert yamlsched.next_slot("0 0 29 2 *", "UTC", datetime(9998, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (("61 * * * *", "UTC", NOON), CronError, "61"),
        (("0 2 * * *", "Europe/Berln", NOON), ScheduleError, 'no time zone "Europe/Berln"'),
        (("0 2 * * *", "UTC", datetime(2026, 1, 14)), yamlsched.Refused, "pass an aware datetime"),
        (("0 2 * * *", "UTC", "now"), yamlsched.Refused, "after is 'now': pass an aware datetime"),
    ],
)
def test_next_slot_refuses_what_it_cannot_read(
    arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        yamlsched.next_slot(*arguments)
