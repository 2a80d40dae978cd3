"""One event, one line, on stderr: a past-tense name in two parts, then ``key=value``.

The same key always means the same thing. Payloads and DSNs are never logged: both hold secrets.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from yamlsched import durations, times

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_state: dict[str, Any] = {"threshold": 20, "json": False}


def configure(verbosity: int = 0, as_json: bool = False) -> None:
    """Choose what is written: ``verbosity`` 0 is info and above, each step up or down one level."""
    _state.update(threshold=20 - 10 * verbosity, json=as_json)


def is_enabled(level: str) -> bool:
    """Return whether lines of ``level`` are written: for callers whose lines cost more than they are worth."""
    return LEVELS[level] >= int(_state["threshold"])


def debug(event: str, **fields: Any) -> None:
    """For the people who make yamlsched."""
    _write("debug", event, fields)


def info(event: str, **fields: Any) -> None:
    """What an operator reads every day."""
    _write("info", event, fields)


def warning(event: str, **fields: Any) -> None:
    """What heals by itself."""
    _write("warning", event, fields)


def error(event: str, **fields: Any) -> None:
    """What wants a person."""
    _write("error", event, fields)


def _write(level: str, event: str, fields: dict[str, Any], to: TextIO | None = None) -> None:
    if not is_enabled(level):
        return
    line = format_line(level, event, fields, datetime.now(UTC), _state["json"])
    with contextlib.suppress(OSError, ValueError):  # nobody listens any more: a run is worth more than its log line
        print(line, file=to or sys.stderr, flush=True)


def format_line(level: str, event: str, fields: dict[str, Any], at: datetime, as_json: bool = False) -> str:
    """Return the line; fields that are None are left out.

    >>> format_line("info", "run.dead", {"job": "purge", "run": 119}, datetime(2026, 1, 14, 2, tzinfo=UTC))
    '2026-01-14T02:00:00Z INFO    run.dead job=purge run=119'
    """
    given = {key.rstrip("_"): value for key, value in fields.items() if value is not None}
    if as_json:
        plain = {key: value if isinstance(value, int | float) else _text(value) for key, value in given.items()}
        line = {"at": _text(at), "level": level, "event": event, **plain}
        return printable_json(json.dumps(line, ensure_ascii=False))
    pairs = "".join(f" {key}={_quoted(_text(value))}" for key, value in given.items())
    return f"{_text(at)} {level.upper():<7} {event}{pairs}"


def printable_json(line: str) -> str:
    """Return a line of JSON with escapes for what could break the line or steer a terminal, such as U+2028 and C1."""
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return times.rfc3339(value, "seconds")
    if isinstance(value, timedelta):
        return durations.show(value)
    return str(value)


def _quoted(text: str) -> str:
    """Return ``text`` so that it stays one word on one line: quoted, with escapes, where it is not plain."""
    if text and text.isprintable() and not any(c in ' "=\\' for c in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
