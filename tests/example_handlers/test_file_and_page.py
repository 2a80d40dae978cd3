"""schedules.yaml runs the example handlers, and docs/handlers.md shows them as they are."""

from __future__ import annotations

import importlib
import inspect
import json
import mailbox
import re
import shutil
import subprocess
import sys
from email.utils import parseaddr
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from handlers import reports
from support.rows import value
from yamlsched.testing import FakeRun

ROOT = Path(__file__).resolve().parents[2]
JOBS = yaml.safe_load((ROOT / "schedules.yaml").read_text())
DOCUMENT = (ROOT / "docs" / "handlers.md").read_text()


@pytest.mark.story
def test_the_examples_work_in_a_worker(own_dsn: str, tmp_path: Path):
    # given the project's file and handlers on a new database, and a weekly activity that is enqueued twice
    shutil.copytree(
        ROOT / "handlers", tmp_path / "handlers", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "schedules.yaml", tmp_path)

    def yamlsched(*arguments: str) -> None:
        command = [
            sys.executable,
            "-m",
            "yamlsched",
            "--dsn",
            own_dsn,
            "--file",
            str(tmp_path / "schedules.yaml"),
        ]
        subprocess.run([*command, *arguments], check=True, timeout=100, cwd=tmp_path)

    yamlsched("sync")
    for job in ("cleanup_nightly", "refresh_cache", "weekly_activity", "weekly_activity"):
        yamlsched("enqueue", job)

    # when the worker has drained the queue
    yamlsched("work")

    # then each active user has one mail, old rows and files are deleted, and every run succeeded
    with psycopg.connect(own_dsn) as connection:
        assert (
            value(connection, "select count(*) from yamlsched.job_runs where status <> 'succeeded'")
            == 0
        )
        assert (
            value(
                connection,
                "select count(*) from yamlsched.job_runs where job_type = 'send_weekly_report'",
            )
            == 8
        )
        assert value(connection, "select count(*) from app.sent_reports") == 8
        assert (
            value(
                connection,
                "select count(*) from app.sessions where expires_at < now() - interval '1 hour'",
            )
            == 0
        )
        users = {
            email for (email,) in connection.execute("select email from app.users where active")
        }
    mails = mailbox.Maildir(tmp_path / "var" / "mail", create=False)
    assert {parseaddr(message["To"])[1] for message in mails} == users
    assert len(mails) == 8
    assert json.loads((tmp_path / "var" / "cache" / "activity.json").read_text())["most_active"]
    assert [path.name for path in (tmp_path / "var" / "tmp").iterdir()] == ["upload-3.part"]


def callable_named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_file_is_valid_and_gets_no_advice():
    command = [sys.executable, "-m", "yamlsched", "validate", "--strict", "schedules.yaml"]
    found = subprocess.run(
        command, cwd=ROOT, timeout=60, capture_output=True, text=True, check=False
    )

    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", [name for name, job in JOBS["jobs"].items() if "handler" in job])
def test_the_payload_of_every_job_fits_its_handler(name: str):
    job = JOBS["jobs"][name]
    signature = inspect.signature(callable_named(job["handler"]))

    # other jobs get their payload when they are enqueued
    bind = signature.bind if "cron" in job else signature.bind_partial

    assert "run" in bind(run=None, **job.get("payload", {})).arguments


def test_every_hook_needs_no_payload():
    for name in JOBS["defaults"]["on_dead"]:
        handler = callable_named(JOBS["jobs"][name]["handler"])

        assert list(inspect.signature(handler).parameters) == ["run"]


def test_every_fan_out_fits_a_job_of_the_file(run: FakeRun):
    reports.weekly_activity(run)

    for job, payload, *_ in run.enqueued:
        inspect.signature(callable_named(JOBS["jobs"][job]["handler"])).bind(run=run, **payload)


def test_the_first_line_names_the_schema_for_editors():
    first = (ROOT / "schedules.yaml").read_text().splitlines()[0]

    assert first == "# yaml-language-server: $schema=yamlsched/schedule/schedules.schema.json"
    assert (ROOT / first.partition("=")[2]).is_file()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


PYTHON = blocks("python")
QUOTED = [block.split("\n", 1) for block in PYTHON if block.startswith("# handlers/")]
OWN = [block for block in PYTHON if not block.startswith("# handlers/")]


@pytest.mark.parametrize("place, code", QUOTED, ids=[place for place, _ in QUOTED])
def test_code_that_the_page_quotes_is_in_the_examples(place: str, code: str):
    assert code in (ROOT / place.removeprefix("# ")).read_text()


@pytest.mark.parametrize("code", OWN, ids=lambda code: re.findall(r"def (\w+)", code)[-1])
def test_other_code_of_the_page_runs(code: str):
    names: dict[str, Any] = {}
    exec(compile(code, "docs/handlers.md", "exec"), names)

    functions = [value for name, value in names.items() if inspect.isfunction(value)]
    assert functions
    for function in functions:
        if function.__name__.startswith("test_"):
            function()


def test_every_handler_that_the_page_names_exists():
    names = set(re.findall(r"`(handlers(?:\.\w+)+)`", DOCUMENT))

    assert len(names) > 5
    assert all(callable(callable_named(name)) for name in names)


def test_jobs_in_the_page_are_those_of_the_file():
    jobs = {
        name: job
        for block in blocks("yaml")
        for name, job in yaml.safe_load(block)["jobs"].items()
        if str(job["handler"]).startswith("handlers.")
    }
    assert jobs
    assert all(job.items() <= JOBS["jobs"][name].items() for name, job in jobs.items())


def test_the_sql_of_the_page_enqueues_once(db: psycopg.Connection[Any]):
    # given the job as a sync stores it
    db.execute(
        """
        insert into yamlsched.job_definitions (
            namespace, job_type, handler, timezone, max_attempts, backoff, timeout, lease, overlap, catchup,
            catchup_window, spread, enabled, effective_from)
        values ('default', 'charge_invoice', 'handlers.payment.charge_invoice', 'UTC', 5, '{}', '2m', '2m', 'wait',
            'latest', '1d', '0s', true, now())
        """
    )
    [statement] = blocks("sql")

    [first] = db.execute(statement.encode()).fetchall()
    [again] = db.execute(statement.encode()).fetchall()

    assert (first.created, again.created) == (True, False)
    assert first.run_id == again.run_id
