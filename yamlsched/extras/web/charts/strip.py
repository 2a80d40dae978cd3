"""A strip of days: a cell for each, whose shape and colour say how the day went."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import cache, lru_cache

from markupsafe import Markup, escape

from yamlsched.extras.web.ask.strips import Day
from yamlsched.extras.web.markup import element, visible

CELL, GAP, HEIGHT = 9, 3, 22
MARKS = {"dead": "M2 2l5 5m0-5l-5 5", "retrying": "M4.5 1v4M4.5 7v1", "cancelled": "M2 7l5-5"}
"""What is drawn above a cell, so that its state is not its colour alone."""
TALL = {"dead": 22, "retrying": 22, "retried": 14, "ok": 10, "cancelled": 10, "skipped": 10, "none": 2}


def strip(days: Sequence[Day], link: str | None = None) -> Markup:
    """Return the strip; each cell has a title, and a link: ``link`` and its date. The whole has a summary in words."""
    width = len(days) * (CELL + GAP) - GAP
    return element(
        "svg",
        *(_day(day, nth, link) for nth, day in enumerate(days)),
        class_="strip",
        viewBox=f"0 0 {width} {HEIGHT}",
        width=width,
        height=HEIGHT,
        role="img" if link is None else "group",  # an image has no links in it
        aria_label=summary(days),
    )


def _day(day: Day, nth: int, link: str | None) -> Markup:
    # a page has 700 of them: they are not made of elements one by one
    cell = (
        f'<g class="day {day.state}" transform="translate({nth * (CELL + GAP)} 0)">'
        f"<title>{_date(day.date)}: {_text(day.text)}</title>{_cell(day.state, bool(day.reasons))}</g>"
    )
    if link is not None and day.state != "none":
        return Markup(f'<a href="{escape(link)}{day.date}" tabindex="-1">{cell}</a>')
    return Markup(cell)


@lru_cache(1_000)
def _date(day: date) -> str:
    return f"{day:%a %-d %b}"


@lru_cache(1_000)
def _text(text: str) -> Markup:
    return escape(visible(text))


@cache
def _cell(state: str, is_skipped: bool) -> Markup:
    tall = TALL[state]
    box = {"x": 0, "y": HEIGHT - tall, "width": CELL, "height": tall}
    parts = [
        element("rect", class_="hit", x=0, y=0, width=CELL, height=HEIGHT),
        element("rect", class_="bar", rx=1.5, **box),
    ]
    if is_skipped:
        parts.append(element("rect", fill="url(#hatch)", rx=1.5, x=0, y=HEIGHT - 8, width=CELL, height=8))
    if state in MARKS:
        parts.append(element("path", class_="mark", d=MARKS[state], transform=f"translate(0 {HEIGHT - tall + 1})"))
    if state == "retried":
        parts.append(element("rect", class_="notch", x=0, y=HEIGHT - tall + 3, width=CELL, height=2))
        parts.append(element("rect", class_="cap", x=0, y=HEIGHT - tall, width=CELL, height=3, rx=1.5))
    return Markup("").join(parts)


def summary(days: Sequence[Day]) -> str:
    """Return the days in words: those that need a look one by one, the others counted."""
    notable = [f"{day.date:%-d %b} {day.text}" for day in days if day.state in ("dead", "retrying", "skipped")]
    good = sum(day.state in ("ok", "retried") for day in days)
    said = f"{len(days)} days: {good} with successes only"
    return "; ".join([said, *notable])
