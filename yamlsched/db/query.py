"""Loading a statement of sql/, running it, and reading its rows: as objects, or as the values of
the only column.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, overload

import psycopg
from psycopg.rows import class_row, scalar_row, tuple_row

Connection: TypeAlias = psycopg.Connection[Any]
AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]
Row = TypeVar("Row")


@overload
def execute(connection: Connection, statement: str, /, **values: Any) -> psycopg.Cursor[Any]: ...


@overload
def execute(
    connection: AsyncConnection, statement: str, /, **values: Any
) -> Awaitable[psycopg.AsyncCursor[Any]]: ...


def execute(connection: Any, statement: str, /, **values: Any) -> Any:
    """Execute a statement by its file and its name, such as ``runs.release``, with the values of
    its parameters. With an asynchronous connection, await the cursor.
    """
    return connection.execute(_find(statement), values)


def _find(statement: str) -> bytes:
    file, _, name = statement.partition(".")
    return load(file)[name]


def fetch(connection: Connection, kind: type[Row], statement: str, /, **values: Any) -> list[Row]:
    """Return the rows of a statement as objects of ``kind``, whose fields are the statement's
    columns.
    """
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(_find(statement), values).fetchall()


def fetch_grouped(
    connection: Connection,
    kind: Callable[..., Row],
    statement: str,
    /,
    **values: Any,
) -> defaultdict[Any, list[Row]]:
    """Return the rows of a statement by its first column; the others are the fields of ``kind``
    in their order.
    """
    rows: defaultdict[Any, list[Row]] = defaultdict(list)
    with connection.cursor(row_factory=tuple_row) as cursor:
        for group, *columns in cursor.execute(_find(statement), values).fetchall():
            rows[group].append(kind(*columns))
    return rows


def fetch_column(connection: Connection, statement: str, /, **values: Any) -> list[Any]:
    """Return the values of the only column of a statement."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(_find(statement), values).fetchall()


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


def now(connection: Connection) -> datetime:
    """Return the database's time."""
    [instant] = fetch_column(connection, "clock.now")
    return cast(datetime, instant)
