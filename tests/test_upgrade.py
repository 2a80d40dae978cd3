"""Hosts with two installed releases on one database, while it is migrated."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.pages import commands, shell
from support.project import until
from support.releases import Release, install
from yamlsched import __version__
from yamlsched.db import migrations

OWN = migrations.latest_version()
pytestmark = pytest.mark.slow
ADDED = {
    f"{OWN + 1:04}_note": f"-- A note on each run. Takes a short lock.\n-- oldest_supported: {OWN}\n"
    "alter table yamlsched.job_runs add note text not null default '';\n"
}
BROKEN = {
    **ADDED,
    f"{OWN + 2:04}_renamed": "-- Nothing supports the old name.\n"
    "alter table yamlsched.job_definitions rename column next_slot_at to next_at;\n",
}
SECONDS = 0.03  # that a handler of the story with killed workers takes
RECORDED = f"""
import asyncio, os, time
def record(run):
    with open("../calls", "a") as calls:
        calls.write(f"{{run.id}} {{run.attempt}} {{time.monotonic()}} {{os.getcwd()}}\\n")
def execute(run):
    record(run)
    time.sleep({SECONDS})
    record(run)
async def execute_shared(run):
    record(run)
    await asyncio.sleep({SECONDS})
    record(run)
"""
JOBS = "import time\ndef quick(): pass\ndef slow(): time.sleep(0.2)\ndef minutely(): pass\n"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return install(tmp_path_factory.mktemp("old"), __version__, {})


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return install(tmp_path_factory.mktemp("new"), "0.9.0", ADDED)


@pytest.fixture(scope="module")
def incompatible(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return install(tmp_path_factory.mktemp("incompatible"), "1.0.0", BROKEN)


class Hosts:
    """Hosts that share a database; each has a folder with the same schedule."""

    def __init__(self, folder: Path, dsn: str, db: Any) -> None:
        self.folder, self.dsn, self.db = folder, dsn, db
        self.logs: list[Path] = []

    def of(self, name: str) -> Path:
        host = self.folder / name
        if not host.exists():
            host.mkdir()
            (host / "jobs.py").write_text(JOBS)
            jobs = {name: {"handler": f"jobs.{name}", "lease": "30s"} for name in ("quick", "slow")}
            minutely = {
                "handler": "jobs.minutely",
                "cron": "* * * * *",
                "catchup": "all",
                "overlap": "allow",
            }
            (host / "schedules.yaml").write_text(
                json.dumps({"version": 1, "jobs": {**jobs, "minutely": minutely}})
            )
        return host

    def run(self, release: Release, *words: object, host: str) -> subprocess.CompletedProcess[str]:
        return release.run(
            *words, cwd=self.of(host), YAMLSCHED_DSN=self.dsn, TMPDIR=str(self.of(host))
        )

    @contextmanager
    def loop(self, release: Release, host: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Start a worker that syncs at each SIGHUP; yield it with its log; kill it afterwards."""
        folder = self.of(host)
        log = folder / "log"
        loop = release.start(
            "work", "--loop", cwd=folder, log=log, YAMLSCHED_DSN=self.dsn, TMPDIR=str(folder)
        )
        try:
            yield loop, log
        finally:
            loop.kill()
            loop.wait()

    def enqueue(self, job: str, count: int) -> list[int]:
        rows = self.db.execute(
            "select run_id from yamlsched.enqueue_many(%s, array(select '{}'::jsonb from generate_series(1, %s)))",
            [job, count],
        )
        return [row.run_id for row in rows]

    def make_slots_due(
        self, minutes: int, column: str = "next_slot_at", jobs: Sequence[str] = ("minutely",)
    ) -> None:
        """Let the slots of the last minutes be due, those before be accounted for."""
        self.db.execute(
            "update yamlsched.job_definitions set last_slot_at = null, "
            "effective_from = date_trunc('minute', now()) - interval '1 minute' * %s, "
            f"{column} = date_trunc('minute', now()) - interval '1 minute' * (%s - 1) "
            "where job_type = any (%s)".encode(),
            [minutes, minutes, list(jobs)],
        )

    def until_all_succeeded(self, runs: list[int]) -> None:
        query = "select id from yamlsched.job_runs where id = any(%s) and status = 'succeeded'"
        until(
            lambda: len(self.db.execute(query, [runs]).fetchall()) == len(runs),
            "all runs succeeded",
        )

    def attempts(self) -> set[int]:
        return {
            row.attempts
            for row in self.db.execute(
                "select distinct attempts from yamlsched.job_runs"
            ).fetchall()
        }


