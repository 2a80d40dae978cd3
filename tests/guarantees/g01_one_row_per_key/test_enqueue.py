"""Enqueueing from Python and from other drivers, in the caller's transaction, with one run per key under races."""

from __future__ import annotations

import asyncio
import enum
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import yamlsched
from support.database import while_waiting
from support.rows import a_job, value
from support.schedules import LATER
from yamlsched import Refused, durations
from yamlsched.db.query import load
from yamlsched.errors import EnvironmentFailed
from yamlsched.runs.enqueue import encode_payload


@pytest.fixture
def job(db: psycopg.Connection[Any]) -> str:
    a_job(db, "mail", max_attempts=7)
    return "mail"


@pytest.fixture
def other(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A second session for races."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def rows(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute("select * from yamlsched.job_runs order by id").fetchall()


def end(db: psycopg.Connection[Any], run_id: int | None) -> None:
    """Mark a run as succeeded a year ago."""
    db.execute(
        "update yamlsched.job_runs set status = 'succeeded', finished_at = now() - interval '1 year' where id = %s",
        [run_id],
    )


def prune(db: psycopg.Connection[Any]) -> None:
    """Execute the statements of retention for all ended runs."""
    now = datetime.now(UTC)
    limits = {"succeeded": now, "dead": now, "cancelled": now}
    first = {"namespace": "default", "definition": 0, "from": None, "limit": 100, "now": now}
    _, ids, *_ = db.execute(load("retention")["hold_runs"], {**first, **limits}).fetchone() or ()
    db.execute(load("retention")["delete_runs"], {"ids": ids, "now": now})


# -- what is stored


def test_a_run_has_the_given_payload_and_time_and_the_attempts_of_its_job(db, job):
    made = yamlsched.enqueue(db, job, {"user_id": 12, "name": "Zoë 🚀"}, key="k", run_at=LATER)

    [row] = rows(db)
    assert made == (row.id, True)
    assert (row.job_type, row.payload, row.idempotency_key) == (
        "mail",
        {"user_id": 12, "name": "Zoë 🚀"},
        "k",
    )
    assert (row.run_at, row.status, row.max_attempts, row.scheduled_for) == (
        LATER,
        "queued",
        7,
        None,
    )


def test_the_jobs_payload_supplies_missing_keys(db):
    a_job(db, "mail", payload='{"template": "plain", "user_id": 0}')

    yamlsched.enqueue(db, "mail", {"user_id": 12})

    assert rows(db)[0].payload == {"template": "plain", "user_id": 12}


def test_a_run_without_a_time_is_due_immediately_by_the_databases_clock(db, job):
    yamlsched.enqueue(db, job)

    assert (
        db.execute("select run_at <= clock_timestamp() as due from yamlsched.job_runs")
        .fetchone()
        .due
    )


def test_each_call_without_a_key_creates_a_run(db, job):
    assert len({yamlsched.enqueue(db, job).run_id for _ in range(3)}) == 3


def test_a_used_key_creates_nothing_and_returns_its_run_even_if_that_has_ended(db, job):
    first = yamlsched.enqueue(db, job, {"n": 1}, key="k")
    again = yamlsched.enqueue(db, job, {"n": 2}, key="k")
    end(db, first.run_id)
    later = yamlsched.enqueue(db, job, {"n": 3}, key="k")

    assert again == later == (first.run_id, False)
    assert [row.payload for row in rows(db)] == [{"n": 1}]


def test_a_key_of_a_pruned_run_creates_nothing_and_reports_this(db, job):
    end(db, yamlsched.enqueue(db, job, key="k").run_id)
    prune(db)

    assert yamlsched.enqueue(db, job, key="k") == (None, False)
    assert yamlsched.enqueue_many(db, job, [{}, {}, {}], ["new", "k", None])[1] == (None, False)
    assert [row.idempotency_key for row in rows(db)] == ["new", None]


def test_one_key_in_two_namespaces_is_two_keys(db, job):
    a_job(db, "mail", namespace="billing")

    assert yamlsched.enqueue(db, job, key="k").created
    assert yamlsched.enqueue(db, job, key="k", namespace="billing").created


def test_a_rollback_creates_no_run(db, job):
    with db.transaction(force_rollback=True):
        yamlsched.enqueue(db, job)
        yamlsched.enqueue_many(db, job, [{}, {}])

    assert rows(db) == []


def test_listening_workers_are_notified_at_the_commit(db, job, other):
    other.execute("listen yamlsched")
    with db.transaction():
        yamlsched.enqueue(db, job)
        assert list(other.notifies(timeout=0)) == []

    assert [n.payload for n in other.notifies(timeout=10, stop_after=1)] == ["default"]


# -- enqueue_many


def test_thousands_of_runs_are_created_by_one_statement_in_their_order(db, job):
    answers = yamlsched.enqueue_many(
        db,
        job,
        ({"n": n} for n in range(3_000)),
        (f"mail:{n * 7919 % 3_000}" for n in range(3_000)),
    )

    assert [row.payload["n"] for row in rows(db)] == list(range(3_000))
    assert [answer.run_id for answer in answers] == [row.id for row in rows(db)]
    assert all(answer.created for answer in answers)
    assert (
        db.execute("select count(distinct xmin::text) as n from yamlsched.job_runs").fetchone().n
        == 1
    )


def test_a_batch_reads_its_keys_through_indexes_if_the_table_was_analyzed_empty(own_dsn, db_of):
    db = db_of(own_dsn)
    a_job(db, "mail")
    db.execute("vacuum analyze yamlsched.job_runs, yamlsched.used_keys")

    with db.transaction():
        yamlsched.enqueue_many(db, "mail", [{}] * 50, [str(n) for n in range(50)])
        read = db.execute(
            "select relname, seq_scan from pg_stat_xact_user_tables"
            " where relname in ('job_runs', 'used_keys') order by relname"
        ).fetchall()

    assert [tuple(row) for row in read] == [("job_runs", 0), ("used_keys", 0)]


@settings(max_examples=30)
@given(
    batches=st.lists(
        st.lists(st.one_of(st.none(), st.sampled_from("abcdef")), max_size=8), max_size=4
    )
)
def test_for_any_list_of_keys_each_key_has_one_run_and_every_position_its_result(dsn: str, batches):
    with psycopg.connect(dsn) as connection, connection.transaction(force_rollback=True):
        a_job(connection, "mail")
        named: dict[str, int] = {}
        for nth, keys in enumerate(batches):
            answers = yamlsched.enqueue_many(
                connection, "mail", [{"at": [nth, n]} for n in range(len(keys))], keys
            )

            assert len(answers) == len(keys)
            for n, (key, answer) in enumerate(zip(keys, answers, strict=True)):
                assert answer.created == (key is None or key not in named)
                if key is not None:
                    assert named.setdefault(key, answer.run_id) == answer.run_id
                if answer.created:
                    [(at,)] = connection.execute(
                        "select payload -> 'at' from yamlsched.job_runs where id = %s",
                        [answer.run_id],
                    ).fetchall()
                    assert at == [nth, n]


def test_an_empty_list_creates_nothing(db, job):
    assert yamlsched.enqueue_many(db, job, []) == []
    assert rows(db) == []


def test_one_invalid_entry_among_many_prevents_all(db, job):
    with pytest.raises(Refused, match=r"payload\.x of job \"mail\" is of type object"):
        yamlsched.enqueue_many(db, job, [{}, {"x": object()}, {}])
    with pytest.raises(Refused, match=r"3 payloads .* but 2 keys"):
        yamlsched.enqueue_many(db, job, [{}, {}, {}], ["a", "b"])

    assert rows(db) == []


# -- what is refused


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "payload, message",
    [
        (
            {"at": LATER},
            r'payload\.at of job "mail" is of type datetime, which is not a valid JSON value',
        ),
        ({"rows": [{"n": Decimal(1)}]}, r'payload\.rows\[0\]\.n of job "mail" is of type Decimal'),
        ({"colour": Colour.RED}, r"payload\.colour .* is of type Colour"),
        ({1: "x"}, r"payload .* has the key 1, a int: JSON keys are strings"),
        ({"x": float("nan")}, r"payload\.x .* is nan, which is not a valid JSON number"),
        ({"x": "a\x00b"}, r"payload\.x .* contains a NUL character"),
        ({"a\x00b": 1}, r"a key of payload .* contains a NUL character"),
        ({"x": "\ud800"}, r"payload\.x .* contains half of a surrogate pair"),
        ({"x": 10**3000}, r"payload\.x .* is an integer of over 3,000 digits"),
        (
            {"x": "é" * 33_000},
            r"payload of job \"mail\" has 66009 bytes, over the limit of 64 KiB: store the data",
        ),
        ({"x": [[[]]] and json.loads("[" * 60 + "]" * 60)}, r"nested over 50 deep"),
        ([], r"payload of job \"mail\" is of type list: pass a dict"),
        (0, r"payload of job \"mail\" is of type int: pass a dict"),
    ],
)
def test_a_payload_that_cannot_be_stored_is_refused_and_the_transaction_remains_usable(
    db, job, payload, message
):
    with db.transaction():
        with pytest.raises(Refused, match=message):
            yamlsched.enqueue(db, job, payload)
        yamlsched.enqueue(db, job, {"valid": True})

    assert [row.payload for row in rows(db)] == [{"valid": True}]


