"""Log lines and results: values from outside stay on one line and contain no control characters."""

from __future__ import annotations

import ast
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import ROOT, command_line, yamlsched
from yamlsched import cli, log
from yamlsched.cli._flow import show_messages
from yamlsched.show import terminal as _output

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


@pytest.mark.parametrize("kind", ["refused", "failed", "unexpected"])
def test_server_messages_are_printed_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    error = {
        "refused": cli.Refused("no\x1b[2J"),
        "failed": cli.EnvironmentFailed("no\x1b[2J"),
        "unexpected": psycopg.ProgrammingError("no\x1b[2J"),
    }[kind]

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(cli.cli, "make_context", fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert "no\\x1b[2J" in capsys.readouterr().err


def test_file_names_of_other_hosts_are_printed_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_messages(["schedules.yaml is not applied: web-1:/srv/\x1b[2J/schedules.yaml is newer"])
    assert capsys.readouterr().err == (
        "schedules.yaml is not applied: web-1:/srv/\\x1b[2J/schedules.yaml is newer\n"
    )


# -- --log-format json -------------------------------------------------------------------------------------------------


def events(stderr: str) -> list[str]:
    """Return the events of JSON lines; fail for any other line."""
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert all({"at", "level", "event"} <= line.keys() for line in lines)
    return [line["event"] for line in lines]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tick", "--log-format", "json", "--file", "none.yaml"], 3, "none.yaml cannot be read"),
        (["tick", "--log-format=json", "--dsn", "host=/nowhere"], 3, "/nowhere"),
        (["tick", "--log-format", "json", "--bogus"], 2, "--bogus"),
        (["tick", "--bogus", "--log-format", "json"], 2, "--bogus"),
        (["--log-format", "json", "tikc"], 2, 'Did you mean "tick"?'),
        (["work", "--migrate", "--log-format", "json"], 2, "--migrate requires --loop"),
        (["work", "--grace", "5", "--log-format", "json"], 2, "--grace"),
        (["sync", "--log-format", "json", "--namespace", "9"], 2, "'9' is not a valid namespace"),
    ],
)
def test_every_line_is_json_when_a_command_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    tmp_path: Path,
    words: list[str],
    code: int,
    message: str,
) -> None:
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs: {}\n")
    result = command_line("host=/nowhere", monkeypatch, capsys, tmp_path)(*words)
    assert (result.code, result.out) == (code, "")
    [line] = [json.loads(line) for line in result.err.splitlines()]
    assert (line["event"], line["level"], line["exit_code"]) == ("command.failed", "error", code)
    assert message in line["error"]


def test_a_bug_is_one_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(cli.cli, "invoke", fail)
    result = command_line("", monkeypatch, capsys, tmp_path)("--log-format", "json", "tick")
    [line] = [json.loads(line) for line in result.err.splitlines()]
    assert result.code == 3
    assert "this is a bug in yamlsched" in line["error"]
    assert line["stack"].endswith("ZeroDivisionError: a bug\n")


@pytest.mark.parametrize("verb", ["tick", "sync", "work"])
def test_messages_of_a_flow_are_json(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path, own_dsn: str, verb: str
) -> None:
    run = command_line(own_dsn, monkeypatch, capsys, tmp_path)
    file = tmp_path / "schedules.yaml"
    file.write_text("version: 1\njobs: {x: {handler: gc.collect}}\n")
    assert events(run("sync", "--log-format", "json").err) == ["sync.applied"]
    file.write_text("version: 1\njobs: {x: {hanlder: gc.collect}, y: {handler: gc.colect}}\n")

    result = run(verb, "--log-format", "json")

    assert result.code == 1
    assert set(events(result.err)) >= {"jobs.left_out"}
    if verb != "work":
        messages = [json.loads(line).get("message", "") for line in result.err.splitlines()]
        assert any('Did you mean "handler"?' in message for message in messages)


