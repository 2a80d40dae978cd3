"""When messages are sent, by whom, and what becomes of one that cannot be sent."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from support.notes import (
    A_TARGET_OF_ANOTHER_NAMESPACE,
    DAY,
    HOUR,
    MINUTE,
    SLOT,
    Story,
    job,
    rows_of,
    story,
)
from support.rows import a_job, a_run, value
from yamlsched.act import notes
from yamlsched.ask.problem import Thresholds
from yamlsched.extras.notify import sending
from yamlsched.extras.notify.sending import Message

__all__ = ["job", "story"]


def test_the_first_message_is_sent_at_once_and_then_one_a_minute_with_what_came_in_between(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target()
    jobs = [a_job(db, f"job_{nth:02d}", notify=["ops"]) for nth in range(40)]
    story.die(jobs[0], SLOT)
    assert story.send() == [("ops", "[default] job_00: 1 run died")]

    for dying in jobs[1:]:
        story.die(dying, SLOT)
        assert story.send() == []

    assert story.send(after=MINUTE) == [("ops", "[default] 39 dead")]
    text = story.messages[0].text
    assert text.count("died") == 10
    assert "and 29 more: 29 dead" in text
    assert len(text) + len(story.messages[0].title) <= 1000
    assert story.send(after=MINUTE) == []


def test_a_send_that_fails_is_tried_again_later_each_time_and_given_up_after_a_day(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.answer = "HTTP 500"
    story.die(job, SLOT)

    assert 4 <= sum(1 for _ in range(16) if story.send(after=MINUTE)) <= 6
    assert [hour for hour in range(22) if story.send(after=HOUR)] == list(range(22))
    assert value(db, "select error from yamlsched.notify_targets") == "HTTP 500"
    story.later(2 * HOUR)
    assert story.send() == []
    assert story.row("backup") is None


def test_a_message_says_since_which_revision_the_job_fails(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    a_run(db, job, "succeeded", finished_at=SLOT - HOUR, revision="c80a019d")
    story.die(job, SLOT)
    db.execute("update yamlsched.job_runs set revision = 'aea1a87f' where status = 'dead'")

    story.send()

    changed = "fails since revision aea1a87f, 1 run ago; last good c80a019d"
    assert changed in story.messages[0].text.splitlines()


def test_a_send_that_fails_is_an_error_of_its_target_alone(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.target("quiet")
    db.execute(A_TARGET_OF_ANOTHER_NAMESPACE.encode())
    story.answer = "HTTP 500"
    story.die(job, SLOT)
    assert len(story.send()) == 1

    errors = {
        (row["namespace"], row["name"]): row["error"]
        for of in ("default", "other")
        for row in rows_of(db, of)[1]
    }
    assert errors == {
        ("default", "ops"): "HTTP 500",
        ("default", "quiet"): None,
        ("other", "ops"): None,
    }


def test_a_send_that_is_tried_again_tells_the_state_of_then(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.answer = "HTTP 500"
    story.die(job, SLOT)
    story.send()
    story.die(job, SLOT + HOUR)
    story.answer = ""

    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup: 2 runs died")]
    assert value(db, "select failing_since is null and error is null from yamlsched.notify_targets")


def test_each_job_of_a_message_was_told_its_own_deaths(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    # given jobs whose trouble has started at the same instant
    slots = {job: 3, a_job(db, "other", notify=["ops"]): 1}
    dead = [
        a_run(db, dying, "dead", scheduled_for=SLOT + nth * HOUR)
        for dying, runs in slots.items()
        for nth in range(runs)
    ]
    story.note(*dead)

    assert story.send() == [("ops", "[default] 2 dead")]
    assert [story.row(name).told_runs for name in ("backup", "other")] == [3, 1]


def test_a_death_while_a_message_is_on_its_way_is_told_later(
    story: Story, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_one(message: Message, deadline: float) -> str:
        if not story.messages:
            story.die(job, SLOT + HOUR)
        story.messages.append(message)
        return ""

    story.die(job, SLOT)
    monkeypatch.setattr(sending, "send_one", send_one)

    assert story.send() == [("ops", "[default] backup: 1 run died")]
    assert (story.row("backup").dead_runs, story.row("backup").told_runs) == (2, 1)
    story.messages.append(story.messages[0])
    assert story.send(after=HOUR) == [("ops", "[default] backup: 1 run died")]


def test_a_sender_that_is_suspended_for_longer_than_its_minute_counts_no_death_twice(
    story: Story, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a sender during whose message another host sends the same, and then a run dies
    def send_one(message: Message, deadline: float) -> str:
        story.messages.append(message)
        if len(story.messages) == 1:
            story.later(2 * MINUTE)
            story.send_due()
            story.die(job, SLOT + 2 * HOUR)
        return ""

    story.die(job, SLOT, SLOT + HOUR)
    with monkeypatch.context() as during:
        during.setattr(sending, "send_one", send_one)
        assert story.send() == [("ops", "[default] backup: 2 runs died")] * 2

    # then the later death is still to be told, after the first pause
    row = story.row("backup")
    assert (row.dead_runs, row.told_runs, row.pause) == (3, 2, 2 * HOUR)
    assert story.send(after=HOUR) == [("ops", "[default] backup: 1 run died")]


def test_a_sender_that_is_suspended_until_the_trouble_is_over_says_nothing_about_the_next(
    story: Story, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a sender during whose message another host sends the same and the recovery
    def send_one(message: Message, deadline: float) -> str:
        story.messages.append(message)
        if len(story.messages) == 1:
            story.later(2 * MINUTE)
            story.send_due()
            story.succeed(job, SLOT + MINUTE)
            story.later(2 * MINUTE)
            story.send_due()
            story.die(job, SLOT + HOUR)
        return ""

    story.die(job, SLOT)
    with monkeypatch.context() as during:
        during.setattr(sending, "send_one", send_one)
        titles = [title for _, title in story.send()]
    died = "[default] backup: 1 run died"
    assert titles == [died, died, "[default] backup has recovered"]

    # then the death since is still to be told
    assert story.send(after=2 * MINUTE) == [("ops", died)]


def test_a_death_while_its_recovery_is_on_its_way_is_sent_next(
    story: Story, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.die(job, SLOT)
    story.send()
    story.succeed(job, SLOT)

    def send_one(message: Message, deadline: float) -> str:
        story.messages.append(message)
        story.die(job, SLOT + HOUR)
        return ""

    with monkeypatch.context() as during:
        during.setattr(sending, "send_one", send_one)
        assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]

    assert story.row("backup").ended_at is None
    assert story.send(after=MINUTE) == [("ops", "[default] backup: 1 run died")]


def test_a_recovery_while_the_death_is_on_its_way_is_sent_next(
    story: Story, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_one(message: Message, deadline: float) -> str:
        story.messages.append(message)
        story.succeed(job, SLOT)
        notes.settle(story.db, "default")
        return ""

    story.die(job, SLOT)
    with monkeypatch.context() as during:
        during.setattr(sending, "send_one", send_one)
        assert story.send() == [("ops", "[default] backup: 1 run died")]

    assert story.send(after=MINUTE) == [("ops", "[default] backup has recovered")]
    assert story.send(after=MINUTE) == []


def test_a_host_without_the_variable_sends_nothing_and_status_reports_what_waits(
    story: Story, job: int, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from yamlsched.ask import attention, health

    def problems() -> list[str]:
        now = health.read(db, "default", HOUR, [])
        return [one.what for one in attention.problems(now, Thresholds()) if one.kind == "notify"]

    monkeypatch.delenv("A_URL")
    story.die(job, SLOT)
    assert story.send() == []
    assert problems() == []

    story.later(11 * MINUTE)
    assert problems() == [
        'notifications to target "ops" wait for a host with the variable A_URL and yamlsched[notify]'
    ]

    monkeypatch.setenv("A_URL", "json://127.0.0.1/secret")
    story.answer = "HTTP 403"
    story.send()
    [what] = problems()
    assert what.startswith('notifications to target "ops" have failed since 20')
    assert what.endswith("Z: HTTP 403")


def test_what_no_host_could_send_is_deleted_after_a_day(
    story: Story, job: int, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_URL")
    story.die(job, SLOT)
    story.later(DAY + MINUTE)

    notes.settle(db, "default")

    assert story.row("backup") is None


def test_two_senders_at_once_send_one_message(
    story: Story, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.die(job, SLOT)
    sent: list[Message] = []

    def send_one(message: Message, deadline: float) -> str:
        sent.append(message)
        if len(sent) == 1:
            story.send_due()  # another host looks while this message is on its way
        return ""

    monkeypatch.setattr(sending, "send_one", send_one)
    story.send_due()

    assert len(sent) == 1


def test_a_sender_that_dies_leaves_its_message_to_the_next_one(
    story: Story, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.die(job, SLOT)

    def die_before_it_is_written(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(sending, "_write", die_before_it_is_written)
        with pytest.raises(KeyboardInterrupt):
            story.send()

    assert story.send() == []
    assert story.send(after=MINUTE) == [("ops", "[default] backup: 1 run died")]


def test_the_seconds_until_the_next_message_are_those_of_the_target_or_of_the_pause(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target()
    assert story.send_due() is None
    story.die(a_job(db, "first", notify=["ops"]), SLOT)
    assert 3500 < (story.send_due() or 0) <= 3600

    story.die(a_job(db, "second", notify=["ops"]), SLOT)

    assert 50 < (story.send_due() or 0) <= 60
