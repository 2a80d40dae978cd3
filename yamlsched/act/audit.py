"""The audit trail of operators, and the notification that follows an action."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    parameters = {
        "who": who,
        "verb": verb,
        "namespaces": [r.namespace for r in records],
        "targets": [r.target for r in records],
        "job_types": [r.job_type for r in records],
        "details": [
            json.dumps({k: v for k, v in r.detail.items() if v is not None}) for r in records
        ],
        "now": now,
    }
    execute(connection, "actions.record", **parameters)


def wake(connection: psycopg.Connection[Any], namespaces: Iterable[str]) -> None:
    """Notify the waiting workers of ``namespaces``, once the transaction has committed."""
    for namespace in sorted(set(namespaces)):
        execute(connection, "runs.wake", namespace=namespace)