def test_a_self_referencing_payload_is_refused():
    payload: dict[str, Any] = {}
    payload["x"] = payload

    with pytest.raises(Refused, match="nested over 50 deep, or is self-referencing"):
        encode_payload("mail", payload)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"key": ""}, "the key has 0 characters: pass 1 to 500, or None"),
        ({"key": "k" * 501}, "the key has 501 characters"),
        ({"key": "a\x00b"}, "the key contains a NUL character"),
        ({"key": 7}, "the key 7 is of type int: pass a string"),
        ({"run_at": datetime(2030, 1, 1)}, "is not a datetime with a time zone"),
        ({"run_at": "5m"}, r"run_at '5m' is not a datetime with a time zone: .*delay=\"5m\""),
        ({"run_at": 300}, "run_at 300 is not a datetime with a time zone"),
        ({"run_at": timedelta(hours=1)}, "is not a datetime .* pass a delay"),
        (
            {"run_at": LATER, "delay": "5m"},
            r"run_at .* and delay 5m were both passed: pass one of them",
        ),
        ({"delay": timedelta(seconds=-1)}, "is not valid: .* of at most 100 years"),
        ({"delay": timedelta.max}, "is not valid"),
        ({"delay": "36525d1s"}, "is not valid"),
        ({"delay": "5 minutes"}, 'delay: "5 minutes" is not a duration: write for example 90s, 5m'),
        ({"delay": "300"}, 'delay: 300 has no unit: write "300s"'),
        ({"delay": 300}, "delay 300 is not valid: pass a timedelta, or a string"),
        ({"delay": True}, "delay True is not valid"),
        ({"namespace": "a\x00b"}, "the namespace contains a NUL character"),
    ],
)
def test_an_invalid_key_or_time_is_refused_without_a_query(db, job, arguments, message):
    with db.transaction():
        with pytest.raises(Refused, match=message):
            yamlsched.enqueue(db, job, **arguments)
        yamlsched.enqueue(db, job)

    assert len(rows(db)) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"key": "nightly:2026-01-14"},
            'has a reserved form: slots and hooks of job "nightly" have such keys',
        ),
        ({"key": "nightly:2026-01-14T02:00Z"}, "has a reserved form"),
        (
            {"key": "page:dead:118:2"},
            'key "page:dead:118:2" has a reserved form: slots and hooks of job "page" have such keys',
        ),
        (
            {"namespace": "elsewhere"},
            'no job "mail" in namespace "elsewhere". A job is known after the first sync of its'
            " schedules.yaml, in its namespace.",
        ),
        ({"run_at": datetime(9999, 12, 31, tzinfo=UTC)}, "is not between the years 1970 and 9998"),
    ],
)
def test_errors_that_only_the_database_detects_prevent_any_write(db, job, arguments, message):
    a_job(db, "nightly", schedule="0 2 * * *")

    for name in ("mail", "nightly"):
        with pytest.raises(Refused, match=message.replace("mail", name)):
            yamlsched.enqueue(db, name, **arguments)

    assert rows(db) == []


