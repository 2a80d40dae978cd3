"""What is counted of a queue: runs that workers are needed for, and workers that are there."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from click.testing import CliRunner

from support.rows import a_job, a_run, value
from yamlsched.cli import cli

Db = psycopg.Connection[Any]
QUEUE = "gpu"
EARLIER = "(now() - interval '1 minute')"


def a_due_run(db: Db, job: int, **values: Any) -> int:
    return a_run(db, job, **{"queue": QUEUE, "run_at": EARLIER, "created_at": EARLIER, **values})


def a_worker(db: Db, id: str, **values: str) -> None:
    """Insert a live worker; ``values`` are expressions of SQL."""
    row = {"reported_at": "now()", "seen_at": "now()", "leaving_at": "null", "ended_at": "null"}
    row |= values
    db.execute(
        f"insert into yamlsched.workers (namespace, id, queue, host, path, {', '.join(row)})"
        f" values ('default', %s, %s, 'node-1', '/srv/schedules.yaml', {', '.join(row.values())})",  # type: ignore[arg-type]
        [id, QUEUE],
    )


def load(db: Db) -> Any:
    """Return the row of the queue in the view."""
    db.execute(
        "insert into yamlsched.namespaces (namespace) values ('default') on conflict do nothing"
    )
    return db.execute("select * from yamlsched.queue_load where queue = %s", [QUEUE]).fetchone()


def test_a_run_counts_once_it_is_claimable_for_ten_seconds(db: Db) -> None:
    job = a_job(db, overlap="allow")
    a_due_run(db, job)
    a_run(db, job, queue=QUEUE)
    a_due_run(db, job, queue="other")
    a_run(db, job, queue=QUEUE, run_at="(now() + interval '1 minute')")
    seen = load(db)
    assert (seen.due, seen.executing) == (1, 0)
    assert seen.oldest_due_at == value(db, "select min(run_at) from yamlsched.job_runs")


def test_what_leaving_workers_execute_does_not_count(db: Db) -> None:
    job = a_job(db, overlap="allow")
    a_due_run(db, job, status="running", locked_by="gpu-1:web-1:4711:c0ffee")
    a_due_run(db, job, status="running", locked_by="gpu-12:web-1:4711:c0ffee")
    a_due_run(db, job, status="running", locked_until="(now() - interval '1 second')")
    a_worker(db, "gpu-1", leaving_at="now()")
    seen = load(db)
    assert (seen.due, seen.executing) == (1, 1)  # one is lost, and due again


def test_no_more_runs_are_due_than_their_gates_have_room_for(db: Db) -> None:
    limited, one_by_one = a_job(db, "a", limit_name="api", overlap="allow"), a_job(db, "b")
    paused = a_job(db, "c", overlap="allow", paused_at="now")
    db.execute(
        "insert into yamlsched.gates (namespace, name, capacity) values ('default', 'limit/api', 2)"
    )
    for job in (limited, one_by_one, paused):
        for _ in range(4):
            a_due_run(db, job, exclusive=job == one_by_one)
    assert load(db).due == 2 + 1


def test_workers_that_are_lost_or_have_ended_do_not_count(db: Db) -> None:
    a_worker(db, "live")
    a_worker(db, "leaving", leaving_at="now()")
    a_worker(db, "lost", seen_at="now() - interval '61 s'")
    a_worker(db, "ended", ended_at="now()")
    seen = load(db)
    assert (seen.live, seen.leaving, seen.due, seen.oldest_due_at) == (1, 1, 0, None)


def test_status_names_each_queue_with_what_there_is_to_do(db: Db, dsn: str) -> None:
    a_due_run(db, a_job(db, overlap="allow"))
    a_worker(db, "gpu-1")
    shown = CliRunner().invoke(cli, ["status", "--dsn", dsn, "--namespace", "default"]).output
    assert "gpu: 1 to start (waiting for 1m), 0 executing, 1 live worker" in shown
    words = ["status", "--dsn", dsn, "--namespace", "default", "--format", "json"]
    [queue] = json.loads(CliRunner().invoke(cli, words).output)["queues"]
    assert (queue["queue"], queue["due"], queue["live"]) == (QUEUE, 1, 1)


def failed_starts(db: Db, count: int) -> None:
    """Record failed starts in a row, the latest with an error."""
    db.execute(
        "insert into yamlsched.queue_states (namespace, queue, failed_starts, failed_at, next_start_at)"
        " values ('default', %s, %s, now(), '2026-01-14 12:00Z')",
        [QUEUE, count],
    )
    db.execute(
        "insert into yamlsched.workers (namespace, id, queue, requested_at, start_by, ended_at, error)"
        " values ('default', 'gpu-9', %s, now(), now(), now(), E'exit code 1\nno such partition')",
        [QUEUE],
    )


def test_status_says_why_starts_failed_and_three_in_a_row_are_a_problem(db: Db, dsn: str) -> None:
    words = ["status", "--dsn", dsn, "--namespace", "default"]
    failed_starts(db, 2)
    shown = CliRunner().invoke(cli, words).output
    assert (
        "; 2 starts of workers failed in a row: exit code 1 no such" in shown
    )  # the next one is not to wait for

    db.execute("update yamlsched.queue_states set next_start_at = now() + interval '1 hour'")
    assert "; next start after 2" in CliRunner().invoke(cli, words).output
    db.execute("update yamlsched.queue_states set failed_starts = 3")

    checked = CliRunner().invoke(cli, [*words, "--check"]).output
    assert "queue gpu: 3 starts of workers failed in a row: exit code 1 no such" in checked
