"""Starts of workers: rows, locks and commands, on a real database and with real programs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.project import until
from support.rows import a_job, a_run, value
from yamlsched import db as store
from yamlsched.errors import Refused
from yamlsched.service import start_commands, starts
from yamlsched.service.start_commands import StartContext, find_program, run_command
from yamlsched.service.start_rule import QueueStart
from yamlsched.service.starts import StartTask, start_missing, starting
from yamlsched.worker.registration import Registration, WorkerName, register

Db = psycopg.Connection[Any]
QUEUE = "gpu"
GPU = QueueStart(
    queue=QUEUE,
    command=("true",),
    max_workers=3,
    concurrency=1,
    start_timeout=timedelta(hours=1),
)


@pytest.fixture
def context(dsn: str, tmp_path: Path) -> StartContext:
    return StartContext(dsn=dsn, namespace="default", environment="", folder=tmp_path)


def a_due_run(db: Db, job: int, **values: Any) -> int:
    earlier = "(now() - interval '1 minute')"
    return a_run(db, job, queue=QUEUE, run_at=earlier, created_at=earlier, **values)


def workers(db: Db) -> Sequence[Any]:
    return db.execute(
        "select * from yamlsched.workers where queue = %s order by requested_at, id", [QUEUE]
    ).fetchall()


def program(*lines: str) -> tuple[str, ...]:
    return (sys.executable, "-c", "\n".join(lines))


def run_commands(context: StartContext, start: QueueStart, *ids: str) -> dict[str, str]:
    """Run the commands of workers, and return the errors."""
    with ThreadPoolExecutor() as pool:
        errors = pool.map(lambda id: run_command(context, start, id), ids)
        return {id: error for id, error in zip(ids, errors, strict=True) if error}


def await_end(pid: int) -> None:
    """Wait until a process is gone, or only waits for whoever reaps it."""
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


# -- decisions -------------------------------------------------------------------------------------


def test_workers_are_requested_for_what_is_due_and_not_again(db: Db, context: StartContext) -> None:
    job = a_job(db, overlap="allow")
    for _ in range(2):
        a_due_run(db, job)
    assert start_missing(context, [GPU]) == 2
    assert [row.reported_at for row in workers(db)] == [None, None]
    assert start_missing(context, [GPU]) == 0


def test_nothing_is_written_while_there_is_nothing_to_start(db: Db, context: StartContext) -> None:
    assert start_missing(context, [GPU]) == 0
    assert value(db, "select count(*) from yamlsched.queue_states") == 0


def test_a_starter_that_was_reaped_is_no_error(db: Db, context: StartContext) -> None:
    """As PID 1 of a container, a tick reaps all processes that have ended."""
    a_due_run(db, a_job(db, overlap="allow"))
    with starting(context, [GPU]):
        os.waitpid(-1, 0)
    assert len(workers(db)) == 1


def test_hosts_that_decide_at_once_start_each_worker_once(db: Db, context: StartContext) -> None:
    job = a_job(db, overlap="allow")
    for _ in range(10):
        a_due_run(db, job)
    started: list[int] = []
    threads = [
        threading.Thread(target=lambda: started.append(start_missing(context, [GPU])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(started) == len(workers(db)) == 3


def test_a_start_that_nobody_reports_expires_and_is_a_failed_start(
    db: Db, context: StartContext
) -> None:
    a_due_run(db, a_job(db, overlap="allow"))
    start_missing(context, [GPU])
    db.execute(
        "update yamlsched.workers set requested_at = now() - interval '61 minutes',"
        " start_by = now() - interval '1 minute'"
    )
    assert start_missing(context, [GPU]) == 0
    [row] = workers(db)
    assert row.error == "no worker reported within 1h"
    [state] = db.execute("select * from yamlsched.queue_states").fetchall()
    assert state.failed_starts == 1
    assert state.next_start_at - state.failed_at == timedelta(seconds=10)

    db.execute("update yamlsched.queue_states set next_start_at = now()")
    assert start_missing(context, [GPU]) == 1


def test_a_run_whose_lease_has_ended_needs_a_worker_and_one_that_executes_has_one(
    db: Db, context: StartContext
) -> None:
    job = a_job(db, overlap="wait")
    held = {"attempts": 1, "locked_by": "gpu-0:web-1:1:ff", "exclusive": True}
    run = a_due_run(db, job, status="running", locked_until="(now() + interval '1 hour')", **held)
    a_worker = "insert into yamlsched.workers (namespace, id, queue, reported_at, seen_at)"
    db.execute(f"{a_worker} values ('default', 'gpu-0', 'gpu', now(), now())".encode())
    assert start_missing(context, [GPU]) == 0

    # when the worker is lost, and its lease has ended
    db.execute("update yamlsched.workers set seen_at = now() - interval '5 minutes'")
    ended = "update yamlsched.job_runs set locked_until = now() - interval '1 minute' where id = %s"
    db.execute(ended, [run])

    assert start_missing(context, [GPU]) == 1


def test_what_is_wrong_with_the_starts_of_one_queue_does_not_stop_those_of_another(
    db: Db, context: StartContext
) -> None:
    job = a_job(db, overlap="allow")
    a_due_run(db, job)
    earlier = "(now() - interval '1 minute')"
    a_run(db, job, queue="broken", run_at=earlier, created_at=earlier)
    db.execute("alter table yamlsched.workers add constraint no check (queue <> 'broken')")

    assert start_missing(context, [replace(GPU, queue="broken"), GPU]) == 1

    assert [row.queue for row in workers(db)] == [QUEUE]


def test_a_command_that_fails_is_a_failed_start_with_its_last_lines(
    db: Db, context: StartContext
) -> None:
    a_due_run(db, a_job(db, overlap="allow"))
    broken = replace(
        GPU, command=program("import sys", "print('no such partition: gpu')", "sys.exit(3)")
    )
    assert start_missing(context, [broken]) == 1
    [row] = workers(db)
    assert row.error == "exit code 3\nno such partition: gpu"
    assert row.ended_at is not None
    # the failure is counted at once, not by the next tick
    assert value(db, "select failed_starts from yamlsched.queue_states") == 1
    assert start_missing(context, [broken]) == 0


def test_a_worker_that_comes_although_its_command_failed_counts(
    db: Db, context: StartContext
) -> None:
    """``sbatch`` may time out and submit all the same."""
    a_due_run(db, a_job(db, overlap="allow"))
    comes = program(
        "import os, sys, psycopg",
        f"with psycopg.connect({context.dsn!r}) as c:",
        "    c.execute('update yamlsched.workers set reported_at = now(), seen_at = now()"
        " where id = %s', [os.environ['YAMLSCHED_WORKER']])",
        "sys.exit(1)",
    )
    assert start_missing(context, [replace(GPU, command=comes)]) == 1
    [row] = workers(db)
    assert (row.ended_at, row.error) == (None, None)


def test_what_a_command_returns_while_the_session_is_lost_is_reported_when_it_is_back(
    db: Db, context: StartContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "RETRY_SECONDS", 0.01)
    a_due_run(db, a_job(db, overlap="allow"))
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    before = value(db, f"select array_agg(pid) {others}") or []
    waits = ("import os, time", "while not os.path.exists('fail'): time.sleep(0.01)", "exit(3)")
    stopping, stop = os.pipe()
    with ThreadPoolExecutor() as pool:
        start = replace(GPU, command=program(*waits))
        started = pool.submit(start_missing, context, [start], stopping)
        until(lambda: workers(db) or started.done())
        db.execute(f"select pg_terminate_backend(pid) {others} and pid <> all (%s)", [before])
        (tmp_path / "fail").touch()
        until(lambda: workers(db)[0].error == "exit code 3" or started.done())
        os.close(stop)
        assert started.result() == 1
    os.close(stopping)
    [row] = workers(db)
    assert row.error == "exit code 3"


def test_a_start_whose_failure_cannot_be_written_ends_after_a_few_tries(
    db: Db,
    context: StartContext,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(starts, "RETRY_SECONDS", 0.01)
    a_due_run(db, a_job(db, overlap="allow"))
    db.execute("alter table yamlsched.workers add constraint no_error check (error is null)")
    with pytest.raises(psycopg.errors.CheckViolation):
        start_missing(context, [replace(GPU, command=program("exit(3)"))])
    db.execute("alter table yamlsched.workers drop constraint no_error")
    assert capfd.readouterr().err.count("starts.failed") == starts.MAX_TRIES - 1


def test_a_starter_that_is_being_replaced_when_its_loop_ends_leaves_nothing(
    context: StartContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command may take a minute to return: the loop does not wait for it."""
    monkeypatch.setattr(starts, "STOP_SECONDS", 0.01)
    monkeypatch.setattr(starts, "start_missing", wait_for_a_command)
    task = StartTask(context, (GPU,))

    async def replace_and_cancel() -> None:
        before = os.listdir("/dev/fd")
        run = asyncio.create_task(task.run(None))  # type: ignore[arg-type]
        pid = int(await read_when_written(tmp_path / "started"))
        task.follow(context, (replace(GPU, max_workers=1),))
        await read_when_written(tmp_path / "stopping")
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await asyncio.sleep(0)  # the loop closes the pipe of the helper
        assert os.listdir("/dev/fd") == before

    asyncio.run(replace_and_cancel())


