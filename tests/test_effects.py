"""Effects that happen once: run.transaction() and run.once(), under kill -9 and concurrently."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.crashes import FAN_OUT, POINTS, POLICIES, VICTIMS
from support.database import while_waiting
from support.project import Project, a_project
from support.rows import a_job, a_started_run
from yamlsched import Discard, Refused, RetryAfter, Run, Snooze, YamlschedError, cli
from yamlsched.act.runs import cancel
from yamlsched.act.settle import settle
from yamlsched.ask import history
from yamlsched.db import connect
from yamlsched.errors import EffectInDoubt, LeaseLost
from yamlsched.handler import backends
from yamlsched.handler.once import effect_key, settle_command
from yamlsched.handler.sessions import sessions
from yamlsched.runs import effects
from yamlsched.runs import statements as store
from yamlsched.runs.lifecycle import ClaimedRun, EnqueueBatch, one_line

ROOT = Path(__file__).resolve().parent.parent
JOB = "effect_and_transaction"


# -- one attempt, in this process


@pytest.fixture
def job(db: psycopg.Connection[Any]) -> Iterator[str]:
    """A job, and a table of the application in the same database."""
    db.execute("create table if not exists ledger (run_id bigint not null)")
    a_job(db, "mail")
    yield "mail"
    sessions.close()
    db.execute("drop table ledger")


def lapse(db: psycopg.Connection[Any], run: Run) -> None:
    """Expire the lease of a run."""
    db.execute("update yamlsched.job_runs set locked_until = now() - interval '1 second' where id = %s", [run.id])


def die_inside(run: Run, name: str = "post", scope: str = "run") -> None:
    """Claim the key of an effect and write nothing more, as a process that is killed inside does."""
    key = effects.EffectEntry(
        "default", effect_key(run.id, name, scope), run.id, run.attempt, run.backend.locked_by, str(uuid.uuid4())
    )
    claimed = run.backend.record(effects.claim, key)
    assert claimed is not None
    assert claimed.is_first


def effect_states(db: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    return [(row.key, row.state) for row in db.execute("select key, state from yamlsched.effects order by id")]


def status(db: psycopg.Connection[Any], run: Run) -> str:
    return str(db.execute("select status from yamlsched.job_runs where id = %s", [run.id]).fetchone().status)  # type: ignore[union-attr]


def test_a_later_attempt_skips_a_done_effect_and_reads_its_result(db, dsn, job):
    first = a_started_run(db, dsn)
    with first.once("post", in_doubt="raise") as effect:
        assert effect.first
        assert effect_states(db) == [(f"run:{first.id}:post", "claimed")]
        effect.result = {"id": [7]}

    with a_started_run(db, dsn, first.id).once("post", in_doubt="raise") as again:
        assert (again.first, again.key, again.result) == (False, effect.key, {"id": [7]})
    with a_started_run(db, dsn).once("post", in_doubt="raise") as other:
        assert other.first


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), Discard("no"), RetryAfter(9), Snooze(9)])
def test_an_exception_that_proves_that_nothing_happened_releases_the_effect(db, dsn, job, error):
    run = a_started_run(db, dsn)
    with pytest.raises(type(error)), run.once("post", in_doubt="raise"):
        raise error
    assert effect_states(db) == []

    with run.once("post", in_doubt="raise") as effect:
        assert effect.first


@pytest.mark.parametrize(
    "error", [ZeroDivisionError, TimeoutError, ConnectionResetError, KeyboardInterrupt, SystemExit, LeaseLost]
)
def test_any_other_exception_leaves_the_effect_in_doubt_and_logs_it(db, dsn, job, error):
    run = a_started_run(db, dsn)
    with pytest.raises(error) as raised, run.once("post", in_doubt="raise"):
        raise error

    key = f"run:{run.id}:post"
    assert effect_states(db) == [(key, "in_doubt")]
    assert raised.value.__notes__ == [f'effect "{key}" is in doubt: this error does not prove that nothing happened']


def test_release_on_replaces_the_default_exceptions_that_release_an_effect(db, dsn, job):
    run = a_started_run(db, dsn)
    for name, error in (("own", ZeroDivisionError), ("usual", ConnectionRefusedError)):
        with pytest.raises(error), run.once(name, in_doubt="raise", release_on=(ArithmeticError,)):
            raise error

    assert effect_states(db) == [(f"run:{run.id}:usual", "in_doubt")]


def test_the_error_of_in_doubt_raise_contains_what_to_look_up_and_the_exact_commands(db, dsn, job):
    run = a_started_run(db, dsn)
    with suppress(TimeoutError), run.once("welcome mail", in_doubt="raise") as effect:
        raise TimeoutError

    for _ in range(2):
        run = a_started_run(db, dsn, run.id)
        with pytest.raises(EffectInDoubt) as raised, run.once("welcome mail", in_doubt="raise"):
            raise AssertionError("entered")
    assert re.fullmatch(
        rf"effect in doubt: attempt 1 of run {run.id} started it at \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ and did not "
        rf"report its end\. Look up whether it happened \(idempotency key {effect.key}\), then run: yamlsched settle "
        rf"--done 'run:{run.id}:welcome mail' \(or --not-done\), then: yamlsched retry {run.id}",
        str(raised.value),
    )


@pytest.mark.parametrize(
    "name, command",
    [
        ("x" * 200, f"yamlsched settle --done {'x' * 200} (or --not-done)"),
        ("-rf", "yamlsched settle --done -- -rf (or --not-done)"),
        ("o'hara; reboot", "yamlsched settle --done 'o'\"'\"'hara; reboot' (or --not-done)"),
        ("'" * 200, "the settle command that `yamlsched show {id}` prints"),
    ],
)
def test_the_commands_for_an_effect_in_doubt_are_quoted_correctly_for_every_name(db, dsn, job, name, command):
    die_inside(first := a_started_run(db, dsn), name, scope="namespace")

    with pytest.raises(EffectInDoubt) as raised:
        a_started_run(db, dsn, first.id).once(name, in_doubt="raise", scope="namespace").__enter__()

    argv = shlex.split(settle_command("default", name).removesuffix(" (or --not-done)"))
    with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:  # noqa: PT012
        db.execute("update yamlsched.job_runs set locked_until = null, status = 'cancelled', finished_at = now()")
        patch.setattr(sys, "argv", [argv[0], "--dsn", dsn, *argv[1:]])
        cli.main()
    assert (ended.value.code or 0, effect_states(db)) == (0, [(name, "done")])
    kept = one_line(str(raised.value))
    assert f"then run: {command.format(id=first.id)}, then: yamlsched retry {first.id}" in kept
    assert kept.endswith(f"retry {first.id}")


def test_in_doubt_skip_treats_it_as_done_for_every_later_attempt(db, dsn, job, caplog):
    run = a_started_run(db, dsn)
    die_inside(run)

    with a_started_run(db, dsn, run.id).once("post", in_doubt="skip") as effect:
        assert (effect.first, effect.result) == (False, None)

    assert f'effect "run:{run.id}:post" was in doubt and now counts as done' in caplog.text
    assert effect_states(db) == [(f"run:{run.id}:post", "done")]
    with a_started_run(db, dsn, run.id).once("post", in_doubt="raise") as effect:
        assert not effect.first


def test_in_doubt_repeat_repeats_it_with_the_same_key(db, dsn, job):
    run = a_started_run(db, dsn)
    keys = []
    for error in (TimeoutError, KeyboardInterrupt, ConnectionRefusedError):
        with suppress(error), a_started_run(db, dsn, run.id).once("post", in_doubt="repeat") as effect:
            assert effect.first
            keys.append(effect.key)
            raise error
    with a_started_run(db, dsn, run.id).once("post", in_doubt="repeat") as effect:
        assert effect.first
        keys.append(effect.key)

    assert effect_states(db) == [(f"run:{run.id}:post", "done")]
    assert len(keys) == 4
    assert len(set(keys)) == 1


def test_an_effect_that_in_doubt_skip_treated_as_done_can_still_be_settled(db, dsn, job):
    for name, happened in (("did", True), ("did not", False)):
        die_inside(run := a_started_run(db, dsn), name, scope="namespace")
        with a_started_run(db, dsn, run.id).once(name, in_doubt="skip", scope="namespace"):
            pass
        settle(db, "default", name, "ada", happened, 7 if happened else None)

    with a_started_run(db, dsn).once("did", in_doubt="raise", scope="namespace") as effect:
        assert (effect.first, effect.result) == (False, 7)
    with a_started_run(db, dsn).once("did not", in_doubt="raise", scope="namespace") as effect:
        assert effect.first
    with pytest.raises(Refused, match="is not in doubt: it was done"):
        settle(db, "default", "did", "ada", False)


# -- effect.key


def key_of(run: Run, scope: Any = "run", name: str = "post") -> str:
    with run.once(name, in_doubt="repeat", scope=scope) as effect:
        return effect.key


def test_the_key_for_a_provider_is_a_uuid_for_every_name(db, dsn, job):
    for name in ("post", "Überweisung 'x'", "x" * 200):
        key = key_of(a_started_run(db, dsn), name=name)
        assert str(uuid.UUID(key)) == key
        assert uuid.UUID(key).version == 8


def test_a_run_that_gets_the_id_of_a_lost_run_has_other_keys(db, dsn, job):
    first = a_started_run(db, dsn)
    keys = [key_of(first), key_of(first, "namespace", "charge:812")]

    # given a failover to a standby that had not received the run, and a new run with its id
    db.execute("delete from yamlsched.effects")
    db.execute("delete from yamlsched.job_runs")
    db.execute("select setval('yamlsched.job_runs_id_seq', %s, false)", [first.id])
    second = a_started_run(db, dsn)

    # then its own effects have other keys, and effects with a business key have the same
    assert second.id == first.id
    assert key_of(second) != keys[0]
    assert key_of(second, "namespace", "charge:812") == keys[1]


def test_an_effect_whose_record_was_lost_has_the_same_key_again(db, dsn, job):
    run = a_started_run(db, dsn)
    key = key_of(run)
    db.execute("delete from yamlsched.effects")

    assert key_of(run) == key


def test_keys_differ_by_database_namespace_scope_and_name(db, dsn, job):
    run = a_started_run(db, dsn)
    keys = {key_of(run), key_of(run, name="other"), key_of(run, "namespace"), key_of(a_started_run(db, dsn))}
    db.execute("update yamlsched.database_identity set identity = gen_random_uuid()")
    db.execute("delete from yamlsched.effects")
    keys |= {key_of(run), key_of(run, "namespace")}

    assert len(keys) == 6


# -- several runs, attempts and threads


def test_an_effect_with_a_business_key_is_done_once_by_the_first_run(db, dsn, job):
    with a_started_run(db, dsn).once("charge:812", in_doubt="raise", scope="namespace") as effect:
        assert effect.first
        effect.result = "ch_1"

    with a_started_run(db, dsn).once("charge:812", in_doubt="raise", scope="namespace") as effect:
        assert (effect.first, effect.result) == (False, "ch_1")


def test_while_a_live_attempt_of_another_run_holds_a_business_key_a_run_snoozes(db, dsn, job):
    die_inside(holder := a_started_run(db, dsn), "charge:812", scope="namespace")

    with pytest.raises(Snooze, match=f'"charge:812" is held by run {holder.id}, which is running') as raised:
        a_started_run(db, dsn).once("charge:812", in_doubt="raise", scope="namespace").__enter__()
    assert raised.value.delay == timedelta(seconds=15)

    # once its lease has ended, it is in doubt
    lapse(db, holder)
    with pytest.raises(EffectInDoubt, match=f"attempt 1 of run {holder.id} started it"):
        a_started_run(db, dsn).once("charge:812", in_doubt="raise", scope="namespace").__enter__()
    assert effect_states(db) == [("charge:812", "in_doubt")]


def test_an_attempt_that_outlived_its_lease_cannot_claim_an_effect(db, dsn, job):
    run = a_started_run(db, dsn)
    lapse(db, run)
    with pytest.raises(LeaseLost, match="attempt 1 outlived its lease"):
        run.once("post", in_doubt="raise").__enter__()

    a_started_run(db, dsn, run.id)
    with pytest.raises(LeaseLost):
        run.once("post", in_doubt="raise").__enter__()
    assert effect_states(db) == []


def test_an_attempt_that_outlived_its_lease_cannot_take_over_an_effect_in_doubt(db, dsn, job, monkeypatch):
    # given an attempt that finds an effect in doubt, and outlives its lease before it claims the effect again
    die_inside(first := a_started_run(db, dsn))
    zombie = a_started_run(db, dsn, first.id)
    real = effects.take_over
    monkeypatch.setattr(effects, "take_over", lambda *given: (lapse(db, zombie), real(*given))[1])

    with pytest.raises(LeaseLost):
        zombie.once("post", in_doubt="repeat").__enter__()

    assert effect_states(db) == [(f"run:{first.id}:post", "in_doubt")]


def test_what_an_expired_attempt_did_is_recorded_although_it_is_in_doubt_by_then(db, dsn, job):
    zombie = a_started_run(db, dsn)
    with zombie.once("post", in_doubt="raise") as effect:
        with a_started_run(db, dsn, zombie.id).once("post", in_doubt="skip") as doubted:
            assert not doubted.first
        effect.result = "posted"

    with a_started_run(db, dsn, zombie.id).once("post", in_doubt="raise") as later:
        assert (later.first, later.result) == (False, "posted")


def test_an_expired_attempt_does_not_release_an_effect_that_another_attempt_has_decided_about(db, dsn, job):
    zombie = a_started_run(db, dsn)
    with pytest.raises(ConnectionRefusedError), zombie.once("post", in_doubt="raise"):  # noqa: PT012
        with a_started_run(db, dsn, zombie.id).once("post", in_doubt="skip"):
            pass
        raise ConnectionRefusedError

    assert effect_states(db) == [(f"run:{zombie.id}:post", "done")]


def test_an_expired_attempt_does_not_change_an_effect_that_was_claimed_again(db, dsn, job, caplog):
    zombie = a_started_run(db, dsn)
    with zombie.once("post", in_doubt="raise") as effect:
        with a_started_run(db, dsn, zombie.id).once("post", in_doubt="repeat") as again:
            assert again.first
            again.result = "the second"
        effect.result = "the first"

    assert "was done, but it has been started again" in caplog.text
    with a_started_run(db, dsn, zombie.id).once("post", in_doubt="raise") as later:
        assert later.result == "the second"


def test_an_effect_that_is_done_while_another_attempt_marks_it_in_doubt_is_done(db, dsn, job, monkeypatch):
    zombie = a_started_run(db, dsn)
    manager = zombie.once("post", in_doubt="raise")
    manager.__enter__().result = "posted"
    real = effects.mark_in_doubt

    def doubt(*given: Any) -> bool:
        manager.__exit__(None, None, None)
        return real(*given)

    monkeypatch.setattr(effects, "mark_in_doubt", doubt)
    with a_started_run(db, dsn, zombie.id).once("post", in_doubt="raise") as later:
        assert (later.first, later.result) == (False, "posted")


@pytest.mark.parametrize("commit", [True, False])
def test_a_run_waits_for_a_key_that_another_transaction_is_claiming(db, dsn, job, commit):
    # given an uncommitted claim of a key
    holder, run = a_started_run(db, dsn), a_started_run(db, dsn)
    with psycopg.connect(dsn, row_factory=namedtuple_row) as other:
        effects.claim(
            other, effects.EffectEntry("default", "k", holder.id, 1, holder.backend.locked_by, str(uuid.uuid4()))
        )
        with sessions.use(dsn, "effects", 1) as session:
            pass

        # when a run waits for the key, and the other transaction ends
        def enter() -> Any:
            return run.once("k", in_doubt="raise", scope="namespace").__enter__()

        if commit:
            with pytest.raises(Snooze, match="is held by run"):
                while_waiting(db, session, enter, other.commit)
        else:
            assert while_waiting(db, session, enter, other.rollback).first


def test_a_done_effect_is_recorded_although_the_session_broke_inside_it(db, dsn, job):
    run = a_started_run(db, dsn)
    with run.once("post", in_doubt="raise") as effect:
        with sessions.use(dsn, "effects", 1) as session:
            db.execute("select pg_terminate_backend(%s)", [session.info.backend_pid])
        effect.result = "posted"

    assert effect_states(db) == [(f"run:{run.id}:post", "done")]


@pytest.mark.parametrize("statement", ["claim", "take_over", "mark_done", "mark_in_doubt", "release"])
def test_a_statement_whose_answer_was_lost_is_sent_again_with_the_same_result(db, dsn, job, monkeypatch, statement):
    run = a_started_run(db, dsn)
    if statement == "take_over":
        die_inside(run)
        run = a_started_run(db, dsn, run.id)
    real, lost = getattr(effects, statement), []

    def answer_lost(*given: Any) -> Any:
        answer = real(*given)
        if not lost:
            lost.append(answer)
            raise psycopg.OperationalError("the connection was lost")
        return answer

    monkeypatch.setattr(effects, statement, answer_lost)
    error = {"mark_in_doubt": ZeroDivisionError, "release": Discard}.get(statement)
    with suppress(ZeroDivisionError, Discard), run.once("post", in_doubt="repeat") as effect:
        assert effect.first
        if error:
            raise error

    assert len(lost) == 1
    key = f"run:{run.id}:post"
    assert effect_states(db) == {"mark_in_doubt": [(key, "in_doubt")], "release": []}.get(statement, [(key, "done")])


def test_a_skip_whose_answer_was_lost_remains_a_skip(db, dsn, job, monkeypatch):
    die_inside(run := a_started_run(db, dsn))
    real, lost = effects.assume_done, []

    def answer_lost(*given: Any) -> Any:
        answer = real(*given)
        if not lost:
            lost.append(answer)
            raise psycopg.OperationalError("the connection was lost")
        return answer

    monkeypatch.setattr(effects, "assume_done", answer_lost)
    with a_started_run(db, dsn, run.id).once("post", in_doubt="skip") as effect:
        assert not effect.first

    assert lost == [True]
    assert effect_states(db) == [(f"run:{run.id}:post", "done")]


def test_an_unreachable_database_does_not_hide_the_handlers_exception(db, dsn, job, monkeypatch, caplog):
    monkeypatch.setattr(backends, "MAX_OUTAGE_SECONDS", 0)
    monkeypatch.setattr(effects, "release", lambda *_: (_ for _ in ()).throw(psycopg.OperationalError("gone")))
    run = a_started_run(db, dsn)

    with pytest.raises(ConnectionRefusedError), run.once("post", in_doubt="raise"):
        raise ConnectionRefusedError

    assert "remains in doubt, because the database does not answer: gone" in caplog.text
    # and the same attempt does not treat its own old entry as a new claim
    with pytest.raises(EffectInDoubt), run.once("post", in_doubt="raise"):
        raise AssertionError("entered")


def test_a_result_that_cannot_be_stored_fails_the_attempt_and_leaves_the_effect_in_doubt(db, dsn, job):
    run = a_started_run(db, dsn)
    with (
        pytest.raises(Refused, match='the result of effect "post" is a set'),
        run.once("post", in_doubt="raise") as effect,
    ):
        effect.result = {1}

    assert effect_states(db) == [(f"run:{run.id}:post", "in_doubt")]


@pytest.mark.parametrize("bytes_over, state", [(-1, "done"), (0, "done"), (1, "in_doubt")])
def test_a_result_has_at_most_64_kib(db, dsn, job, bytes_over, state):
    run = a_started_run(db, dsn)
    refused = pytest.raises(Refused, match="has 65537 bytes as JSON, over the limit of 64 KiB")
    with refused if bytes_over > 0 else nullcontext(), run.once("post", in_doubt="raise") as effect:
        effect.result = "ü" + "x" * (65_536 - 4 + bytes_over)

    assert effect_states(db) == [(f"run:{run.id}:post", state)]
    if state == "done":
        with a_started_run(db, dsn, run.id).once("post", in_doubt="raise") as later:
            assert later.result == effect.result


@pytest.mark.parametrize("scope", ["run", "namespace"])
@pytest.mark.parametrize("name", ["x", "\U0001f4e7" * 199, "\U0001f4e7" * 200, "'; drop table x --", '%s {0} $$ \\ "'])
def test_a_name_is_any_printable_string_of_1_to_200_characters(db, dsn, job, name, scope):
    with a_started_run(db, dsn).once(name, in_doubt="raise", scope=scope) as effect:
        assert effect.first
    [(key, state)] = effect_states(db)
    assert key.endswith(name)
    assert state == "done"


@pytest.mark.parametrize(
    "name, message",
    [
        ("", "a string of 1 to 200 characters"),
        ("x" * 201, "a string of 1 to 200 characters"),
        (7, "a string of 1 to 200 characters, not 7"),
        ("a\x00b", "contains a NUL character"),
        ("run:118:mail", 'names that start with "run:" are reserved'),
        ("run:", 'names that start with "run:" are reserved'),
        ("a\nb", "printable characters only"),
        ("\u202email", "printable characters only"),
        ("\ud800", "contains"),
    ],
)
def test_an_invalid_name_is_refused(db, dsn, job, name, message):
    with pytest.raises(Refused, match=message):
        a_started_run(db, dsn).once(name, in_doubt="raise", scope="namespace").__enter__()


def test_an_effect_cannot_be_nested_in_itself_but_in_another(db, dsn, job):
    run = a_started_run(db, dsn)
    with run.once("outer", in_doubt="raise"):
        with run.once("inner", in_doubt="raise") as inner:
            assert inner.first
        with pytest.raises(YamlschedError, match="is entered inside itself, or by two threads at once"):
            run.once("outer", in_doubt="raise").__enter__()

    assert [state for _, state in effect_states(db)] == ["done", "done"]


def test_threads_of_a_handler_have_effects_concurrently(db, dsn, job):
    run = a_started_run(db, dsn)

    def post(n: int) -> None:
        with run.once(f"post {n}", in_doubt="raise") as effect:
            effect.result = n

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(post, range(40)))

    assert [state for _, state in effect_states(db)] == ["done"] * 40


def test_of_concurrent_threads_with_one_effect_one_does_it(db, dsn, job):
    run, start, entered = a_started_run(db, dsn), threading.Barrier(8), []

    def post(n: int) -> bool:
        start.wait()
        try:
            with run.once("post", in_doubt="raise") as effect:
                entered.append(effect.first)
        except YamlschedError as error:
            return "by two threads at once" in str(error)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(post, range(8)))

    assert entered.count(True) == 1
    # once it is done, threads skip it concurrently
    later = a_started_run(db, dsn, run.id)
    with later.once("post", in_doubt="raise") as one, later.once("post", in_doubt="raise") as other:
        assert (one.first, other.first) == (False, False)


def in_a_fork(do: Callable[[], None]) -> int:
    """Call ``do`` in a forked process, as a handler may do, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_of_a_handler_has_effects_on_its_own_session(db, dsn, job):
    run = a_started_run(db, dsn)

    def backend() -> int:
        with sessions.use(dsn, "effects", 10) as session:
            return int(session.info.backend_pid)

    before = backend()

    def post() -> None:
        with run.once("of the child", in_doubt="raise") as effect:
            assert effect.first
            assert backend() != before
            effect.result = 7

    assert in_a_fork(post) == 0
    with run.once("of the parent", in_doubt="raise") as effect:
        assert effect.first
        assert backend() == before
    with run.once("of the child", in_doubt="raise") as effect:
        assert (effect.first, effect.result) == (False, 7)


