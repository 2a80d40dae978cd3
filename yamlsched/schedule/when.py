"""When a job fires, from what its keys say together: expressions, first and last date, calendars,
spread.
"""

from __future__ import annotations

from datetime import date
from typing import Any

from yamlsched import durations
from yamlsched.errors import CronError
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.node import Spot
from yamlsched.timetable.calendars import Calendar
from yamlsched.timetable.cron import ALIASES, Cron, combine, parse_cron, smallest_gap


def expression(spot: Spot, findings: Findings) -> Cron | None:
    """Return the cron expression at ``spot``; None after reporting what is wrong with it."""
    text: str = spot.value
    try:
        return parse_cron(text.rstrip("\n") if spot.node.style in (">", "|") else text)
    except CronError as error:
        written = text[error.start : error.end]
        if text.strip().startswith("@"):
            code = "YS203"
        elif len(text.split()) != 5:
            code = "YS202"
        else:
            code = "YS204" if " " in written.strip() else "YS201"
        remedy = error.remedy[:1].upper() + error.remedy[1:]
        remedy += "" if remedy[-1:] in ("", ".", "?") else "."
        if code == "YS203" and "@reboot" not in text:
            remedy = findings.source.did_you_mean(text.strip(), ALIASES, remedy)
        span = findings.source.span_within(spot.node, error.start, error.end)
        findings.error(spot, code, f"{spot}: {error.message}", remedy, span)
        return None


def day(text: str, spot: Spot, findings: Findings) -> date | None:
    """Return the date that ``text``, at ``spot``, names; None after reporting that there is no such
    date.
    """
    try:
        return date.fromisoformat(text)
    except ValueError:
        findings.error(
            spot, "YS125", f"{spot}: there is no {text}", "Write year, month and day: 2026-12-24."
        )
        return None


def build_calendars(root: Spot, findings: Findings) -> dict[str, Calendar | None]:
    """Return the calendars of the file, by name; None for an entry that is not valid."""
    return {
        str(entry.path[-1]): _calendar(entry, findings) if findings.is_valid(entry) else None
        for entry in root.entries("calendars")
    }


def _calendar(entry: Spot, findings: Findings) -> Calendar | None:
    dates: list[tuple[date, date]] = []
    for item in entry.child("dates").children():
        first, last = (day(text, item, findings) for text in (item.value.split("/") * 2)[:2])
        if first and last and last < first:
            findings.error(
                item,
                "YS125",
                f"{item} ends on {last}, before it starts on {first}",
                "Swap the two dates.",
            )
        elif first and last:
            dates.append((first, last))
    spot = entry.get("until")
    until = day(spot.value, spot, findings) if spot else None
    return Calendar(str(entry.path[-1]), tuple(dates), until) if findings.is_valid(entry) else None


def combine_cron(values: dict[str, Any], own: Spot, findings: Findings) -> None:
    """Make one value of all that decides the slots of a job."""
    expression, expressions = values.get("cron"), values.pop("crons", None)
    every = values.pop("every", None) or 1
    if every > 1 and "starts_on" not in values:
        message = f"{own}: every {every}w needs starts_on, whose week is the first that counts"
        remedy = "Add starts_on: with the first date, for example starts_on: 2026-12-07."
        findings.error(own.child("every"), "YS140", message, remedy)
    starts_on, ends_on = values.pop("starts_on", None), values.pop("ends_on", None)
    if starts_on and ends_on and ends_on < starts_on:
        spot = own.get("ends_on") or own.get("starts_on") or own
        findings.error(
            spot,
            "YS125",
            f"{own} ends on {ends_on}, before it starts on {starts_on}",
            "Swap the two dates.",
        )
    elif expression or expressions:
        values["cron"] = combine(
            expressions or [expression], bool(expressions), starts_on, ends_on, every
        )


def limit_spread(values: dict[str, Any], own: Spot, findings: Findings) -> None:
    """Report a ``spread`` that could start a run after the job's next slot; limit one from defaults
    to what fits.
    """
    cron, spread = values.get("cron"), values.get("spread")
    if not cron or not spread or spread <= smallest_gap(cron):
        return
    apart = smallest_gap(cron)
    if "spread" not in own.value:
        values["spread"] = apart
        return
    spot, interval = own.child("spread"), durations.show(apart)
    message = (
        f"{spot}: with {spot.value} a run could start after the next slot; the shortest time"
        f" between two slots is {interval}"
    )
    source = next(key for key in ("cron", "crons", "after") if key in own.value)
    notes = [(own.child(source).key.node.start, f"{source} is here")]
    findings.error(spot, "YS207", message, f"Write {interval} or less.", notes=notes)
