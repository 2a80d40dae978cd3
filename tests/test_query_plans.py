"""With a million finished runs, the statements of a tick and a worker read only due and unfinished runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_job
from yamlsched import db as store
from yamlsched.db.query import load
from yamlsched.runs.lifecycle import LOST_WORKER, ClaimedRun, Outcome, Status
from yamlsched.runs.statements import Scope, outcome_parameters
from yamlsched.sync import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.worker.sessions import WORKER_SETTINGS

FINISHED = 1_000_000
DUE = 1_000
LIMIT = 100
PAGES_PER_RUN = 40
"""Pages that may be touched for each run that is claimed, renewed or finished: its own, its job's, and the indexes'."""


@pytest.fixture(scope="module")
def million(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on a database with a million finished runs and a thousand due ones."""
    from support.database import temporary_database

    with temporary_database(server, template) as dsn, store.connect(dsn) as connection:
        connection.execute("set statement_timeout = 0")
        file = tmp_path_factory.mktemp("million") / "schedules.yaml"
        jobs = "".join(f'  job_{n}: {{handler: h.f, cron: "0 0 1 1 *"}}\n' for n in range(100))
        file.write_text(f"version: 1\njobs:\n{jobs}")
        (file.parent / "h.py").write_text("def f(): pass\n")
        schedule = ScheduleFile.read(file, None)
        sync(connection, schedule)
        fill(connection)
        filled: Any = connection.execute("select count(*) as runs from yamlsched.job_runs").fetchone()
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


def explained(connection: psycopg.Connection[Any], statement: bytes, parameters: dict[str, Any]) -> dict[str, Any]:
    """Execute ``statement``, roll it back, and return its plan."""
    with connection.transaction(force_rollback=True):
        row = connection.execute(b"explain (analyze, buffers, format json) " + statement, parameters).fetchone()
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


def claim(token: str) -> dict[str, Any]:
    return {
        "namespace": "default", "priority": 2, "token": token, "limit": LIMIT, **Scope().parameters,
        "was_truncated": False, "after": 0, "now": None, "past_run_at": "-infinity", "past_id": 0, "since": "-infinity",
        **LOST_WORKER,
    }  # fmt: skip


@pytest.mark.slow
def test_claim_heartbeat_outcomes_and_the_poll_of_an_idle_tick_read_no_finished_run(million: Any) -> None:
    connection, schedule = million

    claiming = explained(connection, load("runs")["claim"], claim("explained"))
    runs = held(connection)
    renewing = explained(connection, load("runs")["heartbeat"], {**runs, "lease": 120.0})
    finishing = explained(connection, load("runs")["succeed"], runs)
    looking = explained(connection, load("files")["poll"], {**schedule.presented(), "now": None, "namespace": None})

    for plan in (claiming, renewing, finishing, looking):
        assert "job_runs" not in list(scans(plan))
    for plan in (claiming, renewing, finishing):
        assert pages(plan) <= PAGES_PER_RUN * LIMIT
    assert pages(looking) <= 200


@pytest.mark.slow
def test_a_claim_of_lost_runs_reads_only_unfinished_runs(million: Any) -> None:
    connection, _ = million
    held(connection)
    connection.execute("update yamlsched.job_runs set locked_until = now() - interval '1 s' where status = 'running'")
    connection.execute("analyze yamlsched.job_runs")

    plan = explained(connection, load("runs")["claim"], claim("rescuer"))

    assert "job_runs" not in list(scans(plan))
    assert pages(plan) <= 2 * PAGES_PER_RUN * LIMIT


