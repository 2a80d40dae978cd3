"""The sessions of handlers: what breaks them, and what it costs."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.project import Project, a_project, is_alive, until
from support.proxy import Pooler, Proxy, a_proxy
from support.rows import a_job, a_started_run
from yamlsched import db as store
from yamlsched.db.connection import KEEPALIVE_SETTINGS
from yamlsched.extras import embedded
from yamlsched.handler import backends
from yamlsched.handler.sessions import sessions

Db = psycopg.Connection[Any]


@pytest.fixture
def job(db: Db) -> Iterator[None]:
    a_job(db, "mail")
    yield
    sessions.close()


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        project.db.execute("create table public.ledger (run_id bigint not null)")
        yield project


def rows(project: Project) -> list[int]:
    return [
        row.run_id for row in project.db.execute("select run_id from public.ledger order by run_id")
    ]


def terminate(db: Db, session: Db) -> None:
    db.execute("select pg_terminate_backend(%s, 10000)", [session.info.backend_pid])


# -- a session that broke while it was idle


@pytest.mark.usefixtures("job")
def test_a_session_that_the_server_closed_is_replaced_before_the_handler_gets_it(
    db: Db, dsn: str
) -> None:
    with a_started_run(db, dsn).transaction() as first:
        pass
    terminate(db, first)

    run = a_started_run(db, dsn)
    with run.transaction() as second:
        assert second.execute("select 1 as one").fetchone().one == 1  # type: ignore[union-attr]

    assert second is not first
    assert run.committed


@pytest.mark.usefixtures("job")
def test_released_sessions_are_opened_again_when_a_handler_needs_one(db: Db, dsn: str) -> None:
    with a_started_run(db, dsn).transaction() as first:
        pass
    sessions.close()
    assert first.closed

    run = a_started_run(db, dsn)
    with run.transaction():
        pass
    assert run.committed


def test_an_idle_child_keeps_no_session(project: Project) -> None:
    project.sync(transacts={})
    loop = project.start("work", "--loop")
    [run] = project.enqueue("transacts")
    project.until_status(run, "succeeded")
    [child] = loop.children()

    until(lambda: not _sockets(child), "the child has closed its sessions")

    assert is_alive(child)
    [again] = project.enqueue("transacts")
    project.until_status(again, "succeeded")
    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0


def _sockets(pid: int) -> list[str]:
    """Return the open sockets of a process, which may close files while they are listed."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(link))
    return [link for link in links if link.startswith("socket:")]


# -- a session that broke inside run.transaction()


def test_an_attempt_whose_session_broke_has_failed_and_committed_nothing(project: Project) -> None:
    project.sync(transacts={"max_attempts": 2})
    [run] = project.enqueue("transacts", {"times": 1})

    project.work()

    assert project.summary(run) == ("succeeded", 2, 2, 1, 1)
    assert rows(project) == [run]


def test_a_commit_whose_answer_was_lost_is_a_success_and_not_repeated(project: Project) -> None:
    project.sync(loses_the_answer_to_its_commit={"max_attempts": 1})
    [run] = project.enqueue("loses_the_answer_to_its_commit")

    project.work()

    assert project.summary(run)[:3] == ("succeeded", 1, 1)
    assert rows(project) == [run]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["fast", "kill -9"])
