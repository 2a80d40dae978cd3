"""What a handler and a host can do to a worker, and what becomes of the run: two tables of faults.

Beside each fault stands what must come of it, in exact terms: the run's final status, its attempts, how many calls of
its handler began and how many came to their end, and its rows in job_failures. Processes, signals and PostgreSQL are
real. Leases last 2 seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import _database
from working import Project, a_project, is_alive, until


class Becomes(NamedTuple):
    """What must become of a run."""

    status: str
    attempts: int
    begun: int
    completed: int
    failures: int


SUCCEEDS = Becomes("succeeded", 1, 1, 1, 0)
DIES = Becomes("dead", 2, 2, 0, 2)  # each job has two attempts
DIES_AFTER_ITS_WORK = Becomes("dead", 2, 2, 2, 2)
SECOND_ATTEMPT = Becomes("succeeded", 2, 2, 1, 1)

# what the handler does, what must become of its run, and which words its last error must hold
HANDLERS = [
    ("segfault", DIES, "killed by signal 11 (SIGSEGV)"),
    ("exits", DIES, "the process exited with status 0 in the middle of the run"),
    ("calls_exit", DIES, "called sys.exit(3)"),
    ("is_killed", DIES, "killed by signal 9 (SIGKILL), perhaps for want of memory"),
    ("takes_all_memory", DIES, "MemoryError"),
    ("hangs", DIES, "still running after 1s, killed"),
    ("hangs_async", DIES, "still running after 1s, killed"),
    ("ignores_signals", DIES, "still running after 1s, killed"),
    ("is_stubborn", DIES, "still running after 1s, killed"),
    ("swallows_everything", DIES_AFTER_ITS_WORK, "still running after 1s, killed"),
    ("recurses", DIES, "maximum recursion depth exceeded"),
    ("forks_and_both_return", Becomes("succeeded", 1, 1, 2, 0), ""),
    ("forks_and_leaves_it", SUCCEEDS, ""),
    ("leaves_a_program_and_dies", DIES, "exited with status 7"),
    ("closes_descriptors", DIES_AFTER_ITS_WORK, "the handler closed file descriptors that were not its own"),
    ("closes_all_descriptors", DIES_AFTER_ITS_WORK, "the handler closed file descriptors that were not its own"),
    ("reuses_descriptors", DIES_AFTER_ITS_WORK, "the handler closed file descriptors that were not its own"),
    ("writes_everywhere", DIES, "the handler wrote into a file descriptor that was not its own"),
    ("closes_stdout", SUCCEEDS, ""),
    ("takes_sigterm", SUCCEEDS, ""),
    ("prints", SUCCEEDS, ""),
    ("prints_much", SUCCEEDS, ""),
    ("prints_garbage_and_fails", DIES, "after garbage"),
    ("fails", DIES, "no route to host"),
    ("fails_once", SECOND_ATTEMPT, "not yet"),
    ("raises_oddly", DIES, "even\\x00 this \\x1b[31m? and so on"),
    ("raises_unspeakably", DIES, "an error whose text cannot be had"),
    ("raises_keyboard_interrupt", DIES, "KeyboardInterrupt"),
    ("discards", Becomes("dead", 1, 1, 0, 1), "the customer is gone"),
    ("asks_to_retry", SECOND_ATTEMPT, "too many requests"),
    ("snoozes", Becomes("succeeded", 1, 2, 1, 0), ""),
    ("returns_a_function", DIES_AFTER_ITS_WORK, "the result is a function, which is no JSON value"),
    ("returns_nan", DIES_AFTER_ITS_WORK, "the result is nan, which is no JSON number"),
    ("returns_nul", DIES_AFTER_ITS_WORK, "the result contains a NUL character"),
    ("returns_itself", DIES_AFTER_ITS_WORK, "nested over 50 deep, or holds itself"),
    ("returns_too_much", DIES_AFTER_ITS_WORK, "over the limit of 64 KiB"),
    ("enqueues_nonsense", DIES_AFTER_ITS_WORK, 'no job "no_such_job"'),
    ("is_not_there", Becomes("dead", 2, 0, 0, 2), "module 'acts' has no attribute 'is_not_there'"),
]
INNOCENT = 40


class Drained(NamedTuple):
    project: Project
    runs: dict[str, int]
    innocent: list[int]
    log: str


@pytest.fixture(scope="module")
def drained(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drained]:
    """All handlers of the table in one queue, among innocent ones, drained by one worker."""
    with contextmanager(_database)(server, template) as dsn, a_project(tmp_path_factory.mktemp("f"), dsn) as project:
        jobs = {name: {"max_attempts": 2, "timeout": "1s" if "1s" in error else "1m"} for name, _, error in HANDLERS}
        project.sync(nap={}, **jobs)
        innocent = project.enqueue("nap", count=INNOCENT // 2)
        runs = {name: project.enqueue(name)[0] for name, _, _ in HANDLERS}
        innocent += project.enqueue("nap", count=INNOCENT // 2)
        process = project.work("--concurrency", "6", code=1)
        project.say("forked children may go")
        yield Drained(project, runs, innocent, process.text)


@pytest.mark.slow
@pytest.mark.parametrize("handler, becomes, error", HANDLERS, ids=[name for name, _, _ in HANDLERS])
def test_what_a_handler_does_costs_its_own_run_one_attempt_at_a_time(
    drained: Drained, handler: str, becomes: Becomes, error: str
) -> None:
    run = drained.runs[handler]

    assert drained.project.became(run) == becomes
    row = drained.project.row(run)
    assert error in (row.last_error or "")
    assert (row.last_error or "").isprintable()
    assert len(row.last_error or "") <= 500


@pytest.mark.slow
def test_the_other_runs_go_on_whatever_handlers_beside_them_do(drained: Drained) -> None:
    for run in drained.innocent:
        assert drained.project.became(run) == SUCCEEDS


@pytest.mark.slow
def test_what_a_dead_handler_had_started_does_not_live_on_beside_its_retry(drained: Drained) -> None:
    left = int((drained.project.folder / "left-alone").read_text())

    until(lambda: not is_alive(left), "the program that the handler left has ended")


@pytest.mark.slow
def test_what_handlers_print_goes_to_stderr_with_the_run_and_the_end_of_it_stays_with_a_failure(
    drained: Drained,
) -> None:
    run = drained.runs["prints"]
    assert f"[prints {run}] a line of {run}\n" in drained.log
    assert f"[prints {run}] INFO prints: a log line of {run}\n" in drained.log

    killed = drained.project.failures(drained.runs["hangs"])
    assert [failure.output for failure in killed] == ["about to hang\n", "about to hang\n"]

    garbage = drained.project.failures(drained.runs["prints_garbage_and_fails"])[0].output
    assert garbage.endswith("\nthe end\n")
    assert len(garbage) <= 65_536
    assert drained.log.replace("\n", "").replace("\t", "").isprintable()
    assert drained.log.count(f"[prints_much {drained.runs['prints_much']}] xxxx") == 64 << 10
