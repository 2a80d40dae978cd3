"""Statements about what happened to a job over time: see ``sql/timeline.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load

MAX_RUNS_OF_DAY = 100
"""Runs of one kind that are read for a day."""


@dataclass(frozen=True)
class DayOfJob:
    """How a job's runs ended in a span of time. The numbers are at most ``MAX_RUNS_OF_DAY``."""

    nth: int
    dead: int
    retried: int  # succeeded after a failed attempt
    retrying: int  # have failed and are unfinished
    succeeded: bool
    cancelled: bool
    reasons: list[str]  # for which slots were skipped


def days(
    connection: psycopg.Connection[Any], namespace: str, spans: Sequence[tuple[str, datetime, datetime]]
) -> list[DayOfJob]:
    """Return what happened in each span, of a job from an instant up to another; ``nth`` is its place in ``spans``."""
    jobs, starts, ends = ([span[part] for span in spans] for part in range(3))
    given = {"namespace": namespace, "jobs": jobs, "starts": starts, "ends": ends, "limit": MAX_RUNS_OF_DAY}
    return fetch(connection, DayOfJob, load("timeline")["days"], given)
