"""Random stories of jobs, against a small model of the rules in docs/notifications.md. Two hosts send at each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.rows import a_job, a_run
from yamlsched.act import notes
from yamlsched.db.query import load
from yamlsched.extras.notify import sending
from yamlsched.extras.notify.sending import Message

FIRST_SLOT = datetime(2026, 1, 14, 2, tzinfo=UTC)
DAY_MINUTES = 24 * 60
TARGETS = {"ops": {"dead", "late", "recovered", "problem"}, "nights": {"dead"}}
SPANS = {"a minute": 1, "ten minutes": 10, "an hour": 60, "ten hours": 600}
STEPS = ("die", "die", "succeed", "retry", "be late", "start", "pause", "resume", "disable", "enable", "die enqueued")
MOVES = {
    "notifications": ("dead_at", "late_since", "active_at", "ended_at", "quiet_until", "due_at"),
    "notify_targets": ("next_at", "failing_since"),
    "job_runs": ("finished_at", "dead_at", "failed_at", "run_at", "created_at"),
}
Told = tuple[str, frozenset[tuple[str, tuple[str, ...]]]]
"""A message: the target, and each job with what is said of it."""


@dataclass
class State:
    """What one target knows of one job, and what is to be told."""

    told: set[str] = field(default_factory=set)  # since a day without trouble
    pause: int = 60
    quiet_until: int = 0
    is_told: bool = False
    dead_runs: int = 0
    died: int | None = None  # the slot that died last
    died_at: int = 0
    slot: int = -1  # the latest one in trouble; a success of it or of a later one is the recovery
    is_late: bool = False
    has_recovered: bool = False
    trouble_at: int = 0

    def start(self, now: int) -> None:
        self.trouble_at, self.has_recovered = now, False


@dataclass
class Job:
    """A job with slots (the latest and the state of its run), or one whose runs are enqueued."""

    id: int
    has_slots: bool
    slot: int = -1
    run: str = "none"  # dead, succeeded, retried, late, running
    run_id: int = 0
    is_away: bool = False  # paused or disabled
    states: dict[str, State] = field(default_factory=dict)

    def is_dead(self, state: State, now: int) -> bool:
        if not self.has_slots:
            return state.died is not None and now - state.died_at < DAY_MINUTES
        return state.died == self.slot and self.run == "dead"


class Model:
    """The rules. ``now`` is in minutes."""

    def __init__(self, jobs: dict[str, Job]) -> None:
        self.jobs, self.now = jobs, 0
        self.next_at = dict.fromkeys(TARGETS, 0)

    def die(self, job: Job) -> None:
        for target in TARGETS if not job.is_away else ():
            state = job.states.setdefault(target, State())
            state.start(self.now)
            state.dead_runs += 1
            state.died, state.died_at = job.slot, self.now
            state.slot = max(state.slot, job.slot)

    def messages(self) -> set[Told]:
        """Return what is sent now, and remember that it was."""
        return {message for target in TARGETS for message in self._messages(target)}

    def _messages(self, target: str) -> list[Told]:
        due = []
        for name, job in self.jobs.items():
            self._settle(job, target)
            state = job.states.get(target)
            if state is not None and self._is_due(job, state, target):
                due.append((name, job, state))
        if not due or self.now < self.next_at[target]:
            return []
        self.next_at[target] = self.now + 1
        return [(target, frozenset((name, self._tell(job, state)) for name, job, state in due))]

    def _settle(self, job: Job, target: str) -> None:
        if job.is_away:
            job.states.pop(target, None)
        is_late = job.run == "late" and not job.is_away and "late" in TARGETS[target]
        if is_late and not job.states.setdefault(target, State()).is_late and job.states[target].slot < job.slot:
            job.states[target].start(self.now)
            job.states[target].is_late, job.states[target].slot = True, job.slot
        if (state := job.states.get(target)) is None:
            return
        state.is_late &= is_late
        is_over = self.now - state.trouble_at >= DAY_MINUTES
        if is_over and (state.has_recovered or not state.is_told or not job.has_slots):
            del job.states[target]
            return
        if is_over:
            state.told, state.pause = set(), 60
        if job.run == "succeeded" and job.has_slots and job.slot >= state.slot and not state.has_recovered:
            state.has_recovered, state.dead_runs = True, 0
            state.is_told &= "recovered" in TARGETS[target]
        elif not state.has_recovered and (state.is_late or job.is_dead(state, self.now)):
            state.trouble_at = self.now

    def _is_due(self, job: Job, state: State, target: str) -> bool:
        if state.has_recovered:
            return state.is_told
        news = {"dead"} if state.dead_runs else set()
        news |= {"late"} if state.is_late else set()
        is_so = bool(news) or job.is_dead(state, self.now)
        return bool(news - state.told) or (is_so and self.now >= state.quiet_until)

    def _tell(self, job: Job, state: State) -> tuple[str, ...]:
        if state.has_recovered:
            state.is_told = False
            return ("recovered",)
        events = ["dead"] * (state.dead_runs > 0 or job.is_dead(state, self.now)) + ["late"] * state.is_late
        state.told |= set(events)
        state.is_told, state.dead_runs = True, 0
        state.quiet_until, state.pause = self.now + state.pause, min(2 * state.pause, DAY_MINUTES)
        return tuple(events)


class World:
    """The database, in which the same happens."""

    def __init__(self, db: psycopg.Connection[Any], dsn: str, sent: list[Message]) -> None:
        self.db, self.dsn, self.sent = db, dsn, sent
        for table in ("notify_targets", "job_failures", "job_runs", "job_definitions", "gates"):
            db.execute(f"delete from yamlsched.{table}".encode())
        for name, events in TARGETS.items():
            db.execute(
                "insert into yamlsched.notify_targets (namespace, name, url_env, events) "
                "values ('default', %s, 'A_URL', %s)",
                [name, sorted(events)],
            )
        targets = list(TARGETS)
        self.jobs = {
            "backup": Job(a_job(db, "backup", notify=targets), has_slots=True),
            "invoice": Job(a_job(db, "invoice", notify=targets), has_slots=True),
            "mail": Job(a_job(db, "mail", notify=targets, schedule=None, next_slot_at=None), has_slots=False),
        }
        self.model = Model(self.jobs)

    def step(self, step: str, job: Job) -> bool:
        """Let something happen to a job, if it can happen; return whether it did."""
        is_open = job.run in ("retried", "late", "running")
        if step == "die enqueued" and not job.has_slots:
            self._dead(job, a_run(self.db, job.id, "dead"))
        elif not job.has_slots and step in ("die", "succeed", "retry", "be late", "start"):
            return False
        elif step == "die" and is_open:
            if job.run == "late":
                return False
            ends = "status = 'dead', dead_at = now(), finished_at = now(), failed_at = now()"
            self._end(job, ends)
            self._dead(job, job.run_id)
        elif step == "die":
            self._next(job, "dead")
            self._dead(job, job.run_id)
        elif step == "succeed" and is_open:
            self._end(job, "status = 'succeeded', finished_at = now()")
            job.run = "succeeded"
        elif step == "succeed":
            self._next(job, "succeeded")
        elif step == "retry" and job.run == "dead":
            again = "status = 'queued', dead_at = null, finished_at = null, run_at = now() + interval '30 days'"
            self.db.execute(f"update yamlsched.job_runs set {again} where id = %s".encode(), [job.run_id])
            job.run = "retried"
        elif step == "be late" and not is_open and not job.is_away:
            due = "(now() - interval '20 minutes')"
            self._next(job, "queued", run_at=due, created_at=due, exclusive=True)
            job.run = "late"
        elif step == "start" and job.run == "late":
            lease = "locked_by = 'w:1:a', locked_until = now() + interval '30 days', attempts = 1, started_at = now()"
            self.db.execute(
                f"update yamlsched.job_runs set status = 'running', {lease} where id = %s".encode(), [job.run_id]
            )
            job.run = "running"
        elif step in ("pause", "disable") and not job.is_away and job.run != "late":
            change = "paused_at = now()" if step == "pause" else "enabled = false"
            self._change(job, change, is_away=True)
        elif step in ("resume", "enable") and job.is_away:
            self._change(job, "paused_at = null, enabled = true", is_away=False)
        else:
            return False
        return True

    def _next(self, job: Job, status: str, **values: Any) -> None:
        job.slot += 1
        slot = FIRST_SLOT + timedelta(days=job.slot)
        job.run, job.run_id = status, a_run(self.db, job.id, status, scheduled_for=slot, **values)

    def _end(self, job: Job, change: str) -> None:
        leaves = "locked_until = null, exclusive_of = null, started_at = coalesce(started_at, now()), attempts = 1"
        change = (
            f"update yamlsched.job_runs set {change}, {leaves}, locked_by = coalesce(locked_by, 'w:1:a') where id = %s"
        )
        self.db.execute(change.encode(), [job.run_id])

    def _dead(self, job: Job, run: int) -> None:
        self.db.execute(load("notify")["note_dead"], {"namespace": "default", "ids": [run], "now": None})
        job.run, job.run_id = "dead", run
        self.model.die(job)

    def _change(self, job: Job, change: str, is_away: bool) -> None:
        self.db.execute(f"update yamlsched.job_definitions set {change} where id = %s".encode(), [job.id])
        job.is_away = is_away

    def later(self, minutes: int) -> None:
        for table, columns in MOVES.items():
            moved = ", ".join(f"{name} = {name} - %(span)s" for name in columns)
            self.db.execute(f"update yamlsched.{table} set {moved}".encode(), {"span": timedelta(minutes=minutes)})
        self.model.now += minutes

    def send(self) -> list[Told]:
        self.sent.clear()
        notes.settle(self.db, "default")
        sending.send_due(self.dsn, "default", ["A_URL"], 60)
        return [
            (message.target, frozenset((note.subject, tuple(note.events)) for note in message.notes))
            for message in self.sent
        ]


@pytest.fixture
def a_world(db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    sent: list[Message] = []

    def send_one(message: Message, deadline: float) -> str:
        is_first = not sent
        sent.append(message)
        if is_first:
            sending.send_due(dsn, "default", ["A_URL"], 60)  # another host sends, too, while this is on its way
        return ""

    monkeypatch.setattr(sending, "send_one", send_one)
    monkeypatch.setenv("A_URL", "json://127.0.0.1/secret")
    return lambda: World(db, dsn, sent)


STEP = st.one_of(
    st.tuples(st.sampled_from(STEPS), st.sampled_from(["backup", "invoice"])),
    st.tuples(st.sampled_from(["die enqueued", "pause", "resume"]), st.just("mail")),
    st.tuples(st.sampled_from(list(SPANS)), st.just("")),
)


def story(*steps: str, job: str = "backup") -> list[tuple[str, str]]:
    return [(step, "" if step in SPANS else job) for step in steps]


@example(steps=story("die", *["an hour"] * 4, "ten hours", "ten hours", "ten hours", "ten hours", "an hour"))
@example(steps=story("die", "succeed", "die", "a minute", "succeed", "an hour", "die", *["ten hours"] * 3, "die"))
@example(steps=[*story("die"), *story("be late", job="invoice"), *story("a minute", "retry", "succeed", "a minute")])
@example(steps=story("be late", "a minute", "start", "an hour", "die", "a minute", "pause", "resume", "die", "an hour"))
@example(steps=story("die enqueued", *["an hour"] * 3, "die enqueued", *["ten hours"] * 4, job="mail"))
@example(steps=[*story("die"), *story("die enqueued", "die enqueued", job="mail"), *story("be late", "an hour")])
@settings(max_examples=15)
@given(steps=st.lists(STEP, min_size=5, max_size=25))
def test_each_target_is_told_what_the_rules_say_and_nothing_else(
    a_world: Callable[[], World], steps: list[tuple[str, str]]
) -> None:
    world = a_world()
    for number, (step, name) in enumerate(steps):
        if step in SPANS:
            world.later(SPANS[step])
        elif not world.step(step, world.jobs[name]):
            continue

        sent = world.send()

        story = [*steps[:number], (step, name)]
        assert len(sent) == len(set(sent)), story
        assert set(sent) == world.model.messages(), story
