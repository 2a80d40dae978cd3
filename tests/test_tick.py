"""Ticks and loops work despite invalid files, locks and failed housekeeping, but not in another environment."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.project import Process, Project, a_project, until
from support.schedules import sync_by_hand
from yamlsched import db as store
from yamlsched.cli import cli
from yamlsched.schedule.include import patterns
from yamlsched.sync.files import ScheduleFile

BOTH = {"environments": {"staging": {}, "production": {}}}
YEARLY = "0 0 1 1 *"


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "work.py").write_text("def rows(run, older_than=1): ...\n")
    with a_project(tmp_path, own_dsn) as project:
        yield project


def write(project: Project, top: dict[str, Any] | None = None, **jobs: dict[str, Any]) -> None:
    """Write the schedule."""
    entries = {
        name: {
            **({} if "command" in job else {"handler": f"support.handlers.{name}"}),
            "lease": "2s",
            **job,
        }
        for name, job in jobs.items()
    }
    project.file.write_text(json.dumps({"version": 1, **(top or {}), "jobs": entries}))


def apply(project: Project, environment: str | None = None) -> None:
    """Apply the schedule as ``yamlsched sync`` does."""
    with store.connect(project.dsn) as connection:
        synced = sync_by_hand(
            connection, ScheduleFile.read(project.file, environment, find_patterns=patterns)
        )
    assert not synced.messages, synced.messages


def make_due(project: Project, job: str) -> None:
    """Make the slot of an hour ago due."""
    project.db.execute(
        "update yamlsched.job_definitions set effective_from = now() - interval '2 hours', last_slot_at = null, "
        "next_slot_at = date_trunc('minute', now() - interval '1 hour') where job_type = %s",
        [job],
    )


def count(project: Project, what: str) -> int:
    row: Any = project.db.execute(
        f"select count(*) as number from yamlsched.{what}".encode()
    ).fetchone()
    return int(row.number)


def ended(process: Process) -> tuple[int, str]:
    return process.wait(), process.text


def stop(loop: Process) -> None:
    loop.signal(signal.SIGTERM)
    assert loop.wait() == 0, loop.text


def synced_again(loop: Process) -> None:
    """Make a loop sync now, and wait until it has."""
    before = loop.text.count("worker.reloading")
    loop.signal(signal.SIGHUP)
    until(lambda: loop.text.count("worker.reloading") > before, "the loop syncs")


# -- environments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [("tick",), ("work",), ("work", "--loop")])
def test_a_host_of_another_environment_creates_no_slots_and_claims_no_runs(
    project: Project, verb: tuple[str]
) -> None:
    # given a namespace of production, with a due run and an owed slot
    write(
        project,
        BOTH,
        nothing={"environments": ["production"], "cron": "* * * * *", "overlap": "allow"},
    )
    apply(project, "production")
    [run] = project.enqueue("nothing")
    make_due(project, "nothing")

    # when a host of staging ticks with the same file
    code, text = ended(project.start(*verb, "--env", "staging"))

    # then it reports this and does nothing
    assert code == 1
    assert 'belongs to environment "production"' in text
    assert "nothing is scheduled or run here" in text
    assert project.row(run).status == "queued"
    assert count(project, "job_runs") == 1

    # and a host of production does both
    assert project.start("tick", "--env", "production").wait() == 0
    assert count(project, "job_runs where status = 'succeeded'") == 2


def test_a_host_of_another_environment_with_an_invalid_file_does_nothing(project: Project) -> None:
    write(project, BOTH, nothing={"cron": YEARLY})
    apply(project, "production")
    assert project.start("tick", "--env", "staging").wait() == 1
    [run] = project.enqueue("nothing")
    make_due(project, "nothing")

    write(project, BOTH, nothing={"cron": YEARLY}, broken={"hanlder": "support.handlers.nothing"})
    code, text = ended(project.start("tick", "--env", "staging"))

    assert code == 1
    assert "hanlder" in text
    assert 'belongs to environment "production"' in text
    assert project.row(run).status == "queued"
    assert count(project, "job_runs") == 1


def test_a_loop_stops_claiming_while_its_namespace_belongs_to_another_environment(
    project: Project,
) -> None:
    # given a loop of production that has executed a run
    write(project, BOTH, nothing={}, yearly={"cron": YEARLY, "handler": "support.handlers.nothing"})
    apply(project, "production")
    loop = project.start("work", "--loop", "--env", "production")
    project.until_status(project.enqueue("nothing")[0], "succeeded")

    # when an operator gives the namespace to staging, and the loop has synced
    apply(project, "staging")
    loop.signal(signal.SIGHUP)
    until(lambda: 'belongs to environment "staging"' in loop.text)
    [withheld] = project.enqueue("nothing")

    # then a worker of staging executes the due run, which the loop did not claim
    until(lambda: project.start("work", "--env", "staging").wait() == 0)
    row = project.until_status(withheld, "succeeded")
    assert f":{loop.pid}:" not in row.locked_by

    # and the loop still does not claim while it cannot open its file
    moved = project.file.rename(project.file.with_suffix(".moved"))
    make_due(project, "yearly")
    loop.signal(signal.SIGHUP)
    until(lambda: "the jobs of the last readable file" in loop.text)
    assert count(project, "job_definitions where next_slot_at < now()") == 1
    [withheld] = project.enqueue("nothing")
    moved.rename(project.file)
    until(lambda: project.start("work", "--env", "staging").wait() == 0)
    row = project.until_status(withheld, "succeeded")
    assert f":{loop.pid}:" not in row.locked_by

    # and when the namespace belongs to production again, the loop claims again
    apply(project, "production")
    loop.signal(signal.SIGHUP)
    row = project.until_status(project.enqueue("nothing")[0], "succeeded")
    assert f":{loop.pid}:" in row.locked_by
    stop(loop)


# -- files with errors -------------------------------------------------------------------------------------------------


def test_a_tick_does_not_apply_a_file_that_validate_rejects_but_runs_the_other_jobs(
    project: Project,
) -> None:
    # given two jobs in use, each with a due run
    good = {"handler": "work.rows", "cron": "* * * * *", "overlap": "allow"}
    write(project, good=good, bad=good)
    assert project.start("tick").wait() == 0
    [of_good], [of_bad] = project.enqueue("good"), project.enqueue("bad")
    make_due(project, "good")

    # when an edit gives one of them a payload that does not fit its handler
    write(project, good={**good, "description": "edited"}, bad={**good, "payload": {"older": 30}})
    assert (
        CliRunner().invoke(cli, ["validate", str(project.file)], standalone_mode=False).return_value
        == 1
    )
    code, text = ended(project.start("tick"))

    # then the file is rejected, slots are still created, and the runs of the other job are executed
    assert code == 1
    assert "YS304" in text
    assert "sync.refused" in text
    assert re.search(r"WARNING jobs\.left_out .* jobs=bad mistakes=1 ", text)
    assert count(project, "job_definitions where description = 'edited'") == 0
    assert [project.row(run).status for run in (of_good, of_bad)] == ["succeeded", "queued"]
    assert (
        count(
            project,
            "job_runs where scheduled_for is not null and job_type = 'good' and status = 'succeeded'",
        )
        >= 1
    )

    # and each further tick does the same
    assert project.start("tick").wait() == 1


def test_a_handler_that_is_fixed_lets_the_next_tick_apply_the_file_that_did_not_change(
    project: Project,
) -> None:
    write(project, job={"handler": "later.run"})
    code, text = ended(project.start("tick"))
    assert (code, count(project, "job_definitions")) == (1, 0)
    assert "YS303" in text

    (project.folder / "later.py").write_text("def run(): ...\n")

    code, text = ended(project.start("tick"))
    assert (code, count(project, "job_definitions")) == (0, 1), text


def test_a_file_in_use_is_not_checked_again(project: Project) -> None:
    write(project, job={"handler": "work.rows"})
    assert project.start("tick").wait() == 0
    (project.folder / "work.py").unlink()

    code, text = ended(project.start("tick"))

    assert (code, text) == (0, "")


def test_handlers_are_searched_in_the_folders_of_path(project: Project) -> None:
    (project.folder / "src").mkdir()
    (project.folder / "src" / "shop.py").write_text("def close(): ...\n")
    write(project, close={"handler": "shop.close"})
    assert project.start("tick").wait() == 1

    code, text = ended(project.start("tick", "--path", str(project.folder / "src")))

    assert (code, "sync.applied" in text, "YS3" in text) == (0, True, False)


def test_a_tick_with_a_file_that_is_not_yaml_creates_slots_and_reports_that_it_runs_nothing(
    project: Project,
) -> None:
    write(project, nothing={"cron": "* * * * *"})
    apply(project)
    make_due(project, "nothing")

    project.file.write_text(project.file.read_text() + "]")
    code, text = ended(project.start("tick"))

    assert code == 1
    assert "YS0" in text
    assert "no job of this file can run until it is fixed" in text
    assert count(project, "job_runs where status = 'queued'") == 1


def test_a_loop_continues_with_the_handlers_of_the_last_file_that_it_could_read(
    project: Project,
) -> None:
    write(project, nothing={}, returns_json={})
    loop = project.start("work", "--loop")
    until(lambda: count(project, "job_definitions") == 2)
    project.until_status(project.enqueue("nothing")[0], "succeeded")

    for times, broken in enumerate(
        ["version: 1\njobs: {nothing: [}", "version: 2\njobs: {}\n", None], 1
    ):
        # when the file cannot be parsed, has another version, or is missing
        if broken is None:
            project.file.unlink()
        else:
            project.file.write_text(broken)
        loop.signal(signal.SIGHUP)
        until(lambda times=times: loop.text.count("the jobs of the last readable file") == times)  # type: ignore[misc]

        # then due runs are executed as before
        for job in ("nothing", "returns_json"):
            project.until_status(project.enqueue(job)[0], "succeeded")

    # and a valid edit is applied; one that removes a job would wait for the next minute's sync
    write(project, nothing={}, returns_json={}, waits_for_others={"payload": {"others": 0}})
    loop.signal(signal.SIGHUP)
    until(lambda: count(project, "job_definitions where job_type = 'waits_for_others'"))
    project.until_status(project.enqueue("waits_for_others")[0], "succeeded")
    stop(loop)


def test_a_loop_without_its_file_leaves_slots_to_a_host_with_newer_time_zone_data(
    project: Project,
) -> None:
    # given a loop, and another host that has the same file with newer data
    write(project, nothing={}, yearly={"cron": YEARLY, "handler": "support.handlers.nothing"})
    loop = project.start("work", "--loop")
    until(lambda: count(project, "job_definitions") == 2)
    project.until_status(project.enqueue("nothing")[0], "succeeded")
    project.db.execute(
        "insert into yamlsched.hosts (namespace, host, path, is_named, hash, environment, yamlsched_version, "
        "tzdata_version, since, first_seen_at, seen_at, expected_until) select namespace, 'b', path, is_named, hash, "
        "environment, yamlsched_version, '2999a', since, first_seen_at, seen_at, expected_until from yamlsched.hosts"
    )
    make_due(project, "yearly")

    project.file.unlink()
    loop.signal(signal.SIGHUP)
    until(lambda: "the jobs of the last readable file" in loop.text)

    assert count(project, "job_definitions where next_slot_at < now()") == 1
    stop(loop)


def test_a_loop_stops_only_the_job_whose_entry_is_invalid(project: Project) -> None:
    write(project, nothing={}, returns_json={})
    loop = project.start("work", "--loop")
    until(lambda: count(project, "job_definitions") == 2)
    project.until_status(project.enqueue("nothing")[0], "succeeded")

    write(project, nothing={}, returns_json={"max_atempts": 1})
    loop.signal(signal.SIGHUP)
    until(lambda: "sync.refused" in loop.text)
    synced_again(loop)
    [left], [done] = project.enqueue("returns_json"), project.enqueue("nothing")

    project.until_status(done, "succeeded")
    assert project.row(left).status == "queued"
    write(project, nothing={}, returns_json={})
    loop.signal(signal.SIGHUP)
    project.until_status(left, "succeeded")
    stop(loop)


# -- locks and housekeeping --------------------------------------------------------------------------------------------


def retire_long_ago(project: Project, job: str, runs: int) -> None:
    """Retire a job two days ago, with unfinished runs."""
    project.enqueue(job, count=runs)
    project.db.execute(
        "update yamlsched.job_definitions set retired_at = now() - interval '2 days', next_slot_at = null "
        "where job_type = %s",
        [job],
    )


def test_runs_of_a_retired_job_are_cancelled_after_the_work_in_batches_with_a_line_for_each(
    project: Project,
) -> None:
    write(project, nothing={}, returns_json={})
    apply(project)
    retire_long_ago(project, "returns_json", 4500)
    [run] = project.enqueue("nothing")
    write(project, nothing={})
    apply(project)

    code, text = ended(project.start("tick"))

    assert code == 0, text
    assert text.index("attempt.succeeded") < text.index("runs.cancelled")
    assert text.count("runs.cancelled") <= 3
    assert "jobs=returns_json runs=2000" in text
    assert project.row(run).status == "succeeded"
    until(
        lambda: (
            project.start("tick").wait() == 0
            and not count(project, "job_runs where finished_at is null")
        )
    )


def test_failed_housekeeping_exits_1_and_does_not_stop_the_work(project: Project) -> None:
    write(project, nothing={})
    apply(project)
    [run] = project.enqueue("nothing")
    with store.connect(project.dsn) as other, other.transaction():
        other.execute("lock table yamlsched.used_keys in access exclusive mode")

        code, text = ended(project.start("tick"))

        assert (code, project.row(run).status) == (1, "succeeded")
        assert 'housekeeping.failed error="canceling statement due to lock timeout' in text

    assert project.start("tick").wait() == 0


@pytest.mark.story
def test_a_loop_applies_an_edit_although_housekeeping_fails(project: Project) -> None:
    write(project, nothing={})
    loop = project.start("work", "--loop")
    until(lambda: count(project, "job_definitions"))
    project.until_status(project.enqueue("nothing")[0], "succeeded")
    until(
        lambda: 10 < project.db.execute("select clock_timestamp()").fetchone()[0].second < 40,
        "the loop syncs at the start of each minute: not now",
    )
    with store.connect(project.dsn) as other, other.transaction():
        other.execute("lock table yamlsched.effects in access exclusive mode")
        # the loop may have kept house at the start of the minute
        project.db.execute("update yamlsched.namespaces set housekept_at = null")

        write(project, nothing={}, returns_json={})
        loop.signal(signal.SIGHUP)
        until(lambda: "housekeeping.failed" in loop.text)

    project.until_status(project.enqueue("returns_json")[0], "succeeded")
    stop(loop)


def test_a_tick_that_cannot_apply_an_edit_because_of_a_lock_still_works(project: Project) -> None:
    write(project, nothing={})
    apply(project)
    [run] = project.enqueue("nothing")
    write(project, nothing={"description": "edited"})
    with store.connect(project.dsn) as other, other.transaction():
        other.execute("select 1 from yamlsched.namespaces for update")

        code, text = ended(project.start("tick"))

        assert (code, project.row(run).status) == (1, "succeeded")
        assert "sync.failed" in text
        assert "another session holds a lock" in text

    assert project.start("tick").wait() == 0
    assert count(project, "job_definitions where description = 'edited'") == 1


# -- two services in one namespace -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb, own, others",
    [
        ("tick", {"handler": "support.handlers.returns_json"}, {"handler": "support.handlers.nap"}),
        ("work", {"handler": "support.handlers.returns_json"}, {"handler": "support.handlers.nap"}),
        (
            "work",
            {"command": ["/bin/sh", "-c", "exit 64"]},
            {"command": ["/bin/sh", "-c", "exit 0"]},
        ),
    ],
)
def test_a_service_whose_file_is_held_back_does_not_call_its_own_handler_for_jobs_of_the_other(
    project: Project, tmp_path: Path, verb: str, own: dict[str, Any], others: dict[str, Any]
) -> None:
    # given two services that share a namespace by mistake, with two job names in common, one with the same handler
    (tmp_path / "other").mkdir()
    other = Project(project.fork_server, tmp_path / "other", project.dsn)
    write(project, nothing={}, clash=own)
    write(other, nothing={}, clash=others)
    apply(project)
    apply(other)
    [same], [clash] = project.enqueue("nothing"), project.enqueue("clash")

    # when the service that is held back ticks
    assert project.start(verb).wait() == 0

    # then it does not run the job that has another handler in use
    assert [project.row(run).status for run in (same, clash)] == ["succeeded", "queued"]
    assert other.start(verb, host="b").wait() == 0
    assert project.row(clash).status == "succeeded"
    other.close()
