"""Effects that happen once: run.once(), in one attempt, in several, and concurrently."""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from support.database import while_waiting
from support.effects import (
    a_job_with_a_ledger,
    around_write,
    die_inside,
    effect_states,
    lapse,
)
from support.rows import a_started_run
from yamlsched import Discard, Refused, RetryAfter, Run, Snooze, YamlschedError, cli
from yamlsched.act.settle import settle
from yamlsched.errors import EffectInDoubt, LeaseLost
from yamlsched.handler import backends
from yamlsched.handler.once import settle_command
from yamlsched.handler.sessions import sessions
from yamlsched.runs import effects
from yamlsched.runs.lifecycle import one_line

# -- one attempt, in this process


@pytest.fixture
def job(db: psycopg.Connection[Any]) -> Iterator[str]:
    with a_job_with_a_ledger(db) as name:
        yield name


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


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "refused"), Discard("no"), RetryAfter(9), Snooze(9)]
)
def test_an_exception_that_proves_that_nothing_happened_releases_the_effect(db, dsn, job, error):
    run = a_started_run(db, dsn)
    with pytest.raises(type(error)), run.once("post", in_doubt="raise"):
        raise error
    assert effect_states(db) == []

    with run.once("post", in_doubt="raise") as effect:
        assert effect.first


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError,
        TimeoutError,
        ConnectionResetError,
        KeyboardInterrupt,
        SystemExit,
        LeaseLost,
    ],
)
def test_any_other_exception_leaves_the_effect_in_doubt_and_logs_it(db, dsn, job, error):
    run = a_started_run(db, dsn)
    with pytest.raises(error) as raised, run.once("post", in_doubt="raise"):
        raise error

    key = f"run:{run.id}:post"
    assert effect_states(db) == [(key, "in_doubt")]
    assert raised.value.__notes__ == [
        f'effect "{key}" is in doubt: this error does not prove that nothing happened'
    ]


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
def test_the_commands_for_an_effect_in_doubt_are_quoted_correctly_for_every_name(
    db, dsn, job, name, command
):
    die_inside(first := a_started_run(db, dsn), name, scope="namespace")

    with pytest.raises(EffectInDoubt) as raised:
        a_started_run(db, dsn, first.id).once(name, in_doubt="raise", scope="namespace").__enter__()

    argv = shlex.split(settle_command("default", name).removesuffix(" (or --not-done)"))
    with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:  # noqa: PT012
        db.execute(
            "update yamlsched.job_runs set locked_until = null, status = 'cancelled', finished_at = now()"
        )
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
        with (
            suppress(error),
            a_started_run(db, dsn, run.id).once("post", in_doubt="repeat") as effect,
        ):
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
    keys = {
        key_of(run),
        key_of(run, name="other"),
        key_of(run, "namespace"),
        key_of(a_started_run(db, dsn)),
    }
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

    with pytest.raises(
        Snooze, match=f'"charge:812" is held by run {holder.id}, which is running'
    ) as raised:
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


def test_an_attempt_that_outlived_its_lease_cannot_take_over_an_effect_in_doubt(
    db, dsn, job, monkeypatch
):
    # given an attempt that finds an effect in doubt, and outlives its lease before it claims the effect again
    die_inside(first := a_started_run(db, dsn))
    zombie = a_started_run(db, dsn, first.id)
    around_write(monkeypatch, "take_over", lambda execute: (lapse(db, zombie), execute())[1])

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


def test_an_expired_attempt_does_not_release_an_effect_that_another_attempt_has_decided_about(
    db, dsn, job
):
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


def test_an_effect_that_is_done_while_another_attempt_marks_it_in_doubt_is_done(
    db, dsn, job, monkeypatch
):
    zombie = a_started_run(db, dsn)
    manager = zombie.once("post", in_doubt="raise")
    manager.__enter__().result = "posted"

    def doubt(execute: Callable[[], bool]) -> bool:
        manager.__exit__(None, None, None)
        return execute()

    around_write(monkeypatch, "mark_in_doubt", doubt)
    with a_started_run(db, dsn, zombie.id).once("post", in_doubt="raise") as later:
        assert (later.first, later.result) == (False, "posted")


@pytest.mark.parametrize("commit", [True, False])
def test_a_run_waits_for_a_key_that_another_transaction_is_claiming(db, dsn, job, commit):
    # given an uncommitted claim of a key
    holder, run = a_started_run(db, dsn), a_started_run(db, dsn)
    with psycopg.connect(dsn, row_factory=namedtuple_row) as other:
        effects.claim(
            other,
            effects.EffectEntry(
                "default", "k", holder.id, 1, holder.backend.locked_by, str(uuid.uuid4())
            ),
        )
        with sessions.use(dsn, "effects") as session:
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
        with sessions.use(dsn, "effects") as session:
            db.execute("select pg_terminate_backend(%s)", [session.info.backend_pid])
        effect.result = "posted"

    assert effect_states(db) == [(f"run:{run.id}:post", "done")]


