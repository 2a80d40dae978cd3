"""Queues: who executes which runs, how many at once, and what an edit does to what waits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.gates import MINUTE, NOW, SECOND, Worker, due, ids
from support.gates import worker as worker
from support.project import Project, a_project, until
from support.rows import a_job, a_run, row, value
from support.schedules import a_file
from yamlsched.ask import edits
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.worker import claiming

Db = psycopg.Connection[Any]
WEB2 = "queues: {web2: {dedicated: true}, mail: {mode: async}}"


def queues(db: Db) -> list[str]:
    return [row.queue for row in db.execute("select queue from yamlsched.job_runs order by id")]


# -- in which queue a run is


def test_runs_are_created_in_the_queue_of_their_job_and_claimed_from_it(
    db: Db, worker: Worker
) -> None:
    job = a_job(db, "backup", queue="web2", on_dead=["page"], max_attempts=1)
    a_job(db, "page", schedule=None, queue="web2")
    plain = due(db, a_job(db, "plain"))
    db.execute("select from yamlsched.enqueue('backup', '{}')")
    db.execute("select from yamlsched.enqueue_many('backup', array['{}']::jsonb[])")
    lost = a_run(db, job, "running", queue="web2", attempts=1, max_attempts=1,
                 locked_until="(now() - interval '1 minute')")  # fmt: skip
    worker.call(claiming.reclaim, "default")  # it dies, and its hook is created

    assert queues(db) == ["default", *["web2"] * 4]
    assert row(db, lost).status == "dead"
    assert ids(worker.claim()) == [plain]
    later = value(db, "select max(run_at) from yamlsched.job_runs") + SECOND
    assert len(worker.claim(queue="web2", now=later)) == 3
    assert worker.claim(queue="mail") == []


def slots_file(queue: str, top: str = WEB2, **job: Any) -> Any:
    return a_file(top=top, backup={"queue": queue, **job})


def test_what_waits_follows_its_job_to_another_queue_and_a_retry_too(
    db: Db, worker: Worker
) -> None:
    # given a run that executes, and two that wait, one of them at a gate
    sync(db, slots_file("web2", cron="0 2 * * *"), NOW - MINUTE)
    job = int(value(db, "select id from yamlsched.job_definitions"))
    runs = [due(db, job, number, queue="web2", exclusive=number < 2) for number in range(3)]
    executing, free = worker.claim(queue="web2")
    assert (executing.id, free.id) == (runs[0], runs[2])
    worker.finish(free)

    # when its queue is renamed
    renamed = "queues: {server2: {dedicated: true}}"
    result = sync(db, slots_file("server2", renamed, cron="0 2 * * *"), NOW)

    assert result.changes is not None
    assert result.changes.changed == ("backup",)
    assert [row(db, run).queue for run in runs] == ["web2", "server2", "web2"]
    worker.call(claiming.release_claim, "default", executing.locked_by, now=NOW)
    assert worker.claim(queue="web2", now=NOW) == []  # it moves what it finds
    assert len(worker.claim(queue="server2", now=NOW + SECOND)) == 1
    assert row(db, runs[0]).queue == "server2"


def test_a_run_that_an_edit_has_missed_is_moved_although_nobody_serves_its_queue(
    db: Db, worker: Worker
) -> None:
    job = a_job(db, queue="new")
    left, blocked = due(db, job, queue="former"), due(db, job, 1, queue="former", exclusive=True)
    running = a_run(db, job, "running", queue="former")

    db.execute("select yamlsched.repair('default', %s)", [NOW])

    assert [row(db, run).queue for run in (left, blocked, running)] == ["new", "new", "former"]


def test_an_edit_of_a_queue_is_recorded_and_changes_no_job(db: Db) -> None:
    sync(db, slots_file("mail"), NOW - MINUTE)
    result = sync(db, slots_file("mail", WEB2.replace("async}", "async, concurrency: 9}")), NOW)

    assert result.changes is not None
    assert result.changes.changed == ()
    [edit] = edits.edits(db, "default", limit=1)
    before, after = {"queues.mail.concurrency": None}, {"queues.mail.concurrency": 9}
    assert (edit.before, edit.after) == (before, after)


# -- what a host checks


@pytest.mark.parametrize(
    ("served", "is_applied"),
    [(None, True), (("default",), True), ((), True), (("web2",), False), (("default", "web2"), False)],
)  # fmt: skip
def test_a_host_checks_the_handlers_and_programs_of_the_queues_that_it_serves(
    db: Db, tmp_path: Path, served: tuple[str, ...] | None, is_applied: bool
) -> None:
    (tmp_path / "here.py").write_text("def run(): ...\n")
    text = f"""version: 1
{WEB2}
jobs:
  here: {{handler: here.run}}
  away: {{handler: elsewhere.run, queue: web2}}
  program: {{command: [./no-such-program], queue: web2}}
