"""--namespace and YAMLSCHED_NAMESPACE: one file for many hosts, and a namespace for each of them."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support import schedules
from support.command_line import Cli, command_line
from support.rows import a_job, a_place, a_run
from support.schedules import MINUTE, a_bad_file, a_file, at, runs, sync_by_hand
from yamlsched.schedule.include import patterns
from yamlsched.sync.files import ScheduleFile, SyncResult
from yamlsched.sync.in_use import Verdict

Db = psycopg.Connection[Any]
NOON = at("2026-01-14 12:00")
JOB = {"cron": "* * * * *"}
ENVIRONMENTS = "environments: {staging: {}, production: {}}"
SCHEDULE = """\
version: 1
jobs:
  rotate: {handler: rotation.rotate, cron: "0 3 * * *"}
"""


def on(host: str, namespace: str | None = None, **more: Any) -> ScheduleFile:
    """Build the file that all hosts have, as it is on a host."""
    file = a_file(host, x=JOB, **more)
    return replace(file, namespace_override=namespace)


def tick(db: Db, file: ScheduleFile, minute: int = 0) -> SyncResult:
    return schedules.tick(db, file, NOON + minute * MINUTE)


def by_hand(db: Db, file: ScheduleFile, minute: int) -> SyncResult:
    return sync_by_hand(db, file, NOON + minute * MINUTE)


def namespaces(db: Db) -> list[str]:
    rows = db.execute(
        "select distinct namespace from yamlsched.job_definitions order by 1"
    ).fetchall()
    return [row[0] for row in rows]


# -- what a tick does --------------------------------------------------------------------------------------------------


def test_hosts_with_one_file_have_jobs_of_their_own(db: Db) -> None:
    for minute in range(3):
        for host in ("web1", "web2"):
            assert tick(db, on(host, host), minute).has_findings is False

    assert namespaces(db) == ["web1", "web2"]
    assert len(runs(db)) == 2  # one of each: the second waits for the first


@pytest.mark.parametrize("other", [None, "web2"])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_tick_whose_place_counts_in_a_namespace_that_an_option_names_does_nothing_in_another(
    db: Db, other: str | None, is_known: bool
) -> None:
    # given a place that ticks for its namespace, and another one that the file was applied to, or not
    tick(db, on("web1", "web1"))
    if is_known:
        tick(db, on("else", other))
    before = namespaces(db)

    # when it ticks without the option, or with another name
    for minute in (1, 2):
        result = tick(db, on("web1", other), minute)

    # then nothing is scheduled or claimed for either namespace, and the message says why
    assert (result.verdict, result.may_claim, result.has_findings) == (
        Verdict.OTHER_NAMESPACE,
        False,
        True,
    )
    assert f'for namespace "web1", and now for "{other or "default"}"' in result.messages[0]
    assert (runs(db), namespaces(db)) == ([], before)

    # and the next tick of its own namespace continues
    result = tick(db, on("web1", "web1"), 3)
    assert (result.may_claim, result.has_findings, len(runs(db))) == (True, False, 1)


def test_a_place_that_has_stopped_may_start_in_another_namespace(db: Db) -> None:
    tick(db, on("web1", "web1"))

    assert tick(db, on("web1", "web2"), 5).verdict is Verdict.APPLY


@pytest.mark.parametrize("other", [None, "web2"])
def test_an_option_that_is_lost_is_refused_for_as_long_as_the_place_ticks(
    db: Db, other: str | None
) -> None:
    tick(db, on("else", other))
    tick(db, on("web1", "web1"))

    for minute in range(1, 8):  # a place counts for two ticks after its last
        assert tick(db, on("web1", other), minute).verdict is Verdict.OTHER_NAMESPACE

    assert namespaces(db) == sorted({other or "default", "web1"})


def test_another_file_of_the_host_may_have_its_own_namespace(db: Db) -> None:
    tick(db, on("web1", "web1"))

    assert tick(db, on("web1", path="/other/schedules.yaml"), 1).verdict is Verdict.APPLY


def test_a_tick_that_is_refused_lets_its_own_place_count_and_no_other(db: Db) -> None:
    tick(db, on("web1"))
    for host, path in (("web1", "/app"), ("web1", "/other"), ("web2", "/app")):
        tick(db, on(host, "web1", path=f"{path}/schedules.yaml"))

    assert tick(db, on("web1", "web2"), 4).verdict is Verdict.OTHER_NAMESPACE

    counts = "select host, path, namespace from yamlsched.hosts where expected_until > %s"
    found = db.execute(counts, [NOON + 5 * MINUTE]).fetchall()
    assert [tuple(row) for row in found] == [("web1", "/app/schedules.yaml", "web1")]


def test_a_place_whose_namespace_was_the_files_may_get_an_option(db: Db) -> None:
    tick(db, on("web1"))

    assert tick(db, on("web1", "web1"), 1).verdict is Verdict.APPLY
    assert namespaces(db) == ["default", "web1"]


def test_two_crontab_lines_of_one_file_have_a_namespace_each_once_an_operator_has_decided(
    db: Db,
) -> None:
    tick(db, on("web1", "a"))
    assert tick(db, on("web1", "b"), 1).verdict is Verdict.OTHER_NAMESPACE

    by_hand(db, on("web1", "b"), 1)

    # then both tick, also after both have stopped for a night
    for minute in (2, 3, 1_000, 1_001):
        assert tick(db, on("web1", "a"), minute).has_findings is False
        assert tick(db, on("web1", "b"), minute).has_findings is False


def test_the_guard_holds_while_the_file_is_invalid(db: Db) -> None:
    tick(db, on("web1", "web1"))
    tick(db, on("else"))

    result = tick(db, a_bad_file("web1"), 2)

    assert (result.verdict, result.may_claim) == (Verdict.OTHER_NAMESPACE, False)
    assert tick(db, on("web1", "web1"), 3).may_claim


def test_an_invalid_file_is_reported_in_the_namespace_of_the_option(db: Db) -> None:
    tick(db, on("web1", "web1"))

    result = tick(db, replace(a_bad_file("web1"), namespace_override="web1"), 1)

    assert (result.namespace, result.may_claim, result.has_findings) == ("web1", True, True)
    row: Any = db.execute(
        "select namespace, cardinality(errors) from yamlsched.hosts where refused_at is not null"
    ).fetchone()
    assert row == ("web1", 1)
    assert len(runs(db)) == 1


def test_a_file_that_cannot_be_parsed_and_another_namespace_do_nothing(db: Db) -> None:
    tick(db, on("web1", "web1"))
    tick(db, on("else"))

    unreadable = ScheduleFile(b"version: [", "/app/schedules.yaml", "", "web1")

    assert tick(db, unreadable, 2).may_claim is False
    assert tick(db, replace(unreadable, namespace_override="web2"), 2).may_claim is False
    assert tick(db, replace(unreadable, namespace_override="web1"), 2).may_claim is True


def test_a_new_host_without_the_option_uses_the_namespace_of_the_file(db: Db) -> None:
    # given hosts with namespaces of their own, which have the same file
    for host in ("web1", "web2"):
        tick(db, on(host, host))

    # then a host without the option is in none of them
    assert tick(db, on("web3"), 1).namespace == "default"
    assert namespaces(db) == ["default", "web1", "web2"]


def test_sync_by_hand_with_the_option_moves_a_place_from_the_namespace_of_its_file(
    db: Db,
) -> None:
    tick(db, on("web1"))
    tick(db, on("else"))

    moved = by_hand(db, on("web1", "web1"), 1)

    assert (moved.namespace, moved.has_findings, len(moved.messages)) == ("web1", False, 1)
    assert 'now belongs to namespace "web1" (was "default")' in moved.messages[0]
    assert "Add --namespace web1 to its crontab line" in moved.messages[0]
    assert tick(db, on("web1"), 2).verdict is Verdict.OTHER_NAMESPACE
    assert tick(db, on("web1", "web1"), 3).has_findings is False

    # and back, without its option
    assert by_hand(db, on("web1", "default"), 4).has_findings is False
    for minute in (5, 6):
        assert tick(db, on("web1"), minute).has_findings is False


def test_sync_by_hand_of_an_invalid_file_moves_nothing(db: Db) -> None:
    tick(db, on("web1"))
    invalid = replace(a_bad_file("web1"), namespace_override="web1")

    result = by_hand(db, invalid, 1)

    assert (result.verdict, result.has_findings) == (None, True)
    assert tick(db, on("web1"), 2).may_claim


def test_sync_by_hand_of_an_invalid_file_does_not_move_a_place_from_an_option_to_another(
    db: Db,
) -> None:
    tick(db, on("web1", "web1"))

    by_hand(db, replace(a_bad_file("web1"), namespace_override="web2"), 1)

    assert tick(db, on("web1", "web2"), 2).verdict is Verdict.OTHER_NAMESPACE
    assert tick(db, on("web1", "web1"), 3).may_claim


def test_sync_by_hand_without_the_option_does_not_move_a_place(db: Db) -> None:
    tick(db, on("web1", "web1"))
    tick(db, on("else"))

    for file in (on("web1"), on("web1", top="x-note: edited")):
        refused = by_hand(db, file, 1)
        assert (refused.verdict, refused.has_findings, refused.runs) == (
            Verdict.OTHER_NAMESPACE,
            True,
            0,
        )
    assert tick(db, on("web1", "web1"), 2).may_claim


def test_the_option_may_name_the_namespace_of_the_file(db: Db) -> None:
    for minute in range(4):
        assert tick(db, on("web1", "default" if minute % 2 else None), minute).has_findings is False
    assert namespaces(db) == ["default"]


def test_an_edit_may_change_the_namespace_of_a_file_without_the_option(db: Db) -> None:
    tick(db, on("web1"))
    assert tick(db, on("web1", top="namespace: billing"), 1).has_findings is False
    assert tick(db, on("web1", "billing", top="namespace: sales"), 2).has_findings is False
    assert namespaces(db) == ["billing", "default"]


def test_the_environments_of_a_host_may_have_namespaces_of_their_own(db: Db) -> None:
    staging = on("web1", "web1_staging", environment="staging", top=ENVIRONMENTS)
    production = on("web1", "web1", environment="production", top=ENVIRONMENTS)
    tick(db, production)

    # the first time, an operator decides
    assert tick(db, staging, 1).verdict is Verdict.OTHER_NAMESPACE
    by_hand(db, staging, 2)

    for minute in (3, 4):
        assert tick(db, staging, minute).has_findings is False
        assert tick(db, production, minute).has_findings is False


def test_a_shell_without_the_variables_of_the_crontab_is_refused(db: Db) -> None:
    tick(db, on("web1", "web1", environment="production", top=ENVIRONMENTS))
    assert tick(db, on("web1", top=ENVIRONMENTS), 1).verdict is Verdict.OTHER_NAMESPACE


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> Cli:
    (tmp_path / "schedules.yaml").write_text(SCHEDULE)
    (tmp_path / "rotation.py").write_text("def rotate(generation=1): ...\n")
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def test_the_option_precedes_the_variable_which_precedes_the_file(
    cli: Cli, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YAMLSCHED_NAMESPACE", "web1")
    assert cli("tick").code == 0
    assert namespaces(db) == ["web1"]

    refused = cli("tick", "--namespace", "web2")
    assert refused.code == 1
    assert 'to move this host to "web2", run "yamlsched sync --namespace web2"' in refused.err
    for words in (("sync", "--namespace", "web2"), ("--namespace", "web2", "sync")):
        assert cli(*words).code == 0
    assert namespaces(db) == ["web1", "web2"]

    monkeypatch.delenv("YAMLSCHED_NAMESPACE")
    refused = cli("tick")
    assert refused.code == 1
    assert 'to move this host to "default", run "yamlsched sync --namespace default"' in refused.err
    assert namespaces(db) == ["web1", "web2"]
    for verb in (("work",), ("work", "--loop")):
        done = cli(*verb)
        assert (done.code, "is not applied: until now this host used it" in done.err) == (1, True)
        assert "sync first" not in done.err.replace('"', "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("moves", [True, False], ids=["a host that moves", "a new host"])
@pytest.mark.parametrize(
    ("answer", "words", "code", "found"),
    [("n", [], 1, ["web1"]), ("y", [], 0, ["tpyo", "web1"]), ("n", ["--yes"], 0, ["tpyo", "web1"])],
)
def test_on_a_terminal_sync_asks_before_an_option_creates_another_namespace(
    cli: Cli,
    db: Db,
    monkeypatch: pytest.MonkeyPatch,
    moves: bool,
    answer: str,
    words: list[str],
    code: int,
    found: Any,
) -> None:
    if moves:
        assert cli("tick", "--namespace", "web1").code == 0
    else:
        tick(db, on("web2", "web1"))
    monkeypatch.setattr(sys, "stdin", Terminal(answer + "\n"))

    done = cli("sync", "--namespace", "tpyo", *words)

    assert (done.code, sorted(namespaces(db))) == (code, found)
    assert ('create namespace "tpyo" beside web1? [y/N]: ' in done.err) is (words == [])


def test_on_a_terminal_sync_does_not_ask_about_a_namespace_that_exists_or_is_the_first(
    cli: Cli, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())

    assert cli("sync", "--namespace", "web1").code == 0
    assert cli("sync", "--namespace", "web1").code == 0
    tick(db, on("other", "web2"))
    assert cli("sync", "--namespace", "web2").code == 0


@pytest.mark.parametrize(
    ("host", "namespace"),
    [("web1", "web1"), ("Web-01.Example.com", "web_01_example_com"), ("h" * 63, "h" * 63)],
)
def test_a_host_name_is_a_namespace(cli: Cli, db: Db, host: str, namespace: str) -> None:
    assert cli("tick", "--namespace", host).code == 0
    assert namespaces(db) == [namespace]
    assert (
        json.loads(cli("status", "--namespace", host, "--format", "json").out)["namespace"]
        == namespace
    )


@pytest.mark.parametrize("host", ["", "h" * 64, "10-0-0-1", "-web", "web 1", "wéb", "web1\n"])
def test_a_name_that_cannot_be_a_namespace_is_a_usage_error_that_says_what_to_pass(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    done = cli("tick", "--namespace", host)
    assert (done.code, done.out) == (2, "")
    assert "is not a valid namespace" in done.err
    assert "host_$(hostname -s)" in done.err
    if host:  # an empty variable is one that is not set
        monkeypatch.setenv("YAMLSCHED_NAMESPACE", host)
        assert cli("tick").code == 2


def test_other_verbs_use_the_namespace_that_an_option_names_for_the_file_of_this_host(
    cli: Cli, db: Db
) -> None:
    assert cli("tick", "--namespace", "web1").code == 0
    tick(
        db,
        replace(
            ScheduleFile.read(Path("schedules.yaml"), None, find_patterns=patterns),
            host="web2",
            namespace_override="web2",
        ),
    )

    assert json.loads(cli("status", "--format", "json").out)["namespace"] == "web1"
    assert cli("enqueue", "rotate").code == 0
    assert json.loads(cli("runs", "--format", "json").out)["namespace"] == "web1"
    assert json.loads(cli("runs", "--format", "json", "--namespace", "web2").out)["runs"] == []


def test_a_payload_is_checked_in_the_namespace_of_the_option(cli: Cli) -> None:
    assert cli("tick", "--namespace", "web1").code == 0
    done = cli("enqueue", "rotate", "--payload", '{"generation": 2, "colour": "red"}')
    assert (done.code, "colour" in done.err) == (1, True)


def test_plan_shows_the_namespace_of_the_option_and_a_switch(cli: Cli) -> None:
    assert cli("tick", "--namespace", "web1").code == 0
    same, other = (
        json.loads(cli("plan", "--format", "json", *w).out) for w in (("--namespace", "web1"), ())
    )
    assert (same["namespace"], same["verdict"]) == ("web1", "current")
    assert (other["namespace"], other["verdict"]) == ("default", "other_namespace")
    assert cli("plan").code == 1


# -- status --all-namespaces -------------------------------------------------------------------------------------------


def sound(db: Db, namespace: str, **tick: Any) -> int:
    """Insert a namespace with one job, which a host of that name ticks for."""
    row = {"seen_at": datetime.now(UTC) - timedelta(seconds=30), **tick}
    a_place(db, namespace=namespace, host=namespace, is_named=True, **row)
    return a_job(db, "rotate", namespace=namespace, schedule=None, next_slot_at=None)


def test_status_shows_all_namespaces_the_worst_first(cli: Cli, db: Db) -> None:
    # given a healthy namespace, one with two dead runs of one job, one without ticks, one that nobody uses any more
    sound(db, "web1")
    failing = sound(db, "web2")
    for _ in range(2):
        a_run(db, failing, "dead")
    sound(db, "web3", seen_at=datetime.now(UTC) - timedelta(hours=7))
    retired = sound(db, "web4", seen_at=datetime.now(UTC) - timedelta(hours=7))
    db.execute("update yamlsched.job_definitions set retired_at = now() where id = %s", [retired])

    # when
    screen, check = cli("status", "--all-namespaces"), cli("status", "--all-namespaces", "--check")
    document = json.loads(cli("status", "--all-namespaces", "--format", "json").out)

    # then, also if the minute of the clock, by which ages are counted, turns meanwhile
    shown, checked = (
        each.out.replace("7h1m ago", "7h ago  ").replace("7h1m;", "7h;") for each in (screen, check)
    )
    assert re.sub(r"[34]\ds ago", "30s ago", shown) == ALL_NAMESPACES
    assert (screen.code, check.code) == (0, 1)
    assert checked.splitlines() == [
        "web3: no tick for 7h; the last came from web3",
        "web2: rotate: 2 runs died within 1h: OSError: no route to host",
    ]
    assert [one["namespace"] for one in document["namespaces"]] == ["web3", "web2", "web1"]
    assert (document["healthy"], document["unused"]) == (False, ["web4"])
    one = json.loads(cli("status", "--namespace", "web2", "--format", "json").out)
    assert document["namespaces"][1].keys() == one.keys() - {"format_version"}
    assert "unfinished runs and hosts: web4" in cli("status", "--all-namespaces", "--all").out


ALL_NAMESPACES = """\
NAMESPACE  STATE      JOBS  LAST TICK  BY    OPEN  DEAD IN A DAY
web3       1 problem  1     7h ago     web3  -     -
web2       1 problem  1     30s ago    web2  -     2
web1       ok         1     30s ago    web1  -     -
1 namespace without jobs, unfinished runs and hosts; --all lists them

