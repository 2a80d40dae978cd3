"""Claiming due runs, ending lost attempts, releasing what waits. Every write names the claim that
it expects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any

from yamlsched.db.query import AsyncConnection, Connection, execute
from yamlsched.runs.lifecycle import (
    DEFAULT_QUEUE,
    LOST_WORKER,
    ClaimedRun,
    Priority,
    released,
)
from yamlsched.worker.statements import (
    array,
    finish,
    release,
    rows_of,
)

MAX_RECLAIMED_ENTRIES = 1_000
"""Unfinished runs of each queue and level that are looked at each second for leases that are over.
"""
FIELDS = itemgetter(slice(len(ClaimedRun._fields)))
"""Takes the fields of a ``ClaimedRun`` from a row of a claim."""


@dataclass(frozen=True)
class ClaimScope:
    """The definitions whose runs a worker may claim: those with ids up to ``newest``, without the
    ``others``.

    ``revision`` is that of the code which it executes. ``timeouts`` are those of the definitions in
    seconds, for a worker that ends after a time.
    """

    newest: int = 2**63 - 1
    others: tuple[int, ...] = ()
    revision: str | None = None
    timeouts: tuple[tuple[int, float], ...] = ()


@dataclass
class ClaimResult:
    """What a claim took, the highest level first. ``busy``: jobs whose gate another session has.

    ``unreleased``: jobs of runs that are not released, for ``release_followers``. ``is_complete``:
    fewer runs were due than it asked for.
    """

    runs: list[ClaimedRun] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    unreleased: set[int] = field(default_factory=set)
    is_complete: bool = True


@dataclass
class ReclaimResult:
    """What a reclaim ended: attempts that ``lost`` their worker, and runs that are ``dead``, which
    may be the same.
    """

    lost: list[ClaimedRun] = field(default_factory=list)
    dead: list[ClaimedRun] = field(default_factory=list)


def levels(chance: float) -> str:
    """Return the levels in the order in which a claim takes them: each of the lower ones comes
    first in one of eight, by ``chance``, which is in [0, 1).

    >>> levels(0.5), levels(0.8), levels(0.9)
    ('{1,2,3}', '{2,1,3}', '{3,1,2}')
    """
    first = {6: Priority.NORMAL, 7: Priority.LOW}.get(int(8 * chance), Priority.HIGH)
    return array(int(level) for level in sorted(Priority, key=lambda level: level is not first))


async def claim(
    connection: AsyncConnection,
    namespace: str,
    token: str,
    limit: int,
    scope: ClaimScope = ClaimScope(),
    now: datetime | None = None,
    queue: str = DEFAULT_QUEUE,
    busy: Collection[int] = (),
    chance: float = 0.0,
) -> tuple[ClaimResult, list[int]]:
    """Claim up to ``limit`` due runs of ``queue`` under ``token``, which must be new.

    Returns also the ids of those that stand at a gate, for ``claim_gated``. ``busy`` are jobs to
    step over, whose gates the claim before did not get; ``chance`` is that of ``levels``. Each
    parameter has one type, whatever its value, so that a session plans the statement once: numbers
    of other sizes have types of their own.
    """
    values = {
        "namespace": namespace,
        "queue": queue,
        "token": token,
        "limit": limit,
        "now": now,
        "priorities": levels(chance),
        "newest": str(scope.newest),
        "skipped": array((*scope.others, *busy)),
        "revision": scope.revision,
    }
    rows = await rows_of(connection, "claim", values)
    if misplaced := [row.id for row in rows if row.state == "misplaced"]:
        await execute(connection, "runs.move", ids=array(misplaced))
    if expired := [row.id for row in rows if row.state == "expired"]:
        await execute(connection, "runs.expire", namespace=namespace, ids=array(expired), now=now)
    unreleased = {row.definition_id for row in rows if row.state == "unreleased"}
    claimed = ClaimResult(_runs(rows), unreleased=unreleased, is_complete=len(rows) < limit)
    return claimed, [row.id for row in rows if row.state == "gated"]


async def claim_gated(
    connection: AsyncConnection,
    namespace: str,
    claimed: ClaimResult,
    token: str,
    ids: Sequence[int],
    now: datetime | None = None,
    revision: str | None = None,
    chance: float = 0.0,
) -> bool:
    """Claim those of ``ids`` that may execute, under ``token``, which must be new, and add them to
    ``claimed``. Return whether nothing more is due.
    """
    parameters = {
        "namespace": namespace,
        "ids": array(ids),
        "token": token,
        "now": now,
        "priorities": levels(chance),
        "revision": revision,
    }
    rows = await rows_of(connection, "claim_gated", parameters)
    claimed.runs += _runs(rows)
    claimed.busy |= {row.definition_id for row in rows if row.state == "busy"}
    claimed.is_complete = (
        claimed.is_complete
        and len(rows) == len(ids)
        and all(row.state == "claimed" for row in rows)
    )
    return claimed.is_complete


def _runs(rows: Iterable[Any]) -> list[ClaimedRun]:
    """Return the runs among the rows of a claim, by level and age."""
    claimed = sorted((row.priority, row.id, row) for row in rows if row.state == "claimed")
    return [ClaimedRun._make(FIELDS(row)) for _, _, row in claimed]


async def reclaim(
    connection: AsyncConnection,
    namespace: str,
    held: Collection[int] = (),
    is_complete: bool = True,
    now: datetime | None = None,
) -> ReclaimResult:
    """End the attempts whose leases are over, but not those of the runs ``held``, and return their
    permits.

    Unless it ``is_complete``, it looks only at the first unfinished runs of each queue and level,
    where those are that are executed.
    """
    result = ReclaimResult()
    async with connection.transaction():
        parameters = {
            "namespace": namespace,
            "most": None if is_complete else MAX_RECLAIMED_ENTRIES,
            "held": array(held),
            "now": now,
            **LOST_WORKER,
        }
        rows = await rows_of(connection, "reclaim", parameters)
        lost = [row.id for row in rows if row.is_lost]
        await release(connection, namespace, [row.id for row in rows], now, lost)
    for row in rows:
        run = ClaimedRun(*row[:-2])
        if row.is_lost:
            result.lost.append(run)
        if row.is_last:
            result.dead.append(run)
    return result


async def sweep(
    connection: AsyncConnection,
    namespace: str,
    now: datetime | None = None,
    at_once: bool = False,
) -> int:
    """Offer the room of all gates again, unless that was done within the second; return to how many
    runs.
    """
    parameters = {"namespace": namespace, "at_once": at_once, "now": now}
    [row] = await rows_of(connection, "sweep", parameters)
    return int(row.offered)


async def repair(connection: AsyncConnection, namespace: str, now: datetime | None = None) -> int:
    """End what has expired, and repair what dead sessions have left; return how many runs held
    permits that had ended.
    """
    # by itself: it locks gates in an order of its own
    await rows_of(connection, "expire", {"namespace": namespace, "ids": None, "now": now})
    [row] = await rows_of(connection, "repair", {"namespace": namespace, "now": now})
    return int(row.repaired)


async def release_claim(
    connection: AsyncConnection,
    namespace: str,
    token: str,
    now: datetime | None = None,
) -> int:
    """Release, at no cost, what a claim took whose answer never arrived; return how many runs that
    were.

    The claim may have happened, but none of its runs was started.
    """
    cursor = await execute(connection, "runs.running_under", namespace=namespace, token=token)
    unknown = ClaimedRun(0, "", None, None, 0, 1, "{}", False, 0.0, token)
    runs = [unknown._replace(**row._asdict()) for row in await cursor.fetchall()]
    return len(await finish(connection, namespace, [(run, released(run)) for run in runs], now))


def scope(
    connection: Connection,
    namespace: str,
    names: Iterable[str],
    revision: str | None = None,
    has_end: bool = False,
) -> ClaimScope:
    """Return what a worker whose file has the jobs ``names`` may claim; ``has_end``: with the
    timeouts of the definitions.
    """
    row = execute(
        connection, "runs.scope", namespace=namespace, names=list(names), has_end=has_end
    ).fetchone()
    assert row is not None
    timeouts = zip(row.ids, row.timeouts, strict=True)
    return ClaimScope(row.newest, tuple(sorted(row.others)), revision, tuple(timeouts))
