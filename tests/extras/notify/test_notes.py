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


def test_a_run_that_succeeds_after_a_retry_is_a_recovery(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    [run] = story.die(job, SLOT)
    story.send()

    db.execute(
        "update yamlsched.job_runs set status = 'queued', dead_at = null, finished_at = null, "
        "prior_attempts = attempts, max_attempts = attempts + 5, run_at = now() + interval '1 day' where id = %s",
        [run],
    )
    assert story.send(after=3 * HOUR) == []  # it may yet succeed, so it is not "still dead"
    db.execute(
        "update yamlsched.job_runs set status = 'succeeded', finished_at = clock_timestamp() where id = %s",
        [run],
    )

    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]


def test_what_recovers_before_it_was_told_is_never_told(story: Story, job: int) -> None:
    story.die(job, SLOT)
    story.succeed(job, SLOT)

    assert story.send() == []
    assert story.send(after=2 * HOUR) == []


def test_a_death_after_a_recovery_that_was_sent_is_sent_at_once(story: Story, job: int) -> None:
    story.die(job, SLOT)
    story.send()
    story.succeed(job, SLOT + MINUTE)
    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]

    story.die(job, SLOT + 2 * MINUTE)

    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup: 1 run died")]
    assert story.send(after=HOUR - MINUTE) == []
    assert story.send(after=MINUTE) == [("ops", "[default] backup: is still dead")]


def test_a_job_that_recovers_twice_within_an_hour_has_to_be_well_for_an_hour_before_that_is_sent(
    story: Story, job: int
) -> None:
    # given a job that has recovered for the second time within an hour
    for nth in range(2):
        story.die(job, SLOT + 2 * nth * MINUTE)
        assert len(story.send(after=2 * MINUTE)) == 1
        story.succeed(job, SLOT + (2 * nth + 1) * MINUTE)
        assert len(story.send(after=2 * MINUTE)) == (1 if nth == 0 else 0)
    assert story.send(after=HOUR - 2 * MINUTE) == []

    # when it dies and recovers again, the hour starts again
    story.die(job, SLOT + 5 * MINUTE)
    story.succeed(job, SLOT + 6 * MINUTE)
    assert story.send() == []
    assert story.send(after=HOUR - MINUTE) == []

    # then the recovery is one of both outages
    assert story.send(after=MINUTE) == [("ops", "[default] backup has recovered")]
    assert "after 1h2m; 2 runs had died" in story.messages[0].text
    assert story.send(after=DAY) == []


def test_trouble_of_another_job_lets_none_start_over(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.die(job, SLOT)
    story.send()
    story.succeed(job, SLOT + MINUTE)
    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]

    story.die(a_job(db, "other", notify=["ops"]), SLOT)
    assert story.send(after=2 * MINUTE) == [("ops", "[default] other: 1 run died")]

    # it still recovers for the second time within an hour
    story.die(job, SLOT + 2 * MINUTE)
    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup: 1 run died")]
    story.succeed(job, SLOT + 3 * MINUTE)
    assert story.send(after=2 * MINUTE) == []


