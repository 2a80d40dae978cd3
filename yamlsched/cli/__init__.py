"""The command line. One module per verb: it parses, calls, prints, and returns the exit code.

A verb is a module of this folder that defines ``command``. Modules whose name starts with ``_`` are
shared. Exit codes of every verb: 0 ok; 1 findings; 2 usage error; 3 environment failure.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import pkgutil
import re
import sys
import traceback
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import shell_complete

from yamlsched import __version__, plugin_manager
from yamlsched import (
    log as event_log,
)  # `log` is a verb: its module becomes an attribute of this package
from yamlsched.cli._settings import Settings, Verb, VerbGroup, global_options, merge
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.show.terminal import printable

if TYPE_CHECKING:
    from yamlsched.plugin_manager import PluginVerb

__all__ = ["Settings", "Verb", "Verbs", "cli", "main"]
OK, FINDINGS, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO)

GROUPS = {
    "Schedule": ("validate", "diff", "plan", "next", "explain", "schema"),
    "Run": ("tick", "sync", "work", "enqueue", "invoke", "backfill"),
    "Inspect": ("status", "report", "runs", "show", "why", "log", "metrics", "web", "mcp"),
    "Operate": ("retry", "cancel", "pause", "resume", "settle", "prune"),
    "Set up": ("init", "import", "migrate", "db", "doctor", "completion"),
}
"""The verbs by task, as the help lists them. A verb that is missing here is listed last."""
MAX_SUMMARY_CHARS = 200
"""Longer than any first sentence of a help text: the list of verbs cuts none."""


class Verbs(VerbGroup):
    """The verbs, each imported only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self._modules, *self._own, *self.installed])

    @cached_property
    def _modules(self) -> list[str]:
        return [module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_"]

    @cached_property
    def _own(self) -> dict[str, PluginVerb]:
        return plugin_manager.own_verbs()

    @cached_property
    def installed(self) -> dict[str, PluginVerb]:
        """The commands of installed plugins, by name."""
        return plugin_manager.installed_verbs([*self._modules, *self._own])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        verbs = self.list_commands(ctx)
        grouped = {verb for group in GROUPS.values() for verb in group}
        for title, group in {
            **GROUPS,
            "Other": [verb for verb in verbs if verb not in grouped],
        }.items():
            commands = [(verb, self.get_command(ctx, verb)) for verb in group]
            if rows := [
                (verb, command.get_short_help_str(MAX_SUMMARY_CHARS))
                for verb, command in commands
                if command
            ]:
                with formatter.section(title):
                    formatter.write_dl(
                        rows, col_spacing=max(map(len, verbs)) - max(map(len, group)) + 2
                    )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules:
            command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
            return command
        verb = self._own.get(cmd_name) or self.installed.get(cmd_name)
        if verb is None:
            return None
        try:
            return verb.load()
        except EnvironmentFailed as error:
            return _unusable(cmd_name, error)


def _unusable(name: str, error: EnvironmentFailed) -> click.Command:
    """Return the stand-in for a command that cannot be loaded: the others can still be listed."""

    def fail(words: object) -> NoReturn:
        raise error

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True}
    help = "(cannot be loaded)"
    return click.Command(name, settings, fail, [words], help, add_help_option=False)


@click.group(
    cls=Verbs,
    params=list(
        global_options(
            ("text", "json", "concise", "github", "sarif", "markdown", "html", "ics"),
            before_verb=True,
        ).values()
    ),
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "show_default": True,
    },
    subcommand_metavar="COMMAND [ARGS]...",
    help="Run the jobs of schedules.yaml on time, once, with their history in PostgreSQL.",
    epilog=(
        "yamlsched COMMAND --help shows the options of a command. You can also pass the options"
        " above after a command that uses them. Parentheses show the variable of an option, and"
        " its default."
    ),
)
@click.version_option(__version__, message="yamlsched %(version)s")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    gc.freeze()  # what was imported lives as long as the process
    gc.enable()
    ctx.obj = merge(Settings(), options)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = _aborted(INTERRUPTED)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _output_failed(error, code)
    sys.exit(code)


