"""Every command line of yamlsched on a page is one that this version accepts. They are parsed, and not executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from yamlsched.cli import cli

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted(path for path in (ROOT / "deploy").iterdir() if path.suffix != ".json"),
    ROOT / "yamlsched" / "templates" / "ci.yml",
]
FENCE = re.compile(r"^ *```(\w*).*\n((?:.*\n)*?) *```$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
COMMAND = re.compile(
    r"""(?<![\w.@:'"/`-])(?<!=)(?<!from )(?<!-t )(?<!generic )(?<!schema )(?:[\w./]*/)?yamlsched +"""
    r"""(?=[a-z-]+(?![\w:]))(?!(?:in|on|of|is) )(.*)"""
)
END = re.compile(r"^(?:[|&;)>]|\d>|#|[|&;]{2}|&?>>?)")
"""A word that ends a command in a shell, or starts what is not a part of it."""
PLACEHOLDER = re.compile(r"[A-Z][A-Z_.:]*|\.\.\.|@[A-Z]+@|\$\S*")


class Shown(NamedTuple):
    """A command line on a page. ``is_mention``: it is in a sentence, which may leave out arguments."""

    page: str
    text: str
    is_mention: bool


def shown(page: Path) -> Iterator[Shown]:
    """Yield what a page shows of the command line."""
    text = page.read_text("utf-8")
    name = str(page.relative_to(ROOT))
    is_markdown = page.suffix == ".md"
    for block in (
        (one[2] for one in FENCE.finditer(text) if one[1] != "python") if is_markdown else [text]
    ):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.lstrip().startswith(("#", "summary:", "Description=")):
                yield from (Shown(name, one, False) for one in _commands(line))
    if is_markdown:
        for span in INLINE.finditer(FENCE.sub("", text)):
            yield from (
                Shown(name, one, True)
                for one in _commands(span[1].replace("\\|", "|").replace("\n", " "))
            )


def _commands(text: str) -> Iterator[str]:
    found = COMMAND.search(text)
    if found:
        yield found[1]
        yield from _commands(found[1])


def words(text: str) -> list[str]:
    """Return the arguments: the words before a pipe, a redirection, a comment or the end of a substitution."""
    text = re.sub(r"\s\d?>.*", "", text.replace(r"\%", "%"))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();&|<>")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    found: list[str] = []
    try:
        for word in lexer:
            if END.match(word):
                break
            found.append(word)
    except ValueError:  # a quotation mark of the text around it
        return shlex.split(text.split('"')[0].split("'")[0])
    return found


OF_A_PLUGIN = "owners"
"""The command of the package that docs/plugins.md writes."""


def refusal(command: Shown) -> str:
    """Return why this version does not accept a command line; "" if it does."""
    given = words(command.text)
    if given[:1] == [OF_A_PLUGIN]:
        return ""
    arguments = [word.strip("[]") for word in given] if command.is_mention else given
    try:
        cli.main([word for word in arguments if word], prog_name="yamlsched", standalone_mode=False)
    except click.MissingParameter as error:
        return "" if command.is_mention else error.format_message()
    except click.BadParameter as error:
        is_example = "does not exist" in error.message or any(map(PLACEHOLDER.fullmatch, arguments))
        return "" if is_example else error.format_message()
    except click.UsageError as error:
        return error.format_message()
    return ""


ALL = sorted({one for page in PAGES for one in shown(page)})


@pytest.fixture(autouse=True)
def _nothing_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: None)


def test_every_command_on_a_page_has_a_verb_and_options_of_this_version() -> None:
    refused = {f"{one.page}: yamlsched {one.text}": why for one in ALL if (why := refusal(one))}

    assert refused == {}
    assert len({one.text for one in ALL}) > 120


@pytest.mark.parametrize(
    "line",
    [
        "retry 118 --again",
        "restart 118",
        "runs --status died",
        "web --listen",
        "db begin",
        "prune --archive",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert refusal(Shown("page", line, False))
