"""Each namespace and each target is told of its own jobs, and what is old is deleted."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from support.notes import (
    A_TARGET_OF_ANOTHER_NAMESPACE,
    DAY,
    EVENTS,
    HOUR,
    MINUTE,
    SLOT,
    Story,
    a_late_run,
    job,
    rows_of,
    story,
)
from support.rows import a_job, a_place, a_run
from yamlsched.act import notes
from yamlsched.db.query import load

__all__ = ["job", "story"]


def test_a_namespace_is_told_of_its_own_jobs_and_changes_no_row_of_another(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    # given another namespace with the same names, in which a run died, one is late, and there is a problem
    db.execute(A_TARGET_OF_ANOTHER_NAMESPACE.encode())
    db.execute(
        "insert into yamlsched.notify_targets (namespace, name, url_env, events)"
        " values ('other', 'no-recoveries', 'A_URL', '{dead}')"
    )
    for name, targets in (("backup", ["no-recoveries", "ops"]), ("late", ["ops"])):
        of_other = a_job(db, name, namespace="other", notify=targets)
        if name == "backup":
            dead = a_run(db, of_other, "dead", scheduled_for=SLOT)
            db.execute("select yamlsched.note_runs(%s, %s, clock_timestamp())", ["other", [dead]])
        else:
            a_late_run(db, of_other, 20)
    a_place(db, namespace="other", refused_at="now", errors=["x"] * 3)
    notes.settle(db, "other")
    at_one_instant = "update yamlsched.notifications set since = '2026-01-14 02:00Z'"
    db.execute(at_one_instant)
    db.execute("update yamlsched.notifications set ended_at = since where subject = 'backup'")
    before = rows_of(db, "other")
    assert [row["subject"] for row in before[0]] == ["backup", "backup", "file:", "late"]

    # when this one is settled, sends, tells of a recovery, and has a problem that ends
    assert notes.settle(db, "default") == [None]
    assert story.send() == []
    assert rows_of(db, "default")[0] == []
    a_place(db, refused_at="now", errors=["x"] * 3)
    notes.settle(db, "default")
    story.die(job, SLOT)
    db.execute(at_one_instant)
    assert story.send() == [("ops", "[default] 1 dead and 1 with problems")]
    assert rows_of(db, "other") == before
    story.succeed(job, SLOT)
    ended = (
        "update yamlsched.hosts set refused_at = null, errors = null where namespace = 'default'"
    )
    db.execute(ended.encode())
    notes.settle(db, "default")
    db.execute(
        "update yamlsched.notify_targets set next_at = '-infinity' where namespace = 'default'"
    )
    assert story.send() == [("ops", "[default] 2 recovered")]

    # then the other one's rows are as before
    assert rows_of(db, "other") == before


def test_the_notes_of_a_namespace_wait_for_no_row_of_another(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    db.execute(A_TARGET_OF_ANOTHER_NAMESPACE.encode())
    dead = a_run(
        db, a_job(db, "backup", namespace="other", notify=["ops"]), "dead", scheduled_for=SLOT
    )
    db.execute("select yamlsched.note_runs(%s, %s, clock_timestamp())", ["other", [dead]])
    db.execute("set lock_timeout = '1s'")

    with psycopg.connect(story.dsn) as other:
        assert len(other.execute("select from yamlsched.notifications for update").fetchall()) == 1

        story.die(job, SLOT)
        assert notes.settle(db, "default") == ["ops"]


def test_what_is_old_is_deleted_in_its_own_namespace_only(
    story: Story, job: int, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_URL")
    db.execute(A_TARGET_OF_ANOTHER_NAMESPACE.encode())
    dead = a_run(
        db, a_job(db, "backup", namespace="other", notify=["ops"]), "dead", scheduled_for=SLOT
    )
    db.execute("select yamlsched.note_runs(%s, %s, clock_timestamp())", ["other", [dead]])
    story.die(job, SLOT)
    story.later(DAY + MINUTE)

    notes.settle(db, "default")

    assert [len(rows_of(db, name)[0]) for name in ("default", "other")] == [0, 1]


def test_a_target_that_left_the_file_is_deleted_in_its_own_namespace_only(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    db.execute(A_TARGET_OF_ANOTHER_NAMESPACE.encode())
    for name in ("ops", "gone", "kept", "same"):
        story.target(name)
    story.die(a_job(db, "backup", notify=["gone", "kept", "same"]), SLOT)
    targets = {
        "namespace": "default",
        "names": ["kept", "same"],
        "url_envs": ["B_URL", "A_URL"],
        "events": ["dead,late", ",".join(EVENTS)],
    }

    db.execute(load("notify")["put_targets"], targets)

    assert [(row["name"], row["url_env"], row["events"]) for row in rows_of(db, "default")[1]] == [
        ("kept", "B_URL", ["dead", "late"]),
        ("same", "A_URL", EVENTS),
    ]
    assert [(row["target"], row["dead_runs"]) for row in rows_of(db, "default")[0]] == [
        ("kept", 1),
        ("same", 1),
    ]
    assert [row["name"] for row in rows_of(db, "other")[1]] == ["ops"]


def test_of_two_targets_only_that_which_a_message_is_due_to_is_taken(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.target("quiet")
    db.execute(
        "insert into yamlsched.notify_targets (namespace, name, url_env, events)"
        " values ('default', 'far', 'B_URL', '{dead}')"
    )
    db.execute("update yamlsched.job_definitions set notify = '{ops,far}'")
    story.die(job, SLOT)
    assert set(notes.settle(db, "default")) == {"ops", "far", None}

    assert story.send() == [("ops", "[default] backup: 1 run died")]

    taken = db.execute("select name from yamlsched.notify_targets where next_at > now()").fetchall()
    assert [row.name for row in taken] == ["ops"]
    assert story.row("backup", "far").dead_runs == 1
    story.later(2 * MINUTE)
    assert set(notes.settle(db, "default")) == {"far", None}


def test_a_job_that_leaves_one_target_is_still_told_to_the_other(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.target("others")
    db.execute("update yamlsched.job_definitions set notify = '{ops,others}'")
    story.die(job, SLOT)
    assert len(story.send()) == 2

    db.execute("update yamlsched.job_definitions set notify = '{others}'")
    a_job(db, "unrelated", notify=["ops"])

    assert story.send(after=HOUR) == [("others", "[default] backup: is still dead")]
    assert story.row("backup") is None
