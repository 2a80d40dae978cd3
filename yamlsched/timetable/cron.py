"""Cron expressions: parsing with exact error positions, and the local dates that match. See
docs/cron.md.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise, product

from yamlsched.errors import CronError
from yamlsched.timetable import cron_fields as fields
from yamlsched.timetable.cron_fields import field_values, is_computed, uses_nth

DAY = 1440
MAX_CHARS = 256
HORIZON_YEARS = 50
REFERENCE_YEAR = 2000
"""An expression must fire within HORIZON_YEARS from here: fixed, so that a file is as valid
tomorrow as today.
"""
CALENDAR_CYCLE_YEARS = 28
"""After this many years every date has the same weekday again, so that all neighbouring dates have
occurred.
"""
MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""The days of the longest such month within that time."""

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EXAMPLE = 'write five fields, for example "0 2 * * *"'
FIELD_NAMES = " ".join(rule.name for rule in fields.FIELDS)


@dataclass(frozen=True, slots=True)
class Cron:
    """A valid expression, or a list of them, between two dates: created by ``parse_cron`` and
    ``combine`` only.

    ``source`` is what the user wrote, with all that decides the slots; ``expression`` has aliases
    expanded and single spaces. ``wildcard`` selects the rule for clock changes; it depends on the
    spelling, because ``0-59`` and ``*`` differ in nothing else. ``times`` are the minutes after
    midnight at which it fires on a matching date, ascending. ``dates`` are the first and last of
    the local dates with slots, ascending; None: all. Of their ISO weeks each ``every``-th counts,
    from that of ``starts_on`` on. Of a list, ``parts`` are its expressions, and its slots are those
    of all of them: other fields say less.
    """

    source: str
    expression: str
    fields: tuple[str, str, str, str, str]
    wildcard: bool
    date_fields: tuple[str, str, str] = field(compare=False, repr=False)
    times: tuple[int, ...] = field(compare=False, repr=False)
    every: int = 1
    starts_on: date | None = None
    ends_on: date | None = None
    dates: tuple[tuple[date, date], ...] | None = None
    parts: tuple[Cron, ...] = ()

    @property
    def expressions(self) -> tuple[Cron, ...]:
        """The expressions, one or several."""
        return self.parts or (self,)

    def is_off_week(self, day: date) -> bool:
        """Return whether ``every`` leaves out the ISO week of ``day``."""
        weeks = _week(day) - _week(self.starts_on or date.min)
        return weeks % self.every != 0


EVERY = "[2-9]|[1-4][0-9]|5[0-2]"
BOUNDED = re.compile(
    rf"(.*?)(?: every ({EVERY})w(?= from ))?"
    r"(?: from (\d{4}-\d\d-\d\d))?(?: until (\d{4}-\d\d-\d\d))?"
)
"""``Cron.source``: the expressions, separated by "; ", then how many weeks are between those that
count, and the first and last date. A list of one ends with ";".
"""


def _week(day: date) -> int:
    """Return the number of an ISO week, counted over all years."""
    return (day.toordinal() - 1) // 7


def is_restricted(day_field: str) -> bool:
    """Return whether a day field selects dates. Depends on its spelling: ``1-31`` does, ``*`` does
    not.
    """
    return day_field not in ("*", "?")


