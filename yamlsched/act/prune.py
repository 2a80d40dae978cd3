"""Housekeeping: rows older than the retention are pruned, in batches, within a time limit.

An archive is files in a folder, or stdout, in the format of docs/archive.md. What is written is on
the disk before its rows are deleted. A crash in between leaves lines of rows that still exist, and
that are archived once more: never a loss.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import psycopg
from psycopg.rows import scalar_row

from yamlsched import log
from yamlsched.ask import job_days
from yamlsched.ask.job_days import DeletedRun
from yamlsched.db.query import execute, fetch, load
from yamlsched.errors import EnvironmentFailed
from yamlsched.schedule.job import Retention
from yamlsched.schedule.load import load as load_file
from yamlsched.schedule.values import parse
from yamlsched.sync import definitions, hosts
from yamlsched.text import names_for_log
from yamlsched.timetable.times import MAX_DURATION

STDOUT = 1
KEPT = "what is not archived is not pruned"


class ArchiveFailed(EnvironmentFailed):
    """What is to be pruned cannot be archived, and is therefore kept."""


@dataclass(frozen=True)
class FolderArchive:
    """Files in ``folder``: one for each batch, in a folder for each day. All names are new."""

    folder: Path
    namespace: str

    def __call__(self, kind: str, at: datetime, lines: Iterable[str]) -> None:
        """Write a file with ``lines``, so that it is complete or does not exist. Raises
        ArchiveFailed.
        """
        namespace = re.sub("[^a-z0-9_]", "_", self.namespace)
        name = f"{namespace}-{at.astimezone(UTC):%H%M%SZ}-{kind}-{secrets.token_hex(8)}"
        day = self.folder / f"{at.astimezone(UTC):%Y-%m-%d}"
        with _explained(str(self.folder)):
            for folder in (self.folder, day):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
                    _sync_folder(folder.parent)
            _refuse_shared(self.folder)
            _refuse_shared(day, follows=False)
            with _new_file(day / f".{name}.tmp") as (temporary, file):
                with gzip.GzipFile(name, "wb", fileobj=file, mtime=0) as compressed:
                    for line in lines:
                        compressed.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                os.rename(temporary, day / f"{name}.jsonl.gz")
            _sync_folder(day)


class StdoutArchive:
    """Lines on stdout. What its reader does with them is unknown."""

    def __call__(self, kind: str, at: datetime, lines: Iterable[str]) -> None:
        """Write ``lines``, and if stdout is a file, have them on the disk. Raises ArchiveFailed."""
        with _explained("stdout"):
            for line in lines:
                unwritten = memoryview(line.encode() + b"\n")
                while unwritten:
                    unwritten = unwritten[os.write(STDOUT, unwritten) :]
            with contextlib.suppress(OSError):  # a pipe
                os.fsync(STDOUT)


def own_archive(data: bytes, file: Path, namespace: str) -> FolderArchive | None:
    """Return the archive that the schedule of this host names: ``data`` is the content of ``file``.

    Only the host's own file says where something is written: a row in the database never does.
    """
    folder = load_file(data, str(file), None).retention.archive
    return None if folder is None else FolderArchive(file.resolve().parent / folder, namespace)


def probe(folder: Path) -> None:
    """Write a byte to ``folder``, or to the folder in which it would be made. Raises
    ArchiveFailed.
    """
    with _explained(str(folder)):
        if folder.exists():
            _refuse_shared(folder)
        with tempfile.TemporaryFile(dir=folder if folder.exists() else folder.parent) as file:
            file.write(b"\0")
            file.flush()
            os.fsync(file.fileno())


def _refuse_shared(folder: Path, follows: bool = True) -> None:
    """Raise ArchiveFailed if another user could remove or replace what is in ``folder``: the only
    copy of it.
    """
    status = os.stat(folder, follow_symlinks=follows)
    problem = ""
    if not stat.S_ISDIR(status.st_mode):
        problem = "it is not a folder"
    elif status.st_uid not in (os.geteuid(), 0):
        problem = f"it belongs to another user (uid {status.st_uid}), who could delete the archive"
    elif status.st_mode & stat.S_IWOTH:
        problem = "every user may write to it: chmod o-w"
    if problem:
        raise ArchiveFailed(f"the archive cannot be written ({folder}: {problem}): {KEPT}")


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = error.filename or what
        raise ArchiveFailed(
            f"the archive cannot be written ({place}: {error.strerror}): {KEPT}"
        ) from error


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield a new file that only its owner can read. It is removed unless it was renamed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield path, file
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    """Have the names in ``folder`` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


LINES_AT_ONCE = 20
"""Of the archive, read from the server. One run has up to a hundred attempts, each with 64 KiB of
output.
"""
Archive = Callable[[str, datetime, Iterable[str]], None]
"""Keeps lines of a kind, ``runs``, ``keys`` or ``effects``, before their rows are deleted at an
instant.
"""


START = {"definition": 0, "from": "-infinity"}
"""Where the first batch of runs starts: the job, and when its runs ended."""


