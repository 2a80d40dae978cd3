"""The slots of a cron expression in a time zone: UTC instants, and notes on clock changes. See
docs/time.md.

Everything is counted in whole minutes since 1970: of UTC, and of the local wall clock as if it were
UTC. Within a *stretch*, a span of constant offset, the two differ by it, so a stretch is counted
without visiting its minutes. Aware local datetimes are never compared: Python compares two of one
zone by their wall clocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo

from yamlsched.timetable.cron import HORIZON_YEARS, Cron, matching_days, mismatches

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOCAL_EPOCH = datetime(1970, 1, 1)
FIRST_DAY = date(1970, 1, 1)
MINUTE = timedelta(minutes=1)
ONE_DAY = timedelta(days=1)
DAY = 1440
MAX_SHIFT = 180
"""A gap of at least this length is a day removed from the calendar: its times do not run after it.
"""
WINDOW = 30 * DAY
MARGIN = 3 * DAY
"""A clock change this far outside of a window affects it: offsets differ by less than two days."""
FIRST_MINUTE = -719_000 * DAY
LAST_MINUTE = 2_932_000 * DAY
"""Outside of these (the years 1 and 9997) local time would be out of range for datetime."""


class Slot(NamedTuple):
    """An instant at which an expression fires.

    ``at`` is UTC. ``nominal`` is the naive wall time that the expression names: it differs from the
    wall time of ``at`` if a clock change moved the slot. ``note`` describes the effect of a clock
    change, or is empty.
    """

    at: datetime
    nominal: datetime
    note: str


@dataclass(frozen=True, slots=True)
class Span:
    """A summary of the slots in a span of time. ``count`` is at least 1."""

    first: datetime
    last: datetime
    count: int


class Stretch(NamedTuple):
    """UTC minutes [start, end) during which local = UTC + offset.

    ``reached`` is the local minute that the clock had reached before: lower minutes are a second
    pass. ``again`` is the local minute at which the clock continues after the stretch: minutes from
    there on are a first pass. ``gap`` is the first of the skipped local minutes that fire at
    ``start``; none are skipped if it is start + offset.
    """

    start: int
    end: int
    offset: int
    reached: int
    again: int
    gap: int


class Piece(NamedTuple):
    """Local minutes [low, high) whose matches are slots: all at the UTC minute ``at``, or (None)
    each at its own.

    ``dates`` are the matching dates of the window, as days since 1970.
    """

    low: int
    high: int
    at: int | None
    stretch: Stretch
    dates: tuple[int, ...]


def slots(cron: Cron, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[Slot]:
    """Return the slots of ``cron`` in the half-open span (after, until], oldest first, strictly
    increasing.

    ``cron`` is read on the wall clock of ``zone``. Both ends must be aware. The left end is open so
    that the last slot of one sync is never the first of the next. An instant that several
    expressions name is one slot.
    """
    return map(_slot, _fires(cron, zone, _first_minute(after), _end_minute(until)))


def slot_minutes(cron: Cron, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[int]:
    """Return the slots in (after, until] as minutes since 1970, for counting many of them."""
    fires = _fires(cron, zone, _first_minute(after), _end_minute(until))
    return (fire.minute for fire in fires)


def next_slot(cron: Cron, zone: ZoneInfo, after: datetime) -> Slot | None:
    """Return the first slot after ``after``; None if there is none within 50 years of it."""
    start = _first_minute(after)
    end = min(start + HORIZON_YEARS * 366 * DAY, LAST_MINUTE)
    return next(map(_slot, _fires(cron, zone, start, end)), None)


def newest_slot(cron: Cron, zone: ZoneInfo, after: datetime, until: datetime) -> Slot | None:
    """Return the last slot in (after, until], searched from ``until`` backwards; None if there is
    none.
    """
    fires = _fires(cron, zone, _first_minute(after), _end_minute(until), backwards=True)
    return next(map(_slot, fires), None)


def span(cron: Cron, zone: ZoneInfo, after: datetime, until: datetime) -> Span | None:
    """Return first, last and number of the slots in (after, until]; None if there are none.

    The time grows with the months of the span, not with the number of slots, except for a list of
    expressions.
    """
    newest = newest_slot(cron, zone, after, until)
    if newest is None:
        return None
    start, end = _first_minute(after), _end_minute(until)
    first = next(slots(cron, zone, after, until))
    if cron.parts:
        return Span(first.at, newest.at, sum(1 for _ in slot_minutes(cron, zone, after, until)))
    count = sum(_count(cron, piece) for piece in _pieces(cron, zone, start, end))
    return Span(first.at, newest.at, count)


def mismatch(cron: Cron, zone: ZoneInfo, at: datetime) -> str:
    """Return why ``at`` is not a slot, field by field on the wall clock of ``zone``; "" if it is
    one.
    """
    is_whole = (at - EPOCH) % MINUTE == timedelta(0)
    if is_whole and newest_slot(cron, zone, at - MINUTE, at):
        return ""
    wall = at.astimezone(zone).replace(tzinfo=None)
    each = ["; ".join(mismatches(expression, wall)) for expression in cron.expressions]
    named = [f"{part.expression}: {why}" for part, why in zip(cron.parts, each, strict=False)]
    reasons = [why for why in named or each if why]
    if off := off_week(cron, zone, wall.date()):
        reasons = [*(reasons if all(each) else []), off]
    if not is_whole:
        reasons.insert(0, f"{wall.time().isoformat()} is not a whole minute")
    return (
        "; ".join(reasons)
        or f"{wall:%H:%M} happens twice on {wall.date()}: the slot is its first pass"
    )


def off_week(cron: Cron, zone: ZoneInfo, day: date) -> str:
    """Return that ``every`` leaves out the week of ``day``, and the next date; else ""."""
    if not cron.starts_on or day < cron.starts_on or not cron.is_off_week(day):
        return ""
    slot = next_slot(cron, zone, EPOCH + (day - FIRST_DAY))
    return "off week" + (f", the next is {slot.nominal.date()}" if slot else "")


class ClockChange(NamedTuple):
    """An instant at which the offset of local time from UTC changes."""

    at: datetime
    before: timedelta
    after: timedelta


def clock_changes(zone: tzinfo, after: datetime, until: datetime) -> Iterator[ClockChange]:
    """Yield the clock changes in (after, until]."""
    start, end = _first_minute(after), _end_minute(until)
    before = _offset(zone, start - 1)
    for minute, offset in _changes(zone, start - 1, end - 1):
        yield ClockChange(EPOCH + minute * MINUTE, before * MINUTE, offset * MINUTE)
        before = offset


def _first_minute(after: datetime) -> int:
    return max((after - EPOCH) // MINUTE + 1, FIRST_MINUTE)


def _end_minute(until: datetime) -> int:
    return min((until - EPOCH) // MINUTE + 1, LAST_MINUTE)


class Fire(NamedTuple):
    """A UTC minute that is a slot, and the local minute of ``piece`` that the expression names."""

    minute: int
    piece: Piece
    local: int


def _fires(
    cron: Cron, zone: ZoneInfo, start: int, end: int, backwards: bool = False
) -> Iterator[Fire]:
    """Yield the slots of all expressions in the UTC minutes [start, end), in order of time or in
    reverse. An instant that several expressions name is one slot.
    """
    minute = itemgetter(0)
    each = [_fires_of_one(part, zone, start, end, backwards) for part in cron.expressions]
    together = merge(*each, key=minute, reverse=backwards)
    return (next(same) for _, same in groupby(together, minute))


def _fires_of_one(
    cron: Cron, zone: ZoneInfo, start: int, end: int, backwards: bool
) -> Iterator[Fire]:
    for piece in _pieces(cron, zone, start, end, backwards):
        for local in _matches(cron, piece, backwards):
            minute = local - piece.stretch.offset if piece.at is None else piece.at
            yield Fire(minute, piece, local)


def _slot(fire: Fire) -> Slot:
    piece, local = fire.piece, fire.local
    stretch, at = piece.stretch, EPOCH + fire.minute * MINUTE
    nominal = LOCAL_EPOCH + local * MINUTE
    note = ""
    if piece.at is not None:
        runs = LOCAL_EPOCH + (stretch.start + stretch.offset) * MINUTE
        day = "" if runs.date() == nominal.date() else f"{runs.date()} "
        note = (
            f"{nominal:%H:%M} does not exist on {nominal.date()} (clocks go forward): runs at"
            f" {day}{runs:%H:%M}"
        )
    elif local < stretch.reached:
        note = "second pass"
    elif local >= stretch.again:
        note = "first pass"
    return Slot(at, nominal, note)


def _pieces(
    cron: Cron, zone: ZoneInfo, start: int, end: int, backwards: bool = False
) -> Iterator[Piece]:
    """Yield the parts of the UTC minutes [start, end) that may contain slots, in order of time or
    in reverse.
    """
    only = [calendar.dates[-1][1] for calendar in cron.only_on if calendar.dates]
    bounds = (cron.starts_on or date.min, max(only, default=cron.ends_on or date.max))
    first, last = ((day - FIRST_DAY).days for day in bounds)
    start, end = max(start, first * DAY - MARGIN), min(end, (last + 1) * DAY + MARGIN)
    windows = range(start // WINDOW, -(-end // WINDOW))
    for number in reversed(windows) if backwards else windows:
        dates = _dates(cron.date_fields, number)
        if cron.is_limited:
            dates = tuple(nth for nth in dates if cron.has_slots_on(FIRST_DAY + nth * ONE_DAY))
        if not dates:
            continue
        pieces = [
            piece
            for stretch in _stretches(zone, number)
            for piece in _cut(cron, dates, stretch, start, end)
        ]
        yield from reversed(pieces) if backwards else pieces


def _cut(
    cron: Cron, dates: tuple[int, ...], stretch: Stretch, start: int, end: int
) -> Iterator[Piece]:
    begin, offset = stretch.start, stretch.offset
    low, high = max(begin, start) + offset, min(stretch.end, end) + offset
    if not cron.wildcard:
        low = max(low, stretch.reached)
        # a matching time right after the gap replaces the skipped ones: one instant is one slot
        after_gap = Piece(begin + offset, begin + offset + 1, None, stretch, dates)
        if stretch.gap < begin + offset and start <= begin < end and not _count(cron, after_gap):
            yield Piece(stretch.gap, begin + offset, begin, stretch, dates)
    if low < high:
        yield Piece(low, high, None, stretch, dates)


def _matches(cron: Cron, piece: Piece, backwards: bool = False) -> Iterator[int]:
    """Yield the local minutes of ``piece`` that are slots; of a gap only the last, which names its
    one slot.
    """
    in_gap = piece.at is not None
    step = -1 if backwards or in_gap else 1
    first, end = (
        bisect_left(piece.dates, piece.low // DAY),
        bisect_left(piece.dates, -(-piece.high // DAY)),
    )
    for day in piece.dates[first:end][::step]:
        earliest, latest = (
            bisect_left(cron.times, edge - day * DAY) for edge in (piece.low, piece.high)
        )
        for time in cron.times[earliest:latest][::step]:
            yield day * DAY + time
            if in_gap:
                return


def _count(cron: Cron, piece: Piece) -> int:
    if piece.at is not None:
        return sum(1 for _ in _matches(cron, piece))

    def before(edge: int) -> int:
        day, time = divmod(edge, DAY)
        index = bisect_left(piece.dates, day)
        is_match = index < len(piece.dates) and piece.dates[index] == day
        return index * len(cron.times) + (bisect_left(cron.times, time) if is_match else 0)

    return before(piece.high) - before(piece.low)


@lru_cache(maxsize=8192)
def _dates(date_fields: tuple[str, str, str], number: int) -> tuple[int, ...]:
    """Return the matching local dates, as days since 1970, in and around window ``number``."""
    first, end = (number * WINDOW - MARGIN) // DAY, ((number + 1) * WINDOW + MARGIN) // DAY
    days = [FIRST_DAY + nth * ONE_DAY for nth in range(first, end)]
    return tuple(
        nth
        for nth, day in enumerate(days, first)
        if day.day in matching_days(date_fields, day.year, day.month)
    )


@lru_cache(maxsize=4096)
def _stretches(zone: tzinfo, number: int) -> tuple[Stretch, ...]:
    """Return the stretches of constant offset of which window ``number`` consists."""
    start, end = number * WINDOW, (number + 1) * WINDOW
    changes = _changes(zone, start - MARGIN, end + MARGIN)
    known = [(start - MARGIN, _offset(zone, start - MARGIN)), *changes]
    stretches = []
    for index, (begin, offset) in enumerate(known):
        finish, goes_on = end + MARGIN, end + MARGIN + offset
        if index + 1 < len(known):
            finish, goes_on = known[index + 1][0], known[index + 1][0] + known[index + 1][1]
        reached = max((known[i + 1][0] + known[i][1] for i in range(index)), default=begin + offset)
        local = begin + offset
        gap = reached if reached < local < reached + MAX_SHIFT else local
        if max(begin, start) < min(finish, end):
            if begin < start:
                begin, gap = start, start + offset
            stretches.append(Stretch(begin, min(finish, end), offset, reached, goes_on, gap))
    return tuple(stretches)


def _offset(zone: tzinfo, minute: int) -> int:
    """Return the offset at a UTC minute, in minutes; the odd seconds of local mean times are
    rounded down.
    """
    minute = min(max(minute, FIRST_MINUTE), LAST_MINUTE)
    offset = (EPOCH + minute * MINUTE).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // MINUTE


def _changes(zone: tzinfo, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the minutes in (start, end] at which the offset changes, each with the new one.

    One probe a day finds every change: no zone has two changes within six days.
    """
    before = _offset(zone, start)
    for probe in range(start, end, DAY):
        minutes = range(probe + 1, min(probe + DAY, end) + 1)
        after = _offset(zone, minutes[-1])
        if after != before:
            yield next(minute for minute in minutes if _offset(zone, minute) == after), after
        before = after
