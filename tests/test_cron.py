"""Cron expressions: what is supported, what is refused, and the position of each error."""

from __future__ import annotations

import re
import string
from datetime import date, datetime
from itertools import product
from pathlib import Path

import pytest
from croniter import croniter
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from yamlsched.errors import CronError
from yamlsched.schedule.load import load
from yamlsched.timetable import slots
from yamlsched.timetable.cron import (
    ALIASES,
    matching_days,
    mismatches,
    parse_cron,
)
from yamlsched.timetable.cron_fields import is_computed
from yamlsched.timetable.zones import zone

EVERY_DAY = tuple(range(1, 32))


def refusal(text: str) -> CronError:
    with pytest.raises(CronError) as caught:
        parse_cron(text)
    return caught.value


@pytest.mark.parametrize(
    "text, minutes_after_midnight",
    [
        ("5 2 * * *", [125]),
        ("05 02 * * *", [125]),
        ("0,30 2 * * *", [120, 150]),
        ("30,0,30 2 * * *", [120, 150]),
        ("0-10/5 2 * * *", [120, 125, 130]),
        ("*/20 2 * * *", [120, 140, 160]),
        ("50/5 2 * * *", [170, 175]),
        ("59/15 2 * * *", [179]),
        ("*/60 2 * * *", [120]),
        ("0 */24 * * *", [0]),
        ("0 22,23,0-1 * * *", [0, 60, 1320, 1380]),
        ("* 2 * * *", list(range(120, 180))),
    ],
)
def test_minute_and_hour_fields_determine_the_minutes_of_a_day(text, minutes_after_midnight):
    assert list(parse_cron(text).times) == minutes_after_midnight


@pytest.mark.parametrize(
    "text, year, month, expected",
    [
        ("0 0 * * *", 2026, 1, EVERY_DAY),
        ("0 0 ? * ?", 2026, 1, EVERY_DAY),
        ("0 0 * feb *", 2026, 1, ()),
        ("0 0 * Jan-mar *", 2026, 1, EVERY_DAY),
        ("0 0 * 12 *", 2026, 12, EVERY_DAY),
        ("0 0 31 * *", 2026, 4, ()),
        ("0 0 29 2 *", 2026, 2, ()),
        ("0 0 29 2 *", 2028, 2, (29,)),
        ("0 0 L * *", 2028, 2, (29,)),
        ("0 0 l,1 * *", 2026, 2, (1, 28)),
        ("0 0 15-L/5 * *", 2026, 2, (15, 20, 25)),
        # croniter 7.0 reads this as every day; the 1st is not in it
        ("0 0 2-31,L * *", 2026, 1, EVERY_DAY[1:]),
        ("0 0 */10 * *", 2026, 1, (1, 11, 21, 31)),
        # January 2026 begins on a Thursday
        ("0 0 * * 0", 2026, 1, (4, 11, 18, 25)),
        ("0 0 * * 7", 2026, 1, (4, 11, 18, 25)),
        ("0 0 * * SUN", 2026, 1, (4, 11, 18, 25)),
        ("0 0 * * 0-7", 2026, 1, EVERY_DAY),
        ("0 0 * * 6-7", 2026, 1, (3, 4, 10, 11, 17, 18, 24, 25, 31)),
        ("0 0 * * sat-sun", 2026, 1, (3, 4, 10, 11, 17, 18, 24, 25, 31)),
        ("0 0 * * 5-7/2", 2026, 1, (2, 4, 9, 11, 16, 18, 23, 25, 30)),
        ("0 0 * * mon#1", 2026, 1, (5,)),
        ("0 0 * * 4#5,7#1", 2026, 1, (4, 29)),
        ("0 0 * * 1#5", 2026, 1, ()),
        ("0 0 * * L5", 2026, 1, (30,)),
        ("0 0 * * l7", 2026, 1, (25,)),
        ("0 0 * * L1,1#1", 2026, 1, (5, 26)),
        # both day fields restricted: either may match
        ("0 0 13 * fri", 2026, 1, (2, 9, 13, 16, 23, 30)),
        ("0 0 L * 1", 2026, 1, (5, 12, 19, 26, 31)),
        ("0 0 30 2 1", 2026, 2, (2, 9, 16, 23)),
        ("0 0 1-31 * 1", 2026, 1, EVERY_DAY),
        ("0 0 1-31 * */2", 2026, 1, EVERY_DAY),
        ("0 0 */15 * 1", 2026, 1, (1, 5, 12, 16, 19, 26, 31)),
        # an unrestricted one leaves the decision to the other
        ("0 0 ? * 1", 2026, 1, (5, 12, 19, 26)),
        ("0 0 13 * ?", 2026, 1, (13,)),
    ],
)
def test_date_fields_determine_the_days_of_a_month(text, year, month, expected):
    assert matching_days(parse_cron(text).date_fields, year, month) == expected


