"""A job with ``pause_after`` is paused when as many of its runs in a row are dead: once, whoever ends them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.claiming import claim_due
from support.notes import HOUR, MINUTE
from support.project import Project, a_project, until
from support.rows import a_job, a_run, value
from yamlsched import db as store
from yamlsched.act import pause as pausing
from yamlsched.db.connection import connect_for_handler_async
from yamlsched.db.query import load
from yamlsched.worker import claiming, statements

Db = psycopg.Connection[Any]
Async = psycopg.AsyncConnection[Any]
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def a_dying_job(db: Db, name: str = "charge", **values: Any) -> int:
    return a_job(db, name, **{"pause_after": 3, "applied_at": LONG_AGO, **values})


def an_end(db: Db, job: int, status: str, at: datetime, **values: Any) -> int:
    """Insert a run that ended at an instant."""
    return a_run(db, job, status, finished_at=at, **values)


def pause_dying(db: Db, *runs: int, now: datetime | None = None) -> list[str]:
    """Do what a worker does after runs have died, or, without runs, once a minute; return the jobs it paused."""
    parameters = {"namespace": "default", "ids": list(runs) or None, "now": now}
    rows = db.execute(load("runs")["pause_dying"], parameters).fetchall()
    return [row.job_type for row in rows]


def definition(db: Db, job: int) -> Any:
    return db.execute("select * from yamlsched.job_definitions where id = %s", [job]).fetchone()


ENDS = ("dead", "succeeded", "cancelled", "backfilled dead", "backfilled succeeded")
STEPS = (*ENDS, "resume", "pause", "pause until", "edit")


class Model:
    """The rule in a few lines: the ends that count since the job was resumed last."""

    def __init__(self, pause_after: int) -> None:
        self.pause_after = pause_after
        self.ends: list[str] = []
        self.paused_by = ""
        self.was_until = False  # it has a pause that is over, which a resume ends once more

    def step(self, what: str) -> None:
        if what in ("dead", "succeeded"):
            self.ends.append(what)
            last = self.ends[-self.pause_after :]
            if what == "dead" and last == ["dead"] * self.pause_after and not self.paused_by:
                self.paused_by, self.was_until = "yamlsched", False
        elif what == "pause":
            self.paused_by, self.was_until = "ann", False
        elif (what == "resume" and (self.paused_by or self.was_until)) or what == "pause until":
            self.paused_by, self.ends = "", []
            self.was_until = what == "pause until"


@settings(max_examples=60)
@example(2, ["dead", "cancelled", "dead"])
@given(st.integers(1, 4), st.lists(st.sampled_from((*STEPS, *["dead"] * 6)), max_size=14))
def test_however_runs_end_a_job_is_paused_when_as_many_in_a_row_are_dead(
    db: Db, pause_after: int, steps: list[str]
) -> None:
    for table in ("job_runs", "gates", "operator_actions", "skipped_slots", "job_definitions"):
        db.execute(f"delete from yamlsched.{table}".encode())
    job = a_dying_job(db, schedule=None, pause_after=pause_after)
    model, now = Model(pause_after), NOON
    for what in steps:
        now += SECOND
        is_backfilled = what.startswith("backfilled ")
        if what in ENDS:
            status = what.removeprefix("backfilled ")
            run = an_end(db, job, status, now, by_hand=is_backfilled)
            if status == "dead":
                pause_dying(db, run, now=now)
        elif what == "resume":
            pausing.resume(db, "default", [job], "ann", now=now)
        elif what == "pause":
            pausing.pause(db, "default", [job], "ann", now=now)
        elif what == "pause until":
            pausing.resume(db, "default", [job], "ann", now=now)
            pausing.pause(db, "default", [job], "ann", until=now + SECOND, now=now)
            now += SECOND
        else:
            db.execute("update yamlsched.job_definitions set applied_at = %s", [now])
        model.step(what)

        row = definition(db, job)
        is_paused = row.paused_at is not None and (
            row.paused_until is None or row.paused_until > now
        )
        assert (row.paused_by if is_paused else "") == model.paused_by, steps
        assert (row.paused_after if is_paused else None) == (
            pause_after if model.paused_by == "yamlsched" else None
        )
        # and what each worker looks for once a minute finds nothing that the death did not
        assert pause_dying(db, now=now) == []


def test_the_pause_has_its_count_its_error_and_a_row_in_the_trail(db: Db) -> None:
    job = a_dying_job(db, next_slot_at=NOON + HOUR)
    runs = [an_end(db, job, "dead", NOON + n * SECOND) for n in range(3)]

    assert pause_dying(db, runs[-1], now=NOON + MINUTE) == ["charge"]

    row = definition(db, job)
    reason = f"3 dead runs in a row, the last is run {runs[-1]}: OSError: no route to host"
    assert (row.paused_at, row.paused_until, row.paused_by, row.paused_after) == (
        NOON + MINUTE,
        None,
        "yamlsched",
        3,
    )
    assert (row.paused_reason, row.next_slot_at) == (reason, None)
    action = db.execute("select * from yamlsched.operator_actions").fetchall()
    assert [(a.at, a.who, a.verb, a.target, a.job_type, a.detail) for a in action] == [
        (NOON + MINUTE, "yamlsched", "pause", "job:charge", "charge", {"reason": reason})
    ]


def test_a_death_pauses_its_own_job_and_the_look_of_a_minute_those_of_its_namespace(db: Db) -> None:
    # given jobs that are dying, of which one is of another namespace, and one with one dead run
    jobs = [a_dying_job(db, name) for name in ("a", "b", "c")]
    there = a_dying_job(db, namespace="elsewhere")
    an_end(db, a_dying_job(db, "d"), "dead", NOON)
    runs = [an_end(db, job, "dead", NOON + n * SECOND) for job in (*jobs, there) for n in range(3)]

    assert pause_dying(db, *runs[:3]) == ["a"]
    assert pause_dying(db, *runs[9:]) == []
    assert sorted(pause_dying(db)) == ["b", "c"]

    reason = "3 dead runs in a row, the last is run {}: OSError: no route to host"
    assert [definition(db, job).paused_reason for job in jobs] == [
        reason.format(run) for run in (runs[2], runs[5], runs[8])
    ]
    assert definition(db, there).paused_at is None


@pytest.mark.parametrize(
    "values",
    [
        {"pause_after": None},
        {"pause_after": 4},
        {"enabled": False},
        {"retired_at": NOON},
        {"paused_at": NOON, "paused_by": "ann"},
        {"applied_at": NOON + HOUR},
    ],
)
def test_a_job_that_is_closed_has_no_pause_after_or_was_edited_since_is_not_paused(
    db: Db, values: dict[str, Any]
) -> None:
    job = a_dying_job(db, **values)
    run = [an_end(db, job, "dead", NOON + n * SECOND) for n in range(3)][-1]

    assert pause_dying(db, run, now=NOON + MINUTE) == []
    assert pause_dying(db, now=NOON + MINUTE) == []
    assert value(db, "select count(*) from yamlsched.operator_actions") == 0


def test_a_lower_pause_after_counts_from_the_next_death_on(db: Db) -> None:
    job = a_dying_job(db, pause_after=10)
    for n in range(4):
        assert pause_dying(db, an_end(db, job, "dead", NOON + n * SECOND)) == []
    edited = NOON + MINUTE
    db.execute("update yamlsched.job_definitions set pause_after = 2, applied_at = %s", [edited])
    assert pause_dying(db) == []

    assert pause_dying(db, an_end(db, job, "dead", edited + SECOND)) == ["charge"]


def test_a_slot_that_was_due_is_a_gap_and_so_are_those_of_the_pause(db: Db) -> None:
    job = a_dying_job(db, schedule="0 * * * *", next_slot_at=NOON, last_slot_at=NOON - HOUR)
    db.execute("update yamlsched.job_definitions set effective_from = %s", [NOON - 2 * HOUR])
    run = [an_end(db, job, "dead", NOON + n * SECOND) for n in range(3)][-1]
    pause_dying(db, run, now=NOON + MINUTE)
    assert definition(db, job).next_slot_at == NOON

    pausing.resume(db, "default", [job], "ann", now=NOON + 2 * HOUR + MINUTE)

    gaps = db.execute("select * from yamlsched.skipped_slots").fetchall()
    assert [(g.first_slot, g.last_slot, g.slots, g.reason) for g in gaps] == [
        (NOON, NOON + 2 * HOUR, 3, "paused")
    ]
    assert definition(db, job).next_slot_at == NOON + 3 * HOUR
    assert definition(db, job).paused_after is None


def test_dead_runs_that_are_retried_while_it_is_paused_wait_and_count_from_the_resume_on(
    db: Db, dsn: str
) -> None:
    job = a_dying_job(db, schedule=None, pause_after=2)
    runs = [an_end(db, job, "dead", NOON + n * SECOND, attempts=1) for n in range(2)]
    assert pause_dying(db, *runs, now=NOON + MINUTE) == ["charge"]
    # as `retry` does
    db.execute(
        "update yamlsched.job_runs set status = 'queued', finished_at = null, dead_at = null,"
        " prior_attempts = attempts, run_at = %s",
        [NOON],
    )

    async def claim() -> list[int]:
        async with await connect_for_handler_async(dsn) as connection:
            return [run.id for run in await claim_due(connection, "default", "w:1:a", 9)]

    assert asyncio.run(claim()) == []
    pausing.resume(db, "default", [job], "ann", now=NOON + HOUR)
    assert asyncio.run(claim()) == runs
    for n, run in enumerate(runs, 1):
        db.execute(
            "update yamlsched.job_runs set status = 'dead', finished_at = %(at)s, dead_at = %(at)s,"
            " failed_at = %(at)s, locked_until = null where id = %(id)s",
            {"at": NOON + HOUR + n * SECOND, "id": run},
        )
        assert pause_dying(db, run) == ["charge"][: n - 1]


def test_two_sessions_that_end_two_runs_at_once_pause_the_job_once(db: Db, dsn: str) -> None:
    job = a_dying_job(db, pause_after=2, notify=["ops"])
    runs = [an_end(db, job, "dead", NOON + n * SECOND) for n in range(3)]

    async def both() -> tuple[list[Any], list[Any]]:
        async def pause(connection: Async, run: int) -> list[Any]:
            return await statements.rows_of(
                connection, "pause_dying", {"namespace": "default", "ids": [run], "now": None}
            )

        async with (
            await connect_for_handler_async(dsn) as one,
            await connect_for_handler_async(dsn) as two,
        ):
            async with one.transaction():
                first = await pause(one, runs[1])
                second = asyncio.create_task(pause(two, runs[2]))
                await asyncio.to_thread(until, lambda: is_waiting(db))
            return first, await second

    first, second = asyncio.run(both())

    assert ([row.job_type for row in first], second) == (["charge"], [])
    assert value(db, "select count(*) from yamlsched.operator_actions") == 1


def is_waiting(db: Db) -> bool:
    """Return whether a session waits for a lock of another one."""
    sql = (
        "select exists (select from pg_locks l join pg_stat_activity a using (pid)"
        " where not l.granted and a.datname = current_database())"
    )
    return bool(value(db, sql))


def test_a_resume_beside_the_next_death_counts_from_then_on(db: Db, dsn: str) -> None:
    job = a_dying_job(db, pause_after=2)
    run = [an_end(db, job, "dead", NOON + n * SECOND) for n in range(2)][-1]
    pause_dying(db, run)
    # given a run that was claimed before the pause, and dies while somebody resumes the job
    late = an_end(db, job, "dead", NOON + MINUTE)

    async def die() -> list[Any]:
        async with await connect_for_handler_async(dsn) as connection:
            return await statements.rows_of(
                connection, "pause_dying", {"namespace": "default", "ids": [late], "now": None}
            )

    with store.connect(dsn) as operator, operator.transaction():
        pausing.resume(operator, "default", [job], "ann")
        assert asyncio.run(die()) == []
    assert definition(db, job).paused_at is None
    assert pause_dying(db) == []


def test_a_run_that_dies_with_its_worker_pauses_its_job_and_its_backlog_is_out_of_the_way(
    db: Db, dsn: str
) -> None:
    job = a_dying_job(db, schedule=None, pause_after=1)
    run = a_run(db, job, "running", attempts=5, locked_until="(now() - interval '1 minute')")
    waiting = a_run(db, job)

    async def upkeep() -> None:
        async with await connect_for_handler_async(dsn) as connection:
            reclaimed = await claiming.reclaim(connection, "default")
            await statements.pause_dying(connection, "default", [run.id for run in reclaimed.dead])

    asyncio.run(upkeep())

    assert definition(db, job).paused_reason.startswith(
        f"1 dead run, the last is run {run}: LostWorker: "
    )
    assert value(db, "select blocked_on from yamlsched.job_runs where id = %s", waiting) == (
        f"closed/{job}"
    )


# -- real processes --------------------------------------------------------------------------------

FILE = """\
version: 1
jobs:
  charge:
    handler: work.charge
    max_attempts: 1
    pause_after: 2
