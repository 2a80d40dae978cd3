"""``yamlsched import``: for each kind, files as they are written in practice, with the exact result and report.

``python tests/extras/importing/test_import.py`` writes the expected files again; review the difference in git.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.imports import (
    CASES,
    IMPORTS,
    MODULES,
    POLICIES,
    START,
    WITH_HANDLERS,
    import_case,
    import_text,
    messages,
    only_job,
    run,
)
from yamlsched.extras.importing import model, read, write
from yamlsched.extras.importing.model import Origin
from yamlsched.schedule.checks import check_all
from yamlsched.schedule.job import Limit
from yamlsched.schedule.load import load
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync


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


@pytest.mark.parametrize(
    "line, command, stdin",
    [
        ("0 2 * * * date +\\%F", ["date", "+%F"], None),
        ("0 2 * * * cat%one%two", ["cat"], "one\ntwo\n"),
        ("0 2 * * * cat%one%", ["cat"], "one\n"),
        ("0 2 * * * cat%", ["cat"], None),
        ("0 2 * * * cat%100\\%", ["cat"], "100%\n"),
        ("0 2 * * * echo a\\\\%b", ["/bin/sh", "-c", "echo a\\"], "b\n"),
        ("0 2 * * * echo 'a\\\\b\\c'", ["echo", "a\\b\\c"], None),
        ("0 2 * * * cat%C:\\\\dir\\%1\\%", ["cat"], "C:\\\\dir%1%\n"),
    ],
)
def test_percent_signs_are_read_as_by_cron(
    line: str, command: list[str], stdin: str | None
) -> None:
    keys = only_job(import_text(line))

    assert (keys["command"], keys.get("stdin")) == (command, stdin)


@pytest.mark.parametrize(
    "command, expected",
    [
        ("/usr/bin/backup --all", ["/usr/bin/backup", "--all"]),
        ("pg_dump --file=a.dump app", ["pg_dump", "--file=a.dump", "app"]),
        ("a; b", ["/bin/sh", "-c", "a; b"]),
        (
            "find /x -name '*.tmp' -exec rm {} \\;",
            ["find", "/x", "-name", "*.tmp", "-exec", "rm", "{}", ";"],
        ),
        ("a 'b c' \"d e\" f\\ g '' 'h'\"i\"", ["a", "b c", "d e", "f g", "", "hi"]),
        ('a "b \\$c"', ["a", "b $c"]),
        ('a "$b"', ["/bin/sh", "-c", 'a "$b"']),
        ("a ~/b", ["/bin/sh", "-c", "a ~/b"]),
        ("[ -f /x ]", ["/bin/sh", "-c", "[ -f /x ]"]),
        ("a 'b", ["/bin/sh", "-c", "a 'b"]),
        ("bash -c 'a b'", ["bash", "-c", "a b"]),
        ("bash -lc 'a b'", ["bash", "-lc", "a b"]),
        ("A=1 program", ["/bin/sh", "-c", "A=1 program"]),
        (". /etc/profile", ["/bin/sh", "-c", ". /etc/profile"]),
        ("ls *.log", ["/bin/sh", "-c", "ls *.log"]),
        ("echo $HOME", ["/bin/sh", "-c", "echo $HOME"]),
    ],
)
def test_a_shell_runs_only_the_commands_that_need_one(command: str, expected: list[str]) -> None:
    assert only_job(import_text(f"0 2 * * * {command}"))["command"] == expected


def test_settings_apply_to_the_lines_below_them() -> None:
    text = "0 1 * * * one\nA=1\nCRON_TZ=Asia/Tokyo\nSHELL=/bin/zsh\n0 1 * * * two\nA = '2 3'\nHOME=/srv\n0 1 * * * three\n"
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
    assert [job.env for job in jobs.values()] == [
        shared,
        shared,
        {**shared, "B": "2"} if last else shared,
    ]


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
        ("0 0 ? * * one", 'the day-of-month "?" is not in 1-31'),
        ("0~59 * * * * one", "chooses a random time"),
        ("0 0 31 2 * one", "it never fires"),
        ("0 0 * * one", "it is not a line of a crontab"),
        ("0 0 * * * %stdin", "it has no command"),
        ("0 0 * * 8 one", 'the day-of-week "8" is not in 0-7'),
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
def test_a_spelling_that_yamlsched_rejects_or_reads_differently_is_written_differently(
    cron: str, written: str
) -> None:
    if cron == "0 0 1 * */2":  # AND in Debian's cron, with no counterpart
        assert import_text(f"{cron} one").jobs == []
    else:
        assert only_job(import_text(f"{cron} one"))["cron"] == written


@pytest.mark.parametrize(
    "command, expected",
    [
        ("flock -n /tmp/x one --all", {"command": ["one", "--all"], "overlap": "skip"}),
        ("/bin/flock --nonblock /tmp/x -c 'a; b'", {"command": ["/bin/sh", "-c", "a; b"], "overlap": "skip"}),
        ("flock /tmp/x one", {"command": ["one"], "overlap": "wait"}),
        ("flock -xn /tmp/x one", {"command": ["one"], "overlap": "skip"}),
        ("flock -n /tmp/$USER one", {"command": ["/bin/sh", "-c", "flock -n /tmp/$USER one"]}),
        ("sleep $((RANDOM \\% 300)); one", {"command": ["one"], "spread": "5m"}),
        ("sleep $(shuf -i 0-9 -n 1)m && one", {"command": ["one"], "spread": "9m"}),
        ("perl -e 'sleep int(rand(43200))' && one", {"command": ["one"], "spread": "12h"}),
        ("cd /x && perl -e 'sleep int(rand(60))' && a", {"command": ["a"], "cwd": "/x", "spread": "1m"}),
        ("flock -n /tmp/x -c 'sleep $((RANDOM \\% 60)); a'", {"command": ["a"], "overlap": "skip", "spread": "1m"}),
        ("sleep 5; one", {"command": ["/bin/sh", "-c", "sleep 5; one"]}),
    ],
)  # fmt: skip
def test_advised_replaces_locks_and_random_sleeps_and_faithful_keeps_them(
    command: str, expected: dict[str, Any]
) -> None:
    advised = only_job(import_text(f"0 0 * * * {command}", policy="advised"))
    faithful = only_job(import_text(f"0 0 * * * {command}"))

    assert {
        key: value for key, value in advised.items() if key not in ("cron", "timezone")
    } == expected
    kept = "flock" if "flock" in command else "sleep"
    assert kept in " ".join(faithful["command"])
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

    assert [
        (job.keys["command"], job.keys["overlap"], job.keys.get("limit")) for job in advised.jobs
    ] == [
        (["one"], "skip", "x_lock"),
        (["two"], "wait", "x_lock"),
        (["three"], "skip", None),
    ]
    assert load(write.as_file(advised.jobs, "UTC").encode(), "", None).limits == {
        "x_lock": Limit(1)
    }
    changed = "changed: flock /tmp/x.lock is replaced by limit: x_lock: runs wait for these jobs on all hosts"
    assert f"source:2: {changed} (flock -n skips), and for no other use of the lock" in messages(
        advised
    )
    assert f"source:3: {changed}, and for no other use of the lock" in messages(advised)

    assert [job.keys["command"][0] for job in faithful.jobs] == ["flock"] * 3
    advice = "advice: flock works on one host only. Use overlap, or a limit that jobs share"
    assert f"source:2: {advice}, for all hosts: --policy advised writes them" in messages(faithful)
    assert "flock -n exits 1, which counts as a failure here (also lines 3, 5)" in messages(
        faithful
    )


@pytest.mark.parametrize(
    "other",
    [
        "4 1 * * * flock -n /tmp/x.lock four | five",
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
    assert "source:2: advice: flock works on one host only. Use overlap, or a limit" in messages(
        found
    )


def test_locks_are_shared_by_all_files_of_an_import_and_limits_have_names_of_their_own() -> None:
    texts = {
        "crontab": "1 1 * * * flock /tmp/x one\n2 1 * * * flock /var/x two\n3 1 * * * flock /var/x three\n",
        "cron.d/app": "4 1 * * * root sleep $((RANDOM \\% 60)); flock -n /tmp/x four\n"
        "5 1 * * * app flock /tmp/z five\n",
    }
    into = load(b"version: 1\nlimits: {x: {max: 3}}\njobs: {}\n", "", None)
    sources = [Origin(text, name, "UTC", False) for name, text in texts.items()]
    found = read.read(sources, None, into, START)

    limits = {job.name: job.keys.get("limit") for job in found.jobs}
    assert limits == {"one": "x_2", "two": "x_3", "three": "x_3", "four": "x_2", "five": None}


@pytest.mark.parametrize(
    "before",
    [
        "version: 1\n# the jobs\njobs:\n  a: {command: [a]}\n",
        "jobs:\n  a: {command: [a]}\nversion: 1",
        "---\n  version: 1\n  jobs:\n    a: {command: [a]}\n",
    ],
)
def test_limits_are_added_to_a_file_without_limits(before: str, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_bytes(before.encode())

    done = run("-", "--policy", "advised", "--into", file, input=SHARED)

    assert done.return_value == 0, done.stderr
    after = load(file.read_bytes(), "", None)
    assert not after.has_errors
    assert after.limits == {"x_lock": Limit(1)}
    assert {name: job.limit for name, job in after.jobs.items() if name != "a"} == {
        "one": "x_lock", "two": "x_lock", "three": None
    }  # fmt: skip
    assert re.findall("# the jobs", file.read_text()) == re.findall("# .*", before)


def test_a_file_with_limits_is_left_alone_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        text := "version: 1\nlimits: {dwh: {max: 2}}\njobs:\n  a: {command: [a], limit: dwh}\n"
    )

    done = run("-", "--policy", "advised", "--into", file, input=SHARED)

    assert done.return_value != 0
    assert "it has limits: import to stdout, and paste the jobs and their limits" in str(
        done.exception
    )
    assert file.read_text() == text


def test_a_job_whose_spread_reaches_past_its_next_slot_is_left_out() -> None:
    found = import_text("*/5 * * * * sleep $((RANDOM \\% 3600)); one", policy="advised")

    assert found.jobs == []
    assert "left out: one: " in messages(found)


def test_a_difference_of_fire_times_is_reported_with_its_instants() -> None:
    """Kubernetes fires twice in the repeated hour, and not in the skipped one."""
    found = import_text(
        "kind: CronJob\nmetadata: {name: x}\nspec: {schedule: '30 2 * * *', timeZone: Europe/Berlin, jobTemplate: "
        "{spec: {template: {spec: {containers: [{command: [x]}]}}}}}",
        "kubernetes",
    )

    expected = "x fires at other times within 400 days: only there: 2027-10-31T01:30Z; only in yamlsched: 2027-03-28T01:00Z"
    assert expected in messages(found)
    assert found.differing == 1


def test_an_alias_bomb_is_left_out() -> None:
    levels = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 12))
    found = import_text(f"x0: &x0 [a]\n{levels}kind: CronJob\n", "kubernetes")

    assert found.jobs == []
    assert "aliases and merge keys expand to more than" in messages(found)


def test_source_is_never_executed(tmp_path: Path) -> None:
    file = tmp_path / "executed"
    text = (
        f"open({str(file)!r}, 'w')\nbeat_schedule = {{'x': {{'task': exit(), 'schedule': 60}}}}\n"
    )
    found = import_text(text, "celery")

    assert found.has_refusals
    assert not file.exists()


def test_the_line_that_starts_yamlsched_is_not_imported() -> None:
    line = "* * * * * cd /srv/app && out=$(.venv/bin/yamlsched tick 2>&1) || { code=$?; exit $code; }\n"

    found = import_text(f"YAMLSCHED_DSN=postgresql://x\n{line}")

    assert (found.jobs, found.has_refusals) == ([], False)
    assert "this line starts yamlsched" in messages(found)


def test_more_jobs_than_can_be_imported_at_once_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "MAX_JOBS", 5)

    found = import_text("0 0 * * * x\n" * 6)

    assert len(found.jobs) == 5
    assert "source:6: left out: 5 jobs are imported at once" in messages(found)


@pytest.mark.parametrize(
    "line, command",
    [
        ("test -x /bin/a && /bin/a -q", "if test -x /bin/a; then /bin/a -q; fi"),
        ("[ -d /x ] && command -v b && b 2>/dev/null", "if [ -d /x ] && command -v b; then b; fi"),
        ("test -x /a && a || b", "test -x /a && a || b"),
        ("test -x /a && a && b && c 2>&1", "if test -x /a; then a && b && c; fi"),
        ("test -x /a && (a; b)", "test -x /a && (a; b)"),
        ("test -x /a && a &", "if test -x /a; then a; fi"),
        ("test -x /a && a # b", "if test -x /a; then a; fi"),
        (
            "test -x /a && grep -q 'a;b' /c && ! b && c",
            "if test -x /a && grep -q 'a;b' /c && ! b; then c; fi",
        ),
        ("[ $(date +\\%u) = 1 ] && a", "if [ $(date +%u) = 1 ]; then a; fi"),
        ("a && b", "a && b"),
    ],
)
def test_a_leading_guard_that_is_false_is_no_failure(line: str, command: str) -> None:
    assert only_job(import_text(f"0 2 * * * {line}"))["command"] == ["/bin/sh", "-c", command]


def test_the_report_says_once_that_exit_codes_count() -> None:
    text = "0 2 * * * test -x /a && a || b\n0 3 * * * grep -q x /y || c\n0 4 * * * test -x /a && b && c\n"
    report = messages(import_text(text))

    assert report.count("advice: cron ignores exit codes") == 1
    assert "(also lines 2, 3)" in report


def test_variables_that_look_like_secrets_are_left_out_and_reported() -> None:
    found = import_text(
        "DB_PASSWORD=s3cret\nPGPASSWORD=x\nTOKEN_FILE=/etc/t\nLOGNAME=a\n0 1 * * * one\n0 2 * * * two\n"
    )

    assert [job.keys["env"] for job in found.jobs] == [{"TOKEN_FILE": "/etc/t"}] * 2
    report = messages(found)
    assert "source:1: dropped: DB_PASSWORD looks like a secret" in report
    assert (
        "source:2: dropped: PGPASSWORD looks like a secret, which does not belong in the file: ~/.pgpass"
        in report
    )
    assert "source:4: dropped: LOGNAME" in report
    assert "also line" not in report
    assert "s3cret" not in report


def test_commands_of_a_crontab_start_in_the_home_directory() -> None:
    sources = [
        Origin(
            "0 1 * * * tar cf b.tar data\nHOME=/srv\n0 2 * * * make\n", "source", home="/home/ann"
        )
    ]
    found = read.read(sources, "crontab", None, START)

    assert [job.keys["cwd"] for job in found.jobs] == ["/home/ann", "/srv"]
    assert "pass --home" not in messages(found)


@pytest.mark.parametrize(
    "command",
    [
        "tar cf b.tar data",
        "git pull",
        "./a",
        "bin/a",
        "a ~/b",
        "a > /x; b > c.sql",
        "a --file=b.csv",
        "cd app && ./a",
    ],
)
def test_without_a_home_directory_the_report_says_once_where_commands_with_relative_paths_start(
    command: str,
) -> None:
    report = messages(import_text(f"0 1 * * * {command}\n0 2 * * * {command}\n"))

    assert report.count("cron starts it in the home directory") == 1
    assert "pass --home DIR, or set cwd (also line 2)" in report


@pytest.mark.parametrize(
    "command",
    [
        *(
            "/bin/a",
            "cd /srv && ./a",
            "cd /srv && ./a || b",
            "(cd /srv; a) > c.log",
            "pg_dump --file=/b/c.dump app",
        ),
        *(
            "df -h",
            "curl -fsS https://example.com/a/b",
            "find /x -name '*.gz'",
            "cd '/a b' && c; d",
            "a >> b.log",
        ),
    ],
)
def test_of_commands_with_absolute_paths_the_report_says_nothing_about_the_home_directory(
    command: str,
) -> None:
    assert "home directory" not in messages(import_text(f"0 1 * * * {command}\n"))


@pytest.mark.parametrize(
    "command, cwd",
    [
        ("cd ~/b && ./a", "/home/ann/b"),
        ("cd b; ./a", "/home/ann/b"),
        ("cd $HOME && a", "/home/ann"),
        ("cd /b && a", "/b"),
    ],
)
def test_a_directory_is_relative_to_the_home_directory_that_is_passed(
    command: str, cwd: str
) -> None:
    found = read.read(
        [Origin(f"0 1 * * * {command}\n", "source", home="/home/ann")], "crontab", None, START
    )

    assert only_job(found)["cwd"] == cwd
    assert "cd" not in only_job(found)["command"]


@pytest.mark.parametrize(
    "command",
    [
        "cd /x && a || b",
        "cd /x && a & b",
        "cd $X && a",
        "cd a && b",
        "cd /x",
        "cd /x || true; a",
        "cd - && a",
    ],
)
def test_a_change_of_directory_that_is_not_a_plain_start_is_kept(command: str) -> None:
    job = only_job(import_text(f"0 1 * * * {command}\n"))

    assert (job["command"][-1], job.get("cwd")) == (command, None)


@pytest.mark.parametrize(
    "command, kept",
    [
        *(
            (f"a {redirect}", "a")
            for redirect in ("> /dev/null", ">/dev/null 2>&1", "&> /dev/null", "2>/dev/null")
        ),
        *(
            (f"a {redirect}", "a")
            for redirect in (
                "> /proc/1/fd/1 2> /dev/stderr",
                "> /var/log/x",
                ">> /x/y",
                "> /x/y 2>&1",
                "> y.log",
                ">& /x/y",
            )
        ),
        *(
            (f"a {redirect}", "a")
            for redirect in ("2> /x/err", "2>&1", "> /x/logs/a.sql", ">> '/x/a b.log' 2>&1")
        ),
        *(
            (f"a {redirect}", f"a {redirect}")
            for redirect in ("> /x/y", "> y.csv 2>&1", ">> /x/y.csv", "> /x/y.sql")
        ),
        ("a > /x/y.sql 2>> /var/log/e", "a > /x/y.sql"),
        ("a > /dev/null && b > /dev/null", "a && b"),
        ("a 2>/dev/null; b 2>/dev/null", "a; b"),
        ("a > /dev/null || b", "a > /dev/null || b"),
        ("a 2>&1 > /x/y", "a 2>&1 > /x/y"),
        ("which a > /dev/null && a -b c; d", "which a > /dev/null && a -b c; d"),
        ("(a > /dev/null; b) > /x/y.sql", "(a > /dev/null; b) > /x/y.sql"),
        ("for i in 1 2; do a $i > /dev/null; done", "for i in 1 2; do a $i; done"),
        ("a > $(b > /dev/null).csv", "a > $(b > /dev/null).csv"),
        ("echo '> /dev/null' > /dev/null", "echo '> /dev/null'"),
        ("a >/x/1.log >/x/2.log", "a >/x/1.log >/x/2.log"),
        ("a < /x/y > /dev/null", "a < /x/y"),
        ("a <<EOF", "a <<EOF"),
    ],
)
def test_a_redirect_of_output_is_removed_and_one_of_data_is_kept(command: str, kept: str) -> None:
    command_line = only_job(import_text(f"0 1 * * * {command}\n"))["command"]

    text = command_line[2] if command_line[:2] == ["/bin/sh", "-c"] else shlex.join(command_line)
    assert text == kept


@pytest.mark.parametrize(
    "text, command",
    [
        ("a | b", ["/bin/bash", "-c", "set -o pipefail; a | b"]),
        ("SHELL=/bin/zsh\na | b", ["/bin/zsh", "-c", "set -o pipefail; a | b"]),
        ("SHELL=/usr/bin/fish\na | b", ["/usr/bin/fish", "-c", "a | b"]),
        ("a | grep b", ["/bin/sh", "-c", "a | grep b"]),
        ("set -o pipefail; a | b", ["/bin/sh", "-c", "set -o pipefail; a | b"]),
        ("a '|' b", ["a", "|", "b"]),
    ],
)
def test_a_pipe_fails_if_any_part_of_it_fails(text: str, command: list[str]) -> None:
    *settings, line = text.split("\n")
    found = import_text("\n".join([*settings, f"0 1 * * * {line}\n"]))

    assert only_job(found)["command"] == command
    is_set = "changed: set -o pipefail, in /bin/" in messages(found)
    assert is_set is ("pipefail" in command[-1] and "pipefail" not in text)
    prevents = "prevents set -o pipefail" in messages(found)
    assert prevents is ("grep" in text or "fish" in text)


PING = "https://hc-ping.com/5a4e2f60-0d5a-4d5f-8c39-000000000001"


@pytest.mark.parametrize(
    "command, kept",
    [
        (f"a && curl -fsS -m 10 -o /dev/null {PING}", "a"),
        (f"a; wget -q {PING} > /dev/null 2>&1", "a"),
        (f"curl {PING}/start; a && curl {PING} || curl {PING}/fail", "a"),
        (f"a && b && curl {PING}", "a && b"),
        (f"a && curl --data-raw x {PING}", f"a && curl --data-raw x {PING}"),
        (f"curl {PING}", f"curl {PING}"),
        ("a && curl https://example.com/x", "a && curl https://example.com/x"),
        (f"a && curl {PING}2 && curl {PING}", f"a && curl {PING}2 && curl {PING}"),
    ],
)
def test_a_ping_of_a_monitoring_service_becomes_its_variable(command: str, kept: str) -> None:
    found = import_text(f"0 1 * * * {command}\n")

    words = only_job(found)["command"]
    assert (words[2] if words[0] == "/bin/sh" else " ".join(words)) == kept
    name = found.jobs[0].name.upper()
    message = f"changed: the ping is replaced by YAMLSCHED_HEARTBEAT_URL_{name}={PING}: set it in the environment"
    assert (message in messages(found)) is (kept != command)


def test_a_date_of_a_run_that_may_be_made_up_for_gets_an_advice() -> None:
    line = "0 1 * * * a $(date +\\%F)\n"

    assert "$(date) is the time at which the run starts" in messages(
        import_text(line, policy="advised")
    )
    assert "$(date)" not in messages(import_text(line))


def test_a_lock_of_a_part_of_the_command_is_kept_and_reported() -> None:
    for command in (
        "flock -n /tmp/x a && b",
        "flock -w 5 /tmp/x a",
        "timeout 60 flock -n /tmp/x a",
    ):
        found = import_text(f"0 1 * * * {command} >> /var/log/a.log 2>&1\n", policy="advised")

        assert "flock" in " ".join(only_job(found)["command"])
        assert (
            "advice: flock works on one host only. Use overlap, or a limit that jobs share"
            in messages(found)
        )


@pytest.mark.parametrize(
    "form", ["cd /srv && flock -n {}", "flock -n {} >> /x.log 2>&1", "(cd /srv; flock -n {})"]
)
def test_a_lock_is_found_behind_what_else_is_removed(form: str) -> None:
    line = form.replace("{}", '/tmp/y ./four "a b"', 1)
    found = import_text(
        f"{SHARED}4 1 * * * {form.replace('{}', '/tmp/x.lock ./four', 1)}\n", policy="advised"
    )
    alone = only_job(import_text(f"4 1 * * * {line}\n", policy="advised"))

    assert [job.keys.get("limit") for job in found.jobs] == ["x_lock", "x_lock", None, "x_lock"]
    assert (alone["command"], alone["overlap"]) == (["./four", "a b"], "skip")


def test_mailto_is_reported_with_the_targets_of_notifications_in_place_of_it() -> None:
    report = messages(import_text("MAILTO=ops@example.com\n0 1 * * * one\n"))

    assert "`notify: {ops: {url_env: OPS_NOTIFY_URL}}` and `defaults: {notify: [ops]}`" in report
    assert "OPS_NOTIFY_URL=mailtos://USER:PASSWORD@HOST?to=ops@example.com" in report
    assert "MAILTO" not in messages(import_text('MAILTO=""\n0 1 * * * one\n'))


def test_an_escaped_space_at_the_end_of_a_command_is_kept() -> None:
    found = import_text("0 4 * * * touch a\\ \n")

    assert only_job(found)["command"] == ["touch", "a "]


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
    "file, text, kind",
    [
        ("x.timer", "", "systemd"),
        ("x.yml", "", "kubernetes"),
        ("x.json", '{"kind": "CronJob"}', "kubernetes"),
        ("x.json", '[{"model": "django_celery_beat.periodictask"}]', "celery"),
        ("x.py", "app.conf.beat_schedule = {}", "celery"),
        ("x.py", "scheduler.add_job(f)", "celery"),
        ("/etc/cron.d/x", "", "cron.d"),
        ("/etc/crontab", "", "cron.d"),
        ("certbot", "SHELL=/bin/sh\n0 */12 * * * root certbot renew\n", "cron.d"),
        ("x", "@daily\troot\tcertbot renew\n", "cron.d"),
        ("-", "apiVersion: batch/v1\nkind: CronJob\n", "kubernetes"),
        ("-", "0 0 * * * /root/x\n", "crontab"),
        (
            "awstats",
            "0 8 * * * www-data [ -x /x ] && /x\n5 8 * * * www-data /usr/bin/y\n",
            "cron.d",
        ),
        ("x", "0 8 * * * backup --all\n", "crontab"),
        ("x", "0 8 * * * python3 /srv/x.py\n", "crontab"),
        ("x", "0 8 * * * list all\n5 8 * * * /usr/bin/y\n", "crontab"),
    ],
)
def test_the_kind_of_a_file_is_known_by_its_name_and_text(file: str, text: str, kind: str) -> None:
    assert read.kind_of(Origin(text, file)) == kind


if __name__ == "__main__":
    for case in CASES:
        for policy in POLICIES:
            output = import_case(case, policy)
            (IMPORTS / case / f"{policy}.yaml").write_text(output.text)
            (IMPORTS / case / f"{policy}.txt").write_text(output.report)
