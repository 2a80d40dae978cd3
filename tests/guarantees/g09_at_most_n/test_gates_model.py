"""Any history of claims, ends, actions and edits beside a model of gates: a claim starts what the model lets start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from support.claiming import WRONGLY_BLOCKED, set_limit
from support.database import delete_rows
from support.rows import a_job, a_run
from support.steps import Session
from yamlsched.act import pause as pauses
from yamlsched.act import runs as actions
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

Db = psycopg.Connection[Any]
NOW = datetime(2026, 1, 14, 12, tzinfo=UTC)
SECOND, MINUTE, LEASE = timedelta(seconds=1), timedelta(minutes=1), timedelta(minutes=2)
KINDS = {  # overlap, limit
    "plain": ("allow", None),
    "serial": ("wait", None),
    "pooled": ("allow", "pool"),
    "both": ("wait", "pool"),
    "keyed": ("allow", "tenants"),
}
ENDS = {
    "success": Outcome(Status.SUCCEEDED),
    "failure": Outcome(Status.FAILED, delay=MINUTE, error="x"),
    "snooze": Outcome(Status.QUEUED, delay=MINUTE, refund=True),
    "release": Outcome(Status.QUEUED, refund=True),
    "death": Outcome(Status.DEAD, error="x"),
}


@dataclass
class Run:
    job: str
    due: datetime
    is_slot: bool
    tenant: int
    state: str = "waits"  # executes, is over
    is_alive: bool = False  # its handler executes, also after a cancel, and a retry

    def gates(self) -> list[str]:
        overlap, limit = KINDS[self.job]
        turn = [f"turn of {self.job}"] if self.is_slot and overlap == "wait" else []
        by = f" of {self.tenant}" if limit == "tenants" else ""
        return turn + ([f"{limit}{by}"] if limit else [])


@dataclass
class Model:
    """At each gate at most so many handlers are alive, and no handler of a closed job starts."""

    capacity: dict[str, int] = field(default_factory=lambda: {"pool": 2, "tenants": 1})
    runs: dict[int, Run] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def has_room(self, gate: str) -> bool:
        alive = sum(gate in run.gates() for run in self.runs.values() if run.is_alive)
        return alive < self.capacity.get(gate.split(" ")[0], 1)

    def may_start(self, run: Run, now: datetime) -> bool:
        can_start = run.state == "waits" and not run.is_alive and run.due <= now
        return can_start and run.job not in self.closed and all(map(self.has_room, run.gates()))

    def start(self, taken: list[ClaimedRun], now: datetime) -> None:
        for one in taken:
            run = self.runs[one.id]
            assert self.may_start(run, now), f"run {one.id} of {run.job} may not start"
            run.state, run.is_alive = "executes", True

    def end(self, run: Run, outcome: Outcome, now: datetime) -> None:
        run.is_alive = False
        run.state = "waits" if outcome.status in (Status.FAILED, Status.QUEUED) else "is over"
        run.due = run.due if outcome.delay is None else now + outcome.delay


class History:
    """The product beside the model: sessions, and the claims whose handlers are alive."""

    def __init__(self, session: Session) -> None:
        self.session, self.db, self.model = session, session.connection, Model()
        self.now, self.claims, self.held = NOW, 0, list[ClaimedRun]()
        delete_rows(self.db)
        self.db.execute("insert into yamlsched.namespaces values ('default')")
        for name, number in self.model.capacity.items():
            self.db.execute(
                "insert into yamlsched.gates values ('default', %s, %s)", [f"limit/{name}", number]
            )
        self.jobs = {
            name: a_job(
                *(self.db, name),
                schedule=None,
                overlap=overlap,
                limit_name=limit,
                limit_by=["tenant"] if limit == "tenants" else [],
            )
            for name, (overlap, limit) in KINDS.items()
        }

    def act(self, action: str, which: int) -> None:
        self.now += SECOND
        job = list(KINDS)[which % len(KINDS)]
        if action == "create":
            is_slot = KINDS[job][0] == "wait" and which % 4 > 0
            self.create(Run(job, self.now, is_slot, which // 5 % 2))
        elif action == "claim":
            self.claim(1 + which % 4)
        elif action in ENDS and self.held:
            self.end(self.held.pop(which % len(self.held)), ENDS[action])
        elif action == "loss of the worker":
            self.lose()
        elif action in ("cancel", "retry"):
            self.change(action, sorted(self.model.runs)[which : which + 2])
        elif action == "pause":
            pauses.pause(self.db, "default", [self.jobs[job]], "ann", now=self.now)
            self.model.closed.add(job)
        elif action == "resume":
            pauses.resume(self.db, "default", [self.jobs[job]], "ann", now=self.now)
            self.model.closed.discard(job)
        elif action == "limit":
            self.set_limit("pool" if which % 2 else "tenants", 1 + which % 3)

    def create(self, run: Run) -> None:
        values: dict[str, Any] = {"exclusive": run.is_slot, "max_attempts": 1000}
        values["scheduled_for"] = run.due if run.is_slot else None
        id = a_run(
            *(self.db, self.jobs[run.job]),
            run_at=run.due,
            payload=Jsonb({"tenant": run.tenant}),
            **values,
        )
        self.model.runs[id] = run

    def claim(self, limit: int) -> int:
        self.claims += 1
        claimed, gated = self.session.call(
            claiming.claim, "default", f"c{self.claims}", limit, now=self.now
        )
        self.session.call(
            *(claiming.claim_gated, "default", claimed, f"g{self.claims}", gated), now=self.now
        )
        self.model.start(claimed.runs, self.now)
        self.held += claimed.runs
        return len(claimed.runs) + len(gated)

    def end(self, run: ClaimedRun, outcome: Outcome) -> None:
        if self.session.call(store.finish, "default", [(run, outcome)], now=self.now):
            self.model.end(self.model.runs[run.id], outcome, self.now)
        else:  # it was cancelled, and perhaps retried
            self.session.call(store.unlock, "default", [run], now=self.now)
            self.model.runs[run.id].is_alive = False

    def lose(self) -> None:
        self.now += 2 * LEASE
        self.session.call(claiming.reclaim, "default", now=self.now)
        for run in self.model.runs.values():
            run.state = "waits" if run.state == "executes" else run.state
            run.is_alive = False
        self.held.clear()

    def change(self, action: str, ids: list[int]) -> None:
        act = actions.cancel if action == "cancel" else actions.retry
        for id, result in zip(ids, act(self.db, ids, "ann", now=self.now), strict=True):
            run = self.model.runs[id]
            if result.changed and action == "cancel":
                run.state = "is over"
            elif result.changed:
                run.due = min(run.due, self.now) if run.state == "waits" else self.now
                run.state = "waits"

    def set_limit(self, name: str, number: int) -> None:
        self.model.capacity[name] = number
        set_limit(self.db, name, number, self.now)

    def check(self) -> None:
        """The product holds what is alive in the model, and nothing waits for nothing."""
        rows = self.db.execute(
            "select id from yamlsched.job_runs where locked_until is not null"
        ).fetchall()
        assert {row.id for row in rows} == {id for id, r in self.model.runs.items() if r.is_alive}
        assert self.db.execute(WRONGLY_BLOCKED, {"now": self.now}).fetchall() == []

    def finish(self) -> None:
        """Claim until nothing starts, end it, and so on: without a sweep, everything that waits starts."""
        for job in KINDS:
            self.act("resume", list(KINDS).index(job))
        while True:
            self.now += 2 * MINUTE
            while self.claim(20):
                pass
            for id, run in self.model.runs.items():
                assert not self.model.may_start(run, self.now), f"run {id} of {run.job} was left"
            if not self.held:
                return
            self.end(self.held.pop(), ENDS["success"])


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    session = Session(dsn)
    yield session
    session.close()


ACTIONS = [
    *["create", "create", "claim", "claim", *ENDS],
    *["loss of the worker", "cancel", "retry", "pause", "resume", "limit"],
]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 19)), max_size=30))
def test_after_any_history_a_claim_starts_what_may_start_and_all_of_it(
    session: Session, steps: list[tuple[str, int]]
) -> None:
    history = History(session)
    for action, which in steps:
        history.act(action, which)
        if action != "loss of the worker":  # a reclaim offers with the next claim
            history.check()

    history.finish()

    waiting = "select count(*) from yamlsched.job_runs where finished_at is null"
    assert session.connection.execute(waiting.encode()).fetchone() == (0,)
    assert session.connection.execute("select * from yamlsched.permits").fetchall() == []
