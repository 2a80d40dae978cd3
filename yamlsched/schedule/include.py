"""The files that schedules.yaml includes, and their jobs and defaults beside its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from yamlsched.schedule import file as schedule_file
from yamlsched.schedule import schema_check
from yamlsched.schedule.file import Included, is_match
from yamlsched.schedule.findings import Findings, decode
from yamlsched.schedule.node import DEFAULTS, Node, Spot
from yamlsched.schedule.parse import parse
from yamlsched.schedule.schema import INCLUDED, SCHEMA
from yamlsched.text import quoted

LIST_TREE = ("ls-tree", "-r", "-z", "--full-tree")
"""The arguments of git that list the files below a tree."""
TOP_LEVEL = {**INCLUDED, "properties": {key: {} for key in INCLUDED["properties"]}}
"""The schema of an included file without what its keys have: their paths are those of the main
file.
"""


class Contents(NamedTuple):
    """The bytes of a file, and the files that it includes."""

    data: bytes
    included: Included


def read(file: Path, remedy: str = "", is_reviewed: bool = False) -> Contents:
    """Read a file and all that it includes; ``is_reviewed`` as in ``file.read_reviewed``. Raises
    EnvironmentFailed.
    """
    read_main = schedule_file.read_reviewed if is_reviewed else schedule_file.read
    data = read_main(file, remedy)
    return Contents(data, schedule_file.read_included(file, patterns(data), is_reviewed))


def patterns(data: bytes) -> tuple[str, ...]:
    """Return the patterns of ``include`` in a file. Those that are not valid match no file."""
    if b"include" not in data:
        return ()
    document = parse(decode(data, ""))
    spot = document and Spot(document).get("include")
    items = spot.children() if spot and isinstance(spot.value, list) else ()
    return tuple(item.value for item in items if isinstance(item.value, str))


def including(file: Path, name: str) -> Path | None:
    """Return the nearest file of this ``name``, in a folder above, that includes ``file``; None if
    there is none. Raises EnvironmentFailed.
    """
    target = file.resolve()
    for folder in target.parents:
        main = folder / name
        if main.is_file() and main != target:
            files = read(main, is_reviewed=True).included.files
            if any((folder / each.path).resolve() == target for each in files):
                return main if file.is_absolute() else Path(os.path.relpath(main))
    return None


def beside(file: str, path: str) -> str:
    """Return the name of an included file, as messages show it.

    >>> beside("conf/schedules.yaml", "jobs/a.yaml"), beside("main:schedules.yaml", "jobs/a.yaml")
    ('conf/jobs/a.yaml', 'main:jobs/a.yaml')
    """
    return file[: max(file.rfind("/"), file.rfind(":")) + 1] + path


def blobs(listed: bytes, patterns: Sequence[str], main: str) -> dict[str, str]:
    """Return the ids of the files of a listed tree that patterns of ``include`` match, by path."""
    entries = (entry.partition(b"\t") for entry in listed.split(b"\0") if entry)
    ids = {os.fsdecode(path): facts.split()[2].decode("ascii") for facts, _, path in entries}
    return {
        path: ids[path]
        for path in sorted(ids, key=os.fsencode)
        if path != main and any(is_match(path, pattern) for pattern in patterns)
    }


def merge(root: Spot, included: Included, findings: Findings) -> Spot:
    """Return the main file with the jobs of all, and with the defaults of each file beside its own.
    Report the errors of the included files.
    """
    _report_files(root, included, findings)
    jobs = root.get("jobs")
    if jobs is None or not isinstance(jobs.value, dict):
        return root
    top, merged = dict(root.value), dict(jobs.value)
    for part in findings.source.parts[1:]:
        document = parse(findings, part)
        if document is None:
            continue
        file = Spot(document, (part.file,))
        schema_check.check(file, findings, TOP_LEVEL)
        key, own = f"{DEFAULTS} of {part.file}", file.get(DEFAULTS)
        if own is not None:
            top[key] = _over(top.get(DEFAULTS), own.node)
            schema_check.check(Spot(top[key], (key,)), findings, SCHEMA["properties"][DEFAULTS])
        if (entries := file.get("jobs")) is None:
            continue
        schema_check.check(Spot(entries.node, ("jobs",)), findings, SCHEMA["properties"]["jobs"])
        for name, entry in entries.value.items() if isinstance(entries.value, dict) else ():
            if name in merged:
                _report_twice(name, merged[name], entry, findings)
            else:
                merged[name] = entry
                entry.defaults = DEFAULTS if own is None else key
    return Spot(root.node.merged({**top, "jobs": jobs.node.merged(merged)}))


def _over(main: Node | None, own: Node) -> Node:
    """Return the defaults of an included file over those of the main one."""
    if main is None or not isinstance(main.value, dict) or not isinstance(own.value, dict):
        return own
    return own.merged({**main.value, **own.value})


def _report_files(root: Spot, included: Included, findings: Findings) -> None:
    """Report patterns without a file, and files that cannot be read."""
    spot, files = root.get("include"), included.files
    for item in spot.children() if spot and isinstance(spot.value, list) else ():
        if not findings.is_valid(item) or not isinstance(item.value, str):
            continue
        own = [each for each in files if is_match(each.path, item.value)]
        if not own:
            message = f"{item}: no file matches {quoted(item.value)}"
            remedy = "Correct or remove the pattern. It is relative to this file."
            findings.error(item, "YS018", message, remedy)
        if problems := [each for each in own if each.problem]:
            names = [beside(findings.source.file, each.path) for each in problems]
            findings.unreadable.update(names)
            message = f"{item}: {quoted(names[0])} cannot be read: {problems[0].problem}"
            message += f"; nor can {len(names) - 1} more" if names[1:] else ""
            remedy = "Name a regular file, and let the user of the tick read it."
            findings.error(item, "YS017", message, remedy)


def _report_twice(name: str, first: Node, second: Node, findings: Findings) -> None:
    at, again = (node.key or node for node in (first, second))
    place = findings.source.position(at.start).file
    message = f"job {quoted(name)} is also in {place}"
    notes = [(at.start, "the first one is here")]
    findings.error_at(again.span, "YS006", message, "Remove or rename one of the two.", notes)
    first.has_errors = second.has_errors = True
