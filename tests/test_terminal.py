"""Values from files, paths and errors add no markup, commands or control characters to diff, plan and validate."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from support.documents import in_html, in_markdown, in_text
from yamlsched import text as terminal
from yamlsched.cli import cli
from yamlsched.extras.preview.diff import base_side, compare, file_side
from yamlsched.extras.preview.model import Preview, document
from yamlsched.schedule import formats
from yamlsched.schedule.load import load
from yamlsched.schedule.source import Diagnostic, Note
from yamlsched.show import terminal as _output

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
HOSTILE = [
    "x\n\n# forged\n\n<img src=x>",
    "::stop-commands::x",
    "x\n::error::forged",
    "  ::add-mask::x",
    "x\r::error::forged",
    "x\u2028::error::forged",
    "a ##[error]forged",
    "##vso[task.setvariable]x",
    "`",
    "``` `` `",
    "a`b",
    "\\",
    "|",
    "a\\|b",
    "a\\\\|<b>",
    "`|`",
    "</details>",
    "</code>",
    "</td><td>",
    "<!--",
    "-->",
    "&lt;script&gt;",
    "@everyone",
    "see https://evil.example/x and www.evil.example",
    "[x](javascript:alert)",
    "![x](https://evil.example/x.png)",
    "**bold** _it_ ~~gone~~ $x$",
    "\x1b[2J\x07\x9b31m",
    "\u202eabc",
    "z" * 190,
    "`" * 99,
    " ",
    "# x",
    "- x",
    "---",
    "```\nx\n```",
    "~~~",
    "[red]x[/red]",
    "[/]",
    "[link=https://evil.example]x[/link]",
    ":skull:",
]
BENIGN = "benign"
Edit = Callable[[str], Preview]


def a_file(top: dict[str, Any], **jobs: dict[str, Any]) -> bytes:
    written = {
        "version": 1,
        **top,
        "jobs": {n: {"handler": "a.b", "cron": "0 2 * * *", **j} for n, j in jobs.items()},
    }
    return json.dumps(written).encode()


def preview(
    before: bytes,
    after: bytes,
    base: str = "main:schedules.yaml",
    head: str = "schedules.yaml",
    environment: str | None = None,
) -> Preview:
    new = file_side(head, load(after, head, environment), environment)
    old = base_side(base, load(before, base, environment), environment, new)
    return compare(old, new, NOON, NOON + timedelta(days=2), environment)


def of_job(before: dict[str, Any], after: dict[str, Any]) -> Preview:
    return preview(a_file({}, x=before, y={}), a_file({}, x=after, y={}))


PLACES: dict[str, Edit] = {
    "payload key": lambda s: of_job({"payload": {"a": 1, s: 1}}, {"payload": {"a": 1, s: 2}}),
    "new payload key": lambda s: of_job({"payload": {"a": 1}}, {"payload": {"a": 1, s: 2}}),
    "key of a first payload": lambda s: of_job({}, {"payload": {s: 2}}),
    "nested payload key": lambda s: of_job({"payload": {"a": {s: 1}}}, {"payload": {"a": {s: 2}}}),
    "payload value": lambda s: of_job({"payload": {"a": s}}, {"payload": {"a": 1}}),
    "payload list": lambda s: of_job({"payload": {"a": 1}}, {"payload": {"a": [s, s]}}),
    "description": lambda s: of_job({}, {"description": s}),
    "owner": lambda s: of_job({"owner": s}, {"owner": "x"}),
    "fields of a new job": lambda s: preview(
        a_file({}), a_file({}, x={"description": s, "payload": {s: {s: [s]}}, "owner": s})
    ),
    "name of the base": lambda s: preview(a_file({}), a_file({}, x={}), base=s),
    "name of the file": lambda s: preview(a_file({}), a_file({}, x={}), head=s),
    "environment": lambda s: preview(
        a_file({}, x={}), a_file({}, x={"timeout": "5m"}), environment=s
    ),
    "error of the base": lambda s: preview(a_file({}, x={s: 1}), a_file({}, x={})),
    "invalid value of the base": lambda s: preview(a_file({}, x={"overlap": s}), a_file({}, x={})),
    "name of an invalid job": lambda s: preview(
        a_file({}, **{s: {"timeout": 1}}), a_file({}, x={})
    ),
    "name of an invalid base": lambda s: preview(
        a_file({}, x={"timeout": 1}), a_file({}, x={}), base=s
    ),
}


def assert_safe_lines(shown: str) -> None:
    for line in shown.split("\n"):
        assert line.isprintable() or line.replace("\t", "").isprintable(), line
        assert not line.lstrip().startswith("::"), line
        assert not re.search(r"##[A-Za-z]*\[", line), line


def structure(source: str) -> list[str]:
    """Return what markdown makes of a comment, without its texts and the contents of code."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    found = []
    for token in parser.parse(source):
        found.append(token.type + (token.content if token.type == "html_block" else ""))
        for child in token.children or ():
            if child.type == "html_inline" and child.content in ("<code>", "</code>"):
                found += ["code_inline"] * (child.content == "<code>")
            elif child.type == "html_inline":
                found.append(child.content)
            elif child.type not in ("text", "text_special", "entity"):
                found.append(child.type)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_what_is_written_anywhere_stays_where_it_is(place: str) -> None:
    plain = PLACES[place](BENIGN)
    plain_lines = in_text(plain).count("\n")
    plain_comment = in_markdown(plain)
    plain_structure = structure(plain_comment)
    plain_elements = in_html(plain).elements

    for hostile in HOSTILE:
        forged = PLACES[place](hostile)

        shown = in_text(forged)
        assert_safe_lines(shown)
        assert shown.count("\n") == plain_lines, hostile

        comment = in_markdown(forged)
        assert_safe_lines(comment)
        assert comment.count("\n") == plain_comment.count("\n"), hostile
        assert structure(comment) == plain_structure, hostile
        outside = re.sub(r"`[^`\n]+`|<code>.*?</code>", "", comment)
        assert not re.search(r"@everyone|https://evil|www\.evil", outside), hostile

        assert in_html(forged).elements == plain_elements, hostile

        written = _output.document(**document(forged))
        assert_safe_lines(written)
        assert (
            json.loads(written)["jobs"]
            == json.loads(json.dumps(document(forged), default=_output._plain))["jobs"]
        )


