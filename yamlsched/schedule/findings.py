"""Collects the diagnostics of a file: decodes it, and leaves out what its comments suppress."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from yamlsched.schedule import catalog
from yamlsched.schedule.file import MAX_FILE_BYTES
from yamlsched.schedule.node import Notes, Path, Span, Spot
from yamlsched.schedule.source import ERROR, WARNING, Diagnostic, Finding, Part, Source
from yamlsched.text import PLUGIN_CODE, quoted

MAX_USELESS_COMMENTS = 1_000
"""At most this many comments are reported."""
COMMENT = re.compile(r"#\s*yamlsched:\s*ignore\[([^\[\]\r\n]{0,500})\]")


def apply_suppressions(diagnostics: Collection[Diagnostic], source: Source) -> list[Diagnostic]:
    """Return the diagnostics that no comment on their line suppresses, in the order of the file.

    A comment that suppresses nothing is a warning, so that it is removed when it is no longer
    needed.
    """
    useless = islice(_useless_comments(diagnostics, source), MAX_USELESS_COMMENTS)
    left = [diagnostic for diagnostic in diagnostics if not is_suppressed(diagnostic)]
    return sorted([*left, *useless], key=lambda diagnostic: diagnostic.order)


def _useless_comments(diagnostics: Collection[Diagnostic], source: Source) -> Iterator[Diagnostic]:
    used = {
        (diagnostic.file, diagnostic.line, diagnostic.code)
        for diagnostic in diagnostics
        if is_suppressed(diagnostic)
    }
    has_errors = any(diagnostic.severity == ERROR for diagnostic in diagnostics)
    for comment in COMMENT.finditer(source.text):
        place = source.position(comment.start())
        for code in re.finditer(r"[^,\s]+", comment[1]):
            if (place.file, place.line, code[0]) in used:
                continue
            if PLUGIN_CODE.fullmatch(code[0]):
                continue  # this host may not have the plugin
            if code[0] not in catalog.pages():
                reason, remedy = "is not a diagnostic code", "See: yamlsched explain"
            elif not can_be_suppressed(code[0]):
                reason, remedy = "cannot be suppressed", "Fix the error."
            elif has_errors:
                continue  # a job with an error is not checked completely
            else:
                reason, remedy = "suppresses nothing on this line", "Remove it."
            span = comment.start(1) + code.start(), comment.start(1) + code.end()
            yield source.diagnostic(
                span, "YS413", f"{quoted(code[0])} {reason}", remedy, (), WARNING
            )


def is_suppressed(diagnostic: Diagnostic) -> bool:
    """Return whether a comment on its line suppresses a diagnostic."""
    comment = COMMENT.search(diagnostic.source)
    codes = [code.strip() for code in comment[1].split(",")] if comment else []
    return diagnostic.code in codes and can_be_suppressed(diagnostic.code)


def can_be_suppressed(code: str) -> bool:
    """Return whether a code is a warning, one of a plugin, or about handlers.

    The source of handlers may do what reading it does not show.
    """
    if PLUGIN_CODE.fullmatch(code):
        return True
    return code.startswith(("YS3", "YS4")) and code != "YS301"


MAX_DIAGNOSTICS = 1_000
"""At most this many diagnostics of a file are collected by one check, and besides those that
comments suppress.
"""

Key = tuple[int, str]
"""Offset and code: at most one diagnostic has both."""


class Findings:
    """Collects diagnostics. An error that several aliases lead to is one diagnostic."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.invalid: set[Path] = set()
        """The paths of invalid values, and of everything that contains them."""
        self.intended: set[Path] = set()
        """The paths of keys that unknown keys were probably meant to be: they are not reported as
        missing.
        """
        self.unreadable: set[str] = set()
        """The names of files that cannot be parsed."""
        self._added: dict[Key, Diagnostic] = {}
        self._suppresses = COMMENT.search(source.text) is not None
        self._suppressed = 0

    def __len__(self) -> int:
        return len(self._added)

    def copy(self) -> Findings:
        """Return the same findings, to which others are added."""
        other = copy.copy(self)
        other.invalid, other.intended = {*self.invalid}, {*self.intended}
        other._added = {**self._added}
        return other

    def error(
        self,
        spot: Spot,
        code: str,
        message: str,
        remedy: str = "",
        span: Span | None = None,
        notes: Notes = (),
    ) -> None:
        """Report an error at ``spot``, or at the offsets ``span`` inside it, and mark the value as
        invalid unless a comment suppresses the error.
        """
        diagnostic = self.error_at(span or spot.node.span, code, message, remedy, notes)
        if diagnostic is None or not is_suppressed(diagnostic):
            self.mark_invalid(spot.path)

    def warning(
        self, spot: Spot, code: str, message: str, remedy: str, span: Span | None = None
    ) -> None:
        """Report a warning at ``spot``, or at the offsets ``span`` inside it."""
        self.error_at(span or spot.node.span, code, message, remedy, (), WARNING)

    def report(self, spot: Spot, problem: Finding) -> None:
        """Report an error at ``spot``, which the message names."""
        self.error(spot, problem.code, f"{spot}: {problem.message}", problem.remedy)

    def error_at(
        self,
        span: Span,
        code: str,
        message: str,
        remedy: str = "",
        notes: Notes = (),
        severity: str = ERROR,
    ) -> Diagnostic | None:
        """Report an error in the text that makes no value invalid, or whose value is marked
        already. Return the diagnostic; None if there are too many.
        """
        key = span[0], code
        if key not in self._added and (self._suppresses or not self.is_full):
            diagnostic = self.source.diagnostic(span, code, message, remedy, notes, severity)
            self._suppressed += is_suppressed(diagnostic)
            if is_suppressed(diagnostic) or not self.is_full:
                self._added[key] = diagnostic
        return self._added.get(key)

    def mark_invalid(self, path: Path) -> None:
        """Mark the value at ``path``, and everything that contains it, as invalid."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.invalid:
                return  # as is everything that contains it
            self.invalid.add(path[:length])

    def is_valid(self, spot: Spot) -> bool:
        """Return whether no error in the value, or below it, has been reported."""
        return not spot.node.has_errors and spot.path not in self.invalid

    @property
    def is_full(self) -> bool:
        return len(self._added) - self._suppressed >= MAX_DIAGNOSTICS

    def diagnostics(self) -> list[Diagnostic]:
        """Return the diagnostics in the order of the file."""
        return sorted(self._added.values(), key=lambda diagnostic: diagnostic.order)


FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x85\x86-\x9f\u2028\u2029\ufeff\ufffe\uffff]"
)
"""The characters that YAML 1.2 forbids, and the line breaks of YAML 1.1 that it does not recognize.
"""
BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")


def decode(data: bytes, file: str, included: Sequence[tuple[str, bytes]] = ()) -> Findings:
    """Return the texts of a file and of those that it includes as the source of its findings.

    ``unreadable`` are the files among them that have an error now: they cannot be parsed.
    """
    if len(data) + sum(len(other) for _, other in included) > MAX_FILE_BYTES:
        findings = Findings(Source(file, ""))
        what = "the file and the files that it includes have" if included else "the file has"
        message = f"{what} more than {MAX_FILE_BYTES:,} bytes"
        findings.error_at((0, 0), "YS013", message, "Split it into several namespaces.")
        findings.unreadable.add(file)
        return findings
    texts = [_text(each) for each in (data, *(other for _, other in included))]
    others = zip(included, texts[1:], strict=True)
    named = [(name, other) for (name, _), (other, _) in others]
    findings = Findings(Source(file, texts[0][0], *named))
    for part, (_, problem) in zip(findings.source.parts, texts, strict=True):
        _check_text(part, problem, findings)
    return findings


def _text(data: bytes) -> tuple[str, Finding | None]:
    """Return the text of a file; of one that is not UTF-8 the part that is, and what is wrong with
    it.
    """
    if data.startswith(BYTE_ORDER_MARKS):
        message = "the file starts with a byte order mark"
        return "", Finding("YS002", message, "Save it as UTF-8 without BOM.")
    try:
        return data.decode(), None
    except UnicodeDecodeError as error:
        text = data[: error.start].decode() + "\ufffd"
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        return text, Finding("YS002", message, "Save the file as UTF-8.")


def _check_text(part: Part, problem: Finding | None, findings: Findings) -> None:
    """Report why the text of a file cannot be parsed."""
    span = max(part.start, part.end - 1), part.end
    if problem is None:
        bad = FORBIDDEN.search(findings.source.text, part.start, part.end)
        if bad is None:
            return
        code, span = ord(bad[0]), bad.span()
        name = "NUL" if code == 0 else f"U+{code:04X}"
        remedy = (
            "Remove it, and save the file as UTF-8."
            if code < 0x20
            else f'Remove it, or write "\\u{code:04x}" in double quotes.'
        )
        problem = Finding("YS003", f"the character {name} is not allowed", remedy)
    findings.error_at(span, problem.code, problem.message, problem.remedy)
    findings.unreadable.add(part.file)
