"""What operators change. Each function carries out one statement inside the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, scalar_row

from yamlsched.store.statements import load


@dataclass(frozen=True)
class LockedRun:
    """How a run is, and what of its job decides whether it may be retried."""

    id: int
    namespace: str
    job_type: str
    status: str
    run_at: datetime
    locked_until: datetime | None
    held_until: datetime | None
    enabled: bool
    retired_at: datetime | None
    paused: bool
    now: datetime


@dataclass(frozen=True)
class PausableJob:
    """A job, and the pause it is under."""

    id: int
    job_type: str
    retired_at: datetime | None
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_reason: str | None
    now: datetime

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None and (self.paused_until is None or self.paused_until > self.now)


@dataclass(frozen=True)
class ActionRecord:
    """A line of the audit trail: what was acted on, ``run:<id>`` or ``job:<name>``."""

    namespace: str
    target: str
    detail: dict[str, Any]


def lock_jobs(connection: psycopg.Connection[Any], ids: Sequence[int]) -> None:
    """Keep syncs from editing the jobs of the runs ``ids`` until the transaction ends."""
    connection.execute(load("actions")["lock_jobs"], {"ids": list(ids)})


def lock_runs(connection: psycopg.Connection[Any], ids: Sequence[int], now: datetime | None) -> dict[int, LockedRun]:
    """Lock the runs ``ids`` until the transaction ends, and return how they are by then."""
    connection.execute(load("actions")["lock_runs"], {"ids": list(ids)})
    with connection.cursor(row_factory=class_row(LockedRun)) as cursor:
        rows = cursor.execute(load("actions")["run_states"], {"ids": list(ids), "now": now}).fetchall()
    return {row.id: row for row in rows}


def retry(
    connection: psycopg.Connection[Any],
    ids: Sequence[int],
    expected: Sequence[str],
    force: bool,
    now: datetime | None,
    payload: str | None = None,
) -> set[int]:
    """Make those of ``ids`` due that are in a state of ``expected`` and may be; return them.

    ``payload`` is JSON that replaces theirs; None keeps it.
    """
    parameters = {"ids": list(ids), "expected": list(expected), "force": force, "now": now, "payload": payload}
    return _ids(connection, "retry", parameters)


def cancel(
    connection: psycopg.Connection[Any], ids: Sequence[int], expected: Sequence[str], now: datetime | None
) -> set[int]:
    """Cancel those of ``ids`` that are unfinished and in a state of ``expected``; return them."""
    return _ids(connection, "cancel", {"ids": list(ids), "expected": list(expected), "now": now})


def jobs(connection: psycopg.Connection[Any], ids: Sequence[int], now: datetime | None) -> list[PausableJob]:
    """Return how the jobs ``ids`` are."""
    with connection.cursor(row_factory=class_row(PausableJob)) as cursor:
        return cursor.execute(load("actions")["jobs"], {"ids": list(ids), "now": now}).fetchall()


def pause(
    connection: psycopg.Connection[Any],
    nexts: Mapping[int, datetime | None],
    who: str,
    reason: str | None,
    until: datetime | None,
    now: datetime,
) -> set[int]:
    """Pause jobs; ``nexts`` has for each the next slot to account for. Returns those that are not retired."""
    parameters = {"who": who, "reason": reason, "until": until, "now": now, **_next_slots(nexts)}
    return _ids(connection, "pause", parameters)


def resume(connection: psycopg.Connection[Any], nexts: Mapping[int, datetime | None], now: datetime) -> set[int]:
    """End pauses; ``nexts`` as in ``pause``. Returns the jobs that were paused."""
    return _ids(connection, "resume", {"now": now, **_next_slots(nexts)})


def _next_slots(nexts: Mapping[int, datetime | None]) -> dict[str, Any]:
    return {"ids": list(nexts), "nexts": list(nexts.values())}


def record(
    connection: psycopg.Connection[Any],
    who: str,
    verb: str,
    records: Sequence[ActionRecord],
    now: datetime | None = None,
) -> None:
    """Write the audit trail of what ``who`` did."""
    parameters = {
        "who": who,
        "verb": verb,
        "namespaces": [r.namespace for r in records],
        "targets": [r.target for r in records],
        "details": [json.dumps({k: v for k, v in r.detail.items() if v is not None}) for r in records],
        "now": now,
    }
    connection.execute(load("actions")["record"], parameters)


def wake(connection: psycopg.Connection[Any], namespaces: Iterable[str]) -> None:
    """Let the workers of ``namespaces`` look again, once the transaction has committed."""
    connection.execute(load("actions")["wake"], {"namespaces": sorted(set(namespaces))})


def _ids(connection: psycopg.Connection[Any], statement: str, parameters: dict[str, Any]) -> set[int]:
    with connection.cursor(row_factory=scalar_row) as cursor:
        return set(cursor.execute(load("actions")[statement], parameters).fetchall())
