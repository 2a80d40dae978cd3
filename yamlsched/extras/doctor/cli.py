"""``yamlsched doctor``: a self-check of the setup."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from yamlsched.cli import FINDINGS, OK, Verbs, _filters
from yamlsched.cli._settings import Settings, verb
from yamlsched.extras.doctor import Check, doctor, doctor_offline
from yamlsched.extras.notify import checks as notify_checks
from yamlsched.show import terminal
from yamlsched.show.document import Document, Section
from yamlsched.show.html import FORMATS


@verb(
    "Check the setup and say what to fix. Covers the file, handlers, database, role, clocks"
    " and ticks. Exit 1 if a check fails.",
    uses="file dsn env namespace",
    formats=tuple(FORMATS),
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
def command(settings: Settings, /, paths: tuple[str, ...], offline: bool, notify: bool) -> int:
    checks = [*_checks(settings, paths, offline, notify), *doctor_offline.check(os.environ)]
    failed = any(check.level == "fail" for check in checks)
    table = Section("", [""] * 3, [*_rows(checks)])
    text = FORMATS[settings.format](Document("yamlsched doctor", [table]))
    settings.echo(text, healthy=not failed, checks=checks)
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


def _checks(
    settings: Settings, paths: tuple[str, ...], offline: bool, notify: bool
) -> Iterator[Check]:
    if offline:
        yield from doctor_offline.installation(settings.dsn)
    loaded, file_checks = doctor.schedule(settings.file, settings.env, paths, must_exist=offline)
    yield from file_checks
    is_valid = loaded is None or not loaded.has_errors
    if not offline:
        yield from doctor.database(settings, is_valid, loaded)
    elif loaded and is_valid:
        yield from doctor_offline.schedule(loaded, settings.file, paths)
    if loaded:
        yield from doctor.archive(loaded, settings.file)
        if not offline:
            yield from notify_checks.check(loaded, notify)
    root = click.get_current_context().find_root().command
    assert isinstance(root, Verbs)
    yield from doctor_offline.plugins(loaded, root.installed.values())
