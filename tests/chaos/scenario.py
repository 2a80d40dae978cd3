"""One seeded scenario: processes work while faults happen, everything drains, and the evidence is checked."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from support.claiming import WRONGLY_BLOCKED
from support.monitoring import service
from support.project import ForkServer, is_alive, until
from yamlsched import db as store
from yamlsched.extras import embedded
from yamlsched.schedule.include import patterns
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync

from . import checks, notes_check, recorder, slots_check
from .cluster import LOOPS, Cluster, as_lines, count_entries
from .evidence import Attempt, Evidence, collect
from .faults import Faults
from .operators import Application, Operators, host_of
from .schedule import ENVIRONMENT, TARGETS, Schedule, variable

DOWNTIME = timedelta(minutes=30)  # time between the first application of the schedule and the start
STEP_SECONDS = 0.35  # mean time between faults
ENQUEUES_PER_SECOND = 8.0  # runs per second that the applications enqueue
DRAIN_SECONDS = 90.0
MINUTE, SENDING = (
    timedelta(minutes=1),
    timedelta(seconds=25),
)  # SENDING: also of a process that is stopped meanwhile
UNFINISHED = """
select (select count(*) from yamlsched.job_runs where finished_at is null)
       + (select count(*) from yamlsched.job_definitions where next_slot_at <= now())
