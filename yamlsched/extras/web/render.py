"""The templates. Everything that they print is escaped, and characters that hide or reorder text are shown."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from yamlsched import durations
from yamlsched import text as terminal
from yamlsched.extras.web import assets
from yamlsched.extras.web.markup import element, visible
from yamlsched.extras.web.steps import steps
from yamlsched.timetable import times
from yamlsched.timetable.zones import zone_or_utc


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return visible(value) if isinstance(value, str) else value


def instant(value: datetime | None, timezone: str = "UTC", with_date: bool = True) -> Markup:
    """Return an instant on the wall clock of ``timezone``, followed by UTC."""
    if value is None:
        return Markup('<span class="none">–</span>')
    local = value.astimezone(zone_or_utc(timezone))
    shown = f"{local:%a %-d %b %H:%M}" if with_date else f"{local:%H:%M}"
    utc = f"{value:%H:%MZ}" if local.date() == value.date() else f"{value:%a %H:%MZ}"
    name = "" if timezone == "UTC" else f" {local:%Z}"
    exact = times.rfc3339(value, "seconds")
    parts = [element("time", f"{shown}{name or ' UTC'}", datetime=exact, title=exact)]
    if name:
        parts.append(element("span", utc, class_="utc"))
    return Markup(" ").join(parts)


def ago(value: datetime | None, now: datetime) -> str:
    """Return how long before or after ``now`` that is, in minutes: a page that only grows older stays the same page.

    >>> from datetime import timedelta, UTC
    >>> now = datetime(2026, 1, 14, 2, 0, 30, tzinfo=UTC)
    >>> ago(now - timedelta(seconds=40), now), ago(now - timedelta(minutes=7), now), ago(now + timedelta(hours=1), now)
    ('<1m ago', '7m ago', 'in 1h')
    """
    if value is None:
        return "never"
    time = "<1m" if abs(value - now) < durations.MINUTE else durations.between(value, now)
    return f"in {time}" if value > now else f"{time} ago"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and its noun.

    >>> count(1, "run"), count(12000, "run"), count(2, "entry", "entries")
    ('1 run', '12,000 runs', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def sentence(text: str) -> str:
    """Return a message as a sentence. A name of a file or a job at its start stays as it is.

    >>> sentence("there is no run 118"), sentence("schedules.yaml has no job a")
    ('There is no run 118.', 'schedules.yaml has no job a.')
    """
    start = text[:1].upper() if text.partition(" ")[0].rstrip(",:;.").isalpha() else text[:1]
    return start + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def bounded(number: int, limit: int, noun: str, plural: str | None = None) -> str:
    """Return ``count`` of a number that was not counted beyond ``limit``.

    >>> bounded(3, 1000, "run"), bounded(1001, 1000, "run")
    ('3 runs', '1,000+ runs')
    """
    return count(number, noun, plural) if number <= limit else f"{limit:,}+ {plural or noun + 's'}"


def took(value: timedelta) -> str:
    """Return a duration, to the second if it is long.

    >>> took(timedelta(seconds=8.4)), took(timedelta(seconds=80.4))
    ('8.4s', '1m20s')
    """
    long = value >= timedelta(seconds=20)
    return durations.show(timedelta(seconds=round(value.total_seconds(), 0 if long else 1)) if long else value)


def _asset(name: str) -> str:
    """Return the path of a static file, below the prefix."""
    return f"static/{assets.load()[name].name}"


@cache
def environment() -> Environment:
    """Return the environment of the templates. All are compiled here, once in a process, so that no request waits."""
    found = Environment(
        loader=PackageLoader("yamlsched.extras.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(
        instant=instant,
        ago=ago,
        duration=durations.show,
        approximate=durations.approximate,
        took=took,
        seconds=timedelta.total_seconds,
        rfc3339=times.short_utc,
    )
    found.filters.update(bytes=terminal.show_bytes, steps=steps)
    found.globals.update(asset=_asset, count=count, bounded=bounded)
    for name in found.list_templates(extensions=["html", "svg"]):
        found.get_template(name)
    return found
