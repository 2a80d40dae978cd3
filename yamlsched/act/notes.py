"""What is to be sent to targets of notifications: at the end of a tick that worked, and each minute
of a loop.

The transaction in which a run dies or fails again notes that; all else is found here. Whoever has a
target's variable sends it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from yamlsched.ask import attention, health
from yamlsched.ask.problem import Thresholds
from yamlsched.db.query import execute

KINDS = ("file", "prune", "calendar", "lack", "stuck", "in_doubt")
"""The problems of ``status --check`` that are sent as such: the others are of a job that is dead,
failing or late.
"""
MAX_CHARS = 600


def settle(
    connection: psycopg.Connection[Any], namespace: str, now: datetime | None = None
) -> list[str | None]:
    """Note what is late, has recovered or is a problem. Return the targets to which a message is
    due.
    """
    thresholds = Thresholds()
    noted: dict[str, str] = {}
    for problem in attention.problems(
        health.read(connection, namespace, thresholds.within, []), thresholds
    ):
        if problem.kind in KINDS:
            subject = f"{problem.kind}:{problem.job_type or ''}"  # no job has such a name
            noted.setdefault(subject, f"{problem.what[:MAX_CHARS]}; {problem.remedy[:MAX_CHARS]}")
    problems = [
        {"subject": subject, "what": what, "found_since": "now"} for subject, what in noted.items()
    ]
    parameters = {"namespace": namespace, "problems": Jsonb(problems), "now": now}
    execute(connection, "notify.settle", **parameters)
    row: Any = execute(connection, "notify.due", **parameters).fetchone()
    return list(row.targets or ())
