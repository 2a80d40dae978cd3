"""One seeded run: processes work while faults happen; then everything drains, and the evidence is checked."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from support.project import ForkServer, is_alive, until
from yamlsched import embedded, store
from yamlsched.sync import ScheduleFile, sync

from . import checks, recorder, slots_check
from .cluster import LOOPS, Cluster, as_lines, counted
from .evidence import Attempt, Evidence, collect
from .faults import Faults
from .operators import Application, Operators, host_of
from .schedule import ENVIRONMENT, Schedule

DOWNTIME = timedelta(minutes=30)  # the schedule was applied so long ago, and nothing has run since
STEP_SECONDS = 0.35  # between faults, on average
RATE = 8.0  # runs that an application enqueues each second
DRAIN_SECONDS = 90.0


@dataclass
class Report:
    """What came of a run."""

    seed: int
    seconds: float
    folder: Path
    violations: list[str]
    counts: dict[str, Any]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.seconds:.0f} s, {self.folder}"]
        lines += [f"  {name}: {value}" for name, value in self.counts.items()]
        lines += [f"  VIOLATION {line}" for line in self.violations] or ["  no violation"]
        return "\n".join(lines)


class Scenario:
    """Everything that is there during one run, in ``folder``."""

    def __init__(
        self, seed: int, seconds: float, folder: Path, dsn: str, server_file: Path, fork_server: ForkServer
    ) -> None:
        self.seed, self.seconds, self.folder = seed, seconds, folder
        self.choice = random.Random(seed)
        self.cluster = Cluster(folder, server_file, fork_server, dsn)
        self.schedule = Schedule(folder / "schedules.yaml", seed, random.Random(f"{seed} schedule"))
        self.faults = Faults(self.cluster, random.Random(f"{seed} faults"))
        self.operators = Operators(self.cluster, self.schedule, random.Random(f"{seed} operators"))
        self.applications = [Application(self.cluster, seed, name, RATE / 2) for name in ("one", "other")]
        self.begun = time.monotonic()

    def run(self) -> Report:
        self._prepare()
        self.begun = time.monotonic()
        try:
            for application in self.applications:
                application.start()
            self._suffer()
            drained = self._drain()
        finally:
            for application in self.applications:
                application.is_over.set()
                application.join()
            self.cluster.close()
        return self._check(drained)

    def _prepare(self) -> None:
        shutil.copy(Path(__file__).with_name("scripted.py"), self.folder)
        self.schedule.write()
        with store.connect(self.cluster.dsn) as connection:
            store.migrations.migrate(connection)
            recorder.install(connection)
            [now] = connection.execute("select clock_timestamp()").fetchone() or [None]
            synced = sync(connection, ScheduleFile.read(self.schedule.file, ENVIRONMENT), now - DOWNTIME)
        assert not synced.messages, synced.messages

    def _suffer(self) -> None:
        """Cause faults until the time is over."""
        end = self.begun + self.seconds
        next_tick = self.begun + 1
        while (now := time.monotonic()) < end:
            self._keep_loops_running()
            if now >= next_tick and len(self.cluster.alive("tick")) < 2:
                self.cluster.start_tick(host_of(self.choice.randrange(3)), self.choice.random() < 0.3)
                next_tick = now + self.choice.uniform(2, 5)
            self.faults.tick(now)
            (self.operators.act if self.choice.random() < 0.4 else self.faults.cause)()
            pause_until = time.monotonic() + self.choice.expovariate(1 / STEP_SECONDS)
            while time.monotonic() < min(pause_until, end):
                time.sleep(0.02)
                self.faults.tick(time.monotonic())

    def _keep_loops_running(self) -> None:
        for _ in range(LOOPS - len(self.cluster.alive("loop"))):
            self.cluster.start_loop(host_of(self.cluster.number), self.choice.random() < 0.5)

    def _drain(self) -> bool:
        """End all faults, let handlers succeed, and wait until nothing is unfinished; say whether that came true."""
        self.cluster.note("calm")
        (self.folder / "calm").touch()
        self.faults.end()
        for application in self.applications:
            application.is_over.set()
        self._keep_loops_running()
        self.schedule.complete()
        until(lambda: len(self.cluster.alive()) == len(self.cluster.alive("loop")), "commands and ticks have ended")
        self._resume_all()
        is_drained = self._wait_until_drained()
        for member in self.cluster.alive():
            self.cluster.kill(member, signal.SIGTERM)
        with suppress(AssertionError):
            until(lambda: not self.cluster.alive(), "all have ended")
        return is_drained

    def _resume_all(self) -> None:
        for words in (["sync"], ["resume", "--all", "--yes"]):
            member = self.cluster.start(words[0], words, "a", by_proxy=False)
            assert member.process.wait() == 0, member.process.text

    def _wait_until_drained(self) -> bool:
        end = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < end:
            self._keep_loops_running()
            if not self.cluster.alive("tick"):
                self.cluster.start_tick("a", by_proxy=False)
            time.sleep(0.3)
            with store.connect(self.cluster.dsn) as connection:
                [left] = connection.execute(
                    "select (select count(*) from yamlsched.job_runs where finished_at is null) "
                    "+ (select count(*) from yamlsched.job_definitions where next_slot_at <= now())"
                ).fetchone() or [1]
            if not left:
                return True
        return False

    def _check(self, is_drained: bool) -> Report:
        with store.connect(self.cluster.dsn) as connection:
            tables = recorder.read(connection)
        acknowledged = [pair for application in self.applications for pair in application.acknowledged]
        evidence = collect(tables, self.folder / "handlers.log", self.cluster, acknowledged)
        violations = [f"{check.__name__}: {line}" for check in checks.CHECKS for line in check(evidence)]
        violations += [f"check_slots: {line}" for line in slots_check.check_slots(evidence, time.time())]
        violations += [f"orphan: {attempt} is alive" for attempt in orphans(evidence)]
        violations += [f"application: {a.failure!r}" for a in self.applications if a.failure is not None]
        if not is_drained:
            violations.append(f"not drained after {DRAIN_SECONDS:.0f} s")
        self._keep(evidence, violations)
        return Report(self.seed, self.seconds, self.folder, violations, self._counts(evidence, violations))

    def _counts(self, e: Evidence, violations: list[str]) -> dict[str, Any]:
        faults = counted(self.cluster.journal)
        return {
            "runs": len(e.runs),
            "attempts begun": len(e.attempts),
            "final": dict(Counter(versions[-1].status for versions in e.runs.values())),
            "kills": faults.get("SIGKILL", 0) + faults.get("SIGKILL child", 0),
            "attempts that lost their worker": sum(map(checks.is_loss, *zip(*e.changes(), strict=True))),
            "runs lost": sum(versions[-1].status in ("queued", "running", "failed") for versions in e.runs.values()),
            "doubled": sum("beside" in line for line in violations),
            "faults": {name: number for name, number in faults.items() if not name.startswith(("start", "end"))},
        }  # fmt: skip

    def _keep(self, e: Evidence, violations: list[str]) -> None:
        """Write down what cannot be had later: the journal and the flight."""
        (self.folder / "journal").write_text("\n".join(as_lines(self.cluster.journal, self.begun)))
        (self.folder / "violations").write_text("\n".join(violations))
        with (self.folder / "tables.json").open("w") as file:
            json.dump(e.tables, file, default=str, indent=0)


def orphans(e: Evidence) -> list[Attempt]:
    """Return attempts whose process lives on."""
    found = {}
    for attempt in e.attempts.values():
        with suppress(OSError):
            born = Path(f"/proc/{attempt.pid}/stat").read_text().rpartition(")")[2].split()[19]
            if born == attempt.born and is_alive(attempt.pid):
                found[attempt.pid] = attempt
    return list(found.values())


def play(seed: int, seconds: float, folder: Path) -> Report:
    """Play a scenario against a server of its own, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    server_file = folder / "server" / "schedules.yaml"
    server_file.parent.mkdir(exist_ok=True)
    try:
        with embedded.running(server_file) as dsn:
            return Scenario(seed, seconds, folder, dsn, server_file, ForkServer()).run()
    finally:
        with suppress(psycopg.Error):
            embedded.discard(server_file)
