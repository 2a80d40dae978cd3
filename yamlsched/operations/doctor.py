"""A self-check of the set-up: each finding says what was seen and, unless all is well, what to do."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from yamlsched.definitions.load import Loaded
from yamlsched.durations import approximate
from yamlsched.errors import EnvironmentFailed
from yamlsched.operations import health
from yamlsched.store import doctor, migrations
from yamlsched.store.migrations import MAX_MAJOR, MIN_MAJOR

MAX_CLOCK_SKEW = timedelta(seconds=5)
MAX_TICK_AGE = timedelta(minutes=5)
"""A crontab line ticks each minute; after five without a tick it does not."""


@dataclass(frozen=True)
class Check:
    """One line. ``level`` is ok, warn or fail; only fail makes the whole unhealthy."""

    name: str
    level: str
    what: str
    remedy: str = ""


def schedule(file: Path, environment: str | None) -> tuple[Loaded | None, list[Check]]:
    """Look at the file and at its handlers, without importing them."""
    from yamlsched.definitions import checks, paths, schedule_file
    from yamlsched.definitions.load import load
    from yamlsched.definitions.schema import editor_copy

    if not file.is_file():
        what = f"{file} does not exist"
        return None, [
            Check("file", "warn", what, "run it beside schedules.yaml, pass --file, or start with: yamlsched init")
        ]
    loaded = load(schedule_file.read(file), str(file), environment)
    mistakes = sum(diagnostic.severity == "error" for diagnostic in loaded.diagnostics)
    if mistakes:
        what = f"{file} has {mistakes} error{'' if mistakes == 1 else 's'}"
        return loaded, [Check("file", "fail", what, "yamlsched validate")]
    place = f" in environment {environment}" if environment else ""
    found = [Check("file", "ok", f"{file}: {_enabled(loaded)} of {len(loaded.jobs)} jobs enabled{place}")]
    if loaded.jobs and not _enabled(loaded):
        remedy = (
            "set --env or YAMLSCHED_ENV, in the crontab too"
            if not environment
            else "check the keys environments and enabled"
        )
        found = [Check("file", "warn", f"{file}: none of the jobs is enabled here", remedy)]
    found += [Check("schema", "warn", one.message, one.remedy) for one in editor_copy.check(loaded, file)]
    missing = checks.check_handlers(loaded, file, paths.import_path(file, loaded.paths))
    if missing:
        what = f"{len(missing)} cannot be found or called, the first: {missing[0].message}"
        found.append(Check("handlers", "fail", what, "yamlsched validate"))
    else:
        found.append(Check("handlers", "ok", "all are found"))
    return loaded, found


def _enabled(loaded: Loaded) -> int:
    return sum(job.enabled for job in loaded.jobs.values())


def server(connection: psycopg.Connection[Any], host_now: datetime | None = None) -> Iterator[Check]:
    """Look at the server and the way to it."""
    before = host_now or datetime.now(UTC)
    seen = doctor.server(connection)
    half_way = (datetime.now(UTC) - before) / 2 if host_now is None else timedelta(0)
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
    skew = before + half_way - seen.now
    if abs(skew) > MAX_CLOCK_SKEW:
        ahead = "ahead of" if skew > timedelta(0) else "behind"
        remedy = "synchronize it by NTP: slots follow the database's clock, crontab and log lines follow this host's"
        yield Check("clock", "warn", f"this host's clock is {approximate(skew)} {ahead} the database's", remedy)
    else:
        yield Check("clock", "ok", "host and database agree")
    oldest = doctor.oldest_transaction(connection)
    if oldest is not None and oldest > 3600:
        remedy = "find it in pg_stat_activity: until it ends, vacuum cannot remove rows, and claims slow down"
        yield Check("transactions", "warn", f"one has been open for {approximate(timedelta(seconds=oldest))}", remedy)


def encryption(connection: psycopg.Connection[Any]) -> Iterator[Check]:
    """Look at whether anybody on the network between can read or change what is said."""
    host = connection.info.host or connection.info.hostaddr
    if host.startswith("/") or _is_loopback(connection.info.hostaddr or host):
        return
    mode = connection.info.get_parameters().get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    yield encryption_of(host, mode, connection.pgconn.ssl_in_use)


def encryption_of(host: str, mode: str, is_encrypted: bool) -> Check:
    """Return what a connection to ``host`` under this sslmode is worth."""
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
    """Look at the version of the tables."""
    found = migrations.applied_version(connection)
    try:
        if (
            migrations.is_current(found, apply=True)
            and doctor.can_read(connection)
            and not doctor.has_identity(connection)
        ):
            remedy = "yamlsched db identity --new, or restore the row of yamlsched.database_identity"
            return Check("tables", "fail", f"version {found}, but the database has no identity", remedy)
        if migrations.is_current(found, apply=True):
            return Check("tables", "ok", f"version {found}")
    except EnvironmentFailed as error:
        return Check("tables", "fail", str(error), "use the same version of yamlsched as the other hosts")
    what = "none yet" if found == 0 else f"version {found} of {migrations.latest_version()}"
    return Check("tables", "fail", what, "yamlsched migrate")


def privileges(connection: psycopg.Connection[Any]) -> Check:
    """Look at what the role may do."""
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


def ticking(now: health.Health, host: str) -> Check:
    """Look at whether the crontab line runs."""
    remedy = "yamlsched init prints the crontab line; its output goes to syslog"
    if now.last_tick_at is None:
        return Check("ticks", "warn", f'there has been no tick in namespace "{now.namespace}"', remedy)
    age = now.now - now.last_tick_at
    if age > MAX_TICK_AGE:
        return Check("ticks", "fail", f"the last was {approximate(age)} ago, by {now.last_tick_host}", remedy)
    own = any(place.startswith(f"{host}:") for file in now.files for place in file.presented_by)
    elsewhere = "" if own else f"; none from this host ({host})"
    return Check("ticks", "ok", f"the last was {approximate(age)} ago, by {now.last_tick_host}{elsewhere}")


def files(now: health.Health, tzdata: str, sha256: str | None, is_valid: bool = True) -> Iterator[Check]:
    """Look at which file is in force, and which time zone data it was read with.

    ``sha256`` is of this host's file, and ``is_valid`` says whether sync would take it.
    """
    current = health.in_force(now)
    if current is None:
        remedy = "yamlsched sync, or wait for the next tick" if is_valid else "fix the file first: yamlsched validate"
        yield Check("in force", "warn", "no schedule has been applied yet", remedy)
    elif sha256 is not None and sha256 != current.hash:
        what = f"not this file, but {current.hash[:8]}, applied by {current.applied_by}"
        remedy = "yamlsched plan shows what differs; yamlsched sync applies this file"
        if not is_valid:
            remedy = "this file is not applied until its errors are fixed: yamlsched validate"
        yield Check("in force", "warn", what, remedy)
    else:
        others = health.drift(now)
        if others:
            what = f"this file; but {', '.join(others[0].presented_by[:3])} presents {others[0].hash[:8]}"
            yield Check("in force", "warn", what, "deploy the same version to all hosts")
        else:
            yield Check("in force", "ok", f"{current.hash[:8]}, applied by {current.applied_by}")
    if current is not None and current.tzdata_version is not None and tzdata < current.tzdata_version:
        what = f"this host has {tzdata}, the slots were computed with {current.tzdata_version}"
        yield Check("time zones", "warn", what, "pip install --upgrade tzdata")
    else:
        yield Check("time zones", "ok", f"data of {tzdata}")
