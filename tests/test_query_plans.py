"""With very many finished runs, the statements of a tick and a worker read only due and unfinished runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_run
from yamlsched import db as store
from yamlsched.db.query import load
from yamlsched.runs.lifecycle import LOST_WORKER, ClaimedRun, Outcome, Status
from yamlsched.schedule.include import patterns
from yamlsched.sync import hosts
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.worker.claiming import MAX_RECLAIMED_ENTRIES, levels
from yamlsched.worker.sessions import WORKER_SETTINGS
from yamlsched.worker.statements import outcome_parameters

FINISHED = 200_000
DUE = 1_000
LIMIT = 100
PAGES_PER_RUN = 40
"""Pages that may be touched for each run that is claimed, renewed or finished: its own, its job's, and the indexes'."""


@pytest.fixture(scope="module")
def history(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on a database with very many finished runs and a thousand due ones."""
    from support.database import temporary_database

    with temporary_database(server, template) as dsn, store.connect(dsn) as connection:
        connection.execute("set statement_timeout = 0")
        file = tmp_path_factory.mktemp("history") / "schedules.yaml"
        jobs = "".join(f'  job_{n}: {{handler: h.f, cron: "0 0 1 1 *"}}\n' for n in range(100))
        file.write_text(f"version: 1\njobs:\n{jobs}")
        (file.parent / "h.py").write_text("def f(): pass\n")
        schedule = ScheduleFile.read(file, None, find_patterns=patterns)
        sync(connection, schedule)
        fill(connection)
        filled: Any = connection.execute(
            "select count(*) as runs from yamlsched.job_runs"
        ).fetchone()
        assert filled.runs == FINISHED + DUE  # or the plans are meaningless
        yield connection, schedule


def fill(connection: psycopg.Connection[Any]) -> None:
    """Insert without indexes and create them afterwards, which takes a third of the time."""
    indexes = connection.execute(
        "select indexname, indexdef from pg_indexes where tablename = 'job_runs' and indexname <> 'job_runs_pkey'"
    ).fetchall()
    for index in indexes:
        connection.execute(f"drop index yamlsched.{index.indexname}".encode())
    columns = "(namespace, definition_id, job_type, run_at, status, attempts, max_attempts, started_at, finished_at)"
    connection.execute("alter table yamlsched.job_runs disable trigger user")
    connection.execute(
        f"insert into yamlsched.job_runs {columns} "
        "select 'default', d.id, d.job_type, now() - interval '1 day', 'succeeded', 1, 5, now(), now() "
        f"from generate_series(1, {FINISHED // 100}) n, yamlsched.job_definitions d".encode()
    )
    connection.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive) "
        "select 'default', d.id, d.job_type, now() - interval '1 hour', 5, n = 1 "
        f"from generate_series(1, {DUE // 100}) n, yamlsched.job_definitions d".encode()
    )
    for index in indexes:
        connection.execute(index.indexdef.encode())
    connection.execute("vacuum analyze yamlsched.job_runs")


def explained(
    connection: psycopg.Connection[Any], statement: bytes, parameters: dict[str, Any]
) -> dict[str, Any]:
    """Execute ``statement``, roll it back, and return its plan."""
    with connection.transaction(force_rollback=True):
        row = connection.execute(
            b"explain (analyze, buffers, format json) " + statement, parameters
        ).fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return dict(plan[0]["Plan"])


