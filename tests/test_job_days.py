"""What is left of pruned runs: history shows the same before and after they are pruned."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from support.rows import a_job, a_place, a_run, value
from yamlsched import db as store
from yamlsched.act import prune
from yamlsched.act.prune import ArchiveFailed, housekeep
from yamlsched.ask import job_days, report
from yamlsched.extras.web.pages.nights import strips
from yamlsched.timetable.zones import zone

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
DAY, HOUR, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)
ZONES = ("UTC", "Pacific/Auckland", "America/Los_Angeles")
Db = psycopg.Connection[Any]


# -- the histogram


@settings(max_examples=200)
@given(
    seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=60),
    share=st.sampled_from([0.5, 0.95]),
)
def test_a_quantile_of_a_histogram_lies_within_one_bucket_of_the_true_one(
    seconds: list[float], share: float
) -> None:
    histogram = [0] * job_days.BUCKETS
    for each in seconds:
        histogram[job_days.bucket(each)] += 1
    rank = share * (len(seconds) - 1)
    ordered = sorted(seconds)
    around = [job_days.bucket(ordered[int(rank)]), job_days.bucket(ordered[-int(-rank // 1)])]

    place = job_days.bucket(job_days.quantile(histogram, share).total_seconds())

    assert min(around) - 1 <= place <= max(around) + 1
    assert histogram[place] > 0


# -- a model of what is shown


@dataclass(frozen=True)
class Ended:
    """A run of a job, in hours before noon: its slot, or None, and its end. ``status`` may be
    "retried".
    """

    job: int
    slot: int | None
    end: int
    status: str


RUNS = st.builds(
    lambda job, end, waited, status: Ended(
        job, None if waited is None else end + waited, end, status
    ),
    st.integers(0, 1),
    st.integers(1, 13 * 24),
    st.none() | st.integers(0, 30),
    st.sampled_from(["succeeded", "retried", "dead", "cancelled"]),
)
STEPS = st.tuples(st.integers(0, 14), st.sampled_from(ZONES), st.integers(1, 4), st.booleans())


def insert(db: Db, jobs: Sequence[int], run: Ended) -> None:
    at = NOON - run.end * HOUR
    more: dict[str, Any] = {"failed_at": at - SECOND} if run.status == "retried" else {}
    if run.slot is not None:
        more["scheduled_for"] = NOON - run.slot * HOUR
    status = "succeeded" if run.status == "retried" else run.status
    started_at = at - timedelta(seconds=run.end)
    a_run(db, jobs[run.job], status, finished_at=at, started_at=started_at, **more)


def day_of(run: Ended, timezone: str) -> date:
    hours = run.end if run.slot is None else run.slot
    return (NOON - hours * HOUR).astimezone(zone(timezone)).date()


def end_of(run: Ended, timezone: str) -> str:
    """Return how a run ended. A failure is found by its day: that of a run without a slot may be
    the day before.
    """
    failed_at = NOON - run.end * HOUR - SECOND
    is_earlier = failed_at.astimezone(zone(timezone)).date() < day_of(run, timezone)
    return "succeeded" if run.status == "retried" and is_earlier else run.status


def state_of(ends: Counter[str]) -> str:
    names = {"dead": "dead", "retried": "retried", "succeeded": "ok", "cancelled": "cancelled"}
    return next((name for end, name in names.items() if ends[end]), "none")


def empty(db: Db) -> None:
    for table in ("job_runs", "job_days", "job_definitions"):
        db.execute(f"delete from yamlsched.{table}".encode())


@settings(max_examples=25)
@given(runs=st.lists(RUNS, max_size=25), steps=st.lists(STEPS, max_size=4))
def test_every_day_shows_the_same_however_often_and_in_whatever_batches_runs_are_pruned(
    db: Db, runs: list[Ended], steps: list[Any]
) -> None:
    """The model: a run has the day of the time zone that its job has, until it is pruned."""
    empty(db)
    jobs = [a_job(db, "a"), a_job(db, "b")]
    for run in runs:
        insert(db, jobs, run)
    zones, kept, pruned = ["UTC", "UTC"], list(runs), list[tuple[int, date, str]]()

    def of_day(run: Ended) -> tuple[int, date, str]:
        timezone = zones[run.job]
        return run.job, day_of(run, timezone), end_of(run, timezone)

    def check() -> None:
        ends: dict[tuple[int, date], Counter[str]] = {}
        live = [of_day(run) for run in kept]
        for job, day, end in [*pruned, *live]:
            ends.setdefault((job, day), Counter())[end] += 1
        shown = strips(db, "default", list(zip("ab", zones, strict=True)), NOON, 20)
        for nth, name in enumerate("ab"):
            for day in shown[name]:
                seen = ends.get((nth, day.date), Counter())
                assert day.state == state_of(seen), (name, day, seen)
                assert (f"{seen['dead']} dead" in day.text) == (seen["dead"] > 0)
                assert ("after a retry" in day.text) == (seen["retried"] > 0)

    check()
    for age, timezone, batch, retires in steps:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prune, "BATCH_ROWS", batch)
            every = dict.fromkeys(("succeeded", "dead", "cancelled"), f"{age}d")
            a_place(db, retention=Jsonb(every))
            housekeep(db, "default", 60, NOON)
        over = [run for run in kept if run.end > age * 24]
        pruned += [of_day(run) for run in over]
        kept = [run for run in kept if run.end <= age * 24]
        assert value(db, "select count(*) from yamlsched.job_runs") == len(kept)
        check()
        # an edit of the time zone, after which pruned runs stay where they were
        zones[0] = timezone
        db.execute(
            "update yamlsched.job_definitions set timezone = %s, retired_at = %s where id = %s",
            [timezone, NOON if retires else None, jobs[0]],
        )
        check()


# -- one transaction


def total(db: Db) -> list[tuple[int, ...]]:
    """Return what is known of all runs, kept and pruned: ends, seconds and the histogram."""
    sql = (
        "select definition_id, sum(succeeded), sum(retried), sum(dead), sum(cancelled), sum(seconds), "
        "(select sum(n) from yamlsched.job_days x cross join unnest(x.histogram) n "
        " where x.definition_id = j.definition_id) from yamlsched.job_days j group by 1 order by 1"
    )
    with db.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(sql.encode()).fetchall()


def test_a_prune_that_is_killed_in_the_middle_leaves_the_runs_and_counts_none(
    db: Db, dsn: str
) -> None:
    job = a_job(db)
    for nth in range(6):
        a_run(
            db,
            job,
            "succeeded",
            started_at=NOON - 50 * DAY,
            finished_at=NOON - 50 * DAY + nth * SECOND,
        )

    # given a prune that ends after it has deleted rows, and before it has committed
    values = {**dict.fromkeys(("succeeded", "dead", "cancelled"), NOON), **prune.START}
    with store.connect(dsn) as other, other.transaction(force_rollback=True):
        prune.prune_batch(other, "runs", "default", values, 4, NOON)
        assert value(other, "select sum(succeeded) from yamlsched.job_days") == 4

    # and one whose archive cannot be written
    def refuse(*_: Any) -> None:
        raise ArchiveFailed("the disk is full")

    with pytest.raises(ArchiveFailed):
        housekeep(db, "default", 60, NOON, archive=refuse)
    assert (value(db, "select count(*) from yamlsched.job_runs"), total(db)) == (6, [])

    # then the next one counts each run once
    housekeep(db, "default", 60, NOON)
    assert value(db, "select count(*) from yamlsched.job_runs") == 0
    assert total(db) == [(job, 6, 0, 0, 0, 15.0, 6)]


def test_sessions_that_prune_at_once_count_each_run_once(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "BATCH_ROWS", 3)
    jobs = [a_job(db, name) for name in "abc"]
    for nth in range(120):
        # the days of each batch overlap with those of the others
        end = NOON - 50 * DAY + (nth % 4) * DAY + nth * SECOND
        a_run(
            db,
            jobs[nth % 3],
            "succeeded" if nth % 2 else "dead",
            started_at=end - 2 * SECOND,
            finished_at=end,
        )
    db.execute(
        "update yamlsched.job_runs set finished_at = finished_at - interval '90 days' where dead_at is not null"
    )
    start = threading.Barrier(4)
    problems = list[BaseException]()

    def work() -> None:
        try:
            with store.connect(dsn) as own:
                start.wait()
                housekeep(own, "default", 60, NOON)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    assert value(db, "select count(*) from yamlsched.job_runs") == 0
    assert total(db) == [(job, 20, 0, 20, 0, 40.0, 20) for job in jobs]


def test_two_prunes_of_one_day_wait_for_each_other_and_add_up(db: Db, dsn: str) -> None:
    job = a_job(db)
    for _ in range(4):
        a_run(
            db, job, "succeeded", started_at=NOON - 50 * DAY, finished_at=NOON - 50 * DAY + SECOND
        )
    values = {**dict.fromkeys(("succeeded", "dead", "cancelled"), NOON), **prune.START}
    done = list[Any]()

    def second() -> None:
        with store.connect(dsn) as own:
            done.append(prune.prune_batch(own, "runs", "default", values, 2, NOON))

    with store.connect(dsn) as first, first.transaction():
        prune.prune_batch(first, "runs", "default", values, 2, NOON)
        thread = threading.Thread(target=second)
        thread.start()
        waiting = "select exists (select from pg_locks where not granted)"
        while not value(db, waiting):
            assert thread.is_alive()
        assert done == []
    thread.join()

    assert done[0].rows == 2
    assert total(db) == [(job, 4, 0, 0, 0, 4.0, 4)]


# -- how long, and who else reads it


def test_days_and_gaps_are_forgotten_after_400_days_but_for_the_gap_of_the_latest_slot(
    db: Db,
) -> None:
    job = a_job(db, last_slot_at=NOON - 500 * DAY)
    other = a_job(db, "other", namespace="billing", last_slot_at=NOON)
    for definition, age in ((job, 600), (job, 500), (job, 399), (other, 600)):
        db.execute(
            "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason) "
            "values (%(job)s, %(at)s, %(at)s, 1, 'late')",
            {"job": definition, "at": NOON - age * DAY},
        )
    for age in (600, 430, 100):
        a_run(db, job, "succeeded", finished_at=NOON - age * DAY)

    housekeep(db, "default", 60, NOON - 90 * DAY)
    housekeep(db, "default", 60, NOON)

    days = db.execute("select day from yamlsched.job_days order by day").fetchall()
    assert [row.day for row in days] == [(NOON - 100 * DAY).date()]
    gaps = db.execute("select definition_id, last_slot from yamlsched.skipped_slots order by id")
    assert [(row.definition_id, (NOON - row.last_slot).days) for row in gaps] == [
        (job, 500),
        (job, 399),
        (other, 600),
    ]


def test_a_report_counts_pruned_runs_of_the_days_that_begin_in_its_span(db: Db) -> None:
    job = a_job(db)
    now = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - DAY
    for days, status in ((40, "succeeded"), (41, "cancelled"), (100, "dead"), (2, "succeeded")):
        a_run(db, job, status, finished_at=now - days * DAY)
    a_run(db, a_job(db, "other"), "succeeded", finished_at=now - 41 * DAY)
    since, until = now - 200 * DAY, now

    before = report.read(db, "default", since, until).ran
    housekeep(db, "default", 60, now)
    after = report.read(db, "default", since, until).ran

    assert value(db, "select count(*) from yamlsched.job_runs") == 1
    names = ("runs", "jobs", "succeeded", "dead", "cancelled")
    assert tuple(after[name] for name in names) == (5, 2, 3, 1, 1)
    assert after == before
    shorter = report.read(db, "default", now - 40 * DAY - HOUR, now - 40 * DAY + HOUR).ran
    assert shorter["runs"] == 0
    assert report.read(db, "default", now - 40 * DAY - 13 * HOUR, now).ran["succeeded"] == 2
    assert report.read(db, "default", since, now - 60 * DAY).ran["runs"] == 1


@pytest.mark.parametrize("is_last", [True, False])
def test_a_job_is_ok_after_its_latest_success_was_pruned_although_an_older_run_died(
    db: Db, is_last: bool
) -> None:
    # given a job that runs once in a while: a run died, which is kept longer than the success
    job = a_job(db)
    a_run(db, job, "dead", finished_at=NOON - 60 * DAY)
    success = NOON - (40 if is_last else 70) * DAY
    a_run(db, job, "succeeded", scheduled_for=success - DAY, finished_at=success)
    sql = "select state, last_success_at, failure_streak from yamlsched.job_health"
    before = db.execute(sql.encode()).fetchall()

    housekeep(db, "default", 60, NOON)

    assert value(db, "select count(*) from yamlsched.job_runs") == 1
    assert db.execute(sql.encode()).fetchall() == before
    assert before == [("ok" if is_last else "dead", success, 0 if is_last else 1)]
