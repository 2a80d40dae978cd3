"""``yamlsched doctor``: a self-check of the set-up."""

from __future__ import annotations

import hashlib
import socket
from typing import TYPE_CHECKING

import click

from yamlsched.cli import FINDINGS, OK, _filters, _output
from yamlsched.cli._settings import Settings, Verb
from yamlsched.errors import EnvironmentFailed, Refused

if TYPE_CHECKING:
    from yamlsched.operations.doctor import Check


@click.command(
    cls=Verb, help="Check the file, database, roles, clocks and ticks, and suggest fixes. Exit 1 if a check fails."
)
@_filters.namespace_option
@click.pass_obj
def command(settings: Settings, /, namespace: str | None) -> int:
    from yamlsched.operations import doctor

    loaded, findings = doctor.schedule(settings.file, settings.env)
    findings += database(settings, namespace, is_valid=loaded is None or not loaded.has_errors)
    failed = any(finding.level == "fail" for finding in findings)
    if settings.wants_json:
        click.echo(_output.document(healthy=not failed, checks=findings))
        return FINDINGS if failed else OK
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        level = _output.coloured(finding.level) + " " * (4 - len(finding.level))
        click.echo(f"{level}  {finding.name:<{width}}  {_output.printable_cell(finding.what)}")
        if finding.remedy and finding.level != "ok":
            click.echo(f"      {'':<{width}}  {_output.printable_cell(finding.remedy)}")
    return FINDINGS if failed else OK


def database(settings: Settings, namespace: str | None, is_valid: bool) -> list[Check]:
    """Return what is found in the database, as far as one gets."""
    import tzdata  # type: ignore[import-untyped]

    from yamlsched import store
    from yamlsched.definitions import schedule_file
    from yamlsched.operations import doctor, health, history
    from yamlsched.operations.doctor import Check

    found: list[Check] = []
    try:
        with settings.database() as dsn, store.connect(dsn) as connection:
            server = "connected to a server, not to the embedded database"
            which = "the embedded database, for trials and development" if settings.is_embedded else server
            found += [Check("database", "ok", which), *doctor.server(connection)]
            if settings.is_embedded:
                store.migrations.ensure_current(connection, apply=True)
            found.append(doctor.tables(connection))
            if found[-1].level == "fail":
                return found
            if not settings.is_embedded:
                found.append(doctor.privileges(connection))
                if found[-1].level == "fail":
                    return found
            try:
                namespace = history.namespace_of(connection, namespace, settings.file)
            except Refused as error:
                return [*found, Check("namespace", "warn", str(error), "pass --namespace")]
            now = health.read(connection, namespace, health.Thresholds().within)
            found.append(doctor.ticking(now, socket.gethostname()))
            own = hashlib.sha256(schedule_file.read(settings.file)).hexdigest() if settings.file.is_file() else None
            found += doctor.files(now, str(tzdata.IANA_VERSION), own, is_valid)
    except EnvironmentFailed as error:
        found.append(Check("database", "fail", str(error), "check YAMLSCHED_DSN, the network and pg_hba.conf"))
    return found
