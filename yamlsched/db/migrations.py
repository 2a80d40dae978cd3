"""The versions of the tables: which exist, which are applied, and applying them.

Version 1 is ``sql/schema.sql``. Each ``sql/migrations/NNNN_what.sql``, from 0002 on, makes the next
one. A yamlsched works with the tables of its own version only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import psycopg

from yamlsched.db.query import execute, sql_folder
from yamlsched.errors import EnvironmentFailed

MIN_MAJOR, MAX_MAJOR = 13, 18
"""Supported major versions of PostgreSQL."""
MIN_CONNECTIONS = 3
"""Sessions of a worker without those of its handlers: to claim, to write outcomes, and to renew
leases.
"""


class WrongTables(EnvironmentFailed):
    """The tables are missing, or not those that this yamlsched works with."""


class NewerTables(WrongTables):
    """A newer yamlsched has migrated the tables."""


class Migration(NamedTuple):
    """``sql/schema.sql``, or a numbered file of ``sql/migrations``."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def all_migrations() -> list[Migration]:
    """Return all migrations in the order in which they are applied."""
    folder = sql_folder()
    files = {"0001_schema": folder / "schema.sql"}
    files |= {path.stem: path for path in sorted((folder / "migrations").glob("[0-9]*.sql"))}
    return [Migration(int(name[:4]), name, path.read_text("utf-8")) for name, path in files.items()]


def latest_version() -> int:
    """Return the version of the tables that this yamlsched is made for."""
    return all_migrations()[-1].version


def applied(connection: psycopg.Connection[Any]) -> dict[int, str]:
    """Return the checksums of the applied migrations by version: those of this yamlsched if the
    role may not read them.
    """
    try:
        [table] = execute(connection, "migrations.exists").fetchall()
        rows = execute(connection, "migrations.applied").fetchall() if table.found else []
    except psycopg.errors.InsufficientPrivilege:
        # a role that may only enqueue; its statements will fail if they are outdated
        return {migration.version: migration.checksum for migration in all_migrations()}
    return {row.version: row.checksum for row in rows}


def ensure_usable(connection: psycopg.Connection[Any], apply: bool) -> None:
    """Migrate older tables if ``apply``. Raises WrongTables for all others that are not ours."""
    checksums = applied(connection)
    if not must_migrate(checksums):
        return
    if apply:
        migrate(connection)
        return
    what = "has no tables of yamlsched yet"
    if checksums:
        what = f"has tables of version {max(checksums)} of {latest_version()}"
    raise WrongTables(f'the database {what}: run "yamlsched migrate"')


def must_migrate(checksums: Mapping[int, str]) -> bool:
    """Return whether migrations are missing, given those that are applied.

    Raises NewerTables if a newer yamlsched applied more, WrongTables if one was applied from
    another file than ours.
    """
    version, own = max(checksums, default=0), latest_version()
    if version > own:
        raise NewerTables(
            f"the database has tables of version {version}, created by a newer yamlsched, and this"
            f" one works with version {own}: upgrade yamlsched on this host"
        )
    for migration in all_migrations():
        if checksums.get(migration.version, migration.checksum) != migration.checksum:
            raise WrongTables(
                f"migration {migration.name} was applied from a different file than the one in this"
                " yamlsched: the tables may differ from what it expects; install the version that"
                " created them"
            )
    return version < own


def few_connections(connection: psycopg.Connection[Any]) -> str | None:
    """Return which limit of connections is too low for a worker, None if there is none."""
    [row] = execute(connection, "migrations.connections").fetchall()
    limits = {f'role "{row.role}"': row.of_role, f'database "{row.database}"': row.of_database}
    for what, limit in limits.items():
        if 0 <= limit < MIN_CONNECTIONS:
            return (
                f"{what} may have {limit} connections, and a tick or worker needs at least"
                f" {MIN_CONNECTIONS}"
            )
    return None


def refuse_unsupported(connection: psycopg.Connection[Any]) -> None:
    """Raise EnvironmentFailed if the server is too old, or the database cannot store every text."""
    [server] = execute(connection, "migrations.support").fetchall()
    if server.version // 10_000 < MIN_MAJOR:
        raise EnvironmentFailed(
            f"PostgreSQL {server.version_text} is not supported: yamlsched works with versions"
            f" {MIN_MAJOR} to {MAX_MAJOR}"
        )
    if server.encoding != "UTF8":
        raise EnvironmentFailed(
            f"the database's encoding is {server.encoding}, which cannot store all text: create a"
            " database with encoding UTF8 (createdb --encoding=UTF8 --template=template0 NAME)"
        )


def refuse_foreign_schema(connection: psycopg.Connection[Any]) -> None:
    """Raise EnvironmentFailed if another role made the schema, or if it has objects and no tables
    of yamlsched.
    """
    schema = execute(connection, "migrations.schema").fetchone()
    if schema is None:
        return
    if not schema.is_trusted:
        raise EnvironmentFailed(
            f'the schema "yamlsched" belongs to role "{schema.owner}", of which "{schema.who}" is'
            " not a member: its owner could replace what is created in it. Migrate as"
            f' "{schema.owner}", or, if that role should not have created it, drop the schema first'
        )
    # asked after what is there: another process may have created both meanwhile
    [table] = execute(connection, "migrations.exists").fetchall()
    if schema.has_objects and not table.found:
        raise EnvironmentFailed(
            'the schema "yamlsched" has objects that yamlsched did not create: move them to another'
            " schema, or drop them"
        )


def migrate(connection: psycopg.Connection[Any], dry_run: bool = False) -> list[Migration]:
    """Apply the missing migrations in one transaction, and return them. Concurrent callers wait for
    each other.

    Two that create the first table wait for each other, too: one of them gets an error, and tries
    again.

    With ``dry_run`` nothing is applied.

    Raises like ``must_migrate``, and EnvironmentFailed if the database is not supported, or the
    schema is somebody else's.
    """
    try:
        return _migrate(connection, dry_run)
    except (
        psycopg.errors.UniqueViolation,
        psycopg.errors.DuplicateSchema,
        psycopg.errors.DuplicateTable,
    ):
        return _migrate(connection, dry_run)


def _migrate(connection: psycopg.Connection[Any], dry_run: bool) -> list[Migration]:
    with connection.transaction():
        refuse_unsupported(connection)
        [table] = execute(connection, "migrations.exists").fetchall()
        if table.found and not dry_run:
            execute(connection, "migrations.lock")
        refuse_foreign_schema(connection)
        checksums = applied(connection)
        must_migrate(checksums)
        missing = [each for each in all_migrations() if each.version not in checksums]
        for migration in [] if dry_run else missing:
            connection.execute(migration.text.encode())
            values = migration._asdict()
            execute(connection, "migrations.record", **values, checksum=migration.checksum)
    return missing