@pytest.mark.parametrize("error", [None, SystemExit, ConnectionRefusedError])
def test_a_process_that_is_forked_inside_an_effect_does_not_record_its_end(db, dsn, job, error):
    run = a_started_run(db, dsn)
    manager = run.once("post", in_doubt="raise")
    effect = manager.__enter__()

    def leave() -> None:
        with suppress(StopIteration):
            assert not manager.__exit__(error, error and error(), None)

    assert in_a_fork(leave) == 0
    assert effect_states(db) == [(f"run:{run.id}:post", "claimed")]
    effect.result = "posted"
    manager.__exit__(None, None, None)
    assert effect_states(db) == [(f"run:{run.id}:post", "done")]


def test_two_processes_of_one_attempt_do_not_both_do_an_effect(db, dsn, job):
    # given a forked process that is inside the effect
    run = a_started_run(db, dsn)
    die_inside(run)

    # then its parent, in the same attempt, does not treat the effect as its own
    with pytest.raises(YamlschedError, match="is entered by two processes of one attempt"):
        run.once("post", in_doubt="repeat").__enter__()
    assert effect_states(db) == [(f"run:{run.id}:post", "claimed")]


# -- run.transaction()


def test_rows_result_fan_out_and_success_are_committed_together(db, dsn, job):
    run = a_started_run(db, dsn)
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        run.enqueue("mail", {"n": 1}, key="a")
        run.result = {"sent": 3}
        assert db.execute("select count(*) as n from ledger").fetchone().n == 0

    row = db.execute("select * from yamlsched.job_runs where id = %s", [run.id]).fetchone()
    assert (row.status, row.result, row.locked_until, row.locked_by) == (
        "succeeded", {"sent": 3}, None, run.backend.locked_by,
    )  # fmt: skip
    assert db.execute("select payload, parent_id from yamlsched.job_runs where idempotency_key = 'a'").fetchone() == (
        {"n": 1},
        run.id,
    )
    assert db.execute("select count(*) as n from ledger").fetchone().n == 1


