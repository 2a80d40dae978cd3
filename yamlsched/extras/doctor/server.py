"""What ``doctor`` checks of the server, the connection, the role and the tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from yamlsched.db import migrations
from yamlsched.db.dsn import host_count
from yamlsched.db.migrations import MAX_MAJOR, MIN_MAJOR
from yamlsched.db.query import execute, fetch
from yamlsched.durations import approximate
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.doctor import Check, fail, ok, warn
from yamlsched.runs import effects
from yamlsched.schedule.job import Queue
from yamlsched.service.starts import worker_concurrency

WORKER_SESSIONS = 4
"""Of a worker itself, at most; handlers have up to two more each. See docs/worker.md."""
ZERO = timedelta(0)
MAX_CLOCK_SKEW = timedelta(seconds=5)
MAX_TRANSACTION_AGE = timedelta(hours=1)
REQUIRED_PRIVILEGES = {
    "SELECT": "database_identity migrations",
    "SELECT,INSERT": "edited_jobs edits job_failures operator_actions",
    "SELECT,INSERT,UPDATE": ("attempt_outputs job_definitions namespaces queue_states"),
    "SELECT,INSERT,UPDATE,DELETE": (
        "attempt_progress awaits effects files gates hosts job_days job_runs notifications"
        " notify_targets permits running_outputs skipped_slots used_keys workers"
    ),
}
"""What sync, work and tick need; granted to yamlsched_worker by sql/roles.sql."""


@dataclass(frozen=True)
class ServerInfo:
    """The server, and this session."""

    version: int  # 150018 is 15.18
    version_text: str
    encoding: str
    timezone: str
    is_safe: bool
    is_durable: bool
    is_standby: bool
    is_read_only: bool
    isolation: str  # the default of the role or the database
    pid: int
    now: datetime
    standbys: int
    is_synchronous: bool  # a commit waits for a standby
    oldest_transaction: timedelta | None  # of another session: how long it has been open


@dataclass(frozen=True)
class Role:
    """What the session's role may do."""

    name: str
    is_superuser: bool
    lacks: list[str]  # tables, with the privileges that it lacks on them
    can_read: bool
    can_enqueue: bool


def read_server(connection: psycopg.Connection[Any]) -> ServerInfo:
    [info] = fetch(connection, ServerInfo, "doctor.server")
    return info


def read_role(connection: psycopg.Connection[Any]) -> Role:
    parameters = {
        "tables": list(REQUIRED_PRIVILEGES.values()),
        "privileges": list(REQUIRED_PRIVILEGES),
    }
    [role] = fetch(connection, Role, "doctor.role", **parameters)
    return role


def server(
    connection: psycopg.Connection[Any], host_now: datetime | None = None, dsn: str = ""
) -> Iterator[Check]:
    """Check the server and the connection to it."""
    seen = read_server(connection)
    skew = (host_now or datetime.now(UTC)) - seen.now
    is_pooled = connection.info.backend_pid != seen.pid
    yield version(seen)
    yield from encryption(connection)
    pooled = "a pooler was detected: work --loop polls instead of listening"
    yield ok("pooler", pooled if is_pooled else "none was detected")
    few = "" if is_pooled else migrations.few_connections(connection) or ""
    for is_wrong, check, name, what, remedy in (
        (
            seen.is_standby,
            fail,
            "writable",
            "the server is a standby: nothing can be written",
            "name the primary in the DSN, or all hosts; target_session_attrs=read-write, the"
            " default, finds it",
        ),
        (
            seen.is_read_only and not seen.is_standby,
            fail,
            "writable",
            "transactions are read-only: nothing can be written",
            "remove default_transaction_read_only from the settings of the role or the database",
        ),
        (
            seen.isolation != "read committed",
            warn,
            "isolation",
            f"default_transaction_isolation is {seen.isolation}; statements of yamlsched use read"
            " committed",
            "handlers that use run.transaction() must expect serialization failures, which fail an"
            " attempt",
        ),
        (
            seen.encoding != "UTF8",
            fail,
            "encoding",
            f"the database's encoding is {seen.encoding}",
            "create a database with encoding UTF8: others cannot store every payload; migrate"
            " refuses SQL_ASCII",
        ),
        (
            seen.timezone != "UTC",
            warn,
            "session",
            f"the session's time zone is {seen.timezone} instead of UTC",
            "remove TimeZone from the settings of the role, the database or the pooler",
        ),
        (
            few,
            fail,
            "connections",
            few,
            "raise it: alter role or alter database ... connection limit",
        ),
        (
            not seen.is_safe,
            fail,
            "durability",
            "fsync or full_page_writes is off",
            "turn fsync and full_page_writes on: a server crash can lose the whole database",
        ),
        (
            seen.is_safe and not seen.is_durable,
            warn,
            "durability",
            "synchronous_commit is off",
            "turn it on: a server crash can lose finished runs, and they run again",
        ),
        (
            seen.oldest_transaction and seen.oldest_transaction > MAX_TRANSACTION_AGE,
            warn,
            "transactions",
            f"one has been open for {approximate(seen.oldest_transaction or ZERO)}",
            "find it in pg_stat_activity: until it ends, vacuum cannot remove rows, and claims slow"
            " down",
        ),
        (
            abs(skew) > MAX_CLOCK_SKEW,
            warn,
            "clock",
            f"this host's clock is {approximate(skew)} {'ahead of' if skew > ZERO else 'behind'}"
            " the database's",
            "synchronize it by NTP: slots follow the database's clock, crontab and log lines follow"
            " this host's",
        ),
    ):
        if is_wrong:
            yield check(name, what, remedy)
    if abs(skew) <= MAX_CLOCK_SKEW:
        yield ok("clock", "host and database agree")
    yield from standbys(seen, 1 if is_pooled else host_count(dsn))


