"""Running a statement and reading its rows: as objects of a dataclass, or as the values of the only column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row

Row = TypeVar("Row")


def fetch(
    connection: psycopg.Connection[Any], kind: type[Row], statement: bytes, parameters: Mapping[str, Any] | None = None
) -> list[Row]:
    """Return the rows of ``statement`` as objects of ``kind``, whose fields are the statement's columns."""
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(statement, parameters).fetchall()


def fetch_column(
    connection: psycopg.Connection[Any], statement: bytes, parameters: Mapping[str, Any] | None = None
) -> list[Any]:
    """Return the values of the only column of ``statement``."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(statement, parameters).fetchall()
