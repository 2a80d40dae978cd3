"""When a worker is started: the rule against a model of engines, and against any rows."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamlsched.service.start_rule import (
    DUE_FOR,
    LIVE_FOR,
    MAX_DELAY,
    Decision,
    QueueLoad,
    QueueStart,
    StartState,
    WorkerRow,
    decide,
)

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
HOUR, DAY = 3600.0, 86400.0
GPU = QueueStart(
    queue="gpu",
    command=("true",),
    max_workers=8,
    concurrency=1,
    start_timeout=timedelta(hours=1),
)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def seconds(instant: datetime) -> float:
    return (instant - NOON).total_seconds()


@dataclass
class Model:
    """An engine, its workers and the hosts that tick; time is in seconds.

    ``bursts`` are (when, how many runs). A worker comes ``start`` after its command; with the
    probability ``crash`` it dies at once, so that its row is only noticed as lost. ``hosts`` decide
    one after the other, each ``tick`` seconds: they share a lock.
    """

    bursts: list[tuple[float, int]]
    run: float  # how long a run takes
    start: float = 60
    concurrency: int = 1
    max_workers: int = 20
    idle_exit: float = 60
    start_timeout: float = HOUR
    hosts: int = 3
    tick: float = 1
    crash: float = 0
    is_claimable: bool = True
    until: float = DAY

    now: float = 0
    due: list[float] = field(default_factory=list)  # since when, oldest first
    taken: int = 0  # of ``due``
    done: int = 0
    done_at: float = 0
    waited: float = 0
    starts: int = 0
    refused: int = 0
    peak: int = 0
    peak_wanted: int = 0
    state: StartState = field(default_factory=StartState)
    rows: dict[str, WorkerRow] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)  # of live ones
    idle_since: dict[str, float] = field(default_factory=dict)
    failures: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)  # when starts were made
    _events: list[tuple[float, int, str, Any]] = field(default_factory=list)
    _number: int = 0

    def execute(self) -> Model:
        """Go on until everything is done and all workers have left."""
        chance = random.Random(1)
        for when, count in self.bursts:
            self._at(when, "arrive", count)
        for host in range(self.hosts):
            self._at(host * self.tick / self.hosts, "decide", None)
        total = sum(count for _, count in self.bursts)
        while self._events:
            self.now, _, name, value = heapq.heappop(self._events)
            if self.now > self.until:
                break
            if self.done == total and not self.busy and name == "decide":
                break
            getattr(self, f"_{name}")(value, chance)
        return self

    def _at(self, when: float, name: str, value: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, name, value))

    def _arrive(self, count: int, _: random.Random) -> None:
        self.due += [self.now] * count
        self._feed()

    def _feed(self) -> None:
        """Give what is due to workers that have room."""
        for name, busy in self.busy.items() if self.is_claimable else ():
            count = min(self.concurrency - busy, len(self.due) - self.taken)
            if count <= 0:
                continue
            self.waited += sum(
                self.now - since for since in self.due[self.taken : self.taken + count]
            )
            self.taken += count
            self.busy[name] += count
            self.rows[name] = replace(self.rows[name], runs=self.rows[name].runs + count)
            for _ in range(count):
                self._at(self.now + self.run, "end", name)

    def _end(self, name: str, _: random.Random) -> None:
        self.busy[name] -= 1
        self.done, self.done_at = self.done + 1, self.now
        if not self.busy[name]:
            self.idle_since[name] = self.now
            self._at(self.now + self.idle_exit, "leave", name)
        self._feed()

    def _come(self, name: str, chance: random.Random) -> None:
        row = self.rows[name]
        if len(self.busy) >= self.max_workers:
            self.refused += 1
            self.rows[name] = replace(row, ended_at=at(self.now))
            return
        self.rows[name] = replace(
            row, reported_at=at(self.now), seen_at=at(self.now), ended_at=None, error=None
        )
        if chance.random() < self.crash:
            return
        self.busy[name], self.idle_since[name] = 0, self.now
        self.peak = max(self.peak, len(self.busy))
        self._at(self.now + self.idle_exit, "leave", name)
        self._feed()

    def _leave(self, name: str, _: random.Random) -> None:
        is_idle = name in self.busy and not self.busy[name]
        if is_idle and self.now - self.idle_since[name] >= self.idle_exit - 1e-6:
            del self.busy[name]
            self.rows[name] = replace(self.rows[name], ended_at=at(self.now))

    def _decide(self, _: None, chance: random.Random) -> None:
        now = at(self.now)
        for name in self.busy:  # they report each 15 s
            self.rows[name] = replace(self.rows[name], seen_at=now)
        shown = [
            row
            for row in self.rows.values()
            if row.ended_at is None
            or self.state.decided_at is None
            or row.ended_at > self.state.decided_at
        ]
        settings = replace(GPU, max_workers=self.max_workers, concurrency=self.concurrency)
        decision = decide(now, settings, self.state, shown, self._load())
        if decision.state.failed_starts > self.state.failed_starts:
            self.failures.append(self.now)
        self.state = decision.state
        for name, error in decision.lost.items():
            self.rows[name] = replace(self.rows[name], ended_at=now, error=error)
        for _ in range(decision.count):
            self.starts += 1
            self.begun.append(self.now)
            name = f"gpu-{self.starts}"
            self.rows[name] = WorkerRow(
                id=name, requested_at=now, start_by=at(self.now + self.start_timeout)
            )
            self._at(self.now + self.start, "come", name)
        self.peak_wanted = max(
            self.peak_wanted, sum(row.ended_at is None for row in self.rows.values())
        )
        self.rows = {
            name: row
            for name, row in self.rows.items()
            if row.ended_at is None or row.ended_at >= now or row.reported_at is None
        }
        self._at(self.now + self.tick, "decide", None)

    def _load(self) -> QueueLoad:
        waiting = self.due[self.taken :]
        limit = self.max_workers * self.concurrency
        due = sum(since <= self.now - 10 for since in waiting[:limit])
        oldest = at(waiting[0]) if waiting else None
        return QueueLoad(runs=due + sum(self.busy.values()), oldest_due_at=oldest)

    @property
    def mean_wait(self) -> float:
        return self.waited / self.done


def test_a_busy_worker_does_not_cancel_a_run_that_waits() -> None:
    """One run of an hour, and five more after five minutes: with due runs alone it was 9 min."""
    model = Model(bursts=[(0, 1), (300, 5)], run=HOUR, start=1, max_workers=8).execute()
    assert model.starts == 6
    assert model.mean_wait < 15
    assert model.done_at < 66 * 60


@pytest.mark.parametrize("start", [1, 60, 1800])
@pytest.mark.parametrize(("count", "run"), [(1, 1), (1, 3600), (100, 1), (100, 60), (100, 3600)])
def test_a_burst_starts_no_worker_in_vain_and_never_more_than_the_maximum(
    start: float, count: int, run: float
) -> None:
    model = Model(bursts=[(0, count)], run=run, start=start, tick=max(1, run / 120)).execute()
    assert model.done == count
    assert model.starts == min(count, 20)
    assert model.peak_wanted <= 20
    assert model.refused == 0


def test_ten_thousand_runs_take_as_long_as_twenty_workers_need() -> None:
    model = Model(bursts=[(0, 10_000)], run=60, tick=30).execute()
    assert (model.done, model.starts, model.peak_wanted) == (10_000, 20, 20)
    assert model.done_at < 10_000 / 20 * 60 + 120


def test_three_hosts_start_what_one_would() -> None:
    starts = [Model(bursts=[(0, 100)], run=60, hosts=hosts).execute().starts for hosts in (1, 3)]
    assert starts == [20, 20]


@pytest.mark.parametrize("start_timeout", [300, 600])
def test_an_engine_slower_than_start_timeout_gets_one_probe_at_a_time(start_timeout: int) -> None:
    """Half an hour until a worker comes. Without delay and probe it was 120 starts."""
    model = Model(
        bursts=[(0, 100)], run=600, start=1800, start_timeout=start_timeout, tick=3
    ).execute()
    assert model.done == 100
    assert model.starts <= 26
    assert model.peak <= 20


def test_workers_that_crash_at_once_are_started_each_ten_minutes() -> None:
    """Without the delay it was 6,000 starts in ten minutes."""
    model = Model(bursts=[(0, 100)], run=60, start=1, crash=1, tick=10).execute()
    assert model.done == 0
    assert 120 < model.starts < 20 + DAY / MAX_DELAY.total_seconds() + 10


def test_one_start_in_ten_that_crashes_costs_minutes() -> None:
    models = [
        Model(bursts=[(0, 1000)], run=60, crash=crash, max_workers=20).execute()
        for crash in (0, 0.1)
    ]
    assert [model.done for model in models] == [1000, 1000]
    assert models[1].done_at < models[0].done_at + 10 * 60


def test_workers_that_can_claim_nothing_are_started_each_ten_minutes() -> None:
    model = Model(bursts=[(0, 100)], run=60, is_claimable=False, tick=10).execute()
    assert model.starts <= 240
    assert model.state.failed_starts > 100


def test_concurrency_rounds_up() -> None:
    model = Model(bursts=[(0, 100)], run=60, concurrency=8).execute()
    assert (model.starts, model.done) == (13, 100)


def test_a_worker_stays_for_runs_that_come_more_often_than_it_leaves() -> None:
    bursts = [(i * 120.0, 1) for i in range(120)]
    starts = {
        idle: Model(bursts=bursts, run=10, idle_exit=idle, tick=3, until=5 * HOUR).execute().starts
        for idle in (30, 180)
    }
    assert starts == {30: 120, 180: 1}


# -- any rows ------------------------------------------------------------------------------------

INSTANTS = st.integers(-7200, 0).map(at)


@st.composite
def workers(draw: st.DrawFn) -> WorkerRow:
    is_requested = draw(st.booleans())
    is_reported = not is_requested or draw(st.booleans())
    ended_at = draw(st.none() | INSTANTS)
    requested_at = draw(INSTANTS) if is_requested else None
    timeout = draw(st.sampled_from([timedelta(minutes=1), timedelta(hours=1)]))
    return WorkerRow(
        id=draw(st.uuids()).hex,
        requested_at=requested_at,
        start_by=None if requested_at is None else requested_at + timeout,
        reported_at=draw(INSTANTS) if is_reported else None,
        seen_at=draw(INSTANTS) if is_reported else None,
        leaving_at=draw(st.none() | INSTANTS) if is_reported else None,
        ended_at=ended_at,
        runs=draw(st.integers(0, 3)) if is_reported else 0,
        error=draw(st.sampled_from([None, "exit code 1"])) if ended_at else None,
    )


@st.composite
def states(draw: st.DrawFn) -> StartState:
    failed = draw(st.integers(0, 12))
    return StartState(
        failed_starts=failed,
        failed_at=draw(INSTANTS) if failed else None,
        next_start_at=draw(st.integers(-900, 900).map(at)) if failed else None,
        decided_at=draw(st.none() | INSTANTS),
    )


SETTINGS = st.builds(
    lambda **values: replace(GPU, **values),
    max_workers=st.integers(1, 8),
    concurrency=st.integers(1, 4),
)
LOADS = st.builds(QueueLoad, runs=st.integers(0, 50), oldest_due_at=st.none() | INSTANTS)
ROWS = st.lists(workers(), max_size=10)


def left_over(rows: list[WorkerRow], decision: Decision) -> list[WorkerRow]:
    return [row for row in rows if row.ended_at is None and row.id not in decision.lost]


@given(SETTINGS, states(), ROWS, LOADS)
def test_live_and_starting_workers_are_never_more_than_the_maximum(
    settings: QueueStart, state: StartState, rows: list[WorkerRow], load: QueueLoad
) -> None:
    decision = decide(NOON, settings, state, rows, load)
    started = [row for row in left_over(rows, decision) if row.requested_at]
    assert decision.count >= 0
    assert decision.count == 0 or len(started) + decision.count <= settings.max_workers


@given(SETTINGS, states(), ROWS, LOADS)
def test_no_more_are_started_than_there_are_runs_for(
    settings: QueueStart, state: StartState, rows: list[WorkerRow], load: QueueLoad
) -> None:
    decision = decide(NOON, settings, state, rows, load)
    helping = [row for row in left_over(rows, decision) if row.leaving_at is None]
    assert decision.count <= max(0, math.ceil(load.runs / settings.concurrency) - len(helping))


@given(SETTINGS, states(), ROWS, LOADS)
def test_after_a_failed_start_one_is_started_at_a_time_and_none_before_its_delay(
    settings: QueueStart, state: StartState, rows: list[WorkerRow], load: QueueLoad
) -> None:
    decision = decide(NOON, settings, state, rows, load)
    if decision.state.failed_starts:
        assert decision.count <= 1
        if decision.count:
            assert decision.state.next_start_at is not None
            assert decision.state.next_start_at <= NOON
            assert not any(row.is_unproven for row in left_over(rows, decision))
    if decision.state.failed_starts > state.failed_starts:
        assert decision.count == 0


@given(SETTINGS, states(), ROWS, LOADS)
def test_failures_end_only_with_a_worker_that_came_later_and_executed_a_run(
    settings: QueueStart, state: StartState, rows: list[WorkerRow], load: QueueLoad
) -> None:
    decision = decide(NOON, settings, state, rows, load)
    if decision.state.failed_starts < state.failed_starts:
        assert state.failed_at is not None
        assert any(
            row.requested_at and row.runs and row.reported_at and row.reported_at > state.failed_at
            for row in rows
        )


@given(SETTINGS, states(), ROWS, LOADS)
def test_the_same_rows_count_as_a_failed_start_once(
    settings: QueueStart, state: StartState, rows: list[WorkerRow], load: QueueLoad
) -> None:
    first = decide(NOON, settings, state, rows, load)
    written = [
        replace(row, ended_at=NOON, error=first.lost[row.id]) if row.id in first.lost else row
        for row in rows
    ]
    again = decide(NOON, settings, first.state, written, load)
    assert not again.lost
    assert not again.failed
    assert again.state.failed_starts <= first.state.failed_starts


@given(SETTINGS, states(), ROWS, LOADS)
def test_a_worker_that_was_seen_within_a_minute_is_never_lost(
    settings: QueueStart, state: StartState, rows: list[WorkerRow], load: QueueLoad
) -> None:
    decision = decide(NOON, settings, state, rows, load)
    for row in rows:
        if row.id in decision.lost and row.reported_at is not None:
            assert row.seen_at is not None
            assert row.seen_at <= NOON - LIVE_FOR
        if row.id in decision.lost and row.reported_at is None:
            assert row.start_by is not None
            assert row.start_by <= NOON


# -- what is a failed start ------------------------------------------------------------------------

BUSY = QueueLoad(runs=3, oldest_due_at=at(-600))
BEFORE = StartState(decided_at=at(-1))


def outcome(row: WorkerRow, load: QueueLoad = BUSY) -> tuple[int, str | None]:
    decision = decide(NOON, GPU, BEFORE, [row], load)
    errors = {**decision.lost, **decision.failed}
    return decision.state.failed_starts, errors.get(row.id)


def test_a_command_that_failed_is_a_failed_start() -> None:
    row = WorkerRow(id="a", requested_at=at(-3), ended_at=NOON, error="exit code 1: no partition")
    assert outcome(row) == (1, "exit code 1: no partition")


def test_a_worker_that_was_refused_is_no_failed_start() -> None:
    assert outcome(WorkerRow(id="a", requested_at=at(-3), ended_at=NOON)) == (0, None)


def test_a_worker_that_is_lost_with_its_first_run_unexecuted_is_a_failed_start() -> None:
    row = WorkerRow(id="a", requested_at=at(-99), reported_at=at(-90), seen_at=at(-61))
    assert outcome(row) == (1, "lost: last seen at 2026-01-14T11:58:59Z")
    assert outcome(replace(row, runs=1)) == (0, "lost: last seen at 2026-01-14T11:58:59Z")
    assert outcome(replace(row, requested_at=None))[0] == 0  # somebody else has started it


def test_a_worker_that_leaves_without_a_run_has_failed_only_if_runs_were_due_then() -> None:
    row = WorkerRow(
        id="a", requested_at=at(-400), reported_at=at(-390), seen_at=NOON, ended_at=NOON
    )
    assert outcome(row) == (1, "it exited without a run although runs were due")
    assert outcome(row, QueueLoad()) == (0, None)
    is_new = QueueLoad(runs=1, oldest_due_at=NOON - DUE_FOR + timedelta(seconds=1))
    assert outcome(row, is_new) == (0, None)


def test_many_starts_that_fail_at_once_are_one_failure() -> None:
    rows = [
        WorkerRow(id=str(n), requested_at=at(-3), ended_at=NOON, error="exit code 1")
        for n in range(8)
    ]
    state = decide(NOON, GPU, BEFORE, rows, BUSY).state
    assert (state.failed_starts, state.next_start_at) == (1, at(10))