"""
UNTOLD = "select count(*) from yamlsched.notifications where due_at <= to_timestamp(%(ended)s)"


@dataclass
class Report:
    """The result of a scenario."""

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
    """All parts of one scenario, in ``folder``."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        folder: Path,
        dsn: str,
        server_file: Path,
        fork_server: ForkServer,
    ) -> None:
        self.seed, self.seconds, self.folder = seed, seconds, folder
        self.choice = random.Random(seed)
        self.cluster = Cluster(folder, server_file, fork_server, dsn)
        self.schedule = Schedule(folder / "schedules.yaml", seed, random.Random(f"{seed} schedule"))
        self.faults = Faults(self.cluster, random.Random(f"{seed} faults"))
        self.operators = Operators(self.cluster, self.schedule, random.Random(f"{seed} operators"))
        self.applications = [
            Application(self.cluster, seed, name, ENQUEUES_PER_SECOND / 2)
            for name in ("one", "other")
        ]
        self.started, self.ended = time.monotonic(), 0.0

    def run(self) -> Report:
        with service() as self.receiver:
            address = self.receiver.url.replace("http:", "json:")
            self.cluster.env = {variable(target): f"{address}/{target}" for target in TARGETS}
            return self._run()

    def _run(self) -> Report:
        self._prepare()
        self.started = time.monotonic()
        try:
            for application in self.applications:
                application.start()
            self._cause_faults()
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
            synced = sync(
                connection,
                ScheduleFile.read(self.schedule.file, ENVIRONMENT, find_patterns=patterns),
                now - DOWNTIME,
            )
        assert not synced.messages, synced.messages

    def _cause_faults(self) -> None:
        """Cause faults and operate until the time has ended."""
        end = self.started + self.seconds
        next_tick = next_minute = self.started + 1
        while (now := time.monotonic()) < end:
            self._keep_loops_running()
            if now >= next_tick and len(self.cluster.alive("tick")) < 2:
                self.cluster.start_tick(
                    host_of(self.choice.randrange(3)), self.choice.random() < 0.3
                )
                next_tick = now + self.choice.uniform(2, 5)
            if now >= next_minute:
                self._let_a_minute_pass()
                next_minute = now + 4
            self.faults.tick(now)
            (self.operators.act if self.choice.random() < 0.4 else self.faults.cause)()
            pause_until = time.monotonic() + self.choice.expovariate(1 / STEP_SECONDS)
            while time.monotonic() < min(pause_until, end):
                time.sleep(0.02)
                self.faults.tick(time.monotonic())

    def _let_a_minute_pass(self) -> None:
        """Let targets be told again to which nobody is sending; a target is told once a minute."""
        later = "update yamlsched.notify_targets set next_at = now() - interval '1 second' where next_at < now() + %s"
        with (
            suppress(psycopg.Error),
            psycopg.connect(self.cluster.dsn, application_name=notes_check.RESET) as session,
        ):
            session.execute(later, [MINUTE - SENDING])

    def _keep_loops_running(self) -> None:
        for _ in range(LOOPS - len(self.cluster.alive("loop"))):
            self.cluster.start_loop(host_of(self.cluster.number), self.choice.random() < 0.5)

    def _drain(self) -> bool:
        """End all faults, let handlers succeed, and wait for all runs; return whether none is unfinished."""
        self.cluster.record("calm")
        (self.folder / "calm").touch()
        self.faults.end()
        for application in self.applications:
            application.is_over.set()
        self._keep_loops_running()
        self.schedule.complete()
        until(
            lambda: len(self.cluster.alive()) == len(self.cluster.alive("loop")),
            "all commands and ticks end",
        )
        self._resume_all()
        is_drained = self._wait_until(UNFINISHED, DRAIN_SECONDS)
        self._let_a_minute_pass()
        self.ended = time.time()
        is_drained = is_drained and self._wait_until(UNTOLD, DRAIN_SECONDS)
        for member in self.cluster.alive():
            self.cluster.kill(member, signal.SIGTERM)
        with suppress(AssertionError):
            until(lambda: not self.cluster.alive(), "all processes end")
        return is_drained

    def _resume_all(self) -> None:
        for words in (["sync"], ["resume", "--all", "--yes"]):
            member = self.cluster.start(words[0], words, "a", by_proxy=False)
            assert member.process.wait() == 0, member.process.text

    def _wait_until(self, nothing: str, seconds: float) -> bool:
        """Keep workers running until a query counts none, or the time has ended; return whether it counts none."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._keep_loops_running()
            if not self.cluster.alive("tick"):
                self.cluster.start_tick("a", by_proxy=False)
            time.sleep(0.3)
            with store.connect(self.cluster.dsn) as connection:
                [count] = connection.execute(
                    nothing.encode(), {"ended": self.ended}
                ).fetchone() or [1]
            if not count:
                return True
        return False

    def _check(self, is_drained: bool) -> Report:
        with store.connect(self.cluster.dsn) as connection:
            tables = recorder.read(connection)
        acknowledged = [
            pair for application in self.applications for pair in application.acknowledged
        ]
        received = self.receiver.requests
        evidence = collect(
            tables, self.folder / "handlers.log", self.cluster, acknowledged, received, self.ended
        )
        all_checks = (*checks.CHECKS, *notes_check.CHECKS)
        violations = [
            f"{check.__name__}: {line}" for check in all_checks for line in check(evidence)
        ]
        violations += [
            f"check_slots: {line}" for line in slots_check.check_slots(evidence, time.time())
        ]
        violations += [f"orphan: {attempt} is still alive" for attempt in orphans(evidence)]
        violations += [
            f"application: {a.failure!r}" for a in self.applications if a.failure is not None
        ]
        with store.connect(self.cluster.dsn) as connection:
            blocked = connection.execute(WRONGLY_BLOCKED, {"now": datetime.now(UTC)}).fetchall()
        violations += [f"wrongly blocked: {run}" for run in blocked]
        if not is_drained:
            violations.append(f"not drained after {DRAIN_SECONDS:.0f} s")
        self._write_evidence(evidence, violations)
        return Report(
            self.seed, self.seconds, self.folder, violations, self._counts(evidence, violations)
        )

    def _counts(self, e: Evidence, violations: list[str]) -> dict[str, Any]:
        faults = count_entries(self.cluster.journal)
        return {
            "runs": len(e.runs),
            "attempts started": len(e.attempts),
            "deaths": sum(after.status == "dead" != before.status for before, after in e.changes()),
            "messages": len(e.messages),
            "recoveries told": sum(len(notes_check.RECOVERED.findall(message.text)) for message in e.messages),
            "final": dict(Counter(versions[-1].status for versions in e.runs.values())),
            "kills": faults.get("SIGKILL", 0) + faults.get("SIGKILL child", 0),
            "attempts that lost their worker": sum(map(checks.is_loss, *zip(*e.changes(), strict=True))),
            "runs lost": sum(versions[-1].status in ("queued", "running", "failed") for versions in e.runs.values()),
            "overlapping attempts": sum("beside" in line for line in violations),
            "faults": {name: number for name, number in faults.items() if not name.startswith(("start", "end"))},
        }  # fmt: skip

    def _write_evidence(self, e: Evidence, violations: list[str]) -> None:
        """Write the evidence to files: the journal, the violations and the tables."""
        (self.folder / "journal").write_text(
            "\n".join(as_lines(self.cluster.journal, self.started))
        )
        (self.folder / "violations").write_text("\n".join(violations))
        with (self.folder / "tables.json").open("w") as file:
            json.dump(e.tables, file, default=str, indent=0)


def orphans(e: Evidence) -> list[Attempt]:
    """Return attempts whose process is still alive."""
    found = {}
    for attempt in e.attempts.values():
        with suppress(OSError):
            process_start = (
                Path(f"/proc/{attempt.pid}/stat").read_text().rpartition(")")[2].split()[19]
            )
            if process_start == attempt.process_start and is_alive(attempt.pid):
                found[attempt.pid] = attempt
    return list(found.values())


def run_scenario(seed: int, seconds: float, folder: Path) -> Report:
    """Run a scenario on a new server in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    server_file = folder / "server" / "schedules.yaml"
    server_file.parent.mkdir(exist_ok=True)
    try:
        with embedded.running(server_file) as dsn:
            return Scenario(seed, seconds, folder, dsn, server_file, ForkServer()).run()
    finally:
        with suppress(psycopg.Error):
            embedded.discard(server_file)
