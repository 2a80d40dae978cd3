"""The slots of a past range, each under its own key, so that none can run twice. The cursor stays where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from yamlsched import times
from yamlsched.cron.expression import parse_cron
from yamlsched.errors import Refused
from yamlsched.keys import slot_key
from yamlsched.slots import slots
from yamlsched.store import actions, definitions
from yamlsched.store import slots as store
from yamlsched.store.actions import ActionRecord
from yamlsched.store.definitions import Definition
from yamlsched.store.slots import KeyHolder, NewRun
from yamlsched.times import short_utc
from yamlsched.zones import zone

if TYPE_CHECKING:
    from psycopg import Connection

CHUNK = 1000
"""Slots of one transaction: a sync waits no longer than for these."""


@dataclass
class BackfillResult:
    """Keys and slots: those that got a run, those that have one, those whose run was pruned or is another slot's."""

    made: list[tuple[str, datetime]] = field(default_factory=list)
    existing: list[tuple[str, datetime, KeyHolder]] = field(default_factory=list)
    used: list[tuple[str, datetime, KeyHolder]] = field(default_factory=list)
    future: bool = False
    writing: list[tuple[str, datetime]] = field(default_factory=list)  # of the transaction that has not ended

    @property
    def done(self) -> int:
        return len(self.made) + len(self.existing) + len(self.used)


def definition_for(connection: Connection[Any], namespace: str, job_type: str) -> Definition:
    """Return the definition of a job whose slots are asked for. Raises Refused where it has none."""
    found = definitions.find(connection, namespace, job_type)
    if found is None:
        from difflib import get_close_matches

        near = get_close_matches(job_type, definitions.names(connection, namespace), n=1)
        hint = f' Did you mean "{near[0]}"?' if near else " A job is known after its first sync."
        raise Refused(f'no job "{job_type}" in namespace "{namespace}".{hint}')
    if found.schedule is None:
        raise Refused(f'job "{job_type}" has no cron, so it has no slots: it runs when it is enqueued')
    return found


def first_day(connection: Connection[Any], job: Definition) -> datetime:
    """Return the start of the local day on which the job was first applied."""
    where = zone(job.timezone)
    day = definitions.created_at(connection, job.id).astimezone(where).date()
    return times.bounds(day, where)[0]


def count(connection: Connection[Any], job: Definition, first: datetime, last: datetime) -> int:
    """Return how many slots that have come lie in [first, last]."""
    return sum(len(chunk) for chunk in _chunks(job, first, min(last, store.start_batch(connection, None))))


def interrupted(connection: Connection[Any], namespace: str, job: Definition, result: BackfillResult) -> int:
    """Return how many runs were made until the backfill of ``result`` was interrupted, on another session.

    The transaction that was interrupted may have been committed, which only the database knows.
    """
    holders = store.key_holders(connection, namespace, [key for key, _ in result.writing])
    written = [key for key, slot in result.writing if key in holders and holders[key].is_of(job.job_type, slot)]
    return len(result.made) + len(written)


def backfill(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    first: datetime,
    last: datetime,
    who: str,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    now: datetime | None = None,
    result: BackfillResult | None = None,
) -> BackfillResult:
    """Make the missing runs of the slots in [first, last], oldest first, due at once, and note them in ``result``.

    Each chunk of slots is one transaction: an interruption leaves those before, and the same call goes on. Slots that
    have not come yet are left to sync. Raises Refused for a job that makes no runs.
    """
    if job.retired_at is not None:
        raise Refused(
            f'job "{job.job_type}" is retired: it was removed from schedules.yaml, and no worker would run its slots'
        )
    if not job.enabled:
        raise Refused(f'job "{job.job_type}" is disabled in schedules.yaml: enable it to run its slots')
    instant = store.start_batch(connection, now)
    result = BackfillResult() if result is None else result
    result.future = last > instant
    chunks = _chunks(job, first, min(last, instant))
    for chunk in chunks:
        with connection.transaction():
            store.start_batch(connection, now)
            # a sync that is making these very runs is waited for
            definitions.lock(connection, [job.id])
            missing = _sort(connection, namespace, job, chunk, result)
            if not dry_run:
                result.writing = missing
                runs = [NewRun(job.id, key, slot, instant) for key, slot in missing]
                if sum(cursor.rowcount for cursor in store.create_runs(connection, runs, namespace, instant)) != len(
                    runs
                ):
                    raise Refused(
                        f'keys of job "{job.job_type}" were used by other sessions in the meantime: run backfill again'
                    )
                if runs:
                    store.notify_workers(connection, namespace)
                    detail = {"first": short_utc(runs[0].slot), "last": short_utc(runs[-1].slot), "runs": len(runs)}
                    trail = ActionRecord(namespace, f"job:{job.job_type}", detail)
                    actions.record(connection, who, "backfill", [trail], instant)
        result.made += missing
        result.writing = []
        progress(result.done)
    return result


def _chunks(job: Definition, first: datetime, last: datetime) -> Iterator[list[tuple[str, datetime]]]:
    assert job.schedule is not None
    cron = parse_cron(job.schedule)
    found = slots(cron, zone(job.timezone), first - timedelta(microseconds=1), last)
    while chunk := [(slot_key(job.job_type, cron, slot), slot.at) for slot in islice(found, CHUNK)]:
        yield chunk


def _sort(
    connection: Connection[Any],
    namespace: str,
    job: Definition,
    chunk: list[tuple[str, datetime]],
    result: BackfillResult,
) -> list[tuple[str, datetime]]:
    """Return what of a chunk is missing; note the rest in ``result``."""
    holders = store.key_holders(connection, namespace, [key for key, _ in chunk])
    missing = []
    for key, slot in chunk:
        holder = holders.get(key)
        if holder is None:
            missing.append((key, slot))
        elif holder.status is not None and holder.is_of(job.job_type, slot):
            result.existing.append((key, slot, holder))
        else:
            result.used.append((key, slot, holder))
    return missing
