"""A strip of days: a cell for each, whose shape and colour say how the day went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from markupsafe import Markup

from yamlsched.operations.strips import Day
from yamlsched.web.markup import element

CELL, GAP, HEIGHT = 9, 3, 22
MARKS = {"dead": "M2 2l5 5m0-5l-5 5", "retrying": "M4.5 1v4M4.5 7v1", "cancelled": "M2 7l5-5"}
"""What is drawn above a cell, so that its state is not its colour alone."""
TALL = {"dead": 22, "retrying": 22, "retried": 14, "ok": 10, "cancelled": 10, "skipped": 10, "none": 2}


def strip(days: Sequence[Day], link: Callable[[Day], str] | None = None) -> Markup:
    """Return the strip; each cell has a title, and a link if ``link`` returns one. The whole has a summary in words."""
    cells = []
    for nth, day in enumerate(days):
        title = element("title", f"{day.date:%a %-d %b}: {day.text}")
        place = f"translate({nth * (CELL + GAP)} 0)"
        cell = element("g", title, _cell(day.state, bool(day.reasons)), class_=f"day {day.state}", transform=place)
        if link is not None and day.state != "none":
            cell = element("a", cell, href=link(day), tabindex="-1")
        cells.append(cell)
    width = len(days) * (CELL + GAP) - GAP
    return element(
        "svg",
        *cells,
        class_="strip",
        viewBox=f"0 0 {width} {HEIGHT}",
        width=width,
        height=HEIGHT,
        role="img" if link is None else "group",  # an image has no links in it
        aria_label=summary(days),
    )


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
