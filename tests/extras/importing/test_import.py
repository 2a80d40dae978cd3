"""``yamlsched import``: for each kind, files as they are written in practice, with the exact result and report.

``python tests/extras/importing/test_import.py`` writes the expected files again; review the difference in git.
"""

from __future__ import annotations

import re
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
from yamlsched.extras.importing import read, write
from yamlsched.extras.importing.model import MAX_JOBS, MAX_NOTES, Origin
from yamlsched.schedule.checks import check_all
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


def test_source_is_never_executed(tmp_path: Path) -> None:
    file = tmp_path / "executed"
    text = f"open({str(file)!r}, 'w')\nbeat_schedule = {{'x': {{'task': exit(), 'schedule': 60}}}}\n"
    found = import_text(text, "celery")

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
        ("mailman3", "0 8 * * *  list\tif [ -x /usr/bin/mailman ]; then /usr/bin/mailman notify; fi\n", "cron.d"),
        ("awstats", "0 8 * * * www-data [ -x /x ] && /x\n5 8 * * * www-data /usr/bin/y\n", "cron.d"),
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
