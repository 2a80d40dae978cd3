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

from support.notes import NOTE_TIMES
from support.rows import a_job, a_run
from yamlsched.act import notes
from yamlsched.extras.notify import sending
from yamlsched.extras.notify.message import SEVERITY, Note
from yamlsched.extras.notify.sending import Message

FIRST_SLOT = datetime(2026, 1, 14, 2, tzinfo=UTC)
DAY_MINUTES = 24 * 60
TARGETS = {
    "ops": {"dead", "late", "failing", "recovered", "problem"},
    "nights": {"dead"},
    "delays": {"late", "recovered"},
    "ends": {"dead", "recovered"},
}
SPANS = {"a minute": 1, "ten minutes": 10, "an hour": 60, "ten hours": 600}
STEPS = ("die", "die", "succeed", "succeed", "fail", "retry", "be late", "start")
AWAY = ("pause", "resume", "disable", "enable")
MOVES = {
    "notifications": NOTE_TIMES,
    "notify_targets": ("next_at", "failing_since"),
    "job_runs": ("finished_at", "dead_at", "failed_at", "run_at", "created_at"),
}
Told = tuple[str, frozenset[tuple[str, tuple[str, ...]]]]
"""A message: the target, and each job with what is said of it."""


@dataclass
class State:
    """What one target knows of one job, and what is to be sent."""

    told: set[str] = field(default_factory=set)  # since the last recovery that was sent
    pause: int = 60
    quiet_until: int = 0
    dead_runs: int = 0  # that were not sent
    died: int | None = None  # the slot that died last
    died_at: int = 0
    slot: int = -1  # the latest one in trouble; a success of it or of a later one is the recovery
    is_late: bool = False
    ended_at: int | None = None
    recovered_at: int | None = None
    tells_end_at: int = 0

    def start(self, now: int) -> None:
        if self.ended_at is not None and not self.told:
            recovered_at = self.recovered_at
            self.__dict__.update(State(recovered_at=recovered_at).__dict__)
        self.ended_at = None

    def end(self, now: int) -> None:
        has_recovered_before = self.recovered_at is not None and now - self.recovered_at < 60
        self.tells_end_at = now + 60 if has_recovered_before else now
        self.ended_at = self.recovered_at = now


