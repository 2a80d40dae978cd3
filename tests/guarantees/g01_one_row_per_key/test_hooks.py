"""Each end of a run, and each failed attempt, gets one run of each of its hooks, whoever writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from support.project import Project, a_project, until
from support.rows import a_job, a_run, row
from yamlsched.act import prune as retention
from yamlsched.act import runs as actions
from yamlsched.handler.run import Trigger
from yamlsched.runs import own_transaction
from yamlsched.runs.lifecycle import ClaimedRun, Outcome, Status
from yamlsched.worker import claiming
from yamlsched.worker import statements as store

NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
LISTS = {"on_dead": ["page", "log"], "on_failure": ["log"], "on_success": ["ping"]}
HOOKS = {"dead": {"page", "log"}, "failed": {"log"}, "succeeded": {"ping"}}
OUTCOMES = {
    "succeed": Outcome(Status.SUCCEEDED),
    "return": Outcome(Status.SUCCEEDED, result='{"n": 1}'),
    "fail": Outcome(Status.FAILED, delay=timedelta(0), error="no route", error_type="OSError"),
    "die": Outcome(Status.DEAD, error="no route", error_type="OSError"),
    "snooze": Outcome(Status.QUEUED, delay=timedelta(0), refund=True),
    "release": Outcome(Status.QUEUED, refund=True, releases=1),
}
STEPS = [*OUTCOMES, "lose", "own transaction", "cancel"]
Db = psycopg.Connection[Any]
Ask = Callable[..., Any]
names = (f"charge_{number}" for number in count())


@pytest.fixture
def ask(dsn: str) -> Iterator[Ask]:
    """Call a function with a session of a worker."""
    with asyncio.Runner() as runner:
        session = runner.run(
            psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=namedtuple_row)
        )

        def call(function: Callable[..., Awaitable[Any]], *given: Any, **named: Any) -> Any:
            return runner.run(function(session, *given, **named))  # type: ignore[arg-type]

        yield call
        runner.run(session.close())


def claim(ask: Ask, queue: str = "default", now: datetime = NOON) -> list[ClaimedRun]:
    claimed, _ = ask(claiming.claim, "default", "A", 100, now=now, queue=queue)
    return sorted(claimed.runs)


def end(ask: Ask, run: ClaimedRun, how: str) -> None:
    """End an attempt, and write the same end again, as a worker that got no answer does."""
    if how == "lose":
        for _ in range(2):
            ask(claiming.reclaim, "default", now=NOON + HOUR)
    elif how == "own transaction":
        fence = (run.id, run.attempt, run.locked_by)
        assert ask(own_transaction.succeed_in, fence, None)
        assert not ask(own_transaction.succeed_in, fence, None)
        ask(store.unlock, "default", [run], now=NOON)
    else:
        how = "die" if how == "fail" and run.attempt == run.max_attempts else how
        for _ in range(2):
            ask(store.finish, "default", [(run, OUTCOMES[how])], now=NOON)


def hooks_of(db: Db, run: int) -> list[str]:
    found = db.execute(
        "select idempotency_key from yamlsched.job_runs where parent_id = %s and hook is not null",
        [run],
    )
    return sorted(key for (key,) in found.fetchall())


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.booleans()), max_size=12), st.integers(1, 4))
def test_however_a_run_ends_each_end_has_each_of_its_hooks_once(
    db: Db, ask: Ask, steps: list[tuple[str, bool]], max_attempts: int
) -> None:
    if not db.execute("select from yamlsched.job_definitions where job_type = 'page'").rowcount:
        for name in ("page", "log", "ping"):
            a_job(db, name, schedule=None)
    job = a_job(
        db, next(names), overlap="allow", queue="own", max_attempts=max_attempts,
        **{key: list(listed) for key, listed in LISTS.items()},
    )  # fmt: skip
    run = a_run(db, job, run_at=NOON - HOUR, queue="own", max_attempts=max_attempts)
    expected: set[str] = set()
    for how, is_retried in steps:
        if how == "cancel":
            actions.cancel(db, [run], "ann", now=NOON)
        else:
            [claimed] = claim(ask, "own")
            assert claimed.id == run
            end(ask, claimed, how)
        state = row(db, run)
        for hook in HOOKS.get(state.status, ()):
            expected.add(f"{hook}:{state.status}:{run}:{state.attempts}")
        assert hooks_of(db, run) == sorted(expected)
        if state.finished_at is not None:
            if not is_retried:
                break
            actions.retry(db, [run], "ann", force=True, now=NOON - HOUR)
    # nothing waits for it, and it waits for nothing
    db.execute("update yamlsched.job_runs set finished_at = now(), status = 'cancelled'"
               " where finished_at is null and hook is null and status <> 'running'")  # fmt: skip
    assert db.execute("select from yamlsched.permits").fetchall() == []


def test_a_hook_is_an_ordinary_run_of_its_own_job(db: Db, ask: Ask) -> None:
    job = a_job(db, "charge", schedule=None, on_dead=["page"], priority=1, queue="own")
    page = a_job(
        db, "page", schedule=None, priority=3, max_attempts=7, payload=Jsonb({"to": "ops"}),
        limit_name="pager",
    )  # fmt: skip
    run = a_run(db, job, run_at=NOON - HOUR, queue="own")
    end(ask, *claim(ask, "own"), "die")

    [hook] = db.execute("select * from yamlsched.job_runs where hook is not null").fetchall()

    assert (hook.definition_id, hook.job_type, hook.queue, hook.priority) == (
        page, "page", "default", 3,
    )  # fmt: skip
    assert (hook.max_attempts, hook.payload, hook.parent_id) == (7, {"to": "ops"}, run)
    assert (hook.run_at, hook.late_at) == (NOON, NOON + timedelta(minutes=15))
    assert db.execute(
        "select yamlsched.gates_of(r, now()) from yamlsched.job_runs r where id = %s", [hook.id]
    ).fetchall() == [(["limit/pager"],)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"enabled": False}, []), ({"retired_at": NOON}, []), ({"paused_at": NOON}, ["queued"])],
    ids=["disabled", "retired", "paused"],
)
def test_a_hook_that_is_switched_off_gets_no_run_and_a_paused_one_waits(
    db: Db, ask: Ask, values: dict[str, Any], expected: list[str]
) -> None:
    job = a_job(db, "charge", schedule=None, on_dead=["page"], queue="own")
    a_job(db, "page", schedule=None, **values)
    a_run(db, job, run_at=NOON - HOUR, queue="own")

    end(ask, *claim(ask, "own"), "die")

    found = db.execute("select status from yamlsched.job_runs where hook is not null")
    assert [status for (status,) in found.fetchall()] == expected
    assert claim(ask) == []


def test_a_hook_is_a_job_of_the_same_namespace(db: Db, ask: Ask) -> None:
    job = a_job(db, "charge", schedule=None, on_dead=["page"], queue="own")
    for namespace in ("default", "elsewhere"):
        a_job(db, "page", schedule=None, namespace=namespace)
    a_run(db, job, run_at=NOON - HOUR, queue="own")

    end(ask, *claim(ask, "own"), "die")

    found = db.execute("select namespace from yamlsched.job_runs where hook is not null")
    assert [namespace for (namespace,) in found.fetchall()] == ["default"]


def test_the_trigger_is_what_ended_then_and_the_run_as_it_is_now(db: Db, ask: Ask) -> None:
    # given a run that failed once, was retried by hand with another payload, and succeeded
    job = a_job(
        db, "charge", schedule=None, queue="own", on_failure=["log"], on_dead=["log"],
        on_success=["log"],
    )  # fmt: skip
    a_job(db, "log", schedule=None)
    other = a_run(db, job, "failed", run_at=NOON + HOUR, queue="own")
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error)"
        " select %s, n, 'A', now(), 'of another run' from generate_series(1, 3) n",
        [other],
    )
    run = a_run(db, job, run_at=NOON - HOUR, queue="own", payload=Jsonb({"n": 1}), max_attempts=2)
    end(ask, *claim(ask, "own"), "fail")
    end(ask, *claim(ask, "own"), "lose")
    actions.retry(db, [run], "ann", payload={"n": 2}, now=NOON - HOUR)
    end(ask, *claim(ask, "own"), "return")

    # when its hooks are claimed
    triggers = [Trigger.read(hook.trigger) for hook in claim(ask, now=NOON + 2 * HOUR)]

    # then each has the end that it reports
    assert [
        (one and one.status, one and one.attempt, one and one.error and one.error[:15])
        for one in triggers
    ] == [
        ("failed", 1, "no route"),
        ("dead", 2, "lost its worker"),
        ("succeeded", 3, None),
    ]
    assert {(one.job_type, one.run_id, one.payload["n"], one.result["n"]) for one in triggers if one} == {
        ("charge", run, 2, 1)
    }  # fmt: skip


def test_runs_that_a_handler_enqueued_have_no_trigger(db: Db, ask: Ask) -> None:
    parent = a_run(db, a_job(db, "charge"), "succeeded")
    db.execute("insert into yamlsched.gates values ('default', 'limit/mails', 1)")
    for name, limit in (("mail", None), ("limited_mail", "mails")):
        job = a_job(db, name, schedule=None, limit_name=limit)
        a_run(db, job, parent_id=parent, run_at=NOON - HOUR)

    claimed, gated = ask(claiming.claim, "default", "A", 100, now=NOON)
    ask(claiming.claim_gated, "default", claimed, "B", gated, now=NOON)

    assert [run.trigger for run in claimed.runs] == [None, None]


def test_retention_spares_a_run_that_an_unfinished_hook_reports(db: Db, ask: Ask) -> None:
    job = a_job(db, "charge", schedule=None, queue="own", on_success=["ping"])
    a_job(db, "ping", schedule=None)
    run = a_run(db, job, run_at=NOON - HOUR, queue="own")
    end(ask, *claim(ask, "own"), "succeed")
    later = NOON + timedelta(days=400)

    retention.housekeep(db, "default", 60.0, later)
    assert row(db, run).status == "succeeded"
    [hook] = claim(ask)
    assert Trigger.read(hook.trigger) is not None

    ask(store.finish, "default", [(hook, OUTCOMES["succeed"])], now=NOON)
    retention.housekeep(db, "default", 60.0, later)
    assert db.execute("select from yamlsched.job_runs").fetchall() == []


def test_a_retried_hook_whose_trigger_was_pruned_has_none(db: Db, ask: Ask) -> None:
    page = a_job(db, "page", schedule=None)
    hook = a_run(
        db, page, "dead", hook="dead", parent_id=999_999, idempotency_key="page:dead:999999:1"
    )
    actions.retry(db, [hook], "ann", now=NOON - HOUR)

    [claimed] = claim(ask)

    assert Trigger.read(claimed.trigger) is None


# -- real processes


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        yield project


def hooks(project: Project, run: int) -> list[tuple[str, str]]:
    found = project.db.execute(
        "select idempotency_key as key, status from yamlsched.job_runs where parent_id = %s"
        " and hook is not null order by id",
        [run],
    )
    return [tuple(one) for one in found.fetchall()]


def test_a_worker_that_is_killed_leaves_each_hook_once(project: Project) -> None:
    # given a job that kills its worker in its first attempt, and hooks for all ends
    lists = {"on_failure": ["records_death"], "on_success": ["records_death"]}
    project.sync(kills_its_worker={"max_attempts": 2, **lists}, records_death={})
    [run] = project.enqueue("kills_its_worker")

    # when its lease is over, twice, and another worker looks each time
    project.work(code=-9)
    assert hooks(project, run) == []
    project.end_leases()
    project.work(code=-9)
    project.end_leases()
    project.work(code=1)
    project.work()

    # then the lost attempt has a hook, and the death, which has none in the lists, has none
    assert hooks(project, run) == [(f"records_death:failed:{run}:1", "succeeded")]
    assert project.row(run).status == "dead"


@pytest.mark.parametrize("what", ["is_killed_after_commit", "is_killed_before_commit"])
def test_the_own_transaction_of_a_killed_handler_has_its_hook_exactly_if_it_committed(
    project: Project, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("OWN_DSN", project.dsn)
    project.db.execute("create table if not exists written (run_id bigint, attempt integer)")
    project.sync(
        handle={"handler": "support.own_transactions.handle", "on_success": ["ping"]},
        ping={"command": ["true"]},
        nothing={},
    )
    [run] = project.enqueue("handle", {"what": what})

    project.work(code=-9)

    committed = what == "is_killed_after_commit"
    key = f"ping:succeeded:{run}:{1 if committed else 2}"
    assert hooks(project, run) == ([(key, "queued")] if committed else [])
    project.end_leases()
    project.work()
    until(lambda: hooks(project, run) == [(key, "succeeded")], "the hook has run")


def test_a_hook_starts_in_the_same_drain_for_each_kind_of_job(project: Project) -> None:
    project.db.execute("create table public.ledger (run_id bigint not null)")
    project.sync(
        succeeds={"handler": "support.handlers.nothing", "on_success": ["ping"]},
        transacts={"on_success": ["ping"]},
        shared={
            "handler": "support.coroutine_handlers.nothing", "queue": "shared",
            "on_success": ["ping"],
        },
        program={"command": ["true"], "on_success": ["ping"]},
        broken={"command": ["false"], "max_attempts": 1, "on_dead": ["ping"]},
        ping={"command": ["sh", "-c", "echo $YAMLSCHED_TRIGGER"], "output": {"keep": "always"}},
    )  # fmt: skip
    jobs = ("succeeds", "transacts", "shared", "program", "broken")
    runs = {job: project.enqueue(job)[0] for job in jobs}

    project.work(code=1)

    for job, run in runs.items():
        how = "dead" if job == "broken" else "succeeded"
        assert hooks(project, run) == [(f"ping:{how}:{run}:1", "succeeded")], job
        [hook] = project.db.execute(
            "select id from yamlsched.job_runs where parent_id = %s", [run]
        ).fetchall()
        [output] = project.outputs(hook.id)
        assert f'"job_type": "{job}"' in output.output
