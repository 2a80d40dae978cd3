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
    pauses = [
        action for action in actions if action.verb == "pause" and action.at <= gap.recorded_at
    ]
    if not pauses:
        return ""
    # a slot that was due shortly before the pause is skipped as well
    pause = next((action for action in pauses if action.at <= gap.first_slot), pauses[-1])
    until, reason = pause.detail.get("until"), pause.detail.get("reason")
    end = f", until {short_utc(datetime.fromisoformat(until))}" if until else ""
    return f"{pause.who} had paused the job at {short_utc(pause.at)}{end}" + (
        f": {reason}" if reason else ""
    )
