"""A report as one HTML file to mail: it loads nothing, and its styles are attributes, which mail clients keep.

The style sheet only adds what attributes cannot express: colours for a dark screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from yamlsched.show.document import Document, Section
from yamlsched.text import escape_control

FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',Arial,sans-serif"
MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace"
STYLES = {
    "page": f"margin:0;padding:16px;background:#f5f6f8;color:#1b2130;{FONT};font-size:14px;line-height:1.45",
    "head": "max-width:960px;margin:0 auto 12px",
    "card": "max-width:960px;margin:0 auto 16px;background:#ffffff;border:1px solid #e1e4ea;border-radius:8px",
    "body": "padding:14px 18px",
    "h1": "margin:0;font-size:18px;line-height:1.3",
    "h2": "margin:0;padding:12px 18px 6px;font-size:15px;line-height:1.3",
    "quiet": "margin:2px 0 0;color:#5b6579;font-size:13px",
    "good": "margin:0;padding:12px 18px;background:#e5f5ec;color:#137540;font-weight:600;border-radius:8px 8px 0 0",
    "bad": "margin:0;padding:12px 18px;background:#fdebec;color:#c2212f;font-weight:600;border-radius:8px 8px 0 0",
    "problems": "margin:0;padding:4px 18px 12px 36px",
    "problem": "margin:8px 0 0;overflow-wrap:anywhere",
    "command": f"{MONO};font-size:12px;color:#5b6579;overflow-wrap:anywhere",
    "scroll": "overflow-x:auto;padding:0 18px 12px",
    "table": "border-collapse:collapse;width:100%;font-size:13px",
    "th": "padding:5px 14px 5px 0;text-align:left;vertical-align:top;color:#5b6579;font-weight:600;"
    "border-bottom:1px solid #e1e4ea;white-space:nowrap",
    "td": "padding:6px 14px 6px 0;text-align:left;vertical-align:top;border-bottom:1px solid #e1e4ea",
}
DARK = """\
@media (prefers-color-scheme: dark) {
  .page { background: #0f131b !important; color: #e6e9f0 !important; }
  .card { background: #171c27 !important; border-color: #2a3242 !important; }
  .good { background: #15301f !important; color: #5fd294 !important; }
  .bad { background: #3a1a20 !important; color: #ff8f95 !important; }
  .quiet, .command, .th { color: #9aa5b8 !important; }
  .th, .td { border-color: #2a3242 !important; }
}"""
FREE_TEXT = ("error", "reason", "edit")
"""A column of free text gets a line of its own below the others, so that all of a table is seen on a narrow screen."""


def render(document: Document) -> str:
    """Return the report as an HTML document."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{_text(f'{document.verdict}: {document.title}')}</title>",
            f"<style>\n:root {{ color-scheme: light dark; }}\n{DARK}\n</style>",
            "</head>",
            f"<body{_style('page')}>",
            *_body(document),
            "</body>",
            "</html>",
        ]
    )


def _body(document: Document) -> Iterator[str]:
    yield f"<div{_style('head')}><h1{_style('h1')}>{_text(document.title)}</h1>"
    yield f"<p{_style('quiet')}>{_text(document.span)}</p></div>"
    yield f"<div{_style('card')}>"
    tone, mark = ("good", "&#10003;") if document.is_healthy else ("bad", "&#9888;&#65038;")
    yield f"<p{_style(tone, '' if document.problems else 'border-radius:8px')}>{mark} {_text(document.verdict)}</p>"
    if document.problems:
        yield f"<ol{_style('problems')}>"
        for what, remedy in document.problems:
            yield f"<li{_style('problem')}>{_text(what)}<br><code{_style('command')}>{_text(remedy)}</code></li>"
        yield "</ol>"
    if document.more_problems:
        yield f"<p{_style('quiet', 'padding:0 18px 12px')}>{_text(document.more_problems)}</p>"
    yield "</div>"
    yield f'<div{_style("card")}><div{_style("body")}><table role="presentation"{_style("table")}>'
    for name, value in document.facts:
        yield f'<tr><th scope="row"{_style("th", "width:70px;border:0")}>{_text(name)}</th>'
        yield f"<td{_style('td', 'border:0')}>{_text(value)}</td></tr>"
    yield "</table></div></div>"
    for section in document.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    short = [nth for nth, heading in enumerate(section.headings) if heading not in FREE_TEXT]
    long = [nth for nth, heading in enumerate(section.headings) if heading in FREE_TEXT]
    yield f"<div{_style('card')}>"
    yield f"<h2{_style('h2')}>{_text(section.title)}</h2>"
    yield f"<div{_style('scroll')}><table{_style('table')}>"
    yield "<thead><tr>"
    for nth in short:
        yield f'<th scope="col"{_style("th", _align(section, nth))}>{_text(section.headings[nth])}</th>'
    yield "</tr></thead>"
    yield "<tbody>"
    for row in section.rows:
        no_line = "border:0" if long else ""
        yield f"<tr>{''.join(_cell(section, nth, row[nth], no_line) for nth in short)}</tr>"
        for nth in long:
            style = _style("td", "padding-top:0;overflow-wrap:anywhere")
            yield f'<tr><td{_style("td")}></td><td colspan="{len(short) - 1}"{style}>{_text(row[nth])}</td></tr>'
    yield "</tbody></table></div>"
    for line in filter(None, (section.more, section.note)):
        yield f"<p{_style('quiet', 'padding:0 18px 12px')}>{_text(line)}</p>"
    yield "</div>"


def _cell(section: Section, nth: int, text: str, more: str) -> str:
    is_name = "white-space:nowrap;font-weight:600" if section.headings[nth] == "job" else ""
    return f"<td{_style('td', _align(section, nth), is_name, more)}>{_text(text)}</td>"


def _align(section: Section, nth: int) -> str:
    return "text-align:right" if nth in section.numbers else ""


def _style(name: str, *more: str) -> str:
    """Return the attributes of an element: its class, for the dark colours, and its styles."""
    styles = ";".join([STYLES[name], *filter(None, more)])
    return f' class="{name}" style="{escape(styles)}"'


def _text(text: str) -> str:
    """Return text without markup; characters that control or reorder what is shown are visible."""
    return escape(escape_control(text))
