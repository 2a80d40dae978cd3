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

LEFT, RIGHT = 52.0, 1188.0
MIN_BAR, MAX_BAR = 2.5, 18.0
CHAR_WIDTH = 6.6
WORDS = {
    "succeeded": "succeeded",
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
STEPS_MINUTES = (10, 30, 60, 180, 360, 1440, 2 * 1440, 7 * 1440, 30 * 1440, 182 * 1440)
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
    width: float


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
        steps = [timedelta(minutes=minutes) for minutes in STEPS_MINUTES]
        step = next((s for s in steps if (self.end - self.start) / s <= MAX_TICKS), steps[-1])
        wall = self.start.astimezone(self._zone).replace(tzinfo=None)
        day = wall.replace(hour=0, minute=0, second=0, microsecond=0)
        within_day = min(step, timedelta(days=1))
        wall = day + ((wall - day) // within_day + 1) * within_day
        of_date = "%a %-d %b" if step < timedelta(days=30) else "%b %Y"
        while (at := wall.replace(tzinfo=self._zone).astimezone(UTC)) < self.end:
            is_midnight = wall.time() == datetime.min.time()
            yield at, f"{wall:{of_date if is_midnight else '%H:%M'}}"
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
        reasons=list(_reasons(timeline, gaps)),
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
    if run is None and cell.state in ("succeeded", "retried", "dead", "cancelled"):
        attempts = ", no longer kept"
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


def _reasons(timeline: Timeline, gaps: Sequence[Part]) -> Iterator[Label]:
    """Yield the reason of each gap whose band is wide enough for it."""
    for gap, part in zip(timeline.gaps, gaps, strict=True):
        for text in (f"{gap.reason} ({gap.slots})", gap.reason):
            width = len(text) * CHAR_WIDTH + 10
            if part.width > width + 6:
                yield Label(part.x + part.width / 2, text, width)
                break
