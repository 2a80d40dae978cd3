"""Cron expressions: what is taken, what is refused and where, and which local dates match. See docs/cron.md.

croniter expands the fields into values. Everything it would take in a sense the user did not mean is refused before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache

from yamlsched.errors import CronError

LONGEST = 256
HORIZON_YEARS = 50
REFERENCE_YEAR = 2000
"""An expression must fire within HORIZON_YEARS from here: fixed, so that a file is as valid tomorrow as today."""

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
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
LAYOUT = "minute hour day-of-month month day-of-week"
DAY_OF_MONTH, DAY_OF_WEEK = 2, 4
LAST = -1
"""The n of ``L5`` among the pairs of ``Cron.nth``: the last such weekday of the month."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A sound expression. Two are equal if their texts are; what is expanded from the text does not take part."""

    text: str
    expression: str
    fields: tuple[str, str, str, str, str]
    wildcard: bool
    times: tuple[int, ...] = field(compare=False, repr=False)
    """Minutes after midnight at which it fires on a matching date, ascending."""
    minutes: tuple[int, ...] = field(compare=False, repr=False)
    hours: tuple[int, ...] = field(compare=False, repr=False)
    month_days: frozenset[int] = field(compare=False, repr=False)
    last_day: bool = field(compare=False, repr=False)
    months: frozenset[int] = field(compare=False, repr=False)
    weekdays: frozenset[int] = field(compare=False, repr=False)
    """Sunday is 0. Empty if the field says ``#`` or ``L``: then ``nth`` speaks."""
    nth: frozenset[tuple[int, int]] = field(compare=False, repr=False)


def is_restricted(text: str) -> bool:
    """Say whether a day field takes part in choosing dates, judged by its text as the OR rule does."""
    return text not in ("*", "?")


@lru_cache(maxsize=32768)
def parse(text: str) -> Cron:
    """Return the expression that ``text`` writes.

    Raises CronError with the offsets of the wrong part in ``text``. The work is bounded for any text.
    """
    stripped = text.strip(" \t")
    shift = text.index(stripped) if stripped else 0
    _check_characters(text, stripped, shift)
    source, places = _split(stripped, shift)
    for rule, part, place in zip(FIELDS, source, places, strict=True):
        _check_field(rule, part, place)
    day_of_month, day_of_week = source[DAY_OF_MONTH], source[DAY_OF_WEEK]
    if is_restricted(day_of_month) and _names_nth(day_of_week):
        raise CronError(
            f"day-of-month {day_of_month} stands beside {day_of_week} in day-of-week: they cannot be combined",
            places[DAY_OF_MONTH],
            places[DAY_OF_MONTH] + len(day_of_month),
            'write "*" as day-of-month, or make two jobs of it',
        )
    cron = _expand(stripped, source, shift, shift + len(stripped))
    if not _ever_fires(cron):
        raise CronError(
            f"it never fires: no date within {HORIZON_YEARS} years has day-of-month {source[2]}, "
            f"month {source[3]} and day-of-week {source[4]}",
            places[DAY_OF_MONTH],
            places[DAY_OF_WEEK] + len(day_of_week),
            "write a day that the month has",
        )
    return cron