@lru_cache(maxsize=32768)
def parse_cron(expression: str) -> Cron:
    """Parse a cron expression.

    Raises CronError with the offsets of the wrong part in ``expression``. The time is bounded for
    any string.
    """
    stripped = expression.strip(" \t")
    shift = expression.index(stripped) if stripped else 0
    if not stripped:
        raise CronError("the cron expression is empty", 0, len(expression), EXAMPLE)
    _check_characters(stripped, shift)
    parts, places = _split(stripped, shift)
    for index, (part, place) in enumerate(zip(parts, places, strict=True)):
        try:
            field_values(index, part)
        except CronError as error:
            raise CronError(
                error.message, place + error.start, place + error.end, error.remedy
            ) from error
    minute, hour, day_of_month, month, day_of_week = parts
    place, end = places[fields.DAY_OF_MONTH], places[fields.DAY_OF_WEEK] + len(day_of_week)
    refused = ""
    if is_restricted(day_of_month) and uses_nth(day_of_week):
        refused, other = "# and L", "day-of-month"
    elif is_restricted(day_of_week) and is_computed(day_of_month):
        refused, other = "W and L-n", "day-of-week"
    if refused:
        both = f"day-of-month {day_of_month} together with day-of-week {day_of_week}"
        remedy = f"write * as {other}, or split it into two jobs"
        message = f"{both}: {refused} do not allow a {other}"
        raise CronError(message, place, place + len(day_of_month), remedy)
    if not _ever_fires((day_of_month, month, day_of_week)):
        dates = (
            f"no date within {HORIZON_YEARS} years has day-of-month {day_of_month} and month"
            f" {month}"
        )
        raise CronError(f"it never fires: {dates}", place, end, "write a day that the month has")
    return Cron(
        source=stripped,
        expression=" ".join(parts),
        fields=(minute, hour, day_of_month, month, day_of_week),
        wildcard=minute.startswith("*") or hour.startswith("*"),
        date_fields=(day_of_month, month, day_of_week),
        times=_times(minute, hour),
    )


def combine(
    expressions: Sequence[Cron],
    is_list: bool,
    starts_on: date | None = None,
    ends_on: date | None = None,
    every: int = 1,
) -> Cron:
    """Return what fires whenever one of ``expressions`` does, from ``starts_on`` to ``ends_on``,
    both included, every ``every`` weeks. More than 1 needs ``starts_on``.
    """
    dates = ((starts_on or date.min, ends_on or date.max),) if starts_on or ends_on else None
    bounds = f" every {every}w" if every > 1 else ""
    bounds += f" from {starts_on}" if starts_on else ""
    bounds += f" until {ends_on}" if ends_on else ""
    parts = [
        replace(
            cron,
            source=written(cron)[0] + bounds,
            every=every,
            starts_on=starts_on,
            ends_on=ends_on,
            dates=dates,
        )
        for cron in expressions
    ]
    if not is_list:
        return parts[0]
    return replace(
        parts[0],
        source="; ".join(written(cron)[0] for cron in expressions)
        + ";" * (len(expressions) == 1)
        + bounds,
        expression="; ".join(cron.expression for cron in expressions),
        wildcard=any(cron.wildcard for cron in expressions),
        times=tuple(sorted({time for cron in expressions for time in cron.times})),
        parts=tuple(parts),
    )


def on_dates(cron: Cron, allowed: Sequence[tuple[date, date]]) -> Cron:
    """Return ``cron`` on those of its dates only that are ``allowed``: pairs of a first and last
    one, ascending.
    """
    both = [
        (max(first, begin), min(last, end))
        for first, last in (((date.min, date.max),) if cron.dates is None else cron.dates)
        for begin, end in allowed
        if begin <= last and first <= end
    ]
    return replace(
        cron, dates=tuple(both), parts=tuple(on_dates(part, allowed) for part in cron.parts)
    )


def written(cron: Cron) -> list[str]:
    """Return the expressions of ``cron`` as the file has them."""
    bounded = [BOUNDED.fullmatch(part.source) for part in cron.expressions]
    return [match[1] for match in bounded if match]


@lru_cache(maxsize=32768)
def parse_schedule(source: str) -> Cron:
    """Parse ``Cron.source``, as it is stored. Raises CronError, also for what a later release has
    written.
    """
    bounded = BOUNDED.fullmatch(source)
    if bounded is None or (bounded[0] == bounded[1] and ";" not in source):
        return parse_cron(source)
    expressions = [parse_cron(text) for text in bounded[1].rstrip(";").split("; ")]
    every, *bounds = bounded.groups()[1:]
    try:
        dates = [date.fromisoformat(text) if text else None for text in bounds]
    except ValueError as error:
        raise CronError(f"{error} in {source}", 0, len(source), "write dates that exist") from error
    return combine(expressions, ";" in bounded[1], dates[0], dates[1], int(every or 1))


