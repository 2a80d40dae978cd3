"""Apply a file as an operator decides to, and account for due slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from yamlsched import db
from yamlsched.ask.runs import namespaces
from yamlsched.service.steps import Target
from yamlsched.sync import flow
from yamlsched.sync.files import SyncResult
from yamlsched.text import join_first


def sync(target: Target, confirm: Callable[[str], None] | None = None) -> SyncResult:
    """Bring the database to the file at once, also to one that waits in a tick, or one for another
    environment.

    ``confirm`` is called before an option creates one more namespace, which is more often a typo.
    """
    schedule = replace(target.read_file(), is_manual=True)
    with target.database() as dsn, db.connect(dsn) as connection:
        db.migrations.ensure_usable(connection, apply=target.may_migrate)
        known = namespaces(connection) if confirm and schedule.namespace_override else []
        if confirm and known and schedule.namespace_override not in known:
            confirm(
                f'create namespace "{schedule.namespace_override}" beside {join_first(known, 5)}'
            )
        return flow.sync(connection, schedule)
