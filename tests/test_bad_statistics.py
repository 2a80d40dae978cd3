"""Drains beside statistics of an aborted transaction: tables of many pages, and not one row of them.

Whatever a plan expects, a statement that works on a thousand rows must not compare each with each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from support.project import Project, a_project

RUNS = 1_500


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def abort_and_analyze(project: Project) -> None:
    """Fill the tables that a drain writes, take that back, and count what is left: nothing."""
    tables = ("job_runs", "gates", "permits", "awaits", "job_failures", "notifications")
    with project.db.transaction(force_rollback=True):
        project.db.execute(
            "with runs as ("
            "  insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
            "  select d.namespace, d.id, d.job_type, now(), 1 "
            "  from yamlsched.job_definitions d, generate_series(1, %s) returning id, definition_id"
            "), gates as ("
            "  insert into yamlsched.gates (namespace, name) select 'aborted', r.id from runs r"
            "), permits as ("
            "  insert into yamlsched.permits select 'aborted', 'g', r.id, r.id from runs r"
            "), awaits as ("
            "  insert into yamlsched.awaits (run_id, definition_id) select r.id, r.definition_id from runs r"
            ") insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error) "
            "select r.id, 1, 'w', now(), 'boom' from runs r",
            [RUNS],
        )
    for table in tables:
        project.db.execute(f"alter table yamlsched.{table} set (autovacuum_enabled = off)".encode())
    project.db.execute("analyze")


SHAPES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "free": ({}, {"succeeded": RUNS}),
    "failing": (
        {"handler": "support.handlers.fails", "max_attempts": 1},
        {"dead": RUNS},
    ),
    "limit": ({"limit": "few"}, {"succeeded": RUNS}),
    "hook": ({"on_success": ["hook"]}, {"succeeded": 2 * RUNS}),
    "paused": ({}, {"queued": RUNS}),
    "expired": ({"expires_after": "1s"}, {"cancelled": RUNS}),
}

OFTEN = ("paused", "limit")


@pytest.mark.parametrize(
    "shape",
    [s if s in OFTEN else pytest.param(s, marks=pytest.mark.slow) for s in SHAPES],
)
def test_a_drain_of_many_runs_beside_statistics_of_empty_tables(
    project: Project, shape: str
) -> None:
    job, statuses = SHAPES[shape]
    project.limits = {"few": 20}
    project.sync(
        job={"handler": "support.handlers.nothing", "lease": "1m", **job},
        hook={"handler": "support.handlers.nothing", "lease": "1m"},
    )
    abort_and_analyze(project)
    project.enqueue("job", {}, count=RUNS)
    if shape == "paused":
        project.db.execute(
            "update yamlsched.job_definitions set paused_at = now() where job_type = 'job'"
        )
    if shape == "expired":
        project.db.execute("update yamlsched.job_runs set run_at = run_at - interval '1 m'")

    dsn = make_conninfo(project.dsn, options="-c statement_timeout=5s")
    worker = project.work(dsn=dsn, code=1 if shape == "failing" else 0)

    assert "database.failed" not in worker.text
    assert project.statuses() == statuses
