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

from yamlsched.schedule import yaml_errors
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.node import BAD, Node, Span
from yamlsched.schedule.source import Part
from yamlsched.text import quoted

MAX_DEPTH = 50
MAX_EXPANDED_SIZE = 1_000_000
"""At most this many values may be reached through aliases and merge keys, each counted as often as
it is used.
"""
MAX_NUMBER_CHARS = 1_000
CHARS_PER_UNIT = 64
"""A string counts as one value, and as one more for each of these."""

EventParser = getattr(yaml, "CLoader", yaml.Loader)

INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
FIRST_OF_NUMBER = frozenset("+-.0123456789")
CORE_TAG = "tag:yaml.org,2002:"
ANCHOR = re.compile(r"&\S+\s+")


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
    except yaml.MarkedYAMLError as error:
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
    def is_at_key(self) -> bool:
        return self.is_mapping and len(self.nodes) % 2 == 0


class _Builder:
    def __init__(self, findings: Findings, part: Part) -> None:
        self.findings = findings
        self.part = part
        self.text = findings.source.text
        self.anchors: dict[str, Node] = {}
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
                    node = self.scalar(event, bool(stack) and stack[-1].is_at_key)
                elif kind is yaml.AliasEvent:
                    node = self.alias(event, len(stack))
                elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                    stack.append(self.open(event, len(stack)))
                    continue
                elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                    node = self.close(stack.pop(), self.span(event)[1])
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
        if root is None or root.value is None:
            start = self.part.start
            remedy = 'Write "jobs: {}", in the main file below "version: 1".'
            self.stop((start, start), "YS012", "the file is empty", remedy)
        return root

    def span(self, event: Any) -> Span:
        """Return the offsets of an event in the text of all files."""
        start = self.part.start
        return start + event.start_mark.index, start + event.end_mark.index

    def scalar(self, event: Any, is_key: bool) -> Node:
        """Return a scalar. A key is a string as it is written, as in JSON: 404 is "404"."""
        text, style = event.value, event.style
        start, end = self.span(event)
        if event.anchor is not None:
            start = min(self.after_anchor(start), end)
        value: Any = BAD
        if event.tag is not None:
            self.reject_tag(event)
        else:
            value = text if style or is_key else self.resolve(text, (start, end))
        if type(value) is str and "\0" in value:
            message = "a string with a NUL character cannot be stored"
            self.findings.error_at((start, end), "YS003", message, "Remove it.")
            value = BAD
        node = Node(value, start, end, style, 1 + len(text) // CHARS_PER_UNIT)
        node.has_errors = value is BAD
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def after_anchor(self, start: int) -> int:
        match = ANCHOR.match(self.text, start)
        return match.end() if match else start

    def resolve(self, text: str, span: Span) -> Any:
        """Return the value of a plain scalar."""
        if text in WORDS:
            return WORDS[text]
        if text[0] not in FIRST_OF_NUMBER:
            return text
        if LEADING_ZERO.fullmatch(text):
            message = f"{quoted(text)[1:-1]} starts with a zero: some tools read an octal number"
            remedy = "Write it without the zero, or in quotes if it is a string."
            self.findings.error_at(span, "YS008", message, remedy)
            return BAD
        is_integer = INTEGER.fullmatch(text) is not None
        if not is_integer and not FLOAT.fullmatch(text):
            return text
        number = _number(text, is_integer)
        if number is None:
            message = f"{quoted(text)[1:-1]} is not a number that JSON can store"
            self.findings.error_at(span, "YS009", message, "Write another number, or add quotes.")
            return BAD
        return number

    def reject_tag(self, event: Any) -> None:
        start, _ = self.span(event)
        start = self.text.find("!", start)
        written = event.tag.replace(CORE_TAG, "!!")
        message = f"the tag {quoted(written)[1:-1]} is not supported"
        remedy = "Remove it. Put the value in quotes if it is a string."
        self.findings.error_at((start, start + len(written)), "YS010", message, remedy)

    def alias(self, event: Any, depth: int) -> Node:
        name, span = event.anchor, self.span(event)
        target = self.anchors.get(name)
        if target is None:
            if yaml_errors.is_unquoted_cron(self.text, span[0]):
                yaml_errors.report_unquoted(span[0], self.findings)
                raise _Stop
            yaml_errors.report_unknown_alias(name, span, self.anchors, self.findings)
            return Node(BAD, *span, has_errors=True)
        self.expanded_size += target.size
        if self.expanded_size > MAX_EXPANDED_SIZE:
            message = f"aliases and merge keys expand to more than {MAX_EXPANDED_SIZE:,} values"
            self.stop(span, "YS013", message, "Use fewer of them.")
        self.check_depth(depth + target.height, span)
        return target.aliased(span[0])

    def check_depth(self, depth: int, span: Span) -> None:
        if depth > MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} levels deep"
            self.stop(span, "YS013", message, "Reduce the nesting.")

    def open(self, event: Any, depth: int) -> _Open:
        start, _ = self.span(event)
        self.check_depth(depth + 1, (start, start + 1))
        if event.anchor is not None:
            self.anchors.pop(event.anchor, None)  # inside of itself, no alias can lead to it
            start = self.after_anchor(start)
        if event.tag is not None:
            self.reject_tag(event)
        is_mapping = type(event) is yaml.MappingStartEvent
        return _Open(is_mapping, start, event.anchor, event.tag is not None)

    def close(self, opened: _Open, end: int) -> Node:
        """Return the node of a collection that has ended."""
        nodes = opened.nodes
        node = Node(nodes, opened.start, end, size=1 + sum(n.size for n in nodes))
        if opened.is_mapping:
            node.value = self.mapping(nodes)
        node.height = 1 + max((n.height for n in nodes), default=0)
        node.has_errors = any(n.has_errors for n in nodes)
        if opened.has_errors:
            node.value, node.has_errors = BAD, True
        if opened.anchor is not None:
            self.anchors[opened.anchor] = node
        return node

    def mapping(self, nodes: list[Node]) -> dict[str, Node]:
        """Return the values by their keys. Keys of the mapping itself win over those of a merge
        key.
        """
        values: dict[str, Node] = {}
        merged: Node | None = None
        for key, item in zip(nodes[::2], nodes[1::2], strict=True):
            name = key.value
            item.key = key
            if type(name) is not str or not (name or key.style):
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
                message = "the merge key << needs a mapping, or a list of mappings"
                remedy = "Write <<: *name with the anchor of a mapping."
                self.findings.error_at((at, at + 2), "YS015", message, remedy)
                merged.has_errors = True


def _number(text: str, is_integer: bool) -> int | float | None:
    """Return the number that ``text`` writes; None for one that cannot be stored."""
    if len(text) > MAX_NUMBER_CHARS:
        return None
    if is_integer:
        return int(text, 0)
    number = math.nan if "n" in text.lower() else float(text)
    return number if math.isfinite(number) else None
