"""Rows of workers, and workers with an id: real processes on a real database."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from support.project import Process, Project, a_project, until
from support.proxy import Proxy

SELDOM = "import yamlsched.worker.registration as r; r.BEAT_INTERVAL_SECONDS = 3600.0"
OFTEN = "import yamlsched.worker.registration as r; r.BEAT_INTERVAL_SECONDS = 0.1"


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def rows(project: Project) -> Sequence[Any]:
    return project.db.execute("select * from yamlsched.workers order by reported_at").fetchall()


def until_live(project: Project, id: str) -> Any:
    """Wait until a worker runs, which reports OFTEN, and return its row."""

    def found() -> Any:
        live = (row for row in rows(project) if row.id == id and row.seen_at > row.reported_at)
        return next(live, None)

    return until(found)


def end(worker: Process) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.text


# -- rows ------------------------------------------------------------------------------------------


def test_a_loop_has_a_row_with_its_runs_from_its_start_to_its_end(project: Project) -> None:
    project.sync(nothing={})
    runs = project.enqueue("nothing", count=3)

    loop = project.start("work", "--loop", before=OFTEN)
    until(lambda: any(row.runs == 3 for row in rows(project)))

    [row] = rows(project)
    assert (row.id.rpartition(":")[2], row.path) == (str(loop.pid), str(project.file))
    assert (row.leaving_at, row.ended_at) == (None, None)
    assert {project.row(run).locked_by.rpartition(":")[0] for run in runs} == {row.id}
    end(loop)
    [row] = rows(project)
    assert row.ended_at >= row.seen_at > row.reported_at


def test_the_first_run_of_a_worker_is_reported_at_once(project: Project) -> None:
    project.sync(nothing={})
    loop = project.start("work", "--loop", before=SELDOM)
    until(lambda: rows(project))

    project.enqueue("nothing")

    until(lambda: [row.runs for row in rows(project)] == [1])
    end(loop)


def test_a_worker_that_drains_has_a_row_and_a_tick_has_none(project: Project) -> None:
    project.sync(nothing={})
    project.enqueue("nothing")
    assert project.start("tick").wait() == 0
    assert rows(project) == []

    project.work()

    [row] = rows(project)
    assert row.ended_at is not None


def test_a_worker_that_was_stopped_is_leaving_while_its_handlers_end(project: Project) -> None:
    project.sync(waits_for_file={})
    [run] = project.enqueue("waits_for_file")
    loop = project.start("work", "--loop")
    project.until_started(run)

    loop.signal(signal.SIGTERM)

    until(lambda: rows(project)[0].leaving_at is not None)
    assert rows(project)[0].ended_at is None
    project.touch("go")
    assert loop.wait() == 0
    assert project.row(run).status == "succeeded"


def test_a_row_that_was_pruned_is_written_again(project: Project) -> None:
    project.sync(nothing={})
    loop = project.start("work", "--loop", before=OFTEN)
    until(lambda: rows(project))

    project.db.execute("delete from yamlsched.workers")

    until(lambda: rows(project))
    end(loop)
    assert rows(project)[0].ended_at is not None


def test_rows_are_kept_for_seven_days(project: Project) -> None:
    project.sync(nothing={})
    project.work()
    for age, kept in (("6 days", 1), ("8 days", 0)):
        project.db.execute(
            "update yamlsched.workers set ended_at = now() - %s::interval"
            " where id in (select id from yamlsched.workers limit 1)",
            [age],
        )
        assert project.start("prune").wait() == 0
        assert len(rows(project)) == kept


# -- workers with an id ----------------------------------------------------------------------------


def test_the_runs_of_a_worker_with_an_id_name_it(project: Project) -> None:
    project.sync(nothing={})
    [run] = project.enqueue("nothing")

    worker = project.start("work", "--queue", "default", "--worker", "gpu-1")

    assert project.until_status(run, "succeeded").locked_by.startswith("gpu-1:")
    end(worker)


def test_an_id_that_is_live_is_refused_to_a_second_process(project: Project) -> None:
    project.sync(nothing={})
    first = project.start("work", "--queue", "default", "--worker", "gpu-1", before=OFTEN)
    reported_at = until_live(project, "gpu-1").reported_at

    second = project.start("work", "--queue", "default", "--worker", "gpu-1")

    assert second.wait() == 0
    assert "worker.refused" in second.text
    [row] = rows(project)
    assert (row.reported_at, row.ended_at) == (reported_at, None)
    end(first)


def test_an_id_that_has_ended_or_is_lost_may_come_back(project: Project) -> None:
    """Engines start again under the same id what they have preempted, or lost with its node."""
    project.sync(nothing={})
    end_after = ("work", "--queue", "default", "--worker", "gpu-1", "--idle-exit", "1s")
    for _ in range(2):
        worker = project.start(*end_after)
        assert worker.wait() == 0
        assert "worker.refused" not in worker.text
    project.db.execute(
        "update yamlsched.workers set ended_at = null, seen_at = now() - interval '61 s'"
    )
    worker = project.start(*end_after)
    assert worker.wait() == 0
    assert "worker.refused" not in worker.text
    assert len(rows(project)) == 1


def test_a_worker_whose_id_another_process_has_meanwhile_leaves(project: Project) -> None:
    project.sync(nothing={})
    worker = project.start("work", "--queue", "default", "--worker", "gpu-1", before=OFTEN)
    until_live(project, "gpu-1")

    project.db.execute("update yamlsched.workers set reported_at = now() + interval '1 s'")

    assert worker.wait() == 0
    assert "worker.replaced" in worker.text
    assert rows(project)[0].ended_at is None


def test_a_worker_with_an_id_never_syncs_and_follows_the_file_in_use(project: Project) -> None:
    project.sync(nothing={})
    worker = project.start("work", "--queue", "default", "--worker", "gpu-1")
    [first] = project.enqueue("nothing")
    project.until_status(first, "succeeded")
    project.write(nothing={}, returns_json={})
    worker.signal(signal.SIGHUP)
    until(lambda: "worker.reloading" in worker.text)
    [second] = project.enqueue("nothing")
    project.until_status(second, "succeeded")
    jobs = project.db.execute("select job_type from yamlsched.job_definitions").fetchall()
    assert [row.job_type for row in jobs] == ["nothing"]

    project.sync(nothing={}, returns_json={})
    worker.signal(signal.SIGHUP)

    [third] = project.enqueue("returns_json")
    project.until_status(third, "succeeded")
    end(worker)


def test_workers_with_an_id_share_no_concurrency_limit_with_their_host(project: Project) -> None:
    project.sync(waits_for_file={})
    runs = project.enqueue("waits_for_file", count=2)

    workers = [
        project.start("work", "--queue", "default", "--worker", f"gpu-{n}", "--concurrency", "1")
        for n in range(2)
    ]

    for run in runs:
        project.until_started(run)
    project.touch("go")
    for worker in workers:
        end(worker)


@pytest.mark.parametrize("id", ["", "a b", "host:1", "-x", "a" * 101])
def test_an_id_has_letters_digits_dots_dashes_and_underscores(project: Project, id: str) -> None:
    worker = project.start("work", f"--worker={id}")
    assert worker.wait() == 2
    assert "is not a valid id" in worker.text


# -- when a worker ends ----------------------------------------------------------------------------


def test_a_loop_ends_once_it_had_nothing_to_do_for_idle_exit(project: Project) -> None:
    project.sync(nap={})
    [run] = project.enqueue("nap", {"seconds": 1.5})

    loop = project.start("work", "--loop", "--idle-exit", "1s")

    assert loop.wait() == 0
    assert project.summary(run) == ("succeeded", 1, 1, 1, 0)
    assert rows(project)[0].ended_at is not None


def test_time_without_a_database_counts_as_idle(project: Project) -> None:
    project.sync(nothing={})
    proxy = Proxy(project.dsn)
    worker = project.start(
        "work",
        "--queue",
        "default",
        "--worker",
        "gpu-1",
        "--idle-exit",
        "3s",
        dsn=proxy.dsn,
        before=OFTEN,
    )
    until_live(project, "gpu-1")
    proxy.close()
    assert worker.wait() == 3
    assert "the database was lost" in worker.text


def test_a_loop_ends_after_max_runs_and_after_max_time(project: Project) -> None:
    project.sync(nothing={"timeout": "1s"})
    project.enqueue("nothing", count=5)

    assert project.start("work", "--loop", "--max-runs", "3").wait() == 0
    assert project.statuses() == {"succeeded": 3, "queued": 2}
    assert project.start("work", "--loop", "--max-time", "3s").wait() == 0
    assert project.statuses() == {"succeeded": 5}


def test_a_loop_claims_nothing_that_may_take_longer_than_its_time(project: Project) -> None:
    project.sync(nothing={"timeout": "1s"}, returns_json={"timeout": "1h"})
    [long], [short] = project.enqueue("returns_json"), project.enqueue("nothing")

    assert project.start("work", "--loop", "--max-time", "4s").wait() == 0

    assert project.summary(long) == ("queued", 0, 0, 0, 0)
    assert project.row(short).status == "succeeded"


def test_a_loop_with_reload_follows_the_files_within_seconds(project: Project) -> None:
    code = project.folder / "own.py"
    code.write_text("def answer():\n    return 1\n")
    project.sync(answer={"handler": "own.answer"})
    loop = project.start("work", "--loop", "--reload")
    [first] = project.enqueue("answer")
    assert project.until_status(first, "succeeded").result == 1

    code.write_text("def answer():\n    return 22\n")
    until(lambda: "worker.reloading" in loop.text)

    [second] = project.enqueue("answer")
    assert project.until_status(second, "succeeded").result == 22
    project.write(answer={"handler": "own.answer", "max_attempts": 7})
    rows = "select from yamlsched.job_definitions where max_attempts = 7"
    until(lambda: project.db.execute(rows).fetchall(), seconds=30)
    end(loop)


# -- sessions --------------------------------------------------------------------------------------


def test_an_idle_worker_holds_one_session(project: Project) -> None:
    project.sync(nothing={})
    [first] = project.enqueue("nothing")
    dsn = make_conninfo(project.dsn, application_name="idle")
    loop = project.start("work", "--loop", dsn=dsn)
    project.until_status(first, "succeeded")

    def sessions() -> int:
        return len(
            project.db.execute(
                "select from pg_stat_activity where application_name = 'idle'"
            ).fetchall()
        )

    until(lambda: sessions() == 1)
    [second] = project.enqueue("nothing")
    project.until_status(second, "succeeded")
    end(loop)


def test_a_loop_leaves_the_row_of_a_queue_that_it_no_longer_serves(project: Project) -> None:
    project.queues["gpu"] = {}
    jobs = {"nothing": {"queue": "gpu"}, "nap": {}}
    project.sync(**jobs)
    worker = project.start("work", "--loop", before=OFTEN)

    def ended() -> dict[str, bool]:
        return {row.queue: row.ended_at is not None for row in rows(project)}

    until(lambda: ended() == {"default": False, "gpu": False})

    project.queues["gpu"] = {"dedicated": True}
    project.sync(**jobs)
    worker.signal(signal.SIGHUP)

    until(lambda: ended() == {"default": False, "gpu": True})
    end(worker)


def test_a_loop_that_is_told_to_reload_before_it_works_reloads(project: Project) -> None:
    project.sync(nap={})
    early = (
        "import os, signal; from yamlsched.service import loop; create = loop.create_worker\n"
        "def late(*values): os.kill(os.getpid(), signal.SIGHUP); return create(*values)\n"
        "loop.create_worker = late"
    )
    worker = project.start("work", "--loop", before=early)

    until(lambda: "worker.reloading" in worker.text or not worker.is_alive)
    assert worker.is_alive
    end(worker)