@pytest.mark.slow
def test_a_report_and_groups_of_failures_read_only_the_runs_that_they_may_count(million: Any) -> None:
    # a million runs ended just now, and none in the day before that
    connection, _ = million
    now = connection.execute("select clock_timestamp() as now").fetchone().now
    given = {"namespace": "default", "max_late": timedelta(minutes=15), "jobs": [], "limits": [], "limit": 50_000}
    given |= {"definitions": None, "only_dead": False, "of": None}

    for hours, of_job in ((24, 10), (24, 100)):
        span = {**given, "since": now - timedelta(hours=hours), "until": now, "of_job": of_job}
        ended = explained(connection, load("report")["ended"], span)
        assert "job_runs" not in list(scans(ended))
        assert pages(ended) <= PAGES_PER_RUN * 100 * of_job
        longest = explained(connection, load("report")["longest"], {**span, "of": [f"job_{n}" for n in range(20)]})
        assert pages(longest) <= PAGES_PER_RUN * 20 * of_job
    before = {**given, "since": now - timedelta(hours=48), "until": now - timedelta(hours=24), "of_job": 1_000}
    before["definitions"] = [
        row.id for row in connection.execute("select id from yamlsched.job_definitions").fetchall()
    ]
    before["of"] = [f"job_{number}" for number in range(100)]
    names = (("report", "ended"), ("report", "longest"), ("failures", "groups"), ("failures", "attempts"))
    for name, statement in names:
        plan = explained(connection, load(name)[statement], before)
        assert "job_runs" not in list(scans(plan)), statement
        assert pages(plan) <= 100 * PAGES_PER_RUN, statement


