"""Running runs: heartbeats and outcomes. Every write names the claim that it expects and returns
what it changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

import psycopg

from yamlsched import log
from yamlsched.db.query import AsyncConnection, execute
from yamlsched.runs.lifecycle import (
    ClaimedRun,
    EnqueueBatch,
    Outcome,
    Usage,
)
from yamlsched.runs.own_transaction import fan_out
from yamlsched.runs.progress import Progress

MAX_BLOCKED_PER_STATEMENT = 5_000
OURS, LOST = "ours", "lost"
"""Whose a run is, beside the states that are final or waiting; see ``ownership``."""


async def rows_of(connection: AsyncConnection, name: str, parameters: dict[str, Any]) -> list[Any]:
    cursor = await execute(connection, f"runs.{name}", **parameters)
    return await cursor.fetchall()


async def release(
    connection: AsyncConnection,
    namespace: str,
    ids: Sequence[int],
    now: datetime | None = None,
    reported: Iterable[int] = (),
) -> None:
    """Return the permits of the runs ``ids``, at the end of the transaction that has ended them,
    and offer their room. Those that are ``reported`` get the runs of their hooks, and targets of
    notifications are told which are dead or failing.
    """
    if ids:
        await execute(
            connection,
            "runs.release",
            namespace=namespace,
            ids=array(ids),
            now=now,
            reported=array(reported),
        )


async def pause_dying(
    connection: AsyncConnection,
    namespace: str,
    ids: Sequence[int] | None,
    now: datetime | None = None,
) -> None:
    """Pause those jobs of the runs ``ids``, which are dead, None: of all runs, of which as many in
    a row have died as ``pause_after`` says; and have claims step over what they left.
    """
    parameters = {"namespace": namespace, "ids": ids and array(ids), "now": now}
    for job in await rows_of(connection, "pause_dying", parameters):
        log.error("job.paused", job=job.job_type, reason=job.reason)
        last = 0
        while last is not None:
            cursor = await execute(
                connection,
                "actions.block_closed",
                namespace=namespace,
                job=job.id,
                past=last,
                most=MAX_BLOCKED_PER_STATEMENT,
                now=now,
            )
            [last] = [row.last async for row in cursor]


async def unlock(
    connection: AsyncConnection,
    namespace: str,
    runs: Sequence[ClaimedRun],
    now: datetime | None = None,
) -> None:
    """Note that the handlers of ``runs`` have ended, which were cancelled or have succeeded before,
    and return their permits.
    """
    parameters = {"ids": [run.id for run in runs], "tokens": [run.locked_by for run in runs]}
    async with connection.transaction():
        rows = await rows_of(connection, "unlock", parameters)
        await release(connection, namespace, [row.id for row in rows], now)


def fence(runs: Iterable[ClaimedRun]) -> dict[str, Any]:
    """Return ``runs`` as the parameters by which statements know their claims."""
    held = list(runs)
    return {
        "ids": array(run.id for run in held),
        "attempts": array(run.attempt for run in held),
        "tokens": array(_quoted(run.locked_by) for run in held),
    }


def array(values: Iterable[object]) -> str:
    """Return the literal of an array of numbers, booleans or names: psycopg takes ten times as long
    for a list.
    """
    return f"{{{','.join(map(str, values))}}}"


@lru_cache(maxsize=1_000)
def _quoted(token: str) -> str:
    """Return the token of a claim as an element of an array: it has the host's name, which may be
    any string.
    """
    escaped = token.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


async def succeed(
    connection: AsyncConnection,
    runs: Sequence[tuple[ClaimedRun, Usage | None]],
    now: datetime | None = None,
) -> bool:
    """Write that ``runs`` have succeeded, without a result; False unless that was written for all
    of them.
    """
    used = sorted(runs, key=itemgetter(0))  # the order in which all statements lock them
    parameters = {**fence(run for run, _ in used), **_usages(usage for _, usage in used)}
    [row] = await rows_of(connection, "succeed", {**parameters, "now": now})
    return len(row.ids) == len(runs)


def _usages(usages: Iterable[Usage | None]) -> dict[str, Any]:
    pairs: list[Any] = [usage or ("null", None) for usage in usages]
    return {
        "cpu_seconds": array(cpu for cpu, _ in pairs),
        "peaks": array(peak or "null" for _, peak in pairs),
    }


async def heartbeat(
    connection: AsyncConnection,
    runs: Sequence[ClaimedRun],
    now: datetime | None = None,
) -> set[int]:
    """Renew the leases of ``runs``, each for its own duration; return the ids of those that are
    still ours.
    """
    renewed: set[int] = set()
    for lease in {run.lease for run in runs}:
        held = fence(run for run in runs if run.lease == lease)
        cursor = await execute(connection, "runs.heartbeat", **held, lease=lease, now=now)
        renewed.update(row.id for row in await cursor.fetchall())
    return renewed


async def ownership(connection: AsyncConnection, runs: Sequence[ClaimedRun]) -> dict[int, str]:
    """Return, by id, whose ``runs`` are: ``OURS``, ``LOST``, or the status in which our claim has
    left a run.
    """
    return {row.id: row.owner for row in await rows_of(connection, "ownership", fence(runs))}


async def finish(
    connection: AsyncConnection,
    namespace: str,
    outcomes: Sequence[tuple[ClaimedRun, Outcome]],
    now: datetime | None = None,
    enqueued: Sequence[EnqueueBatch] = (),
) -> dict[int, datetime | None]:
    """Write ``outcomes``; return the ids of the runs that were still ours, with the ``run_at`` of
    those not final.

    Their permits are returned in the same transaction. What the handler of the only run has
    ``enqueued`` is written with its outcome, or neither is if the run is not ours. It comes first:
    until the outcome the row is not locked, and its lease is renewed however long that takes.
    """
    if not outcomes:
        return {}
    parameters = {**outcome_parameters(outcomes), "now": now}
    async with connection.transaction():
        for part in fan_out(namespace, outcomes[0][0].id, enqueued):
            await execute(connection, "enqueue.enqueue_many", **part)
        rows = await rows_of(connection, "finish", parameters)
        if enqueued and not rows:
            raise psycopg.Rollback
        reported = [row.id for row in rows if row.is_reported]
        await release(connection, namespace, [row.id for row in rows], now, reported)
    return {row.id: row.run_at for row in rows}


def outcome_parameters(outcomes: Sequence[tuple[ClaimedRun, Outcome]]) -> dict[str, Any]:
    """Return the parameters of the statement ``finish``."""
    values = [o for _, o in outcomes]
    return {
        **fence(run for run, _ in outcomes),
        "statuses": [str(o.status) for o in values],
        "delays": array("null" if o.delay is None else o.delay.total_seconds() for o in values),
        "refunds": array(o.refund for o in values),
        "begun": array(o.has_begun for o in values),
        "errors": [o.error for o in values],
        "error_types": [o.error_type for o in values],
        "stacks": [o.stack for o in values],
        "results": [o.result for o in values],
        "outputs": [o.output for o in values],
        "omitted": array(o.omitted_bytes for o in values),
        "releases": array(o.releases for o in values),
        **_usages(o.usage for o in values),
    }


async def keep_outputs(
    connection: AsyncConnection,
    outcomes: Sequence[tuple[ClaimedRun, Outcome]],
    now: datetime | None = None,
) -> None:
    """Write only what the attempts of ``outcomes`` printed, if that is kept and their runs exist,
    and used.
    """
    parameters = {
        **fence(run for run, _ in outcomes),
        "outputs": [o.output for _, o in outcomes],
        "omitted": array(o.omitted_bytes for _, o in outcomes),
    }
    await execute(connection, "runs.keep_outputs", **parameters, now=now)
    await execute(
        connection, "runs.note_usage", **parameters, **_usages(o.usage for _, o in outcomes)
    )


async def report_progress(
    connection: AsyncConnection,
    reports: Sequence[tuple[ClaimedRun, Progress]],
    now: datetime | None = None,
) -> set[int]:
    """Write the progress of attempts; return the ids of the runs that were still ours, and not
    locked.
    """
    values = {
        **fence(run for run, _ in reports),
        "dones": [progress.done for _, progress in reports],
        "totals": [progress.total for _, progress in reports],
        "notes": [progress.note for _, progress in reports],
        "now": now,
    }
    cursor = await execute(connection, "progress.report", **values)
    return {row.run_id for row in await cursor.fetchall()}
