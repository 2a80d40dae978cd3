"""Each pair of operations on gates: one stops before each of its statements, while another session does the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import count, cycle
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.claiming import WRONGLY_BLOCKED
from support.database import temporary_database
from support.effects import succeed_in
from support.schedules import a_file
from support.steps import Session, install, interleave
from yamlsched.act import pause as pauses
from yamlsched.act import runs as actions
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.schedule.load import load
from yamlsched.sync import converge
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

# -- the world: five jobs, and of each a run that executes, one that is due, and one that is blocked

LIMITS = {"pool": {"max": 1}, "tenants": {"max": 1, "by": ["tenant"]}}
RAISED = {name: {**limit, "max": 2} for name, limit in LIMITS.items()}
JOBS: dict[str, dict[str, Any]] = {
    "pooled": {"limit": "pool"},
    "serial": {"cron": "0 0 1 1 *", "overlap": "wait"},
    "both": {"cron": "0 0 1 1 *", "overlap": "wait", "limit": "pool"},
    "keyed": {"limit": "tenants"},
    "free": {"cron": "0 0 1 1 *", "overlap": "allow"},
}
RUNS = [
    *[(f"{job} held", job, "acme") for job in JOBS if job != "both"],
    *[(f"{job} blocked", job, "acme") for job in JOBS if job != "free"],
    *[(f"{job} due", job, "acme") for job in JOBS],
    ("keyed new", "keyed", "new"),
]
HELD = [name for name, _, _ in RUNS if name.endswith("held")]
WAITING = [name for name, _, _ in RUNS if not name.endswith("held")]
RESET = """
delete from yamlsched.permits; delete from yamlsched.job_failures; delete from yamlsched.job_runs;
delete from yamlsched.operator_actions; delete from yamlsched.gates where name like 'limit/%/%';
update yamlsched.gates set capacity = 1, is_edited = false where name like 'limit/%';
update yamlsched.namespaces set swept_at = '-infinity', repairs = 0;
update yamlsched.job_definitions d
set paused_at = null, paused_by = null,
    overlap = case when job_type in ('serial', 'both') then 'wait' else 'allow' end,
    limit_name = case when job_type in ('pooled', 'both') then 'pool'
                      when job_type = 'keyed' then 'tenants' end,
    limit_by = case when job_type = 'keyed' then '{tenant}' else '{}' end::text[];
"""
INSERT = """
insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, exclusive, scheduled_for,
                                payload, status, attempts, locked_by, started_at, locked_until)
select 'default', d.id, d.job_type, now() - interval '1 hour' + n.nth * interval '1 second', 9, d.overlap = 'wait',
       case when d.schedule is not null then now() - interval '1 day' + n.nth * interval '1 second' end,
       jsonb_build_object('tenant', n.tenant), case when n.name like '%% held' then 'running' else 'queued' end,
       case when n.name like '%% held' then 1 else 0 end, case when n.name like '%% held' then 'held' end, now(),
       case when n.name like '%% held' then now() + interval '1 hour' end
from unnest(%s::text[], %s::text[], %s::text[]) with ordinality as n (name, job, tenant, nth)
join yamlsched.job_definitions d on d.job_type = n.job
order by n.nth
returning id
"""
PLACES = """
insert into yamlsched.gates (namespace, name)
select 'default', g.name from yamlsched.job_runs r join yamlsched.job_definitions d on d.id = r.definition_id
cross join unnest(yamlsched.gates_of(r, now())) g (name) where r.status = 'running' on conflict do nothing;
insert into yamlsched.permits (namespace, name, n, run_id)
select 'default', g.name, 1, r.id from yamlsched.job_runs r join yamlsched.job_definitions d on d.id = r.definition_id
cross join unnest(yamlsched.gates_of(r, now())) g (name) where r.status = 'running';
update yamlsched.job_runs r
set blocked_on = (select (array(select unnest(yamlsched.gates_of(r, now())) order by 1 desc))[1]
                  from yamlsched.job_definitions d where d.id = r.definition_id)
