"""The slots of an expression, especially around clock changes.

``Reference`` is an independent implementation: its own field parser, and a walk over the wall clock minute by minute.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from yamlsched.errors import CronError
from yamlsched.timetable.cron import combine, parse_cron, parse_schedule, smallest_gap, written
from yamlsched.timetable.keys import slot_key
from yamlsched.timetable.slots import (
    EPOCH,
    Slot,
    mismatch,
    newest_slot,
    next_slot,
    slot_minutes,
    slots,
    span,
)

NEW_YORK = ZoneInfo("America/New_York")
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
DOCUMENT = Path(__file__).parent.parent / "docs" / "time.md"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(text: str, zone: str, after: str, until: str) -> list[str]:
    """The slots in (after, until] as "MM-DD HH:MM" in UTC."""
    found = slots(parse_cron(text), ZoneInfo(zone), utc(after), utc(until))
    return [f"{slot.at:%m-%d %H:%M}" for slot in found]


class Tick(NamedTuple):
    """A UTC minute, its wall clock time, and the wall clock minutes that were skipped before it."""

    at: datetime
    wall: datetime
    skipped: tuple[datetime, ...]
    seen: bool


@lru_cache(maxsize=8)
def walk(zone: ZoneInfo, after: datetime, until: datetime) -> list[Tick]:
    """Read the wall clock at every UTC minute of (after, until]; ``seen`` are wall minutes it showed before."""
    ticks: list[Tick] = []
    shown: set[datetime] = set()
    at = (after - 2 * DAY).replace(second=0, microsecond=0)
    previous = None
    while at <= until:
        wall = at.astimezone(zone).replace(second=0, microsecond=0, tzinfo=None, fold=0)
        skipped: list[datetime] = []
        while previous is not None and previous + MINUTE < wall:
            previous += MINUTE
            skipped.append(previous)
        if at > after:
            ticks.append(Tick(at, wall, tuple(skipped), wall in shown))
        shown.add(wall)
        previous, at = wall, at + MINUTE
    return ticks


def reference_values(field: str, low: int, high: int, names: str = "") -> set[int]:
    values: set[int] = set()
    for item in field.lower().replace("-sun", "-7").split(","):
        for number, name in enumerate(names.split(), low):
            item = item.replace(name, str(number))
        item, _, step = item.partition("/")
        first, _, last = item.partition("-")
        if item in ("*", "?"):
            first, last = str(low), str(high)
        elif not last:
            last = str(high) if step else first
        values |= set(range(int(first), int(last) + 1, int(step or 1)))
    return values


def computed_day(day: date, length: int, text: str) -> int | None:
    """Of the weekdays of the month, the one that is nearest to a day; or a day from the end."""
    wanted = length if text[0] == "L" else int(text[:-1])
    if "-" in text:
        wanted -= int(text[2:])
    if not 1 <= wanted <= length or "W" not in text:
        return wanted
    weekdays = [n for n in range(1, length + 1) if day.replace(day=n).strftime("%a")[0] != "S"]
    return min(weekdays, key=lambda n: abs(n - wanted))


def weeks_between(first: date, day: date) -> int:
    monday, other = (date.fromisocalendar(*which.isocalendar()[:2], 1) for which in (first, day))
    return (other - monday).days // 7


class Reference:
    def __init__(self, text: str) -> None:
        minute, hour, self.day_of_month, month, self.day_of_week = text.split()
        self.wildcard = minute.startswith("*") or hour.startswith("*")
        self.minutes = reference_values(minute, 0, 59)
        self.hours = reference_values(hour, 0, 23)
        self.months = reference_values(
            month, 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"
        )
        self.on_date = lru_cache(maxsize=4096)(self.date_matches)

    def date_matches(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        length = monthrange(day.year, day.month)[1]
        weekday = day.isoweekday() % 7
        numbers = [item for item in self.day_of_month.split(",") if not re.search("[LW]", item)]
        by_number = bool(numbers) and day.day in reference_values(",".join(numbers), 1, 31)
        if computed := re.search("(L|[0-9]+W)(W|-[0-9]+)?", self.day_of_month):
            by_number |= day.day == computed_day(day, length, computed[0])
        if "#" in self.day_of_week:
            which, nth = map(int, self.day_of_week.split("#"))
            by_weekday = weekday == which % 7 and day.day in range(nth * 7 - 6, nth * 7 + 1)
        elif self.day_of_week.startswith("L"):
            by_weekday = weekday == int(self.day_of_week[1:]) % 7 and day.day > length - 7
        else:
            named = reference_values(self.day_of_week, 0, 7, "sun mon tue wed thu fri sat")
            by_weekday = weekday in {number % 7 for number in named}
        free = ("*", "?")
        if self.day_of_month not in free and self.day_of_week not in free:
            return by_number or by_weekday
        return by_number and by_weekday

    def matches(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.on_date(wall.date())

    def fires(self, ticks: list[Tick]) -> list[tuple[datetime, datetime]]:
        """The slots among ``ticks`` with the nominal wall time of each."""
        found = []
        for tick in ticks:
            if self.matches(tick.wall) and (self.wildcard or not tick.seen):
                found.append((tick.at, tick.wall))
            elif not self.wildcard and 0 < len(tick.skipped) < 180:
                late = [wall for wall in tick.skipped if self.matches(wall)]
                if late:
                    found.append((tick.at, late[-1]))
        return found


CHANGES = [
    # zone, a date within a day of a clock change
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Europe/London", "2026-03-29"),
    ("Europe/London", "2026-10-25"),
    ("Europe/Dublin", "2026-10-25"),  # summer time is standard there, winter time the exception
    ("Australia/Lord_Howe", "2026-04-05"),  # half an hour
    ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Santiago", "2026-04-05"),  # midnight occurs twice
    ("America/Santiago", "2026-09-06"),  # midnight is skipped
    ("Africa/Cairo", "2026-04-24"),
    ("Africa/Cairo", "2026-10-30"),
    ("Antarctica/Troll", "2026-03-29"),  # two hours
    ("Antarctica/Troll", "2026-10-25"),
    ("America/St_Johns", "2006-04-02"),  # at one minute past midnight
    ("America/St_Johns", "2006-10-29"),
    ("Africa/Casablanca", "2026-02-15"),
    ("Africa/Casablanca", "2026-03-22"),
    ("Asia/Pyongyang", "2018-05-05"),
    ("America/Caracas", "2016-05-01"),
    ("Pacific/Apia", "2011-12-30"),  # a day is skipped
    ("Pacific/Kwajalein", "1993-08-21"),
    ("Pacific/Kwajalein", "1969-10-01"),  # a day occurs twice
    ("Asia/Manila", "1844-12-31"),
    ("America/Sitka", "1867-10-19"),
    ("Africa/Monrovia", "1972-01-07"),  # 44 minutes and 30 seconds
    ("Europe/Paris", "1911-03-11"),  # 9 minutes and 21 seconds back
    ("Asia/Kolkata", "1945-10-15"),
    ("Europe/London", "1941-05-04"),  # to double summer time
    ("UTC", "2026-03-29"),
]


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = (
        st.tuples(number, number)
        .filter(lambda ends: ends[0] < ends[1])
        .map(lambda ends: f"{ends[0]}-{ends[1]}")
    )
    stepped = st.builds("{}/{}".format, ranges, st.integers(1, high - low + 1))
    return st.lists(number.map(str) | ranges | stepped, min_size=1, max_size=3).map(",".join)


def stars(high: int) -> st.SearchStrategy[str]:
    return st.just("*") | st.integers(1, high).map("*/{}".format)


DAYS = st.integers(1, 31).map("{}W".format) | st.integers(1, 30).map("L-{}".format) | st.just("LW")
EXPRESSIONS = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["0", "30", "15,45", "0-59", "5/20"]) | stars(60) | numbers(0, 59),
    st.sampled_from(["0", "1", "2", "3", "23", "0-23"]) | stars(24) | numbers(0, 23),
    st.sampled_from(["*", "*", "*", "?", "L", "1,L", "L,2-31"]) | stars(31) | numbers(1, 31) | DAYS,
    st.sampled_from(["*", "*", "*", "feb-may", "SEP-dec,1"]) | stars(12) | numbers(1, 12),
    st.sampled_from(["*", "*", "*", "?", "sat-sun", "fri", "0-7", "5-7/2", "7", "0#1", "L0", "L6"])
    | stars(7)
    | numbers(0, 6),
)


@settings(max_examples=75)
@given(
    text=EXPRESSIONS,
    place=st.sampled_from(CHANGES),
    year=st.none() | st.integers(1900, 2060),
    early=st.integers(0, 2 * 1440),
    length=st.integers(0, 3 * 1440),
    seconds=st.sampled_from([0, 0, 1, 59]),
)
@example("30 23 * * *", ("America/Santiago", "2026-04-05"), None, 1440, 2880, 0)
@example("0,30 0-3 * * *", ("Antarctica/Troll", "2026-03-29"), None, 1440, 2880, 0)
@example("0 12 31 * *", ("America/Sitka", "1867-10-19"), None, 2000, 2880, 0)
@example("30 2 * * *", ("Pacific/Kwajalein", "1969-10-01"), None, 2000, 4000, 0)
@example("* * * * *", ("Africa/Monrovia", "1972-01-07"), None, 60, 120, 30)
def test_slots_are_those_of_a_walk_over_the_wall_clock_minute_by_minute(
    text, place, year, early, length, seconds
):
    # given an expression, and a span near a clock change or on the same date of another year
    zone = ZoneInfo(place[0])
    changed_on = datetime.fromisoformat(place[1]).replace(tzinfo=UTC)
    try:
        cron = parse_cron(text)
    except CronError as error:
        assume(
            "never fires" not in error.message and "together with day-of-week" not in error.message
        )
        raise
    after = (
        changed_on.replace(year=year or changed_on.year)
        - early * MINUTE
        + timedelta(seconds=seconds)
    )
    until = after + length * MINUTE

    # when each function is called
    found = list(slots(cron, zone, after, until))

    # then all agree with the walk
    expected = Reference(text).fires(walk(zone, after, until))
    assert [(slot.at, slot.nominal) for slot in found] == expected
    total = span(cron, zone, after, until)
    newest = newest_slot(cron, zone, after, until)
    if found:
        assert total is not None
        assert (total.first, total.last, total.count) == (found[0].at, found[-1].at, len(found))
        assert newest == found[-1]
        assert next_slot(cron, zone, after) == found[0]
    else:
        assert total is None
        assert newest is None
        coming = next_slot(cron, zone, after)
        assert coming is None or coming.at > until
    for tick in walk(zone, after, until)[:: max(1, length // 40)]:
        expected_here = any(at == tick.at for at, _ in expected)
        assert bool(mismatch(cron, zone, tick.at)) is not expected_here


@settings(max_examples=30)
@given(
    texts=st.lists(EXPRESSIONS, min_size=1, max_size=3),
    is_list=st.booleans(),
    place=st.sampled_from(CHANGES),
    early=st.integers(0, 2 * 1440),
    length=st.integers(0, 3 * 1440),
    bounds=st.tuples(*[st.none() | st.integers(-3, 3)] * 2),
    weeks=st.tuples(st.sampled_from([1, 1, 2, 2, 3, 52]), st.integers(0, 120)),
)
@example(
    texts=["30 23 * * *", "0 0 * * *"],
    is_list=True,
    place=("America/Santiago", "2026-09-06"),
    early=1440,
    length=2880,
    bounds=(0, 0),
    weeks=(1, 0),
)
def test_several_expressions_between_two_dates_have_the_slots_of_each_on_these_dates(
    texts, is_list, place, early, length, bounds, weeks
):
    texts = texts if is_list else texts[:1]
    zone, changed_on = ZoneInfo(place[0]), date.fromisoformat(place[1])
    first, last = (None if days is None else changed_on + timedelta(days=days) for days in bounds)
    every, back = weeks if first else (1, 0)
    first = first and first - timedelta(weeks=back)
    assume(not (first and last and last < first))
    try:
        cron = combine([parse_cron(text) for text in texts], is_list, first, last, every)
    except CronError:
        assume(False)
    after = datetime.fromisoformat(place[1]).replace(tzinfo=UTC) - early * MINUTE
    until = after + length * MINUTE

    found = list(slots(cron, zone, after, until))

    # the same instant may have other wall times in two expressions, when the clock goes forward
    ticks = walk(zone, after, until)
    expected: dict[datetime, set[datetime]] = {}
    for text in texts:
        reference = Reference(text)
        on_date = reference.on_date
        reference.on_date = lambda day, matches=on_date: (  # type: ignore[assignment]
            matches(day)
            and (not first or first <= day)
            and (not last or day <= last)
            and (not first or weeks_between(first, day) % every == 0)
        )
        for at, wall in reference.fires(ticks):
            expected.setdefault(at, set()).add(wall)
    assert [slot.at for slot in found] == sorted(expected)
    assert all(slot.nominal in expected[slot.at] for slot in found)
    assert list(slot_minutes(cron, zone, after, until)) == [
        (at - EPOCH) // MINUTE for at in sorted(expected)
    ]
    total, newest, coming = (
        span(cron, zone, after, until),
        newest_slot(cron, zone, after, until),
        next_slot(cron, zone, after),
    )
    if found:
        assert total is not None
        assert (total.first, total.last, total.count) == (found[0].at, found[-1].at, len(found))
        assert (newest, coming) == (found[-1], found[0])
    else:
        assert (total, newest) == (None, None)
        assert coming is None or coming.at > until
    for tick in ticks[:: max(1, length // 40)]:
        assert bool(mismatch(cron, zone, tick.at)) is not (tick.at in expected)
    # it is stored as text
    assert parse_schedule(cron.source) == cron
    assert written(cron) == texts


@settings(max_examples=15)
@given(
    texts=st.lists(EXPRESSIONS, min_size=1, max_size=3),
    every=st.integers(1, 4),
    first=st.dates(date(2026, 11, 1), date(2027, 1, 31)),
)
def test_no_two_slots_of_several_expressions_are_closer_than_the_smallest_gap(texts, every, first):
    try:
        cron = combine([parse_cron(text) for text in texts], True, first, None, every)
    except CronError:
        assume(False)
    minutes = list(
        slot_minutes(
            cron,
            ZoneInfo("UTC"),
            datetime(2027, 1, 1, tzinfo=UTC),
            datetime(2027, 3, 1, tzinfo=UTC),
        )
    )
    gaps = [(b - a) * MINUTE for a, b in pairwise(minutes)]
    assert min(gaps, default=timedelta.max) >= smallest_gap(cron)


def test_the_smallest_gap_of_several_expressions_is_that_of_two_dates():
    apart = {
        ("0 9 * * 1-5", "0 12 * * 6"): timedelta(hours=24),
        ("0 9 * * 1-5", "0 12 * * 1"): timedelta(hours=3),
        ("0 23 * * 1", "0 1 * * 2"): timedelta(hours=2),
        ("0 9 * * *", "0 9 * * *"): timedelta(days=1),
    }
    assert {
        texts: smallest_gap(combine(list(map(parse_cron, texts)), True)) for texts in apart
    } == apart


def test_the_smallest_gap_of_weeks_that_count_is_over_the_weeks_between():
    anchor = date(2026, 12, 7)
    apart = {
        ("0 9 * * mon", 2): timedelta(days=14),
        ("0 9 * * mon", 52): timedelta(days=364),
        ("0 9 * * sun,mon", 2): timedelta(days=6),
        ("0 9 * * 1-5", 3): timedelta(days=1),
    }
    assert {
        (text, every): smallest_gap(combine([parse_cron(text)], False, anchor, None, every))
        for text, every in apart
    } == apart


def test_every_second_week_counts_weeks_over_the_end_of_a_year_of_53():
    cron = parse_schedule("0 9 * * mon,sun every 2w from 2026-12-09")
    found = slots(cron, ZoneInfo("Pacific/Auckland"), utc("2026-12-01"), utc("2027-01-24"))

    # the Monday before starts_on is in its week, and has no slot; a week ends on Sunday
    assert [f"{slot.nominal:%m-%d}" for slot in found] == [
        "12-13",
        "12-21",
        "12-27",
        "01-04",
        "01-10",
        "01-18",
        "01-24",
    ]


@pytest.mark.parametrize(
    "local, reason",
    [
        ("2026-12-14 09:00", "off week, the next is 2026-12-21"),
        ("2026-12-15 09:00", "day-of-week tue is not in mon; off week, the next is 2026-12-21"),
        ("2026-11-30 09:00", "2026-11-30 is before starts_on, 2026-12-07"),
        ("2027-01-04 09:00", "2027-01-04 is after ends_on, 2027-01-03"),
        ("2027-01-11 09:00", "2027-01-11 is after ends_on, 2027-01-03; off week"),
    ],
)
def test_an_off_week_is_named_with_the_next_date(local, reason):
    cron = parse_schedule("0 9 * * mon every 2w from 2026-12-07 until 2027-01-03")

    assert mismatch(cron, ZoneInfo("UTC"), utc(local)) == reason


def test_a_job_that_has_ended_or_starts_in_years_is_looked_up_at_once():
    ended = combine([parse_cron("* * * * *")], False, None, date(2020, 1, 1))
    later = combine([parse_cron("0 9 * * *")], False, date(2060, 1, 1), None)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert next_slot(ended, ZoneInfo("Europe/Berlin"), now) is None
    assert next_slot(later, ZoneInfo("UTC"), now).at == datetime(2060, 1, 1, 9, tzinfo=UTC)


@settings(max_examples=30)
@given(text=EXPRESSIONS, place=st.sampled_from(CHANGES), cut=st.integers(0, 5 * 1440))
def test_a_span_cut_in_two_has_the_same_slots_and_two_spans_never_share_one(text, place, cut):
    try:
        cron = parse_cron(text)
    except CronError:
        assume(False)
    zone = ZoneInfo(place[0])
    start = datetime.fromisoformat(place[1]).replace(tzinfo=UTC) - 2 * DAY
    middle, end = start + cut * MINUTE, start + 5 * DAY

    whole = list(slots(cron, zone, start, end))
    parts = [*slots(cron, zone, start, middle), *slots(cron, zone, middle, end)]

    assert parts == whole
    assert all(earlier.at < later.at for earlier, later in pairwise(whole))


@pytest.mark.story
def test_a_whole_year_agrees_with_the_walk():
    after, until = utc("2026-01-01"), utc("2027-01-01")
    zone = ZoneInfo("Australia/Lord_Howe")
    ticks = walk(zone, after, until)

    for text in ["30 2 * * *", "*/7 1-3 * * *", "0,30 1,2 * * sun", "0 0 L * *"]:
        expected = Reference(text).fires(ticks)
        found = slots(parse_cron(text), zone, after, until)
        assert [(slot.at, slot.nominal) for slot in found] == expected
        assert span(parse_cron(text), zone, after, until).count == len(expected)


# Facts from the tests and documents of other implementations, where their rule is the same as ours. Times are local
# in the left column and UTC in the right.
PUBLISHED = [
    # cuu508/cronsim, tests/test_cronsim.py: Europe/Riga, 2021-03-28 03:00 -> 04:00
    ("cronsim", "0 * * * *", "Europe/Riga", "2021-03-27 23:30", ["03-28 00:00", "03-28 01:00"]),
    (
        "cronsim",
        "*/30 * * * *",
        "Europe/Riga",
        "2021-03-28 00:10",
        ["03-28 00:30", "03-28 01:00", "03-28 01:30"],
    ),
    ("cronsim", "*/15 * * * *", "Europe/Riga", "2021-03-28 00:40", ["03-28 00:45", "03-28 01:00"]),
    (
        "cronsim",
        "0 */2 * * *",
        "Europe/Riga",
        "2021-03-27 23:30",
        ["03-28 00:00", "03-28 01:00", "03-28 03:00"],
    ),
    ("cronsim", "30 */2 * * *", "Europe/Riga", "2021-03-27 23:30", ["03-28 00:30", "03-28 01:30"]),
    (
        "cronsim",
        "0 1,2,3,4,5 * * *",
        "Europe/Riga",
        "2021-03-27 23:30",
        ["03-28 00:00", "03-28 01:00", "03-28 02:00"],
    ),
    (
        "cronsim",
        "30 1,2,3,4,5 * * *",
        "Europe/Riga",
        "2021-03-27 23:30",
        ["03-28 00:30", "03-28 01:00", "03-28 01:30"],
    ),
    ("cronsim", "0 2 * * *", "Europe/Riga", "2021-03-27 23:30", ["03-28 00:00", "03-28 23:00"]),
    (
        "cronsim",
        "0 3 * * *",
        "Europe/Riga",
        "2021-03-26 23:30",
        ["03-27 01:00", "03-28 01:00", "03-29 00:00"],
    ),
    (
        "cronsim",
        "15 3 * * *",
        "Europe/Riga",
        "2021-03-26 22:00",
        ["03-27 01:15", "03-28 01:00", "03-29 00:15"],
    ),
    (
        "cronsim",
        "0 1-5 * * *",
        "Europe/Riga",
        "2021-03-27 23:30",
        ["03-28 00:00", "03-28 01:00", "03-28 02:00"],
    ),
    ("cronsim", "* 1-6 * * *", "Europe/Riga", "2021-03-28 00:58", ["03-28 00:59", "03-28 01:00"]),
    # and 2021-10-31 04:00 -> 03:00
    (
        "cronsim",
        "0 * * * *",
        "Europe/Riga",
        "2021-10-30 22:30",
        ["10-30 23:00", "10-31 00:00", "10-31 01:00"],
    ),
    (
        "cronsim",
        "0 */2 * * *",
        "Europe/Riga",
        "2021-10-30 22:30",
        ["10-30 23:00", "10-31 02:00", "10-31 04:00"],
    ),
    (
        "cronsim",
        "0 */3 * * *",
        "Europe/Riga",
        "2021-10-30 22:30",
        ["10-31 00:00", "10-31 01:00", "10-31 04:00"],
    ),
    (
        "cronsim",
        "0 1,2,3,4,5 * * *",
        "Europe/Riga",
        "2021-10-30 22:30",
        ["10-30 23:00", "10-31 00:00", "10-31 02:00"],
    ),
    (
        "cronsim",
        "30 1,2,3,4,5 * * *",
        "Europe/Riga",
        "2021-10-30 22:30",
        ["10-30 23:30", "10-31 00:30", "10-31 02:30"],
    ),
    ("cronsim", "0 3 * * *", "Europe/Riga", "2021-10-30 22:30", ["10-31 00:00", "11-01 01:00"]),
    (
        "cronsim",
        "15 3 * * *",
        "Europe/Riga",
        "2021-10-29 21:00",
        ["10-30 00:15", "10-31 00:15", "11-01 01:15"],
    ),
    (
        "cronsim",
        "* * * * *",
        "Europe/Riga",
        "2021-10-31 00:58",
        ["10-31 00:59", "10-31 01:00", "10-31 01:01"],
    ),
    ("cronsim", "1 1 * * 1#2", "UTC", "2020-01-01 00:00", ["01-13 01:01"]),
    (
        "cronsim",
        "1 1 * * */3",
        "UTC",
        "2020-01-01 00:00",
        ["01-01 01:01", "01-04 01:01", "01-05 01:01", "01-08 01:01"],
    ),
    # HangfireIO/Cronos, tests/Cronos.Tests: Eastern time, 2016-03-13 02:00 -> 03:00, 2016-11-06 02:00 -> 01:00
    ("Cronos", "30 2 * * *", "America/New_York", "2016-03-12 07:30", ["03-13 07:00"]),
    ("Cronos", "0,30 2 13 3 *", "America/New_York", "2016-03-13 06:45", ["03-13 07:00"]),
    ("Cronos", "30 0-23/2 * * *", "America/New_York", "2016-03-13 05:30", ["03-13 07:00"]),
    ("Cronos", "0 0/2 * * *", "America/New_York", "2016-11-06 04:30", ["11-06 07:00"]),
    (
        "Cronos",
        "30 * * * *",
        "America/New_York",
        "2016-11-06 05:30",
        ["11-06 06:30", "11-06 07:30"],
    ),
    (
        "Cronos",
        "*/30 1 * * *",
        "America/New_York",
        "2016-11-06 05:00",
        ["11-06 05:30", "11-06 06:00", "11-06 06:30"],
    ),
    # dagster, schedule tests: Europe/Berlin, 2023-03-26 02:00 -> 03:00
    (
        "dagster",
        "0 2 * * *",
        "Europe/Berlin",
        "2023-03-25 00:00",
        ["03-25 01:00", "03-26 01:00", "03-27 00:00"],
    ),
    # Debian's cron(8), notes on clock changes, with the example that Healthchecks.io measured: 01:00 <-> 02:00
    (
        "Debian cron",
        "30 1 * * *",
        "Europe/London",
        "2026-03-28 12:00",
        ["03-29 01:00", "03-30 00:30"],
    ),
    (
        "Debian cron",
        "30 1 * * *",
        "Europe/London",
        "2026-10-24 12:00",
        ["10-25 00:30", "10-26 01:30"],
    ),
    (
        "Debian cron",
        "*/30 * * * *",
        "Europe/London",
        "2026-03-29 00:15",
        ["03-29 00:30", "03-29 01:00"],
    ),
]


@pytest.mark.parametrize("source, text, zone, after, expected", PUBLISHED)
def test_published_cases_of_other_implementations(source, text, zone, after, expected):
    found = slots(parse_cron(text), ZoneInfo(zone), utc(after), utc(after) + 30 * DAY)

    assert [f"{next(found).at:%m-%d %H:%M}" for _ in expected] == expected, source


RARE_DATES = [
    (
        "America/New_York",
        "2026-03-08",
        "0 1-4 * * *",
        "2026-03-08T06:00Z 2026-03-08T07:00Z 2026-03-08T08:00Z",
        False,
    ),
    ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", "2026-04-04T14:45Z", True),
    (
        "Australia/Lord_Howe",
        "2026-04-05",
        "*/15 1 * * *",
        "2026-04-04T14:00Z 2026-04-04T14:15Z 2026-04-04T14:30Z "
        "2026-04-04T14:45Z 2026-04-04T15:00Z 2026-04-04T15:15Z",
        False,
    ),
    ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", "2026-10-03T15:30Z", True),
    ("Australia/Lord_Howe", "2026-10-04", "*/20 2 * * *", "2026-10-03T15:40Z", False),
    ("America/Santiago", "2026-04-04", "30 23 * * *", "2026-04-05T02:30Z", True),
    (
        "America/Santiago",
        "2026-04-04",
        "*/30 23 * * *",
        "2026-04-05T02:00Z 2026-04-05T02:30Z 2026-04-05T03:00Z 2026-04-05T03:30Z",
        False,
    ),
    ("America/Santiago", "2026-09-06", "0 0 * * *", "2026-09-06T04:00Z", True),
    ("America/Santiago", "2026-09-06", "*/30 0 * * *", "", False),
    ("Africa/Cairo", "2026-04-24", "30 0 * * *", "2026-04-23T22:00Z", True),
    ("Africa/Cairo", "2026-04-24", "0 0,1 * * *", "2026-04-23T22:00Z", False),
    ("Africa/Cairo", "2026-10-29", "30 23 * * *", "2026-10-29T20:30Z", True),
    ("Pacific/Apia", "2011-12-29", "0 2 * * *", "2011-12-29T12:00Z", True),
    ("Pacific/Apia", "2011-12-30", "* * * * *", "", False),
    ("Pacific/Apia", "2011-12-31", "0 2 * * *", "2011-12-30T12:00Z", True),
]
"""Zone, local date, expression, slots, and whether the key has the date; else it has the minute."""


def table_of_real_dates() -> list[tuple[str, str, str, list[str], list[str]]]:
    """Return the rows of the page: zone, date, expression, slots and keys."""
    lines = DOCUMENT.read_text().splitlines()
    start = lines.index("| zone | date | cron | slots (UTC) | keys of job `x` | why |")
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.replace("`", "").replace("—", "").split("|")[1:-1]]
        rows.append((*cells[:3], *(re.findall(r"[^, ]+", cell) for cell in cells[3:5])))
    return rows


def rare_dates() -> list[tuple[str, str, str, list[str], list[str]]]:
    return [
        (
            zone,
            day,
            cron,
            text.split(),
            [f"x:{day}"] if is_date else [f"x:{one}" for one in text.split()],
        )
        for zone, day, cron, text, is_date in RARE_DATES
    ]


@pytest.mark.parametrize(
    "zone, day, cron, expected, keys",
    [*table_of_real_dates(), *rare_dates()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_slots_and_keys_of_real_dates_are_those_of_the_page(zone, day, cron, expected, keys):
    noon = datetime.fromisoformat(day).replace(tzinfo=UTC) + DAY / 2

    found = [
        slot
        for slot in slots(parse_cron(cron), ZoneInfo(zone), noon - 2 * DAY, noon + 2 * DAY)
        if slot.at.astimezone(ZoneInfo(zone)).date().isoformat() == day
    ]

    assert [f"{slot.at:%Y-%m-%dT%H:%MZ}" for slot in found] == expected
    assert [slot_key("x", parse_cron(cron), slot) for slot in found] == keys


def test_the_left_end_is_open_and_the_right_end_is_closed():
    cron, zone = parse_cron("0 * * * *"), ZoneInfo("UTC")
    ten, eleven = utc("2026-01-05 10:00"), utc("2026-01-05 11:00")

    assert [slot.at for slot in slots(cron, zone, ten, eleven)] == [eleven]
    assert list(slots(cron, zone, ten, ten)) == []
    assert list(slots(cron, zone, eleven, ten)) == []
    assert [slot.at for slot in slots(cron, zone, ten - timedelta(microseconds=1), ten)] == [ten]
    assert newest_slot(cron, zone, ten, eleven - timedelta(microseconds=1)) is None
    assert span(cron, zone, eleven, ten) is None


def test_the_ends_may_be_in_any_zone_and_must_be_aware():
    cron, zone = parse_cron("30 1 * * *"), NEW_YORK
    after = datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK)

    assert next_slot(cron, zone, after) == Slot(
        utc("2026-11-02 06:30"), datetime(2026, 11, 2, 1, 30), ""
    )
    with pytest.raises(TypeError):
        next_slot(cron, zone, datetime(2026, 11, 1))


def test_the_effect_of_a_clock_change_is_described_in_a_note():
    def notes(text: str, after: str, zone: str = "America/New_York") -> list[str]:
        found = slots(parse_cron(text), ZoneInfo(zone), utc(after), utc(after) + DAY)
        return [slot.note for slot in found if slot.note]

    assert notes("30 2 * * *", "2026-03-08") == [
        "02:30 does not exist on 2026-03-08 (clocks go forward): runs at 03:00"
    ]
    assert notes("30 23 * * *", "2026-03-28 12:00", "America/Scoresbysund") == [
        "23:30 does not exist on 2026-03-28 (clocks go forward): runs at 2026-03-29 00:00"
    ]
    assert notes("30 1 * * *", "2026-11-01") == ["first pass"]
    assert notes("*/30 * * * *", "2026-11-01") == [
        "first pass",
        "first pass",
        "second pass",
        "second pass",
    ]
    assert notes("0 3 * * *", "2026-03-08") == notes("0 3 * * *", "2026-11-01") == []


def test_skipped_times_that_move_to_an_existing_slot_are_one_slot():
    [slot] = slots(
        parse_cron("0,30 2,3 8 3 *"), NEW_YORK, utc("2026-03-08 00:00"), utc("2026-03-08 07:15")
    )

    assert (slot.at, slot.nominal, slot.note) == (
        utc("2026-03-08 07:00"),
        datetime(2026, 3, 8, 3, 0),
        "",
    )


def test_mismatch_names_the_field_that_excludes_a_time():
    cron = parse_cron("30 1 * * *")

    assert mismatch(cron, NEW_YORK, utc("2026-11-01 05:30")) == ""
    assert mismatch(cron, NEW_YORK, utc("2026-11-01 06:30")) == (
        "01:30 happens twice on 2026-11-01: the slot is its first pass"
    )
    assert mismatch(cron, NEW_YORK, utc("2026-11-01 07:45:10")) == (
        "02:45:10 is not a whole minute; minute 45 is not in 30; hour 2 is not in 1"
    )
    assert mismatch(parse_cron("30 2 * * *"), NEW_YORK, utc("2026-03-08 07:00")) == ""


def test_an_expression_that_fires_every_few_years_finds_its_next_slot():
    leap_day = parse_cron("0 0 29 2 *")

    assert next_slot(leap_day, ZoneInfo("UTC"), utc("2096-03-01")).at == utc("2104-02-29")
    assert newest_slot(leap_day, ZoneInfo("UTC"), utc("1990-01-01"), utc("2104-02-28")).at == utc(
        "2096-02-29"
    )


def test_a_century_of_minutes_is_counted_without_being_enumerated():
    found = span(parse_cron("* * * * *"), NEW_YORK, utc("1970-01-01"), utc("2070-01-01"))

    assert found is not None
    assert found.count == (utc("2070-01-01") - utc("1970-01-01")) // MINUTE


def test_the_minimum_and_maximum_datetime_raise_no_error():
    cron = parse_cron("0 0 1 1 *")
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

    assert next_slot(cron, NEW_YORK, first).at.year == 2
    assert next_slot(cron, NEW_YORK, last) is None
    assert newest_slot(cron, NEW_YORK, first, last).at.year == 9997
    assert list(slots(cron, NEW_YORK, last, first)) == []


@pytest.mark.parametrize(
    "text, zone, after, until, expected",
    [
        ("30 1 * * *", "America/New_York", "2026-11-01", "2026-11-02", ["11-01 05:30"]),
        ("30 2 * * *", "America/New_York", "2026-03-08", "2026-03-09", ["03-08 07:00"]),
        (
            "0 * * * *",
            "America/New_York",
            "2026-11-01 04:00",
            "2026-11-01 06:00",
            ["11-01 05:00", "11-01 06:00"],
        ),
        (
            "0 2 * * *",
            "Pacific/Apia",
            "2011-12-28 20:00",
            "2011-12-31 20:00",
            ["12-29 12:00", "12-30 12:00", "12-31 12:00"],
        ),
    ],
)
def test_literal_cases(text, zone, after, until, expected):
    assert fires(text, zone, after, until) == expected