Needs attention
  web3: no tick for 7h; the last came from web3
      yamlsched status --namespace web3
  web2: rotate: 2 runs died within 1h: OSError: no route to host
      yamlsched status --namespace web2
"""


def test_all_namespaces_are_well(cli: Cli, db: Db) -> None:
    assert (
        cli("status", "--all-namespaces").out
        == "no namespaces yet: run yamlsched sync to apply a schedules.yaml\n"
    )
    for number in range(31):
        sound(db, f"web{number}")

    assert cli("status", "--all-namespaces", "--check") == (0, "ok: 31 namespaces, 31 jobs\n", "")
    assert "and 31 more are healthy: --all lists them" in cli("status", "--all-namespaces").out
    assert "web30 " in cli("status", "--all-namespaces", "--all").out


def test_all_namespaces_are_shown_on_a_host_with_a_namespace_and_without_a_file(
    cli: Cli, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound(db, "web1")
    sound(db, "web2")
    Path("schedules.yaml").unlink()
    monkeypatch.setenv("YAMLSCHED_NAMESPACE", "web1")
    assert cli("status", "--all-namespaces", "--check").out == "ok: 2 namespaces, 2 jobs\n"


def test_a_host_that_is_gone_is_retired_by_an_empty_file(cli: Cli, db: Db, tmp_path: Path) -> None:
    # given a host that ticked, and was removed with a run that is due
    tick(db, on("web1", "web1"))
    db.execute(
        "update yamlsched.hosts set seen_at = now() - interval '1 day', expected_until = now()"
    )
    assert cli("status", "--all-namespaces", "--check").code == 1

    # when
    (tmp_path / "empty.yaml").write_text("version: 1\njobs: {}\n")
    assert cli("sync", "--namespace", "web1", "--file", "empty.yaml").code == 0
    assert cli("cancel", "--namespace", "web1", "--status", "queued", "--yes").code in (0, 1)
    db.execute(
        "update yamlsched.hosts set seen_at = now() - interval '1 day', expected_until = now()"
    )

    # then
    assert cli("status", "--all-namespaces", "--check") == (0, "ok: 0 namespaces, 0 jobs\n", "")


def test_the_option_confines_ids_of_runs_to_its_namespace(cli: Cli, db: Db) -> None:
    run = a_run(db, a_job(db, "x", namespace="other"), "queued")

    for verb in ("show", "retry", "cancel"):
        refused = cli(verb, str(run), "--namespace", "default")
        assert refused.code == 1
        assert f'there is no run {run} in namespace "default"' in refused.out + refused.err
    assert cli("show", str(run)).code == 0
    assert cli("show", str(run), "--namespace", "other").code == 0
    assert cli("cancel", str(run), "--namespace", "other").code == 0
