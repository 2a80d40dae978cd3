"""Edits as verbs show them: log, show, why, status, doctor, on a real repository."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.command_line import Cli, command_line
from support.schedules import HOUR, MINUTE, a_file, at, sync_by_hand
from yamlsched.sync import revision

NOON = at("2026-01-14 12:00")
FIRST = """version: 1
jobs:
  backup:
    cron: "0 2 * * *"
    command: [/bin/true]
    timeout: 30m
  report:
    command: [/bin/true]
"""
Edit = Callable[..., str]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    monkeypatch.setattr(revision, "MAX_GIT_SECONDS", 120.0)
    return command_line(dsn, monkeypatch, capsys, tmp_path)


@pytest.fixture
def edit(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """A function that writes schedules.yaml, commits it as Maria, and syncs; it returns the commit."""
    for name, value in {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("config", "user.name", "Maria Muster")
    git("config", "user.email", "maria@example.org")

    def edited(content: str, subject: str = "", sign: bool = True) -> str:
        (tmp_path / "schedules.yaml").write_text(content)
        if sign:
            git("add", "schedules.yaml")
            git("commit", "-q", "-m", subject)
        assert cli("sync", "-q").code == 0
        return git("rev-parse", "HEAD")

    return edited


def without_times(text: str) -> str:
    """Return an output with what differs from run to run replaced."""
    text = re.sub(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z", "TIME", text)
    text = re.sub(r"by \S+:\S*/schedules.yaml", "by HOST:FILE", text)
    return re.sub(r"hash [0-9a-f]{8}", "hash HASH", text)


def test_log_lists_the_edits_like_git_log(cli: Cli, edit: Edit) -> None:
    assert cli("log") == (0, "", "no edits yet: yamlsched sync applies schedules.yaml\n")
    first = edit(FIRST, "The first schedule")
    second = edit(
        FIRST.replace("30m", "1h30m").replace("report:", "weekly_report:")
        + "retention: {dead: 30d}\n",
        "Raise the timeout of backup",
    )
    edit(FIRST.replace("30m", "5m"), sign=False)

    shown = f"""\
commit {second}-dirty (the file differs from this commit)
Applied:  TIME by HOST:FILE, hash HASH

    changed   backup
    retired   weekly_report
    returned  report
    file      retention.dead

commit {second}
Author:   Maria Muster
Applied:  TIME by HOST:FILE, hash HASH

    Raise the timeout of backup

    added     weekly_report
    changed   backup
    retired   report
    file      retention.dead

commit {first}
Author:   Maria Muster
Applied:  TIME by HOST:FILE, hash HASH

    The first schedule

    added     backup, report
"""
    assert without_times(cli("log").out) == shown
    patches = f"""\
commit {second}-dirty (the file differs from this commit)
Applied:  TIME by HOST:FILE, hash HASH

    the file
        retention.dead  30d -> 90d
    ~ backup
        timeout  1h30m -> 5m
    ~ report (returned)
    - weekly_report

commit {second}
Author:   Maria Muster
Applied:  TIME by HOST:FILE, hash HASH

    Raise the timeout of backup

    the file
        retention.dead  90d -> 30d
    ~ backup
        timeout  30m -> 1h30m
    - report
    + weekly_report
        command  [/bin/true]
