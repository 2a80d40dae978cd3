"""Due slots in, rows of job_runs out: the first of the two stories.

``glance`` is all that an idle tick needs: one statement, and no import of what reads schedules.yaml or cron.
``sync`` decides which file is in force, applies it, and accounts for due slots. See docs/catchup.md.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yamlsched import __version__, log
from yamlsched.errors import EnvironmentFailed
from yamlsched.store import files as store
from yamlsched.store.files import Glance, Standing
from yamlsched.sync import files
from yamlsched.sync.files import Ours, Verdict

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.definitions.load import Loaded
    from yamlsched.store.definitions import Definition
    from yamlsched.store.slots import Gap
    from yamlsched.sync.converge import Changes
    from yamlsched.sync.due import Made

__all__ = ["Glance", "ScheduleFile", "Synced", "glance", "is_current", "is_validated", "settle", "sync"]


@dataclass(frozen=True)
class ScheduleFile:
    """A schedules.yaml as a host presents it. ``environment`` is empty where none is given."""

    data: bytes = field(repr=False)
    path: str
    environment: str = ""
    host: str = field(default_factory=socket.gethostname)

    @classmethod
    def read(cls, path: Path, environment: str | None) -> ScheduleFile:
        """Raises EnvironmentFailed where the file cannot be read."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise EnvironmentFailed(
                f"{path} cannot be read: {error.strerror}; name the schedule with --file or YAMLSCHED_FILE"
            ) from error
        return cls(data, os.path.abspath(path), environment or "")

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def ours(self) -> Ours:
        import tzdata  # type: ignore[import-untyped]

        return Ours(self.sha256, self.environment, __version__, tzdata.IANA_VERSION)

    def presented(self) -> dict[str, Any]:
        """Return what the statements on files want to know."""
        ours = self.ours
        return {
            "hash": ours.hash,
            "environment": ours.environment,
            "host": self.host,
            "path": self.path,
            "yamlsched_version": ours.yamlsched_version,
            "tzdata_version": ours.tzdata_version,
        }


@dataclass
class Synced:
    """What a sync did and found. ``messages`` are for people; ``loaded`` is the file if it had to be read."""

    namespace: str | None
    verdict: Verdict | None = None
    changes: Changes | None = None
    made: Made | None = None
    messages: list[str] = field(default_factory=list)
    has_findings: bool = False
    loaded: Loaded | None = None

    @property
    def runs(self) -> int:
        """How many runs were made, by settling or because they were due."""
        return (self.made.runs if self.made else 0) + (self.changes.settled.runs if self.changes else 0)

    @property
    def gaps(self) -> list[Gap]:
        """The slots that were recorded as skipped."""
        return (self.changes.settled.gaps if self.changes else []) + (self.made.gaps if self.made else [])

    @property
    def exit_code(self) -> int:
        return 1 if self.has_findings else 0


def glance(connection: Connection[Any], schedule: ScheduleFile, now: datetime | None = None) -> Glance:
    """Say that this host presents this file, and return what there is to do. One round trip; autocommit."""
    return store.glance(connection, schedule.presented(), now)


def is_current(seen: Glance, schedule: ScheduleFile) -> bool:
    """Say whether the file is in force and needs no reading."""
    ours = schedule.ours
    return (seen.in_force_hash, seen.in_force_environment) == (ours.hash, ours.environment) and files.is_known(
        seen.in_force_yamlsched, seen.in_force_tzdata, ours
    )


def is_validated(seen: Glance, schedule: ScheduleFile) -> bool:
    """Say whether this version of yamlsched has applied the file: then its schema needs no second check."""
    return is_current(seen, schedule) and seen.in_force_yamlsched == __version__


def sync(
    connection: Connection[Any],
    schedule: ScheduleFile,
    now: datetime | None = None,
    at_once: bool = False,
    seen: Glance | None = None,
) -> Synced:
    """Bring the database to the file if it is to be in force, and account for due slots.

    ``at_once`` applies a file that would be held back, and changes the environment of a namespace. ``seen`` saves
    the look that the caller has had. A file with mistakes changes nothing; due slots are accounted for all the same.
    """
    seen = seen or glance(connection, schedule, now)
    synced = Synced(seen.namespace)
    if is_current(seen, schedule):
        synced.verdict = Verdict.CURRENT
    else:
        _read(connection, schedule, now, at_once, synced)
    if synced.namespace is not None:
        from yamlsched.sync import due

        synced.made = due.make_due(connection, synced.namespace, now)
        for text in synced.made.unreadable:
            _find(synced, f"the slots of job {text}")
    return synced


