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


@dataclass(frozen=True)
class Pruned:
    """A batch: how many rows, whether there is work, and where the next batch starts; None: it was the last."""

    rows: int
    is_busy: bool
    following: PrunePosition | None = None


def runs(
    connection: psycopg.Connection[Any],
    namespace: str,
    before: dict[str, datetime],
    position: PrunePosition,
    limit: int,
    now: datetime,
    archive: Archive | None = None,
) -> Pruned:
    """Prune up to ``limit`` runs that ended ``before`` the instant of their state."""
    given = {**before, "definition": position.definition, "from": position.since}
    held, is_busy = _prune(connection, "runs", namespace, given, limit, now, archive)
    following = PrunePosition(held.definition, held.last) if held.rows == limit else None
    return Pruned(held.rows, is_busy, following)


def others(
    connection: psycopg.Connection[Any],
    kind: str,
    namespace: str,
    before: datetime,
    limit: int,
    now: datetime,
    archive: Archive | None = None,
) -> Pruned:
    """Delete up to ``limit`` ``keys`` whose runs were pruned ``before``, or ``effects`` that started before.

    Only effects whose runs have been pruned.
    """
    held, is_busy = _prune(connection, kind, namespace, {"before": before}, limit, now, archive)
    return Pruned(held.rows, is_busy)


def _prune(
    connection: psycopg.Connection[Any],
    kind: str,
    namespace: str,
    given: dict[str, Any],
    limit: int,
    now: datetime,
    archive: Archive | None,
) -> tuple[Any, bool]:
    """Lock a batch, let ``archive`` keep its lines, and delete it; return what was locked, and if there is work."""
    sql, parameters = load("retention"), {**given, "namespace": namespace, "limit": limit}
    with connection.transaction():
        [start] = connection.execute(sql["start_batch"], parameters).fetchall()
        [held] = connection.execute(sql[f"hold_{kind}"], parameters).fetchall()
        if held.rows:
            rows = {"ids": held.ids, "now": now}
            if archive is not None:
                with closing(_lines(connection, kind, rows)) as lines:
                    archive(kind, now, lines)
            connection.execute(sql[f"delete_{kind}"], rows)
    return held, start.is_busy


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
