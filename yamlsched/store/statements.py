"""The named statements of ``sql/*.sql``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def sql_folder() -> Path:
    """Return the folder of SQL: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "sql"
    return inside if inside.is_dir() else package.parent / "sql"


@cache
def load(name: str) -> dict[str, bytes]:
    """Return the statements of ``sql/<name>.sql`` by name, as bytes: psycopg accepts strings only if they are literals.

    A statement begins at a line ``-- name: <its name>`` and ends before the next one.
    """
    text = (sql_folder() / f"{name}.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {key: body.strip().encode() for key, body in zip(parts[1::2], parts[2::2], strict=True)}
