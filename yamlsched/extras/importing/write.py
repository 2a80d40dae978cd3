"""Imported jobs as YAML: a new file, or appended to the jobs of an existing one without touching
the rest of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from yamlsched.errors import Refused
from yamlsched.extras.importing.model import YAML_WORDS, ImportedJob
from yamlsched.extras.importing.target import Target
from yamlsched.schedule.findings import decode
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.node import Node
from yamlsched.schedule.parse import parse
from yamlsched.secret_forms import mask

PLAIN = re.compile(r"(--?|\.\.?/)?[A-Za-z/][A-Za-z0-9_./=@+-]*", re.ASCII)
UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
MAX_COMMENT_CHARS = 150
MAX_LINE_CHARS = 120
ORDER = (
    "limits",
    "description",
    "cron",
    "crons",
    "timezone",
    "command",
    "handler",
    "env",
    "cwd",
    "stdin",
    "payload",
    "enabled",
    "spread",
    "overlap",
    "limit",
    "catchup",
    "catchup_window",
    "max_attempts",
    "backoff",
    "timeout",
    "kill_after",
    "exit_codes",
)
NEVER_DEFAULTS = {*ORDER[1:7], "stdin", "payload", "enabled", "spread", "limit"}


def as_file(jobs: Sequence[ImportedJob], zone: str) -> str:
    """Return a schedules.yaml. What all jobs have in common becomes its defaults."""
    defaults = {
        key: value
        for key, value in jobs[0].keys.items()
        if key not in NEVER_DEFAULTS and len(jobs) > 1
    }
    for job in jobs:
        defaults = {
            key: value
            for key, value in defaults.items()
            if key in job.keys and job.keys[key] == value
        }
    head = "version: 1\n" + ("" if zone == "UTC" else f"timezone: {zone}\n")
    if limits := _limits(jobs):
        head += "".join(f"{line}\n" for line in _lines({"limits": limits}))
    if defaults:
        head += "defaults:\n" + "".join(f"  {line}\n" for line in _lines(defaults))
    return f"{head}\njobs:\n{as_jobs(jobs, zone, '  ', defaults)}"


def _limits(jobs: Sequence[ImportedJob]) -> dict[str, dict[str, int]]:
    """Return the limits of ``jobs``, each made of a lock that one process holds."""
    return {job.keys["limit"]: {"max": 1} for job in jobs if "limit" in job.keys}


def as_jobs(
    jobs: Sequence[ImportedJob], zone: str, indent: str, inherited: Mapping[str, Any] = {}
) -> str:
    """Return the entries of ``jobs``, each under a comment with its source; ``zone`` is that of the
    file.
    """
    blocks = []
    for job in jobs:
        keys = {key: value for key, value in job.keys.items() if key not in inherited}
        if keys["timezone"] == zone:
            del keys["timezone"]
        place = f"{job.file}:{job.line}" if job.line else job.file
        lines = [
            f"# {_comment(f'{place}: {mask(job.origin)}')}",
            f"{job.name}:",
            *(f"  {line}" for line in _lines(keys)),
        ]
        blocks.append("".join(f"{indent}{line}\n" for line in lines))
    return "\n".join(blocks)


def _lines(keys: Mapping[str, Any]) -> list[str]:
    lines = []
    for key in sorted(keys, key=ORDER.index):
        value = keys[key]
        line = f"{key}: {value if key == 'handler' else flow(value)}"
        if len(line) > MAX_LINE_CHARS and isinstance(value, dict):
            lines += [f"{key}:", *(f"  {flow(name)}: {flow(item)}" for name, item in value.items())]
        else:
            lines.append(line)
    return lines


def flow(value: Any) -> str:
    """Return a value on one line, as any version of YAML reads it.

    >>> flow(["/bin/sh", "-c", "a | b"]), flow({"A": "1", "n": 1})
    ('[/bin/sh, -c, "a | b"]', '{A: "1", "n": 1}')
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in YAML_WORDS:
        return value
    if isinstance(value, str) and re.fullmatch(r"\d+[smhd](\d+[smhd])*", value):
        return value  # a duration
    text = json.dumps(value, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _comment(text: str) -> str:
    safe = "".join(c if c.isprintable() else " " for c in text)
    return safe if len(safe) <= MAX_COMMENT_CHARS else safe[: MAX_COMMENT_CHARS - 3] + "..."


def append(target: Target, loaded: Loaded, jobs: Sequence[ImportedJob]) -> str:
    """Return the text of a file of the valid schedule ``loaded`` with ``jobs`` behind its own.
    Raises Refused if that is not possible as text.
    """
    text, root = target.data.decode(), _parsed(target.data)
    node, limits = root.value["jobs"], _limits(jobs)
    if limits and ("limits" in root.value or target.main != target.file):
        why = "it has limits" if "limits" in root.value else "limits are in the main file"
        raise _refused(target, f"{why}: import to stdout, and paste the jobs and their limits")
    is_in_braces = text[root.start] == "{" or (node.value and text[node.start] == "{")
    if is_in_braces or node.alias_at is not None:
        raise _refused(
            target, "its jobs are not written as a block: write each key on a line of its own"
        )
    column = _column(text, node.key.start)
    if not node.value:  # jobs: {}
        head, tail, indent = text[: node.start].rstrip(" \t"), text[node.end :], " " * (column + 2)
        body = f"{head}\n{as_jobs(jobs, loaded.timezone, indent)}"
        result = (
            body.rstrip("\n") + tail if tail.startswith(("\n", "\r")) else body + tail.lstrip(" \t")
        )
    else:
        first = next(iter(node.value.values())).key
        indent = " " * _column(text, first.start)
        head, tail = _split_behind(text, node.key.start, root.value.values(), len(indent))
        result = f"{head}\n{as_jobs(jobs, loaded.timezone, indent)}{tail}"
    if limits:
        result = _with_limits(result, _parsed(result.encode()), limits)
    after = target.load(result.encode())
    is_same = after.namespace == loaded.namespace and all(
        after.jobs.get(name) == job for name, job in loaded.jobs.items()
    )
    if not is_same or not after.jobs.keys() >= {job.name for job in jobs}:
        raise _refused(
            target, "its jobs cannot be extended as text: import to stdout, and paste the jobs"
        )
    known = {diagnostic.message for diagnostic in loaded.diagnostics}
    for diagnostic in after.diagnostics:
        if diagnostic.severity == "error" and diagnostic.message not in known:
            raise _refused(target, f"with the imported jobs it is not valid: {diagnostic.message}")
    return re.sub(r"(?<!\r)\n", "\r\n", result) if "\r\n" in text else result


def _parsed(data: bytes) -> Node:
    """Return the document of a file; an empty one if it cannot be parsed."""
    return parse(decode(data, "")) or Node({}, 0, 0)


def _refused(target: Target, why: str) -> Refused:
    return Refused(f"{target.file} was not changed: {why}")


def _with_limits(text: str, root: Node, limits: Mapping[str, Any]) -> str:
    """Return ``text`` with ``limits`` behind its version; as it is if it cannot be parsed."""
    if "version" not in root.value:
        return text
    at = text.find("\n", root.value["version"].end) + 1
    return f"{text[:at]}{' ' * _column(text, root.start)}limits: {flow(limits)}\n{text[at:]}"


def _column(text: str, at: int) -> int:
    return at - (text.rfind("\n", 0, at) + 1)


def _split_behind(text: str, jobs_at: int, values: Any, indent: int) -> tuple[str, str]:
    """Split ``text`` behind the last job: in front of the next key, the comments above it, and the
    blank lines.
    """
    following = [
        value.key.start for value in values if value.alias_at is None and value.key.start > jobs_at
    ]
    end = min(following, default=len(text))
    end = text.rfind("\n", 0, end) + 1 if end < len(text) else end
    if marker := re.search(r"^\.\.\.", text[jobs_at:end], re.MULTILINE):
        end = jobs_at + marker.start()
    lines = text[:end].splitlines(keepends=True)
    kept = len(lines)
    while kept and (not lines[kept - 1].strip() or _is_comment_above(lines[kept - 1], indent)):
        kept -= 1
    head = "".join(lines[:kept])
    return head if head.endswith("\n") else head + "\n", "".join(lines[kept:]) + text[end:]


def _is_comment_above(line: str, indent: int) -> bool:
    stripped = line.lstrip(" ")
    return stripped.startswith("#") and len(line) - len(stripped) < indent
