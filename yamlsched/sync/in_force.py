"""Which of the files that hosts present is in force. See docs/catchup.md."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta

from yamlsched.sync.files import FileState, FileVersion, ScheduleFile, Snapshot, Verdict
from yamlsched.timetable.times import rfc3339

ROLLBACK_AFTER = timedelta(minutes=5)
FINDING_AFTER = timedelta(minutes=10)


def decide(
    state: FileState, version: FileVersion, at_once: bool, names_environment: bool = True
) -> Verdict:
    """Return what to do with a file. ``at_once``: an operator decided to apply it.

    An operator also changes the environment of a namespace, but not by naming none: with --env
    forgotten, every job of that environment would be disabled. Likewise the namespace of a host,
    but not by leaving out --namespace.
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
    alone_since = max(
        state.presented_since_at, state.newer_presented_at or state.presented_since_at
    )
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
    parts = ["yamlsched sync"]
    if version.environment or state.in_force_environment:
        parts += ["--env", shlex.quote(version.environment)]
    if state.overrides_namespace or verdict is Verdict.OTHER_NAMESPACE:
        parts += ["--namespace", shlex.quote(state.namespace)]
    sync = " ".join(parts)
    if verdict is Verdict.OTHER_NAMESPACE:
        return (
            f'{path} is not applied: this host presented it for namespace "{state.other_namespace}"'
            f' before, and now for "{state.namespace}", so nothing is scheduled or run here.'
            f' Correct --namespace or YAMLSCHED_NAMESPACE, in the crontab too; "{sync}" moves this'
            f' host to namespace "{state.namespace}"'
        )
    if verdict is Verdict.OTHER_ENVIRONMENT:
        return (
            f"{path} is not applied: its namespace belongs to"
            f" {_environment(state.in_force_environment)}, and this "
            f"is {_environment(version.environment)}, so nothing is scheduled or run here;"
            f" {in_force}. "
            "Correct --env, or use a separate namespace or database for each environment; "
            f'"{sync}" changes the environment of the namespace'
        )
    return (
        f"{path} (hash {version.hash[:8]}) is not applied: it was superseded, and a newer file was"
        " presented recently; "
        f'{in_force}. Bring this host up to date. To roll back run "{sync}", or wait until no host'
        " presented "
        "the newer one for 5 minutes (two ticks, if they are rarer); if these are two services,"
        " give each a namespace"
    )


def move_messages(schedule: ScheduleFile, snapshot: Snapshot) -> list[str]:
    """Return a message if an operator's sync changes the namespace for which this host presents the
    file.
    """
    before, namespace = snapshot.other_namespace, snapshot.namespace
    if not schedule.may_move or before is None or namespace is None:
        return []
    return [
        f'this host presented {schedule.path} for namespace "{before}" until now, and presents it'
        f' for "{namespace}" from now on: its crontab line now needs --namespace'
        f' {shlex.quote(namespace)}. The jobs of "{before}" are not retired. To undo: yamlsched'
        f" sync --namespace {shlex.quote(before)}"
    ]


def disabled(environment: str) -> str:
    """Return the predicate of a sentence about a job that the file in force disables, directly or
    by environments.
    """
    return (
        f'is not enabled in environment "{environment}"'
        if environment
        else "is disabled in schedules.yaml"
    )


def _environment(name: str | None) -> str:
    return f'environment "{name}"' if name else "no environment"


def _utc(instant: datetime | None) -> str:
    return rfc3339(instant, "seconds") if instant else "never"
