"""The versions of the tables: which exist, which are applied, and applying them.

Version 1 is ``sql/schema.sql``. Each ``sql/migrations/NNNN_what.sql``, from 0002 on, makes the next
one. Hosts are upgraded one after the other, so an older yamlsched may meet newer tables. A
migration says in its header which it still supports: ``-- oldest_supported: N``, made for version N
or later. Without that line an older one refuses them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg

from yamlsched.db.query import load, sql_folder
from yamlsched.errors import EnvironmentFailed

MIN_MAJOR, MAX_MAJOR = 13, 18
"""Supported major versions of PostgreSQL."""
MIN_CONNECTIONS = 3
"""Sessions of a worker without those of its handlers: to claim, to write outcomes, and to renew
leases.
"""


OLDEST_SUPPORTED = re.compile(r"^-- oldest_supported: ([0-9]+)$", re.MULTILINE)


class WrongTables(EnvironmentFailed):
    """The tables are missing, or not those that this yamlsched works with."""


class NewerTables(WrongTables):
    """A newer yamlsched has migrated the tables, and they do not support this one any more."""


class Tables(NamedTuple):
    """The tables in a database: the version of the latest migration, and the oldest that they
    support. 0: none.
    """

    version: int
    oldest_supported: int
    checksums: Mapping[str, str] = MappingProxyType({})
    """Of each migration's file, by version; empty if the role may not read them."""


