"""Running runs: claim, heartbeat, outcomes. Every write names the claim that it expects and returns what it changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from yamlsched.db.query import load
from yamlsched.runs.lifecycle import LOCAL, LOST_WORKER, ClaimedRun, EnqueueBatch, Outcome, Priority, Status, released

MAX_FAN_OUT_RUNS, MAX_FAN_OUT_CHARS = 1_000, 1 << 20
"""Runs, and characters of their payloads, in one statement of a fan-out: so that each statement is short."""
BEFORE_ALL = ("-infinity", 0)
"""The position before every run; see ``ClaimResult.past``."""
FIELD_COUNT = len(ClaimedRun._fields)
FIELDS = itemgetter(slice(FIELD_COUNT))
"""Takes the fields of a ``ClaimedRun`` from a row of a claim."""
OURS, LOST = "ours", "lost"
"""Whose a run is, beside the states that are final or waiting; see ``ownership``."""


@dataclass(frozen=True)
class Scope:
    """The definitions whose runs a worker may claim: those with ids up to ``newest``, without the ``others``.

    ``remote`` has those of other executors than "local", by executor. ``others`` are sorted. They may be many, but are
    mostly in a row: they were added by one file.
    """

    newest: int = 2**63 - 1
    others: tuple[int, ...] = ()
    remote: Mapping[str, Scope] = field(default_factory=dict)

    def of(self, executor: str) -> Scope:
        """Return what may be claimed for an executor; nothing if no job uses it."""
        return self if executor == LOCAL else self.remote.get(executor, NOTHING)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Those of a claim: the ids as ranges, from ``firsts`` to ``lasts``."""
        ends = [0, *(other for other in self.others if other <= self.newest), self.newest + 1]
        ranges = [(end + 1, following - 1) for end, following in pairwise(ends) if end + 1 < following]
        firsts, lasts = _array(first for first, _ in ranges), _array(last for _, last in ranges)
        return {"newest": self.newest, "firsts": firsts, "lasts": lasts}


NOTHING = Scope(newest=0)


@dataclass
class ClaimResult:
    """What a claim took. ``lost``: runs whose worker has died; ``dead``: runs that had no attempts left.

    ``after`` is where the next walk over jobs with exclusive runs starts; 0 means that this one reached the end.
    ``is_contended``: other workers were claiming the same slot runs. ``is_locked``: others had locked as many runs as
    it was to take. ``is_truncated``: many due runs that may not be claimed come before those that may, and
    ``claim_waiting`` would read them all. ``past`` is where ``claim_waiting`` stopped: the ``run_at`` of the last run,
    as PostgreSQL writes it, and its id; of a truncated claim its instant. ``priority`` is that of its runs.
    """

    runs: list[ClaimedRun] = field(default_factory=list)
    dead: list[ClaimedRun] = field(default_factory=list)
    lost: list[ClaimedRun] = field(default_factory=list)
    after: int = 0
    is_contended: bool = False
    is_locked: bool = False
    is_truncated: bool = False
    past: tuple[str, int] = BEFORE_ALL
    priority: Priority | None = None

    def add(self, other: ClaimResult) -> None:
        """Add the runs of another claim."""
        self.runs += other.runs
        self.dead += other.dead
        self.lost += other.lost


async def due_levels(
    connection: psycopg.AsyncConnection[Any], namespace: str, since: str = BEFORE_ALL[0]
) -> tuple[set[Priority], str]:
    """Return the priorities of the due runs, which includes those that are being executed, and an instant.

    With ``since``, the instant of an earlier answer, only runs count that have become due since and have no worker.
    """
    cursor = await connection.execute(load("runs")["due_levels"], {"namespace": namespace, "since": since})
    [row] = await cursor.fetchall()
    return set(map(Priority, row.priorities)), row.since


@cache
def _positions(columns: tuple[str, ...]) -> dict[str, int]:
    """Return where a claim's columns are that follow the fields of ``ClaimedRun``, which come first."""
    if columns[:FIELD_COUNT] != ClaimedRun._fields:
        raise TypeError(f"a claim returns the columns {columns}, which do not start with the fields of ClaimedRun")
    return {name: place for place, name in enumerate(columns) if place >= FIELD_COUNT}


