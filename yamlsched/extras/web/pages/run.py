"""``/runs/ID``: everything about one run, as ``yamlsched show`` has it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from yamlsched import text as terminal
from yamlsched.ask import edits, health, history, runs
from yamlsched.ask.history import MAX_CHILDREN
from yamlsched.ask.runs import AttemptRecord, ChildRun, RunDetails, StoredRun
from yamlsched.db.query import fetch
from yamlsched.errors import Refused
from yamlsched.extras.web.render import sentence
from yamlsched.extras.web.visit import Download, NotFound, Page, Visit
from yamlsched.handler.once import settle_command
from yamlsched.runs.lifecycle import Status, error_text

MAX_SHOWN_CHARS = 12_000
"""Of a stack, an output, a payload or a result. The whole of the first two is a download."""
MAX_COUNTED_CHILDREN, MAX_LISTED_CHILDREN = 1_000, 20
"""Of those that are not dead, the first ones are listed."""
OPEN_ATTEMPTS = 1
"""The newest attempts, whose stacks and outputs are shown without a click."""


@dataclass(frozen=True)
class Cut:
    """A part of a text. ``omitted`` characters are not shown."""

    text: str
    omitted: int


@dataclass(frozen=True)
class RunView:
    """The page. ``attempts`` are newest first; ``attempt`` is the one that was asked for."""

    run: StoredRun
    timezone: str
    details: RunDetails
    attempts: Sequence[AttemptRecord]
    attempt: int | None
    status: str
    error: str
    next_step: str
    in_doubt: Sequence[str]
    why_not_claimed: Sequence[str]
    target: str
    payload: Cut | None
    result: Cut | None
    children: Sequence[ChildRun]
    max_counted, max_listed = MAX_COUNTED_CHILDREN, MAX_LISTED_CHILDREN
    commit, ends = staticmethod(edits.commit), runs.ENDS
    open_attempts = OPEN_ATTEMPTS

    def has_texts(self, attempt: AttemptRecord) -> bool:
        """Return whether the stack and the output of an attempt were read."""
        return self.details.texts is None or attempt.number in self.details.texts

    @staticmethod
    def stack(attempt: AttemptRecord) -> Cut:
        return end_of((attempt.stack or "").rstrip())

    @staticmethod
    def output(attempt: AttemptRecord) -> Cut:
        return end_of(
            terminal.without_styles(attempt.output.output).removesuffix("\n")
            if attempt.output
            else ""
        )

    @staticmethod
    def json(value: Any) -> str:
        return pretty(value).text

    def settle(self, key: str) -> str:
        return settle_command(self.run.namespace, key)


def show(visit: Visit) -> RunView:
    try:
        id = history.find(visit.connection, visit.namespace, visit.path["run"])
        attempt = visit.number("attempt", 0, highest=2**31 - 1) or None
        details = history.run_details(visit.connection, id, attempt=attempt, all_texts=False)
    except Refused as error:
        raise NotFound(sentence(str(error)), "Finished runs are pruned after a while.") from None
    run = details.run
    attempts = runs.attempts(details)[::-1]
    download = visit.choice("download", ("output", "stack"), "")
    if download == "stack":
        for record in attempts:
            if record.number == attempt and record.stack:
                raise Download(f"run-{id}-attempt-{attempt}-stack.txt", record.stack)
        raise NotFound("No stack was kept of this attempt.")
    if download:
        try:
            kept = history.kept_output(details, attempt or run.attempts)
        except Refused as error:
            raise NotFound(sentence(str(error))) from None
        raise Download(f"run-{id}-attempt-{kept.attempt}.txt", kept.output)
    in_doubt = [effect.key for effect in details.effects if effect.state == "in_doubt"]
    return RunView(
        run=run,
        timezone=visit.clock or (run.timezone if run.scheduled_for else ""),
        details=details,
        attempts=attempts,
        status=history.waits_for(run, visit.now).removeprefix(",").strip(),
        error=error_text(run.error_type, run.last_error) if run.status != Status.SUCCEEDED else "",
        attempt=attempt,
        # one that was cancelled on purpose needs nothing: its button retries it
        next_step=(
            ""
            if run.status == Status.CANCELLED and not in_doubt
            else history.next_step(run, in_doubt)
        ),
        in_doubt=in_doubt,
        why_not_claimed=health.why_not_claimed(visit.connection, run, visit.now),
        target=run.handler or shlex.join(run.command),
        payload=pretty(run.payload) if run.payload else None,
        result=pretty(run.result) if run.result is not None else None,
        children=_children(visit, details),
    )


def _children(visit: Visit, details: RunDetails) -> Sequence[ChildRun]:
    """Return the runs that the handler enqueued, the dead ones first."""
    if len(details.children) < MAX_CHILDREN:
        return details.children
    parameters = {"id": details.run.id, "limit": MAX_COUNTED_CHILDREN, "of_hooks": False}
    return fetch(visit.connection, ChildRun, "history.children", **parameters)


def pretty(value: Any) -> Cut:
    """Return the start of a value as indented JSON."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return Cut(text[:MAX_SHOWN_CHARS], max(0, len(text) - MAX_SHOWN_CHARS))


def end_of(text: str) -> Cut:
    """Return the end of a text, where its error is."""
    return Cut(text[-MAX_SHOWN_CHARS:], max(0, len(text) - MAX_SHOWN_CHARS))


PAGE = Page("/runs/{run:path}", "run.html", show)