class Migration(NamedTuple):
    """``sql/schema.sql``, or a numbered file of ``sql/migrations``."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def oldest_supported(self) -> int:
        """The version that a yamlsched must at least be made for to work with the tables after this
        migration.
        """
        match = OLDEST_SUPPORTED.search(self.text)
        return int(match[1]) if match else self.version


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


def applied(connection: psycopg.Connection[Any]) -> Tables:
    """Return the tables in the database: those of this yamlsched if the role may not read it."""
    try:
        row = connection.execute(load("migrations")["version"]).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return Tables(0, 0)
    except psycopg.errors.InsufficientPrivilege:
        # a role that may only enqueue; its statements will fail if they are outdated
        return Tables(latest_version(), latest_version())
    if row is None:
        return Tables(0, 0)
    return Tables(row.version, row.oldest_supported, row.checksums)


def ensure_usable(connection: psycopg.Connection[Any], apply: bool) -> None:
    """Migrate older tables if ``apply``. Raises like ``must_migrate``, ``refuse_changed`` and
    ``refuse_hidden``.
    """
    refuse_hidden(connection)
    tables = applied(connection)
    if must_migrate(tables, apply):
        migrate(connection)
    else:
        refuse_changed(tables.checksums)


def must_migrate(tables: Tables, apply: bool) -> bool:
    """Return whether the tables are older than this yamlsched needs.

    Raises WrongTables for older ones without ``apply``, and NewerTables for newer ones that do not
    support it.
    """
    own = latest_version()
    if tables.oldest_supported > own:
        raise NewerTables(
            f"the database has tables of version {tables.version}, created by a newer yamlsched."
            f" They support hosts with version {tables.oldest_supported} or later, and this one has"
            f" {own}: upgrade yamlsched on this host"
        )
    if tables.version < own and not apply:
        what = (
            "has no tables of yamlsched yet"
            if tables.version == 0
            else f"has tables of version {tables.version} of {own}"
        )
        raise WrongTables(f'the database {what}: run "yamlsched migrate"')
    return tables.version < own


def refuse_changed(checksums: Mapping[str, str]) -> None:
    """Raise WrongTables if a migration was applied from another file than ours."""
    for migration in all_migrations():
        _refuse_changed(migration, checksums)


def _refuse_changed(migration: Migration, checksums: Mapping[str, str]) -> None:
    if checksums.get(str(migration.version), migration.checksum) != migration.checksum:
        raise WrongTables(
            f"migration {migration.name} was applied from a different file than the one in this"
            " yamlsched: the tables may differ from what it expects; install the version that"
            " created them"
        )


def refuse_hidden(connection: psycopg.Connection[Any]) -> None:
    """Raise EnvironmentFailed if policies hide rows of the tables: they would look as if they were
    empty.
    """
    [row] = connection.execute(load("migrations")["hidden"]).fetchall()
    if row.tables:
        raise EnvironmentFailed(
            f'row-level security hides rows of yamlsched\'s tables from role "{row.role}"'
            f" ({row.tables}). Turn it off, as their owner: alter table yamlsched.NAME disable row"
            " level security"
        )


def few_connections(connection: psycopg.Connection[Any]) -> str | None:
    """Return which limit of connections is too low for a worker, None if there is none."""
    [row] = connection.execute(load("migrations")["connections"]).fetchall()
    limits = {f'role "{row.role}"': row.of_role, f'database "{row.database}"': row.of_database}
    for what, limit in limits.items():
        if 0 <= limit < MIN_CONNECTIONS:
            return (
                f"{what} may have {limit} connections, and a tick or worker needs at least"
                f" {MIN_CONNECTIONS}"
            )
    return None


def refuse_unsupported(connection: psycopg.Connection[Any]) -> None:
    """Raise EnvironmentFailed if the server is too old, or the database accepts strings that are
    not valid text.
    """
    [server] = connection.execute(load("migrations")["support"]).fetchall()
    if server.version // 10_000 < MIN_MAJOR:
        raise EnvironmentFailed(
            f"PostgreSQL {server.version_text} is not supported: yamlsched works with versions"
            f" {MIN_MAJOR} to {MAX_MAJOR}"
        )
    if server.encoding == "SQL_ASCII":
        raise EnvironmentFailed(
            "the database's encoding is SQL_ASCII, which does not validate text: create a database"
            " with encoding UTF8 (createdb --encoding=UTF8 --template=template0 NAME)"
        )


def refuse_foreign_schema(connection: psycopg.Connection[Any], is_migrated: bool) -> None:
    """Raise EnvironmentFailed if another role made the schema, or if it has objects and no tables
    of yamlsched.
    """
    schema = connection.execute(load("migrations")["schema"]).fetchone()
    if schema is None:
        return
    if not schema.is_trusted:
        raise EnvironmentFailed(
            f'the schema "yamlsched" belongs to role "{schema.owner}", of which "{schema.who}" is'
            " not a member: its owner could replace what is created in it. Migrate as"
            f' "{schema.owner}", or, if that role should not have created it, drop the schema first'
        )
    if schema.has_objects and not is_migrated:
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

    Raises WrongTables if an applied migration differs from its file, EnvironmentFailed if the
    database is not supported, or the schema is somebody else's.
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
    sql = load("migrations")
    with connection.transaction():
        refuse_unsupported(connection)
        exists = connection.execute(sql["exists"]).fetchone()
        if exists and exists.found and not dry_run:
            connection.execute(sql["lock"])
        refuse_foreign_schema(connection, is_migrated=bool(exists and exists.found))
        rows = connection.execute(sql["applied"]).fetchall() if exists and exists.found else []
        checksums = {str(row.version): row.checksum for row in rows}
        oldest_supported = max([row.oldest_supported for row in rows], default=0)
        must_migrate(
            Tables(max([row.version for row in rows], default=0), oldest_supported), apply=True
        )
        missing = []
        for migration in all_migrations():
            _refuse_changed(migration, checksums)
            if str(migration.version) not in checksums:
                missing.append(migration)
                if not dry_run:
                    connection.execute(migration.text.encode())
                    numbers = {
                        "version": migration.version,
                        "oldest_supported": migration.oldest_supported,
                    }
                    names = {"name": migration.name, "checksum": migration.checksum}
                    connection.execute(sql["record"], {**numbers, **names})
    return missing
