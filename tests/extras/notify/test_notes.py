"""What is to be told of a job that dies, is late or recovers, and when: the rows of notifications, by its runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.notes import DAY, HOUR, MINUTE, SLOT, Story, a_late_run, job, story
from support.rows import a_job, a_run, value

__all__ = ["job", "story"]


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