def test_a_key_that_only_resembles_a_slots_key_is_accepted(db, job):
    for key in (
        "nightly:2026-01-14-by-hand",
        "nightly:2026-01",
        "Nightly:2026-01-14",
        "a:b:2026-01-14",
    ):
        assert yamlsched.enqueue(db, job, key=key).created


@pytest.mark.parametrize(
    "key",
    [
        "mail:2026-01-14",
        "no_job_yet:2026-01-14T02:00Z",
        "mail:dead:118:1",
        "no_job_yet:failed:118:1",
        "mail:succeeded:118:1",
    ],
)
def test_keys_of_slots_and_of_hooks_are_reserved_in_python_and_in_sql(db, job, key):
    with pytest.raises(Refused, match=f'key "{key}" has a reserved'):
        yamlsched.enqueue(db, job, key=key)
    for statement in (
        "select * from yamlsched.enqueue('mail', '{}', null, %s)",
        "select * from yamlsched.enqueue_many('mail', array['{}'::jsonb], array[%s])",
    ):
        with pytest.raises(psycopg.Error, match="reserved") as refused:
            db.execute(statement, [key])
        assert refused.value.sqlstate == "YS003"
    assert rows(db) == []


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"enabled": False}, 'job "mail" is not enabled in schedules.yaml'),
        ({"retired_at": LATER}, 'no job "mail"'),
    ],
)
def test_a_disabled_or_retired_job_is_refused(db, columns, message):
    a_job(db, "mail", **columns)

    with pytest.raises(Refused, match=message):
        yamlsched.enqueue(db, "mail")