"""
    assert without_times(cli("log", "-p", "--limit", 2).out) == patches
    lines = [
        re.split("  +", line) for line in without_times(cli("log", "--oneline").out).splitlines()
    ]
    assert lines == [
        ["COMMIT", "APPLIED", "AUTHOR", "JOBS", "SUBJECT"],
        [f"{second[:8]}-dirty", "TIME", "-", "1 job changed, 1 retired, 1 returned"],
        [
            second[:8],
            "TIME",
            "Maria Muster",
            "1 job added, 1 changed, 1 retired",
            "Raise the timeout of backup",
        ],
        [first[:8], "TIME", "Maria Muster", "2 jobs added", "The first schedule"],
    ]


def test_log_of_a_job_shows_how_it_was_changed(cli: Cli, edit: Edit) -> None:
    edit(FIRST, "The first schedule")
    edit(FIRST.replace("30m", "1h"), "Raise the timeout")
    edit("version: 1\njobs: {}\n", "No jobs")

    found = json.loads(cli("log", "backup", "--format", "json").out)
    changes = [
        (one["subject"], one["changes"][0]["change"], one["changes"][0]["after"])
        for one in found["edits"]
    ]
    assert changes == [
        ("No jobs", "retired", None),
        ("Raise the timeout", "changed", {"timeout": "1h"}),
        (
            "The first schedule",
            "added",
            {"cron": "0 2 * * *", "command": ["/bin/true"], "timeout": "30m"},
        ),
    ]
    assert "    ~ backup\n        timeout  30m -> 1h\n" in cli("log", "backup").out
    assert "Raise the timeout" not in cli("log", "report").out

    unknown = cli("log", "bakcup")
    assert (unknown.code, unknown.out) == (1, "")
    assert 'Did you mean "backup"?' in unknown.err


def test_log_has_pages_and_a_start(cli: Cli, db: psycopg.Connection[Any]) -> None:
    for nth in range(5):
        sync_by_hand(db, a_file(x={"timeout": f"{nth + 1}m"}), NOON + nth * HOUR)

    def hours(*options: object) -> list[int]:
        return [
            int(line.split("T1")[1][0]) - 2
            for line in cli("log", "--oneline", *options).out.splitlines()[1:]
        ]

    assert hours() == [4, 3, 2, 1, 0]
    assert hours("--since", "2026-01-14T15:00Z") == [4, 3]
    assert hours("--limit", 2) == [4, 3]
    more = cli("log", "--limit", 2, "--oneline").err
    assert re.fullmatch(r"more: pass --before [0-9]+\n", more)
    last = more.split()[-1]
    assert hours("--limit", 2, "--before", last) == [2, 1]
    assert json.loads(cli("log", "--limit", 2, "--format", "json").out)["next_before"] == int(last)
    assert json.loads(cli("log", "--format", "json").out)["next_before"] is None
    assert cli("log", "--since", "2026-01-14T17:00Z").err == "no edits match\n"
    for wrong in (("--limit", 0), ("--limit", 10_001), ("--before", 0), ("--since", "someday")):
        assert cli("log", *wrong).code == 2


def test_an_edit_of_many_jobs_is_short(cli: Cli, db: psycopg.Connection[Any]) -> None:
    jobs = {f"job_{nth:02}": {"timeout": f"{nth + 1}m"} for nth in range(60)}
    sync_by_hand(db, a_file(**jobs), NOON)
    sync_by_hand(db, a_file(**jobs, top="defaults: {max_attempts: 3}"), NOON + MINUTE)

    [changed, added] = cli("log").out.split("\n\nfile ")
    names = ", ".join(sorted(jobs)[:10])
    assert f"    changed   {names} and 50 more\n" in changed + "\n"
    [changed, added] = cli("log", "-p").out.split("\n\nfile ")
    assert f"    ~ {names} and 50 more\n        max_attempts  5 -> 3" in changed
    assert added.count("    + job_") == 50
    assert added.endswith("    and 10 more changes: --format json lists them\n")
    document = json.loads(cli("log", "-p", "--format", "json").out)
    assert [len(one["changes"]) for one in document["edits"]] == [1, 60]
    assert len(document["edits"][0]["changes"][0]["first"]) == 60


def test_what_hosts_and_authors_write_does_not_control_the_terminal(
    cli: Cli, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YAMLSCHED_REVISION", "::error::x")
    monkeypatch.setenv("YAMLSCHED_AUTHOR", "##[group]\x1b[2J\nBob")
    name = "a\x1b[31m\n::error::b"
    sync_by_hand(db, a_file("web\x1b]0;x\x07", x={"payload": {name: "\x1b[0m"}}), NOON)
    sync_by_hand(db, a_file("web", x={"payload": {name: 2}}), NOON + MINUTE)

    for options in (
        (),
        ("-p",),
        ("--oneline",),
        ("x",),
        ("--format", "json"),
        ("-p", "--format", "json"),
    ):
        out = cli("log", *options).out
        assert all(line.isprintable() for line in out.splitlines())
        assert not any(re.match(r"\s*::|.*##\[", line) for line in out.splitlines())


def test_show_names_the_commit_in_use_when_the_run_was_created(cli: Cli, edit: Edit) -> None:
    first = edit(FIRST, "The first schedule")
    assert cli("enqueue", "report").code == 0
    assert cli("enqueue", "backup").code == 0
    second = edit(FIRST.replace("30m", "1h"), "Raise the timeout")
    assert cli("enqueue", "report").code == 0

    runs = json.loads(cli("runs", "--format", "json").out)["runs"]
    [third, _, oldest] = [cli("show", run["id"]).out for run in runs]

    by = f'commit {first[:8]} by Maria Muster: "The first schedule" \\(applied '
    assert re.search(f"\nfile +{by}[^,]*, which changed this job\n", oldest)
    assert "job edited" not in oldest
    assert re.search(
        f'\nfile +commit {second[:8]} by Maria Muster: "Raise the timeout" \\(applied', third
    )
    assert re.search(f"\njob edited +{by}", third)
    document = json.loads(cli("show", runs[0]["id"], "--format", "json").out)
    assert (document["edits"]["file"]["commit"], document["edits"]["job"]["commit"]) == (
        second,
        first,
    )


def test_why_and_status_and_doctor_name_the_commit(cli: Cli, edit: Edit) -> None:
    commit = edit(FIRST, "The first schedule")
    by = f'commit {commit[:8]} by Maria Muster: "The first schedule"'

    assert by in cli("status").out
    assert json.loads(cli("status", "--format", "json").out)["file_in_use"]["commit"] == commit
    assert f"ok    commit      {commit[:8]} by Maria Muster" in cli("doctor").out

    created = cli("backfill", "backup", "--from", "2026-01-14", "--before-first")
    assert created.code == 0, created.err
    told = cli("why", "backup", "--at", "2026-01-14T02:00Z").out
    assert f"defined by {by} (applied" in told
    document = json.loads(cli("why", "backup", "--at", "2026-01-14T02:00Z", "--format", "json").out)
    assert document["edits"]["file"]["commit"] == commit


def test_doctor_says_what_to_do_about_a_repository_that_git_does_not_read(
    cli: Cli, edit: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(FIRST, "The first schedule")
    (tmp_path / "schedules.yaml").write_text(FIRST + "# more\n")
    assert re.search(
        "ok +commit +[0-9a-f]{8}-dirty: the file has changes that are not committed",
        cli("doctor").out,
    )

    monkeypatch.setenv("PATH", str(tmp_path))
    out = cli("doctor").out
    assert re.search("warn +commit +edits are recorded without commit and author", out)
    assert "git is not installed: install git, or set YAMLSCHED_REVISION" in " ".join(out.split())
    result = cli("sync")
    assert result.code == 0
    assert "revision.unknown" in result.err
    assert (
        json.loads(cli("log", "--limit", 1, "--format", "json").out)["edits"][0]["commit"] is None
    )


def test_a_run_without_an_edit_on_record_is_shown(cli: Cli, db: psycopg.Connection[Any]) -> None:
    sync_by_hand(db, a_file(x={"timeout": "1m"}), NOON)
    run = cli("enqueue", "x", "--namespace", "default")
    assert run.code == 0
    db.execute("delete from yamlsched.edits")

    out = cli("show", json.loads(cli("runs", "--format", "json").out)["runs"][0]["id"])
    assert (out.code, "\nfile" in out.out) == (0, False)
    assert cli("status").code == 0