def test_a_range_of_weekdays_may_end_on_sunday_with_any_step():
    for first, step in product(range(7), range(1, 8)):
        expected = {weekday % 7 for weekday in range(first, 8, step)}
        for last in ("7", "sun"):
            cron = parse_cron(f"0 0 * * {first}-{last}/{step}")
            # January 2023 begins on a Sunday, which is day 1
            assert {
                day - 1 for day in matching_days(cron.date_fields, 2023, 1) if day <= 7
            } == expected


@pytest.mark.parametrize(
    "text, wildcard",
    [
        ("* * * * *", True),
        ("*/5 2 * * *", True),
        ("0 * * * *", True),
        ("0 */2 * * *", True),
        ("@hourly", True),
        ("@daily", False),
        ("@weekly", False),
        ("0 2 * * *", False),
        ("0-59 0-23 * * *", False),
        ("0/5 0-23 * * *", False),
        ("0 0 */2 * *", False),
    ],
)
def test_a_job_is_wildcard_if_its_minute_or_hour_begins_with_a_star_in_the_text(text, wildcard):
    assert parse_cron(text).wildcard is wildcard


def test_the_text_is_kept_for_people_and_the_expression_has_aliases_expanded_and_single_blanks():
    cron = parse_cron("  0\t 2  * *   MON ")

    assert cron.source == "0\t 2  * *   MON"
    assert cron.expression == "0 2 * * MON"
    assert cron.fields == ("0", "2", "*", "*", "MON")


@pytest.mark.parametrize("alias, fields", ALIASES.items())
def test_an_alias_is_its_five_fields_in_either_case(alias, fields):
    assert parse_cron(alias).expression == parse_cron(alias.upper()).expression == fields
    assert parse_cron(alias).times == parse_cron(fields).times
    assert parse_cron(alias).source == alias


