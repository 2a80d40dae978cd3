"""A real PostgreSQL for every test that names ``db``, ``dsn`` or ``own_dsn``.

It is the embedded one, shared by all test processes, or the server that YAMLSCHED_TEST_DSN names (its role must be
allowed to create databases).
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import os
import signal
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from psycopg.conninfo import make_conninfo

from support.database import delete_rows, temporary_database
from yamlsched import db as store
from yamlsched import log
from yamlsched.db.connection import connect_for_handler
from yamlsched.extras import embedded

AS_NEW = b"""
close all; reset session authorization; reset all; unlisten *; select pg_advisory_unlock_all(); discard temp
"""
"""What makes a session as new, except for what it knows of tables."""

# What a test writes over within a second would be taken for what was compiled before.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False  # until the tests are collected

# a machine that is busy must not fail a test: an example has no time limit. Examples share the database of their test,
# and empty it themselves
settings.register_profile(
    "busy machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# A change is not refused for an example that has nothing to do with it; runs at a desk look for new ones.
settings.register_profile("same examples", settings.get_profile("busy machine"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "busy machine"))
# the same examples with and without a mutation, of which the first that fails suffices
settings.register_profile(
    "mutations",
    settings(),
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    database=None,
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts its background jobs so, and the processes that tests interrupt would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the same of nohup


def pytest_configure(config: pytest.Config) -> None:
    """Compile once what the hundreds of processes that tests start would each compile."""
    if not hasattr(config, "workerinput"):
        for folder in ("yamlsched", "tests/support"):
            compileall.compile_dir(Path(__file__).parents[1] / folder, quiet=2)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Return the number of processes of ``-n auto``: more than cores, because tests wait for other processes.

    Each opens a dozen connections to the embedded server, which has a hundred: with many cores, it is one per core.
    """
    cores = yield
    return cores if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else max(cores, min(3 * cores, 6))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would find none in thousands of tests and modules."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest story first: else one process would end with it alone."""
    items.sort(key=lambda item: item.name != "test_a_release_is_rehearsed")


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = True


@pytest.fixture(autouse=True)
def _no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings on a developer's machine must not affect tests."""
    for name in list(os.environ):
        if name.startswith("YAMLSCHED_") and name not in ("YAMLSCHED_TEST_DSN", "YAMLSCHED_PG_BIN"):
            monkeypatch.delenv(name)
    log.configure()


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The DSN of a server on which tests may create databases.

    For most tests it is without fsync: no test lets the machine crash, and each database that is dropped waits for a
    checkpoint. Long stories follow pages of the documentation, where doctor and the benchmarks want fsync.
    """
    dsn = os.environ.get("YAMLSCHED_TEST_DSN")
    if dsn:
        yield dsn
        return
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "server"
    folder.mkdir(exist_ok=True)
    file = folder / "schedules.yaml"
    marks = {mark.name for item in request.session.items for mark in item.iter_markers()}
    with embedded.running(file) as dsn:
        if not marks & {"slow", "pgbouncer"}:
            with psycopg.connect(dsn, autocommit=True) as admin:
                admin.execute("alter system set fsync = off")
                admin.execute("select pg_reload_conf()")
        yield dsn
    # as root, the data may be outside of pytest's folder; the last process removes it
    embedded.discard(file)


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """The name of a database with all tables and no rows."""
    name = f"template_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'create database "{name}" template template0 encoding utf8'.encode())
        with store.connect(make_conninfo(server, dbname=name)) as connection:
            store.migrations.migrate(connection)
        yield name
        admin.execute(f'drop database "{name}" with (force)'.encode())


@pytest.fixture
def own_dsn(server: str, template: str) -> Iterator[str]:
    """A database for one test: for tests that start processes, which may outlive an assertion."""
    with temporary_database(server, template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _shared_dsn(server: str, template: str) -> Iterator[str]:
    with temporary_database(server, template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _cleaning_session(_shared_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(_shared_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def dsn(_shared_dsn: str, _cleaning_session: psycopg.Connection[Any]) -> Iterator[str]:
    """A database that is emptied after each test, which is faster than creating one."""
    yield _shared_dsn
    delete_rows(_cleaning_session)


@pytest.fixture(scope="session")
def _sessions() -> Iterator[list[psycopg.Connection[Any]]]:
    """The session of ``db`` between two tests."""
    sessions: list[psycopg.Connection[Any]] = []
    yield sessions
    for session in sessions:
        session.close()


@pytest.fixture
def db(dsn: str, _sessions: list[psycopg.Connection[Any]]) -> Iterator[psycopg.Connection[Any]]:
    """A session on ``dsn`` in autocommit mode, with named tuples and the default search_path.

    Tests have it one after the other: a new one would read the definitions of all tables again, which takes longer
    than most tests.
    """
    session = _sessions.pop() if _sessions else connect_for_handler(dsn)
    yield session
    try:
        session.rollback()
        session.prepare_threshold = None
        session.execute(AS_NEW)
    except psycopg.OperationalError:  # the test ended it
        session.close()
    else:
        _sessions.append(session)


@pytest.fixture
def empty_dsn(server: str) -> Iterator[str]:
    """A database without the tables of yamlsched."""
    with temporary_database(server, "template0") as dsn:
        yield dsn


@pytest.fixture
def db_of() -> Iterator[Any]:
    """A function that opens a session on a DSN; sessions are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda dsn: stack.enter_context(connect_for_handler(dsn))
