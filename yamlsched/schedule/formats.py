"""The output formats of ``validate``: for terminals, editors, programs and continuous integration."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from yamlsched import __version__, log
from yamlsched.schedule import catalog
from yamlsched.schedule.source import ERROR, Diagnostic
from yamlsched.text import escape_ci_commands, escape_line

FORMAT_VERSION = 1
Paint = Callable[[str, str], str]
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MAX_SHOWN_CHARS = 140
"""Of a longer source line, only a part is shown."""


def one_line(found: Diagnostic) -> str:
    """Return position, severity, code, message and remedy, in the form that editors parse."""
    return escape_line(f"{found.file}:{found.line}:{found.column}: {found.severity}[{found.code}]: {_sentence(found)}")


def _sentence(found: Diagnostic) -> str:
    return f"{found.message}. {found.remedy}" if found.remedy else found.message


def _plain(severity: str, text: str) -> str:
    return text


def text(found: Diagnostic, paint: Paint = _plain) -> str:
    """Return a diagnostic with its source line, a caret below the error, and the remedy.

    ``paint`` colours a part of it by severity.
    """
    label = f"{found.severity}[{found.code}]"
    heading = escape_line(f"{found.file}:{found.line}:{found.column}: {label}: {found.message}")
    lines = [heading.replace(label, paint(found.severity, label), 1)]
    gutter = " " * len(str(found.line))
    if found.source.strip():
        first, last = _window(found)
        shown = "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in found.source[first:last])
        start, end = found.column - 1 - first, found.end_column - 1 - first
        # a tab stays a tab, so that the caret is below its character
        margin = "".join("\t" if character == "\t" else " " * _columns(character) for character in shown[:start])
        carets = "^" * max(1, sum(map(_columns, shown[start:end])))
        lines.append(escape_ci_commands(f" {found.line} | {shown.rstrip()}"))
        lines.append(f" {gutter} | {margin}{paint(found.severity, carets)}")
    if found.remedy:
        lines.append(escape_line(f" {gutter} = {found.remedy}"))
    lines += [escape_line(f" {gutter} : {note.file}:{note.line}:{note.column}: {note.message}") for note in found.notes]
    return "\n".join(lines)


def _window(found: Diagnostic) -> tuple[int, int]:
    """Return which part of the source line to show: of a long line, a part around the column."""
    first = max(0, min(found.column - 1 - MAX_SHOWN_CHARS // 3, len(found.source) - MAX_SHOWN_CHARS))
    return first, first + MAX_SHOWN_CHARS


def _columns(character: str) -> int:
    """Return how many columns of a terminal a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def as_text(found: Sequence[Diagnostic], files: Sequence[str], paint: Paint = _plain) -> str:
    return "\n\n".join(text(one, paint) for one in found)


def as_concise(found: Sequence[Diagnostic], files: Sequence[str]) -> str:
    return "\n".join(one_line(one) for one in found)


def as_json(found: Sequence[Diagnostic], files: Sequence[str]) -> str:
    diagnostics = [asdict(one) for one in found]
    for one in diagnostics:
        del one["source"]
    return _json({"format_version": FORMAT_VERSION, "diagnostics": diagnostics})


def _json(document: dict[str, Any]) -> str:
    lines = json.dumps(document, ensure_ascii=False, indent=2).split("\n")
    return "\n".join(log.printable_json(line) for line in lines)


def as_github(found: Sequence[Diagnostic], files: Sequence[str]) -> str:
    """Return workflow commands, which GitHub shows as annotations on the lines of a pull request."""
    return "\n".join(
        f"::{one.severity} file={_property(escape_line(one.file))},line={one.line},col={one.column},"
        f"endColumn={one.end_column},title={one.code}::{_data(escape_line(_sentence(one)))}"
        for one in found
    )


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def as_sarif(found: Sequence[Diagnostic], files: Sequence[str]) -> str:
    """Return SARIF 2.1.0, the format of code scanning services."""
    codes = sorted({one.code for one in found})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": catalog.title(code)},
            "help": {"text": catalog.page(code), "markdown": catalog.page(code)},
        }
        for code in codes
    ]
    run = {
        "tool": {"driver": {"name": "yamlsched", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": {"uri": _uri(file)}} for file in files],
        "results": [_result(one, codes) for one in found],
    }
    return _json({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _result(found: Diagnostic, codes: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": found.code,
        "ruleIndex": codes.index(found.code),
        "level": "error" if found.severity == ERROR else "warning",
        "message": {"text": _sentence(found)},
        "locations": [_location(found.file, found.line, found.column, found.end_column)],
    }
    if found.notes:
        result["relatedLocations"] = [
            {**_location(note.file, note.line, note.column, note.column + 1), "message": {"text": note.message}}
            for note in found.notes
        ]
    return result


def _location(file: str, line: int, column: int, end_column: int) -> dict[str, Any]:
    region = {"startLine": line, "startColumn": column, "endLine": line, "endColumn": end_column}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(file)}, "region": region}}


def _uri(file: str) -> str:

    return ("file://" if file.startswith("/") else "") + quote(os.fsencode(file))


FORMATS: dict[str, Callable[[Sequence[Diagnostic], Sequence[str]], str]] = {
    "text": as_text,
    "concise": as_concise,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}
