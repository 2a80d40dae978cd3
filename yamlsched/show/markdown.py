"""A report as Markdown, for a chat or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator

from yamlsched.show.document import Document, Section
from yamlsched.text import escape_line

MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")


LINKED = re.compile(r"@|www(?=\.)|:(?=//)")
"""What forges turn into a mention or a link."""


ZERO_WIDTH_SPACE = "&#8203;"


def code(string: str) -> str:
    """Return any ``string`` as code, also inside a table."""
    string = escape_line(string)
    if "|" in string or not string.strip():
        # a table is split at pipes before code is recognized, and how to escape them depends on backslashes
        return f"<code>{''.join(c if c.isalnum() or c == ' ' else f'&#{ord(c)};' for c in string)}</code>"
    longest = max((len(run) for run in re.findall("`+", string)), default=0)
    fence, pad = "`" * (longest + 1), " " * bool(longest)
    return f"{fence}{pad}{string}{pad}{fence}"


def prose(sentence: str) -> str:
    """Return a sentence so that nothing in it is markup."""
    escaped = escape_line(sentence).rstrip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = MARKUP.sub(lambda match: "\\" + match[0], escaped)
    return LINKED.sub(lambda match: match[0] + ZERO_WIDTH_SPACE, escaped)


COMMAND = re.compile(
    r"(?:^|(?<=then )|(?<=then: )|(?<=more: ))(yamlsched .*?)(?=; then |, then: | runs what | \(or |$)"
)
"""Commands in what helps, which are shown as code."""


def render(document: Document) -> str:
    """Return the report as Markdown."""
    return "\n".join(_lines(document))


def _lines(document: Document) -> Iterator[str]:
    yield f"## {prose(document.title)}"
    yield ""
    yield prose(document.span)
    yield ""
    yield f"**{prose(document.verdict)}**"
    if document.problems:
        yield ""
        for what, remedy in document.problems:
            yield f"- {prose(what)}  "
            yield f"  {_with_commands(remedy)}"
        if document.more_problems:
            yield f"- {_with_commands(document.more_problems)}"
    yield ""
    yield from (f"- **{prose(name)}**: {prose(value)}" for name, value in document.facts)
    for section in document.sections:
        yield ""
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield f"### {prose(section.title)}"
    yield ""
    yield f"| {' | '.join(section.headings)} |"
    yield f"| {' | '.join('---:' if nth in section.numbers else '---' for nth in range(len(section.headings)))} |"
    for row in section.rows:
        yield f"| {' | '.join(map(prose, row))} |"
    for line in filter(None, (section.more, section.note)):
        yield ""
        yield _with_commands(line)


def _with_commands(text: str) -> str:
    """Return a line with its commands as code."""
    parts = COMMAND.split(text)
    return "".join(code(part) if nth % 2 else prose_of(part) for nth, part in enumerate(parts))


def prose_of(part: str) -> str:
    """Return ``prose`` with the spaces around it."""
    return prose(part) + " " * (len(part) - len(part.rstrip()))
