"""Runs per hour: a bar for each hour, whose lower part, with a cross above, are the runs that died."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zoneinfo import ZoneInfo

from markupsafe import Markup

from yamlsched.extras.web.ask.strips import HOUR, Hour
from yamlsched.extras.web.markup import element
from yamlsched.extras.web.render import count

WIDTH, LEFT, RIGHT = 1200.0, 52.0, 1188.0
TOP, HEIGHT = 20, 64
BASE = TOP + HEIGHT
MIN_BAR = 2.0
MARK = "M-3.5-3.5l7 7m0-7l-7 7"
LABEL_HOURS = 6


def hours(shown: Sequence[Hour], zone: ZoneInfo, link: Callable[[Hour], str]) -> Markup:
    """Return the chart. Each hour in which runs ended is a link to these."""
    most = max(hour.ended for hour in shown)
    step = (RIGHT - LEFT) / len(shown)
    parts: list[Markup] = []
    for share in (0.5, 1.0):
        y = BASE - HEIGHT * share
        if most * share >= 1:
            parts.append(element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=y, y2=y))
            label = f"{most * share:,.0f}"
            parts.append(element("text", label, class_="label", x=LEFT - 8, y=y + 4, text_anchor="end"))
    for nth, hour in enumerate(shown):
        x = LEFT + nth * step
        local = hour.at.astimezone(zone)
        if local.hour % LABEL_HOURS == 0:
            label = f"{local:%a %-d %b}" if local.hour == 0 else f"{local:%H:%M}"
            parts.append(element("line", class_="grid", x1=x, x2=x, y1=BASE, y2=BASE + 5))
            parts.append(element("text", label, class_="label", x=x, y=BASE + 18, text_anchor="middle"))
        if hour.ended:
            words = describe(hour, zone)
            parts.append(element("a", _bar(hour, x, step, most, words), href=link(hour), aria_label=words))
    parts.append(element("line", class_="axis", x1=LEFT, x2=RIGHT, y1=BASE, y2=BASE))
    words = summary(shown)
    return element(
        "svg",
        element("title", words),
        *parts,
        class_="per-hour",
        viewBox=f"0 0 {WIDTH:.0f} {BASE + 24}",
        width=int(WIDTH),
        height=BASE + 24,
        role="group",
        aria_label=words,
    )


def describe(hour: Hour, zone: ZoneInfo) -> str:
    """Return an hour and its runs in words."""
    start, end = hour.at.astimezone(zone), (hour.at + HOUR).astimezone(zone)
    died = f", {hour.dead} of them dead" if hour.dead else ""
    return f"{start:%a %-d %b %H:%M} to {end:%H:%M %Z}: {count(hour.ended, 'run')} ended{died}"


def summary(shown: Sequence[Hour]) -> str:
    """Return the chart in a sentence."""
    ended, dead = (sum(getattr(hour, name) for hour in shown) for name in ("ended", "dead"))
    return f"Runs that ended in the last {count(len(shown), 'hour')}: {ended:,}, of which {dead:,} are dead"


def _bar(hour: Hour, x: float, step: float, most: int, words: str) -> Markup:
    dead = max(MIN_BAR, HEIGHT * hour.dead / most) if hour.dead else 0.0
    tall = max(MIN_BAR, HEIGHT * hour.ended / most, dead)
    box = {"x": x + step * 0.12, "width": step * 0.76}
    parts = [
        element("title", words),
        element("rect", class_="hit", x=x, y=TOP - 16, width=step, height=HEIGHT + 16),
        element("rect", class_="bar", y=BASE - tall, height=tall, rx=1.5, **box),
    ]
    if hour.dead:
        parts.append(element("rect", class_="bar dead", y=BASE - dead, height=dead, rx=1.5, **box))
        parts.append(
            element("path", class_="mark", d=MARK, transform=f"translate({x + step / 2:.1f} {BASE - tall - 8:.1f})")
        )
    return element("g", *parts, class_="ended")
