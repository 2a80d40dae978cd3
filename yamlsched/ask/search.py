"""Selecting runs by filters, page by page.

A page reads the runs that an index finds, if they are few, else a bounded number of ids in order.
So a filter that nothing matches never holds up the database with one long statement: it says where
it stopped, and can be continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.ask import runs
from yamlsched.ask.history import definitions
from yamlsched.ask.runs import RunRow
from yamlsched.db.query import execute, fetch_column

PAGE_RUNS = 5_000
"""Runs that one statement selects for an action."""
FEW_RUNS = 30_000
"""The most ids that an index search returns. Their runs are read in parts."""
FIRST_IDS = 500  # in the first part
MAX_SEARCHED_IDS = 150_000
"""So many ids the web page searches before it offers to continue."""
MAX_LISTED_IDS = 500_000
"""So many `yamlsched runs` searches."""


@dataclass(frozen=True)
class Filter:
    """Which runs to select. An empty part does not filter."""

    jobs: Sequence[str] = ()
    tags: Sequence[str] = ()
    owner: str = ""
    statuses: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None  # `*` matches any string
    worker: str | None = None  # likewise; without `*`, a host or host:pid
    error: str | None = None  # in the type or the message, whatever the case of its letters
    error_type: str | None = None  # the whole type; "": an error without a type
    ids: Sequence[int] = ()

    def parameters(self, definitions: list[int] | None) -> dict[str, Any]:
        """Return those of statements; ``definitions`` are the ids of the jobs, or None for all.

        A run lies in [since, until) by when it ended, else by when it started, else by when it is
        due.
        """
        has_pattern, worker = "*" in (self.key or ""), self.worker
        statuses = set(self.statuses)
        return {
            "definitions": definitions,
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
        }


@dataclass(frozen=True)
class RunPage:
    """Runs, newest first. ``older`` and ``newer`` are the ids that ``before`` and ``after``
    continue with.

    ``searched_to`` is set if the search stopped at that id, although the page is not full.
    """

    runs: Sequence[RunRow]
    older: int | None
    newer: int | None
    searched_to: int | None = None


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
    """Return the newest ``limit`` runs with an id below ``before``, or the oldest ones with an id
    above ``after``.

    Unless an index finds the runs, at most ``max_ids`` ids are searched. Raises Refused for a job,
    a tag or an owner that does not exist.
    """
    jobs = definitions(connection, namespace, filter.jobs, filter.tags, filter.owner)
    conditions = {**filter.parameters(jobs), "namespace": namespace}
    [(oldest, newest)] = execute(connection, "history.id_range").fetchall()
    oldest_first = after is not None
    low = oldest if after is None else max(after + 1, oldest)
    high = newest + 1 if before is None else min(before, newest + 1)
    start, stop = low, high
    ids = filter.ids or _few_ids(connection, filter, conditions)
    if ids is None and max_ids is not None:
        if oldest_first:
            stop = min(high, low + max_ids)
        else:
            start = max(low, high - max_ids)
    rows: list[RunRow] = []
    for part in [None] if ids is None else _parts(ids, start, stop, oldest_first):
        rows += runs.runs(
            connection,
            conditions,
            low=start,
            high=stop,
            limit=limit + 1 - len(rows),
            oldest_first=oldest_first,
            ids=part,
        )
        if len(rows) > limit:
            break
    has_more, rows = len(rows) > limit, rows[:limit]
    stopped_at = None
    if not has_more and (start, stop) != (low, high):
        stopped_at = stop if oldest_first else start
    if oldest_first:
        rows.reverse()
        newer = rows[0].id if has_more else stopped_at - 1 if stopped_at is not None else None
        return RunPage(rows, low, newer, stopped_at)
    older = rows[-1].id if has_more else stopped_at
    return RunPage(rows, older, before - 1 if before is not None else None, stopped_at)


def _parts(ids: Sequence[int], low: int, high: int, oldest_first: bool) -> Iterator[Sequence[int]]:
    """Yield the ids in [low, high) in the order in which their runs are shown: few, then more and
    more.
    """
    ordered = sorted((id for id in ids if low <= id < high), reverse=not oldest_first)
    size = FIRST_IDS
    while ordered:
        yield ordered[:size]
        del ordered[:size]
        size *= 4


def matching_ids(connection: psycopg.Connection[Any], namespace: str, filter: Filter) -> list[int]:
    """Return the ids of all runs that match ``filter``, oldest first. Raises Refused as ``page``
    does.
    """
    ids: list[int] = []
    older: int | None = None
    while True:
        found = page(connection, namespace, filter, PAGE_RUNS, before=older)
        ids += [row.id for row in found.runs]
        older = found.older
        if older is None:
            return ids[::-1]


def _few_ids(
    connection: psycopg.Connection[Any], filter: Filter, conditions: dict[str, Any]
) -> list[int] | None:
    """Return ids, among them those of all runs that match, if an index finds them and
    they are few.
    """
    if conditions["key"] is not None:
        holder = runs.id_of_key(connection, conditions["namespace"], conditions["key"])
        return [holder[0]] if holder else []
    indexes = {
        "dead": conditions["only_dead"],
        "open": conditions["only_open"],
        "end": filter.since is not None or conditions["definitions"] is not None,
    }
    for index, is_usable in indexes.items():
        if is_usable:
            parameters = {**conditions, "by": index, "limit": FEW_RUNS + 1}
            [ids] = fetch_column(connection, "history.indexed_ids", **parameters)
            if ids is not None:
                return list(ids)
    return None


def _like(pattern: str) -> str:
    return _escaped(pattern).replace("*", "%")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
