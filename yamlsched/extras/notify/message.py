"""The text of a message: what is so now, in at most 1,000 characters. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from yamlsched.durations import approximate
from yamlsched.runs.lifecycle import error_text, one_line
from yamlsched.text import join_words, truncate
from yamlsched.timetable.times import short_utc

MAX_CHARS = 1000
"""Of title and text together."""
MAX_LISTED = 10
MAX_LISTED_CHARS = 62  # of the error of one job among several
MAX_HOST_CHARS = 60
SEVERITY = ("paused", "dead", "failing", "late")
OF_A_RUN = ("paused", "dead", "failing")
"""What is said of a job because of one of its runs."""
MAX_TITLE_CHARS = 200
MARKUP = re.compile(r"[@<](?=\S)|\](?=\()")
"""What chat services may read as a mention or as a link."""


class Note(NamedTuple):
    """What there is to send of one job, or of one problem; a row of the statement ``take``.

    ``events`` are those that are so now, of those that the target has. ``dead_of_job`` is null
    unless the run that died was enqueued.
    """

    target: str
    subject: str
    is_problem: bool
    since: datetime
    ended_at: datetime | None
    pause: timedelta
    dead_runs: int
    told_runs: int
    paused_after: int | None
    late_since: datetime | None
    events: list[str]
    what: str | None
    run_id: int | None
    owner: str | None
    locked_by: str | None
    error_type: str | None
    last_error: str | None
    changed: str | None
    dead_of_job: int | None

    @property
    def kind(self) -> str | None:
        """What is so: the end of trouble, a problem, or the most severe event; None if nothing is
        any more.
        """
        if self.ended_at is not None:
            return "recovered"
        return (
            "problem" if self.is_problem else next(filter(self.events.__contains__, SEVERITY), None)
        )

    @property
    def state(self) -> str:
        """What follows the name of the job."""
        if self.ended_at is not None:
            return "is over" if self.is_problem else "has recovered"
        untold = self.dead_runs - self.told_runs
        in_a_row = "" if self.paused_after == 1 else " in a row"
        states = {
            "paused": f"is paused after {_runs(self.paused_after or 0, 'dead ')}{in_a_row}",
            "dead": f"{_runs(untold)} died" if untold else "is still dead",
            "failing": "is failing",
            "late": (
                f"is late since {short_utc(self.late_since)}" if self.late_since is not None else ""
            ),
        }
        shown = ["paused"] if "paused" in self.events else self.events
        return " and ".join(states[event] for event in SEVERITY if event in shown)

    @property
    def duration(self) -> str:
        """What is said of the trouble when it is over."""
        if self.ended_at is None or self.is_problem:
            return ""
        died = f"; {_runs(self.dead_runs)} had died" if self.dead_runs else ""
        return f"after {approximate(self.ended_at - self.since)}{died}"


def compose(
    notes: Sequence[Note], namespace: str, environment: str, web_url: str | None
) -> tuple[str, str, bool]:
    """Return title and text for one target, and whether all is well again."""
    where = f"{namespace}/{environment}" if environment else namespace
    page = (
        web_url.rstrip("/") + (f"/@{namespace}" if namespace != "default" else "")
        if web_url
        else ""
    )
    title, lines = _one(notes[0], namespace) if len(notes) == 1 else _several(notes, namespace)
    title = truncate(plain(f"[{where}] {title}"), MAX_TITLE_CHARS)
    lines.append(f"namespace {namespace}" + (f", environment {environment}" if environment else ""))
    if page and len(notes) == 1 and not notes[0].is_problem:
        page += f"/jobs/{notes[0].subject}"
    most = MAX_CHARS - len(title) - len(page) - 1
    text = truncate("\n".join(plain(line) for line in lines if line), most)
    return (
        title,
        f"{text}\n{page}" if page else text,
        all(note.ended_at is not None for note in notes),
    )


def plain(text: str) -> str:
    """Return one line without control characters, and with a space in what chat services may read
    as markup.

    >>> plain("@channel <!here> [retry](https://example.com)")
    '@ channel < !here> [retry] (https://example.com)'
    """
    return MARKUP.sub(lambda match: f"{match[0]} ", one_line(text))


def _one(note: Note, namespace: str) -> tuple[str, list[str]]:
    name = _option(namespace)
    if note.is_problem:
        kind = note.subject.removesuffix(":").replace(":", " of ").replace("_", " ")
        return f"{kind}: {note.state if note.ended_at else 'needs attention'}", [note.what or ""]
    title = f"{note.subject} {note.state}" if note.ended_at else f"{note.subject}: {note.state}"
    lines = [f"job {note.subject}" + (f", owner {note.owner}" if note.owner else ""), note.duration]
    if note.run_id and note.kind in OF_A_RUN:
        lines += [f"run {note.run_id}{_on(note)}: {_error(note, 500)}", note.changed or ""]
        lines += [f"the job has {_runs(note.dead_of_job, 'dead ')}" if note.dead_of_job else ""]
        lines += [f"yamlsched show {note.run_id}{name}"]
        lines += [f"yamlsched retry {note.run_id}{name}" if note.kind == "dead" else ""]
    elif note.ended_at is None:
        lines += [f"yamlsched status{name}"]
    if note.kind == "paused":
        lines += [f"yamlsched resume {note.subject}{name}"]
    return title, lines


def _several(notes: Sequence[Note], namespace: str) -> tuple[str, list[str]]:
    lines = [_line(note) for note in notes[:MAX_LISTED]]
    if more := notes[MAX_LISTED:]:
        lines.append(f"and {len(more)} more: {_counts(more)}")
    return _counts(notes), [*lines, f"yamlsched status{_option(namespace)}"]


def _option(namespace: str) -> str:
    return "" if namespace == "default" else f" --namespace {namespace}"


def _line(note: Note) -> str:
    if note.is_problem and note.ended_at:
        return f"{note.subject.removesuffix(':')} {note.state}"
    if note.is_problem:
        return truncate(one_line(note.what or ""), MAX_LISTED_CHARS)
    is_run = note.run_id and note.kind in OF_A_RUN
    run = f", run {note.run_id}{_on(note)}: {_error(note, MAX_LISTED_CHARS)}" if is_run else ""
    return f"{note.subject}: {note.state} {note.duration}".rstrip() + run


def _runs(count: int, which: str = "") -> str:
    return f"1 {which}run" if count == 1 else f"{count} {which}runs"


def _on(note: Note) -> str:
    host = (note.locked_by or "").rsplit(":", 2)[0].rpartition(":")[2]
    return f" on {truncate(one_line(host), MAX_HOST_CHARS)}" if host else ""


def _counts(notes: Sequence[Note]) -> str:
    counts = Counter(note.kind for note in notes)
    words = [
        f"{count} {'with problems' if kind == 'problem' else kind}"
        for kind, count in counts.items()
    ]
    return join_words(words, "and")


def _error(note: Note, most: int) -> str:
    return (
        truncate(one_line(error_text(note.error_type, note.last_error)), most)
        or "its run was retried or pruned"
    )
