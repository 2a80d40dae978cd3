"""From the fields of other schedulers to numbers, and from those to a cron expression with the same
fire times.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from yamlsched.errors import CronError
from yamlsched.extras.importing.calendar import EVERY_MATCH, Fields, OnCalendar
from yamlsched.extras.importing.model import Refusal, shown
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.cron_fields import DAY_OF_WEEK, FIELDS, FieldRule, field_values
from yamlsched.timetable.zones import zone

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SUNDAY_IS_0 = (*FIELDS[:4], replace(FIELDS[DAY_OF_WEEK], high=6))
"""The fields of schedulers that have no weekday 7."""
MAX_DIGITS = 4
BOTH_DAYS = (
    "a date must match both the day of the month and the weekday there; in yamlsched it matches if"
    " either does"
)


def numbers(text: str, rule: FieldRule, is_celery: bool = False) -> frozenset[int]:
    """Return the numbers that a field such as ``1-5``, ``*/15`` or ``mon,fri`` names. Raises
    Refusal.

    ``is_celery``: a range may go on at the lowest number, as in ``22-2``, and a step needs a range
    or ``*``.
    """
    values: set[int] = set()
    for item in text.split(","):
        span, slash, step_text = item.partition("/")
        step = number_of(step_text, FieldRule(f"{rule.name}'s step", 1, 9999, 9999)) if slash else 1
        low, dash, high = span.partition("-")
        if span == "*":
            first, last = rule.low, rule.high
        else:
            first = number_of(low, rule)
            last = number_of(high, rule) if dash else rule.high if slash else first
        if is_celery and slash and not dash and span != "*":
            raise Refusal(f'Celery refuses the {rule.name} "{shown(item)}": a step needs a range')
        if first <= last:
            values.update(range(first, last + 1, step))
        elif is_celery:
            values.update([*range(first, rule.high + 1), *range(rule.low, last + 1)][::step])
        else:
            raise Refusal(f'the {rule.name} "{shown(item)}" is a reversed range')
    return frozenset(values)


def number_of(text: str, rule: FieldRule) -> int:
    """Return the number of a word such as ``5`` or ``mon``. Raises Refusal."""
    if text.lower() in rule.names:
        return rule.names[text.lower()]
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else -1
    if not rule.low <= number <= rule.high:
        raise Refusal(f'the {rule.name} "{shown(text)}" is not in {rule.low}-{rule.high}')
    return number


def cron_expression(calendar: OnCalendar, written: Sequence[str] = ("",) * 5) -> str:
    """Return the cron expression that fires when ``calendar`` does. Raises Refusal if there is
    none.

    A field of ``written`` is kept where yamlsched reads the same numbers in it.
    """
    fields = calendar.fields
    minute, hour, day, month, weekday = (
        text if _reads_as(index, text, values) else _written(values, rule)
        for index, (text, values, rule) in enumerate(zip(written, fields, FIELDS, strict=True))
    )
    is_every_day, is_every_weekday = len(fields.days) == 31, len(fields.weekdays) == 7
    if is_every_day and (calendar.either_day or is_every_weekday):
        day = weekday = "*"
    elif min(fields.days) < 0:
        day, weekday = _from_the_end(fields, is_every_weekday)
    elif is_every_weekday:
        day, weekday = ("*", "*") if calendar.either_day else (day, "*")
    elif is_every_day:
        day = "*"
    elif not calendar.either_day:
        day, weekday = "*", _nth_weekdays(fields)
    expression = f"{minute} {hour} {day} {month} {weekday}"
    try:
        parse_cron(expression)
    except CronError as error:
        raise Refusal(f"{shown(expression)}: {error}") from error
    return expression


def _reads_as(index: int, text: str, values: frozenset[int]) -> bool:
    try:
        expanded = field_values(index, text) if text else None
    except CronError:
        return False
    return (
        expanded is not None
        and not expanded.nth
        and not expanded.by_month
        and set(expanded.plain) == values
    )


def _written(values: frozenset[int], rule: FieldRule) -> str:
    """Return a field for numbers: ``*``, ``*/15``, ``1-5``, ``8-18/2`` or a list such as
    ``0-2,22,23``.
    """
    ordered = sorted(values)
    if len(ordered) == rule.size:
        return "*"
    steps = {second - first for first, second in itertools.pairwise(ordered)}
    if len(ordered) > 2 and len(steps) == 1:
        [step] = steps
        if ordered[0] == rule.low and ordered[-1] + step >= rule.low + rule.size and step > 1:
            return f"*/{step}"
        return f"{ordered[0]}-{ordered[-1]}" + (f"/{step}" if step > 1 else "")
    ranges: list[list[int]] = []
    for number in ordered:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in ranges
    )


def _nth_weekdays(fields: Fields) -> str:
    """Return ``1#2`` for the Mondays among the days 8-14. Raises Refusal for other days."""
    first = min(fields.days)
    if first % 7 != 1 or first > 22 or fields.days != set(range(first, first + 7)):
        raise Refusal(BOTH_DAYS)
    return ",".join(f"{weekday}#{first // 7 + 1}" for weekday in sorted(fields.weekdays))


def _from_the_end(fields: Fields, is_every_weekday: bool) -> tuple[str, str]:
    """Return both day fields for a day such as the third last, or weekdays of the last seven days.
    Raises Refusal for others.
    """
    if is_every_weekday and len(fields.days) == 1:
        back = -1 - min(fields.days)
        return (f"L-{back}" if back else "L"), "*"
    if fields.days == set(range(-7, 0)):
        return "*", ",".join(f"L{weekday}" for weekday in sorted(fields.weekdays))
    raise Refusal(BOTH_DAYS)


def interval_expression(every: timedelta) -> str:
    """Return the cron expression that fires at this interval throughout. Raises Refusal if there is
    none.

    >>> interval_expression(timedelta(minutes=10)), interval_expression(timedelta(hours=6))
    ('*/10 * * * *', '0 */6 * * *')
    """
    if every < MINUTE:
        raise Refusal(f"an interval of {every.total_seconds():g} s is shorter than a minute")
    if every in (DAY, 7 * DAY):
        return "0 0 * * *" if every == DAY else "0 0 * * 0"
    if not every % HOUR and not DAY % every:
        return f"0 */{every // HOUR} * * *" if every > HOUR else "0 * * * *"
    if not every % MINUTE and not HOUR % every:
        return f"*/{every // MINUTE} * * * *" if every > MINUTE else "* * * * *"
    remedy = "choose an interval that divides an hour or a day"
    raise Refusal(f"no cron expression fires every {every}: {remedy}")


def interval(every: timedelta | None) -> tuple[str, OnCalendar]:
    """Return an interval as a cron expression and its fire times, counted from midnight UTC: an
    interval has no anchor of its own. Raises Refusal.
    """
    if every is None:
        raise Refusal("its interval is not a number")
    written = interval_expression(every)
    return written, OnCalendar(fields_of(written.split(), FIELDS), zone("UTC"), EVERY_MATCH)


def fields_of(parts: Sequence[str], rules: Sequence[FieldRule], is_celery: bool = False) -> Fields:
    """Return the numbers of five fields; weekday 7 is Sunday. Raises Refusal."""
    if len(parts) != len(rules):
        raise Refusal(f"{shown(' '.join(parts))} does not have five fields")
    minutes, hours, days, months, weekdays = (
        numbers(part, rule, is_celery) for part, rule in zip(parts, rules, strict=True)
    )
    return Fields(minutes, hours, days, months, frozenset(day % 7 for day in weekdays))