def test_an_exception_in_the_transaction_rolls_everything_back_also_enqueued_runs(db, dsn, job):
    run = a_started_run(db, dsn)
    run.enqueue("mail", {"n": "before"})
    with pytest.raises(ZeroDivisionError), run.transaction() as connection:  # noqa: PT012
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        run.enqueue("mail", {"n": "inside"})
        raise ZeroDivisionError

    assert (status(db, run), db.execute("select count(*) as n from ledger").fetchone().n) == ("running", 0)
    assert [batch.payloads for batch in run.state.enqueued] == [['{"n": "before"}']]


def test_an_attempt_whose_run_was_taken_over_commits_nothing(db, dsn, job):
    zombie = a_started_run(db, dsn)
    lost = pytest.raises(LeaseLost, match="outlived its lease; nothing was committed")
    with lost, zombie.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [zombie.id])
        a_started_run(db, dsn, zombie.id)

    assert (status(db, zombie), db.execute("select count(*) as n from ledger").fetchone().n) == ("running", 0)


def test_an_effect_inside_a_transaction_that_is_rolled_back_is_known_to_the_next_attempt(db, dsn, job):
    run = a_started_run(db, dsn)
    with pytest.raises(ZeroDivisionError), run.transaction():  # noqa: PT012
        with run.once("post", in_doubt="raise") as effect:
            effect.result = "posted"
        raise ZeroDivisionError

    with a_started_run(db, dsn, run.id).once("post", in_doubt="raise") as effect:
        assert (effect.first, effect.result) == (False, "posted")


