"""JSON that PostgreSQL can store as jsonb."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from yamlsched.errors import Refused

MAX_RESULT_BYTES = 65_536
MAX_DIGITS = 3_000
"""Of a number, as in sql/schema.sql. Python refuses to convert much longer ones, with its own
error.
"""
INTEGER_LIMIT = 10**MAX_DIGITS

encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def encode_result(value: Any, what: str) -> str | None:
    """Return ``value`` as JSON, None for None. Raises Refused, which names ``what``, if it cannot
    be stored.
    """
    if value is None:
        return None
    for where, problem in problems(value, what):
        raise Refused(f"{where} {problem}")
    text = encode(value)
    if (size := len(text.encode())) > MAX_RESULT_BYTES:
        raise Refused(
            f"{what} has {size} bytes as JSON, over the limit of 64 KiB: store it, and return a"
            " reference"
        )
    return text


def problems(value: Any, where: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the path and the problem of every part of ``value`` that PostgreSQL cannot store as
    jsonb.
    """
    if isinstance(value, str):
        if problem := string_problem(value):
            yield where, problem
    elif isinstance(value, int):
        if abs(value) >= INTEGER_LIMIT:
            yield where, "is an integer of over 3,000 digits: pass a string"
    elif value is None:
        return
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield where, f"is {value}, which is not a valid JSON number: pass None or a string"
    elif depth > 50:
        yield where, "is nested over 50 deep, or is self-referencing"
    elif isinstance(value, dict) or (depth == 0 and isinstance(value, Mapping)):
        for key, item in value.items():
            if not isinstance(key, str):
                yield where, f"has the key {key!r}, a {type(key).__name__}: JSON keys are strings"
            elif problem := string_problem(key):
                yield f"a key of {where}", problem
            else:
                yield from problems(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for nth, item in enumerate(value):
            yield from problems(item, f"{where}[{nth}]", depth + 1)
    else:
        yield (
            where,
            (
                f"is of type {type(value).__name__}, which is not a valid JSON value: "
                "pass a string, a number, a list or a dict"
            ),
        )


def string_problem(text: str) -> str:
    """Return why PostgreSQL cannot store a string; empty if it can."""
    if "\x00" in text:
        return "contains a NUL character, which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half of a surrogate pair, which is not valid Unicode"
    return ""