def _run() -> int:
    """Run the command line and return its exit code."""
    _open_standard_streams()
    event_log.configure(as_json=_wants_json_log(sys.argv[1:]))
    if instruction := os.environ.get("_YAMLSCHED_COMPLETE"):
        return shell_complete(cli, {}, "yamlsched", "_YAMLSCHED_COMPLETE", instruction)
    context: click.Context | None = None
    try:
        with cli.make_context("yamlsched", sys.argv[1:]) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as error:  # of --help and --version
        return error.exit_code
    except click.ClickException as error:
        if event_log.is_json():
            _print_error(error.format_message(), USAGE)
        else:
            error.show()
        return USAGE
    except click.Abort:
        return _aborted(FINDINGS)
    except Refused as error:
        _print_error(str(error), FINDINGS)
        return FINDINGS
    except EnvironmentFailed as error:
        _print_error(str(error), FAILED)
        return FAILED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in OUTPUT_ERRORS and error.filename is None:
            return _output_failed(error, OK)
        verb = context.invoked_subcommand if context else None
        return _unexpected(error, cli.installed.get(verb or ""))
    return code if isinstance(code, int) else OK


def _aborted(exit_code: int) -> int:
    event_log.message("error", "command.failed", "Aborted.", error="aborted", exit_code=exit_code)
    return exit_code


def _output_failed(error: OSError, code: int) -> int:
    """Return the exit code when standard output cannot be written.

    A reader that has exited (`yamlsched runs | head`) is not an error: then it is ``code``.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer can be flushed to it
    if error.errno == errno.EPIPE:
        return code
    _print_error(f"standard output cannot be written: {os.strerror(error.errno or 0)}")
    return FAILED


def _open_standard_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed (`>&-`) on /dev/null.

    Otherwise a connection to the database would get the descriptor, and output would be written
    into it.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor is this one
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _wants_json_log(arguments: list[str]) -> bool:
    """Return whether --log-format json applies, also in a command line that is wrong elsewhere.

    >>> _wants_json_log(["tick", "--log-format=json"]), _wants_json_log(["--log-format", "text"])
    (True, False)
    """
    passed = "".join(re.findall(r"--log-format[= ](\w+)", " ".join(arguments))[-1:])
    return (passed or os.environ.get("YAMLSCHED_LOG_FORMAT")) == "json"


def _print_error(message: str, exit_code: int = FAILED, **fields: Any) -> None:
    """Print an error message. It may quote a server, whose control characters must not reach the
    terminal.
    """
    text = f"yamlsched: {printable(message)}"
    event_log.message("error", "command.failed", text, error=message, exit_code=exit_code, **fields)


def _unexpected(error: Exception, of_plugin: PluginVerb | None) -> int:
    """Report an error that no verb handles: a database error in one line, a bug with
    its traceback.
    """
    if getattr(error, "sqlstate", None) == "42501":  # insufficient_privilege
        _print_error(
            f"the role of the DSN may not do this ({' '.join(str(error).split())}). "
            "Grant it yamlsched_worker, or yamlsched_reader for read-only use: "
            '"yamlsched migrate --roles" prints the script that creates these '
            'roles, "yamlsched doctor" lists what the role is missing'
        )
    elif type(error).__module__.startswith("psycopg"):
        _print_error(f"the database failed: {' '.join(str(error).split())}")
    else:
        if not event_log.is_json():
            traceback.print_exception(error)
        stack = "".join(traceback.format_exception(error))
        where, to = "yamlsched", ""
        if of_plugin is not None:
            where, to = f"the plugin {of_plugin.plugin}", " to its authors"
        _print_error(f"this is a bug in {where}; please report the lines above{to}", stack=stack)
    return FAILED
