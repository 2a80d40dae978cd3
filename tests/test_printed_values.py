"""How results are printed, and how times are parsed."""

from __future__ import annotations

import doctest
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamlsched import durations
from yamlsched.show import terminal as _output
from yamlsched.timetable import times

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)


@pytest.mark.parametrize("module", [_output, times])
def test_the_examples_in_docstrings_are_correct(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@given(st.lists(st.lists(st.text(max_size=8), min_size=3, max_size=3), max_size=5))
def test_a_table_has_one_line_per_row_for_any_content(rows: list[list[str]]) -> None:
    lines = _output.table(("A", "B", "C"), rows).split("\n")

    assert len(lines) == len(rows) + 1
    assert all(c.isprintable() for line in lines for c in line)


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make stdout a terminal of this width."""

    def set_width(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)

    return set_width


def test_columns_are_aligned_by_the_width_on_the_screen(on_terminal: Callable[[int], None]) -> None:
    on_terminal(80)

    lines = _output.table(("A", "B"), [(_output.coloured("dead"), "1"), ("日本語", "2")]).split(
        "\n"
    )

    assert [click.unstyle(line).rstrip() for line in lines] == [
        "A       B",
        "dead    1",
        "日本語  2",
    ]
    assert lines[1].startswith("\x1b[31mdead\x1b[0m")


@pytest.mark.parametrize("columns", [1, 29, 30, 31, 200])
def test_on_a_terminal_only_free_text_is_cut_and_keeps_a_readable_width(
    on_terminal: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    on_terminal(columns)
    monkeypatch.setenv("NO_COLOR", "1")
    key = "cleanup_nightly:2026-01-14"

    rows = [(key, "short", "1"), ("-", "x" * 100, "2")]
    [_, first, second] = _output.table(("KEY", "ERROR", "N"), rows, free_text="ERROR").split("\n")

    room = min(100, max(_output.MIN_FREE_TEXT_CHARS, columns - len(key) - 5))
    assert first.split() == [key, "short", "1"]
    assert second.split() == ["-", "x" * 100 if room == 100 else "x" * (room - 3) + "...", "2"]


def test_piped_tables_have_the_width_of_their_content_and_bound_only_free_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    lines = _output.table(("KEY", "ERROR"), [("k" * 500, "x" * 500)], free_text="ERROR").split("\n")

    assert lines[1] == f"{'k' * 500}  {'x' * (_output.MAX_FREE_TEXT_CHARS - 3)}..."
    assert "\x1b" not in "".join(lines)


HOSTILE = [
    "\x1b[31mred\x1b[0m\nnext",
    "[red]markup[/red]",
    "[/]",
    "[link=file:///etc]x[/link]",
    ":skull:",
    "\u202eabc",
    "\x07\x9b",
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_text_from_outside_is_shown_escaped_and_never_interpreted(
    on_terminal: Callable[[int], None], hostile: str
) -> None:
    on_terminal(80)

    last = _output.table(("A", "B"), [(hostile, hostile)], free_text="B").split("\n")[-1]

    shown = _output.printable_line(hostile)
    assert last == f"{shown}  {shown}"
    assert shown.isprintable()
    assert _output.fields([("a", hostile)]) == f"a  {shown}"
    assert _output.coloured("dead", hostile) == f"\x1b[31m{shown}\x1b[0m"


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "expected"),
    [(True, "", True), (True, "1", False), (False, "", False)],
)
def test_colours_are_for_terminals_and_not_with_no_color(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, no_color: str, expected: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("NO_COLOR", no_color)

    assert ("\x1b" in _output.coloured("dead")) == expected


def test_a_document_has_a_version_and_times_in_utc() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=2)))

    document = json.loads(_output.document(at=there, took=timedelta(seconds=1.5)))

    assert document == {"format_version": 1, "at": "2026-01-14T12:00:00Z", "took": 1.5}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (61, "1m1s"), (3725, "1h2m"), (90061, "1d1h"), (-61, "1m1s")],
)
def test_rough_times_have_two_units(seconds: int, text: str) -> None:
    assert durations.approximate(timedelta(seconds=seconds)) == text