REFUSED = [
    # text, the wrong part, part of the message, part of the remedy
    ("61 * * * *", "61", "minute 61 is not in 0-59", "write a number from 0 to 59"),
    ("0 24 * * *", "24", "hour 24 is not in 0-23", "write a number from 0 to 23"),
    ("0 0 0 * *", "0", "day-of-month 0 is not in 1-31", "from 1 to 31"),
    ("0 0 1,32 * *", "32", "day-of-month 32 is not in 1-31", "from 1 to 31"),
    ("0 0 * 13 *", "13", "month 13 is not in 1-12", "from 1 to 12"),
    ("0 0 * * 8", "8", "day-of-week 8 is not in 0-7", "from 0 to 7"),
    ("0-60 * * * *", "0-60", "minute 0-60 is not in 0-59", "from 0 to 59"),
    ("a * * * *", "a", "minute a is not in 0-59", "from 0 to 59"),
    ("1.5 * * * *", "1.5", "minute 1.5 is not in 0-59", "from 0 to 59"),
    ("1_0 * * * *", "1_0", "minute 1_0 is not in 0-59", "from 0 to 59"),
    ("+5 * * * *", "+5", "minute +5 is not in 0-59", "from 0 to 59"),
    ("-5 * * * *", "-5", "minute -5 is not in 0-59", "from 0 to 59"),
    ("5- * * * *", "5-", "minute 5- is not in 0-59", "from 0 to 59"),
    ("1-2-3 * * * *", "1-2-3", "minute 1-2-3 is not in 0-59", "from 0 to 59"),
    ("0 0 * january *", "january", "month january is not in 1-12", "from 1 to 12"),
    ("0 0 * * Monday", "Monday", "day-of-week Monday is not in 0-7", "from 0 to 7"),
    ("0 0 * * foo", "foo", "day-of-week foo is not in 0-7", "sun mon tue"),
    ("0 0 * mon *", "mon", "month mon is not in 1-12", "jan feb"),
    # lists
    (
        "1,,2 * * * *",
        "1,,2",
        "minute 1,,2 has an empty item in its list",
        "between every two commas",
    ),
    ("1, * * * *", "1,", "minute 1, has an empty item in its list", "none after the last"),
    (", * * * *", ",", "empty item", "commas"),
    ("*,5 * * * *", "*", "minute * is not in 0-59", "from 0 to 59"),
    ("0 0 ?,5 * *", "?", "day-of-month ? is not in 1-31", "from 1 to 31"),
    # ranges
    ("5-5 * * * *", "5-5", "minute 5-5 is not a range from a lower to a higher value", "as a list"),
    (
        "5-05 * * * *",
        "5-05",
        "minute 5-05 is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 0 * jan-1 *",
        "jan-1",
        "month jan-1 is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 0 * * sun-sun",
        "sun-sun",
        "day-of-week sun-sun is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 0 * * 7-sun",
        "7-sun",
        "day-of-week 7-sun is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 22-4 * * *",
        "22-4",
        "hour 22-4 is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 23-0 * * *",
        "23-0",
        "hour 23-0 is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 22-4/2 * * *",
        "22-4/2",
        "hour 22-4/2 is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 0 * nov-feb *",
        "nov-feb",
        "month nov-feb is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 0 * * sat-2",
        "sat-2",
        "day-of-week sat-2 is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 0 * * 5-0",
        "5-0",
        "day-of-week 5-0 is not a range from a lower to a higher value",
        "as a list",
    ),
    (
        "0 0 * * 7-3",
        "7-3",
        "day-of-week 7-3 is not a range from a lower to a higher value",
        "as a list",
    ),
    # steps
    ("*/0 * * * *", "*/0", "minute */0 has a step that is not in 1-60", "from 1 to 60"),
    ("*/90 * * * *", "*/90", "minute */90 has a step that is not in 1-60", "from 1 to 60"),
    ("0 */25 * * *", "*/25", "hour */25 has a step that is not in 1-24", "from 1 to 24"),
    (
        "*/99999999999999999999 * * * *",
        "*/99999999999999999999",
        "minute */99999999999999999999 has a step that is not in 1-60",
        "from 1 to 60",
    ),
    ("*/a * * * *", "*/a", "minute */a has a step that is not in 1-60", "from 1 to 60"),
    ("*/ * * * *", "*/", "minute */ has a step that is not in 1-60", "from 1 to 60"),
    ("1//2 * * * *", "1//2", "minute 1//2 has a step that is not in 1-60", "from 1 to 60"),
    (
        "0 0 * * 7/2",
        "7/2",
        "day-of-week 7/2 is not a range from a lower to a higher value",
        "as a list",
    ),
    # what others know and we do not
    ("? * * * *", "?", "minute ? is not in 0-59", "from 0 to 59"),
    ("R * * * *", "R", "minute R is not in 0-59", "from 0 to 59"),
    ("r(0-9)/2 * * * *", "r(0-9)/2", "minute r(0-9)/2 is not in 0-59", "from 0 to 59"),
    ("0 H * * *", "H", "hour H is not in 0-23", "from 0 to 23"),
    ("0 0 1-5W * *", "1-5W", "day-of-month 1-5W is not in 1-31", "from 1 to 31"),
    ("0 0 W15 * *", "W15", "day-of-month W15 is not in 1-31", "from 1 to 31"),
    ("0 0 L-3W * *", "L-3W", "day-of-month L-3W is not in 1-31", "from 1 to 31"),
    ("0 0 15W/2 * *", "15W/2", "day-of-month 15W/2 is not in 1-31", "from 1 to 31"),
    ("0 0 L/2 * *", "L/2", "day-of-month L/2 is not in 1-31", "from 1 to 31"),
    ("0 0 L-3-5 * *", "L-3-5", "day-of-month L-3-5 is not in 1-31", "from 1 to 31"),
    ("0 0 1,15w * *", "15w", "day-of-month 15w is not in 1-31", "from 1 to 31"),
    ("0 0 L-3,L * *", "L-3", "day-of-month L-3 is not in 1-31", "from 1 to 31"),
    ("0 0 L-0 * *", "L-0", "day-of-month L-0 is not in 1-31", "from 1 to 31"),
    ("0 0 L-40 * *", "L-40", "day-of-month L-40 is not in 1-31", "from 1 to 31"),
    ("0 0 32W * *", "32W", "day-of-month 32W is not in 1-31", "from 1 to 31"),
    ("0 0 0W * *", "0W", "day-of-month 0W is not in 1-31", "from 1 to 31"),
    ("0 0 15W * mon", "15W", "15W together with day-of-week mon", "write * as one of the two"),
    ("0 0 L-3 * 1-5", "L-3", "allow no other day field", "two jobs"),
    ("0 0 LW * 5#2", "LW", "together with day-of-week 5#2", "write * as one of the two"),
    ("0 0 30W 2 *", "30W 2 *", "it never fires", "a day that the month has"),
    ("0 0 L-29 2 *", "L-29 2 *", "it never fires", "a day that the month has"),
    ("0 0 L-30 4,6,9,11 ?", "L-30 4,6,9,11 ?", "it never fires", "a day that the month has"),
    ("0 0 * * L", "L", "day-of-week L is not in 0-7", "L5"),
    ("0 0 * * 5L", "5L", "day-of-week 5L is not in 0-7", "L5"),
    ("0 0 * * 1#6", "1#6", "day-of-week 1#6 is not in 0-7", "1#2"),
    ("0 0 * * 1#0", "1#0", "day-of-week 1#0 is not in 0-7", "1#2"),
    ("0 0 * * #2", "#2", "day-of-week #2 is not in 0-7", "1#2"),
    ("0 0 * * 8#1", "8#1", "day-of-week 8#1 is not in 0-7", "from 0 to 7"),
    ("0 0 * * mon-fri#2", "mon-fri#2", "day-of-week mon-fri#2 is not in 0-7", "1#2"),
    ("0 0 * * 1#2,3", "1#2,3", "mixes plain weekdays with # or L", "two jobs"),
    (
        "0 0 13 * 5#2",
        "13",
        "day-of-month 13 together with day-of-week 5#2",
        "write * as one of the two",
    ),
    ("0 0 1-31 * L5", "1-31", "together with day-of-week L5", "two jobs"),
    # the whole
    ("", "", "empty", "five fields"),
    ("   ", "   ", "empty", "five fields"),
    (
        "* * * *",
        "* * * *",
        "4 fields, but cron has five",
        "minute hour day-of-month month day-of-week",
    ),
    ("now", "now", "1 field, but cron has five", "minute hour"),
    ("0 30 2 * * *", "0 30 2 * * *", "6 fields, but cron has five", "no seconds or years"),
    (
        "0 30 2 * * * 2026",
        "0 30 2 * * * 2026",
        "7 fields, but cron has five",
        "no seconds or years",
    ),
    ("* * * * * * * *", "* * * * * * * *", "8 fields", "minute hour"),
    ("@reboot", "@reboot", "is not an alias", "or five fields"),
    ("@every 5m", "@every 5m", "not an alias", "@hourly"),
    ("@fortnightly", "@fortnightly", "not an alias", "@weekly"),
    ("@daily *", "@daily *", "not an alias", "@daily"),
    ("0 0 30 2 *", "30 2 *", "it never fires: no date within 50 years", "a day that the month has"),
    ("0 0 31 4,6,9,11 ?", "31 4,6,9,11 ?", "it never fires", "a day that the month has"),
    # characters
    ("0 2 * * *\n", "\n", "character '\\n' in", "on one line"),
    ("0 2\n* * *", "\n", "character '\\n' in", "on one line"),
    ("0 2 * *\x00 *", "\x00", "character '\\x00' in", "on one line"),
    ("0 2 * * *\x7f", "\x7f", "character '\\x7f' in", "on one line"),
    ("0 ٢ * * *", "٢", "'\\u0662' in the cron expression", "on one line"),
    ("0 ² * * *", "²", "'\\xb2'", "on one line"),
    ("0 2\u00a0* * *", "\u00a0", "'\\xa0'", "on one line"),
    ("\u2003@daily", "\u2003", "'\\u2003'", "on one line"),
    ("0 \ud800 * * *", "\ud800", "'\\ud800'", "on one line"),
]