def test_a_paused_job_is_enqueued(db):
    a_job(db, "mail", paused_at=LATER)

    assert yamlsched.enqueue(db, "mail").created


def test_the_error_for_an_unknown_job_says_how_to_apply_it(db):
    with pytest.raises(
        Refused, match=r'no job "mial" in namespace "default"\. A job is known after the first sync'
    ):
        yamlsched.enqueue(db, "mial")
    with pytest.raises(Refused, match="the job None is of type NoneType"):
        yamlsched.enqueue(db, None)  # type: ignore[call-overload]


def test_a_key_of_another_job_is_refused(db, job):
    a_job(db, "bill")
    yamlsched.enqueue(db, "bill", key="812")

    for enqueue in (
        lambda: yamlsched.enqueue(db, job, key="812"),
        lambda: yamlsched.enqueue_many(db, job, [{}, {}], ["811", "812"]),
    ):
        with pytest.raises(
            Refused, match=r'key "812" is held by a run of another job\. Start keys with the name'
        ):
            enqueue()
    assert len(rows(db)) == 1


def test_a_database_without_the_tables_raises_a_clear_error(server):
    with (
        psycopg.connect(server) as connection,
        pytest.raises(EnvironmentFailed, match="yamlsched migrate"),
    ):
        yamlsched.enqueue(connection, "mail")


def test_a_connection_of_another_driver_raises_an_error_with_instructions(dsn):
    connection = psycopg2.connect(dsn)

    with pytest.raises(
        Refused,
        match=r"psycopg2\.extensions\.connection is not a connection of psycopg 3: .*execute",
    ):
        yamlsched.enqueue(connection, "mail")  # type: ignore[call-overload]
    connection.close()


# -- races


def test_the_second_of_two_transactions_with_one_key_waits_and_gets_the_run_of_the_first(
    db, job, dsn, other
):
    with psycopg.connect(dsn) as first:
        made = yamlsched.enqueue(first, job, {"n": 1}, key="k")

        answer = while_waiting(
            db, other, lambda: yamlsched.enqueue(other, job, {"n": 2}, key="k"), first.commit
        )

    assert answer == (made.run_id, False)
    assert [row.payload for row in rows(db)] == [{"n": 1}]


def test_if_the_first_rolls_back_the_second_creates_the_run(db, job, dsn, other):
    with psycopg.connect(dsn) as first:
        yamlsched.enqueue(first, job, {"n": 1}, key="k")

        answer = while_waiting(
            db, other, lambda: yamlsched.enqueue(other, job, {"n": 2}, key="k"), first.rollback
        )

    assert answer.created
    assert [row.payload for row in rows(db)] == [{"n": 2}]


