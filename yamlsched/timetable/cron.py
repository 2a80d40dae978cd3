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
from yamlsched.timetable.calendars import Calendars, skipped_by
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

    ``source`` is what the user wrote, with all that decides the slots. ``wildcard`` selects the
    rule for clock changes; it depends on the spelling, because ``0-59`` and ``*`` differ in nothing
    else. ``times`` are the minutes after midnight at which it fires on a matching date, ascending.
    ``starts_on`` and ``ends_on`` are the first and last local date with slots. Of the ISO weeks
    each ``every``-th counts, from that of ``starts_on`` on. Dates that the calendars skip have no
    slots: see ``without_skipped``. Of a list, ``parts`` are its expressions, and its slots are
    those of all of them: other fields say less.
    """

    source: str
    fields: tuple[str, str, str, str, str]
    wildcard: bool
    times: tuple[int, ...] = field(compare=False, repr=False)
    every: int = 1
    starts_on: date | None = None
    ends_on: date | None = None
    skip_on: Calendars = ()
    only_on: Calendars = ()
    parts: tuple[Cron, ...] = ()

    @property
    def expressions(self) -> tuple[Cron, ...]:
        """The expressions, one or several."""
        return self.parts or (self,)

    @property
    def expression(self) -> str:
        """What it says without dates: with aliases expanded and single spaces."""
        return "; ".join(" ".join(part.fields) for part in self.expressions)

    @property
    def date_fields(self) -> tuple[str, str, str]:
        """The fields that select dates."""
        return self.fields[2:]

    def is_off_week(self, day: date) -> bool:
        """Return whether ``every`` leaves out the ISO week of ``day``."""
        weeks = _week(day) - _week(self.starts_on or date.min)
        return weeks % self.every != 0

    @property
    def is_limited(self) -> bool:
        """Whether dates that the expression matches may have no slots."""
        return bool(self.starts_on or self.ends_on or self.skip_on or self.only_on)

    def has_slots_on(self, day: date) -> bool:
        """Return whether a local date that the expression matches has slots."""
        return (
            (self.starts_on or date.min) <= day <= (self.ends_on or date.max)
            and not self.is_off_week(day)
            and not skipped_by(self.skip_on, self.only_on, day)
        )


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
    if not stripped:
        raise CronError("the cron expression is empty", 0, len(expression), EXAMPLE)
    try:
        return _parse(stripped)
    except CronError as error:
        raise error.moved(expression.index(stripped)) from error


def _parse(stripped: str) -> Cron:
    _check_characters(stripped)
    parts, places = _split(stripped)
    for index, (part, place) in enumerate(zip(parts, places, strict=True)):
        try:
            field_values(index, part)
        except CronError as error:
            raise error.moved(place) from error
    minute, hour, day_of_month, month, day_of_week = parts
    place, end = places[fields.DAY_OF_MONTH], places[fields.DAY_OF_WEEK] + len(day_of_week)
    are_both_restricted = is_restricted(day_of_month) and is_restricted(day_of_week)
    if are_both_restricted and (uses_nth(day_of_week) or is_computed(day_of_month)):
        both = f"day-of-month {day_of_month} together with day-of-week {day_of_week}"
        message = f"{both}: #, L5, L-3 and W allow no other day field"
        remedy = "write * as one of the two, or split it into two jobs"
        raise CronError(message, place, place + len(day_of_month), remedy)
    cron = Cron(
        source=stripped,
        fields=(minute, hour, day_of_month, month, day_of_week),
        wildcard=minute.startswith("*") or hour.startswith("*"),
        times=tuple(
            h * 60 + m
            for h in field_values(fields.HOUR, hour).plain
            for m in field_values(fields.MINUTE, minute).plain
        ),
    )
    years = range(REFERENCE_YEAR, REFERENCE_YEAR + HORIZON_YEARS)
    if not any(matching_days(cron.date_fields, *when) for when in product(years, range(1, 13))):
        dates = (
            f"no date within {HORIZON_YEARS} years has day-of-month {day_of_month} and month"
            f" {month}"
        )
        raise CronError(f"it never fires: {dates}", place, end, "write a day that the month has")
    return cron


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
    bounds = f" every {every}w" if every > 1 else ""
    bounds += f" from {starts_on}" if starts_on else ""
    bounds += f" until {ends_on}" if ends_on else ""
    parts = [
        replace(
            cron,
            source=cron.source + bounds,
            every=every,
            starts_on=starts_on,
            ends_on=ends_on,
        )
        for cron in expressions
    ]
    if not is_list:
        return parts[0]
    return replace(
        parts[0],
        source="; ".join(cron.source for cron in expressions)
        + ";" * (len(expressions) == 1)
        + bounds,
        wildcard=any(cron.wildcard for cron in expressions),
        times=tuple(sorted({time for cron in expressions for time in cron.times})),
        parts=tuple(parts),
    )


def without_skipped(cron: Cron, skip_on: Calendars, only_on: Calendars) -> Cron:
    """Return ``cron`` without the slots that calendars skip."""
    parts = tuple(without_skipped(part, skip_on, only_on) for part in cron.parts)
    return replace(cron, skip_on=skip_on, only_on=only_on, parts=parts)


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
    if bounded is None:
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
    days = {fields.month_day(named.by_month, year, month)} if named.by_month else set()
    on_month_day = days.union(named.plain).intersection(every_day)
    named = field_values(fields.DAY_OF_WEEK, day_of_week)
    on_weekday = {
        day
        for day in every_day
        if (weekday := (first_weekday + day) % 7) in named.plain
        or (weekday, (day + 6) // 7) in named.nth
        or (day + 7 > length and (weekday, "l") in named.nth)
    }
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
    on_days: dict[date, Which] = defaultdict(tuple)
    years = range(REFERENCE_YEAR, REFERENCE_YEAR + CALENDAR_CYCLE_YEARS + 1)
    for (nth, date_fields), year, month in product(enumerate(fields), years, range(1, 13)):
        for day in matching_days(date_fields, year, month):
            on_days[date(year, month, day)] += (nth,)
    pairs: set[tuple[Which, Which, int]] = set()
    for first in range(every):
        dates = [day for day in sorted(on_days) if _week(day) % every == first]
        pairs |= {(on_days[a], on_days[b], (b - a).days) for a, b in pairwise(dates)}
    return frozenset(pairs)


def mismatches(cron: Cron, wall: datetime) -> list[str]:
    """Return a sentence for each field, and each date, that the naive wall time ``wall`` does not
    match.
    """
    weekday = fields.WEEKDAYS[wall.isoweekday() % 7]
    shown = dict(enumerate((wall.minute, wall.hour, wall.day, wall.month, weekday)))
    wrong = [
        index
        for index in (fields.MINUTE, fields.HOUR, fields.MONTH)
        if shown[index] not in field_values(index, cron.fields[index]).plain
    ]
    days = matching_days(cron.date_fields, wall.year, wall.month)
    if fields.MONTH not in wrong and wall.day not in days:
        both = (fields.DAY_OF_MONTH, fields.DAY_OF_WEEK)
        wrong += [index for index in both if is_restricted(cron.fields[index])]
    reasons = [
        f"{fields.FIELDS[index].name} {shown[index]} is not in {cron.fields[index]}"
        for index in wrong
    ]
    if cron.starts_on and wall.date() < cron.starts_on:
        reasons.append(f"{wall.date()} is before starts_on, {cron.starts_on}")
    if cron.ends_on and wall.date() > cron.ends_on:
        reasons.append(f"{wall.date()} is after ends_on, {cron.ends_on}")
    return reasons


def _check_characters(stripped: str) -> None:
    if len(stripped) > MAX_CHARS:
        message = f"the cron expression has {len(stripped)} characters, more than {MAX_CHARS}"
        remedy = "write ranges and steps instead of long lists, or split it into several jobs"
        raise CronError(message, 0, len(stripped), remedy)
    if odd := re.search(r"[^ -~\t]", stripped):
        message = f"character {odd[0]!a} in the cron expression is not supported"
        remedy = "write the five fields on one line, separated by spaces"
        raise CronError(message, *odd.span(), remedy)


def _split(stripped: str) -> tuple[list[str], list[int]]:
    """Return the five fields and their offsets; every field of an alias has the offset of the
    alias.
    """
    end = len(stripped)
    if stripped.startswith("@"):
        alias = stripped.lower()
        if alias in ALIASES:
            return ALIASES[alias].split(), [0] * len(fields.FIELDS)
        remedy = f"write one of {' '.join(ALIASES)}, or five fields"
        raise CronError(f"{stripped} is not an alias", 0, end, remedy)
    matches = list(re.finditer(r"[^ \t]+", stripped))
    parts = [match.group() for match in matches]
    if len(parts) != len(fields.FIELDS):
        number = f"{len(parts)} field{'s' * (len(parts) > 1)}"
        raise CronError(
            f"{number}, but cron has five",
            0,
            end,
            f"write {FIELD_NAMES}: there are no seconds or years",
        )
    return parts, [match.start() for match in matches]
