"""``yamlsched migrate``: bring the tables to this version."""

from __future__ import annotations

import click

from yamlsched import db
from yamlsched.cli._settings import Settings, Verb
from yamlsched.db.query import sql_folder


@click.command(cls=Verb, formats=("text",), help="Create or upgrade the tables in the database.")
@click.option(
    "--sql",
    "print_sql",
    is_flag=True,
    help="Print the migrations instead, for your own migration tool.",
)
@click.option(
    "--roles",
    "print_roles",
    is_flag=True,
    help="Print the script that creates roles with least privilege instead.",
)
@click.option(
    "--dry-run", is_flag=True, help="Report what would be applied, and which hosts it supports."
)
@click.pass_obj
def command(settings: Settings, print_sql: bool, print_roles: bool, dry_run: bool) -> int:
    if print_roles:
        click.echo((sql_folder() / "roles.sql").read_text("utf-8"), nl=False)
        return 0
    if print_sql:
        for migration in db.migrations.all_migrations():
            click.echo(f"-- {migration.name}\n{migration.text}")
            click.echo(
                "insert into yamlsched.migrations (version, name, checksum, oldest_supported)"
                f" values ({migration.version}, '{migration.name}', '{migration.checksum}',"
                f" {migration.oldest_supported});\n"
            )
        return 0
    with settings.database() as dsn, db.connect(dsn) as connection:
        before = db.migrations.applied(connection)
        missing = db.migrations.migrate(connection, dry_run)
    for migration in missing:
        click.echo(f"{'would apply' if dry_run else 'applied'} {migration.name}")
    own = db.migrations.latest_version()
    if not missing:
        is_newer = before.version > own
        click.echo(
            f"the tables are up to date: version {before.version}, of a newer yamlsched; they"
            f" support version {own}, that of this host"
            if is_newer
            else "the tables are up to date"
        )
    elif before.version:
        oldest = max(
            before.oldest_supported, *(migration.oldest_supported for migration in missing)
        )
        click.echo(_supported(before.version, oldest))
    return 0


def _supported(before: int, oldest: int) -> str:
    """Return what a migration from version ``before`` means for the other hosts."""
    if oldest <= before:
        return (
            f"hosts with version {oldest} or later continue to work: upgrade them one after the"
            " other"
        )
    return f"hosts with a version before {oldest} stop working until yamlsched is upgraded on them"