def test_keys_that_another_transaction_created_concurrently_return_its_runs(db, job, dsn, other):
    with psycopg.connect(dsn) as first:
        made = yamlsched.enqueue_many(first, job, [{}, {}], ["b", "d"])

        answers = while_waiting(
            db,
            other,
            lambda: yamlsched.enqueue_many(other, job, [{}] * 5, ["d", None, "c", "b", "d"]),
            first.commit,
        )

    assert [answer.created for answer in answers] == [False, True, True, False, False]
    assert [answers[n].run_id for n in (3, 0, 4)] == [
        made[0].run_id,
        made[1].run_id,
        made[1].run_id,
    ]


def test_two_sessions_that_enqueue_the_same_keys_in_opposite_order_do_not_deadlock(
    db, job, dsn, other
):
    # given a transaction that holds the middle key, for which both others wait
    keys = [f"k{n}" for n in range(50)]
    with psycopg.connect(dsn) as gate, psycopg.connect(dsn, autocommit=True) as third:
        yamlsched.enqueue(gate, job, key="k25")
        answers: dict[str, list[Any]] = {}

        def enqueue(connection: psycopg.Connection[Any], name: str, order: list[str]) -> None:
            answers[name] = yamlsched.enqueue_many(connection, job, [{}] * 50, order)

        threads = [
            threading.Thread(target=enqueue, args=(other, "forth", keys)),
            threading.Thread(target=enqueue, args=(third, "back", keys[::-1])),
        ]
        for thread in threads:
            thread.start()
        question = "select count(*) from pg_stat_activity where pid = any (%s) and wait_event_type = 'Lock'"
        pids = [other.info.backend_pid, third.info.backend_pid]
        while db.execute(question, [pids]).fetchone()[0] < 2:
            assert all(thread.is_alive() for thread in threads)

        # when it ends
        gate.rollback()
        for thread in threads:
            thread.join()

    # then each key has one run, and both get it
    assert len(rows(db)) == 50
    assert [a.run_id for a in answers["forth"]] == [a.run_id for a in answers["back"]][::-1]


@pytest.mark.parametrize("many", [False, True])
def test_a_key_whose_run_is_pruned_while_it_is_enqueued_is_used(db, job, dsn, other, many):
    # given a prune that has deleted the run and not committed
    made = yamlsched.enqueue(db, job, key="k")
    end(db, made.run_id)
    with psycopg.connect(dsn) as pruning:
        prune(pruning)

        # then until its commit another session gets the run
        def enqueue() -> Any:
            if many:
                return yamlsched.enqueue_many(other, job, [{}, {}], ["a", "k"])[1]
            return yamlsched.enqueue(other, job, key="k")

        assert enqueue() == (made.run_id, False)
        pruning.commit()

    # and afterwards the key is used
    assert enqueue() == (None, False)
    assert {row.idempotency_key for row in rows(db)} == ({"a"} if many else set())


def test_a_key_whose_prune_was_rolled_back_still_has_its_run(db, job, dsn, other):
    made = yamlsched.enqueue(db, job, key="k")
    end(db, made.run_id)
    with psycopg.connect(dsn) as pruning:
        prune(pruning)

        pruning.rollback()
        answer = yamlsched.enqueue(other, job, key="k")

    assert answer == (made.run_id, False)


def test_a_key_after_its_retention_can_be_used_again(db, job, dsn, other):
    end(db, yamlsched.enqueue(db, job, key="k").run_id)
    prune(db)
    db.execute("delete from yamlsched.used_keys")

    assert yamlsched.enqueue(db, job, key="k").created


def test_an_uncommitted_sync_or_pause_blocks_no_enqueue(db, job, dsn):
    with psycopg.connect(dsn) as syncing:
        syncing.execute("select from yamlsched.job_definitions for no key update")
        syncing.execute(
            "update yamlsched.job_definitions set paused_at = now(), payload = '{\"new\": 1}'"
        )
        db.execute("set statement_timeout = '5s'")

        assert yamlsched.enqueue(db, job).created
        assert all(answer.created for answer in yamlsched.enqueue_many(db, job, [{}, {}]))


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_repeatable_read_transaction_survives_a_changed_job_but_not_a_concurrent_key(
    db, job, dsn, level
):
    # given a transaction whose snapshot is older than a pause and than a used key
    with psycopg.connect(dsn) as strict:
        strict.isolation_level = level
        strict.execute("select from yamlsched.job_runs")
        db.execute("update yamlsched.job_definitions set paused_at = now(), payload = '{}'")
        yamlsched.enqueue(db, job, key="k")

        # then it can enqueue, and for the key it gets PostgreSQL's serialization error
        assert yamlsched.enqueue(strict, job, key="l").created
        with pytest.raises(psycopg.errors.SerializationFailure):
            yamlsched.enqueue(strict, job, key="k")


