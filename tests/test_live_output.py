"""The output of running attempts, in real processes: written when their leases are renewed, gone when they end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Cli, command_line
from support.project import Project, a_project, until
from yamlsched.runs.lifecycle import ClaimedRun, Keep
from yamlsched.schedule.job import Job, Output
from yamlsched.worker import leases
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.output import AttemptOutput

pytestmark = pytest.mark.story

HOSTILE = "\x1b]0;title\x07 \x1b[2J\u202e\n"


@pytest.fixture
def project(tmp_path: Path, dsn: str) -> Iterator[Project]:
    with a_project(tmp_path, dsn) as project:
        yield project


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def live(project: Project, run: int) -> list[Any]:
    found = project.db.execute(
        "select * from yamlsched.running_outputs where run_id = %s order by attempt", [run]
    )
    return found.fetchall()


def until_live(project: Project, run: int, text: str) -> None:
    until(
        lambda: any(text in one.output for one in live(project, run)),
        f"{text!r} of run {run} is written",
    )


@pytest.mark.parametrize("job", ["handler", "command", "shared"])
def test_what_a_running_attempt_prints_is_written_and_replaced_by_what_is_kept(
    project: Project, cli: Cli, job: str
) -> None:
    script = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo last"
    entries: dict[str, dict[str, Any]] = {
        "handler": {"handler": "support.handlers.prints_and_waits"},
        "command": {"command": ["/bin/sh", "-c", script]},
        "shared": {"handler": "support.coroutine_handlers.prints_and_waits", "queue": "shared"},
    }
    project.sync(job={**entries[job], "output": {"keep": "always"}})
    [run] = project.enqueue("job")
    worker = project.start("work")
    until_live(project, run, "first")

    shown = cli("show", run).out
    assert "output until 20" in shown
    assert "      first" in shown
    assert cli("show", run, "--output").out == "first\n"

    project.touch("go")
    assert worker.wait() == 0
    assert [output.output for output in project.outputs(run)] == ["first\nlast\n"]
    assert live(project, run) == []


@pytest.mark.parametrize("then", ["", "fail", "commit"])
def test_nothing_is_left_of_an_attempt_whose_output_is_not_kept(
    project: Project, then: str
) -> None:
    keep = "never" if then == "fail" else "failed"
    project.sync(prints_and_waits={"max_attempts": 1, "output": {"keep": keep}})
    [run] = project.enqueue("prints_and_waits", {"then": then})
    worker = project.start("work")
    if keep == "never":
        project.until_started(run)
        before = project.row(run).locked_until
        until(
            lambda: project.row(run).locked_until > before + timedelta(seconds=1),
            "its lease was renewed",
        )
        assert live(project, run) == []
    else:
        until_live(project, run, "first")
    project.touch("go")
    worker.wait()

    assert project.row(run).finished_at is not None
    assert (live(project, run), project.outputs(run)) == ([], [])


def test_a_cancelled_attempt_leaves_what_it_printed_to_the_kept_output(
    project: Project, cli: Cli
) -> None:
    project.sync(prints_and_waits={})
    [run] = project.enqueue("prints_and_waits")
    worker = project.start("work")
    until_live(project, run, "first")

    assert cli("cancel", run, "--yes").code == 0
    worker.wait()

    assert [output.output for output in project.outputs(run)] == ["first\n"]
    assert live(project, run) == []


def test_an_attempt_that_is_lost_with_its_worker_keeps_its_last_words(
    project: Project, cli: Cli
) -> None:
    # given a worker that is killed while its handler prints
    project.sync(prints_and_waits={"max_attempts": 2})
    [run] = project.enqueue("prints_and_waits", {"text": f"before the crash\n{HOSTILE}half a li"})
    worker = project.start("work")
    until_live(project, run, "before the crash")
    worker.signal(signal.SIGKILL)
    worker.wait()

    # when the next attempt succeeds
    project.end_leases()
    project.touch("go")
    project.work()

    # then the words of the first one are shown with it, and cannot change the terminal
    shown = cli("show", run).out
    first, second = shown[shown.index("attempt 1  ") :].split("attempt 2  ")
    assert "lost its worker" in first
    assert "before the crash" in first
    assert "half a li" not in first
    assert "before the crash" not in second
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)

    # and they go with the run
    project.db.execute("delete from yamlsched.job_runs where id = %s", [run])
    assert live(project, run) == []


def test_a_run_is_followed_through_its_attempts_until_it_ends(project: Project) -> None:
    # given a follower of a run that has not started
    project.sync(prints_and_waits={"max_attempts": 2})
    [run] = project.enqueue("prints_and_waits", {"text": f"{HOSTILE}first\n", "then": "fail"})
    follower = project.start("show", str(run), "--follow")
    out = project.folder / f"out-{project.number}"

    # when it runs, and is retried
    project.start("work")
    until(
        lambda: out.exists() and "first" in out.read_text(),
        "the follower has printed what the attempt did",
    )
    project.touch("go")

    # then it has printed each line once, and exits when the run is dead
    assert follower.wait() == 1
    text = out.read_text()
    lines = text.splitlines()
    assert [line for line in lines if line in ("first", "last")] == ["first", "last"] * 2
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert f"run {run}: dead" in follower.text


def test_a_follower_of_a_run_that_has_ended_prints_what_is_kept(project: Project, cli: Cli) -> None:
    project.sync(prints_and_waits={"output": {"keep": "always"}})
    [run] = project.enqueue("prints_and_waits")
    project.touch("go")
    project.work()

    shown = cli("show", run, "--follow")

    assert (shown.code, shown.out) == (0, "first\nlast\n")
    assert cli("show", run, "--follow", "--format", "json").code == 2


# -- what is written ---------------------------------------------------------------------------------------------------

RUN = ClaimedRun(7, "purge", None, None, 1, 5, "{}", False, 120.0, "host:1:a")


def an_attempt(keep: Keep = Keep.FAILED) -> tuple[Attempt, AttemptOutput]:
    pipe = AttemptOutput(RUN)
    attempt = Attempt(RUN, Job("purge", output=Output(keep)), 0.0, 0.0, output=pipe)
    return attempt, pipe


def note(attempt: Attempt, redact: Any = str) -> tuple[str, int] | None:
    return attempt.live_output if leases.note_output(attempt, redact) else None


def test_only_whole_lines_are_written_and_only_if_they_are_new() -> None:
    attempt, pipe = an_attempt()
    assert note(attempt) is None
    pipe.add(b"one\ntw")
    assert note(attempt) == ("one\n", 0)
    assert note(attempt) is None
    pipe.add(b"o\n50%\r")
    assert note(attempt) == ("one\ntwo\n50%\r", 0)


def test_the_last_eight_kibibytes_are_written_with_the_number_of_those_before() -> None:
    attempt, pipe = an_attempt()
    pipe.add("€uro\n".encode() * 50_000)

    written = note(attempt)

    assert written is not None
    text, omitted_bytes = written
    assert leases.MAX_OUTPUT_BYTES - 8 <= len(text.encode()) <= leases.MAX_OUTPUT_BYTES
    assert omitted_bytes + len(text.encode()) == 7 * 50_000


def test_a_secret_is_removed_also_where_the_output_is_cut() -> None:
    attempt, pipe = an_attempt()
    secret = "hunter2-hunter2"
    filler = "x" * (leases.MAX_OUTPUT_BYTES - 8) + "\n"
    pipe.add(f"{secret}\n{filler}{secret[:7]}".encode())

    written = note(attempt, lambda text: text.replace(secret, "***"))

    assert written is not None
    assert "hunter2" not in written[0]


def test_an_attempt_is_not_written_after_its_end_or_its_loss() -> None:
    attempt, pipe = an_attempt()
    pipe.add(b"one\n")
    assert note(attempt) == ("one\n", 0)
    pipe.add(b"two\n")
    attempt.took = 1.0
    assert note(attempt) is None
    attempt.took, attempt.is_lost = None, True
    assert note(attempt) is None

    never, pipe = an_attempt(Keep.NEVER)
    pipe.add(b"one\n")
    assert note(never) is None