@pytest.fixture
def hosts(empty_dsn: str, tmp_path: Path, db_of: Any) -> Hosts:
    return Hosts(tmp_path, empty_dsn, db_of(empty_dsn))


def reload(loop: subprocess.Popen[bytes], log: Path) -> None:
    """Make a loop sync now, and wait until it has begun to."""
    before = log.read_text().count("worker.reloading")
    loop.send_signal(signal.SIGHUP)
    until(
        lambda: log.read_text().count("worker.reloading") > before or loop.poll() is not None,
        "it reloads",
    )


def test_older_hosts_continue_while_newer_ones_migrate_and_join(
    hosts: Hosts, old: Release, new: Release
) -> None:
    # given hosts with the old release, which are busy
    assert hosts.run(old, "migrate", host="a").returncode == 0
    assert hosts.run(old, "sync", host="a").returncode == 0
    with hosts.loop(old, "a") as (loop, log):
        runs = hosts.enqueue("slow", 30)
        until(lambda: "attempt.succeeded" in log.read_text(), "the old host works")

        # when a host with the new release migrates; before, it says what to do
        early = hosts.run(new, "tick", host="c")
        assert (early.returncode, early.stderr) == (
            3,
            f'yamlsched: the database has tables of version {OWN} of {OWN + 1}: run "yamlsched migrate"\n',
        )
        procedure = commands("upgrade.md", "migrate")
        done = shell(procedure, hosts.of("c"), new.program.parent, YAMLSCHED_DSN=hosts.dsn)
        assert done.returncode == 0, done
        continues = (
            f"hosts with version {OWN} or later continue to work: upgrade them one after the other"
        )
        said = [
            f"would apply {OWN + 1:04}_note",
            continues,
            f"applied {OWN + 1:04}_note",
            continues,
        ]
        assert done.stdout.splitlines()[:4] == said
        hosts.make_slots_due(3)
        runs += hosts.enqueue("quick", 10)

        # then the old hosts sync, tick and work beside the new one
        reload(loop, log)
        until(
            lambda: hosts.db.execute(
                "select 1 from yamlsched.job_runs where job_type = 'minutely'"
            ).fetchone(),
            "slots",
        )
        for release, host in ((old, "b"), (new, "c"), (old, "b")):
            runs += hosts.enqueue("quick", 5)
            tick = hosts.run(release, "tick", host=host)
            assert tick.returncode == 0, tick.stderr
        with hosts.loop(new, "c"):
            runs += hosts.enqueue("slow", 10)
            hosts.until_all_succeeded(runs)
        assert hosts.run(old, "status", "--check", host="b").returncode == 0
        doctor = hosts.run(old, "doctor", host="b")
        assert "upgrade yamlsched on this host too" in doctor.stdout
        loop.send_signal(signal.SIGTERM)
        assert loop.wait() == 0, log.read_text()

    # and each run was executed once, each slot has its run
    assert "ERROR" not in log.read_text()
    assert "WARNING" not in log.read_text()
    assert hosts.attempts() == {1}
    slots = hosts.db.execute(
        "select count(*) as n from yamlsched.job_runs where job_type = 'minutely'"
    ).fetchone()
    assert slots.n >= 3