def test_after_the_transaction_the_run_accepts_no_further_call(db, dsn, job):
    run = a_started_run(db, dsn)
    with run.transaction(), pytest.raises(YamlschedError, match="once in an attempt"):
        run.transaction().__enter__()

    for use in (
        lambda: run.transaction().__enter__(),
        lambda: run.once("post", in_doubt="raise").__enter__(),
        lambda: run.enqueue("mail"),
    ):
        with pytest.raises(YamlschedError, match=r"once in an attempt|has ended, and the run with it"):
            use()
    assert status(db, run) == "succeeded"


def test_a_swallowed_statement_error_is_reported_unless_it_was_in_a_nested_transaction(db, dsn, job):
    run = a_started_run(db, dsn)
    caught = pytest.raises(YamlschedError, match="its error was caught: nothing can be committed")
    with caught, run.transaction() as connection, suppress(psycopg.Error):
        connection.execute("select 1/0")

    with run.transaction() as connection:
        with suppress(psycopg.Error), connection.transaction():
            connection.execute("select 1/0")
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
    assert status(db, run) == "succeeded"


def test_a_commit_by_the_handler_is_reported(db, dsn, job):
    run = a_started_run(db, dsn)
    with pytest.raises(YamlschedError, match="ended inside its block"), run.transaction() as connection:
        connection.execute("commit")

    assert status(db, run) == "running"


