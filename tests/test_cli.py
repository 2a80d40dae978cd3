"""The command line as a whole: verbs, help, exit codes, and the imports of an idle tick."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from click.testing import CliRunner

from support.command_line import ROOT, command_line, yamlsched
from yamlsched.cli import GROUPS, Verbs, cli

VERBS = cli.list_commands(click.Context(cli))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_a_summary(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    context = click.Context(
        command,
        info_name=verb,
        parent=click.Context(cli, info_name="yamlsched", **cli.context_settings),
    )
    text = command.get_help(context)
    assert text.startswith(f"Usage: yamlsched {verb}")
    assert command.get_short_help_str()
    assert isinstance(cli, Verbs)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_documentation(verb: str) -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = re.compile(rf"yamlsched {verb}\b|`{verb}\b")
    assert any(named.search(page.read_text("utf-8")) for page in pages), (
        f"{verb} needs a row in the first table of docs/cli.md"
    )


def test_the_help_lists_every_verb_in_a_group_with_a_summary_that_is_not_cut() -> None:
    assert sorted(verb for group in GROUPS.values() for verb in group) == VERBS, (
        "name each verb once in GROUPS of yamlsched/cli/__init__.py"
    )

    text = yamlsched("-h").stdout

    assert "..." not in text.replace("[ARGS]...", "")
    assert "Other:" not in text
    for title, group in GROUPS.items():
        section = text.split(f"\n{title}:\n")[1].split("\n\n")[0]
        assert re.findall(r"(?m)^  (\S+)", section) == list(group)


@pytest.mark.parametrize(
    "words", [[verb] for verb in VERBS] + [["db", "start"], ["db", "identity"]], ids=" ".join
)
def test_h_is_help_on_every_verb(words: list[str]) -> None:
    done = CliRunner().invoke(cli, [*words, "-h"], standalone_mode=False)
    assert done.output.startswith("Usage: cli " + " ".join(words))


def test_a_verb_has_only_the_global_options_that_it_uses() -> None:
    def global_options(verb: str) -> list[str]:
        text = CliRunner().invoke(cli, [verb, "-h"], standalone_mode=False).output
        return re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", text.partition("\nGlobal options:\n")[2])

    assert global_options("tick") == [
        "--file",
        "--dsn",
        "--env",
        "--namespace",
        "--log-format",
        "--quiet",
        "--verbose",
    ]
    assert global_options("runs") == ["--file", "--dsn", "--namespace", "--format"]
    assert global_options("validate") == ["--file", "--env", "--format"]
    assert global_options("schema") == []
    assert yamlsched("runs", "--log-format", "json").returncode == 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["tikc"], 'no command "tikc". Did you mean "tick"?'),
        (["db", "strat"], 'no command "strat". Did you mean "start"?'),
        (["db", "x"], 'no command "x". See: yamlsched db --help'),
    ],
)
def test_a_misspelt_verb_is_a_usage_error_and_gets_a_suggestion(
    words: list[str], hint: str
) -> None:
    done = yamlsched(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr


def test_a_missing_file_exits_3_with_a_remedy(tmp_path: Path) -> None:
    done = yamlsched("tick", cwd=tmp_path)
    assert done.returncode == 3
    assert (
        "schedules.yaml cannot be read: No such file or directory; name the schedule with --file"
        in done.stderr
    )


def test_an_unreachable_database_exits_3_with_one_line_without_the_password(
    tmp_path: Path,
) -> None:
    done = yamlsched("tick", "--dsn", f"postgresql://u:hunter2@/x?host={tmp_path}")
    assert done.returncode == 3
    assert done.stderr.startswith("yamlsched: no connection to the database: ")
    assert done.stderr.count("\n") == 1
    assert "hunter2" not in done.stderr


def test_a_tick_without_tables_says_which_command_to_run(server: str) -> None:
    done = yamlsched("tick", "--dsn", server)
    assert done.returncode == 3
    assert (
        done.stderr
        == 'yamlsched: the database has no tables of yamlsched yet: run "yamlsched migrate"\n'
    )


def test_an_edited_migration_is_detected(own_dsn: str, db_of: Callable[[str], Any]) -> None:
    db_of(own_dsn).execute("update yamlsched.migrations set checksum = 'other' where version = 1")
    done = yamlsched("migrate", "--dsn", own_dsn)
    assert done.returncode == 3
    assert "migration 0001_schema was applied from a different file" in done.stderr


def test_the_printed_migrations_create_the_same_tables(empty_dsn: str) -> None:
    script = yamlsched("migrate", "--sql").stdout
    with psycopg.connect(empty_dsn) as connection:
        connection.execute(script.encode())
    done = yamlsched("migrate", "--dsn", empty_dsn)
    assert (done.returncode, done.stdout) == (0, "the tables are up to date\n")


def test_garbage_is_collected_while_a_verb_runs_but_not_among_imports_and_not_at_the_end() -> None:
    program = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(len(gc.get_objects()) < 1000))\n"
        "from yamlsched.__main__ import main; was_enabled = gc.isenabled()\n"
        "atexit.register(lambda: print(was_enabled, gc.isenabled(), gc.get_freeze_count() > 1000)); main()"
    )
    done = subprocess.run([sys.executable, "-c", program, "schema"], capture_output=True, text=True)

    assert done.stdout.splitlines()[-2:] == ["False True True", "True"], done


def test_a_verb_that_uses_no_database_takes_no_dsn_after_its_name_and_ignores_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = command_line("", monkeypatch, capsys, tmp_path)
    for verb in ("diff", "explain", "init", "next", "schema", "validate"):
        assert "--dsn" not in run(verb, "--help").out, verb
        assert run(verb, "--dsn", "x").code == 2, verb

    assert run("--dsn", "host=nowhere.invalid", "explain", "YS101").code == 0


def test_a_folder_without_a_schedule_gets_no_database(tmp_path: Path) -> None:
    done = yamlsched("status", cwd=tmp_path, YAMLSCHED_DSN="")
    assert (done.returncode, done.stdout) == (3, "")
    assert (
        "there is no schedules.yaml, and no embedded database beside it: change to the project's directory"
        in done.stderr
    )
    assert list(tmp_path.iterdir()) == []
