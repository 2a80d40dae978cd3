"""Log lines and results: values from outside stay on one line and contain no control characters."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from support.command_line import command_line
from support.rows import a_job, a_run
from yamlsched import cli, log
from yamlsched.cli import _output
from yamlsched.cli._flow import show_messages

AT = datetime(2026, 1, 14, 2, tzinfo=UTC)
HOSTILE = "a\x1b[2Jb\x85c\u2028d\x9be\u202ef\ng"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_line_is_one_printable_line_whatever_its_values(as_json: bool) -> None:
    line = log.format_line("error", "run.dead", {"error": HOSTILE}, AT, as_json)
    assert line.isprintable()
    if as_json:
        assert json.loads(line)["error"] == HOSTILE


def test_a_json_document_keeps_its_meaning_and_contains_no_control_characters() -> None:
    text = _output.document(error=HOSTILE)
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)["error"] == HOSTILE


@pytest.mark.parametrize("formula", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_no_cell_of_csv_is_a_formula_or_holds_control_characters(formula: str) -> None:
    text = _output.comma_separated(("error", "other", "attempts"), [(formula, HOSTILE, 3)])
    [_, [cell, other, number]] = csv.reader(io.StringIO(text))
    assert cell.startswith("'")
    assert other.replace("\n", "").isprintable()
    assert number == "3"


def test_csv_of_runs_escapes_hostile_errors(
    dsn: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    a_run(db, a_job(db), "dead", last_error="('=1+1' || chr(27) || '[2J')")
    cli = command_line(dsn, monkeypatch, capsys, tmp_path)
    assert "'=1+1\\x1b[2J" in cli("runs", "--format", "csv").out


@pytest.mark.parametrize("kind", ["refused", "failed", "unexpected"])
def test_server_messages_are_printed_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    error = {
        "refused": cli.Refused("no\x1b[2J"),
        "failed": cli.EnvironmentFailed("no\x1b[2J"),
        "unexpected": psycopg.ProgrammingError("no\x1b[2J"),
    }[kind]

    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(cli.cli, "main", fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert "no\\x1b[2J" in capsys.readouterr().err


def test_file_names_of_other_hosts_are_printed_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages(["schedules.yaml is not applied: web-1:/srv/\x1b[2J/schedules.yaml is newer"])
    assert capsys.readouterr().err == ("schedules.yaml is not applied: web-1:/srv/\\x1b[2J/schedules.yaml is newer\n")