def claim_columns(cursor: psycopg.AsyncCursor[Any]) -> dict[str, int]:
    """Return the positions of the other columns of a claim by name. Its rows stay tuples, because there are many."""
    return _positions(tuple(column.name for column in cursor.description or ()))


async def claim(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    token: str,
    limit: int,
    scope: Scope = Scope(),
    after: int = 0,
    now: datetime | None = None,
    priority: Priority = Priority.NORMAL,
    was_truncated: bool = False,
) -> ClaimResult:
    """Claim up to ``limit`` due runs of ``priority`` under ``token``, which must be new.

    Runs that are marked dead count among them. ``was_truncated`` is that of the worker's claim before.
    """
    given = {"namespace": namespace, "priority": int(priority), "token": token, "limit": limit, "now": now}
    claimed = ClaimResult()
    exclusive, heads = 0, 0
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(
            load("runs")["claim"],
            {**given, "after": after, "was_truncated": was_truncated, **scope.parameters, **LOST_WORKER},
        )
        at = claim_columns(cursor)
        kind_at, heads_at, exclusive_at, definition_at = at["kind"], at["heads"], at["exclusive"], at["definition_id"]
        for row in await cursor.fetchall():
            kind, run = row[kind_at], ClaimedRun._make(FIELDS(row))
            if kind == "cut":
                claimed.is_truncated, claimed.past = True, (row[at["read_until"]], 0)
                continue
            if kind == "locked":
                claimed.is_locked = True
                continue
            if kind == "lost":
                claimed.lost.append(run)
                continue
            heads = row[heads_at]
            if row[exclusive_at]:
                exclusive += 1
                claimed.after = max(claimed.after, row[definition_at])
            (claimed.runs if kind == "claimed" else claimed.dead).append(run)
    claimed.is_contended = exclusive < heads and len(claimed.runs) < limit
    if exclusive == heads < limit:
        claimed.after = 0  # the walk reached the end: the next one starts again
    claimed.runs.sort()
    return claimed


async def claim_waiting(
    connection: psycopg.AsyncConnection[Any],
    namespace: str,
    token: str,
    limit: int,
    scope: Scope = Scope(),
    past: tuple[str, int] = BEFORE_ALL,
    now: datetime | None = None,
    priority: Priority | None = Priority.NORMAL,
) -> ClaimResult:
    """Claim up to ``limit`` due runs after ``past`` that wait and may execute beside others, as most runs do.

    Without a ``priority`` they are of the highest one at which runs are due. Each parameter has one type, whatever its
    value, so that a session plans the statement once: numbers of other sizes and null have types of their own.
    """
    level = 0 if priority is None else int(priority)
    given = {"namespace": namespace, "priority": level, "token": token, "limit": limit, "now": now}
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(
            load("runs")["claim_waiting"],
            {**given, **scope.parameters, "past_run_at": past[0], "past_id": str(past[1])},
        )
        at = claim_columns(cursor)
        rows = await cursor.fetchall()
    for row in rows[:1]:
        past, priority = (row[at["past_run_at"]], row[at["past_id"]]), Priority(row[at["priority"]])
    return ClaimResult(sorted(map(ClaimedRun._make, map(FIELDS, rows))), past=past, priority=priority)


def _fence(runs: Iterable[ClaimedRun]) -> dict[str, Any]:
    held = list(runs)
    return {
        "ids": _array(run.id for run in held),
        "attempts": _array(run.attempt for run in held),
        "tokens": [run.locked_by for run in held],
    }


def _array(values: Iterable[object]) -> str:
    """Return the literal of an array of numbers or booleans: psycopg takes ten times as long for a list."""
    return f"{{{','.join(map(str, values))}}}"


