"""Decide what to do with the file that a place has, and apply it. See docs/catchup.md."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg

from yamlsched import log
from yamlsched.db.connection import reason
from yamlsched.db.query import Connection, execute
from yamlsched.schedule import checks, formats
from yamlsched.schedule.checks import Checked
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import Loaded, load
from yamlsched.schedule.values import plain
from yamlsched.sync import converge, definitions, edits, hosts, revision, slot_rows
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.hosts import Snapshot
from yamlsched.sync.in_use import (
    FINDING_AFTER,
    REFUSED,
    WAITS,
    Verdict,
    decide,
    explain,
    is_older,
)
from yamlsched.sync.revision import Revision
from yamlsched.text import names_for_log

LOCK_TIMEOUT_SECONDS = 5.0
"""How long a tick waits for a lock that applying a file needs; then the next tick tries again."""
MANUAL_LOCK_TIMEOUT_SECONDS = 30.0
"""The same for ``yamlsched sync``."""


@dataclass
class FileApplication:
    """The sync of one file that is not known to be in use. What it does and finds is added to
    ``result``. ``snapshot`` is that of its latest poll.
    """

    connection: Connection
    schedule: ScheduleFile
    result: SyncResult
    snapshot: Snapshot
    now: datetime | None = None

    def apply_if_due(self) -> None:
        """Apply the file if it is valid and to be in use."""
        # One that waits is not read again each minute.
        if self._is_stopped():
            return
        loaded, checked = self._read()
        if checked.errors or loaded.namespace is None:
            self._refuse(loaded, checked)
            return
        _log_findings(self.schedule, loaded)
        # before the transaction, which may be long: the next tick of this place writes its row, too
        self._poll(loaded.namespace, is_valid=True)
        if self._is_stopped():
            return
        revised = self._revision()
        with self.connection.transaction():
            is_manual = self.schedule.is_manual
            timeout = MANUAL_LOCK_TIMEOUT_SECONDS if is_manual else LOCK_TIMEOUT_SECONDS
            hosts.lock_namespace(self.connection, loaded.namespace, timeout)
            self._poll(loaded.namespace, is_valid=True, writes=False)
            retired = sorted(
                set(definitions.names(self.connection, loaded.namespace)) - loaded.jobs.keys()
            )
            if self._is_stopped(retired):
                return
            if self.result.verdict is Verdict.CURRENT:
                now = slot_rows.start_batch(self.connection, self.now)
                limits = loaded.limits
                converge.move_runs(self.connection, loaded.namespace, (), {}, limits, now)
            else:
                self._apply(loaded, revised)
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
        """Report that the file could not be applied now. The tick continues."""
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

    def inspect(self) -> None:
        """Find the verdict on the file, without applying it or creating runs."""
        if self.snapshot.namespace is None:
            loaded, checked = self._read()
            if checked.errors or loaded.namespace is None:
                self.result.has_findings = True
                self._note_refusal(loaded, checked)
                _report_left_out(self.schedule, loaded, checked.jobs, len(checked.errors))
            else:
                self._poll(loaded.namespace, is_valid=True)
        if self._is_stopped():
            return
        if self.snapshot.in_use is None:
            self.result.namespace = None
        self.result.verdict = None

    def _poll(self, namespace: str | None, **options: Any) -> None:
        """Poll again, at the same instant: it is the same tick."""
        now = self.now or self.snapshot.now
        snapshot = hosts.poll(self.connection, self.schedule, now, namespace, **options)
        # that of its tick before: the polls of this tick write it
        self.snapshot = snapshot._replace(had_file=self.snapshot.had_file)
        self.result.namespace = self.snapshot.namespace

    def _read(self) -> tuple[Loaded, Checked]:
        """Read and check the file; its valid jobs are those of the result."""
        loaded = _load(self.schedule)
        if self.schedule.namespace_override is not None:
            loaded = replace(loaded, namespace=self.schedule.namespace_override)
        loaded = replace(loaded, served=self.schedule.served(loaded.queues))
        checked = checks.check(loaded, self.schedule.real_file, self.schedule.handler_path)
        self.result.jobs, self.result.is_readable = checked.jobs, loaded.is_readable
        self.result.queues = frozenset(loaded.queues) if loaded.is_readable else None
        return loaded, checked

    def _revision(self) -> Revision:
        schedule = self.schedule
        revised = revision.read(
            str(schedule.real_file), schedule.data, os.environ, schedule.included
        )
        if revised.problem:
            log.info("revision.unknown", file=self.schedule.path, error=revised.problem)
        return revised

    def _is_stopped(self, retired: Sequence[str] = ()) -> bool:
        """Decide what to do with the file; return whether that is not to apply it, and report
        why.
        """
        snapshot, result = self.snapshot, self.result
        result.verdict = verdict = decide(snapshot, self.schedule, bool(retired))
        if verdict is Verdict.UNCONFIRMED:
            log.info(
                "sync.waits",
                file=self.schedule.path,
                hash=self.schedule.sha256[:8],
                retires=names_for_log(retired),
                until="the next tick with this file",
            )
            return True
        if verdict not in (*REFUSED, *WAITS):
            return False
        why = explain(verdict, snapshot, self.schedule)
        result.messages.append(why)
        if verdict is Verdict.OTHER_ENVIRONMENT:
            self._poll(result.namespace, errors=[why])
        if verdict in REFUSED:
            result.has_findings = True
        else:
            waits_since = max(snapshot.has_file_since, snapshot.in_use_since)
            result.has_findings |= snapshot.now - waits_since >= FINDING_AFTER
        return True

    def _note_refusal(self, loaded: Loaded, checked: Checked) -> None:
        """Note that the file is refused; this place keeps the one that it had."""
        errors = [formats.one_line(error) for error in checked.errors] or [
            "the file cannot be read"
        ]
        known = hosts.namespace_of_refused(self.connection, self.schedule, loaded.namespace)
        self._poll(known, errors=errors)
        self.result.verdict = None

    def _refuse(self, loaded: Loaded, checked: Checked) -> None:
        self._note_refusal(loaded, checked)
        self.result.add_findings(*(formats.text(error) for error in checked.errors))
        errors = max(1, len(checked.errors))
        log.error(
            "sync.refused", file=self.schedule.path, hash=self.schedule.sha256[:8], mistakes=errors
        )
        _report_left_out(self.schedule, loaded, checked.jobs, errors)
        if decide(self.snapshot, self.schedule) in REFUSED:
            self._is_stopped()  # nothing is claimed

    def _apply(self, loaded: Loaded, revised: Revision) -> None:
        """Write the definitions and which file is in use, inside the caller's transaction."""
        connection, schedule = self.connection, self.schedule
        version, namespace, in_use = schedule.version, str(loaded.namespace), self.snapshot.in_use
        former = in_use or version
        is_behind = is_older(version.tzdata_version, former.tzdata_version)
        recompute = is_older(former.tzdata_version, version.tzdata_version) or is_older(
            former.yamlsched_version, version.yamlsched_version
        )
        changes = converge.converge(
            connection, namespace, loaded.jobs, loaded.limits, self.now, recompute, is_behind
        )
        targets = loaded.notify.values()
        execute(
            connection,
            "notify.put_targets",
            namespace=namespace,
            names=list(loaded.notify),
            url_envs=[target.url_env for target in targets],
            events=[",".join(target.events) for target in targets],
        )
        if self.result.verdict is Verdict.APPLY:
            retention = plain(loaded.retention)
            hosts.use(
                connection,
                schedule,
                namespace,
                retention,
                loaded.queues,
                revised.shown,
                changes.now,
            )
        else:
            hosts.renew(connection, namespace, version)
        if self.result.verdict is Verdict.APPLY or changes.edits:
            edits.record(connection, schedule, loaded, revised, changes)
        self.result.changes = changes