@pytest.mark.parametrize(
    "enqueue, message",
    [
        (lambda run: run.enqueue("mial"), 'no job "mial" in namespace "default"'),
        (lambda run: run.enqueue("mail", {"at": timedelta()}), r"payload\.at of job \"mail\" is a timedelta"),
        (lambda run: run.enqueue("mail", []), 'payload of job "mail" is a list'),
        (lambda run: run.enqueue("mail", run_at=datetime(2030, 1, 1)), "has no time zone"),
        (lambda run: run.enqueue("mail", run_at=datetime(2030, 1, 1, tzinfo=UTC), delay="5m"), "pass one of them"),
        (lambda run: setattr(run, "result", {1}), "the result is a set"),
    ],
)
def test_a_fan_out_that_cannot_be_written_fails_the_attempt_with_a_clear_error(db, dsn, job, enqueue, message):
    run = a_started_run(db, dsn)
    with pytest.raises(Refused, match=message), run.transaction() as connection:  # noqa: PT012
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        enqueue(run)

    assert (status(db, run), db.execute("select count(*) as n from ledger").fetchone().n) == ("running", 0)


def test_enqueues_in_a_loop_are_written_by_one_statement_for_each_job_and_time(db, dsn, job):
    run = a_started_run(db, dsn)
    for n in range(100):
        run.enqueue("mail", {"n": n}, key=f"mail:{n}")
    run.enqueue("mail", {"n": 100}, run_at=datetime(2030, 1, 1, tzinfo=UTC))
    run.enqueue("mail", {"n": 101}, delay="1h")

    assert len(run.state.enqueued) == 3
    with run.transaction():
        pass
    made = db.execute(
        "select payload, idempotency_key from yamlsched.job_runs where parent_id = %s order by id", [run.id]
    )
    assert made.fetchall() == [*(({"n": n}, f"mail:{n}") for n in range(100)), ({"n": 100}, None), ({"n": 101}, None)]
    later = "select run_at - created_at between '59 minutes' and '61 minutes' as so from yamlsched.job_runs"
    assert db.execute(f"{later} where payload->>'n' = '101'").fetchone().so


def test_session_state_of_one_handler_does_not_reach_the_next(db, dsn, job):
    with a_started_run(db, dsn).transaction() as connection:
        connection.row_factory = psycopg.rows.dict_row
        first = connection

    with a_started_run(db, dsn).transaction() as connection:
        assert connection is first
        assert connection.execute("select 1 as one").fetchone().one == 1


def test_a_transaction_before_its_commit_blocks_no_lease_of_other_runs(db, dsn, job):
    # given a transaction that has written its run's success but not committed
    one, other = a_started_run(db, dsn), a_started_run(db, dsn)
    with psycopg.connect(dsn, row_factory=namedtuple_row) as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [one.id])
        store.enqueue_from(connection, "default", one.id, [EnqueueBatch("mail", ["{}"], [None], None, None)])
        assert store.succeed_in(connection, (one.id, 1, one.backend.locked_by), None)

        # when the leases of both are renewed
        async def renew() -> set[int]:
            factory: Any = namedtuple_row
            async with await psycopg.AsyncConnection.connect(dsn, row_factory=factory) as session:
                await session.execute("set statement_timeout = '5s'")
                held = [
                    ClaimedRun(r.id, "mail", None, None, 1, 5, "{}", False, 60.0, r.backend.locked_by)
                    for r in (one, other)
                ]
                return await store.heartbeat(session, held)

        renewed = asyncio.run(renew())

    # then the lease of the other run is renewed without waiting
    assert renewed == {other.id}


