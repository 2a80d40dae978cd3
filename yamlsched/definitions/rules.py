"""The page of every code, from ``diagnostics.md``: what ``explain`` prints and the documentation shows."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGES = Path(__file__).with_name("diagnostics.md")


@cache
def pages() -> dict[str, str]:
    """Return the section of each code, its heading included."""
    sections = re.split(r"(?m)^(?=#{2,3} )", PAGES.read_text("utf-8"))
    return {match[1]: section.strip() for section in sections if (match := re.match(r"### (YS[0-9]{3}) ", section))}


def page(code: str) -> str:
    return pages()[code]


def title(code: str) -> str:
    """Return what is wrong, in one sentence without a full stop."""
    return page(code).partition("\n")[0].removeprefix(f"### {code} ")
