"""Effects once: the run's own transaction and run.once(), under kill -9 and side by side."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from killed import FAN_OUT, POINTS, POLICIES, VICTIMS
from psycopg.rows import namedtuple_row

ROOT = Path(__file__).resolve().parent.parent


class Receiver:
    """The world: an HTTP server that counts effects by run, and kills processes that have asked for it."""

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
                try:
                    os.kill(pid, signal.SIGKILL)
                    hit = True
                except ProcessLookupError:
                    pass  # somebody else's kill was quicker
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
            try:
                super().handle()
            except ConnectionError:
                pass  # the sender was killed before it heard the answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver, server.server_port
    finally:
        server.shutdown()
        server.server_close()  # waits for what is being received
        thread.join()


def a_story_job(db: psycopg.Connection[Any]) -> None:
    db.execute("create table ledger (run_id bigint not null)")
    for name in ("story", "leaf"):
        db.execute(
            """
            insert into yamlsched.job_definitions (
                namespace, job_type, handler, timezone, max_attempts, backoff, timeout, lease, overlap, catchup,
                catchup_window, spread, enabled, effective_from)
            values ('default', %s, 'killed.story', 'UTC', 100, '{}', '1h', '2s', 'wait', 'latest', '1d', '0', true,
                    now())
            """,
            [name],
        )


def carry_out(db: psycopg.Connection[Any], dsn: str, folder: Path, plans: list[dict[str, Any]]) -> Receiver:
    """Enqueue a story for each plan, and let workers carry them out, and be killed, until none is left."""
    (marks := folder / "marks").mkdir(parents=True)
    db.execute(
        "select yamlsched.enqueue_many('story', %s::text[]::jsonb[])", [[json.dumps(plan) for plan in plans]]
    )
    with receiving() as (receiver, port):
        environment = {**os.environ, "RECEIVER_PORT": str(port), "MARKS": str(marks), "TMPDIR": str(folder)}
        with subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "killed.py"), dsn, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / 'log').open('w'), text=True, env=environment,
        ) as starter:  # fmt: skip
            assert starter.stdin is not None
            assert starter.stdout is not None
            while db.execute(
                # every worker is dead: its leases are over
                "with over as (update yamlsched.job_runs set locked_until = now() - interval '1 second' "
                "where status = 'running' returning 1) "
                "select 1 from yamlsched.job_runs where job_type = 'story' and finished_at is null"
            ).fetchone():
                starter.stdin.write("work\n")
                starter.stdin.flush()
                assert starter.stdout.readline() == "ended\n"
            starter.stdin.close()
    return receiver


def outcomes(db: psycopg.Connection[Any]) -> list[Any]:
    """Return what the database says of each story: its end, its rows, its fan-out, its effect."""
    return db.execute(
        """
        select r.id, r.payload ->> 'policy' as policy, r.payload ->> 'point' as point, r.payload ->> 'victim' as victim,
               r.status, r.attempts, r.last_error, e.state, e.result, e.key,
               (select count(*) from ledger l where l.run_id = r.id) as rows,
               (select count(*) from yamlsched.job_runs c where c.parent_id = r.id) as children
        from yamlsched.job_runs r
        left join yamlsched.effects e on e.run_id = r.id
        where r.job_type = 'story'
        order by r.id
        """
    ).fetchall()


def hold(outcome: Any, receiver: Receiver) -> None:
    """Assert what must hold of a story, wherever it was killed."""
    times = receiver.effects[outcome.id]
    said = f"{outcome} {times} times"
    # in the same database exactly once: the rows, the fan-out and the success, or none of them
    assert (outcome.status, outcome.rows, outcome.children) in [("succeeded", 1, FAN_OUT), ("dead", 0, 0)], said
    # the ledger: what happened is known, or known to be in doubt
    assert outcome.state in ("done", "in_doubt"), said
    assert receiver.keys.get(outcome.id, {outcome.key}) == {f"run:{outcome.id}:post"}, said
    if outcome.state == "done":
        assert times == 1 or (outcome.policy == "repeat" and times > 1), said
    if outcome.policy == "repeat":
        assert (outcome.status, outcome.state) == ("succeeded", "done"), said
    else:
        assert times <= 1, said
        assert outcome.status == ("dead" if (outcome.policy, outcome.state) == ("raise", "in_doubt") else "succeeded")
    if outcome.status == "dead":
        assert f"yamlsched settle run:{outcome.id}:post --done (or --not-done)" in outcome.last_error, said


@pytest.mark.slow
def test_killed_at_any_point_rows_happen_once_and_effects_as_the_author_chose(own_dsn: str, tmp_path: Path):
    with psycopg.connect(own_dsn, autocommit=True, row_factory=namedtuple_row) as db:
        a_story_job(db)
        wanted = [(point, victim) for point in POINTS for victim in VICTIMS]
        hits: Counter[tuple[str, str]] = Counter()
        for nth in range(20):
            # given a story for each point and kind of kill that has not been hit five times: what kills one worker may
            # come in the way of its other stories
            missing = [pair for pair in wanted for _ in range(min(3, 5 - hits[pair]))]
            if not missing:
                break
            plans = [
                {"policy": POLICIES[(nth + n) % 3], "point": point, "victim": victim}
                for n, (point, victim) in enumerate(missing)
            ]

            # when it is killed there, and retried to the end
            marks = tmp_path / str(nth)
            receiver = carry_out(db, own_dsn, marks, plans)

            # then what must hold holds, and what was killed inside an effect is in doubt for whoever asks
            for outcome in outcomes(db):
                hold(outcome, receiver)
                is_hit = (marks / "marks" / str(outcome.id)).exists()
                hits[outcome.point, outcome.victim] += is_hit
                if is_hit and outcome.point in POINTS[1:4] and outcome.victim in ("child", "both"):
                    assert outcome.state == "in_doubt" or outcome.policy == "repeat", outcome
            db.execute("delete from yamlsched.job_runs")

        assert {pair: hits[pair] for pair in wanted if hits[pair] < 5} == {}


@pytest.mark.slow
def test_killed_at_a_hundred_random_instants_the_same_holds(own_dsn: str, tmp_path: Path):
    with psycopg.connect(own_dsn, autocommit=True, row_factory=namedtuple_row) as db:
        a_story_job(db)
        plans = [
            {"policy": POLICIES[nth % 3], "point": None, "victim": ("child", "parent", "both")[nth // 3 % 3]}
            for nth in range(135)
        ]

        receiver = carry_out(db, own_dsn, tmp_path, plans)

        for outcome in outcomes(db):
            hold(outcome, receiver)
        assert receiver.kills.total() >= 100
