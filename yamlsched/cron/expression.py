"""Cron expressions: what is supported, what is refused and where, and which local dates match. See docs/cron.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache

from yamlsched.cron.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    FIELDS,
    HOUR,
    LAST,
    MINUTE,
    MONTH,
    WEEKDAYS,
    field_values,
    uses_nth,
)
from yamlsched.errors import CronError

MAX_CHARS = 256
HORIZON_YEARS = 50
REFERENCE_YEAR = 2000
"""An expression must fire within HORIZON_YEARS from here: fixed, so that a file is as valid tomorrow as today."""
MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""The most that a month has within that time."""

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELD_NAMES = " ".join(rule.name for rule in FIELDS)


@dataclass(frozen=True, slots=True)
class Cron:
    """A valid expression. Only ``parse_cron`` makes one.

    ``source`` is what the user wrote, for people; ``expression`` has aliases expanded and single blanks. ``wildcard``
    chooses the rule for clock changes: it is decided from the text, for ``0-59`` and ``*`` differ in nothing else.
    ``times`` are the minutes after midnight at which it fires on a matching date, ascending.
    """

    source: str
    expression: str
    fields: tuple[str, str, str, str, str]
    wildcard: bool
    date_fields: tuple[str, str, str] = field(compare=False, repr=False)
    times: tuple[int, ...] = field(compare=False, repr=False)


def is_restricted(day_field: str) -> bool:
    """Say whether a day field takes part in choosing dates; judged by its text, so ``1-31`` does."""
    return day_field not in ("*", "?")


@lru_cache(maxsize=32768)
def parse_cron(text: str) -> Cron:
    """Return the expression that ``text`` writes.

    Raises CronError with the offsets of the wrong part in ``text``. The work is bounded for any text.
    """
    stripped = text.strip(" \t")
    shift = text.index(stripped) if stripped else 0
    _check_characters(text, stripped, shift)
    parts, places = _split(stripped, shift)
    for index, (part, place) in enumerate(zip(parts, places, strict=True)):
        try:
            field_values(index, part)
        except CronError as error:
            raise CronError(error.message, place + error.start, place + error.end, error.remedy) from error
    minute, hour, day_of_month, month, day_of_week = parts
    place, end = places[DAY_OF_MONTH], places[DAY_OF_WEEK] + len(day_of_week)
    if is_restricted(day_of_month) and uses_nth(day_of_week):
        raise CronError(
            f"day-of-month {day_of_month} beside day-of-week {day_of_week}: # and L cannot be combined with it",
            place,
            place + len(day_of_month),
            "write * as day-of-month, or split it into two jobs",
        )
    if not _ever_fires((day_of_month, month, day_of_week)):
        raise CronError(
            f"it never fires: no date within {HORIZON_YEARS} years has day-of-month {day_of_month} and month {month}",
            place,
            end,
            "write a day that the month has",
        )
    return Cron(
        source=stripped,
        expression=" ".join(parts),
        fields=(minute, hour, day_of_month, month, day_of_week),
        wildcard=minute.startswith("*") or hour.startswith("*"),
        date_fields=(day_of_month, month, day_of_week),
        times=_times(minute, hour),
    )