# -- on_dead


def test_effects_and_rows_of_on_dead_belong_to_the_run_that_calls_it(db, dsn, job):
    # given a dead run, and the run that reports it
    dead = a_started_run(db, dsn)
    db.execute(
        "update yamlsched.job_runs set status = 'dead', finished_at = now(), dead_at = now(), locked_until = null "
        "where id = %s",
        [dead.id],
    )
    report = a_started_run(db, dsn)
    run = report.dead_run(dead.id)
    assert (run.id, run.job_type) == (dead.id, "mail")

    # when its callable has an effect, and enqueues and writes rows in a transaction
    with run.once("page", in_doubt="repeat") as effect:
        assert effect.first
    with pytest.raises(ConnectionRefusedError), run.once("refused", in_doubt="repeat"):
        raise ConnectionRefusedError
    run.enqueue("mail", key="another")
    with run.transaction() as connection:
        connection.execute("insert into ledger (run_id) values (%s)", [run.id])
        run.result = {"notified": "ada"}

    # then all of this belongs to the reporting run, and the dead run does not change
    assert effect_states(db) == [(f"run:{report.id}:page", "done")]
    assert (status(db, dead), status(db, report), report.committed) == ("dead", "succeeded", True)
    rows = db.execute("select result from yamlsched.job_runs where id = %s", [report.id]).fetchone()
    made = db.execute("select parent_id from yamlsched.job_runs where idempotency_key = 'another'").fetchone()
    assert (rows.result, made.parent_id) == ({"notified": "ada"}, report.id)


# -- settle


def test_an_operator_settles_an_effect_in_doubt_and_this_is_recorded(db, dsn, job):
    for name in ("done", "not done"):
        die_inside(a_started_run(db, dsn), name, scope="namespace")
    db.execute(
        "update yamlsched.job_runs set status = 'dead', finished_at = now(), dead_at = now(), locked_until = null"
    )
    [first, second] = db.execute("select id from yamlsched.job_runs order by id").fetchall()

    assert settle(db, "default", "done", "ada", True, {"id": 7}) == (
        f'effect "done" is done: no attempt repeats it; run {first.id} is dead: yamlsched retry {first.id}'
    )
    assert settle(db, "default", "not done", "ada", False).startswith(
        'effect "not done" is reset: the next attempt performs it'
    )

    with a_started_run(db, dsn).once("done", in_doubt="raise", scope="namespace") as effect:
        assert (effect.first, effect.result) == (False, {"id": 7})
    with a_started_run(db, dsn).once("not done", in_doubt="raise", scope="namespace") as effect:
        assert effect.first
    actions = db.execute("select who, verb, target, detail from yamlsched.operator_actions order by id").fetchall()
    assert actions == [
        ("ada", "settle", f"run:{first.id}", {"effect": "done", "as": "done"}),
        ("ada", "settle", f"run:{second.id}", {"effect": "not done", "as": "not done"}),
    ]


def test_an_effect_that_is_not_in_doubt_cannot_be_settled(db, dsn, job):
    die_inside(run := a_started_run(db, dsn))
    with run.once("other", in_doubt="raise"):
        pass

    for key, message in (
        ("run:0:none", 'there is no effect "run:0:none" in namespace "default"'),
        (f"run:{run.id}:other", "is not in doubt: it was done at"),
        (f"run:{run.id}:post", f"attempt 1 of run {run.id} is performing it.*yamlsched cancel {run.id}"),
    ):
        for happened in (True, False):
            with pytest.raises(Refused, match=message):
                settle(db, "default", key, "ada", happened)
    assert [state for _, state in effect_states(db)] == ["claimed", "done"]
    assert db.execute("select count(*) as n from yamlsched.operator_actions").fetchone().n == 0


def test_of_two_operators_who_settle_an_effect_at_once_the_first_one_does(db, dsn, job):
    run = a_started_run(db, dsn)
    die_inside(run)
    db.execute("update yamlsched.job_runs set status = 'cancelled', finished_at = now(), locked_until = null")
    key = f"run:{run.id}:post"
    with connect(dsn) as first, connect(dsn) as second:
        first.execute("begin")
        settle(first, "default", key, "ann", True)

        with pytest.raises(Refused, match="is not in doubt"):
            while_waiting(
                db,
                second,
                lambda: settle(second, "default", key, "ben", True),
                lambda: first.execute("commit"),
            )

    assert db.execute("select who from yamlsched.operator_actions").fetchall() == [("ann",)]


def test_while_a_cancelled_handler_may_be_alive_its_effect_is_neither_settled_nor_done_by_another(db, dsn, job):
    # given a run that is cancelled while its handler is inside an effect
    die_inside(run := a_started_run(db, dsn), "charge:812", scope="namespace")
    cancel(db, [run.id], "ada")
    assert status(db, run) == "cancelled"
    in_doubt = "select key from yamlsched.effects_in_doubt"

    # then no other run can claim it, and it is not in doubt yet
    with pytest.raises(Snooze, match=f"held by run {run.id}"):
        a_started_run(db, dsn).once("charge:812", in_doubt="repeat", scope="namespace").__enter__()
    with pytest.raises(Refused, match=f"attempt 1 of run {run.id} is performing it"):
        settle(db, "default", "charge:812", "ada", False)
    assert (db.execute(in_doubt).fetchall(), history.run_details(db, run.id).effects[0].state) == ([], "claimed")

    # until the former lease has ended
    db.execute("update yamlsched.job_runs set held_until = now() - interval '1 s' where held_until is not null")
    assert db.execute(in_doubt).fetchall() == [("charge:812",)]
    assert history.run_details(db, run.id).effects[0].state == "in_doubt"
    assert settle(db, "default", "charge:812", "ada", False).startswith('effect "charge:812" is reset')


