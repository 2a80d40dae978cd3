"""Warnings about cron expressions."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from yamlsched.schedule.job import Job
from yamlsched.schedule.lint import Linter
from yamlsched.text import join_words
from yamlsched.timetable import cron_fields, slots, zones
from yamlsched.timetable.cron import (
    Cron,
    is_restricted,
    matching_days,
)

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
GO_BACK = "(clocks go back): runs only the first time"


def clock_change(linter: Linter, job: Job, cron: Cron) -> None:
    if not job.enabled:
        return
    zone = zones.zone(job.timezone)
    notes: list[str] = []
    for change in _clock_changes(zone, linter.now):
        if cron.wildcard:
            notes += _lost_slots(cron, zone, change)
            continue
        near = list(slots.slots(cron, zone, change - 25 * HOUR, change + 3 * HOUR))
        notes += [slot.note for slot in near if "does not exist" in slot.note][:1]
        repeated = [slot.nominal for slot in near if slot.note == "first pass"]
        notes += [f"{wall:%H:%M} occurs twice on {wall.date()} {GO_BACK}" for wall in repeated[:1]]
    if notes:
        remedy = "Choose an hour without clock changes, or suppress this warning."
        linter.warn_about_cron("YS401", job, 1, "; ".join(notes), remedy)


@lru_cache(maxsize=1024)
def _clock_changes(zone: ZoneInfo, now: datetime) -> list[datetime]:
    """Return when the offset of ``zone`` changes in the year after ``now``."""
    return [change.at for change in slots.clock_changes(zone, now, now + timedelta(days=366))]


def _lost_slots(cron: Cron, zone: ZoneInfo, change: datetime) -> list[str]:
    """Return a note if a gap contains all slots of a date of an expression that names its hours."""
    before = (change - MINUTE).astimezone(zone).replace(tzinfo=None) + MINUTE
    after = change.astimezone(zone).replace(tzinfo=None)
    if after <= before or cron.fields[cron_fields.HOUR].startswith("*"):
        return []
    for day in sorted({before.date(), (after - MINUTE).date()}):
        midnight = datetime.combine(day, time())
        is_gone = all(
            before <= midnight + timedelta(minutes=minute) < after for minute in cron.times
        )
        days = matching_days(cron.date_fields, day.year, day.month)
        if is_gone and day.day in days and not cron.is_off_week(day):
            return [f"no slot on {day}, when {before:%H:%M} to {after:%H:%M} does not exist"]
    return []


def day_fields(linter: Linter, job: Job, cron: Cron) -> None:
    month_day, weekday = cron.fields[cron_fields.DAY_OF_MONTH], cron.fields[cron_fields.DAY_OF_WEEK]
    if not (is_restricted(month_day) and is_restricted(weekday)):
        return
    days = f"each day-of-month {month_day} and on each day-of-week {weekday}"
    message = f"it fires on {days}, not only when both match"
    if month_day.startswith("*/") or weekday.startswith("*/"):
        message += ", as Debian's cron would"
    remedy = "Write * in one of them, or split the job into two."
    linter.warn_about_cron("YS402", job, cron_fields.DAY_OF_MONTH, message, remedy)


def uneven_steps(linter: Linter, job: Job, cron: Cron) -> None:
    for index, (text, rule) in enumerate(zip(cron.fields, cron_fields.FIELDS, strict=True)):
        step = re.fullmatch(r"\*/([0-9]+)", text)
        values = cron_fields.field_values(index, text).plain if step else ()
        size = int(step[1]) if step else 1
        if len(values) < 2 or index == cron_fields.DAY_OF_WEEK or rule.size % size == 0:
            continue
        if index == cron_fields.DAY_OF_MONTH and is_restricted(
            cron.fields[cron_fields.DAY_OF_WEEK]
        ):
            continue
        if index == cron_fields.DAY_OF_MONTH:
            message = (
                f"day-of-month {text} starts over every month: the last interval is not {size} days"
            )
            remedy = "Write the days as a list."
            if size in (14, 21):
                remedy = f"For weeks write a weekday, every: {size // 7}w and starts_on."
        else:
            left = rule.size - values[-1] + values[0]
            shorter = f"{left} {rule.name}{'s' * (left > 1)}"
            message = (
                f"{rule.name} {text} is uneven: after {values[-1]} comes {values[0]}, only"
                f" {shorter} later"
            )
            remedy = (
                "Even steps are"
                f" {join_words([str(n) for n in range(2, rule.size) if rule.size % n == 0])}."
            )
        linter.warn_about_cron("YS403", job, index, message, remedy)


def missing_days(linter: Linter, job: Job, cron: Cron) -> None:
    if is_restricted(cron.fields[cron_fields.DAY_OF_WEEK]):
        return
    text = cron.fields[cron_fields.DAY_OF_MONTH]
    named = cron_fields.field_values(cron_fields.DAY_OF_MONTH, text)
    months = cron_fields.field_values(cron_fields.MONTH, cron.fields[cron_fields.MONTH]).plain
    common_year = 2025
    without = [month for month in months if not matching_days(cron.date_fields, common_year, month)]
    if without:
        names = join_words([cron_fields.MONTHS[month - 1].capitalize() for month in without], "and")
        message = f"day-of-month {text} is not in every month: no slot in {names} in most years"
        remedy = "Write L for the last day of the month."
        if text.lower().endswith("w"):
            remedy = "Write LW for the last weekday of the month."
        elif "-" in named.by_month:
            remedy = "Write at most L-27."
        if list(months) == [2]:  # L would fire on 28 February
            remedy = (
                "For leap days only, add: # yamlsched: ignore[YS404]. For the last day of February"
                " write L."
            )
        linter.warn_about_cron("YS404", job, cron_fields.DAY_OF_MONTH, message, remedy)


def no_slots(linter: Linter, job: Job) -> None:
    cron = job.cron
    if cron is None or cron.starts_on is None or not linter.is_written(job, "cron", "crons"):
        return
    zone = zones.zone(job.timezone)
    start = datetime.combine(cron.starts_on, time(), zone) - MINUTE
    if slots.next_slot(job.fires or cron, zone, start) is None:
        until = f" until {cron.ends_on}" if cron.ends_on else ", for decades"
        message = f"it never fires: no slot from {cron.starts_on}{until}"
        remedy = "Correct the expression, every, the two dates, or the calendars."
        linter.warn_about_cron("YS440", job, None, message, remedy)