async def succeed(
    connection: psycopg.AsyncConnection[Any], runs: Sequence[ClaimedRun], now: datetime | None = None
) -> bool:
    """Write that ``runs`` have succeeded, without a result; False unless that was written for all of them."""
    token, attempt = runs[0].locked_by, runs[0].attempt
    if not [run for run in runs if run.locked_by != token or run.attempt != attempt]:
        parameters = {"ids": _array([run.id for run in runs]), "attempt": attempt, "token": token, "now": now}
        cursor = await connection.execute(load("runs")["succeed_claim"], parameters)
    else:
        cursor = await connection.execute(load("runs")["succeed"], {**_fence(runs), "now": now})
    return cursor.rowcount == len(runs)


async def heartbeat(
    connection: psycopg.AsyncConnection[Any], runs: Sequence[ClaimedRun], now: datetime | None = None
) -> set[int]:
    """Renew the leases of ``runs``, each for its own duration; return the ids of those that are still ours."""
    renewed: set[int] = set()
    for lease in {run.lease for run in runs}:
        fence = _fence(run for run in runs if run.lease == lease)
        cursor = await connection.execute(load("runs")["heartbeat"], {**fence, "lease": lease, "now": now})
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
    outcomes: Sequence[tuple[ClaimedRun, Outcome]],
    now: datetime | None = None,
) -> dict[int, datetime | None]:
    """Write ``outcomes``; return the ids of the runs that were still ours, with the ``run_at`` of those not final."""
    plain = [run for run, o in outcomes if o.is_plain_success]
    others = [(run, o) for run, o in outcomes if not o.is_plain_success]
    written: dict[int, datetime | None] = {}
    if plain:
        cursor = await connection.execute(load("runs")["succeed"], {**_fence(plain), "now": now})
        written.update((row.id, None) for row in await cursor.fetchall())
    if others:
        cursor = await connection.execute(load("runs")["finish"], {**outcome_parameters(others), "now": now})
        written.update((row.id, row.run_at) for row in await cursor.fetchall())
    return written


def outcome_parameters(outcomes: Sequence[tuple[ClaimedRun, Outcome]]) -> dict[str, Any]:
    """Return the parameters of the statement ``finish``."""
    values = [o for _, o in outcomes]
    return {
        **_fence(run for run, _ in outcomes),
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
    }


async def keep_outputs(
    connection: psycopg.AsyncConnection[Any],
    outcomes: Sequence[tuple[ClaimedRun, Outcome]],
    now: datetime | None = None,
) -> None:
    """Write only what the attempts of ``outcomes`` printed, if that is kept and their runs exist."""
    parameters = {
        **_fence(run for run, _ in outcomes),
        "outputs": [o.output for _, o in outcomes],
        "omitted": _array(o.omitted_bytes for _, o in outcomes),
    }
    await connection.execute(load("runs")["keep_outputs"], {**parameters, "now": now})


async def release_claim(
    connection: psycopg.AsyncConnection[Any], namespace: str, token: str, now: datetime | None = None
) -> int:
    """Release, at no cost, what a claim took whose answer never arrived; return how many runs that were.

    The claim may have happened, but none of its runs was started.
    """
    cursor = await connection.execute(load("runs")["running_under"], {"namespace": namespace, "token": token})
    unknown = ClaimedRun(0, "", None, None, 0, 1, "{}", False, 0.0, token)
    runs = [unknown._replace(**row._asdict()) for row in await cursor.fetchall()]
    return len(await finish(connection, [(run, released(run)) for run in runs], now))


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


def scope(connection: psycopg.Connection[Any], namespace: str, jobs: Mapping[str, str]) -> Scope:
    """Return what a worker whose file has these ``jobs`` may claim: their names, and on which executor each runs."""
    by_executor: dict[str, list[str]] = {LOCAL: []}
    for name, executor in jobs.items():
        by_executor.setdefault(executor, []).append(name)
    scopes = {executor: _scope(connection, namespace, names) for executor, names in by_executor.items()}
    return replace(scopes.pop(LOCAL), remote=scopes)


def _scope(connection: psycopg.Connection[Any], namespace: str, names: list[str]) -> Scope:
    row = connection.execute(load("runs")["scope"], {"namespace": namespace, "names": names}).fetchone()
    assert row is not None
    return Scope(row.newest, tuple(sorted(row.others)))


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
        written = await finish(connection, [(run, outcome)])
        if not written:
            raise psycopg.Rollback
    return written