@lru_cache(maxsize=16384)
def matching_days(date_fields: tuple[str, str, str], year: int, month: int) -> tuple[int, ...]:
    """Return the days of a local month that match ``Cron.date_fields``, ascending.

    If both day fields are restricted, a day matches if either does; an unrestricted one is ignored.
    """
    day_of_month, months, day_of_week = date_fields
    if month not in field_values(fields.MONTH, months).plain:
        return ()
    first_weekday, length = monthrange(year, month)
    every_day = range(1, length + 1)
    named = field_values(fields.DAY_OF_MONTH, day_of_month)
    on_month_day = set(named.plain).intersection(every_day)
    if named.by_month:
        on_month_day |= {fields.month_day(named.by_month, year, month)}.intersection(every_day)
    named = field_values(fields.DAY_OF_WEEK, day_of_week)
    on_weekday = set()
    for day in every_day:
        weekday = (first_weekday + day) % 7
        is_last = day + 7 > length and (weekday, fields.LAST) in named.nth
        if weekday in named.plain or (weekday, (day + 6) // 7) in named.nth or is_last:
            on_weekday.add(day)
    either = is_restricted(day_of_month) and is_restricted(day_of_week)
    return tuple(sorted(on_month_day | on_weekday if either else on_month_day & on_weekday))


@lru_cache(maxsize=16384)
def smallest_gap(cron: Cron) -> timedelta:
    """Return the shortest time between two slots on the wall clock: a clock change can make one gap
    shorter.

    >>> smallest_gap(parse_cron("0 0,1 * * *")), smallest_gap(parse_cron("0 23,1 1 * *"))
    (datetime.timedelta(seconds=3600), datetime.timedelta(seconds=79200))
    """
    gaps: list[int] = []
    parts = cron.expressions
    for which, following, days in _neighbours(tuple(p.date_fields for p in parts), cron.every):
        times, others = (
            sorted({time for nth in date for time in parts[nth].times})
            for date in (which, following)
        )
        gaps += [b - a for a, b in pairwise([*times, days * DAY + others[0]])]
    return timedelta(minutes=min(gaps))


Which = tuple[int, ...]
"""The expressions of a list that match a date, by their number."""


@lru_cache(maxsize=4096)
def _neighbours(
    fields: tuple[tuple[str, str, str], ...], every: int
) -> frozenset[tuple[Which, Which, int]]:
    """Return what matches a date, and the next one with slots, and how many days are between."""
    pairs: set[tuple[Which, Which, int]] = set()
    before: dict[int, tuple[date, Which]] = {}  # by the weeks that count, of which one set is used
    years = range(REFERENCE_YEAR, REFERENCE_YEAR + CALENDAR_CYCLE_YEARS + 1)
    for year, month in product(years, range(1, 13)):
        on_days: dict[date, Which] = defaultdict(tuple)
        for nth, date_fields in enumerate(fields):
            for day in matching_days(date_fields, year, month):
                on_days[date(year, month, day)] += (nth,)
        for on_day, which in sorted(on_days.items()):
            weeks = _week(on_day) % every
            if weeks in before:
                earlier, others = before[weeks]
                pairs.add((others, which, (on_day - earlier).days))
            before[weeks] = on_day, which
    return frozenset(pairs)


def mismatches(cron: Cron, wall: datetime) -> list[str]:
    """Return a sentence for each field, and each date, that the naive wall time ``wall`` does not
    match.
    """
    minute, hour, day_of_month, month, day_of_week = cron.fields
    reasons = []
    if wall.minute not in field_values(fields.MINUTE, minute).plain:
        reasons.append(f"minute {wall.minute} is not in {minute}")
    if wall.hour not in field_values(fields.HOUR, hour).plain:
        reasons.append(f"hour {wall.hour} is not in {hour}")
    if wall.month not in field_values(fields.MONTH, month).plain:
        reasons.append(f"month {wall.month} is not in {month}")
    elif wall.day not in matching_days(cron.date_fields, wall.year, wall.month):
        if is_restricted(day_of_month):
            reasons.append(f"day-of-month {wall.day} is not in {day_of_month}")
        if is_restricted(day_of_week):
            reasons.append(
                f"day-of-week {fields.WEEKDAYS[wall.isoweekday() % 7]} is not in {day_of_week}"
            )
    if cron.starts_on and wall.date() < cron.starts_on:
        reasons.append(f"{wall.date()} is before starts_on, {cron.starts_on}")
    if cron.ends_on and wall.date() > cron.ends_on:
        reasons.append(f"{wall.date()} is after ends_on, {cron.ends_on}")
    return reasons


def _ever_fires(date_fields: tuple[str, str, str]) -> bool:
    """Return whether a date within HORIZON_YEARS of REFERENCE_YEAR matches.

    With a restricted day-of-week there is one: every month has each weekday four times, and within
    28 years every weekday is a 29 February. Without it, one of the months must have one of the
    days.
    """
    day_of_month, months, day_of_week = date_fields
    named = field_values(fields.DAY_OF_MONTH, day_of_month)
    longest = max(MONTH_DAYS[month - 1] for month in field_values(fields.MONTH, months).plain)
    return is_restricted(day_of_week) or named.min_month_days <= longest


@lru_cache(maxsize=2048)
def _times(minute: str, hour: str) -> tuple[int, ...]:
    minutes = field_values(fields.MINUTE, minute).plain
    return tuple(h * 60 + m for h in field_values(fields.HOUR, hour).plain for m in minutes)


def _check_characters(stripped: str, shift: int) -> None:
    if len(stripped) > MAX_CHARS:
        message = f"the cron expression has {len(stripped)} characters, more than {MAX_CHARS}"
        remedy = "write ranges and steps instead of long lists, or split it into several jobs"
        raise CronError(message, shift, shift + len(stripped), remedy)
    for place, character in enumerate(stripped, shift):
        if not (" " <= character <= "~" or character == "\t"):
            message = f"character {character!a} in the cron expression is not supported"
            remedy = "write the five fields on one line, separated by spaces"
            raise CronError(message, place, place + 1, remedy)


def _split(stripped: str, shift: int) -> tuple[list[str], list[int]]:
    """Return the five fields and their offsets; every field of an alias has the offset of the
    alias.
    """
    end = shift + len(stripped)
    if stripped.startswith("@"):
        alias = stripped.lower()
        if alias in ALIASES:
            return ALIASES[alias].split(), [shift] * len(fields.FIELDS)
        reason, remedy = f"{stripped} is not an alias", "write one of " + " ".join(ALIASES)
        if alias == "@reboot":
            reason = "@reboot is not supported: hosts that share a schedule boot at different times"
            remedy = "write five fields"
        elif alias.startswith("@every"):
            remedy = 'write the interval as a step, for example "*/10 * * * *"'
        raise CronError(reason, shift, end, remedy)
    matches = list(re.finditer(r"[^ \t]+", stripped))
    parts = [match.group() for match in matches]
    count = len(fields.FIELDS)
    if len(parts) in (count + 1, count + 2):
        message = (
            f"{len(parts)} fields, but cron has five ({FIELD_NAMES}): seconds and years are not"
            " supported"
        )
        remedy = f'write "{" ".join(parts[1 : count + 1])}" if the first field means seconds'
        raise CronError(message, shift, end, remedy)
    if len(parts) != count:
        number = "1 field" if len(parts) == 1 else f"{len(parts)} fields"
        raise CronError(f"{number}, but cron has five", shift, end, f"write {FIELD_NAMES}")
    return parts, [shift + match.start() for match in matches]
