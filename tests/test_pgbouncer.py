"""A real PgBouncer between workers, verbs, applications and the server, in transaction and in session mode."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict

import yamlsched
from support.coroutine_jobs import coroutine
from support.pgbouncer import MODES, PgBouncer, a_pgbouncer, program
from support.project import Project, a_project, until

IS_REQUIRED = os.environ.get("REQUIRE_PGBOUNCER") == "1"
pytestmark = [
    pytest.mark.pgbouncer,
    pytest.mark.skipif(program() is None and not IS_REQUIRED, reason="PgBouncer is not installed"),
]


@pytest.fixture(params=MODES)
def pgbouncer(request: pytest.FixtureRequest, server: str) -> Iterator[PgBouncer]:
    with a_pgbouncer(server, request.param) as pgbouncer:
        yield pgbouncer


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    """A project whose own session is direct: what a test reads does not go through PgBouncer."""
    with a_project(tmp_path, own_dsn) as project:
        yield project


def test_ticks_and_workers_execute_every_kind_of_job_once(
    project: Project, pgbouncer: PgBouncer
) -> None:
    # given jobs of every kind, whose runs are due, and one with a due slot
    project.db.execute("create table public.ledger (run_id bigint not null)")
    jobs: dict[str, dict[str, Any]] = {
        "nothing": {"cron": "* * * * *"},
        "transacts": {},
        "fans_out_in_a_transaction": {},
        "records_and_transacts": {},
        "fails_once": {"max_attempts": 2},
        "naps": coroutine("naps"),
        "program": {"command": ["true"]},
        "nap": {},
    }
    project.sync(**{name: {"lease": "2m", **job} for name, job in jobs.items()})
    project.db.execute(
        "update yamlsched.job_definitions set next_slot_at = now() where schedule is not null"
    )
    project.db.execute(
        "update yamlsched.job_definitions set effective_from = now() - interval '1 hour'"
    )
    once = [
        run
        for job in ("nothing", "transacts", "records_and_transacts")
        for run in project.enqueue(job, count=5)
    ]
    naps = project.enqueue("naps", {"seconds": 0.01}, count=5)
    programs = project.enqueue("program", count=3)
    [parent], [retried] = (
        project.enqueue("fans_out_in_a_transaction"),
        project.enqueue("fails_once"),
    )

    # when a tick and two workers run at the same time
    dsn = pgbouncer.dsn_of(project.dsn)
    processes = [project.start(verb, dsn=dsn, host=verb) for verb in ("tick", "work")]
    processes.append(project.start("work", dsn=dsn, host="other"))
    assert [process.wait() for process in processes] == [0, 0, 0], [
        process.text for process in processes
    ]
    project.work(dsn=dsn)

    # then each run has been executed once, and what its transaction wrote is there once
    statuses = project.statuses()
    assert statuses == {
        "succeeded": len(once) + len(naps) + len(programs) + 2 + 2
    }  # the slot's run and a child
    assert {project.summary(run) for run in once} == {("succeeded", 1, 1, 1, 0)}
    assert {project.row(run).attempts for run in (*naps, *programs, parent)} == {1}
    assert project.summary(retried)[:3] == ("succeeded", 2, 2)
    ledger = [
        row.run_id
        for row in project.db.execute(
            "select run_id from public.ledger where run_id > 1"
        ).fetchall()
    ]
    assert sorted(ledger) == sorted(run for run in once if project.row(run).job_type != "nothing")


def test_a_loop_survives_a_pgbouncer_that_is_killed_and_started_again(
    project: Project, pgbouncer: PgBouncer
) -> None:
    project.db.execute("create table public.ledger (run_id bigint not null)")
    project.sync(holds_a_transaction={"lease": "1m"}, waits_for_file={"lease": "1m"}, nothing={})
    [held], [waiting] = project.enqueue("holds_a_transaction"), project.enqueue("waits_for_file")
    loop = project.start("work", "--loop", dsn=pgbouncer.dsn_of(project.dsn))
    project.until_started(waiting)
    until(lambda: project.calls("inside", held), "the handler is inside its transaction")

    pgbouncer.stop()
    pgbouncer.start()
    project.touch("go")
    [later] = project.enqueue("nothing")
    for run in (held, waiting, later):
        project.until_status(run, "succeeded")
    loop.signal(signal.SIGTERM)

    # what the broken transaction wrote was rolled back, and it was repeated at the cost of one attempt
    assert loop.wait() == 0, loop.text
    assert [project.row(run).attempts for run in (held, waiting, later)] == [2, 1, 1]
    assert [row.run_id for row in project.db.execute("select run_id from public.ledger")] == [held]


def test_a_run_of_a_worker_that_is_killed_is_executed_by_another(
    project: Project, pgbouncer: PgBouncer
) -> None:
    dsn = pgbouncer.dsn_of(project.dsn)
    project.sync(first_attempt_waits={"max_attempts": 2, "lease": "2m"})
    [run] = project.enqueue("first_attempt_waits")
    worker = project.start("work", dsn=dsn)
    project.until_started(run)
    worker.signal(signal.SIGKILL)
    worker.wait()
    project.end_leases()

    loop = project.start("work", "--loop", dsn=dsn, host="other")
    project.until_status(run, "succeeded")
    loop.signal(signal.SIGTERM)

    assert loop.wait() == 0, loop.text
    assert project.summary(run) == ("succeeded", 2, 2, 1, 1)


def test_verbs_work(project: Project, pgbouncer: PgBouncer) -> None:
    project.sync(nap={"cron": "0 2 * * *"})
    dsn = pgbouncer.dsn_of(project.dsn)
    for verb in (
        ["migrate"],
        ["sync"],
        ["enqueue", "nap", "--payload", '{"seconds": 0}', "--key", "k:1"],
        ["tick"],
        ["status"],
        ["report"],
        ["runs"],
        ["show", "k:1"],
        ["metrics"],
        ["plan"],
        ["pause", "nap", "--reason", "a test", "--until", "2h"],
        ["resume", "nap"],
        ["retry", "k:1", "--force"],
        ["cancel", "k:1"],
        ["prune"],
        ["doctor"],
    ):
        process = project.start(*verb, dsn=dsn)
        assert (verb, process.wait()) == (verb, 0), process.text


@pytest.mark.parametrize(
    "driver", ["psycopg", "psycopg2", "asyncpg", "sqlalchemy", "sqlalchemy+asyncpg"]
)
def test_applications_enqueue_in_their_transactions(
    project: Project, pgbouncer: PgBouncer, driver: str
) -> None:
    """Ten committed transactions and ten that are rolled back: more than after which drivers prepare a statement."""
    project.sync(nap={})

    ENQUEUE[driver](pgbouncer.dsn_of(project.dsn))

    numbers = project.db.execute(
        "select payload ->> 'n' as n from yamlsched.job_runs order by id"
    ).fetchall()
    assert [int(row.n) for row in numbers] == list(range(10))


def with_psycopg(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        for n in range(10):
            yamlsched.enqueue(connection, "nap", {"n": n})
            connection.commit()
            yamlsched.enqueue(connection, "nap", {"n": -1})
            connection.rollback()


def with_psycopg2(dsn: str) -> None:
    connection = psycopg2.connect(dsn)
    for n in range(10):
        with connection.cursor() as cursor:
            cursor.execute("select run_id from yamlsched.enqueue(%s, %s)", ["nap", f'{{"n": {n}}}'])
            connection.commit()
            cursor.execute("select run_id from yamlsched.enqueue(%s, %s)", ["nap", '{"n": -1}'])
            connection.rollback()
    connection.close()


def with_asyncpg(dsn: str) -> None:
    parts = conninfo_to_dict(dsn)

    async def enqueue() -> None:
        connection = await asyncpg.connect(
            host=parts["host"], port=int(str(parts["port"])), user=parts["user"], database=parts["dbname"],
            ssl=False, statement_cache_size=0,
        )  # fmt: skip
        for n in range(10):
            async with connection.transaction():
                await connection.execute(
                    "select yamlsched.enqueue($1, $2::jsonb)", "nap", f'{{"n": {n}}}'
                )
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("select yamlsched.enqueue('nap', '{\"n\": -1}')")
            await transaction.rollback()
        await connection.close()

    asyncio.run(enqueue())


def with_sqlalchemy(dsn: str) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn, prepare_threshold=None)
    )
    for n in range(10):
        with engine.begin() as connection:
            yamlsched.enqueue(connection.connection.driver_connection, "nap", {"n": n})
        with engine.connect() as connection, connection.begin() as transaction:
            connection.execute(sqlalchemy.text("select yamlsched.enqueue('nap', '{\"n\": -1}')"))
            transaction.rollback()
    engine.dispose()


def with_sqlalchemy_and_asyncpg(dsn: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    parts = conninfo_to_dict(dsn)
    url = sqlalchemy.URL.create(
        "postgresql+asyncpg",
        host=str(parts["host"]),
        port=int(str(parts["port"])),
        username=str(parts["user"]),
        database=str(parts["dbname"]),
    )

    async def enqueue() -> None:
        unnamed: Any = {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "ssl": False}
        engine = create_async_engine(
            url, connect_args={**unnamed, "prepared_statement_name_func": lambda: ""}
        )
        statement = sqlalchemy.text("select yamlsched.enqueue('nap', cast(:payload as jsonb))")
        for n in range(10):
            async with engine.begin() as connection:
                await connection.execute(statement, {"payload": f'{{"n": {n}}}'})
            async with engine.connect() as connection:
                await connection.execute(statement, {"payload": '{"n": -1}'})
                await connection.rollback()
        await engine.dispose()

    asyncio.run(enqueue())


ENQUEUE = {
    "psycopg": with_psycopg,
    "psycopg2": with_psycopg2,
    "asyncpg": with_asyncpg,
    "sqlalchemy": with_sqlalchemy,
    "sqlalchemy+asyncpg": with_sqlalchemy_and_asyncpg,
}
