"""``yamlsched mcp``: tools for an assistant."""

from __future__ import annotations

import os
from importlib.util import find_spec

import click
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from yamlsched.cli import OK
from yamlsched.cli._settings import Settings, verb
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras.mcp.tools import ACTIONS, all_tools
from yamlsched.schedule.file import absolute

HELP = """Offer the read-only commands to an AI assistant, over MCP on stdin and stdout.

It needs the extra `mcp`, and a DSN with the role yamlsched_reader. The assistant
can change nothing, except by the actions that you list with --actions, which use the DSN of
YAMLSCHED_ACTIONS_DSN.
"""


def read_actions(text: str) -> dict[str, list[str]]:
    """Return the actions of ``retry,enqueue:JOB``, with the jobs that may be enqueued. Raises
    UsageError.
    """
    actions: dict[str, list[str]] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        action, _, job = word.partition(":")
        if action not in ACTIONS:
            raise click.UsageError(f'--actions: "{action}" is not one of {", ".join(ACTIONS)}')
        if bool(job) != (action == "enqueue"):
            raise click.UsageError(
                f'--actions: "{word}": write enqueue:JOB for each job, and other actions alone'
            )
        actions.setdefault(action, []).extend([job] * bool(job))
    return actions


@verb(HELP, uses="file dsn env namespace", formats=("text",))
@click.option(
    "--actions", default="", metavar="LIST", help="The actions to offer: retry,pause,enqueue:JOB."
)
@click.option(
    "--payloads", is_flag=True, help="Show payloads and results, which may be personal data."
)
def command(settings: Settings, /, actions: str, payloads: bool) -> int:
    if find_spec("mcp") is None:
        raise EnvironmentFailed(
            "yamlsched mcp needs mcp: install the extra with: pip install 'yamlsched[mcp]'"
        )
    from yamlsched.extras.mcp import server  # its library is optional

    allowed = all_tools(read_actions(actions))
    if not (actions_dsn := os.environ.get("YAMLSCHED_ACTIONS_DSN", "")) and actions:
        raise click.UsageError("--actions needs a DSN of its own: set YAMLSCHED_ACTIONS_DSN")
    with settings.database() as dsn:
        server.serve(allowed, environments(settings, dsn, actions_dsn), payloads)
    return OK


def environments(settings: Settings, dsn: str, actions_dsn: str) -> dict[bool, dict[str, str]]:
    """Return the environments of the processes of reading verbs, and of actions (True)."""
    own = {
        "FILE": str(absolute(settings.file)),
        "ENV": settings.env,
        "NAMESPACE": settings.namespace,
    }
    variables = {key: value for key, value in os.environ.items() if key != "YAMLSCHED_ACTIONS_DSN"}
    variables |= {f"YAMLSCHED_{name}": value for name, value in own.items() if value is not None}
    return {
        False: {**variables, "YAMLSCHED_DSN": read_only(dsn)},
        True: {**variables, "YAMLSCHED_DSN": actions_dsn},
    }


def read_only(dsn: str) -> str:
    """Return a DSN whose sessions change nothing, whatever the privileges of its role."""
    parameters = conninfo_to_dict(dsn)
    options = str(parameters.get("options") or os.environ.get("PGOPTIONS") or "")
    where = parameters.get("target_session_attrs", "read-write")
    # libpq would find no server whose sessions may write
    where = "primary" if where == "read-write" else where
    return make_conninfo(
        dsn, options=f"{options} -c default_transaction_read_only=on", target_session_attrs=where
    )
