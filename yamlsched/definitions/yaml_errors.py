"""What is wrong with a text that is not YAML, in words that say what to do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

from yamlsched.definitions.diagnostic import Diagnostic
from yamlsched.definitions.source import MAX_LINE_CHARS, Source
from yamlsched.definitions.wording import quoted

if TYPE_CHECKING:
    from yamlsched.definitions.node import Node

FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x85\x86-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What YAML 1.2 does not let a text contain, and the line breaks of YAML 1.1 that 1.2 does not know."""

PROPERTIES = re.compile(r"([&!][^\s]*\s*)+")
BLOCK_HEADER = re.compile(r"[^\r\n]*\s*")
VALUE = re.compile(r"[^#\r\n]*")
CRON_LIKE = re.compile(r"\*\S*(\s+\S+){4,5}")
CHARACTERS = {
    "@": "starts with @, which YAML reserves",
    "`": "starts with a backtick, which YAML reserves",
    "%": "starts with %, which YAML reserves",
}


def decode(data: bytes, file: str, longest: int) -> tuple[Source, list[Diagnostic]]:
    """Return the text of a file, and why it cannot be read, if so."""
    empty = Source(file, "")
    if len(data) > longest:
        message = f"the file has more than {longest:,} bytes"
        return empty, [empty.diagnostic("YS013", 0, 0, message, "Split it into several namespaces.")]
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return empty, [empty.diagnostic("YS002", 0, 0, "the file is in UTF-16", "Save it as UTF-8.")]
    if data[:3] == b"\xef\xbb\xbf":
        message = "the file starts with a byte order mark"
        return empty, [empty.diagnostic("YS002", 0, 0, message, "Save it as UTF-8 without BOM.")]
    try:
        source = Source(file, data.decode())
    except UnicodeDecodeError as error:
        # all up to the bad byte is sound, so that its place can be told
        source = Source(file, data[: error.start].decode() + "\ufffd")
        at = len(source.text) - 1
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        return source, [source.diagnostic("YS002", at, at + 1, message, "Save the file as UTF-8.")]
    if bad := FORBIDDEN.search(source.text):
        at, code = bad.start(), ord(bad[0])
        name = "NUL" if code == 0 else f"U+{code:04X}"
        remedy = "Remove it." if code < 0x20 else f'Remove it, or write "\\u{code:04x}" in double quotes.'
        if code == 0 and source.text.count("\0") * 4 > len(source.text):
            return source, [source.diagnostic("YS002", at, at + 1, "the file is in UTF-16", "Save it as UTF-8.")]
        return source, [source.diagnostic("YS003", at, at + 1, f"the character {name} is not allowed", remedy)]
    return source, []


def after_properties(text: str, at: int, end: int) -> int:
    """Return where a value begins whose place begins with an anchor or a tag."""
    properties = PROPERTIES.match(text, at)
    return min(properties.end(), end) if properties else at


def after_header(text: str, at: int, end: int) -> int:
    """Return where the content of a block scalar begins, behind the line of its ``|`` or ``>``."""
    content = BLOCK_HEADER.match(text, at)
    return min(content.end(), end) if content else at


def unknown_alias(source: Source, name: str, at: int, end: int, known: list[str]) -> Diagnostic:
    value = _value(source, at)
    if CRON_LIKE.fullmatch(value):
        return _to_be_quoted(source, at, value)
    meant = source.closest_match(name, known)
    return source.diagnostic(
        "YS014",
        at,
        end,
        f"the alias *{name} has no anchor &{name} before it",
        f"Did you mean *{meant}?" if meant else f'If it is a string, put it in quotes: "{value}"',
    )


def not_a_text_key(source: Source, key: Node) -> Diagnostic:
    if isinstance(key.value, (dict, list)):
        remedy = "Write one name before the colon."
        if source.text[key.at : key.at + 1] == "{" and source.text[key.at - 1 : key.at] == "{":
            remedy = "Templates are not rendered here: render the file first, or put the string in quotes."
        return source.diagnostic("YS007", key.at, key.end, "a key must be a string, this is a collection", remedy)
    written = source.text[key.at : key.end].strip()
    if not written:
        return source.diagnostic("YS007", key.at, key.end, "a key is missing here", "Write a name before the colon.")
    kind = "null" if key.value is None else "a boolean" if isinstance(key.value, bool) else "a number"
    return source.diagnostic(
        "YS007", key.at, key.end, f"a key must be a string, {quoted(written)[1:-1]} is {kind}", f'Write "{written}":'
    )