where r.id = any (%s)
"""


class World:
    """The ids of runs and jobs by name."""

    def __init__(self, db: psycopg.Connection[Any]) -> None:
        db.execute(RESET.encode())
        names, jobs, tenants = (list(column) for column in zip(*RUNS, strict=True))
        rows = db.execute(INSERT.encode(), [names, jobs, tenants]).fetchall()
        self.runs = dict(zip(names, (row.id for row in rows), strict=True))
        blocked = [id for name, id in self.runs.items() if name.endswith("blocked")]
        with db.cursor() as cursor:
            for statement in PLACES.split(";\n"):
                cursor.execute(statement.encode(), [blocked] if "%s" in statement else None)
        found = db.execute("select id, job_type from yamlsched.job_definitions").fetchall()
        self.jobs = {row.job_type: row.id for row in found}

    def held(self) -> list[ClaimedRun]:
        return [
            ClaimedRun(self.runs[name], name.split()[0], None, None, 1, 9, "{}", False, 3600.0, "held")
            for name in HELD
        ]  # fmt: skip

    def paused(self) -> list[int]:
        return [self.jobs["pooled"], self.jobs["serial"]]

    def ids(self, names: list[str]) -> list[int]:
        return [self.runs[name] for name in names]


# -- operations, as the product carries them out


def claim(session: Session, world: World) -> None:
    claimed, gated = session.call(claiming.claim, "default", f"c{session.pids}", 50)
    session.call(claiming.claim_gated, "default", claimed, f"g{session.pids}", gated)


def end(*outcomes: Outcome) -> Callable[[Session, World], None]:
    def act(session: Session, world: World) -> None:
        ends = list(zip(world.held(), cycle(outcomes)))
        written = session.call(store.finish, "default", ends)
        if lost := [run for run in world.held() if run.id not in written]:
            session.call(store.unlock, "default", lost)  # the worker ends what was cancelled

    return act


def own_transaction(session: Session, world: World) -> None:
    for run in world.held():
        with session.connection.transaction():
            succeed_in(session.connection, run)
    session.call(store.unlock, "default", world.held())


def cancel(*names: str) -> Callable[[Session, World], None]:
    def act(session: Session, world: World) -> None:
        actions.cancel(session.connection, world.ids([*names]), "ann")
        session.call(store.unlock, "default", world.held())

    return act


def retry(session: Session, world: World) -> None:
    actions.retry(session.connection, world.ids(WAITING), "ann")


def cancel_and_retry(session: Session, world: World) -> None:
    actions.cancel(session.connection, world.ids(HELD), "ann")
    actions.retry(session.connection, world.ids(HELD), "ann")
    session.call(store.unlock, "default", world.held())


def reclaim(session: Session, world: World) -> None:
    session.call(claiming.reclaim, "default", is_complete=False)


def sweep(session: Session, world: World) -> None:
    session.call(claiming.sweep, "default", at_once=True)


def repair(session: Session, world: World) -> None:
    session.call(claiming.repair, "default")


def pause(session: Session, world: World) -> None:
    pauses.pause(session.connection, "default", world.paused(), "ann")


def resume(session: Session, world: World) -> None:
    pauses.resume(session.connection, "default", world.paused(), "ann")


def enqueue(session: Session, world: World) -> None:
    for job in ("pooled", "keyed", "free"):
        session.connection.execute(
            """select from yamlsched.enqueue(%s, '{"tenant": "newer"}')""", [job]
        )


def edit(
    limits: dict[str, dict[str, Any]] = LIMITS, **changes: dict[str, Any]
) -> Callable[[Session, World], None]:
    top = f"limits: {limits}" if limits else ""
    file = a_file(top=top, **{name: changes.get(name, job) for name, job in JOBS.items()})
    loaded = load(file.data, "schedules.yaml", None)
    assert not loaded.diagnostics

    def act(session: Session, world: World) -> None:
        with session.connection.transaction():
            converge.converge(
                session.connection, "default", loaded.jobs, loaded.limits, None, False, False
            )

    return act


class Operation(NamedTuple):
    act: Callable[[Session, World], None]
    before: str = "select"  # what is so before both


AT_ONCE = timedelta(0)
WITHOUT_LIMITS = {
    name: {key: value for key, value in job.items() if key != "limit"} for name, job in JOBS.items()
}
OPERATIONS = {
    "claim": Operation(claim),
    "success": Operation(end(Outcome(Status.SUCCEEDED))),
    "failure, snooze, death": Operation(
        end(
            Outcome(Status.FAILED, delay=AT_ONCE, error="x"),
            Outcome(Status.QUEUED, delay=AT_ONCE, refund=True),
            Outcome(Status.DEAD, error="x"),
        )
    ),
    "own transaction": Operation(own_transaction),
    "cancel of what executes": Operation(cancel(*HELD)),
    "cancel of what waits": Operation(cancel(*WAITING)),
    "retry of what waits": Operation(retry),
    "cancel and retry": Operation(cancel_and_retry),
    "reclaim": Operation(
        reclaim,
        "update yamlsched.job_runs set locked_until = now() - interval '1 second' where locked_by = 'held'",
    ),
    "sweep": Operation(sweep),
    "repair": Operation(repair),
    "pause": Operation(pause),
    "resume": Operation(
        resume,
        "with p as (update yamlsched.job_definitions set paused_at = now() where job_type in ('pooled', 'serial')) "
        "update yamlsched.job_runs set blocked_on = 'closed/' || definition_id "
        "where status = 'queued' and job_type in ('pooled', 'serial')",
    ),
    "raise, overlap allow": Operation(
        edit(RAISED, serial={**JOBS["serial"], "overlap": "allow"})
    ),
    "lower, overlap wait": Operation(
        edit(free={**JOBS["free"], "overlap": "wait"}),
        "update yamlsched.gates set capacity = 2 where name in ('limit/pool', 'limit/tenants')",
    ),
    "removal of limits": Operation(edit({}, **WITHOUT_LIMITS)),
    "enqueue": Operation(enqueue),
}  # fmt: skip

# -- what must be so after both

TOO_MANY = """
select g.name, count(*) from yamlsched.job_runs r join yamlsched.job_definitions d on d.id = r.definition_id
cross join unnest(yamlsched.gates_of(r, now())) g (name)
cross join lateral yamlsched.rooms('default', array[g.name], now()) m
where r.locked_until is not null and g.name not like 'closed/%' group by g.name, m.capacity
having count(*) > greatest(1, m.capacity)  -- a turn has no room while its job is paused
"""
WITHOUT_PERMIT = """
select r.id, g.name from yamlsched.job_runs r join yamlsched.job_definitions d on d.id = r.definition_id
cross join unnest(yamlsched.gates_of(r, now())) g (name)
where r.locked_until is not null and g.name not like 'closed/%'
  and not exists (select from yamlsched.permits p where p.run_id = r.id and p.name = g.name)
"""
LEFT_PERMITS = """
select p.name, p.run_id from yamlsched.permits p
where not exists (select from yamlsched.job_runs r where r.id = p.run_id and r.locked_until is not null)
"""
ELSEWHERE = """
select r.id, r.blocked_on from yamlsched.job_runs r join yamlsched.job_definitions d on d.id = r.definition_id
where yamlsched.waits_elsewhere(r, now())
"""
LOWERS = {"lower, overlap wait"}  # what executes then is not ended


class Stage(NamedTuple):
    db: psycopg.Connection[Any]
    stops: Session
    goes_on: Session

    def stuck(self) -> list[Any]:
        """Return what waits for nothing."""
        return [
            *self.db.execute(WRONGLY_BLOCKED, {"now": self.db.execute("select now()").fetchone()[0]}),  # type: ignore[index]
            *self.db.execute(ELSEWHERE),
        ]  # fmt: skip

    def faults(self, names: tuple[str, str], has_waited: bool) -> Iterator[Any]:
        for session in (self.stops, self.goes_on):
            if session.error is not None:
                yield f"{type(session.error).__name__}: {session.error}"
        if names[1] == "claim" and has_waited:
            yield "a claim waited"
        if not LOWERS.intersection(names):
            yield from self.db.execute(TOO_MANY.encode())
        yield from self.db.execute(WITHOUT_PERMIT.encode())
        yield from self.db.execute(LEFT_PERMITS.encode())
        if stuck := self.stuck():
            yield "without a sweep", stuck
            self.db.execute("select yamlsched.sweep('default', true, clock_timestamp())")
            yield from self.stuck()


@pytest.fixture(scope="module")
def stage(server: str, template: str) -> Iterator[Stage]:
    with (
        temporary_database(server, template) as dsn,
        psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row) as db,
    ):
        db.execute("insert into yamlsched.namespaces values ('default')")
        stage = Stage(db, Session(dsn, stops=True), Session(dsn))
        edit()(stage.goes_on, None)  # type: ignore[arg-type]
        install(db)
        yield stage
        stage.stops.close()
        stage.goes_on.close()


ONE_OF_EACH_KIND = {
    *("claim", "success", "cancel of what waits", "reclaim", "sweep", "pause", "removal of limits")
}


def statements(first: str, second: str) -> Iterator[int]:
    """Return before which statements of the first operation the second one is carried out: before all, or each third.

    Neighbours in the table are of one kind, and begin at different statements: so each statement of an
    operation comes before others of each kind.
    """
    if "claim" in (first, second) or {first, second} <= ONE_OF_EACH_KIND:
        return count(1)
    return count(1 + list(OPERATIONS).index(second) % 3, 3)


PAIRS = [
    pytest.param(
        *(first, second),
        id=f"{first} beside {second}",
        marks=[] if "claim" in (first, second) else [pytest.mark.story],
    )
    for first in OPERATIONS
    for second in OPERATIONS
]


@pytest.mark.parametrize("first, second", PAIRS)
def test_whichever_statement_another_operation_comes_before_no_gate_has_too_many_and_no_run_is_forgotten(
    stage: Stage, first: str, second: str
) -> None:
    faults = {}
    for nth in statements(first, second):
        world = World(stage.db)
        for name in (first, second):
            stage.db.execute(OPERATIONS[name].before.encode())
        has_stopped, has_waited = interleave(
            stage.db,
            (stage.stops, partial(OPERATIONS[first].act, world=world)),
            (stage.goes_on, partial(OPERATIONS[second].act, world=world)),
            nth,
        )
        if found := list(stage.faults((first, second), has_waited)):
            faults[nth] = found
        if not has_stopped:
            break

    assert nth > 1
    assert faults == {}
