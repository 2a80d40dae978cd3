"""Faults of handlers and hosts, and their effect on the run: two tables.

Each fault has its exact expected result: the run's final status, its attempts, how many calls of
its handler started and how many completed, and its rows in job_failures. Processes, signals and PostgreSQL are
real. Leases last 2 seconds for faults of hosts. For those of handlers they last 5 minutes: a worker that cannot renew
a lease in time, as on a busy machine, stops the handler and releases its run, which is then started once more without
a charge.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from psycopg.conninfo import make_conninfo

from support.database import temporary_database
from support.project import Project, a_project, is_alive, until
from support.proxy import a_proxy
from yamlsched import db as store
from yamlsched.extras import embedded


class Summary(NamedTuple):
    """The expected result of a run."""

    status: str
    attempts: int
    started: int
    completed: int
    failures: int


SUCCEEDS = Summary("succeeded", 1, 1, 1, 0)
DIES = Summary("dead", 2, 2, 0, 2)  # each job has two attempts
DIES_AFTER_ITS_WORK = Summary("dead", 2, 2, 2, 2)
SECOND_ATTEMPT = Summary("succeeded", 2, 2, 1, 1)

# handler, expected result of its run, part of its last error
HANDLERS = [
    ("segfault", DIES, "killed by SIGSEGV (signal 11)"),
    ("exits", DIES, "the process exited with status 0"),
    ("calls_exit", DIES, "called sys.exit(3)"),
    ("is_killed", DIES, "killed by SIGKILL (signal 9), possibly out of memory"),
    ("exhausts_memory", DIES, "MemoryError"),
    ("hangs", DIES, "still running after 1s, killed"),
    ("hangs_async", DIES, "still running after 1s, killed"),
    ("ignores_signals", DIES, "still running after 1s, killed"),
    ("ignores_exceptions", DIES, "still running after 1s, killed"),
    ("swallows_everything", DIES_AFTER_ITS_WORK, "still running after 1s, killed"),
    ("recurses", DIES, "maximum recursion depth exceeded"),
    ("forks_and_both_return", Summary("succeeded", 1, 1, 2, 0), ""),
    ("forks_and_leaves_it", SUCCEEDS, ""),
    ("leaves_a_program_and_dies", DIES, "exited with status 7"),
    (
        "closes_descriptors",
        DIES_AFTER_ITS_WORK,
        "the handler closed file descriptors that it did not open",
    ),
    (
        "closes_all_descriptors",
        DIES_AFTER_ITS_WORK,
        "the handler closed file descriptors that it did not open",
    ),
    (
        "reuses_descriptors",
        DIES_AFTER_ITS_WORK,
        "the handler closed file descriptors that it did not open",
    ),
    ("writes_everywhere", DIES, "the handler wrote to a file descriptor that it did not open"),
    ("closes_stdout", SUCCEEDS, ""),
    ("resets_sigterm", SUCCEEDS, ""),
    ("prints", SUCCEEDS, ""),
    ("prints_much", SUCCEEDS, ""),
    ("prints_garbage_and_fails", DIES, "after garbage"),
    ("fails", DIES, "no route to host"),
    ("fails_once", SECOND_ATTEMPT, "not yet"),
    ("raises_invalid_text", DIES, "even\\x00 this \\x1b[31m? and so on"),
    ("raises_unprintable", DIES, "exception has no printable message"),
    ("raises_keyboard_interrupt", DIES, "KeyboardInterrupt"),
    ("discards", Summary("dead", 1, 1, 0, 1), "the customer is gone"),
    ("asks_to_retry", SECOND_ATTEMPT, "too many requests"),
    ("snoozes", Summary("succeeded", 1, 2, 1, 0), ""),
    (
        "returns_a_function",
        DIES_AFTER_ITS_WORK,
        "the result is of type function, which is not a valid JSON value",
    ),
    ("returns_nan", DIES_AFTER_ITS_WORK, "the result is nan, which is not a valid JSON number"),
    ("returns_nul", DIES_AFTER_ITS_WORK, "the result contains a NUL character"),
    ("returns_itself", DIES_AFTER_ITS_WORK, "nested over 50 deep, or is self-referencing"),
    ("returns_too_much", DIES_AFTER_ITS_WORK, "over the limit of 64 KiB"),
    ("enqueues_nonsense", DIES_AFTER_ITS_WORK, 'no job "no_such_job"'),
    (
        "is_not_there",
        Summary("dead", 2, 0, 0, 2),
        "module 'support.handlers' has no attribute 'is_not_there'",
    ),
]
INNOCENT = 40


class Drained(NamedTuple):
    project: Project
    runs: dict[str, int]
    innocent: list[int]
    log: str


@pytest.fixture(scope="module")
def drained(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drained]:
    """All handlers of the table in one queue, mixed with normal ones, drained by one worker."""
    with (
        temporary_database(server, template) as dsn,
        a_project(tmp_path_factory.mktemp("f"), dsn) as project,
    ):
        jobs = {
            name: {"max_attempts": 2, "timeout": "1s" if "1s" in error else "1m", "lease": "5m"}
            for name, _, error in HANDLERS
        }
        project.sync(nap={"lease": "5m"}, **jobs)
        innocent = project.enqueue("nap", count=INNOCENT // 2)
        runs = {name: project.enqueue(name)[0] for name, _, _ in HANDLERS}
        innocent += project.enqueue("nap", count=INNOCENT // 2)
        process = project.work("--concurrency", "6", code=1)
        project.touch("forked children may go")
        yield Drained(project, runs, innocent, process.text)


@pytest.mark.slow
@pytest.mark.parametrize("handler, becomes, error", HANDLERS, ids=[name for name, _, _ in HANDLERS])
def test_a_fault_of_a_handler_costs_its_run_one_attempt_each_time(
    drained: Drained, handler: str, becomes: Summary, error: str
) -> None:
    run = drained.runs[handler]

    assert drained.project.summary(run) == becomes
    row = drained.project.row(run)
    assert error in (row.last_error or "")
    assert (row.last_error or "").isprintable()
    assert len(row.last_error or "") <= 500


@pytest.mark.slow
def test_other_runs_succeed_beside_faulty_handlers(drained: Drained) -> None:
    for run in drained.innocent:
        assert drained.project.summary(run) == SUCCEEDS


@pytest.mark.slow
def test_programs_of_a_dead_handler_are_killed_before_its_retry(drained: Drained) -> None:
    left = int((drained.project.folder / "left-alone").read_text())

    until(lambda: not is_alive(left), "the program that the handler left has ended")


@pytest.mark.slow
def test_output_of_handlers_goes_to_stderr_with_the_run_and_its_end_is_stored_with_a_failure(
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

    name = f"[prints_much {drained.runs['prints_much']}] "
    assert drained.log.count(f"{name}xxxx") == (1 << 20) // (1024 + len(name))
    left_out = "63.0 MiB of output left out here, the limit for one attempt is 1 MiB"
    assert drained.log.count(f"{name}yamlsched: {left_out}\n") == 1


# Faults of worker, host and server. The first attempt of ``first_attempt_waits`` waits forever.


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


DIE = "lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
MODULES = "from yamlsched.worker import outcomes, report; from yamlsched.worker.local import pool"
POINTS = [
    ("after the claim", "pool.Pool.submit", 0, Summary("succeeded", 2, 1, 1, 1)),
    (
        "between handler and finish",
        "outcomes.Outcomes.add_successes",
        0,
        Summary("succeeded", 2, 2, 2, 1),
    ),
    ("after the finish", "report.RunReport.note_successes", 0, Summary("succeeded", 1, 1, 1, 0)),
]


@pytest.mark.parametrize(
    "where, function, nth, becomes", POINTS, ids=[where for where, *_ in POINTS]
)
def test_a_worker_that_is_killed_loses_no_run(
    project: Project, where: str, function: str, nth: int, becomes: Summary
) -> None:
    project.sync(nothing={})
    run = project.enqueue("nothing", count=2)[nth]

    before = f"import os, signal; {MODULES}; {function} = {DIE}"
    project.work("--concurrency", "1", before=before, code=-signal.SIGKILL)
    project.end_leases()
    project.work()

    assert project.summary(run) == becomes
    assert all(failure.error.startswith("lost its worker ") for failure in project.failures(run))


def test_a_handler_dies_with_its_killed_worker(project: Project) -> None:
    project.sync(first_attempt_waits={})
    [run] = project.enqueue("first_attempt_waits")
    worker = project.start("work")
    project.until_started(run)
    [handler] = worker.children()

    worker.signal(signal.SIGKILL)
    until(lambda: not is_alive(handler), "the handler has ended with its worker")
    project.end_leases()
    project.work()

    assert project.summary(run) == SECOND_ATTEMPT


def test_if_no_process_can_be_started_runs_are_released_and_the_worker_reports_why(
    project: Project,
) -> None:
    project.sync(nothing={})
    runs = project.enqueue("nothing", count=10)
    refuse = "import os\ndef refuse(): raise BlockingIOError(11, 'Resource temporarily unavailable')\nos.fork = refuse"

    process = project.work(before=refuse, code=3)

    assert "no child process can be started: Resource temporarily unavailable" in process.text
    assert {project.summary(run) for run in runs} == {Summary("queued", 0, 0, 0, 0)}


def test_work_names_the_jobs_that_it_leaves_out_because_of_errors_in_the_file(
    project: Project,
) -> None:
    project.sync(nothing={}, nap={})
    [left], [done] = project.enqueue("nap"), project.enqueue("nothing")
    project.write(nothing={}, nap={"max_atempts": 3})

    process = project.work(code=1)

    assert "jobs.left_out" in process.text
    assert "jobs=nap mistakes=1" in process.text
    assert [project.row(run).status for run in (left, done)] == ["queued", "succeeded"]


def test_a_child_that_is_killed_costs_its_run_one_attempt_at_once(project: Project) -> None:
    project.sync(first_attempt_waits={"lease": "1h"})
    [run] = project.enqueue("first_attempt_waits")
    worker = project.start("work")
    project.until_started(run)

    os.kill(worker.children()[0], signal.SIGKILL)

    assert worker.wait() == 0
    assert project.summary(run) == SECOND_ATTEMPT
    [failure] = project.failures(run)
    assert failure.error == "killed by SIGKILL (signal 9), possibly out of memory"


@pytest.mark.slow
def test_a_worker_that_was_suspended_past_its_lease_changes_nothing_and_stops_its_handler(
    project: Project,
) -> None:
    # given a worker that is stopped with its child while a handler runs
    project.sync(first_attempt_waits={})
    [run] = project.enqueue("first_attempt_waits")
    zombie = project.start("work")
    project.until_started(run)
    handlers = zombie.children()
    for pid in (zombie.pid, *handlers):
        os.kill(pid, signal.SIGSTOP)

    # when its lease has ended, and another worker has finished the run
    other = project.start("work", "--loop", host="b")
    finished = project.until_status(run, "succeeded")
    for pid in (*handlers, zombie.pid):
        os.kill(pid, signal.SIGCONT)

    # then it ends, after its handler
    assert zombie.wait() == 0
    assert not any(map(is_alive, handlers))
    assert "lease.lost" in zombie.text
    assert project.row(run) == finished
    assert project.summary(run) == SECOND_ATTEMPT
    other.signal(signal.SIGTERM)
    assert other.wait() == 0


def test_sessions_that_are_terminated_cost_no_run_and_no_attempt(project: Project) -> None:
    project.sync(nap={"lease": "1m"})
    runs = project.enqueue("nap", count=150)
    worker = project.start("work", "--concurrency", "4")

    for part in (20, 50, 80, 110):
        until(lambda part=part: project.calls("completed") >= part, f"{part} runs are through")
        project.db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )

    assert worker.wait() == 0, worker.text
    assert {project.summary(run) for run in runs} == {SUCCEEDS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL], ids=["fast", "immediate", "kill -9"]
)
def test_a_server_that_restarts_during_a_drain_costs_no_run_and_no_attempt(
    tmp_path: Path, how: signal.Signals
) -> None:
    file = tmp_path / "server" / "schedules.yaml"
    file.parent.mkdir()
    try:
        with embedded.running(file) as dsn:
            with store.connect(dsn) as connection:
                store.migrations.migrate(connection)
            with a_project(tmp_path, dsn) as project:
                project.sync(nap={"lease": "2m"})  # longer than a restart of the server
                runs = project.enqueue("nap", count=150)
                worker = project.start("work", "--concurrency", "4")
                until(lambda: project.calls("completed") >= 50)

                server = embedded.status(file).pid
                assert server is not None
                os.kill(server, how)
                until(lambda: not is_alive(server), "the server has ended")
                with embedded.running(file):  # starts it again
                    assert worker.wait() == 0, worker.text

                project.db = store.connect(dsn)
                assert {project.summary(run) for run in runs} == {SUCCEEDS}
                assert "database.away" in worker.text
                assert "database.back" in worker.text
    finally:
        embedded.discard(file)


@pytest.mark.slow
def test_a_silent_network_stops_the_handler_before_another_worker_starts_the_run(
    project: Project,
) -> None:
    project.sync(first_attempt_waits={})
    [run] = project.enqueue("first_attempt_waits")
    with a_proxy(project.dsn) as proxy:
        cut_off = project.start("tick", "--max-time", "1s", dsn=proxy.dsn)
        project.until_started(run)
        [handler] = cut_off.children()

        # when the network becomes silent without closing a connection
        proxy.is_silent = True
        until(lambda: not is_alive(handler), "the handler is stopped")
        assert project.summary(run) == ("running", 1, 1, 0, 0)
        still_held = project.db.execute(
            "select locked_until > now() from yamlsched.job_runs"
        ).fetchone()[0]

        # then the handler was stopped before its lease ended, and the tick ends with a one-line error
        assert still_held
        other = project.start("work", "--loop", host="b")
        project.until_status(run, "succeeded")
        assert cut_off.wait() == 3
        assert "the database was lost and did not return" in cut_off.text
        assert "Traceback" not in cut_off.text
        assert project.summary(run) == SECOND_ATTEMPT
        other.signal(signal.SIGTERM)
        assert other.wait() == 0


def test_short_timeouts_of_the_server_only_slow_a_worker_down(project: Project) -> None:
    project.sync(nap={"lease": "1m"})
    runs = project.enqueue("nap", count=60)

    low = make_conninfo(project.dsn, options="-c statement_timeout=150ms -c lock_timeout=10ms")
    project.work(dsn=low)

    assert {project.summary(run) for run in runs} == {SUCCEEDS}


def test_an_outcome_that_cannot_be_written_blocks_no_other(project: Project) -> None:
    # given a run whose row is locked when its handler ends
    project.sync(waits_for_file={"lease": "1m"}, nap={"lease": "1m"})
    [locked] = project.enqueue("waits_for_file")
    low = make_conninfo(project.dsn, options="-c lock_timeout=10ms")
    worker = project.start("work", dsn=low)
    project.until_started(locked)
    with store.connect(project.dsn) as other, other.transaction():
        other.execute("select 1 from yamlsched.job_runs where id = %s for update", [locked])
        project.touch("go")
        runs = project.enqueue("nap", count=20)

        # when other runs end
        until(lambda: project.statuses().get("succeeded") == len(runs), "the others have succeeded")

        # then their outcomes are written, and its own as soon as possible
        assert project.summary(locked) == ("running", 1, 1, 1, 0)
    assert worker.wait() == 0
    assert project.summary(locked) == SUCCEEDS


@pytest.mark.slow
def test_twenty_workers_on_one_queue_start_each_run_once(project: Project) -> None:
    project.sync(nothing={"lease": "1m"})
    runs = project.enqueue("nothing", count=400)

    workers = [project.start("work", "--concurrency", "40") for _ in range(20)]

    assert [worker.wait() for worker in workers] == [0] * 20
    assert {project.summary(run) for run in runs} == {SUCCEEDS}


def test_a_run_that_kills_its_worker_each_time_ends_dead_and_its_hook_runs_once(
    project: Project,
) -> None:
    project.sync(
        kills_its_worker={"max_attempts": 3, "on_dead": ["records_death"]}, records_death={}
    )
    [run] = project.enqueue("kills_its_worker")

    for _ in range(3):
        project.work(code=-signal.SIGKILL)
        project.end_leases()
    project.work(code=1)
    project.work()

    assert project.summary(run) == ("dead", 3, 3, 0, 3)
    assert project.row(run).last_error.startswith("lost its worker ")
    assert project.calls("on_dead", run) == 1


def test_a_job_that_is_edited_removed_or_renamed_keeps_its_runs(project: Project) -> None:
    # given three jobs, each with one running and one waiting run
    jobs: dict[str, Any] = {
        name: {"handler": "support.handlers.waits_for_file"}
        for name in ("edited", "removed", "renamed")
    }
    project.sync(**jobs)
    running = {name: project.enqueue(name)[0] for name in jobs}
    worker = project.start("work", "--max-runs", "3")
    for run in running.values():
        project.until_started(run)
    waiting = {name: project.enqueue(name)[0] for name in jobs}

    # when the file changes
    project.sync(
        edited={"handler": "support.handlers.nap"},
        new_name={"handler": "support.handlers.waits_for_file"},
    )
    project.touch("go")
    assert worker.wait() == 0
    project.work()

    # then running runs complete, and waiting runs are executed as the new file defines, or remain
    assert {project.summary(run) for run in running.values()} == {SUCCEEDS}
    assert project.summary(waiting["edited"]) == SUCCEEDS
    assert (
        project.summary(waiting["removed"])
        == project.summary(waiting["renamed"])
        == ("queued", 0, 0, 0, 0)
    )

    # and are executed when the jobs return
    project.sync(**jobs)
    project.work()
    assert {project.summary(run) for run in waiting.values()} == {SUCCEEDS}