PIECES = st.text("ab`|\\*<>&[]()!#:@~_$\n\r\t \x1b-=.", max_size=12) | st.sampled_from(HOSTILE)


@settings(max_examples=75)
@given(key=PIECES, before=PIECES, after=PIECES)
def test_no_text_breaks_out_of_a_table_of_a_comment(key: str, before: str, after: str) -> None:
    edit = of_job(
        {"payload": {"a": 1, f"k{key}": f"b{before}"}},
        {"payload": {"a": 1, f"k{key}": f"c{after}"}},
    )
    plain = of_job({"payload": {"a": 1, "k": "b"}}, {"payload": {"a": 1, "k": "c"}})

    assert structure(in_markdown(edit)) == structure(in_markdown(plain))
    assert_safe_lines(in_text(edit))
    assert in_text(edit).count("\n") == in_text(plain).count("\n")


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_a_diagnostic_is_as_many_lines_whatever_it_quotes(hostile: str) -> None:
    def diagnostic(word: str) -> Diagnostic:
        return Diagnostic(
            word,
            1,
            1,
            2,
            "YS102",
            "error",
            f"unknown {word}",
            word,
            f"x: {word}",
            (Note(word, 1, 1, word),),
        )

    for write in (formats.as_text, formats.as_concise):
        shown = write([diagnostic(hostile)], [hostile])
        assert_safe_lines(shown)
        assert shown.count("\n") == write([diagnostic(BENIGN)], [BENIGN]).count("\n")
    # one workflow command for each, and no other
    assert len(re.findall("(?m)^::", formats.as_github([diagnostic(hostile)], [hostile]))) == 1
    assert "\n" not in formats.as_github([diagnostic(hostile)], [hostile])


def test_a_source_line_that_is_a_command_is_none_in_the_output(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text('version: 1\njobs:\n  x: {handler: a.b, "##[error]x": 1}\n  ::error: {}\n')

    done = CliRunner().invoke(cli, ["validate", str(file)], standalone_mode=False)

    assert "YS102" in done.output
    assert_safe_lines(done.output)


def test_a_file_of_any_name_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, hostile in enumerate(HOSTILE):
        name = hostile.replace("/", "_")[:100] + f"{number}.yaml"
        Path(name).write_bytes(a_file({}, x={}))
        for form in ("text", "markdown", "html", "json"):
            done = CliRunner().invoke(
                cli, ["diff", "--format", form, "--", f"./{name}", name], standalone_mode=False
            )
            assert done.return_value == 0, done
            assert_safe_lines(done.output)


@given(st.text(max_size=60))
def test_a_safe_line_is_one_printable_line_and_no_command(any_text: str) -> None:
    assert_safe_lines(terminal.escape_line(any_text))
    assert "\n" not in terminal.escape_line(any_text)
    assert terminal.escape_line("plain words") == "plain words"
