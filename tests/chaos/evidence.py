"""The recorded evidence: versions of rows, attempts as logged by their handlers, and the journal of faults."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from support.monitoring import Received

from .cluster import Cluster, Entry, Member


def seconds(text: str | datetime | None) -> float | None:
    """Return a time as seconds since the epoch."""
    if text is None:
        return None
    return (datetime.fromisoformat(text) if isinstance(text, str) else text).timestamp()


@dataclass(frozen=True)
class Version:
    """A row after a statement, or before it if the statement deleted the row."""

    seq: int
    at: float
    xact: str
    op: str
    row: dict[str, Any]
    writer: str = ""

    @property
    def status(self) -> str:
        return "deleted" if self.op == "DELETE" else str(self.row["status"])

    @property
    def token(self) -> str | None:
        return self.row["locked_by"]

    @property
    def attempts(self) -> int:
        return int(self.row["attempts"])

    @property
    def owner(self) -> int:
        """The id of the process that claimed the run. A token is host:pid:random."""
        return int((self.token or "::").split(":")[-2] or 0)

    @property
    def lease_ends(self) -> float | None:
        return seconds(self.row["locked_until"])


@dataclass
class Attempt:
    """An attempt as logged by its handler. Times are monotonic; ``last`` is the time of its last log line."""

    run: int
    number: int
    token: str
    pid: int
    process_start: str
    act: str
    start: float
    started_wall: float
    last: float
    last_wall: float
    end: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def worker(self) -> int:
        """The id of the process that claimed the run. A token is host:pid:random."""
        return int(self.token.split(":")[-2])

    def __str__(self) -> str:
        return f"run {self.run} attempt {self.number} ({self.act}, pid {self.pid}, {self.token})"


@dataclass(frozen=True)
class Message:
    """What a target was told."""

    target: str
    at: float
    text: str


@dataclass
class Evidence:
    runs: dict[int, list[Version]]
    definitions: dict[int, list[Version]]
    attempts: dict[tuple[int, str], Attempt]
    events: list[dict[str, Any]]
    tables: dict[str, list[dict[str, Any]]]
    journal: list[Entry]
    members: list[Member]
    acknowledged: list[tuple[int, str | None]]
    repeated_starts: list[str]
    # by target and subject
    notes: dict[tuple[str, str], list[Version]] = field(default_factory=dict)
    targets: dict[str, list[Version]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    ended: float = float("inf")  # when all that was due had time to be told

    def writers(self) -> dict[str, int]:
        """Return the process ids by the application_name of their sessions."""
        return {member.name: member.pid for member in self.members}

    def changes(self) -> list[tuple[Version, Version]]:
        """Return every change of every run, as the versions before and after it."""
        return [change for versions in self.runs.values() for change in pairwise(versions)]

    def successes(self) -> set[tuple[int, str]]:
        """Return the claims whose run succeeded, as (run, token)."""
        return {
            (run, after.token or "")
            for run, versions in self.runs.items()
            for before, after in pairwise(versions)
            if before.status == "running" and after.status == "succeeded"
        }

    def claims(self, run: int) -> dict[str, tuple[Version, float]]:
        """Return the claims of a run: token -> (first version, end of the lease)."""
        found: dict[str, tuple[Version, float]] = {}
        for version in self.runs.get(run, []):
            if version.status == "running" and version.token and version.lease_ends:
                first, end = found.get(version.token, (version, 0.0))
                found[version.token] = first, max(end, version.lease_ends)
        return found

    def overlap_at(self, definition: int, wall: float) -> set[str]:
        """Return the values of ``overlap`` that a job had within three seconds of a time."""
        found: list[tuple[float, str]] = [
            (v.at, v.row["overlap"]) for v in self.definitions.get(definition, [])
        ]
        before = [overlap for at, overlap in found if at <= wall - 3]
        return {*before[-1:], *(overlap for at, overlap in found if wall - 3 < at <= wall + 3)}

    def limits_at(self, definition: int, wall: float) -> set[str | None]:
        """Return the limits that a job had within three seconds of a time."""
        found = [(v.at, v.row.get("limit_name")) for v in self.definitions.get(definition, [])]
        before = [limit for at, limit in found if at <= wall - 3]
        return {*before[-1:], *(limit for at, limit in found if wall - 3 < at <= wall + 3)}

    def continued(self, pid: int, wall: float) -> list[float]:
        """Return when a stopped process was continued, up to a time."""
        return [
            e.wall for e in self.journal if e.what == "SIGCONT" and pid in e.pids and e.wall <= wall
        ]

    def during(self, start: float, end: float, *whats: str) -> list[Entry]:
        """Return the journal entries of these kinds between two times."""
        return [e for e in self.journal if start <= e.wall <= end and e.what in whats]

    def was_disturbed(self, start: float, end: float) -> bool:
        """Return whether server or network had a fault between two times, or shortly before."""
        # the longest fault lasts 7 s, and a process that lost its session waits up to 2 s for the next
        whats = (
            "server down", "server up", "sessions terminated", "network disturbed", "network calm", "network cut",
            "rows locked", "rows released",
        )  # fmt: skip
        return bool(self.during(start - 9, end + 1, *whats))


def collect(
    tables: dict[str, list[dict[str, Any]]],
    log: Path,
    cluster: Cluster,
    acknowledged: list[tuple[int, str | None]],
    received: Sequence[Received] = (),
    ended: float = float("inf"),
) -> Evidence:
    runs: dict[int, list[Version]] = defaultdict(list)
    definitions: dict[int, list[Version]] = defaultdict(list)
    notes: dict[tuple[str, str], list[Version]] = defaultdict(list)
    targets: dict[str, list[Version]] = defaultdict(list)
    for row in tables["flight"]:
        version = Version(
            row["seq"], row["at"].timestamp(), row["xact"], row["op"], row["row"], row["writer"]
        )
        match row["table_name"]:
            case "job_runs":
                runs[version.row["id"]].append(version)
            case "job_definitions":
                definitions[version.row["id"]].append(version)
            case "notifications":
                notes[version.row["target"], version.row["subject"]].append(version)
            case "notify_targets":
                targets[version.row["name"]].append(version)
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    attempts: dict[tuple[int, str], Attempt] = {}
    repeated = []
    for event in events:
        key = event["run"], event["token"]
        if event["event"] == "start":
            if key in attempts:
                repeated.append(f"{attempts[key]} was started twice under one claim")
            attempts[key] = Attempt(
                event["run"], event["attempt"], event["token"], event["pid"], event["process_start"], event["act"],
                event["at"], event["wall"], event["at"], event["wall"],
            )  # fmt: skip
        elif key in attempts:
            attempt = attempts[key]
            attempt.last, attempt.last_wall = event["at"], event["wall"]
            attempt.events.append(event)
            if event["event"] == "end":
                attempt.end = event["how"]
    return Evidence(
        dict(runs),
        dict(definitions),
        attempts,
        events,
        tables,
        cluster.journal,
        cluster.members,
        acknowledged,
        repeated,
        dict(notes),
        dict(targets),
        [message(request) for request in received],
        ended,
    )


def message(request: Received) -> Message:
    """Return what Apprise has posted as JSON to the path of a target."""
    content = json.loads(request.body)
    return Message(request.path.strip("/"), request.at, f"{content['title']}\n{content['message']}")
