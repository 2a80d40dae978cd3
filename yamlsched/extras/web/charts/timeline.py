"""The slots of a job on a time axis: a bar for each, hatched bands for gaps, and below them how long the runs took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from markupsafe import Markup

from yamlsched import durations
from yamlsched.ask.slots import SlotAccount
from yamlsched.extras.web.ask.timeline import Timeline, TimelineGap
from yamlsched.extras.web.markup import element
from yamlsched.extras.web.render import count

WIDTH, LEFT, RIGHT = 1200.0, 52.0, 1188.0
MARKS_TOP, BARS_TOP, BARS_HEIGHT = 4, 30, 44
AXIS_TOP = BARS_TOP + BARS_HEIGHT
TIMELINE_HEIGHT = AXIS_TOP + 26
TOOK_TOP, TOOK_HEIGHT = 18, 84
MIN_BAR, MAX_BAR = 2.5, 18.0
CHAR_WIDTH = 6.6
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
HEIGHTS = {
    "succeeded": 0.62,
    "retried": 0.8,
    "cancelled": 0.4,
    "queued": 0.4,
    "future": 0.3,
    "pruned": 0.12,
    "unknown": 0.12,
}
"""How tall a bar is; the others are full."""
MARKS = {
    "dead": "M-4-4l8 8m0-8l-8 8",
    "failed": "M0-5v6m0 3.5v.5",
    "retried": "M4 0a4 4 0 1 1-1.2-2.8M4-5v2.5h-2.5",
    "running": "M-3-4.5v9l7-4.5z",
    "cancelled": "M-4 4l8-8",
    "due": "M0-4v4l3 2",
}
"""What stands above a bar, around (0, 0), so that its state is not its colour alone."""
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
        step, form = next((s for s in STEPS if (self.end - self.start) / s[0] <= MAX_TICKS), STEPS[-1])
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


def timeline(shown: Timeline, zone: ZoneInfo, link: Link, edits: Sequence[tuple[datetime, str]] = ()) -> Markup:
    """Return the chart of the slots. Each bar and each band is a link to its explanation.

    ``edits`` are the instants at which the job was edited, and by which commits.
    """
    axis = Axis(shown.start, shown.end, zone)
    width = _bar_width(shown, axis)
    parts = [*_axis(axis, BARS_TOP, AXIS_TOP), *_now(axis, shown, MARKS_TOP + 10, AXIS_TOP)]
    for gap in shown.gaps:
        parts.append(_linked(_band(gap, axis, width), link(gap), f"{gap.slots} skipped: {gap.reason}"))
    for cell in shown.cells:
        parts.append(_linked(_bar(cell, axis, width, zone), link(cell), describe(cell, zone)))
    parts += _reasons(shown, axis, width)
    parts += [_edit(axis.x(at), f"edited {at.astimezone(zone):%a %-d %b %H:%M %Z}: {by}") for at, by in edits]
    words = summary(shown, zone) + (f"; {count(len(edits), 'edit')}" if edits else "")
    return _svg(parts, TIMELINE_HEIGHT, "timeline", words)


def took(shown: Timeline, zone: ZoneInfo, timeout: timedelta | None) -> Markup | None:
    """Return the chart of the durations of latest attempts; None if no attempt has ended."""
    timed = [(cell, cell.took) for cell in shown.cells if cell.took is not None]
    if not timed:
        return None
    axis = Axis(shown.start, shown.end, zone)
    width = _bar_width(shown, axis)
    longest = max(max(t for _, t in timed), timedelta(seconds=0.1))
    has_limit = timeout is not None and timeout <= 2 * longest
    top = max(longest, timeout) if has_limit and timeout is not None else longest
    base = TOOK_TOP + TOOK_HEIGHT
    parts = [*_axis(axis, TOOK_TOP, base, with_labels=False)]
    for share in (0.5, 1.0):
        y = base - TOOK_HEIGHT * share
        parts.append(element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=y, y2=y))
        parts.append(
            element("text", durations.show(top * share), class_="label", x=LEFT - 8, y=y + 4, text_anchor="end")
        )
    if has_limit and timeout is not None:
        y = base - TOOK_HEIGHT * (timeout / top)
        parts.append(element("line", class_="limit", x1=LEFT, x2=RIGHT, y1=y, y2=y))
        label = f"timeout {durations.show(timeout)}"
        parts.append(element("text", label, class_="label limit", x=RIGHT - 2, y=y - 4, text_anchor="end"))
    for cell, time in timed:
        tall = max(1.5, TOOK_HEIGHT * (time / top))
        title = element("title", f"{describe(cell, zone)}, took {durations.show(time)}")
        box = {"x": axis.x(cell.at) - width / 2, "y": base - tall, "width": width, "height": tall}
        parts.append(
            element(
                "g", title, element("rect", class_="bar", rx=min(2.0, width / 3), **box), class_=f"slot {cell.state}"
            )
        )
    typical = sorted(t for _, t in timed)[len(timed) // 2]
    words = (
        f"Durations of {count(len(timed), 'run')}: median {durations.show(typical)}, longest {durations.show(longest)}"
    )
    return _svg(parts, base + 8, "took", words)


def describe(cell: SlotAccount, zone: ZoneInfo) -> str:
    """Return a slot and its state in words."""
    run = cell.run
    attempts = f", attempt {run.attempts} of {run.max_attempts}" if run is not None and run.attempts else ""
    return f"{cell.at.astimezone(zone):%a %-d %b %H:%M %Z}: {WORDS[cell.state]}{attempts}"


def summary(shown: Timeline, zone: ZoneInfo) -> str:
    """Return the chart in a sentence."""
    numbers = {state: sum(cell.state == state for cell in shown.cells) for state in WORDS}
    said = [f"{number} {WORDS[state]}" for state, number in numbers.items() if number]
    skipped = sum(gap.slots for gap in shown.gaps)
    if skipped:
        said.append(f"{skipped} skipped")
    start, end = (f"{at.astimezone(zone):%a %-d %b %H:%M}" for at in (shown.start, shown.end))
    return f"Slots from {start} to {end}: {', '.join(said) or 'none'}"


def _bar_width(shown: Timeline, axis: Axis) -> float:
    xs = sorted(axis.x(cell.at) for cell in shown.cells)
    closest = min((b - a for a, b in pairwise(xs) if b > a), default=MAX_BAR / 0.7)
    return min(MAX_BAR, max(MIN_BAR, closest * 0.7))


def _bar(cell: SlotAccount, axis: Axis, width: float, zone: ZoneInfo) -> Markup:
    x = axis.x(cell.at)
    tall = BARS_HEIGHT * HEIGHTS.get(cell.state, 1.0)
    parts = [
        element("title", describe(cell, zone)),
        element("rect", class_="hit", x=x - width / 2 - 1, y=MARKS_TOP, width=width + 2, height=AXIS_TOP - MARKS_TOP),
        element(
            "rect", class_="bar", x=x - width / 2, y=AXIS_TOP - tall, width=width, height=tall, rx=min(2.0, width / 3)
        ),
    ]
    if cell.state in MARKS:
        parts.append(
            element("path", class_="mark", d=MARKS[cell.state], transform=f"translate({x:.1f} {BARS_TOP - 11})")
        )
    return element("g", *parts, class_=f"slot {cell.state}")


def _band(gap: TimelineGap, axis: Axis, width: float) -> Markup:
    left, right = axis.x(gap.first) - width / 2, axis.x(gap.last) + width / 2
    box = {"x": left, "y": BARS_TOP, "width": max(right - left, width), "height": BARS_HEIGHT}
    title = element("title", gap.sentence)
    return element("g", title, element("rect", class_="band", fill="url(#hatch)", rx=2, **box), class_="gap")


def _reasons(shown: Timeline, axis: Axis, width: float) -> Iterator[Markup]:
    """Write the reason of each gap inside its band, or above a narrow one, where there is room."""
    marks = [axis.x(cell.at) for cell in shown.cells if cell.state in MARKS]
    if shown.start < shown.now < shown.end:
        marks.append(axis.x(shown.now))
    for gap in shown.gaps:
        left, right = axis.x(gap.first) - width / 2, axis.x(gap.last) + width / 2
        middle = (left + right) / 2
        text = next((t for t in (f"{gap.reason} ({gap.slots})", gap.reason) if right - left > _wide(t) + 6), None)
        if text is not None:
            plate = {"x": middle - _wide(text) / 2, "y": BARS_TOP + 13, "width": _wide(text), "height": 18}
            yield element("rect", class_="plate", rx=4, **plate)
            yield element("text", text, class_="reason", x=middle, y=BARS_TOP + 26, text_anchor="middle")
            continue
        half = _wide(gap.reason) / 2 + 4
        if middle - half > LEFT and middle + half < WIDTH and not any(abs(x - middle) < half + 6 for x in marks):
            yield element("text", gap.reason, class_="reason", x=middle, y=BARS_TOP - 6, text_anchor="middle")
            marks += [middle - half, middle, middle + half]


def _wide(text: str) -> float:
    return len(text) * CHAR_WIDTH + 10


def _linked(part: Markup, href: str, words: str) -> Markup:
    return element("a", part, href=href, aria_label=words)


def _axis(axis: Axis, top: float, base: float, with_labels: bool = True) -> Iterator[Markup]:
    for at, label in axis.ticks():
        x = axis.x(at)
        yield element("line", class_="grid", x1=x, x2=x, y1=top, y2=base + (5 if with_labels else 0))
        if with_labels and LEFT + 4 < x < RIGHT - 16:
            yield element("text", label, class_="label", x=x, y=base + 19, text_anchor="middle")
    yield element("line", class_="axis", x1=LEFT, x2=RIGHT, y1=base, y2=base)


def _now(axis: Axis, shown: Timeline, top: float, base: float) -> Iterator[Markup]:
    if shown.start < shown.now < shown.end:
        x = axis.x(shown.now)
        yield element("line", class_="now", x1=x, x2=x, y1=top, y2=base)
        yield element("text", "now", class_="label now", x=x, y=top - 4, text_anchor="middle")


def _edit(x: float, words: str) -> Markup:
    """Mark an edit: a line, and a triangle on the axis."""
    return element(
        "g",
        element("title", words),
        element("line", x1=x, x2=x, y1=BARS_TOP - 4, y2=AXIS_TOP),
        element("path", d="M0 0l4 7h-8z", transform=f"translate({x:.1f} {AXIS_TOP})"),
        class_="edit",
    )


def _svg(parts: list[Markup], height: float, name: str, words: str) -> Markup:
    return element(
        "svg",
        element("title", words),
        *parts,
        class_=name,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        width=int(WIDTH),
        height=int(height),
        role="group",
        aria_label=words,
    )
