"""yamlsched.testing: to a handler, a run in a test behaves like a real one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.database import temporary_database
from support.project import until
from yamlsched import Refused, Run, YamlschedError, enqueue
from yamlsched.db import connect
from yamlsched.errors import EffectInDoubt
from yamlsched.testing import (
    IN_DOUBT,
    CommandResult,
    Enqueue,
    FakeRun,
    Trigger,
    assert_enqueued,
    call,
    call_command,
    delete_runs,
    prepare_database,
    provider_key,
)


def charge(run: Run, invoice: int) -> Any:
    with run.once("charge", in_doubt="repeat") as effect:
        if effect.first:
            effect.result = {"id": (invoice, run.attempt)}
    return effect.result


def test_a_handler_gets_its_payload_as_keywords_and_the_run_if_it_has_that_parameter():
    assert call(lambda **payload: payload, FakeRun(payload={"a": (1, 2)})) == {"a": [1, 2]}
    assert call(lambda run, a: [run.attempt, a], FakeRun(payload={"a": 1}, attempt=3)) == [3, 1]
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        call(lambda: None, FakeRun(payload={"a": 1}))


def test_an_asynchronous_handler_is_awaited():
    async def handler(run: Run) -> str:
        return run.job_type

    assert call(handler, FakeRun(job_type="mail")) == "mail"


def test_a_payload_or_a_result_that_could_not_be_stored_is_refused():
    with pytest.raises(Refused, match=r'payload\.x of job "a_job" is of type set'):
        call(lambda x: None, FakeRun(payload={"x": {1}}))
    with pytest.raises(Refused, match="the result is of type set"):
        call(lambda: {1}, FakeRun())


def test_the_next_attempt_gets_the_result_of_a_done_effect_as_json():
    run = FakeRun(payload={"invoice": 812})

    assert call(charge, run) == {"id": [812, 1]}
    assert call(charge, run.next_attempt()) == {"id": [812, 1]}
    assert run.effects == {"run:1:charge": {"id": [812, 1]}}


def test_effects_are_released_doubted_skipped_and_repeated_as_in_a_real_run():
    run = FakeRun()
    with pytest.raises(ConnectionRefusedError), run.once("a", in_doubt="raise"):
        raise ConnectionRefusedError
    with pytest.raises(ZeroDivisionError), run.once("b", in_doubt="raise"):
        raise ZeroDivisionError
    with (
        pytest.raises(ZeroDivisionError),
        run.once("d", in_doubt="raise", release_on=(ZeroDivisionError,)),
    ):
        raise ZeroDivisionError
    run.leave_in_doubt("c", scope="namespace")
    assert run.effects == {"run:1:b": IN_DOUBT, "c": IN_DOUBT}

    with pytest.raises(EffectInDoubt, match="run:1:b"):
        run.once("b", in_doubt="raise").__enter__()
    with run.once("c", scope="namespace", in_doubt="repeat") as effect:
        assert (effect.first, effect.key) == (True, provider_key("c"))
        with pytest.raises(YamlschedError, match="inside itself"):
            run.once("c", scope="namespace", in_doubt="repeat").__enter__()
    assert run.effects["c"] is None
    for in_doubt in ("skip", "raise"):  # a skipped effect is done from then on
        with run.once("b", in_doubt=in_doubt) as effect:
            assert (effect.first, effect.result) == (False, None)
    assert run.effects == {"run:1:b": None, "c": None}


def test_enqueued_runs_can_be_read():
    run = FakeRun()
    when = datetime(2030, 1, 1, tzinfo=UTC)
    run.enqueue("mail", {"n": 1}, key="k", run_at=when)
    run.enqueue_many("mail", [{"n": 2}, {"n": 3}])
    run.enqueue("mail", delay="90m")

    assert run.enqueued == [
        Enqueue("mail", {"n": 1}, "k", when), Enqueue("mail", {"n": 2}), Enqueue("mail", {"n": 3}),
        Enqueue("mail", {}, delay=timedelta(minutes=90)),
    ]  # fmt: skip
    with pytest.raises(Refused, match="is of type datetime"):
        run.enqueue("mail", {"at": when})


def transact(run: Run) -> None:
    run.enqueue("mail", {"n": 0})
    with run.transaction() as connection:
        connection.execute("create table things (n int)")
        run.enqueue("mail", {"n": 1})
        run.result = {"things": (1,)}


def test_a_transaction_is_nested_in_the_tests_transaction_and_its_result_is_the_runs(dsn: str):
    with psycopg.connect(dsn) as connection, connection.transaction(force_rollback=True):
        run = FakeRun(connection=connection)

        assert call(transact, run) == {"things": [1]}

        assert connection.execute("select * from things").fetchall() == []
        assert len(run.enqueued) == 2
        for use in (
            lambda: run.enqueue("mail"),
            run.transaction().__enter__,
            run.once("x", in_doubt="raise").__enter__,
        ):
            with pytest.raises(YamlschedError, match=r"ended|once in an attempt"):
                use()


async def a_shared_handler(run: Run) -> None:
    async with run.once("mail", in_doubt="skip") as effect:
        if effect.first:
            effect.result = run.attempt
    await run.enqueue("other")
    async with run.transaction() as connection:
        cursor = await connection.execute("select 1 as one")
        run.result = [(await cursor.fetchone())[0], effect.result]


def test_an_asynchronous_handler_gets_an_asynchronous_connection(dsn: str) -> None:
    connection = asyncio.run(psycopg.AsyncConnection.connect(dsn))
    run = FakeRun(connection=connection, commit_fails=True)

    with pytest.raises(psycopg.OperationalError, match="because the test requested it"):
        call(a_shared_handler, run)
    assert call(a_shared_handler, run.next_attempt()) == [1, 1]
    asyncio.run(connection.close())

    assert call(a_shared_handler, FakeRun(dsn=dsn)) == [1, 1]
    with pytest.raises(
        YamlschedError, match=r"FakeRun\(connection=await psycopg.AsyncConnection.connect"
    ):
        call(a_shared_handler, FakeRun())


def test_an_asynchronous_connection_is_not_for_a_transaction_without_async(dsn: str) -> None:
    def handler(run: Run) -> None:
        with run.transaction():
            pass

    connection = asyncio.run(psycopg.AsyncConnection.connect(dsn))
    with pytest.raises(YamlschedError, match="without async: pass a psycopg"):
        call(handler, FakeRun(connection=connection))
    asyncio.run(connection.close())


def test_a_failed_commit_leaves_nothing_and_the_next_attempt_may_succeed(dsn: str):
    with psycopg.connect(dsn) as connection, connection.transaction(force_rollback=True):
        run = FakeRun(connection=connection, commit_fails=True)
        with pytest.raises(psycopg.OperationalError):
            call(transact, run)
        assert run.enqueued == [Enqueue("mail", {"n": 0})]

        assert call(transact, run.next_attempt()) == {"things": [1]}


def test_a_transaction_without_a_connection_raises_an_error_that_names_the_argument():
    with pytest.raises(YamlschedError, match=r"FakeRun\(connection="):
        call(transact, FakeRun())


def test_a_test_run_has_all_attributes_of_a_run():
    assert {f.name for f in fields(Run)} <= {f.name for f in fields(FakeRun)}
    for name in ("enqueue", "enqueue_many", "once", "transaction"):
        real, fake = getattr(Run, name), getattr(FakeRun, name)
        assert real.__annotations__ == fake.__annotations__


# -- commands


def test_a_command_is_run_as_by_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schedules.yaml").write_text(
        """version: 1
