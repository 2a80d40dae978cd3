"""The service: flows that neither parse nor print, with results that are values."""

from __future__ import annotations

import ast
import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

import yamlsched.service
from yamlsched.cli import cli
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.monitors import outbox
from yamlsched.service.loop import FollowedFile, SyncTask
from yamlsched.service.steps import Target, WorkOptions
from yamlsched.service.sync import sync
from yamlsched.service.tick import tick
from yamlsched.service.work import work

YEARLY = "0 0 1 1 *"
LONG_AGO = datetime(2026, 1, 14, 2, 0, 59, tzinfo=UTC)


@pytest.fixture
def target(dsn: str, tmp_path: Path) -> Target:
    (tmp_path / "jobs.py").write_text("def run(): ...\n")
    return Target(file=tmp_path / "schedules.yaml", database=lambda: contextlib.nullcontext(dsn))


def write(target: Target, **jobs: dict[str, Any]) -> None:
    target.file.write_text(
        json.dumps(
            {"version": 1, "jobs": {name: {"handler": "jobs.run"} | jobs[name] for name in jobs}}
        )
    )


def test_the_service_neither_prints_nor_reads_the_command_line() -> None:
    folder = Path(yamlsched.service.__file__).parent
    for file in folder.glob("*.py"):
        tree = ast.parse(file.read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imports = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

        assert not {"print", "input"} & names, file.name
        assert not {"sys", "click"} & (imports | modules), file.name


def test_a_sync_returns_what_it_changed(target: Target) -> None:
    write(target, yearly={"cron": YEARLY})

    result = sync(target)

    assert result.changes is not None
    assert (result.changes.added, result.messages, result.has_findings) == (("yearly",), [], False)


def test_a_tick_returns_its_messages_and_reports_them_at_once(
    target: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    write(target, yearly={"cron": YEARLY})
    assert tick(target, WorkOptions(), print).has_findings is False
    write(target, yearly={"cron": "61 0 1 1 *"})
    capfd.readouterr()
    reported: list[str] = []

    result = tick(target, WorkOptions(), reported.extend)

    assert result.has_findings
    assert result.messages == reported
    assert "minute 61" in result.messages[0]
    assert capfd.readouterr().out == ""


def test_work_on_a_database_without_the_file_is_refused(target: Target) -> None:
    write(target, yearly={"cron": YEARLY})

    with pytest.raises(Refused, match='run "yamlsched sync" first'):
        work(target, WorkOptions(), print)


def test_a_loop_whose_file_is_gone_syncs_at_the_next_minute_of_the_database(
    target: Target, dsn: str, db: psycopg.Connection[Any]
) -> None:
    # given a loop that started at second 59, whose file has disappeared since
    task = SyncTask(
        target, dsn, "default", print, FollowedFile(None, {}, frozenset()), LONG_AGO, set()
    )
    assert not target.file.exists()

    update = task._sync()

    now = db.execute("select clock_timestamp() as now").fetchone().now  # type: ignore[union-attr]
    assert now - timedelta(minutes=1) < update.now <= now
    assert update.result.has_findings
    assert "the jobs of the last readable file are run" in update.result.messages[0]


def test_a_heartbeat_reports_a_tick_that_could_not_start(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[object, ...]] = []
    monkeypatch.setenv("YAMLSCHED_HEARTBEAT_URL", "http://localhost:1/")
    monkeypatch.setattr(outbox, "report_tick", lambda *given: sent.append(given))

    with pytest.raises(EnvironmentFailed, match="cannot be read"):
        tick(target, WorkOptions(), print)

    assert sent == [(None, None, False, set())]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--grace", "soon"), "'--grace': "),
        (("--max-time", "55"), "'--max-time': "),
        (("--max-runs", "0"), "0 is not in the range"),
    ],
)
def test_an_invalid_limit_is_a_usage_error_before_anything_is_done(
    tmp_path: Path, option: tuple[str, str], message: str
) -> None:
    result = CliRunner().invoke(
        cli, ["tick", "--file", str(tmp_path / "missing.yaml"), "--dsn", "host=/nowhere", *option]
    )

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_target_whose_tables_are_missing_is_migrated_only_if_it_may_be(
    target: Target, empty_dsn: str
) -> None:
    write(target, yearly={"cron": YEARLY})
    empty = replace(target, database=lambda: contextlib.nullcontext(empty_dsn))
    with pytest.raises(EnvironmentFailed, match='run "yamlsched migrate"'):
        tick(empty, WorkOptions(), print)

    assert not tick(replace(empty, may_migrate=True), WorkOptions(), print).has_findings


@pytest.mark.parametrize(
    "options, has_log", [((), True), (("-q",), False), (("--log-format", "json"), True)]
)
def test_the_verb_sync_logs_as_its_options_say(
    target: Target, dsn: str, options: tuple[str, ...], has_log: bool
) -> None:
    write(target, yearly={"cron": YEARLY})

    arguments = ["sync", "--file", str(target.file), "--dsn", dsn, *options]
    ended = CliRunner().invoke(cli, arguments, standalone_mode=False)

    assert ended.return_value == 0
    assert ("sync.applied" in ended.stderr) is has_log
    assert ended.stderr.startswith("{") is ("json" in options)


# -- what a worker reads of a file in use

AMBIGUOUS = """version: 1
x-pad: {pad}
jobs:
  a: {{command: [/bin/true], payload: {{l: [x {quote}y, {quote} z]}}}}
  b: {{handler: jobs.evil}}
  c: x {quote} ]}}}}
  b: {{handler: jobs.good}}
"""


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_worker_calls_the_handler_that_the_whole_file_defines(
    target: Target, db: psycopg.Connection[Any], quote: str
) -> None:
    # given a large file in use, in which a quote opens a string that hides an entry
    (target.file.with_name("jobs.py")).write_text(
        "def good(): return 'good'\ndef evil(): return 'evil'\n"
    )
    target.file.write_text(AMBIGUOUS.format(pad="p" * 9_000, quote=quote))
    sync(target)

    # when a tick executes a run of the job
    db.execute("select yamlsched.enqueue('b')")
    db.commit()
    tick(target, WorkOptions(concurrency=1), lambda messages: None)

    # then it is the handler that validate, diff and show name
    [row] = db.execute("select status, result from yamlsched.job_runs").fetchall()
    assert tuple(row) == ("succeeded", "good")
