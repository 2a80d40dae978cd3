"""Escape strings from files, databases and servers for a terminal, a log or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

CI_COMMAND = re.compile(r"^(\s*)::|##(?=[A-Za-z]*\[)")
"""What CI services execute in a log: ``::stop-commands::x`` and ``##[error]`` (GitHub), ``##vso[...]`` (Azure)."""
STYLES = re.compile(r"\x1b\[[0-9;:]*[mK]|\r+$", re.MULTILINE)
"""What colours a terminal or clears its line, and the end of lines of other systems."""
MAX_SHOWN_CHARS = 100


def escape_control(text: str) -> str:
    r"""Return ``text`` with control characters and line breaks escaped.

    >>> escape_control("a\n\x1b[2Jb")
    'a\\n\\x1b[2Jb'
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def escape_ci_commands(line: str) -> str:
    r"""Return a line that no CI service executes.

    >>> escape_ci_commands("  ::error::x"), escape_ci_commands("a ##[group]b")
    ('  \\::error::x', 'a #\\#[group]b')
    """
    if "::" not in line and "##" not in line:
        return line
    return CI_COMMAND.sub(lambda found: f"{found[1] or ''}\\::" if found[0].endswith(":") else r"#\#", line)


def escape_line(text: str) -> str:
    """Return ``text`` as one line of output: it cannot look like another line, or control what shows it."""
    return escape_ci_commands(escape_control(text))


def without_styles(output: str) -> str:
    r"""Return what a program printed without its colours. Other control characters stay, and are to be escaped.

    >>> without_styles("\x1b[1;31mfailed\x1b[0m\r\n")
    'failed\n'
    """
    return STYLES.sub("", output)


def truncate(text: str, length: int = MAX_SHOWN_CHARS) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def join_first(names: Sequence[str], limit: int) -> str:
    """Return the first names, and how many more there are.

    >>> join_first(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def show_bytes(count: int) -> str:
    """Return a number of bytes with its unit.

    >>> show_bytes(700), show_bytes(70_000), show_bytes(1 << 30)
    ('700 bytes', '68.4 KiB', '1.0 GiB')
    """
    if count < 1024:
        return f"{count} bytes"
    unit = next(nth for nth in (1, 2, 3, 4) if count < 1024 ** (nth + 1) or nth == 4)
    return f"{count / 1024**unit:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[unit - 1]}"


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
