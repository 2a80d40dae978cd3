"""Warnings about cron expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from yamlsched.schedule.job import Job
from yamlsched.schedule.lint import Linter
from yamlsched.schedule.source import Finding
from yamlsched.text import join_words
from yamlsched.timetable import cron_fields, slots, zones
from yamlsched.timetable.cron import Cron, is_restricted, matching_days

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
GO_BACK = "(clocks go back): runs only the first time"
COMMON_YEAR = 2025


def check(linter: Linter, job: Job) -> None:
    """Report each problem of a job's expressions at the field that has it."""
    spot = linter.loaded.written(job.name, "crons" if job.crons else "cron")
    if job.cron is None or spot is None:
        return
    zone = zones.zone(job.timezone)
    for place, cron in zip([*spot.children()] or [spot], job.cron.expressions, strict=True):
        found = [*day_fields(cron), *uneven_steps(cron), *missing_days(cron)]
        if job.enabled:
            found += clock_changes(cron, zone, linter.now)
        words = list(re.finditer(r"\S+", place.value))
        for field, (code, message, remedy) in found:
            word = words[field] if len(words) > 1 else words[0]
            span = linter.findings.source.span_within(place.node, *word.span())
            linter.findings.warning(place, code, f"{place}: {message}", remedy, span)
    if job.starts_on:
        start = datetime.combine(job.starts_on, time(), zone) - MINUTE
        if slots.next_slot(job.fires or job.cron, zone, start) is None:
            until = f"until {job.ends_on}" if job.ends_on else "for decades"
            message = f"it never fires: no slot from {job.starts_on} {until}"
            remedy = "Correct the expression, every, the two dates, or the calendars."
            linter.findings.warning(spot, "YS440", f"{spot}: {message}", remedy)


def clock_changes(cron: Cron, zone: ZoneInfo, now: datetime) -> Iterator[tuple[int, Finding]]:
    notes: list[str] = []
    for change in _clock_changes(zone, now):
        if cron.wildcard:
            notes += _lost_day(cron, zone, change)
            continue
        near = list(slots.slots(cron, zone, change - 25 * HOUR, change + 3 * HOUR))
        notes += [slot.note for slot in near if "does not exist" in slot.note][:1]
        repeated = [slot.nominal for slot in near if slot.note == "first pass"]
        notes += [f"{wall:%H:%M} occurs twice on {wall.date()} {GO_BACK}" for wall in repeated[:1]]
    if notes:
        remedy = "Choose an hour without clock changes, or suppress this warning."
        yield cron_fields.HOUR, Finding("YS401", "; ".join(notes), remedy)


@lru_cache(maxsize=1024)
def _clock_changes(zone: ZoneInfo, now: datetime) -> list[datetime]:
    """Return when the offset of ``zone`` changes in the year after ``now``."""
    return [change.at for change in slots.clock_changes(zone, now, now + timedelta(days=366))]


def _lost_day(cron: Cron, zone: ZoneInfo, change: datetime) -> list[str]:
    """Return a note if the clock skips all slots of a date."""
    start = (change - MINUTE).astimezone(zone).replace(tzinfo=None) + MINUTE
    end = change.astimezone(zone).replace(tzinfo=None)
    day, midnight = start.date(), datetime.combine(start, time())
    is_date = day.day in matching_days(cron.date_fields, day.year, day.month)
    if not is_date or cron.is_off_week(day):
        return []
    if all(start <= midnight + minute * MINUTE < end for minute in cron.times):
        return [f"no slot on {day}, because clocks skip {start:%H:%M} to {end:%H:%M}"]
    return []


def day_fields(cron: Cron) -> Iterator[tuple[int, Finding]]:
    month_day, weekday = cron.fields[cron_fields.DAY_OF_MONTH], cron.fields[cron_fields.DAY_OF_WEEK]
    if not (is_restricted(month_day) and is_restricted(weekday)):
        return
    days = f"each day-of-month {month_day} and on each day-of-week {weekday}"
    message = f"it fires on {days}, not only when both match"
    if month_day.startswith("*/") or weekday.startswith("*/"):
        message += ", as Debian's cron would"
    remedy = "Write * in one of them, or split the job into two."
    yield cron_fields.DAY_OF_MONTH, Finding("YS402", message, remedy)


def uneven_steps(cron: Cron) -> Iterator[tuple[int, Finding]]:
    fields = list(zip(cron.fields, cron_fields.FIELDS, strict=True))
    for index, (text, rule) in enumerate(fields[: cron_fields.DAY_OF_WEEK]):
        step = re.fullmatch(r"\*/([0-9]+)", text)
        if step is None or rule.size % int(step[1]) == 0:
            continue
        values = cron_fields.field_values(index, text).plain
        if len(values) > 1:
            message = f"{rule.name} {text} is uneven: after {values[-1]} comes {values[0]}"
            even = [str(size) for size in range(2, rule.size) if rule.size % size == 0]
            remedy = "List the days. For weeks write a weekday, every: 2w and starts_on."
            if index != cron_fields.DAY_OF_MONTH:
                remedy = f"Even steps are {join_words(even)}."
            yield index, Finding("YS403", message, remedy)


def missing_days(cron: Cron) -> Iterator[tuple[int, Finding]]:
    if is_restricted(cron.fields[cron_fields.DAY_OF_WEEK]):
        return
    text = cron.fields[cron_fields.DAY_OF_MONTH]
    months = cron_fields.field_values(cron_fields.MONTH, cron.fields[cron_fields.MONTH]).plain
    without = [
        cron_fields.MONTHS[month - 1].capitalize()
        for month in months
        if not matching_days(cron.date_fields, COMMON_YEAR, month)
    ]
    if without:
        names = join_words(without, "and")
        message = f"day-of-month {text} is not in every month: no slot in {names} in most years"
        remedy = "Write L for the last day of the month, LW for its last weekday."
        if list(months) == [2]:  # L would fire on 28 February
            remedy = "For leap days only, add: # yamlsched: ignore[YS404]. Else write L."
        yield cron_fields.DAY_OF_MONTH, Finding("YS404", message, remedy)
