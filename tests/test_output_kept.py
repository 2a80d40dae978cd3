"""The output that is kept of attempts, however they end, in real processes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from support.database import temporary_database
from support.handlers import mixed_output
from support.project import Project, a_project, until

LINE, TIMES = "a line of output\n", 20_000
# how the handler ends, and what is kept with always and with failed
ENDS = [
    ("return", ["printed\n"], []),
    ("pause", ["printed\n"], []),
    ("return_json", ["printed\n"], []),
    ("enqueue", ["printed\n"], []),
    ("commit", ["printed\ninside\nafter the commit\n"], []),
    ("start_others", ["printed\nby a program\nits error\nby a thread\n"], []),
    ("snooze", ["printed\n"], []),
    ("fail", ["printed\n"], ["printed\n"]),
    ("die", ["printed\n"], ["printed\n"]),
]

pytestmark = pytest.mark.story

Drained: TypeAlias = tuple[Project, dict[str, int]]


@pytest.fixture(scope="module")
def drained(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drained]:
    """Every end with every value of ``keep``, drained by one worker."""
    with (
        temporary_database(server, template) as dsn,
        a_project(tmp_path_factory.mktemp("f"), dsn) as project,
    ):
        cases = {
            f"{end}_{keep}": (end, keep)
            for end, _, _ in ENDS
            for keep in ("always", "failed", "never")
        }
        jobs = {
            name: {
                "handler": "support.handlers.prints_then",
                "max_attempts": 1,
                "output": {"keep": keep},
            }
            for name, (_, keep) in cases.items()
        }
        project.sync(nothing={}, **jobs)
        runs = {name: project.enqueue(name, {"then": end})[0] for name, (end, _) in cases.items()}
        project.work("--concurrency", "4", code=1)
        waiting = "select count(*) as runs from yamlsched.job_runs where status = 'queued' and run_at <= now()"
        until(
            lambda: project.db.execute(waiting).fetchone().runs == 3,
            "the runs that snoozed are due",
        )  # type: ignore[union-attr]
        project.work("--concurrency", "4", code=0)
        yield project, runs


@pytest.mark.parametrize("end, always, failed", ENDS, ids=[end for end, _, _ in ENDS])
def test_output_is_kept_as_the_job_says(
    drained: Drained, end: str, always: list[str], failed: list[str]
) -> None:
    project, runs = drained
    kept = {keep: project.outputs(runs[f"{end}_{keep}"]) for keep in ("always", "failed", "never")}

    assert [output.output for output in kept["always"]] == always
    assert [output.output for output in kept["failed"]] == failed
    assert kept["never"] == []
    for output in [*kept["always"], *kept["failed"]]:
        run = project.row(output.run_id)
        assert (output.attempt, output.omitted_bytes) == (1, 0)
        assert (output.worker == run.locked_by) == (
            end != "snooze"
        )  # its number went to the next attempt


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def test_what_a_stopped_attempt_printed_is_kept(project: Project) -> None:
    # given handlers that print and wait
    job = {"handler": "support.handlers.prints_then", "lease": "2s"}
    project.sync(always={**job, "output": {"keep": "always"}}, failed=job)
    payload = {"then": "wait", "text": "waiting\n"}
    [cancelled], [failed], [stopped] = (
        project.enqueue(name, payload) for name in ("always", "failed", "always")
    )
    worker = project.start("work", "--grace", "0s")
    for run in (cancelled, failed, stopped):
        project.until_started(run)

    # when two are cancelled, and the worker is shut down
    project.db.execute(
        "update yamlsched.job_runs set status = 'cancelled', locked_until = null, "
        "finished_at = now() where id = any(%s)",
        [[cancelled, failed]],
    )
    until(
        lambda: project.outputs(cancelled) and project.outputs(failed),
        "the handlers have been stopped",
    )
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0

    # then it is kept: of a cancelled run it counts as that of a failed one
    for run in (cancelled, failed, stopped):
        assert [output.output for output in project.outputs(run)] == ["waiting\n"]
    assert [project.row(run).status for run in (cancelled, failed, stopped)] == [
        "cancelled",
        "cancelled",
        "queued",
    ]


def test_all_that_an_attempt_printed_is_its_own(project: Project) -> None:
    # given runs of one process: the first leaves more in the pipe than the worker reads at once
    project.sync(prints_then={"output": {"keep": "always"}})
    [large] = project.enqueue("prints_then", {"then": "fill_large_pipe"})
    [small] = project.enqueue("prints_then", {"then": "return"})

    project.work("--concurrency", "1")

    [kept], [next_kept] = project.outputs(large), project.outputs(small)
    assert kept.output.endswith("x\nthe end\n")
    assert len(kept.output) + kept.omitted_bytes == len("printed\n") + 900_000 + len("\nthe end\n")
    assert next_kept.output == "printed\n"


def test_a_handler_that_closes_or_redirects_stdout_does_so_only_for_itself(
    project: Project,
) -> None:
    project.sync(prints_then={"output": {"keep": "always"}, "max_attempts": 1})
    ends = ("close_stdout", "return", "redirect_stdout", "start_others")
    runs = [project.enqueue("prints_then", {"then": end})[0] for end in ends]

    project.work("--concurrency", "1")

    kept = [[output.output for output in project.outputs(run)] for run in runs]
    assert kept == [
        ["printed\n"],
        ["printed\n"],
        ["printed\n"],
        ["printed\nby a program\nits error\nby a thread\n"],
    ]


def test_attempts_in_a_row_have_exactly_what_each_has_printed(project: Project) -> None:
    # given many quick runs of one process, handed over ahead, of which half fail
    project.sync(prints_mixed={"output": {"keep": "always"}, "max_attempts": 1})
    runs = [project.enqueue("prints_mixed", {"number": number})[0] for number in range(120)]

    worker = project.work("--concurrency", "1", code=1)

    # then each has its own output, of which the end is kept, and so has each line that was passed on
    for number, run in enumerate(runs):
        printed = mixed_output(number)
        kept = [(output.output, output.omitted_bytes) for output in project.outputs(run)]
        omitted = max(0, len(printed) - 65_536)
        assert kept == ([(printed[omitted:], omitted)] if printed else []), number
        assert project.row(run).status == ("dead" if number % 2 else "succeeded")
    passed_on = re.findall(r"^\[prints_mixed (\d+)\] <(\d+)>", worker.text, re.MULTILINE)
    assert passed_on == [
        (str(run), str(number)) for number, run in enumerate(runs) if mixed_output(number)
    ]


def test_a_worker_that_nobody_reads_does_not_stall_and_keeps_the_output(project: Project) -> None:
    # given a worker whose stderr is a pipe that is never read, and runs that print more than fits
    project.sync(prints_then={"output": {"keep": "always"}, "max_attempts": 1})
    pipe = project.folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    runs = project.enqueue("prints_then", {"then": "return", "text": LINE, "times": TIMES}, count=8)

    # when it works
    redirect = f"import os; os.dup2(os.open({str(pipe)!r}, os.O_WRONLY), 2)"
    worker = project.start("work", "--concurrency", "4", before=redirect)

    # then all of them succeed, and the end of their output is kept
    assert worker.wait() == 0
    os.close(reader)
    printed = LINE * TIMES
    for run in runs:
        [kept] = project.outputs(run)
        assert (kept.output, kept.omitted_bytes) == (printed[-65_536:], len(printed) - 65_536)
    assert project.statuses() == {"succeeded": 8}


def test_what_an_attempt_printed_before_it_lost_its_run_is_kept(project: Project) -> None:
    # given a worker that sleeps for longer than the lease, while its handler waits
    project.sync(prints_then={"lease": "2s"})
    [run] = project.enqueue("prints_then", {"then": "wait", "text": "waiting\n"})
    first = project.start("work", host="a")
    project.until_started(run)
    first.signal(signal.SIGSTOP)

    # when another worker has claimed the run, and the first one wakes up
    second = project.start("work", "--loop", host="b")
    project.until_started(run, times=2)
    first.signal(signal.SIGCONT)

    # then the lost attempt has its output
    until(lambda: project.outputs(run), "the first worker has noticed")
    project.touch("go")
    project.until_status(run, "succeeded")
    second.signal(signal.SIGTERM)
    assert (first.wait(), second.wait()) == (0, 0)
    [failure] = project.failures(run)
    assert (failure.attempt, failure.error[:15], failure.output) == (
        1,
        "lost its worker",
        "waiting\n",
    )
