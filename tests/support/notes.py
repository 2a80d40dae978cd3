"""Jobs with targets of notifications, and a host that sends what is due to nobody: it is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_run
from yamlsched.extras.notify import sending
from yamlsched.extras.notify.sending import Message

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
SLOT = datetime(2026, 1, 14, 2, tzinfo=UTC)
NOTE_TIMES = (
    "dead_at",
    "found_since",
    "since",
    "ended_at",
    "recovered_at",
    "quiet_until",
    "due_at",
)
Messages = list[tuple[str, str]]
EVENTS = ["dead", "paused", "late", "failing", "recovered", "problem"]


def own_variables(*targets: str) -> dict[str, str]:
    """Return the variables of targets, as the file of a host says, if the host has them."""
    return dict.fromkeys(targets, "A_URL") if "A_URL" in os.environ else {}


class Story:
    """Jobs with targets, what happens to their runs, and the messages that this host sends: ``(target, title)``."""

    def __init__(self, db: psycopg.Connection[Any], dsn: str) -> None:
        self.db, self.dsn = db, dsn
        self.messages: list[Message] = []
        self.answer = ""
        self.targets: list[str] = []

    def target(self, name: str = "ops", events: list[str] = EVENTS) -> None:
        self.db.execute(
            "insert into yamlsched.notify_targets (namespace, name, url_env, events) "
            "values ('default', %s, 'A_URL', %s)",
            [name, events],
        )
        self.targets.append(name)

    def die(self, job: int, *slots: datetime | None, **values: Any) -> list[int]:
        """Insert dead runs of these slots, and note them as the transaction that ends them does."""
        runs = [
            a_run(self.db, job, "dead", scheduled_for=slot, **values) for slot in slots or (None,)
        ]
        self.note(*runs)
        return runs

    def succeed(self, job: int, slot: datetime | None) -> int:
        return a_run(self.db, job, "succeeded", scheduled_for=slot)

    def fail(self, job: int, slot: datetime | None, attempts: int) -> int:
        """Insert a run that waits for its next attempt after ``attempts`` that failed, and note it."""
        values = {
            "last_error": "x",
            "error_type": "KeyError",
            "locked_by": "w:1:a",
            "failed_at": "(now())",
        }
        due = "(now() + interval '30 days')"
        run = a_run(
            self.db, job, "failed", scheduled_for=slot, attempts=attempts, run_at=due, **values
        )
        self.note(run)
        return run

    def fail_again(self, run: int) -> None:
        change = "update yamlsched.job_runs set attempts = attempts + 1, max_attempts = 9, failed_at = now() where id = %s"
        self.db.execute(change.encode(), [run])
        self.note(run)

    def end(self, run: int, status: str) -> None:
        """End a run, and note it if it is dead."""
        dead_at = "now()" if status == "dead" else "null"
        change = f"status = %s, finished_at = now(), dead_at = {dead_at}, failed_at = coalesce({dead_at}, failed_at)"
        self.db.execute(
            f"update yamlsched.job_runs set {change} where id = %s".encode(), [status, run]
        )
        self.note(run)

    def note(self, *runs: int) -> None:
        """Note what has become of runs, as the transaction that ends or retries them does."""
        self.db.execute(
            "select yamlsched.note_runs(%s, %s, clock_timestamp())", ["default", list(runs)]
        )

    def later(self, span: timedelta) -> None:
        """Let time pass: everything was earlier."""
        changes = {
            "notifications": NOTE_TIMES,
            "notify_targets": ("next_at", "failing_since"),
            "job_runs": (
                "finished_at",
                "dead_at",
                "failed_at",
                "run_at",
                "created_at",
                "late_at",
            ),
            "skipped_slots": ("recorded_at",),
        }
        for table, columns in changes.items():
            moved = ", ".join(f"{name} = {name} - %(span)s" for name in columns)
            self.db.execute(f"update yamlsched.{table} set {moved}".encode(), {"span": span})

    def send(self, after: timedelta = timedelta(0)) -> Messages:
        """Send what is due some time later, and return what that was."""
        if after:
            self.later(after)
        self.messages.clear()
        self.send_due()
        return [(message.target, message.title) for message in self.messages]

    def send_due(self) -> float | None:
        """Send what is due as one host does; return in how many seconds more may be due."""
        return sending.send_due(self.dsn, "default", own_variables(*self.targets), 60)

    def row(self, subject: str, target: str = "ops") -> Any:
        return self.db.execute(
            "select * from yamlsched.notifications where (target, subject) = (%s, %s)",
            [target, subject],
        ).fetchone()


@pytest.fixture
def story(
    db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Story]:
    """A story whose host keeps one session, where a real one opens another each minute."""
    story = Story(db, dsn)
    session = sending.db.connect(dsn, sending.SETTINGS)
    monkeypatch.setattr(sending.db, "connect", lambda *_: nullcontext(session))

    def send_one(message: Message, deadline: float) -> str:
        story.messages.append(message)
        return story.answer

    monkeypatch.setattr(sending, "send_one", send_one)
    monkeypatch.setenv("A_URL", "json://127.0.0.1/secret")
    yield story
    session.close()


@pytest.fixture
def job(db: psycopg.Connection[Any], story: Story) -> int:
    story.target()
    return a_job(db, "backup", notify=["ops"], owner="team-x")


def a_late_run(db: psycopg.Connection[Any], job: int, minutes: int) -> int:
    """Insert a run that has been due for so long."""
    due = f"(now() - interval '{minutes} minutes')"
    return a_run(db, job, scheduled_for=SLOT, run_at=due, created_at=due, exclusive=True)


A_TARGET_OF_ANOTHER_NAMESPACE = """
insert into yamlsched.notify_targets (namespace, name, url_env, events)
values ('other', 'ops', 'A_URL', '{dead,late,failing,recovered,problem}')
"""


def rows_of(
    db: psycopg.Connection[Any], namespace: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the notifications and the targets of a namespace."""
    notes, targets = (
        [row.content for row in db.execute(
            f"select to_jsonb(t) as content from yamlsched.{table} t where t.namespace = %s order by {order}".encode(),
            [namespace],
        )]
        for table, order in (("notifications", "t.target, t.subject"), ("notify_targets", "t.name"))
    )  # fmt: skip
    return notes, targets
