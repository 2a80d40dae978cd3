"""A document as one HTML file to mail, which loads nothing: its Markdown, with a style sheet."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import replace

from markdown_it import MarkdownIt

from yamlsched.show import markdown
from yamlsched.show.document import Document, Problems, as_text
from yamlsched.text import escape_control

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """\
:root { color-scheme: light dark; }
body {
  max-width: 960px; margin: 16px auto; padding: 0 16px;
  background: #ffffff; color: #1b2130; font: 14px/1.45 system-ui, "Segoe UI", Arial, sans-serif;
}
h2 { font-size: 18px; }
h3 { margin: 24px 0 8px; font-size: 15px; }
li { margin: 4px 0; overflow-wrap: anywhere; }
code { font: 12px ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td {
  padding: 5px 14px 5px 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #e1e4ea;
}
@media (prefers-color-scheme: dark) {
  body { background: #0f131b; color: #e6e9f0; }
  th, td { border-color: #2a3242; }
}"""


def render(document: Document) -> str:
    """Return the document as an HTML file."""
    document = replace(document, parts=list(document.parts))
    verdicts = [f"{part.verdict}: " for part in document.parts if isinstance(part, Problems)]
    title = html.escape(escape_control("".join([*verdicts, document.title])))
    body = MarkdownIt("commonmark").enable("table").render(markdown.render(document))
    body = body.replace(html.unescape(markdown.ZERO_WIDTH_SPACE), "")  # a mail has no mentions
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{title}</title>",
            f"<style>\n{STYLE}\n</style>",
            "</head>",
            f"<body>\n{body}</body>",
            "</html>",
        ]
    )


FORMATS: dict[str, Callable[[Document], str]] = {
    "text": as_text,
    "markdown": markdown.render,
    "json": as_text,
    "html": render,
}
"""The formats of a command that shows a document. JSON is what the document was made of."""