def test_output_of_handlers_is_json(tmp_path: Path, own_dsn: str) -> None:
    handler = "import sys\ndef run():\n    print('one\\ntw\\x1bo')\n    print('last', end='', file=sys.stderr)\n"
    (tmp_path / "printing.py").write_text(handler)
    (tmp_path / "schedules.yaml").write_text("version: 1\njobs: {x: {handler: printing.run}}\n")
    for words in (("sync",), ("enqueue", "x")):
        assert yamlsched(*words, "--dsn", own_dsn, cwd=tmp_path).returncode == 0

    done = yamlsched("tick", "--dsn", own_dsn, "--log-format", "json", cwd=tmp_path)

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    printed = [line for line in lines if line["event"] == "run.output"]
    assert [line["line"] for line in printed] == ["one", "tw\x1bo", "last"]
    assert all((line["job"], line["run"]) == ("x", 1) for line in printed)
    assert "attempt.succeeded" in [line["event"] for line in lines]


def test_numbers_are_numbers_in_json() -> None:
    fields = {
        "attempt": log.NumberOf(1, 10),
        "took": timedelta(seconds=1.4),
        "grace": timedelta(minutes=2),
        "rate": 0.5,
        "next": AT,
        "unknown": None,
        "nan": float("nan"),
    }
    line = json.loads(
        log.format_line("info", "a.b", fields, AT, as_json=True), parse_constant=pytest.fail
    )
    assert line == {
        "at": "2026-01-14T02:00:00Z",
        "level": "info",
        "event": "a.b",
        "attempt": 1,
        "max_attempts": 10,
        "took": 1.4,
        "grace": 120.0,
        "rate": 0.5,
        "next": "2026-01-14T02:00:00Z",
        "nan": "nan",
    }
    text = log.format_line("info", "a.b", fields, AT)
    assert text.endswith(
        "a.b attempt=1/10 took=1.4s grace=2m rate=0.5 next=2026-01-14T02:00:00Z nan=nan"
    )


def logged_events() -> dict[str, tuple[set[str], set[str]]]:
    """Return the levels and the names of fields of each event, from the calls in the source."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for path in (ROOT / "yamlsched").rglob("*.py"):
        source = path.read_text()
        if not re.search(r"\b(?:log|event_log)\.\w+\(", source):
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(
                    ast.Attribute(ast.Name("log" | "event_log"), function), arguments, keywords
                ):
                    values = [
                        argument.value
                        for argument in arguments
                        if isinstance(argument, ast.Constant)
                    ]
                    level = function if function in log.LEVELS else values.pop(0) if values else ""
                    if level in log.LEVELS and values and re.fullmatch(r"\w+\.\w+", str(values[0])):
                        levels, fields = found.setdefault(values[0], (set(), set()))
                        levels.add(level)
                        fields |= {keyword.arg for keyword in keywords if keyword.arg} - {"as_json"}
    return found


def test_every_event_is_documented_and_every_documented_event_exists() -> None:
    rows = re.findall(
        r"^\| `(\w+\.\w+)` \| ([\w, ]+) \|(.*)\|$", (ROOT / "docs" / "cli.md").read_text(), re.M
    )
    documented = {
        event: (set(levels.split(", ")), set(re.findall(r"`(\w+)`", fields)))
        for event, levels, fields in rows
    }
    logged = logged_events()

    assert set(documented) == set(logged)
    for event, (levels, fields) in logged.items():
        assert documented[event][0] == levels, event
        assert fields <= documented[event][1], event


@pytest.mark.parametrize(
    "words, variable, is_json",
    [
        (["runs", "--bogus"], "json", True),
        (["--log-format", "text", "runs", "--bogus"], "json", False),
        (["--log-format", "json", "runs", "--bogus"], "text", True),
        (["runs", "--bogus"], "", False),
    ],
)
def test_the_variable_sets_the_format_for_every_verb(
    words: list[str], variable: str, is_json: bool
) -> None:
    done = yamlsched(*words, YAMLSCHED_LOG_FORMAT=variable)
    assert done.returncode == 2
    assert (done.stderr[:1] == "{") is is_json
    if is_json:
        assert events(done.stderr) == ["command.failed"]