def pages(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def scans(plan: dict[str, Any]) -> Iterator[str]:
    """Yield the tables that are read by sequential scans."""
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for part in plan.get("Plans", []):
        yield from scans(part)


def held(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Claim some runs, commit, and return the parameters that name them."""
    rows = connection.execute(load("runs")["claim"], claim("held")).fetchall()
    ids = [row.id for row in rows]
    return {"ids": ids, "attempts": [1] * len(ids), "tokens": ["held"] * len(ids), "now": None}


def claim(token: str, limit: int = LIMIT) -> dict[str, Any]:
    given = {
        "namespace": "default",
        "queue": "default",
        "token": token,
        "limit": limit,
        "now": None,
        "priorities": levels(0.0),
    }
    return {**given, "newest": 10**9, "skipped": [], "ended": [], "revision": None}


@pytest.mark.story
def test_claim_heartbeat_outcomes_and_the_poll_of_an_idle_tick_read_no_finished_run(
    history: Any,
) -> None:
    connection, schedule = history

    claiming = explained(connection, load("runs")["claim"], claim("explained"))
    runs = held(connection)
    renewing = explained(connection, load("runs")["heartbeat"], {**runs, "lease": 120.0})
    finishing = explained(
        connection, load("runs")["succeed"], {**runs, "cpu_seconds": None, "peaks": None}
    )
    parameters = hosts.place_parameters(schedule)
    parameters |= {"namespace": "default", "is_valid": False, "writes": True, "errors": None}
    parameters |= {"now": None, "queues": schedule.serves_now(), "include": []}
    explained(connection, load("hosts")["poll"], parameters)  # its functions are planned once
    polling = explained(connection, load("hosts")["poll"], parameters)

    for plan in (claiming, renewing, finishing, polling):
        assert "job_runs" not in list(scans(plan))
    for plan in (claiming, renewing, finishing):
        assert pages(plan) <= PAGES_PER_RUN * LIMIT
    assert pages(polling) <= 200


@pytest.mark.story
def test_a_claim_of_lost_runs_reads_only_unfinished_runs(history: Any) -> None:
    connection, _ = history
    held(connection)
    connection.execute(
        "update yamlsched.job_runs set locked_until = now() - interval '1 s' where status = 'running'"
    )
    connection.execute("analyze yamlsched.job_runs")

    given = {"namespace": "default", "held": [], "now": None, **LOST_WORKER}
    for most in (MAX_RECLAIMED_ENTRIES, None):
        plan = explained(connection, load("runs")["reclaim"], {**given, "most": most})

        assert "job_runs" not in list(scans(plan))
        assert pages(plan) <= 2 * PAGES_PER_RUN * LIMIT


@pytest.mark.story
def test_a_report_and_groups_of_failures_read_only_the_runs_that_they_may_count(
    history: Any,
) -> None:
    # very many runs ended just now, and none in the day before that
    connection, _ = history
    now = connection.execute("select clock_timestamp() as now").fetchone().now
    given = {"namespace": "default", "limit": 50_000}
    given |= {"definitions": None, "only_dead": False, "of": None, "by_hour": False}

    for hours, of_job in ((24, 10), (24, 100)):
        span = {**given, "since": now - timedelta(hours=hours), "until": now, "of_job": of_job}
        ended = explained(connection, load("report")["ended"], span)
        assert "job_runs" not in list(scans(ended))
        assert pages(ended) <= PAGES_PER_RUN * 100 * of_job
        late = explained(connection, load("report")["late"], {**span, "now": now, "is_past": False})
        assert "job_runs" not in list(scans(late))
        assert pages(late) <= PAGES_PER_RUN * 100 * of_job
    before = {
        **given,
        "since": now - timedelta(hours=48),
        "until": now - timedelta(hours=24),
        "of_job": 1_000,
    }
    before["definitions"] = [
        row.id for row in connection.execute("select id from yamlsched.job_definitions").fetchall()
    ]
    before |= {"of": [f"job_{number}" for number in range(100)], "now": now, "is_past": True}
    names = (
        ("report", "ended"),
        ("report", "late"),
        ("failures", "groups"),
        ("failures", "attempts"),
    )
    for name, statement in names:
        plan = explained(connection, load(name)[statement], before)
        assert "job_runs" not in list(scans(plan)), statement
        # of each job, `late` also reads a hundred of the runs that ended afterwards
        assert pages(plan) <= 100 * PAGES_PER_RUN * (101 if statement == "late" else 1), statement


TYPES = {
    "namespace": "text", "queue": "text", "priorities": "smallint[]", "offsets": "int[]", "limits": "int[]",
    "token": "text", "limit": "bigint", "newest": "bigint", "skipped": "bigint[]", "now": "timestamptz",
    "ids": "bigint[]", "attempts": "int[]", "tokens": "text[]", "statuses": "text[]", "delays": "float8[]",
    "begun": "boolean[]",
    "refunds": "boolean[]", "errors": "text[]", "error_types": "text[]", "stacks": "text[]", "results": "text[]",
    "outputs": "text[]", "omitted": "bigint[]", "releases": "int[]",
    "revision": "text", "cpu_seconds": "float8[]", "peaks": "bigint[]",
}  # fmt: skip
"""The parameters of a worker's statements."""


def prepare(connection: psycopg.Connection[Any], name: str) -> list[str]:
    """Prepare a statement of runs.sql under its name, as a worker's session does; return its parameters in order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    text = re.sub(r"%\((\w+)\)[sb]", number, load("runs")[name].decode()).replace("%%", "%")
    connection.execute(
        f"prepare {name} ({', '.join(TYPES[each] for each in names)}) as {text}".encode()
    )
    return names


def execute(
    connection: psycopg.Connection[Any], name: str, names: list[str], given: dict[str, Any]
) -> dict[str, Any]:
    """Execute the prepared statement, commit, and return its plan."""
    values = ", ".join(f"%({each})s::{TYPES[each]}" for each in names)
    with psycopg.ClientCursor(connection) as cursor:  # type: ignore[type-var]
        cursor.execute(
            f"explain (analyze, buffers, format json) execute {name} ({values})".encode(), given
        )
        row: Any = cursor.fetchone()
    return dict(row[0][0]["Plan"])


@pytest.mark.story
def test_a_claim_with_a_generic_plan_reads_only_due_runs(history: Any) -> None:
    connection, _ = history
    # what other tests rolled back takes the room of short updates
    connection.execute("vacuum yamlsched.job_runs")
    with store.connect(connection.info.dsn, WORKER_SETTINGS) as worker:
        names = prepare(worker, "claim")

        with worker.transaction(force_rollback=True):
            plan = execute(worker, "claim", names, claim("planned once"))

    assert "job_runs" not in list(scans(plan))
    assert pages(plan) <= PAGES_PER_RUN * LIMIT


@pytest.mark.parametrize("exclusive", [False, True], ids=["side by side", "one at a time"])
def test_a_plan_for_an_empty_table_is_good_for_a_full_one(own_dsn: str, exclusive: bool) -> None:
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        # it would plan everything again
        other.execute("alter table yamlsched.job_runs set (autovacuum_enabled = off)")
        job = a_job(other)
        names, gated_names = prepare(connection, "claim"), prepare(connection, "claim_gated")
        execute(connection, "claim", names, claim("none there"))
        execute(
            connection,
            "claim_gated",
            gated_names,
            {
                "namespace": "default",
                "ids": [],
                "priorities": "{1,2,3}",
                "token": "none",
                "now": None,
                "revision": None,
            },
        )
        other.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive) "
            "select 'default', %s, 'purge', clock_timestamp(), 5, %s from generate_series(1, 20000)",
            [job, exclusive],
        )

        plans = [execute(connection, "claim", names, claim("many there"))]
        if exclusive:
            ids = [
                run.id
                for run in other.execute(
                    "select id from yamlsched.job_runs order by run_at, id limit 100"
                )
            ]
            plans.append(
                execute(
                    connection,
                    "claim_gated",
                    gated_names,
                    {
                        "namespace": "default",
                        "ids": ids,
                        "priorities": "{1,2,3}",
                        "token": "A",
                        "now": None,
                        "revision": None,
                    },
                )
            )

        assert "job_runs" not in [table for plan in plans for table in scans(plan)]
        # a claim at gates also looks at the next thousand runs, and stores why they wait
        assert sum(map(pages, plans)) <= PAGES_PER_RUN * LIMIT + exclusive * PAGES_PER_RUN * 1_000
        states: Any = other.execute(
            "select count(*) filter (where status = 'running') as running, "
            "count(*) filter (where blocked_on like 'job/%') as waiting "
            "from yamlsched.job_runs"
        ).fetchone()
    assert (states.running, states.waiting) == ((1, 1000) if exclusive else (LIMIT, 0))


def test_many_failures_are_written_by_one_statement_that_finds_each_run_once(own_dsn: str) -> None:
    # given a statement that was planned while the table was empty
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        other.execute("alter table yamlsched.job_runs set (autovacuum_enabled = off)")
        job = a_job(other)
        names = prepare(connection, "finish")
        failure = Outcome(
            Status.FAILED, timedelta(seconds=1), error="boom", error_type="OSError", stack="x" * 300
        )
        execute(connection, "finish", names, {**outcome_parameters([]), "now": None})
        other.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
            "select 'default', %s, 'purge', clock_timestamp(), 5 from generate_series(1, 5000)",
            [job],
        )
        claimed = execute_claim(connection, limit=1_000)

        plan = execute(
            connection,
            "finish",
            names,
            {**outcome_parameters([(run, failure) for run in claimed]), "now": None},
        )

        written: Any = other.execute(
            "select count(*) as runs from yamlsched.job_failures"
        ).fetchone()
    assert written.runs == 1_000
    assert pages(plan) <= PAGES_PER_RUN * 1_000
    assert max(rows_removed(plan)) <= 1_000  # not each outcome for each run


def execute_claim(connection: psycopg.Connection[Any], limit: int) -> list[ClaimedRun]:
    rows = connection.execute(load("runs")["claim"], claim("A", limit)).fetchall()
    return [ClaimedRun._make(row[: len(ClaimedRun._fields)]) for row in rows]


def rows_removed(plan: dict[str, Any]) -> Iterator[int]:
    """Yield how many rows each node of a plan has read in vain."""
    yield sum(int(plan.get(f"Rows Removed by {way}", 0)) for way in ("Filter", "Join Filter"))
    for part in plan.get("Plans", []):
        yield from rows_removed(part)


HELD = 20_000
FEW_PAGES = 400
"""Pages for a claim of one run, however many entries precede it."""


def picking(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a claim's plan that finds runs.

    What follows it calls functions, and the first call after a change of any table on the server
    reads catalogs.
    """
    parts = [plan]
    for part in parts:
        parts.extend(part.get("Plans", []))
    return next(part for part in parts if part.get("Subplan Name") == "CTE picked")


@pytest.mark.parametrize("jobs", [1, 50])
def test_a_claim_does_not_read_what_is_blocked(own_dsn: str, jobs: int) -> None:
    # given statements that were planned while the tables were empty
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        for table in ("job_runs", "job_definitions"):
            other.execute(f"alter table yamlsched.{table} set (autovacuum_enabled = off)".encode())
        own = a_job(other, "own")
        first = a_run(other, own)
        names = prepare(connection, "claim")
        execute(connection, "claim", names, claim("A", 4))

        # when very many runs of paused jobs are blocked, and one behind them is not
        for number in range(jobs):
            paused = a_job(other, f"paused_{number}", paused_at="now")
            other.execute(
                "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, blocked_on) "
                "select 'default', %s, 'paused', now() - interval '1 day', 5, 'closed/' || %s from generate_series(1, %s)",
                [paused, paused, HELD // jobs],
            )
        run = a_run(other, own)

        # then claims read little
        plan = execute(connection, "claim", names, claim("A", 4))
        taken = other.execute(
            "select id from yamlsched.job_runs where status = 'running' order by id"
        ).fetchall()
    assert [one.id for one in taken] == [first, run]
    assert pages(picking(plan)) <= FEW_PAGES // 4


def test_a_claim_looks_up_each_run_once_in_the_jobs_that_it_steps_over(own_dsn: str) -> None:
    # and does not compare it with each of them: after years, a file has retired very many
    with store.connect(own_dsn, WORKER_SETTINGS) as connection:
        plan = execute(connection, "claim", prepare(connection, "claim"), claim("A"))

    assert "hashed SubPlan" in json.dumps(plan)


LOW = 100_000


@pytest.mark.story
def test_a_high_run_is_claimed_at_once_beside_many_waiting_low_ones(own_dsn: str) -> None:
    # given many due runs of low priority, and one of high priority that was created last
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        jobs = [a_job(other, job_type) for job_type in ("low", "high")]
        for job, count, priority in ((jobs[0], LOW, 3), (jobs[1], 1, 1)):
            other.execute(
                "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, priority, max_attempts) "
                "select 'default', %s, 'job', now() - interval '1 hour', %s, 5 from generate_series(1, %s)",
                [job, priority, count],
            )
        other.execute("vacuum analyze yamlsched.job_runs")

        claiming = execute(connection, "claim", prepare(connection, "claim"), claim("A", 1))

        # then claiming it reads little, and it is the one that is claimed
        taken = other.execute(
            "select definition_id from yamlsched.job_runs where status = 'running'"
        ).fetchall()
    assert [run.definition_id for run in taken] == [jobs[1]]
    assert pages(claiming) <= FEW_PAGES
    assert "job_runs" not in list(scans(claiming))


@pytest.mark.story
def test_a_high_run_is_claimed_at_once_beside_very_many_finished_and_many_waiting_low_runs(
    history: Any,
) -> None:
    connection, _ = history
    insert = (
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, priority, max_attempts) "
        "select 'default', (select min(id) from yamlsched.job_definitions), 'job', now(), %s, 5 "
        "from generate_series(1, %s)"
    )

    with connection.transaction(force_rollback=True):
        connection.execute(insert, [3, LOW])
        connection.execute(insert, [1, 1])
        claiming = explained(connection, load("runs")["claim"], claim("A", 1))

    assert claiming["Actual Rows"] == 1
    assert pages(claiming) <= FEW_PAGES
    assert "job_runs" not in list(scans(claiming))
