"""The progress that handlers report, see ``sql/progress.sql``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from yamlsched.progress import Progress
from yamlsched.runs import ClaimedRun
from yamlsched.store.rows import fetch
from yamlsched.store.statements import load

MAX_REPORTS_PER_STATEMENT = 100


@dataclass(frozen=True)
class StoredProgress:
    """The last progress of an attempt. ``reported_at`` is when the value was written first: it stands still since."""

    attempt: int
    worker: str  # the claim
    done: float
    total: float | None
    note: str
    percent: int | None
    reported_at: datetime

    def __str__(self) -> str:
        return str(Progress(self.done, self.total, self.note))


@dataclass(frozen=True)
class _Row:
    run_id: int
    done: float
    total: float | None
    note: str
    reported_at: datetime
    attempt: int
    worker: str

    @property
    def progress(self) -> StoredProgress:
        percent = Progress(self.done, self.total).percent
        done, total = _plain(self.done), _plain(self.total)
        return StoredProgress(self.attempt, self.worker, done, total, self.note, percent, self.reported_at)


async def hold(connection: psycopg.AsyncConnection[Any], runs: Sequence[ClaimedRun]) -> None:
    """Lock the rows of ``runs`` in the open transaction."""
    await connection.execute(load("progress")["hold"], {"ids": [run.id for run in runs]})


async def report(
    connection: psycopg.AsyncConnection[Any],
    reports: Sequence[tuple[ClaimedRun, Progress]],
    now: datetime | None = None,
) -> set[int]:
    """Write the progress of attempts; return the ids of the runs that were still ours, and not locked."""
    written: set[int] = set()
    for parameters in _parameters(reports, _encodable(connection)):
        cursor = await connection.execute(load("progress")["report"], {**parameters, "now": now})
        written.update(row.run_id for row in await cursor.fetchall())
    return written


def _parameters(reports: Sequence[tuple[ClaimedRun, Progress]], is_unicode: bool) -> Iterator[dict[str, Any]]:
    for start in range(0, len(reports), MAX_REPORTS_PER_STATEMENT):
        part = reports[start : start + MAX_REPORTS_PER_STATEMENT]
        yield {
            "ids": [run.id for run, _ in part],
            "attempts": [run.attempt for run, _ in part],
            "tokens": [run.locked_by for run, _ in part],
            "dones": [progress.done for _, progress in part],
            "totals": [progress.total for _, progress in part],
            "notes": [_note(progress, is_unicode) for _, progress in part],
        }


def report_in(connection: psycopg.Connection[Any], fence: tuple[int, int, str], progress: Progress) -> None:
    """Write the progress of an attempt inside its handler's own transaction."""
    connection.execute(load("progress")["report_in"], _parameters_in(connection, fence, progress))


async def report_in_async(
    connection: psycopg.AsyncConnection[Any], fence: tuple[int, int, str], progress: Progress
) -> None:
    """The same for an ``async def``."""
    await connection.execute(load("progress")["report_in"], _parameters_in(connection, fence, progress))


def _parameters_in(
    connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any],
    fence: tuple[int, int, str],
    progress: Progress,
) -> dict[str, Any]:
    run_id, attempt, token = fence
    note = _note(progress, _encodable(connection))
    numbers = {"done": progress.done, "total": progress.total}
    return {"id": run_id, "attempt": attempt, "token": token, "note": note, **numbers}


def _encodable(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    """Return whether the database has all characters."""
    return connection.info.parameter_status("server_encoding") == "UTF8"


def _note(progress: Progress, is_unicode: bool) -> str:
    return progress.note if is_unicode else progress.note.encode("ascii", "backslashreplace").decode()


def of_runs(connection: psycopg.Connection[Any], ids: Sequence[int]) -> dict[int, StoredProgress]:
    """Return what the latest attempts of runs have reported, by the ids of the runs."""
    rows = fetch(connection, _Row, load("progress")["of_runs"], {"ids": list(ids)})
    return {row.run_id: row.progress for row in rows}


def of_attempts(connection: psycopg.Connection[Any], id: int) -> list[StoredProgress]:
    """Return what the attempts of a run have reported last."""
    return [row.progress for row in fetch(connection, _Row, load("progress")["of_attempts"], {"id": id})]


def _plain(number: Any) -> Any:
    """Return a whole number as an int, so that JSON has no ``.0``."""
    return int(number) if number is not None and number.is_integer() else number