def prune_batch(
    connection: psycopg.Connection[Any],
    kind: str,
    namespace: str,
    values: dict[str, Any],
    limit: int,
    now: datetime,
    archive: Archive | None = None,
) -> Any:
    """Lock up to ``limit`` rows, let ``archive`` keep their lines, and delete them.

    Return what was locked. ``values`` say what may be pruned: ``runs``
    that ended before the instant of their state, after a position, ``keys`` whose runs were pruned
    ``before`` one, or ``effects`` of such runs that started before it.
    """
    parameters = {**values, "namespace": namespace, "limit": limit}
    with connection.transaction():
        [held] = execute(connection, f"retention.hold_{kind}", **parameters).fetchall()
        if held.rows:
            rows = {"ids": held.ids, "now": now}
            if archive is not None:
                with closing(_archive_lines(connection, kind, rows)) as lines:
                    archive(kind, now, lines)
            if kind == "runs":
                deleted = fetch(connection, DeletedRun, "retention.delete_runs", **rows)
                days = [asdict(day) for day in job_days.days(deleted)]
                execute(connection, "retention.add_days", days=json.dumps(days, default=str))
            else:
                execute(connection, f"retention.delete_{kind}", **rows)
    return held


def _archive_lines(
    connection: psycopg.Connection[Any], kind: str, parameters: dict[str, Any]
) -> Generator[str]:
    with connection.cursor("lines", row_factory=scalar_row) as cursor:
        cursor.itersize = LINES_AT_ONCE
        yield from cursor.execute(load("archive")[kind], parameters)


HISTORY = timedelta(days=400)
"""How long the days of pruned runs, and gaps, are kept."""
BATCH_ROWS = 2_000
"""Rows of one statement: it takes some tens of milliseconds, so its locks delay nothing."""


@dataclass
class HousekeepingReport:
    """How many rows were cancelled or pruned. ``complete`` is false if the time limit was reached
    first.
    """

    cancelled: int = 0
    runs: int = 0
    keys: int = 0
    effects: int = 0
    places: int = 0
    complete: bool = False


def housekeep(
    connection: psycopg.Connection[Any],
    namespace: str,
    budget_seconds: float,
    now: datetime | None = None,
    archive: Archive | None = None,
) -> HousekeepingReport:
    """Cancel the unfinished runs of retired jobs, and prune by the retention of the file in use.

    Stops between two batches after ``budget_seconds``; finished batches are kept. Concurrent calls
    share the work. What is pruned is given to ``archive``, in the transaction that deletes it.
    """
    deadline = time.monotonic() + budget_seconds
    report = HousekeepingReport()
    for _ in _batches(connection, namespace, now, report, archive):
        if time.monotonic() > deadline:
            return report
    report.complete = True
    return report


def _batches(
    connection: psycopg.Connection[Any],
    namespace: str,
    now: datetime | None,
    report: HousekeepingReport,
    archive: Archive | None,
) -> Iterator[None]:
    """Execute one batch at a time and add it to ``report``; yield after each."""
    while runs := definitions.cancel_retired(connection, namespace, now, BATCH_ROWS):
        jobs = sorted({run.job_type for run in runs})
        log.warning(
            "runs.cancelled", jobs=names_for_log(jobs), runs=len(runs), reason="job retired"
        )
        report.cancelled += len(runs)
        yield
        if len(runs) < BATCH_ROWS:
            break
    file, retention = _in_use(connection, namespace, now)
    before = {name: file.now - age for name, age in retention.ages().items()}
    for kind in ("runs", "keys", "effects"):
        position, is_last = START, False
        while not is_last:
            values = {**before, "before": before.get(kind), **position}
            held = prune_batch(connection, kind, namespace, values, BATCH_ROWS, file.now, archive)
            setattr(report, kind, getattr(report, kind) + held.rows)
            is_last = held.rows < BATCH_ROWS
            if kind == "runs":
                position = {"definition": held.definition, "from": held.last}
            yield
    forgotten = {"namespace": namespace, "before": file.now - HISTORY}
    execute(connection, "retention.forget_days", **forgotten)
    report.places = hosts.prune(connection, namespace, now)
    execute(connection, "workers.prune", namespace=namespace, now=now)
    execute(connection, "retention.done", namespace=namespace, now=file.now)


def is_archived(connection: psycopg.Connection[Any], namespace: str) -> bool:
    """Return whether the file in use says that what is pruned is archived."""
    return _in_use(connection, namespace, None)[1].archive is not None


def _in_use(
    connection: psycopg.Connection[Any], namespace: str, now: datetime | None
) -> tuple[Any, Retention]:
    """Return the instant of the prune, and the retention of the file in use. Raises
    EnvironmentFailed if its row was changed by hand.
    """
    values = {"namespace": namespace, "now": now}
    [file] = execute(connection, "retention.in_use", **values).fetchall()
    try:
        retention = parse(Retention, file.retention or {})
        ages = {name: min(age, MAX_DURATION) for name, age in retention.ages().items()}
        return file, replace(retention, **ages)
    except (ValueError, TypeError) as error:
        raise EnvironmentFailed(
            f"the retention of the file in use is not valid in the database: {error}; nothing is"
            " pruned until it is corrected in yamlsched.namespaces, or an edited file is applied"
        ) from error


def record_failure(
    connection: psycopg.Connection[Any], namespace: str, error: ArchiveFailed
) -> None:
    """Record for ``status`` and ``doctor`` that nothing is pruned, and why."""
    file, _ = _in_use(connection, namespace, None)
    why = f"{socket.gethostname()}: {error}"
    execute(connection, "retention.failed", namespace=namespace, error=why, now=file.now)
