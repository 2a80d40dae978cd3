"""What any login of the database, and an enqueuer, cannot do to others."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import psycopg
import pytest

import yamlsched
from support.database import while_waiting
from support.rows import a_job
from yamlsched import Refused
from yamlsched.db import migrations
from yamlsched.db.query import sql_folder
from yamlsched.extras.web.ask import audit
from yamlsched.worker import sessions
from yamlsched.worker.sessions import WAKE_INTERVAL_SECONDS, Database, WorkerSession

Db = psycopg.Connection[Any]
REQUEST = "00000000-0000-4000-8000-000000000001"


def test_every_function_sets_its_search_path(db: Db) -> None:
    functions = db.execute(
        "select p.oid::regprocedure::text as name, coalesce(array_to_string(p.proconfig, ' '), '') as settings "
        "from pg_proc p where p.pronamespace = 'yamlsched'::regnamespace"
    ).fetchall()

    assert len(functions) > 20
    assert [
        row.name for row in functions if "search_path=pg_catalog, pg_temp" not in row.settings
    ] == []


def test_no_statement_takes_an_advisory_lock() -> None:
    files = sorted(sql_folder().rglob("*.sql"))

    assert len(files) > 20
    assert [
        file.name
        for file in files
        if "pg_advisory" in file.read_text() or "pg_try_adv" in file.read_text()
    ] == []


def test_no_file_has_two_statements_of_one_name() -> None:
    names = [
        (file.name, name)
        for file in sql_folder().rglob("*.sql")
        for name in re.findall(r"^-- name: (\w+)$", file.read_text(), re.MULTILINE)
    ]

    assert len(names) > 100
    assert [name for name, number in Counter(names).items() if number > 1] == []


def test_locks_that_any_login_can_hold_do_not_hold_up_a_migration(db: Db, dsn: str) -> None:
    with psycopg.connect(dsn) as other:
        other.execute("select pg_advisory_lock(7239054111)")
        db.execute("set lock_timeout = '5s'")

        assert migrations.migrate(db) == []


def test_two_that_create_the_tables_wait_for_each_other(empty_dsn: str) -> None:
    with (
        psycopg.connect(empty_dsn, autocommit=True) as first,
        psycopg.connect(empty_dsn) as watcher,
    ):
        watcher.autocommit = True
        with yamlsched.db.connect(empty_dsn) as one, yamlsched.db.connect(empty_dsn) as two:
            one.execute("begin")
            assert [each.version for each in migrations.migrate(one)] == [1]
            answers: list[Any] = []
            while_waiting(
                watcher,
                two,
                lambda: answers.append(migrations.migrate(two)),
                lambda: one.execute("commit"),
            )
        assert answers == [[]]
        assert first.execute("select count(*) from yamlsched.migrations").fetchone() == (1,)


def test_two_forms_about_one_target_wait_for_each_other_and_for_no_advisory_lock(
    db: Db, dsn: str
) -> None:
    with (
        psycopg.connect(dsn) as stranger,
        psycopg.connect(dsn) as other,
        yamlsched.db.connect(dsn) as third,
    ):
        stranger.execute(
            "select pg_advisory_lock(hashtextextended('yamlsched.operator_actions default job:a', 0))"
        )
        audit.start_request(other, REQUEST, "default", "job:a")
        done: list[str] = []

        def start() -> None:
            with third.transaction():
                audit.start_request(third, REQUEST, "default", "job:a")
                done.append("after the first")

        while_waiting(db, third, start, other.commit)
        assert done == ["after the first"]


@pytest.mark.parametrize("many", [False, True])
def test_a_run_at_in_the_past_counts_as_now(db: Db, many: bool) -> None:
    a_job(db, "mail")
    first = yamlsched.enqueue(db, "mail").run_id
    if many:
        db.execute("select yamlsched.enqueue_many('mail', array['{}'::jsonb], null, '1970-01-01Z')")
    else:
        db.execute("select yamlsched.enqueue('mail', '{}', '1970-01-01Z')")

    order = db.execute(
        "select id, run_at <= clock_timestamp() from yamlsched.job_runs order by run_at, id"
    ).fetchall()

    assert order[0][0] == first
    assert all(is_due for _, is_due in order)


@pytest.mark.parametrize("form", ["%s\n", " %s", "%s\t", "\x1b[2K%s", "%s\x7f"])
@pytest.mark.parametrize("key", ["nightly:2026-01-14", "nightly:2026-01-14T02:00Z"])
def test_a_key_that_looks_like_that_of_a_slot_is_refused(db: Db, form: str, key: str) -> None:
    a_job(db, "mail")
    with pytest.raises(Refused, match=r"reserved form|control character"):
        yamlsched.enqueue(db, "mail", key=form % key)
    with pytest.raises(psycopg.Error, match=r"reserved form|control character"):
        db.execute("select yamlsched.enqueue('mail', '{}', null, %s)", [form % key])
    with pytest.raises(psycopg.Error, match=r"reserved form|control character"):
        db.execute(
            "select yamlsched.enqueue_many('mail', array['{}'::jsonb], array[%s])", [form % key]
        )


def test_a_flood_of_notifications_is_read_at_once_and_then_in_intervals(db: Db, dsn: str) -> None:
    async def flood() -> set[float]:
        reads: set[float] = set()
        session = WorkerSession(Database(dsn), {}, lambda: reads.add(session._received_at))
        await session.open()
        session.watch()
        end = asyncio.get_running_loop().time() + 10 * WAKE_INTERVAL_SECONDS
        while asyncio.get_running_loop().time() < end:
            db.execute("notify yamlsched, 'any'")
            await asyncio.sleep(0)
        await session.drop()
        return reads

    assert 1 <= len(asyncio.run(flood())) <= 11


def test_after_a_notification_that_led_to_runs_the_next_one_is_read_at_once(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an interval that no test waits for
    monkeypatch.setattr(sessions, "WAKE_INTERVAL_SECONDS", 3600.0)

    async def two() -> int:
        reads = asyncio.Queue[bool]()
        session = WorkerSession(Database(dsn), {}, lambda: reads.put_nowait(True))
        await session.open()
        for _ in range(2):
            session.watch()
            db.execute("notify yamlsched, 'any'")
            assert await asyncio.wait_for(reads.get(), 60)
            session.unwatch()
            session.note_runs()
        await session.drop()
        return reads.qsize()

    assert asyncio.run(two()) == 0