TYPES = {
    "namespace": "text", "priority": "smallint", "token": "text", "limit": "bigint", "newest": "bigint",
    "firsts": "bigint[]", "lasts": "bigint[]", "after": "bigint", "now": "timestamptz", "ids": "bigint[]",
    "attempts": "int[]", "was_truncated": "boolean",
    "tokens": "text[]", "attempt": "int", "past_run_at": "timestamptz", "past_id": "bigint", "since": "timestamptz",
    "lost_error": "text", "lost_type": "text", "statuses": "text[]", "delays": "float8[]", "refunds": "boolean[]",
    "errors": "text[]", "error_types": "text[]", "stacks": "text[]", "results": "text[]", "outputs": "text[]",
    "omitted": "bigint[]", "sessions_lost": "int[]",
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
    connection.execute(f"prepare {name} ({', '.join(TYPES[each] for each in names)}) as {text}".encode())
    return names


def execute(connection: psycopg.Connection[Any], name: str, names: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Execute the prepared statement, commit, and return its plan."""
    values = ", ".join(f"%({each})s::{TYPES[each]}" for each in names)
    with psycopg.ClientCursor(connection) as cursor:  # type: ignore[type-var]
        cursor.execute(f"explain (analyze, buffers, format json) execute {name} ({values})".encode(), given)
        row: Any = cursor.fetchone()
    return dict(row[0][0]["Plan"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["claim_waiting", "claim"])
def test_a_claim_with_a_generic_plan_reads_only_due_runs(million: Any, name: str) -> None:
    connection, _ = million
    with store.connect(connection.info.dsn, WORKER_SETTINGS) as worker:
        names = prepare(worker, name)

        with worker.transaction(force_rollback=True):
            plan = execute(worker, name, names, claim("planned once"))

    assert "job_runs" not in list(scans(plan))
    assert pages(plan) <= PAGES_PER_RUN * LIMIT


@pytest.mark.parametrize("name", ["claim_waiting", "claim"])
def test_a_plan_for_an_empty_table_is_good_for_a_full_one(own_dsn: str, name: str) -> None:
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        other.execute("alter table yamlsched.job_runs set (autovacuum_enabled = off)")  # it would plan everything again
        job = a_job(other)
        names = prepare(connection, name)
        execute(connection, name, names, claim("none there"))
        other.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
            "select 'default', %s, 'purge', clock_timestamp(), 5 from generate_series(1, 20000)",
            [job],
        )

        plan = execute(connection, name, names, claim("many there"))

        assert "job_runs" not in list(scans(plan))
        assert pages(plan) <= PAGES_PER_RUN * LIMIT
        assert other.execute("select count(*) from yamlsched.job_runs where status = 'running'").fetchone()[0] == LIMIT  # type: ignore[index]


def test_many_failures_are_written_by_one_statement_that_finds_each_run_once(own_dsn: str) -> None:
    # given a statement that was planned while the table was empty
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        other.execute("alter table yamlsched.job_runs set (autovacuum_enabled = off)")
        job = a_job(other)
        names = prepare(connection, "finish")
        failure = Outcome(Status.FAILED, timedelta(seconds=1), error="boom", error_type="OSError", stack="x" * 300)
        execute(connection, "finish", names, {**outcome_parameters([]), "now": None})
        other.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
            "select 'default', %s, 'purge', clock_timestamp(), 5 from generate_series(1, 5000)",
            [job],
        )
        claimed = execute_claim(connection, limit=1_000)

        plan = execute(
            connection, "finish", names, {**outcome_parameters([(run, failure) for run in claimed]), "now": None}
        )

        written: Any = other.execute("select count(*) as runs from yamlsched.job_failures").fetchone()
    assert written.runs == 1_000
    assert pages(plan) <= PAGES_PER_RUN * 1_000
    assert max(rows_removed(plan)) <= 1_000  # not each outcome for each run


def execute_claim(connection: psycopg.Connection[Any], limit: int) -> list[ClaimedRun]:
    rows = connection.execute(load("runs")["claim"], {**claim("A"), "limit": limit}).fetchall()
    return [ClaimedRun._make(row[: len(ClaimedRun._fields)]) for row in rows]


def rows_removed(plan: dict[str, Any]) -> Iterator[int]:
    """Yield how many rows each node of a plan has read in vain."""
    yield sum(int(plan.get(f"Rows Removed by {way}", 0)) for way in ("Filter", "Join Filter"))
    for part in plan.get("Plans", []):
        yield from rows_removed(part)


def test_a_claim_skips_index_entries_that_an_old_transaction_keeps(own_dsn: str) -> None:
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        other.execute("alter table yamlsched.job_runs set (autovacuum_enabled = off)")
        other.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
            "select 'default', %s, 'purge', now() - interval '1 hour' + n * interval '1 ms', 5 "
            "from generate_series(1, 20000) n",
            [a_job(other)],
        )
        with store.connect(own_dsn) as old:
            old.execute("begin isolation level repeatable read")
            old.execute("select count(*) from yamlsched.job_runs")
            other.execute("update yamlsched.job_runs set status = 'succeeded', finished_at = now() where id <= 19000")
            last: Any = other.execute("select run_at::text, id from yamlsched.job_runs where id = 19000").fetchone()
            names = prepare(connection, "claim_waiting")

            plan = execute(
                connection, "claim_waiting", names, {**claim("A"), "past_run_at": last.run_at, "past_id": last.id}
            )

    assert pages(plan) <= PAGES_PER_RUN * LIMIT


def test_a_claim_does_not_read_all_that_other_workers_have_claimed_since(own_dsn: str) -> None:
    # given statements that were planned while the table was empty
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        other.execute("alter table yamlsched.job_runs set (autovacuum_enabled = off)")
        job = a_job(other)
        names = prepare(connection, "claim_waiting")
        execute(connection, "claim_waiting", names, {**claim("A"), "limit": LIMIT})
        other.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
            "select 'default', %s, 'purge', now() - interval '1 hour' + n * interval '1 ms', 5 "
            "from generate_series(1, 20000) n",
            [job],
        )
        other.execute(
            "update yamlsched.job_runs set status = 'running', attempts = 1, locked_by = 'B', "
            "locked_until = now() + interval '1 hour' where id <= (select max(id) - 1000 from yamlsched.job_runs)"
        )

        plan = execute(connection, "claim_waiting", names, {**claim("A"), "limit": LIMIT})

    assert plan["Actual Rows"] == LIMIT
    assert pages(plan) <= 12 * LIMIT  # 16 with all that others have claimed


HELD, WAITING = 20_000, 5_000
HELD_BACK = {"paused_at": "now", "enabled": False, "retired_at": "now", "foreign": True}
FEW_PAGES = 400
"""Pages for a claim of one run, however many entries precede it."""


def hold_back(db: psycopg.Connection[Any], reason: str, exclusive: bool) -> int:
    """Insert a job with many due runs that may not be claimed; return its id."""
    values = {} if reason == "foreign" else {reason: HELD_BACK[reason]}
    job = a_job(db, "held_back", **values)
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive) "
        "select 'default', %s, 'held_back', now() - interval '1 day', 5, %s from generate_series(1, %s)",
        [job, exclusive, HELD],
    )
    return job


def await_retries(db: psycopg.Connection[Any], exclusive: bool) -> None:
    """Insert many jobs, each with a run that waits for its next attempt."""
    like = a_job(db, "like")
    columns = "handler, schedule, timezone, max_attempts, backoff, timeout, lease, overlap, catchup, catchup_window"
    db.execute(
        f"insert into yamlsched.job_definitions (namespace, job_type, {columns}, spread, enabled, effective_from) "
        f"select 'default', 'retried_' || n, {columns}, spread, enabled, effective_from "
        "from yamlsched.job_definitions, generate_series(1, %s) n where id = %s".encode(),
        [WAITING, like],
    )
    db.execute(
        "insert into yamlsched.job_runs "
        "(namespace, definition_id, job_type, run_at, status, attempts, max_attempts, exclusive) "
        "select 'default', id, job_type, now() + interval '1 hour', 'failed', 1, 5, %s "
        "from yamlsched.job_definitions where id > %s",
        [exclusive, like],
    )


@pytest.mark.parametrize("exclusive", [False, True], ids=["side by side", "one at a time"])
@pytest.mark.parametrize("reason", [*HELD_BACK, None])
def test_a_claim_costs_the_same_however_many_runs_may_not_be_claimed(
    own_dsn: str, reason: str | None, exclusive: bool
) -> None:
    # given very many runs that may not be claimed, and behind them one of each kind that may
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        held = None
        if reason is None:
            await_retries(other, exclusive)
        else:
            held = hold_back(other, reason, exclusive)
            await_retries(other, not exclusive)
        jobs = [a_job(other, name) for name in ("side_by_side", "one_at_a_time")]
        for job in jobs:
            other.execute(
                "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive) "
                "select 'default', id, job_type, now(), 5, id = %s from yamlsched.job_definitions where id = %s",
                [jobs[1], job],
            )
        other.execute("vacuum analyze yamlsched.job_runs")
        names = prepare(connection, "claim")
        scope = Scope(max(jobs), (held,) if reason == "foreign" and held else ())
        given = {**claim("A"), "limit": 1, **scope.parameters}

        # when those are claimed one by one, until none is left
        plans = [execute(connection, "claim", names, {**given, "token": f"{n}", "after": 0}) for n in range(3)]

        # then each claim reads little
        taken = other.execute("select definition_id from yamlsched.job_runs where status = 'running'").fetchall()
    assert sorted(run.definition_id for run in taken) == jobs
    assert [pages(plan) for plan in plans if pages(plan) > FEW_PAGES] == []
    assert [table for plan in plans for table in scans(plan) if table == "job_runs"] == []


MANY_JOBS = 3_000


def each_due(db: psycopg.Connection[Any], exclusive: bool, **values: str) -> list[int]:
    """Insert many jobs, each with a due run; ``values`` are SQL expressions for columns of the runs."""
    await_retries(db, exclusive)
    given = {"status": "'queued'", "attempts": "0", "run_at": "now() - interval '1 hour'", **values}
    db.execute(
        f"update yamlsched.job_runs set {', '.join(f'{column} = {value}' for column, value in given.items())}".encode()
    )
    db.execute(
        "delete from yamlsched.job_runs where id not in (select id from yamlsched.job_runs limit %s)", [MANY_JOBS]
    )
    return [row.definition_id for row in db.execute("select definition_id from yamlsched.job_runs")]


@pytest.mark.parametrize("exclusive", [False, True], ids=["side by side", "one at a time"])
@pytest.mark.parametrize("is_own_first", [False, True])
def test_a_claim_reads_no_run_of_jobs_that_are_not_in_its_file_however_many_jobs_that_are(
    own_dsn: str, exclusive: bool, is_own_first: bool
) -> None:
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        own = [a_job(other, "own")] if is_own_first else []
        foreign = each_due(other, exclusive)
        own = own or [a_job(other, "own")]
        run: Any = other.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive) "
            "values ('default', %s, 'own', now(), 5, %s) returning id",
            [own[0], exclusive],
        ).fetchone()
        other.execute("vacuum analyze yamlsched.job_runs")
        given = {**claim("A"), "limit": 1, **Scope(max(*own, *foreign), tuple(foreign)).parameters}

        plan = execute(connection, "claim", prepare(connection, "claim"), given)

        [taken] = other.execute("select id from yamlsched.job_runs where status = 'running'").fetchall()
    assert taken.id == run.id
    assert pages(plan) <= FEW_PAGES


def test_a_claim_of_slot_runs_passes_quickly_over_those_that_other_workers_hold(own_dsn: str) -> None:
    # given a spike, of which other workers hold all but the last runs
    held = {"status": "'running'", "attempts": "1", "locked_by": "'other'", "exclusive_of": "definition_id"}
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        jobs = each_due(other, True, **held, locked_until="now() + interval '1 hour'")
        other.execute(
            "update yamlsched.job_runs set status = 'queued', exclusive_of = null, locked_until = null, attempts = 0 "
            "where definition_id > %s",
            [jobs[-10]],
        )
        other.execute("vacuum full analyze yamlsched.job_runs")

        plan = execute(connection, "claim", prepare(connection, "claim"), {**claim("A"), "limit": 20})

        taken: Any = other.execute("select count(*) as runs from yamlsched.job_runs where locked_by = 'A'").fetchone()
    assert taken.runs == 9
    assert pages(plan) <= FEW_PAGES + MANY_JOBS // 5  # pages of runs, not an index search for each


WOKEN_PAGES = 10
"""By how many pages the statements for one run may exceed twice those without a backlog: indexes are higher."""
READ_BY_TIME_PAGES = 4 * (4 + 32)
"""Pages that a claim of four runs may read for those that it reads by time, with their jobs."""
POLL_PAGES = 4 * 4 + 30
"""The same of one that follows a claim that has found many runs that may not be claimed, with the walk over jobs."""
SLOT_RUN_PAGES = 4 + 500
"""Pages that a claim of four runs may read for slot runs."""
TIE_PAGES = 3 * HELD // 80
"""Pages of the entries, in three indexes, of runs due at one instant: PostgreSQL before 18 reads all of them."""


@pytest.mark.parametrize("exclusive", [False, True], ids=["side by side", "one at a time"])
@pytest.mark.parametrize("jobs", [1, 50, WAITING])
def test_a_claim_beside_runs_of_paused_jobs_costs_at_most_twice_what_it_costs_without_them(
    own_dsn: str, jobs: int, exclusive: bool
) -> None:
    # given statements that were planned while the tables were empty
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        for table in ("job_runs", "job_definitions"):
            other.execute(f"alter table yamlsched.{table} set (autovacuum_enabled = off)".encode())
        names = {name: prepare(connection, name) for name in ("claim_waiting", "claim", "due_levels")}
        own = a_job(other, "own")
        given = {**claim("A"), "limit": 4, **Scope(own + 2 * WAITING).parameters}
        for name in names:
            execute(connection, name, names[name], given)

        def measured(was_truncated: bool = False) -> tuple[int, int]:
            """Return the pages for a run that a worker is woken for, and those of a claim of everything."""
            since: Any = other.execute("select clock_timestamp()::text as at").fetchone()
            other.execute(
                "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
                "values ('default', %s, 'own', clock_timestamp(), 5)",
                [own],
            )
            woken = {**given, "priority": 0, "past_run_at": since.at, "since": since.at}
            plans = [execute(connection, name, names[name], woken) for name in ("claim_waiting", *["due_levels"] * 2)]
            assert plans[0]["Actual Rows"] == 1
            everything = {**given, "was_truncated": was_truncated}
            return sum(map(pages, plans)), pages(execute(connection, "claim", names["claim"], everything))

        measured()
        without = measured()

        # when there are many due runs of paused jobs
        await_retries(other, exclusive)
        other.execute("update yamlsched.job_definitions set paused_at = now() where job_type like 'retried%'")
        other.execute("delete from yamlsched.job_runs where status = 'failed'")
        other.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive) "
            "select 'default', d.id, d.job_type, now() - interval '1 hour', 5, %s "
            "from (select id, job_type from yamlsched.job_definitions where paused_at is not null limit %s) d, "
            "generate_series(1, %s) n",
            [exclusive, jobs, HELD // jobs],
        )
        other.execute("vacuum yamlsched.job_runs")
        other.execute("vacuum yamlsched.job_definitions")
        first = measured()
        beside = measured(was_truncated=True)
        more = SLOT_RUN_PAGES if exclusive else 0
        if other.info.server_version < 180000:
            more += TIE_PAGES

    assert beside[0] <= 2 * without[0] + WOKEN_PAGES
    assert beside[1] <= 2 * without[1] + POLL_PAGES + more
    # the first one also finds out that no other worker has locked them
    assert first[1] <= 2 * without[1] + 2 * READ_BY_TIME_PAGES + more


LOW = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("exclusive", [False, True], ids=["side by side", "one at a time"])
@pytest.mark.parametrize("name", ["claim_waiting", "claim"])
def test_a_high_run_is_claimed_at_once_beside_many_waiting_low_ones(own_dsn: str, name: str, exclusive: bool) -> None:
    # given many due runs of low priority, and one of high priority that was created last
    with store.connect(own_dsn, WORKER_SETTINGS) as connection, store.connect(own_dsn) as other:
        jobs = [a_job(other, job_type) for job_type in ("low", "high")]
        for job, count, priority in ((jobs[0], LOW, 3), (jobs[1], 1, 1)):
            other.execute(
                "insert into yamlsched.job_runs "
                "(namespace, definition_id, job_type, run_at, priority, max_attempts, exclusive) "
                "select 'default', %s, 'job', now() - interval '1 hour', %s, 5, %s from generate_series(1, %s)",
                [job, priority, exclusive and name == "claim", count],
            )
        other.execute("vacuum analyze yamlsched.job_runs")
        names, levels = prepare(connection, name), prepare(connection, "due_levels")

        looking = execute(connection, "due_levels", levels, claim("A"))
        claiming = execute(connection, name, names, {**claim("A"), "priority": 1})

        # then finding and claiming it reads little, and it is the one that is claimed
        taken = other.execute("select definition_id from yamlsched.job_runs where status = 'running'").fetchall()
    assert [run.definition_id for run in taken] == [jobs[1]]
    assert pages(looking) <= FEW_PAGES
    assert pages(claiming) <= FEW_PAGES
    assert "job_runs" not in [*scans(looking), *scans(claiming)]


@pytest.mark.slow
def test_a_high_run_is_claimed_at_once_beside_a_million_finished_and_many_waiting_low_runs(million: Any) -> None:
    connection, _ = million
    insert = (
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, priority, max_attempts) "
        "select 'default', (select min(id) from yamlsched.job_definitions), 'job', now(), %s, 5 "
        "from generate_series(1, %s)"
    )

    with connection.transaction(force_rollback=True):
        connection.execute(insert, [3, LOW])
        connection.execute(insert, [1, 1])
        looking = explained(connection, load("runs")["due_levels"], claim("A"))
        claiming = [
            explained(connection, load("runs")[name], {**claim("A"), "priority": 1})
            for name in ("claim", "claim_waiting")
        ]

    assert [plan["Actual Rows"] for plan in claiming] == [1, 1]
    assert [pages(plan) for plan in (looking, *claiming) if pages(plan) > FEW_PAGES] == []
    assert "job_runs" not in [table for plan in (looking, *claiming) for table in scans(plan)]