def test_an_effect_whose_attempt_has_ended_is_shown_as_in_doubt_and_settled_from_the_command_line(db, dsn, job, capsys):
    die_inside(run := a_started_run(db, dsn))
    [shown] = history.run_details(db, run.id).effects
    assert shown.state == "claimed"
    db.execute(
        "update yamlsched.job_runs set status = 'dead', finished_at = now(), dead_at = now(), locked_until = null"
    )
    [shown] = history.run_details(db, run.id).effects
    assert shown.state == "in_doubt"

    def yamlsched_settle(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:  # noqa: PT012
            patch.setattr(sys, "argv", ["yamlsched", "settle", shown.key, "--dsn", dsn, *arguments])
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    assert yamlsched_settle()[0] == 2
    assert yamlsched_settle("--not-done", "--result", "7")[0] == 2
    assert yamlsched_settle("--done", "--result", "{")[0] == 2
    assert yamlsched_settle("--done", "--result", '"<id@example.org>"', "--by", "ada") == (
        0, f'effect "{shown.key}" is done: no attempt repeats it; run {run.id} is dead: yamlsched retry {run.id}\n', "",
    )  # fmt: skip
    assert yamlsched_settle("--done")[0] == 1
    assert [(e.state, e.result) for e in history.run_details(db, run.id).effects] == [("done", "<id@example.org>")]


# -- kill -9


class Receiver:
    """An HTTP server that counts effects by run, and kills the processes that ask for it."""

    def __init__(self) -> None:
        self.effects: Counter[int] = Counter()
        self.keys: dict[int, set[str]] = {}
        self.kills: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.dice = random.Random(12)

    def effect(self, run_id: str, key: str) -> None:
        with self.lock:
            self.effects[int(run_id)] += 1
            self.keys.setdefault(int(run_id), set()).add(key)

    def arm(self, child: str, parent: str, victim: str) -> None:
        threading.Thread(target=self._kill, args=(int(child), int(parent), victim)).start()

    def _kill(self, child: int, parent: int, victim: str) -> None:
        time.sleep(self.dice.uniform(0, 0.03))  # the random instant
        hit = False
        for pid, names in ((parent, ("parent", "both")), (child, ("child", "both"))):
            if victim in names:
                with suppress(ProcessLookupError):  # another kill came first
                    os.kill(pid, signal.SIGKILL)
                    hit = True
        if hit:
            with self.lock:
                self.kills[victim] += 1


@contextmanager
def receiving() -> Iterator[tuple[Receiver, int]]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            _, kind, *rest = self.path.split("/")
            if kind == "effect":
                receiver.effect(rest[0], self.headers["Idempotency-Key"])
            else:
                receiver.arm(*rest)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError):  # the sender was killed before it read the response
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver, server.server_port
    finally:
        server.shutdown()
        server.server_close()  # waits for current requests
        thread.join()


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    """A project with the handlers of support/crashes.py, and a table of the application."""
    handlers = ("fails_after_its_commit", "loses_the_answer_to_its_commit", "enqueues_an_unknown_job")
    with a_project(tmp_path, own_dsn) as project:
        project.db.execute("create table ledger (run_id bigint not null)")
        project.sync(
            effect_and_transaction={"handler": "support.crashes.effect_and_transaction", "max_attempts": 100},
            leaf={"handler": "support.handlers.nothing"},
            outlasts_its_lease={"handler": "support.crashes.outlasts_its_lease"},
            nap={},
            shared_effect={"handler": "support.crashes.shared_effect", "max_attempts": 100},
            effect_in_doubt_in_a_task={
                "handler": "support.crashes.effect_in_doubt_in_a_task",
                "max_attempts": 10,
            },
            **{name: {"handler": f"support.crashes.{name}", "max_attempts": 1} for name in handlers},
        )
        yield project


def rows_of(project: Project, run: int) -> int:
    return int(project.db.execute("select count(*) as n from ledger where run_id = %s", [run]).fetchone().n)  # type: ignore[union-attr]


def test_an_error_after_the_commit_is_logged_and_changes_nothing(project: Project):
    [run] = project.enqueue("fails_after_its_commit")

    worker = project.work()

    assert (project.row(run).status, project.row(run).attempts, rows_of(project, run)) == ("succeeded", 1, 1)
    assert project.failures(run) == []
    assert "too late" in worker.text


def test_a_commit_whose_answer_was_lost_is_recognized_by_the_claim_that_made_it(project: Project):
    [run] = project.enqueue("loses_the_answer_to_its_commit")

    worker = project.work()

    assert (project.row(run).status, rows_of(project, run), project.failures(run)) == ("succeeded", 1, [])
    assert "attempt.succeeded" in worker.text


def test_a_fan_out_to_an_unknown_job_fails_the_attempt_with_a_clear_error_and_creates_no_run(project: Project):
    [run] = project.enqueue("enqueues_an_unknown_job")

    project.work(code=1)

    assert project.row(run).status == "dead"
    assert project.row(run).last_error.startswith('no job "leef" in namespace "default"')
    assert project.statuses() == {"dead": 1}


def test_a_long_transaction_keeps_its_lease_and_those_of_other_runs(project: Project):
    [run] = project.enqueue("outlasts_its_lease")
    [other] = project.enqueue("nap", {"seconds": 2.5})

    project.work("--concurrency", "2")

    assert [(project.row(id).status, project.row(id).attempts) for id in (run, other)] == [("succeeded", 1)] * 2
    assert rows_of(project, run) == 1


def test_an_effect_in_doubt_in_a_task_of_an_asynchronous_handler_ends_the_run_dead_at_once(project: Project):
    [run] = project.enqueue("effect_in_doubt_in_a_task")

    project.work(code=1)

    row = project.row(run)
    assert (row.status, row.attempts, row.error_type) == ("dead", 2, "EffectInDoubt")
    assert f"yamlsched settle --done run:{run}:post" in row.last_error
    assert "ValueError" in row.last_stack


def carry_out(
    project: Project, marks: Path, plans: list[dict[str, Any]], job: str = "effect_and_transaction"
) -> Receiver:
    """Enqueue a run for each plan, and start workers, which are killed, until every run has ended."""
    marks.mkdir()
    query = "select yamlsched.enqueue_many(%s, %s::text[]::jsonb[])"
    project.db.execute(query, [job, [json.dumps(plan) for plan in plans]])
    unfinished = "select 1 from yamlsched.job_runs where job_type = %s and finished_at is null limit 1"
    with receiving() as (receiver, port):
        while project.db.execute(unfinished, [job]).fetchone():
            project.end_leases()  # every worker was killed
            project.db.execute(
                "update yamlsched.job_runs set run_at = now() where status = 'queued' and job_type = %s", [job]
            )
            worker = project.start(
                "work", "--concurrency", "3", before="import support.crashes", RECEIVER_PORT=str(port), MARKS=str(marks)
            )
            worker.wait()
    return receiver


