"""``yamlsched import``: for each kind, files as they are written in practice, with the exact result and report.

``python tests/extras/importing/test_import.py`` writes the expected files again; review the difference in git.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from yamlsched.cli import cli
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.importing import read, target, write
from yamlsched.extras.importing.calendar import (
    APSCHEDULER,
    DEBIAN,
    EPOCH,
    EVERY_MATCH,
    MINUTE,
    SYSTEMD,
    Clock,
    OnCalendar,
)
from yamlsched.extras.importing.expression import CRON_RULES, fields_of
from yamlsched.extras.importing.model import MAX_JOBS, MAX_NOTES, Imported, Origin
from yamlsched.schedule.checks import check_all
from yamlsched.schedule.load import load
from yamlsched.sync import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.timetable.zones import zone

IMPORTS = Path(__file__).parent / "imports"
CASES = sorted(folder.parent.name for folder in IMPORTS.glob("*/input"))
POLICIES = ("faithful", "advised")
START = datetime(2026, 11, 22, 5, tzinfo=UTC)
ZONE = "Europe/Berlin"
WITH_HANDLERS = ("apscheduler", "celery", "django_celery_beat")
MODULES = IMPORTS / "modules"


@dataclass(frozen=True)
class Output:
    """What an import prints."""

    text: str
    report: str


@cache
def import_case(case: str, policy: str) -> Output:
    files = sorted(path for path in (IMPORTS / case / "input").iterdir() if path.is_file())
    kind = case if case in ("crontab", "cron.d") else None  # the name of a crontab says nothing
    sources = [Origin(path.read_text(), path.name, ZONE, policy == "faithful") for path in files]
    found = read.read(sources, kind, None, START)
    return Output(write.as_file(found.jobs, ZONE), "\n".join(read.report(found, None, zone_remedy="")) + "\n")


def import_text(text: str, kind: str = "crontab", zone_name: str = "UTC", policy: str = "faithful") -> Imported:
    return read.read([Origin(text, "source", zone_name, policy == "faithful")], kind, None, START)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES)
def test_result_and_report_are_as_expected(case: str, policy: str) -> None:
    output = import_case(case, policy)

    assert output.text == (IMPORTS / case / f"{policy}.yaml").read_text()
    assert output.report == (IMPORTS / case / f"{policy}.txt").read_text()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES)
def test_the_result_is_valid_and_can_be_synced(
    case: str, policy: str, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(import_case(case, policy).text)
    # handlers are checked; the programs of commands do not exist here
    modules = (str(MODULES), str(IMPORTS / case / "input")) if case in WITH_HANDLERS else None

    loaded = load(file.read_bytes(), str(file), None)
    assert [one for one in check_all(loaded, file, modules, START) if one.severity == "error"] == []
    sync(db, ScheduleFile(file.read_bytes(), str(file), handler_path=modules))

    stored = {name for (name,) in db.execute("select job_type from yamlsched.job_definitions")}
    assert stored == set(loaded.entries) != set()


# -- crontabs ----------------------------------------------------------------------------------------------------------


def only_job(found: Imported) -> dict[str, Any]:
    [job] = found.jobs
    return dict(job.keys)


def messages(found: Imported) -> str:
    return "\n".join(read.report(found, None, zone_remedy=""))


@pytest.mark.parametrize(
    "line, command, stdin",
    [
        ("0 2 * * * date +\\%F", ["date", "+%F"], None),
        ("0 2 * * * cat%one%two", ["cat"], "one\ntwo\n"),
        ("0 2 * * * cat%one%", ["cat"], "one\n"),
        ("0 2 * * * cat%", ["cat"], None),
        ("0 2 * * * cat%100\\%", ["cat"], "100%\n"),
        ("0 2 * * * echo a\\\\%b", ["/bin/sh", "-c", "echo a\\"], "b\n"),
        ("0 2 * * * echo 'a\\\\b\\c'", ["/bin/sh", "-c", "echo 'a\\b\\c'"], None),
    ],
)
def test_percent_signs_are_read_as_by_cron(line: str, command: list[str], stdin: str | None) -> None:
    keys = only_job(import_text(line))

    assert (keys["command"], keys.get("stdin")) == (command, stdin)


@pytest.mark.parametrize(
    "command, expected",
    [
        ("/usr/bin/backup --all", ["/usr/bin/backup", "--all"]),
        ("pg_dump --file=a.dump app", ["pg_dump", "--file=a.dump", "app"]),
        ("a | b", ["/bin/sh", "-c", "a | b"]),
        ("A=1 program", ["/bin/sh", "-c", "A=1 program"]),
        (". /etc/profile", ["/bin/sh", "-c", ". /etc/profile"]),
        ("ls *.log", ["/bin/sh", "-c", "ls *.log"]),
        ("echo $HOME", ["/bin/sh", "-c", "echo $HOME"]),
    ],
)
def test_a_shell_runs_only_the_commands_that_need_one(command: str, expected: list[str]) -> None:
    assert only_job(import_text(f"0 2 * * * {command}"))["command"] == expected


def test_settings_apply_to_the_lines_below_them() -> None:
    text = (
        "0 1 * * * one\nA=1\nCRON_TZ=Asia/Tokyo\nSHELL=/bin/zsh\n0 1 * * * two\nA = '2 3'\nHOME=/srv\n0 1 * * * three\n"
    )
    first, second, third = (dict(job.keys) for job in import_text(text).jobs)

    assert (first["timezone"], first.get("env"), first["command"]) == ("UTC", None, ["one"])
    assert (second["timezone"], second["env"], second["command"]) == (
        "Asia/Tokyo",
        {"A": "1"},
        ["/bin/zsh", "-c", "two"],
    )
    assert (third["env"], third["cwd"]) == ({"A": "2 3", "HOME": "/srv"}, "/srv")


@pytest.mark.parametrize("last", ["", "B=2\n"])
def test_variables_are_those_of_each_line_however_many_lines_share_them(last: str) -> None:
    found = import_text(f"A=1\nPATH=/bin\n0 1 * * * one\n0 1 * * * two\n{last}0 1 * * * three\n")

    text = write.as_file(found.jobs, "UTC")
    jobs = load(text.encode(), "", None).jobs
    shared = {"A": "1", "PATH": "/bin"}
    assert [job.env for job in jobs.values()] == [shared, shared, {**shared, "B": "2"} if last else shared]


def test_tz_does_not_move_the_schedule() -> None:
    keys = only_job(import_text("TZ=Asia/Tokyo\n0 1 * * * one\n"))

    assert (keys["timezone"], keys["env"]) == ("UTC", {"TZ": "Asia/Tokyo"})


@pytest.mark.parametrize(
    "line, reason",
    [
        ("@reboot one", "@reboot is not supported"),
        ("@every_minute one", "is not an alias of cron"),
        ("0 0 * * * * one", "six or seven fields"),
        ("0 0 0 1 1 ? 2026 one", "six or seven fields"),
        ("0 0 1 * * MON-FRI one", "six or seven fields"),
        ("0 0 */2 * 1 one", "must match both"),
        ("0 22-2 * * * one", "is a reversed range"),
        ("0 0 * * mon-sun one", "is a reversed range"),
        ("0 0 ? * * one", 'the day of month "?" is not in 1-31'),
        ("0~59 * * * * one", "chooses a random time"),
        ("0 0 31 2 * one", "it never fires"),
        ("0 0 * * one", "it is not a line of a crontab"),
        ("0 0 * * * %stdin", "it has no command"),
        ("0 0 * * 8 one", 'the day of week "8" is not in 0-7'),
        ("5/0 0 * * * one", 'the minute\'s step "0" is not in 1-9999'),
    ],
)
def test_a_line_that_cannot_be_imported_is_reported_with_its_reason(line: str, reason: str) -> None:
    found = import_text(f"# comment\n{line}\n")

    assert found.jobs == []
    assert reason in messages(found)
    assert "source:2: left out: " in messages(found)


@pytest.mark.parametrize(
    "cron, written",
    [
        ("0 0 * * 5-5", "0 0 * * 5"),
        ("0 0 * * 1-7", "0 0 * * *"),
        ("*/90 * * * *", "0 * * * *"),
        ("0 0 */2 * *", "0 0 */2 * *"),
        ("0 0 1 * */2", "0 0 1 * */2"),
        ("0 0 1 * 1", "0 0 1 * 1"),
        ("0 0 1-7 * */1", "0 0 1-7 * *"),
        ("5-59/10 0 * * *", "5-59/10 0 * * *"),
        ("@MIDNIGHT", "@midnight"),
    ],
)
def test_a_spelling_that_yamlsched_rejects_or_reads_differently_is_written_differently(cron: str, written: str) -> None:
    if cron == "0 0 1 * */2":  # AND in Debian's cron, with no counterpart
        assert import_text(f"{cron} one").jobs == []
    else:
        assert only_job(import_text(f"{cron} one"))["cron"] == written


@pytest.mark.parametrize(
    "command, expected",
    [
        ("flock -n /tmp/x one --all", {"command": ["one", "--all"], "overlap": "skip"}),
        ("/bin/flock --nonblock /tmp/x -c 'a | b'", {"command": ["/bin/sh", "-c", "a | b"], "overlap": "skip"}),
        ("flock /tmp/x one", {"command": ["one"], "overlap": "wait"}),
        ("flock -xn /tmp/x one", {"command": ["one"], "overlap": "skip"}),
        ("flock -n /tmp/$USER one", {"command": ["/bin/sh", "-c", "flock -n /tmp/$USER one"]}),
        ("sleep $((RANDOM \\% 300)); one", {"command": ["one"], "spread": "5m"}),
        ("sleep $(shuf -i 0-9 -n 1)m && one", {"command": ["one"], "spread": "9m"}),
        ("perl -e 'sleep int(rand(43200))' && one", {"command": ["one"], "spread": "12h"}),
        ("cd /x && perl -e 'sleep int(rand(60))' && a", {"command": ["/bin/sh", "-c", "cd /x && a"], "spread": "1m"}),
        ("flock -n /tmp/x -c 'sleep $((RANDOM \\% 60)); a'", {"command": ["a"], "overlap": "skip", "spread": "1m"}),
        ("sleep 5; one", {"command": ["/bin/sh", "-c", "sleep 5; one"]}),
    ],
)  # fmt: skip
def test_advised_replaces_locks_and_random_sleeps_and_faithful_keeps_them(
    command: str, expected: dict[str, Any]
) -> None:
    advised = only_job(import_text(f"0 0 * * * {command}", policy="advised"))
    faithful = only_job(import_text(f"0 0 * * * {command}"))

    assert {key: value for key, value in advised.items() if key not in ("cron", "timezone")} == expected
    assert " ".join(faithful["command"]).endswith(command.replace("\\%", "%").removeprefix("'"))
    assert faithful["overlap"] == "allow"
    assert "spread" not in faithful


SHARED = """
1 1 * * * flock -n /tmp/x.lock one
2 1 * * * flock /tmp/x.lock two
# /tmp/y
3 1 * * * flock -n /tmp/y three
"""


def test_a_lock_that_several_lines_take_becomes_a_limit() -> None:
    advised, faithful = import_text(SHARED, policy="advised"), import_text(SHARED)

    assert [(job.keys["command"], job.keys["overlap"], job.keys.get("limit")) for job in advised.jobs] == [
        (["one"], "skip", "x_lock"),
        (["two"], "wait", "x_lock"),
        (["three"], "skip", None),
    ]
    assert load(write.as_file(advised.jobs, "UTC").encode(), "", None).limits == {"x_lock": 1}
    changed = "changed: flock /tmp/x.lock is replaced by limit: x_lock: runs wait for these jobs on all hosts"
    assert f"source:2: {changed} (flock -n skips), and for no other use of the lock" in messages(advised)
    assert f"source:3: {changed}, and for no other use of the lock" in messages(advised)

    assert [job.keys["command"][0] for job in faithful.jobs] == ["flock"] * 3
    does_this = "advice: flock: limit: x_lock does this on all hosts together"
    assert f"source:2: {does_this}, but waits where it skips; --policy advised writes it" in messages(faithful)
    assert f"source:3: {does_this}; --policy advised writes it" in messages(faithful)


@pytest.mark.parametrize(
    "other",
    [
        "4 1 * * * cd /srv && flock -n /tmp/x.lock four",
        "4 1 * * * flock -w 60 /tmp/x.lock four",
        "4 1 * * * flock -s /tmp/x.lock four",
        "4 1 * * * nice flock /tmp/x.lock four",
        "4 1 * * * flock /tmp/z flock /tmp/x.lock four",
        "4 1 * * * rm -f /tmp/x.lock",
        "LOCK=/tmp/x.lock",
        "4 1 * * * flock -n $HOME/x.lock four; rm '/tmp/x.lock'",
    ],
)
def test_a_lock_that_one_line_uses_in_another_way_is_kept(other: str) -> None:
    found = import_text(f"{SHARED}{other}\n", policy="advised")

    assert [job.keys["command"][0] for job in found.jobs][:3] == ["flock", "flock", "three"]
    assert not any("limit" in job.keys for job in found.jobs)
    kept = "source:2: advice: flock /tmp/x.lock is kept: other lines use the same lock, and not all in this way"
    assert kept in messages(found)


def test_locks_are_shared_by_all_files_of_an_import_and_limits_have_names_of_their_own() -> None:
    texts = {
        "crontab": "1 1 * * * flock /tmp/x one\n2 1 * * * flock /var/x two\n3 1 * * * flock /var/x three\n",
        "cron.d/app": "4 1 * * * root sleep $((RANDOM \\% 60)); flock -n /tmp/x four\n"
        "5 1 * * * app flock /tmp/z five\n",
    }
    into = load(b"version: 1\nlimits: {x: 3}\njobs: {}\n", "", None)
    sources = [Origin(text, name, "UTC", False) for name, text in texts.items()]
    found = read.read(sources, None, into, START)

    limits = {job.name: job.keys.get("limit") for job in found.jobs}
    assert limits == {"one": "x_2", "two": "x_3", "three": "x_3", "four": "x_2", "five": None}


@pytest.mark.parametrize(
    ("before", "limits"),
    [
        ("version: 1\n# the jobs\njobs:\n  a: {command: [a]}\n", {}),
        ("jobs:\n  a: {command: [a]}\nversion: 1", {}),
        ("---\n  version: 1\n  jobs:\n    a: {command: [a]}\n", {}),
        ("version: 1\r\nlimits: {}\r\njobs: {}\r\n", {}),
        ("version: 1\nlimits: {dwh: 2}  # of it\njobs:\n  a: {command: [a], limit: dwh}\n", {"dwh": 2}),
        ("version: 1\nlimits:\n  # of it\n  dwh: 2\n\njobs:\n  a: {command: [a], limit: dwh}\n", {"dwh": 2}),
        ("", {}),
    ],
)
def test_limits_are_added_to_those_of_the_file(before: str, limits: dict[str, int], tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_bytes(before.encode())

    done = run("-", "--policy", "advised", "--into", file, input=SHARED)

    assert done.return_value == 0, done.stderr
    after = load(file.read_bytes(), "", None)
    assert not after.has_errors
    assert after.limits == {**limits, "x_lock": 1}
    assert {name: job.limit for name, job in after.jobs.items() if name != "a"} == {
        "one": "x_lock", "two": "x_lock", "three": None
    }  # fmt: skip
    assert re.findall("# (?:the jobs|of it)", file.read_text()) == re.findall("# .*", before)


def test_limits_that_cannot_be_extended_as_text_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        text := "version: 1\nx-limits: &all {dwh: 2}\nlimits: *all\njobs:\n  a: {command: [a], limit: dwh}\n"
    )

    done = run("-", "--policy", "advised", "--into", file, input=SHARED)

    assert (done.return_value != 0, "cannot be extended as text" in str(done.exception)) == (True, True)
    assert file.read_text() == text


def test_a_spread_that_reaches_past_the_next_slot_is_limited() -> None:
    found = import_text("*/5 * * * * sleep $((RANDOM \\% 3600)); one", policy="advised")

    assert only_job(found)["spread"] == "5m"
    assert "the source delays longer" in messages(found)


def test_a_difference_of_fire_times_is_reported_with_its_instants() -> None:
    """Kubernetes fires twice in the repeated hour, and not in the skipped one."""
    found = import_text(
        "kind: CronJob\nmetadata: {name: x}\nspec: {schedule: '30 2 * * *', timeZone: Europe/Berlin, jobTemplate: "
        "{spec: {template: {spec: {containers: [{command: [x]}]}}}}}",
        "kubernetes",
    )

    expected = (
        "x fires at other times within 400 days: only there: 2027-10-31T01:30Z; only in yamlsched: 2027-03-28T01:00Z"
    )
    assert expected in messages(found)
    assert found.differing == 1


def test_an_alias_bomb_is_left_out() -> None:
    levels = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 12))
    found = import_text(f"x0: &x0 [a]\n{levels}kind: CronJob\n", "kubernetes")

    assert found.jobs == []
    assert "aliases and merge keys expand to more than" in messages(found)


@pytest.mark.parametrize("kind", ["celery", "apscheduler"])
def test_source_is_never_executed(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "executed"
    found = import_text(
        f"open({str(file)!r}, 'w')\nbeat_schedule = {{'x': {{'task': exit(), 'schedule': 60}}}}\n", kind
    )

    assert found.has_refusals
    assert not file.exists()


def test_the_line_that_starts_yamlsched_is_not_imported() -> None:
    line = "* * * * * cd /srv/app && out=$(.venv/bin/yamlsched tick 2>&1) || { code=$?; exit $code; }\n"

    found = import_text(f"YAMLSCHED_DSN=postgresql://x\n{line}")

    assert (found.jobs, found.has_refusals) == ([], False)
    assert "this line starts yamlsched" in messages(found)


def test_a_file_that_is_none_stops_after_some_thousand_messages() -> None:
    found = import_text("nothing of a crontab\n" * 50_000)

    assert messages(found).count("\n") <= MAX_NOTES + 1
    assert "the rest is not read" in messages(found)


def test_more_jobs_than_can_be_imported_at_once_are_left_out() -> None:
    found = import_text("0 0 * * * x\n" * (MAX_JOBS + 1))

    assert len(found.jobs) == MAX_JOBS
    assert f"source:{MAX_JOBS + 1}: left out: 2,000 jobs are imported at once" in messages(found)


@pytest.mark.parametrize(
    "line, command",
    [
        ("test -x /bin/a && /bin/a -q", "if test -x /bin/a; then /bin/a -q; fi"),
        ("[ -d /x ] && command -v b && b 2>/dev/null", "if [ -d /x ] && command -v b; then b 2>/dev/null; fi"),
        ("test -x /a && a || b", "test -x /a && a || b"),
        ("test -x /a && a | b && c 2>&1", "if test -x /a; then a | b && c 2>&1; fi"),
        ("test -x /a && (a; b)", "test -x /a && (a; b)"),
        ("test -x /a && a &", "test -x /a && a &"),
        ("test -x /a && a # b", "test -x /a && a # b"),
        ("cd /x && a", "cd /x && a"),
    ],
)
def test_a_leading_guard_that_is_false_is_no_failure(line: str, command: str) -> None:
    assert only_job(import_text(f"0 2 * * * {line}"))["command"] == ["/bin/sh", "-c", command]


def test_the_report_says_once_that_exit_codes_count() -> None:
    report = messages(import_text("0 2 * * * test -x /a && a || b\n0 3 * * * grep -q x /y || c\n"))

    assert report.count("cron ignores the exit code") == 1
    assert "(also line 2)" in report


def test_variables_that_look_like_secrets_are_left_out_and_reported() -> None:
    found = import_text(
        "DB_PASSWORD=s3cret\nPGPASSWORD=x\nTOKEN_FILE=/etc/t\nLOGNAME=a\n0 1 * * * one\n0 2 * * * two\n"
    )

    assert [job.keys["env"] for job in found.jobs] == [{"TOKEN_FILE": "/etc/t"}] * 2
    report = messages(found)
    assert "source:5: dropped: DB_PASSWORD looks like a secret" in report
    assert "PGPASSWORD looks like a secret, which does not belong in the file: ~/.pgpass" in report
    assert "source:4: dropped: LOGNAME" in report
    assert "s3cret" not in report


def test_commands_of_a_crontab_start_in_the_home_directory() -> None:
    sources = [Origin("0 1 * * * tar cf b.tar data\nHOME=/srv\n0 2 * * * make\n", "source", home="/home/ann")]
    found = read.read(sources, "crontab", None, START)

    assert [job.keys["cwd"] for job in found.jobs] == ["/home/ann", "/srv"]
    assert "pass --home" not in messages(found)


def test_without_a_home_directory_the_report_says_once_where_commands_start() -> None:
    report = messages(import_text("0 1 * * * tar cf b.tar data\n0 2 * * * git pull\n"))

    assert report.count("cron starts it in the home directory") == 1
    assert "pass --home DIR, or set cwd (also line 2)" in report


IGNORED_BY_DEBIAN = [
    *("EMPTY=", 'X="a"b', 'X="a', "A x=1", "nonsense", "X=\r", "\r", "@Daily a", "@fortnightly a", "@daily *a"),
    *(
        "-* * * * * a",
        "61 * * * * a",
        "? * * * * a",
        "* * L * * a",
        "0, * * * * a",
        "* * * * monday a",
        "5/15 * * * * a",
    ),
    *(
        "*/0 * * * * a",
        "*/ * * * * a",
        "1- * * * * a",
        "1-x * * * * a",
        "* * * * 8 a",
        "* * * * * * a",
    ),
    *("mon * * * * a", "~ * * * * a", "0 5 * *", "0 5 * * * " + "a" * 999, "@daily " + "a" * 999),
]
ACCEPTED_BY_DEBIAN = [
    *('EMPTY=""', 'X="a b"', "X=a b", "1X=1", "A-B=1", "A.B=1", "'A B' = 'b' ", "X=" + "a" * 1500, "# " + "a" * 1500),
    *("0 5 * * *", "@daily", "@midnight a", "0 5 * * * a\r", "0 5 * * * " + "a" * 998, "*/90 * * * * a"),
    *("* * * jan,Feb mon-FRI a", "* * * * mon-sun a", "* * * * 5-1 a", "* * * * 7 a", "* * 1-5/2,7,* * * a"),
    *("* * * * 1#2 a", "0 5 * * * a=1 b", "* * * * *b a"),
]  # fmt: skip


@pytest.mark.parametrize("line", IGNORED_BY_DEBIAN)
def test_a_line_for_which_debian_ignores_the_whole_file_is_reported(line: str) -> None:
    report = messages(import_text(f"0 4 * * * /usr/bin/true\n{line}\n"))

    assert "source:2: advice: Debian's cron ignores a whole file with such a line" in report


@pytest.mark.parametrize("line", ACCEPTED_BY_DEBIAN)
def test_of_a_line_that_debian_accepts_nothing_else_is_said(line: str) -> None:
    assert "ignores a whole file" not in messages(import_text(f"0 4 * * * /usr/bin/true\n{line}\n"))


@pytest.mark.parametrize("end, is_reported", [("1 4 * * * a", True), ("A=1", True), ("# a", False), ("  ", False)])
def test_a_last_line_without_its_end_is_reported(end: str, is_reported: bool) -> None:
    report = messages(import_text(f"0 4 * * * /usr/bin/true\n{end}"))

    assert ("there is no newline at the end: Debian's cron ignores such a file" in report) is is_reported


@pytest.mark.parametrize("line, is_ignored", [("0 4 * * * root", True), ("* * * * * root a", False)])
def test_in_cron_d_a_user_and_a_command_are_needed(line: str, is_ignored: bool) -> None:
    assert ("ignores a whole file" in messages(import_text(f"{line}\n", "cron.d"))) is is_ignored


def test_an_escaped_space_at_the_end_of_a_command_is_kept() -> None:
    found = import_text("0 4 * * * touch a\\ \n")

    assert only_job(found)["command"][-1] == "touch a\\ "
    assert "a backslash at the end" not in messages(found)


def test_line_ends_of_windows_are_removed_and_reported() -> None:
    found = import_text("X=1\r\n0 4 * * * cat%one\r\n")

    assert (only_job(found)["env"], only_job(found)["stdin"]) == ({"X": "1"}, "one\n")
    assert "source: changed: lines end with CR LF: cron passes the CR on" in messages(found)


def test_spaces_at_the_end_of_standard_input_are_kept_and_those_of_a_command_are_not() -> None:
    found = import_text("0 1 * * * cat%one  \n0 2 * * * /usr/bin/true  \n")
    assert found.jobs[0].keys["stdin"] == "one  \n"
    assert [job.keys["command"] for job in found.jobs] == [["cat"], ["/usr/bin/true"]]


def test_a_crontab_without_jobs_is_reported() -> None:
    found = import_text("# nothing\n\n")

    assert found.has_refusals
    assert "source: left out: it has no jobs" in messages(found)


@pytest.mark.parametrize(
    "scheduler",
    ["S(job_defaults={'max_instances': 3, 'misfire_grace_time': 3600})", "s.configure(job_defaults=d)"],
)
def test_job_defaults_of_a_scheduler_apply_to_its_jobs(scheduler: str) -> None:
    text = "from m import f\nd = {'max_instances': 3, 'misfire_grace_time': 3600}\n"
    keys = only_job(import_text(f"{text}{scheduler}\ns.add_job(f, 'cron', hour=3)\n", "apscheduler"))

    assert (keys["overlap"], keys["catchup"], keys["catchup_window"]) == ("allow", "latest", "1h")


def test_settings_of_a_scheduler_are_reported() -> None:
    text = "from m import f\ns = BlockingScheduler(jobstores=a, timezone='UTC', **b)\ns.configure(c)\n"
    text += "s.add_listener(f)\nimport structlog\nstructlog.configure(x=1)\n"
    report = messages(import_text(f"{text}s.add_job(f, 'cron', hour=3)\n", "apscheduler"))

    assert "source:2: dropped: jobstores of the scheduler has no counterpart" in report
    assert "source:2: dropped: ** of the scheduler" in report
    assert "source:3: dropped: its arguments of the scheduler" in report
    assert "source:4: dropped: add_listener of the scheduler" in report
    assert "x of the scheduler" not in report
    assert "timezone" not in report


@pytest.mark.parametrize(
    "text",
    [
        "from apscheduler.schedulers.blocking import BlockingScheduler as S\ns = S(timezone={zone})\n",
        "s.configure(timezone={zone})\n",
    ],
)
def test_the_time_zone_of_a_scheduler_is_found_under_another_name(text: str) -> None:
    start = "from m import f\n" + text.format(zone="'Asia/Tokyo'")
    job = "s.add_job(f, 'cron', hour=3)\n"
    assert only_job(import_text(f"{start}{job}", "apscheduler"))["timezone"] == "Asia/Tokyo"


@pytest.mark.parametrize("setting", ["timezone='Asia/Tokyo'", "job_defaults={'max_instances': 3}"])
def test_a_file_of_several_schedulers_with_settings_is_left_out(setting: str) -> None:
    jobs = "s.add_job(f, 'cron', hour=3)\nt.add_job(f, 'cron', hour=4)\n"
    found = import_text(f"from m import f\ns = XScheduler()\nt = XScheduler({setting})\n{jobs}", "apscheduler")

    assert found.jobs == []
    assert "source:3: left out: it has several schedulers with settings: pass a file for each" in messages(found)
    assert len(import_text(f"from m import f\ns = XScheduler()\nt = XScheduler()\n{jobs}", "apscheduler").jobs) == 2


def test_job_defaults_that_are_not_constant_are_reported() -> None:
    text = "from m import f\nS(job_defaults=read())\ns.add_job(f, 'cron', hour=3)\n"

    assert "source:2: dropped: job_defaults are not one dict" in messages(import_text(text, "apscheduler"))


@pytest.mark.parametrize("format_name, exit_code", [("github", 0), ("sarif", 0), ("text", 1)])
def test_programs_and_directories_that_a_review_machine_lacks_do_not_fail_it(
    format_name: str, exit_code: int, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        'version: 1\njobs:\n  a: {cron: "5 1 * * *", command: [bin/a]}\n'
        '  b: {cron: "5 1 * * *", command: [/bin/true], cwd: /no/such/directory}\n'
    )

    done = CliRunner().invoke(cli, ["validate", "--format", format_name, "--strict", str(file)], standalone_mode=False)

    assert "YS310" in done.output
    assert "YS311" in done.output
    assert done.return_value == exit_code


CRON_JOB = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: shards}
spec:
  schedule: "0 2 * * *"
  timeZone: Etc/UTC
  suspend: SUSPEND
  jobTemplate:
    spec:
      JOB
      template: {spec: {terminationGracePeriodSeconds: 120, activeDeadlineSeconds: 600, hostNetwork: true, CONTAINERS}}
"""


