"""Whether the copy of the JSON Schema that editors use is the one of the installed version."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from yamlsched import __version__
from yamlsched.definitions import schedule_file
from yamlsched.definitions.diagnostic import WARNING, Diagnostic
from yamlsched.definitions.load import Loaded
from yamlsched.definitions.schema import FILE, SCHEMA
from yamlsched.definitions.wording import quoted
from yamlsched.errors import EnvironmentFailed

MODELINE = re.compile(r"^#[ \t]*yaml-language-server:[ \t]*\$schema=(\S+)", re.M)
MAX_HEAD_CHARS = 10_000
"""Editors search this part of the file for the line."""


def check(loaded: Loaded, file: Path) -> list[Diagnostic]:
    """Return a warning if the schema that the file names, or that is next to it, differs from the installed one."""
    named = MODELINE.search(loaded.source.text[:MAX_HEAD_CHARS])
    name = named[1] if named else FILE.name
    if "://" in name:
        return []
    try:
        if json.loads(schedule_file.read(file.resolve().parent / name)) == SCHEMA:
            return []
    except EnvironmentFailed:
        if not named:
            return []  # a copy is optional
    except (ValueError, RecursionError):
        pass
    message = f"the schema {quoted(name)} does not match yamlsched {__version__}: editors may show wrong help"
    remedy = f"Update it: yamlsched schema > {shlex.quote(name)}"
    span = named.span(1) if named else (0, 0)
    return [loaded.source.diagnostic(span, "YS416", message, remedy, (), WARNING)]
