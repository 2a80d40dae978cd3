"""The text of a message: what is so now, in at most 1,000 characters. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from yamlsched.runs.lifecycle import error_text, one_line
from yamlsched.text import join_words, truncate
from yamlsched.timetable.times import short_utc

MAX_CHARS = 1000
"""Of title and text together."""
MAX_LISTED = 10
MAX_LISTED_CHARS = 62  # of the error of one job among several
MAX_HOST_CHARS = 60
MENTION = re.compile(r"@(?=everyone|here|channel|all\b)|<(?=[!@#])", re.IGNORECASE)
"""What chat services take for the name of a group to call."""


class Note(NamedTuple):
    """What a target is to be told of one job, or of one problem; a row of the statement ``take``."""

    target: str
    url_env: str
    subject: str
    is_problem: bool
    ended_at: datetime | None
    quiet_until: datetime | None
    dead_runs: int
    late_since: datetime | None
    is_dead: bool
    what: str | None
    run_id: int | None
    owner: str | None
    locked_by: str | None
    error_type: str | None
    last_error: str | None

    @property
    def events(self) -> list[str]:
        """What is told: a job may be dead and late."""
        if self.ended_at is not None:
            return ["recovered"]
        if self.is_problem:
            return ["problem"]
        return ["dead"] * (self.is_dead or self.dead_runs > 0) + ["late"] * (self.late_since is not None)

    @property
    def state(self) -> str:
        """What follows the name of the job."""
        if self.ended_at is not None:
            return "is over" if self.is_problem else "has recovered"
        late = f"is late since {short_utc(self.late_since)}" if self.late_since is not None else ""
        died = "1 run died" if self.dead_runs == 1 else f"{self.dead_runs} runs died" if self.dead_runs else ""
        died = died or ("is still dead" if self.is_dead else "")
        return " and ".join(filter(None, (died, late)))


def compose(notes: Sequence[Note], namespace: str, environment: str, web_url: str | None) -> tuple[str, str, bool]:
    """Return title and text for one target, and whether all is well again."""
    where = f"{namespace}/{environment}" if environment else namespace
    page = web_url.rstrip("/") + (f"/@{namespace}" if namespace != "default" else "") if web_url else ""
    title, lines = _one(notes[0], namespace, page) if len(notes) == 1 else _several(notes, page)
    title = f"[{where}] {title}"
    lines.append(f"namespace {namespace}" + (f", environment {environment}" if environment else ""))
    body = _plain("\n".join(lines))
    return title, truncate(body, MAX_CHARS - len(title)), all(note.ended_at is not None for note in notes)


def _one(note: Note, namespace: str, page: str) -> tuple[str, list[str]]:
    name = "" if namespace == "default" else f" --namespace {namespace}"
    if note.is_problem:
        kind = note.subject.removesuffix(":").replace(":", " of ").replace("_", " ")
        return f"{kind}: {note.state if note.ended_at else 'needs attention'}", [note.what or "", page]
    title = f"{note.subject} {note.state}" if note.ended_at else f"{note.subject}: {note.state}"
    lines = [f"job {note.subject}" + (f", owner {note.owner}" if note.owner else "")]
    if "dead" in note.events and note.run_id:
        lines += [f"run {note.run_id}{_on(note)}: {_error(note, 500)}", f"yamlsched show {note.run_id}{name}"]
        lines += [f"yamlsched retry {note.run_id}{name}"]
    elif note.ended_at is None:
        lines += [f"yamlsched status{name}"]
    return title, [*lines, f"{page}/jobs/{note.subject}" if page else ""]


def _several(notes: Sequence[Note], page: str) -> tuple[str, list[str]]:
    lines = [_line(note) for note in notes[:MAX_LISTED]]
    if more := notes[MAX_LISTED:]:
        lines.append(f"and {len(more)} more: {_counts(more)}")
    return _counts(notes), [*lines, "yamlsched status", page]


def _line(note: Note) -> str:
    if note.is_problem and note.ended_at:
        return f"{note.subject.removesuffix(':')} {note.state}"
    if note.is_problem:
        return truncate(one_line(note.what or ""), MAX_LISTED_CHARS)
    run = f", run {note.run_id}{_on(note)}: {_error(note, MAX_LISTED_CHARS)}" if "dead" in note.events else ""
    return f"{note.subject}: {note.state}{run}"


def _on(note: Note) -> str:
    host = (note.locked_by or "").rsplit(":", 2)[0]
    return f" on {truncate(one_line(host), MAX_HOST_CHARS)}" if host else ""


def _counts(notes: Sequence[Note]) -> str:
    counts = Counter(note.events[0] for note in notes if note.events)
    words = [f"{count} {'in trouble' if event == 'problem' else event}" for event, count in counts.items()]
    return join_words(words or ["0"], "and")


def _error(note: Note, most: int) -> str:
    return truncate(one_line(error_text(note.error_type, note.last_error)), most) or "its run was retried or pruned"


def _plain(text: str) -> str:
    """Return the lines that are not empty, without what would call people."""
    return "\n".join(MENTION.sub(lambda match: f"{match[0]} ", line) for line in text.splitlines() if line)
