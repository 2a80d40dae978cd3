"""Due slots in, rows of job_runs out: the first of the two stories.

``glance`` is all that an idle tick needs: one statement, and no import of what reads schedules.yaml or cron.
``sync`` decides which file is in force, applies it, and accounts for due slots. See docs/catchup.md.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched import __version__
from yamlsched.definitions import schedule_file
from yamlsched.errors import Refused
from yamlsched.store import files as store
from yamlsched.store.connection import reason
from yamlsched.store.files import Glance
from yamlsched.sync import files
from yamlsched.sync.files import Ours, Verdict

if TYPE_CHECKING:
    from psycopg import Connection

    from yamlsched.definitions.job import Job
    from yamlsched.store.definitions import Definition
    from yamlsched.store.slots import Gap
    from yamlsched.sync.converge import Changes
    from yamlsched.sync.due import Made

__all__ = [
    "Glance",
    "ScheduleFile",
    "Synced",
    "claimable_jobs",
    "current",
    "glance",
    "is_current",
    "locate",
    "make_due",
    "needs_sync",
    "settle",
    "sync",
]

MAX_SECONDS = 25.0
"""A sync that makes runs for longer leaves the rest to the next tick."""


@dataclass(frozen=True)
class ScheduleFile:
    """A schedules.yaml as a host presents it. ``environment`` is empty where none is given.

    ``handler_path`` are the folders, besides the file's own, in which handlers are looked for before the file is
    applied; None: they are not checked. ``by_hand``: a person presents it, not a tick that comes again.
    """

    data: bytes = field(repr=False)
    path: str
    environment: str = ""
    host: str = field(default_factory=socket.gethostname)
    handler_path: tuple[str, ...] | None = None
    by_hand: bool = False

    @classmethod
    def read(cls, path: Path, environment: str | None, handler_path: tuple[str, ...] | None = ()) -> ScheduleFile:
        """Raises EnvironmentFailed where the file cannot be read."""
        data = schedule_file.read(path, "; name the schedule with --file or YAMLSCHED_FILE")
        return cls(data, os.path.abspath(path), environment or "", handler_path=handler_path)

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
            "by_hand": self.by_hand,
        }


@dataclass
class Synced:
    """What a sync did and found. ``messages`` are for people.

    ``jobs`` are those whose own entry in this host's file is valid, if the file had to be read; ``is_readable`` says
    whether it could be. ``is_validated`` says that this version of yamlsched has applied the file: then its schema
    needs no second check.
    """

    namespace: str | None
    verdict: Verdict | None = None
    changes: Changes | None = None
    made: Made | None = None
    messages: list[str] = field(default_factory=list)
    has_findings: bool = False
    jobs: dict[str, Job] | None = None
    is_readable: bool = True
    is_validated: bool = False

    @property
    def may_claim(self) -> bool:
        """Return whether this host may make and claim runs: not those of another environment."""
        return self.namespace is not None and self.verdict is not Verdict.OTHER_ENVIRONMENT

    def find(self, *messages: str) -> None:
        """Note what needs attention."""
        self.messages.extend(messages)
        self.has_findings = self.has_findings or bool(messages)

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


def current(seen: Glance, schedule: ScheduleFile) -> Synced | None:
    """Return what holds for a file that is in force, and None for any other."""
    if not is_current(seen, schedule):
        return None
    return Synced(seen.namespace, Verdict.CURRENT, is_validated=seen.in_force_yamlsched == __version__)


def sync(
    connection: Connection[Any],
    schedule: ScheduleFile,
    now: datetime | None = None,
    at_once: bool = False,
    seen: Glance | None = None,
) -> Synced:
    """Bring the database to the file if it is to be in force, and account for due slots.

    ``at_once`` applies a file that would be held back, and changes the environment of a namespace. ``seen`` saves
    the look that the caller has had. A file with errors, or one that cannot be applied now, changes nothing; due slots
    are accounted for all the same, except on a host of another environment.
    """
    deadline = time.monotonic() + MAX_SECONDS
    seen = seen or glance(connection, schedule, now)
    synced = current(seen, schedule) or Synced(seen.namespace)
    if synced.verdict is not Verdict.CURRENT:
        from yamlsched.sync import applying

        try:
            applying.read(connection, schedule, now, at_once, synced)
        except (psycopg.Error, Refused) as error:
            if connection.closed or (at_once and not isinstance(error, psycopg.errors.LockNotAvailable)):
                raise
            applying.fail(connection, schedule, now, error, synced)
    if synced.may_claim:
        make_due(connection, synced, schedule.ours.tzdata_version, now, deadline)
    return synced


def needs_sync(seen: Glance, schedule: ScheduleFile) -> bool:
    """Return whether there is anything to sync."""
    is_behind = files.is_older(schedule.ours.tzdata_version, seen.in_force_tzdata or "")
    return seen.has_due_jobs or is_behind or not is_current(seen, schedule)


def _leaves_slots(connection: Connection[Any], synced: Synced, ours: str, now: datetime | None) -> bool:
    """Return whether hosts with newer time zone data make the slots: two versions could make one slot twice."""
    known = store.tzdata(connection, str(synced.namespace), now)
    if any(files.is_older(ours, version) for version in known.presented):
        return True
    if files.is_older(ours, known.in_force or ""):
        synced.find(
            f"this host has time zone data {ours}, and the slots were computed with {known.in_force}. No host "
            "with that data ticks any more, so slots are computed with the older data. Upgrade tzdata on this host"
        )
    return False


def make_due(
    connection: Connection[Any], synced: Synced, tzdata_version: str, now: datetime | None, deadline: float
) -> None:
    """Account for the due slots of the namespace, unless that is for hosts with newer data than ``tzdata_version``."""
    from yamlsched.sync import due

    assert synced.namespace is not None
    if _leaves_slots(connection, synced, tzdata_version, now):
        return
    try:
        synced.made = due.make_due(connection, synced.namespace, now, deadline)
    except psycopg.Error as error:
        if connection.closed:
            raise
        synced.made = due.Made()
        synced.find(f"due slots could not be read: {reason(error)}. The next tick tries again")
    synced.find(*synced.made.problems)


def locate(connection: Connection[Any], schedule: ScheduleFile, seen: Glance, now: datetime | None = None) -> Synced:
    """Return where the file stands, without applying it or making runs."""
    from yamlsched.sync import applying

    return current(seen, schedule) or applying.locate(connection, schedule, seen.namespace, now)


def claimable_jobs(connection: Connection[Any], schedule: ScheduleFile, synced: Synced) -> dict[str, Job]:
    """Return the jobs whose runs this host may claim: those whose own entry in its file is valid.

    While the file is held back, only those whose handler is that of the file in force: a service that shares the
    namespace by mistake may have a job of the same name.
    """
    from yamlsched.sync import applying

    return applying.claimable_jobs(connection, schedule, synced)


def settle(
    connection: Connection[Any], namespace: str, ids: list[int], now: datetime | None = None
) -> tuple[datetime, list[Definition], Made]:
    """Lock definitions and account for all that they owe, inside the caller's transaction, before they are changed.

    Returns the instant up to which that holds (the one to write as ``paused_at``), and the definitions as they are.
    """
    from yamlsched.sync import due

    return due.settle_by_id(connection, namespace, ids, now)
