"""``yamlsched migrate``: bring the tables to this version."""

from __future__ import annotations

import click

from yamlsched.cli._settings import Settings, Verb


@click.command(cls=Verb, formats=("text",), help="Create or upgrade the tables in the database.")
@click.option("--sql", "print_sql", is_flag=True, help="Print the migrations instead, for your own migration tool.")
@click.option(
    "--roles", "print_roles", is_flag=True, help="Print the script that creates roles with least privilege instead."
)
@click.pass_obj
def command(settings: Settings, print_sql: bool, print_roles: bool) -> int:
    from yamlsched import store

    if print_roles:
        click.echo((store.statements.sql_folder() / "roles.sql").read_text("utf-8"), nl=False)
        return 0
    if print_sql:
        for migration in store.migrations.all_migrations():
            click.echo(f"-- {migration.name}\n{migration.text}")
            click.echo(
                "insert into yamlsched.migrations (version, name, checksum) "
                f"values ({migration.version}, '{migration.name}', '{migration.checksum}');\n"
            )
        return 0
    with settings.database() as dsn, store.connect(dsn) as connection:
        applied = store.migrations.migrate(connection)
    for migration in applied:
        click.echo(f"applied {migration.name}")
    if not applied:
        click.echo("the tables are up to date")
    return 0
