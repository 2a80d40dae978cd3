"""Drains beside statistics of an aborted transaction: tables of many pages, and not one row of them.

Whatever a plan expects, a statement that works on a thousand rows must not compare each with each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from support.project import Project, a_project
from support.rows import a_job, a_run
from yamlsched import db as store
from yamlsched.db.query import load
from yamlsched.runs.lifecycle import LOST_WORKER

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
    [s if s in OFTEN else pytest.param(s, marks=pytest.mark.story) for s in SHAPES],
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


FEW = 500
"""Runs of one statement; with each compared with each, a plan reads a quarter of a million rows."""
SLOT = "date_trunc('minute', now()) - n * interval '1 minute'"
ENDED = {"finished_at": "now() - interval '1 year'", "status": "'succeeded'"}


def fill(project: Project, job: str, **columns: str) -> list[int]:
    """Insert runs of ``job``, whose ``columns`` are SQL that may name their number ``n``."""
    rows = project.db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts"
        f"{''.join(f', {name}' for name in columns)}) "
        "select d.namespace, d.id, d.job_type, now() + interval '1 hour', 3"
        f"{''.join(f', {value}' for value in columns.values())} "
        f"from yamlsched.job_definitions d, generate_series(1, {FEW}) n where d.job_type = %s "
        "returning id".encode(),
        [job],
    )
    return [row.id for row in rows]


def rows_read(plan: dict[str, Any]) -> float:
    """Return how many rows the parts of a plan returned and removed, in all of their loops."""
    each = sum(n for what, n in plan.items() if what.startswith("Rows Removed"))
    parts = sum(rows_read(part) for part in plan.get("Plans", []))
    return (plan["Actual Rows"] + each) * plan["Actual Loops"] + parts


def parameters_of(project: Project, statement: str) -> dict[str, Any]:
    """Insert what ``statement`` works on, and return its parameters."""
    jobs = project.db.execute("select id from yamlsched.job_definitions order by job_type")
    _, job, up = (row.id for row in jobs)
    match statement:
        case "definitions.apply_spread":
            fill(project, "job", scheduled_for=SLOT)
            return {"ids": [job], "seconds": [60.0]}
        case "follow.await":
            fill(project, "job", scheduled_for=SLOT, idempotency_key="'job' || n")
            keys = [f"job{n}" for n in range(1, FEW + 1)]
            return {"key": keys, "upstream": [up] * FEW, "slot": ["2026-01-01Z"] * FEW}
        case "follow.facts":
            fill(project, "up", scheduled_for=SLOT, **ENDED)
            runs = fill(project, "job", scheduled_for=SLOT, unreleased="true", exclusive="true")
            project.db.execute(
                "insert into yamlsched.awaits (run_id, definition_id, slot) "
                "select r.id, %s, r.scheduled_for from yamlsched.job_runs r where r.unreleased",
                [up],
            )
            return {"ids": runs}
        case "runs.reclaim":
            lost = {"locked_until": "now() - interval '1 m'", "locked_by": "'w'", "attempts": "3"}
            fill(project, "job", status="'running'", **lost)
            project.db.execute("update yamlsched.job_runs set run_at = now() - interval '1 h'")
            return {"held": [], "most": None, "now": None, **LOST_WORKER}
        case "retention.hold_runs":
            parents = fill(project, "job", **ENDED)
            fill(project, "hook", hook="'succeeded'", parent_id=f"{parents[0] - 1} + n", **ENDED)
            before = dict.fromkeys(("succeeded", "dead", "cancelled"), "2100-01-01Z")
            return {**before, "definition": 0, "from": "-infinity", "limit": FEW}
    runs = fill(project, "job", **{**ENDED, "status": "'cancelled'"})
    batch = {"ids": runs[: FEW // 5], "expected": ["cancelled"]}
    return {**batch, "force": False, "payload": None}


@pytest.mark.parametrize(
    "statement",
    [
        "actions.run_states",
        "actions.retry",
        "definitions.apply_spread",
        "follow.await",
        "follow.facts",
        "retention.hold_runs",
        "runs.reclaim",
    ],
)
def test_a_statement_does_not_compare_each_run_with_each(project: Project, statement: str) -> None:
    project.sync(
        up={"handler": "support.handlers.nothing", "cron": "* * * * *"},
        job={"handler": "support.handlers.nothing", "cron": "* * * * *", "after": ["up"]},
        hook={"handler": "support.handlers.nothing"},
    )
    abort_and_analyze(project)
    given = {"namespace": "default", "now": "2026-01-01Z", **parameters_of(project, statement)}
    for setting in ("seqscan", "hashjoin", "mergejoin"):
        if statement in ("definitions.apply_spread", "follow.await"):  # see slots.start_batch
            project.db.execute(f"set enable_{setting} = off".encode())

    file, name = statement.split(".")
    explained = project.db.execute(b"explain (analyze, format json) " + load(file)[name], given)

    [[text]] = explained.fetchall()
    [plan] = text if isinstance(text, list) else json.loads(text)
    assert 0 < rows_read(plan["Plan"]) < 60 * FEW


def test_what_changed_of_a_job_reads_its_latest_success_and_no_other(own_dsn: str) -> None:
    # given a long history in a table that was never analyzed
    with store.connect(own_dsn) as db:
        db.execute("alter table yamlsched.job_runs set (autovacuum_enabled = off)")
        db.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, status,"
            " attempts, max_attempts, finished_at, revision)"
            " select 'default', %s, 'purge', now(), 'succeeded', 1, 5,"
            " now() - n * interval '1 s', 'A' from generate_series(1, 20000) n",
            [a_job(db)],
        )

        with db.transaction():
            db.execute("select yamlsched.what_changed(id) from yamlsched.job_definitions")
            found: Any = db.execute(
                "select seq_tup_read + idx_tup_fetch as rows from pg_stat_xact_user_tables"
                " where relname = 'job_runs'"
            ).fetchone()

    assert found.rows <= 10


def rows_of_notice(message: str) -> float:
    """Return how many rows the plan in a message of auto_explain read."""
    return rows_read(json.loads(message[message.index("{") :])["Plan"])


def test_what_is_to_be_sent_does_not_compare_each_job_with_each(project: Project) -> None:
    # given many jobs of which a run has died, beside statistics of empty tables
    abort_and_analyze(project)
    db = project.db
    db.execute(
        "insert into yamlsched.notify_targets (namespace, name, url_env, events)"
        " values ('default', 'ops', 'OPS', '{dead,late,recovered}')"
    )
    slot = datetime(2026, 1, 14, 2, tzinfo=UTC)
    runs = [
        a_run(db, a_job(db, f"job_{n}", notify=["ops"]), "dead", scheduled_for=slot)
        for n in range(FEW)
    ]
    read: list[float] = []
    db.execute("load 'auto_explain'")
    for setting in ("log_min_duration = 0", "log_analyze = on", "log_nested_statements = on"):
        db.execute(f"set auto_explain.{setting}".encode())
    db.execute("set auto_explain.log_format = json")
    db.execute("set client_min_messages = log")
    db.add_notice_handler(lambda notice: read.append(rows_of_notice(str(notice.message_primary))))

    # when it is noted, and noted again after all of it has recovered
    for _ in range(2):
        db.execute("select yamlsched.note_runs('default', %s, now())", [runs])
        db.execute("select yamlsched.settle_notes('default', null, now())")
        db.execute("update yamlsched.notifications set ended_at = now(), due_at = null")

    # then no statement has read more than a few rows for each job
    assert len(read) > 10
    assert max(read) < 60 * FEW
