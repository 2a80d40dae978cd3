"""Which of the files that hosts present is in force. See docs/catchup.md."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from yamlsched.sync.files import FileState, FileVersion, ScheduleFile, Snapshot, Verdict
from yamlsched.text import join_first
from yamlsched.timetable.times import rfc3339

if TYPE_CHECKING:
    from yamlsched.schedule.job import Job

ROLLBACK_AFTER = timedelta(minutes=5)
FINDING_AFTER = timedelta(minutes=10)
NEW_KEYS = {
    **dict.fromkeys(("after", "limit", "skip_on", "only_on", "crons", "starts_on", "ends_on"), 5),
    "withdraw": 11,
    **dict.fromkeys(("start_within", "finish_within"), 12),
}
"""Keys of jobs and executors with which an older release would schedule, run or watch a job wrongly, each with the
version of the tables since which releases know it. A file that uses one waits for the hosts that do not know it."""
DEFAULTS = {"start_within": timedelta(minutes=15)}
"""What jobs have that do not set one of these keys, where that is something."""
MAX_PLACES_LISTED = 5


def needs(jobs: Iterable[Job]) -> dict[str, int]:
    """Return those of NEW_KEYS that a file uses."""
    known = list(jobs)
    return {
        key: version
        for key, version in NEW_KEYS.items()
        if any(
            (value := getattr(job, key, None) or getattr(job.engine, key, None)) and value != DEFAULTS.get(key)
            for job in known
        )
    }


def decide(
    state: FileState, version: FileVersion, at_once: bool, names_environment: bool = True, waits: bool = True
) -> Verdict:
    """Return what to do with a file. ``at_once``: an operator decided to apply it; ``waits``: once every host can."""
    verdict = _decide(state, version, at_once, names_environment)
    return Verdict.AWAITS_HOSTS if verdict is Verdict.APPLY and state.behind and waits else verdict


def _decide(state: FileState, version: FileVersion, at_once: bool, names_environment: bool) -> Verdict:
    """Return what to do with a file that every host knows.

    An operator also changes the environment of a namespace, but not by naming none: with --env forgotten, every job of
    that environment would be disabled. Likewise the namespace of a host, but not by leaving out --namespace.
    """
    if state.other_namespace is not None and not (at_once and state.overrides_namespace):
        return Verdict.OTHER_NAMESPACE
    if state.in_force_id is None:
        return Verdict.APPLY
    if (state.in_force_hash, state.in_force_environment) == (version.hash, version.environment):
        known = version.is_covered_by(state.in_force_yamlsched, state.in_force_tzdata)
        return Verdict.CURRENT if known else Verdict.RENEW
    is_other = is_of_another_environment(state, version)
    if at_once and (names_environment or not is_other):
        return Verdict.APPLY
    if is_other:
        return Verdict.OTHER_ENVIRONMENT
    if state.applied_at is None:
        return Verdict.APPLY
    alone_since = max(state.presented_since_at, state.newer_presented_at or state.presented_since_at)
    is_steady = state.now - alone_since >= ROLLBACK_AFTER
    return Verdict.APPLY if is_steady and not state.is_newer_presented else Verdict.HELD_BACK


def is_of_another_environment(state: FileState, version: FileVersion) -> bool:
    """Return whether the namespace belongs to another environment than the file's."""
    return state.in_force_id is not None and state.in_force_environment != version.environment


def is_held_too_long(state: FileState) -> bool:
    """Return whether a file has been held back for longer than a rolling deploy takes."""
    held_since = max(state.presented_since_at, state.in_force_since or state.presented_since_at)
    return state.now - held_since >= FINDING_AFTER


def explain(verdict: Verdict, state: FileState, path: str, version: FileVersion) -> str:
    """Return a message: why a file is not applied, and what to do."""
    in_force = (
        f"in force is {state.in_force_path} of host {state.in_force_host} "
        f"(hash {(state.in_force_hash or '')[:8]}), since {_utc(state.in_force_since)}"
    )
    if verdict is Verdict.AWAITS_HOSTS:
        return (
            f"{path} (hash {version.hash[:8]}) is not applied yet: {unknown_keys(state.needs or (), state.behind)}; "
            f"{'no file is in force' if state.in_force_id is None else in_force}. Upgrade yamlsched there, or stop its "
            'ticks for 10 minutes; "yamlsched sync --yes" does not wait'
        )
    parts = ["yamlsched sync"]
    if version.environment or state.in_force_environment:
        parts += ["--env", shlex.quote(version.environment)]
    if state.overrides_namespace or verdict is Verdict.OTHER_NAMESPACE:
        parts += ["--namespace", shlex.quote(state.namespace)]
    sync = " ".join(parts)
    if verdict is Verdict.OTHER_NAMESPACE:
        return (
            f'{path} is not applied: this host presented it for namespace "{state.other_namespace}" before, and now '
            f'for "{state.namespace}", so nothing is scheduled or run here. Correct --namespace or '
            f'YAMLSCHED_NAMESPACE, in the crontab too; "{sync}" moves this host to namespace "{state.namespace}"'
        )
    if verdict is Verdict.OTHER_ENVIRONMENT:
        return (
            f"{path} is not applied: its namespace belongs to {_environment(state.in_force_environment)}, and this "
            f"is {_environment(version.environment)}, so nothing is scheduled or run here; {in_force}. "
            "Correct --env, or use a separate namespace or database for each environment; "
            f'"{sync}" changes the environment of the namespace'
        )
    return (
        f"{path} (hash {version.hash[:8]}) is not applied: it was superseded, and a newer file was presented recently; "
        f'{in_force}. Bring this host up to date. To roll back run "{sync}", or wait until no host presented '
        "the newer one for 5 minutes (two ticks, if they are rarer); if these are two services, give each a namespace"
    )


def unknown_keys(keys: Iterable[str], places: Sequence[str]) -> str:
    """Return a sentence: the places whose release does not know keys that a file uses."""
    return f"it uses {', '.join(keys)}, which the release on {join_first(places, MAX_PLACES_LISTED)} does not know"


def move_messages(schedule: ScheduleFile, snapshot: Snapshot) -> list[str]:
    """Return a message if an operator's sync changes the namespace for which this host presents the file."""
    before, namespace = snapshot.other_namespace, snapshot.namespace
    if not schedule.may_move or before is None or namespace is None:
        return []
    return [
        f'this host presented {schedule.path} for namespace "{before}" until now, and presents it for "{namespace}" '
        f'from now on: its crontab line now needs --namespace {shlex.quote(namespace)}. The jobs of "{before}" are not '
        f"retired. To undo: yamlsched sync --namespace {shlex.quote(before)}"
    ]


def disabled(environment: str) -> str:
    """Return the predicate of a sentence about a job that the file in force disables, directly or by environments."""
    return f'is not enabled in environment "{environment}"' if environment else "is disabled in schedules.yaml"


def _environment(name: str | None) -> str:
    return f'environment "{name}"' if name else "no environment"


def _utc(instant: datetime | None) -> str:
    return rfc3339(instant, "seconds") if instant else "never"
