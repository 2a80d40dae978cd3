"""Attempts with effects, in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from support.rows import a_job
from yamlsched import Run
from yamlsched.db import blocking
from yamlsched.handler.once import effect_key
from yamlsched.handler.sessions import sessions
from yamlsched.runs import effects, own_transaction


@contextmanager
def a_job_with_a_ledger(db: psycopg.Connection[Any]) -> Iterator[str]:
    """Yield the name of a job; the same database has a table of the application."""
    db.execute("create table if not exists ledger (run_id bigint not null)")
    a_job(db, "mail")
    yield "mail"
    sessions.close()
    db.execute("drop table ledger")


def lapse(db: psycopg.Connection[Any], run: Run) -> None:
    """Expire the lease of a run."""
    db.execute(
        "update yamlsched.job_runs set locked_until = now() - interval '1 second' where id = %s",
        [run.id],
    )


def die_inside(run: Run, name: str = "post", scope: str = "run") -> None:
    """Claim the key of an effect and write nothing more, as a process that is killed inside does."""
    key = effects.EffectEntry(
        "default",
        effect_key(run.id, name, scope),
        run.id,
        run.attempt,
        run.backend.locked_by,
        str(uuid.uuid4()),
    )
    claimed = run.backend.record(effects.claim, key)
    assert claimed is not None
    assert claimed.is_first


def succeed_in(connection: psycopg.Connection[Any], run: Any) -> bool:
    """Write the success of a claimed run in the transaction of ``connection``."""
    fence = run.id, run.attempt, run.locked_by
    return blocking.run(own_transaction.succeed_in(blocking.Session(connection), fence, None))


def around_write(
    monkeypatch: pytest.MonkeyPatch, statement: str, wrap: Callable[[Callable[[], Any]], Any]
) -> None:
    """Let ``wrap`` execute a statement about effects."""
    if statement == "claim":
        claim = effects.claim
        monkeypatch.setattr(effects, "claim", lambda *given: wrap(lambda: claim(*given)))
        return
    real = effects.write

    def write(connection: Any, name: Any, *given: Any) -> bool:
        if name == statement:
            return bool(wrap(lambda: real(connection, name, *given)))
        return real(connection, name, *given)

    monkeypatch.setattr(effects, "write", write)


def effect_states(db: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    return [
        (row.key, row.state)
        for row in db.execute("select key, state from yamlsched.effects order by id")
    ]


def status(db: psycopg.Connection[Any], run: Run) -> str:
    return str(
        db.execute("select status from yamlsched.job_runs where id = %s", [run.id])
        .fetchone()
        .status
    )  # type: ignore[union-attr]
