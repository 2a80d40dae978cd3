"""The command line. One module per verb: it parses, calls, prints, and returns the exit code.

A verb is a module of this folder that defines ``command``; modules whose name begins with ``_`` are shared.
Exit codes everywhere: 0 ok; 1 findings; 2 wrong usage; 3 the environment failed.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from typing import Any, NoReturn

import click

from yamlsched import __version__
from yamlsched.cli._settings import Settings, global_options, merge
from yamlsched.errors import EnvironmentFailed, Refused

OK, FINDINGS, USAGE, FAILED = 0, 1, 2, 3


SECTIONS = {
    "Edit the schedule": ("init", "validate", "explain", "schema", "diff", "plan", "next"),
    "Run jobs": ("tick", "sync", "work", "enqueue", "invoke", "backfill"),
    "Inspect": ("status", "runs", "show", "why", "metrics", "doctor"),
    "Operate": ("retry", "cancel", "pause", "resume", "settle", "prune"),
    "Database": ("migrate", "db"),
}
"""How the help lists the verbs; one that is missing here comes last."""
MAX_SUMMARY_CHARS = 300


class Verbs(click.Group):
    """The verbs, each imported only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        verbs = self.list_commands(ctx)
        listed = {verb for section in SECTIONS.values() for verb in section}
        for title, section in {**SECTIONS, "Other": [verb for verb in verbs if verb not in listed]}.items():
            rows = []
            for verb in section:
                command = self.get_command(ctx, verb)
                assert command is not None
                rows.append((verb, command.get_short_help_str(MAX_SUMMARY_CHARS)))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f' Did you mean "{near[0]}"?' if near else " See: yamlsched --help"
            raise click.UsageError(f'no verb "{args[0]}".{hint}', ctx) from None


@click.group(
    cls=Verbs,
    params=list(global_options(("text", "json", "concise", "github", "sarif", "markdown", "csv"), before_verb=True)),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="Run the jobs of schedules.yaml on time, once, with their history in PostgreSQL.",
)
@click.version_option(__version__, message="yamlsched %(version)s")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    ctx.obj = merge(Settings(), options)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    _open_standard_streams()
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = USAGE
    except click.Abort:
        print("Aborted.", file=sys.stderr)
        code = FINDINGS
    except Refused as error:
        _complain(str(error))
        code = FINDINGS
    except EnvironmentFailed as error:
        _complain(str(error))
        code = FAILED
    except BrokenPipeError:
        # the reader of our output went away (`yamlsched runs | head`): not an error, and nothing may be flushed to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = OK
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = _unexpected(error)
    sys.exit(code if isinstance(code, int) else OK)


def _open_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr (`>&-`) on /dev/null.

    Otherwise a session with the database would get such a number, and what is printed would be written into it.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _complain(message: str) -> None:
    """Print what is wrong. It may quote a server's words, which must not reach the terminal as control characters."""
    from yamlsched.cli._output import printable

    print(f"yamlsched: {printable(message)}", file=sys.stderr)


def _unexpected(error: Exception) -> int:
    """Report what no verb foresaw: a database that failed in one line, a fault of ours with its traceback."""
    if getattr(error, "sqlstate", None) == "42501":  # insufficient_privilege
        _complain(
            f"the role of the DSN lacks a privilege for this ({' '.join(str(error).split())}). "
            "Grant it yamlsched_worker, or yamlsched_reader for read-only use: "
            '"yamlsched migrate --roles" prints the script that creates these '
            'roles, "yamlsched doctor" lists what the role lacks'
        )
    elif type(error).__module__.startswith("psycopg"):
        _complain(f"the database failed: {' '.join(str(error).split())}")
    else:
        traceback.print_exc()
        print("yamlsched: this is a bug in yamlsched; please report the lines above", file=sys.stderr)
    return FAILED
