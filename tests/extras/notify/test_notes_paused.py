"""What is told of a job that its ``pause_after`` has paused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from support.notes import DAY, HOUR, MINUTE, SLOT, Story, story
from support.rows import a_job
from yamlsched.act import pause as pausing
from yamlsched.db.query import load

__all__ = ["story"]

PAUSED = ("ops", "[default] charge: is paused after 3 dead runs in a row")


@pytest.fixture
def job(db: psycopg.Connection[Any], story: Story) -> int:
    story.target()
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    values = {"pause_after": 3, "applied_at": long_ago, "schedule": "0 2 * * *"}
    return a_job(db, "charge", notify=["ops", "pager"], owner="team-x", **values)


def die(story: Story, job: int, slots: int = 3, after: int = 0) -> list[int]:
    """Let the runs of so many slots die, and do what their workers do then."""
    runs = []
    for n in range(after, after + slots):
        runs += story.die(job, SLOT + n * DAY, finished_at="(clock_timestamp())")
        parameters = {"namespace": "default", "ids": runs[-1:], "now": None}
        story.db.execute(load("runs")["pause_dying"], parameters)
    return runs


def test_a_pause_is_told_at_once_with_the_error_and_the_command_that_resumes_the_job(
    story: Story, job: int
) -> None:
    die(story, job, 1)
    assert story.send() == [("ops", "[default] charge: 1 run died")]

    [_, run] = die(story, job, 2, after=1)

    assert story.send() == []  # a message to a target waits for a minute after the one before
    assert story.send(after=MINUTE) == [PAUSED]
    assert story.messages[0].text == (
        "job charge, owner team-x\n"
        f"run {run} on web-1: OSError: no route to host\n"
        f"yamlsched show {run}\n"
        "yamlsched resume charge\n"
        "namespace default"
    )


def test_it_is_told_again_in_place_of_the_death_until_the_job_is_resumed_and_recovers(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    die(story, job)
    assert story.send() == [PAUSED]
    assert story.send(after=HOUR - MINUTE) == []
    assert story.send(after=MINUTE) == [PAUSED]
    assert story.send(after=2 * HOUR) == [PAUSED]

    # a run that was claimed before the pause succeeds: the job is still paused
    story.succeed(job, SLOT + 5 * DAY)
    assert story.send(after=MINUTE) == []

    pausing.resume(db, "default", [job], "ann")
    assert story.send(after=MINUTE) == [("ops", "[default] charge has recovered")]
    assert "; 3 runs had died" in story.messages[0].text


def test_a_second_pause_is_told_at_once(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    die(story, job)
    story.send()

    pausing.resume(db, "default", [job], "ann")
    assert story.send(after=2 * MINUTE) == []
    die(story, job, after=3)

    assert story.send() == [PAUSED]


def test_a_pause_is_told_again_of_its_own_job_and_of_no_other(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    # given jobs whose pause was told, of which one has the same name in another namespace
    db.execute(
        "insert into yamlsched.notify_targets (namespace, name, url_env, events)"
        " values ('elsewhere', 'ops', 'A_URL', '{}')"
    )
    db.execute(
        "insert into yamlsched.notifications"
        " (namespace, target, subject, definition_id, since, told)"
        " select n, 'ops', s, d, now(), '{paused}' from (values"
        " ('default', 'charge', %s), ('elsewhere', 'charge', null), ('default', 'another', null)"
        ") v (n, s, d)",
        [job],
    )

    die(story, job)

    told = db.execute("select namespace, subject from yamlsched.notifications where told <> '{}'")
    assert {tuple(row) for row in told} == {("elsewhere", "charge"), ("default", "another")}


def test_a_target_without_the_event_is_told_of_the_deaths_once(story: Story, job: int) -> None:
    story.target("pager", ["dead", "recovered"])
    die(story, job)

    assert story.send() == [PAUSED, ("pager", "[default] charge: 3 runs died")]
    assert story.send(after=DAY) == [PAUSED]


def test_a_pause_that_an_operator_takes_over_is_silent(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    die(story, job)
    story.send()

    pausing.pause(db, "default", [job], "ann", reason="the bank is down")

    assert story.send(after=DAY) == []


def test_several_jobs_are_counted_by_what_is_so(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    [*_, run] = die(story, job)
    story.die(a_job(db, "backup", notify=["ops"]), SLOT)

    assert story.send() == [("ops", "[default] 1 dead and 1 paused")]
    line = f"charge: is paused after 3 dead runs in a row, run {run} on web-1: OSError: no route to host"
    assert line in story.messages[0].text.splitlines()
