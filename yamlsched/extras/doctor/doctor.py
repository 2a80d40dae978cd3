"""A self-check of the setup: each check says what was found and, if that is not ok, what to do."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from yamlsched import db
from yamlsched.act.prune import ArchiveFailed, probe
from yamlsched.ask import health, history
from yamlsched.ask.attention import Thresholds
from yamlsched.db import migrations
from yamlsched.db.dsn import host_count
from yamlsched.db.migrations import MAX_MAJOR, MIN_MAJOR
from yamlsched.durations import approximate
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.doctor import server as doctor

if TYPE_CHECKING:
    from yamlsched.schedule.load import Loaded

MAX_CLOCK_SKEW = timedelta(seconds=5)
MAX_TICK_AGE = timedelta(minutes=5)
"""A crontab line ticks each minute. After five minutes without a tick, it does not run."""
MAX_TRANSACTION_AGE = timedelta(hours=1)


@dataclass(frozen=True)
class Check:
    """The result of one check. ``level`` is ok, warn or fail; only fail makes the setup unhealthy."""

    name: str
    level: str
    what: str
    remedy: str = ""


def schedule(
    file: Path, environment: str | None, paths: Sequence[str] = (), must_exist: bool = False
) -> tuple[Loaded | None, list[Check]]:
    """Check the file and its handlers, without importing them; ``paths`` are further folders with handlers."""
    from yamlsched.schedule import checks
    from yamlsched.schedule import file as schedule_file
    from yamlsched.schedule.load import load
    from yamlsched.schedule.paths import import_path

    if not file.is_file():
        remedy = "run doctor beside schedules.yaml, pass --file, or start with: yamlsched init"
        return None, [Check("file", "fail" if must_exist else "warn", f"{file} does not exist", remedy)]
    loaded = load(schedule_file.read(file), str(file), environment)
    errors = sum(diagnostic.severity == "error" for diagnostic in loaded.diagnostics)
    if errors:
        what = f"{file} has {errors} error{'' if errors == 1 else 's'}"
        return loaded, [Check("file", "fail", what, "yamlsched validate")]
    enabled = sum(job.enabled for job in loaded.jobs.values())
    if loaded.jobs and not enabled:
        wrong_environment = "check the keys environments and enabled"
        remedy = wrong_environment if environment else "set --env or YAMLSCHED_ENV, in the crontab too"
        found = [Check("file", "warn", f"{file}: none of the jobs is enabled here", remedy)]
    else:
        place = f" in environment {environment}" if environment else ""
        found = [Check("file", "ok", f"{file}: {enabled} of {len(loaded.jobs)} jobs enabled{place}")]
    found += commit(file)
    found += [Check("schema", "warn", one.message, one.remedy) for one in checks.check_editor_copy(loaded, file)]
    diagnostics = checks.check_handlers(loaded, file, import_path(file, loaded.paths, paths))
    missing = [diagnostic.message for diagnostic in diagnostics if diagnostic.severity == "error"]
    if missing:
        what = f"{len(missing)} cannot be found or called, the first: {missing[0]}"
        return loaded, [*found, Check("handlers", "fail", what, "yamlsched validate")]
    return loaded, [*found, Check("handlers", "ok", "all are found")]


def commit(file: Path) -> list[Check]:
    """Return which commit a sync of the file would record; nothing for a file without one, outside of a repository."""
    from yamlsched.sync import revision

    found = revision.read(str(file), file.read_bytes(), os.environ)
    if found.problem:
        what = f"{found.problem}, so edits are recorded without commit and author"
        return [Check("commit", "warn", what, found.remedy)]
    if found.commit is None:
        return []
    differs = ": the file has changes that are not committed, so the edit would have no author"
    by = f" by {found.author}" if found.author else ""
    return [Check("commit", "ok", f"{found.shown}{differs if found.is_dirty else by}")]


def database(
    opened: AbstractContextManager[str],
    is_embedded: bool,
    namespace: str | None,
    file: Path,
    environment: str | None,
    is_valid: bool,
) -> Iterator[Check]:
    """Check the database whose DSN ``opened`` gives, up to the first check after which no other can pass.

    ``is_valid`` says whether sync would accept ``file``.
    """
    import tzdata  # type: ignore[import-untyped]

    try:
        with opened as dsn, db.connect(dsn) as connection:
            embedded = "the embedded database, for trials and development"
            yield Check(
                "database", "ok", embedded if is_embedded else "connected to a server, not to the embedded database"
            )
            yield from server(connection, dsn=dsn)
            if is_embedded:
                migrations.ensure_usable(connection, apply=True)
            for check in (tables,) if is_embedded else (tables, privileges):
                found = check(connection)
                yield found
                if found.level == "fail":
                    return
            given = namespace
            try:
                namespace = history.namespace_of(connection, given, file)
                named = history.namespace_in_file(file) if given is None and file.is_file() else namespace
            except Refused as error:
                yield Check("namespace", "warn", str(error), "pass --namespace")
                return
            now = health.read(connection, namespace, Thresholds().within, [])
            if named != namespace:
                yield moved(now, named, socket.gethostname())
            yield ticking(now, socket.gethostname())
            own = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
            yield from files(now, str(tzdata.IANA_VERSION), own, is_valid, environment or "")
            yield from pruning(now)
            yield from lacks(now)
    except EnvironmentFailed as error:
        yield Check("database", "fail", str(error), "check YAMLSCHED_DSN, the network and pg_hba.conf")


def lacks(now: health.Health) -> Iterator[Check]:
    """Report which hosts cannot start which jobs."""
    for host in now.lacks:
        remedy = "no other host can start it either" if host.is_everywhere else "its runs go to other hosts"
        if host.executor is not None:
            remedy += ", and its workers try again"
        yield Check("hosts", "warn", health.lack(host), remedy)


def server(connection: psycopg.Connection[Any], host_now: datetime | None = None, dsn: str = "") -> Iterator[Check]:
    """Check the server and the connection to it."""
    before = host_now or datetime.now(UTC)
    seen = doctor.server(connection)
    round_trip_half = (datetime.now(UTC) - before) / 2 if host_now is None else timedelta(0)
    major = seen.version // 10_000
    if major < MIN_MAJOR:
        remedy = f"upgrade it: versions {MIN_MAJOR} to {MAX_MAJOR} are supported"
        yield Check("server", "fail", f"PostgreSQL {seen.version_text}", remedy)
    elif major > MAX_MAJOR:
        yield Check(
            "server", "warn", f"PostgreSQL {seen.version_text} is newer than what was tested", f"up to {MAX_MAJOR} is"
        )
    else:
        yield Check("server", "ok", f"PostgreSQL {seen.version_text}")
    if seen.is_standby:
        remedy = "name the primary in the DSN, or all hosts; target_session_attrs=read-write, the default, finds it"
        yield Check("writable", "fail", "the server is a standby: nothing can be written", remedy)
    elif seen.is_read_only:
        remedy = "remove default_transaction_read_only from the settings of the role or the database"
        yield Check("writable", "fail", "transactions are read-only: nothing can be written", remedy)
    yield from encryption(connection)
    if seen.isolation != "read committed":
        what = f"default_transaction_isolation is {seen.isolation}; statements of yamlsched use read committed"
        remedy = "handlers that use run.transaction() must expect serialization failures, which fail an attempt"
        yield Check("isolation", "warn", what, remedy)
    if seen.encoding == "SQL_ASCII":
        remedy = "create a database with encoding UTF8: migrate refuses SQL_ASCII, which does not validate text"
        yield Check("encoding", "fail", "the database's encoding is SQL_ASCII", remedy)
    elif seen.encoding != "UTF8":
        remedy = "create the database with encoding UTF8: other encodings cannot store every payload"
        yield Check("encoding", "fail", f"the database's encoding is {seen.encoding}", remedy)
    if seen.timezone != "UTC":
        remedy = "remove TimeZone from the settings of the role, the database or the pooler"
        yield Check("session", "warn", f"the session's time zone is {seen.timezone} instead of UTC", remedy)
    if connection.info.backend_pid != seen.pid:
        yield Check("pooler", "ok", "a pooler was detected: work --loop polls instead of listening")
    else:
        yield Check("pooler", "ok", "none was detected")
    if not seen.is_safe:
        remedy = "turn fsync and full_page_writes on: a server crash can lose the whole database"
        yield Check("durability", "fail", "fsync or full_page_writes is off", remedy)
    elif not seen.is_durable:
        remedy = "turn it on: a server crash can lose finished runs, and they run again"
        yield Check("durability", "warn", "synchronous_commit is off", remedy)
    standbys = doctor.standbys(connection)
    if standbys.count and not standbys.is_synchronous:
        what = f"{standbys.count} standby{'' if standbys.count == 1 else 's'}, and no commit waits for one"
        remedy = (
            "a failover loses the last commits: enqueued runs, successes, effects (docs/guarantees.md). Set "
            "synchronous_standby_names if that is not acceptable"
        )
        yield Check("standbys", "warn", what, remedy)
    elif standbys.count:
        yield Check("standbys", "ok", f"{standbys.count}, and commits wait for one")
    elif connection.info.backend_pid == seen.pid and (hosts := host_count(dsn)) > 1:
        remedy = "start the others as its standbys. One that is writable again by itself must not be reachable"
        yield Check("standbys", "warn", f"the DSN names {hosts} servers, and no standby replicates this one", remedy)
    skew = before + round_trip_half - seen.now
    if abs(skew) > MAX_CLOCK_SKEW:
        ahead = "ahead of" if skew > timedelta(0) else "behind"
        remedy = "synchronize it by NTP: slots follow the database's clock, crontab and log lines follow this host's"
        yield Check("clock", "warn", f"this host's clock is {approximate(skew)} {ahead} the database's", remedy)
    else:
        yield Check("clock", "ok", "host and database agree")
    oldest = doctor.oldest_transaction(connection)
    if oldest is not None and oldest > MAX_TRANSACTION_AGE:
        remedy = "find it in pg_stat_activity: until it ends, vacuum cannot remove rows, and claims slow down"
        yield Check("transactions", "warn", f"one has been open for {approximate(oldest)}", remedy)


def encryption(connection: psycopg.Connection[Any]) -> Iterator[Check]:
    """Check whether the traffic with a server on another host is encrypted."""
    host = connection.info.host or connection.info.hostaddr
    if host.startswith("/") or _is_loopback(connection.info.hostaddr or host):
        return
    mode = connection.info.get_parameters().get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    yield encryption_of(host, mode, connection.pgconn.ssl_in_use)


def encryption_of(host: str, mode: str, is_encrypted: bool) -> Check:
    """Check a connection to ``host`` with this sslmode."""
    remedy = "add sslmode=verify-full and sslrootcert=... to the DSN; sslmode=require at least"
    if not is_encrypted:
        return Check("encryption", "warn", f"the connection to {host} is not encrypted (sslmode={mode})", remedy)
    if mode in ("disable", "allow", "prefer"):
        what = f"the connection to {host} is encrypted, but sslmode={mode} accepts one that is not"
        return Check("encryption", "warn", what, remedy)
    return Check("encryption", "ok", f"the connection to {host} is encrypted (sslmode={mode})")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tables(connection: psycopg.Connection[Any]) -> Check:
    """Check the version of the tables."""
    found, own = migrations.applied(connection), migrations.latest_version()
    try:
        must_migrate = migrations.must_migrate(found, apply=True)
        migrations.refuse_changed(found.checksums)
    except EnvironmentFailed as error:
        return Check("tables", "fail", str(error), "use the same version of yamlsched as the other hosts")
    if must_migrate:
        what = "none yet" if found.version == 0 else f"version {found.version} of {own}"
        return Check("tables", "fail", what, "yamlsched migrate")
    if doctor.can_read(connection) and not doctor.has_identity(connection):
        remedy = "yamlsched db identity --new, or restore the row of yamlsched.database_identity"
        return Check("tables", "fail", f"version {found.version}, but the database has no identity", remedy)
    if found.version > own:
        what = f"version {found.version}, of a newer yamlsched; they support version {own}, that of this host"
        return Check("tables", "warn", what, "upgrade yamlsched on this host too")
    return Check("tables", "ok", f"version {found.version}")


def privileges(connection: psycopg.Connection[Any]) -> Check:
    """Check the privileges of the role."""
    who, lacks = doctor.server(connection), doctor.missing_privileges(connection)
    if lacks:
        what = f"{who.who} lacks {', '.join(lacks[:3])}{' and more' if len(lacks) > 3 else ''}"
        if doctor.can_read(connection):
            remedy = "enough for status, runs, show and metrics; sync, work and tick need a login in yamlsched_worker"
            return Check("role", "warn", f"{who.who} can only read", remedy)
        if doctor.can_enqueue(connection):
            what = f"{who.who} can only enqueue: it lacks {', '.join(lacks[:2])} and more"
            remedy = "enough for enqueueing; sync, work and tick need a login in yamlsched_worker"
            return Check("role", "fail", what, remedy)
        return Check(
            "role", "fail", what, f"grant yamlsched_worker to {who.who} (yamlsched migrate --roles makes that role)"
        )
    if who.is_superuser:
        remedy = "yamlsched migrate --roles prints the script: grant yamlsched_worker to a role of its own"
        return Check("role", "warn", f"{who.who} is a superuser, which yamlsched does not need", remedy)
    return Check("role", "ok", f"{who.who} has the privileges that sync, work and tick need")


def moved(now: health.Health, named: str, host: str) -> Check:
    """Report that this host was moved to another namespace than its file's: ticks must name it since then."""
    is_ticking = (
        now.last_tick_at is not None and now.last_tick_host == host and now.now - now.last_tick_at <= MAX_TICK_AGE
    )
    what = f'this host presents the file for "{now.namespace}": its ticks without --namespace are refused'
    remedy = f"pass --namespace {now.namespace} in the crontab, or go back: yamlsched sync --namespace {named}"
    return Check("namespace", "warn" if is_ticking else "fail", what, remedy)


