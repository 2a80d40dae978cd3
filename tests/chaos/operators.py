"""The actions of operators and applications: random commands, edits of the file, and a steady stream of runs."""

from __future__ import annotations

import json
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from .cluster import HOSTS, Cluster
from .schedule import ENQUEUED, SCHEDULED, SHARES, Schedule

MAX_FILLER_CHARS = 65_000  # a payload with this filler is just below the limit of 64 KiB


class Operators:
    """Each call of ``act`` does one action."""

    def __init__(self, cluster: Cluster, schedule: Schedule, choice: random.Random) -> None:
        self.cluster, self.schedule, self.choice = cluster, schedule, choice
        self.table: list[tuple[Callable[[], None], int]] = [
            (self.edit, 8),
            (self.break_file, 1),
            (self.tick_with_an_older_file, 1),
            (self.cancel, 4),
            (self.retry, 4),
            (self.pause, 2),
            (self.resume, 3),
            (self.backfill, 5),
            (self.prune, 2),
        ]

    def act(self) -> None:
        functions, weights = zip(*self.table, strict=True)
        self.choice.choices(functions, weights)[0]()

    def _run(self, *words: str) -> None:
        verb = words[0]
        self.cluster.record("command", detail=" ".join(words))
        self.cluster.start(verb, list(words), "a", self.choice.random() < 0.3)

    def edit(self) -> None:
        self.cluster.record("edit", detail=self.schedule.edit())
        self._reload_loops()

    def break_file(self) -> None:
        self.schedule.break_file()
        self.cluster.record("file broken")
        self._reload_loops()

    def _reload_loops(self) -> None:
        """Send SIGHUP to most loops, as a deployment does. Otherwise they read the file at the next full minute."""
        for member in self.cluster.alive("loop"):
            if member.was_ready and not member.expected and self.choice.random() < 0.7:
                self.cluster.kill(member, signal.SIGHUP)

    def tick_with_an_older_file(self) -> None:
        """Start a tick on a host without the latest deployments: it has an older file in its own folder."""
        folder = self.cluster.folder / "forgotten"
        folder.mkdir(exist_ok=True)
        file = folder / "schedules.yaml"
        if not file.exists():
            shutil.copy(self.schedule.file, file)
            shutil.copy(self.schedule.file.with_name("scripted.py"), folder)
        self.cluster.start_tick("c", by_proxy=False, file=file)

    def cancel(self) -> None:
        self._run("cancel", "--job", self._any_job(), "--yes")

    def retry(self) -> None:
        status = self.choice.choice(["dead", "cancelled", "failed", "queued"])
        self._run("retry", "--job", self._any_job(), "--status", status, "--yes")

    def _any_job(self) -> str:
        return self.choice.choice(
            [name for name in (*SCHEDULED, *ENQUEUED) if name not in self.schedule.removed]
        )

    def pause(self) -> None:
        until = self.choice.choice([[], ["--until", "5s"]])
        self._run("pause", self._any_job(), "--reason", "chaos", *until)

    def resume(self) -> None:
        self._run("resume", "--all", "--yes")

    def backfill(self) -> None:
        names = [name for name in SCHEDULED if name not in self.schedule.removed]
        if names:
            start = datetime.now(UTC) - timedelta(minutes=self.choice.randrange(1, 120))
            end = start + timedelta(minutes=self.choice.randrange(1, 8))
            times = [f"{instant:%Y-%m-%dT%H:%MZ}" for instant in (start, end)]
            self._run("backfill", self.choice.choice(names), "--from", times[0], "--to", times[1])

    def prune(self) -> None:
        self._run("prune")


class Application(threading.Thread):
    """Enqueues runs and records what was acknowledged. Two of them race for the same keys."""

    def __init__(self, cluster: Cluster, seed: int, name: str, rate: float) -> None:
        super().__init__(name=name)
        self.cluster, self.rate = cluster, rate
        self.choice = random.Random(f"{seed} {name}")
        self.acknowledged: list[tuple[int, str | None]] = []  # run, key
        self.is_over = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                with suppress(psycopg.OperationalError, psycopg.InterfaceError):
                    self._enqueue_on_one_connection()
        except BaseException as error:
            self.failure = error

    def _enqueue_on_one_connection(self) -> None:
        with psycopg.connect(self.cluster.dsn, autocommit=True, connect_timeout=2) as connection:
            while not self.is_over.wait(self.choice.expovariate(self.rate)):
                self._enqueue(connection)

    def _enqueue(self, connection: psycopg.Connection[Any]) -> None:
        [job] = self.choice.choices([*SHARES], [*SHARES.values()])
        size = self.choice.choice([0, 0, 0, 2_000, MAX_FILLER_CHARS])
        payload = {"filler": "x" * size} if size else {}
        # keys last for a second, so that both applications use the same ones
        key = f"order {int(time.time())} {job}" if self.choice.random() < 0.5 else None
        try:
            row = connection.execute(
                "select run_id, created from yamlsched.enqueue(%s, %s::jsonb, idempotency_key => %s)",
                [job, json.dumps(payload), key],
            ).fetchone()
        except psycopg.errors.DatabaseError as error:
            if error.sqlstate in ("YS001", "YS002"):  # the job is disabled or not in the file
                return
            raise
        assert row is not None
        if row[0] is not None:
            self.acknowledged.append((row[0], key))


def host_of(n: int) -> str:
    return HOSTS[n % len(HOSTS)]
