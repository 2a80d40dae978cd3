"""Jobs that follow others: a slot runs once those that it waits for have succeeded, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.rows import namedtuple_row

from support.database import while_waiting
from support.rows import a_job
from support.schedules import HOUR, MINUTE, a_file, at, gaps, prune
from yamlsched import db as database
from yamlsched.act import backfill, pause
from yamlsched.act import runs as actions
from yamlsched.ask import report, report_document, search
from yamlsched.extras.web.ask.timeline import job_facts
from yamlsched.runs import claiming, follow
from yamlsched.runs import statements as store
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.sync.flow import sync

Db = psycopg.Connection[Any]
SUCCESS, DEAD = Outcome(Status.SUCCEEDED), Outcome(Status.DEAD, error="no route to host")
HOURLY = {"cron": "0 * * * *"}
SECOND = timedelta(seconds=1)


class World:
    """A schedule, its syncs, and a worker, at an instant that only the test moves."""

    def __init__(self, db: Db, dsn: str) -> None:
        self.db, self.now, self.claims = db, at("2026-01-14 01:30"), 0
        self.runner = asyncio.Runner()
        options = "-c lock_timeout=10s"  # a worker waits for no lock: a test fails instead of hanging
        connect = psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=namedtuple_row, options=options)
        self.connection = self.runner.run(connect)
        self.file = a_file()
        self.held: dict[int, ClaimedRun] = {}

    def apply(self, **jobs: Any) -> None:
        self.file = a_file(**jobs)
        sync(self.db, self.file, self.now, at_once=True)

    def tick(self, instant: str | None = None) -> None:
        self.now = at(instant) if instant else self.now + HOUR
        sync(self.db, self.file, self.now)

    def claim(self, limit: int = 100) -> list[str]:
        """Claim as a worker does, until nothing more is due; return what was claimed, as ``job 02:00``."""
        claimed: list[ClaimedRun] = []
        while taken := self.runner.run(self._claim(limit)):
            claimed += taken
        self.held |= {run.id: run for run in claimed}
        return sorted(self.name(run.id) for run in claimed)

    async def _claim(self, limit: int) -> list[ClaimedRun]:
        self.claims += 1
        for step in range(3):
            token = f"claim {self.claims}.{step}"
            found, gated = await claiming.claim(self.connection, "default", token, limit, now=self.now)
            await claiming.claim_gated(self.connection, "default", found, f"gated {token}", gated, now=self.now)
            if found.unreleased:
                await follow.settle(self.connection, "default", found.unreleased, self.now)
            if found.runs or not found.unreleased:
                break
        return found.runs

    def name(self, run_id: int) -> str:
        row: Any = self.db.execute(
            "select job_type, scheduled_for from yamlsched.job_runs where id = %s", [run_id]
        ).fetchone()
        return f"{row.job_type} {row.scheduled_for:%H:%M}" if row.scheduled_for else row.job_type

    def end(self, name: str, outcome: Outcome = SUCCESS) -> None:
        """End the claimed run ``name``."""
        [run] = [run for run in self.held.values() if self.name(run.id) == name]
        del self.held[run.id]
        assert self.runner.run(store.finish(self.connection, "default", [(run, outcome)], now=self.now))

    def settle(self) -> follow.Settlement:
        return self.runner.run(follow.settle(self.connection, "default", None, self.now))

    def id(self, name: str) -> int:
        job, time = name.split()
        row: Any = self.db.execute(
            "select id from yamlsched.job_runs "
            "where job_type = %s and to_char(scheduled_for at time zone 'UTC', 'HH24:MI') = %s",
            [job, time],
        ).fetchone()
        return int(row.id)

    def states(self) -> list[str]:
        """Return all slot runs in the order of job and slot, with status and why each waits."""
        rows = self.db.execute(
            "select job_type, scheduled_for, status, withheld, unreleased from yamlsched.job_runs "
            "where scheduled_for is not null order by job_type, scheduled_for"
        )
        marks = {0: "", 1: " (job)", 2: " (turn)", 3: " (limit)", 4: " (waits)"}
        return [f"{one.job_type} {one.scheduled_for:%H:%M} {one.status}{marks[one.withheld]}" for one in rows]

    def id_of_held(self, name: str) -> int:
        return next(id for id in self.held if self.name(id) == name)

    def is_over(self, run_id: int) -> bool:
        row: Any = self.db.execute("select status from yamlsched.job_runs where id = %s", [run_id]).fetchone()
        return bool(row.status != "running")

    def job(self, name: str) -> int:
        row: Any = self.db.execute("select id from yamlsched.job_definitions where job_type = %s", [name]).fetchone()
        return int(row.id)

    def close(self) -> None:
        self.runner.run(self.connection.close())
        self.runner.close()


@pytest.fixture
def world(db: Db, dsn: str) -> Iterator[World]:
    world = World(db, dsn)
    yield world
    world.close()


def test_a_slot_runs_when_the_job_that_it_waits_for_has_succeeded(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]}, report={"after": ["load"]})
    world.tick("2026-01-14 02:00")

    assert world.claim() == ["extract 02:00"]
    assert world.states() == ["extract 02:00 running", "load 02:00 queued (waits)", "report 02:00 queued (waits)"]
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
        }
    }


def test_each_handler_gets_the_results_of_its_own_slot(world: World) -> None:
    every: dict[str, Any] = {"overlap": "allow", "catchup": "all"}
    world.apply(extract=HOURLY | every, rates=HOURLY | every, load={"after": ["extract", "rates"], **every})
    world.tick("2026-01-14 03:00")
    for name in world.claim():
        world.end(name, Outcome(Status.SUCCEEDED, result=json.dumps(name)))

    assert world.claim() == ["load 02:00", "load 03:00"]

    for run in world.held.values():
        results = {job: one["result"] for job, one in json.loads(run.upstream or "").items()}
        time = world.name(run.id).removeprefix("load ")
        assert results == {"extract": f"extract {time}", "rates": f"rates {time}"}


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
    world.apply(extract=HOURLY, load={"after": ["extract"]}, report={"after": ["load"]}, mail=follows)
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

    waits = {run.job_type: run.waits for run in search.runs(world.db, "default", search.Filter(), 10)}
    found = report.read(world.db, "default", world.now - HOUR)

    dead, waiting = world.id("extract 02:00"), world.id("load 02:00")
    assert waits == {
        "extract": None,
        "load": f"waits for extract: run {dead} is dead",
        "report": f"waits for load: run {waiting} is queued",
    }
    assert found.held_up == [report.HeldUp("load", "extract", 1)]
    assert ("held up", "by dead or cancelled runs: 1 run of load for extract") in report_document.document(found).parts[
        1
    ].pairs


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
    assert refused.what == "waits for the jobs that its job follows: --force starts it without waiting"
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

    world.runner.run(follow.settle(world.connection, "default", [world.job("load")], world.now))

    assert gaps(world.db, "load") == []


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

    settled = world.runner.run(follow.settle(world.connection, "default", [world.job("load")], world.now))

    assert settled.released == 1
    assert world.db.execute("select job_type from yamlsched.job_runs where unreleased").fetchall() == [("mail",)]


def test_each_run_is_withheld_for_its_own_reason(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]}, mail={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    pause.pause(world.db, "default", [world.job("load")], "ann", now=world.now)

    world.settle()

    assert world.states()[1:] == ["load 02:00 queued (job)", "mail 02:00 queued (waits)"]


def test_of_the_runs_that_wait_only_a_backfilled_one_whose_upstream_is_dead_is_cancelled(world: World) -> None:
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

    rows = world.db.execute("select namespace, job_type from yamlsched.job_definitions where is_followed").fetchall()
    assert rows == [("default", "extract")]


@pytest.mark.parametrize("policy, expected", [("skip", []), ("run", ["load 02:00"])])
def test_on_upstream_failure_decides_about_a_dead_run(world: World, policy: str, expected: list[str]) -> None:
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
    world.apply(extract=HOURLY, load={"after": ["extract"], **skip}, report={"after": ["load"], **skip})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)

    assert world.claim() == []

    assert gaps(world.db, "load") == gaps(world.db, "report") == [("01-14 02:00", "01-14 02:00", 1, "upstream")]
    assert world.states() == ["extract 02:00 dead"]


def test_a_slot_does_not_wait_for_the_resume_of_a_paused_job(world: World) -> None:
    world.apply(
        extract=HOURLY, load={"after": ["extract"]}, anyway={"after": ["extract"], "on_upstream_failure": "run"}
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
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"], "catchup": "all"})
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


def test_after_downtime_the_slots_of_a_chain_wait_for_the_run_that_took_their_place(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 06:00")

    assert world.claim() == ["extract 06:00"]
    world.end("extract 06:00")
    assert world.claim() == ["load 06:00"]
    assert gaps(world.db, "extract") == [("01-14 02:00", "01-14 05:00", 4, "superseded")]
    assert [(one[2], one[3]) for one in gaps(world.db, "load")] == [(4, "superseded")]


def test_a_slot_skipped_for_an_overlap_is_taken_by_the_run_that_was_executing(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "skip"}, load={"after": ["extract"], "overlap": "allow"})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.tick("2026-01-14 03:00")
    assert gaps(world.db, "extract") == [("01-14 03:00", "01-14 03:00", 1, "overlap")]
    assert world.claim() == []

    world.end("extract 02:00")

    assert world.claim() == ["load 03:00"]


def test_an_edit_of_the_followed_cron_changes_nothing_about_slots_before_it(world: World) -> None:
    jobs: dict[str, Any] = {"extract": {"cron": "0 2 * * *"}, "load": {"cron": "0 3 * * *", "after": ["extract"]}}
    world.apply(**jobs)
    world.tick("2026-01-14 02:00")
    world.now = at("2026-01-14 03:10")

    world.apply(**{**jobs, "extract": {"cron": "5 3 * * *"}})

    assert world.claim() == ["extract 02:00"]
    world.end("extract 02:00")
    assert world.claim() == ["load 03:00"]


def test_the_first_slot_after_an_edit_waits_for_the_last_one_before_it(world: World) -> None:
    jobs: dict[str, Any] = {"extract": {"cron": "0 2 * * *"}, "load": {"cron": "0 3 * * *", "after": ["extract"]}}
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


def test_a_retired_job_is_not_waited_for(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={**HOURLY, "after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    world.claim()
    assert world.states()[-1] == "load 02:00 queued (waits)"
    actions.cancel(world.db, [world.id("load 02:00")], "ann", now=world.now)
    world.now = at("2026-01-14 02:10")

    world.apply(load=HOURLY)
    world.tick("2026-01-14 03:00")

    assert world.claim() == ["load 03:00"]


def test_an_edit_of_the_policy_lets_what_waits_be_decided_again(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00", DEAD)
    assert world.claim() == []

    world.apply(extract=HOURLY, load={"after": ["extract"], "on_upstream_failure": "run"})

    assert world.claim() == ["load 02:00"]


def test_a_backfill_waits_for_the_slots_that_have_a_run_and_not_for_others(world: World) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow", "catchup": "all"}, load={"after": ["extract"], "overlap": "allow"}
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

    backfill.backfill(world.db, "default", job, at("2026-01-14 01:00"), at("2026-01-14 02:00"), "ann", now=world.now)

    assert world.claim() == ["load 01:00"]
    [run] = world.held.values()
    assert json.loads(run.upstream or "")["extract"]["status"] == "skipped"
    rows = world.db.execute("select count(*) from yamlsched.job_runs where by_hand and unreleased").fetchone()
    assert rows == (1,)


def test_a_backfill_downstream_creates_the_runs_that_follow_and_they_wait_in_turn(world: World) -> None:
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
    for one in (backfill.Range(job, first, at("2026-01-12 23:59")), *ranges):
        backfill.backfill(world.db, "default", *one, "ann", now=world.now)

    assert [one.job.job_type for one in ranges] == ["load", "hourly"]
    assert world.claim() == ["extract 02:00"]
    world.end("extract 02:00")
    assert world.claim() == ["load 02:00"]
    world.end("load 02:00")
    assert len(world.claim()) == 24


def test_a_waiting_run_that_is_retried_by_force_starts_without_waiting(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    load = world.id("load 02:00")

    [refused] = actions.retry(world.db, [load], "ann", now=world.now)
    [forced] = actions.retry(world.db, [load], "ann", force=True, now=world.now)

    assert (refused.changed, forced.changed) == (False, True)
    assert world.claim() == ["load 02:00"]


def test_a_run_whose_handler_may_be_alive_is_still_waited_for(world: World) -> None:
    world.apply(extract=HOURLY, load={"after": ["extract"], "on_upstream_failure": "run"})
    world.tick("2026-01-14 02:00")
    world.claim()

    actions.cancel(world.db, [world.id("extract 02:00")], "ann", now=world.now)

    assert world.claim() == []
    [run] = world.held.values()
    world.runner.run(store.let_go(world.connection, "default", [run], now=world.now))
    assert world.claim() == ["load 02:00"]


def test_a_success_in_the_handlers_own_transaction_is_handed_on_by_the_worker(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    [run] = world.held.values()
    assert store.succeed_in(world.db, (run.id, run.attempt, run.locked_by), None)
    world.db.execute("update yamlsched.job_runs set finished_at = %s where id = %s", [world.now, run.id])
    assert world.claim() == []

    world.runner.run(store.let_go(world.connection, "default", [run], now=world.now))

    assert world.claim() == ["load 02:00"]


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
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"], "on_upstream_failure": "skip"})
    world.tick("2026-01-14 02:00")
    world.db.execute("update yamlsched.job_runs set priority = 3 where job_type = 'extract'")
    world.runner.run(follow.settle(world.connection, "default", [world.job("load")], world.now))
    assert world.states()[-1] == "load 02:00 queued (waits)"

    actions.cancel(world.db, [world.id("extract 02:00")], "ann", now=world.now)

    assert world.claim() == []
    assert gaps(world.db, "load") == [("01-14 02:00", "01-14 02:00", 1, "upstream")]


def test_a_gap_that_a_sync_records_decides_about_what_waits_for_its_slot(world: World) -> None:
    # given a job that was busy for so long that its next slot is late
    follower = {"after": ["extract"], "overlap": "allow", "catchup": "all", "on_upstream_failure": "run"}
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


def test_after_downtime_and_an_edit_a_slot_waits_for_what_the_former_cron_named(world: World) -> None:
    jobs: dict[str, Any] = {"extract": HOURLY, "load": {"cron": "30 3 * * *", "after": ["extract"]}}
    world.apply(**jobs)
    world.now = at("2026-01-14 05:10")

    world.apply(**{**jobs, "extract": {"cron": "20 * * * *"}})

    assert gaps(world.db, "extract") == [("01-14 02:00", "01-14 04:00", 3, "superseded")]
    assert world.claim() == ["extract 05:00"]
    world.end("extract 05:00")
    assert world.claim() == ["load 03:30"]


def test_after_downtime_an_older_slot_runs_if_the_newer_ones_still_wait(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow", "catchup": "all"}, load={"after": ["extract"]})
    world.tick("2026-01-14 04:00")
    assert world.claim() == ["extract 02:00", "extract 03:00", "extract 04:00"]

    world.end("extract 02:00")

    assert world.claim() == ["load 02:00"]


def test_a_slot_is_not_released_while_a_cancelled_run_of_its_job_may_be_alive(world: World) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"], "overlap": "skip"})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00")
    world.claim()
    actions.cancel(world.db, [world.id("load 02:00")], "ann", now=world.now)
    world.now += MINUTE
    world.file = a_file(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"], "overlap": "skip"})
    world.db.execute("update yamlsched.job_runs set held_until = '2026-01-14 03:30+0' where held_until is not null")
    world.tick("2026-01-14 03:00")
    world.claim()

    world.end("extract 03:00")

    assert world.claim() == []
    assert gaps(world.db, "load") == [("01-14 03:00", "01-14 03:00", 1, "overlap")]


def test_retention_spares_what_is_waited_for_and_the_latest_run_of_a_followed_job(world: World) -> None:
    world.apply(
        extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"], "overlap": "allow", "catchup": "all"}
    )
    for instant in ("02:00", "03:00", "04:00"):
        world.tick(f"2026-01-14 {instant}")
        world.claim()
        world.end(f"extract {instant}")
    assert world.claim() == ["load 04:00"]
    for instant in ("02:00", "04:00"):
        world.end(f"load {instant}")  # the run of 03:00 is still executing

    prune_all(world)

    assert world.states() == ["extract 03:00 succeeded", "extract 04:00 succeeded", "load 03:00 running"]


def prune_all(world: World) -> None:
    later = world.now + timedelta(days=400)
    ages = dict.fromkeys(("succeeded", "dead", "cancelled"), later)
    sql = follow.load("retention")
    given = {"namespace": "default", "definition": 0, "from": "-infinity", "limit": 100, **ages}
    row: Any = world.db.execute(sql["hold_runs"], given).fetchone()
    world.db.execute(sql["delete_runs"], {"ids": row.ids, "now": later})


# -- interleavings


def test_a_success_that_commits_while_a_claim_decides_is_not_overlooked(world: World, dsn: str) -> None:
    # given a session that has ended the run, and holds its gate, and has not committed
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    load = world.job("load")
    world.db.execute("update yamlsched.job_runs set withheld = 0")
    with database.connect(dsn) as ending:
        ending.execute("begin")
        ending.execute(
            "update yamlsched.job_runs set status = 'succeeded', locked_until = null, finished_at = %s "
            "where job_type = 'extract'",
            [world.now],
        )
        ending.execute("select yamlsched.hand_on('default', %s, '{}', %s)", [[world.job("extract")], world.now])

        settled = world.runner.run(follow.settle(world.connection, "default", [load], world.now))

        assert settled == follow.Settlement(busy=frozenset([load]))
        assert world.states()[-1] == "load 02:00 queued"
        ending.execute("commit")

    assert world.claim() == ["load 02:00"]


def test_a_run_that_another_session_changes_is_left_to_the_next_decision(world: World, dsn: str) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    world.claim()
    world.end("extract 02:00")
    with database.connect(dsn) as other:
        other.execute("begin")
        cancel(other, [world.id("load 02:00")], world.now)

        assert world.settle() == follow.Settlement()

        other.execute("rollback")

    assert world.settle().released == 1


def test_an_end_waits_for_a_decision_and_then_lets_it_be_made_again(world: World, dsn: str) -> None:
    world.apply(extract={**HOURLY, "overlap": "allow"}, load={"after": ["extract"]})
    world.tick("2026-01-14 02:00")
    assert world.claim() == ["extract 02:00"]
    world.db.execute("update yamlsched.job_runs set withheld = 0")
    [run] = world.held.values()
    sql = follow.load("follow")
    with database.connect(dsn) as deciding, database.connect(dsn) as ending:
        ids = [world.id("load 02:00")]
        deciding.execute("begin")
        deciding.execute(sql["hold"], {"namespace": "default", "jobs": [world.job("load")]})
        deciding.execute(sql["gates"], {"namespace": "default", "ids": ids})

        def end() -> None:
            ending.execute("begin")
            ending.execute(
                "update yamlsched.job_runs set status = 'succeeded', locked_until = null, finished_at = %s "
                "where id = %s",
                [world.now, run.id],
            )
            ending.execute("select yamlsched.hand_on('default', %s, '{}', %s)", [[world.job("extract")], world.now])
            ending.execute("commit")

        def decide() -> None:
            deciding.execute(sql["withhold"], {"ids": ids, "reasons": [4]})
            deciding.execute("commit")

        while_waiting(world.db, ending, end, decide)

    assert world.states()[-1] == "load 02:00 queued"
    assert world.claim() == ["load 02:00"]


# -- any history

ACTION = st.sampled_from(
    ["tick", "tick", "claim", "claim", "end", "end", "end", "die", "retry", "cancel", "pause", "resume", "edit", "lose"]
)
POLICIES = st.sampled_from(["wait", "skip", "run"])
JOBS = ("a", "b", "c", "d")


def jobs_of(choices: list[int], policy: str) -> dict[str, Any]:
    overlap, catchup = ("wait", "skip", "allow")[choices[0] % 3], ("latest", "all", "none")[choices[1] % 3]
    if (overlap, catchup) == ("skip", "all"):
        overlap = "wait"
    follower = {"overlap": overlap, "catchup": catchup, "on_upstream_failure": policy}
    return {
        "a": {**HOURLY, "overlap": "allow" if choices[2] % 2 else "wait"},
        "b": {"after": ["a"], **follower},
        "c": {"cron": "0 */2 * * *", "after": ["a", "b"], **follower},
        "d": {"after": ["c"], **follower, "catchup_window": "5h"},
    }


@settings(max_examples=60)
@given(
    choices=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    policies=st.lists(POLICIES, min_size=2, max_size=2),
    history=st.lists(st.tuples(ACTION, st.integers(0, 7)), max_size=40),
)
def test_after_any_history_each_slot_has_a_run_or_a_gap_and_nothing_waits_for_nothing(
    db: Db, world: World, choices: list[int], policies: list[str], history: list[tuple[str, int]]
) -> None:
    db.execute(
        "truncate yamlsched.job_runs, yamlsched.job_definitions, yamlsched.gates, yamlsched.schedule_files cascade"
    )
    world.held.clear()
    world.now = start = at("2026-01-14 01:30")
    world.apply(**jobs_of(choices, policies[0]))
    policy = policies[0]
    for action, which in [*history, ("tick", 0)]:
        world.now += SECOND
        job = JOBS[which % 4]
        if action == "tick":
            world.tick()
        elif action == "claim":
            for name in world.claim(which + 1):
                check_what_it_waited_for(world, world.id_of_held(name), policy)
        elif action in ("end", "die") and world.held:
            names = sorted(world.name(run) for run in world.held)
            world.end(names[which % len(names)], SUCCESS if action == "end" else DEAD)
        elif action == "lose":
            world.now += 3 * MINUTE
            world.runner.run(claiming.reclaim(world.connection, "default", now=world.now))
            world.held.clear()
        elif action in ("retry", "cancel"):
            ids = [one.id for one in db.execute("select id from yamlsched.job_runs order by id").fetchall()]
            act: Callable[..., Any] = actions.cancel if action == "cancel" else actions.retry
            act(db, ids[which : which + 2], "ann", now=world.now)
            cancelled = [run for run in world.held.values() if world.is_over(run.id)]
            world.runner.run(store.let_go(world.connection, "default", cancelled, now=world.now))
            world.held = {id: run for id, run in world.held.items() if run not in cancelled}
        elif action == "pause":
            pause.pause(db, "default", [world.job(job)], "ann", now=world.now)
        elif action == "resume":
            pause.resume(db, "default", [world.job(job)], "ann", now=world.now)
        elif action == "edit":
            policy = policies[which % 2]
            world.apply(**jobs_of(choices[::-1] if which > 4 else choices, policy))
        assert world.settle().repaired == 0, action

    # when all is let go, everything ends
    pause.resume(db, "default", [world.job(job) for job in JOBS], "ann", now=world.now)
    for _ in range(100):
        sync(db, world.file, world.now)
        dead = db.execute("select id from yamlsched.job_runs where status in ('dead', 'cancelled')").fetchall()
        actions.retry(db, [one.id for one in dead], "ann", now=world.now)
        world.settle()
        if not world.claim() and not world.held:
            break
        for name in sorted(world.name(run) for run in world.held):
            world.end(name)
        world.now += 6 * MINUTE
    assert (
        db.execute("select job_type, status, withheld from yamlsched.job_runs where finished_at is null").fetchall()
        == []
    )
    for job, step in (("a", 1), ("b", 1), ("c", 2), ("d", 2)):
        hours = [
            hour for hour in range(2, int((world.now - start.replace(hour=0, minute=0)) / HOUR) + 1) if hour % step == 0
        ]
        counted = db.execute(
            "select (select count(*) from yamlsched.job_runs where job_type = %s) + (select coalesce(sum(s.slots), 0) "
            "from yamlsched.skipped_slots s join yamlsched.job_definitions d on d.id = s.definition_id "
            "where d.job_type = %s)",
            [job, job],
        ).fetchone()
        assert counted == (len(hours),), (job, gaps(db, job), world.states())


def check_what_it_waited_for(world: World, run_id: int, policy: str) -> None:
    rows = world.db.execute("select outcome from yamlsched.awaits where run_id = %s", [run_id]).fetchall()
    assert all(row.outcome is not None for row in rows)
