"""What places cannot start: see ``sql/lacks.sql``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from yamlsched.db.query import fetch_column, load
from yamlsched.schedule.startable import Lack

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


def record(
    connection: Connection[Any],
    namespace: str,
    place: tuple[str, str],
    lacks: Mapping[str, Lack],
    now: datetime | None = None,
) -> list[str]:
    """Store what ``place``, a host and the path of its file, cannot start: its jobs by name. Return
    which are new.
    """
    parameters: dict[str, Any] = {
        "names": list(lacks),
        "reasons": [lack.reason for lack in lacks.values()],
        "waits": [lack.waits for lack in lacks.values()],
    }
    host, path = place
    parameters |= {"namespace": namespace, "host": host, "path": path, "now": now}
    return fetch_column(connection, load("lacks")["record"], parameters)


def lacked_everywhere(
    connection: Connection[Any], namespace: str, place: tuple[str, str], now: datetime | None = None
) -> set[str]:
    """Return the jobs of which ``place``, and every other one that ticks, has lacked the code for
    10 minutes.
    """
    host, path = place
    parameters = {"namespace": namespace, "host": host, "path": path, "now": now}
    return set(fetch_column(connection, load("lacks")["lacked_everywhere"], parameters))


async def note_fault(
    connection: AsyncConnection[Any],
    namespace: str,
    place: tuple[str, str],
    executor: str,
    reason: str,
) -> None:
    """Store that ``place`` cannot use ``executor`` at present, and why; "" removes that."""
    host, path = place
    values = {
        "namespace": namespace,
        "host": host,
        "path": path,
        "executor": executor,
        "reason": reason,
        "now": None,
    }
    await connection.execute(load("lacks")["note_fault" if reason else "end_fault"], values)
