"""Builders for tests of enqueueing and effects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg

LATER = datetime(2030, 1, 1, tzinfo=UTC)


def a_job(db: psycopg.Connection[Any], name: str = "mail", **columns: Any) -> None:
    """Store a job as a sync would."""
    row = {
        "namespace": "default",
        "job_type": name,
        "handler": "handlers.x.y",
        "timezone": "UTC",
        "max_attempts": 7,
        "backoff": "{}",
        "timeout": "1h",
        "lease": "2m",
        "overlap": "wait",
        "catchup": "latest",
        "catchup_window": "1d",
        "spread": "0",
        "enabled": True,
        "effective_from": LATER,
    } | columns
    names = ", ".join(row)
    db.execute(
        f"insert into yamlsched.job_definitions ({names}) values ({', '.join(['%s'] * len(row))})".encode(),
        list(row.values()),
    )


def while_waiting(
    db: psycopg.Connection[Any], waiter: psycopg.Connection[Any], act: Callable[[], Any], release: Callable[[], Any]
) -> Any:
    """Let ``act`` run on the session ``waiter`` until it waits for a lock, then ``release`` it; return its answer."""
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(act())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    question = "select count(*) from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    while thread.is_alive() and not db.execute(question, [waiter.info.backend_pid]).fetchone()[0]:  # type: ignore[index]
        pass
    assert thread.is_alive(), f"did not wait, but answered {answers}"
    release()
    thread.join()
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]
