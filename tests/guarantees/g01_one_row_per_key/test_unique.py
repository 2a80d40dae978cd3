"""Jobs with ``unique``: one unfinished run, or one that waits, for each combination of values."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import IsolationLevel
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

import yamlsched
from support.command_line import command_line
from support.database import delete_rows, while_waiting
from support.gates import FAILURE, LEASE, MINUTE, NOW, SUCCESS, Worker, limit
from support.gates import worker as worker
from support.project import until
from support.rows import a_job, a_run, value
from support.schedules import a_file, sync_by_hand
from yamlsched.act import runs as actions
from yamlsched.extras.web.ask import outlook
from yamlsched.runs.lifecycle import Outcome, Status
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

Db = psycopg.Connection[Any]
DEAD = Outcome(Status.DEAD, error="no route to host")
LEVELS = [
    IsolationLevel.READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ,
    IsolationLevel.SERIALIZABLE,
]


def a_unique_job(db: Db, *by: str, while_: str = "unfinished", **values: Any) -> int:
    rule = Jsonb({"by": list(by), "while": while_})
    return a_job(db, "mail", **{"schedule": None, "unique_rule": rule, **values})


@pytest.fixture
def job(db: Db) -> int:
    return a_unique_job(db, "to")


@pytest.fixture
def other(dsn: str) -> Iterator[Db]:
    connection: Db = psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row)  # type: ignore[assignment]
    with connection:
        yield connection


def mail(connection: Any, to: Any = 1, **options: Any) -> yamlsched.runs.enqueue.Enqueued:
    return yamlsched.enqueue(connection, "mail", {"to": to}, **options)  # type: ignore[no-any-return]


def now(db: Db) -> datetime:
    return value(db, "select clock_timestamp()") + MINUTE  # type: ignore[no-any-return]


def end(db: Db, *runs: int | None) -> None:
    db.execute(
        "update yamlsched.job_runs set status = 'succeeded', finished_at = now() where id = any (%s)",
        [list(runs)],
    )


# -- which runs are found


def test_an_unfinished_run_with_the_same_values_is_returned_until_it_has_ended(
    db: Db, job: int, worker: Worker
) -> None:
    first = mail(db)
    assert first.created
    assert mail(db) == (first.run_id, False)
    assert mail(db, 2).created

    # while it executes, waits for a retry, and executes again
    run = worker.claim(1, now=now(db))[0]
    assert mail(db) == (first.run_id, False)
    worker.finish(run, FAILURE, now=now(db))
    assert mail(db) == (first.run_id, False)

    end(db, first.run_id)
    assert mail(db).created


def test_with_while_waiting_a_run_counts_until_its_first_claim(db: Db, worker: Worker) -> None:
    a_unique_job(db, "to", while_="waiting")
    first = mail(db)
    assert mail(db) == (first.run_id, False)

    run = worker.claim(1, now=now(db))[0]
    second = mail(db)
    assert second.created

    # it never counts again, although it waits
    worker.finish(run, FAILURE, now=now(db))
    assert mail(db) == (second.run_id, False)
    end(db, second.run_id)
    assert mail(db).created


def test_without_keys_there_is_one_run_of_the_job(db: Db) -> None:
    a_unique_job(db)
    a_job(db, "free", schedule=None)

    first = mail(db)
    assert mail(db, 2) == (first.run_id, False)
    assert yamlsched.enqueue(db, "free").created
    assert yamlsched.enqueue(db, "free").created


SAME = [
    [{}, {"to": None}],
    [{"to": {"a": 1, "b": [2]}}, {"to": {"b": [2], "a": 1}}],
    [{"to": 1, "cc": 1}, {"to": 1, "cc": 2}],
]
DIFFERENT = [
    [{"to": 1}, {"to": "1"}, {"to": 1.0}, {"to": True}, {"to": [1]}, {"to": [[1]]}],
    [{"to": ""}, {"to": 0}, {"to": False}, {"to": None}, {"to": []}, {"to": {}}, {"to": "null"}],
    [{"to": "\u00e9"}, {"to": "e\u0301"}, {"to": "E\u0301"}, {"to": "🚀"}],
    [{"to": "x" * 60_000}, {"to": "x" * 59_999 + "y"}],
    [{"to": 2**63}, {"to": 2**63 + 1}, {"to": 10**2_000}],
]


@pytest.mark.parametrize("payloads", SAME)
def test_values_that_are_the_same(db: Db, job: int, payloads: list[Any]) -> None:
    made = [yamlsched.enqueue(db, "mail", payload) for payload in payloads]
    assert len({one.run_id for one in made}) == 1


@pytest.mark.parametrize("payloads", DIFFERENT)
def test_values_that_differ(db: Db, job: int, payloads: list[Any]) -> None:
    assert all(yamlsched.enqueue(db, "mail", payload).created for payload in payloads)


def test_values_come_from_the_payload_of_the_job_too(db: Db) -> None:
    a_unique_job(db, "to", payload=Jsonb({"to": 1}))

    first = yamlsched.enqueue(db, "mail")
    assert mail(db) == (first.run_id, False)


def test_slots_and_backfills_do_not_count(db: Db) -> None:
    job = a_unique_job(db, schedule="0 * * * *")
    a_run(db, job, scheduled_for=NOW)

    first = mail(db)
    assert first.created
    sync = "insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, scheduled_for)"
    db.execute(f"{sync} select 'default', %s, 'mail', now(), 1, now()".encode(), [job])
    assert mail(db) == (first.run_id, False)

    # nor do they after a retry
    slot = a_run(db, job, "dead", scheduled_for=NOW - MINUTE)
    assert actions.retry(db, [slot], "ann")[0].changed
    assert mail(db) == (first.run_id, False)


def test_a_key_is_looked_for_first_and_a_run_found_by_its_values_does_not_get_it(
    db: Db, job: int
) -> None:
    first = mail(db, 1, key="a")
    second = mail(db, 2)

    assert mail(db, 2, key="a") == (first.run_id, False)
    assert mail(db, 2, key="b") == (second.run_id, False)
    end(db, first.run_id, second.run_id)

    assert mail(db, 2, key="a") == (first.run_id, False)
    made = mail(db, 2, key="b")
    assert made.created
    assert value(db, "select idempotency_key from yamlsched.job_runs where id = %s", made.run_id)


def test_each_position_of_a_batch_has_its_result(db: Db, job: int) -> None:
    held = mail(db, 3)

    made = yamlsched.enqueue_many(db, "mail", [{"to": to} for to in (2, 1, 2, 3, 1)])

    assert [one.created for one in made] == [True, True, False, False, False]
    assert made[2].run_id == made[0].run_id
    assert made[4].run_id == made[1].run_id
    assert made[3].run_id == held.run_id
    assert value(db, "select payload from yamlsched.job_runs where id = %s", made[1].run_id) == {
        "to": 1
    }


def test_a_lost_worker_a_cancel_and_a_limit(db: Db, worker: Worker) -> None:
    limit(db, 1, "provider")
    job = a_unique_job(db, "to", limit_name="provider", limit_by=["to"], priority=3)
    first = mail(db, 1, priority="high")
    at = now(db)
    assert len(worker.claim(now=at)) == 1

    # a run whose worker is lost is unfinished all the time
    worker.call(claiming.reclaim, "default", now=at + LEASE + MINUTE)
    assert value(db, "select status from yamlsched.job_runs") == "failed"
    assert mail(db) == (first.run_id, False)

    # one that is cancelled has ended, although its handler may live
    assert len(worker.claim(now=at + LEASE + MINUTE)) == 1
    actions.cancel(db, [first.run_id], "ann")
    second = mail(db)
    assert second.created
    assert worker.claim(now=at + LEASE + MINUTE) == []  # the limit counts it
    assert value(db, "select count(*) from yamlsched.job_runs where definition_id = %s", job) == 2


# -- edits


def test_an_edit_counts_for_new_runs(db: Db) -> None:
    def sync(**keys: Any) -> None:
        sync_by_hand(db, a_file(mail=keys))

    def both(to: int, cc: int) -> Any:
        return yamlsched.enqueue(db, "mail", {"to": to, "cc": cc})

    sync()
    assert both(1, 1).created
    sync(unique={"by": ["to"]})
    first = both(1, 1)
    assert first.created  # one from before the edit does not count
    assert both(1, 2) == (first.run_id, False)

    sync(unique={"by": ["cc"]})
    second = both(2, 1)
    assert second.created  # the same value of another key
    assert both(1, 1) == (second.run_id, False)

    sync(unique={"by": ["cc"], "while": "waiting"})
    assert both(1, 1).created
    sync(unique={"by": ["cc"]})
    assert both(1, 1) == (second.run_id, False)
    sync()
    assert both(1, 1).created


# -- sessions at the same time


def test_the_second_of_two_transactions_waits_and_gets_the_run_of_the_first(
    db: Db, job: int, dsn: str, other: Db
) -> None:
    with psycopg.connect(dsn) as first:
        made = mail(first)
        found = while_waiting(db, other, lambda: mail(other), first.commit)

    assert found == (made.run_id, False)


def test_if_the_first_rolls_back_the_second_creates_the_run(
    db: Db, job: int, dsn: str, other: Db
) -> None:
    with psycopg.connect(dsn) as first:
        mail(first)
        made = while_waiting(db, other, lambda: mail(other), first.rollback)

    assert made.created
    assert value(db, "select array_agg(id) from yamlsched.job_runs") == [made.run_id]


def test_a_run_that_ends_while_an_enqueue_waits_for_its_transaction_is_not_returned(
    db: Db, job: int, dsn: str, other: Db
) -> None:
    # given a transaction that has enqueued the run and ended it
    with psycopg.connect(dsn) as first:
        made = mail(first)
        end(first, made.run_id)
        found = while_waiting(db, other, lambda: mail(other), first.commit)

    assert found.created
    assert found.run_id != made.run_id


@pytest.mark.parametrize("ends", [True, False])
def test_what_ends_between_the_insert_and_the_answer_is_enqueued_again(
    own_dsn: str, db_of: Callable[[str], Db], ends: bool
) -> None:
    # given a session that stops where it has found the other run in its way, before it reads it
    db = db_of(own_dsn)
    a_unique_job(db, "to")
    first = mail(db)
    [definition] = db.execute(
        "select pg_get_functiondef('yamlsched.enqueue_many'::regproc)"
    ).fetchone()  # type: ignore[misc]
    stop = "select pg_advisory_xact_lock_shared(1);"
    marked = definition.replace("runs := array(", f"perform {stop[7:]}\n        runs := array(", 1)
    db.execute(marked.encode())
    db.execute("select pg_advisory_lock(1)")
    with psycopg.connect(own_dsn, autocommit=True) as second:

        def release() -> None:
            if ends:
                end(db, first.run_id)
            db.execute("select pg_advisory_unlock(1)")

        found = while_waiting(db, second, lambda: mail(second), release)

    # then it gets a run of its own if the other one has ended
    assert found.created is ends
    assert (found.run_id == first.run_id) is not ends


def test_batches_in_opposite_order_do_not_deadlock(db: Db, job: int, dsn: str, other: Db) -> None:
    with psycopg.connect(dsn) as gate, psycopg.connect(dsn, autocommit=True) as third:
        mail(gate, 25)
        answers: dict[str, list[Any]] = {}

        def enqueue(connection: Db, name: str, order: list[int]) -> None:
            payloads = [{"to": to} for to in order]
            answers[name] = yamlsched.enqueue_many(connection, "mail", payloads)

        threads = [
            threading.Thread(target=enqueue, args=(other, "forth", list(range(50)))),
            threading.Thread(target=enqueue, args=(third, "back", list(range(50))[::-1])),
        ]
        for thread in threads:
            thread.start()
        question = "select count(*) from pg_stat_activity where pid = any (%s) and wait_event_type = 'Lock'"
        pids = [other.info.backend_pid, third.info.backend_pid]
        while value(db, question, pids) < 2:
            assert all(thread.is_alive() for thread in threads)
        gate.rollback()
        for thread in threads:
            thread.join()

    assert value(db, "select count(*) from yamlsched.job_runs") == 50
    assert [a.run_id for a in answers["forth"]] == [a.run_id for a in answers["back"]][::-1]


def test_batches_whose_keys_and_values_have_opposite_orders_may_be_repeated(
    db: Db, job: int, dsn: str
) -> None:
    """No order of runs is one of their keys and of their values. Who waits in a circle gets an
    error that a repetition does not, and has written nothing.
    """
    to = sorted(range(5), key=lambda to: str(unique_key(db, to)))
    with (
        psycopg.connect(dsn) as gate,
        psycopg.connect(dsn, autocommit=True, options="-c deadlock_timeout=50ms") as first,
        psycopg.connect(dsn, autocommit=True, options="-c deadlock_timeout=1h") as second,
        ThreadPoolExecutor() as pool,
    ):
        # given a batch that has written one run, and waits for a second one
        mail(gate, to[1])
        refused = pool.submit(batch, first, {"b": to[0], "m": to[1], "a": to[2]})
        await_lock(db, first)

        # when another one has written the third, and waits for the first
        made = pool.submit(batch, second, {"a": to[3], "b": to[4]})
        await_lock(db, second)
        gate.rollback()

        # then the circle ends with an error
        with pytest.raises(psycopg.errors.DeadlockDetected):
            refused.result()
        a, b = made.result()
        assert [run.created for run in (a, b)] == [True, True]
        found = batch(first, {"b": to[0], "m": to[1], "a": to[2]})
        assert [run.created for run in found] == [False, True, False]
        assert (found[0].run_id, found[2].run_id) == (b.run_id, a.run_id)


def unique_key(db: Db, to: int) -> object:
    question = (
        "select yamlsched.unique_key(d, jsonb_build_object('to', %s::int))"
        " from yamlsched.job_definitions d"
    )
    return value(db, question, to)


def batch(connection: Any, runs: dict[str, int]) -> list[yamlsched.runs.enqueue.Enqueued]:
    payloads = [{"to": to} for to in runs.values()]
    return yamlsched.enqueue_many(connection, "mail", payloads, list(runs))


def await_lock(db: Db, waiting: psycopg.Connection[Any]) -> None:
    question = "select wait_event_type from pg_stat_activity where pid = %s"
    until(lambda: value(db, question, waiting.info.backend_pid) == "Lock")


@pytest.mark.parametrize("level", LEVELS)
def test_a_transaction_with_an_old_snapshot_gets_the_run_or_may_be_repeated(
    db: Db, job: int, dsn: str, level: IsolationLevel
) -> None:
    kept = mail(db, 1)
    with psycopg.connect(dsn) as strict:
        strict.isolation_level = level
        strict.execute("select from yamlsched.job_runs")
        made = mail(db, 2)

        assert mail(strict, 1) == (kept.run_id, False)
        assert mail(strict, 3).created
        if level is IsolationLevel.READ_COMMITTED:
            assert mail(strict, 2) == (made.run_id, False)
        else:
            with pytest.raises(psycopg.errors.SerializationFailure):
                mail(strict, 2)
            strict.rollback()
            assert mail(strict, 2) == (made.run_id, False)


# -- retries


def lines(results: list[actions.ActionResult]) -> list[str]:
    return [f"{one.target} {one.what}" for one in results]


BESIDE = "is not retried while run {} is unfinished: unique of mail allows one run with these values at a time"


def test_a_retry_beside_an_unfinished_run_is_refused_and_names_it(db: Db, job: int) -> None:
    old = mail(db).run_id
    actions.cancel(db, [old], "ann")
    made = mail(db).run_id

    assert lines(actions.retry(db, [old], "ann")) == [f"run {old} {BESIDE.format(made)}"]
    assert value(db, "select status from yamlsched.job_runs where id = %s", old) == "cancelled"

    # of the unfinished one itself, and of another with the values of a new payload
    assert actions.retry(db, [made], "ann")[0].changed
    third = mail(db, 2).run_id
    [refused] = actions.retry(db, [third], "ann", payload={"to": 1})
    assert refused.what == BESIDE.format(made)
    assert actions.retry(db, [third], "ann", payload={"to": 3})[0].changed
    assert mail(db, 3) == (third, False)
    assert mail(db, 2).created


def test_the_commands_and_the_page_say_which_run_has_the_same_values(
    db: Db,
    job: int,
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = command_line(dsn, monkeypatch, capsys, tmp_path)
    old = mail(db).run_id
    actions.cancel(db, [old], "ann")
    made = mail(db).run_id

    enqueued = cli("enqueue", "mail", "--payload", '{"to": 1}', "--key", "k")
    assert enqueued.out == (
        f"nothing created: run {made} has the same values (unique) and is queued\n"
    )
    as_json = [
        cli("enqueue", "mail", "--payload", f'{{"to": {to}}}', "--key", "k2", "--format", "json")
        for to in (1, 2, 3)
    ]
    assert [json.loads(found.out)["found_by"] for found in as_json] == ["unique", None, "key"]
    retried = cli("retry", old)
    assert (retried.code, f"run {old} {BESIDE.format(made)}" in retried.out + retried.err) == (
        1,
        True,
    )
    run = outlook.find(db, "default", old or 0)
    assert run is not None
    assert outlook.of_retry(db, run).refusal == f"It {BESIDE.format(made)}."


def test_of_several_in_one_retry_the_newest_is_taken(db: Db, job: int) -> None:
    runs = []
    for _ in range(3):
        runs.append(mail(db).run_id)
        actions.cancel(db, runs[-1:], "ann")
    end(db, runs[2])

    # the newest of those that can be retried at all
    results = actions.retry(db, runs, "ann")
    assert [one.changed for one in results] == [False, True, False]
    assert results[0].what == BESIDE.format(runs[1])
    assert mail(db) == (runs[1], False)


def test_a_retry_at_the_same_time_as_an_enqueue_finds_its_run(
    db: Db, job: int, dsn: str, other: Db
) -> None:
    old = mail(db).run_id
    actions.cancel(db, [old], "ann")
    with psycopg.connect(dsn) as first:
        made = mail(first).run_id
        [result] = while_waiting(
            db, other, lambda: actions.retry(other, [old], "ann"), first.commit
        )

    assert (result.changed, result.what) == (False, BESIDE.format(made))


def test_a_retry_of_a_claimed_run_does_not_count_as_waiting(db: Db, worker: Worker) -> None:
    a_unique_job(db, "to", while_="waiting")
    first = mail(db)
    worker.finish(worker.claim(1, now=now(db))[0], DEAD, now=now(db))
    second = mail(db)

    assert actions.retry(db, [first.run_id], "ann")[0].changed
    assert mail(db) == (second.run_id, False)


def test_a_retry_counts_with_while_unfinished_or_if_nobody_had_claimed_it(
    db: Db, worker: Worker
) -> None:
    a_unique_job(db, "to")
    a_job(db, "index", schedule=None, unique_rule=Jsonb({"by": [], "while": "waiting"}))
    claimed = mail(db)
    worker.finish(worker.claim(1, now=now(db))[0], DEAD, now=now(db))
    waited = yamlsched.enqueue(db, "index")
    actions.cancel(db, [waited.run_id], "ann")

    assert all(one.changed for one in actions.retry(db, [claimed.run_id, waited.run_id], "ann"))
    assert mail(db) == (claimed.run_id, False)
    assert yamlsched.enqueue(db, "index") == (waited.run_id, False)


# -- hooks


def pages(db: Db) -> list[Any]:
    rows = db.execute("select * from yamlsched.job_runs where job_type = 'mail' order by id")
    return rows.fetchall()


def dying(db: Db, worker: Worker, count: int = 1) -> list[Any]:
    """Return runs of a job with a hook, claimed."""
    job = a_job(db, "charge", schedule=None, on_dead=["mail"])
    for number in range(count):
        a_run(db, job, run_at=NOW + number * timedelta(seconds=1))
    return worker.claim(count, now=NOW + MINUTE)


def test_a_storm_of_deaths_is_one_run_of_a_hook_and_one_more_after_its_end(
    db: Db, worker: Worker
) -> None:
    a_unique_job(db)
    first, *others, last = dying(db, worker, 5)

    worker.finish(first, DEAD)
    assert worker.call(store.finish, "default", [(run, DEAD) for run in others], now=NOW)
    [page] = pages(db)
    assert (page.parent_id, page.hook) == (first.id, "dead")
    assert yamlsched.enqueue(db, "mail") == (page.id, False)

    end(db, page.id)
    worker.finish(last, DEAD)
    assert [page.parent_id for page in pages(db)] == [first.id, last.id]


def test_a_hook_is_not_held_up_by_a_transaction_that_has_enqueued_its_job(
    db: Db, worker: Worker, dsn: str
) -> None:
    a_unique_job(db)
    runs = dying(db, worker, 3)
    with psycopg.connect(dsn) as application:
        yamlsched.enqueue(application, "mail")

        assert (
            len(worker.call(store.finish, "default", [(run, DEAD) for run in runs], now=NOW)) == 3
        )

        application.rollback()
    # one for all, which nobody had to wait for
    assert [(page.parent_id, page.unique_key) for page in pages(db)] == [(runs[0].id, None)]


def test_of_the_hooks_that_a_transaction_holds_up_those_are_created_that_are_not_there(
    db: Db, worker: Worker, dsn: str
) -> None:
    # given a hook whose last run has ended, and one that has an unfinished run
    a_unique_job(db)
    a_job(db, "log", schedule=None, unique_rule=Jsonb({"by": [], "while": "unfinished"}))
    ended, log = mail(db), yamlsched.enqueue(db, "log")
    end(db, ended.run_id)
    job = a_job(db, "charge", schedule=None, on_dead=["log", "mail"], queue="own")
    a_run(db, job, run_at=NOW, queue="own")
    [run] = worker.claim(1, queue="own")

    with psycopg.connect(dsn) as application:
        mail(application)
        worker.finish(run, DEAD)
        application.rollback()

    made = db.execute("select job_type from yamlsched.job_runs where hook is not null")
    assert [job_type for (job_type,) in made.fetchall()] == ["mail"]
    assert yamlsched.enqueue(db, "log") == (log.run_id, False)


@pytest.mark.parametrize("level", LEVELS)
def test_a_hook_fails_no_transaction_that_cannot_see_the_other_run(
    db: Db, dsn: str, level: IsolationLevel
) -> None:
    a_unique_job(db)
    job = a_job(db, "charge", schedule=None, on_dead=["mail"])
    dead = a_run(db, job, "dead")
    with psycopg.connect(dsn) as own:
        own.isolation_level = level
        own.execute("select from yamlsched.job_runs")
        yamlsched.enqueue(db, "mail")

        own.execute("select yamlsched.enqueue_hooks('default', array[%s::bigint], now())", [dead])

    is_seen = level is IsolationLevel.READ_COMMITTED
    assert [page.parent_id for page in pages(db)] == [None, *([] if is_seen else [dead])]


def test_a_hook_beside_a_run_that_has_expired_is_created(db: Db, worker: Worker) -> None:
    a_unique_job(db, expires_after=MINUTE)
    old = yamlsched.enqueue(db, "mail")
    db.execute("update yamlsched.job_runs set run_at = now() - interval '2 min'")
    [run] = dying(db, worker)

    worker.finish(run, DEAD)

    assert [page.id == old.run_id for page in pages(db)] == [True, False]


# -- a model of it


@dataclass
class Model:
    """What `unique` says, of one job: its runs by id, as [value, status, whether it counts]."""

    while_: str
    runs: dict[int, list[Any]] = field(default_factory=dict)

    def holder(self, to: int) -> int | None:
        return next((id for id, run in self.runs.items() if run[0] == to and run[2]), None)

    def claim(self, id: int) -> None:
        self.runs[id][1:] = ["running", self.runs[id][2] and self.while_ == "unfinished"]

    def end(self, id: int, status: str) -> None:
        self.runs[id][1] = status
        self.runs[id][2] &= status == "failed"

    def retry(self, ids: list[int], to: int | None) -> set[int]:
        taken = set()
        for id in sorted(ids, reverse=True):
            run, wanted = self.runs[id], self.runs[id][0] if to is None else to
            if run[1] in ("running", "succeeded"):
                continue
            counts = self.while_ == "unfinished" or not run[3:]
            if counts and self.holder(wanted) not in (None, id):
                continue
            run[:3] = [wanted, "failed" if run[1] == "failed" else "queued", counts]
            taken.add(id)
        return taken


STEPS = st.one_of(
    st.tuples(st.just("enqueue"), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
    st.tuples(st.just("claim"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["succeed", "fail", "die", "lose"]), st.integers(0, 5)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("retry"), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
    st.tuples(st.just("retry as"), st.tuples(st.integers(0, 5), st.integers(0, 2))),
)
OUTCOMES = {"succeed": SUCCESS, "fail": FAILURE, "die": DEAD}
ENDED = {"succeed": "succeeded", "fail": "failed", "die": "dead"}


@settings(max_examples=30)
@given(while_=st.sampled_from(["unfinished", "waiting"]), steps=st.lists(STEPS, max_size=25))
def test_however_runs_are_enqueued_claimed_ended_and_retried_one_counts_for_each_value(
    db: Db, worker: Worker, while_: str, steps: list[Any]
) -> None:
    delete_rows(db)
    a_unique_job(db, "to", while_=while_, max_attempts=100)
    model, at = Model(while_), now(db)
    held: dict[int, Any] = {}
    for step, what in steps:
        at += timedelta(hours=1)
        ids = sorted(model.runs)
        chosen = ids[what % len(ids)] if ids and isinstance(what, int) else None
        if step == "enqueue":
            payloads = [{"to": to} for to in what]
            for to, made in zip(what, yamlsched.enqueue_many(db, "mail", payloads), strict=True):
                assert made.run_id is not None
                assert made.created is (model.holder(to) is None)
                if made.created:
                    model.runs[made.run_id] = [to, "queued", True]
                assert model.holder(to) == made.run_id
        elif step == "claim":
            for run in worker.claim(what, now=at):
                held[run.id] = run
                model.claim(run.id)
                model.runs[run.id][3:] = [True]
        elif step == "lose":
            worker.call(claiming.reclaim, "default", now=at)
            for id in held:
                model.end(id, "failed")
            held.clear()
        elif step == "retry":
            some = sorted({ids[n % len(ids)] for n in what}) if ids else []
            results = actions.retry(db, some, "ann", now=at)
            assert {id for id, one in zip(some, results, strict=True) if one.changed} == (
                model.retry(some, None)
            )
        elif step == "retry as" and ids:
            id = ids[what[0] % len(ids)]
            [result] = actions.retry(db, [id], "ann", now=at, payload={"to": what[1]})
            assert result.changed is (id in model.retry([id], what[1]))
        elif step == "cancel" and chosen is not None:
            if actions.cancel(db, [chosen], "ann", now=at)[0].changed:
                model.end(chosen, "cancelled")
                if held.pop(chosen, None):
                    db.execute(
                        "update yamlsched.job_runs set locked_until = null where id = %s", [chosen]
                    )
        elif step in OUTCOMES and chosen in held:
            run = held.pop(chosen)
            assert worker.call(store.finish, "default", [(run, OUTCOMES[step])], now=at)
            model.end(chosen, ENDED[step])
        rows = db.execute("select id, status from yamlsched.job_runs")
        assert {row.id: row.status for row in rows} == {id: r[1] for id, r in model.runs.items()}