def test_each_error_has_its_position_its_reason_and_a_remedy():
    for text, wrong, message, remedy in REFUSED:
        error = refusal(text)

        assert text[error.start : error.end] == wrong, text
        assert message in error.message, text
        assert remedy in error.remedy, text


def test_offsets_are_of_the_text_as_it_was_given():
    error = refusal("  1  61 * * *")

    assert (error.start, error.end) == (5, 7)


def test_256_characters_are_valid_and_257_are_not():
    longest = "0," * 123 + "00 * * * *"
    assert len(parse_cron(f"  {longest} ").source) == 256

    error = refusal("0" + longest)

    assert "257 characters, more than 256" in error.message


@pytest.mark.parametrize(
    "text", ["1," * 5_000_000, " " * 10_000_000, "*" * 10_000_000, "٣" * 1_000_000]
)
def test_a_very_long_string_is_refused_without_parsing_its_fields(text):
    assert len(refusal(text).message) < 200


FIELD_CHARACTERS = "0123456789*,-/?#LWHRlw@ jansunmofri"


ONE_ODD_FIELD = st.builds(
    lambda index, odd: " ".join([*"****"[:index], odd, *"****"[index:]]),
    st.integers(0, 4),
    st.text(FIELD_CHARACTERS, min_size=1, max_size=6),
)