def test_an_older_host_that_is_not_supported_any_more_stops_gracefully_and_nothing_is_lost(
    hosts: Hosts, old: Release, incompatible: Release
) -> None:
    # given an old host that executes a run, and others that wait
    hosts.run(old, "migrate", host="a")
    assert hosts.run(old, "sync", host="a").returncode == 0
    with hosts.loop(old, "a") as (loop, log):
        runs = hosts.enqueue("slow", 20)
        until(lambda: "attempt.succeeded" in log.read_text(), "the old host works")

        # when the tables are migrated to what it does not support
        done = hosts.run(incompatible, "migrate", host="c")
        assert (
            f"hosts with a version before {OWN + 2} stop working until yamlsched is upgraded"
            in done.stdout
        )
        hosts.make_slots_due(3, "next_at")
        loop.send_signal(signal.SIGHUP)

        # then it stops, and so does each of its ticks
        assert loop.wait() == 3, log.read_text()
    said = (
        f"yamlsched: the database has tables of version {OWN + 2}, created by a newer yamlsched. They support hosts "
        f"with version {OWN + 2} or later, and this one has {OWN}: upgrade yamlsched on this host"
    )
    assert log.read_text().splitlines()[-1] == said
    assert "Traceback" not in log.read_text()
    assert "worker.stopping" in log.read_text()
    tick = hosts.run(old, "tick", host="b")
    assert (tick.returncode, tick.stderr) == (3, said + "\n")
    unfinished = hosts.db.execute(
        "select locked_by from yamlsched.job_runs where status = 'running'"
    ).fetchall()
    assert unfinished == []

    # and nothing is lost: an upgraded host, whose statements know the old name, executes what is left
    hosts.db.execute("alter table yamlsched.job_definitions rename column next_at to next_slot_at")
    tick = hosts.run(incompatible, "tick", host="b")
    assert tick.returncode == 0, tick.stderr
    hosts.until_all_succeeded(runs)
    assert hosts.attempts() == {1}
    minutely = hosts.db.execute(
        "select status from yamlsched.job_runs where job_type = 'minutely'"
    ).fetchall()
    assert len(minutely) >= 3
    assert {row.status for row in minutely} == {"succeeded"}


TURNS = ("turns_before", "turns_after")


def a_host(hosts: Hosts, name: str) -> None:
    """Give a host handlers that record when they start and end: plain, shared, and of slots that take turns."""
    folder = hosts.of(name)
    (hosts.folder / "calls").touch()
    (folder / "jobs.py").write_text(RECORDED)
    common = {"lease": "2s", "max_attempts": 20, "backoff": {"policy": "fixed", "delay": "1s"}}
    slots = {"handler": "jobs.execute", "cron": "* * * * *", "catchup": "all", **common}
    jobs = {
        "plain": {"handler": "jobs.execute", **common},
        "shared": {"handler": "jobs.execute_shared", "queue": "shared", **common},
        "paused": {"handler": "jobs.execute", **common},
        "minutely": {"overlap": "allow", **slots},
        **{name: {"overlap": "wait", **slots} for name in TURNS},
    }
    (folder / "schedules.yaml").write_text(
        json.dumps({"version": 1, "queues": {"shared": {"mode": "async"}}, "jobs": jobs})
    )


class Calls:
    """When each attempt of each run started and, unless it was killed, ended; and how many calls each host made."""

    def __init__(self, hosts: Hosts) -> None:
        self.times: dict[tuple[int, int], list[float]] = {}
        self.of_hosts: Counter[str] = Counter()
        for line in (hosts.folder / "calls").read_text().splitlines():
            run, attempt, at, folder = line.split()
            self.times.setdefault((int(run), int(attempt)), []).append(float(at))
            self.of_hosts[Path(folder).name] += 1