# -- async connections and other drivers


def test_an_asynchronous_connection_enqueues_in_its_transaction(db, job, dsn):
    async def enqueue() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as connection:
            one = await yamlsched.enqueue(connection, job, {"n": 1}, key="k")
            many = await yamlsched.enqueue_many(connection, job, [{"n": 2}, {"n": 3}], ["k", "l"])
            with pytest.raises(Refused, match='no job "mial"'):
                async with connection.transaction():
                    await yamlsched.enqueue(connection, "mial")
            return one, many

    one, many = asyncio.run(enqueue())

    assert one.created
    assert [(answer.run_id == one.run_id, answer.created) for answer in many] == [
        (True, False),
        (False, True),
    ]
    assert [row.payload for row in rows(db)] == [{"n": 1}, {"n": 3}]


def test_a_connection_with_its_own_factories_and_pipeline_can_be_used(db, job, dsn):
    with psycopg.connect(
        dsn, row_factory=dict_row, cursor_factory=psycopg.ClientCursor
    ) as connection:
        with connection.pipeline():
            connection.execute("select 1 as one")
            made = yamlsched.enqueue(connection, job, {"n": 1})
        assert connection.execute("select 1 as one").fetchone() == {"one": 1}

    assert [row.id for row in rows(db)] == [made.run_id]


def test_psycopg2_enqueues_through_the_sql_function(db, job, dsn):
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "select run_id, created from yamlsched.enqueue(%s, %s, idempotency_key => %s)",
            ["mail", '{"n": 1}', "k"],
        )
        [made] = cursor.fetchall()
        cursor.execute(
            "select run_id, created from yamlsched.enqueue('mail', idempotency_key => 'k')"
        )
        [again] = cursor.fetchall()
    connection.close()

    [row] = rows(db)
    assert (made, again) == ((row.id, True), (row.id, False))


def test_each_error_has_its_own_sqlstate_for_every_driver(job, dsn):
    connection = psycopg2.connect(dsn)
    codes = []
    for call in (
        "'mial'",
        "'mail', '[]'",
        "'mail', null",
        "'mail', idempotency_key => ''",
        "'mail', '{}', 'infinity'",
    ):
        with pytest.raises(psycopg2.Error) as raised, connection, connection.cursor() as cursor:
            cursor.execute(f"select * from yamlsched.enqueue({call})")
        codes.append(raised.value.pgcode)
    connection.close()

    assert codes == ["YS001", "YS003", "YS003", "YS003", "YS003"]


@pytest.mark.parametrize("number", ["1e3000", "-1e3000", "1e-3001", "round(1, 3001)"])
def test_a_number_that_jsonb_stores_shorter_than_it_is_written_is_refused(db, job, number):
    """1e131071 has a dozen bytes in a jsonb and 131,072 in its text, and Python reads no integer of
    over 4,300 digits.
    """
    many = f"(select jsonb_agg({number}) from generate_series(1, 20))"
    for payload in (f"jsonb_build_object('n', {number})", f"jsonb_build_object('n', {many})"):
        with pytest.raises(
            psycopg.Error, match=r"mail.* has a number of over 3,000 digits"
        ) as found:
            db.execute(f"select yamlsched.enqueue('mail', {payload})")
        assert found.value.sqlstate == "YS003"

    assert rows(db) == []


def test_numbers_that_would_not_fit_into_a_string_are_refused_before_they_are_written(db, job):
    numbers = "(select jsonb_agg(1e131071) from generate_series(1, 10000))"
    with pytest.raises(psycopg.Error, match="has a number of over 3,000 digits"):
        db.execute(f"select yamlsched.enqueue('mail', jsonb_build_object('n', {numbers}))")