def claimable_jobs(
    connection: Connection, schedule: ScheduleFile, result: SyncResult
) -> dict[str, Job]:
    """Return the jobs whose runs this host may claim: those whose own entry in its file is valid.

    While the file waits, only those that run the same, in the same queue, in the file in use: a
    service that shares the namespace by mistake may have a job of the same name.
    """
    jobs = result.jobs
    if jobs is None:
        loaded = _load(schedule)
        jobs = result.jobs = loaded.jobs
        result.queues = frozenset(loaded.queues) if loaded.is_readable else None
        _report_left_out(
            schedule, loaded, jobs, sum(entry.severity == "error" for entry in loaded.diagnostics)
        )
    if result.verdict in WAITS and result.namespace is not None:
        same = definitions.same_programs(connection, result.namespace, jobs)
        jobs = {name: jobs[name] for name in same}
    return jobs


def _load(schedule: ScheduleFile) -> Loaded:
    environment = schedule.environment or None
    return load(schedule.data, schedule.path, environment, schedule.included)


def _log_findings(schedule: ScheduleFile, loaded: Loaded) -> None:
    """Log what plugins find. The file is applied all the same: other hosts may not have them."""
    for entry in checks.check_by_plugins(loaded):
        place = {"file": schedule.path, "line": entry.line}
        remedy = entry.remedy or None
        log.warning("file.flagged", **place, code=entry.code, error=entry.message, remedy=remedy)


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
