"""Loading a statement of sql/, running it, and reading its rows: as objects, or as the values of
the only column.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import psycopg
from psycopg.rows import class_row, scalar_row, tuple_row

Row = TypeVar("Row")


def execute(
    connection: psycopg.Connection[Any], statement: str, /, **values: Any
) -> psycopg.Cursor[Any]:
    """Execute a statement by its file and its name, such as ``runs.release``, with the values of
    its parameters.
    """
    file, _, name = statement.partition(".")
    return connection.execute(load(file)[name], values)


def fetch(
    connection: psycopg.Connection[Any],
    kind: type[Row],
    statement: bytes,
    parameters: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Return the rows of ``statement`` as objects of ``kind``, whose fields are the statement's
    columns.
    """
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(statement, parameters).fetchall()


def fetch_grouped(
    connection: psycopg.Connection[Any],
    kind: Callable[..., Row],
    statement: bytes,
    parameters: Mapping[str, Any],
) -> defaultdict[str, list[Row]]:
    """Return the rows of ``statement`` by its first column; the others are the fields of ``kind``
    in their order.
    """
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    with connection.cursor(row_factory=tuple_row) as cursor:
        for group, *values in cursor.execute(statement, parameters).fetchall():
            rows[group].append(kind(*values))
    return rows


def fetch_column(
    connection: psycopg.Connection[Any],
    statement: bytes,
    parameters: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return the values of the only column of ``statement``."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(statement, parameters).fetchall()


@cache
def sql_folder() -> Path:
    """Return the folder of SQL: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "sql"
    return inside if inside.is_dir() else package.parent / "sql"


NOW = "coalesce(%(now)s::timestamptz, clock_timestamp())"


@cache
def load(name: str) -> dict[str, bytes]:
    """Return the statements of ``sql/<name>.sql`` by name, as bytes: psycopg accepts strings only
    if they are literals.

    A statement begins at a line ``-- name: <its name>`` and ends before the next one. ``:now`` is
    the database's time, or the parameter ``now`` unless it is None.
    """
    text = (sql_folder() / f"{name}.sql").read_text("utf-8").replace(":now", NOW)
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {key: body.strip().encode() for key, body in zip(parts[1::2], parts[2::2], strict=True)}


def now(connection: psycopg.Connection[Any]) -> datetime:
    """Return the database's time."""
    [instant] = fetch_column(connection, load("clock")["now"])
    return cast(datetime, instant)
