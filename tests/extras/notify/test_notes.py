"""What is to be told of jobs and problems, and when: the rows of notifications, by what happens to runs."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_file_row, a_job, a_run, value
from yamlsched.act import notes
from yamlsched.db.query import load
from yamlsched.extras.notify import sending
from yamlsched.extras.notify.sending import Message

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
SLOT = datetime(2026, 1, 14, 2, tzinfo=UTC)
Messages = list[tuple[str, str]]
EVENTS = ["dead", "late", "recovered", "problem"]


def variables() -> list[str]:
    return [name for name in ("A_URL",) if name in os.environ]


class Story:
    """Jobs with targets, what happens to their runs, and the messages that this host sends: ``(target, title)``."""

    def __init__(self, db: psycopg.Connection[Any], dsn: str) -> None:
        self.db, self.dsn = db, dsn
        self.messages: list[Message] = []
        self.answer = ""

    def target(self, name: str = "ops", events: list[str] = EVENTS) -> None:
        self.db.execute(
            "insert into yamlsched.notify_targets (namespace, name, url_env, events) "
            "values ('default', %s, 'A_URL', %s)",
            [name, events],
        )

    def die(self, job: int, *slots: datetime | None, **values: Any) -> list[int]:
        """Insert dead runs of these slots, and note them as the transaction that ends them does."""
        runs = [a_run(self.db, job, "dead", scheduled_for=slot, **values) for slot in slots or (None,)]
        self.db.execute(load("notify")["note_dead"], {"namespace": "default", "ids": runs, "now": None})
        return runs

    def succeed(self, job: int, slot: datetime | None) -> int:
        return a_run(self.db, job, "succeeded", scheduled_for=slot)

    def later(self, span: timedelta) -> None:
        """Let time pass: everything was earlier."""
        changes = {
            "notifications": ("dead_at", "late_since", "active_at", "ended_at", "quiet_until", "due_at"),
            "notify_targets": ("next_at", "failing_since"),
            "job_runs": ("finished_at", "dead_at", "failed_at", "run_at", "created_at"),
            "skipped_slots": ("recorded_at",),
        }
        for table, columns in changes.items():
            moved = ", ".join(f"{name} = {name} - %(span)s" for name in columns)
            self.db.execute(f"update yamlsched.{table} set {moved}".encode(), {"span": span})

    def send(self, after: timedelta = timedelta(0)) -> Messages:
        """Send what is due some time later, and return what that was."""
        if after:
            self.later(after)
        self.messages.clear()
        sending.send_due(self.dsn, "default", variables(), 60)
        return [(message.target, message.title) for message in self.messages]

    def row(self, subject: str, target: str = "ops") -> Any:
        return self.db.execute(
            "select * from yamlsched.notifications where (target, subject) = (%s, %s)", [target, subject]
        ).fetchone()


@pytest.fixture
def story(db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch) -> Story:
    story = Story(db, dsn)

    def send_one(message: Message, deadline: float) -> str:
        story.messages.append(message)
        return story.answer

    monkeypatch.setattr(sending, "send_one", send_one)
    monkeypatch.setenv("A_URL", "json://127.0.0.1/secret")
    return story


OTHER = """
insert into yamlsched.notify_targets (namespace, name, url_env, events)
values ('other', 'ops', 'A_URL', '{dead,late,recovered,problem}')
"""


def rows_of(db: psycopg.Connection[Any], namespace: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the notifications and the targets of a namespace."""
    notes, targets = (
        [row.content for row in db.execute(
            f"select to_jsonb(t) as content from yamlsched.{table} t where t.namespace = %s order by {order}".encode(),
            [namespace],
        )]
        for table, order in (("notifications", "t.target, t.subject"), ("notify_targets", "t.name"))
    )  # fmt: skip
    return notes, targets


@pytest.fixture
def job(db: psycopg.Connection[Any], story: Story) -> int:
    story.target()
    return a_job(db, "backup", notify=["ops"], owner="team-x")


