"""Claims as a worker makes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg

from yamlsched.runs.lifecycle import ClaimedRun
from yamlsched.schedule.job import Limit
from yamlsched.sync import converge, definitions, slot_rows
from yamlsched.worker import claiming
from yamlsched.worker.claiming import ClaimScope

EVERYTHING = ClaimScope()
WRONGLY_BLOCKED = """
select r.id, r.job_type, r.status, r.blocked_on
from yamlsched.job_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
where r.blocked_on is not null
  and (r.status not in ('queued', 'failed')
       or r.blocked_on not like 'after/%%' and (
           select m.free from yamlsched.rooms(r.namespace, array[r.blocked_on], %(now)s) m) > (
           select count(*) from yamlsched.job_runs o join yamlsched.job_definitions j on j.id = o.definition_id
           cross join lateral yamlsched.gates_of(o, %(now)s) g
           where o.finished_at is null and o.locked_until is null and o.run_at <= %(now)s and r.blocked_on = any (g)
             and (o.blocked_on is null or array_position(g, o.blocked_on) > array_position(g, r.blocked_on))))
"""
"""The runs that wait for nothing. While nothing happens, there are none, also without a sweep: a run waits at a gate
while as many runs as find room there have it, or have been offered it. Of these, one may wait at its next gate: the
turn of a job is that of the run in front, which waits for its limit."""


def set_limit(
    db: psycopg.Connection[Any], name: str, number: int, now: datetime | None = None
) -> None:
    """Write a limit as a sync does."""
    with db.transaction():
        numbers = definitions.limits(db, "default") | {name: number}
        limits = {name: Limit(number) for name, number in numbers.items()}
        instant = slot_rows.start_batch(db, now)
        converge.move_runs(db, "default", (), {}, limits, instant)


async def claim_due(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    token: str,
    limit: int,
    scope: ClaimScope = EVERYTHING,
    now: datetime | None = None,
    queue: str = "default",
) -> list[ClaimedRun]:
    """Reclaim and sweep as a worker does each second, then claim due runs, those at gates included, under ``token``."""
    await claiming.reclaim(connection, namespace, now=now)
    await connection.execute(
        "insert into yamlsched.namespaces values (%s) on conflict do nothing", [namespace]
    )
    await connection.execute(
        "update yamlsched.namespaces set swept_at = '-infinity' where namespace = %s", [namespace]
    )
    await claiming.sweep(connection, namespace, now)
    claimed, gated = await claiming.claim(
        connection, namespace, token, limit, scope, now=now, queue=queue
    )
    await claiming.claim_gated(connection, namespace, claimed, token, gated, now=now)
    return sorted(claimed.runs)
