"""The audit trail of operators, and the notification that follows an action."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.db.query import execute


@dataclass(frozen=True)
class ActionRecord:
    """A row of the audit trail; the target is ``run:<id>`` or ``job:<name>``."""

    namespace: str
    target: str
    job_type: str
    detail: dict[str, Any]


def record(
    connection: psycopg.Connection[Any],
    who: str,
    verb: str,
    records: Sequence[ActionRecord],
    now: datetime | None = None,
) -> None:
    """Write the rows of the audit trail for an action of ``who``."""
    rows = json.dumps([asdict(each) for each in records])
    execute(connection, "actions.record", who=who, verb=verb, records=rows, now=now)


def wake(connection: psycopg.Connection[Any], namespaces: Iterable[str]) -> None:
    """Notify the waiting workers of ``namespaces``, once the transaction has committed."""
    for namespace in sorted(set(namespaces)):
        execute(connection, "runs.wake", namespace=namespace)
