"""Running runs: claim, heartbeat, outcomes. Every write names the claim that it expects and returns what it changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any

import psycopg

from yamlsched.db.query import load
from yamlsched.runs.lifecycle import (
    LOCAL,
    LOST_WORKER,
    PROCESS_ENDED,
    ClaimedRun,
    EnqueueBatch,
    Outcome,
    Priority,
    Status,
    Usage,
    released,
)

MAX_FAN_OUT_RUNS, MAX_FAN_OUT_CHARS = 1_000, 1 << 20
"""Runs, and characters of their payloads, in one statement of a fan-out: so that each statement is short."""
MAX_RECLAIMED_ENTRIES = 1_000
"""Unfinished runs of each lane and level that are looked at each second for leases that are over."""
FIELD_COUNT = len(ClaimedRun._fields)
FIELDS = itemgetter(slice(FIELD_COUNT))
"""Takes the fields of a ``ClaimedRun`` from a row of a claim."""
OURS, LOST = "ours", "lost"
"""Whose a run is, beside the states that are final or waiting; see ``ownership``."""


@dataclass(frozen=True)
class ClaimScope:
    """The definitions whose runs a worker may claim: those with ids up to ``newest``, without the ``others``.

    ``revision`` is that of the code which it executes.
    """

    newest: int = 2**63 - 1
    others: tuple[int, ...] = ()
    revision: str | None = None


@dataclass
class ClaimResult:
    """What a claim took, the highest level first. ``busy``: jobs whose gate another session has.

    ``unreleased``: jobs of runs that are not released, for ``follow.settle``. ``is_complete``: fewer runs were due
    than it asked for.
    """

    runs: list[ClaimedRun] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    unreleased: set[int] = field(default_factory=set)
    is_complete: bool = True


@dataclass
class ReclaimResult:
    """What a reclaim ended: attempts that ``lost`` their worker, and runs that are ``dead``, which may be the same."""

    lost: list[ClaimedRun] = field(default_factory=list)
    dead: list[ClaimedRun] = field(default_factory=list)


def passes(limit: int, chance: float) -> dict[str, str]:
    """Return the passes of a claim as its parameters: first the shares of the lower levels, then all levels in order.

    Each lower level gets one run in eight, and of smaller claims one by ``chance``, which is in [0, 1).

    >>> passes(8, 0.5)
    {'priorities': '{3,2,1,2,3}', 'offsets': '{0,0,0,1,1}', 'limits': '{1,1,8,8,8}'}
    >>> passes(1, 0.95)
    {'priorities': '{3,1,2,3}', 'offsets': '{0,0,0,1}', 'limits': '{1,1,1,1}'}
    """
    shares = {Priority.LOW: int(limit / 8 + chance), Priority.NORMAL: int(limit / 8 + (chance + 0.5) % 1)}
    rows = [(level, 0, share) for level, share in shares.items() if share]
    rows += [(level, shares.get(level, 0), limit) for level in Priority]
    columns = (_array(map(int, column)) for column in zip(*rows, strict=True))
    return dict(zip(("priorities", "offsets", "limits"), columns, strict=True))


async def claim(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    token: str,
    limit: int,
    scope: ClaimScope = ClaimScope(),
    now: datetime | None = None,
    lane: str = LOCAL,
    busy: Collection[int] = (),
    chance: float = 0.0,
) -> tuple[ClaimResult, list[int]]:
    """Claim up to ``limit`` due runs of ``lane`` under ``token``, which must be new.

    Returns also the ids of those that stand at a gate, for ``claim_gated``. ``busy`` are jobs to step over, whose gates
    the claim before did not get; ``chance`` is that of ``passes``. Each parameter has one type, whatever its value, so
    that a session plans the statement once: numbers of other sizes have types of their own.
    """
    given = {"namespace": namespace, "lane": lane, "token": token, "limit": limit, "now": now, **passes(limit, chance)}
    given |= {"newest": str(scope.newest), "skipped": _array((*scope.others, *busy)), "ended": _array(PROCESS_ENDED)}
    given["revision"] = scope.revision
    rows = await _rows(connection, "claim", given)
    unreleased = {row.definition_id for row in rows if row.state == "unreleased"}
    claimed = ClaimResult(_runs(rows), unreleased=unreleased, is_complete=len(rows) < limit)
    return claimed, [row.id for row in rows if row.state == "gated"]


async def claim_gated(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    claimed: ClaimResult,
    token: str,
    ids: Sequence[int],
    now: datetime | None = None,
    revision: str | None = None,
) -> None:
    """Claim those of ``ids`` that may execute, under ``token``, which must be new, and add them to ``claimed``."""
    given = {"namespace": namespace, "ids": _array(ids), "token": token, "now": now}
    rows = await _rows(connection, "claim_gated", given)
    runs = _runs(rows)
    if runs:
        await connection.execute(load("runs")["note_revision"], {**given, "revision": revision})
    claimed.runs += runs
    claimed.busy |= {row.definition_id for row in rows if row.state == "busy"}
    claimed.is_complete = claimed.is_complete and len(rows) == len(ids) and all(row.state == "claimed" for row in rows)


async def _rows(connection: psycopg.AsyncConnection[Any], name: str, given: dict[str, Any]) -> list[Any]:
    cursor = await connection.execute(load("runs")[name], given)
    return await cursor.fetchall()


def _runs(rows: Iterable[Any]) -> list[ClaimedRun]:
    """Return the runs among the rows of a claim, by level and age."""
    claimed = sorted((row.priority, row.id, row) for row in rows if row.state == "claimed")
    return [ClaimedRun._make(FIELDS(row)) for _, _, row in claimed]


async def reclaim(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    held: Collection[int] = (),
    is_complete: bool = True,
    now: datetime | None = None,
) -> ReclaimResult:
    """End the attempts whose leases are over, but not those of the runs ``held``, and let go what waited for them.

    Unless it ``is_complete``, it looks only at the first unfinished runs of each lane and level, where those are that
    are executed.
    """
    result = ReclaimResult()
    most = None if is_complete else MAX_RECLAIMED_ENTRIES
    async with connection.transaction():
        given = {"namespace": namespace, "most": most, "held": _array(held), "now": now, **LOST_WORKER}
        rows = await _rows(connection, "reclaim", given)
        await hand_on(connection, namespace, rows, now)
        await note_dead(connection, namespace, [row.id for row in rows if row.is_last], now)
    for row in rows:
        known = (row.id, row.job_type, row.key, row.scheduled_for, row.attempt, row.max_attempts)
        run = ClaimedRun(*known, "{}", False, 0.0, row.locked_by, row.prior_attempts)
        if row.is_lost:
            result.lost.append(run)
        if row.is_last:
            result.dead.append(run)
    return result


async def hand_on(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    ended: Iterable[Any],
    now: datetime | None = None,
) -> None:
    """Let go what waits for the turns and the numbers of ``ended``, in the transaction that has ended these runs."""
    jobs = sorted({row.turn_of for row in ended if row.turn_of is not None})
    limits = sorted({row.limit_name for row in ended if row.limit_name is not None})
    if jobs or limits:
        given = {"namespace": namespace, "jobs": jobs, "limits": limits, "now": now}
        await connection.execute(load("runs")["hand_on"], given)


async def note_dead(
    connection: psycopg.AsyncConnection[Any], namespace: str, ids: Sequence[int], now: datetime | None
) -> None:
    """Note for targets of notifications that these runs are dead, at the end of the transaction that ended them."""
    if ids:
        given = {"namespace": namespace, "ids": _array(ids), "now": now}
        await connection.execute(load("notify")["note_dead"], given)


async def let_go(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    runs: Sequence[ClaimedRun],
    now: datetime | None = None,
) -> None:
    """Hand on the turns and numbers of ``runs``, which were ended before their handlers, until now."""
    given = {"ids": [run.id for run in runs], "tokens": [run.locked_by for run in runs], "now": now}
    async with connection.transaction():
        await hand_on(connection, namespace, await _rows(connection, "let_go", given))


async def sweep(connection: psycopg.AsyncConnection[Any], namespace: str, now: datetime | None = None) -> int:
    """End pauses that are over, and repair what a session has left that died; return how many runs waited for it."""
    cursor = await connection.execute(load("runs")["sweep"], {"namespace": namespace, "now": now})
    [(freed,)] = await cursor.fetchall()
    return int(freed)


def fence(runs: Iterable[ClaimedRun]) -> dict[str, Any]:
    """Return ``runs`` as the parameters by which statements know their claims."""
    held = list(runs)
    return {
        "ids": _array(run.id for run in held),
        "attempts": _array(run.attempt for run in held),
        "tokens": [run.locked_by for run in held],
    }


def _array(values: Iterable[object]) -> str:
    """Return the literal of an array of numbers, booleans or names: psycopg takes ten times as long for a list."""
    return f"{{{','.join(map(str, values))}}}"


async def succeed(
    connection: psycopg.AsyncConnection[Any],
    runs: Sequence[tuple[ClaimedRun, Usage | None]],
    now: datetime | None = None,
) -> bool:
    """Write that ``runs`` have succeeded, without a result; False unless that was written for all of them."""
    cursor = await connection.execute(load("runs")["succeed"], {**_used(runs), "now": now})
    return cursor.rowcount == len(runs)


def _used(runs: Iterable[tuple[ClaimedRun, Usage | None]]) -> dict[str, Any]:
    used = sorted(runs, key=itemgetter(0))  # the order in which all statements lock them
    return {**fence(run for run, _ in used), **_usages(usage for _, usage in used)}


def _usages(usages: Iterable[Usage | None]) -> dict[str, Any]:
    given: list[Any] = [usage or ("null", None) for usage in usages]
    return {"cpu_seconds": _array(cpu for cpu, _ in given), "peaks": _array(peak or "null" for _, peak in given)}


async def heartbeat(
    connection: psycopg.AsyncConnection[Any], runs: Sequence[ClaimedRun], now: datetime | None = None
) -> set[int]:
    """Renew the leases of ``runs``, each for its own duration; return the ids of those that are still ours."""
    renewed: set[int] = set()
    for lease in {run.lease for run in runs}:
        held = fence(run for run in runs if run.lease == lease)
        cursor = await connection.execute(load("runs")["heartbeat"], {**held, "lease": lease, "now": now})
        renewed.update(row.id for row in await cursor.fetchall())
    return renewed


async def ownership(connection: psycopg.AsyncConnection[Any], runs: Sequence[ClaimedRun]) -> dict[int, str]:
    """Return, by id, whose ``runs`` are: ``OURS``, ``LOST``, or the status in which our claim has left a run.

    ``locked_by`` is new for each claim and is kept when the claim ends, so it shows which claim wrote the status.
    """
    cursor = await connection.execute(load("runs")["ownership"], {"ids": [run.id for run in runs]})
    rows = {row.id: row for row in await cursor.fetchall()}
    answer = {}
    for run in runs:
        row = rows.get(run.id)
        if row is None or row.locked_by != run.locked_by:
            answer[run.id] = LOST
        elif row.status == Status.RUNNING:
            answer[run.id] = OURS if row.attempts == run.attempt else LOST  # edited by hand: our fence will not match
        else:
            answer[run.id] = row.status
    return answer


async def finish(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    outcomes: Sequence[tuple[ClaimedRun, Outcome]],
    now: datetime | None = None,
) -> dict[int, datetime | None]:
    """Write ``outcomes``; return the ids of the runs that were still ours, with the ``run_at`` of those not final.

    What waited for their turn is let go in the same transaction.
    """
    written: dict[int, datetime | None] = {}
    if plain := [(run, o.usage) for run, o in outcomes if o.is_plain_success]:
        rows = await _rows(connection, "succeed", {**_used(plain), "now": now})
        written.update((row.id, None) for row in rows)
    if others := [(run, o) for run, o in outcomes if run.id not in written]:
        async with connection.transaction():
            rows = await _rows(connection, "finish", {**outcome_parameters(others), "now": now})
            await hand_on(connection, namespace, rows, now)
            dead = {run.id for run, o in others if o.status is Status.DEAD}
            await note_dead(connection, namespace, [row.id for row in rows if row.id in dead], now)
        written.update((row.id, row.run_at) for row in rows)
    return written


def outcome_parameters(outcomes: Sequence[tuple[ClaimedRun, Outcome]]) -> dict[str, Any]:
    """Return the parameters of the statement ``finish``."""
    values = [o for _, o in outcomes]
    return {
        **fence(run for run, _ in outcomes),
        "statuses": [str(o.status) for o in values],
        "delays": _array("null" if o.delay is None else o.delay.total_seconds() for o in values),
        "refunds": _array(o.refund for o in values),
        "errors": [o.error for o in values],
        "error_types": [o.error_type for o in values],
        "stacks": [o.stack for o in values],
        "results": [o.result for o in values],
        "outputs": [o.output for o in values],
        "omitted": _array(o.omitted_bytes for o in values),
        "sessions_lost": _array(o.sessions_lost for o in values),
        "lanes": [o.lane for o in values],
        **_usages(o.usage for o in values),
    }


async def keep_outputs(
    connection: psycopg.AsyncConnection[Any],
    outcomes: Sequence[tuple[ClaimedRun, Outcome]],
    now: datetime | None = None,
) -> None:
    """Write only what the attempts of ``outcomes`` printed, if that is kept and their runs exist, and used."""
    parameters = {
        **fence(run for run, _ in outcomes),
        "outputs": [o.output for _, o in outcomes],
        "omitted": _array(o.omitted_bytes for _, o in outcomes),
    }
    await connection.execute(load("runs")["keep_outputs"], {**parameters, "now": now})
    await connection.execute(load("runs")["note_usage"], {**parameters, **_usages(o.usage for _, o in outcomes)})


async def release_claim(
    connection: psycopg.AsyncConnection[Any], namespace: str, token: str, now: datetime | None = None
) -> int:
    """Release, at no cost, what a claim took whose answer never arrived; return how many runs that were.

    The claim may have happened, but none of its runs was started.
    """
    cursor = await connection.execute(load("runs")["running_under"], {"namespace": namespace, "token": token})
    unknown = ClaimedRun(0, "", None, None, 0, 1, "{}", False, 0.0, token)
    runs = [unknown._replace(**row._asdict()) for row in await cursor.fetchall()]
    return len(await finish(connection, namespace, [(run, released(run)) for run in runs], now))


def succeed_in(connection: psycopg.Connection[Any], fence: tuple[int, int, str], result: str | None) -> bool:
    """Write the success of a run inside its handler's own transaction; return False if the run was lost."""
    run_id, attempt, token = fence
    parameters = {"id": run_id, "attempt": attempt, "token": token, "result": result}
    return connection.execute(load("runs")["succeed_in"], parameters).rowcount == 1


