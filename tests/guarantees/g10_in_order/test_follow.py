"""Jobs that follow others: a slot runs once those that it waits for have succeeded, whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.effects import succeed_in
from support.followers import DEAD, HOURLY, SUCCESS, World, world
from support.schedules import HOUR, MINUTE, a_file, at, definition, gaps
from yamlsched import db as database
from yamlsched.act import backfill, pause
from yamlsched.act import runs as actions
from yamlsched.runs.lifecycle import Outcome, Status
from yamlsched.runs.release import release_followers
from yamlsched.sync.flow import sync
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

__all__ = ["world"]


def test_a_slot_runs_when_the_job_that_it_waits_for_has_succeeded(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]}, report={"after": ["load"]})
    world.tick("2026-01-14 02:00")

    assert world.claim() == ["extract 02:00"]
    assert world.states() == [
        "extract 02:00 running",
        "load 02:00 queued (waits)",
        "report 02:00 queued (waits)",
    ]
    world.end("extract 02:00")
    assert world.claim() == ["load 02:00"]
    world.end("load 02:00")
    assert world.claim() == ["report 02:00"]


def test_a_slot_waits_for_the_latest_slot_of_each_job_at_or_before_its_own(world: World) -> None:
    world.apply(
        extract={"cron": "0 2 * * *"},
        rates={"cron": "30 3 * * *"},
        report={"cron": "0 6 * * *", "after": ["extract", "rates"]},
    )
    for instant in ("02:00", "03:30", "06:00"):
        world.tick(f"2026-01-14 {instant}")

    assert world.claim() == ["extract 02:00", "rates 03:30"]
    world.end("rates 03:30")
    assert world.claim() == []
    world.end("extract 02:00")
    assert world.claim() == ["report 06:00"]


def test_a_handler_gets_what_the_jobs_before_have_returned(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", Outcome(Status.SUCCEEDED, result='{"rows": 7}'))
    world.claim()

    [run] = world.held.values()
    assert json.loads(run.upstream or "") == {
        "extract": {
            "result": {"rows": 7},
            "run_id": world.id("extract 02:00"),
            "status": "succeeded",
            "scheduled_for": "2026-01-14T02:00:00+00:00",
            "enqueued": None,
        }
    }


def test_each_handler_gets_the_results_of_its_own_slot(world: World) -> None:
    every: dict[str, Any] = {"overlap": "allow", "catchup": "all"}
    world.apply(
        extract=HOURLY | every, rates=HOURLY | every, load={"after": ["extract", "rates"], **every}
    )
    world.tick("2026-01-14 03:00")
    for name in world.claim():
        world.end(name, Outcome(Status.SUCCEEDED, result=json.dumps(name)))

    assert world.claim() == ["load 02:00", "load 03:00"]

    for run in world.held.values():
        results = {job: one["result"] for job, one in json.loads(run.upstream or "").items()}
        time = world.name(run.id).removeprefix("load ")
        assert results == {"extract": f"extract {time}", "rates": f"rates {time}"}


@pytest.mark.parametrize("policy, expected", [("skip", []), ("run", ["load 02:00"])])
def test_on_upstream_failure_decides_about_a_dead_run(
    world: World, policy: str, expected: list[str]
) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"], "on_upstream_failure": policy})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)

    assert world.claim() == expected

    if policy == "skip":
        assert gaps(world.db, "load") == [("01-14 02:00", "01-14 02:00", 1, "upstream")]
        detail = world.db.execute("select detail from yamlsched.skipped_slots").fetchone()
        assert detail == (f"extract:{world.id('extract 02:00')}",)
        actions.retry(world.db, [world.id("extract 02:00")], "ann", now=world.now)
        world.claim()
        world.end("extract 02:00")
        assert world.claim() == []


def test_a_gap_of_one_job_decides_about_the_whole_chain_behind_it(world: World) -> None:
    skip = {"on_upstream_failure": "skip"}
    world.apply(
        extract=HOURLY, load={"after": ["extract"], **skip}, report={"after": ["load"], **skip}
    )
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)

    assert world.claim() == []

    assert (
        gaps(world.db, "load")
        == gaps(world.db, "report")
        == [("01-14 02:00", "01-14 02:00", 1, "upstream")]
    )
    assert world.states() == ["extract 02:00 dead"]


def test_a_slot_does_not_wait_for_the_resume_of_a_paused_job(world: World) -> None:
    world.apply(
        extract=HOURLY,
        load={"after": ["extract"]},
        anyway={"after": ["extract"], "on_upstream_failure": "run"},
    )
    pause.pause(world.db, "default", [world.job("extract")], "ann", now=world.now)
    world.tick("2026-01-14 02:00")

    assert world.claim() == ["anyway 02:00"]
    assert gaps(world.db, "load") == [("01-14 02:00", "01-14 02:00", 1, "upstream")]


def test_a_newer_slot_supersedes_what_still_waits_once_it_is_due(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.tick("2026-01-14 03:00")
    world.claim()
    assert world.states()[-2:] == ["load 02:00 queued (waits)", "load 03:00 queued (waits)"]

    world.end("extract 03:00")

    assert world.claim() == ["load 03:00"]
    assert gaps(world.db, "load") == [("01-14 02:00", "01-14 02:00", 1, "superseded")]


def test_with_catchup_all_each_slot_runs_in_turn(world: World) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"], "catchup": "all"}
    )
    for instant in ("02:00", "03:00", "04:00"):
        world.tick(f"2026-01-14 {instant}")
        world.claim()
    world.end("extract 03:00")
    world.end("extract 04:00")

    assert world.claim() == ["load 03:00"]
    world.end("extract 02:00")
    assert world.claim() == []
    world.end("load 03:00")
    assert world.claim() == ["load 02:00"]
    world.end("load 02:00")
    assert world.claim() == ["load 04:00"]
    assert gaps(world.db, "load") == []


def test_after_downtime_the_slots_of_a_chain_wait_for_the_run_that_took_their_place(
    world: World,
) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 06:00")

    assert world.claim() == ["extract 06:00"]
    world.end("extract 06:00")
    assert world.claim() == ["load 06:00"]
    assert gaps(world.db, "extract") == [("01-14 02:00", "01-14 05:00", 4, "superseded")]
    assert [(one[2], one[3]) for one in gaps(world.db, "load")] == [(4, "superseded")]


def test_a_slot_skipped_for_an_overlap_is_taken_by_the_run_that_was_executing(world: World) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "skip"}, load={"after": ["extract"], "overlap": "allow"}
    )
    world.tick("2026-01-14 02:00")
    world.claim()
    world.tick("2026-01-14 03:00")
    assert gaps(world.db, "extract") == [("01-14 03:00", "01-14 03:00", 1, "overlap")]
    assert world.claim() == []

    world.end("extract 02:00")

    assert world.claim() == ["load 03:00"]


def test_an_edit_of_the_followed_cron_changes_nothing_about_slots_before_it(world: World) -> None:
    jobs: dict[str, Any] = {
        "extract": {"cron": "0 2 * * *"},
        "load": {"cron": "0 3 * * *", "after": ["extract"]},
    }
    world.apply(**jobs)
    world.tick("2026-01-14 02:00")
    world.now = at("2026-01-14 03:10")

    world.apply(**{**jobs, "extract": {"cron": "5 3 * * *"}})

    assert world.claim() == ["extract 02:00"]
    world.end("extract 02:00")
    assert world.claim() == ["load 03:00"]


def move_extract(world: World) -> None:
    world.apply(extract={"cron": "0 20 * * *"}, load={"after": ["extract"]})


def move_load(world: World) -> None:
    world.apply(extract={"cron": "0 2 * * *"}, load={"cron": "0 20 * * *", "after": ["extract"]})


def just_sync(world: World) -> None:
    world.tick("2026-01-14 20:00")


def pause_and_resume(world: World) -> None:
    pause.pause(world.db, "default", [world.job("load")], "ann", now=world.now)
    pause.resume(world.db, "default", [world.job("load")], "ann", now=world.now)


def edit_it(world: World) -> None:
    world.apply(
        extract={"cron": "0 21 * * *"}, load={"after": ["extract"], "description": "edited"}
    )


@pytest.mark.parametrize("account", [just_sync, pause_and_resume, edit_it])
@pytest.mark.parametrize("move", [move_extract, move_load])
def test_a_slot_whose_key_is_in_use_is_a_gap_of_a_follower_too(
    world: World, move: Callable[[World], None], account: Callable[[World], None]
) -> None:
    # given runs of the day at 02:00, and an edit that moves the slot of the day
    world.apply(extract={"cron": "0 2 * * *"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    for name in ("extract 02:00", "load 02:00"):
        assert world.claim() == [name]
        world.end(name)
    world.now = at("2026-01-14 12:00")
    move(world)
    world.now = at("2026-01-14 20:00")

    account(world)

    assert gaps(world.db, "load") == [("01-14 20:00", "01-14 20:00", 1, "key_taken")]
    assert world.states() == ["extract 02:00 succeeded", "load 02:00 succeeded"]


def test_a_backfilled_slot_that_no_sync_has_met_is_not_written_again(world: World) -> None:
    world.apply(extract={"cron": "0 2 * * *"}, load={"after": ["extract"]})
    world.now, slot = at("2026-01-14 02:00"), at("2026-01-14 02:00")
    for name in ("extract", "load"):
        job = backfill.definition_for(world.db, "default", name)
        backfill.backfill(world.db, "default", job, slot, slot, "ann", now=world.now)

    world.tick("2026-01-14 02:00")

    assert gaps(world.db, "load") == []
    assert definition(world.db, "load").last_slot_at == slot


def test_the_first_slot_after_an_edit_waits_for_the_last_one_before_it(world: World) -> None:
    jobs: dict[str, Any] = {
        "extract": {"cron": "0 2 * * *"},
        "load": {"cron": "0 3 * * *", "after": ["extract"]},
    }
    world.apply(**jobs)
    world.tick("2026-01-14 02:00")
    world.now = at("2026-01-14 02:30")
    world.apply(**{**jobs, "extract": {"cron": "0 5 * * *"}})
    world.tick("2026-01-14 03:00")

    assert world.claim() == ["extract 02:00"]
    world.end("extract 02:00")
    assert world.claim() == ["load 03:00"]


def test_a_slot_whose_job_has_had_no_slot_waits_for_nothing(world: World) -> None:
    world.apply(extract={"cron": "0 5 * * *"}, load={"cron": "0 3 * * *", "after": ["extract"]})
    world.tick("2026-01-14 03:00")

    assert world.claim() == []

    assert gaps(world.db, "load") == [("01-14 03:00", "01-14 03:00", 1, "upstream")]


STATES = ("queued", "running", "failed", "dead", "cancelled", "succeeded")
OWN: dict[str, Any] = {"load": HOURLY}
EDITS: dict[str, dict[str, Any]] = {
    "after removed": {"extract": HOURLY} | OWN,
    "removed from the file": OWN,
    "renamed": {"renamed": HOURLY, "load": {"after": ["renamed"]}},
    "disabled": {"extract": {**HOURLY, "enabled": False}, "load": {"after": ["extract"]}},
}


@pytest.mark.parametrize(
    ("state", "edit"),
    [
        *((state, "removed from the file") for state in STATES),
        *(("queued", edit) for edit in EDITS if edit != "removed from the file"),
        *((state, "disabled") for state in ("dead", "succeeded")),
    ],
)
def test_an_edit_that_takes_a_job_out_of_after_or_of_the_file_frees_the_slot_that_waits_for_it(
    world: World, state: str, edit: str
) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    if state != "queued":
        assert world.claim() == ["extract 02:00"]
    if state == "cancelled":
        actions.cancel(world.db, [world.id("extract 02:00")], "ann", now=world.now)
        world.runner.run(
            store.unlock(world.connection, "default", list(world.held.values()), now=world.now)
        )
    elif state not in ("queued", "running"):
        failed = Outcome(Status.FAILED, error="no route to host", delay=HOUR)
        world.end("extract 02:00", {"failed": failed, "dead": DEAD}.get(state, SUCCESS))
    world.settle()
    world.now += MINUTE

    world.apply(**EDITS[edit])

    is_freed = edit != "disabled" or state == "succeeded"
    assert ("load 02:00" in world.claim()) is is_freed
    if is_freed:
        world.end("load 02:00")
    if edit in ("after removed", "removed from the file"):
        world.tick("2026-01-14 03:00")
        assert "load 03:00" in world.claim()


def test_a_slot_waits_on_for_the_jobs_that_an_edit_leaves_in_after(world: World) -> None:
    world.apply(extract=HOURLY, rates=HOURLY, load={"after": ["extract", "rates"]})
    world.tick("2026-01-14 02:00")
    world.claim()

    world.apply(extract=HOURLY, rates=HOURLY, load={"after": ["rates"]})

    assert world.claim() == []
    world.end("rates 02:00")
    assert world.claim() == ["load 02:00"]


def test_an_edit_of_the_policy_lets_what_waits_be_decided_again(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    assert world.claim() == []

    world.apply(extract=HOURLY, load={"after": ["extract"], "on_upstream_failure": "run"})

    assert world.claim() == ["load 02:00"]


def test_a_run_whose_handler_may_be_alive_is_still_waited_for(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"], "on_upstream_failure": "run"})
    world.tick("2026-01-14 02:00")
    world.claim()

    actions.cancel(world.db, [world.id("extract 02:00")], "ann", now=world.now)

    assert world.claim() == []
    [run] = world.held.values()
    world.runner.run(store.unlock(world.connection, "default", [run], now=world.now))
    assert world.claim() == ["load 02:00"]


def test_a_success_in_the_handlers_own_transaction_is_handed_on_by_the_worker(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    [run] = world.held.values()
    assert succeed_in(world.db, run)
    world.db.execute(
        "update yamlsched.job_runs set finished_at = %s where id = %s", [world.now, run.id]
    )
    assert world.claim() == []

    world.runner.run(store.unlock(world.connection, "default", [run], now=world.now))

    assert world.claim() == ["load 02:00"]


def test_a_sync_releases_what_waits_without_any_worker_and_then_it_is_late(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    [run] = world.held.values()
    assert succeed_in(world.db, run)
    ended = "update yamlsched.job_runs set locked_until = null, finished_at = %s where id = %s"
    world.db.execute(ended, [world.now, run.id])

    world.tick("2026-01-14 02:01")

    assert world.states() == ["extract 02:00 succeeded", "load 02:00 queued"]
    world.db.execute("update yamlsched.job_definitions set next_slot_at = null")
    late = world.db.execute(
        "select late_why from yamlsched.job_queues where job_type = 'load'"
    ).fetchone()
    assert late == ("its run has not started",)


def test_a_job_whose_gap_cannot_be_written_holds_up_no_other_and_is_a_problem(world: World) -> None:
    # given two jobs whose slots become gaps, and a trigger that refuses those of one
    skip = {"after": ["extract"], "on_upstream_failure": "skip"}
    world.apply(extract={**HOURLY, "overlap": "allow"}, bad=skip, good=skip)
    world.tick("2026-01-14 02:00")
    world.claim()
    world.db.execute(
        "create function public.refuse() returns trigger language plpgsql as $$ begin "
        f"if new.definition_id = {world.job('bad')} then raise 'bad is refused'; end if; return new; end $$; "
        "create trigger refuse before insert on yamlsched.skipped_slots for each row execute function public.refuse()"
    )
    world.end("extract 02:00", DEAD)

    # when a worker, or a sync decides
    settled = world.settle()
    result = sync(world.db, world.file, world.now)

    # then the other is decided
    assert settled.failed == {world.job("bad"): "bad is refused"}
    assert gaps(world.db, "good") == [("01-14 02:00", "01-14 02:00", 1, "upstream")]
    assert result.messages == [
        'job "bad": its due slots could not be written: bad is refused. The next tick tries again'
    ]
    assert definition(world.db, "bad").slots_error == "bad is refused"
    world.db.execute("drop function public.refuse cascade")
    sync(world.db, world.file, world.now)
    assert definition(world.db, "bad").slots_error is None
    assert gaps(world.db, "bad") == gaps(world.db, "good")


def test_what_is_followed_since_its_success_began_to_be_written_is_released_too(
    world: World, dsn: str
) -> None:
    # given a success that is written and not committed while an edit adds a follower
    world.apply(extract={**HOURLY, "overlap": "allow"})
    world.tick("2026-01-14 02:00")
    world.claim()
    with database.connect(dsn) as writing:
        writing.execute("begin")
        writing.execute(
            "update yamlsched.job_runs set status = 'succeeded', locked_until = null, finished_at = %s "
            "where status = 'running'",
            [world.now],
        )
        world.apply(
            extract={**HOURLY, "overlap": "allow"}, load={"cron": "1 * * * *", "after": ["extract"]}
        )
        world.tick("2026-01-14 02:01")
        assert world.claim() == []
        assert world.states()[-1] == "load 02:01 queued (waits)"
        writing.execute("commit")

    # then the next look at all followers releases it
    settled = world.runner.run(release_followers(world.connection, "default", None, world.now))
    assert settled.released == 1


@pytest.mark.parametrize("retries", [False, True])
@pytest.mark.parametrize("follows", [{}, {"after": ["extract"]}])
def test_a_slot_whose_run_has_not_begun_within_catchup_window_becomes_a_gap_unless_it_was_retried(
    world: World, follows: dict[str, Any], retries: bool
) -> None:
    # given a run that waits for a worker, and one behind it that waits for its turn
    extract = {**HOURLY, "overlap": "allow"}
    world.apply(
        extract=extract, load={**HOURLY, "catchup_window": "1h", "catchup": "all"} | follows
    )
    world.tick("2026-01-14 02:00")
    world.db.execute(
        "update yamlsched.job_runs set status = 'succeeded', finished_at = run_at where job_type = 'extract'"
    )
    world.tick("2026-01-14 02:01")
    if retries:
        actions.retry(world.db, [world.id("load 02:00")], "ann", now=world.now)

    world.tick("2026-01-14 03:01")

    if retries:
        assert gaps(world.db, "load") == []
        assert "load 02:00 queued" in world.states()
    else:
        assert gaps(world.db, "load") == [("01-14 02:00", "01-14 02:00", 1, "late")]
        assert "load 02:00 queued" not in world.states()
        key = backfill.definition_for(world.db, "default", "load")
        slot = at("2026-01-14 02:00")
        backfill.backfill(world.db, "default", key, slot, slot, "ann", now=world.now)
        world.tick("2026-01-14 03:05")
        assert "load 02:00 queued" in world.states()


def test_a_lost_worker_decides_about_what_waits_for_its_last_attempt(world: World) -> None:
    extract = {**HOURLY, "overlap": "allow", "max_attempts": 1}
    world.apply(extract=extract, load={"after": ["extract"], "on_upstream_failure": "skip"})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.now += 5 * MINUTE

    world.runner.run(claiming.reclaim(world.connection, "default", now=world.now))

    assert world.claim() == []
    assert gaps(world.db, "load") == [("01-14 02:00", "01-14 02:00", 1, "upstream")]


def test_a_cancel_decides_about_what_waits_for_a_run_that_was_not_started(world: World) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow"},
        load={"after": ["extract"], "on_upstream_failure": "skip"},
    )
    world.tick("2026-01-14 02:00")
    world.db.execute("update yamlsched.job_runs set priority = 3 where job_type = 'extract'")
    world.runner.run(release_followers(world.connection, "default", [world.job("load")], world.now))
    assert world.states()[-1] == "load 02:00 queued (waits)"

    actions.cancel(world.db, [world.id("extract 02:00")], "ann", now=world.now)

    assert world.claim() == []
    assert gaps(world.db, "load") == [("01-14 02:00", "01-14 02:00", 1, "upstream")]


def test_a_gap_that_a_sync_records_decides_about_what_waits_for_its_slot(world: World) -> None:
    # given a job that was busy for so long that its next slot is late
    follower = {
        "after": ["extract"],
        "overlap": "allow",
        "catchup": "all",
        "on_upstream_failure": "run",
    }
    world.apply(extract={**HOURLY, "catchup": "none"}, load=follower)
    world.tick("2026-01-14 02:00")
    world.claim()
    world.tick("2026-01-14 03:00")
    assert world.claim() == []
    assert world.states()[-1] == "load 03:00 queued (waits)"
    world.now = at("2026-01-14 03:30")
    world.end("extract 02:00")
    assert world.claim() == ["load 02:00"]

    sync(world.db, world.file, world.now)

    assert gaps(world.db, "extract") == [("01-14 03:00", "01-14 03:00", 1, "late")]
    assert world.claim() == ["load 03:00"]


def test_a_job_that_leaves_the_file_is_not_waited_for_any_longer(world: World) -> None:
    own = {"cron": "5 * * * *", "overlap": "allow", "on_upstream_failure": "run"}
    world.apply(extract=HOURLY, other=HOURLY, load={**own, "after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.tick("2026-01-14 03:05")
    world.claim()
    assert "load 03:05 queued (waits)" in world.states()

    world.apply(other=HOURLY, load={**own, "after": ["other"]})

    assert "load 03:05" in world.claim()


def test_after_downtime_and_an_edit_a_slot_waits_for_what_the_former_cron_named(
    world: World,
) -> None:
    jobs: dict[str, Any] = {"extract": HOURLY, "load": {"cron": "30 3 * * *", "after": ["extract"]}}
    world.apply(**jobs)
    world.now = at("2026-01-14 05:10")

    world.apply(**{**jobs, "extract": {"cron": "20 * * * *"}})

    assert gaps(world.db, "extract") == [("01-14 02:00", "01-14 04:00", 3, "superseded")]
    assert world.claim() == ["extract 05:00"]
    world.end("extract 05:00")
    assert world.claim() == ["load 03:30"]


def test_after_downtime_an_older_slot_runs_if_the_newer_ones_still_wait(world: World) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow", "catchup": "all"}, load={"after": ["extract"]}
    )
    world.tick("2026-01-14 04:00")
    assert world.claim() == ["extract 02:00", "extract 03:00", "extract 04:00"]

    world.end("extract 02:00")

    assert world.claim() == ["load 02:00"]


def test_a_slot_is_not_released_while_a_cancelled_run_of_its_job_may_be_alive(world: World) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"], "overlap": "skip"}
    )
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00")
    world.claim()
    actions.cancel(world.db, [world.id("load 02:00")], "ann", now=world.now)
    world.now += MINUTE
    world.file = a_file(
        extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"], "overlap": "skip"}
    )
    world.db.execute(
        "update yamlsched.job_runs set locked_until = '2026-01-14 03:30+0' "
        "where locked_until is not null and finished_at is not null"
    )
    world.tick("2026-01-14 03:00")
    world.claim()

    world.end("extract 03:00")

    assert world.claim() == []
    assert gaps(world.db, "load") == [("01-14 03:00", "01-14 03:00", 1, "overlap")]
