"""``yamlsched doctor``: a self-check of the setup."""

from __future__ import annotations

import os

import click

from yamlsched.cli import FINDINGS, OK, _filters, _output
from yamlsched.cli._settings import Settings, Verb


@click.command(
    cls=Verb,
    uses="file dsn env namespace",
    help="Check the setup and say what to fix. Covers the file, handlers, database, role, clocks, ticks and executors. "
    "Exit 1 if a check fails.",
)
@_filters.path_option
@click.pass_obj
def command(settings: Settings, /, paths: tuple[str, ...]) -> int:
    from yamlsched.operations import doctor, executor_checks, variable_checks

    loaded, checks = doctor.schedule(settings.file, settings.env, paths)
    is_valid = loaded is None or not loaded.has_errors
    checks += doctor.database(
        settings.database(), settings.is_embedded, settings.namespace, settings.file, settings.env, is_valid
    )
    if loaded is not None:
        checks += doctor.archive(loaded, settings.file)
        checks += executor_checks.check(loaded, settings.file, paths, settings.database())
    checks += variable_checks.check(os.environ)
    failed = any(check.level == "fail" for check in checks)
    if settings.wants_json:
        click.echo(_output.document(healthy=not failed, checks=checks))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            level = _output.coloured(check.level) + " " * (4 - len(check.level))
            click.echo(f"{level}  {check.name:<{width}}  {_output.printable_line(check.what)}")
            if check.remedy and check.level != "ok":
                click.echo(f"      {'':<{width}}  {_output.printable_line(check.remedy)}")
    return FINDINGS if failed else OK
