"""What is wrong with text that is not valid YAML, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.node import Node, Span
from yamlsched.schedule.source import MAX_LINE_CHARS, Part
from yamlsched.text import quoted

VALUE = re.compile(r"[^#\r\n]*")
CRON_LIKE = re.compile(r"\*\S*(\s+\S+){4,5}")
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
    (
        "expected ',' or",
        "the list or mapping is not closed, or a comma is missing",
        "Write [a, b] or {a: 1, b: 2}.",
    ),
    (
        "did not find expected key",
        "a key was expected here: the indentation matches no line above, or text follows a closed"
        " value",
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
        "escape",
        "this is not an escape",
        "In double quotes write \\\\ for a backslash, or use single quotes.",
    ),
    (
        "expected node content",
        "a value is missing, or a bracket is out of place",
        "Check the brackets before it.",
    ),
    ("", "this is not valid YAML", "Check the quotes and the indentation around it."),
)
"""By words of libyaml: what is wrong, and what to do. The last ones match everything."""


def is_unquoted_cron(text: str, at: int) -> bool:
    """Return whether a cron expression starts at an offset, where YAML reads an alias."""
    return CRON_LIKE.fullmatch(_value(text, at)) is not None


def report_unknown_alias(name: str, span: Span, known: Iterable[str], findings: Findings) -> None:
    meant = findings.source.closest_match(name, known)
    remedy = f"Did you mean *{meant}?" if meant else "If it is a string, put it in quotes."
    message = f"the alias *{name} has no anchor &{name} before it, or is inside of its value"
    findings.error_at(span, "YS014", message, remedy)


def report_invalid_key(key: Node, findings: Findings) -> None:
    """Report a key that is not a string, or is missing."""
    remedy = "Write a name before the colon."
    if findings.source.text[key.start - 1 : key.start + 1] == "{{":
        remedy = "Templates are not rendered here: render the file first, or add quotes."
    findings.error_at(key.span, "YS007", "a key is missing, or is not a string", remedy)


def report_unquoted(at: int, findings: Findings) -> None:
    """Report a value that starts with a character that has a meaning in YAML."""
    value = _value(findings.source.text, at)
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    message = f"{quoted(value)} starts with {value[:1]}, which has a special meaning in YAML"
    findings.error_at((at, at + len(value)), "YS005", message, f'Put it in quotes: "{text}"')


def translate_error(error: yaml.MarkedYAMLError, part: Part, findings: Findings) -> None:
    """Report what libyaml could not read of a file."""
    text, problem, context = findings.source.text, error.problem or "", error.context or ""
    marks = (error.context_mark or error.problem_mark, error.problem_mark)
    started, at = (min(part.start + mark.index, part.end) if mark else part.start for mark in marks)
    character, line = text[at : at + 1], text.rfind("\n", 0, at) + 1
    if "alias" in context or "anchor" in context:
        report_unquoted(started, findings)
    elif "cannot start any token" in problem and character in "@`%":
        report_unquoted(at, findings)
    elif "tab character" in problem or (character == "\t" and not text[line:at].strip()):
        tab = text.find("\t", line)
        message = "tabs cannot be used for indentation"
        findings.error_at((tab, tab + 1), "YS004", message, "Indent with spaces.")
    elif "unexpected end of stream" in problem and "quoted" in context:
        quote = text[started]
        message = f"the quote {quote} is not closed"
        findings.error_at((started, started + 1), "YS001", message, f"Close it with {quote}")
    else:
        message, remedy = next(texts for words, *texts in PROBLEMS if words in problem)
        notes = []
        if started != at and ("flow" in context or "block" in context):
            notes = [(started, "the surrounding value starts here")]
        findings.error_at((at, at + 1), "YS001", message, remedy, notes)


def _value(text: str, at: int) -> str:
    """Return what is written from ``at`` to the end of the value: of the line, or of an item in
    brackets.
    """
    match = VALUE.match(text, at, at + MAX_LINE_CHARS)
    value = match[0].rstrip() if match else ""
    if value.count("}") > value.count("{") or value.count("]") > value.count("["):
        value = re.split(r", |[]}]", value, maxsplit=1)[0].rstrip()
    return value
