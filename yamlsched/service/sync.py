"""Apply a file as an operator decides to, and account for due slots."""

from __future__ import annotations

from dataclasses import replace

from yamlsched import db
from yamlsched.service import Target
from yamlsched.sync import SyncResult, flow


def sync(target: Target) -> SyncResult:
    """Bring the database to the file, also to one that a tick would hold back, or one for another environment."""
    schedule = replace(target.read_file(), by_hand=True)
    with target.database() as dsn, db.connect(dsn) as connection:
        db.migrations.ensure_usable(connection, apply=target.may_migrate)
        return flow.sync(connection, schedule, at_once=True)
