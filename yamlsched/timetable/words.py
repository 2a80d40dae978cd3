"""When a job runs, in words: those of the library cron-descriptor where they are true, else its
next slots.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from itertools import islice

from cron_descriptor import ExpressionDescriptor, Options  # type: ignore[import-untyped]

from yamlsched.timetable.cron import Cron
from yamlsched.timetable.upcoming import ScheduledJob, merge

MAX_CHARS = 200
"""Longer words are harder to read than the expression."""
MAX_SLOTS = 5

LIST = "{0}(-{0})?(,{0}(-{0})?)*"
NUMBERS, NAMES = LIST.format("[0-9]+"), LIST.format("([0-9]+|[A-Z]{3})")
RANGE = "[0-9]+-[0-9]+"
EVERY_MINUTES, EVERY_HOURS = (
    rf"\*(/([1-6]|1[025]|20|30))?|{RANGE}/[0-9]+",
    rf"\*(/([1-46]|8|12))?|{RANGE}/[0-9]+",
)
TIMES = "|".join(
    (
        "[0-9]+ [0-9]+(,[0-9]+)*",
        rf"({EVERY_MINUTES}|{RANGE}) [0-9]+",
        rf"({EVERY_MINUTES}|{NUMBERS}) (\*|{RANGE})",
        f"{NUMBERS} ({EVERY_HOURS})",
    )
)
MONTH_DAYS = rf"[*?]|L(-([2-9]|1[0-9]|2[0-7]))?|(L|[0-9]+)W|{NUMBERS}"
DATES = rf"({MONTH_DAYS}) (\*|{NAMES}) [*?]|[*?] (\*|{NAMES}) ({NAMES}|L[0-7]|[0-9A-Z]+#[1-5])"
IS_DESCRIBED = re.compile(f"({TIMES}) ({DATES})")
"""The library's words are false or ambiguous for other expressions: it ignores that a step starts
over, that either day field is enough, and where ranges are parts of a list of hours.
"""


@lru_cache(maxsize=4096)
def in_words(cron: Cron, timezone: str) -> str:
    """Return when ``cron`` fires, in words; "" where those of an expression would not be true."""
    if not all(IS_DESCRIBED.fullmatch(part.expression.upper()) for part in cron.expressions):
        return ""
    words = []
    for part in cron.expressions:
        options = Options(
            locale_code="en_US", use_24hour_time_format=True, verbose=not part.wildcard
        )
        words.append(ExpressionDescriptor(part.expression.upper(), options).get_description())
    sentence = f"{'; '.join(words)} ({timezone})"
    sentence += f", every {cron.every} weeks" if cron.every > 1 else ""
    sentence += f", from {cron.starts_on}" if cron.starts_on else ""
    sentence += f", until {cron.ends_on}" if cron.ends_on else ""
    return sentence if len(sentence) <= MAX_CHARS else ""


def describe(cron: Cron, timezone: str, after: datetime) -> str:
    """Return when ``cron`` fires after ``after``: in words, or else its next slots; "" if there are
    none.
    """
    if words := in_words(cron, timezone):
        return words
    coming = islice(merge([ScheduledJob("x", cron, timezone)], after), MAX_SLOTS)
    words = ", ".join(f"{slot.local:%a %Y-%m-%d %H:%M}" for slot in coming)
    return f"next {words} ({timezone})" if words else ""