def test_a_recovery_that_waits_is_sent_although_its_run_was_pruned_meanwhile(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    # given a job that has recovered for the second time within an hour
    for nth in range(2):
        story.die(job, SLOT + 2 * nth * MINUTE)
        assert len(story.send(after=2 * MINUTE)) == 1
        success = story.succeed(job, SLOT + (2 * nth + 1) * MINUTE)
        assert len(story.send(after=2 * MINUTE)) == (1 if nth == 0 else 0)

    # when its successes are kept for less than that
    db.execute("delete from yamlsched.job_runs where id = %s", [success])

    assert story.send(after=HOUR - MINUTE) == []
    assert story.send(after=MINUTE) == [("ops", "[default] backup has recovered")]
    assert story.send(after=2 * MINUTE) == []


def test_a_job_that_dies_and_recovers_each_ten_minutes_sends_only_what_the_pauses_allow(
    story: Story, job: int
) -> None:
    sent: list[tuple[int, str]] = []
    for nth in range(48):
        end = story.succeed if nth % 2 else story.die
        end(job, SLOT + nth * 10 * MINUTE)
        sent += [(10 * nth, title.removeprefix("[default] backup")) for _, title in story.send()]
        story.later(10 * MINUTE)

    assert sent == [
        (0, ": 1 run died"),
        (10, " has recovered"),
        (20, ": 1 run died"),
        (80, ": 3 runs died"),
        (200, ": 6 runs died"),
        (440, ": 12 runs died"),
    ]


def test_a_recovery_says_for_how_long_it_lasted_and_how_many_runs_had_died(
    story: Story, job: int
) -> None:
    story.die(job, SLOT, SLOT + HOUR)
    story.send()
    story.later(2 * HOUR)
    story.die(job, SLOT + 2 * HOUR)
    story.later(10 * MINUTE)
    story.succeed(job, SLOT + 3 * HOUR)

    assert story.send() == [("ops", "[default] backup has recovered")]
    assert story.messages[0].text.splitlines() == [
        "job backup, owner team-x",
        "after 2h10m; 3 runs had died",
        "namespace default",
    ]


def test_a_target_without_the_event_recovered_starts_over_when_the_job_recovers(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target("ops", ["dead"])
    job = a_job(db, "backup", notify=["ops"])
    for nth in range(2):
        story.die(job, SLOT + 2 * nth * MINUTE)
        assert story.send(after=2 * MINUTE) == [("ops", "[default] backup: 1 run died")]
        story.succeed(job, SLOT + (2 * nth + 1) * MINUTE)
        assert story.send(after=2 * MINUTE) == []

    # it has recovered twice within an hour
    story.die(job, SLOT + HOUR)
    assert story.send() == []


def test_a_recovery_is_told_although_another_target_has_no_such_event(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target("deaths", ["dead"])
    story.target()
    job = a_job(db, "backup", notify=["deaths", "ops"])
    story.die(job, SLOT)
    assert len(story.send()) == 2

    story.succeed(job, SLOT)

    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup has recovered")]


def test_a_target_that_is_sent_no_deaths_gets_no_recovery_while_the_latest_run_is_dead(
    story: Story, db: psycopg.Connection[Any]
) -> None:
    story.target("ops", ["late", "recovered"])
    job = a_job(db, "backup", notify=["ops"])
    run = a_late_run(db, job, 20)
    assert len(story.send()) == 1
    db.execute("delete from yamlsched.job_runs where id = %s", [run])
    story.succeed(job, SLOT)

    story.die(job, SLOT + HOUR)
    assert story.send(after=2 * MINUTE) == []
    story.succeed(job, SLOT + 2 * HOUR)

    assert story.send() == [("ops", "[default] backup has recovered")]


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


def test_enqueued_runs_do_not_recover_and_their_deaths_count_for_a_day(
    story: Story, job: int
) -> None:
    story.die(job, None)
    story.send()
    story.succeed(job, None)
    assert story.send(after=HOUR) == [("ops", "[default] backup: is still dead")]

    told = [title for _ in range(50) for _, title in story.send(after=HOUR)]
    assert told == ["[default] backup: is still dead"] * 3  # after 2, 4 and 8 hours
    assert story.row("backup") is None


def test_a_success_of_a_slot_is_no_recovery_from_the_death_of_an_enqueued_run(
    story: Story, job: int
) -> None:
    story.die(job, None)
    assert len(story.send()) == 1

    story.succeed(job, SLOT)

    assert story.send(after=2 * MINUTE) == []
    assert story.send(after=HOUR) == [("ops", "[default] backup: is still dead")]


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


def test_a_death_during_a_pause_is_sent_after_it_if_it_is_still_so(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    db.execute("update yamlsched.job_definitions set paused_at = now()")
    story.die(job, SLOT)
    assert story.send() == []
    assert story.send(after=2 * HOUR) == []

    db.execute("update yamlsched.job_definitions set paused_at = null")

    assert story.send() == [("ops", "[default] backup: 1 run died")]
    story.succeed(job, SLOT)
    assert story.send(after=MINUTE) == [("ops", "[default] backup has recovered")]


def test_what_is_over_at_the_end_of_a_pause_is_never_sent(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    db.execute("update yamlsched.job_definitions set paused_at = now()")
    story.die(job, SLOT)
    story.succeed(job, SLOT)
    assert story.send() == []

    db.execute("update yamlsched.job_definitions set paused_at = null")

    assert story.send(after=MINUTE) == []


def test_a_job_without_targets_has_no_rows(story: Story, db: psycopg.Connection[Any]) -> None:
    story.target()
    story.target("others")
    story.die(a_job(db, "quiet"), SLOT)
    assert value(db, "select count(*) from yamlsched.notifications") == 0

    story.die(a_job(db, "backup", notify=["others"]), SLOT)
    assert [row.target for row in db.execute("select target from yamlsched.notifications")] == [
        "others"
    ]


def test_events_that_a_target_does_not_have_are_not_told(
    story: Story, db: psycopg.Connection[Any]
) -> None:
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
    lease = "locked_by = 'w:1:a', locked_until = now() + interval '2 days', attempts = 1, begun_at = now()"
    db.execute(
        f"update yamlsched.job_runs set status = 'running', {lease} where id = %s".encode(), [run]
    )
    assert story.send(after=3 * HOUR) == []

    db.execute(
        "update yamlsched.job_runs set status = 'succeeded', locked_until = null, "
        "finished_at = now() where id = %s",
        [run],
    )
    assert story.send() == [("ops", "[default] backup has recovered")]


def test_a_run_that_waits_is_late_although_a_later_slot_has_succeeded(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    a_late_run(db, job, 20)
    story.succeed(job, SLOT + DAY)

    [(_, title)] = story.send()

    assert title.startswith("[default] backup: is late since ")


def test_the_death_of_a_job_that_was_late_is_told_at_once(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    run = a_late_run(db, job, 20)
    assert len(story.send()) == 1
    db.execute("delete from yamlsched.job_runs where id = %s", [run])

    story.die(job, SLOT)

    assert story.send(after=2 * MINUTE) == [("ops", "[default] backup: 1 run died")]


def test_deaths_that_were_over_before_they_were_told_do_not_count_later(
    story: Story, job: int
) -> None:
    story.die(job, SLOT)
    story.succeed(job, SLOT)
    assert story.send() == []

    story.die(job, SLOT + HOUR)

    assert story.send() == [("ops", "[default] backup: 1 run died")]


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


def test_a_job_whose_next_slot_became_a_gap_is_still_dead(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
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
    db.execute(
        "update yamlsched.skipped_slots set first_slot = %s, last_slot = %s",
        [SLOT + DAY, SLOT + DAY],
    )

    assert story.send(after=2 * MINUTE) == [
        ("ops", "[default] backup: is late since 2026-01-15T02:00Z")
    ]


def test_a_job_that_is_late_and_dead_is_told_so_in_one_message(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    a_late_run(db, job, 20)
    assert len(story.send()) == 1

    story.die(job, SLOT - HOUR)

    [(_, title)] = story.send(after=2 * MINUTE)
    assert title.startswith("[default] backup: 1 run died and is late since ")


def test_the_recovery_is_a_success_of_the_latest_slot_in_trouble_whichever_died_last(
    story: Story, job: int
) -> None:
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


def test_a_slot_that_was_recorded_as_late_is_told(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
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
    for reason, detail in (
        ("superseded", None),
        ("calendar", "holidays"),
        ("upstream", f"extract:{cancelled}"),
    ):
        a_gap(db, job, reason, detail)
        assert story.send() == []
        db.execute("delete from yamlsched.skipped_slots")

    a_gap(db, job, "upstream", f"extract:{a_run(db, upstream, 'dead')}")

    assert len(story.send()) == 1


def test_a_run_that_fails_again_and_again_is_sent_once_and_recovers_when_it_succeeds(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    run = story.fail(job, SLOT, attempts=2)
    assert story.send() == []

    story.fail_again(run)
    assert story.send() == [("ops", "[default] backup: is failing")]
    assert story.messages[0].text.splitlines()[1:3] == [
        f"run {run} on w: KeyError: x",
        f"yamlsched show {run}",
    ]
    story.fail_again(run)
    assert story.send(after=2 * MINUTE) == []
    assert story.send(after=HOUR) == [("ops", "[default] backup: is failing")]

    story.end(run, "succeeded")
    assert story.send(after=MINUTE) == [("ops", "[default] backup has recovered")]


def test_the_death_of_a_run_that_was_failing_replaces_that(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    run = story.fail(job, SLOT, attempts=3)
    assert story.send() == [("ops", "[default] backup: is failing")]

    story.end(run, "dead")

    assert story.send(after=MINUTE) == [("ops", "[default] backup: 1 run died")]
    assert story.send(after=2 * HOUR) == [("ops", "[default] backup: is still dead")]


def test_a_job_does_not_recover_while_another_run_of_it_is_failing(
    story: Story, job: int, db: psycopg.Connection[Any]
) -> None:
    story.target("deaths", ["dead", "recovered"])
    db.execute("update yamlsched.job_definitions set notify = '{ops,deaths}'")
    story.die(job, SLOT)
    assert len(story.send()) == 2
    failing = story.fail(job, SLOT + HOUR, attempts=3)
    assert story.send(after=MINUTE) == [("ops", "[default] backup: is failing")]

    # neither for the target that is not notified of that
    story.succeed(job, SLOT + 2 * HOUR)
    assert story.send(after=MINUTE) == []

    story.end(failing, "succeeded")
    assert sorted(story.send(after=MINUTE)) == [
        ("deaths", "[default] backup has recovered"),
        ("ops", "[default] backup has recovered"),
    ]


def test_an_enqueued_run_that_fails_again_and_again_has_no_recovery(story: Story, job: int) -> None:
    run = story.fail(job, None, attempts=3)
    assert story.send() == [("ops", "[default] backup: is failing")]

    story.end(run, "succeeded")
    assert story.send(after=2 * HOUR) == []
    assert story.send(after=DAY) == []
    assert story.row("backup") is None


def test_the_message_about_an_enqueued_run_says_how_many_dead_runs_the_job_has(
    story: Story, job: int
) -> None:
    story.die(job, None, None)
    story.send()
    story.later(DAY + HOUR)
    story.die(job, None)

    assert story.send() == [("ops", "[default] backup: 1 run died")]
    assert "the job has 3 dead runs" in story.messages[0].text.splitlines()
