"""The templates. Everything that they print is escaped, and characters that hide or reorder text are shown."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from yamlsched import durations, terminal, times
from yamlsched.web import assets
from yamlsched.zones import zone_or_utc

KEPT = "\n\t"
"""Characters that are not printable, and harmless in HTML."""


def visible(text: str) -> str:
    r"""Return ``text`` with control characters, and those that hide or reorder what is shown, as escapes.

    >>> visible("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in KEPT else c.encode("unicode_escape", "replace").decode() for c in text)


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return visible(value) if isinstance(value, str) else value


def element(name: str, *content: str, **attributes: Any) -> Markup:
    """Return an element. ``_`` in the name of an attribute is ``-``; ``class_`` is class; None omits the attribute.

    >>> element("rect", class_="dead", x=1.5, stroke_width=None)
    Markup('<rect class="dead" x="1.5"></rect>')
    """
    given = "".join([f' {_name(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None])
    inside = "".join([part if isinstance(part, Markup) else escape(visible(part)) for part in content])
    return Markup(f"<{name}{given}>{inside}</{name}>")


@cache
def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value) if isinstance(value, int) else escape(visible(str(value)))


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
    """Return a message as a sentence.

    >>> sentence("there is no run 118")
    'There is no run 118.'
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def bounded(number: int, limit: int, noun: str, plural: str | None = None) -> str:
    """Return ``count`` of a number that was not counted beyond ``limit``.

    >>> bounded(3, 1000, "run"), bounded(1001, 1000, "run")
    ('3 runs', '1,000+ runs')
    """
    return count(number, noun, plural) if number <= limit else f"{limit:,}+ {plural or noun + 's'}"


def _asset(name: str) -> str:
    """Return the path of a static file, below the prefix."""
    return f"static/{assets.load()[name].name}"


@cache
def environment() -> Environment:
    """Return the environment of the templates. All are compiled here, once in a process, so that no request waits."""
    found = Environment(
        loader=PackageLoader("yamlsched.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(
        instant=instant, ago=ago, duration=durations.show, approximate=durations.approximate, rfc3339=times.short_utc
    )
    found.filters["bytes"] = terminal.show_bytes
    found.globals.update(asset=_asset, count=count, bounded=bounded)
    for name in found.list_templates(extensions=["html", "svg"]):
        found.get_template(name)
    return found
