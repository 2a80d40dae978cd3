"""Rows as the product would write them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from yamlsched import Run, enqueue
from yamlsched.handler.backends import Backend

JOB = {
    "namespace": "default",
    "job_type": "purge",
    "handler": "handlers.purge:run",
    "schedule": "0 2 * * *",
    "timezone": "UTC",
    "max_attempts": 5,
    "backoff": Jsonb({}),
    "timeout": timedelta(hours=1),
    "lease": timedelta(minutes=2),
    "overlap": "wait",
    "catchup": "latest",
    "catchup_window": timedelta(days=365),
    "spread": timedelta(0),
    "enabled": True,
}
STATES: dict[str, dict[str, str]] = {
    "queued": {},
    "running": {
        "attempts": "1",
        "locked_by": "'web-1:4711:c0ffee'",
        "locked_until": "now() + interval '2 minutes'",
        "started_at": "now()",
    },
    "failed": {
        "attempts": "1",
        "run_at": "now() + interval '5 minutes'",
        "failed_at": "now()",
        "last_error": "'no route to host'",
        "locked_by": "'web-1:4711:c0ffee'",
        "started_at": "now()",
    },
    "succeeded": {
        "attempts": "1",
        "finished_at": "now()",
        "started_at": "now() - interval '3 seconds'",
        "locked_by": "'web-1:4711:c0ffee'",
    },
    "dead": {
        "attempts": "5",
        "finished_at": "now()",
        "failed_at": "now()",
        "started_at": "now() - interval '3 seconds'",
        "last_error": "'no route to host'",
        "error_type": "'OSError'",
        "locked_by": "'web-1:4711:c0ffee'",
    },
    "cancelled": {"finished_at": "now()"},
}


def a_job(db: psycopg.Connection[Any], job_type: str = "purge", **values: Any) -> int:
    """Insert a job, by default one that fires at 02:00 each day; return its id."""
    row = {**JOB, "job_type": job_type, **values}
    columns = ", ".join(row)
    placeholders = ", ".join(f"%({name})s" for name in row)
    sql = (
        f"insert into yamlsched.job_definitions ({columns}, effective_from) "
        f"values ({placeholders}, now() - interval '2 days') returning id"
    )
    job = int(db.execute(sql.encode(), row).fetchone()[0])  # type: ignore[index]
    db.execute(
        "insert into yamlsched.gates (namespace, name) select %s, k || %s "
        "from unnest(array['after/', 'closed/', 'job/']) k",
        [row["namespace"], job],
    )
    return job


def a_run(db: psycopg.Connection[Any], job: int, status: str = "queued", **values: Any) -> int:
    """Insert a run in this state; return its id. A string value in pareneses is an SQL expression."""
    columns = {"run_at": "now()", "max_attempts": "5", "status": f"'{status}'", **STATES[status]}
    parameters: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, str) and value.startswith("(") and value.endswith(")"):
            columns[name] = value
        else:
            columns[name] = f"%({name})s"
            parameters[name] = value
    if status == "dead":
        columns["dead_at"] = columns["finished_at"]
        if "failed_at" not in values:
            columns["failed_at"] = columns["finished_at"]
    is_blocked = "blocked_on" in values and "limit/" not in values["blocked_on"]
    due = [f"({columns.get(name, 'now()')})::timestamptz" for name in ("run_at", "created_at")]
    waits = values.get("unreleased") or is_blocked
    columns.setdefault(
        "late_at", "null" if waits else f"greatest({', '.join(due)}) + d.start_within"
    )
    if "scheduled_for" in columns and not values.get("by_hand"):
        columns.setdefault(
            "finish_by", f"({columns['scheduled_for']})::timestamptz + d.finish_within"
        )
    if "started_at" in columns and status != "cancelled":
        columns.setdefault("begun_at", columns["started_at"])
    sql = (
        f"insert into yamlsched.job_runs (namespace, definition_id, job_type, {', '.join(columns)}) "
        f"select d.namespace, d.id, d.job_type, {', '.join(columns.values())} "
        "from yamlsched.job_definitions d where d.id = %(job)s returning id"
    )
    run = int(db.execute(sql.encode(), {**parameters, "job": job}).fetchone()[0])  # type: ignore[index]
    if status == "running" and values.get("exclusive"):
        db.execute(
            "insert into yamlsched.permits (namespace, name, n, run_id) "
            "select r.namespace, 'job/' || r.definition_id, 1, r.id from yamlsched.job_runs r where r.id = %s",
            [run],
        )
    return run


PLACE_COLUMNS = [
    "is_named",
    "since",
    "refused_hash",
    "refused_at",
    "errors",
    "seen_at",
    "expected_until",
]
FILE_COLUMNS = [
    "applied_at",
    "retention",
    "housekept_at",
    "prune_failing_since",
    "prune_error",
    "commit",
]


def a_place(
    db: psycopg.Connection[Any],
    in_use: bool = True,
    serves: Sequence[str] = ("*",),
    queues: Mapping[str, str] = {"default": "open"},
    **values: Any,
) -> None:
    """Insert a place that has just ticked, by default with the file in use, whose queues are
    ``queues``.
    """
    file: dict[str, Any] = {
        "namespace": "default",
        "hash": "a" * 64,
        "environment": "",
        "host": "web-1",
        "path": "/srv/schedules.yaml",
        "yamlsched_version": "0.1.0",
        "tzdata_version": "2026a",
    }
    file |= {name: value for name, value in values.items() if name in file}
    seen_at = values.get("seen_at", datetime.now(UTC))
    place = file | {
        "is_named": False,
        "since": seen_at,
        "first_seen_at": seen_at - timedelta(days=1),
        "seen_at": seen_at,
        "expected_until": seen_at + timedelta(minutes=5),
    }
    place |= {name: value for name, value in values.items() if name in PLACE_COLUMNS}
    served = {"seen_at": str(seen_at), "until": str(place["expected_until"])}
    place["queues"] = Jsonb(dict.fromkeys(serves, served))
    _insert(db, "hosts", place)
    if not in_use:
        return
    db.execute("delete from yamlsched.namespaces where namespace = %s", [file["namespace"]])
    applied = {name: value for name, value in values.items() if name in FILE_COLUMNS}
    _insert(db, "namespaces", {"applied_at": "now", "queues": Jsonb(queues), **file, **applied})
    used = {name: file[name] for name in ("namespace", "hash", "environment")}
    _insert(db, "files", {**used, "last_used_at": "now"})


def _insert(db: psycopg.Connection[Any], table: str, row: dict[str, Any]) -> None:
    columns, placeholders = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    sql = (
        f"insert into yamlsched.{table} ({columns}) values ({placeholders}) on conflict do nothing"
    )
    db.execute(sql.encode(), row)


def row(db: psycopg.Connection[Any], run: int) -> Any:
    """Return the row of a run."""
    return db.execute("select * from yamlsched.job_runs where id = %s", [run]).fetchone()


def value(db: psycopg.Connection[Any], sql: str, *parameters: Any) -> Any:
    found = db.execute(sql.encode(), parameters).fetchone()
    assert found is not None
    return found[0]


def a_long_history(db: psycopg.Connection[Any]) -> None:
    """Insert four jobs with twenty thousand finished runs, of which two died, and ten unfinished ones."""
    jobs = [
        a_job(db, f"job_{n}", next_slot_at=datetime.now(UTC) - timedelta(hours=1)) for n in range(4)
    ]
    db.execute(
        "insert into yamlsched.job_runs "
        "(namespace, definition_id, job_type, run_at, status, attempts, max_attempts, started_at, finished_at) "
        "select d.namespace, d.id, d.job_type, t, 'succeeded', 1, 5, t, t from yamlsched.job_definitions d, "
        "generate_series(1, 5000) n, lateral (select now() - n * interval '1 minute' as t) s"
    )
    for n in range(10):
        a_run(
            db,
            jobs[n % 4],
            exclusive=n % 3 == 0,
            scheduled_for=datetime(2026, 1, 14, 12, tzinfo=UTC),
        )
    a_run(db, jobs[0], "dead")
    a_run(db, jobs[1], "dead")
    db.execute("analyze yamlsched.job_runs, yamlsched.job_definitions")


def rows_read(db: psycopg.Connection[Any], sql: bytes, parameters: Any = None) -> int:
    """Execute ``sql``; return how many rows of job_runs it read."""

    def read(plan: dict[str, Any]) -> int:
        here = 0
        if plan.get("Relation Name") == "job_runs":
            here = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan[
                "Actual Loops"
            ]
        return int(here) + sum(read(part) for part in plan.get("Plans", []))

    found = db.execute(b"explain (analyze, timing off, format json) " + sql, parameters).fetchone()
    assert found is not None
    return read(found[0][0]["Plan"])


def a_started_run(db: psycopg.Connection[Any], dsn: str, run_id: int | None = None) -> Run:
    """Claim a run, by default a new one, as a worker does. The owner that it had before loses it."""
    run_id = run_id or enqueue(db, "mail").run_id
    token = f"web-1:4711:{secrets.token_hex(6)}"
    [row] = db.execute(
        """
        update yamlsched.job_runs
        set status = 'running', attempts = attempts + 1, locked_by = %s, started_at = now(),
            locked_until = now() + interval '1 minute'
        where id = %s
        returning id, job_type, attempts, max_attempts
        """,
        [token, run_id],
    ).fetchall()
    return Run(
        row.id,
        row.job_type,
        None,
        None,
        row.attempts,
        row.max_attempts,
        {},
        False,
        Backend(dsn, "default", row.id, row.attempts, token),
    )
