"""Databases and clients for tests of the web page: one database for each module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from docs import demo_data
from support.database import temporary_database
from yamlsched.db.connection import connect_for_handler
from yamlsched.extras import web

HOST = "http://localhost"


@pytest.fixture(autouse=True)
def _no_schedule_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The schedules.yaml of the checkout must not decide which namespace a page shows."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def page_dsn(server: str, template: str) -> Iterator[str]:
    """A database with tables and no rows."""
    with temporary_database(server, template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def demo_dsn(server: str, template: str) -> Iterator[str]:
    """A database with the demonstration."""
    with temporary_database(server, template) as dsn:
        demo_data.fill(
            dsn, ended=timedelta(minutes=float(os.environ.get("DEMO_ENDED_MINUTES_AGO", "0")))
        )
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
    """The module's database without rows: those of actions are deleted after each test."""
    yield page_db
    page_db.execute(
        "delete from yamlsched.operator_actions; delete from yamlsched.effects; delete from yamlsched.used_keys;"
        "delete from yamlsched.skipped_slots; delete from yamlsched.job_days; "
        "delete from yamlsched.job_runs; delete from yamlsched.job_definitions"
    )


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