@settings(max_examples=150)
@given(st.one_of(st.text(), st.text(FIELD_CHARACTERS), ONE_ODD_FIELD))
@example("0 0 * * 0-sun")
@example("0 0 L,l * *")
@example("/1 0 0 0 0")
def test_any_string_is_either_valid_or_has_an_error_at_a_position_inside_it(text):
    try:
        cron = parse_cron(text)
    except CronError as refused:
        error = refused
    else:
        assert croniter.is_valid(cron.expression) or is_computed(cron.date_fields[0])
        assert cron.times
        assert list(cron.times) == sorted(set(cron.times))
        assert parse_cron(cron.expression).times == cron.times
        return

    assert 0 <= error.start <= error.end <= len(text)
    assert error.start < error.end or not text
    assert error.message
    assert error.remedy
    assert "cannot be read" not in error.message, "croniter refused what our own check let through"
    assert all(character in string.printable for character in error.remedy)


@pytest.mark.parametrize(
    "text, wall, expected",
    [
        ("0 2 * * *", datetime(2026, 1, 5, 2, 0), []),
        ("0 2 * * *", datetime(2026, 1, 5, 3, 7), ["minute 7 is not in 0", "hour 3 is not in 2"]),
        ("0 2 * feb *", datetime(2026, 1, 5, 2, 0), ["month 1 is not in feb"]),
        ("0 2 6 * *", datetime(2026, 1, 5, 2, 0), ["day-of-month 5 is not in 6"]),
        ("0 2 * * 2", datetime(2026, 1, 5, 2, 0), ["day-of-week mon is not in 2"]),
        (
            "0 2 6 * 2",
            datetime(2026, 1, 5, 2, 0),
            ["day-of-month 5 is not in 6", "day-of-week mon is not in 2"],
        ),
    ],
)
def test_the_fields_that_do_not_match_are_named(text, wall, expected):
    assert mismatches(parse_cron(text), wall) == expected


