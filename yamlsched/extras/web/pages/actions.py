"""``/actions``: the pauses that are in effect, and what operators have done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from yamlsched.extras.web.ask import audit
from yamlsched.extras.web.ask.audit import PAST, Pause, TrailGroup
from yamlsched.extras.web.visit import BadRequest, Page, Visit
from yamlsched.timetable.times import short_utc

PAGE_ACTIONS = 50
"""Actions on one page. One on many runs has an entry for each; they are shown together."""
MAX_COUNTED_RUNS = 1_000
MAX_LISTED_TARGETS = 12
VERBS = tuple(PAST)
SHOWN = ("was", "reason", "until", "runs", "first", "last", "effect", "as", "key")
"""What is recorded with an action, in the order in which it is shown; the rest follows."""
HIDDEN = ("attempt",)
"""The attempt before a retry: the page of the run shows it."""


def details(detail: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is recorded with an action as names and values for people."""
    names = [name for name in SHOWN if detail.get(name) is not None]
    names += sorted(
        name for name in detail if name not in (*SHOWN, *HIDDEN) and detail[name] is not None
    )
    return [(name.replace("_", " "), _value(detail[name])) for name in names]


def _value(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        return value
    return short_utc(instant) if instant.tzinfo else value


@dataclass(frozen=True)
class ActionsPage:
    """The page. ``older`` is where the next page starts; ``is_first`` says that this one is the
    newest.
    """

    pauses: Sequence[Pause]
    groups: Sequence[TrailGroup]
    filter: dict[str, str]
    older: int | None
    is_first: bool
    verbs = VERBS
    max_runs = MAX_COUNTED_RUNS
    max_targets = MAX_LISTED_TARGETS
    details = staticmethod(details)


def show(visit: Visit) -> ActionsPage:
    filter = {
        "verb": visit.choice("verb", VERBS, ""),
        **{name: visit.text(name) for name in ("who", "job", "run")},
    }
    run = filter["run"]
    if run and not (run.isascii() and run.isdigit() and len(run) < 19):
        raise BadRequest(f'"{run}" is not the id of a run.', "Write for example 118.")
    before = visit.number("before", 0) or None
    groups, older = audit.page(
        visit.connection,
        visit.namespace,
        PAGE_ACTIONS,
        before,
        verb=filter["verb"] or None,
        who=filter["who"] or None,
        job_type=filter["job"] or None,
        target=f"run:{run}" if run else None,
    )
    return ActionsPage(
        pauses=audit.pauses(visit.connection, visit.namespace, visit.now),
        groups=groups,
        filter=filter,
        older=older,
        is_first=before is None,
    )


PAGE = Page("/actions", "actions.html", show)