def ticking(now: health.Health, host: str) -> Check:
    """Check whether the crontab line runs."""
    remedy = "yamlsched init prints the crontab line; its output goes to syslog"
    if now.last_tick_at is None:
        return Check("ticks", "warn", f'there has been no tick in namespace "{now.namespace}"', remedy)
    age = now.now - now.last_tick_at
    if age > MAX_TICK_AGE:
        return Check("ticks", "fail", f"the last was {approximate(age)} ago, by {now.last_tick_host}", remedy)
    own = any(place.startswith(f"{host}:") for file in now.files for place in file.presented_by)
    elsewhere = "" if own else f"; none from this host ({host})"
    return Check("ticks", "ok", f"the last was {approximate(age)} ago, by {now.last_tick_host}{elsewhere}")


def files(
    now: health.Health, tzdata: str, sha256: str | None, is_valid: bool = True, environment: str | None = None
) -> Iterator[Check]:
    """Check which file is in force, and with which time zone data its slots were computed.

    ``sha256`` is the hash of this host's file; ``is_valid`` says whether sync would accept it.
    """
    yield in_force(now, sha256, is_valid, environment)
    current = health.in_force(now)
    if current is not None and current.tzdata_version is not None and tzdata < current.tzdata_version:
        what = f"this host has {tzdata}, the slots were computed with {current.tzdata_version}"
        yield Check("time zones", "warn", what, "pip install --upgrade tzdata")
    else:
        yield Check("time zones", "ok", f"data of {tzdata}")


