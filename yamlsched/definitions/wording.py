"""How messages show values and lists of words, and which word was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

MAX_WORD_CHARS = 100
"""A longer word is not compared with others."""


def quoted(value: Any, longest: int = 60) -> str:
    """Return a value as messages show it: strings in double quotes, on one line, truncated if long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)[: longest + 1]
    text = "".join(c if c.isprintable() else "\\" + f"x{ord(c):02x}" for c in text)
    if len(text) > longest:
        text = text[: longest - 3] + "..."
    return f'"{text}"' if isinstance(value, str) else text


def described(value: Any) -> str:
    """Return a value with its type, as in ``found the string "5"``; a collection by its type alone."""
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
    found = get_close_matches(folded, by_fold, n=1, cutoff=cutoff)
    return by_fold[found[0]] if found else None


def did_you_mean(word: str, words: Iterable[str], otherwise: str = "") -> str:
    """Return the remedy for a misspelt word: the closest match, else ``otherwise``."""
    meant = closest_match(word, words)
    return f'Did you mean "{meant}"?' if meant else otherwise


def join_words(words: Iterable[str], last: str = "or") -> str:
    """Return words as a list in a sentence: ``wait, skip or allow``."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail
