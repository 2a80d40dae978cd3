"""A self-check of the setup: each check says what was found and, if that is not ok, what to do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import tzdata  # type: ignore[import-untyped]

from yamlsched import db
from yamlsched.act.prune import ArchiveFailed, probe
from yamlsched.ask import attention, health, history
from yamlsched.ask.problem import Thresholds
from yamlsched.cli._settings import Settings
from yamlsched.db import migrations
from yamlsched.durations import approximate
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.doctor import Check, fail, ok, server, warn
from yamlsched.schedule import checks, include
from yamlsched.schedule import file as schedule_file
from yamlsched.schedule.findings import Findings, is_suppressed
from yamlsched.schedule.load import Loaded, load_file
from yamlsched.schedule.lookup import Sources
from yamlsched.schedule.paths import import_path
from yamlsched.schedule.source import Diagnostic
from yamlsched.service.start_commands import find_program
from yamlsched.sync import in_use, revision

MAX_TICK_AGE = Thresholds().max_tick_age
CHECKS = {
    "lack": ("hosts", warn),
    "start": ("queues", warn),
    "slots": ("slots", fail),
    "prune": ("pruning", fail),
}
"""The names of checks, and their results, by the kind of problem of ``status`` that they report."""


def schedule(
    file: Path, environment: str | None, paths: Sequence[str] = (), must_exist: bool = False
) -> tuple[Loaded | None, list[Check]]:
    """Check the file and its handlers, without importing them; ``paths`` are further folders with
    handlers.
    """
    if not file.is_file():
        remedy = "run doctor beside schedules.yaml, pass --file, or start with: yamlsched init"
        return None, [
            Check("file", "fail" if must_exist else "warn", f"{file} does not exist", remedy)
        ]
    loaded = load_file(file, environment)
    if count := sum(diagnostic.severity == "error" for diagnostic in loaded.diagnostics):
        what = f"{file} has {count} error{'' if count == 1 else 's'}"
        return loaded, [fail("file", what, "yamlsched validate")]
    enabled = sum(job.enabled for job in loaded.jobs.values())
    if loaded.jobs and not enabled:
        remedy = "set --env or YAMLSCHED_ENV, in the crontab too"
        if environment:
            remedy = "check the keys environments and enabled"
        results = [warn("file", f"{file}: none of the jobs is enabled here", remedy)]
    else:
        place = f" in environment {environment}" if environment else ""
        results = [ok("file", f"{file}: {enabled} of {len(loaded.jobs)} jobs enabled{place}")]
    results += commit(file)
    findings = Findings(loaded.source)
    checks.check_handlers(loaded, file, Sources(import_path(file, loaded.paths, paths)), findings)
    errors = [one for one in findings.diagnostics() if one.severity == "error"]
    results.append(summary("handlers", "all are found", errors))
    return loaded, [*results, *starts(loaded, file)]


def starts(loaded: Loaded, file: Path) -> Iterator[Check]:
    """Check whether this host has the programs that start workers."""
    for name, queue in loaded.queues.items():
        if queue.start is None:
            continue
        program = queue.start.command[0]
        if find_program(program, Path(os.path.realpath(file)).parent):
            yield ok(f"start of {name}", f"{program} is found")
        else:
            what = f"{program} is not found, so this host starts no workers of queue {name}"
            yield warn(f"start of {name}", what, "install it here, or on another host")


def summary(name: str, what: str, diagnostics: list[Diagnostic]) -> Check:
    """Return one check for what was found, without what comments in the file suppress."""
    left = [diagnostic for diagnostic in diagnostics if not is_suppressed(diagnostic)]
    if not left:
        return ok(name, what)
    count = f"{len(left)} problems, the first: " if len(left) > 1 else ""
    return fail(name, f"{count}{left[0].message}", left[0].remedy)


def commit(file: Path) -> list[Check]:
    """Return which commit a sync of the file would record; nothing for a file without one, outside
    of a repository.
    """
    data, included = include.read(file)
    recorded = revision.read(str(file), data, os.environ, included)
    if recorded.problem:
        what = "edits are recorded without commit and author"
        return [warn("commit", what, recorded.problem)]
    if recorded.commit is None:
        return []
    differs = ": the file has changes that are not committed, so the edit would have no author"
    by = f" by {recorded.author}" if recorded.author else ""
    return [ok("commit", f"{recorded.shown}{differs if recorded.is_dirty else by}")]


def database(settings: Settings, is_valid: bool, loaded: Loaded | None) -> Iterator[Check]:
    """Check the database, up to the first check after which no other can pass.

    ``is_valid`` says whether sync would accept the file.
    """
    file, is_embedded, named = settings.file, settings.is_embedded, None
    try:
        with settings.database() as dsn, db.connect(dsn) as connection:
            embedded = "the embedded database, for trials and development"
            other = "connected to a server, not to the embedded database"
            yield ok("database", embedded if is_embedded else other)
            yield from server.server(connection, dsn=dsn)
            yield from server.started_workers(connection, loaded.queues if loaded else {})
            if is_embedded:
                with suppress(migrations.WrongTables):  # of another version: reported next
                    migrations.ensure_usable(connection, apply=True)
            for check in (server.tables,) if is_embedded else (server.tables, server.privileges):
                result = check(connection)
                yield result
                if result.level == "fail":
                    return
            try:
                if settings.namespace is None and file.is_file():
                    named = history.namespace_in_file(file)
                namespace = history.namespace_of(connection, settings.namespace, file)
            except Refused as error:
                yield warn("namespace", str(error), "pass --namespace")
                return
            now = health.read(connection, namespace, Thresholds().within, [])
            if named not in (None, namespace):
                yield moved(now, named, socket.gethostname())
            yield ticking(now, socket.gethostname())
            own = schedule_file.digest(*include.read(file)) if file.is_file() else None
            yield from files(now, str(tzdata.IANA_VERSION), own, is_valid, settings.env or "")
            yield from problems(now)
    except EnvironmentFailed as error:
        yield fail(
            "database", str(error), "check YAMLSCHED_DSN, its password, the network and pg_hba.conf"
        )


def problems(now: health.Health) -> Iterator[Check]:
    """Report those problems of ``status`` whose cause is the setup."""
    for problem in attention.problems(now, Thresholds()):
        if problem.kind in CHECKS:
            name, report = CHECKS[problem.kind]
            yield report(name, problem.what, problem.remedy)


def moved(now: health.Health, named: str, host: str) -> Check:
    """Report that this host was moved to another namespace than its file's: ticks must name it
    since then.
    """
    is_ticking = (
        now.last_tick_host == host
        and now.last_tick_at
        and now.now - now.last_tick_at <= MAX_TICK_AGE
    )
    what = (
        f'this host uses the file for "{now.namespace}": its ticks without --namespace are refused'
    )
    remedy = (
        f"pass --namespace {now.namespace} in the crontab, or go back: yamlsched sync --namespace"
        f" {named}"
    )
    return Check("namespace", "warn" if is_ticking else "fail", what, remedy)


def ticking(now: health.Health, host: str) -> Check:
    """Check whether the crontab line runs."""
    remedy = "yamlsched init prints the crontab line; its output goes to syslog"
    if now.last_tick_at is None:
        return warn("ticks", f'there has been no tick in namespace "{now.namespace}"', remedy)
    age = now.now - now.last_tick_at
    if age > MAX_TICK_AGE:
        return fail(
            "ticks", f"the last was {approximate(age)} ago, by {now.last_tick_host}", remedy
        )
    own = any(place.startswith(f"{host}:") for file in now.files for place in file.places)
    elsewhere = "" if own else f"; none from this host ({host})"
    return ok("ticks", f"the last was {approximate(age)} ago, by {now.last_tick_host}{elsewhere}")


def files(
    now: health.Health,
    tzdata: str,
    sha256: str | None,
    is_valid: bool = True,
    environment: str = "",
) -> Iterator[Check]:
    """Check which file is in use, and with which time zone data its slots were computed.

    ``sha256`` is the hash of this host's file; ``is_valid`` says whether sync would accept it.
    """
    yield file_in_use(now, sha256, is_valid, environment)
    computed = now.file_in_use.tzdata_version if now.file_in_use else None
    if computed and tzdata < computed:
        what = f"this host has {tzdata}, the slots were computed with {computed}"
        yield warn("time zones", what, "pip install --upgrade tzdata")
    else:
        yield ok("time zones", f"data of {tzdata}")


def archive(loaded: Loaded, file: Path) -> Iterator[Check]:
    """Check whether this host can write to the archive of the file."""
    if (folder := loaded.retention.archive) is None:
        return
    place = file.resolve().parent / folder
    try:
        probe(place)
    except ArchiveFailed as error:
        remedy = (
            "create it, free space, or make it writable for the user of the crontab only. Nothing"
            " is pruned until then"
        )
        yield fail("archive", str(error), remedy)
    else:
        yield ok("archive", f"{place} can be written")


def file_in_use(now: health.Health, sha256: str | None, is_valid: bool, environment: str) -> Check:
    current = now.file_in_use
    if current is None:
        remedy = (
            "yamlsched sync, or wait for the next tick"
            if is_valid
            else "fix the file first: yamlsched validate"
        )
        return warn("in use", "no schedule has been applied yet", remedy)
    if environment != current.environment:
        what = (
            f"the namespace belongs to {in_use.environment(current.environment)}, and this is"
            f" {in_use.environment(environment)}: nothing is run here"
        )
        return warn(
            "in use",
            what,
            "correct --env, or use a separate namespace for each environment",
        )
    if sha256 is not None and sha256 != current.hash:
        what = f"not this file, but {current.hash[:8]}, applied by {current.applied_by}"
        remedy = "yamlsched plan shows what differs; yamlsched sync applies this file"
        if not is_valid:
            remedy = "this file is not applied until its errors are fixed: yamlsched validate"
        return warn("in use", what, remedy)
    if others := now.drift:
        what = f"this file; but {others[0].first_places} has {others[0].hash[:8]}"
        return warn("in use", what, "deploy the same version to all hosts")
    return ok("in use", f"{current.hash[:8]}, applied by {current.applied_by}")
