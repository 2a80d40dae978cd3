"""Making elements. What they contain is escaped, and characters that hide or reorder text are shown."""

from __future__ import annotations

from functools import cache
from typing import Any

from markupsafe import Markup, escape

KEPT = "\n\t"
"""Characters that are not printable, and harmless in HTML."""


def visible(text: str) -> str:
    r"""Return ``text`` with control characters, and those that hide or reorder what is shown, as escapes.

    >>> visible("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in KEPT else c.encode("unicode_escape", "replace").decode() for c in text)


def element(name: str, *content: str, **attributes: Any) -> Markup:
    """Return an element. ``_`` in the name of an attribute is ``-``; ``class_`` is class; None omits the attribute.

    >>> element("rect", class_="dead", x=1.5, stroke_width=None)
    Markup('<rect class="dead" x="1.5"></rect>')
    """
    given = "".join([f' {_name(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None])
    inside = "".join([part if isinstance(part, Markup) else escape(visible(part)) for part in content])
    return Markup(f"<{name}{given}>{inside}</{name}>")


@cache
def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value) if isinstance(value, int) else escape(visible(str(value)))
