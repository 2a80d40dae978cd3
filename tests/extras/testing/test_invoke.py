"""``yamlsched invoke``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import yamlsched
from support.project import is_alive, until

FILE = """version: 1
jobs:
  add: {handler: work.add, payload: {a: 1, b: 2}}
  fan: {handler: work.fan}
  fail: {handler: work.fail}
  count: {handler: work.count}
  needs: {handler: work.needs}
  prints: {command: [/bin/sh, -c, 'echo "$YAMLSCHED_PAYLOAD"; pwd; cat'], payload: {a: 1, b: 2}, stdin: x}
  exits: {command: [/bin/sh, -c, 'echo "no disk" >&2; exit "$1"', sh, "3"]}
  later: {command: [/bin/sh, -c, "exit 75"]}
  missing: {command: [./missing]}
  extract: {cron: "@daily", handler: work.fan}
  load: {handler: work.load, after: [extract]}
  publish: {command: [/bin/sh, -c, 'echo "$YAMLSCHED_UPSTREAM"'], after: [load]}
  page: {handler: work.page}
  ping: {command: [/bin/sh, -c, 'echo "$YAMLSCHED_TRIGGER"']}
  hangs: {command: [/bin/sh, -c, "trap '' TERM; sleep 1000 & echo $! > child; wait; wait"], timeout: 1s, kill_after: 0s}
"""
HANDLERS = """
def add(a, b): return {"sum": a + b}
def fan(run): run.enqueue("add", {"a": 5}, key="add:5")
def count(run):
    for done in range(2_001):
        run.progress(done, 2_000, "rows")
def fail(): raise ValueError("no route to host")
def needs(a, run): pass
def page(run): return run.trigger and [run.trigger.job_type, run.trigger.error, run.trigger.status]
def load(run): return {"loaded": run.upstream["extract"].result}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "schedules.yaml").write_text(FILE)
    (tmp_path / "work.py").write_text(HANDLERS)
    return tmp_path


def test_invoke_merges_the_given_payload_over_that_of_the_file(project: Path, dsn: str) -> None:
    done = yamlsched("invoke", "add", "--payload", '{"b": 40}', "--dsn", dsn, cwd=project)
    assert (done.returncode, done.stdout) == (0, '{"sum": 41}\n')


@pytest.mark.story
def test_invoke_gives_what_the_jobs_that_it_follows_have_returned(project: Path) -> None:
    done = yamlsched("invoke", "load", "--upstream", '{"extract": {"rows": 7}}', cwd=project)
    assert (done.returncode, done.stdout) == (0, '{"loaded": {"rows": 7}}\n'), done.stderr

    done = yamlsched("invoke", "load", cwd=project)
    assert (done.returncode, done.stdout) == (0, '{"loaded": null}\n'), done.stderr

    done = yamlsched("invoke", "publish", "--upstream", '{"load": [1, 2]}', cwd=project)
    [found] = json.loads(done.stdout).values()
    assert (found["status"], found["result"]) == ("succeeded", [1, 2])


@pytest.mark.story
def test_invoke_gives_a_hook_what_it_is_told_to_report(project: Path) -> None:
    trigger = '{"job_type": "load", "error": "no route", "scheduled_for": "2026-01-14T02:00Z"}'
    done = yamlsched("invoke", "page", "--trigger", trigger, cwd=project)
    assert (done.returncode, done.stdout) == (0, '["load", "no route", "dead"]\n'), done.stderr

    assert yamlsched("invoke", "page", cwd=project).stdout == "null\n"

    found = json.loads(yamlsched("invoke", "ping", "--trigger", trigger, cwd=project).stdout)
    assert (found["job_type"], found["payload"], found["result"]) == ("load", {}, None)


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        ('{"jobtype": "load"}', 'run.trigger has no jobtype. Did you mean "job_type"?'),
        ('{"scheduled_for": "soon"}', "scheduled_for of --trigger is not a time"),
        ('{"scheduled_for": 7}', "scheduled_for of --trigger is not a time"),
    ],
)
def test_invoke_refuses_a_trigger_that_no_hook_gets(
    project: Path, trigger: str, message: str
) -> None:
    done = yamlsched("invoke", "page", "--trigger", trigger, cwd=project)
    assert done.returncode == 1
    assert message in done.stderr


def test_invoke_refuses_results_of_a_job_that_it_does_not_follow(project: Path) -> None:
    done = yamlsched("invoke", "load", "--upstream", '{"extrct": 1}', cwd=project)
    assert done.returncode == 1
    assert '"load" does not follow extrct. Did you mean "extract"?' in done.stderr


