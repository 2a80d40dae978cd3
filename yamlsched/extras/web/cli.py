"""``yamlsched web``: the web page."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from yamlsched import log
from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.web import require_extra
from yamlsched.extras.web.options import WebOptions, check_bind, parse_listen, parse_users

HELP = """Serve the web page: the health of the jobs, what happened to each slot and why, and what
is coming.

It needs the extra `web`. The DSN needs the role yamlsched_reader. Without a second DSN for actions
the page changes
nothing.
"""


@verb(HELP, uses="file dsn namespace logging", formats=("text",))
@click.option(
    "--listen",
    metavar="HOST:PORT|unix:PATH",
    default="127.0.0.1:8040",
    help="Where to listen. To let other hosts in, you need --auth.",
)
@click.option(
    "--auth",
    type=click.Choice(["none", "basic", "header"]),
    default="none",
    help=(
        "basic: names and passwords of YAMLSCHED_WEB_USERS or --users-file. header: a proxy names"
        " the user."
    ),
)
@click.option(
    "--users-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=(
        "A file with a line name:password or name:hash for each user (or YAMLSCHED_WEB_USERS). It"
        " is read again when it changes."
    ),
)
@click.option(
    "--user-header",
    metavar="NAME",
    default="X-Forwarded-User",
    help="The header in which the proxy names the user.",
)
@click.option(
    "--trust-proxy",
    "trust_proxy",
    multiple=True,
    metavar="ADDRESS",
    help="A proxy whose user header is trusted: an address, a network, or unix; may be repeated.",
)
@click.option(
    "--base-path",
    default="",
    show_default=False,
    metavar="PATH",
    help="The path below which the page is served, such as /scheduler.",
)
@click.option(
    "--external-url",
    metavar="URL",
    help="The address that browsers show, such as https://ops.example.com/scheduler.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help=(
        "Another host name that requests may use; may be repeated. The one in --external-url is"
        " allowed."
    ),
)
@click.option("--read-only", is_flag=True, help="No actions, even with a DSN for them.")
@click.option(
    "--actions-dsn",
    envvar="YAMLSCHED_ACTIONS_DSN",
    metavar="DSN",
    help=(
        "The DSN for actions, with the role yamlsched_worker (YAMLSCHED_ACTIONS_DSN; none: no"
        " actions)."
    ),
)
def command(settings: Settings, /, listen: str, users_file: Path | None, **flags: Any) -> int:
    require_extra()
    from yamlsched.extras.web import application, serve  # their libraries are optional

    log.configure(settings.verbosity, settings.log_format == "json")
    with settings.database() as dsn:
        if settings.is_embedded:
            with settings.connect():  # creates its tables
                pass
        try:
            where = parse_listen(listen)
            users = _users(users_file) if flags["auth"] == "basic" else {}
            options = WebOptions(
                dsn=dsn,
                file=settings.file,
                namespace=settings.namespace,
                users=users,
                users_file=users_file,
                **flags,
            )
            check_bind(where, options)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        options = options.reached_by(where)
        serve.run(application.build(options), options, where, partial(_announce, options.base_path))
    return 0


def _announce(base_path: str, address: str) -> None:
    where = f"{address}{base_path}/"
    log.message("info", "web.started", f"yamlsched web: {where}", address=where)


def _users(file: Path | None) -> dict[str, str]:
    if file is None:
        text = os.environ.get("YAMLSCHED_WEB_USERS", "")
        return parse_users(text, "YAMLSCHED_WEB_USERS") if text else {}
    try:
        return parse_users(file.read_text("utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise EnvironmentFailed(f"{file} cannot be read: {why}") from error