def test_a_server_that_is_restarted_before_a_transaction_and_while_children_are_idle_costs_no_attempt(
    tmp_path: Path, how: signal.Signals
) -> None:
    file = tmp_path / "server" / "schedules.yaml"
    file.parent.mkdir()
    try:
        with embedded.running(file) as dsn:
            with store.connect(dsn) as connection:
                store.migrations.migrate(connection)
                connection.execute("create table public.ledger (run_id bigint not null)")
            with a_project(tmp_path, dsn) as project:
                # given a child with an open session, and another whose handler opens one next
                project.sync(
                    transacts={
                        "lease": "2m",
                        "max_attempts": 1,
                        "on_dead": ["records_death"],
                    },
                    records_death={},
                )
                loop = project.start("work", "--loop", "--concurrency", "2")
                [waiting] = project.enqueue("transacts", {"wait": "go"})
                project.until_started(waiting)
                [idle] = project.enqueue("transacts")
                project.until_status(idle, "succeeded")

                # when the server is down at that moment, and starts again
                server = embedded.status(file).pid
                assert server is not None
                os.kill(server, how)
                until(lambda: not is_alive(server), "the server has ended")
                project.touch("go")
                with embedded.running(file):
                    project.db = store.connect(dsn)
                    project.until_status(waiting, "succeeded")
                    [after] = project.enqueue("transacts")
                    project.until_status(after, "succeeded")
                    loop.signal(signal.SIGTERM)
                    assert loop.wait() == 0, loop.text

                    # then no attempt was charged
                    assert [project.summary(run)[:3] for run in (waiting, idle, after)] == [
                        ("succeeded", 1, 1)
                    ] * 3
                    assert rows(project) == sorted([waiting, idle, after])
    finally:
        embedded.discard(file)


# -- the number of connections


def a_limited_role(project: Project, connections: int) -> str:
    """Return the DSN of a role with this connection limit."""
    name = f"limited_{uuid.uuid4().hex[:12]}"
    project.db.execute(f"create role {name} login connection limit {connections}".encode())
    project.db.execute(f"grant usage on schema yamlsched to {name}".encode())
    for what in ("tables", "sequences", "functions"):
        project.db.execute(f"grant all on all {what} in schema yamlsched to {name}".encode())
    project.db.execute(f"grant all on public.ledger to {name}".encode())
    return make_conninfo(project.dsn, user=name)


@contextmanager
def limited(project: Project, connections: int) -> Iterator[str]:
    dsn = a_limited_role(project, connections)
    name = conninfo_to_dict(dsn)["user"]
    try:
        yield dsn
    finally:
        project.db.execute(f"drop owned by {name}".encode())
        project.db.execute(f"drop role {name}".encode())


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_transaction_succeeds_across_renewals_whatever_the_default_isolation_of_the_database(
    project: Project, level: str
) -> None:
    # given a database with a higher default, and a transaction that is open while the lease is renewed
    database = project.db.info.dbname
    project.db.execute(
        f"alter database {database} set default_transaction_isolation = '{level}'".encode()
    )
    project.sync(
        commits_slowly={
            "handler": "support.handlers.commits_slowly",
            "lease": "2s",
            "max_attempts": 1,
        }
    )
    [run] = project.enqueue("commits_slowly")

    project.work()

    assert project.row(run).status == "succeeded"


def test_leases_are_renewed_when_handlers_use_all_other_connections(project: Project) -> None:
    project.sync(holds_a_transaction={"max_attempts": 1})
    runs = project.enqueue("holds_a_transaction", count=4)
    with limited(project, 5) as dsn:
        worker = project.start("work", "--concurrency", "4", dsn=dsn)
        until(
            lambda: project.calls("inside") == 2, "two handlers have the connections that are left"
        )
        # each lease has been renewed twice since then
        for _ in range(2):
            leases = {run: project.row(run).locked_until for run in runs}
            until(
                lambda leases=leases: all(
                    project.row(run).locked_until > leases[run] for run in runs
                )
            )
        project.touch("go")

        assert worker.wait() == 0, worker.text
    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}


# -- a host that vanishes


@pytest.mark.parametrize("kind", [Proxy, Pooler])
def test_a_host_that_vanishes_inside_a_transaction_keeps_its_locks_at_most_for_the_timeout(
    project: Project, kind: type[Proxy]
) -> None:
    project.db.execute("insert into public.ledger values (0)")
    project.sync(keeps_a_transaction_open={"timeout": "5s", "max_attempts": 2})
    [run] = project.enqueue("keeps_a_transaction_open")
    with a_proxy(project.dsn, kind) as proxy:
        # given a handler that has locked a row, on a host that becomes silent without closing its connection
        vanished = project.start("work", dsn=proxy.dsn)
        until(lambda: project.calls("locked") == 1, "the row is locked")
        proxy.is_silent = True
        vanished.signal(signal.SIGKILL)

        # when another host claims the run, and waits for the row
        project.end_leases()
        project.work(host="b")

    assert project.summary(run) == ("succeeded", 2, 2, 1, 1)
    assert rows(project) == [run]


