"""``yamlsched doctor``: a self-check of the setup."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from yamlsched.cli import FINDINGS, OK, Verbs, _filters
from yamlsched.cli._settings import FORMATS, Settings, Verb
from yamlsched.extras.doctor import Check, doctor, doctor_offline
from yamlsched.extras.notify import checks as notify_checks
from yamlsched.schedule.load import Loaded
from yamlsched.show import terminal
from yamlsched.show.document import Document, Section


@click.command(
    cls=Verb,
    uses="file dsn env namespace",
    formats=FORMATS,
    help=(
        "Check the setup and say what to fix. Covers the file, handlers, database, role, clocks"
        " and ticks. Exit 1 if a check fails."
    ),
)
@_filters.path_option
@click.option(
    "--offline",
    is_flag=True,
    help=(
        "Check what needs no database, for images: Python, extras, the file, handlers (imported),"
        " programs, folders."
    ),
)
@click.option("--notify", is_flag=True, help="Send a test message to each target of notifications.")
@click.pass_obj
def command(settings: Settings, /, paths: tuple[str, ...], offline: bool, notify: bool) -> int:
    results = _offline(settings, paths) if offline else _complete(settings, paths, notify)
    checks = [*results, *doctor_offline.check(os.environ)]
    failed = any(check.level == "fail" for check in checks)
    table = Section("", [""] * 3, [*_rows(checks)])
    settings.echo(Document("yamlsched doctor", [table]), healthy=not failed, checks=checks)
    return FINDINGS if failed else OK


def _rows(checks: list[Check]) -> Iterator[tuple[str, str, str]]:
    for check in checks:
        yield (
            terminal.Styled(terminal.coloured(check.level) + " " * (4 - len(check.level))),
            check.name,
            check.what,
        )
        if check.remedy and check.level != "ok":
            yield "", "", check.remedy


def _plugins(loaded: Loaded | None) -> Iterator[Check]:
    root = click.get_current_context().find_root().command
    assert isinstance(root, Verbs)
    yield from doctor_offline.plugins(loaded, root.installed.values())


def _complete(settings: Settings, paths: tuple[str, ...], notify: bool) -> Iterator[Check]:
    """Check everything, with the database."""
    loaded, file_checks = doctor.schedule(settings.file, settings.env, paths)
    yield from file_checks
    is_valid = loaded is None or not loaded.has_errors
    yield from doctor.database(
        settings.database(),
        settings.is_embedded,
        settings.namespace,
        settings.file,
        settings.env,
        is_valid,
        loaded,
    )
    if loaded is not None:
        yield from doctor.archive(loaded, settings.file)
        yield from notify_checks.check(loaded, notify)
    yield from _plugins(loaded)


def _offline(settings: Settings, paths: tuple[str, ...]) -> Iterator[Check]:
    """Check what needs no database."""
    yield from doctor_offline.installation(settings.dsn)
    loaded, file_checks = doctor.schedule(settings.file, settings.env, paths, must_exist=True)
    yield from file_checks
    if loaded is not None and not loaded.has_errors:
        yield from doctor_offline.schedule(loaded, settings.file, paths)
        yield from doctor.archive(loaded, settings.file)
    yield from _plugins(loaded)
