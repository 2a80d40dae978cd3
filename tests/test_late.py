"""When a job is late: the one definition, by what happens to its slots and runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.command_line import Cli, command_line
from support.gates import Worker
from support.health import of_metrics, reasons, the_job
from support.rows import a_job, a_run, row, value
from support.schedules import a_file, sync_by_hand
from yamlsched.act import pause as pauses
from yamlsched.act import runs
from yamlsched.ask import runs as history
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status, released

Db = psycopg.Connection[Any]
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
NO_SYNC, NO_WORKER = "no sync has created the run of its slot", "its run has not started"
NOT_FINISHED = "not finished: the run of its slot has not succeeded"


@pytest.fixture
def worker(dsn: str) -> Iterator[Worker]:
    worker = Worker(dsn)
    yield worker
    worker.close()


def ago(minutes: float) -> datetime:
    return datetime.now(UTC) - minutes * MINUTE


def late(db: Db, job: int) -> tuple[datetime | None, str | None]:
    """Return since when and why a job is late. Every view and verb reads these columns."""
    found: Any = db.execute(
        "select late_since, late_why from yamlsched.job_queues where definition_id = %s",
        [job],
    ).fetchone()
    return tuple(found)


def due(db: Db, job: int, minutes: float, **values: Any) -> int:
    at = ago(minutes)
    return a_run(db, job, **{"run_at": at, "created_at": at, **values})


# -- start_within


@pytest.mark.parametrize(
    ("limit", "is_late"), [(timedelta(minutes=9), True), (timedelta(minutes=11), False)]
)
@pytest.mark.parametrize("what", ["slot", "run"])
def test_a_slot_or_a_run_is_late_once_it_could_have_begun_longer_ago_than_start_within(
    db: Db, limit: timedelta, is_late: bool, what: str
) -> None:
    slot = ago(10)
    job = a_job(db, start_within=limit, next_slot_at=slot if what == "slot" else None)
    if what == "run":
        a_run(db, job, run_at=slot, created_at=slot)

    assert late(db, job) == (
        (slot, NO_SYNC if what == "slot" else NO_WORKER) if is_late else (None, None)
    )
    assert (the_job(db).state == "late") is is_late
    assert [line for line in reasons(db) if "late" in line] == [
        f"purge: late by 10m: {late(db, job)[1]}"
    ] * is_late
    assert (of_metrics(db, "yamlsched_job_late_seconds") > 0) is is_late
    assert value(db, "select count(*) from yamlsched.late_jobs") == is_late


def test_a_run_that_waits_for_a_limit_is_late(db: Db) -> None:
    job = a_job(db, limit_name="warehouse")
    due(db, job, 20, blocked_on="limit/warehouse")

    assert late(db, job)[1] == NO_WORKER


@pytest.mark.parametrize(("ended", "is_late"), [(1, False), (3, True)])
@pytest.mark.parametrize("overlap", ["wait", "allow"])
def test_a_slot_that_waited_for_a_run_of_its_job_is_not_late_until_a_sync_had_time_to_take_it(
    db: Db, overlap: str, ended: int, is_late: bool
) -> None:
    job = a_job(db, overlap=overlap, next_slot_at=ago(60))
    a_run(
        db,
        job,
        "succeeded",
        exclusive=overlap == "wait",
        started_at=ago(90),
        finished_at=ago(ended),
    )

    assert (late(db, job)[0] is not None) is (is_late or overlap == "allow")


def test_the_run_of_a_slot_that_waited_for_another_counts_from_the_end_of_that_on(db: Db) -> None:
    # given an hourly job whose last run took three hours
    start = ago(4 * 60)
    job_of = {"cron": "0 * * * *", "overlap": "wait"}
    sync_by_hand(db, a_file(purge=job_of), start)
    job = value(db, "select id from yamlsched.job_definitions")
    slot = value(db, "select next_slot_at from yamlsched.job_definitions")
    ended = slot + 3 * HOUR + MINUTE
    a_run(
        db, job, "succeeded", exclusive=True, scheduled_for=slot, started_at=slot, finished_at=ended
    )
    db.execute(
        "update yamlsched.job_definitions set last_slot_at = next_slot_at,"
        " next_slot_at = next_slot_at + interval '1 hour'"
    )

    sync_by_hand(db, a_file(purge=job_of), ended + MINUTE)

    created = db.execute(
        "select scheduled_for, late_at from yamlsched.job_runs where finished_at is null"
    ).fetchall()
    assert created == [(slot + 3 * HOUR, ended + timedelta(minutes=15))]


def test_what_has_begun_is_not_late_while_it_waits_for_its_retry(db: Db) -> None:
    job = a_job(db)
    a_run(db, job, "failed", failed_at=ago(50), run_at=ago(40), created_at=ago(60))

    assert late(db, job) == (None, None)


@pytest.mark.parametrize("claimed", [False, True])
def test_the_time_of_a_pause_does_not_count(db: Db, worker: Worker, claimed: bool) -> None:
    # given a run that became due while its job was paused, and that a claim has met or not
    job = a_job(db, overlap="allow")
    run = due(db, job, 40)
    pauses.pause(db, "default", [job], "ada", now=ago(50))
    if claimed:
        assert worker.claim(now=ago(30)) == []
        assert row(db, run).late_at is None
    assert late(db, job) == (None, None)

    pauses.resume(db, "default", [job], "ada", now=(resumed := ago(10)))
    assert late(db, job) == (None, None)
    assert row(db, run).late_at == (resumed if claimed else row(db, run).run_at) + timedelta(
        minutes=15
    )

    db.execute("update yamlsched.job_definitions set start_within = '9 minutes'")
    db.execute("update yamlsched.job_runs set late_at = late_at - interval '6 minutes'")
    assert late(db, job) == (resumed, NO_WORKER)


def test_a_pause_that_has_ended_by_itself_does_not_count(db: Db) -> None:
    job = a_job(db, paused_at=ago(90), paused_until=ago(5))
    due(db, job, 60)

    assert late(db, job) == (None, None)
    db.execute("update yamlsched.job_definitions set start_within = '4 minutes'")
    db.execute("update yamlsched.job_runs set late_at = late_at - interval '11 minutes'")
    assert late(db, job)[0] == value(db, "select paused_until from yamlsched.job_definitions")


def test_a_run_that_waits_for_its_turn_is_late_from_the_end_of_the_one_before_it_on(
    db: Db, worker: Worker
) -> None:
    job = a_job(db)
    first, second = due(db, job, 60, exclusive=True), due(db, job, 50, exclusive=True)
    [running] = worker.claim(now=ago(55))
    assert worker.claim(now=ago(45)) == []
    assert row(db, second).late_at is None
    assert row(db, first).begun_at == row(db, first).started_at

    worker.finish(running, Outcome(Status.DEAD, error="no route"), now=(ended := ago(10)))

    late_at = ended + timedelta(minutes=15)
    assert (row(db, second).blocked_on, row(db, second).late_at) == (None, late_at)
    [claimed] = worker.claim(now=ago(9))
    assert (claimed.id, row(db, second).late_at) == (second, late_at)


@pytest.mark.parametrize("begun", [False, True])
def test_a_claim_that_is_returned_unstarted_has_not_begun(
    db: Db, worker: Worker, begun: bool
) -> None:
    run = due(db, a_job(db, overlap="allow"), 60)
    if begun:
        [claimed] = worker.claim(now=(first := ago(50)))
        worker.finish(claimed, released(claimed, has_begun=True), now=ago(49))
    [claimed] = worker.claim(now=ago(40))
    worker.finish(claimed, released(claimed), now=ago(39))

    assert row(db, run).begun_at == (first if begun else None)
    assert (late(db, row(db, run).definition_id)[0] is None) is begun


def test_an_edit_that_ends_a_wait_stores_when(db: Db, worker: Worker) -> None:
    start = ago(60)
    sync_by_hand(db, a_file(purge={"cron": "0 0 1 1 *"}), start)
    job = value(db, "select id from yamlsched.job_definitions")
    due(db, job, 50, exclusive=True)
    waiting = due(db, job, 45, exclusive=True)
    assert len(worker.claim(now=ago(40))) == 1
    assert row(db, waiting).blocked_on == f"job/{job}"

    sync_by_hand(
        db,
        a_file(purge={"cron": "0 0 1 1 *", "overlap": "allow"}),
        (edited := ago(5)),
    )

    late_at = edited + timedelta(minutes=15)
    assert (row(db, waiting).blocked_on, row(db, waiting).late_at) == (None, late_at)
    assert late(db, job) == (None, None)


def test_a_slot_without_a_run_is_late_also_of_a_job_that_follows_whatever_executes(db: Db) -> None:
    extract = a_job(db, "extract", next_slot_at=ago(60))
    load = a_job(db, "load", after=["extract"], next_slot_at=ago(60))
    assert [late(db, job)[1] for job in (extract, load)] == [NO_SYNC, NO_SYNC]

    a_run(db, load, "running", exclusive=True, scheduled_for=ago(120), started_at=ago(110))
    assert late(db, load)[1] == NO_SYNC


def test_a_job_that_follows_is_not_late_while_the_other_has_to_run(db: Db) -> None:
    extract, load = a_job(db, "extract"), a_job(db, "load", after=["extract"])

    # a run that is not released waits for another job
    waiting = due(db, load, 50, exclusive=True, unreleased=True, scheduled_for=ago(60))
    assert [late(db, job)[1] for job in (extract, load)] == [None, None]

    # and from its release on, it does not
    db.execute(
        "update yamlsched.job_runs set unreleased = false, late_at = %s where id = %s",
        [(late_at := ago(5)), waiting],
    )
    assert late(db, load) == (late_at - timedelta(minutes=15), NO_WORKER)


def test_a_retried_run_that_waits_for_other_jobs_is_not_late(db: Db) -> None:
    job = a_job(db, "load", after=["extract"], start_within=SECOND)
    run = a_run(db, job, "cancelled", exclusive=True, unreleased=True, scheduled_for=ago(60))

    runs.retry(db, [run], "ada", now=ago(30))

    assert (row(db, run).status, row(db, run).late_at) == ("queued", None)
    assert late(db, job) == (None, None)


# -- finish_within


def test_a_slot_is_late_if_its_run_has_not_succeeded_within_finish_within(db: Db) -> None:
    cases: list[tuple[str, dict[str, Any], bool]] = [
        ("queued", {}, True),
        ("running", {"exclusive": True}, True),
        ("failed", {}, True),
        ("queued", {"unreleased": True, "exclusive": True}, True),
        ("queued", {"blocked_on": "('job/' || d.id)", "exclusive": True}, True),
        ("dead", {}, True),
        ("succeeded", {}, False),
        ("cancelled", {}, False),
        ("running", {"exclusive": True, "by_hand": True}, False),
        ("dead", {"by_hand": True}, False),
    ]
    slot = ago(61)
    due = {"scheduled_for": slot, "run_at": slot, "created_at": slot}
    jobs = []
    for nth, (status, values, is_late) in enumerate(cases):
        job = a_job(db, f"job_{nth}", start_within=timedelta(days=9), finish_within=HOUR)
        a_run(db, job, status, **{**due, **values})
        jobs.append(job)
        assert late(db, job) == ((slot, NOT_FINISHED) if is_late else (None, None)), cases[nth]

    db.execute("update yamlsched.job_runs set finish_by = finish_by + interval '2 minutes'")
    assert {late(db, job) for job in jobs} == {(None, None)}


def test_a_slot_without_a_run_is_not_finished_either_and_an_enqueued_run_is_never_late_by_it(
    db: Db,
) -> None:
    job = a_job(
        db, start_within=timedelta(days=9), finish_within=HOUR, next_slot_at=(slot := ago(61))
    )
    due(db, job, 90)
    assert late(db, job) == (slot, NOT_FINISHED)

    db.execute("update yamlsched.job_definitions set next_slot_at = null")
    assert late(db, job) == (None, None)


def test_a_death_counts_until_its_slot_or_a_later_one_has_succeeded(db: Db) -> None:
    job = a_job(db, finish_within=HOUR)
    older, slot, later = ago(300), ago(200), ago(30)
    a_run(db, job, "dead", scheduled_for=older, finished_at=ago(290))
    a_run(db, job, "dead", scheduled_for=slot, finished_at=ago(190))
    for status, of in (
        ("succeeded", older),
        ("succeeded", None),
        ("dead", later),
        ("cancelled", later),
    ):
        a_run(db, job, status, scheduled_for=of, finished_at=ago(5))
        assert late(db, job) == (slot, NOT_FINISHED), (status, of)

    a_run(db, job, "succeeded", scheduled_for=later + SECOND, finished_at=ago(4))

    assert late(db, job) == (None, None)


def test_what_has_not_begun_is_said_before_what_has_not_finished(db: Db) -> None:
    job = a_job(db, finish_within=HOUR)
    a_run(db, job, scheduled_for=ago(200), run_at=ago(100), created_at=ago(200))

    assert late(db, job)[1] == NO_WORKER


@pytest.mark.parametrize(
    "values", [{"enabled": False}, {"paused_at": ago(500)}, {"retired_at": ago(500)}]
)
def test_a_job_that_is_paused_or_not_enabled_is_not_late(db: Db, values: dict[str, Any]) -> None:
    job = a_job(db, start_within=MINUTE, finish_within=MINUTE, next_slot_at=ago(60), **values)
    due(db, job, 60, scheduled_for=ago(60))

    assert late(db, job) == (None, None)


# -- what is read


READ = """
select sum(pg_stat_get_xact_tuples_returned(i.indexrelid))::integer
       + 10000 * pg_stat_get_xact_numscans('yamlsched.job_runs'::regclass)::integer
