"""``settle``: an operator decides what became of an effect that is in doubt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.database import while_waiting
from support.effects import a_job_with_a_ledger, die_inside, effect_states, status
from support.rows import a_started_run
from yamlsched import Refused, Snooze, cli
from yamlsched.act.runs import cancel
from yamlsched.act.settle import settle
from yamlsched.ask import history
from yamlsched.db import connect


@pytest.fixture
def job(db: psycopg.Connection[Any]) -> Iterator[str]:
    with a_job_with_a_ledger(db) as name:
        yield name


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
    actions = db.execute(
        "select who, verb, target, detail from yamlsched.operator_actions order by id"
    ).fetchall()
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
        (
            f"run:{run.id}:post",
            f"attempt 1 of run {run.id} is performing it.*yamlsched cancel {run.id}",
        ),
    ):
        for happened in (True, False):
            with pytest.raises(Refused, match=message):
                settle(db, "default", key, "ada", happened)
    assert [state for _, state in effect_states(db)] == ["claimed", "done"]
    assert db.execute("select count(*) as n from yamlsched.operator_actions").fetchone().n == 0


def test_of_two_operators_who_settle_an_effect_at_once_the_first_one_does(db, dsn, job):
    run = a_started_run(db, dsn)
    die_inside(run)
    db.execute(
        "update yamlsched.job_runs set status = 'cancelled', finished_at = now(), locked_until = null"
    )
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


def test_while_a_cancelled_handler_may_be_alive_its_effect_is_neither_settled_nor_done_by_another(
    db, dsn, job
):
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
    assert (db.execute(in_doubt).fetchall(), history.run_details(db, run.id).effects[0].state) == (
        [],
        "claimed",
    )

    # until the former lease has ended
    db.execute(
        "update yamlsched.job_runs set locked_until = now() - interval '1 s' "
        "where locked_until is not null and finished_at is not null"
    )
    assert db.execute(in_doubt).fetchall() == [("charge:812",)]
    assert history.run_details(db, run.id).effects[0].state == "in_doubt"
    assert settle(db, "default", "charge:812", "ada", False).startswith(
        'effect "charge:812" is reset'
    )


def test_an_effect_whose_attempt_has_ended_is_shown_as_in_doubt_and_settled_from_the_command_line(
    db, dsn, job, capsys
):
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
    assert [(e.state, e.result) for e in history.run_details(db, run.id).effects] == [
        ("done", "<id@example.org>")
    ]
