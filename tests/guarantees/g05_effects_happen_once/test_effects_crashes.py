"""Effects that happen once, under kill -9 at every point."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.crashes import FAN_OUT, POINTS, POLICIES, VICTIMS
from support.effects import a_job_with_a_ledger
from support.project import Project, a_project


@pytest.fixture
def job(db: psycopg.Connection[Any]) -> Iterator[str]:
    with a_job_with_a_ledger(db) as name:
        yield name


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
    handlers = (
        "fails_after_its_commit",
        "loses_the_answer_to_its_commit",
        "enqueues_an_unknown_job",
    )
    with a_project(tmp_path, own_dsn) as project:
        project.db.execute("create table ledger (run_id bigint not null)")
        project.sync(
            effect_and_transaction={
                "handler": "support.crashes.effect_and_transaction",
                "max_attempts": 100,
            },
            leaf={"handler": "support.handlers.nothing"},
            outlasts_its_lease={"handler": "support.crashes.outlasts_its_lease"},
            nap={},
            shared_effect={"handler": "support.crashes.shared_effect", "max_attempts": 100},
            effect_in_doubt_in_a_task={
                "handler": "support.crashes.effect_in_doubt_in_a_task",
                "max_attempts": 10,
            },
            **{
                name: {"handler": f"support.crashes.{name}", "max_attempts": 1} for name in handlers
            },
        )
        yield project


def rows_of(project: Project, run: int) -> int:
    return int(
        project.db.execute("select count(*) as n from ledger where run_id = %s", [run]).fetchone().n
    )  # type: ignore[union-attr]


def test_an_error_after_the_commit_is_logged_and_changes_nothing(project: Project):
    [run] = project.enqueue("fails_after_its_commit")

    worker = project.work()

    assert (project.row(run).status, project.row(run).attempts, rows_of(project, run)) == (
        "succeeded",
        1,
        1,
    )
    assert project.failures(run) == []
    assert "too late" in worker.text


def test_a_commit_whose_answer_was_lost_is_recognized_by_the_claim_that_made_it(project: Project):
    [run] = project.enqueue("loses_the_answer_to_its_commit")

    worker = project.work()

    assert (project.row(run).status, rows_of(project, run), project.failures(run)) == (
        "succeeded",
        1,
        [],
    )
    assert "attempt.succeeded" in worker.text


def test_a_fan_out_to_an_unknown_job_fails_the_attempt_with_a_clear_error_and_creates_no_run(
    project: Project,
):
    [run] = project.enqueue("enqueues_an_unknown_job")

    project.work(code=1)

    assert project.row(run).status == "dead"
    assert project.row(run).last_error.endswith('no job "leef" in namespace "default"')
    assert project.statuses() == {"dead": 1}


def test_a_long_transaction_keeps_its_lease_and_those_of_other_runs(project: Project):
    [run] = project.enqueue("outlasts_its_lease")
    [other] = project.enqueue("nap", {"seconds": 2.5})

    project.work("--concurrency", "2")

    assert [(project.row(id).status, project.row(id).attempts) for id in (run, other)] == [
        ("succeeded", 1)
    ] * 2
    assert rows_of(project, run) == 1


def test_an_effect_in_doubt_in_a_task_of_an_asynchronous_handler_ends_the_run_dead_at_once(
    project: Project,
):
    [run] = project.enqueue("effect_in_doubt_in_a_task")

    project.work(code=1)

    row = project.row(run)
    assert (row.status, row.attempts, row.error_type) == ("dead", 2, "EffectInDoubt")
    assert f"yamlsched settle --done run:{run}:post" in row.last_error
    assert "ValueError" in project.failures(run)[-1].stack


def carry_out(
    project: Project, marks: Path, plans: list[dict[str, Any]], job: str = "effect_and_transaction"
) -> Receiver:
    """Enqueue a run for each plan, and start workers, which are killed, until every run has ended."""
    marks.mkdir()
    query = "select yamlsched.enqueue_many(%s, %s::text[]::jsonb[])"
    project.db.execute(query, [job, [json.dumps(plan) for plan in plans]])
    unfinished = (
        "select 1 from yamlsched.job_runs where job_type = %s and finished_at is null limit 1"
    )
    with receiving() as (receiver, port):
        while project.db.execute(unfinished, [job]).fetchone():
            project.end_leases()  # every worker was killed
            project.db.execute(
                "update yamlsched.job_runs set run_at = now() where status = 'queued' and job_type = %s",
                [job],
            )
            worker = project.start(
                "work",
                "--concurrency",
                "3",
                before="import support.crashes",
                RECEIVER_PORT=str(port),
                MARKS=str(marks),
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
    assert (outcome.status, outcome.rows, outcome.children) in [
        ("succeeded", 1, FAN_OUT),
        ("dead", 0, 0),
    ], said
    # the effect is done or in doubt, or was treated as done although it was in doubt
    assert outcome.state in ("done", "in_doubt"), said
    assert receiver.keys.get(outcome.id, {outcome.provider_key}) == {outcome.provider_key}, said
    if outcome.state == "done" and not outcome.doubted_at:
        assert times == 1 or (outcome.policy == "repeat" and times > 1), said
    if outcome.policy == "repeat":
        assert (outcome.status, outcome.state) == ("succeeded", "done"), said
    else:
        assert times <= 1, said
        assert (outcome.state == "in_doubt" or outcome.doubted_at is not None) == (
            times == 0 or outcome.result is None
        )
        # a child that outlives its worker may complete the effect after the next attempt has found it in doubt
        is_late = (outcome.victim, outcome.state, outcome.times_asked) == (
            "parent, but not the child",
            "done",
            1,
        )
        is_dead = outcome.policy == "raise" and (outcome.state == "in_doubt" or is_late)
        assert outcome.status == ("dead" if is_dead else "succeeded"), said
    if outcome.status == "dead":
        # dead without a further attempt
        assert (outcome.error_type, outcome.times_asked) == ("EffectInDoubt", 1), said
        assert (
            f"yamlsched settle --done run:{outcome.id}:post (or --not-done)" in outcome.last_error
        ), said


@pytest.mark.story
def test_after_a_kill_at_any_point_rows_happen_once_and_effects_follow_in_doubt(project: Project):
    wanted = [(point, victim) for point in POINTS for victim in VICTIMS]
    hits: Counter[tuple[str, str]] = Counter()
    for nth in range(20):
        # given a run for each point and victim that was not hit three times: the kill of one worker can
        # prevent the planned kills of its other runs
        missing = [pair for pair in wanted for _ in range(3 - hits[pair])]
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
                assert (
                    outcome.state == "in_doubt" or outcome.doubted_at or outcome.policy == "repeat"
                ), outcome
        project.db.execute("delete from yamlsched.job_runs")

    assert {pair: hits[pair] for pair in wanted if hits[pair] < 3} == {}


@pytest.mark.story
def test_after_kills_at_random_instants_the_same_holds(project: Project):
    plans = [
        {
            "policy": POLICIES[nth % 3],
            "point": None,
            "victim": ("child", "parent", "both")[nth // 3 % 3],
        }
        for nth in range(54)
    ]

    receiver = carry_out(project, project.folder / "marks", plans)

    for outcome in outcomes(project.db):
        hold(outcome, receiver)
    assert receiver.kills.total() >= 40


@pytest.mark.story
def test_after_kills_at_random_instants_a_shared_effect_follows_in_doubt(project: Project):
    # given effects with a business key, each tried by three runs
    plans = [
        {
            "number": nth % 15,
            "policy": POLICIES[nth % 15 % 3],
            "victim": ("child", "parent", "both")[nth // 3 % 3],
        }
        for nth in range(45)
    ]

    receiver = carry_out(project, project.folder / "marks", plans, "shared_effect")

    # then each effect is done or in doubt, and the receiver sees one key for each
    assert receiver.kills.total() >= 30
    found = project.db.execute(
        """
        select e.key, e.state, e.doubted_at, e.provider_key::text as provider_key,
               array_agg(r.status order by r.id) as statuses
        from yamlsched.effects e
        join yamlsched.job_runs r on 'invoice ' || (r.payload ->> 'number') = e.key
        group by e.id
        """
    ).fetchall()
    assert len(found) == 15
    for effect in found:
        number = int(effect.key.removeprefix("invoice "))
        policy, times, said = (
            POLICIES[number % 3],
            receiver.effects[number],
            f"{effect} {receiver.effects[number]}",
        )
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
            assert set(effect.statuses) <= {
                "succeeded",
                *(["dead"] if policy == "raise" else []),
            }, said