@lru_cache(maxsize=16384)
def matching_days(date_fields: tuple[str, str, str], year: int, month: int) -> tuple[int, ...]:
    """Return the days of a local month that match ``Cron.date_fields``, ascending.

    If both day fields are restricted either may match; an unrestricted one leaves the choice to the other.
    """
    day_of_month, months, day_of_week = date_fields
    if month not in field_values(MONTH, months).plain:
        return ()
    first = date(year, month, 1)
    length = (date(year + month // 12, month % 12 + 1, 1) - first).days
    every_day = range(1, length + 1)
    named = field_values(DAY_OF_MONTH, day_of_month)
    on_month_day = {day for day in every_day if day in named.plain or (named.last_day and day == length)}
    named = field_values(DAY_OF_WEEK, day_of_week)
    on_weekday = set()
    for day in every_day:
        weekday = (first.isoweekday() + day - 1) % 7
        is_last = day + 7 > length and (weekday, LAST) in named.nth
        if weekday in named.plain or (weekday, (day + 6) // 7) in named.nth or is_last:
            on_weekday.add(day)
    either = is_restricted(day_of_month) and is_restricted(day_of_week)
    return tuple(sorted(on_month_day | on_weekday if either else on_month_day & on_weekday))


def mismatches(cron: Cron, wall: datetime) -> list[str]:
    """Return which fields do not match the naive wall time ``wall``, each as a sentence; nothing if all do."""
    minute, hour, day_of_month, month, day_of_week = cron.fields
    found = []
    if wall.minute not in field_values(MINUTE, minute).plain:
        found.append(f"minute {wall.minute} is not in {minute}")
    if wall.hour not in field_values(HOUR, hour).plain:
        found.append(f"hour {wall.hour} is not in {hour}")
    if wall.month not in field_values(MONTH, month).plain:
        found.append(f"month {wall.month} is not in {month}")
    elif wall.day not in matching_days(cron.date_fields, wall.year, wall.month):
        if is_restricted(day_of_month):
            found.append(f"day-of-month {wall.day} is not in {day_of_month}")
        if is_restricted(day_of_week):
            found.append(f"day-of-week {WEEKDAYS[wall.isoweekday() % 7]} is not in {day_of_week}")
    return found


def day_fields_warning(cron: Cron) -> str:
    """Return a warning if cron implementations disagree about the two day fields of ``cron``, else "".

    Debian's cron takes a field that begins with ``*`` as unrestricted even when a step follows.
    """
    day_of_month, day_of_week = cron.fields[DAY_OF_MONTH], cron.fields[DAY_OF_WEEK]
    both = is_restricted(day_of_month) and is_restricted(day_of_week)
    if not both or not (day_of_month.startswith("*/") or day_of_week.startswith("*/")):
        return ""
    return (
        f"day-of-month {day_of_month} and day-of-week {day_of_week}: here a date fires if either matches; "
        "Debian's cron would fire only if both do. Write the days as a list, or leave one of the fields *"
    )


def _ever_fires(date_fields: tuple[str, str, str]) -> bool:
    """Say whether a date within HORIZON_YEARS of REFERENCE_YEAR matches.

    A restricted day-of-week always finds one: every month has each weekday four times, and within 28 years each weekday
    is a 29 February. Without it, a month must have one of the days.
    """
    day_of_month, months, day_of_week = date_fields
    named = field_values(DAY_OF_MONTH, day_of_month)
    longest = max(MONTH_DAYS[month - 1] for month in field_values(MONTH, months).plain)
    return is_restricted(day_of_week) or named.last_day or min(named.plain) <= longest


@lru_cache(maxsize=2048)
def _times(minute: str, hour: str) -> tuple[int, ...]:
    return tuple(h * 60 + m for h in field_values(HOUR, hour).plain for m in field_values(MINUTE, minute).plain)


def _check_characters(text: str, stripped: str, shift: int) -> None:
    example = 'write five fields, for example "0 2 * * *"'
    if not stripped:
        raise CronError("the cron expression is empty", 0, len(text), example)
    if len(stripped) > MAX_CHARS:
        raise CronError(
            f"the cron expression has {len(stripped)} characters, more than {MAX_CHARS}",
            shift,
            shift + len(stripped),
            "write ranges and steps instead of long lists, or split it into several jobs",
        )
    for place, character in enumerate(stripped, shift):
        if character != "\t" and not character.isprintable() and character.isascii():
            raise CronError(
                f"control character U+{ord(character):04X} in the cron expression",
                place,
                place + 1,
                "write the five fields on one line, separated by blanks",
            )
        if not character.isascii():
            shown = f'"{character}" ' if character.isprintable() else ""
            raise CronError(
                f"character {shown}(U+{ord(character):04X}) in the cron expression is not ASCII",
                place,
                place + 1,
                example,
            )


def _split(stripped: str, shift: int) -> tuple[list[str], list[int]]:
    """Return the five fields and their offsets; all of an alias' fields are where the alias is."""
    end = shift + len(stripped)
    if stripped.startswith("@"):
        alias = stripped.lower()
        if alias in ALIASES:
            return ALIASES[alias].split(), [shift] * len(FIELDS)
        if alias == "@reboot":
            reason, remedy = (
                "@reboot is not supported: hosts that share a schedule boot at different times",
                "write five fields",
            )
        elif alias.startswith("@every"):
            reason, remedy = f"{stripped} is not an alias", 'write the interval as a step, for example "*/10 * * * *"'
        else:
            reason, remedy = f"{stripped} is not an alias", "write one of " + " ".join(ALIASES)
        raise CronError(reason, shift, end, remedy)
    found = list(re.finditer(r"[^ \t]+", stripped))
    parts = [match.group() for match in found]
    if len(parts) in (len(FIELDS) + 1, len(FIELDS) + 2):
        without = " ".join(parts[1 : len(FIELDS) + 1])
        raise CronError(
            f"{len(parts)} fields where cron has five ({FIELD_NAMES}): seconds and years are not supported",
            shift,
            end,
            f'write "{without}" if the first field means seconds',
        )
    if len(parts) != len(FIELDS):
        fields = "1 field" if len(parts) == 1 else f"{len(parts)} fields"
        raise CronError(f"{fields} where cron has five", shift, end, f"write {FIELD_NAMES}")
    return parts, [shift + match.start() for match in found]
