"""Claims as a worker makes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg

from yamlsched.runs import claiming
from yamlsched.runs.claiming import ClaimScope
from yamlsched.runs.lifecycle import ClaimedRun

EVERYTHING = ClaimScope()
WRONGLY_WITHHELD = """
select r.id, r.job_type, r.status, r.withheld
from yamlsched.job_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
where r.withheld <> 0
  and (r.status not in ('queued', 'failed')
       or case r.withheld when 1 then not yamlsched.is_withheld(d, %(now)s)
                          when 2 then not yamlsched.is_withheld(d, %(now)s) and not yamlsched.is_taken(d.id, %(now)s)
                                      and not exists (select from yamlsched.job_runs o
                                                      where o.definition_id = d.id and o.exclusive
                                                        and o.withheld in (0, 3) and o.finished_at is null
                                                        and o.run_at <= %(now)s)
                          when 3 then yamlsched.free_numbers(r.namespace, r.limit_name) > (
                              select count(*) from yamlsched.job_runs o
                              where o.namespace = r.namespace and o.limit_name = r.limit_name and o.lane = r.lane
                                and o.withheld = 0 and o.finished_at is null and o.status <> 'running'
                                and o.run_at <= %(now)s)
                          else true end)
"""
"""The runs that wait for nothing. While nothing happens, there are none, also without a sweep: a run waits for its job
while that is closed, for its turn while another run of its job has it or is the next to get it, and for its limit while
as many as are free of it are the next in its lane."""


async def claim_due(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    token: str,
    limit: int,
    scope: ClaimScope = EVERYTHING,
    now: datetime | None = None,
    lane: str = "local",
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
        connection, namespace, token, limit, scope, now=now, lane=lane
    )
    await claiming.claim_gated(connection, namespace, claimed, token, gated, now=now)
    return sorted(claimed.runs)
