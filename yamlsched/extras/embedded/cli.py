"""``yamlsched db``: the embedded PostgreSQL, and the identity of any database."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from yamlsched.act import runs
from yamlsched.ask import history
from yamlsched.cli import _filters
from yamlsched.cli._settings import Settings, VerbGroup, verb
from yamlsched.errors import Refused
from yamlsched.extras import embedded
from yamlsched.extras.embedded import dump
from yamlsched.runs import effects

IDENTITY_HELP = """Print the identity of the database, a UUID.

It is part of every effect.key, the idempotency key that a handler passes to a provider, so that
two databases never
pass the same key. `migrate` creates it; a dump and its restore keep it. If you use a copy next to
its original (a
staging system made from production's backup), give the copy a new identity with --new before its
first run.
"""
PSQL_CODES = {
    0: 0,
    2: 3,
}  # psql exits with 2 if it could not connect, with 1 or 3 if a command failed


@click.group(
    cls=VerbGroup, help="Control the embedded PostgreSQL; show the identity of the database."
)
def command() -> None:
    pass


db_verb = partial(verb, uses="file dsn", group=command)


@db_verb("Start the server and keep it running until `db stop`.", formats=("text",))
def start(settings: Settings) -> int:
    embedded.start_and_keep(settings.file, _by_name(settings))
    now = embedded.status(settings.file)
    click.echo(f"running, pid {now.pid}, until `yamlsched db stop`")
    return 0


@db_verb("Stop the server, unless it is in use.", formats=("text",))
@click.option("--force", is_flag=True, help="Stop it even if it is in use.")
def stop(settings: Settings, force: bool) -> int:
    _by_name(settings)
    click.echo("stopped" if embedded.stop(settings.file, force) else "not running")
    return 0


@db_verb("Show whether the server is running, who uses it and where its data is.")
def status(settings: Settings) -> int:
    _by_name(settings)
    now = embedded.status(settings.file)
    summary = (
        f"running, pid {now.pid}"
        if now.running
        else "not running; it starts when a command needs it"
    )
    lines = {
        "state": summary if now.data else "not created; the first command that needs it creates it",
        "kept": (
            "yes, until `yamlsched db stop`" if now.kept else "no, stops when its last user exits"
        ),
        "users": ", ".join(f"pid {pid}" for pid in now.users) or "none",
        "version": f"PostgreSQL {now.version}" if now.version else "-",
        "data": f"{now.data}, {now.size_bytes / 1_000_000:.0f} MB" if now.data else "-",
        "log": str(now.log),
    }
    text = "\n".join(f"{name:<8} {value}" for name, value in lines.items())
    fields: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(now).items()
    }
    settings.echo(text, **fields)
    return 0


@db_verb("Print the DSN, for other programs.", formats=("text",))
def dsn(settings: Settings) -> int:
    _by_name(settings)
    now = embedded.status(settings.file)
    if not now.dsn:
        raise Refused(f"there is no embedded database in {now.folder} yet: run yamlsched db start")
    if not now.running:
        click.echo(
            "yamlsched: the embedded database is not running: run yamlsched db start", err=True
        )
    click.echo(now.dsn)
    return 0


# Not a Verb, because psql has its own -v, -q, -h and --file. Ours come first: yamlsched --file
# other.yaml db psql
@command.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    },
    options_metavar="",
    help="Open psql on the database. All arguments go to psql.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def psql(settings: Settings, arguments: tuple[str, ...]) -> int:
    by_name = _by_name(settings)
    program = dump.client(embedded.find_binaries(by_name), "psql")
    with embedded.running(settings.file, by_name) as dsn:
        # Ctrl-C cancels psql's query and must not stop the server. A handler, because psql would
        # inherit SIG_IGN.
        signal.signal(signal.SIGINT, lambda *_: None)
        done = subprocess.run(
            [program, f"--dbname={dsn}", *arguments], env=dump.client_environment()
        )
    return PSQL_CODES.get(done.returncode, 1)


@db_verb(
    "Write plain SQL that psql loads into PostgreSQL 15 or later.", formats=("text",), name="dump"
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file. Default: stdout.",
)
def dump_verb(settings: Settings, output: Path | None) -> int:
    by_name = _by_name(settings)
    binaries = embedded.find_binaries(by_name)
    with embedded.running(settings.file, by_name) as dsn:
        if output is None:
            dump.dump(dsn, binaries, sys.stdout.buffer)
        else:
            dump.dump_to_file(dsn, binaries, output)
    return 0


@db_verb("Load a dump into an empty database.", formats=("text",))
@click.argument(
    "dump_file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),
)
@click.option("--clean", "--yes", is_flag=True, help="Replace existing data, all or nothing.")
def restore(settings: Settings, dump_file: Path, clean: bool) -> int:
    by_name = _by_name(settings)
    with embedded.running(settings.file, by_name) as dsn:
        dump.restore(dsn, embedded.find_binaries(by_name), dump_file, clean)
    click.echo(f"loaded {dump_file}")
    click.echo("if the original database stays in use, run: yamlsched db identity --new", err=True)
    return 0


@db_verb(IDENTITY_HELP)
@click.option("--new", "is_new", is_flag=True, help="Give the database a new identity.")
@_filters.by_option
def identity(settings: Settings, is_new: bool, by: str | None) -> int:
    with settings.connect() as connection:
        if is_new:
            namespace = history.namespace_of(connection, settings.namespace, settings.file)
            now: effects.Identity | None = effects.renew_identity(
                connection, namespace, by or runs.operator()
            )
        else:
            now = effects.read_identity(connection)
    if now is None:
        raise Refused(
            "the database has no identity, its row was deleted: run yamlsched db identity --new"
        )
    settings.echo(now.identity, identity=now.identity, created_at=now.created_at)
    return 0


def _by_name(settings: Settings) -> bool:
    """Return whether the embedded database was requested by name. Warn if another DSN is set."""
    if not settings.is_embedded:
        click.echo(
            "yamlsched: a DSN is set and used by the other commands; `db` controls the embedded"
            " database",
            err=True,
        )
    return settings.dsn == "embedded"
