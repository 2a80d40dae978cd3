"""Cache refresh: figures that are slow to compute, in a file that is always complete for readers."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from handlers import app

if TYPE_CHECKING:
    from yamlsched import Run


def refresh(run: Run) -> None:
    """Write the activity of the last seven days to ``var/cache/activity.json``, and record its hash."""
    path = app.VAR / "cache" / "activity.json"
    with run.transaction() as connection:
        app.ensure_tables(connection)
        rows = connection.execute(
            """
            select u.name, count(*)
            from app.events e
            join app.users u on u.id = e.user_id
            where e.happened_at > now() - interval '7 days'
            group by u.id, u.name
            order by count(*) desc, u.name
            """
        ).fetchall()
        data = json.dumps(
            {"most_active": [{"name": name, "events": events} for name, events in rows]}, indent=2
        )
        write_atomically(path, data.encode())
        sha256 = hashlib.sha256(data.encode()).hexdigest()
        connection.execute(
            """
            insert into app.cached_files (name, sha256, written_at) values (%s, %s, now())
            on conflict (name) do update set sha256 = excluded.sha256, written_at = excluded.written_at
            """,
            [path.name, sha256],
        )
        run.result = {"users": len(rows), "sha256": sha256}
    run.log.info("wrote %s, %d users", path.name, len(rows))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a temporary file and rename it: a reader gets the old or the new content, never a part of it.

    The temporary name is in ``var/tmp`` (on the file system of ``path``, so that the rename is atomic). If the
    process is killed before the rename, the nightly cleanup deletes the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=app.temporary_folder())
    with open(handle, "wb") as file:
        file.write(data)
        file.flush()
        # before the rename: otherwise the file could be empty after a power failure
        os.fsync(file.fileno())
    os.replace(temporary, path)