@dataclass
class Job:
    """A job with slots (the latest and the state of its run), or one whose runs are enqueued."""

    id: int
    has_slots: bool
    slot: int = -1
    run: str = "none"  # dead, succeeded, retried, failing, late, running
    run_id: int = 0
    away: str | None = None  # pause or disable
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
        self.last_word: dict[tuple[str, str], tuple[str, ...]] = {}

    def die(self, job: Job) -> None:
        for target in TARGETS:
            state = job.states.setdefault(target, State())
            state.start(self.now)
            state.dead_runs += 1
            state.died, state.died_at = job.slot, self.now
            state.slot = max(state.slot, job.slot)

    def fail(self, job: Job) -> None:
        for target in TARGETS:
            state = job.states.setdefault(target, State())
            state.start(self.now)
            state.slot = max(state.slot, job.slot)

    def messages(self) -> set[Told]:
        """Return what is sent now, and remember that it was."""
        return {message for target in TARGETS for message in self._messages(target)}

    def _messages(self, target: str) -> list[Told]:
        due = []
        for name, job in self.jobs.items():
            self._settle(job, target)
            state = job.states.get(target)
            if state is not None and not job.away and self._is_due(job, state, target):
                due.append((name, job, state))
        if not due or self.now < self.next_at[target]:
            return []
        self.next_at[target] = self.now + 1
        said = [(name, self._tell(job, state, target)) for name, job, state in due]
        self.last_word.update({(target, name): events for name, events in said})
        return [(target, frozenset(said))]

    def _settle(self, job: Job, target: str) -> None:
        is_late = job.run == "late" and not job.away
        if is_late:
            state = job.states.setdefault(target, State())
            if not state.is_late or state.ended_at is not None:
                state.start(self.now)
                state.is_late, state.slot = True, max(state.slot, job.slot)
        if (state := job.states.get(target)) is None:
            return
        state.is_late &= is_late
        is_over = not job.has_slots and not self._events(job, state, target)
        if (is_over and not job.away) or (job.away and state.told):
            del job.states[target]
            return
        if state.ended_at is not None and not state.told:
            return
        is_well = job.has_slots and job.run == "succeeded" and job.slot >= state.slot
        if is_well and state.ended_at is None:
            state.end(self.now)
        elif not is_well:
            state.ended_at = None
        if (
            state.ended_at is not None
            and self.now >= state.tells_end_at
            and "recovered" not in TARGETS[target]
        ):
            state.told = set()

    def _events(self, job: Job, state: State, target: str) -> list[str]:
        is_so = {
            "dead": state.dead_runs > 0 or job.is_dead(state, self.now),
            "failing": job.run == "failing",
            "late": state.is_late,
        }
        return [event for event in is_so if is_so[event] and event in TARGETS[target]]

    def _is_due(self, job: Job, state: State, target: str) -> bool:
        if state.ended_at is not None:
            return bool(state.told) and self.now >= state.tells_end_at
        events = set(self._events(job, state, target))
        return bool(events - state.told) or (bool(events) and self.now >= state.quiet_until)

    def _tell(self, job: Job, state: State, target: str) -> tuple[str, ...]:
        if state.ended_at is not None:
            state.told = set()
            return ("recovered",)
        events = self._events(job, state, target)
        state.told |= set(events)
        state.dead_runs = 0
        state.quiet_until, state.pause = self.now + state.pause, min(2 * state.pause, DAY_MINUTES)
        return tuple(events)

    def wrong_last_words(self) -> list[tuple[str, str]]:
        """Return the targets and jobs whose last word is that all is well, although it is not."""
        troubles = {"dead", "failing", "late"}
        return [
            (target, name)
            for (target, name), said in self.last_word.items()
            if said == ("recovered",)
            and not self.jobs[name].away
            and self.jobs[name].run in TARGETS[target] & troubles
        ]


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
            "mail": Job(
                a_job(db, "mail", notify=targets, schedule=None, next_slot_at=None), has_slots=False
            ),
        }
        self.model = Model(self.jobs)

    def step(self, step: str, job: Job) -> bool:
        """Let something happen to a job, if it can happen; return whether it did."""
        is_open = job.run in ("retried", "late", "running", "failing")
        if step == "die enqueued" and not job.has_slots:
            self._dead(job, a_run(self.db, job.id, "dead"))
        elif not job.has_slots and step in STEPS:
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
            again = (
                "status = 'queued', dead_at = null, finished_at = null, run_at = now() + interval '30 days', "
                "prior_attempts = attempts, max_attempts = attempts + 5"
            )
            self.db.execute(
                f"update yamlsched.job_runs set {again} where id = %s".encode(), [job.run_id]
            )
            job.run = "retried"
        elif step == "fail" and job.run != "late":
            failures = {
                "attempts": 3,
                "failed_at": "(now())",
                "last_error": "x",
                "error_type": "KeyError",
            }
            if is_open:
                self._end(
                    job,
                    "status = 'failed', failed_at = now(), last_error = 'x', error_type = 'KeyError', "
                    "run_at = now() + interval '30 days'",
                    "prior_attempts + 3",
                )
            else:
                self._next(
                    job,
                    "failed",
                    run_at="(now() + interval '30 days')",
                    locked_by="w:1:a",
                    **failures,
                )
            self._note(job.run_id)
            job.run = "failing"
            self.model.fail(job)
        elif step == "be late" and not is_open and not job.away:
            due = "(now() - interval '20 minutes')"
            self._next(job, "queued", run_at=due, created_at=due, exclusive=True)
            job.run = "late"
        elif step == "start" and job.run == "late":
            lease = "locked_by = 'w:1:a', locked_until = now() + interval '30 days', attempts = 1, started_at = now()"
            self.db.execute(
                f"update yamlsched.job_runs set status = 'running', {lease} where id = %s".encode(),
                [job.run_id],
            )
            job.run = "running"
        elif step in ("pause", "disable") and not job.away and job.run != "late":
            self._change(job, "paused_at = now()" if step == "pause" else "enabled = false", step)
        elif step in ("resume", "enable") and job.away:
            self._change(job, "paused_at = null, enabled = true", None)
        else:
            return False
        return True

    def _next(self, job: Job, status: str, **values: Any) -> None:
        job.slot += 1
        slot = FIRST_SLOT + timedelta(days=job.slot)
        job.run, job.run_id = status, a_run(self.db, job.id, status, scheduled_for=slot, **values)

    def _end(self, job: Job, change: str, attempts: str = "greatest(attempts, 1)") -> None:
        leaves = "locked_until = null, started_at = coalesce(started_at, now())"
        leaves += f", attempts = {attempts}"
        change = f"update yamlsched.job_runs set {change}, {leaves}, locked_by = coalesce(locked_by, 'w:1:a') where id = %s"
        self.db.execute(change.encode(), [job.run_id])

    def _dead(self, job: Job, run: int) -> None:
        self._note(run)
        job.run, job.run_id = "dead", run
        self.model.die(job)

    def _note(self, run: int) -> None:
        self.db.execute("select yamlsched.note_runs(%s, %s, clock_timestamp())", ["default", [run]])

    def _change(self, job: Job, change: str, away: str | None) -> None:
        self.db.execute(
            f"update yamlsched.job_definitions set {change} where id = %s".encode(), [job.id]
        )
        job.away = away

    def later(self, minutes: int) -> None:
        for table, columns in MOVES.items():
            moved = ", ".join(f"{name} = {name} - %(span)s" for name in columns)
            self.db.execute(
                f"update yamlsched.{table} set {moved}".encode(),
                {"span": timedelta(minutes=minutes)},
            )
        self.model.now += minutes

    def send(self) -> list[Told]:
        self.sent.clear()
        notes.settle(self.db, "default")
        sending.send_due(self.dsn, "default", dict.fromkeys(TARGETS, "A_URL"), 60)
        return [
            (message.target, frozenset((note.subject, _said(note)) for note in message.notes))
            for message in self.sent
        ]