def import_cron_job(suspend: str = "false", job: str = "backoffLimit: 0") -> Imported:
    containers = "containers: [{name: c, image: i, command: [run-shard], stdin: true}]"
    text = CRON_JOB.replace("SUSPEND", suspend).replace("JOB", job).replace("CONTAINERS", containers)
    return import_text(text, "kubernetes")


@pytest.mark.parametrize("key", ["parallelism", "completions"])
def test_a_cron_job_of_several_pods_is_left_out(key: str) -> None:
    found = import_cron_job(job=f"{key}: 8")

    assert not found.jobs
    assert f"{key} 8 starts several pods" in messages(found)


@pytest.mark.parametrize(
    "suspend, job, is_enabled",
    [
        ("yes", "backoffLimit: 0", False),
        ("On", "backoffLimit: 0", False),
        ("true", "backoffLimit: 0", False),
        ("false", "suspend: true", False),
        ("no", "suspend: off", True),
    ],
)
def test_a_cron_job_that_is_suspended_is_disabled(suspend: str, job: str, is_enabled: bool) -> None:
    assert only_job(import_cron_job(suspend, job)).get("enabled", True) is is_enabled


def test_limits_of_a_pod_are_imported_and_what_has_no_key_is_reported() -> None:
    policy = (
        "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [42]}}, {action: Ignore}]}"
    )
    found = import_cron_job(job=policy)

    keys = only_job(found)
    assert (keys["timeout"], keys["kill_after"], keys["exit_codes"]) == ("10m", "2m", {"discard": [42]})
    report = messages(found)
    for key in ("hostNetwork of the pod", "stdin of the container", "podFailurePolicy Ignore"):
        assert key in report


