"""Selecting runs by filters, page by page.

A statement reads a bounded number of runs: those that an index finds, if they are few, else those of a span of ids. The
next span is longer. So a filter that nothing matches never holds up the database with one long statement, and the web
page can stop after a number of runs and offer to continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg

from yamlsched.ask.history import definitions
from yamlsched.ask.runs import RunRow
from yamlsched.ask.runs import runs as read
from yamlsched.db.query import fetch_column, load
from yamlsched.runs.lifecycle import Status

PAGE_RUNS = 5_000
"""Runs that one statement selects for an action."""
FEW_RUNS = 30_000
"""So many that an index finds are read at once."""
MAX_SEARCHED_IDS = 150_000
"""So many ids the web page searches before it offers to continue."""
MAX_LISTED_IDS = 500_000
"""So many `yamlsched runs` searches."""
CREATION_SKEW = timedelta(hours=1)
"""By how much runs may be created in another order than that of their ids."""
MIN_SPAN, SPAN_GROWTH = 500, 8
"""Ids of the first span, and how much longer each further one is."""


@dataclass(frozen=True)
class Filter:
    """Which runs to select. An empty part does not filter."""

    jobs: Sequence[str] = ()
    tags: Sequence[str] = ()
    statuses: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None  # `*` matches any string
    worker: str | None = None  # likewise; without `*`, a host or host:pid
    error: str | None = None  # in the type or the message, whatever the case of its letters
    error_type: str | None = None  # the whole type; "": an error without a type
    on_dead: bool | None = None  # only calls of on_dead, or only other runs

    def parameters(self, definitions: Sequence[int] | None) -> dict[str, Any]:
        """Return those of statements; ``definitions`` are the ids of the jobs, or None for all.

        A run lies in [since, until) by when it ended, else by when it started, else by when it is due.
        """
        statuses, has_pattern, worker = set(self.statuses), "*" in (self.key or ""), self.worker
        is_one = definitions is not None and len(definitions) == 1
        return {
            "definition": definitions[0] if definitions and is_one else None,
            "definitions": list(definitions) if definitions is not None and not is_one else None,
            "statuses": list(self.statuses) or None,
            "only_dead": statuses == {"dead"},
            "only_open": bool(statuses) and statuses <= {"queued", "running", "failed"},
            "since": self.since,
            "until": self.until,
            "key": None if has_pattern else self.key or None,
            "key_like": _like(self.key) if self.key and has_pattern else None,
            "worker": _like(worker if "*" in worker else f"{worker}:*") if worker else None,
            "error_type": self.error_type,
            "error_like": f"%{_escaped(self.error)}%" if self.error else None,
            "on_dead": self.on_dead,
        }


@dataclass(frozen=True)
class RunPage:
    """Runs, newest first. ``older`` and ``newer`` are the ids that ``before`` and ``after`` continue with.

    ``searched_to`` is set if the search stopped at that id, although the page is not full.
    """

    runs: Sequence[RunRow]
    older: int | None
    newer: int | None
    searched_to: int | None = None


def runs(
    connection: psycopg.Connection[Any], namespace: str, filter: Filter, limit: int, before: int | None = None
) -> list[RunRow]:
    """Return up to ``limit`` runs that match ``filter``, newest first; ``before`` is the last id of the previous page.

    Raises Refused for a job or a tag that does not exist.
    """
    return list(page(connection, namespace, filter, limit, before=before).runs)


def page(
    connection: psycopg.Connection[Any],
    namespace: str,
    filter: Filter,
    limit: int,
    *,
    before: int | None = None,
    after: int | None = None,
    max_ids: int | None = None,
) -> RunPage:
    """Return the newest ``limit`` runs with an id below ``before``, or the oldest ones with an id above ``after``.

    Unless an index finds the runs, at most ``max_ids`` ids are searched; those of runs that were created after
    ``filter.until`` are left out first. Raises Refused as ``runs`` does.
    """
    jobs = definitions(connection, namespace, filter.jobs, filter.tags)
    conditions = {**filter.parameters(jobs), "namespace": namespace}
    [(oldest, newest)] = connection.execute(load("history")["id_range"]).fetchall()
    oldest_first = after is not None
    low = oldest if after is None else max(after + 1, oldest)
    high = newest + 1 if before is None else min(before, newest + 1)
    end = high
    if filter.until is not None and max_ids is not None:
        end = _first_created_at(connection, low, high, filter.until + CREATION_SKEW)
    # Runs that were created after `until` lie before it only if they were due before, and have not been started yet.
    may_be_queued = not filter.statuses or Status.QUEUED in filter.statuses
    queued = {**conditions, **replace(filter, statuses=[Status.QUEUED]).parameters(jobs)}
    late = queued if may_be_queued and end < high else None
    ids = None
    if _is_few(connection, conditions) or (ids := _few_ids(connection, jobs, conditions)) is not None:
        parts, is_whole = [(low, high, conditions)], True
    else:
        spans = list(_spans(low, end, oldest_first, max(MIN_SPAN, 2 * limit), max_ids))
        parts = [(*span, conditions) for span in spans]
        is_whole = not spans or (spans[-1][1] == end if oldest_first else spans[-1][0] == low)
        if late is not None and (is_whole or not oldest_first):
            parts.insert(len(parts) if oldest_first else 0, (end, high, late))
    found: list[RunRow] = []
    for start, stop, chosen in parts:
        wanted = limit + 1 - len(found)
        found += read(connection, chosen, low=start, high=stop, limit=wanted, oldest_first=oldest_first, ids=ids)
        if len(found) > limit:
            break
    stopped_at = None if is_whole or len(found) > limit else parts[-1][1] if oldest_first else parts[-1][0]
    has_more, rows = len(found) > limit, found[:limit]
    if oldest_first:
        rows.reverse()
        newer = rows[0].id if has_more else stopped_at - 1 if stopped_at is not None else None
        return RunPage(rows, low, newer, stopped_at)
    older = rows[-1].id if has_more else stopped_at
    return RunPage(rows, older, before - 1 if before is not None else None, stopped_at)


def matching_ids(connection: psycopg.Connection[Any], namespace: str, filter: Filter) -> list[int]:
    """Return the ids of all runs that match ``filter``, oldest first. Raises Refused as ``runs`` does."""
    ids: list[int] = []
    while rows := runs(connection, namespace, filter, PAGE_RUNS, before=ids[-1] if ids else None):
        ids += [row.id for row in rows]
        if len(rows) < PAGE_RUNS:
            break
    return ids[::-1]


def _is_few(connection: psycopg.Connection[Any], conditions: dict[str, Any]) -> bool:
    """Return whether an index finds the runs, and they are few."""
    if conditions["key"] is not None:
        return True
    indexed = ("definition", "definitions", "only_dead", "only_open")
    if all(conditions[name] in (None, False) for name in indexed):
        return False
    [number] = fetch_column(connection, load("history")["candidates"], {**conditions, "limit": FEW_RUNS + 1})
    return bool(number <= FEW_RUNS)


def _few_ids(
    connection: psycopg.Connection[Any], jobs: Sequence[int] | None, conditions: dict[str, Any]
) -> list[int] | None:
    """Return ids, among them those of all runs that match, if an index finds them and they are few.

    An index finds runs by the type of their error, and by the time since which they have ended.
    """
    if not conditions["error_type"] and conditions["since"] is None:
        return None
    given = {"definitions": jobs, "limit": FEW_RUNS + 1, "only_failed": bool(conditions["error_type"])}
    ids = fetch_column(connection, load("history")["indexed_ids"], {**conditions, **given})
    return ids if len(ids) <= FEW_RUNS else None


def _first_created_at(connection: psycopg.Connection[Any], low: int, high: int, at: datetime) -> int:
    """Return the id from which on all runs below ``high`` were created at or after ``at``: ids follow creation."""
    while low < high:
        middle = (low + high) // 2
        run = connection.execute(load("history")["first_run_from"], {"id": middle}).fetchone()
        if run is None or run.id >= high or run.created_at >= at:
            high = middle
        else:
            low = run.id + 1
    return high


def _spans(low: int, high: int, oldest_first: bool, size: int, max_ids: int | None) -> Iterator[tuple[int, int]]:
    """Yield spans of ids, the next to the first page first, each longer than the one before."""
    left = high - low if max_ids is None else min(max_ids, high - low)
    while left > 0:
        size = min(size, left)
        start, end = (low, low + size) if oldest_first else (high - size, high)
        yield start, end
        low, high = (end, high) if oldest_first else (low, start)
        left, size = left - size, size * SPAN_GROWTH


def _like(pattern: str) -> str:
    return _escaped(pattern).replace("*", "%")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
