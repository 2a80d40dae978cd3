"""The templates, and static files. What is printed is escaped; characters that hide or reorder text
are shown.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from yamlsched import durations
from yamlsched import text as terminal
from yamlsched.timetable import times
from yamlsched.timetable.zones import zone_or_utc

STATIC = {file.name: file for file in Path(__file__).with_name("static").iterdir()}
"""The static files by their names."""
LOCAL = r"[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d [^\s()]+"
UTC_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?Z"
INSTANT = re.compile(
    r"(?<![^\s(])(?<!--from )(?<!--to )(?<!--since )(?<!--until )(?<!--at )"
    rf"(?:(?P<before>{LOCAL}) \((?P<utc>{UTC_TIME})\)|(?P<at>{UTC_TIME})(?:"
    rf" \((?P<after>{LOCAL})\))?)"
)
"""An instant in a message, also with the local time of a job before or behind it."""
KEPT = "\n\t"
"""Characters that are not printable, and harmless in HTML."""
COMMAND = re.compile(
    r"yamlsched (?:(?P<action>retry|cancel) (?P<run>\d{1,18})(?!\w)|show (?P<shown>\d{1,18})(?!\w)"
    r"|resume (?P<job>[a-z][a-z0-9_]*)"
    r"|settle --done(?: --namespace \S+)? (?:-- )?(?P<key>'(?:[^']|'\"'\"')*'|[^\s']+) \(or"
    r" --not-done\)"
    r"|doctor|validate|sync|plan)"
)


def visible(text: str) -> str:
    r"""Return ``text`` with control characters, and those that hide or reorder what is shown, as
    escapes.

    >>> visible("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in KEPT else c.encode("unicode_escape", "replace").decode()
        for c in text
    )


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return visible(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Clock:
    """The time zone in which a page shows instants. ``is_chosen``: by the viewer, else it is that
    of the jobs.
    """

    name: str
    now: datetime
    is_chosen: bool = False

    def show(self, at: datetime, form: str = "") -> str:
        """Return an instant on this clock, with its year if that is another one than now."""
        local = at.astimezone(zone_or_utc(self.name))
        year = "" if local.year == self.now.year else " %Y"
        return f"{local:{form or f'%a %-d %b{year} %H:%M %Z'}}"

    def words(self, text: str) -> str:
        """Return a message with its instants on this clock. Keys and options of commands stay as
        they are.

        >>> at = datetime.fromisoformat("2026-01-14T00:00Z")
        >>> Clock("Asia/Tokyo", at).words("paused until 2026-01-14T01:30Z; see a:2026-01-14T01:30Z")
        'paused until Wed 14 Jan 10:30 JST; see a:2026-01-14T01:30Z'
        """
        return INSTANT.sub(self._word, text)

    def _word(self, match: re.Match[str]) -> str:
        local = match["before"] or match["after"]
        if local and not self.is_chosen:
            return local  # in the time zone of the job that the message is about
        try:
            return self.show(datetime.fromisoformat(match["utc"] or match["at"]))
        except (ValueError, OverflowError):
            return match[0]


@pass_context
def instant(context: Context, value: datetime | None, form: str = "") -> Markup:
    """Return an instant on the clock of the page."""
    if value is None:
        return Markup('<span class="none">–</span>')
    exact, shown = times.rfc3339(value, "seconds"), context["clock"].show(value, form)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, shown)


@pass_context
def clocked(context: Context, text: str) -> str:
    """Return a message with its instants on the clock of the page."""
    return context["clock"].words(text)  # type: ignore[no-any-return]


def ago(value: datetime | None, now: datetime) -> str:
    """Return how long before or after ``now`` that is, in minutes: a page that only grows older
    stays the same page.

    >>> from datetime import timedelta, UTC
    >>> now = datetime(2026, 1, 14, 2, 0, 30, tzinfo=UTC)
    >>> [ago(now + timedelta(minutes=minutes), now) for minutes in (-0.7, -7, 60)]
    ['<1m ago', '7m ago', 'in 1h']
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
    return durations.show(
        timedelta(seconds=round(value.total_seconds(), 0 if long else 1)) if long else value
    )


@pass_context
def steps(context: Context, text: str) -> Markup:
    """Return ``text`` with links in place of commands that the page has as well.

    Messages are those of the verbs. Where the page has no such step, the command stays.
    """
    parts, end, say = [], 0, context["clock"].words
    for match in COMMAND.finditer(text):
        link = _link(match, context["url"], context["has_actions"])
        code = Markup("<code>{}</code>").format(visible(match[0]))
        parts += [escape(visible(say(text[end : match.start()]))), link or code]
        end = match.end()
    return Markup("").join([*parts, escape(visible(say(text[end:])))])


def _link(match: re.Match[str], url: Callable[..., str], has_actions: bool) -> Markup | None:
    def link(label: str, href: str) -> Markup:
        return Markup('<a href="{}" class="command">{}</a>').format(href, visible(label))

    if match["shown"]:
        return link(f"show run {match['shown']}", url("runs", match["shown"]))
    if has_actions and match["job"]:
        return link(f"resume {match['job']}", url("actions", "resume", job=match["job"]))
    if has_actions and match["key"]:
        [key] = shlex.split(match["key"])
        return link(f"settle {key}", url("actions", "settle", key=key))
    if has_actions and match["run"]:
        return link(
            f"{match['action']} run {match['run']}",
            url("actions", match["action"], run=match["run"]),
        )
    return None


@cache
def _asset(name: str) -> str:
    """Return the path of a static file, below the prefix, with a query that changes with it."""
    return f"static/{name}?{hashlib.sha256(STATIC[name].read_bytes()).hexdigest()[:12]}"


@cache
def environment() -> Environment:
    """Return the environment of the templates. All are compiled here, once in a process, so that no
    request waits.
    """
    environment = Environment(
        loader=PackageLoader("yamlsched.extras.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        instant=instant,
        clocked=clocked,
        ago=ago,
        duration=durations.show,
        approximate=durations.approximate,
        took=took,
        seconds=timedelta.total_seconds,
        rfc3339=times.short_utc,
    )
    environment.filters.update(bytes=terminal.show_bytes, steps=steps)
    environment.globals.update(asset=_asset, count=count, bounded=bounded)
    for name in environment.list_templates(extensions=["html", "svg"]):
        environment.get_template(name)
    return environment
