"""The migrations of the tables: which exist, which are applied, and applying them."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, NamedTuple

import psycopg

from yamlsched.errors import EnvironmentFailed
from yamlsched.store.statements import load, sql_folder

MIN_MAJOR, MAX_MAJOR = 13, 18
"""Supported major versions of PostgreSQL."""


class WrongTables(EnvironmentFailed):
    """The tables are missing, or not those that this yamlsched works with."""


class Migration(NamedTuple):
    """A numbered file of ``sql/migrations``."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def latest_version() -> int:
    """Return the version of the tables that this yamlsched requires."""
    return max(int(path.name[:4]) for path in (sql_folder() / "migrations").glob("[0-9]*.sql"))


def all_migrations() -> list[Migration]:
    """Return all migrations in the order in which they are applied."""
    paths = sorted((sql_folder() / "migrations").glob("[0-9]*.sql"))
    return [Migration(int(path.name[:4]), path.stem, path.read_text("utf-8")) for path in paths]


def applied_version(connection: psycopg.Connection[Any]) -> int:
    """Return the version of the tables in the database: 0 without any, the latest if the role may not read it."""
    try:
        row = connection.execute(load("migrations")["version"]).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
    except psycopg.errors.InsufficientPrivilege:
        return latest_version()  # a role that may only enqueue; its statements will fail if they are outdated
    return int(row.version) if row else 0


def ensure_current(connection: psycopg.Connection[Any], apply: bool) -> None:
    """Migrate older tables if ``apply``.

    Raises WrongTables for newer tables, and for older ones without ``apply``.
    """
    is_current(applied_version(connection), apply) or migrate(connection)


def is_current(found: int, apply: bool) -> bool:
    """Return whether tables of version ``found`` are current. False: they must be migrated.

    Raises WrongTables for newer tables, and for older ones without ``apply``.
    """
    if found > latest_version():
        raise WrongTables(
            f"the database has tables of version {found}, created by a newer yamlsched; this one supports versions up "
            f"to {latest_version()}: upgrade yamlsched on this host"
        )
    if found < latest_version() and not apply:
        what = (
            "has no tables of yamlsched yet" if found == 0 else f"has tables of version {found} of {latest_version()}"
        )
        raise WrongTables(f'the database {what}: run "yamlsched migrate"')
    return found == latest_version()


def refuse_other_tables(connection: psycopg.Connection[Any]) -> None:
    """Raise WrongTables unless the tables are those of this yamlsched: of its version, and from the same files.

    For statements that have failed because something is missing: before, it is enough to compare versions.
    """
    ensure_current(connection, apply=False)
    applied = {row.version: row.checksum for row in connection.execute(load("migrations")["applied"]).fetchall()}
    for migration in all_migrations():
        _refuse_changed(migration, applied)


def _refuse_changed(migration: Migration, applied: dict[int, str]) -> None:
    if applied.get(migration.version, migration.checksum) != migration.checksum:
        raise WrongTables(
            f"migration {migration.name} was applied from a different file than the one in this yamlsched: "
            "the tables may differ from what it expects; install the version that created them"
        )


def refuse_unsupported(connection: psycopg.Connection[Any]) -> None:
    """Raise EnvironmentFailed if the server is too old, or the database accepts strings that are not valid text."""
    [found] = connection.execute(load("migrations")["support"]).fetchall()
    if found.version // 10_000 < MIN_MAJOR:
        raise EnvironmentFailed(
            f"PostgreSQL {found.version_text} is not supported: yamlsched works with versions {MIN_MAJOR} to "
            f"{MAX_MAJOR}"
        )
    if found.encoding == "SQL_ASCII":
        raise EnvironmentFailed(
            "the database's encoding is SQL_ASCII, which does not validate text: create a database with encoding "
            "UTF8 (createdb --encoding=UTF8 --template=template0 NAME)"
        )


def migrate(connection: psycopg.Connection[Any]) -> list[Migration]:
    """Apply the missing migrations in one transaction, and return them. Concurrent callers wait for each other.

    Raises WrongTables if an applied migration differs from its file, EnvironmentFailed if the database is not
    supported.
    """
    sql = load("migrations")
    with connection.transaction():
        refuse_unsupported(connection)
        connection.execute(sql["lock"])
        exists = connection.execute(sql["exists"]).fetchone()
        rows = connection.execute(sql["applied"]).fetchall() if exists and exists.found else []
        applied = {row.version: row.checksum for row in rows}
        is_current(max(applied, default=0), apply=True)
        missing = []
        for migration in all_migrations():
            _refuse_changed(migration, applied)
            if migration.version not in applied:
                connection.execute(migration.text.encode())
                connection.execute(sql["record"], migration._asdict() | {"checksum": migration.checksum})
                missing.append(migration)
    return missing