def test_workers_of_two_releases_lose_and_repeat_nothing_while_they_are_killed_and_the_tables_are_migrated(
    hosts: Hosts, old: Release, new: Release
) -> None:
    runs = list[int]()
    unfinished = "select from yamlsched.job_runs where finished_at is null and job_type <> 'paused'"

    def until_busy(*names: str) -> None:
        """Enqueue runs until each of these hosts has executed some."""
        seen = Calls(hosts).of_hosts

        def are_busy() -> bool:
            now = Calls(hosts).of_hosts
            return all(now[name] > seen[name] + 40 for name in names)

        while not are_busy():
            for job, count in (("plain", 150), ("shared", 150), ("paused", 5)):
                runs.extend(hosts.enqueue(job, count))
            until(
                lambda: are_busy() or len(hosts.db.execute(unfinished).fetchall()) < 50,
                f"{names} work",
            )

    # given workers of the old release that execute runs of all kinds, and one of them is killed
    for name in "abcd":
        a_host(hosts, name)
    assert hosts.run(old, "migrate", host="a").returncode == 0
    assert hosts.run(old, "sync", host="a").returncode == 0
    assert hosts.db.execute("select max(version) from yamlsched.migrations").fetchone() == (OWN,)
    hosts.make_slots_due(20, jobs=TURNS[:1])
    assert hosts.run(old, "sync", host="a").returncode == 0
    with hosts.loop(old, "a") as (first, _), hosts.loop(old, "b") as (second, _):
        until_busy("a", "b")
        first.kill()

        # when the tables are migrated, workers of both releases work beside each other, and some are killed
        assert hosts.run(old, "pause", "paused", host="a").returncode == 0
        migration = hosts.run(new, "migrate", host="c")
        assert migration.returncode == 0, migration.stderr
        with hosts.loop(new, "c") as (third, _), hosts.loop(old, "a") as (fourth, _):
            hosts.make_slots_due(20, jobs=("minutely", *TURNS[1:]))
            tick = hosts.run(old, "sync", host="d")
            assert tick.returncode == 0, tick.stderr
            until_busy("a", "b", "c")
            second.kill()
            third.kill()
            with hosts.loop(new, "d"):
                until_busy("a", "d")
                runs.extend(hosts.enqueue("plain", 50))
                fourth.send_signal(signal.SIGTERM)  # the new release alone executes what is left
                assert fourth.wait() == 0
                assert hosts.run(old, "resume", "paused", host="b").returncode == 0
                hosts.until_all_succeeded(runs)
                until(lambda: not hosts.db.execute(unfinished).fetchall(), "nothing is stuck")

    # then each run has succeeded, and an attempt more than one is one that was lost with its worker
    rows = hosts.db.execute(
        "select r.id, r.job_type, r.status, r.attempts, count(f.run_id) as lost, "
        "bool_and(f.error_type = 'LostWorker') as is_lost "
        "from yamlsched.job_runs r left join yamlsched.job_failures f on f.run_id = r.id group by r.id"
    ).fetchall()
    assert {row.status for row in rows} == {"succeeded"}
    assert sum(row.lost for row in rows) > 0
    assert [row for row in rows if row.attempts != row.lost + 1 or row.is_lost is False] == []
    assert {row.job_type for row in rows} == {"plain", "shared", "paused", "minutely", *TURNS}
    slots = hosts.db.execute(
        "select count(*) as n from yamlsched.job_runs where job_type = any(%s) group by job_type",
        [["minutely", *TURNS]],
    ).fetchall()
    assert min(row.n for row in slots) >= 20

    # and no two attempts of a run, or of slots that take turns, executed at once
    times = Calls(hosts).times
    assert [row for row in rows if (row.id, row.attempts) not in times] == []
    assert max(map(len, times.values())) == 2
    job_types = {row.id: row.job_type for row in rows}
    spans: dict[object, list[list[float]]] = {}
    for (run, _), span in times.items():
        spans.setdefault(job_types[run] if job_types[run] in TURNS else run, []).append(span)
    for each in map(sorted, spans.values()):
        assert [
            (one, following)
            for one, following in itertools.pairwise(each)
            if one[-1] > following[0]
        ] == []
