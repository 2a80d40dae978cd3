"""The database and the folder of the example application, and a run for calling its handlers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import tuple_row

from handlers import app
from yamlsched.testing import FakeRun


@pytest.fixture(autouse=True)
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EXAMPLE_SMTP", "EXAMPLE_PAYMENTS", "EXAMPLE_DSN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(app, "VAR", tmp_path / "var")
    return tmp_path / "var"


@pytest.fixture
def app_dsn(dsn: str, db: psycopg.Connection[Any]) -> Iterator[str]:
    """A database without the tables of the example application."""
    yield dsn
    db.rollback()  # a test may have failed in a transaction
    if db.execute("select from pg_namespace where nspname = 'app'").rowcount:
        db.execute("drop schema app cascade")


@pytest.fixture
def run(app_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRun]:
    """A run for calling handlers."""
    monkeypatch.setenv("EXAMPLE_DSN", app_dsn)
    # so that a test fails instead of hanging
    with psycopg.connect(app_dsn, autocommit=True, options="-c lock_timeout=10s") as connection:
        yield FakeRun(id=118, connection=connection)


@pytest.fixture
def tables(app_dsn: str, db: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """A session on the database of the example application, with all tables."""
    db.row_factory, named = tuple_row, db.row_factory
    with db.transaction():
        app.ensure_tables(db)
    yield db
    db.row_factory = named