def import_units(timer: str, service: str) -> Imported:
    sources = [Origin(f"[Timer]\n{timer}\n", "r.timer"), Origin(f"[Service]\n{service}\n", "r.service")]
    return read.read(sources, None, None, START)


def test_settings_of_systemd_that_are_not_known_to_be_harmless_are_reported() -> None:
    service = (
        "Type=oneshot\nDescription=x\nConditionACPower=true\nOnFailure=a.service\nExecStart=/usr/bin/fwupdmgr refresh\n"
        "After=network-online.target time-sync.target\nWants=tunnel.service network.target"
    )
    found = import_units("OnCalendar=hourly\nRandomizedOffsetSec=1h", service)

    report = messages(found)
    assert "r.service:4: dropped: r.service: ConditionACPower=true" in report
    assert "r.service: OnFailure=a.service" in report
    assert "r.timer: RandomizedOffsetSec=1h" in report
    assert "r.service: Wants=tunnel.service network.target" in report
    assert "Description" not in report
    assert "After" not in report


def test_exit_codes_that_systemd_takes_for_success_are_imported() -> None:
    found = import_units("OnCalendar=hourly", "SuccessExitStatus=2 101 DATAERR SIGKILL\nExecStart=/usr/bin/a")

    assert only_job(found)["exit_codes"] == {"success": [0, 2, 65, 101]}
    assert "SuccessExitStatus=SIGKILL" in messages(found)


