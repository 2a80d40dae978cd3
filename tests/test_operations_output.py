"""How results are written, and how times are read."""

from __future__ import annotations

import doctest
import json
import re
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamlsched import durations, times
from yamlsched.cli import _output

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)


@pytest.mark.parametrize("module", [_output, times])
def test_the_examples_in_docstrings_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-01-14T12:00Z", NOON),
        ("2026-01-14T12:00:00+00:00", NOON),
        ("2026-01-14 13:00+01:00", NOON),
        ("2026-01-14T12:00", NOON),
        ("2026-01-14", NOON.replace(hour=0)),
        ("1h30m", timedelta(minutes=90)),
        ("now", timedelta(0)),
    ],
)
def test_an_instant_is_rfc_3339_or_a_duration(text: str, meant: datetime | timedelta) -> None:
    assert times.parse_instant(text) == meant


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", '"soon" is not a valid time: write 2026-01-14T02:00Z, 2026-01-14, or a duration such as 90m'),
        ("90", '90 has no unit: write "90s" for seconds or "90m" for minutes'),
        ("999999d", "999999d is longer than 100 years: write a time such as 2026-01-14T02:00Z"),
        ("", '"" is not a valid time: write 2026-01-14T02:00Z, 2026-01-14, or a duration such as 90m'),
    ],
)
def test_what_is_no_instant_is_told_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        times.parse_instant(text)


def test_a_duration_reaches_back_or_ahead() -> None:
    assert times.before(timedelta(hours=2), NOON) == NOON.replace(hour=10)
    assert times.after(timedelta(hours=2), NOON) == NOON.replace(hour=14)
    assert times.before(NOON, NOON) == times.after(NOON, NOON) == NOON
    assert times.before(None, NOON) is None


@given(st.lists(st.lists(st.text(max_size=8), min_size=3, max_size=3), max_size=5))
def test_a_table_has_a_line_for_each_row_whatever_is_in_it(rows: list[list[str]]) -> None:
    lines = _output.table(("A", "B", "C"), rows).split("\n")

    assert len(lines) == len(rows) + 1
    assert all(c.isprintable() for line in lines for c in line)


def test_columns_are_aligned_by_what_is_seen() -> None:
    red = _output.Styled(click.style("x", fg="red"))

    lines = _output.table(("A", "B"), [(red, "1"), ("long", "2")]).split("\n")

    assert [click.unstyle(line) for line in lines] == ["A     B", "x     1", "long  2"]


@pytest.mark.parametrize("columns", [1, 29, 30, 31, 200])
def test_on_a_terminal_the_last_column_ends_at_its_edge_and_keeps_what_can_be_read(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")

    [_, short, long] = _output.table(("ID", "ERROR"), [("1", "short"), ("2", "x" * 100)]).split("\n")

    room = min(100, max(_output.MIN_LAST_COLUMN, columns - 4))
    assert short == "1   short"
    assert long == "2   " + ("x" * 100 if room == 100 else "x" * (room - 1) + "…")


def test_what_comes_from_outside_cannot_colour_the_terminal_or_break_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)

    last = _output.table(("A",), [("\x1b[31mred\x1b[0m\nnext",)]).split("\n")[-1]

    assert last == "\\x1b[31mred\\x1b[0m next"
    assert _output.coloured("dead", "\x1b[2J") == "\x1b[31m\\x1b[2J\x1b[0m"


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "expected"), [(True, "", True), (True, "1", False), (False, "", False)]
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
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (61, "1m1s"), (3725, "1h2m"), (90061, "1d1h"), (-61, "1m1s")]
)
def test_rough_times_have_two_units(seconds: int, text: str) -> None:
    assert durations.approximate(timedelta(seconds=seconds)) == text