@pytest.mark.parametrize(
    "statement", ["claim", "take_over", "mark_done", "mark_in_doubt", "release"]
)
def test_a_statement_whose_answer_was_lost_is_sent_again_with_the_same_result(
    db, dsn, job, monkeypatch, statement
):
    run = a_started_run(db, dsn)
    if statement == "take_over":
        die_inside(run)
        run = a_started_run(db, dsn, run.id)
    lost: list[Any] = []

    def answer_lost(execute: Callable[[], Any]) -> Any:
        answer = execute()
        if not lost:
            lost.append(answer)
            raise psycopg.OperationalError("the connection was lost")
        return answer

    around_write(monkeypatch, statement, answer_lost)
    error = {"mark_in_doubt": ZeroDivisionError, "release": Discard}.get(statement)
    with suppress(ZeroDivisionError, Discard), run.once("post", in_doubt="repeat") as effect:
        assert effect.first
        if error:
            raise error

    assert len(lost) == 1
    key = f"run:{run.id}:post"
    assert effect_states(db) == {"mark_in_doubt": [(key, "in_doubt")], "release": []}.get(
        statement, [(key, "done")]
    )


def test_a_skip_whose_answer_was_lost_remains_a_skip(db, dsn, job, monkeypatch):
    die_inside(run := a_started_run(db, dsn))
    lost: list[bool] = []

    def answer_lost(execute: Callable[[], bool]) -> bool:
        answer = execute()
        if not lost:
            lost.append(answer)
            raise psycopg.OperationalError("the connection was lost")
        return answer

    around_write(monkeypatch, "assume_done", answer_lost)
    with a_started_run(db, dsn, run.id).once("post", in_doubt="skip") as effect:
        assert not effect.first

    assert lost == [True]
    assert effect_states(db) == [(f"run:{run.id}:post", "done")]


def test_an_unreachable_database_does_not_hide_the_handlers_exception(
    db, dsn, job, monkeypatch, caplog
):
    monkeypatch.setattr(backends, "MAX_OUTAGE_SECONDS", 0)

    def gone(execute: Callable[[], bool]) -> bool:
        raise psycopg.OperationalError("gone")

    around_write(monkeypatch, "release", gone)
    run = a_started_run(db, dsn)

    with pytest.raises(ConnectionRefusedError), run.once("post", in_doubt="raise"):
        raise ConnectionRefusedError

    assert "remains in doubt, because the database does not answer: gone" in caplog.text
    # and the same attempt does not treat its own old entry as a new claim
    with pytest.raises(EffectInDoubt), run.once("post", in_doubt="raise"):
        raise AssertionError("entered")


def test_a_result_that_cannot_be_stored_fails_the_attempt_and_leaves_the_effect_in_doubt(
    db, dsn, job
):
    run = a_started_run(db, dsn)
    with (
        pytest.raises(Refused, match='the result of effect "post" is of type set'),
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
@pytest.mark.parametrize(
    "name", ["x", "\U0001f4e7" * 199, "\U0001f4e7" * 200, "'; drop table x --", '%s {0} $$ \\ "']
)
def test_a_name_is_any_printable_string_of_1_to_200_characters(db, dsn, job, name, scope):
    with a_started_run(db, dsn).once(name, in_doubt="raise", scope=scope) as effect:
        assert effect.first
    [(key, state)] = effect_states(db)
    assert key.endswith(name)
    assert state == "done"


@pytest.mark.parametrize(
    "name, message",
    [
        ("", "''"),
        ("x" * 201, "'xxx"),
        (7, "7"),
        ("a\x00b", r"'a\\x00b'"),
        ("run:118:mail", "'run:118:mail'"),
        ("run:", "'run:'"),
        ("a\nb", r"'a\\nb'"),
        ("\u202email", r"'\\u202email'"),
        ("\ud800", r"'\\ud800'"),
    ],
)
def test_an_invalid_name_is_refused(db, dsn, job, name, message):
    rule = 'a string of 1 to 200 printable characters, which does not start with "run:"'
    with pytest.raises(Refused, match=f"{rule}, not {message}"):
        a_started_run(db, dsn).once(name, in_doubt="raise", scope="namespace").__enter__()


def test_an_effect_cannot_be_nested_in_itself_but_in_another(db, dsn, job):
    run = a_started_run(db, dsn)
    with run.once("outer", in_doubt="raise"):
        with run.once("inner", in_doubt="raise") as inner:
            assert inner.first
        with pytest.raises(
            YamlschedError, match="is entered inside itself, or by two threads at once"
        ):
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
        with sessions.use(dsn, "effects") as session:
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