def test_a_prefix_that_changes_privileges_is_reported() -> None:
    report = messages(import_units("OnCalendar=hourly", "User=app\nExecStart=-+/usr/bin/a"))

    assert "r.service: the prefix + of /usr/bin/a, which changes its privileges" in report
    assert "a failure of /usr/bin/a is ignored" in report


@pytest.mark.parametrize("prefix", ["@", ":", "-:", "|"])
def test_a_prefix_that_changes_how_a_command_is_read_is_left_out(prefix: str) -> None:
    report = messages(import_units("OnCalendar=hourly", f"ExecStart={prefix}/usr/bin/a"))

    assert f"{prefix}/usr/bin/a has the prefix {prefix}: write the command without it" in report


def test_a_setting_in_the_section_of_others_is_ignored_as_by_systemd_and_reported() -> None:
    wrong = "[Timer]\nExecStart=/bin/b\n[Unit]\nExecStartPre=/bin/b\nType=oneshot\n[Install]\nEnvironment=A=1\n"
    found = import_units("OnCalendar=hourly\n[Unit]\nOnCalendar=daily", f"ExecStart=/bin/a\n{wrong}")

    job = only_job(found)
    assert (job["cron"], job["command"], job.get("env")) == ("0 * * * *", ["/bin/a"], None)
    report = messages(found)
    for setting in ("[Timer] ExecStart=/bin/b", "[Unit] ExecStartPre=/bin/b", "[Install] Environment=A=1"):
        assert f"dropped: r.service: {setting}" in report
    assert "dropped: r.timer: [Unit] OnCalendar=daily" in report


