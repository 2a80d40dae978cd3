"""The global options: accepted before the verb, and after its name by each verb that uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import psycopg

from yamlsched import db, plugin_manager
from yamlsched.ask import history
from yamlsched.show import terminal
from yamlsched.sync.files import as_namespace
from yamlsched.text import did_you_mean


@dataclass(frozen=True)
class Settings:
    """The values of the global options and their environment variables."""

    file: Path = Path("schedules.yaml")
    dsn: str | None = None
    env: str | None = None
    namespace: str | None = None
    format: str = "text"
    verbosity: int = 0
    log_format: str = "text"

    @property
    def wants_json(self) -> bool:
        return self.format == "json"

    def echo(self, words: str, err: bool = False, **fields: Any) -> None:
        """Write ``words``, or for JSON the ``fields`` instead, to stdout or stderr."""
        click.echo(terminal.document(**fields) if self.wants_json else words, err=err)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the DSN to use: the one that is set, else that of a plugin, such as the embedded
        database.

        Raises EnvironmentFailed if there is neither.
        """
        if self.dsn and self.dsn != "embedded":
            yield self.dsn
            return
        with plugin_manager.database(self.file, self.dsn == "embedded") as dsn:
            yield dsn

    @property
    def is_embedded(self) -> bool:
        return not self.dsn or self.dsn == "embedded"

    @contextmanager
    def connect_in(self) -> Iterator[tuple[psycopg.Connection[Any], str]]:
        """Yield a connection and the namespace to use: the one that was passed, else that of the
        file.
        """
        with self.connect() as connection:
            yield connection, history.namespace_of(connection, self.namespace, self.file)

    def namespace_of_runs(
        self, connection: psycopg.Connection[Any], names: Sequence[str]
    ) -> str | None:
        """Return the namespace of runs that are named: None if all are named by ids, and no
        namespace was passed.
        """
        if self.namespace is None and all(map(history.is_id, names)):
            return None
        return history.namespace_of(connection, self.namespace, self.file)

    @contextmanager
    def connect(
        self, migrate: bool = False, for_handler: bool = False
    ) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection to a database whose tables are those of this version.

        The embedded database is migrated first, a server only with ``migrate``. A connection
        ``for_handler`` keeps the settings of its role and database.
        """
        with self.database() as dsn:
            with db.connect(dsn) as connection:
                db.migrations.ensure_usable(connection, apply=migrate or self.is_embedded)
                if not for_handler:
                    yield connection
            if for_handler:
                with db.connect_for_handler(dsn) as handler_connection:
                    yield handler_connection


def _namespace(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return a namespace; that of a host name is in lower case, with underscores for dots and
    dashes.
    """
    name = None if value is None else as_namespace(value)
    if value is not None and name is None:
        raise click.BadParameter(
            f"{value!r} is not a valid namespace: a letter, then up to 62 letters, digits and"
            " underscores (dots and dashes become underscores). If the host's name is too long or"
            ' starts with a digit, pass "host_$(hostname -s)"',
            context,
            option,
        )
    return name


def global_options(formats: tuple[str, ...], before_verb: bool) -> dict[str, click.Option]:
    """Return, by name, the options that may be passed before the verb as well as after it.

    Only those before the verb read the environment. Otherwise a variable would override an explicit
    option.
    """

    def variable(name: str) -> str | None:
        return f"YAMLSCHED_{name}" if before_verb else None

    count: dict[str, Any] = {"count": True, "default": None}
    options = [
        click.Option(
            ["--file"],
            type=click.Path(path_type=Path),
            envvar=variable("FILE"),
            help="The schedule (YAMLSCHED_FILE; ./schedules.yaml).",
        ),
        click.Option(
            ["--dsn"],
            envvar=variable("DSN"),
            help="The DSN of the database (YAMLSCHED_DSN; the embedded database).",
        ),
        click.Option(
            ["--env"],
            metavar="NAME",
            envvar=variable("ENV"),
            help="The environment, such as production (YAMLSCHED_ENV).",
        ),
        click.Option(
            ["--namespace"],
            metavar="NAME",
            envvar=variable("NAMESPACE"),
            callback=_namespace,
            help=(
                "The namespace, such as a host's name (YAMLSCHED_NAMESPACE; the file's, else the"
                " only one)."
            ),
        ),
        click.Option(
            ["--format"],
            type=click.Choice(formats),
            metavar="FORMAT" if before_verb else None,
            help="The format of results"
            + (": text, json, or another that the command offers." if before_verb else "."),
        ),
        click.Option(
            ["--log-format"],
            type=click.Choice(["text", "json"]),
            envvar=variable("LOG_FORMAT"),
            help="The format of log lines (YAMLSCHED_LOG_FORMAT; text).",
        ),
        click.Option(["-q", "--quiet"], **count, help="Log warnings only; twice: errors only."),
        click.Option(["-v", "--verbose"], **count, help="Log more."),
    ]
    return {str(option.name): option for option in options}


def merge(settings: Settings, options: dict[str, Any]) -> Settings:
    """Return ``settings`` with those of ``options`` that were passed."""
    quiet, verbose = options.pop("quiet", None), options.pop("verbose", None)
    values = {name: value for name, value in options.items() if value is not None}
    return replace(settings, verbosity=settings.verbosity + (verbose or 0) - (quiet or 0), **values)


class VerbGroup(click.Group):
    """A group that suggests the closest name for a misspelt one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            hint = did_you_mean(args[0], self.list_commands(ctx), f"See: {ctx.command_path} --help")
            raise click.UsageError(f'no command "{args[0]}". {hint}', ctx) from None


class Verb(click.Command):
    """A command with the global options that it ``uses``, which it gets as ``Settings``
    (``@click.pass_obj``).

    ``uses`` are names, separated by spaces; ``logging`` stands for the three options about log
    lines. ``formats`` are the values of ``--format``: a verb with fewer than two has no such
    option.
    """

    def __init__(
        self,
        *args: Any,
        uses: str = "file dsn",
        formats: tuple[str, ...] = ("text", "json"),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.formats = formats
        names = uses.replace("logging", "log_format quiet verbose").split() + ["format"] * (
            len(formats) > 1
        )
        self.globals = [
            option for name, option in global_options(formats, False).items() if name in names
        ]
        for param in self.params:
            if isinstance(param.type, click.IntRange):
                param.metavar, param.type.name = param.metavar or "N", "integer"
        self.params = [*self.params, *self.globals]

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = merge(
            ctx.obj or Settings(), {str(o.name): ctx.params.pop(str(o.name)) for o in self.globals}
        )
        if ctx.obj.format not in self.formats:
            raise click.UsageError(
                f"--format {ctx.obj.format}: this command supports {', '.join(self.formats)}", ctx
            )
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [
            p for p in self.get_params(ctx) if isinstance(p, click.Option) and p not in self.globals
        ]
        for title, params in (("Options", own), ("Global options", self.globals)):
            if rows := [row for param in params if (row := param.get_help_record(ctx)) is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows)


def verb(
    help: str,
    uses: str = "file dsn namespace",
    formats: tuple[str, ...] = ("text", "json"),
    name: str | None = None,
    group: click.Group | None = None,
) -> Callable[[Callable[..., int]], Verb]:
    """Return a decorator that makes a verb of a function, which gets the settings first."""

    def decorate(function: Callable[..., int]) -> Verb:
        options = {"help": help, "uses": uses, "formats": formats}
        command = click.command(name, Verb, **options)(click.pass_obj(function))
        if group is not None:
            group.add_command(command)
        return command

    return decorate
