"""The server of ``yamlsched mcp``. A verb is executed in a process of its own, with its DSN in the
environment.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from yamlsched import __version__
from yamlsched.act.runs import operator
from yamlsched.cli import FINDINGS, OK
from yamlsched.errors import Refused
from yamlsched.extras.mcp.answers import MARKED, answer, failure
from yamlsched.extras.mcp.tools import REST, Tool

CALL_SECONDS = 60
MAX_CALLS = 4
"""At once; others wait."""
Answer = tuple[str, bool]
"""The text, and whether it is an error."""
INSTRUCTIONS = (
    "yamlsched runs the jobs of a schedules.yaml. Start with status or report. why explains the"
    " state of a job,\nor with at one of its slots (scheduled times). runs finds runs, show has"
    f" the attempts, errors and output of one. {MARKED}"
)


def serve(
    tools: Mapping[str, Tool], environments: Mapping[bool, Mapping[str, str]], payloads: bool
) -> None:
    """Serve until stdin ends. Calls that are not answered by then are cancelled, and their
    processes killed.

    ``environments`` are those of the processes of reading verbs, and of actions (True).
    """
    anyio.run(_serve, tools, environments, payloads)


async def call(
    tool: Tool, arguments: Mapping[str, Any], environment: Mapping[str, str], payloads: bool
) -> Answer:
    """Return the answer of a tool."""
    try:
        verb, *words = tool.words(arguments)
        by = [f"--by=mcp:{operator()}"] if tool.is_action else []
        command = [sys.executable, "-m", "yamlsched", verb, *by, *words]
        with anyio.fail_after(CALL_SECONDS):
            done = await anyio.run_process(
                command, stdin=subprocess.DEVNULL, check=False, env=environment
            )
    except TimeoutError:
        return failure(f"no answer within {CALL_SECONDS} seconds"), True
    except (
        Refused,
        ValueError,
        OSError,
    ) as error:  # a NUL, or arguments that are too long together
        return failure(str(error)), True
    printed, log = (
        stream.decode("utf-8", "replace").strip() for stream in (done.stdout, done.stderr)
    )
    if done.returncode not in (OK, FINDINGS) or not printed.startswith("{"):
        return failure(log or f"exit code {done.returncode}"), True
    return answer(printed, payloads, REST, is_marked=tool.verb != "explain"), False


async def _serve(
    tools: Mapping[str, Tool], environments: Mapping[bool, Mapping[str, str]], payloads: bool
) -> None:
    limiter = anyio.CapacityLimiter(MAX_CALLS)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(map(_described, tools.values())))

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = tools.get(params.name)
        text, is_error = failure(f"there is no tool {params.name}"), True
        if tool is not None:
            async with limiter:
                text, is_error = await call(
                    tool, params.arguments or {}, environments[tool.is_action], payloads
                )
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)

    build = partial(Server, "yamlsched", version=__version__, instructions=INSTRUCTIONS)
    server = build(on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=not tool.is_action, destructive_hint=tool.is_action
    )
    return types.Tool(
        name=tool.verb, description=tool.description, input_schema=tool.schema, annotations=hints
    )