def pruning(now: health.Health) -> Iterator[Check]:
    """Check whether old rows are deleted."""
    if (current := health.in_force(now)) is not None and (what := health.pruning(current)):
        yield Check(
            "pruning", "fail", what, "free space, or correct the folder or retention.archive, then: yamlsched prune"
        )


def archive(loaded: Loaded, file: Path) -> Iterator[Check]:
    """Check whether this host can write to the archive of the file."""
    if (folder := loaded.retention.archive) is None:
        return
    place = file.resolve().parent / folder
    try:
        probe(place)
    except ArchiveFailed as error:
        remedy = (
            "create it, free space, or let only the user of the crontab line write there: until then nothing is pruned"
        )
        yield Check("archive", "fail", str(error), remedy)
    else:
        yield Check("archive", "ok", f"{place} can be written")


def in_force(now: health.Health, sha256: str | None, is_valid: bool, environment: str | None) -> Check:
    current = health.in_force(now)
    if current is None:
        remedy = "yamlsched sync, or wait for the next tick" if is_valid else "fix the file first: yamlsched validate"
        return Check("in force", "warn", "no schedule has been applied yet", remedy)
    if environment is not None and environment != current.environment:
        here = f'environment "{environment}"' if environment else "no environment"
        what = f"the namespace belongs to {health.environment(current)}, and this is {here}: nothing is run here"
        return Check("in force", "warn", what, "correct --env, or use a separate namespace for each environment")
    if sha256 is not None and sha256 != current.hash:
        what = f"not this file, but {current.hash[:8]}, applied by {current.applied_by}"
        remedy = "yamlsched plan shows what differs; yamlsched sync applies this file"
        if not is_valid:
            remedy = "this file is not applied until its errors are fixed: yamlsched validate"
        return Check("in force", "warn", what, remedy)
    if others := health.drift(now):
        what = f"this file; but {health.first_places(others[0])} presents {others[0].hash[:8]}"
        return Check("in force", "warn", what, "deploy the same version to all hosts")
    return Check("in force", "ok", f"{current.hash[:8]}, applied by {current.applied_by}")