def test_persistent_has_no_effect_without_a_calendar() -> None:
    assert only_job(import_units("OnUnitActiveSec=1h\nPersistent=true", "ExecStart=/a"))["catchup"] == "none"
    assert only_job(import_units("OnCalendar=hourly\nPersistent=true", "ExecStart=/a"))["catchup"] == "latest"


def test_a_calendar_event_may_have_a_fraction_of_zero() -> None:
    assert only_job(import_units("OnCalendar=*-*-* 10:00:00.000", "ExecStart=/a"))["cron"] == "0 10 * * *"


def test_escapes_of_systemd_are_left_out() -> None:
    assert r"uses escapes of systemd" in messages(import_units("OnCalendar=hourly", r"ExecStart=/a x\x20y"))


def test_every_entry_of_a_beat_schedule_is_imported_or_reported() -> None:
    text = """
app.conf.beat_schedule = {'a': {'task': 'tasks.add', 'schedule': crontab(minute=0)}}
app.conf.beat_schedule['b'] = {'task': 'tasks.add', 'schedule': crontab(minute=5)}
app.conf.beat_schedule.update({'c': {'task': 'tasks.add', 'schedule': crontab(minute=6)}})
app.conf.beat_schedule |= {'d': {'task': 'tasks.add', 'schedule': crontab(minute=7)}}
app.conf.beat_schedule.update(e={'task': 'tasks.add', 'schedule': crontab(minute=8), 'relative': True})
app.conf.update({'beat_schedule': {'f': {'task': 'tasks.add', 'schedule': crontab(minute=9)}}})
app.conf.beat_schedule[name] = {'task': 'tasks.add', 'schedule': crontab(minute=9)}
app.conf.beat_schedule.setdefault('g', {})
sender.add_periodic_task(crontab(hour=7), test.s('x'))
"""

    found = import_text(text, "celery")

    assert [(job.name, job.line) for job in found.jobs] == [(name, line) for line, name in enumerate("abcdef", 2)]
    report = messages(found)
    assert "source:6: dropped: e: relative has no counterpart" in report
    assert "source:8: left out: beat_schedule is app.conf.beat_schedule[name]" in report
    assert "source:9: left out" in report
    assert "source:10: left out: sender.add_periodic_task(crontab(hour=7), test.s('x')): write it" in report
    assert "6 jobs imported, 3 left out" in report


