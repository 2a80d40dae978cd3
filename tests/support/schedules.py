"""Schedule files of places, and what sync wrote to the database."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.flow import sync
from yamlsched.sync.hosts import current, needs_sync, poll

LATER = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def at(text: str) -> datetime:
    """Parse a UTC time such as ``2026-01-14 02:00``."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def a_file(
    host: str = "web-1",
    path: str = "/app/schedules.yaml",
    environment: str = "",
    top: str = "",
    **jobs: Any,
) -> ScheduleFile:
    """Build a schedule file from jobs, each a mapping of its keys. (JSON is valid YAML.)"""
    entries = {name: {"handler": "handlers.cleanup.run", **job} for name, job in jobs.items()}
    content = f"version: 1\n{top}\njobs: {json.dumps(entries)}\n"
    return ScheduleFile(content.encode(), path, environment, host)


def a_bad_file(host: str = "web-1", path: str = "/app/schedules.yaml") -> ScheduleFile:
    return ScheduleFile(b"version: 1\njobs: {x: {hanlder: a.b}}\n", path, "", host)


def tick(db: Any, file: ScheduleFile, now: datetime | None = None) -> SyncResult:
    """Tick once: poll, and sync only if the poll says so."""
    snapshot = poll(db, file, now)
    known = None if needs_sync(snapshot, file) else current(snapshot, file)
    return known or sync(db, file, now, snapshot=snapshot)


def sync_by_hand(db: Any, file: ScheduleFile, now: datetime | None = None) -> SyncResult:
    """Sync as ``yamlsched sync`` does."""
    return sync(db, replace(file, is_manual=True), now)


def runs(db: Any, job: str = "x") -> list[tuple[str, datetime]]:
    """Return key and slot of a job's runs, in the order of their creation."""
    rows = db.execute(
        "select idempotency_key, scheduled_for from yamlsched.job_runs where job_type = %s order by id",
        [job],
    )
    return [(row.idempotency_key, row.scheduled_for) for row in rows]


def slots(db: Any, job: str = "x") -> list[str]:
    """Return the slots of a job's runs, as ``01-14 02:00``."""
    return [f"{slot:%m-%d %H:%M}" for _, slot in runs(db, job)]


def gaps(db: Any, job: str = "x") -> list[tuple[str, str, int, str]]:
    """Return first slot, last slot, number and reason of a job's gaps."""
    rows = db.execute(
        "select s.first_slot, s.last_slot, s.slots, s.reason from yamlsched.skipped_slots s "
        "join yamlsched.job_definitions d on d.id = s.definition_id where d.job_type = %s order by s.first_slot",
        [job],
    )
    return [
        (f"{r.first_slot:%m-%d %H:%M}", f"{r.last_slot:%m-%d %H:%M}", r.slots, r.reason)
        for r in rows
    ]


def definition(db: Any, job: str = "x") -> Any:
    """Return the row of a job."""
    return db.execute(
        "select * from yamlsched.job_definitions where job_type = %s", [job]
    ).fetchone()


def finish(db: Any, now: datetime, job: str | None = None) -> None:
    """Mark all unfinished runs as succeeded, of one job or of all jobs."""
    db.execute(
        "update yamlsched.job_runs "
        "set status = 'succeeded', finished_at = %s, locked_until = null, blocked_on = null "
        "where finished_at is null and (%s::text is null or job_type = %s)",
        [now, job, job],
    )


def prune(db: Any, where: str = "finished_at is not null") -> set[str]:
    """Prune runs as retention does, and remember their keys; return the keys."""
    rows = db.execute(
        f"with gone as (delete from yamlsched.job_runs where {where} "
        "returning namespace, idempotency_key, id, job_type, scheduled_for) "
        "insert into yamlsched.used_keys (namespace, idempotency_key, run_id, job_type, scheduled_for) "
        "select namespace, idempotency_key, id, job_type, scheduled_for from gone returning idempotency_key"
    )
    return {row.idempotency_key for row in rows}
