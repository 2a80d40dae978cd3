"""A night of fifteen kinds of failure: every figure of every verb, and of the page, is what a count by SQL says."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from support.command_line import yamlsched
from support.project import until
from yamlsched.cli import cli
from yamlsched.extras import web

pytestmark = pytest.mark.story

HANDLERS = """
import ctypes, os, signal, time

import yamlsched


def works():
    pass


def raises(bad=True):
    if bad:
        raise ValueError("bad")


def recovers(run):
    if run.attempt == 1:
        raise OSError("once")


def hangs():
    time.sleep(600)


def exits():
    os._exit(3)


def segfaults():
    ctypes.string_at(0)


def discards():
    raise yamlsched.Discard("of no use")


def in_doubt(run):
    with run.once("mail"):
        raise ConnectionError("gone")


def kills_its_worker(run):
    if run.attempt == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


def snoozes():
    raise yamlsched.Snooze("1h")


def pages(run):
    raise RuntimeError("the pager is down")


async def shared():
    raise KeyError("shared")
"""
ONCE = "max_attempts: 1"
JOBS = {
    "raises": f"handler: work:raises, {ONCE}",
    "recovers": "handler: work:recovers, backoff: {policy: fixed, delay: 1s, jitter: 0}",
    "times_out": f"handler: work:hangs, timeout: 1s, {ONCE}",
    "exits": f"handler: work:exits, {ONCE}",
    "segfaults": f"handler: work:segfaults, {ONCE}",
    "discards": "handler: work:discards",
    "in_doubt": f"handler: work:in_doubt, {ONCE}",
    "lost": "handler: work:kills_its_worker, lease: 2s",
    "lost_for_good": f"handler: work:kills_its_worker, lease: 2s, {ONCE}",
    "code_3": f'command: [/bin/sh, -c, "exit 3"], {ONCE}',
    "code_64": f'command: [/bin/sh, -c, "exit 64"], {ONCE}',
    "code_75": 'command: [/bin/sh, -c, "exit 75"], max_attempts: 2, backoff: {policy: fixed, delay: 1s}',
    "killed": f'command: [/bin/sh, -c, "kill -9 $$"], {ONCE}',
    "alarmed": f"handler: work:raises, on_dead: [pages], {ONCE}",
    "pages": f"handler: work:pages, {ONCE}",
    "shared": f"handler: work:shared, queue: shared, {ONCE}",
    "waits": "handler: work:raises, backoff: {policy: fixed, delay: 1h, jitter: 0}",
    "snoozes": "handler: work:snoozes",
    "cancelled": "handler: work:works",
    "paused": "handler: work:works",
    "gone": f"handler: work:raises, {ONCE}",
}
Db = psycopg.Connection[Any]


@pytest.fixture
def night(
    tmp_path: Path, own_dsn: str, db_of: Callable[[str], Any]
) -> tuple[Db, Callable[..., str]]:
    """A database after that night, and the output of a command line in its project."""
    db = db_of(own_dsn)
    (tmp_path / "work.py").write_text(HANDLERS)

    def run(*arguments: str) -> str:
        return yamlsched(*arguments, cwd=tmp_path, YAMLSCHED_DSN=own_dsn).stdout

    def act(*arguments: str) -> None:
        """Run a verb that executes no handler, in this process."""
        done = CliRunner().invoke(cli, [*arguments, "--dsn", own_dsn, "--namespace", "default"])
        assert done.exit_code == 0, done.output

    def write(jobs: dict[str, str]) -> None:
        lines = [f"  {name}: {{{entry}}}" for name, entry in jobs.items()]
        text = "\n".join(["version: 1", "queues: {shared: {mode: async}}", "jobs:", *lines, ""])
        (tmp_path / "schedules.yaml").write_text(text)

    def is_settled() -> bool:
        run("work")
        due = (
            "select job_type, status from yamlsched.job_runs where finished_at is null and job_type <> 'paused'"
            " and (status = 'running' or run_at < now() + interval '1 minute')"
        )
        return not db.execute(due.encode()).fetchall()

    write(JOBS)
    run("sync")
    # runs that fail before the last success of their job
    for _ in range(3):
        act("enqueue", "waits")
    run("work")
    act("enqueue", "waits", "--payload", '{"bad": false}')
    run("work")
    # the night
    act("pause", "paused", "--reason", "migration")
    for job in sorted(JOBS, key=lambda name: name.startswith("lost")):
        if job == "lost":  # its worker would take the others with it
            until(is_settled, "the other jobs are done", 60)
        for _ in range(2 if job in ("raises", "alarmed") else 1):
            act("enqueue", job)
    [(cancelled,)] = db.execute(
        "select id from yamlsched.job_runs where job_type = 'cancelled'"
    ).fetchall()
    act("cancel", str(cancelled))
    until(is_settled, "the night is over", 60)
    # one of the runs was executed by another host, and one job leaves the file
    db.execute(
        "update yamlsched.job_runs set locked_by = 'other-host:1:x'"
        " where id = (select max(r.id) from yamlsched.job_runs r where r.job_type = 'raises')"
    )
    write({name: entry for name, entry in JOBS.items() if name != "gone"})
    run("sync")
    return db, run


def by_job(db: Db, query: str) -> dict[str, int]:
    return {job: number for job, number in db.execute(query.encode()).fetchall() if number}


def test_every_figure_of_a_night_is_what_a_count_by_sql_says(
    night: tuple[Db, Callable[..., str]], own_dsn: str
) -> None:
    db, run = night

    # given the figures by SQL
    dead = by_job(
        db,
        "select job_type, count(*) from yamlsched.job_runs r where status = 'dead' group by 1",
    )
    succeeded = by_job(
        db,
        "select job_type, count(*) from yamlsched.job_runs where status = 'succeeded' group by 1",
    )
    after_success = """
        from yamlsched.job_runs r
        join yamlsched.job_failures f on f.run_id = r.id
        where r.status <> 'cancelled' and f.failed_at > coalesce(
            (select max(s.finished_at) from yamlsched.job_runs s
             where s.status = 'succeeded' and s.job_type = r.job_type), '-infinity')
        group by 1
    """
    streaks = by_job(db, f"select r.job_type, count(distinct r.id) {after_success}")
    attempts = by_job(db, f"select r.job_type, count(*) {after_success}")
    failing = by_job(
        db,
        "select job_type, count(*) from yamlsched.job_runs r where finished_at is null"
        " and (select count(*) from yamlsched.job_failures f where f.run_id = r.id and f.attempt > r.prior_attempts)"
        " >= greatest(1, least(3, r.max_attempts - r.prior_attempts - 1)) group by 1",
    )
    failed = {
        (job, name): number
        for job, name, number in db.execute(
            b"select r.job_type, f.error_type, count(*) from yamlsched.job_runs r"
            b" join yamlsched.job_failures f on f.run_id = r.id group by 1, 2"
        ).fetchall()
    }
    hosts = {
        host
        for (host,) in db.execute(
            "select distinct split_part(locked_by, ':', 1) from yamlsched.job_runs"
        )
    }
    hosts.discard(None)
    assert {
        "raises",
        "exits",
        "lost_for_good",
        "in_doubt",
        "gone",
        "code_3",
        "killed",
        "shared",
    } <= set(dead)
    # the hook has a run for each death, and one that was enqueued
    assert (dead["pages"], dead["raises"], dead["alarmed"], "waits" in failing) == (3, 2, 2, False)
    assert (streaks["waits"], attempts["waits"], succeeded["recovers"], len(hosts)) == (1, 1, 1, 2)
    number = sum(dead.values())

    # then status says the same, in both forms
    status = json.loads(run("status", "--format", "json"))
    jobs = {job["job_type"]: job for job in status["jobs"]}
    for name, expected in (
        *(
            ("dead_within", dead),
            ("dead_last_hour", dead),
            ("dead_last_day", dead),
        ),
        *(("failure_streak", streaks), ("attempt_streak", attempts), ("failing", failing)),
    ):
        assert {job: values[name] for job, values in jobs.items() if values[name]} == expected, name
    queue = status["queue"]
    assert (queue["dead_last_hour"], queue["dead_last_day"]) == (number, number)
    assert queue["failing"] == sum(failing.values())
    hosts.discard("other-host")  # it does not tick
    assert {worker["host"] for worker in status["workers"]} == hosts
    assert f"dead       {number} in the last hour, {number} in the last day\n" in run("status")

    # and status --check
    checked = run(
        "status", "--check", "--max-dead-total", "0", "--max-streak", "0", "--max-failing", "0"
    )
    died = re.findall(r"^(\w+): (\d+) runs? died within 1h", checked, re.MULTILINE)
    assert {job: int(count) for job, count in died} == dead
    assert f"{number} runs of all jobs died within 1h; the limit is 0\n" in checked
    streak = re.findall(
        r"^(\w+): (\d+) failed attempts? since the last success", checked, re.MULTILINE
    )
    assert {job: int(count) for job, count in streak} == attempts

    # and the report, in each format
    report = json.loads(run("report", "--since", "1h", "--format", "json"))
    assert report["ran"]["dead"] == number
    groups = Counter[str]()
    for group in report["failures"]["groups"]:
        groups[group["job_type"]] += group["dead"]
    assert +groups == dead
    assert report["ran"]["succeeded"] == sum(succeeded.values())
    for form in ("text", "markdown", "html"):
        text = re.sub("<[^>]*>|[*|]", "", run("report", "--since", "1h", "--format", form))
        missing = [
            part for part in (f"{number} died", f"{number}, by type of error") if part not in text
        ]
        assert missing == [], form

    # and the metrics
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(run("metrics")):
        for sample in family.samples:
            labels = [
                sample.labels.get(name, "") for name in ("job_name", "status", "error_type", "host")
            ]
            found.setdefault(sample.name, {})[tuple(filter(None, labels))] = sample.value
    jobs_in_file = {job: count for job, count in streaks.items() if job != "gone"}
    nonzero = {
        name: {key: value for key, value in values.items() if value}
        for name, values in found.items()
    }
    for metric in ("yamlsched_runs", "yamlsched_recent_runs"):
        assert {
            key[0]: value for key, value in nonzero[metric].items() if key[1] == "dead"
        } == dead, metric
    assert {
        key[0]: value for key, value in nonzero["yamlsched_job_failure_streak"].items()
    } == jobs_in_file
    assert {
        key[0]: value for key, value in nonzero["yamlsched_job_failing_runs"].items()
    } == failing
    assert nonzero["yamlsched_recent_failed_attempts"] == failed
    assert {host for (host,) in found["yamlsched_worker_last_seen_timestamp_seconds"]} == hosts

    # and the page
    with TestClient(web.app(own_dsn, auth="none"), base_url="http://localhost") as client:
        page = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", client.get("/").text))
        of_job = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", client.get("/jobs/waits").text))
    assert f"Dead in 24 h {number} {number} in the last hour" in page
    assert f"Workers {len(hosts)} " in page
    assert "Failed in a row 1 " in of_job