@pytest.mark.parametrize("field", ["?", "1-5,?", "?/5"])
def test_a_question_mark_which_celery_refuses_is_left_out(field: str) -> None:
    text = f"beat_schedule = {{'a': {{'task': 'm.f', 'schedule': crontab(minute='{field}')}}}}\n"

    assert 'source:1: left out: a: the minute "?" is not in 0-59' in messages(import_text(text, "celery"))


def test_a_step_without_a_range_which_celery_refuses_is_left_out() -> None:
    text = """
app.conf.beat_schedule = {'a': {'task': 'tasks.add', 'schedule': crontab(minute='5/15')}}
app.conf.beat_schedule['b'] = {'task': 'tasks.add', 'schedule': crontab(minute='5-59/15', hour='22-2/2')}
"""
    found = import_text(text, "celery")

    assert [job.name for job in found.jobs] == ["b"]
    assert 'source:2: left out: a: Celery refuses the minute "5/15": a step needs a range' in messages(found)


def test_a_file_with_add_periodic_task_only_is_one_of_celery() -> None:
    assert read.kind_of(Origin("sender.add_periodic_task(10.0, test.s())", "app.py")) == "celery"


@pytest.mark.parametrize(
    "fields, is_enabled, message",
    [
        ({"expires": "2020-01-01T00:00:00Z"}, False, "its end 2020-01-01 00:00Z is not imported"),
        ({"expires": "2030-01-01T00:00:00Z"}, True, "its end 2030-01-01 00:00Z is not imported"),
        ({"start_time": "2030-01-01T00:00:00Z"}, False, "its start 2030-01-01 00:00Z is to come: the job is disabled"),
        ({"headers": '{"a": 1}'}, True, "headers has no counterpart"),
        ({"expire_seconds": 60}, True, "expire_seconds has no counterpart"),
        ({"priority": 0}, True, "priority has no counterpart"),
    ],
)
def test_a_periodic_task_that_does_not_run_now_is_disabled_and_its_other_fields_are_reported(
    fields: dict[str, Any], is_enabled: bool, message: str
) -> None:
    task = {"name": "a", "task": "tasks.add", "crontab": 1, "enabled": True} | fields
    rows = [
        {"model": "django_celery_beat.crontabschedule", "pk": 1, "fields": {"minute": "0"}},
        {"model": "django_celery_beat.periodictask", "pk": 1, "fields": task},
    ]

    found = import_text(json.dumps(rows), "celery")

    assert only_job(found).get("enabled", True) is is_enabled
    assert message in messages(found)


@pytest.mark.parametrize(
    "file, text, kind",
    [
        ("x.timer", "", "systemd"),
        ("x.yml", "", "kubernetes"),
        ("x.json", '{"kind": "CronJob"}', "kubernetes"),
        ("x.json", '[{"model": "django_celery_beat.periodictask"}]', "celery"),
        ("x.py", "app.conf.beat_schedule = {}", "celery"),
        ("x.py", "scheduler.add_job(f)", "apscheduler"),
        ("/etc/cron.d/x", "", "cron.d"),
        ("/etc/crontab", "", "cron.d"),
        ("certbot", "SHELL=/bin/sh\n0 */12 * * * root certbot renew\n", "cron.d"),
        ("x", "@daily\troot\tcertbot renew\n", "cron.d"),
        ("-", "apiVersion: batch/v1\nkind: CronJob\n", "kubernetes"),
        ("-", "0 0 * * * /root/x\n", "crontab"),
        ("mailman3", "0 8 * * *  list\tif [ -x /usr/bin/mailman ]; then /usr/bin/mailman notify; fi\n", "cron.d"),
        ("awstats", "0 8 * * * www-data [ -x /x ] && /x\n5 8 * * * www-data /usr/bin/y\n", "cron.d"),
        ("x", "0 8 * * * backup --all\n", "crontab"),
        ("x", "0 8 * * * python3 /srv/x.py\n", "crontab"),
        ("x", "0 8 * * * list all\n5 8 * * * /usr/bin/y\n", "crontab"),
    ],
)
def test_the_kind_of_a_file_is_known_by_its_name_and_text(file: str, text: str, kind: str) -> None:
    assert read.kind_of(Origin(text, file)) == kind


# -- fire times by the rules of the source -----------------------------------------------------------------------------

SPRING, AUTUMN = "2027-03-28", "2027-10-31"  # in Berlin, 02:00 is skipped on one and repeated on the other


@pytest.mark.parametrize(
    "clock, spring, autumn",
    [  # 02:30 on the local clock, in UTC; what systemd-analyze calendar and APScheduler's CronTrigger answer
        (EVERY_MATCH, [], ["00:30", "01:30"]),
        (DEBIAN, ["01:00"], ["00:30"]),
        (SYSTEMD, [], ["00:30"]),
        (APSCHEDULER, ["01:30"], ["00:30", "01:30"]),
    ],
)
def test_schedulers_differ_when_the_clock_changes(clock: Clock, spring: list[str], autumn: list[str]) -> None:
    daily = OnCalendar(fields_of(("30", "2", "*", "*", "*"), CRON_RULES), zone(ZONE), clock)

    for day, expected in ((SPRING, spring), (AUTUMN, autumn)):
        midnight = datetime.fromisoformat(f"{day}T00:00Z")
        fires = daily.fires(midnight - timedelta(days=2), midnight + timedelta(hours=12))
        times = [EPOCH + minute * MINUTE for minute in sorted(fires)]
        assert [f"{at:%H:%M}" for at in times if at >= midnight] == expected


def a_field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    stepped = st.tuples(st.just("*") | span, st.integers(1, high)).map(lambda parts: f"{parts[0]}/{parts[1]}")
    return st.just("*") | st.lists(number.map(str) | span | stepped, min_size=1, max_size=2).map(",".join)


