"""A file that is not known to be in force: check it and apply it, or report why it is
not applied.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg import Connection

from yamlsched import log
from yamlsched.db.connection import reason
from yamlsched.schedule import checks, formats, load
from yamlsched.schedule.checks import Checked
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.source import Diagnostic
from yamlsched.sync import converge, definitions, files, in_force, revision
from yamlsched.sync.files import (
    REFUSED,
    FileState,
    ScheduleFile,
    Snapshot,
    SyncResult,
    Verdict,
    current,
    is_older,
    newest_version,
)
from yamlsched.sync.revision import Revision
from yamlsched.text import names_for_log

LOCK_TIMEOUT_SECONDS = 5.0
"""How long a tick waits for a lock that applying a file needs; then the next tick tries again."""
MAX_STORED_ERRORS = 20
"""Errors of a refused file that are stored."""
MAX_STORED_CHARS = 1_000
"""Of each."""
MAX_LOGGED_FINDINGS = 20
"""Findings of plugins that are logged."""
AT_ONCE_LOCK_TIMEOUT_SECONDS = 30.0
"""The same for ``yamlsched sync``."""


@dataclass
class FileSync:
    """The sync of one file that is not known to be in force. What it does and finds is added to
    ``result``.
    """

    connection: Connection[Any]
    schedule: ScheduleFile
    result: SyncResult
    now: datetime | None = None
    at_once: bool = False

    def apply_if_due(self) -> None:
        """Apply the file if it is valid and to be in force."""
        # The namespace of a file that was read before is known: one that is held back is not read
        # again every minute.
        if self.result.namespace is not None and self._is_held_back(self._decide()):
            return
        loaded, checked = self._read()
        if checked.errors or loaded.namespace is None:
            self._refuse(loaded, checked)
            return
        _log_findings(self.schedule, loaded)
        self.result.namespace = loaded.namespace
        # before the transaction, which may be long: the next tick of this host presents the file,
        # too
        snapshot = files.poll_rows(
            self.connection, self.schedule.presented(), self.now, loaded.namespace
        )
        self.result.messages += in_force.move_messages(self.schedule, snapshot)
        revised = revision.read(str(self.schedule.real_file), self.schedule.data, os.environ)
        if revised.problem:
            log.info(
                "revision.unknown",
                file=self.schedule.path,
                error=revised.problem,
                remedy=revised.remedy or None,
            )
        with self.connection.transaction():
            timeout = AT_ONCE_LOCK_TIMEOUT_SECONDS if self.at_once else LOCK_TIMEOUT_SECONDS
            files.lock_namespace(self.connection, loaded.namespace, timeout)
            state = self._decide()
            if self.result.verdict is Verdict.CURRENT:
                converge.repair_limits(self.connection, loaded.namespace, loaded.limits, self.now)
            elif not self._is_held_back(state):
                self._apply(state, loaded, revised)
        if changes := self.result.changes:
            log.info(
                "sync.applied",
                file=self.schedule.path,
                hash=self.schedule.sha256[:8],
                added=len(changes.added),
                changed=len(changes.changed),
                retired=len(changes.retired),
                returned=len(changes.returned) or None,
                commit=revised.shown,
                author=revised.author,
            )
            self.result.add_findings(*changes.problems)

    def report_failure(self, error: Exception) -> None:
        """Report that the file could not be applied now. The tick continues, except in another
        environment.
        """
        self.result.verdict, self.result.changes = None, None
        why = reason(error) if isinstance(error, psycopg.Error) else str(error)
        log.warning(
            "sync.failed", file=self.schedule.path, hash=self.schedule.sha256[:8], error=why
        )
        if isinstance(error, psycopg.errors.LockNotAvailable):
            why = "another session holds a lock that this needs (pg_stat_activity shows which)"
        self.result.add_findings(
            f"{self.schedule.path} is not applied: {why}. The next tick tries again"
        )
        self._check_environment()

    def inspect(self) -> SyncResult:
        """Return the verdict on the file, without applying it or creating runs."""
        result, namespace = self.result, self.result.namespace
        if namespace is None:
            loaded, checked = self._read()
            namespace = self._keep_presenting(loaded)
            result.has_findings = bool(checked.errors)
            _report_left_out(self.schedule, loaded, checked.jobs, len(checked.errors))
        if namespace is not None:
            result.namespace = namespace
            state = self._check_environment()
            if result.verdict in REFUSED:
                return result
            if state is None or state.in_force_id is None:
                result.namespace = None
            elif (
                verdict := in_force.decide(state, self.schedule.version, at_once=False)
            ) is Verdict.HELD_BACK:
                result.verdict = verdict
        return result

    def _read(self) -> tuple[Loaded, Checked]:
        """Read and check the file; its valid jobs are those of the result."""
        loaded = load.load(
            self.schedule.data, self.schedule.path, self.schedule.environment or None
        )
        if self.schedule.namespace_override is not None:
            loaded = replace(loaded, namespace=self.schedule.namespace_override)
        loaded = replace(loaded, served=self.schedule.served(loaded.queues))
        checked = checks.check(loaded, self.schedule.real_file, self.schedule.handler_path)
        self.result.jobs, self.result.is_readable = checked.jobs, loaded.is_readable
        self.result.queues = frozenset(loaded.queues) if loaded.is_readable else None
        return loaded, checked

    def _state(self) -> FileState:
        presented = self.schedule.presented()
        return files.state(self.connection, str(self.result.namespace), presented, self.now)

    def _decide(self) -> FileState:
        state = self._state()
        self.result.verdict = in_force.decide(
            state, self.schedule.version, self.at_once, self.schedule.names_environment
        )
        return state

    def _is_held_back(self, state: FileState) -> bool:
        """Return whether the verdict is not to apply the file, and report why."""
        verdict = self.result.verdict
        if verdict is not Verdict.HELD_BACK and verdict not in REFUSED:
            return False
        self.result.messages.append(
            in_force.explain(verdict, state, self.schedule.path, self.schedule.version)
        )
        self.result.has_findings |= (
            self.at_once or verdict in REFUSED or in_force.is_held_too_long(state)
        )
        return True

    def _check_environment(self) -> FileState | None:
        """Report if the namespace belongs to another environment, or is not this host's: then
        nothing is claimed.
        """
        if self.result.namespace is None:
            return None
        state = self._state()
        if state.other_namespace is not None and not self.schedule.may_move:
            self.result.verdict = Verdict.OTHER_NAMESPACE
        elif in_force.is_of_another_environment(state, self.schedule.version):
            self.result.verdict = Verdict.OTHER_ENVIRONMENT
        if self.result.verdict in REFUSED:
            self._is_held_back(state)
        return state

    def _keep_presenting(
        self, loaded: Loaded, errors: Sequence[Diagnostic] | None = None
    ) -> str | None:
        """Continue to present what this host presented before, and return its namespace, else that
        of the file.
        """
        presented = self.schedule.presented()
        mistakes = None if errors is None else max(1, len(errors))
        lines = [
            formats.one_line(error)[:MAX_STORED_CHARS]
            for error in (errors or ())[:MAX_STORED_ERRORS]
        ]
        namespace = files.keep_presenting(
            self.connection, presented, self.now, mistakes, loaded.namespace, lines
        )
        return namespace or loaded.namespace

    def _refuse(self, loaded: Loaded, checked: Checked) -> None:
        errors = max(1, len(checked.errors))
        self.result.namespace = self._keep_presenting(loaded, checked.errors)
        self.result.add_findings(*(formats.text(error) for error in checked.errors))
        log.error(
            "sync.refused", file=self.schedule.path, hash=self.schedule.sha256[:8], mistakes=errors
        )
        _report_left_out(self.schedule, loaded, checked.jobs, errors)
        self._check_environment()

    def _apply(self, state: FileState, loaded: Loaded, revised: Revision) -> None:
        """Write the definitions and which file is in force, inside the caller's transaction."""
        connection, version, namespace = (
            self.connection,
            self.schedule.version,
            str(loaded.namespace),
        )
        is_covered = version.is_covered_by(state.in_force_yamlsched, state.in_force_tzdata)
        recompute = state.in_force_id is not None and not is_covered
        is_behind = is_older(version.tzdata_version, state.in_force_tzdata or "")
        changes = converge.converge(
            connection, namespace, loaded.jobs, loaded.limits, self.now, recompute, is_behind
        )
        definitions.put_targets(connection, namespace, loaded.notify)
        if self.result.verdict is Verdict.APPLY:
            retention = loaded.retention.to_row()
            files.mark_applied(
                connection, namespace, self.schedule.presented(), retention, changes.now
            )
        elif state.in_force_id is not None:
            # The newest of each version: hosts with crossed versions would otherwise renew the file
            # in turns forever.
            yamlsched = newest_version(state.in_force_yamlsched, version.yamlsched_version)
            tzdata = newest_version(state.in_force_tzdata, version.tzdata_version)
            files.mark_renewed(connection, state.in_force_id, yamlsched, tzdata)
        if self.result.verdict is Verdict.APPLY or changes.edits:
            converge.record(connection, self.schedule, loaded, revised, changes)
        self.result.changes = changes