@settings(max_examples=75)
@given(
    st.sampled_from(
        ["*", "?", "1", "13", "29", "31", "1-7", "*/2", "*/9", "28-31", "5,15,25", "L", "1,L"]
    ),
    st.sampled_from(["*", "2", "feb,apr", "*/3", "6-9"]),
    st.sampled_from(
        ["*", "?", "0", "7", "mon", "1-5", "fri-sun", "*/3", "1,3", "1#1", "L5", "sat#5,L0"]
    ),
    st.integers(1970, 2090),
)
def test_dates_are_those_that_croniter_finds(day_of_month, month, day_of_week, year):
    try:
        cron = parse_cron(f"0 0 {day_of_month} {month} {day_of_week}")
    except CronError:
        assume(False)

    ours = [
        datetime(year, number, day)
        for number in range(1, 13)
        for day in matching_days(cron.date_fields, year, number)
    ]

    theirs = []
    steps = croniter(cron.expression, datetime(year - 1, 12, 31, 23, 59))
    while (found := steps.get_next(datetime)).year == year:
        theirs.append(found)
    assert ours == theirs


@pytest.mark.parametrize(
    "day_of_month, year, month, day",
    [
        ("15W", 2026, 8, 14),  # the 15th is a Saturday: Friday
        ("15W", 2026, 11, 16),  # a Sunday: Monday
        ("15W", 2026, 12, 15),  # a Tuesday
        ("1W", 2026, 8, 3),  # a Saturday: not in the month before
        ("1W", 2026, 11, 2),
        ("31w", 2026, 5, 29),  # a Sunday: not in the month after
        ("31W", 2026, 10, 30),
        ("31W", 2026, 11, None),
        ("29W", 2026, 2, None),
        ("29W", 2032, 2, 27),  # a Sunday, the last day of a leap year's February
        ("LW", 2026, 2, 27),
        ("lw", 2026, 5, 29),
        ("L-3", 2026, 2, 25),
        ("l-3", 2028, 2, 26),
        ("L-30", 2026, 12, 1),
        ("L-30", 2026, 11, None),
    ],
)
def test_a_day_that_depends_on_the_month_stays_in_it(day_of_month, year, month, day):
    cron = parse_cron(f"0 0 {day_of_month} * ?")

    assert matching_days(cron.date_fields, year, month) == ((day,) if day else ())


def test_the_page_lists_the_aliases():
    document = (Path(__file__).parent.parent / "docs" / "cron.md").read_text()
    rows = re.findall(r"^\| (`@.*) \| `(.*)` \|$", document, re.MULTILINE)

    listed = {alias: fields for names, fields in rows for alias in re.findall("@[a-z]+", names)}

    assert listed == ALIASES


def test_the_examples_of_the_page_are_valid_and_the_answer_about_an_off_week_is_true():
    document = (Path(__file__).parent.parent / "docs" / "cron.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    jobs = {}
    for block in blocks:
        loaded = load(f"version: 1\n{block}".encode(), "cron.md", None)
        assert not loaded.diagnostics
        jobs |= loaded.jobs

    cron = jobs["payroll"].cron
    [[day, answer]] = re.findall(r"why payroll --at (\S+)` answers \"(.*?)\"", document)
    assert slots.off_week(cron, zone("UTC"), date.fromisoformat(day)) == answer
    assert cron.source == "0 9 * * mon every 2w from 2026-12-07"


@pytest.mark.parametrize(
    "dates, years",
    [("29 2 *", 13), ("29W 2 *", 13), ("L-28 2 *", 13), ("30 2 fri", 50), ("* 2 3#5", 2)],
)
def test_dates_of_few_years_are_found(dates, years):
    date_fields = parse_cron(f"0 0 {dates}").date_fields

    found = [year for year in range(2000, 2050) if matching_days(date_fields, year, 2)]

    assert len(found) == years
