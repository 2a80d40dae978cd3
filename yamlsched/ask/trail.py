"""The trail of operators' actions, and who had paused a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

from yamlsched.db.query import fetch
from yamlsched.timetable.times import short_utc

MAX_ACTIONS = 200
"""The latest actions on a job, among which the pause of a slot is looked for."""
NO_FILTER = dict.fromkeys(("verb", "who", "job_type", "target", "request"))


@dataclass(frozen=True)
class TrailEntry:
    """An action of an operator. ``by_form``: it was done on the web page, which knows who asked for
    it.
    """

    id: int
    at: datetime
    who: str
    verb: str
    target: str
    job_type: str | None
    detail: dict[str, Any]
    by_form: bool


def trail(
    connection: Connection[Any],
    namespace: str,
    *,
    limit: int,
    before: int | None = None,
    **filters: str | None,
) -> list[TrailEntry]:
    """Return up to ``limit`` actions with an id below ``before``, newest first.

    ``filters`` are a verb, who, job_type, target and request, the form of the web page.
    """
    parameters = {**NO_FILTER, **filters, "namespace": namespace, "before": before, "limit": limit}
    return fetch(connection, TrailEntry, "audit.trail", **parameters)


def actions_on(connection: Connection[Any], namespace: str, job_type: str) -> list[TrailEntry]:
    """Return the latest actions of operators on a job, newest first."""
    return trail(connection, namespace, target=f"job:{job_type}", limit=MAX_ACTIONS)


def paused_by(gap: Any, actions: Sequence[TrailEntry]) -> str:
    """Return who paused the job when the slots of a gap were skipped, until when and why; "" if the
    trail lacks it.

    ``actions`` are those on the job, newest first.
    """
    if gap.reason != "paused":
        return ""
    changes = [action for action in actions if action.verb in ("pause", "resume")]
    # a slot that was due shortly before the pause is skipped as well
    pauses = [
        n
        for n, action in enumerate(changes)
        if action.verb == "pause" and action.at <= gap.recorded_at
    ]
    chosen = next(
        (n for n in pauses if changes[n].at <= gap.first_slot), pauses[-1] if pauses else None
    )
    if chosen is None:
        return ""
    pause, end = changes[chosen], changes[chosen - 1] if chosen else None
    until = datetime.fromisoformat(pause.detail["until"]) if pause.detail.get("until") else None
    text = f"{pause.who} had paused the job at {short_utc(pause.at)}"
    if end is not None and (until is None or end.at < until):
        text += (
            f", {'resumed' if end.verb == 'resume' else 'paused again'} by {end.who} at"
            f" {short_utc(end.at)}"
        )
    elif until is not None:
        text += f", until {short_utc(until)}"
    return text + (f": {pause.detail['reason']}" if pause.detail.get("reason") else "")
