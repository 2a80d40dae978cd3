"""``import``: its options and exit codes, and imports into a file that has jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from support.documents import HOSTILE, Page, rendered
from support.imports import import_text, run
from yamlsched.errors import EnvironmentFailed, Refused
from yamlsched.extras.importing import target
from yamlsched.schedule.load import load


def test_a_crontab_on_stdin_becomes_a_file_on_stdout() -> None:
    done = run(
        "-", "--timezone", "Asia/Tokyo", "--home", "/srv", input="0 2 * * * /usr/bin/backup\n"
    )

    assert done.return_value == 0
    assert "timezone: Asia/Tokyo" in done.stdout
    assert done.stderr == "1 job imported, 0 left out\n"


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_the_report_has_the_formats_of_documents_and_the_result_stays_yaml(form: str) -> None:
    # in this crontab each line of hostile text but the first is none of cron's
    crontab = f"0 2 * * * one\n@reboot {HOSTILE}\n".replace("\x1b", "")
    plain = run("-", input=crontab)

    done = run("-", "--format", form, input=crontab)

    assert (done.return_value, done.stdout) == (plain.return_value, plain.stdout)
    page = Page(rendered(done.stderr) if form == "markdown" else done.stderr)
    assert plain.stderr.splitlines()[-1] in page.text
    assert {"script", "a"} & set(page.elements) == set()
    assert "<script>alert(1)</script>" in page.text


def test_without_a_time_zone_the_report_says_that_utc_is_used() -> None:
    assert "pass --timezone" in run("-", input="0 2 * * * one\n").stderr.lower()


def test_a_timer_without_a_time_zone_gets_the_same_report(tmp_path: Path) -> None:
    (tmp_path / "a.timer").write_text("[Timer]\nOnCalendar=daily\n")
    (tmp_path / "a.service").write_text("[Service]\nExecStart=/bin/true\n")

    done = run(tmp_path / "a.timer", tmp_path / "a.service")

    assert "pass --timezone" in done.stderr.lower()


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
        ("sudo -u www-data /usr/bin/php -f /srv/cloud/cron.php", "cron"),
        ("test -x /a/b && grep -q x /y && /a/b", "b"),
        ("(cd /x && ./why) >> /z.log", "why"),
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


def test_ctrl_c_ends_an_import_with_130_and_without_a_traceback() -> None:
    command = [sys.executable, "-m", "yamlsched", "import", "-"]
    reading = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reading.stdin is not None
    reading.stdin.write("# more than a pipe holds\n" * 20_000)
    reading.stdin.flush()  # returns when the import reads

    reading.send_signal(signal.SIGINT)

    assert (reading.communicate()[1].strip(), reading.returncode) == ("Aborted.", 130)


def test_ctrl_c_before_a_verb_starts_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "yamlsched", "import", "-"], env=environment, capture_output=True
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Aborted.\n")


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
    assert "the imported jobs also get its defaults: lease" in done.stderr
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
        ("version: 1\njobs: {a: {command: [a]}}\n", "not written as a block"),
        ("{version: 1, jobs: {a: {command: [a]}}}\n", "not written as a block"),
        ("version: 1\nx-j: &j {a: {command: [a]}}\njobs: *j\n", "not written as a block"),
        (
            "version: 1\njobs: {a: {comand: [a]}}\n",
            "nothing was imported. Fix it first: yamlsched validate",
        ),
        ("version: 1\ndefaults: {handler: x}\njobs: {}\n", "nothing was imported"),
        (
            "version: 1\njobs:\n  a:\n    command: [a]\n    stdin: |+\n      text\n\n\n# end\n",
            "cannot be extended as text",
        ),
        ("---\n", "the file is empty"),
        ("", "the file is empty"),
        ("# jobs of web_01\n", "the file is empty"),
    ],
)
def test_a_file_that_cannot_be_extended_stays_as_it_is(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(text)

    with pytest.raises(Refused, match=message):
        raise run("-", "--into", file, input="0 2 * * * one\n").exception or AssertionError

    assert file.read_text() == text


def test_a_file_that_does_not_exist_is_created_and_a_link_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to("schedules.yaml")
    assert (
        run("-", "--into", tmp_path / "schedules.yaml", input="0 2 * * * one\n").return_value == 0
    )
    assert run("-", "--into", link, input="0 2 * * * two\n").return_value == 0

    assert link.is_symlink()
    assert set(load(link.read_bytes(), "", None).entries) == {"one", "two"}


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


def test_a_file_that_may_not_be_written_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(text := "version: 1\njobs:\n  a:\n    command: [a]\n")
    # root may write every file
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)

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


FIRST = """\
version: 1
defaults:
  env: {DATABASE_URL: /run/first}
  cwd: /home/first
  max_attempts: 3
jobs:
  a: {cron: "0 1 * * *", command: [a]}
"""


def test_the_environment_and_directory_of_the_first_server_do_not_apply_to_jobs_of_a_second_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(FIRST)

    done = run(
        "-",
        "--policy",
        "advised",
        "--into",
        file,
        input="0 2 * * * one\nB=2\n0 3 * * * cd /x && two\n",
    )

    jobs = load(file.read_bytes(), str(file), None).jobs
    assert [(jobs[name].env, jobs[name].cwd) for name in ("a", "one", "two")] == [
        ({"DATABASE_URL": "/run/first"}, "/home/first"),
        ({}, "."),
        ({"B": "2"}, "/x"),
    ]
    assert "the imported jobs also get its defaults: max_attempts\n" in done.stderr


def test_handlers_do_not_get_keys_of_commands(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(FIRST)
    text = "beat_schedule = {'t': {'task': 'm.f', 'schedule': crontab(minute=0)}}\n"

    assert run("-", "--from", "celery", "--into", file, input=text).return_value == 0

    assert "does not apply" not in file.read_text()
    assert "handler: m.f" in file.read_text()
