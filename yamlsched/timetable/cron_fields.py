"""One field of a cron expression: its syntax, and the values that it stands for. See docs/cron.md.

croniter expands a field into values. What it would read in another way than intended is refused
before. Results are cached by field, because ten thousand jobs share a few hundred fields.
"""

from __future__ import annotations

import dataclasses
import re
from calendar import monthrange
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from croniter import croniter

from yamlsched.errors import CronError

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One of the five fields. ``size`` is the number of different values, and the largest valid
    step.
    """

    name: str
    low: int
    high: int
    size: int
    names: dict[str, int] = dataclasses.field(default_factory=dict)


FIELDS = (
    FieldRule("minute", 0, 59, 60),
    FieldRule("hour", 0, 23, 24),
    FieldRule("day-of-month", 1, 31, 31),
    FieldRule("month", 1, 12, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    FieldRule("day-of-week", 0, 7, 7, {name: number for number, name in enumerate(WEEKDAYS)}),
)
MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK = range(5)
BY_MONTH = re.compile("l(?:-([1-9]|[12][0-9]|30))?|(l|[1-9]|[12][0-9]|3[01])w", re.IGNORECASE)
"""What day-of-month may be, beside numbers: ``L``, ``L-3``, ``LW``, ``15W``."""
SATURDAY = 5


class FieldValues(NamedTuple):
    """The values of a field. Sunday is 0.

    ``by_month`` is the ``BY_MONTH`` of day-of-month, or empty. ``nth`` has (weekday, n) for ``#``
    in day-of-week, and (weekday, "l") for ``L5``; ``plain`` is empty then.
    """

    plain: tuple[int, ...]
    by_month: str
    nth: frozenset[tuple[int, int | str]]


def uses_nth(day_of_week: str) -> bool:
    """Return whether a day-of-week field names the n-th or the last such weekday of a month."""
    return "#" in day_of_week or "l" in day_of_week.lower()


def is_computed(day_of_month: str) -> bool:
    """Return whether a day-of-month field is ``L-3``, ``LW`` or ``15W``, which stand alone."""
    return bool(BY_MONTH.fullmatch(day_of_month)) and day_of_month.lower() != "l"


def month_day(by_month: str, year: int, month: int) -> int:
    """Return the day that ``by_month`` names in a month; one out of its range if it has none.

    >>> month_day("15W", 2026, 11), month_day("LW", 2026, 5), month_day("L-3", 2026, 2)
    (16, 29, 25)
    """
    first_weekday, length = monthrange(year, month)
    back, near = _parts(by_month)
    day = int(near) if near.isdigit() else length - back
    if not near or day > length:
        return day
    weekdays = [n for n in range(1, length + 1) if (first_weekday + n - 1) % 7 < SATURDAY]
    return min(weekdays, key=lambda n: abs(n - day))


def _parts(by_month: str) -> tuple[int, str]:
    match = BY_MONTH.fullmatch(by_month)
    assert match is not None
    return int(match[1] or 0), match[2] or ""


@lru_cache(maxsize=4096)
def field_values(index: int, field: str) -> FieldValues:
    """Return the values of ``field``, the string of field number ``index``.

    Raises CronError with offsets into ``field``.
    """
    _check_field(FIELDS[index], field)
    return _expand(index, field)


class Item(NamedTuple):
    """A part of a field, at offset ``at`` of the field: an element of its list, or a
    value in one.
    """

    rule: FieldRule
    text: str
    at: int

    def part(self, start: int, length: int) -> Item:
        return Item(self.rule, self.text[start : start + length], self.at + start)

    def error(self, reason: str, remedy: str) -> CronError:
        """Return the error about the whole item; ``reason`` continues the name of the field and the
        item.
        """
        message = f"{self.rule.name} {self.text}{reason}"
        return CronError(message, self.at, self.at + len(self.text), remedy)


def _check_field(rule: FieldRule, field: str) -> None:
    texts = field.split(",")
    at = 0
    for text in texts:
        if not text:
            message = f"{rule.name} {field} has an empty item in its list"
            remedy = "write a value between every two commas, and none after the last"
            raise CronError(message, max(0, at - 1), max(at, 1), remedy)
        item = Item(rule, text, at)
        if text in ("*", "?") and len(texts) > 1:
            raise item.error(" in a list already means every value", f"write {text} alone")
        _check_item(item)
        if len(texts) > 1 and is_computed(text):
            remedy = f"write {text} alone; crons takes several expressions"
            raise item.error(" is not supported in a list", remedy)
        at += len(text) + 1
    if rule.name == "day-of-week" and uses_nth(field) and not all(map(uses_nth, texts)):
        remedy = "write # or L with every weekday of the list, or split it into two jobs"
        raise Item(rule, field, 0).error(" mixes plain weekdays with # or L", remedy)


def _check_item(item: Item) -> None:
    """Raise CronError for an element of a list unless it has one meaning only."""
    rule, lower = item.rule, item.text.lower()
    if re.fullmatch(r"[hr](\(.*)?(/.*)?", lower):
        raise item.error(
            f": {item.text[0].upper()} (a hashed or random value) is not supported",
            "write a number of your choice; spread moves many jobs apart",
        )
    if lower == "?" and not rule.name.startswith("day"):
        raise item.error(" is only for the two day fields", "write *")
    base, slash, step = lower.partition("/")
    if slash:
        _check_step(item, step)
        if not base:
            raise item.error(": the step has no value before it", f"write */{step}")
    if base == "*" or lower == "?":
        return
    if rule.name == "day-of-month" and re.fullmatch("l.*|.*[0-9l]w.*|w[0-9]*", lower):
        if BY_MONTH.fullmatch(lower):
            return
        remedy = (
            "write 15W for the weekday nearest to the 15th, LW for the last weekday of the month,"
            " L-3 for three days before its last day"
        )
        raise item.error(" is none of L, L-1 to L-30, LW, and 1W to 31W", remedy)
    if rule.name == "day-of-week":
        if "#" in base:
            _check_nth(item)
            return
        if re.fullmatch(r"l[0-7]", lower):
            return
        if "l" in base:
            remedy = "write L5 for the last Friday of the month"
            raise item.error(": L belongs before the number of a weekday", remedy)
    low, dash, high = base.partition("-")
    if dash and low and high:
        _check_range(item, low, high)
    elif dash:
        raise item.error(" is an incomplete range", f"write for example {rule.low}-{rule.high}")
    elif _value(item.part(0, len(base))) == 7 and slash and rule.name == "day-of-week":
        raise item.error(" is ambiguous", f"write 0/{step}, or 0 for Sunday")


def _check_step(item: Item, step: str) -> None:
    size, reason = item.rule.size, ""
    if not re.fullmatch(r"[0-9]+", step):
        reason = f'the step "{step}" is not a number'
    elif int(step) == 0:
        reason = "a step of 0 never moves"
    elif int(step) > size:
        reason = f"the field has only {size} values"
    if reason:
        raise item.error(f": {reason}", f"write a step from 1 to {size}")


def _check_nth(item: Item) -> None:
    weekday = item.text.partition("#")[0]
    if weekday and "-" not in weekday:
        _value(item.part(0, len(weekday)))
    if not re.fullmatch(r"[a-zA-Z0-9]+#[1-5]", item.text):
        remedy = "write 1#2 for the second Monday of the month"
        raise item.error(": # belongs between one weekday and a number from 1 to 5", remedy)


def _check_range(item: Item, low: str, high: str) -> None:
    rule = item.rule
    first = _value(item.part(0, len(low)))
    is_last_day = high == "l" and rule.name == "day-of-month"
    last = rule.high if is_last_day else _value(item.part(len(low) + 1, len(high)))
    if high == "sun":
        last = 7
    if first == last or low == high:
        raise item.error(" is a range of a single value", f"write {item.text[: len(low)]}")
    if first > last:
        raise item.error(" is a reversed range", _forwards(rule, item.text, first, last))


def _forwards(rule: FieldRule, item: str, first: int, last: int) -> str:
    if "/" in item:
        return "write its values as a list"
    if rule.name == "day-of-week" and first == 7:
        return f"write 0-{last}"
    highest = rule.low + rule.size - 1
    before = f"{first}-{highest}" if first < highest else f"{highest}"
    behind = f"{rule.low}-{last}" if rule.low < last else f"{rule.low}"
    return f"write {before},{behind}"


def _value(item: Item) -> int:
    rule, text = item.rule, item.text
    bounds = f"{rule.low}-{rule.high}"
    remedy = f"write a number from {rule.low} to {rule.high}"
    if re.fullmatch(r"[0-9]+", text):
        if not rule.low <= int(text) <= rule.high:
            raise item.error(f" is not in {bounds}", remedy)
        return int(text)
    if text.lower() in rule.names:
        return rule.names[text.lower()]
    reason = f"is not a number in {bounds}"
    if rule.names:
        reason = f"is neither in {bounds} nor a name"
        short = text[:3].lower()
        is_long_name = len(text) > 3 and short in rule.names
        remedy = (
            f"write {short}" if is_long_name else f"write a number or one of {' '.join(rule.names)}"
        )
    raise CronError(f'{rule.name} "{text}" {reason}', item.at, item.at + len(text), remedy)


def _expand(index: int, field: str) -> FieldValues:
    rule = FIELDS[index]
    items = field.split(",")
    # croniter 7.0 turns "2-31,l" into "*", and reads 15W as 15
    by_month = [item for item in items if index == DAY_OF_MONTH and BY_MONTH.fullmatch(item)]
    numbers = [item for item in items if item not in by_month]
    expression = ["*"] * len(FIELDS)
    expression[index] = ",".join(numbers) or "*"
    try:
        expanded, nth = croniter.expand(" ".join(expression))
    except ValueError as error:
        raise CronError(
            f"{rule.name} {field} cannot be read", 0, len(field), "write numbers and ranges"
        ) from error
    values = expanded[index]
    everything = tuple(range(rule.low, rule.low + rule.size))
    plain = everything if values == ["*"] else tuple(sorted(int(value) for value in values))
    return FieldValues(
        plain=plain if numbers and not nth else (),
        by_month=by_month[0].lower() if by_month else "",
        nth=frozenset((int(weekday), n) for weekday, ns in nth.items() for n in ns),
    )