@pytest.mark.parametrize("number", [10**3000 - 1, 1 - 10**3000, 5e-324])
def test_the_longest_numbers_reach_the_handler(db, job, number):
    yamlsched.enqueue(db, job, {"n": number})
    [row] = rows(db)
    assert row.payload == {"n": number}


def test_asyncpg_enqueues_through_the_sql_functions(db, job, dsn):
    parts = conninfo_to_dict(dsn)

    async def enqueue() -> Any:
        connection = await asyncpg.connect(
            host=parts["host"], port=int(parts.get("port") or 5432), user=parts.get("user"), database=parts["dbname"],
            password=parts.get("password"),
        )  # fmt: skip
        async with connection.transaction():
            await connection.fetchrow(
                "select * from yamlsched.enqueue($1, $2::jsonb)", "mail", '{"n": 1}'
            )
            many = await connection.fetch(
                "select * from yamlsched.enqueue_many($1, $2::jsonb[], $3)",
                "mail",
                ['{"n": 2}', '{"n": 3}'],
                ["a", "b"],
            )
        await connection.close()
        return many

    many = asyncio.run(enqueue())

    assert [(row["position"], row["created"]) for row in many] == [(1, True), (2, True)]
    assert [row.payload["n"] for row in rows(db)] == [1, 2, 3]


def test_sqlalchemy_enqueues_in_its_transaction_by_function_or_by_the_driver_connection(
    db, job, dsn
):
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with engine.begin() as connection:
        statement = sqlalchemy.text(
            "select run_id, created from yamlsched.enqueue(:job, cast(:payload as jsonb))"
        )
        connection.execute(statement, {"job": "mail", "payload": '{"n": 1}'})
        below = connection.connection.driver_connection
        yamlsched.enqueue(below, "mail", {"n": 2})
    with engine.connect() as connection, connection.begin() as transaction:
        yamlsched.enqueue(connection.connection.driver_connection, "mail", {"n": 3})
        transaction.rollback()
    engine.dispose()

    assert [row.payload["n"] for row in rows(db)] == [1, 2]


@pytest.mark.parametrize("seconds", [0, 300, 36_525 * 86_400])
def test_a_delay_is_added_to_the_time_of_the_database(db, job, seconds):
    delay = timedelta(seconds=seconds)
    yamlsched.enqueue(db, job, delay=delay)
    yamlsched.enqueue_many(db, job, [{}], delay=durations.show(delay))
    db.execute("select * from yamlsched.enqueue(%s, delay => %s)", [job, delay])
    db.execute(
        "select * from yamlsched.enqueue_many(%s, array['{}']::jsonb[], delay => %s)", [job, delay]
    )
    yamlsched.enqueue(db, job, key="k", delay=delay)
    again = yamlsched.enqueue(db, job, key="k", delay="1s")

    waits = db.execute(
        "select extract(epoch from run_at - created_at)::float8 as seconds from yamlsched.job_runs"
    )
    assert [row.seconds for row in waits] == [pytest.approx(seconds, abs=1)] * 5
    assert not again.created


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            "run_at => now(), delay => interval '1 hour'",
            "run_at and delay were both passed: pass one of them",
        ),
        ("delay => interval '-1 second'", "delay -00:00:01 is not between 0 and 100 years"),
        (
            "delay => interval '36525 days 1 second'",
            "delay 36525 days 00:00:01 is not between 0 and 100 years",
        ),
    ],
)
def test_the_sql_functions_refuse_a_delay_that_is_out_of_range_or_passed_with_run_at(
    db, job, arguments, message
):
    for call in (
        f"enqueue(%s, {arguments})",
        f"enqueue_many(%s, array['{{}}']::jsonb[], {arguments})",
    ):
        with pytest.raises(psycopg.Error, match=message) as refused, db.transaction():
            db.execute(f"select * from yamlsched.{call}", [job])
        assert refused.value.sqlstate == "YS003"
    assert not rows(db)


@pytest.mark.parametrize("kind", ["connection", "session", "scoped session"])
def test_objects_of_sqlalchemy_enqueue_in_their_transaction_also_as_its_first_statement(
    db, job, dsn, kind
):
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    makers = {
        "connection": engine.connect,
        "session": lambda: orm.Session(engine),
        "scoped session": lambda: orm.scoped_session(orm.sessionmaker(engine)),
    }
    given = makers[kind]()
    try:
        assert yamlsched.enqueue(given, "mail", {"n": 1}).created
        given.rollback()
        assert [
            made.created for made in yamlsched.enqueue_many(given, "mail", [{"n": 2}, {"n": 3}])
        ] == [True, True]
        assert rows(db) == []
        given.commit()
    finally:
        given.close()
        engine.dispose()

    assert [row.payload["n"] for row in rows(db)] == [2, 3]


