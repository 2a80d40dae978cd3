"""Nightly cleanup of expired rows and old temporary files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from handlers import app
from yamlsched import Discard

if TYPE_CHECKING:
    from yamlsched import Run

BATCH_ROWS = 1000


def run(run: Run, older_than_days: int = 30) -> None:
    """Delete expired sessions, and temporary files older than ``older_than_days`` days; the result counts both."""
    if older_than_days < 1:
        raise Discard(
            f"older_than_days is {older_than_days}: below 1, files still in use would be deleted"
        )
    # files first: deleting them twice is harmless, and nothing may fail after the transaction has committed
    files = delete_old_files(app.temporary_folder(), older_than_days)
    with run.transaction() as connection:
        app.ensure_tables(connection)
        sessions = delete_expired_sessions(connection)
        run.result = {"sessions": sessions, "files": files}
    run.log.info("deleted %d sessions and %d files", sessions, files)


def delete_expired_sessions(connection: psycopg.Connection[Any]) -> int:
    """Delete in batches, so that each statement is short. Locked rows are left for the next night."""
    total = 0
    while True:
        deleted = connection.execute(
            """
            delete from app.sessions
            where id = any (array(
                select id from app.sessions
                where expires_at < now()
                order by expires_at
                limit %s
                for update skip locked))
            """,
            [BATCH_ROWS],
        ).rowcount
        total += deleted
        if deleted < BATCH_ROWS:
            return total


def delete_old_files(folder: Path, older_than_days: int) -> int:
    """Delete the regular files of ``folder``, not of its subfolders, that were not written for this many days."""
    limit = time.time() - older_than_days * app.DAY_SECONDS
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if (
                entry.is_file(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_mtime < limit
            ):
                Path(entry).unlink(missing_ok=True)
                total += 1
    return total
