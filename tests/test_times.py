"""Times as people write them, and times of day on a wall clock."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from yamlsched.timetable import times

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)


def following(clock: time, now: datetime) -> datetime:
    return times.resolve(clock, lambda: BERLIN, now, is_future=True)


def last(clock: time, now: datetime) -> datetime:
    return times.resolve(clock, lambda: BERLIN, now, is_future=False)


@pytest.mark.parametrize(
    ("now", "before", "after"),
    [
        ("2026-01-14T12:00Z", "2026-01-14T01:30Z", "2026-01-15T01:30Z"),
        ("2026-01-14T01:30Z", "2026-01-14T01:30Z", "2026-01-15T01:30Z"),  # now counts as before
        ("2026-01-14T01:29Z", "2026-01-13T01:30Z", "2026-01-14T01:30Z"),
        (
            "2026-01-14T23:30Z",
            "2026-01-14T01:30Z",
            "2026-01-15T01:30Z",
        ),  # another date there than in UTC
        (
            "2026-03-28T12:00Z",
            "2026-03-28T01:30Z",
            "2026-03-29T01:00Z",
        ),  # 02:30 does not exist on the 29th
    ],
)
def test_a_time_of_day_is_the_last_or_the_next_on_the_clock_of_the_zone(
    now: str, before: str, after: str
) -> None:
    at, half_past_two = datetime.fromisoformat(now), time(2, 30)
    assert last(half_past_two, at) == datetime.fromisoformat(before)
    assert following(half_past_two, at) == datetime.fromisoformat(after)


def test_the_next_time_of_day_is_never_more_than_a_day_and_an_hour_away() -> None:
    start = datetime(2026, 10, 24, tzinfo=UTC)
    for minutes in range(0, 3 * 24 * 60, 7):
        now = start + timedelta(minutes=minutes)
        assert timedelta(0) < following(time(2, 30), now) - now <= timedelta(hours=25)
        assert timedelta(0) <= now - last(time(2, 30), now) <= timedelta(hours=25)


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
        ("8:00", NOON + timedelta(hours=19)),
        ("13:00:30", NOON + timedelta(seconds=30)),
        ("today 17:30", NOON + timedelta(hours=4, minutes=30)),
        ("today 08:00", NOON - timedelta(hours=5)),  # what is named is not moved
        ("tomorrow 08:00", NOON + timedelta(hours=19)),
        ("8:00 Tomorrow", NOON + timedelta(hours=19)),
        ("tomorrow", NOON + timedelta(hours=11)),
        ("yesterday 13:00", NOON - timedelta(days=1)),
        ("mon 08:00", NOON + timedelta(days=4, hours=19)),
        ("Monday  08:00", NOON + timedelta(days=4, hours=19)),
        ("thurs", NOON + timedelta(hours=11)),
        ("wed 13:01", NOON + timedelta(minutes=1)),  # 14 January 2026 is a Wednesday
        ("wed 13:00", NOON + timedelta(days=7)),
        ("wed", NOON + timedelta(days=6, hours=11)),
    ],
)
def test_a_time_is_an_instant_a_duration_or_local_to_the_zone(text: str, meant: datetime) -> None:
    value = times.parse(text)

    assert times.resolve(value, lambda: BERLIN, NOON, is_future=True) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1h30m", timedelta(minutes=90)),
        ("12:30", timedelta(minutes=30)),
        ("11:59Z", timedelta(minutes=1)),
        ("12:01z", timedelta(days=1, minutes=-1)),
        ("wed 13:00", timedelta(0)),
        ("wed 13:01", timedelta(days=7, minutes=-1)),
        ("tue 13:00", timedelta(days=1)),
        ("wed", timedelta(hours=13)),
        ("tomorrow 13:00", timedelta(days=-1)),
    ],
)
def test_a_duration_and_a_time_of_day_count_back_if_the_time_is_past(
    text: str, meant: timedelta
) -> None:
    assert NOON - times.resolve(times.parse(text), lambda: BERLIN, NOON, is_future=False) == meant


def test_the_time_zone_is_not_asked_for_if_the_time_has_an_offset() -> None:
    def fail() -> ZoneInfo:
        raise AssertionError

    for text in ("2026-01-14T12:00Z", "12:00Z", "90m", "now"):
        value = times.parse(text)
        assert not times.is_local(value)
        assert times.resolve(value, fail, NOON, is_future=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "soon",
            '"soon" is not a valid time: write a date such as 2026-01-14, a local time such as',
        ),
        ("", '"" is not a valid time: write a date'),
        ("90", '90 has no unit: write "90s" for seconds or "90m" for minutes'),
        ("999999d", "999999d is longer than 100 years: write a time such as 2026-01-14T02:00Z"),
        ("mon 25:00", '"25:00" is not a valid time of day: write 00:00 to 23:59'),
        ("mon tue", '"mon tue" is not a valid time: write a date'),
        ("08:00 09:00", '"08:00 09:00" is not a valid time: write a date'),
        ("mo 08:00", '"mo 08:00" is not a valid time: write a date'),
        ("next monday", '"next monday" is not a valid time: write a date'),
        ("25:00", '"25:00" is not a valid time of day: write 00:00 to 23:59'),
        ("1899-12-31", '"1899-12-31" is out of range: write a year from 1900 to 9900'),
    ],
)
def test_an_invalid_time_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        times.parse(text)


# -- nights on which clocks change -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "text", "meant"),
    [
        ("Europe/Berlin", "2026-03-29T01:59", "2026-03-29T00:59Z"),
        (
            "Europe/Berlin",
            "2026-03-29T02:00",
            "2026-03-29T01:00Z",
        ),
        (
            "Europe/Berlin",
            "2026-03-29T02:59:59",
            "2026-03-29T01:00Z",
        ),
        ("Europe/Berlin", "2026-03-29T03:00", "2026-03-29T01:00Z"),
        ("Europe/Berlin", "2026-10-25T01:59", "2026-10-24T23:59Z"),
        (
            "Europe/Berlin",
            "2026-10-25T02:00",
            "2026-10-25T00:00Z",
        ),
        (
            "Europe/Berlin",
            "2026-10-25T02:59",
            "2026-10-25T00:59Z",
        ),
        ("Europe/Berlin", "2026-10-25T03:00", "2026-10-25T02:00Z"),
        ("Europe/Berlin", "2026-10-25T02:30+01:00", "2026-10-25T01:30Z"),
        (
            "Australia/Lord_Howe",
            "2026-10-04T02:15",
            "2026-10-03T15:30Z",
        ),
        ("Asia/Beirut", "2026-03-29", "2026-03-28T22:00Z"),  # the day begins at 01:00
        (
            "Pacific/Apia",
            "2011-12-30T12:00",
            "2011-12-30T10:00Z",
        ),  # all of it
    ],
)
def test_a_skipped_time_is_the_end_of_the_gap_and_a_repeated_time_the_first(
    zone: str, text: str, meant: str
) -> None:
    where, value = ZoneInfo(zone), times.parse(text)

    at = times.resolve(value, lambda: where, NOON, is_future=True)

    assert at == datetime.fromisoformat(meant)


ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Gaza", "Africa/Cairo"]
)
INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))
DAYS = st.sampled_from([*times.WEEKDAYS, "mon", "tues", "sun"])


@given(ZONES, INSTANTS, DAYS, st.times(timezones=st.none()))
@example("Europe/Berlin", datetime(2026, 3, 29, 0, 59, tzinfo=UTC), "sun", time(2, 30))
@example("Europe/Berlin", datetime(2026, 10, 25, 0, 45, tzinfo=UTC), "sun", time(2, 30))
def test_a_weekday_with_a_time_is_the_next_or_the_last_one_on_that_weekday(
    name: str, now: datetime, day: str, clock: time
) -> None:
    zone, clock = ZoneInfo(name), clock.replace(second=0, microsecond=0)
    value = times.parse(f"{day} {clock:%H:%M}")

    after = times.resolve(value, lambda: zone, now, is_future=True)
    before = times.resolve(value, lambda: zone, now, is_future=False)

    assert before <= now < after <= before + timedelta(days=7, hours=2)
    for found in (before, after):
        assert f"{found.astimezone(zone):%A}".lower().startswith(day)
        assert found.astimezone(zone).time() >= clock


@given(ZONES, st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))
def test_a_local_time_is_read_back_from_the_wall_clock_unless_clocks_skip_it(
    name: str, local: datetime
) -> None:
    zone, local = ZoneInfo(name), local.replace(microsecond=0)

    at, _ = times.bounds(local, zone)

    shown = at.astimezone(zone).replace(tzinfo=None)
    assert shown >= local
    if shown != local:
        # the end of a gap: a second before, the clock showed an earlier time than the one that was skipped
        assert (at - timedelta(seconds=1)).astimezone(zone).replace(tzinfo=None) < local


@given(ZONES, INSTANTS, st.sampled_from(["today", "tomorrow", "yesterday"]))
def test_a_named_day_is_the_date_on_the_wall_clock_in_either_direction(
    name: str, now: datetime, day: str
) -> None:
    zone = ZoneInfo(name)
    expected = now.astimezone(zone).date() + timedelta(
        days=["yesterday", "today", "tomorrow"].index(day) - 1
    )

    for is_future in (True, False):
        found = times.anchor(times.parse(day), lambda: zone, now, is_future)
        assert isinstance(found, date)
        assert found == expected


@given(
    st.text(max_size=30)
    | st.from_regex(r"[a-z]{0,9} ?[0-9]{0,4}[:dhm -]?[0-9]{0,4}", fullmatch=True)
)
def test_any_string_is_read_or_refused_with_what_to_write(text: str) -> None:
    message, value = "write", None
    try:
        value = times.parse(text)
    except ValueError as error:
        message = str(error)

    assert "write" in message
    for is_future in (True, False) if value is not None else ():
        assert times.resolve(value, lambda: BERLIN, NOON, is_future).tzinfo is UTC