def enqueue_from(
    connection: psycopg.Connection[Any], namespace: str, run_id: int, enqueued: Sequence[EnqueueBatch]
) -> None:
    """Write what a handler has enqueued, inside its own transaction."""
    for parameters in fan_out(namespace, run_id, enqueued):
        connection.execute(load("enqueue")["enqueue_many"], parameters)


async def succeed_in_async(
    connection: psycopg.AsyncConnection[Any], fence: tuple[int, int, str], result: str | None
) -> bool:
    """The same for an ``async def``."""
    run_id, attempt, token = fence
    parameters = {"id": run_id, "attempt": attempt, "token": token, "result": result}
    return (await connection.execute(load("runs")["succeed_in"], parameters)).rowcount == 1


async def enqueue_from_async(
    connection: psycopg.AsyncConnection[Any], namespace: str, run_id: int, enqueued: Sequence[EnqueueBatch]
) -> None:
    """The same for an ``async def``."""
    for parameters in fan_out(namespace, run_id, enqueued):
        await connection.execute(load("enqueue")["enqueue_many"], parameters)


def is_large(enqueued: Sequence[EnqueueBatch]) -> bool:
    """Return whether a fan-out takes more than one statement."""
    payloads = [payload for batch in enqueued for payload in batch.payloads]
    return len(payloads) > MAX_FAN_OUT_RUNS or sum(map(len, payloads)) > MAX_FAN_OUT_CHARS