@pytest.mark.parametrize(
    "kind", [sqlalchemy_asyncio.AsyncConnection, sqlalchemy_asyncio.AsyncSession]
)
def test_asynchronous_objects_of_sqlalchemy_enqueue_in_their_transaction(db, job, dsn, kind):
    async def enqueue() -> None:
        engine = sqlalchemy_asyncio.create_async_engine(
            "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(dsn)
        )
        async with kind(engine) as given:
            assert (await yamlsched.enqueue(given, "mail", {"n": 1})).created
            await given.rollback()
            made = await yamlsched.enqueue_many(given, "mail", [{"n": 2}, {"n": 3}])
            assert [one.created for one in made] == [True, True]
            assert rows(db) == []
            await given.commit()
        await engine.dispose()

    asyncio.run(enqueue())

    assert [row.payload["n"] for row in rows(db)] == [2, 3]


def test_what_sqlalchemy_has_besides_and_other_drivers_are_refused_with_what_to_do(dsn):
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg2://", creator=lambda: psycopg2.connect(dsn)
    )
    remedy = r"pass one, or a session or connection of Django or SQLAlchemy with that driver"
    with engine.connect() as connection:
        with pytest.raises(
            Refused, match=rf"^psycopg2\.\S+ is not a connection of psycopg 3: {remedy}"
        ):
            yamlsched.enqueue(connection, "mail")
        with pytest.raises(
            Refused, match=rf"^sqlalchemy\.\S+\.Engine is not a connection of psycopg 3: {remedy}"
        ):
            yamlsched.enqueue(engine, "mail")  # type: ignore[call-overload]
    engine.dispose()


def test_an_enqueuer_needs_no_privileges_on_tables_and_other_roles_cannot_enqueue(own_dsn):
    with psycopg.connect(own_dsn, autocommit=True) as admin:
        a_job(admin, "mail")
        role = f"enqueuer_{admin.info.backend_pid}"
        admin.execute(f"create role {role}".encode())
        admin.execute(f"grant usage on schema yamlsched to {role}".encode())
        try:
            admin.execute(f"set role {role}".encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="function enqueue"):
                yamlsched.enqueue(admin, "mail")
            admin.execute("reset role")
            admin.execute(
                f"grant execute on function yamlsched.enqueue, yamlsched.enqueue_many to {role}".encode()
            )
            admin.execute(f"set role {role}".encode())

            assert yamlsched.enqueue(admin, "mail").created
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                admin.execute("select from yamlsched.job_runs")
        finally:
            admin.execute("reset role")
            admin.execute(f"drop owned by {role}".encode())
            admin.execute(f"drop role {role}".encode())


def test_a_trace_context_that_is_not_one_is_ignored(db: psycopg.Connection[Any]) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    kept = (parent, parent + " " + "a" * 544)
    ignored = (
        parent.upper(),
        parent[:-1],
        f"{parent} a=\n",
        f"{parent}\n",
        f"{parent} {'a' * 545}",
        f"{parent} \u00e4",
        "",
        None,
    )

    a_job(db)

    def found(context: str | None) -> str | None:
        run: Any = db.execute(
            "select run_id from yamlsched.enqueue('purge', trace_context => %s)", [context]
        ).fetchone()
        statement = "select trace_context from yamlsched.job_runs where id = %s"
        return value(db, statement, run.run_id)  # type: ignore[no-any-return]

    assert [found(context) for context in (*kept, *ignored)] == [*kept, *[None] * len(ignored)]


def test_a_later_change_of_the_payload_by_the_caller_does_not_affect_the_run(db, job):
    payload = {"tags": ["a"]}
    yamlsched.enqueue(db, job, payload, run_at=datetime.now(UTC) + timedelta(days=1))
    payload["tags"].append("b")

    assert rows(db)[0].payload == {"tags": ["a"]}
