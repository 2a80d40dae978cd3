"""The output formats of ``validate``: for terminals, editors, programs and continuous
integration.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from yamlsched import __version__, log
from yamlsched.schedule import catalog
from yamlsched.schedule.source import ERROR, Diagnostic, Note
from yamlsched.text import escape_ci_commands, escape_line

FORMAT_VERSION = 1
Paint = Callable[[str, str], str]
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MAX_SHOWN_CHARS = 200
"""A longer line of the file is not shown: a terminal would break it above the caret."""


def one_line(diagnostic: Diagnostic) -> str:
    """Return position, severity, code, message and remedy, in the form that editors parse."""
    return escape_line(
        f"{_position(diagnostic)}: {diagnostic.severity}[{diagnostic.code}]:"
        f" {_sentence(diagnostic)}"
    )


def _position(place: Diagnostic | Note) -> str:
    return f"{place.file}:{place.line}:{place.column}"


def _sentence(diagnostic: Diagnostic) -> str:
    return f"{diagnostic.message}. {diagnostic.remedy}" if diagnostic.remedy else diagnostic.message


def _plain(severity: str, text: str) -> str:
    return text


def text(diagnostic: Diagnostic, paint: Paint = _plain) -> str:
    """Return a diagnostic with its source line, a caret below the error, and the remedy.

    ``paint`` colours a part of it by severity.
    """
    label = f"{diagnostic.severity}[{diagnostic.code}]"
    heading = escape_line(f"{_position(diagnostic)}: {label}: {diagnostic.message}")
    lines = [heading.replace(label, paint(diagnostic.severity, label), 1)]
    gutter = " " * len(str(diagnostic.line))
    if 0 < len(diagnostic.source) <= MAX_SHOWN_CHARS:
        excerpt = "".join(
            c if c.isprintable() or c == "\t" else "\ufffd" for c in diagnostic.source
        )
        # a tab stays a tab, so that the caret is below its character
        margin = re.sub(r"[^\t]", " ", excerpt[: diagnostic.column - 1])
        carets = "^" * (diagnostic.end_column - diagnostic.column)
        lines.append(escape_ci_commands(f" {diagnostic.line} | {excerpt}"))
        lines.append(f" {gutter} | {margin}{paint(diagnostic.severity, carets)}")
    if diagnostic.remedy:
        lines.append(escape_line(f" {gutter} = {diagnostic.remedy}"))
    lines += [
        escape_line(f" {gutter} : {_position(note)}: {note.message}") for note in diagnostic.notes
    ]
    return "\n".join(lines)


def as_text(diagnostics: Sequence[Diagnostic], files: Sequence[str], paint: Paint = _plain) -> str:
    return "\n\n".join(text(diagnostic, paint) for diagnostic in diagnostics)


def as_concise(diagnostics: Sequence[Diagnostic], files: Sequence[str]) -> str:
    return "\n".join(one_line(diagnostic) for diagnostic in diagnostics)


def as_json(diagnostics: Sequence[Diagnostic], files: Sequence[str]) -> str:
    documents = [asdict(diagnostic) for diagnostic in diagnostics]
    for document in documents:
        del document["source"]
    return _json({"format_version": FORMAT_VERSION, "diagnostics": documents})


def _json(document: dict[str, Any]) -> str:
    lines = json.dumps(document, ensure_ascii=False, indent=2).split("\n")
    return "\n".join(log.printable_json(line) for line in lines)


def as_github(diagnostics: Sequence[Diagnostic], files: Sequence[str]) -> str:
    """Return workflow commands, which GitHub shows as annotations on the lines of a
    pull request.
    """
    return "\n".join(
        f"::{diagnostic.severity}"
        f" file={_property(escape_line(diagnostic.file))},line={diagnostic.line},"
        f"col={diagnostic.column},endColumn={diagnostic.end_column},title={diagnostic.code}"
        f"::{_data(escape_line(_sentence(diagnostic)))}"
        for diagnostic in diagnostics
    )


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def as_sarif(diagnostics: Sequence[Diagnostic], files: Sequence[str]) -> str:
    """Return SARIF 2.1.0, the format of code scanning services."""
    codes = sorted({diagnostic.code for diagnostic in diagnostics})
    rules = [_rule(code) for code in codes]
    run = {
        "tool": {"driver": {"name": "yamlsched", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": {"uri": _uri(file)}} for file in files],
        "results": [_result(diagnostic, codes) for diagnostic in diagnostics],
    }
    return _json({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(code: str) -> dict[str, Any]:
    if code not in catalog.pages():
        return {"id": code, "shortDescription": {"text": f"{code}, of a plugin"}}
    page = {"text": catalog.page(code), "markdown": catalog.page(code)}
    return {"id": code, "shortDescription": {"text": catalog.title(code)}, "help": page}


def _result(diagnostic: Diagnostic, codes: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": codes.index(diagnostic.code),
        "level": "error" if diagnostic.severity == ERROR else "warning",
        "message": {"text": _sentence(diagnostic)},
        "locations": [
            _location(diagnostic.file, diagnostic.line, diagnostic.column, diagnostic.end_column)
        ],
    }
    if diagnostic.notes:
        result["relatedLocations"] = [
            {
                **_location(note.file, note.line, note.column, note.column + 1),
                "message": {"text": note.message},
            }
            for note in diagnostic.notes
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
