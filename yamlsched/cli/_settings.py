"""The options that every verb takes, before or after its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from yamlsched.errors import EnvironmentFailed

if TYPE_CHECKING:
    import psycopg


FORMATS = ("text", "json")


@dataclass(frozen=True)
class Settings:
    """What the global options and their environment variables say."""

    file: Path = Path("schedules.yaml")
    dsn: str | None = None
    env: str | None = None
    format: str = "text"
    verbosity: int = 0
    log_format: str = "text"

    @property
    def wants_json(self) -> bool:
        return self.format == "json"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the DSN to use: the one that is set, else that of the embedded database, running meanwhile.

        Raises NoDatabase where neither is to be had.
        """
        if self.dsn and self.dsn != "embedded":
            yield self.dsn
            return
        from yamlsched import embedded

        if not self.file.exists() and not embedded.data_folder(self.file).exists():
            raise EnvironmentFailed(
                f"there is no {self.file}, and no embedded database beside it: change to the project's directory, "
                "pass --file, or set YAMLSCHED_DSN"
            )
        with embedded.running(self.file, by_name=self.dsn == "embedded") as dsn:
            yield dsn

    @property
    def is_embedded(self) -> bool:
        return not self.dsn or self.dsn == "embedded"

    @contextmanager
    def connect(self, migrate: bool = False, for_handler: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection to a database whose tables are those of this version.

        The embedded database is brought up to date on the way, a server only with ``migrate``. A connection
        ``for_handler`` keeps what is set on its role and database.
        """
        from yamlsched import store

        with self.database() as dsn:
            with store.connect(dsn) as connection:
                store.migrations.ensure_current(connection, apply=migrate or self.is_embedded)
                if not for_handler:
                    yield connection
            if for_handler:
                with store.connect_for_handler(dsn) as handler_connection:
                    yield handler_connection


def global_options(formats: tuple[str, ...], before_verb: bool) -> list[click.Option]:
    """Return the options that stand before the verb as well as after it.

    Only the ones before it read the environment, or a variable would win over an option that is written out.
    """

    def variable(name: str) -> str | None:
        return f"YAMLSCHED_{name}" if before_verb else None

    count: dict[str, Any] = {"count": True, "default": None}
    return [
        click.Option(
            ["--file"],
            type=click.Path(path_type=Path),
            envvar=variable("FILE"),
            help="The schedule (YAMLSCHED_FILE; ./schedules.yaml).",
        ),
        click.Option(
            ["--dsn"], envvar=variable("DSN"), help="The DSN of the database (YAMLSCHED_DSN; the embedded database)."
        ),
        click.Option(["--env"], envvar=variable("ENV"), help="The environment, such as production (YAMLSCHED_ENV)."),
        click.Option(["--format"], type=click.Choice(formats), help="The format of results."),
        click.Option(["--log-format"], type=click.Choice(["text", "json"]), help="The format of log lines."),
        click.Option(["-q", "--quiet"], **count, help="Log warnings only; twice: errors only."),
        click.Option(["-v", "--verbose"], **count, help="Log more."),
    ]


def merge(settings: Settings, options: dict[str, Any]) -> Settings:
    """Return ``settings`` with those of ``options`` that were given."""
    quiet, verbose = options.pop("quiet", None), options.pop("verbose", None)
    given = {name: value for name, value in options.items() if value is not None}
    return replace(settings, verbosity=settings.verbosity + (verbose or 0) - (quiet or 0), **given)


class Verb(click.Command):
    """A command that takes the global options as well, and gets them as ``Settings`` (``@click.pass_obj``).

    ``formats`` are the values that its ``--format`` takes; an ``offline`` verb uses no database.
    """

    def __init__(self, *args: Any, formats: tuple[str, ...] = FORMATS, offline: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.formats = formats
        options = global_options(formats, before_verb=False)
        self.globals = [option for option in options if not (offline and option.name == "dsn")]
        self.params = [*self.params, *self.globals]

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = merge(ctx.obj or Settings(), {str(o.name): ctx.params.pop(str(o.name)) for o in self.globals})
        if ctx.obj.format not in self.formats:
            raise click.UsageError(f"--format {ctx.obj.format}: this verb supports {', '.join(self.formats)}", ctx)
        return super().invoke(ctx)