jobs:
  fetch:
    command: [/bin/sh, -c, 'echo "$TOKEN $YAMLSCHED_JOB $YAMLSCHED_ATTEMPT $YAMLSCHED_PAYLOAD"; exit ${CODE:-0}']
    env: {LANG: C}
    payload: {a: 1}
    exit_codes: {discard: [64]}
    max_attempts: 3
  missing: {command: [./missing]}
  purge: {handler: a.b}
"""
    )
    file = tmp_path / "schedules.yaml"
    monkeypatch.setenv("TOKEN", "abc")
    monkeypatch.setenv("YAMLSCHED_DSN", "secret")

    assert call_command(file, "fetch") == CommandResult(
        "succeeded", 0, 'abc fetch 1 {"a": 1}\n', "", None
    )

    monkeypatch.setenv("CODE", "75")
    run = FakeRun(payload={"b": 2}, attempt=2)
    text = 'abc fetch 2 {"b": 2}'
    later = timedelta(minutes=15)
    assert call_command(file, "fetch", run) == CommandResult(
        "failed", 75, f"{text}\n", f"exit code 75: {text}", later
    )
    monkeypatch.setenv("CODE", "64")
    assert call_command(str(file), "fetch", run.next_attempt()).outcome == "dead"

    assert call_command(file, "missing").exit_code is None
    with pytest.raises(Refused, match='no valid job "purge" with a command'):
        call_command(file, "purge")


def test_a_hook_gets_the_trigger_of_a_test_run(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(
        "version: 1\njobs:\n  ping: {command: [sh, -c, 'printf %s \"$YAMLSCHED_TRIGGER\"']}\n"
    )
    slot = datetime(2026, 1, 14, 2, tzinfo=UTC)
    trigger = Trigger("charge", 118, scheduled_for=slot, payload={"n": 1}, error="no route")

    found = json.loads(call_command(file, "ping", FakeRun(trigger=trigger)).output)

    assert (found["job_type"], found["run_id"], found["payload"]) == ("charge", 118, {"n": 1})
    assert (found["status"], found["error"], found["result"]) == ("dead", "no route", None)
    assert datetime.fromisoformat(found["scheduled_for"]) == slot
    assert call_command(file, "ping", FakeRun()).output == ""
    assert call(lambda run: run.trigger.error, FakeRun(trigger=trigger)) == "no route"


def test_a_background_process_does_not_prolong_the_call_of_a_command(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    script = "(while [ ! -e go ]; do sleep 0.01; done; touch done) & echo started"
    file.write_text(
        json.dumps({"version": 1, "jobs": {"a": {"command": ["/bin/sh", "-c", script]}}})
    )

    assert call_command(file, "a").output == "started\n"

    (tmp_path / "go").touch()
    until((tmp_path / "done").exists)


def test_a_prepared_database_takes_runs_and_the_next_test_finds_none(
    server: str, tmp_path: Path
) -> None:
    # given an empty database and a file
    file = tmp_path / "schedules.yaml"
    file.write_text("version: 1\njobs:\n  purge: {handler: gc.collect}\n")
    with temporary_database(server, "template0") as dsn:
        prepare_database(dsn, file)
        prepare_database(dsn, file)

        # when a test enqueues and commits, and then what it did is deleted
        def enqueue_and_count() -> int:
            with connect(dsn) as connection:
                enqueue(connection, "purge", key="a")
                return (
                    connection.execute("select count(*) as n from yamlsched.job_runs").fetchone().n
                )

        assert enqueue_and_count() == 1
        delete_runs(dsn)

        # then the next one starts with no run and no used key
        assert enqueue_and_count() == 1

        file.write_text("version: 1\njobs:\n  purge: {handler: nowhere.at_all}\n")
        with pytest.raises(Refused, match="nowhere"):
            prepare_database(dsn, file)


def test_what_was_enqueued_is_found_before_the_commit_by_a_part_of_its_payload(
    server: str, tmp_path: Path
) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("version: 1\njobs:\n  mail: {handler: mail.send}\n")
    (tmp_path / "mail.py").write_text("def send(order, to): ...\n")
    with temporary_database(server, "template0") as dsn:
        prepare_database(dsn, file)
        with psycopg.connect(dsn) as connection:
            enqueue(connection, "mail", {"order": 7, "to": ["ada"]})

            assert_enqueued(connection, "mail")
            assert_enqueued(connection, "mail", {"order": 7})
            for job, payload in (("mail", {"order": 8}), ("mail", {"from": "ada"}), ("post", {})):
                with pytest.raises(AssertionError, match=f"no run of {job} has "):
                    assert_enqueued(connection, job, payload)
            with pytest.raises(
                AssertionError, match=r"its runs have \[\{'to': \['ada'\], 'order': 7"
            ):
                assert_enqueued(connection, "mail", {"order": 8})
            connection.rollback()

            with pytest.raises(AssertionError, match=r"its runs have \[\]"):
                assert_enqueued(connection, "mail")
