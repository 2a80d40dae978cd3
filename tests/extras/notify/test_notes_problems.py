"""Problems as status knows them are told once, and once when they are gone."""

from __future__ import annotations

from typing import Any

import psycopg

from support.notes import DAY, HOUR, MINUTE, SLOT, Story, job, story
from support.rows import a_job, a_place, a_run
from yamlsched.act import notes

__all__ = ["job", "story"]


def test_a_problem_is_told_once_and_once_when_it_is_gone(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target("ops", ["problem"])
    story.target("others", ["dead", "late", "recovered"])
    a_place(db, refused_at="now", errors=["/srv/schedules.yaml:7:5: unknown key <!channel>"] * 3)

    notes.settle(db, "default")
    assert story.send() == [("ops", "[default] file: needs attention")]
    assert "/srv/schedules.yaml has 3 errors" in story.messages[0].text
    assert "run yamlsched validate there" in story.messages[0].text
    notes.settle(db, "default")
    assert story.send(after=DAY - HOUR) == []
    notes.settle(db, "default")
    assert story.send(after=DAY - HOUR) == []

    db.execute(
        "update yamlsched.hosts set refused_at = null, errors = null where namespace = 'default'"
    )
    notes.settle(db, "default")
    assert story.send(after=2 * MINUTE) == [("ops", "[default] file: is over")]
    notes.settle(db, "default")
    assert story.send(after=DAY + MINUTE) == []
    assert story.row("file:") is None


def test_a_job_may_have_the_name_of_a_problem(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target()
    a_place(db, refused_at="now", errors=["x"] * 3)
    notes.settle(db, "default")

    story.die(a_job(db, "file", notify=["ops"]), SLOT)

    assert story.send() == [("ops", "[default] 1 dead and 1 with problems")]


def test_a_problem_that_is_gone_before_it_was_told_is_never_told(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target("ops", ["problem"])
    a_place(db, refused_at="now", errors=["x"] * 3)
    notes.settle(db, "default")

    ended = (
        "update yamlsched.hosts set refused_at = null, errors = null where namespace = 'default'"
    )
    db.execute(ended.encode())
    notes.settle(db, "default")

    assert story.send() == []


def test_a_problem_is_over_since_it_was_first_found_to_be_gone(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target("ops", ["problem"])
    a_place(db, refused_at="now", errors=["x"] * 3)
    notes.settle(db, "default")
    assert len(story.send()) == 1
    ended = (
        "update yamlsched.hosts set refused_at = null, errors = null where namespace = 'default'"
    )
    db.execute(ended.encode())

    notes.settle(db, "default")
    row = story.row("file:")
    assert row.ended_at is not None
    notes.settle(db, "default")  # while its message waits

    assert story.row("file:") == row


def test_problems_of_several_jobs_are_told_one_by_one(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target("ops", ["problem"])
    for name in ("backup", "report"):
        job = a_job(db, name)
        a_run(db, job, "running", locked_until="(now() - interval '10 minutes')")

    notes.settle(db, "default")

    assert story.send() == [("ops", "[default] 2 with problems")]
    assert {row.subject for row in db.execute("select subject from yamlsched.notifications")} == {
        "stuck:backup",
        "stuck:report",
    }

    # one of them ends
    lease = "update yamlsched.job_runs set locked_until = now() + interval '9 minutes' where job_type = 'backup'"
    db.execute(lease.encode())
    notes.settle(db, "default")

    assert story.send(after=MINUTE) == [("ops", "[default] stuck of backup: is over")]
    other = story.row("stuck:report")
    assert (other.ended_at, other.due_at) == (None, None)