def inspect_file(
    connection: Connection[Any],
    schedule: ScheduleFile,
    snapshot: Snapshot,
    now: datetime | None = None,
) -> SyncResult:
    """Return the verdict on the file, without applying it or creating runs."""
    known = current(snapshot, schedule)
    return known or FileSync(connection, schedule, SyncResult(snapshot.namespace), now).inspect()


def claimable_jobs(
    connection: Connection[Any], schedule: ScheduleFile, result: SyncResult
) -> dict[str, Job]:
    """Return the jobs whose runs this host may claim: those whose own entry in its file is valid.

    While the file is held back, only those whose handler or command, and queue, are those of the
    file in force: a service that shares the namespace by mistake may have a job of the same name.
    """
    jobs = result.jobs
    if jobs is None:
        loaded = load.load(
            schedule.data, schedule.path, schedule.environment or None, result.is_validated
        )
        jobs = result.jobs = loaded.jobs
        result.queues = frozenset(loaded.queues) if loaded.is_readable else None
        _report_left_out(
            schedule, loaded, jobs, sum(entry.severity == "error" for entry in loaded.diagnostics)
        )
    if result.verdict is Verdict.HELD_BACK and result.namespace is not None:
        known = definitions.targets(connection, result.namespace)
        jobs = {
            name: job
            for name, job in jobs.items()
            if known.get(name) == (job.handler, job.command, job.queue)
        }
    return jobs


def _log_findings(schedule: ScheduleFile, loaded: Loaded) -> None:
    """Log what plugins find. The file is applied all the same: other hosts may not have them."""
    findings = checks.check_by_plugins(loaded)
    for entry in findings[:MAX_LOGGED_FINDINGS]:
        place = {"file": schedule.path, "line": entry.line}
        remedy = entry.remedy or None
        log.warning("file.flagged", **place, code=entry.code, error=entry.message, remedy=remedy)
    if (more := len(findings) - MAX_LOGGED_FINDINGS) > 0:
        log.warning("file.flagged", file=schedule.path, more=more, see="yamlsched validate")


def _report_left_out(
    schedule: ScheduleFile, loaded: Loaded, jobs: dict[str, Job], errors: int
) -> None:
    left_out = [name for name in loaded.entries if name not in jobs]
    if errors and (left_out or not jobs):
        names = names_for_log(left_out) or "all"
        log.warning(
            "jobs.left_out",
            file=schedule.path,
            jobs=names,
            mistakes=errors,
            see="yamlsched validate",
        )
