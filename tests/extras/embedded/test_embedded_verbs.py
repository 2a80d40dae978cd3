"""``db``: its verbs print the state, and exit with the code of what went wrong."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from support.embedded_database import answer, pid_of_server
from yamlsched.errors import Refused

pytestmark = pytest.mark.story


def test_start_status_dsn_and_stop_print_the_state(verb, project):
    assert verb("start").stdout.startswith("running, pid ")

    status = json.loads(verb("status", "--format", "json").stdout)
    assert (status["format_version"], status["running"], status["kept"], status["users"]) == (
        1,
        True,
        True,
        [],
    )
    assert status["pid"] == pid_of_server(project)
    assert answer(verb("dsn").stdout.strip(), "select 1") == 1
    text = verb("status").stdout
    assert f"state    running, pid {status['pid']}\n" in text
    assert f"data     {project.parent}/.yamlsched/postgres/data, " in text

    assert verb("stop").stdout == "stopped\n"
    assert verb("stop").stdout == "not running\n"
    assert "not running" in verb("dsn").stderr


def test_psql_gets_all_its_arguments_and_its_failures_are_exit_1(verb):
    done = verb("psql", "-v", "number=42", "-qAt", "-c", "select 40 + 2")
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert verb("psql", "-c", "select no_such_column").returncode == 1


def test_dsn_before_the_first_use_is_refused_and_status_is_not(empty):
    from yamlsched.cli import cli

    status = CliRunner().invoke(cli, ["--file", str(empty), "db", "status"], standalone_mode=False)
    assert "not created" in status.output
    refused = CliRunner().invoke(cli, ["--file", str(empty), "db", "dsn"], standalone_mode=False)
    assert isinstance(refused.exception, Refused)


def test_db_verbs_do_not_use_a_configured_dsn_and_report_this(verb, project):
    done = verb("status", "--dsn", "postgresql://production/db")
    assert done.returncode == 0
    assert "`db` controls the embedded database" in done.stderr
