"""Pruning in batches: rows are locked, written to the archive if there is one, and deleted, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.rows import scalar_row

from yamlsched.store.statements import load

LINES_AT_ONCE = 20
"""Of the archive, read from the server. One run has up to a hundred attempts, each with 64 KiB of output."""
Archive = Callable[[str, datetime, Iterable[str]], None]
"""Keeps lines of a kind, ``runs``, ``keys`` or ``effects``, before their rows are deleted at an instant."""


@dataclass(frozen=True)
class FileInForce:
    """The retention of the file in force; ``id`` is None if there is none."""

    id: int | None
    retention: dict[str, str]
    now: datetime


@dataclass(frozen=True)
class PrunePosition:
    """Where the next batch of runs starts."""

    definition: int = 0
    since: datetime = datetime.min.replace(tzinfo=UTC)


def in_force(connection: psycopg.Connection[Any], namespace: str, now: datetime | None) -> FileInForce:
    [row] = connection.execute(load("retention")["in_force"], {"namespace": namespace, "now": now}).fetchall()
    return FileInForce(row.id, row.retention or {}, row.now)


def runs(
    connection: psycopg.Connection[Any],
    namespace: str,
    before: dict[str, datetime],
    position: PrunePosition,
    limit: int,
    now: datetime,
    archive: Archive | None = None,
) -> tuple[int, PrunePosition | None]:
    """Prune up to ``limit`` runs that ended ``before`` the instant of their state.

    Return how many, and where the next batch starts; None after the last one.
    """
    parameters = {
        **before,
        "namespace": namespace,
        "definition": position.definition,
        "from": position.since,
        "limit": limit,
    }
    with connection.transaction():
        [held] = connection.execute(load("retention")["hold_runs"], parameters).fetchall()
        _delete(connection, "runs", held, now, archive)
    return held.rows, PrunePosition(held.definition, held.last) if held.seen == limit else None


def keys(
    connection: psycopg.Connection[Any],
    namespace: str,
    before: datetime,
    limit: int,
    now: datetime,
    archive: Archive | None = None,
) -> int:
    """Delete up to ``limit`` keys whose runs were pruned ``before``; return how many."""
    with connection.transaction():
        parameters = {"namespace": namespace, "keys": before, "limit": limit}
        [held] = connection.execute(load("retention")["hold_keys"], parameters).fetchall()
        return _delete(connection, "keys", held, now, archive)


def effects(
    connection: psycopg.Connection[Any],
    namespace: str,
    before: datetime,
    limit: int,
    now: datetime,
    archive: Archive | None = None,
) -> int:
    """Delete up to ``limit`` effects that started ``before`` and whose runs have been pruned; return how many."""
    with connection.transaction():
        parameters = {"namespace": namespace, "effects": before, "limit": limit}
        [held] = connection.execute(load("retention")["hold_effects"], parameters).fetchall()
        return _delete(connection, "effects", held, now, archive)


def _delete(connection: psycopg.Connection[Any], kind: str, held: Any, now: datetime, archive: Archive | None) -> int:
    """Delete the rows that are held, and before that, let ``archive`` keep their lines; return how many."""
    if held.rows:
        parameters = {"ids": held.ids, "now": now}
        if archive is not None:
            with closing(_lines(connection, kind, parameters)) as lines:
                archive(kind, now, lines)
        connection.execute(load("retention")[f"delete_{kind}"], parameters)
    return int(held.rows)


def _lines(connection: psycopg.Connection[Any], kind: str, parameters: dict[str, Any]) -> Generator[str]:
    with connection.cursor("lines", row_factory=scalar_row) as cursor:
        cursor.itersize = LINES_AT_ONCE
        yield from cursor.execute(load("archive")[kind], parameters)


def done(connection: psycopg.Connection[Any], in_force: int, now: datetime) -> None:
    """Record when housekeeping was completed."""
    connection.execute(load("retention")["done"], {"in_force": in_force, "now": now})


def failed(connection: psycopg.Connection[Any], in_force: int, error: str, now: datetime) -> None:
    """Record why pruning cannot continue."""
    connection.execute(load("retention")["failed"], {"in_force": in_force, "error": error, "now": now})
