"""Faults of processes, of the server and of the network, chosen at random.

A parent is never stopped for longer than a lease while its children continue. No real system does this, and nothing
could stop the handlers in this case.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from .cluster import Cluster, Member, children_of

RESTART_INTERVAL_SECONDS = 10.0  # minimum time between restarts of the server


class Faults:
    """Each call of ``cause`` causes one fault."""

    def __init__(self, cluster: Cluster, choice: random.Random) -> None:
        self.cluster, self.choice = cluster, choice
        self._next_restart_at = time.monotonic() + RESTART_INTERVAL_SECONDS / 2
        self._network_until = 0.0
        self._locks: list[
            tuple[float, psycopg.Connection[Any]]
        ] = []  # when to close the sessions that lock rows
        self.table: list[tuple[Callable[[], None], int]] = [
            (self.kill_worker, 6),
            (self.kill_child, 6),
            (self.stop_briefly, 4),
            (self.stop_longer_than_a_lease, 5),
            (self.stop_child, 2),
            (self.terminate_worker, 4),
            (self.terminate_twice, 1),
            (self.terminate_everything, 1),
            (self.reload, 2),
            (self.restart_server, 2),
            (self.terminate_sessions, 4),
            (self.disturb_network, 5),
            (self.cut_network, 3),
            (self.lock_rows, 3),
        ]

    def cause(self) -> None:
        functions, weights = zip(*self.table, strict=True)
        self.choice.choices(functions, weights)[0]()

    def tick(self, now: float) -> None:
        """End the faults whose time has ended."""
        self.cluster.continue_stopped(now)
        if self.cluster.proxy.mode != "open" and now >= self._network_until:
            self.calm_network()
        self._release_rows(now)

    def end(self) -> None:
        """End all faults."""
        self.cluster.continue_stopped(float("inf"))
        self.calm_network()
        self._release_rows(float("inf"))

    # -- processes

    def _worker(self) -> Member | None:
        """Choose a worker. The oldest loop is rarely chosen, so that long attempts can complete there."""
        workers = self.cluster.workers()
        loops = [member for member in workers if member.kind == "loop"]
        if loops and self.choice.random() < 0.9:
            workers.remove(loops[0])
        return self.choice.choice(workers) if workers else None

    def kill_worker(self) -> None:
        if member := self._worker():
            self.cluster.kill(member, signal.SIGKILL)

    def terminate_worker(self) -> None:
        if member := self._worker():
            self.cluster.kill(member, signal.SIGTERM)

    def terminate_twice(self) -> None:
        if member := self._worker():
            self.cluster.kill(member, signal.SIGTERM)
            self.cluster.kill(member, signal.SIGTERM)

    def terminate_everything(self) -> None:
        """Terminate every process, children included, as a reboot does."""
        for member in self.cluster.workers():
            self.cluster.kill(member, signal.SIGTERM, with_children=True)

    def reload(self) -> None:
        loops = [
            member
            for member in self.cluster.alive("loop")
            if member.was_ready and not member.expected
        ]
        if loops:
            self.cluster.kill(self.choice.choice(loops), signal.SIGHUP)

    def stop_briefly(self) -> None:
        if member := self._worker():
            self.cluster.stop(member, self.choice.uniform(0.1, 1.5))

    def stop_longer_than_a_lease(self) -> None:
        if member := self._worker():
            self.cluster.stop(member, self.choice.uniform(5, 9))

    def _child(self) -> int | None:
        member = self._worker()
        children = children_of(member) if member else []
        return self.choice.choice(children) if children else None

    def kill_child(self) -> None:
        if pid := self._child():
            self.cluster.record("SIGKILL child", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop_child(self) -> None:
        """Stop a child. Its worker sees a handler that hangs: it keeps the lease and kills the child at the timeout."""
        if pid := self._child():
            self.cluster.record("SIGSTOP child", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    # -- the server

    def restart_server(self) -> None:
        if time.monotonic() >= self._next_restart_at:
            how = self.choice.choice([signal.SIGQUIT, signal.SIGINT])
            self.cluster.restart_server(how, after=self.choice.choice([0, 0, 3]))
            self._next_restart_at = time.monotonic() + RESTART_INTERVAL_SECONDS

    def terminate_sessions(self) -> None:
        part = self.choice.choice([0.2, 1.0])
        self.cluster.record("sessions terminated", detail=f"{part:.0%}")
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self.cluster.dsn, autocommit=True) as connection,
        ):
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid() and random() < %s",
                [part],
            )

    def lock_rows(self) -> None:
        """Lock running runs, as an open transaction of an operator does."""
        with suppress(psycopg.OperationalError):
            connection = psycopg.connect(self.cluster.dsn)
            self._locks.append((time.monotonic() + self.choice.uniform(0.5, 6), connection))
            connection.execute("set local lock_timeout = '1s'")
            rows = connection.execute(
                "select id from yamlsched.job_runs where status = 'running' order by random() limit 3 for update"
            ).fetchall()
            self.cluster.record("rows locked", detail=" ".join(str(row[0]) for row in rows))

    def _release_rows(self, now: float) -> None:
        for pair in [pair for pair in self._locks if now >= pair[0]]:
            self._locks.remove(pair)
            pair[1].close()
            self.cluster.record("rows released")

    # -- the network

    def disturb_network(self) -> None:
        if self.cluster.proxy.mode == "open":
            mode = self.choice.choice(["slow", "silent", "mute"])
            seconds = self.choice.choice([0.3, 3.0, 7.0])
            self.cluster.proxy.mode = mode
            self._network_until = time.monotonic() + seconds
            self.cluster.record("network disturbed", detail=f"{mode} for {seconds}s")

    def calm_network(self) -> None:
        if self.cluster.proxy.mode != "open":
            self.cluster.proxy.mode = "open"
            self.cluster.record("network calm")

    def cut_network(self) -> None:
        self.cluster.record("network cut")
        self.cluster.proxy.cut()
