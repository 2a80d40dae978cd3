"""Is the copy of the JSON Schema that editors read the one of the installed version?"""

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
"""Of the file, among which editors look for the line."""


def check(loaded: Loaded, file: Path) -> list[Diagnostic]:
    """Return advice if the schema that the file names, or that lies next to it, is not the installed one."""
    named = MODELINE.search(loaded.source.text[:MAX_HEAD_CHARS])
    if named and "://" in named[1]:
        return []
    name = named[1] if named else FILE.name
    copy = file.resolve().parent / name
    try:
        is_current = json.loads(schedule_file.read(copy)) == SCHEMA
    except EnvironmentFailed:
        if not named:
            return []  # nobody asked for a copy
        is_current = False
    except (ValueError, RecursionError):
        is_current = False
    if is_current:
        return []
    at, end = named.span(1) if named else (0, 0)
    message = f"the schema {quoted(name)} does not match yamlsched {__version__}: editors may show wrong help"
    remedy = f"Update it: yamlsched schema > {shlex.quote(name)}"
    return [loaded.source.diagnostic((at, end), "YS416", message, remedy, (), WARNING)]
