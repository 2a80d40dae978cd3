"""Escape strings from files, databases and servers for a terminal, a log or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

CI_COMMAND = re.compile(r"^(\s*)::|##(?=[A-Za-z]*\[)")
"""What CI services execute in a log: ``::stop-commands::x`` and ``##[error]`` (GitHub),
``##vso[...]`` (Azure).
"""
STYLES = re.compile(r"\x1b\[[0-9;:]*[mK]|\r+$", re.MULTILINE)
"""What colours a terminal or clears its line, and the end of lines of other systems."""
PLUGIN_CODE = re.compile(r"(?!YS)[A-Z]{2,12}[0-9]{0,4}")
"""The code of a plugin's finding. Codes that start with YS are ours."""
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
    return CI_COMMAND.sub(
        lambda match: f"{match[1] or ''}\\::" if match[0].endswith(":") else r"#\#", line
    )


def escape_line(text: str) -> str:
    """Return ``text`` as one line of output: it cannot look like another line, or control what
    shows it.
    """
    return escape_ci_commands(escape_control(text))


def without_styles(output: str) -> str:
    r"""Return what a program printed without its colours. Other control characters stay, and are to
    be escaped.

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
    return ", ".join(names[:limit]) + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )


def names_for_log(names: Sequence[str], limit: int = 10) -> str:
    """Return the first names for a log line, and how many more there are.

    >>> names_for_log(["a", "b", "c"], 2)
    'a,b,+1'
    """
    return ",".join(names[:limit]) + (f",+{len(names) - limit}" if len(names) > limit else "")


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


MAX_WORD_CHARS = 100
"""A longer word is not compared with others."""


def quoted(value: Any, longest: int = 60) -> str:
    """Return a value as messages show it: strings in double quotes, on one line,
    truncated if long.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = truncate(escape_control(str(value)[: longest + 1]), longest)
    return f'"{text}"' if isinstance(value, str) else text


def described(value: Any) -> str:
    """Return a value with its type, as in ``found the string "5"``; a collection by
    its type alone.
    """
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    kind = {str: "the string ", int: "the number ", float: "the number "}.get(type(value), "")
    return kind + quoted(value)


def closest_match(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of ``words`` that was probably meant by ``word``, None if none is similar."""
    if len(word) > MAX_WORD_CHARS:
        return None
    by_fold = {w.casefold().replace("-", "_").replace(" ", "_"): w for w in words}
    folded = word.casefold().replace("-", "_").replace(" ", "_")
    matches = get_close_matches(folded, by_fold, n=1, cutoff=cutoff)
    return by_fold[matches[0]] if matches else None


def did_you_mean(word: str, words: Iterable[str], otherwise: str = "") -> str:
    """Return the remedy for a misspelt word: the closest match, else ``otherwise``."""
    meant = closest_match(word, words)
    return f'Did you mean "{meant}"?' if meant else otherwise


def join_words(words: Iterable[str], last: str = "or") -> str:
    """Return words as a list in a sentence: ``wait, skip or allow``."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail
