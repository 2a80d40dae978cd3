"""The last two runs that a run has enqueued end at once: one stops before each of its statements, the other does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.database import temporary_database
from support.effects import succeed_in
from support.followers import HOURLY
from support.schedules import a_file
from support.steps import Session, install, interleave
from yamlsched.act import runs as actions
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.runs.release import release_followers
from yamlsched.schedule.load import load
from yamlsched.sync import converge
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

RESET = """
delete from yamlsched.permits; delete from yamlsched.job_failures; delete from yamlsched.awaits;
delete from yamlsched.job_runs; delete from yamlsched.operator_actions
"""
INSERT = """
with run as (
    insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, scheduled_for, unreleased,
                                    blocked_on, status, finished_at)
    select 'default', d.id, job_type, '2026-01-01', 5, '2026-01-01', job_type = 'summary',
           case when job_type = 'summary' and %(is_blocked)s then 'after/' || (
               select u.id from yamlsched.job_definitions u where u.job_type = 'fan_out') end,
           case job_type when 'summary' then 'queued' else 'succeeded' end,
           case job_type when 'fan_out' then timestamptz '2026-01-01' end
    from yamlsched.job_definitions d where d.job_type <> 'send' returning id, definition_id, job_type
), waits as (
    insert into yamlsched.awaits (run_id, definition_id, slot)
    select w.id, u.definition_id, '2026-01-01' from run w, run u where w.job_type = 'summary' and u.job_type = 'fan_out'
)
insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, parent_id, status, attempts,
                                locked_by, started_at, locked_until)
select 'default', d.id, 'send', '2026-01-01', 1, u.id, 'running', 1, 'held', now(),
       now() + interval '1 hour' * case when n = any (%(over)s) then -1 else 1 end
from yamlsched.job_definitions d, run u, generate_series(1, %(children)s) n
where d.job_type = 'send' and u.job_type = 'fan_out' returning id
"""
FOLLOWER = """
select status, blocked_on, unreleased from yamlsched.job_runs where job_type = 'summary'
"""
Act = Callable[[Session, ClaimedRun], object]


def succeed(session: Session, run: ClaimedRun) -> None:
    assert session.call(store.succeed, [(run, None)])


def end(outcome: Outcome) -> Act:
    return lambda session, run: session.call(store.finish, "default", [(run, outcome)])


def own_transaction(session: Session, run: ClaimedRun) -> None:
    with session.connection.transaction():
        succeed_in(session.connection, run)
    session.call(store.unlock, "default", [run])


def cancel(session: Session, run: ClaimedRun) -> None:
    actions.cancel(session.connection, [run.id], "ann")
    session.call(store.unlock, "default", [run])


def reclaim(session: Session, run: ClaimedRun) -> None:
    session.call(claiming.reclaim, "default", is_complete=False)


def decide(session: Session, run: ClaimedRun) -> None:
    """Decide about the follower, as a claim does that meets it."""
    session.call(release_followers, "default")


ENDS: dict[str, Act] = {
    "success": succeed,
    "success with a result": end(Outcome(Status.SUCCEEDED, result="1")),
    "death": end(Outcome(Status.DEAD, error="x")),
    "own transaction": own_transaction,
    "cancel": cancel,
    "reclaim": reclaim,
}


class Stage:
    def __init__(self, db: psycopg.Connection[Any], dsn: str) -> None:
        self.db, self.stops, self.goes_on = db, Session(dsn, stops=True), Session(dsn)

    def reset(self, children: int, over: list[int], is_blocked: bool) -> list[ClaimedRun]:
        for statement in RESET.split(";"):
            self.db.execute(statement.encode())
        parameters = {"children": children, "over": over, "is_blocked": is_blocked}
        rows = self.db.execute(INSERT.encode(), parameters).fetchall()
        return [
            ClaimedRun(row.id, "send", None, None, 1, 1, "{}", False, 3600.0, "held")
            for row in rows
        ]

    def interleave(self, first: Act, second: Act, children: int, is_blocked: bool = True) -> int:
        """Execute both in each order of their statements; return in how many. The slot is always offered."""
        for nth in count(1):
            lost = [nth for nth, act in ((1, first), (children, second)) if act is reclaim]
            runs = self.reset(children, lost, is_blocked)
            has_stopped, _ = interleave(
                self.db,
                (self.stops, lambda session, run=runs[0]: first(session, run)),
                (self.goes_on, lambda session, run=runs[-1]: second(session, run)),
                nth,
            )
            assert [self.stops.error, self.goes_on.error] == [None, None]
            follower: Any = self.db.execute(FOLLOWER.encode()).fetchone()
            assert (follower.status, follower.blocked_on) == ("queued", None), f"statement {nth}"
            assert not follower.unreleased or self.decide() == 1
            if not has_stopped:
                return nth
        raise AssertionError

    def decide(self) -> int:
        result = self.goes_on.call(release_followers, "default")
        return int(result.released)


PAIRS = [
    pytest.param(first, second, marks=[] if "success" in (first, second) else [pytest.mark.story])
    for first in ENDS
    for second in ENDS
]


@pytest.fixture(scope="module")
def stage(server: str, template: str) -> Iterator[Stage]:
    with (
        temporary_database(server, template) as dsn,
        psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row) as db,
    ):
        db.execute("insert into yamlsched.namespaces values ('default')")
        follows = {"after": ["fan_out"], "after_enqueued": "ended"}
        file = a_file(fan_out=HOURLY, send={}, summary=follows)
        loaded = load(file.data, "schedules.yaml", None)
        with db.transaction():
            converge.converge(db, "default", loaded.jobs, loaded.limits, None, False, False)
        install(db)
        stage = Stage(db, dsn)
        yield stage
        for session in (stage.stops, stage.goes_on):
            session.close()


@pytest.mark.parametrize("first, second", PAIRS)
def test_of_two_that_end_at_once_the_last_one_releases_the_slot(
    stage: Stage, first: str, second: str
) -> None:
    assert stage.interleave(ENDS[first], ENDS[second], children=2) > 2


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("is_blocked", [True, False])
def test_an_end_beside_a_decision_releases_the_slot(
    stage: Stage, name: str, is_blocked: bool
) -> None:
    assert stage.interleave(ENDS[name], decide, 1, is_blocked) > 2
    assert stage.interleave(decide, ENDS[name], 1, is_blocked) > 2
