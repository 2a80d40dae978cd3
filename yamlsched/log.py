"""One event, one line, on stderr: a past-tense name in two parts, then ``key=value``.

A key has the same meaning in every event. Payloads and DSNs are never logged: both contain secrets.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TextIO

from yamlsched import durations
from yamlsched.secret_forms import mask
from yamlsched.timetable import times

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
NEEDS_QUOTES = frozenset(' "=\\')
"""Characters with which a value is quoted in a line of text."""
_state: dict[str, Any] = {"threshold": 20, "json": False, "mask": mask}


class NumberOf(NamedTuple):
    """A number and its limit: ``attempt=1/10``, in JSON ``"attempt": 1, "max_attempts": 10``."""

    number: int
    limit: int


def configure(verbosity: int = 0, as_json: bool = False) -> None:
    """Set what is written: ``verbosity`` 0 means info and above, each step up or down one level."""
    _state.update(threshold=20 - 10 * verbosity, json=as_json)


def set_mask(mask: Callable[[str], str]) -> None:
    """Set how secrets are removed from what this process passes on of the output of runs."""
    _state["mask"] = mask


def masked(text: str) -> str:
    """Return what a run has printed without secrets."""
    return str(_state["mask"](text))


def is_json() -> bool:
    """Return whether what yamlsched writes to stderr is JSON."""
    return bool(_state["json"])


def message(level: str, event: str, text: str, **fields: Any) -> None:
    """Print what is written for people, whatever the verbosity: as it is, or as a line of JSON with
    ``fields``.
    """
    if is_json():
        text = format_line(level, event, fields, datetime.now(UTC), as_json=True)
    with contextlib.suppress(OSError, ValueError):  # as in _write
        print(text, file=sys.stderr, flush=True)


def is_enabled(level: str) -> bool:
    """Return whether lines of ``level`` are written, for callers whose fields are expensive."""
    return LEVELS[level] >= int(_state["threshold"])


def debug(event: str, **fields: Any) -> None:
    """For developers of yamlsched."""
    _write("debug", event, fields)


def info(event: str, **fields: Any) -> None:
    """For operators, every day."""
    _write("info", event, fields)


def warning(event: str, **fields: Any) -> None:
    """Resolves by itself."""
    _write("warning", event, fields)


def error(event: str, **fields: Any) -> None:
    """Needs attention."""
    _write("error", event, fields)


def _write(level: str, event: str, fields: dict[str, Any], to: TextIO | None = None) -> None:
    if not is_enabled(level):
        return
    line = format_line(level, event, fields, datetime.now(UTC), _state["json"])
    # stderr is closed, and the run matters more than its log line
    with contextlib.suppress(OSError, ValueError):
        stream = to or sys.stderr
        stream.write(f"{line}\n")  # at once: a storm of failures has a line for each
        stream.flush()


def format_line(
    level: str, event: str, fields: dict[str, Any], at: datetime, as_json: bool = False
) -> str:
    """Return the line. Fields that are None are omitted. In JSON numbers are numbers, and durations
    are seconds.

    >>> at = datetime(2026, 1, 14, 2, tzinfo=UTC)
    >>> format_line("info", "run.dead", {"job": "purge", "run": 119}, at)
    '2026-01-14T02:00:00Z INFO    run.dead job=purge run=119'
    """
    values = {key.rstrip("_"): value for key, value in fields.items() if value is not None}
    if as_json:
        line: dict[str, Any] = {"at": _text(at), "level": level, "event": event}
        for key, value in values.items():
            line.update(_plain(key, value))
        return printable_json(json.dumps(line, ensure_ascii=False))
    pairs = "".join(f" {key}={_quoted(_text(value))}" for key, value in values.items())
    return f"{_text(at)} {level.upper():<7} {event}{pairs}"


def printable_json(line: str) -> str:
    """Return a line of JSON with escapes for what could break it or control a terminal, such as
    U+2028 and C1.
    """
    return (
        line
        if line.isprintable()
        else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
    )


def _plain(key: str, value: Any) -> dict[str, Any]:
    """Return a field as JSON has it."""
    if isinstance(value, NumberOf):
        return {key: value.number, f"max_{key}s": value.limit}
    if isinstance(value, timedelta):
        return {key: round(value.total_seconds(), 3)}
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return {key: value if is_number else _text(value)}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, NumberOf):
        return f"{value.number}/{value.limit}"
    if isinstance(value, datetime):
        return times.rfc3339(value, "seconds")
    if isinstance(value, timedelta):
        return durations.show(value)
    return str(value)


def _quoted(text: str) -> str:
    """Return ``text`` as one word on one line, quoted and escaped if necessary."""
    if text and text.isprintable() and NEEDS_QUOTES.isdisjoint(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
