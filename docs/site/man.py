"""Print the man page, yamlsched(1), from the help of the verbs: ``make man`` writes it to docs/yamlsched.1."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import click

from yamlsched import __version__
from yamlsched.cli import GROUPS, cli

DESCRIPTION = """
schedules.yaml declares the jobs: a cron expression, a Python function or a program, retries. One crontab line,
`* * * * * yamlsched tick`, on one host or many, creates the runs of due slots, each once, and executes them.
"""
MAX_LINE_CHARS = 70
COMMAND_LINE = (Path(__file__).parents[1] / "cli.md").read_text("utf-8")
EXIT_CODES = dict(
    re.findall(r"(?m)^\| (\d) \| (.*) \|$", COMMAND_LINE.partition("\n## Exit codes\n")[2].partition("\n## ")[0])
)
"""The table of docs/cli.md."""
ENVIRONMENT = {
    "YAMLSCHED_DSN, YAMLSCHED_FILE, YAMLSCHED_ENV, YAMLSCHED_NAMESPACE, YAMLSCHED_LOG_FORMAT": "As the options.",
    "YAMLSCHED_HEARTBEAT_URL, YAMLSCHED_HEARTBEAT_URL_JOB, YAMLSCHED_SENTRY_DSN": "Services that report a "
    "missing signal.",
    "YAMLSCHED_TRACE_PROPAGATE, OTEL_*": "Traces.",
    "YAMLSCHED_WEB_URL": "The address of the web page, for links in notifications.",
    "YAMLSCHED_REVISION, YAMLSCHED_AUTHOR": "The commit and the author of the file, where there is no git repository.",
    "YAMLSCHED_ACTIONS_DSN, YAMLSCHED_WEB_USERS": "For the verb web.",
    "YAMLSCHED_PG_BIN": "The folder of the programs of the embedded database.",
    "NO_COLOR": "Print no colours.",
}
FILES = {
    "schedules.yaml": "The jobs. Another file is named by --file or YAMLSCHED_FILE.",
    ".yamlsched/": "The data of the embedded database, beside the schedule.",
}
EXAMPLES = {
    "Start a project in an empty folder": "yamlsched init",
    "What crontab runs each minute": "yamlsched tick",
    "Why a job did not run": "yamlsched why cleanup_nightly --at yesterday",
}


def page() -> str:
    """Return the page in the man macros of roff."""
    context = click.Context(cli, info_name="yamlsched")
    verbs = [
        (name, command) for names in GROUPS.values() for name in names if (command := cli.get_command(context, name))
    ]
    lines = [
        '.\\" Made from the help of the verbs by "make man". Do not edit it.',
        f'.TH YAMLSCHED 1 "" "yamlsched {__version__}" "User Commands"',
        ".SH NAME",
        "yamlsched \\- run the jobs of schedules.yaml on time, once",
        ".SH SYNOPSIS",
        ".B yamlsched",
        _escape(" ".join(cli.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(f"{cli.help}\n\n{DESCRIPTION}"),
        ".SH OPTIONS",
        "Each can be passed before the verb, or after it to a verb that uses it.",
        *_options(cli, context),
        ".SH VERBS",
    ]
    for name, command in verbs:
        lines += _verb(command, context, name)
    lines += [".SH EXIT STATUS", *_list(EXIT_CODES)]
    lines += [".SH ENVIRONMENT", *_list(ENVIRONMENT)]
    lines += [".SH FILES", *_list(FILES), ".SH EXAMPLES"]
    for what, line in EXAMPLES.items():
        lines += [".TP", _escape(what + ":"), f"\\fB{_escape(line)}\\fR"]
    lines += [".SH SEE ALSO", ".BR crontab (5),", ".BR psql (1)"]
    return "\n".join(lines) + "\n"


def _verb(command: click.Command, parent: click.Context, name: str) -> list[str]:
    """Return the section of a verb, or of a verb in a group such as ``db start``."""
    context = click.Context(command, info_name=name, parent=parent)
    words = context.command_path.partition(" ")[2]
    lines = [f".SS {_escape(words)}", f".B yamlsched {_escape(words)}"]
    lines += [_escape(" ".join(command.collect_usage_pieces(context))), ".PP", *_paragraphs(command.help or "")]
    lines += _options(command, context)
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            inner = command.get_command(context, sub)
            assert inner is not None
            lines += _verb(inner, context, sub)
    return lines


def _options(command: click.Command, context: click.Context) -> list[str]:
    """Return the options of a command; of those that verbs share, which are described before the verbs, the names."""
    shared = getattr(command, "globals", [])
    help_option = command.get_help_option(context) if context.parent else None
    lines = []
    for one in command.get_params(context):
        if isinstance(one, click.Option) and one not in (*shared, help_option):
            record = one.get_help_record(context)
            lines += [".TP", f"\\fB{_escape(record[0])}\\fR", *_paragraphs(record[1])] if record else []
    if shared:
        names = [f"{one.opts[0]} {one.make_metavar(context) if one.name == 'format' else ''}".strip() for one in shared]
        lines += [".PP", *_wrapped(f"It also uses {', '.join(names)}.")]
    return lines


def _list(entries: dict[str, str]) -> list[str]:
    return [line for word, text in entries.items() for line in (".TP", f"\\fB{_escape(word)}\\fR", *_wrapped(text))]


def _paragraphs(text: str) -> list[str]:
    """Return help text as paragraphs. A paragraph that starts with \\b, click's mark, keeps its lines."""
    lines = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text).strip())):
        lines += [".PP"] if number else []
        if paragraph.startswith("\b"):
            lines += [".nf", *map(_escape, paragraph.removeprefix("\b").strip("\n").splitlines()), ".fi"]
        else:
            lines += _wrapped(paragraph)
    return lines


def _wrapped(text: str) -> list[str]:
    return [_escape(line) for line in textwrap.wrap(text, MAX_LINE_CHARS, break_on_hyphens=False)]


def _escape(text: str) -> str:
    """Return text as roff shows it: with plain hyphens and quotation marks, and nothing that is a request."""
    for found, written in (("\\", "\\e"), ("-", "\\-"), ("'", "\\(aq"), ("`", "\\(ga"), ("^", "\\(ha"), ("~", "\\(ti")):
        text = text.replace(found, written)
    return "\\&" + text if text.startswith(".") else text


if __name__ == "__main__":
    print(page(), end="")
