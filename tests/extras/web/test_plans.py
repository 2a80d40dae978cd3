"""No page reads the history: each page reads a bounded number of finished runs, and none by scanning the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from starlette.testclient import TestClient

from benchmarks.web import DEAD_SHARE, fill, paths
from support.database import temporary_database
from yamlsched.ask import search
from yamlsched.extras import web
from yamlsched.extras.web.pages import PAGES
from yamlsched.extras.web.pool import Pool

JOBS, RUNS = 200, 30_000
MAX_ROWS = 12_000
"""Rows and index entries of runs that a page may read: dozens for each job of a list, and failures; those of a report,
which begins 6 to 30 hours ago, twice."""
READ = """
select c.relname,
       sum(pg_stat_get_xact_numscans(c.oid))::integer as scans,
       sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid))::integer
           + coalesce((select sum(pg_stat_get_xact_tuples_returned(i.indexrelid))
                       from pg_catalog.pg_index i where i.indrelid = c.oid), 0)::integer as rows
from pg_catalog.pg_class c
where c.oid = any (array['yamlsched.job_runs', 'yamlsched.job_failures', 'yamlsched.attempt_outputs',
                         'yamlsched.used_keys', 'yamlsched.job_definitions']::regclass[])
group by c.oid, c.relname
"""


@pytest.fixture(scope="module")
def history(server: str, template: str) -> Iterator[str]:
    """A database with many finished runs."""
    with temporary_database(server, "template0") as dsn:
        fill(dsn, JOBS, RUNS)
        with psycopg.connect(dsn) as connection:
            [found] = connection.execute("select count(*) from yamlsched.job_runs").fetchone()  # type: ignore[misc]
        assert found > RUNS * 0.9  # or the plans are meaningless
        yield dsn


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """What the last page read: by table, the scans of the whole table, and the rows."""
    found: dict[str, tuple[int, int]] = {}
    transaction = Pool.transaction

    @contextmanager
    def counted(self: Pool) -> Iterator[Any]:
        with transaction(self) as session:
            before = {
                row.relname: row for row in session.execute(READ)
            }  # of transactions that are not reported yet
            yield session
            found.clear()
            for row in session.execute(READ):
                old = before[row.relname]
                found[row.relname] = (row.scans - old.scans, row.rows - old.rows)

    monkeypatch.setattr(Pool, "transaction", counted)
    return found


def test_no_page_scans_finished_runs(
    history: str, reads: dict[str, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a search may read a number of runs that is large beside those of this test
    for bound in ("FEW_RUNS", "MAX_SEARCHED_IDS", "PAGE_RUNS"):
        monkeypatch.setattr(search, bound, 1_000)
    shown = paths(history)
    assert len(shown) >= len(PAGES)

    # of all namespaces
    with TestClient(web.app(history, auth="none"), base_url="http://localhost") as client:
        for path in shown:
            assert client.get(path).status_code == 200, path
            for table, (scans, rows) in reads.items():
                assert scans == 0 or table != "job_runs", f"{path} scans all runs"
                assert rows <= MAX_ROWS, f"{path} reads {rows} rows of {table}"


def test_the_lists_of_jobs_and_of_namespaces_read_one_finished_run_of_a_job_and_no_more(
    server: str, history: str, reads: dict[str, tuple[int, int]]
) -> None:
    # given the same history without unfinished runs: each job has a gap of now, of a kind that makes no job late
    template = conninfo_to_dict(history)["dbname"]
    with temporary_database(server, str(template)) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("delete from yamlsched.job_runs where finished_at is null")
            connection.execute("vacuum analyze yamlsched.job_runs")

        with TestClient(web.app(dsn, auth="none"), base_url="http://localhost") as client:
            read = {}
            for path in ("/namespaces", "/?q=nothing", "/"):
                assert client.get(path).status_code == 200
                read[path] = reads["job_runs"]

    # then the latest one decides about the state of a job, and those of the last hour about the hosts that work;
    # an index of so few dead runs may be read as a whole, for each of three questions
    few = 3 * RUNS // DEAD_SHARE + 20
    # two statements of /namespaces do
    assert read["/namespaces"][1] <= 2 * (JOBS + few), read
    assert JOBS <= read["/?q=nothing"][1] <= JOBS + few, read
    # and the rows of the list have more: the last failure, the streak, and the last days
    assert read["/"][1] <= 12 * JOBS + few, read


def test_a_page_that_counts_all_runs_would_be_found(
    history: str, reads: dict[str, tuple[int, int]]
) -> None:
    pool = Pool(history, 1, {})
    with pool.transaction() as session:
        session.execute("select count(*) from yamlsched.job_runs")
    pool.close()

    scans, rows = reads["job_runs"]
    assert scans or rows > MAX_ROWS
