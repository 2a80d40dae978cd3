"""G2: every slot up to a job's cursor has a run or lies in exactly one gap. Slots are computed minute by minute."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .evidence import Evidence, Version, seconds

MINUTE = 60


def fires(cron: str, slot: int) -> bool:
    """Return whether an expression that restricts only minutes fires at ``slot``, in seconds."""
    minute = slot // MINUTE % 60
    field = cron.split()[0]
    span, _, step = field.partition("/")
    first = 0 if span == "*" else int(span.partition("-")[0])
    return minute >= first and (minute - first) % int(step or 1) == 0


def minutes(after: float, until: float) -> Iterator[int]:
    """Yield the full minutes in (after, until]."""
    slot = (int(after) // MINUTE + 1) * MINUTE
    while slot <= until:
        yield slot
        slot += MINUTE


def eras(versions: list[Version]) -> list[tuple[float, float | None, str]]:
    """Return the expressions of a job, as (since, until, expression)."""
    found: list[list[object]] = []
    for version in versions:
        cron = version.row["schedule"]
        if cron is not None and (not found or found[-1][2] != cron):
            since = seconds(version.row["effective_from"])
            if found:
                found[-1][1] = since
            found.append([since, None, cron])
    return [tuple(era) for era in found]  # type: ignore[misc]


def check_slots(e: Evidence, now: float) -> Iterator[str]:
    for definition in e.tables["definitions"]:
        if definition["schedule"] is not None:
            yield from _check_job(
                e,
                definition["id"],
                definition["job_type"],
                seconds(definition["last_slot_at"]),
                now,
            )


def _check_job(e: Evidence, job: int, name: str, cursor: float | None, now: float) -> Iterator[str]:
    expected = {
        slot
        for after, until, cron in eras(e.definitions[job])
        for slot in minutes(after, until or now)
        if fires(cron, slot)
    }
    made: list[int] = []
    for versions in e.runs.values():
        row = versions[0].row
        is_gap = versions[-1].row.get("unreleased")  # the slot has become a gap
        was_undone = versions[-1].op == "DELETE" and (
            is_gap or versions[-1].xact == versions[0].xact
        )
        if row["definition_id"] == job and row["scheduled_for"] and not was_undone:
            made.append(int(seconds(row["scheduled_for"]) or 0))
    gaps = [
        (
            int(seconds(g["first_slot"]) or 0),
            int(seconds(g["last_slot"]) or 0),
            g["slots"],
            g["reason"],
        )
        for g in e.tables["gaps"]
        if g["definition_id"] == job
    ]
    for slot in {slot for slot in made if made.count(slot) > 1}:
        yield f"{name}: slot {slot} has {made.count(slot)} runs"
    for one, other in pairwise(gaps):
        if one[1] >= other[0]:
            yield f"{name}: the gaps {one} and {other} overlap"
    for first, last, number, reason in gaps:
        inside = {slot for slot in expected if first <= slot <= last}
        if len(inside) != number or not {first, last} <= inside:
            yield f"{name}: the gap {first}..{last} ({reason}) records {number} slots, but contains {sorted(inside)}"
    for slot in expected:
        if cursor is not None and slot <= cursor and slot not in made:
            number = sum(first <= slot <= last for first, last, _, _ in gaps)
            if number != 1:
                yield f"{name}: slot {slot} has no run and lies in {number} gaps"
    if cursor is None or any(slot > cursor and slot <= now - 2 * MINUTE for slot in expected):
        yield f"{name}: its cursor is {cursor}, but the time is {now:.0f}"
