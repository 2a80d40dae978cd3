"""Jobs with targets of notifications, and a host that sends what is due to nobody: it is kept."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from support.rows import a_job, a_run
from yamlsched.db.query import load
from yamlsched.extras.notify import sending
from yamlsched.extras.notify.sending import Message

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
SLOT = datetime(2026, 1, 14, 2, tzinfo=UTC)
Messages = list[tuple[str, str]]
EVENTS = ["dead", "late", "recovered", "problem"]


def variables() -> list[str]:
    return [name for name in ("A_URL",) if name in os.environ]


class Story:
    """Jobs with targets, what happens to their runs, and the messages that this host sends: ``(target, title)``."""

    def __init__(self, db: psycopg.Connection[Any], dsn: str) -> None:
        self.db, self.dsn = db, dsn
        self.messages: list[Message] = []
        self.answer = ""

    def target(self, name: str = "ops", events: list[str] = EVENTS) -> None:
        self.db.execute(
            "insert into yamlsched.notify_targets (namespace, name, url_env, events) "
            "values ('default', %s, 'A_URL', %s)",
            [name, events],
        )

    def die(self, job: int, *slots: datetime | None, **values: Any) -> list[int]:
        """Insert dead runs of these slots, and note them as the transaction that ends them does."""
        runs = [a_run(self.db, job, "dead", scheduled_for=slot, **values) for slot in slots or (None,)]
        self.db.execute(load("notify")["note_dead"], {"namespace": "default", "ids": runs, "now": None})
        return runs

    def succeed(self, job: int, slot: datetime | None) -> int:
        return a_run(self.db, job, "succeeded", scheduled_for=slot)

    def later(self, span: timedelta) -> None:
        """Let time pass: everything was earlier."""
        changes = {
            "notifications": ("dead_at", "late_since", "active_at", "ended_at", "quiet_until", "due_at"),
            "notify_targets": ("next_at", "failing_since"),
            "job_runs": ("finished_at", "dead_at", "failed_at", "run_at", "created_at"),
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
        sending.send_due(self.dsn, "default", variables(), 60)
        return [(message.target, message.title) for message in self.messages]

    def row(self, subject: str, target: str = "ops") -> Any:
        return self.db.execute(
            "select * from yamlsched.notifications where (target, subject) = (%s, %s)", [target, subject]
        ).fetchone()


@pytest.fixture
def story(db: psycopg.Connection[Any], dsn: str, monkeypatch: pytest.MonkeyPatch) -> Story:
    story = Story(db, dsn)

    def send_one(message: Message, deadline: float) -> str:
        story.messages.append(message)
        return story.answer

    monkeypatch.setattr(sending, "send_one", send_one)
    monkeypatch.setenv("A_URL", "json://127.0.0.1/secret")
    return story


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
values ('other', 'ops', 'A_URL', '{dead,late,recovered,problem}')
"""


def rows_of(db: psycopg.Connection[Any], namespace: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the notifications and the targets of a namespace."""
    notes, targets = (
        [row.content for row in db.execute(
            f"select to_jsonb(t) as content from yamlsched.{table} t where t.namespace = %s order by {order}".encode(),
            [namespace],
        )]
        for table, order in (("notifications", "t.target, t.subject"), ("notify_targets", "t.name"))
    )  # fmt: skip
    return notes, targets
