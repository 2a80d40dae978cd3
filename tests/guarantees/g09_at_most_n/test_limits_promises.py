"""What limits promise, as users see it: which handlers start, in which order, and that none waits for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.effects import succeed_in
from support.followers import HOURLY, SUCCESS, World
from support.followers import world as world
from support.project import Process, Project, a_project, until
from support.rows import value
from yamlsched import db as database
from yamlsched.worker import claiming

Db = psycopg.Connection[Any]
pytestmark = pytest.mark.story


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def started(project: Project) -> list[str]:
    """Return the jobs whose handlers have started, in order, by the handlers' own log."""
    log = project.folder / "calls"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [project.row(int(run)).job_type for event, run, *_ in lines if event == "started"]


def most_at_once(project: Project) -> int:
    """Return how many handlers executed at once, by their own log."""
    inside = most = 0
    for line in (project.folder / "calls").read_text().splitlines():
        inside += 1 if line.startswith("started") else -1
        most = max(most, inside)
    return most


def levels(handler: str, **more: Any) -> dict[str, Any]:
    job = {"handler": f"support.handlers.{handler}", "limit": "warehouse"}
    return {
        priority: {**job, "priority": priority, **more} for priority in ("high", "normal", "low")
    }


def enqueue_older(project: Project, job: str, hours: int, count: int) -> None:
    for _ in range(count):
        project.db.execute("select from yamlsched.enqueue(%s, '{}', now())", [job])
    project.db.execute(
        "update yamlsched.job_runs set run_at = run_at - make_interval(hours => %s) where job_type = %s",
        [hours, job],
    )


def backlog(project: Project, job: str, count: int) -> tuple[Process, list[int]]:
    """Start a worker under a limit of 1, and return it once it has found that all runs but one have to wait."""
    runs = project.enqueue(job, count=count)
    worker = project.start("work", "--loop")
    until(lambda: project.calls("started") == 1, "one run executes")
    until(lambda: waiting(project) == count - 1, "the others wait")
    return worker, runs


def waiting(project: Project) -> int:
    """Return how many runs wait for a limit, by the words that `show` prints."""
    return int(
        value(
            project.db,
            "select count(*) from yamlsched.job_runs r where yamlsched.waits_for(r) like %s",
            "%limit%",
        )
    )


# -- order


def test_each_lower_level_behind_a_limit_gets_one_start_in_eight(project: Project) -> None:
    project.limits = {"warehouse": 1}
    project.sync(**levels("nothing"))
    for hours, job, count in ((3, "low", 12), (2, "normal", 12), (1, "high", 90)):
        enqueue_older(project, job, hours, count)

    project.work()

    first = Counter(started(project)[:80])
    assert first["low"] > 0
    assert first["normal"] > 0
    assert first["high"] > first["low"] + first["normal"]


@pytest.mark.parametrize("job", ["low", "normal"])
def test_a_steady_stream_of_a_higher_level_does_not_hold_up_a_lower_one(
    project: Project, job: str
) -> None:
    project.limits = {"warehouse": 1}
    project.sync(**levels("nothing") | {"high": levels("renews_itself")["high"]})
    project.enqueue("high", count=3)
    worker = project.start("work", "--loop")
    until(lambda: project.calls("started") >= 3)

    [run] = project.enqueue(job)

    until(lambda: project.row(run).status == "succeeded", "the lower level has its turn", 60)
    assert worker.is_alive


def test_a_higher_level_starts_before_a_lower_one_that_is_older(project: Project) -> None:
    project.limits = {"warehouse": 1}
    project.sync(**levels("nothing"))
    enqueue_older(project, "low", 3, 20)
    enqueue_older(project, "high", 1, 20)

    project.work()

    order = started(project)
    assert order[:20].count("high") > order[:20].count("low")


# -- never more than n


def test_never_more_handlers_than_the_limit_execute_at_once(project: Project) -> None:
    project.limits = {"warehouse": 2}
    project.sync(**levels("nap"))
    for job in ("high", "normal", "low"):
        project.enqueue(job, {"seconds": 0.02}, count=20)

    workers = [project.start("work", host=host) for host in ("a", "b", "c")]

    assert {worker.wait() for worker in workers} == {0}
    project.work()
    assert project.statuses() == {"succeeded": 60}
    assert most_at_once(project) == 2


# -- edits, while another session has locked what waits


