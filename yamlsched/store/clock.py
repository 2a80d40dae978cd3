"""The database's clock."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import psycopg

from yamlsched.store.rows import fetch_column
from yamlsched.store.statements import load


def now(connection: psycopg.Connection[Any]) -> datetime:
    """Return the database's time."""
    [instant] = fetch_column(connection, load("clock")["now"])
    return cast(datetime, instant)
