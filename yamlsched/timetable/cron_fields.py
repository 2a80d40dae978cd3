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


BY_MONTH = re.compile("l(?:-([1-9]|[12][0-9]|30))?|(l|[1-9]|[12][0-9]|3[01])w", re.IGNORECASE)
"""What day-of-month may be, beside numbers: ``L``, ``L-3``, ``LW``, ``15W``."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One of the five fields. ``size`` is the number of different values, and the largest valid
    step.

    ``alone`` and ``listed`` are what it may be instead of numbers and ranges, by itself and as an
    element of a list. ``last`` may end a range, as the highest value.
    """

    name: str
    low: int
    high: int
    size: int
    names: dict[str, int] = dataclasses.field(default_factory=dict)
    alone: str = r"\*"
    listed: str = r"\*/[0-9]+"
    last: str | None = None
    others: str = ""

    def error(self, text: str, at: int, reason: str, remedy: str) -> CronError:
        """Return the error about a part of the field, at offset ``at``."""
        return CronError(f"{self.name} {text} {reason}", at, at + len(text), remedy)

    def value(self, text: str, item: str, at: int) -> int:
        """Return the number of a value in ``item``, which is at offset ``at``."""
        if text in self.names:
            return self.names[text]
        if text.isdecimal() and self.low <= int(text) <= self.high:
            return int(text)
        names = f" or one of {' '.join(self.names)}" if self.names else ""
        remedy = f"write a number from {self.low} to {self.high}{names}{self.others}"
        raise self.error(item, at, f"is not in {self.low}-{self.high}", remedy)


FIELDS = (
    FieldRule("minute", 0, 59, 60),
    FieldRule("hour", 0, 23, 24),
    FieldRule(
        "day-of-month",
        1,
        31,
        31,
        alone=rf"[*?]|{BY_MONTH.pattern}",
        listed=r"\*/[0-9]+|l",
        last="l",
        others=", L for the last day, or, alone, L-3, LW or 15W",
    ),
    FieldRule("month", 1, 12, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    FieldRule(
        "day-of-week",
        0,
        7,
        7,
        {name: number for number, name in enumerate(WEEKDAYS)},
        alone="[*?]",
        listed=rf"\*/[0-9]+|l[0-7]|([0-7]|{'|'.join(WEEKDAYS)})#[1-5]",
        last="sun",
        others=", 1#2 for the second Monday, or L5 for the last Friday",
    ),
)
MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK = range(5)
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


def _check_field(rule: FieldRule, field: str) -> None:
    """Raise CronError unless each element of the list has one meaning only."""
    texts, at = field.split(","), 0
    if "" in texts:
        remedy = "write a value between every two commas, and none after the last"
        raise rule.error(field, 0, "has an empty item in its list", remedy)
    for text in texts:
        is_alone = len(texts) == 1 and re.fullmatch(rule.alone, text.lower())
        if not is_alone:
            _check_item(rule, text, at)
        at += len(text) + 1
    if rule.name == "day-of-week" and uses_nth(field) and not all(map(uses_nth, texts)):
        remedy = "write # or L with every weekday of the list, or split it into two jobs"
        raise rule.error(field, 0, "mixes plain weekdays with # or L", remedy)


def _check_item(rule: FieldRule, item: str, at: int) -> None:
    base, slash, step = item.lower().partition("/")
    if slash and not (step.isdecimal() and 1 <= int(step) <= rule.size):
        remedy = f"write a step from 1 to {rule.size}"
        raise rule.error(item, at, f"has a step that is not in 1-{rule.size}", remedy)
    if re.fullmatch(rule.listed, item.lower()):
        return
    low, dash, high = base.partition("-")
    first = rule.value(low, item, at)
    last = rule.low + rule.size - 1 if slash else first
    if dash:
        last = rule.high if high == rule.last else rule.value(high, item, at)
    if first > last or (dash and (first == last or low == high)):
        reason = "is not a range from a lower to a higher value"
        raise rule.error(item, at, reason, "write its values, or two ranges, as a list")


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