def test_the_first_death_is_told_at_once_and_then_only_after_pauses_that_double_up_to_a_day(
    story: Story, job: int
) -> None:
    [run] = story.die(job, SLOT)
    assert story.send() == [("ops", "[default] backup: 1 run died")]
    assert f"run {run}" in story.messages[0].text
    assert story.send(after=2 * MINUTE) == []

    hours = [1, 2, 4, 8, 16, 24, 24]
    for pause in hours:
        assert story.send(after=pause * HOUR - 10 * MINUTE) == []
        assert story.send(after=10 * MINUTE) == [("ops", "[default] backup: is still dead")]


def test_more_deaths_are_one_message_after_the_pause(story: Story, job: int) -> None:
    story.die(job, SLOT)
    story.send()

    for minutes in (10, 20, 30):
        story.die(job, SLOT + timedelta(minutes=minutes))
        assert story.send(after=2 * MINUTE) == []

    assert story.send(after=HOUR) == [("ops", "[default] backup: 3 runs died")]


def test_a_recovery_is_told_once_and_only_to_targets_that_were_told(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.target("quiet", ["late", "recovered"])
    db.execute("update yamlsched.job_definitions set notify = '{ops,quiet}'")
    story.die(job, SLOT)
    story.send()

    # an older slot proves nothing
    story.succeed(job, SLOT - DAY)
    assert story.send(after=2 * MINUTE) == []

    story.succeed(job, SLOT + DAY)
    assert story.send() == [("ops", "[default] backup has recovered")]
    assert story.send(after=2 * MINUTE) == []
    assert story.send(after=DAY) == []


def test_a_run_that_succeeds_after_a_retry_is_a_recovery(story: Story, job: int, db: psycopg.Connection[Any]) -> None:
    [run] = story.die(job, SLOT)
    story.send()

    db.execute(
        "update yamlsched.job_runs set status = 'queued', dead_at = null, finished_at = null, "
        "run_at = now() + interval '1 day' where id = %s",
        [run],
    )
    assert story.send(after=3 * HOUR) == []  # it may yet succeed, so it is not "still dead"
    db.execute(
        "update yamlsched.job_runs set status = 'succeeded', finished_at = clock_timestamp() where id = %s", [run]
    )

    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]


def test_what_recovers_before_it_was_told_is_never_told(story: Story, job: int) -> None:
    story.die(job, SLOT)
    story.succeed(job, SLOT)

    assert story.send() == []
    assert story.send(after=2 * HOUR) == []


def test_what_flaps_sends_no_more_than_the_pauses_allow(story: Story, job: int) -> None:
    sent = 0
    for nth in range(48):  # a day, in which each run of a job that runs each half hour dies or succeeds in turn
        if nth % 2:
            story.succeed(job, SLOT + nth * 30 * MINUTE)
        else:
            story.die(job, SLOT + nth * 30 * MINUTE)
        sent += sum(1 for _, title in story.send(after=30 * MINUTE) if "recovered" not in title)

    assert 4 <= sent <= 6  # at once, and after 1, 2, 4, 8 hours


def test_a_day_without_trouble_starts_over(story: Story, job: int) -> None:
    for slot in (SLOT, SLOT + HOUR):
        story.die(job, slot)
        story.send(after=3 * HOUR)
    story.succeed(job, SLOT + 2 * HOUR)
    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]
    story.send(after=DAY + MINUTE)

    story.die(job, SLOT + 3 * DAY)

    assert story.send() == [("ops", "[default] backup: 1 run died")]
    assert story.send(after=HOUR) == [("ops", "[default] backup: is still dead")]


def test_enqueued_runs_do_not_recover_and_their_deaths_count_for_a_day(story: Story, job: int) -> None:
    story.die(job, None)
    story.send()
    story.succeed(job, None)
    assert story.send(after=HOUR) == [("ops", "[default] backup: is still dead")]

    told = [title for _ in range(50) for _, title in story.send(after=HOUR)]
    assert told == ["[default] backup: is still dead"] * 3  # after 2, 4 and 8 hours
    assert story.row("backup") is None


