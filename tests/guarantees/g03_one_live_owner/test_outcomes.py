"""How outcomes are written: in bulk, and none blocked by others."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from support.claiming import claim_due
from support.project import Project, a_project, until
from support.rows import a_job
from yamlsched.runs.lifecycle import MAX_OUTPUT_BYTES, AttemptEnd, ClaimedRun, EndKind, Keep, Status
from yamlsched.schedule.job import Job, Output
from yamlsched.worker.attempt import Attempt, EventQueue
from yamlsched.worker.outcomes import (
    MAX_SUCCESS_BATCH,
    MAX_UNWRITTEN_CHARS,
    Outcomes,
    PendingOutcome,
    SuccessesRecorded,
)
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, WorkerSession


class Recorded:
    """The states of runs in the order in which they are reported as recorded, and the attempts that are left."""

    def __init__(self) -> None:
        self.states: list[Status] = []
        self.attempts: set[Attempt] = set()

    def handle(self, event: object) -> None:
        match event:
            case SuccessesRecorded(attempts):
                self.states += [Status.SUCCEEDED] * len(attempts)
                self.attempts.difference_update(attempts)
            case PendingOutcome(attempt=attempt, outcome=outcome):
                self.attempts.remove(attempt)
                if not attempt.is_lost:
                    self.states.append(outcome.status)


async def write(
    dsn: str, count: int, recorded: Recorded, enough: int, meanwhile: str = "select"
) -> None:
    """Claim ``count`` runs, let the last one fail and all others succeed, and write until ``enough`` are done with.

    ``meanwhile`` is executed on another session between claim and outcomes; a transaction stays open.
    """
    session = WorkerSession(Database(dsn), {**WORKER_SETTINGS, "lock_timeout": "100ms"})

    async def claim(connection: Any) -> list[Any]:
        return await claim_due(connection, "default", "A", count)

    job = Job(name="purge", handler="h.f")
    attempts = [Attempt(run, job, 1e12, 0.0) for run in await session.run(claim, 20)]
    recorded.attempts.update(attempts)
    other = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await other.execute(meanwhile.encode())
    events = EventQueue()
    outcomes = Outcomes(session, "default", events, str)
    for attempt in attempts:
        attempt.took = 0.001
    outcomes.add_successes(attempts[:-1])
    outcomes.add(attempts[-1], AttemptEnd(EndKind.RAISED, "no route to host", "OSError"))
    writing = asyncio.create_task(outcomes.write())
    while count - len(recorded.attempts) < enough:
        for event in await events.wait():
            recorded.handle(event)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await session.drop()
    await other.close()


def runs(db: psycopg.Connection[Any], count: int) -> None:
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts) "
        "select 'default', %s, 'purge', now(), 5 from generate_series(1, %s)",
        [a_job(db), count],
    )


def statuses(db: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(
        db.execute("select status, count(*) from yamlsched.job_runs group by status").fetchall()
    )


def test_successes_are_written_in_bulk_and_a_failure_does_not_wait_for_all_of_them(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    count = 2 * MAX_SUCCESS_BATCH + 500
    runs(db, count)
    recorded = Recorded()

    asyncio.run(write(dsn, count, recorded, count))

    assert recorded.states.index(Status.FAILED) == MAX_SUCCESS_BATCH
    assert statuses(db) == {"succeeded": count - 1, "failed": 1}
    assert recorded.attempts == set()


def test_locked_runs_do_not_prevent_the_outcomes_of_others(
    db: psycopg.Connection[Any], dsn: str
) -> None:
    runs(db, 4)
    recorded = Recorded()
    locked = "begin; select from yamlsched.job_runs where id = (select min(id) from yamlsched.job_runs) for update"

    asyncio.run(write(dsn, 4, recorded, 3, locked))

    assert sorted(recorded.states) == [Status.FAILED, Status.SUCCEEDED, Status.SUCCEEDED]
    assert statuses(db) == {"succeeded": 2, "failed": 1, "running": 1}


def test_outcomes_of_lost_runs_are_discarded_and_the_others_are_written(
    db: psycopg.Connection[Any], dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(db, 3)
    recorded = Recorded()
    taken_over = "update yamlsched.job_runs set locked_by = 'B' where id = (select min(id) from yamlsched.job_runs)"

    asyncio.run(write(dsn, 3, recorded, 3, taken_over))

    assert sorted(recorded.states) == [Status.FAILED, Status.SUCCEEDED]
    assert statuses(db) == {"succeeded": 1, "failed": 1, "running": 1}
    assert "lease.lost" in capsys.readouterr().err


# -- large fan-outs, written by real workers


def test_no_more_is_claimed_when_much_output_is_unwritten() -> None:
    # given a database that does not answer
    session = WorkerSession(Database("host=nowhere.invalid"), WORKER_SETTINGS)
    outcomes = Outcomes(session, "default", EventQueue(), str)
    job = Job(name="purge", handler="h.f", output=Output(Keep.ALWAYS))
    end = AttemptEnd(EndKind.RETURNED, output="x" * MAX_OUTPUT_BYTES)

    # when printing attempts end
    ended = 0
    while outcomes.has_room():
        run = ClaimedRun(ended, "purge", None, None, 1, 5, "{}", False, 120.0, "A")
        outcomes.add(Attempt(run, job, 1e12, 0.0), end)
        ended += 1

    # then there is room for as many as fit in the limit, far fewer than of those that print nothing
    assert ended == MAX_UNWRITTEN_CHARS // MAX_OUTPUT_BYTES == 256


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


WAITS = """
create function public.wait() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock(4711); return new; end $$;
create trigger wait before insert on yamlsched.job_runs
for each row when (new.parent_id is not null) execute function public.wait();
"""
LIMITS = "-c lock_timeout=0 -c statement_timeout={}"


def test_a_large_fan_out_that_waits_is_written_completely_and_so_are_the_outcomes_behind_it(
    project: Project,
) -> None:
    # given a fan-out that is blocked in the server
    project.sync(fans_out={"lease": "5s"}, nothing={}, nap={"lease": "1m"})
    [large] = project.enqueue("fans_out", {"count": 2_500})
    project.db.execute(
        "update yamlsched.job_definitions set paused_at = now() where job_type = 'nothing'"
    )
    naps = project.enqueue("nap", count=100)
    project.db.execute(WAITS.encode())
    project.db.execute("select pg_advisory_lock(4711)")
    worker = project.start("work", dsn=make_conninfo(project.dsn, options=LIMITS.format("60s")))
    held_up = "select pid, xact_start from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
    first = until(lambda: project.db.execute(held_up).fetchone(), "the fan-out is being written")

    # when the initial lease of the run ends
    renewed = "select 1 from yamlsched.job_runs where id = %s and locked_until > started_at + interval '7 s'"
    until(lambda: project.db.execute(renewed, [large]).fetchone(), "its lease is renewed")

    # then it is written completely as soon as possible, and no other outcome is lost
    assert project.db.execute(held_up).fetchone() == first
    assert project.row(large).status == "running"
    project.db.execute("select pg_advisory_unlock(4711)")
    assert worker.wait() == 0
    assert {project.summary(run) for run in (large, *naps)} == {("succeeded", 1, 1, 1, 0)}
    assert project.statuses() == {"succeeded": 101, "queued": 2_500}


@pytest.mark.parametrize("count", [10, 2_500])
def test_a_fan_out_that_times_out_repeatedly_fails_its_attempt(
    project: Project, count: int
) -> None:
    project.sync(fans_out={"max_attempts": 1, "lease": "1m"}, nothing={}, nap={"lease": "1m"})
    [run] = project.enqueue("fans_out", {"count": count})
    naps = project.enqueue("nap", count=20)
    project.db.execute(WAITS.encode())
    project.db.execute("select pg_advisory_lock(4711)")

    project.work(dsn=make_conninfo(project.dsn, options=LIMITS.format("300ms")), code=1)

    assert project.summary(run) == ("dead", 1, 1, 1, 1)
    assert project.row(run).error_type == "EnqueueRefused"
    assert project.row(run).last_error == (
        f"the server could not write the {count} runs that it enqueued within its timeout, 3 times: "
        "enqueue fewer runs in one attempt, and let some of them enqueue the rest"
    )
    assert {project.summary(nap) for nap in naps} == {("succeeded", 1, 1, 1, 0)}
    assert project.statuses() == {"dead": 1, "succeeded": 20}


WAITS_AT = """
create function public.wait() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock(4711); return new; end $$;
create trigger wait before insert on yamlsched.job_runs
for each row when (new.parent_id is not null and new.idempotency_key like 'part:%:{}') execute function public.wait();
"""


def test_an_outcome_that_a_trigger_of_the_team_rejects_fails_its_attempt_and_no_other(
    project: Project,
) -> None:
    # given a trigger that raises for the success of one run
    project.sync(nap={"handler": "support.handlers.nap", "max_attempts": 1})
    rejected, *others = project.enqueue("nap", count=5)
    project.db.execute(
        "create function public.audit() returns trigger language plpgsql as "
        "$$ begin if new.status = 'succeeded' then raise 'audit says no'; end if; return new; end $$"
    )
    project.db.execute(
        "create trigger audit before update on yamlsched.job_runs for each row "
        f"when (new.id = {rejected}) execute function public.audit()".encode()
    )

    project.work(code=1)

    assert project.row(rejected).last_error == "its outcome could not be stored: audit says no"
    assert {project.row(run).status for run in others} == {"succeeded"}


@pytest.mark.parametrize("count", [2_500, pytest.param(30_000, marks=pytest.mark.story)])
def test_of_a_fan_out_whose_worker_is_killed_nothing_is_written(
    project: Project, count: int
) -> None:
    # given a fan-out of which most is written
    project.sync(fans_out={"lease": "1m"}, nothing={})
    project.db.execute(
        "update yamlsched.job_definitions set paused_at = now() where job_type = 'nothing'"
    )
    [run] = project.enqueue("fans_out", {"count": count})
    project.db.execute(WAITS_AT.format(count - 1_500).encode())
    project.db.execute("select pg_advisory_lock(4711)")
    worker = project.start("work", dsn=make_conninfo(project.dsn, options=LIMITS.format("60s")))
    waiting = "select 1 from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
    until(lambda: project.db.execute(waiting).fetchone(), "the fan-out is being written")

    # when the worker is killed
    worker.signal(signal.SIGKILL)
    worker.wait()
    project.db.execute("select pg_advisory_unlock(4711)")
    others = "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    until(lambda: not project.db.execute(others).fetchall(), "its sessions have ended")

    # then there are none of its runs, and all of them after the next attempt
    assert project.statuses() == {"running": 1}
    project.end_leases()
    project.work()
    assert project.summary(run) == ("succeeded", 2, 2, 2, 1)
    assert project.statuses() == {"succeeded": 1, "queued": count}