def outcomes(db: psycopg.Connection[Any]) -> list[Any]:
    """Return for each run its status, rows, fan-out and effect, from the database."""
    return db.execute(
        """
        select r.id, r.payload ->> 'policy' as policy, r.payload ->> 'point' as point, r.payload ->> 'victim' as victim,
               r.status, r.attempts, r.last_error, r.error_type, e.state, e.result, e.doubted_at,
               e.provider_key::text as provider_key,
               (select count(*) from yamlsched.job_failures f
                where f.run_id = r.id and f.error_type = 'EffectInDoubt') as times_asked,
               (select count(*) from ledger l where l.run_id = r.id) as rows,
               (select count(*) from yamlsched.job_runs c where c.parent_id = r.id) as children
        from yamlsched.job_runs r
        left join yamlsched.effects e on e.run_id = r.id
        where r.job_type = 'effect_and_transaction'
        order by r.id
        """
    ).fetchall()


def hold(outcome: Any, receiver: Receiver) -> None:
    """Assert what must hold for a run, at whatever point its worker was killed."""
    times = receiver.effects[outcome.id]
    said = f"{outcome} {times} times"
    # in the same database: rows, fan-out and success together, exactly once, or none of them
    assert (outcome.status, outcome.rows, outcome.children) in [("succeeded", 1, FAN_OUT), ("dead", 0, 0)], said
    # the effect is done or in doubt, or was treated as done although it was in doubt
    assert outcome.state in ("done", "in_doubt"), said
    assert receiver.keys.get(outcome.id, {outcome.provider_key}) == {outcome.provider_key}, said
    if outcome.state == "done" and not outcome.doubted_at:
        assert times == 1 or (outcome.policy == "repeat" and times > 1), said
    if outcome.policy == "repeat":
        assert (outcome.status, outcome.state) == ("succeeded", "done"), said
    else:
        assert times <= 1, said
        assert (outcome.state == "in_doubt" or outcome.doubted_at is not None) == (times == 0 or outcome.result is None)
        # a child that outlives its worker may complete the effect after the next attempt has found it in doubt
        is_late = (outcome.victim, outcome.state, outcome.times_asked) == ("parent, but not the child", "done", 1)
        is_dead = outcome.policy == "raise" and (outcome.state == "in_doubt" or is_late)
        assert outcome.status == ("dead" if is_dead else "succeeded"), said
    if outcome.status == "dead":
        assert (outcome.error_type, outcome.times_asked) == ("EffectInDoubt", 1), said  # dead without a further attempt
        assert f"yamlsched settle --done run:{outcome.id}:post (or --not-done)" in outcome.last_error, said


@pytest.mark.slow
def test_after_a_kill_at_any_point_rows_happen_once_and_effects_follow_in_doubt(project: Project):
    wanted = [(point, victim) for point in POINTS for victim in VICTIMS]
    hits: Counter[tuple[str, str]] = Counter()
    for nth in range(20):
        # given a run for each point and victim that was not hit five times: the kill of one worker can
        # prevent the planned kills of its other runs
        missing = [pair for pair in wanted for _ in range(min(3, 5 - hits[pair]))]
        if not missing:
            break
        plans = [
            {"policy": POLICIES[(nth + n) % 3], "point": point, "victim": victim}
            for n, (point, victim) in enumerate(missing)
        ]

        # when workers are killed there, and the runs are retried until they end
        marks = project.folder / f"marks-{nth}"
        receiver = carry_out(project, marks, plans)

        # then all assertions hold, and effects that were interrupted are in doubt
        for outcome in outcomes(project.db):
            hold(outcome, receiver)
            is_hit = (marks / str(outcome.id)).exists()
            hits[outcome.point, outcome.victim] += is_hit
            if is_hit and outcome.point in POINTS[1:4] and outcome.victim in ("child", "both"):
                assert outcome.state == "in_doubt" or outcome.doubted_at or outcome.policy == "repeat", outcome
        project.db.execute("delete from yamlsched.job_runs")

    assert {pair: hits[pair] for pair in wanted if hits[pair] < 5} == {}


@pytest.mark.slow
def test_after_kills_at_a_hundred_random_instants_the_same_holds(project: Project):
    plans = [
        {"policy": POLICIES[nth % 3], "point": None, "victim": ("child", "parent", "both")[nth // 3 % 3]}
        for nth in range(135)
    ]

    receiver = carry_out(project, project.folder / "marks", plans)

    for outcome in outcomes(project.db):
        hold(outcome, receiver)
    assert receiver.kills.total() >= 100


@pytest.mark.slow
def test_after_kills_at_random_instants_a_shared_effect_follows_in_doubt(project: Project):
    # given effects with a business key, each tried by three runs
    plans = [
        {"number": nth % 35, "policy": POLICIES[nth % 35 % 3], "victim": ("child", "parent", "both")[nth // 3 % 3]}
        for nth in range(105)
    ]

    receiver = carry_out(project, project.folder / "marks", plans, "shared_effect")

    # then each effect is done or in doubt, and the receiver sees one key for each
    assert receiver.kills.total() >= 70
    found = project.db.execute(
        """
        select e.key, e.state, e.doubted_at, e.provider_key::text as provider_key,
               array_agg(r.status order by r.id) as statuses
        from yamlsched.effects e
        join yamlsched.job_runs r on 'invoice ' || (r.payload ->> 'number') = e.key
        group by e.id
        """
    ).fetchall()
    assert len(found) == 35
    for effect in found:
        number = int(effect.key.removeprefix("invoice "))
        policy, times, said = POLICIES[number % 3], receiver.effects[number], f"{effect} {receiver.effects[number]}"
        assert receiver.keys.get(number, {effect.provider_key}) == {effect.provider_key}, said
        if effect.state == "done" and not effect.doubted_at:
            assert times >= 1, said
        if policy == "repeat":
            assert (effect.state, effect.doubted_at) == ("done", None), said
        else:
            assert times <= 1, said
        if policy == "raise" and effect.state == "in_doubt":
            assert set(effect.statuses) == {"dead"}, said
        else:
            assert effect.state == "done", said
            # a child may record its effect after its parent was killed and another run has marked it in doubt
            assert set(effect.statuses) <= {"succeeded", *(["dead"] if policy == "raise" else [])}, said