EDITS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "the limit is removed": ({}, {}),
    "the job leaves the limit": ({"warehouse": 1}, {}),
    "the job gets another limit": ({"warehouse": 1, "other": 9}, {"limit": "other"}),
    "the limit is renamed": ({"other": 9}, {"limit": "other"}),
    "the limit is raised": ({"warehouse": 9}, {"limit": "warehouse"}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_frees_what_waits_also_if_another_session_has_locked_it(
    project: Project, edit: str
) -> None:
    project.limits = {"warehouse": 1}
    project.sync(waits_for_file={"limit": "warehouse"}, nothing={"limit": "warehouse"})
    _, runs = backlog(project, "waits_for_file", 3)
    limits, job = EDITS[edit]

    with database.connect(project.dsn) as other, other.transaction():
        other.execute("select from yamlsched.job_runs where status = 'queued' for no key update")
        project.limits = limits
        project.sync(
            waits_for_file=job, nothing={"limit": "warehouse"} if "warehouse" in limits else {}
        )

    until(lambda: project.calls("started") == 3, "all of them start", 20)
    project.touch("go")
    until(lambda: project.statuses() == {"succeeded": 3})
    assert len(runs) == 3


def test_a_lower_limit_ends_nothing_and_what_waits_starts_one_after_another(
    project: Project,
) -> None:
    project.limits = {"warehouse": 3}
    project.sync(waits_for_file={"limit": "warehouse"}, nap={"limit": "warehouse"})
    project.enqueue("waits_for_file", count=3)
    worker = project.start("work", "--loop")
    until(lambda: project.calls("started") == 3)
    runs = project.enqueue("nap", count=5)
    until(lambda: waiting(project) == 5)

    with database.connect(project.dsn) as other, other.transaction():
        other.execute("select from yamlsched.job_runs where status = 'queued' for no key update")
        project.limits = {"warehouse": 1}
        project.sync(waits_for_file={"limit": "warehouse"}, nap={"limit": "warehouse"})
    project.touch("go")

    until(lambda: project.statuses() == {"succeeded": 8})
    spans = sorted((project.row(run).started_at, project.row(run).finished_at) for run in runs)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert worker.is_alive


# -- what is lost


@pytest.mark.parametrize("what", ["the row of the limit", "the number of the limit"])
def test_the_next_sync_of_the_same_file_repairs_a_limit_that_the_database_has_lost(
    project: Project, what: str
) -> None:
    project.limits = {"warehouse": 1}
    job = {"waits_for_file": {"limit": "warehouse"}}
    project.sync(**job)
    backlog(project, "waits_for_file", 3)
    change = (
        "delete from yamlsched.gates"
        if what == "the row of the limit"
        else "update yamlsched.gates set capacity = null"
    )
    project.db.execute(f"{change} where name = 'limit/warehouse'".encode())

    project.sync(**job)
    project.touch("go")

    until(lambda: project.statuses() == {"succeeded": 3}, "all of them start", 20)
    assert most_at_once(project) == 1


# -- repairs


def repairs(db: Db) -> int:
    return int(value(db, "select repairs from yamlsched.namespaces"))


def test_a_success_in_the_transaction_of_a_handler_is_no_repair_for_what_follows(
    db: Db, dsn: str, world: World
) -> None:
    # given two slots of a job with overlap wait, the first of which executes, and a job that follows it
    world.apply(up={**HOURLY, "catchup": "all"}, down={**HOURLY, "after": ["up"], "catchup": "all"})
    world.tick("2026-01-14 03:30")
    assert world.claim() == ["up 02:00"]
    [run] = world.held.values()

    # when its handler commits the success, and its worker does not know yet
    with database.connect(dsn) as own:
        assert succeed_in(own, run)
    world.runner.run(claiming.sweep(world.connection, "default", world.now))

    assert repairs(db) == 0


def test_what_a_session_left_that_died_is_a_repair(db: Db, world: World) -> None:
    world.apply(up={**HOURLY, "catchup": "all"})
    world.tick("2026-01-14 03:30")
    assert world.claim() == ["up 02:00"]
    [run] = world.held
    # the next one waits for its turn; then its end is written, and the session dies before it returns the permit
    db.execute(
        "update yamlsched.job_runs set status = 'succeeded', finished_at = now(), locked_until = null "
        "where id = %s",
        [run],
    )

    world.runner.run(claiming.repair(world.connection, "default", world.now))

    assert repairs(db) == 1
    assert world.claim() == ["up 03:00"]
    world.end("up 03:00", SUCCESS)
