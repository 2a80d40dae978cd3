"""The comments that silence a diagnostic: ``# yamlsched: ignore[YS401]``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from yamlsched.definitions import catalog
from yamlsched.definitions.diagnostic import ERROR, WARNING, Diagnostic
from yamlsched.definitions.findings import MAX_DIAGNOSTICS
from yamlsched.definitions.source import Source
from yamlsched.definitions.wording import quoted

IGNORE = re.compile(r"#\s*yamlsched:\s*ignore\[([^\[\]\r\n]{0,500})\]")


def apply_suppressions(found: Iterable[Diagnostic], source: Source) -> list[Diagnostic]:
    """Return what no comment on its line silences, in the order of the file.

    Advice can be silenced, and what was read off handlers' source, which may be cleverer than its reader. A comment
    that silences nothing is advised against, so that none outlives its reason.
    """
    left, used = [], set()
    found = list(found)
    is_sound = not any(one.severity == ERROR for one in found)
    for one in found:
        if is_suppressed(one):
            used.add((one.line, one.code))
        else:
            left.append(one)
    useless: list[Diagnostic] = []
    for comment in IGNORE.finditer(source.text):
        line, _ = source.place(comment.start())
        for code in re.finditer(r"[^,\s]+", comment[1]):
            if (line, code[0]) in used:
                continue
            if code[0] not in catalog.pages():
                reason, remedy = "is not a diagnostic code", "See: yamlsched explain"
            elif not can_be_suppressed(code[0]):
                reason, remedy = "cannot be suppressed", "Fix the error."
            elif is_sound:
                reason, remedy = "suppresses nothing on this line", "Remove it."
            else:
                continue  # a job with a mistake has not been looked at in full
            at = comment.start(1) + code.start()
            message = f"{quoted(code[0])} {reason}"
            if len(useless) == MAX_DIAGNOSTICS:
                break
            useless.append(source.diagnostic((at, at + len(code[0])), "YS413", message, remedy, (), WARNING))
    return sorted([*left, *useless], key=lambda one: one.order)


def is_suppressed(one: Diagnostic) -> bool:
    """Return whether a comment on its line silences a diagnostic."""
    comment = IGNORE.search(one.source)
    codes = [code.strip() for code in comment[1].split(",")] if comment else []
    return one.code in codes and can_be_suppressed(one.code)


def can_be_suppressed(code: str) -> bool:
    return code.startswith(("YS3", "YS4")) and code != "YS301"
