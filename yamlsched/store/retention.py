"""Pruning in batches."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from yamlsched.store.statements import load


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
        "now": now,
    }
    [row] = connection.execute(load("retention")["runs"], parameters).fetchall()
    return row.pruned, PrunePosition(row.definition, row.last) if row.seen == limit else None


def keys(connection: psycopg.Connection[Any], namespace: str, before: datetime, limit: int) -> int:
    """Delete up to ``limit`` keys whose runs were pruned ``before``; return how many."""
    parameters = {"namespace": namespace, "keys": before, "limit": limit}
    return connection.execute(load("retention")["keys"], parameters).rowcount


def effects(connection: psycopg.Connection[Any], namespace: str, before: datetime, limit: int) -> int:
    """Delete up to ``limit`` effects that started ``before`` and whose runs have been pruned; return how many."""
    parameters = {"namespace": namespace, "effects": before, "limit": limit}
    return connection.execute(load("retention")["effects"], parameters).rowcount


def done(connection: psycopg.Connection[Any], in_force: int, now: datetime) -> None:
    """Record when housekeeping was completed."""
    connection.execute(load("retention")["done"], {"in_force": in_force, "now": now})
