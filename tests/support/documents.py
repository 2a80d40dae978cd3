"""What documents of verbs are, as those who get them read them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from markdown_it import MarkdownIt

from yamlsched.extras.preview import text
from yamlsched.extras.preview.model import Preview
from yamlsched.show import html, markdown
from yamlsched.show.document import as_text

HOSTILE = "</td><script>alert(1)</script>\x1b[31m\u202eevil\"'&amp;| `x` [y](http://z.example) @team\n::error::x\n```\n# y"
"""Text that each format would take for something else."""


class Page(HTMLParser):
    """What an HTML document has: elements, their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


def in_text(preview: Preview) -> str:
    """Return what diff or plan prints."""
    return as_text(text.document(preview))


def in_markdown(preview: Preview) -> str:
    """Return the comment that diff or plan makes."""
    return markdown.render(text.document(preview))


def in_html(preview: Preview) -> Page:
    """Return the HTML of diff or plan."""
    return Page(html.render(text.document(preview)))


def rendered(markdown: str) -> str:
    """Return the HTML of Markdown, as forges render it."""
    return str(MarkdownIt("commonmark").enable("table").render(markdown))


def assert_harmless(out: str, form: str) -> None:
    """Assert that HOSTILE, which is shown in ``out``, has not become a part of its form."""
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert not re.search("^ *::error::", out, re.MULTILINE)
    if form in ("markdown", "html"):
        page = Page(rendered(out) if form == "markdown" else out)
        assert page.open == []
        assert {"script", "a", "img"} & set(page.elements) == set()
        assert "h1" not in page.elements
        assert "</td><script>alert(1)</script>\\x1b[31m\\u202eevil" in page.text
    if form == "markdown":
        assert "@team" not in re.sub("<(code|pre)>.*?</\\1>", "", rendered(out), flags=re.DOTALL)