def run_count(enqueued: Sequence[EnqueueBatch]) -> int:
    """Return how many runs a handler has enqueued."""
    return sum(len(batch.payloads) for batch in enqueued)


def fan_out(namespace: str, run_id: int, enqueued: Sequence[EnqueueBatch]) -> Iterator[dict[str, Any]]:
    """Yield what the handler of a run has enqueued as parameters of ``enqueue_many``: one statement for each part."""
    for batch in enqueued:
        start = size = 0
        for end, payload in enumerate(batch.payloads, 1):
            size += len(payload)
            if end == len(batch.payloads) or end - start == MAX_FAN_OUT_RUNS or size > MAX_FAN_OUT_CHARS:
                part = {
                    "payloads": batch.payloads[start:end],
                    "keys": batch.keys[start:end],
                    "trace_contexts": batch.trace_contexts and batch.trace_contexts[start:end],
                }
                yield {**batch._asdict(), **part, "namespace": namespace, "parent_id": run_id}
                start, size = end, 0


def dead_run(connection: psycopg.Connection[Any], run_id: int) -> Any:
    """Return the row of a dead run."""
    return connection.execute(load("runs")["dead_run"], {"id": run_id}).fetchone()


def scope(
    connection: psycopg.Connection[Any], namespace: str, names: Iterable[str], revision: str | None = None
) -> ClaimScope:
    """Return what a worker whose file has the jobs ``names`` may claim."""
    row = connection.execute(load("runs")["scope"], {"namespace": namespace, "names": list(names)}).fetchone()
    assert row is not None
    return ClaimScope(row.newest, tuple(sorted(row.others)), revision)


async def due(connection: psycopg.AsyncConnection[Any], namespace: str, most: int) -> int:
    """Return how many runs are due, at most ``most``."""
    cursor = await connection.execute(load("runs")["due"], {"namespace": namespace, "most": most})
    row: Any = await cursor.fetchone()
    return min(most, int(row.runs))


async def listen(connection: psycopg.AsyncConnection[Any]) -> None:
    """Subscribe the session to notifications about new runs."""
    await connection.execute(load("runs")["listen"])


async def finish_with(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    run: ClaimedRun,
    outcome: Outcome,
    enqueued: Sequence[EnqueueBatch],
    before: Callable[[], Awaitable[None]],
) -> dict[int, datetime | None]:
    """Write ``outcome`` together with the runs that the handler enqueued: both, or neither if the run is not ours.

    The outcome comes last, after ``before``: until then the row is not locked, and its lease is renewed however long
    the rest takes. Returns what ``finish`` does.
    """
    async with connection.transaction():
        for parameters in fan_out(namespace, run.id, enqueued):
            await connection.execute(load("enqueue")["enqueue_many"], parameters)
        await before()
        written = await finish(connection, namespace, [(run, outcome)])
        if not written:
            raise psycopg.Rollback
    return written
