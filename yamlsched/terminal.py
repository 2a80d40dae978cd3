"""Text from files, databases and servers as it may be shown: on a terminal, in a log, in a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

COMMAND = re.compile(r"^(\s*)::|##(?=[A-Za-z]*\[)")
"""How CI services find commands in a log: ``::stop-commands::x`` and ``##[error]`` (GitHub), ``##vso[...]`` (Azure)."""
DEFAULT_LENGTH = 100


def escape_control(text: str) -> str:
    r"""Return ``text`` without control characters, line breaks included.

    >>> escape_control("a\n\x1b[2Jb")
    'a\\n\\x1b[2Jb'
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def escape_ci_commands(line: str) -> str:
    r"""Return a line that no CI service takes for a command.

    >>> escape_ci_commands("  ::error::x"), escape_ci_commands("a ##[group]b")
    ('  \\::error::x', 'a #\\#[group]b')
    """
    return COMMAND.sub(lambda found: f"{found[1] or ''}\\::" if found[0].endswith(":") else r"#\#", line)


def escape_line(text: str) -> str:
    """Return ``text`` as one line of a report: nothing in it can look like another line, or steer what shows it."""
    return escape_ci_commands(escape_control(text))


def truncate(text: str, length: int = DEFAULT_LENGTH) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def join_first(names: Sequence[str], limit: int) -> str:
    """Return the first names, and how many more there are.

    >>> join_first(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