"""


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "work.py").write_text("def charge(n):\n    raise ValueError(f'no money {n}')\n")
    with a_project(tmp_path, own_dsn) as project:
        project.file.write_text(FILE)
        yield project


def run(project: Project, *words: str) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    code = project.start(*words).wait()
    return code, (project.folder / f"out-{project.number}").read_text()


def ended(project: Project) -> int:
    return int(value(project.db, "select count(*) from yamlsched.job_runs where status = 'dead'"))


def test_a_tick_pauses_a_job_whose_runs_die_and_starts_no_more_of_them(project: Project) -> None:
    run(project, "sync")
    for n in (1, 2):
        project.enqueue("charge", {"n": n})
        run(project, "tick")
    project.enqueue("charge", {"n": 3})
    run(project, "tick")

    assert ended(project) == 2
    assert definition_of(project).paused_by == "yamlsched"
    checked = run(project, "status", "--check")
    why = run(project, "why", "charge")
    reason = "2 dead runs in a row, the last is run 2: ValueError: no money 2"
    assert checked[0] == 1
    assert f"by yamlsched: {reason}\n" in checked[1]
    assert f"by yamlsched: {reason}\n" in why[1]
    assert "what to do: yamlsched resume charge\n" in why[1]

    # what had died before does not count once somebody has resumed it
    run(project, "resume", "charge")
    run(project, "tick")
    assert ended(project) == 3
    assert definition_of(project).paused_at is None


def definition_of(project: Project) -> Any:
    return project.db.execute("select * from yamlsched.job_definitions").fetchone()


def test_a_worker_that_is_killed_between_a_death_and_its_pause_leaves_it_to_the_next_one(
    project: Project,
) -> None:
    run(project, "sync")
    project.enqueue("charge", {"n": 1})
    run(project, "tick")
    project.enqueue("charge", {"n": 2})

    # given a tick whose run has died, and that waits for the row of its job, as beside a sync
    with store.connect(project.dsn) as other, other.transaction():
        other.execute("select from yamlsched.job_definitions for no key update")
        tick = project.start("tick")
        until(lambda: ended(project) == 2 and is_waiting(project.db))
        tick.signal(signal.SIGKILL)
        project.db.execute(
            "select pg_terminate_backend(a.pid) from pg_locks l"
            " join pg_stat_activity a on a.pid = l.pid and a.datname = current_database()"
            " where not l.granted"
        )
    assert definition_of(project).paused_at is None

    # when the next run is due, the next tick pauses the job before it claims anything
    project.enqueue("charge", {"n": 3})
    run(project, "tick")

    assert ended(project) == 2
    assert definition_of(project).paused_after == 2