def version(seen: ServerInfo) -> Check:
    what = f"PostgreSQL {seen.version_text}"
    if seen.version // 10_000 < MIN_MAJOR:
        remedy = f"upgrade it: versions {MIN_MAJOR} to {MAX_MAJOR} are supported"
        return fail("server", what, remedy)
    if seen.version // 10_000 > MAX_MAJOR:
        return warn("server", f"{what} is newer than what was tested", f"up to {MAX_MAJOR} is")
    return ok("server", what)


def standbys(seen: ServerInfo, hosts: int) -> Iterator[Check]:
    """Check what a failover would lose. ``hosts`` are those that the DSN names."""
    if seen.standbys and not seen.is_synchronous:
        number = f"{seen.standbys} standby{'' if seen.standbys == 1 else 's'}"
        remedy = (
            "a failover loses the last runs, successes and effects: see synchronous_standby_names"
            " in docs/guarantees.md"
        )
        yield warn("standbys", f"{number}, and no commit waits for one", remedy)
    elif seen.standbys:
        yield ok("standbys", f"{seen.standbys}, and commits wait for one")
    elif hosts > 1:
        what = f"the DSN names {hosts} servers, and no standby replicates this one"
        remedy = (
            "make the others its standbys. A former primary must not be reachable while it"
            " accepts writes"
        )
        yield warn("standbys", what, remedy)


def started_workers(
    connection: psycopg.Connection[Any], queues: Mapping[str, Queue]
) -> Iterator[Check]:
    """Check whether the server has connections for all workers that may be started."""
    wanted = sum(
        queue.start.max_workers * (WORKER_SESSIONS + 2 * worker_concurrency(queue))
        for queue in queues.values()
        if queue.start is not None
    )
    if not wanted:
        return
    [row] = execute(connection, "migrations.connections").fetchall()
    most = min(limit for limit in (row.of_server, row.of_role, row.of_database) if limit >= 0)
    what = f"started workers may take {wanted} connections, and the server has {most}"
    if wanted > most:
        remedy = "lower max_workers or concurrency, raise max_connections, or use a pooler"
        yield warn("started workers", what, remedy)
    else:
        yield ok("started workers", what)


def encryption(connection: psycopg.Connection[Any]) -> Iterator[Check]:
    """Check whether the traffic with a server on another host is encrypted."""
    host = connection.info.host
    address = connection.info.hostaddr or host
    if address.startswith(("/", "127.")) or address == "::1":
        return
    mode = (
        connection.info.get_parameters().get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    )
    yield encryption_of(host or address, mode, connection.pgconn.ssl_in_use)


def encryption_of(host: str, mode: str, is_encrypted: bool) -> Check:
    """Check a connection to ``host`` with this sslmode."""
    remedy = "add sslmode=verify-full and sslrootcert=... to the DSN; sslmode=require at least"
    if not is_encrypted:
        return warn(
            "encryption",
            f"the connection to {host} is not encrypted (sslmode={mode})",
            remedy,
        )
    if mode in ("disable", "allow", "prefer"):
        what = f"the connection to {host} is encrypted, but sslmode={mode} allows unencrypted ones"
        return warn("encryption", what, remedy)
    return ok("encryption", f"the connection to {host} is encrypted (sslmode={mode})")


def tables(connection: psycopg.Connection[Any]) -> Check:
    """Check the tables: whether their rows are visible, and their version."""
    checksums = migrations.applied(connection)
    version, own = max(checksums, default=0), migrations.latest_version()
    try:
        must_migrate = migrations.must_migrate(checksums)
    except EnvironmentFailed as error:
        return fail("tables", str(error), "use the same version of yamlsched as the other hosts")
    if must_migrate:
        what = f"version {version} of {own}" if version else "none yet"
        return fail("tables", what, "yamlsched migrate")
    if read_role(connection).can_read and effects.read_identity(connection) is None:
        remedy = "yamlsched db identity --new, or restore the row of yamlsched.database_identity"
        return fail("tables", f"version {version}, but the database has no identity", remedy)
    return ok("tables", f"version {version}")


def privileges(connection: psycopg.Connection[Any]) -> Check:
    """Check the privileges of the role."""
    role = read_role(connection)
    if role.lacks and role.can_read:
        remedy = (
            "enough for status, runs, show and metrics; sync, work and tick need a login in"
            " yamlsched_worker"
        )
        return warn("role", f"{role.name} can only read", remedy)
    if role.lacks and role.can_enqueue:
        what = f"{role.name} can only enqueue: it is missing {', '.join(role.lacks[:2])} and more"
        remedy = "enough for enqueueing; sync, work and tick need a login in yamlsched_worker"
        return fail("role", what, remedy)
    if role.lacks:
        what = (
            f"{role.name} is missing"
            f" {', '.join(role.lacks[:3])}{' and more' if len(role.lacks) > 3 else ''}"
        )
        remedy = (
            f"grant yamlsched_worker to {role.name} (yamlsched migrate --roles makes that role)"
        )
        return fail("role", what, remedy)
    if role.is_superuser:
        remedy = (
            "yamlsched migrate --roles prints the script: grant yamlsched_worker to a role of"
            " its own"
        )
        return warn("role", f"{role.name} is a superuser, which yamlsched does not need", remedy)
    return ok("role", f"{role.name} has the privileges that sync, work and tick need")
