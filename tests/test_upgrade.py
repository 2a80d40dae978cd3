"""Hosts with two installed releases on one database, while it is migrated."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
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
    f"{OWN + 1:04}_note": "-- A note on each run. Takes a short lock.\n"
    "alter table yamlsched.job_runs add note text not null default '';\n"
}
JOBS = "import time\ndef quick(): pass\ndef slow(): time.sleep(0.2)\ndef minutely(): pass\n"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return install(tmp_path_factory.mktemp("old"), __version__, {})


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return install(tmp_path_factory.mktemp("new"), "0.9.0", ADDED)


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

    def make_slots_due(self, minutes: int) -> None:
        """Let the slots of the last minutes be due, those before be accounted for."""
        self.db.execute(
            "update yamlsched.job_definitions set last_slot_at = null, "
            "effective_from = date_trunc('minute', now()) - interval '1 minute' * %s, "
            "next_slot_at = date_trunc('minute', now()) - interval '1 minute' * (%s - 1) "
            "where job_type = 'minutely'",
            [minutes, minutes],
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


def test_an_older_host_stops_gracefully_when_the_tables_are_migrated_and_nothing_is_lost(
    hosts: Hosts, old: Release, new: Release
) -> None:
    # given an old host that executes a run, and others that wait
    hosts.run(old, "migrate", host="a")
    assert hosts.run(old, "sync", host="a").returncode == 0
    with hosts.loop(old, "a") as (loop, log):
        runs = hosts.enqueue("slow", 20)
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
        hosts.make_slots_due(3)
        loop.send_signal(signal.SIGHUP)

        # then it stops, and so does each of its ticks
        assert loop.wait() == 3, log.read_text()
    said = (
        f"yamlsched: the database has tables of version {OWN + 1}, created by a newer yamlsched, and this one works "
        f"with version {OWN}: upgrade yamlsched on this host"
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

    # and nothing is lost: an upgraded host executes what is left
    tick = hosts.run(new, "tick", host="b")
    assert tick.returncode == 0, tick.stderr
    hosts.until_all_succeeded(runs)
    assert hosts.attempts() == {1}
    minutely = hosts.db.execute(
        "select status from yamlsched.job_runs where job_type = 'minutely'"
    ).fetchall()
    assert len(minutely) >= 3
    assert {row.status for row in minutely} == {"succeeded"}
