"""A document as one HTML file to mail: it loads nothing, and its styles are attributes, which mail
clients keep.

The style sheet only adds what attributes cannot express: colours for a dark screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain

from yamlsched.show.document import (
    FREE_TEXT,
    Document,
    Entries,
    Entry,
    Facts,
    Part,
    Problems,
    Section,
)
from yamlsched.show.terminal import printable, unstyled
from yamlsched.text import escape_control

FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',Arial,sans-serif"
MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace"
STYLES = {
    "page": (
        f"margin:0;padding:16px;background:#f5f6f8;color:#1b2130;{FONT};"
        "font-size:14px;line-height:1.45"
    ),
    "head": "max-width:960px;margin:0 auto 12px",
    "card": (
        "max-width:960px;margin:0 auto 16px;background:#ffffff;border:1px solid"
        " #e1e4ea;border-radius:8px"
    ),
    "body": "padding:14px 18px",
    "h1": "margin:0;font-size:18px;line-height:1.3",
    "h2": "margin:0;padding:12px 18px 6px;font-size:15px;line-height:1.3",
    "quiet": "margin:2px 0 0;color:#5b6579;font-size:13px",
    "good": (
        "margin:0;padding:12px"
        " 18px;background:#e5f5ec;color:#137540;font-weight:600;border-radius:8px 8px 0 0"
    ),
    "bad": (
        "margin:0;padding:12px"
        " 18px;background:#fdebec;color:#c2212f;font-weight:600;border-radius:8px 8px 0 0"
    ),
    "problems": "margin:0;padding:4px 18px 12px 36px",
    "problem": "margin:8px 0 0;overflow-wrap:anywhere",
    "command": f"{MONO};font-size:12px;color:#5b6579;overflow-wrap:anywhere",
    "entries": "margin:0;padding:4px 18px 8px;list-style:none",
    "text": f"margin:4px 0 0;{MONO};font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere",
    "scroll": "overflow-x:auto;padding:0 18px 12px",
    "table": "border-collapse:collapse;width:100%;font-size:13px",
    "th": (
        "padding:5px 14px 5px 0;text-align:left;vertical-align:top;color:#5b6579;font-weight:600;"
        "border-bottom:1px solid #e1e4ea;white-space:nowrap"
    ),
    "td": (
        "padding:6px 14px 6px 0;text-align:left;vertical-align:top;border-bottom:1px solid #e1e4ea"
    ),
}
CELLS = {
    "job": "white-space:nowrap;font-weight:600",
    **dict.fromkeys(FREE_TEXT, "min-width:20em;overflow-wrap:anywhere"),
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
DARK = """\
@media (prefers-color-scheme: dark) {
  .page { background: #0f131b !important; color: #e6e9f0 !important; }
  .card { background: #171c27 !important; border-color: #2a3242 !important; }
  .good { background: #15301f !important; color: #5fd294 !important; }
  .bad { background: #3a1a20 !important; color: #ff8f95 !important; }
  .quiet, .command, .th { color: #9aa5b8 !important; }
  .th, .td { border-color: #2a3242 !important; }
}"""


def render(document: Document) -> str:
    """Return the document as an HTML file."""
    parts = list(document.parts)
    verdict = [f"{part.verdict}: " for part in parts if isinstance(part, Problems)]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{_text(''.join([*verdict, document.title]))}</title>",
            f"<style>\n:root {{ color-scheme: light dark; }}\n{DARK}\n</style>",
            "</head>",
            f"<body{_style('page')}>",
            f"<div{_style('head')}><h1{_style('h1')}>{_text(document.title)}</h1>",
            f"<p{_style('quiet')}>{_text(document.span)}</p></div>",
            *chain.from_iterable(map(_card, parts)),
            "</body>",
            "</html>",
        ]
    )


def _card(part: Part) -> Iterator[str]:
    head = f"<div{_style('card')}>"
    match part:
        case Facts():
            yield f'{head}<div{_style("body")}><table role="presentation"{_style("table")}>'
            for name, value in part.pairs:
                yield f'<tr><th scope="row"{_style("th", "width:70px;border:0")}>{_text(name)}</th>'
                yield f"<td{_style('td', 'border:0')}>{_text(value)}</td></tr>"
            yield f"</table></div>{_notes(part.note)}</div>"
        case Problems():
            yield head
            tone, mark = ("good", "&#10003;") if part.is_healthy else ("bad", "&#9888;&#65038;")
            yield (
                f"<p{_style(tone, '' if part.problems else 'border-radius:8px')}>{mark}"
                f" {_text(part.verdict)}</p>"
            )
            if part.problems:
                yield f"<ol{_style('problems')}>"
                for what, remedy in part.problems:
                    command = (
                        f"<br><code{_style('command')}>{_text(remedy)}</code>" if remedy else ""
                    )
                    yield f"<li{_style('problem')}>{_text(what)}{command}</li>"
                yield "</ol>"
            yield f"{_notes(part.more)}</div>"
        case Section():
            yield head
            yield from (f"<h2{_style('h2')}>{_text(title)}</h2>" for title in [part.title] if title)
            yield from _table(part) if part.rows else ()
            yield f"{_notes(part.more, part.note)}</div>"
        case Entries():
            yield from (head, *_entries(part.entries), "</div>")


def _table(section: Section) -> Iterator[str]:
    styles = [
        "text-align:right" if nth in section.numbers else CELLS.get(heading, "")
        for nth, heading in enumerate(section.headings)
    ]
    yield f"<div{_style('scroll')}><table{_style('table')}>"
    if any(section.headings):
        yield "<thead><tr>"
        yield from (
            f'<th scope="col"{_style("th")}>{_text(name)}</th>' for name in section.headings
        )
        yield "</tr></thead>"
    yield "<tbody>"
    for row in section.rows:
        cells = "".join(
            f"<td{_style('td', style)}>{_text(cell)}</td>"
            for cell, style in zip(row, styles, strict=True)
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


def _notes(*lines: str) -> str:
    return "".join(
        f"<p{_style('quiet', 'padding:0 18px 12px')}>{_text(line)}</p>\n" for line in lines if line
    )


def _entries(entries: Sequence[Entry]) -> Iterator[str]:
    if entries:
        yield f"<ul{_style('entries')}>"
        for entry in entries:
            yield f"<li{_style('problem')}>{_text(entry.line)}"
            if entry.text:
                yield f"<pre{_style('text')}>{escape(printable(chr(10).join(entry.text)))}</pre>"
            yield from _entries(entry.entries)
            yield "</li>"
        yield "</ul>"


def _style(name: str, *more: str) -> str:
    """Return the attributes of an element: its class, for the dark colours, and its styles."""
    styles = ";".join([STYLES[name], *filter(None, more)])
    return f' class="{name}" style="{escape(styles)}"'


def _text(text: str) -> str:
    """Return text without markup; characters that control or reorder what is shown are visible."""
    return escape(escape_control(unstyled(text)))
