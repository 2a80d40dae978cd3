"""The page of every code, from ``docs/diagnostics.md``, for ``explain`` and SARIF."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

INSTALLED = Path(__file__).with_name("diagnostics.md")
PAGES = INSTALLED if INSTALLED.is_file() else Path(__file__).parents[2] / "docs/diagnostics.md"


@cache
def pages() -> dict[str, str]:
    """Return the section of each code, its heading included."""
    sections = re.split(r"(?m)^(?=#{2,3} )", PAGES.read_text("utf-8"))
    return {
        match[1]: section.strip()
        for section in sections
        if (match := re.match(r"### (YS[0-9]{3}) ", section))
    }


def page(code: str) -> str:
    return pages()[code]


def as_text(code: str) -> str:
    """Return the page of a code without Markdown, with its example labelled and indented."""
    blocks = []
    for number, part in enumerate(re.split(r"```diff\n(.*?)```", page(code), flags=re.S)):
        if number % 2:
            example = "\n".join(f"    {line}".rstrip() for line in part.splitlines())
            blocks += ["Example (- is wrong, + is right):", example]
        else:
            blocks.append(
                re.sub(r"`([^`\n]+)`", r"\1", re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", part)).strip()
            )
    blocks[0] = blocks[0].replace(f"### {code} ", f"{code}: ", 1)
    return "\n\n".join(block for block in blocks if block)


def title(code: str) -> str:
    """Return the heading of the page of a code, without the code."""
    return page(code).partition("\n")[0].removeprefix(f"### {code} ")
