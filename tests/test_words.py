"""Expressions in words: whatever is shown is read back by an independent reader, which must find the same slots."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamlsched.errors import CronError
from yamlsched.timetable import words
from yamlsched.timetable.cron import Cron, combine, matching_days, parse_cron

MINUTES = (
    *(
        "*",
        "*/1",
        "*/5",
        "*/7",
        "*/35",
        "*/30",
        "0",
        "7",
        "07",
        "0,30",
        "1,2,3",
        "5-10",
        "0-59",
        "5-10,20",
    ),
    *("10-20/5", "5-55/10", "3/15", "*/20,5"),
)
HOURS = (
    *(
        "*",
        "*/1",
        "*/5",
        "*/6",
        "*/7",
        "*/12",
        "2",
        "02",
        "2,14",
        "1,2,3",
        "8-18",
        "0-23",
        "22-23",
        "8-10,14",
    ),
    *("8-18/2", "9-16/3", "1/6", "*/6,1"),
)
MONTH_DAYS = (
    *(
        "*",
        "?",
        "1",
        "01",
        "31",
        "1,15",
        "1-7",
        "1-7,15",
        "28-31",
        "1-31",
        "L",
        "l",
        "1,L",
        "LW",
        "1W",
        "15w",
        "31W",
        "L-1",
        "L-3",
        "L-30",
        "*/1",
        "*/2",
        "*/10",
    ),
    *("1-31/2", "5/3"),
)
MONTHS = (
    "*",
    "1",
    "02",
    "jan",
    "JUL",
    "1,7",
    "jan,jul,oct",
    "1-3",
    "jan-mar",
    "1-3,7",
    "*/3",
    "*/5",
    "2/2",
    "1-12",
)
WEEKDAYS = (
    *(
        "*",
        "?",
        "0",
        "7",
        "sun",
        "MON",
        "1-5",
        "mon-fri",
        "5-7",
        "fri-sun",
        "0-6",
        "1-7",
        "0,6",
        "sat,sun",
        "1-3,5",
    ),
    *(
        "mon,wed-fri",
        "1#1",
        "mon#3",
        "FRI#5",
        "7#2",
        "0#1",
        "L5",
        "l1",
        "L7",
        "1#1,1#3",
        "L5,L1",
        "*/1",
        "*/2",
        "1/2",
    ),
)
NAMES = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
MONTH_NAMES = [f"{date(2026, month, 1):%B}" for month in range(1, 13)]
ORDINALS = ["first", "second", "third", "fourth", "fifth"]

LIST = r"{0}(?:(?:, {0})*,? and {0})?"
NUMBERS = LIST.format(r"\d+(?: through \d+)?")
CLOCKS = LIST.format(r"\d\d:\d\d")
DAYS = LIST.format(rf"(?:{'|'.join(NAMES)})(?: through (?:{'|'.join(NAMES)}))?")
IN_MONTHS = LIST.format(rf"(?:{'|'.join(MONTH_NAMES)})(?: through (?:{'|'.join(MONTH_NAMES)}))?")
SENTENCE = re.compile(
    rf"(?:At (?P<clocks>{CLOCKS})|Every minute between (?P<start>\d\d:\d\d) and (?P<end>\d\d:\d\d)|(?:"
    rf"(?P<minute>Every minute)|(?P<hour>Every hour)|Every (?P<hours>\d+) hours"
    rf"|At (?P<at>{NUMBERS}) minutes past the hour"
    r"|Every (?P<step>\d+) minutes(?:, minutes (?P<low>\d+) through (?P<high>\d+) past the hour)?"
    r"|Minutes (?P<first>\d+) through (?P<last>\d+) past the hour)"
    r"(?:, every (?P<every>\d+) hours)?(?:, between (?P<begin>\d\d):00 and (?P<until>\d\d):59)?)"
    rf"(?P<daily>, every day)?(?:, on day (?P<days>{NUMBERS}) of the month|, between day (?P<from>\d+) and (?P<to>\d+) "
    rf"of the month|, (?P<last_day>on the last day of the month)|, (?P<back>\d+) days before the last day of the month"
    r"|, on the (?:weekday nearest day (?P<near>\d+)|(?P<ends>first|last) weekday) of the month"
    rf"|, on the (?P<nth>{'|'.join([*ORDINALS, 'last'])}) "
    rf"(?P<nth_day>{'|'.join(NAMES)}) of the month|(?:, only on|,) (?P<weekdays>{DAYS}))?"
    rf"(?:(?:, only in|,) (?P<months>{IN_MONTHS}))?"
)


def numbers(text: str, names: list[str] | None = None, size: int = 0) -> set[int]:
    """Return what a list in words has; ranges of ``names`` may go over the end."""
    found = set()
    for item in re.split(r",? and |, ", text):
        low, _, high = item.partition(" through ")
        ends = [names.index(end) if names else int(end) for end in (low, high or low)]
        if names and ends[1] < ends[0]:
            ends[1] += size
        found |= {each % size if size else each for each in range(ends[0], ends[1] + 1)}
    return found


def read(sentence: str) -> tuple[set[int], object]:
    """Return the minutes of a day, and a function from a date to whether it is meant, that the words stand for."""
    found = SENTENCE.fullmatch(sentence)
    assert found, f"not understood: {sentence}"
    part = found.groupdict()

    def clock(text: str) -> int:
        return int(text[:2]) * 60 + int(text[3:])

    if part["clocks"]:
        times = {clock(each) for each in re.findall(r"\d\d:\d\d", part["clocks"])}
    elif part["start"]:
        times = set(range(clock(part["start"]), clock(part["end"]) + 1))
    else:
        low, high = int(part["begin"] or 0), int(part["until"] or 23)
        hours = set(range(low, high + 1, int(part["every"] or part["hours"] or 1)))
        if part["hour"] or part["hours"]:
            minutes = {0}
        elif part["at"]:
            minutes = numbers(part["at"])
        elif part["first"]:
            minutes = set(range(int(part["first"]), int(part["last"]) + 1))
        else:
            minutes = set(
                range(int(part["low"] or 0), int(part["high"] or 59) + 1, int(part["step"] or 1))
            )
        times = {hour * 60 + minute for hour in hours for minute in minutes}

    def is_meant(day: date) -> bool:
        weekday = day.isoweekday() % 7
        if part["months"] and day.month - 1 not in numbers(part["months"], MONTH_NAMES, 12):
            return False
        if part["days"]:
            return day.day in numbers(part["days"])
        if part["from"]:
            return int(part["from"]) <= day.day <= int(part["to"])
        if part["last_day"]:
            return (day + timedelta(days=1)).day == 1
        if part["back"]:
            return (day + timedelta(days=int(part["back"]) + 1)).day == 1
        length = monthrange(day.year, day.month)[1]
        if near := part["near"] or {"first": "1", "last": f"{length}"}.get(part["ends"]):
            weekdays = [
                number for number in range(1, length + 1) if day.replace(day=number).weekday() < 5
            ]
            nearest = min(weekdays, key=lambda number: abs(number - int(near)))
            return int(near) <= length and day.day == nearest
        if part["nth"]:
            is_nth = (day + timedelta(days=7)).month != day.month
            if part["nth"] != "last":
                is_nth = (day.day + 6) // 7 == ORDINALS.index(part["nth"]) + 1
            return is_nth and weekday == NAMES.index(part["nth_day"])
        return not part["weekdays"] or weekday in numbers(part["weekdays"], NAMES, 7)

    return times, is_meant


def check(cron: Cron) -> bool:
    """Return whether there are words for ``cron``; they must have its slots."""
    if not (sentence := words.in_words(cron, "UTC")):
        return False
    assert sentence.endswith(" (UTC)")
    times, is_meant = read(sentence.removesuffix(" (UTC)"))
    assert times == set(cron.times), (cron.expression, sentence)
    day = date(2027, 1, 1)
    while day < date(2029, 1, 1):
        matches = day.day in matching_days(cron.date_fields, day.year, day.month)
        assert is_meant(day) is matches, (cron.expression, sentence, day)  # type: ignore[operator]
        day += timedelta(days=1)
    return True


def parse(expression: str) -> Cron | None:
    try:
        return parse_cron(expression)
    except CronError:
        return None


def test_all_times_of_day_in_words_are_those_of_the_expression() -> None:
    crons = [parse(f"{minute} {hour} 1 1 *") for minute, hour in product(MINUTES, HOURS)]

    described = [cron for cron in crons if cron and check(cron)]

    assert len(described) > len(MINUTES) * len(HOURS) / 3


def test_all_dates_in_words_are_those_of_the_expression() -> None:
    fields = [
        *product(MONTH_DAYS, MONTHS[:4], WEEKDAYS[:7]),
        *product(MONTH_DAYS[:2], MONTHS, WEEKDAYS),
    ]
    crons = [parse(f"30 9 {' '.join(each)}") for each in fields]

    described = [cron for cron in crons if cron and check(cron)]

    assert len(described) > len(fields) / 4


ITEM = st.sampled_from
NUMBER = st.integers(0, 59).map(str)
RANGE = st.tuples(NUMBER, NUMBER).map("-".join)
STEP = st.tuples(st.one_of(st.just("*"), RANGE, NUMBER), st.integers(1, 59).map(str)).map("/".join)
FIELD = st.lists(st.one_of(NUMBER, RANGE, STEP), min_size=1, max_size=3).map(",".join)


@given(
    st.tuples(
        FIELD | ITEM(MINUTES),
        FIELD | ITEM(HOURS),
        FIELD | ITEM(MONTH_DAYS),
        FIELD | ITEM(MONTHS),
        FIELD | ITEM(WEEKDAYS),
    )
)
def test_no_expression_has_words_that_are_not_true(fields: tuple[str, ...]) -> None:
    cron = parse(" ".join(fields))
    if cron:
        check(cron)


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("@hourly", "Every hour (Asia/Tokyo)"),
        ("@daily", "At 00:00, every day (Asia/Tokyo)"),
        ("*/15 * * * *", "Every 15 minutes (Asia/Tokyo)"),
        ("0 9 * * mon-fri", "At 09:00, Monday through Friday (Asia/Tokyo)"),
        ("0 9,17 1 * *", "At 09:00 and 17:00, on day 1 of the month (Asia/Tokyo)"),
        (
            "*/10 8-18 * * 1-5",
            "Every 10 minutes, between 08:00 and 18:59, Monday through Friday (Asia/Tokyo)",
        ),
        ("0 6 l * *", "At 06:00, on the last day of the month (Asia/Tokyo)"),
        ("0 6 lw * *", "At 06:00, on the last weekday of the month (Asia/Tokyo)"),
        ("0 6 L-3 * *", "At 06:00, 3 days before the last day of the month (Asia/Tokyo)"),
        ("0 6 L-1 * *", ""),
        ("0 6 * * l5", "At 06:00, on the last Friday of the month (Asia/Tokyo)"),
    ],
)
def test_words_are_short_and_have_the_time_zone(
    expression: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")

    assert words.in_words(parse_cron(expression), "Asia/Tokyo") == expected


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "*/35 * * * *",
            "0 */7 * * *",
            "0 9 */2 * *",
            "0 9 1 */5 *",
            "0 9 * * */2",
        ),  # a step that starts over
        *("0 9 1-7 * 1-5", "0 9 13 * 5", "0 9 */2 * 1"),  # either day is enough
        *("0 9 * * 1#1,1#3", "0 9 1,L * *"),  # lists that the library does not read
        *("5 8-10,14 * * *", "*/5 2,14 * * *", "0,30 2 * * *"),  # "at 02:00" for minutes after it
        "*/5 */6 * * *",  # "every 5 minutes, every 6 hours"
        ",".join(map(str, range(0, 60, 2)))
        + ",".join(["", *map(str, range(1, 30, 2))])
        + " 9-10 * * *",  # too long
    ],
)
def test_where_no_words_are_true_the_next_five_slots_are_shown(expression: str) -> None:
    cron = parse_cron(expression)
    start = datetime(2026, 1, 14, tzinfo=UTC)

    shown = words.describe(cron, "Europe/Berlin", start)

    assert words.in_words(cron, "Europe/Berlin") == ""
    assert shown.startswith("next ")
    assert shown.endswith(" (Europe/Berlin)")
    assert len(re.findall(r"\d\d:\d\d", shown)) == 5


def test_several_expressions_and_dates_are_described_together() -> None:
    crons = [parse_cron("0 9 * * 1-5"), parse_cron("0 12 * * 6")]

    assert words.in_words(combine(crons, True, date(2026, 2, 1), date(2026, 3, 31)), "UTC") == (
        "At 09:00, Monday through Friday; At 12:00, only on Saturday (UTC), from 2026-02-01, until 2026-03-31"
    )


def test_one_expression_without_true_words_leaves_the_list_without_words() -> None:
    cron = combine([parse_cron("0 9 * * 1-5"), parse_cron("*/35 12 * * 6")], True)

    assert words.in_words(cron, "UTC") == ""
    assert words.describe(cron, "UTC", datetime(2026, 1, 14, tzinfo=UTC)).startswith(
        "next Wed 2026-01-14 09:00, "
    )


def test_what_has_ended_and_has_no_words_has_no_description() -> None:
    cron = combine([parse_cron("*/35 * * * *")], False, None, date(2026, 1, 1))

    assert words.describe(cron, "UTC", datetime(2026, 1, 14, tzinfo=UTC)) == ""
