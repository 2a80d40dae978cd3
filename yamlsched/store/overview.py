"""Statements that summarise runs that have ended: see ``sql/overview.sql``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.store.rows import fetch
from yamlsched.store.statements import load


@dataclass(frozen=True)
class HourRow:
    """Runs that ended within one hour, and those of them that died."""

    hour: datetime
    ended: int
    dead: int


def ended(
    connection: psycopg.Connection[Any], namespace: str, job: str | None, start: datetime, end: datetime, limit: int
) -> list[HourRow]:
    parameters = {"namespace": namespace, "job": job, "start": start, "end": end, "limit": limit}
    return fetch(connection, HourRow, load("overview")["ended"], parameters)
