"""The hours of some days as a grid: how many jobs start in each. The number is in each cell, so colour only helps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date

from markupsafe import Markup

from yamlsched.extras.web.markup import element
from yamlsched.extras.web.render import count
from yamlsched.timetable.forecast import Hour

LABEL, CELL, ROW, GAP, HEAD = 96, 44, 30, 2, 20
WIDTH = LABEL + 24 * CELL
LEVELS = 4
REGULAR_MINUTES = 60
PILE_UP_MARK = f"M{CELL - GAP - 9} 2h7v7z"
Link = Callable[[Hour], str]


@dataclass(frozen=True)
class Cell:
    """An hour, how many jobs start in it, and whether it has a pile-up or has passed."""

    hour: Hour
    jobs: int
    has_pile_up: bool
    is_past: bool

    @property
    def is_skipped(self) -> bool:
        """Whether clocks skip the hour."""
        return self.hour.start == self.hour.end

    @property
    def clock_change(self) -> str:
        """What clocks do in the hour; "" if nothing."""
        minutes = self.hour.end - self.hour.start
        if minutes == REGULAR_MINUTES:
            return ""
        if minutes == 0:
            return "does not exist: clocks go forward"
        return f"has {minutes} minutes: clocks go {'back' if minutes > REGULAR_MINUTES else 'forward'}"

    @property
    def text(self) -> str:
        """What the cell shows in words."""
        words = [count(self.jobs, "job")] if self.jobs else ["no job" if not self.is_past else "past"]
        if self.has_pile_up:
            words.append("with a pile-up")
        if self.clock_change:
            words.append(f"this hour {self.clock_change}")
        return f"{self.hour.date:%a %-d %b} {self.hour.hour:02}:00: {', '.join(words)}"


def heat(days: Sequence[Sequence[Cell]], changes: Collection[date], link: Link) -> Markup:
    """Return the grid, a row for each day. ``changes`` are the dates on which the clocks of some zone change."""
    numbers = [cell.jobs for cells in days for cell in cells if cell.jobs] or [0]
    least, most = min(numbers), max(numbers)
    parts = [
        element(
            "text", f"{hour:02}", class_="label", x=LABEL + hour * CELL + (CELL - GAP) / 2, y=13, text_anchor="middle"
        )
        for hour in range(24)
    ]
    for nth, cells in enumerate(days):
        top = HEAD + nth * ROW
        day = cells[0].hour.date
        middle = top + ROW / 2 + 3
        parts.append(element("text", f"{day:%a %-d %b}", class_="label day-name", x=0, y=middle))
        if day in changes:
            mark = element("title", "clocks change on this day"), element("use", href="#i-late", width=13, height=13)
            parts.append(element("g", *mark, class_="change", transform=f"translate({LABEL - 20} {top + 7})"))
        for cell in cells:
            drawn = element("g", *_cell(cell), class_=_class(cell, least, most), transform=_place(cell, top))
            parts.append(element("a", drawn, href=link(cell.hour), tabindex="-1") if cell.jobs else drawn)
    height = HEAD + len(days) * ROW
    box = f"0 0 {WIDTH} {height}"
    return element("svg", *parts, class_="heat", viewBox=box, role="group", aria_label=summary(days))


def _place(cell: Cell, top: int) -> str:
    return f"translate({LABEL + cell.hour.hour * CELL} {top})"


def _class(cell: Cell, least: int, most: int) -> str:
    level = 1 + (LEVELS - 1) * (cell.jobs - least) // max(most - least, 1) if cell.jobs else 0
    return f"hour level-{level}" + " past" * cell.is_past + " skipped" * cell.is_skipped


def _cell(cell: Cell) -> list[Markup]:
    width, height = CELL - GAP, ROW - GAP
    fill = "url(#hatch)" if cell.is_skipped else None
    parts = [
        element("title", cell.text),
        element("rect", class_="box", rx=3, width=width, height=height, fill=fill),
    ]
    if cell.jobs:
        parts.append(element("text", f"{cell.jobs:,}", x=width / 2, y=height / 2 + 4, text_anchor="middle"))
    if cell.has_pile_up:
        parts.append(element("path", class_="pile-up", d=PILE_UP_MARK))
    if cell.clock_change and not cell.is_skipped:
        parts.append(element("path", class_="twice", d=f"M3 {height - 3}h{width - 6}"))
    return parts


def summary(days: Sequence[Sequence[Cell]]) -> str:
    """Return the grid in words: its fullest hour, pile-ups, and hours that clocks skip or repeat."""
    cells = [cell for cells in days for cell in cells]
    fullest = max(cells, key=lambda cell: cell.jobs)
    words = [f"Coming starts of {count(len(days), 'day')} by hour"]
    if fullest.jobs:
        words.append(f"most in the hour of {fullest.text}")
    piled = sum(cell.has_pile_up for cell in cells)
    if piled:
        words.append(f"{count(piled, 'hour')} with pile-ups")
    words += [cell.text for cell in cells if cell.clock_change]
    return "; ".join(words)
