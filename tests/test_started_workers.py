"""Workers that ticks and loops start: the whole of it, by real programs and processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.project import TESTS, Process, Project, a_project, until

pytestmark = pytest.mark.story

IN_GPU = {"queue": "gpu", "backoff": {"policy": "fixed", "delay": "1s", "max_delay": "1s"}}
OVERDUE = "run_at = now() - interval '1 minute', created_at = now() - interval '1 minute'"


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project
        for row in workers(project):  # those that were started are not children of the test
            until(lambda id=row.id: workers(project, f"id = '{id}'")[0].ended_at is not None)


def workers(project: Project, where: str = "requested_at is not null") -> Sequence[Any]:
    return project.db.execute(
        f"select * from yamlsched.workers where {where} order by requested_at, id"  # type: ignore[arg-type]
    ).fetchall()


def start_command(project: Project, *options: str) -> list[str]:
    """Return words that start a worker in the background, as ssh and others do."""
    worker = [sys.executable, "-m", "yamlsched", "work", "--queue", "gpu", "--worker", "{worker}"]
    place = ["--file", str(project.file), "--dsn", project.dsn, "--path", str(TESTS)]
    log = f'exec setsid -f "$@" > {project.folder}/worker.log 2>&1 < /dev/null'
    return ["/bin/sh", "-c", log, "sh", *worker, *place, *(options or ("--idle-exit", "1s"))]


def gpu(project: Project, command: Sequence[str], **keys: Any) -> None:
    """Let the project have the queue gpu, whose workers are started."""
    start = {"command": list(command), "max_workers": 2, **keys}
    project.queues = {"gpu": {"concurrency": 1, "start": start}}


def overdue(project: Project, job: str, count: int = 1) -> list[int]:
    """Enqueue runs that have been due for a minute."""
    runs = project.enqueue(job, count=count)
    project.db.execute(f"update yamlsched.job_runs set {OVERDUE}")  # type: ignore[arg-type]
    return runs


def end(process: Process) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.text


def test_a_tick_starts_the_worker_that_a_run_needs_and_it_leaves_by_itself(
    project: Project,
) -> None:
    gpu(project, start_command(project))
    project.sync(nothing=IN_GPU)
    [run] = overdue(project, "nothing")

    tick = project.start("tick")

    assert tick.wait() == 0, tick.text
    done = project.until_status(run, "succeeded")
    [worker] = workers(project)
    assert worker.id.startswith("gpu-")
    assert done.locked_by.startswith(f"{worker.id}:")
    until(lambda: workers(project)[0].ended_at is not None)
    [worker] = workers(project)
    assert (worker.runs, worker.error) == (1, None)
    assert project.start("tick").wait() == 0
    assert len(workers(project)) == 1


def test_no_more_workers_are_started_than_max_workers_and_they_do_all_of_it(
    project: Project,
) -> None:
    gpu(project, start_command(project))
    project.sync(nothing=IN_GPU)
    runs = overdue(project, "nothing", count=20)

    for host in ("a", "b"):
        assert project.start("tick", host=host).wait() == 0

    for run in runs:
        project.until_status(run, "succeeded")
    assert 1 <= len(workers(project)) <= 2


def test_a_loop_starts_workers_and_follows_an_edit_of_their_command(project: Project) -> None:
    gpu(project, ["/bin/sh", "-c", "echo no partition >&2; exit 3"])
    project.sync(nothing=IN_GPU)
    [run] = overdue(project, "nothing")
    loop = project.start("work", "--loop")
    until(lambda: [row for row in workers(project) if row.error])
    until(lambda: "start.failed" in loop.text)

    gpu(project, start_command(project))
    project.write(nothing=IN_GPU)
    project.db.execute("update yamlsched.queue_states set next_start_at = now()")
    loop.signal(signal.SIGHUP)

    assert project.until_status(run, "succeeded").attempts == 1
    assert workers(project)[0].error == "exit code 3\nno partition"
    end(loop)


def test_a_host_whose_file_is_not_in_use_starts_no_worker(project: Project) -> None:
    gpu(project, ["/bin/sh", "-c", "touch started"])
    project.sync(nothing=IN_GPU)
    overdue(project, "nothing")
    project.file.write_text(project.file.read_text().replace("max_workers", "max_worker"))

    tick = project.start("tick")

    assert tick.wait() == 1
    assert workers(project, "true") == []


def test_a_host_without_the_program_starts_no_worker(project: Project) -> None:
    gpu(project, ["no-such-program"])
    project.sync(nothing=IN_GPU)
    overdue(project, "nothing")

    assert project.start("tick").wait() == 0
    assert workers(project, "true") == []


def test_only_workers_that_name_a_queue_with_start_serve_it(project: Project) -> None:
    gpu(project, ["no-such-program"])
    project.sync(nothing=IN_GPU)
    [run] = overdue(project, "nothing")

    project.work()
    assert project.row(run).status == "queued"
    project.work("--queue", "gpu")
    assert project.row(run).status == "succeeded"


def test_a_worker_with_an_id_of_another_queue_is_refused(project: Project) -> None:
    gpu(project, ["/bin/true"], start_timeout="10s")
    project.sync(nothing=IN_GPU, returns_json={})
    overdue(project, "nothing")
    assert project.start("tick").wait() == 0
    [worker] = workers(project)

    other = project.start("work", "--queue", "default", "--worker", worker.id)

    assert other.wait() == 1
    assert 'was requested for queue "gpu"' in other.text
    project.db.execute("update yamlsched.workers set ended_at = now()")


def test_a_command_that_starts_nothing_is_a_failed_start(project: Project) -> None:
    gpu(project, ["/bin/true"], start_timeout="10s")
    project.sync(nothing=IN_GPU)
    overdue(project, "nothing")
    assert project.start("tick").wait() == 0
    project.db.execute(
        "update yamlsched.workers set requested_at = now() - interval '10 s', start_by = now()"
    )

    assert project.start("tick").wait() == 0

    [worker] = workers(project)
    assert (worker.error, worker.reported_at) == ("no worker reported within 10s", None)