from pg_catalog.pg_index i where i.indrelid = 'yamlsched.job_runs'::regclass
"""
"""Entries of runs that this session has read, also inside functions; a scan of the table counts as 10,000."""


def entries_read(db: Db, sql: str, *parameters: Any) -> tuple[Any, int]:
    """Return the value of ``sql``, and how many entries of runs it read."""
    with db.transaction():
        before = value(db, READ)
        return value(db, sql, *parameters), value(db, READ) - before


def test_beside_many_finished_runs_few_are_read_to_say_whether_a_job_is_late(own_dsn: str) -> None:
    # given jobs with 5,000 finished runs each, the latest of which ended two hours ago
    usual, promise = {"start_within": HOUR, "next_slot_at": ago(-60)}, {"finish_within": HOUR}
    with psycopg.connect(own_dsn, autocommit=True) as db:
        jobs = {name: a_job(db, name, **usual) for name in ("plain", "busy", "waits")}
        jobs |= {
            name: a_job(db, name, **usual, **promise) for name in ("promised", "recovered", "dead")
        }
        db.execute(
            "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, status, attempts,"
            " max_attempts, scheduled_for, started_at, finished_at, exclusive)"
            " select d.namespace, d.id, d.job_type, t, 'succeeded',"
            " 1, 5, t, t, t, true from yamlsched.job_definitions d, generate_series(1, 5000) n,"
            " lateral (select now() - interval '2 hours' - n * interval '1 minute' as t) s"
        )
        for nth in range(3):
            due(db, jobs["busy"], 5, scheduled_for=ago(nth))
        due(db, jobs["waits"], 500, exclusive=True)
        a_run(db, jobs["recovered"], "dead", scheduled_for=ago(3000), finished_at=ago(2999))
        a_run(db, jobs["dead"], "dead", scheduled_for=ago(90), finished_at=ago(80))
        db.execute("vacuum analyze yamlsched.job_runs, yamlsched.job_definitions")

        late = "select q.late_why from yamlsched.job_queues q where q.job_type = %s"
        found = {name: entries_read(db, late, name) for name in jobs}
        [in_all, of_all] = entries_read(db, "select count(late_since) from yamlsched.job_queues")

    # then unfinished runs are read; of a job that waits the run before it, for finish_within a death and a success
    reasons = {name: why for name, (why, _) in found.items()}
    assert reasons == {**dict.fromkeys(jobs), "waits": NO_WORKER, "dead": NOT_FINISHED}
    assert {n: e for n, (_, e) in found.items() if e > 8} == {}
    assert (in_all, of_all <= 30) == (2, True), of_all


# -- lost slots


def test_a_lost_slot_is_late_for_an_hour_and_hides_nothing_that_is_late_now(db: Db) -> None:
    job = a_job(db)
    first, last = ago(300), ago(200)
    gap = "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, recorded_at)"
    db.execute(f"{gap} values (%s, %s, %s, 7, 'late', %s)".encode(), [job, first, last, ago(59)])

    assert late(db, job) == (first, "its slot was not run")
    assert value(db, "select late_slot from yamlsched.job_queues") == last
    # with the command that runs them
    assert len([line for line in reasons(db) if "purge" in line]) == 1

    due(db, job, 16)
    assert late(db, job)[1] == NO_WORKER

    db.execute("delete from yamlsched.job_runs")
    db.execute("update yamlsched.skipped_slots set recorded_at = %s", [ago(61)])
    assert late(db, job) == (None, None)


# -- what show and why say of a run


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


NOT_BEGUN, NOT_DONE = (
    "it has not started 2h after it was due",
    "it has not succeeded 2h after its slot",
)
BOTH = "it started 1h after it was due (start_within: 15m); it {} 1h58m after its slot (finish_within: 1h)"


LATE_RUNS: list[tuple[str, dict[str, Any], str | None]] = [
    ("queued", {}, f"{NOT_BEGUN} (start_within: 15m); {NOT_DONE} (finish_within: 1h)"),
    (
        "queued",
        {"blocked_on": "limit/x"},
        f"{NOT_BEGUN} (start_within: 15m); {NOT_DONE} (finish_within: 1h)",
    ),
    (
        "queued",
        {"blocked_on": "('job/' || d.id)", "exclusive": True},
        f"{NOT_DONE} (finish_within: 1h)",
    ),
    ("queued", {"unreleased": True, "exclusive": True}, f"{NOT_DONE} (finish_within: 1h)"),
    ("queued", {"late_at": -5}, f"{NOT_DONE} (finish_within: 1h)"),
    (
        "queued",
        {"late_at": 45},
        f"it has not started 1h after it was due (start_within: 15m); {NOT_DONE} (finish_within: 1h)",
    ),
    ("queued", {"by_hand": True}, f"{NOT_BEGUN} (start_within: 15m)"),
    ("queued", {"scheduled_for": None}, f"{NOT_BEGUN} (start_within: 15m)"),
    (
        "running",
        {"started_at": 60},
        f"it started 1h after it was due (start_within: 15m); {NOT_DONE} (finish_within: 1h)",
    ),
    ("running", {"started_at": 106}, f"{NOT_DONE} (finish_within: 1h)"),
    (
        "failed",
        {"started_at": 60, "run_at": -5, "late_at": 105},
        f"it started 1h after it was due (start_within: 15m); {NOT_DONE} (finish_within: 1h)",
    ),
    ("succeeded", {"started_at": 60, "finished_at": 2}, BOTH.format("succeeded")),
    (
        "succeeded",
        {"started_at": 60, "finished_at": 61},
        "it started 1h after it was due (start_within: 15m)",
    ),
    (
        "succeeded",
        {"started_at": 110, "finished_at": 70},
        None,
    ),
    (
        "dead",
        {"started_at": 110, "finished_at": 100, "attempts": 1},
        f"{NOT_DONE} (finish_within: 1h)",
    ),
    ("cancelled", {}, None),
]
"""A state, values of a run of the slot two hours ago, where numbers are minutes ago, and what is late of it."""


def test_a_run_says_by_which_key_it_is_late(db: Db) -> None:
    slot = ago(120)
    for nth, (status, values, words) in enumerate(LATE_RUNS):
        job = a_job(db, f"job_{nth}", finish_within=HOUR)
        given = {"scheduled_for": slot, "run_at": slot, "created_at": slot}
        given |= {
            name: slot + (120 - value) * MINUTE
            if type(value) is int and name.endswith("_at")
            else value
            for name, value in values.items()
        }

        run = history.run(db, a_run(db, job, status, **given))

        assert run is not None
        assert run.lateness(slot + 120 * MINUTE) == (words.split("; ") if words else []), values


def test_show_and_why_say_by_which_key_a_run_is_late(db: Db, cli: Cli) -> None:
    # given a job with a run of the slot two hours ago, and an older one that was in time
    slot = ago(120).replace(second=0, microsecond=0)
    job = a_job(db, schedule=f"{slot.minute} {slot.hour} * * *", finish_within=HOUR)
    db.execute(
        "update yamlsched.job_definitions set effective_from = '2026-01-01', last_slot_at = %s",
        [slot],
    )
    due = {"scheduled_for": slot, "run_at": slot, "created_at": slot}
    run = a_run(db, job, **due, idempotency_key=f"purge:{slot:%Y-%m-%d}")
    before = slot - timedelta(days=1)
    started = {"started_at": before, "finished_at": before + MINUTE}
    in_time = a_run(db, job, "succeeded", **dict.fromkeys(due, before), **started)

    def words_of(*arguments: object) -> list[str]:
        out = cli(*arguments).out.replace("2h1m", "2h")  # a minute may begin meanwhile
        return [line.strip() for line in out.splitlines() if line.strip().startswith("late")]

    begin = f"{NOT_BEGUN} (start_within: 15m)"
    finish = f"{NOT_DONE} (finish_within: 1h)"
    [shown] = words_of("show", run)
    assert shown.split(maxsplit=1)[1] == f"{begin}; {finish}"
    at = f"{slot:%Y-%m-%dT%H:%MZ}"
    assert words_of("why", "purge", "--at", at) == [f"late: {begin}", f"late: {finish}"]
    [shown] = words_of("show", in_time)
    assert shown.split(maxsplit=1)[1] == "no (start_within: 15m, finish_within: 1h)"


def test_a_run_that_was_retried_began_with_its_first_attempt(db: Db, cli: Cli) -> None:
    slot = ago(120)
    more = {
        "attempts": 2,
        "started_at": ago(2),
        "finished_at": ago(1),
        "created_at": slot,
        "scheduled_for": slot,
        "late_at": slot + timedelta(minutes=15),
        "begun_at": ago(40),
    }
    run = a_run(db, a_job(db), "succeeded", run_at=ago(3), **more)

    assert (
        "late      it started 1h20m after it was due (start_within: 15m)\n" in cli("show", run).out
    )


@pytest.mark.parametrize(
    "values", [{"enabled": False}, {"paused_at": ago(500)}, {"retired_at": ago(500)}]
)
def test_a_waiting_run_of_a_job_that_is_not_late_is_not_late(
    db: Db, cli: Cli, values: dict[str, Any]
) -> None:
    run = due(db, a_job(db, finish_within=HOUR, **values), 120, scheduled_for=ago(120))

    assert "late      no (start_within: 15m, finish_within: 1h)\n" in cli("show", run).out


# -- any history of a job, by a model that knows events and nothing of what is stored


class Model:
    """A job with one slot run after another, each of which is created by hand, claimed, ended, paused and resumed."""

    def __init__(self) -> None:
        self.due: dict[int, datetime] = {}  # waiting runs, first ones first
        self.since: dict[int, datetime] = {}  # since when those could begin that have not
        self.blocked: dict[int, str] = {}  # at which gate others wait
        self.begun: set[int] = set()
        self.executing: int | None = None
        self.paused = False
        self.resumed = datetime.min.replace(tzinfo=UTC)

    def late_since(self) -> datetime | None:
        if self.paused or self.executing is not None or not self.since:
            return None
        return max(min(self.since.values()), self.resumed)

    def block(self, now: datetime, gate: str) -> list[int]:
        """What a claim or a pause meets waits at a gate from now on."""
        line = sorted(self.due.items(), key=lambda waiting: (waiting[1], waiting[0]))
        met = [run for run, at in line if at <= now and run not in self.blocked]
        for run in met:
            self.since.pop(run, None)
            self.blocked[run] = gate
        return met

    def claim(self, now: datetime) -> list[int]:
        can_begin = not self.paused and self.executing is None
        begins = self.block(now, "closed" if self.paused else "job")[: int(can_begin)]
        for run in begins:
            del self.due[run], self.blocked[run]
            self.executing = run
            self.begun.add(run)
        return begins

    def offer(self, now: datetime, gate: str, count: int) -> None:
        line = [run for run in self.blocked if self.blocked[run] == gate]
        for run in sorted(line, key=lambda run: (self.due[run], run))[:count]:
            del self.blocked[run]
            if run not in self.begun:
                self.since[run] = now


STEPS = st.lists(
    st.sampled_from(["slot", "claim", "succeed", "die", "fail", "pause", "resume"]),
    max_size=25,
)


@settings(max_examples=20)
@given(steps=STEPS)
def test_after_any_history_a_job_is_late_since_the_last_instant_at_which_something_held_it(
    db: Db, worker: Worker, steps: list[str]
) -> None:
    for table in ("job_runs", "gates", "permits", "operator_actions", "job_definitions"):
        db.execute(f"delete from yamlsched.{table}".encode())
    job, model, held = a_job(db, schedule=None, start_within=SECOND), Model(), list[ClaimedRun]()
    now = ago(60)
    for step in steps:
        now += MINUTE
        if step == "slot":
            run = a_run(db, job, run_at=now, created_at=now, exclusive=True, scheduled_for=now)
            model.due[run] = model.since[run] = now
        elif step == "claim":
            claimed = worker.claim(now=now)
            assert [one.id for one in claimed] == model.claim(now)
            held += claimed
        elif step in ("succeed", "die", "fail") and held:
            run, retry_at = held.pop(), now + 2 * MINUTE
            outcomes = {
                "succeed": Outcome(Status.SUCCEEDED),
                "die": Outcome(Status.DEAD, error="x"),
                "fail": Outcome(Status.FAILED, delay=2 * MINUTE, error="x"),
            }
            worker.finish(run, outcomes[step], now=now)
            model.executing = None
            if step == "fail" and run.attempt < run.max_attempts:
                model.due[run.id] = retry_at
            if not model.paused:
                model.offer(now, "job", 1)
        elif step == "pause":
            pauses.pause(db, "default", [job], "ada", now=now)
            model.paused = True
            model.block(now, "closed")
        elif step == "resume":
            pauses.resume(db, "default", [job], "ada", now=now)
            if model.paused:
                model.paused, model.resumed = False, now
                model.offer(now, "closed", 99)
                model.offer(now, "job", 0 if model.executing else 1)

    assert late(db, job)[0] == model.late_since()