@settings(max_examples=150, deadline=None)
@given(
    fields=st.tuples(
        a_field(0, 59),
        st.sampled_from(("0", "1", "2", "3", "1-3", "*/2", "*")) | a_field(0, 23),
        st.just("*") | a_field(1, 31),
        st.just("*") | a_field(1, 12),
        st.just("*") | a_field(0, 7),
    ),
    zone_name=st.sampled_from(("UTC", ZONE, "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo")),
    start=st.sampled_from(("2011-12-20", "2026-10-20", "2027-03-05", "2027-04-01", "2026-12-28")),
)
def test_what_is_imported_from_a_crontab_fires_as_under_debians_cron(
    fields: tuple[str, ...], zone_name: str, start: str
) -> None:
    source = Origin(f"{' '.join(fields)} x", "crontab", zone_name)

    found = read.read([source], "crontab", None, datetime.fromisoformat(f"{start}T00:00Z"), days=35)

    assert found.differing == 0, messages(found)


@pytest.mark.parametrize(
    "kind, text, message",
    [
        (
            "kubernetes",
            "# x\nkind: CronJob\nmetadata: {name: {{ .name }}}\n",
            "2: left out: CronJob (no name): metadata.name",
        ),
        ("kubernetes", "kind: [\n---\nx: 1\n---\n", "1: left out: a value is missing"),
        ("kubernetes", "kind: Pod\n", " left out: no CronJob found"),
        ("celery", "\nx = (\n", "2: left out: it is not valid Python: '(' was never closed"),
        ("celery", "[\n{]", "2: left out: it is not valid JSON"),
        ("celery", "x = 1", " left out: no beat_schedule found"),
        ("apscheduler", "x = 1", " left out: no add_job or scheduled_job found"),
        ("systemd", "[Timer]\n", " left out: no .timer unit among the files"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported_with_its_line(kind: str, text: str, message: str) -> None:
    assert f"source:{message}" in messages(import_text(text, kind))


# -- the command line --------------------------------------------------------------------------------------------------


def run(*arguments: object, input: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["import", *map(str, arguments)], input=input, standalone_mode=False)


def test_a_crontab_on_stdin_becomes_a_file_on_stdout() -> None:
    done = run("-", "--timezone", "Asia/Tokyo", "--home", "/srv", input="0 2 * * * /usr/bin/backup\n")

    assert done.return_value == 0
    assert "timezone: Asia/Tokyo" in done.stdout
    assert done.stderr == "1 job imported, 0 left out\n"


def test_without_a_time_zone_the_report_says_that_utc_is_used() -> None:
    assert "pass --timezone" in run("-", input="0 2 * * * one\n").stderr.lower()


def test_exit_1_if_a_job_is_left_out_and_the_others_are_imported() -> None:
    done = run("-", input="0 2 * * * one\n@reboot two\n")

    assert done.return_value == 1
    assert "command: [one]" in done.stdout


def test_nothing_is_printed_on_stdout_if_nothing_is_imported() -> None:
    done = run("-", input="@reboot two\n")

    assert (done.return_value, done.stdout) == (1, "")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["-", "--timezone", "Nowhere"], "unknown time zone Nowhere"),
        (["-", "--from", "anacron"], "'anacron' is not one of"),
        (["-", "--policy", "mine"], "'mine' is not one of"),
        ([], "Missing argument"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str], message: str) -> None:
    done = run(*arguments, input="")

    assert isinstance(done.exception, click.UsageError)
    assert message in done.exception.format_message()


def test_a_file_that_cannot_be_read_is_an_environment_failure(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="cannot be read: No such file"):
        raise run(tmp_path / "missing").exception or AssertionError


@pytest.mark.parametrize("data", [b"0 2 * * * caf\xe9\n", b"\xff\xfe0\x00", b"0 2 * * * a\x00b\n"])
def test_a_file_that_is_not_utf_8_text_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_bytes(data)

    with pytest.raises(Refused, match=r"crontab:1: "):
        raise run(tmp_path / "crontab").exception or AssertionError


@pytest.mark.parametrize(
    "command, name",
    [
        ("cd /srv/app && nice -n 10 python3 manage.py clearsessions -v0", "manage_clearsessions"),
        ("timeout 10 /opt/Report.sh --all", "report"),
        ("if [ -x a ]; then /usr/lib/php/sessionclean; fi", "sessionclean"),
        ("flock -n /tmp/x /opt/sync --all", "sync"),
        ("sleep $((RANDOM \\% 60)); x", "x"),
        ("A=1 /usr/bin/env B=2 /opt/7zip", "job_7zip"),
        ("true", "job_true"),
        ("'", "job"),
        ("/" + "x" * 300, "x" * 63),
        ("flock -w 60 /tmp/app_backup.lock ./offsite.sh", "offsite"),
        ("timeout -k 5s 10m /usr/bin/fetch", "fetch"),
    ],
)
def test_a_job_is_named_after_its_program(command: str, name: str) -> None:
    assert [job.name for job in import_text(f"0 2 * * * {command}").jobs] == [name]


def test_a_name_that_is_taken_gets_a_number_within_the_longest_name() -> None:
    text = f"0 2 * * * /{'x' * 80}\n" * 11

    names = [job.name for job in import_text(text).jobs]

    assert names[:2] == ["x" * 63, "x" * 61 + "_2"]
    assert names[-1] == "x" * 60 + "_11"


def test_a_container_without_an_image_gets_no_note_about_it() -> None:
    container = "{name: a, command: [/bin/true]}"
    pod = f"{{template: {{spec: {{containers: [{container}]}}}}}}"
    found = import_text(
        f'kind: CronJob\nmetadata: {{name: a}}\nspec: {{schedule: "0 1 * * *", jobTemplate: {{spec: {pod}}}}}\n',
        "kubernetes",
    )

    assert [job.name for job in found.jobs] == ["a"]
    assert not [note.message for note in found.notes if "image" in note.message]


# -- into a file -------------------------------------------------------------------------------------------------------

EXISTING = """\
# our jobs
version: 1
timezone: Asia/Tokyo   # where we are
defaults: {max_attempts: 3, lease: 1m}

jobs:
    # the first
    backup:   {cron: "0 2 * * *", command: [a]}  # keep

    last:
        cron: "0 3 * * *"
        command:
            - b
        # behind the last value

# about retention
retention: {succeeded: 7d}
"""


def test_jobs_are_appended_without_touching_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(EXISTING)
    file.chmod(0o640)

    done = run("-", "--timezone", "Asia/Tokyo", "--into", file, input="0 2 * * * /usr/bin/backup\n")

    added = (
        "\n    # stdin:1: 0 2 * * * /usr/bin/backup\n    backup_2:\n"
        '      cron: "0 2 * * *"\n      command: [/usr/bin/backup]\n'
        "      overlap: allow\n      catchup: none\n      max_attempts: 1\n      timeout: 7d\n"
    )
    assert done.return_value == 0, done.exception
    assert file.read_text() == EXISTING.replace("last value\n", f"last value\n{added}")
    assert "the name backup is taken: the job is called backup_2" in done.stderr
    assert "its defaults apply to the imported jobs too: lease" in done.stderr
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["schedules.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\njobs: {}\n",
        "version: 1\njobs: {}",
        "version: 1\njobs: {}  # none\nretention: {dead: 3d}\n",
        "version: 1\njobs:\n  a: {command: [a]}",
        "version: 1\r\njobs:\r\n  a: {command: [a]}\r\n",
        "version: 1\njobs:\n  a:\n    command: [a]\n    stdin: |\n      text\n      # text\n\nretention: {dead: 3d}\n",
        "jobs:\n  a: {command: [a]}\nversion: 1\n",
        "--- # start\nversion: 1\njobs:\n  a: {command: [a]}\n...\n",
        "version: 1\nx-a: &a {command: [a]}\njobs:\n  a: *a\n  b: {<<: *a}\n",
        "version: 1\njobs:\n a: {command: [a]}\n # the end",
    ],
)
def test_jobs_are_appended_to_files_of_every_form(text: str, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_bytes(text.encode())

    done = run("-", "--into", file, input="0 2 * * * one\n0 3 * * * two\n")

    assert done.return_value == 0, done.exception
    result = file.read_bytes().decode()
    before, after = (load(content.encode(), "", None) for content in (text, result))
    assert not after.has_errors
    assert set(after.entries) == {*before.entries, "one", "two"}
    assert {name: after.jobs[name] for name in before.jobs} == before.jobs
    assert all(line in result.splitlines() for line in text.splitlines() if "{}" not in line)
    assert result.count("\r") == (result.count("\n") if "\r" in text else 0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("version: 1\njobs: {a: {command: [a]}}\n", "written in braces"),
        ("{version: 1, jobs: {a: {command: [a]}}}\n", "not written as a block"),
        ("version: 1\nx-j: &j {a: {command: [a]}}\njobs: *j\n", "not written as a block"),
        ("version: 1\njobs: {a: {comand: [a]}}\n", "nothing was imported. Fix it first: yamlsched validate"),
        ("version: 1\ndefaults: {handler: x}\njobs: {}\n", "nothing was imported"),
        (
            "version: 1\njobs:\n  a:\n    command: [a]\n    stdin: |+\n      text\n\n\n# end\n",
            "cannot be extended as text",
        ),
        ("---\n", "the file is empty"),
    ],
)
def test_a_file_that_cannot_be_extended_stays_as_it_is(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(text)

    with pytest.raises(Refused, match=message):
        raise run("-", "--into", file, input="0 2 * * * one\n").exception or AssertionError

    assert file.read_text() == text


def test_a_file_that_does_not_exist_is_created_and_a_link_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to("schedules.yaml")
    assert run("-", "--into", tmp_path / "schedules.yaml", input="0 2 * * * one\n").return_value == 0
    assert run("-", "--into", link, input="0 2 * * * two\n").return_value == 0

    assert link.is_symlink()
    assert set(load(link.read_bytes(), "", None).entries) == {"one", "two"}


@pytest.mark.parametrize(
    "text, kept", [("", ""), ("\n", "\n"), ("# jobs of web_01\r\n\n# of ops", "# jobs of web_01\n\n# of ops\n")]
)
def test_an_existing_file_without_jobs_gets_them_and_keeps_its_comments(text: str, kept: str, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_bytes(text.encode())

    assert run("-", "--into", file, input="0 2 * * * one\n").return_value == 0

    written = file.read_text()
    assert written == kept + run("-", input="0 2 * * * one\n").stdout
    assert list(load(written.encode(), "", None).jobs) == ["one"]


def test_a_link_to_itself_cannot_be_written(tmp_path: Path) -> None:
    link = tmp_path / "schedules.yaml"
    link.symlink_to("schedules.yaml")

    with pytest.raises(EnvironmentFailed, match=r"cannot be written: .*symbolic links"):
        raise run("-", "--into", link, input="0 2 * * * one\n").exception or AssertionError


def test_an_edit_while_the_import_runs_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(text := "version: 1\njobs:\n  a:\n    command: [a]\n")
    data = file.read_bytes()
    file.write_text(edited := text + "  b:\n    command: [b]\n")

    with pytest.raises(Refused, match="was changed in the meantime: nothing was imported"):
        target.save(file, text, data)

    assert file.read_text() == edited
    assert [one.name for one in tmp_path.iterdir()] == ["schedules.yaml"]


def test_a_file_that_appears_while_the_import_runs_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("version: 1\njobs: {}\n")

    with pytest.raises(Refused, match="was changed in the meantime"):
        target.save(file, "version: 1\n", None)


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(text := "version: 1\njobs:\n  a:\n    command: [a]\n")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write every file

    with pytest.raises(EnvironmentFailed, match="cannot be written: Permission denied"):
        raise run("-", "--into", file, input="0 2 * * * one\n").exception or AssertionError

    assert file.read_text() == text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_the_file_keeps_its_owner_and_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("version: 1\njobs:\n  a:\n    command: [a]\n")
    os.chown(file, 65534, 65533)
    file.chmod(0o640)

    assert run("-", "--into", file, input="0 2 * * * one\n").return_value == 0

    status = file.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (65534, 65533, 0o640)


# -- any input ---------------------------------------------------------------------------------------------------------

INPUTS = [path for path in sorted(IMPORTS.glob("*/input/*")) if path.is_file()]
TOKENS = [
    "*",
    "%",
    "\\",
    "\n",
    "\t",
    "{",
    "}",
    "[",
    "]",
    "'",
    '"',
    ":",
    "&a ",
    "*a",
    "<<: ",
    "- ",
    "@",
    "\x00",
    "é",
    "9" * 5000,
]


TEXT = partial(st.text, st.characters(codec="utf-8"))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Return an example with some parts deleted, repeated, replaced or inserted."""
    text = draw(st.sampled_from(INPUTS)).read_text()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 12))
        text = text[:start] + draw(st.one_of(st.sampled_from(TOKENS), TEXT(max_size=5))) + text[end:]
    return text


@settings(max_examples=150, deadline=None)
@given(
    text=st.one_of(mutated(), TEXT(max_size=200)), kind=st.sampled_from(read.KINDS), policy=st.sampled_from(POLICIES)
)
def test_any_text_gives_a_valid_file_or_a_reason(text: str, kind: str, policy: str) -> None:
    name = "x.timer" if kind == "systemd" else "x"
    found = read.read([Origin(text, name, "UTC", policy == "faithful")], kind, None, START, days=3)

    report = read.report(found, None, zone_remedy="Pass --timezone")
    assert all(line.isprintable() for line in report)
    if found.jobs:
        loaded = load(write.as_file(found.jobs, "UTC").encode(), "schedules.yaml", None)
        assert not loaded.has_errors
        assert set(loaded.jobs) == {job.name for job in found.jobs}
    elif not found.has_refusals:
        assert kind in ("crontab", "cron.d") or found.notes


@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=200), kind=st.sampled_from(read.KINDS))
def test_any_bytes_end_with_an_exit_code_and_a_message(data: bytes, kind: str) -> None:
    done = CliRunner().invoke(cli, ["import", "--from", kind, "-"], input=data, standalone_mode=False)

    assert done.exception is None or isinstance(done.exception, Refused), done.exception
    assert done.return_value in (0, 1, None)


if __name__ == "__main__":
    for case in CASES:
        for policy in POLICIES:
            output = import_case(case, policy)
            (IMPORTS / case / f"{policy}.yaml").write_text(output.text)
            (IMPORTS / case / f"{policy}.txt").write_text(output.report)
