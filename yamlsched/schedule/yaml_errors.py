"""What is wrong with text that is not valid YAML, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import yaml

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.node import Node, Notes, Span
from yamlsched.schedule.source import MAX_LINE_CHARS, Part, Source
from yamlsched.text import described, quoted

VALUE = re.compile(r"[^#\r\n]*")
CRON_LIKE = re.compile(r"\*\S*(\s+\S+){4,5}")
RESERVED = {
    "@": "starts with @, which YAML reserves",
    "`": "starts with a backtick, which YAML reserves",
    "%": "starts with %, which YAML reserves",
}


class Explanation(NamedTuple):
    """The arguments of ``Findings.error_at``."""

    span: Span
    code: str
    message: str
    remedy: str
    notes: Notes = ()


def report_unknown_alias(name: str, span: Span, known: Iterable[str], findings: Findings) -> None:
    """Report an alias without an anchor, or a cron expression that YAML takes for one."""
    value = _value(findings.source, span[0])
    if CRON_LIKE.fullmatch(value):
        findings.error_at(*_unquoted(findings.source, span[0]))
        return
    meant = findings.source.closest_match(name, known)
    remedy = (
        f"Did you mean *{meant}?" if meant else f'If it is a string, put it in quotes: "{value}"'
    )
    findings.error_at(span, "YS014", f"the alias *{name} has no anchor &{name} before it", remedy)


def report_invalid_key(key: Node, findings: Findings) -> None:
    """Report a key that is not a string."""
    text = findings.source.text
    written = text[key.start : key.end].strip()
    message = (
        f"a key must be a string, found {described(key.value)}"
        if written
        else "a key is missing here"
    )
    if not written or isinstance(key.value, (dict, list)):
        remedy = "Write a name before the colon."
        if text[key.start - 1 : key.start + 1] == "{{":
            remedy = (
                "Templates are not rendered here: render the file first, or put the string in"
                " quotes."
            )
    else:
        remedy = f'Write "{written}":'
    findings.error_at(key.span, "YS007", message, remedy)


def translate_error(error: yaml.YAMLError, part: Part, findings: Findings) -> None:
    """Report what libyaml could not read of a file, unless that line has the same error already."""
    explained = _explain(error, part, findings.source)
    if not findings.is_reported(explained.code, explained.span[0]):
        findings.error_at(*explained)


def _explain(error: yaml.YAMLError, part: Part, source: Source) -> Explanation:
    marks = (getattr(error, name, None) for name in ("context_mark", "problem_mark"))
    started, at = (mark and min(part.start + mark.index, part.end) for mark in marks)
    problem, context = getattr(error, "problem", "") or "", getattr(error, "context", "") or ""
    if at is None:
        at = part.start if started is None else started
    column = source.position(at).column
    indent = source.line_at(at)[: column - 1]
    character = source.text[at : min(at + 1, part.end)]

    if "alias" in context and started is not None:
        return _unquoted(source, started)
    if "anchor" in context and started is not None:
        return _unquoted(source, started, "starts with &, which marks an anchor")
    if (character == "\t" and not indent.strip()) or "tab character" in problem:
        tab = source.text.find("\t", source.text.rfind("\n", 0, at) + 1)
        return Explanation(
            (tab, tab + 1), "YS004", "tabs cannot be used for indentation", "Indent with spaces."
        )
    if "cannot start any token" in problem and character in RESERVED:
        return _unquoted(source, at, RESERVED[character])
    if "unexpected end of stream" in problem and "quoted" in context and started is not None:
        quote = source.text[started]
        return Explanation(
            (started, started + 1),
            "YS001",
            f"the quote {quote} is not closed",
            f"Close it with {quote}",
        )
    for words, message, remedy in PROBLEMS:
        if words in problem:
            notes = []
            if started not in (None, at) and ("flow" in context or "block" in context):
                notes = [(started, "the surrounding value starts here")]
            wrong = source.text[at : at + 2] if "escape" in words else character
            return Explanation(
                (at, at + len(wrong)), "YS001", message.format(wrong.strip()), remedy, notes
            )
    return Explanation(
        (at, at + 1),
        "YS001",
        "this is not valid YAML",
        "Check the quotes and the indentation around it.",
    )


PROBLEMS = (
    (
        "mapping values are not allowed",
        "unexpected second colon, or the line above is incomplete",
        'Put a string that contains ": " in quotes; indent all keys of a mapping equally.',
    ),
    (
        "sequence entries are not allowed",
        "a list cannot start on this line",
        "Start it on its own line.",
    ),
    ("expected ',' or ']'", "the list is not closed, or a comma is missing", "Write [a, b]."),
    (
        "expected ',' or '}'",
        "the mapping is not closed, or a comma is missing",
        "Write {a: 1, b: 2}.",
    ),
    (
        "did not find expected key",
        (
            "a key was expected here: the indentation matches no line above, or text follows a"
            " closed value"
        ),
        "Indent all keys of a mapping equally.",
    ),
    (
        "expected '-' indicator",
        "a list item was expected here",
        'Start it with "- ", indented like the ones above.',
    ),
    (
        "could not find expected ':'",
        "a colon is missing",
        "Write key: value, with a space after the colon.",
    ),
    (
        "unknown escape",
        "{0} is not an escape",
        "In double quotes write \\\\ for a backslash, or use single quotes.",
    ),
    ("Unicode character escape", "this escape is not a character", "Remove it."),
    (
        "expected hex",
        "this escape is not complete",
        "Write \\\\ for a backslash, or use single quotes.",
    ),
    ("undefined tag handle", "this tag is unknown", "Remove it, or put the string in quotes."),
    (
        "<document start>",
        "text follows after the end of the document",
        "Put all jobs into one document.",
    ),
    ("incompatible YAML", "this version of YAML is not supported", "Remove the %YAML line."),
    (
        "comment or line break",
        "text follows on the line that starts a block",
        "Start the text on the next line.",
    ),
    (
        "expected node content",
        "a value is missing, or a bracket is out of place",
        "Check the brackets before it.",
    ),
    (
        "cannot start any token",
        "the character {0} cannot start a value",
        "Put the value in quotes.",
    ),
    ("duplicate", "this appears twice", "Remove one of the two."),
)


def _value(source: Source, at: int) -> str:
    """Return what is written from ``at`` to the end of the value: of the line, or of an item in
    brackets.
    """
    match = VALUE.match(source.text, at, at + MAX_LINE_CHARS)
    value = match[0].rstrip() if match else ""
    if value.count("}") > value.count("{") or value.count("]") > value.count("["):
        value = re.split(r", |[]}]", value, maxsplit=1)[0].rstrip()
    return value


def _unquoted(
    source: Source, at: int, reason: str = "starts with *, which YAML reads as an alias"
) -> Explanation:
    """Explain that the value at ``at`` needs quotes."""
    value = _value(source, at)
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    return Explanation(
        (at, at + len(value)), "YS005", f"{quoted(value)} {reason}", f'Put it in quotes: "{text}"'
    )