@pytest.mark.usefixtures("job")
def test_a_handlers_session_sets_keepalives_so_that_the_server_detects_a_vanished_host(
    db: Db, dsn: str
) -> None:
    run = a_started_run(db, dsn)
    run.backend.timeout = 90.0
    # the source of the settings: over a Unix socket their values are not applied
    question = "select name, source from pg_settings where name like 'tcp%'"

    with run.transaction() as connection:
        settings = dict(connection.execute(question).fetchall())
        [check] = connection.execute(
            "select current_setting('client_connection_check_interval', true)"
        ).fetchone()  # type: ignore[misc]
        [idle] = connection.execute("show idle_in_transaction_session_timeout").fetchone()  # type: ignore[misc]

    assert settings == dict.fromkeys(KEEPALIVE_SETTINGS, "session")
    assert check == ("10s" if db.info.server_version >= 140_000 else None)  # since PostgreSQL 14
    assert idle == "90s"


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("timeout, idle", [(90.0, "7s"), (2.5, "2500ms"), (10**9, "7s")])
def test_a_timeout_of_the_role_applies_if_it_is_shorter_than_the_jobs(
    db: Db, dsn: str, timeout: float, idle: str
) -> None:
    run = a_started_run(db, make_conninfo(dsn, options="-c idle_in_transaction_session_timeout=7s"))
    run.backend.timeout = timeout

    with run.transaction() as connection:
        assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == (idle,)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("kind", [Proxy, Pooler])
def test_a_handler_has_its_own_search_path_and_may_choose_its_isolation_level(
    db: Db, dsn: str, kind: type[Proxy]
) -> None:
    with a_proxy(make_conninfo(dsn, options="-c search_path=app,public"), kind) as proxy:
        run = a_started_run(db, proxy.dsn)
        with run.transaction() as connection:
            connection.execute("set transaction isolation level serializable")
            assert (
                connection.execute("show search_path").fetchone()[0].replace(" ", "")
                == "app,public"
            )  # type: ignore[index]
            assert connection.execute("show client_encoding").fetchone() == ("UTF8",)
        sessions.close()

    assert run.committed


@pytest.mark.usefixtures("job")
def test_a_session_that_the_network_dropped_is_replaced_before_the_handler_gets_it(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "BEGIN_TIMEOUT_SECONDS", 0.2)
    with a_proxy(dsn) as proxy:
        with a_started_run(db, proxy.dsn).transaction() as first:
            pass
        proxy.is_silent = True
        run = a_started_run(db, proxy.dsn)

        def speak_again() -> None:
            until(lambda: first.closed, "the silent session was given up")
            proxy.is_silent = False

        thread = threading.Thread(target=speak_again)
        thread.start()
        with run.transaction() as second:
            assert second.execute("select 1 as one").fetchone().one == 1  # type: ignore[union-attr]
        thread.join()
        sessions.close()

    assert run.committed


@pytest.mark.usefixtures("job")
def test_a_session_that_the_server_ends_because_the_handler_is_idle_fails_the_attempt(
    db: Db, dsn: str
) -> None:
    run = a_started_run(
        db, make_conninfo(dsn, options="-c idle_in_transaction_session_timeout=50ms")
    )

    def handler() -> None:
        with run.transaction() as connection:
            question = "select 1 from pg_stat_activity where pid = %s"
            until(
                lambda: not db.execute(question, [connection.info.backend_pid]).fetchone(),
                "the server has ended it",
            )
            connection.execute("select 1")

    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        handler()