def wait_for_a_command(context: StartContext, starts: object, stop: int) -> None:
    (context.folder / "started").write_text(str(os.getpid()))
    os.read(stop, 1)
    (context.folder / "stopping").write_text("1")
    time.sleep(600)


async def read_when_written(path: Path) -> str:
    while not (path.exists() and path.read_text()):
        await asyncio.sleep(0.01)
    return path.read_text()


# -- commands --------------------------------------------------------------------------------------


def test_a_command_gets_its_worker_in_words_and_variables_and_no_dsn(
    context: StartContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YAMLSCHED_DSN", context.dsn)
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    shown = program(
        "import json, os, sys",
        "own = {k: v for k, v in os.environ.items() if k.startswith(('YAMLSCHED', 'PG'))}",
        "open('shown', 'w').write(json.dumps([sys.argv[1:], own, sys.stdin.read()]))",
    )
    start = replace(GPU, command=(*shown, "--name={worker}", "{queue} {namespace} {env} {other}"))
    production = replace(context, environment="production")
    assert run_commands(production, start, "gpu-1") == {}
    words = '["--name=gpu-1", "gpu default production {other}"]'
    variables = (
        '{"YAMLSCHED_WORKER": "gpu-1", "YAMLSCHED_QUEUE": "gpu",'
        ' "YAMLSCHED_NAMESPACE": "default", "YAMLSCHED_ENV": "production"}'
    )
    assert (tmp_path / "shown").read_text() == f'[{words}, {variables}, ""]'


def test_commands_run_side_by_side(context: StartContext, tmp_path: Path) -> None:
    """Each waits for the other: one after the other would never end."""
    meets = program(
        "import os, time",
        "open(os.environ['YAMLSCHED_WORKER'], 'w').close()",
        "while not (os.path.exists('gpu-1') and os.path.exists('gpu-2')): time.sleep(0.01)",
    )
    start = replace(GPU, command=meets)
    assert run_commands(context, start, "gpu-1", "gpu-2") == {}


def test_a_command_that_does_not_return_is_ended_with_what_it_started(
    context: StartContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_commands, "TERMINATE_SECONDS", 0.5)
    monkeypatch.setattr(start_commands, "KILL_SECONDS", 1.0)
    stays = program(
        "import os, signal, subprocess, sys, time",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "child = subprocess.Popen(['sleep', '600'])",
        "open('child', 'w').write(str(child.pid))",
        "print('waits', flush=True)",
        "time.sleep(600)",
    )
    errors = run_commands(context, replace(GPU, command=stays), "gpu-1")
    assert errors["gpu-1"].startswith("it did not return within")
    assert errors["gpu-1"].endswith("waits")
    child = int((tmp_path / "child").read_text())
    await_end(child)


def test_a_program_that_cannot_be_executed_is_an_error(
    context: StartContext, tmp_path: Path
) -> None:
    (tmp_path / "start").write_text("no program")
    errors = run_commands(context, replace(GPU, command=("./start",)), "gpu-1")
    assert errors == {"gpu-1": "./start: Permission denied"}


def test_without_a_temporary_file_a_start_fails_with_the_systems_reason(
    context: StartContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    errors = run_commands(context, replace(GPU, command=("/bin/true",)), "gpu-1")
    assert errors == {"gpu-1": "/bin/true: No space left on device"}


def test_a_program_is_looked_for_beside_the_file_and_in_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_program("true", tmp_path)
    assert found is not None
    assert found.endswith("/true")
    assert find_program("./start", tmp_path) is None
    (tmp_path / "start").write_text("#!/bin/sh\n")
    assert find_program("./start", tmp_path) is None
    (tmp_path / "start").chmod(0o755)
    assert find_program("./start", tmp_path) == str(tmp_path / "start")


# -- workers that come -----------------------------------------------------------------------------


def a_worker(id: str, **values: Any) -> WorkerName:
    place = {"namespace": "default", "host": "node-1", "path": "/srv/schedules.yaml"}
    return WorkerName(**{"id": id, "revision": None, "is_own": False, **place, **values})


def come(db: Db, id: str, max_workers: int = 3, **values: Any) -> Registration | str:
    return register(db, a_worker(id, **values), [QUEUE], [], {QUEUE: max_workers}, {})


def test_a_worker_that_comes_takes_the_row_of_its_request(db: Db, context: StartContext) -> None:
    a_due_run(db, a_job(db, overlap="allow"))
    start_missing(context, [GPU])
    [requested] = workers(db)

    assert isinstance(come(db, requested.id), Registration)

    [row] = workers(db)
    assert (row.requested_at, row.host) == (requested.requested_at, "node-1")
    assert row.reported_at > row.requested_at
    assert start_missing(context, [GPU]) == 0


def test_a_worker_above_the_maximum_is_refused_and_is_no_failed_start(
    db: Db, context: StartContext
) -> None:
    job = a_job(db, overlap="allow")
    for _ in range(2):
        a_due_run(db, job)
    start_missing(context, [GPU])
    first, second = (row.id for row in workers(db))

    assert isinstance(come(db, first, max_workers=1), Registration)
    assert come(db, second, max_workers=1) == "1 started workers of queue gpu are live"

    ended = {row.id: (row.ended_at is not None, row.error) for row in workers(db)}
    assert ended == {first: (False, None), second: (True, None)}
    start_missing(context, [replace(GPU, max_workers=1)])
    assert value(db, "select coalesce(max(failed_starts), 0) from yamlsched.queue_states") == 0


def test_a_worker_that_nobody_requested_is_not_refused(db: Db) -> None:
    for id in ("a", "b"):
        assert isinstance(come(db, id, max_workers=1), Registration)


def test_workers_that_come_at_once_are_counted_one_after_another(
    dsn: str, db: Db, context: StartContext
) -> None:
    job = a_job(db, overlap="allow")
    for _ in range(3):
        a_due_run(db, job)
    start_missing(context, [GPU])
    ids = [row.id for row in workers(db)]
    came: list[Registration | str] = []

    def comes(id: str) -> None:
        with store.connect(dsn) as connection:
            came.append(come(connection, id, max_workers=2))

    threads = [threading.Thread(target=comes, args=[id]) for id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(isinstance(each, Registration) for each in came) == [False, True, True]


def test_an_id_that_was_requested_for_another_queue_or_namespace_is_refused(
    db: Db, context: StartContext
) -> None:
    a_due_run(db, a_job(db, overlap="allow"))
    start_missing(context, [GPU])
    [row] = workers(db)

    with pytest.raises(Refused, match='requested for queue "gpu" of namespace "default"'):
        register(db, a_worker(row.id), ["mail"], [], {}, {})
    with pytest.raises(Refused, match="--queue gpu"):
        register(db, a_worker(row.id, namespace="other"), [QUEUE], [], {}, {})
    assert workers(db) == [row]


# -- the whole of it -------------------------------------------------------------------------------


def test_the_view_shows_what_there_is_to_do_and_who_does_it(db: Db, context: StartContext) -> None:
    job = a_job(db, overlap="allow")
    db.execute(
        "insert into yamlsched.namespaces (namespace) values ('default') on conflict do nothing"
    )
    for _ in range(3):
        a_due_run(db, job)
    start_missing(context, [GPU])
    first, second, _ = (row.id for row in workers(db))
    for id in (first, second):
        come(db, id)
    db.execute("update yamlsched.workers set leaving_at = now() where id = %s", [second])

    [row] = db.execute("select * from yamlsched.queue_load").fetchall()

    assert (row.queue, row.due, row.executing) == (QUEUE, 3, 0)
    assert (row.live, row.starting, row.leaving, row.failed_starts) == (1, 1, 1, 0)
    db.execute("update yamlsched.workers set start_by = now()")
    assert value(db, "select starting from yamlsched.queue_load") == 0
