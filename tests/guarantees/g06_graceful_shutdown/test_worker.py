"""The worker as a whole, in real processes: limits, shutdown, the loop, children, and its messages."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from support.project import Process, Project, a_project, is_alive, until
from yamlsched import db as store


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def end(loop: Process) -> None:
    """Stop a looping worker, and check that it exits 0."""
    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0, loop.text


# -- limits


def test_a_worker_drains_what_is_due_and_exits(project: Project) -> None:
    project.sync(nothing={}, returns_json={})
    runs = [*project.enqueue("nothing", count=100), *project.enqueue("returns_json")]

    process = project.work()

    assert {project.summary(run) for run in runs} == {("succeeded", 1, 1, 1, 0)}
    assert project.row(runs[-1]).result == {"rows": 3, "text": "é"}
    assert process.text.count("attempt.succeeded") == len(runs)


def test_a_run_whose_job_is_not_that_of_its_definition_is_not_claimed_again_and_again(
    project: Project,
) -> None:
    project.sync(nothing={"max_attempts": 2, "backoff": {"policy": "fixed", "delay": "1h"}})
    [run] = project.enqueue("nothing")
    project.db.execute("update yamlsched.job_runs set job_type = 'other' where id = %s", [run])

    process = project.start("work", "--max-time", "5s")
    process.wait()

    assert project.summary(run) == ("queued", 0, 0, 0, 0)
    assert process.text.count("run.released") == 1


def test_no_more_runs_are_claimed_than_allowed(project: Project) -> None:
    project.sync(nothing={})
    project.enqueue("nothing", count=20)

    project.work("--max-runs", "7")

    assert project.statuses() == {"succeeded": 7, "queued": 13}


def test_a_tick_stops_claiming_at_its_time_limit_and_waits_for_its_handlers(
    project: Project,
) -> None:
    project.sync(waits_for_file={})
    first = project.enqueue("waits_for_file")[0]
    tick = project.start("tick", "--max-time", "1s")
    project.until_started(first)
    until(
        lambda: (
            "x"
            if not tick.is_alive or project.row(first).locked_until is None
            else _age(project, first) > 1.5
        )
    )
    second = project.enqueue("waits_for_file")[0]

    project.touch("go")

    assert tick.wait() == 0
    assert project.summary(first) == ("succeeded", 1, 1, 1, 0)
    assert project.summary(second) == ("queued", 0, 0, 0, 0)


def _age(project: Project, run: int) -> float:
    row: Any = project.db.execute(
        "select extract(epoch from clock_timestamp() - started_at)::float8 as age from yamlsched.job_runs "
        "where id = %s", [run],
    ).fetchone()  # fmt: skip
    return float(row.age)


def test_a_handler_that_outlasts_many_leases_keeps_its_run(project: Project) -> None:
    project.sync(nap={})
    [run] = project.enqueue("nap", {"seconds": 3.5})
    worker = project.start("work")
    project.until_started(run)

    other = project.start("work", "--loop", host="b")

    assert worker.wait() == 0
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    end(other)


def test_a_worker_waits_for_a_retry_that_is_due_soon(project: Project) -> None:
    project.sync(fails_once={"backoff": {"policy": "fixed", "delay": "1s", "jitter": 0}})
    [run] = project.enqueue("fails_once")

    project.work()

    assert project.summary(run) == ("succeeded", 2, 2, 1, 1)


def test_a_dead_run_is_reported_by_the_exit_code_and_by_one_run_of_its_hook(
    project: Project,
) -> None:
    project.sync(fails={"max_attempts": 2, "on_dead": ["records_death"]}, records_death={})
    [run] = project.enqueue("fails", {"text": "no route\nto host"})

    process = project.work(code=1)

    assert project.summary(run) == ("dead", 2, 2, 0, 2)
    assert project.calls("on_dead", run) == 1
    assert re.search(
        rf"attempt\.succeeded job=records_death run=\d+ key=records_death:dead:{run}:2 ",
        process.text,
    )
    error = "OSError: no route to host"
    assert re.search(
        rf'ERROR +run\.dead job=fails run={run} attempt=2/2 error="{error}"', process.text
    )


def test_a_hook_that_fails_is_retried_and_its_own_death_has_no_hook(
    project: Project,
) -> None:
    project.sync(
        fails={"max_attempts": 2, "on_dead": ["pages"]},
        pages={"handler": "support.handlers.fails", "max_attempts": 2},
    )
    [run] = project.enqueue("fails")

    project.work(code=1)

    rows = project.db.execute(
        "select status, attempts, idempotency_key from yamlsched.job_runs order by id"
    ).fetchall()
    assert [tuple(row) for row in rows] == [("dead", 2, None), ("dead", 2, f"pages:dead:{run}:2")]


def test_a_run_fans_out_with_its_success(project: Project) -> None:
    project.sync(fan_out={}, nothing={})
    [run] = project.enqueue("fan_out")

    project.work()

    rows = project.db.execute(
        "select idempotency_key, status, parent_id from yamlsched.job_runs where job_type = 'nothing' order by id"
    ).fetchall()
    assert [tuple(row) for row in rows] == [
        ("nothing:1", "succeeded", run),
        ("nothing:2", "succeeded", run),
    ]


# -- concurrent workers


def test_two_workers_execute_handlers_of_different_runs_at_the_same_time(project: Project) -> None:
    project.sync(waits_for_others={})
    project.enqueue("waits_for_others", count=2)

    workers = [project.start("work", "--concurrency", "1", host=host) for host in ("a", "b")]

    assert [worker.wait() for worker in workers] == [0, 0]
    assert project.statuses() == {"succeeded": 2}


@pytest.mark.slow
def test_two_simultaneous_ticks_run_each_slot_once(project: Project) -> None:
    jobs = [f"job_{number}" for number in range(3)]
    project.sync(
        **{name: {"handler": "support.handlers.nothing", "cron": "* * * * *"} for name in jobs}
    )

    for past in range(20, 0, -1):
        # given jobs with one due slot, one minute later each time
        project.db.execute(
            "update yamlsched.job_definitions set effective_from = s.at - interval '1 minute', "
            "last_slot_at = s.at - interval '1 minute', next_slot_at = s.at "
            "from (select date_trunc('minute', now()) - %s * interval '1 minute' as at) s",
            [past],
        )
        project.db.execute(
            "update yamlsched.job_definitions set catchup = 'all', catchup_window = '1 day'"
        )
        ticks = [project.start("tick", "--max-time", "5s", host=host) for host in ("a", "b")]
        assert [tick.wait() for tick in ticks] == [0, 0]

    rows = project.db.execute(
        "select job_type, scheduled_for, count(*) as runs, count(distinct idempotency_key) as keys, "
        "array_agg(id) as ids from yamlsched.job_runs group by 1, 2"
    ).fetchall()
    assert {(row.runs, row.keys) for row in rows} == {(1, 1)}
    assert {row.job_type for row in rows} == set(jobs)
    assert len(rows) >= 60
    assert {project.summary(row.ids[0]) for row in rows} == {("succeeded", 1, 1, 1, 0)}


@pytest.mark.slow
def test_sixty_ticks_with_long_handlers_share_the_concurrency_limit_of_one(
    project: Project,
) -> None:
    project.sync(waits_for_file={"lease": "60s"})
    project.enqueue("waits_for_file", count=20)

    ticks = [project.start("tick", "--concurrency", "3") for _ in range(60)]
    until(lambda: project.calls("started") >= 3)
    until(lambda: sum(tick.is_alive for tick in ticks) <= 3, "ticks that find no slot leave")

    assert {tick.wait() for tick in ticks if not tick.is_alive} == {0}
    assert project.calls("started") == 3
    assert project.statuses() == {"running": 3, "queued": 17}


@pytest.mark.parametrize(
    ("words", "count"), [(("work", "--loop"), 1), (("work", "--loop"), 3), (("tick",), 3)]
)
def test_long_attempts_that_become_due_one_by_one_use_the_whole_concurrency_limit(
    project: Project, words: tuple[str, ...], count: int
) -> None:
    project.sync(waits_for_file={})
    is_loop = "--loop" in words
    workers, runs = [], []
    for _ in range(count):
        runs += project.enqueue("waits_for_file")
        if not workers or not is_loop:
            workers.append(project.start(*words, "--concurrency", str(count)))
        project.until_started(runs[-1])
        claimed = project.row(runs[-1])
        until(
            lambda before=claimed: project.row(before.id).locked_until > before.locked_until,
            "it takes long",
        )

    # then all of them execute at once
    assert project.calls("completed") == 0
    assert project.statuses() == {"running": count}
    project.touch("go")
    for run in runs:
        project.until_status(run, "succeeded")
    if is_loop:
        end(workers[0])
    else:
        assert {worker.wait() for worker in workers} == {0}


# -- shutdown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_shutdown_lets_handlers_complete_and_starts_no_more(
    project: Project, number: signal.Signals
) -> None:
    project.sync(waits_for_file={})
    runs = project.enqueue("waits_for_file", count=4)
    worker = project.start("work", "--concurrency", "2")
    until(lambda: project.calls("started") == 2)

    worker.signal(number)
    until(lambda: "worker.stopping" in worker.text)
    project.touch("go")

    assert worker.wait() == 0
    assert (
        sorted(project.summary(run) for run in runs)
        == [("queued", 0, 0, 0, 0)] * 2 + [("succeeded", 1, 1, 1, 0)] * 2
    )


BLOCKED = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"


@pytest.mark.parametrize(
    ("words", "number"),
    [("work", signal.SIGTERM), ("tick", signal.SIGHUP), ("work --loop", signal.SIGINT)],
)
def test_a_worker_whose_launcher_blocks_signals_shuts_down(
    project: Project, words: str, number: signal.Signals
) -> None:
    project.sync(waits_for_file={"lease": "1m"})
    [run] = project.enqueue("waits_for_file")
    worker = project.start(*words.split(), before=BLOCKED)
    project.until_started(run)

    worker.signal(number)
    until(lambda: "worker.stopping" in worker.text, "it was stopped")
    project.touch("go")

    assert worker.wait() == 0, worker.text
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)


def test_a_loop_whose_launcher_blocks_signals_replaces_its_children_on_sighup(
    project: Project,
) -> None:
    project.sync(nothing={})
    worker = project.start("work", "--loop", before=BLOCKED)
    [first] = project.enqueue("nothing")
    project.until_status(first, "succeeded")
    [child] = worker.children()

    worker.signal(signal.SIGHUP)

    until(lambda: not is_alive(child), "its child was replaced")
    end(worker)


def test_unfinished_runs_are_released_at_no_cost_after_the_grace_period(project: Project) -> None:
    project.sync(hangs={}, ignores_exceptions={})
    runs = [*project.enqueue("hangs"), *project.enqueue("ignores_exceptions")]
    worker = project.start("work", "--grace", "0s", "--concurrency", "2")
    for run in runs:
        project.until_started(run)

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert {project.summary(run) for run in runs} == {("queued", 0, 1, 0, 0)}


def test_a_second_signal_is_immediate(project: Project) -> None:
    project.sync(ignores_exceptions={})
    [run] = project.enqueue("ignores_exceptions")
    worker = project.start("work", "--grace", "10m")
    project.until_started(run)

    worker.signal(signal.SIGTERM)
    until(lambda: "worker.stopping" in worker.text)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert project.summary(run) == ("queued", 0, 1, 0, 0)


def test_the_handler_of_a_cancelled_run_is_stopped(project: Project) -> None:
    project.sync(hangs={})
    [run] = project.enqueue("hangs")
    worker = project.start("work")
    project.until_started(run)

    project.db.execute(
        "update yamlsched.job_runs set status = 'cancelled', locked_until = null, "
        "finished_at = now() where id = %s",
        [run],
    )

    assert worker.wait() == 0
    assert project.summary(run) == ("cancelled", 1, 1, 0, 0)
    assert "lease.lost" in worker.text


def test_an_unreachable_database_does_not_prevent_a_shutdown(project: Project) -> None:
    project.sync(hangs={"lease": "1h"})
    [run] = project.enqueue("hangs")
    worker = project.start(
        "work", "--grace", "0s", before="import yamlsched.worker.worker as w; w.LAST_WORDS = 0"
    )
    project.until_started(run)
    name = project.db.info.dbname
    project.close()
    with store.connect(make_conninfo(project.dsn, dbname="postgres")) as admin:
        admin.execute(f'alter database "{name}" allow_connections false'.encode())
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
        )

        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGTERM)

        assert worker.wait() == 3
        assert "its unfinished runs (1) are retried when their leases expire" in worker.text
        admin.execute(f'alter database "{name}" allow_connections true'.encode())


# -- children


def test_children_are_reused(project: Project) -> None:
    project.sync(environment={})
    runs = project.enqueue("environment", count=10)

    project.work("--concurrency", "1")

    assert len({project.row(run).result["pid"] for run in runs}) == 1


def test_the_reported_time_of_an_attempt_includes_the_import_of_its_handler(
    project: Project,
) -> None:
    (project.folder / "slow_import.py").write_text(
        "import time\n\ntime.sleep(0.3)\n\n\ndef run():\n    pass\n"
    )
    project.sync(slow={"handler": "slow_import.run"})
    project.enqueue("slow", count=2)

    process = project.work("--concurrency", "1")

    first, second = (
        float(took) for took in re.findall(r"attempt\.succeeded .*took=([\d.]+)s", process.text)
    )
    assert first >= 0.3
    assert second < first


def test_no_child_is_started_when_there_is_nothing_to_do(project: Project) -> None:
    project.sync(nothing={})

    process = project.start("tick", before="import os; del os.fork")

    assert process.wait() == 0
    assert process.text == ""


def test_a_child_holds_no_descriptor_of_its_parent(project: Project) -> None:
    project.sync(descriptors={}, environment={})
    [run], [other] = project.enqueue("descriptors"), project.enqueue("environment")

    project.work(PGTZ="Asia/Tokyo")

    leads_to = {re.sub(r":\[.*|/proc/.*", "", place) for place in project.row(run).result}
    assert leads_to <= {"pipe", "/dev/null", ""}
    assert project.row(other).result["zone"] == "Asia/Tokyo"
    assert project.row(other).result["path"] == str(project.folder)


def test_a_handler_gets_the_password_but_it_is_stored_in_no_table(project: Project) -> None:
    secret = "hunter2-hunter2"
    dsn = make_conninfo(project.dsn, password=secret)
    project.sync(leaks_secret={"max_attempts": 1})
    [run] = project.enqueue("leaks_secret", {"secret": f"postgresql://app:{secret}@db"})

    process = project.work(dsn=dsn, code=1)

    [failure] = project.failures(run)
    kept = (
        project.row(run).last_error,
        failure.error,
        failure.stack,
        failure.output,
    )
    assert all("postgresql://app:***@db" in text for text in kept)
    assert not any(secret in text for text in kept)
    assert not any(
        secret in line for line in process.text.splitlines() if not line.startswith("[leaks_secret")
    )


def test_a_blocked_stderr_does_not_prevent_the_renewal_of_leases(project: Project) -> None:
    # given a worker whose stderr is a full pipe
    project.sync(prints_until_file={}, nap={})
    pipe = project.folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    [printing], [nap] = (
        project.enqueue("prints_until_file"),
        project.enqueue("nap", {"seconds": 3.5}),
    )
    redirect = f"import os; os.dup2(os.open({str(pipe)!r}, os.O_WRONLY), 2)"
    worker = project.start("work", before=redirect)

    # when handlers print into it for longer than a lease
    project.until_status(nap, "succeeded")
    project.touch("go")
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: _read(reader), b"")])
    drain.start()

    # then they keep their runs
    assert worker.wait() == 0
    drain.join()
    os.close(reader)
    assert project.summary(printing) == project.summary(nap) == ("succeeded", 1, 1, 1, 0)


def _read(descriptor: int) -> bytes:
    os.set_blocking(descriptor, True)
    return os.read(descriptor, 1 << 16)


# -- the loop


@pytest.fixture
def loop(project: Project) -> Iterator[Process]:
    """A looping worker that has executed a run."""
    project.sync(nothing={})
    process = project.start("work", "--loop")
    project.until_status(project.enqueue("nothing")[0], "succeeded")
    yield process
    end(process)


def test_a_loop_starts_an_enqueued_run_when_it_is_notified(project: Project, loop: Process) -> None:
    # the next poll is far away, so an immediate start is due to the notification
    for _ in range(5):
        [run] = project.enqueue("nothing")
        assert _age_at_start(project, run) < 0.9


def _age_at_start(project: Project, run: int) -> float:
    project.until_status(run, "succeeded")
    row: Any = project.db.execute(
        "select extract(epoch from started_at - run_at)::float8 as age from yamlsched.job_runs where id = %s",
        [run],
    ).fetchone()
    return float(row.age)


def test_a_loop_that_cannot_listen_polls(project: Project) -> None:
    # as behind a pooler in transaction mode, where LISTEN has no effect
    project.sync(nothing={})
    deaf = "from yamlsched.worker import statements as runs\nasync def listen(connection): pass\nruns.listen = listen"
    process = project.start("work", "--loop", before=deaf)

    for _ in range(2):
        project.until_status(project.enqueue("nothing")[0], "succeeded")

    end(process)


def test_an_idle_loop_holds_no_permit(project: Project, loop: Process) -> None:
    [run] = project.enqueue("nothing")

    until(lambda: project.row(run).status == "succeeded")
    tick = project.start("work", "--concurrency", "1")

    assert tick.wait() == 0


def test_a_loop_applies_an_edit_and_loads_new_handlers_when_it_syncs(
    project: Project, loop: Process
) -> None:
    # given a file with a new job, and a loop that is signalled to sync
    project.write(nothing={}, returns_json={})

    loop.signal(signal.SIGHUP)

    until(
        lambda: project.db.execute(
            "select 1 from yamlsched.job_definitions where job_type = 'returns_json'"
        ).fetchone()
    )
    [run] = project.enqueue("returns_json")
    assert project.until_status(run, "succeeded").result == {"rows": 3, "text": "é"}


def test_a_loop_continues_with_an_invalid_file_and_reports_it_once(
    project: Project, loop: Process
) -> None:
    project.write(nothing={}, returns_json={"hanlder": "support.handlers.nothing"})

    for times in (1, 2):
        loop.signal(signal.SIGHUP)
        until(lambda times=times: loop.text.count("sync.refused") >= times)  # type: ignore[misc]

    project.until_status(project.enqueue("nothing")[0], "succeeded")
    assert loop.text.count("YS") == 1


def test_a_loop_reconnects_when_its_sessions_are_terminated(
    project: Project, loop: Process
) -> None:
    for _ in range(3):
        project.db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
        project.until_status(project.enqueue("nothing")[0], "succeeded")


ASKS = """
import yamlsched.worker.leases as leases
async def renew_due(self):
    await self._session.run(lambda session: session.execute("select pg_sleep(600)"), 600)
leases.Leases.renew_due = renew_due
"""


def test_a_worker_that_ends_while_it_awaits_an_answer_does_not_report_a_lost_database(
    project: Project,
) -> None:
    project.sync(nothing={})
    project.enqueue("nothing")

    process = project.start("work", before=ASKS)

    assert process.wait() == 0
    assert "attempt.succeeded" in process.text
    assert "database." not in process.text


def test_systemd_is_notified_when_the_loop_is_ready_alive_and_stopping(project: Project) -> None:
    project.sync(nothing={})
    path = str(project.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(60)
        process = project.start("work", "--loop", NOTIFY_SOCKET=path, WATCHDOG_USEC="200000")

        received = [systemd.recv(100).decode() for _ in range(3)]
        end(process)

        assert received == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
        until(lambda: systemd.recv(100) == b"STOPPING=1")


def test_no_process_is_left_behind(project: Project) -> None:
    project.sync(environment={})
    runs = project.enqueue("environment", count=8)

    project.work("--concurrency", "4")

    assert not any(is_alive(project.row(run).result["pid"]) for run in runs)
