"""The comments that suppress a diagnostic: ``# yamlsched: ignore[YS401]``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import islice

from yamlsched.definitions import catalog
from yamlsched.definitions.diagnostic import ERROR, WARNING, Diagnostic
from yamlsched.definitions.source import Source
from yamlsched.definitions.wording import quoted

MAX_USELESS_COMMENTS = 1_000
"""At most this many comments are reported."""
COMMENT = re.compile(r"#\s*yamlsched:\s*ignore\[([^\[\]\r\n]{0,500})\]")


def apply_suppressions(found: Collection[Diagnostic], source: Source) -> list[Diagnostic]:
    """Return the diagnostics that no comment on their line suppresses, in the order of the file.

    A comment that suppresses nothing is a warning, so that it is removed when it is no longer needed.
    """
    useless = islice(_useless_comments(found, source), MAX_USELESS_COMMENTS)
    left = [one for one in found if not is_suppressed(one)]
    return sorted([*left, *useless], key=lambda one: one.order)


def _useless_comments(found: Collection[Diagnostic], source: Source) -> Iterator[Diagnostic]:
    used = {(one.line, one.code) for one in found if is_suppressed(one)}
    has_errors = any(one.severity == ERROR for one in found)
    for comment in COMMENT.finditer(source.text):
        line, _ = source.position(comment.start())
        for code in re.finditer(r"[^,\s]+", comment[1]):
            if (line, code[0]) in used:
                continue
            if code[0] not in catalog.pages():
                reason, remedy = "is not a diagnostic code", "See: yamlsched explain"
            elif not can_be_suppressed(code[0]):
                reason, remedy = "cannot be suppressed", "Fix the error."
            elif has_errors:
                continue  # a job with an error is not checked completely
            else:
                reason, remedy = "suppresses nothing on this line", "Remove it."
            span = comment.start(1) + code.start(), comment.start(1) + code.end()
            yield source.diagnostic(span, "YS413", f"{quoted(code[0])} {reason}", remedy, (), WARNING)


def is_suppressed(one: Diagnostic) -> bool:
    """Return whether a comment on its line suppresses a diagnostic."""
    comment = COMMENT.search(one.source)
    codes = [code.strip() for code in comment[1].split(",")] if comment else []
    return one.code in codes and can_be_suppressed(one.code)


def can_be_suppressed(code: str) -> bool:
    """Return whether a code is a warning, or about handlers: their source may do what reading it does not show."""
    return code.startswith(("YS3", "YS4")) and code != "YS301"