@pytest.fixture
def a_world(
    db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], World]:
    sent: list[Message] = []

    def send_one(message: Message, deadline: float) -> str:
        is_first = not sent
        sent.append(message)
        if is_first:
            # another host sends, too, while this is on its way
            sending.send_due(dsn, "default", dict.fromkeys(TARGETS, "A_URL"), 60)
        return ""

    monkeypatch.setattr(sending, "send_one", send_one)
    monkeypatch.setenv("A_URL", "json://127.0.0.1/secret")
    return lambda: World(db, dsn, sent)


def _said(note: Note) -> tuple[str, ...]:
    if note.ended_at is not None:
        return ("recovered",)
    return tuple(event for event in SEVERITY if event in note.events)


STEP = st.one_of(
    st.tuples(st.sampled_from(STEPS), st.sampled_from(["backup", "invoice"])),
    st.tuples(st.sampled_from(AWAY), st.sampled_from(["backup", "invoice"])),
    st.tuples(st.sampled_from(["die enqueued", "pause", "resume"]), st.just("mail")),
    st.tuples(st.sampled_from(list(SPANS)), st.just("")),
)


def story(*steps: str, job: str = "backup") -> list[tuple[str, str]]:
    return [(step, "" if step in SPANS else job) for step in steps]


@pytest.mark.story
@example(
    steps=story(
        "die", *["an hour"] * 4, "ten hours", "ten hours", "ten hours", "ten hours", "an hour"
    )
)
@example(
    steps=story(
        "die", "succeed", "die", "a minute", "succeed", "an hour", "die", *["ten hours"] * 3, "die"
    )
)
@example(
    steps=[
        *story("die"),
        *story("be late", job="invoice"),
        *story("a minute", "retry", "succeed", "a minute"),
    ]
)
@example(
    steps=story(
        "be late",
        "a minute",
        "start",
        "an hour",
        "die",
        "a minute",
        "pause",
        "resume",
        "die",
        "an hour",
    )
)
@example(
    steps=story("die enqueued", *["an hour"] * 3, "die enqueued", *["ten hours"] * 4, job="mail")
)
@example(
    steps=story(
        *["die", "a minute", "succeed", "a minute"] * 4, "an hour", "die", "a minute", "succeed"
    )
)
@example(
    steps=story(
        "fail", "a minute", "succeed", "die", "a minute", "fail", "be late", "a minute", "succeed"
    )
)
@example(
    steps=story(
        "die",
        "succeed",
        "pause",
        "die",
        "a minute",
        "resume",
        "a minute",
        "fail",
        "pause",
        "resume",
    )
)
@example(
    steps=[
        *story("die"),
        *story("die enqueued", "die enqueued", job="mail"),
        *story("be late", "an hour"),
    ]
)
@settings(max_examples=8)
@given(steps=st.lists(STEP, min_size=5, max_size=15))
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

    # the last word is never wrong, once each target may get a message
    world.later(1)
    assert set(world.send()) == world.model.messages()
    assert world.model.wrong_last_words() == [], steps
