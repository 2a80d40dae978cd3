"""A document as Markdown, for a chat or an issue."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

from yamlsched.show.document import Document, Entries, Entry, Facts, Part, Problems, Section
from yamlsched.show.terminal import printable, unstyled
from yamlsched.text import escape_line

MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")

BLOCK = re.compile(r"^(\d*)([-+#=.)])")
"""What starts a list or a heading."""
MAX_CHARS = 60_000
"""Forges accept 65,536 in a comment."""
LINKED = re.compile(r"@|www(?=\.)|:(?=//)")
"""What forges turn into a mention or a link."""


ZERO_WIDTH_SPACE = "&#8203;"


def code(string: str) -> str:
    """Return any ``string`` as code, also inside a table."""
    string = escape_line(string)
    if "|" in string or not string.strip():
        # a table is split at pipes before code is recognized, and how to escape them depends on
        # backslashes
        safe = (c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in string)
        return f"<code>{''.join(safe)}</code>"
    fence = _fence(string, 1)
    pad = " " * (len(fence) > 1)
    return f"{fence}{pad}{string}{pad}{fence}"


def _fence(string: str, least: int) -> str:
    """Return more backticks than ``string`` has in a row, and at least so many."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", string))])


def prose(sentence: str) -> str:
    """Return a sentence so that nothing in it, nor its start, is markup."""
    escaped = (
        escape_line(unstyled(sentence))
        .rstrip()
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    escaped = BLOCK.sub(r"\1\\\2", MARKUP.sub(lambda match: "\\" + match[0], escaped))
    return LINKED.sub(lambda match: match[0] + ZERO_WIDTH_SPACE, escaped)


COMMAND = re.compile(
    r"(?:^|(?<=then )|(?<=then: )|(?<=more: ))(yamlsched .*?)(?=; then |, then: | runs what |"
    r" \(or |$)"
)
"""Commands in what helps, which are shown as code."""


def render(document: Document) -> str:
    """Return the document as Markdown."""
    head = (f"## {prose(document.title)}", prose(document.span))
    parts = [*filter(None, head), *("\n".join(_lines(part)) for part in document.parts)]
    sizes = accumulate(len(part) + 2 for part in parts)
    shown = sum(size <= MAX_CHARS for size in sizes)
    more = [f"and {len(parts) - shown} more parts: --format text shows all"]
    return "\n\n".join(parts[:shown] + more * (shown < len(parts)))


def _lines(part: Part) -> Iterator[str]:
    match part:
        case Facts():
            yield from (
                f"- {f'**{prose(name)}**: ' if name else ''}{prose(value)}"
                for name, value in part.pairs
            )
            yield from (f"- {_with_commands(line)}" for line in [part.note] if line)
        case Problems():
            yield f"**{prose(part.verdict)}**"
            yield from [""] * bool(part.problems)
            for what, remedy in part.problems:
                yield f"- {prose(what)}" + "  " * bool(remedy)
                yield from (f"  {_with_commands(line)}" for line in [remedy] if line)
            yield from (f"- {_with_commands(line)}" for line in [part.more] if line)
        case Section():
            yield "\n\n".join(filter(None, _section(part)))
        case Entries():
            for entry in part.entries:
                yield from _entry(entry, "")


def _section(section: Section) -> Iterator[str]:
    yield section.title and f"### {prose(section.title)}"
    if section.rows:
        yield "\n".join(
            table(section.headings, (map(prose, row) for row in section.rows), section.numbers)
        )
    yield from map(_with_commands, (section.more, section.note))


def table(
    headings: Sequence[str], rows: Iterable[Iterable[str]], numbers: Collection[int] = ()
) -> Iterator[str]:
    """Yield the lines of a table. Its cells are Markdown; ``numbers`` are the columns aligned to
    the right.
    """
    rules = ("---:" if nth in numbers else "---" for nth in range(len(headings)))
    yield from (f"| {' | '.join(row)} |" for row in (headings, rules, *rows))


def _entry(entry: Entry, indent: str) -> Iterator[str]:
    yield (  # another bullet than that of facts: it starts another list
        f"{indent}* {prose(entry.line)}"
    )
    if entry.text:
        fence = _fence("\n".join(entry.text), 3)
        yield from (
            "",
            *(f"{indent}  {line}" for line in (fence, *map(printable, entry.text), fence)),
            "",
        )
    for below in entry.entries:
        yield from _entry(below, indent + "  ")


def _with_commands(text: str) -> str:
    """Return a line with its commands as code."""
    parts = COMMAND.split(text)
    spaces = [" " * (len(part) - len(part.rstrip())) for part in parts]  # which prose removes
    return "".join(
        code(part) if nth % 2 else prose(part) + spaces[nth] for nth, part in enumerate(parts)
    )
