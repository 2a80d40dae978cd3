"""Queues with mode: async: many coroutines in one child, and every fault of one of them and of their process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.coroutine_jobs import child_of, coroutine, error, once, start
from support.database import temporary_database
from support.project import Project, a_project, is_alive, until
from yamlsched.runs.lifecycle import AttemptEnd, EndKind
from yamlsched.worker.local.child import ChildHandle

pytestmark = pytest.mark.story


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project


# -- normal ------------------------------------------------------------------------------------------------------------


def test_runs_of_coroutine_jobs_execute_side_by_side_in_one_process(project: Project) -> None:
    project.sync(waits=coroutine("waits"))
    runs = project.enqueue("waits", count=20)
    worker = start(project, *runs)

    project.touch("go")

    assert worker.wait() == 0
    assert project.statuses() == {"succeeded": 20}
    assert len({project.row(run).result for run in runs}) == 1


def test_no_more_runs_execute_at_once_than_the_concurrency_of_their_queue_allows_on_the_host(
    project: Project,
) -> None:
    project.queues["shared"]["concurrency"] = 3
    project.sync(waits=coroutine("waits"), nap={})
    runs = project.enqueue("waits", count=5)
    worker = project.start("work")
    until(lambda: project.calls("started") == 3)

    # another worker of this host has no permit for the rest, but executes other jobs
    [nap] = project.enqueue("nap")
    project.work()
    assert project.row(nap).status == "succeeded"
    assert project.calls("started") == 4

    project.touch("go")
    assert worker.wait() == 0
    assert {project.row(run).status for run in runs} == {"succeeded"}


def test_a_run_whose_job_has_another_queue_by_the_file_in_use_is_left_to_other_hosts_at_no_cost(
    project: Project,
) -> None:
    project.sync(naps=coroutine("naps"), nap={})
    project.db.execute(
        "update yamlsched.job_definitions set queue = 'default' where job_type = 'naps'"
    )
    [run], [nap] = project.enqueue("naps"), project.enqueue("nap")

    project.work()

    assert (project.row(run).status, project.row(nap).status) == ("queued", "succeeded")
    assert project.row(run).attempts == 0


# -- what runs of one process do not do to each other


def test_no_run_sees_the_context_variables_of_another_one_and_all_see_those_of_the_module(
    project: Project,
) -> None:
    # given more runs than execute at once, so that runs start where others end
    project.queues["shared"]["concurrency"] = 5
    project.sync(
        tenant=coroutine("tenant"),
        tenant_in_process={"handler": "support.coroutine_handlers.tenant_in_process"},
    )
    runs = project.enqueue("tenant", count=60) + project.enqueue("tenant_in_process", count=20)

    project.work("--concurrency", "1")

    assert {str(project.row(run).result) for run in runs} == {"['none', 'imported']"}


def test_threads_that_hang_take_none_from_later_runs_and_their_process_is_replaced(
    project: Project,
) -> None:
    # given more runs that hang in a thread than a machine has threads of its own for them
    project.sync(
        hangs_in_thread=coroutine("hangs_in_thread", timeout="1s", max_attempts=1),
        uses_thread=coroutine("uses_thread"),
    )
    hanging = project.enqueue("hangs_in_thread", count=(os.cpu_count() or 1) + 8)
    worker = project.start("work", "--loop")
    until(lambda: {project.row(run).status for run in hanging} == {"dead"})

    # then later runs get a thread, and in the end another process
    [first] = project.enqueue("uses_thread")
    until(lambda: project.row(first).status == "succeeded")
    before = project.row(first).result

    def is_replaced() -> bool:
        [run] = project.enqueue("uses_thread")
        until(lambda: project.row(run).status == "succeeded")
        return bool(project.row(run).result != before)

    until(is_replaced)
    worker.signal(signal.SIGTERM)
    worker.wait()


@pytest.mark.parametrize("how", ["shutdown_default_executor", "set_default_executor"])
def test_no_run_takes_the_threads_of_the_others(project: Project, how: str) -> None:
    project.sync(
        takes_threads=coroutine("takes_threads", max_attempts=1),
        uses_thread=coroutine("uses_thread"),
    )
    [run] = project.enqueue("takes_threads", {"how": how})
    project.work(code=1)
    assert "() changes a process that other runs share" in error(project, run)

    runs = project.enqueue("uses_thread", count=3)
    project.work()
    assert {project.row(each).status for each in runs} == {"succeeded"}


def test_what_is_detached_outlives_the_run_that_started_it_and_has_none_of_its_variables(
    project: Project,
) -> None:
    project.sync(uses_client=coroutine("uses_client"))
    [first] = project.enqueue("uses_client")
    worker = project.start("work", "--loop")
    until(lambda: project.row(first).status == "succeeded")
    [second] = project.enqueue("uses_client")
    until(lambda: project.row(second).status == "succeeded")

    assert [project.row(run).result for run in (first, second)] == [
        ["none", False],
        ["none", False],
    ]
    worker.signal(signal.SIGTERM)
    worker.wait()


def test_a_task_with_a_context_of_its_own_ends_with_the_run_that_created_it(
    project: Project,
) -> None:
    project.sync(leaves_tasks=coroutine("leaves_tasks", output={"keep": "always"}))
    [run] = project.enqueue("leaves_tasks", {"how": "own_context"})
    project.work()
    [output] = project.outputs(run)
    assert "cancelled tasks that the handler left running: _waits" in output.output


def test_an_exception_whose_message_raises_ends_its_attempt(project: Project) -> None:
    project.sync(
        ends=coroutine("ends", max_attempts=1),
        raises={"handler": "support.coroutine_handlers.ends", "max_attempts": 1},
    )
    runs = [
        *project.enqueue("ends", {"how": "unprintable"}),
        *project.enqueue("raises", {"how": "unprintable"}),
    ]
    project.work(code=1)
    assert {error(project, run) for run in runs} == {"exception has no printable message"}


ENDS = {
    "result": ("succeeded", 1, None),
    "raise": ("dead", 2, "ValueError: no such customer"),
    "discard": ("dead", 1, "Discard: never"),
    "retry_after": ("failed", 1, "RetryAfter"),
    "snooze": ("queued", 0, None),
    "exit": ("dead", 2, "SystemExit: called sys.exit(7)"),
    "interrupt": ("dead", 2, "KeyboardInterrupt"),
    "cancel": ("dead", 2, "CancelledError"),
    "function": ("dead", 2, "not a valid JSON value"),
    "stop": (
        "dead",
        2,
        "loop.stop() changes a process that other runs share: use a queue with mode: process",
    ),
    "signal": ("dead", 2, "loop.add_signal_handler() changes a process that other runs share"),
}


def test_each_end_of_a_coroutine_is_the_end_of_its_own_attempt_and_of_no_other(
    project: Project,
) -> None:
    project.sync(ends=coroutine("ends"), waits=coroutine("waits"), not_async=coroutine("not_async"))
    [waiting] = project.enqueue("waits")
    runs = {how: project.enqueue("ends", {"how": how})[0] for how in ENDS}
    [misfit], [sync] = project.enqueue("ends", {"where": 1}), project.enqueue("not_async")
    worker = start(project, waiting)
    for how, (status, _, _) in ENDS.items():
        project.until_status(runs[how], status)
    project.until_status(misfit, "dead")

    project.touch("go")

    assert worker.wait() == 1
    for how, (status, attempts, message) in ENDS.items():
        row = project.row(runs[how])
        assert (how, row.status, row.attempts) == (how, status, attempts)
        assert (
            message is None
            or message in f"{row.error_type}: {row.last_error}"
            or message in row.last_error
        )
    assert 'has no parameter "where"' in error(project, misfit)
    assert "not_async is not an async def, which a queue with mode: async requires" in error(
        project, sync
    )
    assert project.summary(waiting) == ("succeeded", 1, 1, 1, 0)


def test_output_and_log_lines_keep_their_run(project: Project) -> None:
    project.sync(prints=once("prints", output={"keep": "always"}))
    runs = project.enqueue("prints", count=3)

    text = project.work(code=1).text

    for run in runs:
        [output] = project.outputs(run)
        lines = output.output.splitlines()
        assert all(str(run) in line for line in lines), lines
        assert len(lines) == 9
        assert f"[prints {run}] run {run} line 2\n" in text
        assert f"[prints {run}] WARNING shop: warning 1 of run {run}\n" in text
        assert f"[prints {run}] thread of run {run}\n" in text


@pytest.mark.parametrize("queue", ["shared", "default"])
def test_a_transaction_an_effect_and_an_enqueued_run_of_a_coroutine(
    project: Project, queue: str
) -> None:
    project.db.execute("create table shop (run bigint)")
    project.sync(
        writes=once("writes", queue=queue),
        mails=coroutine("mails", queue=queue),
        nothing=coroutine("nothing"),
    )
    committed = project.enqueue("writes", count=30)
    [rolled_back] = project.enqueue("writes", {"how": "rollback"})
    [with_transaction], [with_once] = [
        project.enqueue("writes", {"how": how}) for how in ("sync", "sync once")
    ]
    [mailed] = project.enqueue("mails", {"fails_at": 1})

    project.work(code=1)

    rows = project.db.execute("select run from shop order by 1").fetchall()
    in_once = [with_once] if queue == "default" else []
    assert [row.run for row in rows] == [*committed, *in_once]
    assert {project.row(run).status for run in committed} == {"succeeded"}
    assert {project.row(run).result["rows"] for run in committed} == {1}
    assert project.row(rolled_back).status == "dead"
    if queue == "shared":
        assert "write async with run.transaction():" in error(project, with_transaction)
        assert "write async with run.once():" in error(project, with_once)
    nothing = "select count(*) as runs from yamlsched.job_runs where job_type = 'nothing' and status = 'succeeded'"
    assert project.db.execute(nothing).fetchone().runs == len(rows)
    assert (project.row(mailed).attempts, project.row(mailed).result, project.calls("mailed")) == (
        2,
        1,
        1,
    )


def test_a_hook_may_be_a_coroutine(project: Project) -> None:
    project.sync(ends=once("ends", on_dead=["told"]), told=coroutine("told"))
    [run] = project.enqueue("ends", {"how": "raise"})

    project.work(code=1)

    assert project.calls("told", run) == 1


# -- stopped -----------------------------------------------------------------------------------------------------------


def test_a_coroutine_that_exceeds_its_timeout_is_cancelled_and_its_neighbour_is_not(
    project: Project,
) -> None:
    project.sync(
        hangs=once("hangs", timeout="1s"),
        returns=once("returns_when_stopped", timeout="1s"),
        waits=coroutine("waits"),
    )
    [hangs], [returns], [neighbour] = (
        project.enqueue("hangs"),
        project.enqueue("returns"),
        project.enqueue("waits"),
    )
    worker = start(project, hangs, returns, neighbour)
    for run in (hangs, returns):
        project.until_status(run, "dead")

    project.touch("go")

    assert worker.wait() == 1
    assert {error(project, run) for run in (hangs, returns)} == {"still running after 1s, stopped"}
    assert project.summary(neighbour) == ("succeeded", 1, 1, 1, 0)


def test_a_coroutine_that_catches_a_cancellation_is_cancelled_again(project: Project) -> None:
    project.sync(deaf=once("hangs_deaf", timeout="1s"))
    [deaf] = project.enqueue("deaf", {"times": 2})

    project.work(code=1)

    assert error(project, deaf) == "still running after 1s, stopped"
    assert project.calls("caught", deaf) == 2


def test_a_coroutine_that_catches_every_cancellation_is_killed_with_its_process(
    project: Project,
) -> None:
    project.sync(deaf=once("hangs_deaf", timeout="1s"), waits=coroutine("waits"))
    [deaf], [neighbour] = project.enqueue("deaf"), project.enqueue("waits")
    worker = start(project, deaf, neighbour)
    child = child_of(project, deaf)
    project.until_status(deaf, "dead")

    project.touch("go")

    assert worker.wait() == 1
    assert not is_alive(child)
    assert (
        error(project, deaf)
        == "still running after 1s, stopped; it did not end, and was killed with its process"
    )
    [failure] = project.failures(neighbour)
    because = f"its process ended because of run {deaf} (deaf), which shared it"
    assert failure.error == f"{because}: did not end when it was stopped"
    assert (project.row(neighbour).status, project.row(neighbour).attempts) == ("succeeded", 2)


def test_a_child_whose_exit_has_not_been_read_is_not_killed_again() -> None:
    end = AttemptEnd(EndKind.RAISED, "still running after 1s, stopped")
    attempt = SimpleNamespace(kill_at=0.5, stopped=end)
    kills: list[int] = []
    child: Any = ChildHandle.__new__(ChildHandle)
    child.killed_for = child.kill_at = None
    child.executing = lambda: [(1, attempt)]
    child.kill = lambda: kills.append(1)

    for now in (1.0, 2.0):
        child._kill_unstoppable(now)

    assert kills == [1]
    assert attempt.stopped.error == f"{end.error}; it did not end, and was killed with its process"


def test_a_cancelled_run_and_one_that_another_worker_has_are_stopped_and_their_neighbour_is_not(
    project: Project,
) -> None:
    project.sync(hangs=coroutine("hangs", lease="2s"), waits=coroutine("waits"))
    cancelled, lost = project.enqueue("hangs", count=2)
    [neighbour] = project.enqueue("waits")
    worker = start(project, cancelled, lost, neighbour, more=("--loop",))

    assert project.start("cancel", str(cancelled), "--yes").wait() == 0
    project.db.execute("update yamlsched.job_runs set locked_by = 'other' where id = %s", [lost])
    until(lambda: worker.text.count("lease.lost") == 2)
    project.touch("go")

    project.until_status(neighbour, "succeeded")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert project.row(cancelled).status == "cancelled"
    assert project.summary(neighbour) == ("succeeded", 1, 1, 1, 0)


def test_a_worker_that_is_stopped_gives_coroutines_their_grace_and_then_releases_their_runs(
    project: Project,
) -> None:
    project.sync(waits=coroutine("waits"), hangs=coroutine("hangs"))
    [waiting], [hanging] = project.enqueue("waits"), project.enqueue("hangs")
    worker = start(project, waiting, hanging, more=("--grace", "3s"))

    worker.signal(signal.SIGTERM)
    until(lambda: "worker.stopping" in worker.text)
    project.touch("go")

    assert worker.wait() == 0
    assert project.summary(waiting) == ("succeeded", 1, 1, 1, 0)
    assert project.summary(hanging)[:2] == ("queued", 0)


# -- faults of the process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    ["sleep", "lock", "task", "callback"],
)
def test_a_coroutine_that_blocks_the_event_loop_is_named_and_its_process_is_killed(
    project: Project, how: str
) -> None:
    project.sync(blocks=once("blocks"), naps=coroutine("naps"))
    [blocking], [neighbour] = (
        project.enqueue("blocks", {"how": how}),
        project.enqueue("naps", {"seconds": 600}),
    )
    worker = start(project, blocking, neighbour)
    project.jobs["naps"]["handler"] = ""
    project.db.execute("update yamlsched.job_runs set payload = '{}' where id = %s", [neighbour])

    project.touch("go")

    assert worker.wait() == 1
    [failure] = project.failures(neighbour)
    source = Path(__file__).parent / "support" / "coroutine_handlers.py"
    blocking_call = "PyDLL(None).read" if how == "lock" else "    time.sleep(60)"
    lines = source.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if blocking_call in line)
    at = f" at {source}:{number}"
    if how == "callback":
        assert f"blocked the event loop for 3s{at} (its process executed 2 runs)" == failure.error
        return
    assert error(project, blocking) == f"blocked the event loop for 3s{at}"
    assert project.row(blocking).error_type == "Blocked"
    if how == "sleep":
        [stack] = [failure.stack for failure in project.failures(blocking)]
        assert [line.split(", ")[2] for line in stack.splitlines()[::2]] == [
            "in blocks",
            "in sleeps_long",
        ]
    assert failure.error.startswith(
        f"its process ended because of run {blocking} (blocks), which shared it: blocked"
    )
    assert (project.row(neighbour).status, project.row(neighbour).attempts) == ("succeeded", 2)


def test_a_coroutine_that_yields_within_three_seconds_blocks_nothing(project: Project) -> None:
    project.sync(blocks=once("blocks"))
    [run] = project.enqueue("blocks", {"how": "short", "seconds": 1.5})
    project.touch("go")

    project.work()

    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


@pytest.mark.parametrize(
    "how, cause",
    [
        ("_exit", "the process exited with status 0"),
        ("abort", "killed by SIGABRT (signal 6)"),
        ("close", "the handler closed file descriptors that it did not open"),
    ],
)
def test_a_coroutine_that_ends_its_process_costs_each_run_that_had_started_one_attempt_and_not_two(
    project: Project, how: str, cause: str
) -> None:
    project.sync(dies=coroutine("dies", max_attempts=3), waits=coroutine("waits"))
    [dying], [neighbour] = (
        project.enqueue("dies", {"how": how}),
        project.enqueue("waits", {"file": "later"}),
    )
    worker = start(project, dying, neighbour)

    project.touch("go")
    project.until_status(dying, "dead")  # its other attempts had processes of their own
    project.touch("later")

    assert worker.wait() == 1
    assert [cause in failure.error for failure in project.failures(dying)] == [True] * 3
    [failure] = project.failures(neighbour)
    assert cause in failure.error
    assert (project.row(neighbour).status, project.row(neighbour).attempts) == ("succeeded", 2)


def test_a_child_that_is_killed_with_200_coroutines_costs_each_one_attempt(
    project: Project,
) -> None:
    project.sync(waits=coroutine("waits"))
    runs = project.enqueue("waits", count=200)
    worker = project.start("work")
    until(lambda: project.calls("started") == 200)

    os.kill(child_of(project, runs[0]), signal.SIGKILL)
    until(lambda: project.calls("started") > 200)
    project.touch("go")

    assert worker.wait() == 0
    assert {project.summary(run) for run in runs} == {("succeeded", 2, 2, 1, 1)}
    assert {failure.error for run in runs for failure in project.failures(run)} == {
        "killed by SIGKILL (signal 9), possibly out of memory (its process executed 200 runs)"
    }


def test_the_children_of_a_worker_that_is_killed_die_with_it(project: Project) -> None:
    project.sync(waits=coroutine("waits"))
    runs = project.enqueue("waits", count=2)
    worker = start(project, *runs)
    child = child_of(project, runs[0])

    worker.signal(signal.SIGKILL)

    assert worker.wait() == -signal.SIGKILL
    until(lambda: not is_alive(child))
    project.touch("go")
    project.end_leases()
    project.work()
    assert {project.summary(run)[:2] for run in runs} == {("succeeded", 2)}


@pytest.mark.parametrize("how", ["waits", "fails", "exits", "deaf", "spawns"])
def test_tasks_that_a_handler_leaves_behind_end_with_its_run(project: Project, how: str) -> None:
    project.sync(leaves=once("leaves_tasks", output={"keep": "always"}), waits=coroutine("waits"))
    [leaving], [neighbour] = project.enqueue("leaves", {"how": how}), project.enqueue("waits")
    worker = start(project, leaving, neighbour)
    project.until_status(leaving, "succeeded")

    project.touch("go")

    assert worker.wait() == 0
    assert project.summary(neighbour) == ("succeeded", 1, 1, 1, 0)
    [output] = project.outputs(leaving)
    text = {
        "waits": "yamlsched: cancelled tasks that the handler left running: _waits. To let a task outlive its run",
        "fails": "LookupError: in a task that nobody awaits",
        "exits": "SystemExit: 3",
        "spawns": "yamlsched: cancelled tasks that the handler left running: _spawns. ",
        "deaf": "yamlsched: a task did not end, so this process is replaced\n",
    }
    assert text[how] in output.output
    assert project.calls("cancelled", leaving) == (how == "waits")