def test_a_job_is_still_dead_until_a_run_of_a_later_slot_begins_or_ends_after_the_death(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    # given two jobs of which runs died at the same instant
    at = datetime.now(UTC)
    story.die(job, SLOT, finished_at=at)
    story.die(a_job(db, "other", notify=["ops"]), SLOT + DAY, finished_at=at)
    assert story.send() == [("ops", "[default] 2 dead")]

    # when a run of a later slot had ended before, one of an earlier slot waits, and one of another job
    a_run(db, a_job(db, "third"), scheduled_for=SLOT + 9 * DAY, run_at=at + 30 * DAY)
    a_run(db, job, "cancelled", scheduled_for=SLOT + HOUR, finished_at=at - MINUTE)
    a_run(db, job, scheduled_for=SLOT - HOUR, run_at=at + 30 * DAY)
    assert story.send(after=HOUR) == [("ops", "[default] 2 dead")]

    # then that proves nothing, and a run of a later slot that waits does
    a_run(db, job, scheduled_for=SLOT + 2 * HOUR, run_at=at + 30 * DAY)
    assert story.send(after=2 * HOUR) == [("ops", "[default] other: is still dead")]


@pytest.mark.parametrize(
    "change",
    [
        "update yamlsched.job_definitions set paused_at = now()",
        "update yamlsched.job_definitions set enabled = false",
        "update yamlsched.job_definitions set retired_at = now()",
        "update yamlsched.job_definitions set notify = '{}'",
        "delete from yamlsched.notify_targets",
    ],
)
def test_a_pause_a_disabled_job_and_an_edit_end_the_state_silently(
    story: Story, job: int, db: psycopg.Connection[Any], change: str
) -> None:
    story.die(job, SLOT)
    story.send()

    db.execute(change.encode())

    assert story.send(after=3 * HOUR) == []
    assert story.row("backup") is None


def test_a_death_of_a_paused_job_is_not_told(story: Story, job: int, db: psycopg.Connection[Any]) -> None:
    db.execute("update yamlsched.job_definitions set paused_at = now()")
    story.die(job, SLOT)

    assert story.row("backup") is None
    assert story.send() == []


def test_a_job_without_targets_has_no_rows(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target()
    story.target("others")
    story.die(a_job(db, "quiet"), SLOT)
    assert value(db, "select count(*) from yamlsched.notifications") == 0

    story.die(a_job(db, "backup", notify=["others"]), SLOT)
    assert [row.target for row in db.execute("select target from yamlsched.notifications")] == ["others"]


def test_events_that_a_target_does_not_have_are_not_told(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target("ops", ["dead"])
    job = a_job(db, "backup", notify=["ops"])
    story.die(job, SLOT)
    assert story.send() == [("ops", "[default] backup: 1 run died")]
    story.succeed(job, SLOT)

    assert story.send(after=2 * MINUTE) == []


def a_late_run(db: psycopg.Connection[Any], job: int, minutes: int) -> int:
    """Insert a run that has been due for so long."""
    due = f"(now() - interval '{minutes} minutes')"
    return a_run(db, job, scheduled_for=SLOT, run_at=due, created_at=due, exclusive=True)


def test_a_job_that_is_late_is_told_once_and_recovers_when_its_run_succeeds(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    run = a_late_run(db, job, 10)
    assert story.send() == []
    [(target, title)] = story.send(after=6 * MINUTE)
    assert target == "ops"
    assert title.startswith("[default] backup: is late since ")
    assert story.send(after=2 * MINUTE) == []
    assert len(story.send(after=HOUR)) == 1  # it is still so

    # it has begun: it is not late any more, and has not recovered yet
    lease = "locked_by = 'w:1:a', locked_until = now() + interval '2 days', attempts = 1, started_at = now()"
    db.execute(f"update yamlsched.job_runs set status = 'running', {lease} where id = %s".encode(), [run])
    assert story.send(after=3 * HOUR) == []

    db.execute(
        "update yamlsched.job_runs set status = 'succeeded', locked_until = null, exclusive_of = null, "
        "finished_at = now() where id = %s",
        [run],
    )
    assert story.send() == [("ops", "[default] backup has recovered")]


def test_the_death_of_a_job_that_was_late_is_told_at_once(story: Story, job: int, db: psycopg.Connection[Any]) -> None:
    run = a_late_run(db, job, 20)
    assert len(story.send()) == 1
    db.execute("delete from yamlsched.job_runs where id = %s", [run])

    story.die(job, SLOT)

    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup: 1 run died")]


def test_what_is_not_told_after_a_recovery_has_no_recovery_to_tell(story: Story, job: int) -> None:
    for nth in range(2):
        story.die(job, SLOT + nth * HOUR)
        told = story.send(after=2 * MINUTE)
        story.succeed(job, SLOT + nth * HOUR)
        # the second death lies within the pause
        assert (len(told), len(story.send(after=2 * MINUTE))) == ((1, 1) if nth == 0 else (0, 0))


def test_deaths_that_were_over_before_they_were_told_do_not_count_later(story: Story, job: int) -> None:
    story.die(job, SLOT)
    story.succeed(job, SLOT)
    assert story.send() == []

    story.die(job, SLOT + HOUR)

    assert story.send() == [("ops", "[default] backup: 1 run died")]


def test_after_a_day_in_which_it_was_unknown_how_it_goes_on_the_pauses_start_over(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    # given a job that was told to be dead twice, and whose next run waits
    story.die(job, SLOT)
    assert [len(story.send(after=span)) for span in (0 * HOUR, HOUR)] == [1, 1]
    waits = a_run(db, job, scheduled_for=SLOT + HOUR, run_at=datetime.now(UTC) + 30 * DAY)
    assert story.send(after=DAY + HOUR) == []

    # when that dies
    db.execute("delete from yamlsched.job_runs where id = %s", [waits])
    story.die(job, SLOT + HOUR)

    assert [len(story.send(after=span)) for span in (MINUTE, HOUR - 10 * MINUTE, 10 * MINUTE)] == [1, 0, 1]


def test_a_success_of_another_job_or_before_the_death_and_a_cancelled_run_are_no_recovery(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    # given a run that died after one of a later slot had succeeded
    a_run(db, job, "succeeded", scheduled_for=SLOT + HOUR, finished_at=datetime.now(UTC) - MINUTE)
    story.die(job, SLOT)
    assert story.send() == [("ops", "[default] backup: 1 run died")]

    story.succeed(a_job(db, "other"), SLOT + 2 * HOUR)
    a_run(db, job, "cancelled", scheduled_for=SLOT + 3 * HOUR)

    assert story.send(after=2 * MINUTE) == []
    assert story.row("backup").ended_at is None


def test_a_death_is_told_although_the_next_run_waits_already(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.die(job, SLOT)
    a_run(db, job, scheduled_for=SLOT + HOUR, run_at=datetime.now(UTC) + 30 * DAY)

    assert story.send() == [("ops", "[default] backup: 1 run died")]
    assert story.send(after=2 * HOUR) == []


def test_a_job_whose_next_slot_became_a_gap_is_still_dead(story: Story, job: int, db: psycopg.Connection[Any]) -> None:
    story.die(job, SLOT)
    story.send()
    waits = a_run(db, job, scheduled_for=SLOT + HOUR, run_at=datetime.now(UTC) + 30 * DAY)
    assert story.send(after=2 * MINUTE) == []

    db.execute("delete from yamlsched.job_runs where id = %s", [waits])

    assert story.send(after=HOUR) == [("ops", "[default] backup: is still dead")]


def test_a_death_that_is_over_is_not_told_with_the_next_delay(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.die(job, SLOT)
    story.send()
    story.succeed(job, SLOT)
    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]

    a_gap(db, job, "late")
    db.execute("update yamlsched.skipped_slots set first_slot = %s, last_slot = %s", [SLOT + DAY, SLOT + DAY])

    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup: is late since 2026-01-15T02:00Z")]


def test_a_job_that_is_late_and_dead_is_told_so_in_one_message(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    a_late_run(db, job, 20)
    assert len(story.send()) == 1

    story.die(job, SLOT - HOUR)

    [(_, title)] = story.send(after=2 * MINUTE)
    assert title.startswith("[default] backup: 1 run died and is late since ")


def test_the_recovery_is_a_success_of_the_latest_slot_in_trouble_whichever_died_last(story: Story, job: int) -> None:
    story.die(job, SLOT + DAY)
    story.send()
    story.die(job, SLOT)
    story.succeed(job, SLOT + HOUR)
    assert story.send(after=2 * MINUTE) == []

    story.succeed(job, SLOT + DAY)
    assert story.send() == [("ops", "[default] backup has recovered")]


def a_gap(db: psycopg.Connection[Any], job: int, reason: str, detail: str | None = None) -> None:
    db.execute(
        "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, detail, "
        "recorded_at) values (%s, %s, %s, 1, %s, %s, clock_timestamp())",
        [job, SLOT, SLOT, reason, detail],
    )


def test_a_slot_that_was_recorded_as_late_is_told(story: Story, job: int, db: psycopg.Connection[Any]) -> None:
    a_gap(db, job, "late")

    assert story.send() == [("ops", "[default] backup: is late since 2026-01-14T02:00Z")]
    story.succeed(job, SLOT + DAY)
    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]
    assert story.send(after=2 * MINUTE) == []
    assert story.send(after=2 * HOUR) == []


def test_a_slot_that_was_skipped_because_of_a_dead_run_is_late_and_no_other_skipped_slot_is(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    upstream = a_job(db, "extract")
    cancelled = a_run(db, upstream, "cancelled")
    for reason, detail in (("superseded", None), ("calendar", "holidays"), ("upstream", f"extract:{cancelled}")):
        a_gap(db, job, reason, detail)
        assert story.send() == []
        db.execute("delete from yamlsched.skipped_slots")

    a_gap(db, job, "upstream", f"extract:{a_run(db, upstream, 'dead')}")

    assert len(story.send()) == 1


def test_the_first_message_is_sent_at_once_and_then_one_a_minute_with_what_came_in_between(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target()
    jobs = [a_job(db, f"job_{nth:02d}", notify=["ops"]) for nth in range(40)]
    story.die(jobs[0], SLOT)
    assert story.send() == [("ops", "[default] job_00: 1 run died")]

    for job in jobs[1:]:
        story.die(job, SLOT)
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


def test_a_send_that_fails_is_an_error_of_its_target_alone(story: Story, job: int, db: psycopg.Connection[Any]) -> None:
    story.target("quiet")
    db.execute(OTHER.encode())
    story.answer = "HTTP 500"
    story.die(job, SLOT)
    assert len(story.send()) == 1

    errors = {
        (row["namespace"], row["name"]): row["error"] for of in ("default", "other") for row in rows_of(db, of)[1]
    }
    assert errors == {("default", "ops"): "HTTP 500", ("default", "quiet"): None, ("other", "ops"): None}


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


def test_each_job_of_a_message_was_told_its_own_deaths(story: Story, job: int, db: psycopg.Connection[Any]) -> None:
    story.die(job, SLOT, SLOT + HOUR, SLOT + 2 * HOUR)
    story.die(a_job(db, "other", notify=["ops"]), SLOT)

    assert story.send() == [("ops", "[default] 2 dead")]
    assert [story.row(name).dead_runs for name in ("backup", "other")] == [0, 0]


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
    assert story.row("backup").dead_runs == 1
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
            sending.send_due(story.dsn, "default", variables(), 60)
            story.die(job, SLOT + 2 * HOUR)
        return ""

    story.die(job, SLOT, SLOT + HOUR)
    with monkeypatch.context() as during:
        during.setattr(sending, "send_one", send_one)
        assert story.send() == [("ops", "[default] backup: 2 runs died")] * 2

    # then the later death is still to be told, after the first pause
    assert (story.row("backup").dead_runs, story.row("backup").pause) == (1, 2 * HOUR)
    assert story.send(after=HOUR) == [("ops", "[default] backup: 1 run died")]


def test_a_death_while_its_recovery_is_on_its_way_is_not_lost(
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
    assert story.send(after=HOUR) == [("ops", "[default] backup: 1 run died")]


def test_a_host_without_the_variable_sends_nothing_and_status_reports_what_waits(
    story: Story, job: int, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from yamlsched.ask import attention, health

    def problems() -> list[str]:
        now = health.read(db, "default", HOUR, [], [])
        return [one.what for one in attention.problems(now, attention.Thresholds()) if one.kind == "notify"]

    monkeypatch.delenv("A_URL")
    story.die(job, SLOT)
    assert story.send() == []
    assert problems() == []

    story.later(11 * MINUTE)
    assert problems() == ['notifications to target "ops" wait for a host with the variable A_URL and yamlsched[notify]']

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


def test_a_problem_is_told_once_and_once_when_it_is_gone(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target("ops", ["problem"])
    story.target("others", ["dead", "late", "recovered"])
    refused = a_file_row(db, refused_at="now", mistakes=3, errors=["/srv/schedules.yaml:7:5: unknown key <!channel>"])

    notes.settle(db, "default")
    assert story.send() == [("ops", "[default] file: needs attention")]
    assert "/srv/schedules.yaml has presented a file with 3 errors" in story.messages[0].text
    assert "run yamlsched validate there" in story.messages[0].text
    notes.settle(db, "default")
    assert story.send(after=DAY - HOUR) == []
    notes.settle(db, "default")
    assert story.send(after=DAY - HOUR) == []

    db.execute(
        "update yamlsched.schedule_files set refused_at = null, mistakes = null, errors = null where id = %s", [refused]
    )
    notes.settle(db, "default")
    assert story.send(after=2 * MINUTE) == [("ops", "[default] file: is over")]
    notes.settle(db, "default")
    assert story.send(after=DAY + MINUTE) == []
    assert story.row("file:") is None


def test_a_job_may_have_the_name_of_a_problem(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target()
    a_file_row(db, refused_at="now", mistakes=3, errors=["x"])
    notes.settle(db, "default")

    story.die(a_job(db, "file", notify=["ops"]), SLOT)

    assert story.send() == [("ops", "[default] 1 dead and 1 in trouble")]


def test_a_problem_that_is_gone_before_it_was_told_is_never_told(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target("ops", ["problem"])
    refused = a_file_row(db, refused_at="now", mistakes=3, errors=["x"])
    notes.settle(db, "default")

    ended = "update yamlsched.schedule_files set refused_at = null, mistakes = null, errors = null where id = %s"
    db.execute(ended.encode(), [refused])
    notes.settle(db, "default")

    assert story.send() == []


def test_a_problem_is_over_since_it_was_first_found_to_be_gone(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target("ops", ["problem"])
    refused = a_file_row(db, refused_at="now", mistakes=3, errors=["x"])
    notes.settle(db, "default")
    assert len(story.send()) == 1
    ended = "update yamlsched.schedule_files set refused_at = null, mistakes = null, errors = null where id = %s"
    db.execute(ended.encode(), [refused])

    notes.settle(db, "default")
    row = story.row("file:")
    assert row.ended_at is not None
    notes.settle(db, "default")  # while its message waits

    assert story.row("file:") == row


def test_problems_of_several_jobs_are_told_one_by_one(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target("ops", ["problem"])
    for name in ("backup", "report"):
        job = a_job(db, name)
        a_run(db, job, "running", locked_until="(now() - interval '10 minutes')")

    notes.settle(db, "default")

    assert story.send() == [("ops", "[default] 2 in trouble")]
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


def test_two_senders_at_once_send_one_message(story: Story, job: int, monkeypatch: pytest.MonkeyPatch) -> None:
    story.die(job, SLOT)
    sent: list[Message] = []

    def send_one(message: Message, deadline: float) -> str:
        sent.append(message)
        if len(sent) == 1:
            sending.send_due(
                story.dsn, "default", variables(), 60
            )  # another host looks while this message is on its way
        return ""

    monkeypatch.setattr(sending, "send_one", send_one)
    sending.send_due(story.dsn, "default", variables(), 60)

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
    assert sending.send_due(story.dsn, "default", variables(), 60) is None
    story.die(a_job(db, "first", notify=["ops"]), SLOT)
    assert 3500 < (sending.send_due(story.dsn, "default", variables(), 60) or 0) <= 3600

    story.die(a_job(db, "second", notify=["ops"]), SLOT)

    assert 50 < (sending.send_due(story.dsn, "default", variables(), 60) or 0) <= 60


def test_a_namespace_is_told_of_its_own_jobs_and_changes_no_row_of_another(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    # given another namespace with the same names, in which a run died, one is late, and there is a problem
    db.execute(OTHER.encode())
    for name in ("backup", "late"):
        of_other = a_job(db, name, namespace="other", notify=["ops"])
        if name == "backup":
            dead = a_run(db, of_other, "dead", scheduled_for=SLOT)
            db.execute(load("notify")["note_dead"], {"namespace": "other", "ids": [dead], "now": None})
        else:
            a_late_run(db, of_other, 20)
    a_file_row(db, namespace="other", refused_at="now", mistakes=3, errors=["x"])
    notes.settle(db, "other")
    before = rows_of(db, "other")
    assert [row["subject"] for row in before[0]] == ["backup", "file:", "late"]

    # when this one is settled, sends, tells of a recovery, and has a problem that ends
    assert notes.settle(db, "default") == [None]
    assert story.send() == []
    assert rows_of(db, "default")[0] == []
    refused = a_file_row(db, refused_at="now", mistakes=3, errors=["x"])
    notes.settle(db, "default")
    story.die(job, SLOT)
    assert story.send() == [("ops", "[default] 1 dead and 1 in trouble")]
    assert rows_of(db, "other") == before
    story.succeed(job, SLOT)
    ended = "update yamlsched.schedule_files set refused_at = null, mistakes = null, errors = null where id = %s"
    db.execute(ended.encode(), [refused])
    notes.settle(db, "default")
    db.execute("update yamlsched.notify_targets set next_at = '-infinity' where namespace = 'default'")
    assert story.send() == [("ops", "[default] 2 recovered")]

    # then the other one's rows are as before
    assert rows_of(db, "other") == before


def test_the_notes_of_a_namespace_wait_for_no_row_of_another(story: Story, db: psycopg.Connection[Any]) -> None:
    db.execute(OTHER.encode())
    dead = a_run(db, a_job(db, "backup", namespace="other", notify=["ops"]), "dead", scheduled_for=SLOT)
    db.execute(load("notify")["note_dead"], {"namespace": "other", "ids": [dead], "now": None})
    db.execute("set lock_timeout = '1s'")

    with psycopg.connect(story.dsn) as other:
        assert len(other.execute("select from yamlsched.notifications for update").fetchall()) == 1

        assert notes.settle(db, "default") == []


def test_what_is_old_is_deleted_in_its_own_namespace_only(
    story: Story, job: int, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_URL")
    db.execute(OTHER.encode())
    dead = a_run(db, a_job(db, "backup", namespace="other", notify=["ops"]), "dead", scheduled_for=SLOT)
    db.execute(load("notify")["note_dead"], {"namespace": "other", "ids": [dead], "now": None})
    story.die(job, SLOT)
    story.later(DAY + MINUTE)

    notes.settle(db, "default")

    assert [len(rows_of(db, name)[0]) for name in ("default", "other")] == [0, 1]


def test_a_target_that_left_the_file_is_deleted_in_its_own_namespace_only(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    db.execute(OTHER.encode())
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
    assert [(row["target"], row["dead_runs"]) for row in rows_of(db, "default")[0]] == [("kept", 1), ("same", 1)]
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
    assert set(notes.settle(db, "default")) == {"A_URL", "B_URL", None}

    assert story.send() == [("ops", "[default] backup: 1 run died")]

    taken = db.execute("select name from yamlsched.notify_targets where next_at > now()").fetchall()
    assert [row.name for row in taken] == ["ops"]
    assert story.row("backup", "far").dead_runs == 1
    story.later(2 * MINUTE)
    assert set(notes.settle(db, "default")) == {"B_URL", None}


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
