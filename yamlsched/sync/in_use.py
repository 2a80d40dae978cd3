"""Which file is in use: the rule of docs/catchup.md, without a database and without a clock."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from yamlsched.timetable.times import rfc3339

if TYPE_CHECKING:
    from yamlsched.sync.files import ScheduleFile
    from yamlsched.sync.hosts import Snapshot

FINDING_AFTER = timedelta(minutes=10)
"""A superseded file that waits for longer than that is more than a rolling deploy."""
COPIED_WITHIN = timedelta(seconds=30)
"""Hosts that tick in the same second may all see a file of which a half is copied."""


class FileVersion(NamedTuple):
    """The content of a file, and the versions of what reads it."""

    hash: str
    environment: str  # "" if none is named
    yamlsched_version: str
    tzdata_version: str


class Verdict(StrEnum):
    """What to do with the file of a place."""

    CURRENT = "current"  # it is in use
    RENEW = "renew"  # it is in use, applied by an older release or with older time zone data
    APPLY = "apply"
    SUPERSEDED = "superseded"  # it waits: it was in use before, and a place has the file in use
    UNCONFIRMED = "unconfirmed"  # it waits for the next tick: it would retire a job
    OTHER_ENVIRONMENT = "other_environment"
    OTHER_NAMESPACE = "other_namespace"


APPLIED = (Verdict.CURRENT, Verdict.RENEW, Verdict.APPLY)
"""The file is in use, at the latest after this sync."""
REFUSED = (Verdict.OTHER_ENVIRONMENT, Verdict.OTHER_NAMESPACE)
"""Nothing is scheduled or run on a host with such a file."""
WAITS = (Verdict.SUPERSEDED, Verdict.UNCONFIRMED)
"""Only jobs that are the same in the file in use are run on a host with such a file."""


def decide(snapshot: Snapshot, schedule: ScheduleFile, retires: bool = False) -> Verdict:
    """Return what to do with the file of the place that polled, if it is valid. ``retires``: it
    would retire a job.
    """
    ours, theirs, is_manual = schedule.version, snapshot.in_use, schedule.is_manual
    moves = is_manual and schedule.namespace_override is not None
    if snapshot.other_namespace is not None and not moves:
        return Verdict.OTHER_NAMESPACE
    if theirs and ours.environment != theirs.environment:
        is_settled = is_manual and schedule.names_environment
        return Verdict.APPLY if is_settled else Verdict.OTHER_ENVIRONMENT
    if theirs and ours.hash == theirs.hash:
        return Verdict.RENEW if is_newer(ours, theirs) else Verdict.CURRENT
    if is_manual:
        return Verdict.APPLY
    if theirs and snapshot.was_in_use and theirs.hash in snapshot.others:
        return Verdict.SUPERSEDED
    is_confirmed = snapshot.had_file or snapshot.now - snapshot.has_file_since >= COPIED_WITHIN
    return Verdict.UNCONFIRMED if retires and not is_confirmed else Verdict.APPLY


def is_newer(version: FileVersion, other: FileVersion) -> bool:
    """Return whether the release or the time zone data are newer, and neither of them is older."""
    ours, theirs = (
        (_version_key(each.yamlsched_version), _version_key(each.tzdata_version))
        for each in (version, other)
    )
    return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


def is_older(version: str, other: str) -> bool:
    """Return whether a release of yamlsched, or of time zone data, is older than another.

    >>> is_older("1.9.0", "1.10.0"), is_older("2025b", "2026a"), is_older("1.0rc1", "1.0")
    (True, True, True)
    """
    return _version_key(version) < _version_key(other)


def _version_key(version: str) -> list[tuple[int, int | str]]:
    """Return a sort key: letters sort before the end of a version (1.0rc1), numbers after it."""
    parts = re.findall(r"[0-9]+|[a-z]+", version.lower())
    return [(2, int(part)) if part.isdigit() else (0, part) for part in parts] + [(1, 0)]


def explain(verdict: Verdict, snapshot: Snapshot, schedule: ScheduleFile) -> str:
    """Return why the file of a place is refused or superseded, and what to do; "" if it is
    neither.
    """
    if verdict not in (*REFUSED, Verdict.SUPERSEDED):
        return ""
    version, in_use, path = schedule.version, snapshot.in_use, schedule.path
    namespace = str(snapshot.namespace)
    words = ["yamlsched sync"]
    if version.environment or (in_use and in_use.environment):
        words += ["--env", shlex.quote(version.environment)]
    if schedule.namespace_override is not None or verdict is Verdict.OTHER_NAMESPACE:
        words += ["--namespace", shlex.quote(namespace)]
    sync = " ".join(words)
    if verdict is Verdict.OTHER_NAMESPACE:
        return (
            f"{path} is not applied: until now this host used it for namespace"
            f' "{snapshot.other_namespace}", and now for "{namespace}", so nothing is scheduled'
            f" or run here. Correct --namespace or YAMLSCHED_NAMESPACE, also in the crontab. Or,"
            f' to move this host to "{namespace}", run "{sync}"'
        )
    assert in_use is not None
    used = (
        f"the file in use is {snapshot.in_use_path} of host {snapshot.in_use_host} (hash"
        f" {in_use.hash[:8]}), since {rfc3339(snapshot.in_use_since, 'seconds')}"
    )
    if verdict is Verdict.OTHER_ENVIRONMENT:
        return (
            f"{path} is not applied: its namespace belongs to"
            f" {environment(in_use.environment)}, and this is"
            f" {environment(version.environment)}, so nothing is scheduled or run here; {used}."
            f" Pass --env {shlex.quote(in_use.environment)}, or use a separate namespace or"
            " database for each environment. To move the namespace to this environment, run"
            f' "{sync}"'
        )
    return (
        f"{path} (hash {version.hash[:8]}) is not applied: another host uses the file that"
        f" superseded it; {used}. Jobs that are the same in both files run here. Bring this host"
        f' up to date. To go back to this file at once, run "{sync}". If these are two services,'
        " give each its own namespace"
    )


def environment(name: str) -> str:
    """Return an environment in words."""
    return f'environment "{name}"' if name else "no environment"


def disabled(environment: str) -> str:
    """Return the predicate of a sentence about a job that the file in use disables, directly or by
    environments.
    """
    if environment:
        return f'is not enabled in environment "{environment}"'
    return "is disabled in schedules.yaml"
