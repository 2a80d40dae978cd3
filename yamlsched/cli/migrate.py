"""``yamlsched migrate``: bring the tables to this version."""

from __future__ import annotations

import click

from yamlsched import db
from yamlsched.cli._settings import Settings, verb
from yamlsched.db.query import sql_folder


@verb("Create or upgrade the tables in the database.", uses="file dsn", formats=("text",))
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
@click.option("--dry-run", is_flag=True, help="Show what would be applied, and change nothing.")
def command(settings: Settings, print_sql: bool, print_roles: bool, dry_run: bool) -> int:
    if print_roles:
        click.echo((sql_folder() / "roles.sql").read_text("utf-8"), nl=False)
        return 0
    if print_sql:
        for migration in db.migrations.all_migrations():
            click.echo(f"-- {migration.name}\n{migration.text}")
            click.echo(
                "insert into yamlsched.migrations (version, name, checksum)"
                f" values ({migration.version}, '{migration.name}', '{migration.checksum}');\n"
            )
        return 0
    with settings.database() as dsn, db.connect(dsn) as connection:
        missing = db.migrations.migrate(connection, dry_run)
    for migration in missing:
        click.echo(f"{'would apply' if dry_run else 'applied'} {migration.name}")
    if not missing:
        click.echo("the tables are up to date")
    return 0