"""
    file = ScheduleFile(text.encode(), str(tmp_path / "schedules.yaml"), handler_path=())

    result = sync(db, replace(file, queues=served), NOW)

    assert (result.changes is not None) is is_applied
    assert ("YS3" in "\n".join(result.messages)) is not is_applied
    assert result.jobs is not None
    assert result.jobs.keys() == ({"here"} if not is_applied else {"here", "away", "program"})


# -- workers


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        project.queues |= {"web2": {"dedicated": True}, "narrow": {"concurrency": 1}}
        yield project


@pytest.mark.story
@pytest.mark.parametrize(
    ("words", "executed"),
    [
        ((), {"plain", "narrow", "shared"}),
        (("--queue", "web2"), {"web2"}),
        (("--queue", "shared, web2"), {"web2", "shared"}),
    ],
)
def test_a_worker_serves_the_queues_that_it_names_or_all_that_are_not_dedicated(
    project: Project, words: tuple[str, ...], executed: set[str]
) -> None:
    nothing = {"handler": "support.handlers.nothing"}
    project.sync(
        plain=nothing,
        web2={**nothing, "queue": "web2"},
        narrow={**nothing, "queue": "narrow"},
        shared={"handler": "support.coroutine_handlers.nothing", "queue": "shared"},
    )
    for job in ("plain", "web2", "narrow", "shared"):
        project.enqueue(job)

    project.work(*words)

    rows = project.db.execute(
        "select job_type, attempts from yamlsched.job_runs where status = 'succeeded'"
    ).fetchall()
    assert {each.job_type for each in rows} == executed
    assert project.statuses().get("queued", 0) == 4 - len(executed)
    assert value(project.db, "select sum(attempts) from yamlsched.job_runs") == len(executed)


@pytest.mark.story
def test_a_tick_that_serves_no_queue_syncs_and_executes_nothing(project: Project) -> None:
    project.write(nothing={"cron": "* * * * *", "catchup": "all"})
    assert project.start("tick", "--queue", "none").wait() == 0
    project.db.execute(
        "update yamlsched.job_definitions set effective_from = now() - interval '3 minutes', "
        "next_slot_at = date_trunc('minute', now() - interval '2 minutes')"
    )

    assert project.start("tick", "--queue", "none").wait() == 0

    assert project.statuses().keys() == {"queued"}
    assert project.start("tick").wait() == 0
    assert project.statuses().keys() == {"succeeded"}


@pytest.mark.story
def test_a_queue_that_the_file_does_not_have_is_an_error_and_the_others_are_served(
    project: Project,
) -> None:
    project.sync(nothing={})
    project.enqueue("nothing")

    worker = project.work("--queue", "default,nwrrow", code=1)

    assert project.statuses() == {"succeeded": 1}
    assert "queue.unknown queue=nwrrow" in worker.text
    assert 'Did you mean \\"narrow\\"?' in worker.text


@pytest.mark.story
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_tick_reports_a_queue_that_the_file_does_not_have_also_with_nothing_to_do(
    project: Project, is_idle: bool
) -> None:
    project.write(nothing={})
    assert project.start("tick").wait() == 0
    if not is_idle:
        project.enqueue("nothing")

    tick = project.start("tick", "--queue", "default,nwrrow")

    assert tick.wait() == 1
    assert "queue.unknown queue=nwrrow" in tick.text


@pytest.mark.story
def test_work_from_another_path_is_no_place(project: Project) -> None:
    project.sync(nothing={})
    project.enqueue("nothing")
    places = "select array_agg(h.path) from yamlsched.hosts h"
    before = value(project.db, places)
    (elsewhere := project.folder / "copy.yaml").write_bytes(project.file.read_bytes())

    project.work("--file", str(elsewhere))

    assert project.statuses() == {"succeeded": 1}
    assert value(project.db, places) == before


@pytest.mark.story
def test_an_option_that_names_no_queue_is_a_usage_error(project: Project) -> None:
    project.sync(nothing={})

    for words in (
        ("work", "--queue", "Mail"),
        ("work", "--queue", ""),
        ("tick", "--queue", "mail,"),
        ("tick", "--queue", "default,none"),
        ("work", "--queue", "none"),
    ):
        process = project.start(*words)

        assert process.wait() == 2, words
        assert "--queue" in process.text, words


def test_a_queue_has_no_more_runs_at_once_than_its_concurrency_and_holds_up_no_other(
    project: Project,
) -> None:
    project.sync(waits_for_file={"queue": "narrow"}, nothing={}, nap={"queue": "narrow"})
    narrow = project.enqueue("waits_for_file", count=3)
    worker = project.start("work", "--loop", "--concurrency", "3")
    until(lambda: project.calls("started") == 1)

    others = project.enqueue("nothing", count=20)
    for run in others:
        project.until_status(run, "succeeded")
    assert project.calls("started") == 21
    assert sorted(project.row(run).status for run in narrow) == ["queued", "queued", "running"]

    project.touch("go")
    until(lambda: project.statuses() == {"succeeded": 23})
    calls = map(str.split, (project.folder / "calls").read_text().splitlines())
    assert [what for what, run, *_ in calls if int(run) in narrow] == ["started", "completed"] * 3
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.story
def test_a_queue_with_a_backlog_leaves_processes_to_another_one(project: Project) -> None:
    project.queues["second"] = {}
    nap = {"handler": "support.handlers.nap", "payload": {"seconds": 0.05}}
    project.sync(first=nap, second={**nap, "queue": "second"})
    backlog = project.enqueue("first", count=60)
    [run] = project.enqueue("second")

    project.work("--concurrency", "1")

    after = [
        each for each in backlog if project.row(each).started_at > project.row(run).finished_at
    ]
    assert len(after) > 20


@pytest.mark.story
def test_a_loop_serves_what_an_edit_leaves_to_it(project: Project) -> None:
    project.queues["web3"] = {}
    job = {"nothing": {"queue": "web3"}}
    project.sync(**job)
    [first] = project.enqueue("nothing")
    worker = project.start("work", "--loop")
    project.until_status(first, "succeeded")

    # when the queue is left to workers that name it
    project.queues["web3"] = {"dedicated": True}
    project.write(**job, nap={})
    worker.signal(signal.SIGHUP)
    until(lambda: "sync.applied" in worker.text.partition("worker.reloading")[2])
    [new] = project.enqueue("nap")
    project.until_status(new, "succeeded")  # it follows the edit
    [second], [third] = project.enqueue("nothing"), project.enqueue("nap")
    project.until_status(third, "succeeded")
    project.work()
    assert project.row(second).status == "queued"

    project.work("--queue", "web3")
    assert project.row(second).status == "succeeded"
    assert worker.is_alive


@pytest.mark.story
def test_runs_whose_process_died_drain_through_few_processes_and_pay_one_attempt(
    project: Project,
) -> None:
    # given thirty coroutines of a process, one of which ends it
    handlers = "support.coroutine_handlers"
    project.sync(
        waits={"handler": f"{handlers}.waits", "queue": "shared", "max_attempts": 2},
        dies={"handler": f"{handlers}.dies", "queue": "shared", "max_attempts": 1},
    )
    runs = project.enqueue("waits", {"file": "later"}, count=30)
    worker = project.start("work", "--concurrency", "2")
    until(lambda: project.calls("started") == 30)
    project.enqueue("dies", {"how": "_exit"})
    project.touch("go")
    until(lambda: project.statuses().get("dead") == 1)
    project.touch("later")

    assert worker.wait() == 1
    project.work()
    assert {(project.row(run).status, project.row(run).attempts) for run in runs} == {
        ("succeeded", 2)
    }
    assert {project.row(run).queue for run in runs} == {"shared"}


@pytest.mark.story
def test_queue_may_be_repeated(project: Project) -> None:
    project.queues |= {"second": {"dedicated": True}, "third": {"dedicated": True}}
    project.sync(nothing={"queue": "second"}, nap={"queue": "third"})
    runs = project.enqueue("nothing") + project.enqueue("nap")

    assert project.start("tick", "--queue", "second", "--queue", "third").wait() == 0

    assert [project.row(run).status for run in runs] == ["succeeded", "succeeded"]


@pytest.mark.story
def test_a_tick_that_serves_no_queue_ends_pauses(project: Project) -> None:
    project.sync(nothing={})
    [run] = project.enqueue("nothing")
    project.db.execute(
        "update yamlsched.job_definitions set paused_at = now() - interval '1 hour', paused_until = now()"
    )
    project.db.execute(
        "update yamlsched.job_runs set blocked_on = 'closed/' || definition_id where id = %s", [run]
    )

    assert project.start("tick", "--queue", "none").wait() == 0

    assert project.row(run).blocked_on is None
