"""The slots of a job on a time axis: where chart.html draws a bar for each, and hatched bands for
gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from yamlsched.ask.slots import SlotAccount
from yamlsched.extras.web.ask.timeline import Timeline, TimelineGap
from yamlsched.extras.web.render import count

WIDTH, LEFT, RIGHT = 1200.0, 52.0, 1188.0
MIN_BAR, MAX_BAR = 2.5, 18.0
CHAR_WIDTH = 6.6
MARKED = ("dead", "failed", "retried", "running", "cancelled", "due")
"""States that have a mark above their bar."""
WORDS = {
    "succeeded": "first try",
    "retried": "retried",
    "failed": "waiting to retry",
    "dead": "dead",
    "cancelled": "cancelled",
    "running": "running",
    "queued": "queued",
    "future": "coming",
    "due": "waiting",
    "pruned": "no longer kept",
    "unknown": "before this schedule",
}
"""What the states of slots are called."""
STEPS = (
    (timedelta(minutes=10), "%H:%M"),
    (timedelta(minutes=30), "%H:%M"),
    (timedelta(hours=1), "%H:%M"),
    (timedelta(hours=3), "%H:%M"),
    (timedelta(hours=6), "%H:%M"),
    (timedelta(days=1), "%a %-d %b"),
    (timedelta(days=2), "%-d %b"),
    (timedelta(days=7), "%-d %b"),
    (timedelta(days=30), "%b %Y"),
    (timedelta(days=182), "%b %Y"),
)
MAX_TICKS = 12
Link = Callable[[SlotAccount | TimelineGap], str]


class Part(NamedTuple):
    """A bar, a band, or an edit: where it is, what it is in words, and the page about it."""

    x: float
    width: float
    words: str
    state: str = ""
    href: str = ""


class Label(NamedTuple):
    """The reason of a gap; ``width`` is that of the plate behind it, inside of its band."""

    x: float
    text: str
    width: float = 0.0


@dataclass(frozen=True)
class Chart:
    """What is drawn, and that in words."""

    words: str
    ticks: Sequence[tuple[float, str]]
    now: float | None
    gaps: Sequence[Part]
    bars: Sequence[Part]
    reasons: Sequence[Label]
    edits: Sequence[Part]


class Axis:
    """Maps instants to the x of the chart, and finds the ticks of a local clock."""

    def __init__(self, start: datetime, end: datetime, zone: ZoneInfo) -> None:
        self.start, self.end, self._zone = start, end, zone
        self._scale = (RIGHT - LEFT) / max((end - start).total_seconds(), 1)

    def x(self, at: datetime) -> float:
        clamped = min(max(at, self.start), self.end)
        return LEFT + (clamped - self.start).total_seconds() * self._scale

    def ticks(self) -> Iterator[tuple[datetime, str]]:
        """Yield instants, whole hours or days of the local clock, with their labels."""
        step, form = next(
            (s for s in STEPS if (self.end - self.start) / s[0] <= MAX_TICKS), STEPS[-1]
        )
        wall = self.start.astimezone(self._zone).replace(tzinfo=None)
        if step < timedelta(days=1):
            day = wall.replace(hour=0, minute=0, second=0, microsecond=0)
            wall = day + ((wall - day) // step + 1) * step
        else:
            wall = wall.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        while (at := wall.replace(tzinfo=self._zone).astimezone(UTC)) < self.end:
            is_midnight = wall.time() == datetime.min.time()
            yield at, f"{wall:%a %-d %b}" if is_midnight and form == "%H:%M" else f"{wall:{form}}"
            wall += step


def timeline(
    timeline: Timeline, zone: ZoneInfo, link: Link, edits: Sequence[tuple[datetime, str]] = ()
) -> Chart:
    """Return the chart of the slots. Each bar and each band is a link to its explanation.

    ``edits`` are the instants at which the job was edited, and by which commits.
    """
    axis = Axis(timeline.start, timeline.end, zone)
    width = _bar_width(timeline, axis)
    gaps = []
    for gap in timeline.gaps:
        left, right = axis.x(gap.first) - width / 2, axis.x(gap.last) + width / 2
        words = f"{gap.slots} skipped: {gap.reason}. {gap.sentence}"
        gaps.append(Part(left, max(right - left, width), words, gap.reason, link(gap)))
    now = axis.x(timeline.now) if timeline.start < timeline.now < timeline.end else None
    return Chart(
        words=summary(timeline, zone) + (f"; {count(len(edits), 'edit')}" if edits else ""),
        ticks=[(axis.x(at), label) for at, label in axis.ticks()],
        now=now,
        gaps=gaps,
        bars=[
            Part(axis.x(cell.at), width, describe(cell, zone), cell.state, link(cell))
            for cell in timeline.cells
        ],
        reasons=list(_reasons(timeline, gaps, axis, now)),
        edits=[
            Part(axis.x(at), 0, f"edited {at.astimezone(zone):%a %-d %b %H:%M %Z}: {by}")
            for at, by in edits
        ],
    )


def describe(cell: SlotAccount, zone: ZoneInfo) -> str:
    """Return a slot and its state in words."""
    run = cell.run
    attempts = (
        f", attempt {run.attempts} of {run.max_attempts}"
        if run is not None and run.attempts
        else ""
    )
    return f"{cell.at.astimezone(zone):%a %-d %b %H:%M %Z}: {WORDS[cell.state]}{attempts}"


def summary(timeline: Timeline, zone: ZoneInfo) -> str:
    """Return the chart in a sentence."""
    numbers = {state: sum(cell.state == state for cell in timeline.cells) for state in WORDS}
    said = [f"{number} {WORDS[state]}" for state, number in numbers.items() if number]
    skipped = sum(gap.slots for gap in timeline.gaps)
    if skipped:
        said.append(f"{skipped} skipped")
    start, end = (f"{at.astimezone(zone):%a %-d %b %H:%M}" for at in (timeline.start, timeline.end))
    return f"Slots from {start} to {end}: {', '.join(said) or 'none'}"


def _bar_width(timeline: Timeline, axis: Axis) -> float:
    xs = sorted(axis.x(cell.at) for cell in timeline.cells)
    closest = min((b - a for a, b in pairwise(xs) if b > a), default=MAX_BAR / 0.7)
    return min(MAX_BAR, max(MIN_BAR, closest * 0.7))


def _reasons(
    timeline: Timeline, gaps: Sequence[Part], axis: Axis, now: float | None
) -> Iterator[Label]:
    """Yield the reason of each gap inside its band, or above a narrow one, where there is room."""
    marks = [axis.x(cell.at) for cell in timeline.cells if cell.state in MARKED] + (
        [now] if now is not None else []
    )
    for gap, part in zip(timeline.gaps, gaps, strict=True):
        middle = part.x + part.width / 2
        text = next(
            (t for t in (f"{gap.reason} ({gap.slots})", gap.reason) if part.width > _wide(t) + 6),
            None,
        )
        half = _wide(gap.reason) / 2 + 4
        if text is not None:
            yield Label(middle, text, _wide(text))
        elif (
            middle - half > LEFT
            and middle + half < WIDTH
            and not any(abs(x - middle) < half + 6 for x in marks)
        ):
            yield Label(middle, gap.reason)
            marks += [middle - half, middle, middle + half]


def _wide(text: str) -> float:
    return len(text) * CHAR_WIDTH + 10
