"""Three hosts for workers, hosts for databases, and one project that they share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from support.network import Network, a_network, a_public_folder, sweep, why_unavailable
from support.project import Process, Project, until
from support.servers import Server, a_server, a_standby
from yamlsched import db as store
from yamlsched.db.connection import connect_for_handler

WORKERS = ("a", "b", "c")


@dataclass
class HostsProject(Project):
    """A project whose processes run on hosts, with a database that they reach through the network."""

    network: Network = None  # type: ignore[assignment]
    remote_dsn: str = ""

    def start(self, *words: str, host: str = "a", dsn: str | None = None, **more: Any) -> Process:
        """Start ``yamlsched *words`` on a host."""
        fork_server = self.network.hosts[host].fork_server
        assert fork_server is not None
        self.fork_server = fork_server
        return super().start(*words, host=host, dsn=dsn or self.remote_dsn, **more)

    def write(self, **jobs: dict[str, Any]) -> None:
        """Write the schedule: by default, handlers of hosts/handlers.py, and leases that a busy machine can keep."""
        super().write(
            **{
                name: {"handler": f"hosts.handlers.{name}", "lease": "6s", **job}
                for name, job in jobs.items()
            }
        )

    def check(self, expected: Mapping[int, tuple[str, int, int, int, int]]) -> None:
        """Check summaries of runs. A handler that commits its run itself returns a moment later."""
        until(
            lambda: all(self.calls("completed", run) >= each[3] for run, each in expected.items()),
            "handlers return",
        )
        assert {run: self.summary(run) for run in expected} == expected

    def states(self, runs: Mapping[str, int]) -> dict[tuple[str, str], Any]:
        """Return the columns of runs that have ended, but not those that are written a moment later: what an attempt
        used whose handler committed it.
        """
        later = ("cpu_seconds", "peak_memory_bytes")
        rows = {name: self.row(run)._asdict() for name, run in runs.items()}
        return {
            (name, column): row[column]
            for name, row in rows.items()
            for column in row
            if column not in later
        }


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """Hosts a, b, c for workers, db for a database, db1 and db2 for a primary and its standby."""
    if why := why_unavailable():
        pytest.skip(why)
    sweep()
    with a_network(*WORKERS, "db", "db1", "db2", "scheduler") as network:
        yield network


@pytest.fixture(scope="session")
def servers_folder(network: Network) -> Iterator[Path]:
    with a_public_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def database_server(network: Network, servers_folder: Path) -> Iterator[Server]:
    """A server on host db with a database ``template`` that has all tables."""
    with a_server(network.hosts["db"], servers_folder) as server:
        server.execute("create database template template template0")
        with store.connect(server.database("template")) as connection:
            store.migrations.migrate(connection)
        yield server


@pytest.fixture
def booted(network: Network) -> Iterator[Network]:
    """The network, as it should be, with hosts a, b and c running."""
    try:
        for name in WORKERS:
            network.hosts[name].boot()
        for name in WORKERS:
            network.hosts[name].until_named()
        yield network
    finally:
        network.heal()
        for name in WORKERS:
            network.hosts[name].kill()


@pytest.fixture
def project(booted: Network, database_server: Server, tmp_path: Path) -> Iterator[HostsProject]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    database_server.execute(f"create database {name} template template")
    fork_server = booted.hosts["a"].fork_server
    assert fork_server is not None
    remote = make_conninfo(database_server.dsn, dbname=name)
    project = HostsProject(
        fork_server, tmp_path, database_server.database(name), network=booted, remote_dsn=remote
    )
    try:
        yield project
    finally:
        project.close()


@dataclass
class Pair:
    """A primary on host db1 with a standby on host db2, and a project whose DSN names both."""

    primary: Server
    standby: Server
    project: HostsProject

    def fail_over(self, is_silent: bool = False) -> None:
        """Kill the primary, and promote the standby, to which the test turns as well.

        ``is_silent``: as when the host of the primary loses its power, and refuses no connection.
        """
        network = self.project.network
        if is_silent:
            network.separate(["db1"], [name for name in network.hosts if name != "db1"])
        self.primary.kill()
        if not is_silent:
            network.heal()
        self.standby.promote()
        self.project.db.close()
        self.project.db = connect_for_handler(self.standby.local_dsn)


@pytest.fixture
def pair(booted: Network, tmp_path: Path) -> Iterator[Pair]:
    """A pair that replicates asynchronously."""
    with (
        a_public_folder() as folder,
        a_server(booted.hosts["db1"], folder) as primary,
        a_standby(booted.hosts["db2"], folder, primary) as standby,
    ):
        with store.connect(primary.local_dsn) as connection:
            store.migrations.migrate(connection)
        remote = (
            f"host={primary.host.address},{standby.host.address} dbname=postgres user=yamlsched"
        )
        fork_server = booted.hosts["a"].fork_server
        assert fork_server is not None
        project = HostsProject(
            fork_server, tmp_path, primary.local_dsn, network=booted, remote_dsn=remote
        )
        project.db.execute("create table public.ledger (run_id bigint primary key)")
        try:
            yield Pair(primary, standby, project)
        finally:
            project.close()
