"""Which runs are claimed first, and from where a run gets its priority."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

import yamlsched
from support.rows import a_job, a_run
from support.rows import row as run_row
from support.schedules import HOUR, a_file, at, sync_by_hand
from yamlsched.act import enqueue as actions
from yamlsched.act import runs as run_actions
from yamlsched.ask import runs as history
from yamlsched.ask import search
from yamlsched.cli import cli
from yamlsched.errors import Refused
from yamlsched.runs.lifecycle import Priority
from yamlsched.sync.flow import sync
from yamlsched.testing import FakeRun
from yamlsched.worker import claiming
from yamlsched.worker.claiming import ClaimScope, levels
from yamlsched.worker.claims import Claims
from yamlsched.worker.sessions import WORKER_SETTINGS, Database, WorkerSession

HIGH, NORMAL, LOW = Priority
Db = psycopg.Connection[Any]


def claimed(db: Db, dsn: str, *limits: int) -> list[Counter[Priority]]:
    """Claim as one worker; return how many runs of each priority each claim took."""

    async def claim() -> list[list[int]]:
        session = WorkerSession(Database(dsn), WORKER_SETTINGS)
        await session.run(partial(claiming.reclaim, namespace="default"), 20)
        claims = Claims(session, "default", "web-1:1", "default")
        taken = []
        for limit in limits:
            taken.append([run.id for run in await claims.claim(limit, ClaimScope())])
        await session.drop()
        return taken

    taken = asyncio.run(claim())
    rows = db.execute("select id, priority from yamlsched.job_runs").fetchall()
    of = {run.id: Priority(run.priority) for run in rows}
    return [Counter(of[id] for id in ids) for ids in taken]


def due(db: Db, exclusive: bool = False, **counts: int) -> None:
    """Insert due runs, the lowest first and oldest, so that age alone would claim them first."""
    job = a_job(db, "shared")
    for priority in reversed(Priority):
        for number in range(counts.get(priority.name.lower(), 0)):
            of = a_job(db, f"{priority.name.lower()}_{number}") if exclusive else job
            a_run(db, of, exclusive=exclusive, priority=int(priority))


@pytest.mark.parametrize("exclusive", [False, True], ids=["side by side", "one at a time"])
def test_higher_levels_are_claimed_first(
    db: Db, dsn: str, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that chance gives no lower level a run of these small claims
    monkeypatch.setattr("random.random", lambda: 0.0)
    due(db, exclusive, high=3, normal=3, low=3)

    assert claimed(db, dsn, 3, 3, 3) == [{HIGH: 3}, {NORMAL: 3}, {LOW: 3}]


def test_one_claim_in_eight_begins_with_each_of_the_lower_levels() -> None:
    orders = Counter(levels(chance / 800) for chance in range(800))

    assert orders == {"{1,2,3}": 600, "{2,1,3}": 100, "{3,1,2}": 100}


@pytest.mark.parametrize("exclusive", [False, True], ids=["side by side", "one at a time"])
def test_a_claim_that_begins_with_the_lowest_level_takes_that_first(
    db: Db, dsn: str, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.random", lambda: 0.9)
    due(db, exclusive, high=3, normal=3, low=3)

    assert claimed(db, dsn, 4, 4) == [{LOW: 3, HIGH: 1}, {HIGH: 2, NORMAL: 2}]


@pytest.mark.parametrize("status", ["queued", "failed"])
def test_what_waits_at_a_higher_level_but_is_not_due_holds_nothing_up(
    db: Db, dsn: str, status: str
) -> None:
    job = a_job(db)
    for _ in range(5):
        a_run(db, job, status, priority=1, run_at="(now() + interval '1 hour')")
    a_run(db, job, priority=3)

    assert claimed(db, dsn, 10) == [{LOW: 1}]


@pytest.mark.parametrize("exclusive", [False, True], ids=["side by side", "one at a time"])
def test_behind_many_runs_that_may_not_be_claimed_only_those_of_the_level_are(
    db: Db, dsn: str, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    # given many runs of a paused job, and behind them runs of one job at two levels
    paused, job = a_job(db, "paused", paused_at=at("2026-01-14 12:00")), a_job(db)
    for _ in range(80):
        a_run(db, paused, priority=1, run_at="(now() - interval '1 hour')", exclusive=exclusive)
    for priority in (2, 1, 2):
        a_run(db, job, priority=priority, exclusive=exclusive)

    assert claimed(db, dsn, 1, 1) == [{}, {HIGH: 1}]


def test_a_lost_run_is_claimed_again_at_its_level(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    job, lost = a_job(db), "(now() - interval '1 hour')"
    for priority in (3, 1):
        a_run(db, job, "running", locked_until=lost, attempts=1, priority=priority)
        a_run(
            db,
            a_job(db, f"nightly_{priority}"),
            "running",
            exclusive=True,
            locked_until=lost,
            priority=priority,
        )

    assert claimed(db, dsn, 2, 2) == [{HIGH: 2}, {LOW: 2}]


def test_a_run_has_the_priority_of_its_job_unless_it_is_given_one(db: Db) -> None:
    a_job(db, "mail", priority=3)

    ids = [
        yamlsched.enqueue(db, "mail").run_id,
        yamlsched.enqueue(db, "mail", priority="high").run_id,
        *(made.run_id for made in yamlsched.enqueue_many(db, "mail", [{}, {}], priority="normal")),
        db.execute("select run_id from yamlsched.enqueue('mail')").fetchone().run_id,  # type: ignore[union-attr]
        db.execute("select run_id from yamlsched.enqueue('mail', priority => 'normal')")
        .fetchone()
        .run_id,  # type: ignore[union-attr]
    ]

    assert [run_row(db, id).priority for id in ids] == [3, 1, 2, 2, 3, 2]  # type: ignore[arg-type]


def test_an_unknown_priority_is_rejected_before_anything_is_written(db: Db) -> None:
    a_job(db, "mail")

    with pytest.raises(
        Refused, match="priority 'urgent' is not supported: pass high, normal or low"
    ):
        yamlsched.enqueue(db, "mail", priority="urgent")  # type: ignore[call-overload]
    for function, payload in (("enqueue", "'{}'"), ("enqueue_many", "array['{}'::jsonb]")):
        with pytest.raises(
            psycopg.Error, match='priority "urgent" is not one of high, normal, low'
        ) as found:
            db.execute(
                f"select yamlsched.{function}('mail', {payload}, priority => 'urgent')".encode()
            )
        assert found.value.sqlstate == "YS003"
    assert db.execute("select from yamlsched.job_runs").fetchall() == []


def test_what_waits_follows_an_edit_of_its_jobs_priority_but_not_what_has_one_of_its_own(
    db: Db,
) -> None:
    hourly, noon = {"cron": "0 * * * *", "overlap": "allow"}, at("2026-01-14 12:00")
    sync(db, a_file(x={**hourly, "priority": "low"}), noon)
    sync(db, a_file(x={**hourly, "priority": "low"}), noon + HOUR)
    yamlsched.enqueue(db, "x", priority="normal")
    [job] = db.execute("select id from yamlsched.job_definitions").fetchone()
    a_run(db, job, "running", priority=3, locked_until="(now() + interval '1 hour')", attempts=1)
    dead = a_run(db, job, "dead", priority=3)
    sync_by_hand(db, a_file(x={**hourly, "priority": "high"}), noon + HOUR)
    sync(db, a_file(x={**hourly, "priority": "high"}), noon + 2 * HOUR)

    runs = db.execute("select id, priority from yamlsched.job_runs order by id").fetchall()
    assert [run.priority for run in runs] == [1, 2, 3, 3, 1]
    assert [r.changed for r in run_actions.retry(db, [dead], "ann")] == [True]
    assert run_row(db, dead).priority == 3


def test_a_hook_has_the_priority_of_its_own_job(db: Db, dsn: str) -> None:
    job = a_job(db, on_dead=["page"], priority=2)
    a_job(db, "page", schedule=None, priority=3)
    ended = "(now() - interval '1 hour')"
    a_run(db, job, "running", locked_until=ended, attempts=1, max_attempts=1, priority=1)

    claimed(db, dsn, 10)

    hooks = db.execute("select priority from yamlsched.job_runs where hook = 'dead'")
    assert [run.priority for run in hooks.fetchall()] == [3]


def test_an_operator_enqueues_at_a_level_and_history_shows_it_by_name(db: Db) -> None:
    a_job(db, "mail")

    made = actions.enqueue(db, "default", "mail", {}, key=None, at=None, priority="high", who="ann")

    assert made.run_id is not None
    run = history.run(db, made.run_id)
    assert run is not None
    assert run.priority == "high"
    assert [run.priority for run in search.page(db, "default", search.Filter(), 10).runs] == [
        "high"
    ]


@pytest.mark.parametrize(
    "options, expected",
    [((), NORMAL), (("--priority", "high"), HIGH), (("--priority", "low"), LOW)],
)
def test_the_verb_enqueue_passes_its_priority(
    db: Db, dsn: str, options: tuple[str, ...], expected: Priority
) -> None:
    a_job(db, "mail")

    arguments = ["enqueue", "mail", "--namespace", "default", "--dsn", dsn, *options]
    ended = CliRunner().invoke(cli, arguments, standalone_mode=False)

    assert ended.return_value == 0
    assert db.execute("select r.priority from yamlsched.job_runs r").fetchall() == [(expected,)]


def test_a_handler_enqueues_at_a_level() -> None:
    run = FakeRun()
    run.enqueue("mail", {"n": 1}, priority="low")
    run.enqueue("mail", {"n": 2})
    run.enqueue("mail", {"n": 3})

    assert [each.priority for each in run.enqueued] == ["low", None, None]
    assert [len(batch.payloads) for batch in run.state.enqueued] == [1, 2]