@lru_cache(maxsize=8192)
def days(cron: Cron, year: int, month: int) -> tuple[int, ...]:
    """Return the days of a local month that match the three date fields, ascending.

    If both day fields are restricted either may match; an unrestricted one leaves the choice to the other.
    """
    if month not in cron.months:
        return ()
    first = date(year, month, 1)
    length = (date(year + month // 12, month % 12 + 1, 1) - first).days
    by_month_day = is_restricted(cron.fields[DAY_OF_MONTH])
    by_weekday = is_restricted(cron.fields[DAY_OF_WEEK])
    matching = []
    for day in range(1, length + 1):
        weekday = (first.isoweekday() + day - 1) % 7
        month_day_matches = day in cron.month_days or (cron.last_day and day == length)
        weekday_matches = (
            weekday in cron.weekdays
            or (weekday, (day + 6) // 7) in cron.nth
            or (day + 7 > length and (weekday, LAST) in cron.nth)
        )
        if by_month_day and by_weekday:
            matches = month_day_matches or weekday_matches
        else:
            matches = (month_day_matches or not by_month_day) and (weekday_matches or not by_weekday)
        if matches:
            matching.append(day)
    return tuple(matching)


def day_advice(cron: Cron) -> str:
    """Return a warning if cron implementations disagree about the two day fields of ``cron``, else "".

    Debian's cron takes a field that begins with ``*`` as unrestricted even when a step follows.
    """
    day_of_month, day_of_week = cron.fields[DAY_OF_MONTH], cron.fields[DAY_OF_WEEK]
    both = is_restricted(day_of_month) and is_restricted(day_of_week)
    if not both or not (day_of_month.startswith("*/") or day_of_week.startswith("*/")):
        return ""
    return (
        f"day-of-month {day_of_month} and day-of-week {day_of_week}: here a date fires if either matches; "
        "Debian's cron would fire only if both do. Write the days as a list, or leave one of the fields *"
    )


def _check_characters(text: str, stripped: str, shift: int) -> None:
    example = 'write five fields, for example "0 2 * * *"'
    if not stripped:
        raise CronError("the cron expression is empty", 0, len(text), example)
    if len(stripped) > LONGEST:
        raise CronError(
            f"the cron expression has {len(stripped)} characters, more than {LONGEST}",
            shift,
            shift + len(stripped),
            "write ranges and steps instead of long lists, or make several jobs of it",
        )
    for place, character in enumerate(stripped, shift):
        if character != "\t" and not character.isprintable() and character.isascii():
            raise CronError(
                f"control character U+{ord(character):04X} in the cron expression",
                place,
                place + 1,
                "write the five fields on one line, separated by blanks",
            )
        if not character.isascii():
            shown = f'"{character}" ' if character.isprintable() else ""
            raise CronError(
                f"character {shown}(U+{ord(character):04X}) in the cron expression is not ASCII",
                place,
                place + 1,
                example,
            )


def _split(stripped: str, shift: int) -> tuple[list[str], list[int]]:
    """Return the five fields and their offsets; all of an alias' fields are where the alias is."""
    end = shift + len(stripped)
    if stripped.startswith("@"):
        alias = stripped.lower()
        if alias in ALIASES:
            return ALIASES[alias].split(), [shift] * len(FIELDS)
        if alias == "@reboot":
            reason, remedy = "@reboot names no time: a schedule shared by hosts has no boot", "write when it shall fire"
        elif alias.startswith("@every"):
            reason, remedy = f"{stripped} is not an alias", 'write the interval as a step, for example "*/10 * * * *"'
        else:
            reason, remedy = f"{stripped} is not an alias", "write one of " + " ".join(ALIASES)
        raise CronError(reason, shift, end, remedy)
    found = list(re.finditer(r"[^ \t]+", stripped))
    parts = [match.group() for match in found]
    if len(parts) in (len(FIELDS) + 1, len(FIELDS) + 2):
        without = " ".join(parts[1 : len(FIELDS) + 1])
        raise CronError(
            f"{len(parts)} fields where cron has five ({LAYOUT}): seconds and years are not taken",
            shift,
            end,
            f'write "{without}" if the first field means seconds',
        )
    if len(parts) != len(FIELDS):
        fields = "1 field" if len(parts) == 1 else f"{len(parts)} fields"
        raise CronError(f"{fields} where cron has five", shift, end, f"write {LAYOUT}")
    return parts, [shift + match.start() for match in found]


def _names_nth(day_of_week: str) -> bool:
    return "#" in day_of_week or "l" in day_of_week.lower()


def _check_field(rule: FieldRule, part: str, place: int) -> None:
    items = part.split(",")
    at = place
    for item in items:
        end = at + len(item)
        if not item:
            raise CronError(
                f"{rule.name} {part} has an empty place in its list",
                max(place, at - 1),
                max(at, place + 1),
                "write a value between every two commas, and none after the last",
            )
        if item in ("*", "?") and len(items) > 1:
            raise CronError(
                f"{rule.name} {part}: {item} in a list already means every value", at, end, f"write {item} alone"
            )
        _check_item(rule, item, at)
        at = end + 1
    if rule.name == "day-of-week" and _names_nth(part) and not all(_names_nth(item) for item in items):
        raise CronError(
            f"day-of-week {part} mixes plain weekdays with # or L",
            place,
            place + len(part),
            "write # or L at every weekday of the list, or make two jobs of it",
        )


def _check_item(rule: FieldRule, item: str, at: int) -> None:
    """Refuse ``item``, one element of a field's list at offset ``at``, unless its meaning is beyond doubt."""
    end = at + len(item)
    days_only = rule.name in ("day-of-month", "day-of-week")
    lower = item.lower()
    if re.fullmatch(r"[hr](\(.*)?(/.*)?", lower):
        letter = item[0].upper()
        raise CronError(
            f"{rule.name} {item}: {letter} (a value chosen by chance) is not taken",
            at,
            end,
            f"write a {rule.name} of your choice; spread moves many jobs apart",
        )
    if lower == "?":
        if days_only:
            return
        raise CronError(f"{rule.name} ? is only for the two day fields", at, end, "write *")
    base, slash, step = lower.partition("/")
    if slash:
        _check_step(rule, item, step, end - len(step), end)
    if base == "*":
        return
    if rule.name == "day-of-month":
        if base == "l" and not slash:
            return
        if re.fullmatch(r"([0-9]+|l)w|w[0-9]*", base):
            raise CronError(f"day-of-month {item}: W (the nearest weekday) is not taken", at, end, "write a day number")
    if rule.name == "day-of-week":
        if "#" in base:
            _check_nth(rule, item, at)
            return
        if re.fullmatch(r"l[0-7]", item.lower()):
            return
        if "l" in base:
            raise CronError(
                f"day-of-week {item}: L stands before the number of a weekday",
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
        reason = (
            "a step of 0 never moves" if int(step) == 0 else f"a {rule.name} has only {rule.size} values to step by"
        )
        raise CronError(f"{rule.name} {item}: {reason}", start, end, f"write a step from 1 to {rule.size}")


def _check_nth(rule: FieldRule, item: str, at: int) -> None:
    weekday = item.partition("#")[0]
    if weekday and "-" not in weekday:
        _value(rule, weekday, at)
    if not re.fullmatch(r"[a-zA-Z0-9]+#[1-5]", item):
        raise CronError(
            f"day-of-week {item}: # stands between one weekday and a number from 1 to 5",
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
        raise CronError(f"{rule.name} range {item} is one value", at, end, f"write {item[: len(low)]}")
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
    remedy = f"write a {rule.name} from {rule.low} to {rule.high}"
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


def _expand(text: str, source: list[str], start: int, end: int) -> Cron:
    # Imported here because it costs more than the rest of an idle tick's own modules together.
    from croniter import croniter
    from croniter.croniter import CroniterError

    # croniter 7.0 turns "2-31,l" into "*": the last day is ours.
    numbers = [item for item in source[DAY_OF_MONTH].split(",") if item.lower() != "l"]
    for_croniter = [*source[:DAY_OF_MONTH], ",".join(numbers) or "*", *source[DAY_OF_MONTH + 1 :]]
    try:
        expanded, nth = croniter.expand(" ".join(for_croniter))
    except CroniterError as error:
        raise CronError("this is not a cron expression", start, end, f"write {LAYOUT}") from error
    values = [
        tuple(range(rule.low, rule.low + rule.size)) if found == ["*"] else tuple(sorted(int(one) for one in found))
        for rule, found in zip(FIELDS, expanded, strict=True)
    ]
    minute, hour, day_of_month, month, day_of_week = source
    return Cron(
        text=text,
        expression=" ".join(source),
        fields=(minute, hour, day_of_month, month, day_of_week),
        wildcard=minute.startswith("*") or hour.startswith("*"),
        times=_times(values[0], values[1]),
        minutes=values[0],
        hours=values[1],
        month_days=frozenset(values[2] if numbers else ()),
        last_day=len(numbers) < len(day_of_month.split(",")),
        months=frozenset(values[3]),
        weekdays=frozenset(() if nth else values[4]),
        nth=frozenset((int(weekday), LAST if str(n) == "l" else n) for weekday, ns in nth.items() for n in ns),
    )


@lru_cache(maxsize=2048)
def _times(minutes: tuple[int, ...], hours: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(hour * 60 + minute for hour in hours for minute in minutes)


def _ever_fires(cron: Cron) -> bool:
    years = range(REFERENCE_YEAR, REFERENCE_YEAR + HORIZON_YEARS)
    return any(days(cron, year, month) for year in years for month in sorted(cron.months))
