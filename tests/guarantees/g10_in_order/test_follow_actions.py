"""Retries, cancels, backfills and decisions about runs that wait for other jobs: what they change, and what not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from support.followers import DEAD, HOURLY, Db, World, world
from support.rows import a_job
from support.schedules import HOUR, MINUTE, a_file, at, gaps, prune, sync_by_hand
from yamlsched.act import backfill, pause
from yamlsched.act import runs as actions
from yamlsched.ask import report, report_document, search
from yamlsched.ask.gaps import gap_sentence
from yamlsched.extras.web.ask.timeline import job_facts
from yamlsched.handler.run import UpstreamRun
from yamlsched.runs.lifecycle import Outcome, Status
from yamlsched.runs.release import release_followers
from yamlsched.sync.flow import sync

__all__ = ["world"]


def test_a_retry_of_a_dead_run_lets_those_continue_that_wait_for_it(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    assert world.claim() == []
    assert world.states() == ["extract 02:00 dead", "load 02:00 queued (waits)"]

    actions.retry(world.db, [world.id("extract 02:00")], "ann", now=world.now)

    assert world.claim() == ["extract 02:00"]
    world.end("extract 02:00")
    assert world.claim() == ["load 02:00"]


def test_a_retry_names_the_runs_that_wait_and_the_gaps_that_it_does_not_undo(world: World) -> None:
    follows = {"after": ["extract"], "on_upstream_failure": "skip"}
    world.apply(
        extract=HOURLY, load={"after": ["extract"]}, report={"after": ["load"]}, mail=follows
    )
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    world.claim()

    [result] = actions.retry(world.db, [world.id("extract 02:00")], "ann", now=world.now)

    waiting = world.id("load 02:00")
    assert result.what == (
        f"is queued again; load (run {waiting}) waits for it; the slots of mail that were skipped because of it stay "
        "skipped: yamlsched backfill creates their runs"
    )


def test_lists_and_the_report_say_which_runs_wait_for_a_dead_one(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]}, report={"after": ["load"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    world.claim()

    waits = {
        run.job_type: run.waits
        for run in search.page(world.db, "default", search.Filter(), 10).runs
    }
    found = report.read(world.db, "default", world.now - HOUR)

    dead, waiting = world.id("extract 02:00"), world.id("load 02:00")
    assert waits == {
        "extract": None,
        "load": f"waits for extract: run {dead} is dead",
        "report": f"waits for load: run {waiting} is queued",
    }
    assert [
        (held_up.job_type, held_up.upstream, held_up.run_id, held_up.status)
        for held_up in found.held_up
    ] == [(job, "extract", dead, "dead") for job in ("load", "report")]
    [by] = [
        text for name, text in report_document.document(found).parts[1].pairs if name == "held up"
    ]
    assert re.fullmatch(rf"load, report by extract: run {dead} died \d+d.* ago", by)


def test_the_page_of_a_job_says_what_it_follows_and_who_follows_it(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]}, report={"after": ["load"]})

    facts = job_facts(world.db, "default", "load")

    assert facts
    assert (facts.after, facts.followers) == (["extract"], ["report"])


def test_a_retry_with_force_starts_a_run_that_waits_and_without_it_is_refused(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    waiting = world.id("load 02:00")

    [refused] = actions.retry(world.db, [waiting], "ann", now=world.now)
    assert not refused.changed
    assert refused.what == "waits for the jobs it follows: --force starts it without waiting"
    [forced] = actions.retry(world.db, [waiting], "ann", force=True, now=world.now)

    assert forced.what == "is due now"
    assert world.claim() == ["load 02:00"]


def start_by_force(db: Db, ids: list[int], now: datetime) -> None:
    actions.retry(db, ids, "ann", force=True, now=now)


def cancel(db: Db, ids: list[int], now: datetime) -> None:
    actions.cancel(db, ids, "ann", now=now)


@pytest.mark.parametrize("act", [start_by_force, cancel])
def test_a_run_that_was_cancelled_or_started_by_force_waits_for_no_decision(
    world: World, act: Callable[[Db, list[int], datetime], None]
) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"], "on_upstream_failure": "skip"})
    world.tick("2026-01-14 02:00")
    world.claim()
    act(world.db, [world.id("load 02:00")], world.now)
    world.end("extract 02:00", DEAD)

    world.runner.run(release_followers(world.connection, "default", [world.job("load")], world.now))

    assert gaps(world.db, "load") == []


@pytest.mark.parametrize("state", ["waiting", "dead"])
def test_a_run_that_is_started_by_force_gets_the_state_of_what_it_waited_for(
    world: World, state: str
) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow"}, rates=HOURLY, load={"after": ["extract", "rates"]}
    )
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("rates 02:00", Outcome(Status.SUCCEEDED, result="7"))
    if state == "dead":
        world.end("extract 02:00", DEAD)

    start_by_force(world.db, [world.id("load 02:00")], world.now)

    assert "load 02:00" in world.claim()
    upstream = UpstreamRun.read(world.held[world.id("load 02:00")].upstream)
    slot = at("2026-01-14 02:00")
    assert upstream == {
        "extract": UpstreamRun(world.id("extract 02:00"), slot, state, None),
        "rates": UpstreamRun(world.id("rates 02:00"), slot, "succeeded", 7),
    }


def test_an_enqueued_run_has_an_entry_for_each_job_that_its_job_follows(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]}, apart=HOURLY)
    for name in ("load", "apart"):
        world.db.execute("select yamlsched.enqueue(%s)", [name])
    world.now = at("2030-01-01 00:00")

    assert world.claim() == ["apart", "load"]
    upstream = {world.name(run.id): UpstreamRun.read(run.upstream) for run in world.held.values()}
    assert upstream == {"load": {"extract": UpstreamRun(status="none")}, "apart": {}}


def test_a_decision_that_changes_nothing_writes_nothing(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    versions = "select id, xmin::text from yamlsched.job_runs order by id"
    before = world.db.execute(versions).fetchall()

    world.settle()

    assert world.db.execute(versions).fetchall() == before


def test_a_decision_concerns_only_the_jobs_that_it_is_asked_for(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]}, mail={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00")

    settled = world.runner.run(
        release_followers(world.connection, "default", [world.job("load")], world.now)
    )

    assert settled.released == 1
    assert world.db.execute(
        "select job_type from yamlsched.job_runs where unreleased"
    ).fetchall() == [("mail",)]


def test_each_run_is_blocked_for_its_own_reason(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]}, mail={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    pause.pause(world.db, "default", [world.job("load")], "ann", now=world.now)

    world.settle()

    assert world.states()[1:] == ["load 02:00 queued (job)", "mail 02:00 queued (waits)"]


def test_of_the_runs_that_wait_only_a_backfilled_one_whose_upstream_is_dead_is_cancelled(
    world: World,
) -> None:
    extract = {**HOURLY, "overlap": "allow"}
    world.apply(extract=extract, load={"after": ["extract"], "on_upstream_failure": "skip"})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    world.claim()
    world.tick("2026-01-14 03:00")
    world.claim()
    job, slot = backfill.definition_for(world.db, "default", "load"), at("2026-01-14 02:00")

    backfill.backfill(world.db, "default", job, slot, slot, "ann", now=world.now)

    assert world.claim() == []
    assert world.states()[2:] == ["load 02:00 cancelled", "load 03:00 queued (waits)"]


def test_only_jobs_that_others_follow_are_marked_as_followed(world: World) -> None:
    a_job(world.db, "extract", namespace="elsewhere")

    world.apply(extract=HOURLY, load={"after": ["extract"]})

    rows = world.db.execute(
        "select namespace, job_type from yamlsched.job_definitions where is_followed"
    ).fetchall()
    assert rows == [("default", "extract")]


def test_a_backfill_waits_for_the_slots_that_have_a_run_and_not_for_others(world: World) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow", "catchup": "all"},
        load={"after": ["extract"], "overlap": "allow"},
    )
    world.now = at("2026-01-14 03:10")
    pause.pause(world.db, "default", [world.job("load")], "ann", now=world.now)
    pause.resume(world.db, "default", [world.job("load")], "ann", now=world.now)
    sync(world.db, world.file, world.now)
    world.claim()
    prune(world.db, "scheduled_for = '2026-01-14 02:00+0' and job_type = 'load'")
    world.db.execute("delete from yamlsched.used_keys")
    world.held.clear()
    job = backfill.definition_for(world.db, "default", "load")

    backfill.backfill(
        world.db,
        "default",
        job,
        at("2026-01-14 01:00"),
        at("2026-01-14 02:00"),
        "ann",
        now=world.now,
    )

    assert world.claim() == ["load 01:00"]
    [run] = world.held.values()
    assert json.loads(run.upstream or "")["extract"]["status"] == "skipped"
    rows = world.db.execute(
        "select count(*) from yamlsched.job_runs where by_hand and unreleased"
    ).fetchone()
    assert rows == (1,)


def test_a_backfill_downstream_creates_the_runs_that_follow_and_they_wait_in_turn(
    world: World,
) -> None:
    world.apply(
        extract={"cron": "0 2 * * *"},
        load={"after": ["extract"]},
        hourly={"cron": "30 * * * *", "after": ["load"], "overlap": "allow"},
        apart={"cron": "0 2 * * *"},
    )
    world.now = at("2026-01-14 12:00")
    job = backfill.definition_for(world.db, "default", "extract")
    first = at("2026-01-12 00:00")

    ranges = backfill.downstream(world.db, "default", job, first, at("2026-01-12 23:59"))
    for one in (backfill.Range(job, first, at("2026-01-12 23:59"), 0), *ranges):
        backfill.backfill(world.db, "default", *one[:3], "ann", now=world.now)

    assert [one.job.job_type for one in ranges] == ["load", "hourly"]
    assert world.claim() == ["extract 02:00"]
    world.end("extract 02:00")
    assert world.claim() == ["load 02:00"]
    world.end("load 02:00")
    assert len(world.claim()) == 24


def test_a_backfill_downstream_creates_no_run_where_an_upstream_has_none_and_names_the_slot(
    world: World, db: Db
) -> None:
    # given a calendar that skips a day of extract, and a job apart that has run on one day only
    top = "calendars: {holidays: {dates: ['2026-01-13'], until: 2027-12-31}}"
    daily = {"cron": "0 2 * * *"}
    jobs: dict[str, Any] = {
        "extract": {**daily, "skip_on": ["holidays"]},
        "apart": daily,
        "load": {"after": ["extract"], **daily},
        "report": {"after": ["load"]},
        "both": {"after": ["extract", "apart"], **daily},
    }
    sync_by_hand(db, a_file(top=top, **jobs), at("2026-01-11 12:00"))
    world.now = at("2026-01-15 12:00")
    first, last = at("2026-01-12 00:00"), at("2026-01-14 23:59")
    one = at("2026-01-12 02:00")
    backfill.backfill(
        db,
        "default",
        backfill.definition_for(db, "default", "apart"),
        one,
        one,
        "ann",
        now=world.now,
    )
    job = backfill.definition_for(db, "default", "extract")

    for dry_run in (True, False):
        result = backfill.BackfillResult()
        ranges = (
            backfill.Range(job, first, last, 0),
            *backfill.downstream(db, "default", job, first, last),
        )
        for nth, each in enumerate(ranges):
            backfill.backfill(
                db,
                "default",
                *each[:3],
                "ann",
                dry_run,
                now=world.now,
                result=result,
                is_downstream=nth > 0,
            )

        days = ("2026-01-12", "2026-01-14")
        created = [f"{name}:{day}" for name in ("extract", "load", "report") for day in days]
        assert sorted(slot.key for slot in result.made) == sorted([*created, "both:2026-01-12"])
        assert sorted((slot.key, slot.upstream) for slot in result.left_out) == [
            ("both:2026-01-13", "extract"),
            ("both:2026-01-14", "apart"),
            ("load:2026-01-13", "extract"),
            ("report:2026-01-13", "load"),
        ]
    assert db.execute(
        "select count(*) from yamlsched.job_runs where scheduled_for >= '2026-01-13'"
    ).fetchone() == (3,)


def test_a_waiting_run_says_what_it_waits_for(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00")
    waits = "select yamlsched.waits_for(r) from yamlsched.job_runs r where r.job_type = 'load'"

    assert world.db.execute(waits).fetchone() == ("waits for the next sync or worker",)
    pause.pause(world.db, "default", [world.job("load")], "ann", now=world.now)
    assert world.db.execute(waits).fetchone() == ("waits until its job is resumed or enabled",)


def test_why_says_that_a_superseded_slot_waited_for_a_run_that_died(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    world.tick("2026-01-14 03:00")
    world.claim()
    world.end("extract 03:00")
    assert world.claim() == ["load 03:00"]

    gap: Any = world.db.execute("select * from yamlsched.skipped_slots").fetchone()

    run = world.id("extract 02:00")
    assert (gap.reason, gap.detail) == ("superseded", f"extract:{run}")
    assert gap_sentence(gap).startswith(
        f"skipped (superseded): it waited for extract, whose run {run} died or was cancelled, until a newer slot took"
    )


def test_an_upstream_that_ends_before_its_slot_by_a_clock_that_was_set_back_counts(
    world: World,
) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.now -= MINUTE
    world.end("extract 02:00")
    world.now += MINUTE

    assert world.claim() == ["load 02:00"]


def test_a_waiting_run_that_is_retried_by_force_starts_without_waiting(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    load = world.id("load 02:00")

    [refused] = actions.retry(world.db, [load], "ann", now=world.now)
    [forced] = actions.retry(world.db, [load], "ann", force=True, now=world.now)

    assert (refused.changed, forced.changed) == (False, True)
    assert world.claim() == ["load 02:00"]