def _read(
    connection: Connection[Any], schedule: ScheduleFile, now: datetime | None, at_once: bool, synced: Synced
) -> None:
    """Decide about a file that is not in force, and apply it if it is to be."""
    ours, presented = schedule.ours, schedule.presented()
    if synced.namespace is not None:
        # A file that was read before: one that is held back is not read again every minute.
        standing = store.standing(connection, synced.namespace, presented, now)
        synced.verdict = files.verdict(standing, ours, at_once)
        if synced.verdict in (Verdict.HELD_BACK, Verdict.OTHER_ENVIRONMENT):
            _hold_back(schedule, standing, synced)
            return

    from yamlsched.definitions import load
    from yamlsched.sync import converge

    loaded = synced.loaded = load.load(schedule.data, schedule.path, schedule.environment or None)
    if loaded.has_errors or loaded.namespace is None:
        mistakes = max(1, sum(found.severity == "error" for found in loaded.diagnostics))
        synced.namespace = store.stand_in(connection, presented, now, mistakes) or loaded.namespace
        _find(synced, *_diagnostics(loaded))
        log.error("sync.refused", file=schedule.path, hash=ours.hash[:8], mistakes=mistakes)
        return

    namespace = synced.namespace = loaded.namespace
    with connection.transaction():
        store.lock(connection, namespace)
        store.present(connection, namespace, presented, now)
        standing = store.standing(connection, namespace, presented, now)
        synced.verdict = files.verdict(standing, ours, at_once)
        if synced.verdict in (Verdict.HELD_BACK, Verdict.OTHER_ENVIRONMENT):
            _hold_back(schedule, standing, synced)
        if synced.verdict in (Verdict.APPLY, Verdict.RENEW):
            is_older = standing.in_force_id is not None and not files.is_known(
                standing.in_force_yamlsched, standing.in_force_tzdata, ours
            )
            changes = converge.converge(connection, namespace, loaded.jobs, now, recompute=is_older)
            if synced.verdict is Verdict.APPLY:
                retention = converge.retention(loaded.retention)
                store.applied(connection, namespace, presented, retention, changes.now)
            elif standing.in_force_id is not None:
                store.renewed(connection, standing.in_force_id, presented)
            synced.changes = changes
    if synced.changes:
        log.info(
            "sync.applied",
            file=schedule.path,
            hash=ours.hash[:8],
            added=len(synced.changes.added),
            changed=len(synced.changes.changed),
            retired=len(synced.changes.retired),
            returned=len(synced.changes.returned) or None,
        )
    if synced.verdict is Verdict.APPLY:
        _warn_of_handlers(loaded, Path(schedule.path))


def _warn_of_handlers(loaded: Loaded, file: Path) -> None:
    """Say which handlers this host does not have. The file is in force all the same: other hosts may have them."""
    from yamlsched.definitions import handlers
    from yamlsched.definitions.paths import search_path

    path = [*search_path(file, loaded.paths), *(Path(entry) for entry in sys.path if entry)]
    for job, handler, error in handlers.missing(loaded, path):
        log.warning("handler.missing", job=job, handler=handler, error=error)


def _hold_back(schedule: ScheduleFile, standing: Standing, synced: Synced) -> None:
    assert synced.verdict is not None
    synced.messages.append(files.explain(synced.verdict, standing, schedule.path, schedule.ours))
    if synced.verdict is Verdict.OTHER_ENVIRONMENT or files.is_finding(standing):
        synced.has_findings = True


def _find(synced: Synced, *messages: str) -> None:
    synced.messages.extend(messages)
    synced.has_findings = synced.has_findings or bool(messages)


def _diagnostics(loaded: Loaded) -> list[str]:
    from yamlsched.definitions import report

    return [report.text(found) for found in loaded.diagnostics]


def settle(
    connection: Connection[Any], namespace: str, ids: list[int], now: datetime | None = None
) -> tuple[datetime, list[Definition], Made]:
    """Lock definitions and account for all that they owe, inside the caller's transaction, before they are changed.

    Returns the instant up to which that holds (the one to write as ``paused_at``), and the definitions as they are.
    """
    from yamlsched.sync import due

    return due.settle_by_id(connection, namespace, ids, now)
