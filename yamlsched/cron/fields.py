"""One field of a cron expression: what may be written in it, and the values it stands for. See docs/cron.md.

croniter expands a field into values. Whatever it would take in another sense than was meant is refused before. A field
says the same in every expression, so what was learnt of one is kept: ten thousand jobs share a few hundred fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from yamlsched.errors import CronError

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One of the five fields. ``size`` is the number of different values: the largest step that says what it does."""

    name: str
    low: int
    high: int
    size: int
    names: dict[str, int] = field(default_factory=dict)


FIELDS = (
    FieldRule("minute", 0, 59, 60),
    FieldRule("hour", 0, 23, 24),
    FieldRule("day-of-month", 1, 31, 31),
    FieldRule("month", 1, 12, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    FieldRule("day-of-week", 0, 7, 7, {name: number for number, name in enumerate(WEEKDAYS)}),
)
MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK = range(5)
LAST = -1
"""The n of ``L5`` among the pairs of ``FieldValues.nth``: the last such weekday of the month."""


class FieldValues(NamedTuple):
    """What a field stands for. Sunday is 0.

    ``last_day`` is the ``L`` of day-of-month. ``nth`` holds (weekday, n) for ``#`` and ``L`` in day-of-week; ``plain``
    is empty then.
    """

    plain: tuple[int, ...]
    last_day: bool
    nth: frozenset[tuple[int, int]]


def uses_nth(day_of_week: str) -> bool:
    """Say whether a day-of-week field names the n-th or last such weekday of a month."""
    return "#" in day_of_week or "l" in day_of_week.lower()


@lru_cache(maxsize=4096)
def field_values(index: int, part: str) -> FieldValues:
    """Return what ``part`` stands for as field number ``index``.

    Raises CronError with offsets into ``part``.
    """
    _check_field(FIELDS[index], part)
    return _expand(index, part)


def _check_field(rule: FieldRule, part: str) -> None:
    items = part.split(",")
    at = 0
    for item in items:
        end = at + len(item)
        if not item:
            raise CronError(
                f"{rule.name} {part} has an empty item in its list",
                max(0, at - 1),
                max(at, 1),
                "write a value between every two commas, and none after the last",
            )
        if item in ("*", "?") and len(items) > 1:
            raise CronError(
                f"{rule.name} {part}: {item} in a list already means every value", at, end, f"write {item} alone"
            )
        _check_item(rule, item, at)
        at = end + 1
    if rule.name == "day-of-week" and uses_nth(part) and not all(uses_nth(item) for item in items):
        raise CronError(
            f"day-of-week {part} mixes plain weekdays with # or L",
            0,
            len(part),
            "write # or L at every weekday of the list, or split it into two jobs",
        )


def _check_item(rule: FieldRule, item: str, at: int) -> None:
    """Refuse ``item``, one element of a field's list at offset ``at``, unless its meaning is beyond doubt."""
    end = at + len(item)
    days_only = rule.name in ("day-of-month", "day-of-week")
    lower = item.lower()
    if re.fullmatch(r"[hr](\(.*)?(/.*)?", lower):
        letter = item[0].upper()
        raise CronError(
            f"{rule.name} {item}: {letter} (a hashed or random value) is not supported",
            at,
            end,
            "write a number of your choice; spread moves many jobs apart",
        )
    if lower == "?":
        if days_only:
            return
        raise CronError(f"{rule.name} ? is only for the two day fields", at, end, "write *")
    base, slash, step = lower.partition("/")
    if slash:
        _check_step(rule, item, step, end - len(step), end)
        if not base:
            raise CronError(f"{rule.name} {item}: there is nothing before the step", at, end, f"write */{step}")
    if base == "*":
        return
    if rule.name == "day-of-month":
        if base == "l" and not slash:
            return
        if re.fullmatch(r"([0-9]+|l)w|w[0-9]*", base):
            raise CronError(
                f"day-of-month {item}: W (the nearest weekday) is not supported", at, end, "write a day number"
            )
    if rule.name == "day-of-week":
        if "#" in base:
            _check_nth(rule, item, at)
            return
        if re.fullmatch(r"l[0-7]", item.lower()):
            return
        if "l" in base:
            raise CronError(
                f"day-of-week {item}: L belongs before the number of a weekday",
                at,
                end,
                "write L5 for the last Friday of the month",
            )
    low, dash, high = base.partition("-")
    if dash and low and high:
        _check_range(rule, item, low, high, at)
    elif dash:
        raise CronError(f"{rule.name} {item} is half a range", at, end, f"write {rule.low}-{rule.high}, for example")
    else:
        value = _value(rule, item[: len(base)], at)
        if slash and rule.name == "day-of-week" and value == 7:
            raise CronError(f"day-of-week {item} can be read two ways", at, end, f"write 0/{step}, or 0 for Sunday")


def _check_step(rule: FieldRule, item: str, step: str, at: int, end: int) -> None:
    start = min(at, end - 1)
    if not re.fullmatch(r"[0-9]+", step):
        raise CronError(
            f'{rule.name} {item}: the step "{step}" is not a number', start, end, f"write a step from 1 to {rule.size}"
        )
    if not 1 <= int(step) <= rule.size:
        reason = "a step of 0 never moves" if int(step) == 0 else f"the field has only {rule.size} values to step by"
        raise CronError(f"{rule.name} {item}: {reason}", start, end, f"write a step from 1 to {rule.size}")


def _check_nth(rule: FieldRule, item: str, at: int) -> None:
    weekday = item.partition("#")[0]
    if weekday and "-" not in weekday:
        _value(rule, weekday, at)
    if not re.fullmatch(r"[a-zA-Z0-9]+#[1-5]", item):
        raise CronError(
            f"day-of-week {item}: # belongs between one weekday and a number from 1 to 5",
            at,
            at + len(item),
            "write 1#2 for the second Monday of the month",
        )


def _check_range(rule: FieldRule, item: str, low: str, high: str, at: int) -> None:
    end = at + len(item)
    first = _value(rule, item[: len(low)], at)
    if high == "l" and rule.name == "day-of-month":
        last = rule.high
    else:
        last = _value(rule, item[len(low) + 1 : len(low) + 1 + len(high)], at + len(low) + 1)
    if high == "sun":
        last = 7
    if first == last or low == high:
        raise CronError(f"{rule.name} range {item} is a single value", at, end, f"write {item[: len(low)]}")
    if first > last:
        raise CronError(f"{rule.name} range {item} runs backwards", at, end, _forwards(rule, item, first, last))


def _forwards(rule: FieldRule, item: str, first: int, last: int) -> str:
    if "/" in item:
        return "write its values as a list"
    if rule.name == "day-of-week" and last == 0:
        return f"write {first}-7"
    if rule.name == "day-of-week" and first == 7:
        return f"write 0-{last}"
    highest = rule.low + rule.size - 1
    before = f"{first}-{highest}" if first < highest else f"{highest}"
    behind = f"{rule.low}-{last}" if rule.low < last else f"{rule.low}"
    return f"write {before},{behind}"


def _value(rule: FieldRule, text: str, at: int) -> int:
    end = at + len(text)
    remedy = f"write a number from {rule.low} to {rule.high}"
    if re.fullmatch(r"[0-9]+", text):
        if not rule.low <= int(text) <= rule.high:
            raise CronError(f"{rule.name} {text} is not in {rule.low}-{rule.high}", at, end, remedy)
        return int(text)
    number = rule.names.get(text.lower())
    if number is not None:
        return number
    if rule.names:
        names = " ".join(rule.names)
        short = text[:3].lower()
        remedy = f"write {short}" if len(text) > 3 and short in rule.names else f"write a number or one of {names}"
        raise CronError(f'{rule.name} "{text}" is neither in {rule.low}-{rule.high} nor a name', at, end, remedy)
    raise CronError(f'{rule.name} "{text}" is not a number in {rule.low}-{rule.high}', at, end, remedy)


def _expand(index: int, part: str) -> FieldValues:
    # Imported here because it costs more than all the modules of an idle tick that are ours.
    from croniter import croniter
    from croniter.croniter import CroniterError

    rule = FIELDS[index]
    items = part.split(",")
    # croniter 7.0 turns "2-31,l" into "*": the last day is ours.
    numbers = [item for item in items if rule.name != "day-of-month" or item.lower() != "l"]
    expression = ["*"] * len(FIELDS)
    expression[index] = ",".join(numbers) or "*"
    try:
        expanded, nth = croniter.expand(" ".join(expression))
    except CroniterError as error:
        raise CronError(f"{rule.name} {part} cannot be read", 0, len(part), "write numbers and ranges") from error
    found = expanded[index]
    everything = tuple(range(rule.low, rule.low + rule.size))
    plain = everything if found == ["*"] else tuple(sorted(int(value) for value in found))
    return FieldValues(
        plain=plain if numbers and not nth else (),
        last_day=len(numbers) < len(items),
        nth=frozenset((int(weekday), LAST if str(n) == "l" else n) for weekday, ns in nth.items() for n in ns),
    )
