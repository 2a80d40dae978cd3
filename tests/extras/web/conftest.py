"""Databases and clients for tests of the web page: one database for each module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from jinja2 import Environment, FileSystemBytecodeCache
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from docs import demo_data
from support.database import delete_rows, temporary_database
from yamlsched.db.connection import connect_for_handler
from yamlsched.extras import web
from yamlsched.extras.web import render

HOST = "http://localhost"


@pytest.fixture(scope="session", autouse=True)
def _compiled_templates(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile the templates once for all test processes, which takes each a second."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "templates"
    folder.mkdir(exist_ok=True)
    cached = partial(Environment, bytecode_cache=FileSystemBytecodeCache(str(folder)))
    with patch.object(render, "Environment", cached):
        render.environment()


@pytest.fixture(autouse=True)
def _no_schedule_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The schedules.yaml of the checkout must not decide which namespace a page shows."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def page_dsn(server: str, template: str) -> Iterator[str]:
    """A database with tables and no rows."""
    with temporary_database(server, template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def demo_template(server: str, template: str, testrun_uid: str) -> Iterator[str]:
    """The name of a database with the demonstration, for all test processes.

    The first one fills it. Each holds a lock while it may copy it, and the last one drops it.
    """
    name = f"demo_{testrun_uid[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("select pg_advisory_lock(hashtext(%s))", [name])
        if not admin.execute("select from pg_database where datname = %s", [name]).fetchall():
            ago = timedelta(minutes=float(os.environ.get("DEMO_ENDED_MINUTES_AGO", "0")))
            admin.execute(f'create database "{name}" template "{template}"'.encode())
            demo_data.fill(make_conninfo(server, dbname=name), ended=ago)
        admin.execute("select pg_advisory_lock_shared(hashtext(%s))", [name])
        admin.execute("select pg_advisory_unlock(hashtext(%s))", [name])
        yield name
        admin.execute("select pg_advisory_unlock_shared(hashtext(%s))", [name])
        lock = "select pg_try_advisory_lock(hashtext(%s))"
        if admin.execute(lock, [name]).fetchone() == (True,):
            admin.execute(f'drop database "{name}" with (force)'.encode())


@pytest.fixture(scope="module")
def demo_dsn(server: str, demo_template: str) -> Iterator[str]:
    """A database with the demonstration."""
    with temporary_database(server, demo_template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def demo_db(demo_dsn: str) -> Iterator[Any]:
    with connect_for_handler(demo_dsn) as connection:
        yield connection


@pytest.fixture(scope="module")
def page_db(page_dsn: str) -> Iterator[Any]:
    with connect_for_handler(page_dsn) as connection:
        yield connection


@pytest.fixture
def db(page_db: Any) -> Iterator[Any]:
    """The module's database, which is emptied after each test."""
    yield page_db
    delete_rows(page_db)


@pytest.fixture(scope="module")
def page(page_dsn: str) -> Iterator[TestClient]:
    """The page with actions on the module's database, used by maria."""
    app = web.app(
        page_dsn,
        actions_dsn=page_dsn,
        namespace="default",
        auth="header",
        trust_proxy=("127.0.0.1",),
        hosts=("x",),
    )
    with TestClient(
        app,
        base_url=HOST,
        client=("127.0.0.1", 1),
        headers={"X-Forwarded-User": "maria"},
        follow_redirects=False,
    ) as client:
        yield client


@pytest.fixture(scope="module")
def reader(page_dsn: str) -> Iterator[TestClient]:
    """The page without actions on the module's database."""
    app = web.app(page_dsn, namespace="default", auth="none")
    with TestClient(app, base_url=HOST, follow_redirects=False) as client:
        yield client


@pytest.fixture
def visit() -> Iterator[Callable[..., TestClient]]:
    """A function that opens a browser on the page: ``visit(dsn, auth="basic", client=("10.0.0.9", 1))``."""
    with ExitStack() as stack:

        def open_page(
            dsn: str, client: tuple[str, int] = ("127.0.0.1", 50_000), **options: Any
        ) -> TestClient:
            app = web.app(dsn, **{"auth": "none", **options})
            return stack.enter_context(
                TestClient(
                    app,
                    base_url=HOST,
                    client=client,
                    raise_server_exceptions=False,
                    follow_redirects=False,
                )
            )

        yield open_page