def explain(error: yaml.YAMLError, source: Source) -> Diagnostic:
    """Say in our words what libyaml could not read."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem, context = getattr(error, "problem", "") or "", getattr(error, "context", "") or ""
    begun = getattr(error, "context_mark", None)
    at: int = mark.index if mark else 0
    at = min(at, len(source.text))
    line, column = source.place(at)
    indent = source.line(line)[: column - 1]
    character = source.text[at : at + 1]

    if "alias" in context and begun:
        return _to_be_quoted(source, begun.index, _value(source, begun.index))
    if "anchor" in context and begun:
        return _to_be_quoted(source, begun.index, _value(source, begun.index), "starts with &, which marks an anchor")
    if (character == "\t" and not indent.strip()) or "tab character" in problem:
        tab = source.text.find("\t", source.text.rfind("\n", 0, at) + 1)
        return source.diagnostic("YS004", tab, tab + 1, "tabs cannot be used for indentation", "Indent with spaces.")
    if "cannot start any token" in problem and character in CHARACTERS:
        return _to_be_quoted(source, at, _value(source, at), CHARACTERS[character])
    if "unexpected end of stream" in problem and "quoted" in context and begun:
        quote = source.text[begun.index]
        where, message = begun.index, f"the quote {quote} is not closed"
        return source.diagnostic("YS001", where, where + 1, message, f"Close it with {quote}")
    for part, message, remedy in PROBLEMS:
        if part in problem:
            notes = []
            if begun and ("flow" in context or "block" in context) and begun.index != at:
                notes = [(begun.index, "what it is part of starts here")]
            wrong = source.text[at : at + 2] if "escape" in part else character
            return source.diagnostic("YS001", at, at + len(wrong), message.format(wrong.strip()), remedy, notes)
    return source.diagnostic(
        "YS001", at, at + 1, "this is not valid YAML", "Look at the quotes and the indentation here."
    )


PROBLEMS = (
    (
        "mapping values are not allowed",
        "there is a second colon where a value is expected, or the line above is not finished",
        'Put a string that contains ": " in quotes; indent keys of one mapping alike.',
    ),
    ("sequence entries are not allowed", "a list cannot start on this line", "Start it on a line of its own."),
    ("expected ',' or ']'", "the list is not closed, or a comma is missing", "Write [a, b]."),
    ("expected ',' or '}'", "the mapping is not closed, or a comma is missing", "Write {a: 1, b: 2}."),
    (
        "did not find expected key",
        "a key was expected here: the indentation fits nothing above, or text follows a closed value",
        "Indent the keys of one mapping alike.",
    ),
    ("expected '-' indicator", "a list item was expected here", 'Start it with "- ", indented like the ones above.'),
    ("could not find expected ':'", "a colon is missing", "Write key: value, with a space after the colon."),
    ("unknown escape", "{0} is not an escape", "In double quotes write \\\\ for a backslash, or use single quotes."),
    ("Unicode character escape", "this escape is not a character", "Remove it."),
    ("expected hexdecimal", "this escape is not complete", "Write \\\\ for a backslash, or use single quotes."),
    ("expected hexadecimal", "this escape is not complete", "Write \\\\ for a backslash, or use single quotes."),
    ("undefined tag handle", "this tag is unknown", "Remove it, or put the string in quotes."),
    ("<document start>", "text follows after the end of the document", "Put all jobs into one document."),
    ("incompatible YAML", "this version of YAML is not supported", "Remove the %YAML line."),
    ("comment or line break", "text follows on the line that starts a block", "Start the text on the next line."),
    ("expected node content", "a value is missing, or a bracket is out of place", "Look at the brackets before it."),
    ("cannot start any token", "the character {0} cannot start a value", "Put the value in quotes."),
    ("duplicate", "this appears twice", "Remove one of the two."),
)


def _value(source: Source, at: int) -> str:
    """Return what is written from ``at`` to the end of the value: of the line, or of an item in brackets."""
    found = VALUE.match(source.text, at, at + MAX_LINE_CHARS)
    value = found[0].rstrip() if found else ""
    if value.count("}") > value.count("{") or value.count("]") > value.count("["):
        value = re.split(r", |[]}]", value, maxsplit=1)[0].rstrip()
    return value


def _to_be_quoted(source: Source, at: int, value: str, why: str = "") -> Diagnostic:
    why = why or "starts with *, which YAML takes for an alias"
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    return source.diagnostic("YS005", at, at + len(value), f"{quoted(value)} {why}", f'Put it in quotes: "{text}"')
