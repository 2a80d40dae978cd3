"""YAML text to a tree of nodes that know their places, by the rules of YAML 1.2's core schema.

The events of libyaml are read once and nothing is expanded: an alias shares the node of its anchor, a merge key
copies references. What a tree would cost when written out is counted meanwhile, so that depth, alias and merge bombs
are refused before anybody walks them. PyYAML's own loaders are of no use here: they recurse in C (a deep file is a
segmentation fault), flatten merge keys without limit and follow YAML 1.1.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from yamlsched.definitions import yaml_errors
from yamlsched.definitions.diagnostic import Diagnostic
from yamlsched.definitions.findings import MAX_DIAGNOSTICS
from yamlsched.definitions.node import BAD, Node
from yamlsched.definitions.schedule_file import MAX_FILE_BYTES
from yamlsched.definitions.source import Source
from yamlsched.definitions.wording import quoted
from yamlsched.jsonb import MAX_INTEGER_BITS

MAX_DEPTH = 50
MAX_SHARED = 1_000_000
"""How many nodes aliases and merge keys may stand for in all, each as often as it is used."""
MAX_NUMBER_CHARS = 4_000
"""Longer than any number that is stored: Python raises for integers of 4,300 digits."""

Parser = getattr(yaml, "CLoader", yaml.Loader)

INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NOT_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
WORDS |= {word: value for value in (True, False) for word in (f"{value}", f"{value}".lower(), f"{value}".upper())}
NUMBERISH = frozenset("+-.0123456789")
CORE = "tag:yaml.org,2002:"
TYPES = {"null": type(None), "bool": bool, "int": int, "float": float}


def parse(data: bytes, file: str) -> tuple[Source, Node | None, list[Diagnostic]]:
    """Return the source, its one document, and the mistakes in it.

    The document is None where the text is not YAML that we take: then the mistakes say why. In a document that is
    returned with mistakes, ``BAD`` stands in the place of what was wrong.
    """
    source, found = yaml_errors.decode(data, file, MAX_FILE_BYTES)
    if found:
        return source, None, found
    builder = _Builder(source)
    try:
        root = builder.document()
    except _Stop:
        root = None
    except yaml.YAMLError as error:
        root = None
        told = {(one.code, one.line) for one in builder.found}
        reason = yaml_errors.explain(error, source)
        if (reason.code, reason.line) not in told:
            builder.found.append(reason)
    return source, root, builder.found


class _Stop(Exception):
    """Raised after a diagnostic that leaves nothing to go on with."""


class _Builder:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: list[Diagnostic] = []
        self.anchors: dict[str, Node | None] = {}
        self.shared = 0

    def report(
        self, code: str, at: int, end: int, message: str, remedy: str = "", notes: list[tuple[int, str]] | None = None
    ) -> None:
        if len(self.found) < MAX_DIAGNOSTICS:
            self.found.append(self.source.diagnostic(code, at, end, message, remedy, notes or []))

    def document(self) -> Node | None:
        """Read all events; keep a stack of open collections instead of recursing."""
        parser = Parser(self.source.text)
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
                    node = self.close(stack.pop(), event.end_mark.index)
                else:
                    if kind is yaml.DocumentStartEvent and root is not None:
                        at = event.start_mark.index
                        self.report(
                            "YS011", at, at + 3, "a second document starts here", "Put all jobs into one document."
                        )
                        raise _Stop
                    continue
                if stack:
                    stack[-1].nodes.append(node)
                else:
                    root = node
        finally:
            parser.dispose()
        if root is None or (root.value is None and not root.flawed and root.at == root.end):
            at = 0
            self.report("YS012", at, at, "the file is empty", "To have no jobs, write:  version: 1  and  jobs: {}")
            raise _Stop
        return root

    def scalar(self, event: Any) -> Node:
        text, at, end, style = event.value, event.start_mark.index, event.end_mark.index, event.style
        if event.anchor is not None or event.tag is not None:
            at = yaml_errors.after_properties(self.source.text, at, end)
        if style in (">", "|"):
            at = yaml_errors.after_header(self.source.text, at, end)
        size = 1 + (len(text) >> 6)
        if event.tag is not None:
            value = self.tagged(event, text, at, end)
        elif style or not event.implicit[0]:
            value = text
        else:
            value = self.resolve(text, at, end)
        if type(value) is str and "\0" in value:
            self.report("YS003", at, end, "a string with a NUL character cannot be stored", "Remove it.")
            value = BAD
        node = Node(value, at, end, style, size)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def resolve(self, text: str, at: int, end: int) -> Any:
        """Return what a plain scalar means."""
        if text in WORDS:
            return WORDS[text]
        if text[0] not in NUMBERISH:
            return text
        if LEADING_ZERO.fullmatch(text):
            decimal = quoted(text.lstrip("+-0") or "0")[1:-1]
            other = f"the octal {int(text, 8)}" if re.fullmatch("[-+]?[0-7]{1,40}", text) else "a string"
            message = f"{quoted(text)[1:-1]} starts with a zero: some tools read {decimal}, others {other}"
            remedy = "Write it without the zero, or in quotes if it is a string."
            self.report("YS008", at, end, message, remedy)
            return BAD
        is_integer = INTEGER.fullmatch(text) is not None
        if is_integer or FLOAT.fullmatch(text):
            number = _number(text, is_integer)
            if number is None:
                self.report("YS009", at, end, f"the number {quoted(text)[1:-1]} is too large", "Write it in quotes.")
                return BAD
            return number
        if NOT_JSON.fullmatch(text):
            self.report("YS009", at, end, f"{text} is not a valid JSON number", "Write a finite number.")
            return BAD
        return text

    def tagged(self, event: Any, text: str, at: int, end: int) -> Any:
        tag = event.tag
        if tag in ("!", CORE + "str"):
            return text
        core = tag.removeprefix(CORE)
        if core not in TYPES:
            self.refuse_tag(event)
            return BAD
        value = self.resolve(text, at, end)
        if value is not BAD and type(value) is not TYPES[core]:
            self.report("YS010", at, end, f"{quoted(text)} does not match its tag !!{core}")
            return BAD
        return value

    def refuse_tag(self, event: Any) -> None:
        at = event.start_mark.index
        if event.anchor is not None and self.source.text[at] == "&":
            at = self.source.text.find("!", at)
        written = re.compile(r"[^\s,\[\]{}]*").match(self.source.text, at)
        text = written[0] if written else event.tag
        self.report("YS010", at, at + len(text), f"the tag {quoted(text)[1:-1]} is not supported", "Remove the tag.")

    def alias(self, event: Any, depth: int) -> Node:
        name, at, end = event.anchor, event.start_mark.index, event.end_mark.index
        target = self.anchors.get(name, BAD)
        if target is BAD:
            if len(self.found) < MAX_DIAGNOSTICS:
                known = [anchor for anchor, node in self.anchors.items() if node is not None][:MAX_DIAGNOSTICS]
                self.found.append(yaml_errors.unknown_alias(self.source, name, at, end, known))
            return Node(BAD, at, end)
        if target is None:
            self.report("YS014", at, end, f"the alias *{name} is inside &{name}, which makes it self-referencing")
            return Node(BAD, at, end)
        assert isinstance(target, Node)
        self.shared += target.size
        if self.shared > MAX_SHARED:
            self.report(
                "YS013",
                at,
                end,
                f"aliases and merge keys expand to more than {MAX_SHARED:,} values",
                "Use fewer of them.",
            )
            raise _Stop
        if depth + target.height > MAX_DEPTH:
            self.too_deep(at, end)
        return target.used(at)

    def too_deep(self, at: int, end: int) -> None:
        self.report("YS013", at, end, f"nested more than {MAX_DEPTH} levels deep", "Reduce the nesting.")
        raise _Stop

    def open(self, event: Any, depth: int) -> _Open:
        at = event.start_mark.index
        if depth >= MAX_DEPTH:
            self.too_deep(at, at + 1)
        is_mapping = type(event) is yaml.MappingStartEvent
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        flawed = False
        if event.tag is not None and event.tag not in ("!", CORE + ("map" if is_mapping else "seq")):
            self.refuse_tag(event)
            flawed = True
        if event.anchor is not None or event.tag is not None:
            at = yaml_errors.after_properties(self.source.text, at, len(self.source.text))
        return _Open(is_mapping, at, event.anchor, flawed)

    def close(self, opened: _Open, end: int) -> Node:
        nodes = opened.nodes
        node = Node(None, opened.at, end)
        if opened.is_mapping:
            self.fill(node, nodes)
        else:
            node.value = nodes
        if nodes:
            node.size = 1 + sum(n.size for n in nodes)
            node.height = 1 + max(n.height for n in nodes)
            node.flawed = any(n.flawed for n in nodes)
        else:
            node.height = 1
        if opened.flawed:
            node.value, node.flawed = BAD, True
        if opened.anchor is not None:
            self.anchors[opened.anchor] = node
        return node

    def fill(self, node: Node, nodes: list[Node]) -> None:
        """Give a mapping its keys and values; the own ones win over those of a merge key."""
        value: dict[str, Node] = {}
        merged: Node | None = None
        for key, item in zip(nodes[::2], nodes[1::2], strict=True):
            name = key.value
            item.key = key
            if type(name) is not str:
                if name is not BAD and len(self.found) < MAX_DIAGNOSTICS:
                    self.found.append(yaml_errors.not_a_text_key(self.source, key))
                key.flawed = True
            elif name in value:
                first = value[name]
                self.report(
                    "YS006",
                    key.at,
                    key.end,
                    f"duplicate key {quoted(name)}",
                    "Remove one of the two.",
                    [(first.key.at if first.key else first.at, "the first one is here")],
                )
                first.flawed = item.flawed = True
            else:
                value[name] = item
                if name == "<<" and not key.style:
                    merged = item
        if merged is not None:
            del value["<<"]
            self.merge(value, merged, merged.key.at if merged.key else merged.at)
        node.value = value

    def merge(self, value: dict[str, Node], merged: Node, at: int) -> None:
        sources = merged.value if isinstance(merged.value, list) else [merged]
        for source in sources:
            if isinstance(source.value, dict):
                for name, item in source.value.items():
                    if name not in value:
                        value[name] = item.used(at)
            elif source.value is not BAD:
                self.report(
                    "YS015",
                    source.at if source.use is None else source.use,
                    source.end if source.use is None else source.use + 1,
                    "the merge key << needs a mapping, or a list of mappings",
                    "Write <<: *name with the anchor of a mapping.",
                )
                merged.flawed = True


def _number(text: str, is_integer: bool) -> int | float | None:
    """Return the number that ``text`` writes; None for one that Python or PostgreSQL refuses to write out."""
    if len(text) > MAX_NUMBER_CHARS:
        return None
    if not is_integer:
        number = float(text)
        return number if math.isfinite(number) else None
    integer = int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    return integer if integer.bit_length() <= MAX_INTEGER_BITS else None


class _Open:
    """A collection whose end has not come yet."""

    __slots__ = ("anchor", "at", "flawed", "is_mapping", "nodes")

    def __init__(self, is_mapping: bool, at: int, anchor: str | None, flawed: bool) -> None:
        self.is_mapping = is_mapping
        self.at = at
        self.anchor = anchor
        self.flawed = flawed
        self.nodes: list[Node] = []