def test_invoke_shows_what_would_be_enqueued(project: Path, dsn: str) -> None:
    done = yamlsched("invoke", "fan", "--dsn", dsn, cwd=project)
    assert (done.returncode, done.stdout) == (0, "null\n")
    assert 'would enqueue add {"a": 5} key=add:5' in done.stderr


def test_invoke_shows_the_progress_that_was_reported_last(project: Path) -> None:
    result = yamlsched("invoke", "count", cwd=project)

    lines = [line for line in result.stderr.splitlines() if line.startswith("progress: ")]
    assert lines == ["progress: 2,000 of 2,000 (100 %), rows"]


def test_invoke_shows_the_handler_s_traceback(project: Path, dsn: str) -> None:
    done = yamlsched("invoke", "fail", "--dsn", dsn, cwd=project)
    assert done.returncode == 1
    assert "ValueError: no route to host" in done.stderr


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["ad"], 1, 'no valid job "ad" in schedules.yaml. Did you mean "add"?'),
        (["add", "--payload", "{"], 2, "invalid JSON where it ends"),
        (["add", "--payload", "[]"], 2, "not a JSON object"),
        (
            ["add", "--payload", '{"c": 3}'],
            1,
            'does not fit: work.add has no parameter "c". It takes: a, b.',
        ),
        (["needs"], 1, 'does not fit: work.needs requires "a", which the payload does not contain'),
    ],
)
def test_invoke_refuses_what_cannot_be_called(
    project: Path, dsn: str, arguments: list[str], code: int, says: str
) -> None:
    done = yamlsched("invoke", *arguments, "--dsn", dsn, cwd=project)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


# -- commands


def test_invoke_runs_a_command_with_the_given_payload_merged_over_that_of_the_file(
    project: Path,
) -> None:
    done = yamlsched("invoke", "prints", "--payload", '{"b": 40}', cwd=project)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f'{{"a": 1, "b": 40}}\n{project}\nx',
        "",
    )


@pytest.mark.parametrize(
    "job, end",
    [
        ("exits", "no disk\nexit code 3: the attempt would have failed\n"),
        ("later", "exit code 75: the attempt would have failed, and be retried after 15m\n"),
        (
            "missing",
            "FileNotFoundError: cannot be started: No such file or directory: ./missing: "
            "the run would be dead\n",
        ),
    ],
)
def test_invoke_says_what_the_exit_of_a_command_means(project: Path, job: str, end: str) -> None:
    done = yamlsched("invoke", job, cwd=project)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", end)


def test_invoke_as_json_has_the_exit_code_and_the_output_apart(project: Path) -> None:
    done = yamlsched("invoke", "prints", "--format", "json", cwd=project)
    answer = {
        "format_version": 1,
        "result": None,
        "outcome": "succeeded",
        "exit_code": 0,
        "error": None,
    }
    assert (done.returncode, json.loads(done.stdout)) == (0, answer)
    assert done.stderr.startswith('{"a": 1, "b": 2}\n')


def test_invoke_kills_a_command_after_its_timeout(project: Path) -> None:
    done = yamlsched("invoke", "hangs", cwd=project)
    assert (done.returncode, done.stderr) == (
        1,
        "Timeout: still running after 1s, killed: the attempt would have failed\n",
    )
    child = int((project / "child").read_text())
    until(lambda: not is_alive(child), "what the command started is killed")


@pytest.mark.story
@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_command_does_not_outlive_an_invoke_that_is_ended_by_a_signal(
    project: Path, number: int, code: int
) -> None:
    process, child = invoke_command(project, "sleep 1000 & echo $! > child; wait")

    process.send_signal(number)

    assert process.wait() == code
    until(lambda: not is_alive(child), "the command has ended")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel kills it")
def test_a_program_does_not_outlive_an_invoke_that_is_killed(project: Path) -> None:
    process, child = invoke_command(project, "echo $$ > child; exec sleep 1000")

    process.kill()

    assert process.wait() == -signal.SIGKILL
    until(lambda: not is_alive(child), "the program has ended")


def invoke_command(project: Path, script: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start ``invoke`` of a shell's script that writes the id of a process to the file ``child``; return both."""
    (project / "schedules.yaml").write_text(
        f"version: 1\njobs: {{hangs: {{command: [/bin/sh, -c, '{script}']}}}}\n"
    )
    argv = [sys.executable, "-m", "yamlsched", "invoke", "hangs"]
    process = subprocess.Popen(
        argv, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    child = project / "child"
    until(lambda: child.exists() and child.read_text().endswith("\n"), "the command runs")
    return process, int(child.read_text())
