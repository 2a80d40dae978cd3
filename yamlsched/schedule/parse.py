"""YAML text to nodes with positions, by the rules of YAML 1.2's core schema.

The events of libyaml are read once and nothing is expanded: an alias shares the value of its
anchor, a merge key copies references. The size and depth of the expanded document are counted along
the way, so that alias and merge bombs are rejected before anything walks them. PyYAML's own loaders
do not fit: they recurse in C (a deeply nested file is a segmentation fault), expand merge keys
without limit and follow YAML 1.1.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from yamlsched.jsonb import MAX_INTEGER_BITS
from yamlsched.schedule import yaml_errors
from yamlsched.schedule.findings import MAX_DIAGNOSTICS, Findings
from yamlsched.schedule.node import BAD, Node, Span
from yamlsched.schedule.source import Part
from yamlsched.text import quoted

MAX_DEPTH = 50
MAX_EXPANDED_SIZE = 1_000_000
"""At most this many values may be reached through aliases and merge keys, each counted as often as
it is used.
"""
MAX_NUMBER_CHARS = 4_000
"""Python raises for integers of 4,300 digits."""
CHARS_PER_UNIT = 64
"""A string counts as one value, and as one more for each of these."""

EXIT_CODE_MAPPING = ["exit_codes", "retry_after"]
"""The keys that lead to the one mapping whose keys may be numbers."""

EventParser = getattr(yaml, "CLoader", yaml.Loader)

INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NOT_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
WORDS |= {
    word: value
    for value in (True, False)
    for word in (f"{value}", f"{value}".lower(), f"{value}".upper())
}
FIRST_OF_NUMBER = frozenset("+-.0123456789")
CORE = "tag:yaml.org,2002:"
TYPES = {"null": type(None), "bool": bool, "int": int, "float": float}

PROPERTIES = re.compile(r"([&!][^\s]*\s*)*")
"""The anchor and the tag in front of a value."""
BLOCK_HEADER = re.compile(r"[^\r\n]*\s*")
"""The line of ``|`` or ``>`` in front of a block scalar."""
TAG = re.compile(r"[^\s,\[\]{}]*")


def parse(findings: Findings, part: Part | None = None) -> Node | None:
    """Return the one document of a file of the source, by default the first; None if it cannot be
    parsed.

    In a document that is returned with errors, ``BAD`` stands for the invalid values.
    """
    part = part or findings.source.parts[0]
    if part.file in findings.unreadable:
        return None
    try:
        return _Builder(findings, part).document()
    except _Stop:
        return None
    except yaml.YAMLError as error:
        yaml_errors.translate_error(error, part, findings)
        return None


class _Stop(Exception):
    """Raised after an error that makes it pointless to continue."""


@dataclass(slots=True)
class _Open:
    """A collection that has not ended."""

    is_mapping: bool
    start: int
    anchor: str | None
    has_errors: bool
    nodes: list[Node] = field(default_factory=list)

    @property
    def key(self) -> Any:
        """The key whose value is being read; None in a list, or at a key."""
        return self.nodes[-1].value if self.is_mapping and len(self.nodes) % 2 else None


class _Builder:
    def __init__(self, findings: Findings, part: Part) -> None:
        self.findings = findings
        self.part = part
        self.text = findings.source.text
        self.anchors: dict[str, Node | None] = {}
        """The value of each anchor; None while it is being parsed."""
        self.expanded_size = 0

    def stop(self, span: Span, code: str, message: str, remedy: str) -> NoReturn:
        self.findings.error_at(span, code, message, remedy)
        raise _Stop

    def document(self) -> Node:
        """Read all events, with a stack of open collections in place of recursion."""
        parser = EventParser(self.text[self.part.start : self.part.end])
        root: Node | None = None
        stack: list[_Open] = []
        try:
            while not isinstance(event := parser.get_event(), yaml.StreamEndEvent):
                kind = type(event)
                if kind is yaml.ScalarEvent:
                    node = self.scalar(event)
                elif kind is yaml.AliasEvent:
                    node = self.alias(event, len(stack))
                elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                    stack.append(self.open(event, len(stack)))
                    continue
                elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                    node = self.close(stack.pop(), self.span(event)[1], stack)
                else:
                    if kind is yaml.DocumentStartEvent and root is not None:
                        start, message = self.span(event)[0], "a second document starts here"
                        self.stop(
                            (start, start + 3), "YS011", message, "Put all jobs into one document."
                        )
                    continue
                if stack:
                    stack[-1].nodes.append(node)
                else:
                    root = node
        finally:
            parser.dispose()
        if root is None or (root.value is None and not root.has_errors and root.start == root.end):
            remedy = 'For a file without jobs, write "version: 1" and "jobs: {}".'
            if self.part.start > 0:
                remedy = 'For an included file without jobs, write "jobs: {}".'
            start = self.part.start
            self.stop((start, start), "YS012", "the file is empty", remedy)
        return root

    def span(self, event: Any) -> Span:
        """Return the offsets of an event in the text of all files."""
        start = self.part.start
        return start + event.start_mark.index, start + event.end_mark.index

    def scalar(self, event: Any) -> Node:
        text, style = event.value, event.style
        start, end = self.span(event)
        if event.anchor is not None or event.tag is not None:
            start = self.skip(PROPERTIES, start, end)
        if style in (">", "|"):
            start = self.skip(BLOCK_HEADER, start, end)
        if event.tag is not None:
            value = self.tagged(event, text, (start, end))
        elif style or not event.implicit[0]:
            value = text
        else:
            value = self.resolve(text, (start, end))
        if type(value) is str and "\0" in value:
            message = "a string with a NUL character cannot be stored"
            self.findings.error_at((start, end), "YS003", message, "Remove it.")
            value = BAD
        node = Node(value, start, end, style, 1 + len(text) // CHARS_PER_UNIT)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def skip(self, pattern: re.Pattern[str], start: int, end: int) -> int:
        """Return the offset after ``pattern``, which matches everywhere, at most ``end``."""
        match = pattern.match(self.text, start)
        return min(match.end(), end) if match else start

    def resolve(self, text: str, span: Span) -> Any:
        """Return the value of a plain scalar."""
        if text in WORDS:
            return WORDS[text]
        if text[0] not in FIRST_OF_NUMBER:
            return text
        if LEADING_ZERO.fullmatch(text):
            decimal = quoted(text.lstrip("+-0") or "0")[1:-1]
            other = (
                f"the octal {int(text, 8)}"
                if re.fullmatch("[-+]?[0-7]{1,40}", text)
                else "a string"
            )
            message = (
                f"{quoted(text)[1:-1]} starts with a zero: some tools read {decimal}, others"
                f" {other}"
            )
            self.findings.error_at(
                span, "YS008", message, "Write it without the zero, or in quotes if it is a string."
            )
            return BAD
        is_integer = INTEGER.fullmatch(text) is not None
        if is_integer or FLOAT.fullmatch(text):
            number = _number(text, is_integer)
            if number is None:
                message = f"the number {quoted(text)[1:-1]} is too large"
                self.findings.error_at(span, "YS009", message, "Write it in quotes.")
                return BAD
            return number
        if NOT_JSON.fullmatch(text):
            self.findings.error_at(
                span, "YS009", f"{text} is not a valid JSON number", "Write a finite number."
            )
            return BAD
        return text

    def tagged(self, event: Any, text: str, span: Span) -> Any:
        if event.tag in ("!", CORE + "str"):
            return text
        core = event.tag.removeprefix(CORE)
        if core not in TYPES:
            self.reject_tag(event)
            return BAD
        value = self.resolve(text, span)
        if value is not BAD and type(value) is not TYPES[core]:
            message = f"{quoted(text)} does not match its tag !!{core}"
            self.findings.error_at(span, "YS010", message, "Remove the tag, or change the value.")
            return BAD
        return value

    def reject_tag(self, event: Any) -> None:
        start, _ = self.span(event)
        if event.anchor is not None and self.text[start] == "&":
            start = self.text.find("!", start)
        end = self.skip(TAG, start, self.part.end)
        written = quoted(self.text[start:end])[1:-1]
        self.findings.error_at(
            (start, end), "YS010", f"the tag {written} is not supported", "Remove the tag."
        )

    def alias(self, event: Any, depth: int) -> Node:
        name, span = event.anchor, self.span(event)
        if name not in self.anchors:
            known = [anchor for anchor, node in self.anchors.items() if node is not None][
                :MAX_DIAGNOSTICS
            ]
            yaml_errors.report_unknown_alias(name, span, known, self.findings)
            return Node(BAD, *span)
        target = self.anchors[name]
        if target is None:
            message = f"the alias *{name} is inside &{name}, which makes it self-referencing"
            self.findings.error_at(span, "YS014", message, "Remove the alias, or move it out.")
            return Node(BAD, *span)
        self.expanded_size += target.size
        if self.expanded_size > MAX_EXPANDED_SIZE:
            message = f"aliases and merge keys expand to more than {MAX_EXPANDED_SIZE:,} values"
            self.stop(span, "YS013", message, "Use fewer of them.")
        self.check_depth(depth + target.height, span)
        return target.aliased(span[0])

    def check_depth(self, depth: int, span: Span) -> None:
        if depth > MAX_DEPTH:
            self.stop(
                span, "YS013", f"nested more than {MAX_DEPTH} levels deep", "Reduce the nesting."
            )

    def open(self, event: Any, depth: int) -> _Open:
        start, _ = self.span(event)
        self.check_depth(depth + 1, (start, start + 1))
        is_mapping = type(event) is yaml.MappingStartEvent
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        has_errors = event.tag not in (None, "!", CORE + ("map" if is_mapping else "seq"))
        if has_errors:
            self.reject_tag(event)
        if event.anchor is not None or event.tag is not None:
            start = self.skip(PROPERTIES, start, self.part.end)
        return _Open(is_mapping, start, event.anchor, has_errors)

    def close(self, opened: _Open, end: int, stack: list[_Open]) -> Node:
        """Return the node of a collection that has ended; ``stack`` has those around it."""
        nodes = opened.nodes
        node = Node(nodes, opened.start, end, size=1 + sum(n.size for n in nodes))
        if opened.is_mapping:
            node.value = self.mapping(nodes, stack)
        node.height = 1 + max((n.height for n in nodes), default=0)
        node.has_errors = any(n.has_errors for n in nodes)
        if opened.has_errors:
            node.value, node.has_errors = BAD, True
        if opened.anchor is not None:
            self.anchors[opened.anchor] = node
        return node

    def mapping(self, nodes: list[Node], stack: list[_Open]) -> dict[str, Node]:
        """Return the values by their keys. Keys of the mapping itself win over those of a merge
        key.
        """
        values: dict[str, Node] = {}
        merged: Node | None = None
        for key, item in zip(nodes[::2], nodes[1::2], strict=True):
            name = key.value
            item.key = key
            if type(name) is int and [opened.key for opened in stack[-2:]] == EXIT_CODE_MAPPING:
                key.value = name = str(name)
            if type(name) is not str:
                if name is not BAD:
                    yaml_errors.report_invalid_key(key, self.findings)
                key.has_errors = True
            elif name in values:
                first = values[name]
                notes = [(first.key.start if first.key else first.start, "the first one is here")]
                message = f"duplicate key {quoted(name)}"
                self.findings.error_at(key.span, "YS006", message, "Remove one of the two.", notes)
                first.has_errors = item.has_errors = True
            else:
                values[name] = item
                if name == "<<" and not key.style:
                    merged = item
        if merged is not None:
            del values["<<"]
            self.merge(values, merged, merged.key.start if merged.key else merged.start)
        return values

    def merge(self, values: dict[str, Node], merged: Node, at: int) -> None:
        for source in merged.value if isinstance(merged.value, list) else [merged]:
            if isinstance(source.value, dict):
                for name, item in source.value.items():
                    if name not in values:
                        values[name] = item.aliased(at)
            elif source.value is not BAD:
                span = (
                    source.span
                    if source.alias_at is None
                    else (source.alias_at, source.alias_at + 1)
                )
                message = "the merge key << needs a mapping, or a list of mappings"
                self.findings.error_at(
                    span, "YS015", message, "Write <<: *name with the anchor of a mapping."
                )
                merged.has_errors = True


def _number(text: str, is_integer: bool) -> int | float | None:
    """Return the number that ``text`` writes; None for one that Python or PostgreSQL
    cannot store.
    """
    if len(text) > MAX_NUMBER_CHARS:
        return None
    if not is_integer:
        number = float(text)
        return number if math.isfinite(number) else None
    integer = int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    return integer if integer.bit_length() <= MAX_INTEGER_BITS else None
