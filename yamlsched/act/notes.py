"""What targets of notifications are to be told: at the end of a tick that worked, and each minute of a loop.

The transaction in which a run dies notes that; all else is found here. Whoever has a target's variable sends it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg

from yamlsched.ask import attention, health
from yamlsched.db.query import load

KINDS = ("file", "prune", "calendar", "lack", "stuck", "in_doubt")
"""The problems of ``status --check`` that are told as such: the others are those of a job that is dead or late."""
MAX_CHARS = 600


def settle(connection: psycopg.Connection[Any], namespace: str, now: datetime | None = None) -> list[str | None]:
    """Note what is late, has recovered or is a problem. Return the variables of targets to which a message is due."""
    sql = load("notify")
    given: dict[str, Any] = {"namespace": namespace, "now": now}
    connection.execute(sql["settle"], given)
    thresholds = attention.Thresholds()
    found: dict[str, str] = {}
    for one in attention.problems(health.read(connection, namespace, thresholds.within, [], []), thresholds):
        if one.kind in KINDS:
            subject = one.kind if one.job_type is None else f"{one.kind}:{one.job_type}"
            found.setdefault(subject, f"{one.what[:MAX_CHARS]}; {one.remedy[:MAX_CHARS]}")
    given |= {"subjects": list(found), "whats": list(found.values())}
    for statement in ("end_problems", "note_problems"):
        connection.execute(sql[statement], given)
    row: Any = connection.execute(sql["due"], given).fetchone()
    return list(row.variables or ())
