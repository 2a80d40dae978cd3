"""The tools: verbs with some of their parameters. What the command line checks is checked there
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import jsonschema

from yamlsched.cli import cli
from yamlsched.cli.enqueue import Payload
from yamlsched.errors import Refused

MAX_VALUE_CHARS = 20_000
"""Of an argument: less than the operating system allows for one."""
MAX_VALUES = 100
READING = {
    "status": ("within", "show_all"),
    "report": ("since", "until"),
    "why": ("job", "at"),
    "runs": (
        "jobs",
        "tags",
        "statuses",
        "since",
        "until",
        "error_type",
        "key",
        "limit",
        "before",
        "group_by",
    ),
    "show": ("name", "output", "attempt"),
    "next": ("job", "expression", "timezone", "start", "number", "days"),
    "log": ("job", "since", "limit", "before", "patch"),
    "plan": ("days",),
    "validate": ("strict",),
    "explain": ("code",),
}
"""Verbs that change nothing, and their parameters. No path is among them: a tool reads no file but
schedules.yaml.
"""
ACTIONS = {
    "retry": ("names", "force"),
    "cancel": ("names", "reason"),
    "pause": ("names", "reason", "until"),
    "resume": ("names",),
    "enqueue": ("job", "arguments", "key", "at"),
    "backfill": ("job", "first", "last", "dry_run"),
}
"""The same of actions. They name runs and jobs one by one, and confirm nothing: a large backfill is
for a person.
"""
REST = (
    "narrow the arguments (span, job, limit); runs and log continue with `before`, show has"
    " `output` and `attempt`"
)
"""How to get what an answer leaves out."""


@dataclass(frozen=True)
class Tool:
    """A verb as a tool. ``jobs`` are those that ``enqueue`` may enqueue; empty for other verbs."""

    verb: str
    params: Mapping[str, click.Parameter]
    description: str
    jobs: Sequence[str] = ()

    @property
    def is_action(self) -> bool:
        return self.verb in ACTIONS

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        properties = {name: self._property(name, param) for name, param in self.params.items()}
        lists = self.is_action  # an action without names would be one on everything
        required = [
            name
            for name, param in self.params.items()
            if param.required or (lists and _is_list(param))
        ]
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
            "required": required,
        }

    def _property(self, name: str, param: click.Parameter) -> dict[str, Any]:
        kind: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_VALUE_CHARS}
        if isinstance(param.type, click.IntRange):
            kind = {"type": "integer"}
        elif isinstance(param.type, click.Choice):
            kind = {"enum": list(param.type.choices)}
        elif isinstance(param, click.Option) and param.is_flag:
            kind = {"type": "boolean"}
        elif isinstance(param.type, Payload):
            kind = {"type": "object"}
        elif name == "job" and self.jobs:
            kind = {"enum": list(self.jobs)}
        if _is_list(param):
            kind = {"type": "array", "items": kind, "minItems": 1, "maxItems": MAX_VALUES}
        text = (
            param.help
            if isinstance(param, click.Option)
            else f"As {param.make_metavar(click.Context(cli))}."
        )
        return {"description": text, **kind}

    def words(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the command line of a call. Raises Refused for arguments that the schema does not
        allow.

        A value cannot become an option: options are written with "=", and arguments come after
        "--". A payload is an object here, and so never @FILE or -.
        """
        try:
            jsonschema.validate(dict(arguments), self.schema)
        except jsonschema.ValidationError as error:
            raise Refused(
                f"{'.'.join(map(str, error.absolute_path)) or 'arguments'}: {error.message}"
            ) from None
        options, positional = list[str](), list[str]()
        for name, value in arguments.items():
            param = self.params[name]
            values = value if isinstance(value, list) else [value]
            if isinstance(param.type, Payload):
                values = [json.dumps(value)]
                if len(values[0]) > MAX_VALUE_CHARS:
                    raise Refused(f"{name}: is longer than {MAX_VALUE_CHARS:,} characters of JSON")
            if not isinstance(param, click.Option):
                positional += map(str, values)
            elif param.is_flag:
                options += [param.opts[-1]] * value
            else:
                option = max(param.opts, key=len)
                options += [
                    f"{option}={each}" if option.startswith("--") else f"{option}{each}"
                    for each in values
                ]
        return [self.verb, *options, "--format=json", "--", *positional]


def _is_list(param: click.Parameter) -> bool:
    return param.nargs == -1 or (isinstance(param, click.Option) and param.multiple)


def _name(param: click.Parameter) -> str:
    """Return the name of a parameter as the documentation has it: that of the option, or of the
    argument.
    """
    if isinstance(param, click.Option):
        longest = max(param.opts, key=len)
        return (
            longest.lstrip("-").replace("-", "_") if longest.startswith("--") else str(param.name)
        )
    return (param.metavar or str(param.name)).strip("[].").lower()


def all_tools(actions: Mapping[str, Sequence[str]]) -> dict[str, Tool]:
    """Return the tools by name: the reading ones, and the ``actions`` that are allowed, with the
    jobs to enqueue.
    """
    tools = {}
    for verb, names in {**READING, **{action: ACTIONS[action] for action in actions}}.items():
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        params = {param.name: param for param in command.params}
        known = {_name(params[name]): params[name] for name in names}
        tools[verb] = Tool(
            verb, known, " ".join((command.help or "").split()), tuple(actions.get(verb, ()))
        )
    return tools
