"""An attempt in flight, as the gateway knows it."""

from __future__ import annotations

from dataclasses import dataclass

from yamlsched.store.begins import Ticket
from yamlsched.worker.executors.remote.launcher import Launcher

SLACK_SECONDS = 2.0  # for an agent to reach the database


@dataclass(slots=True, eq=False)
class Flight:
    """An attempt in flight. Instants are those of ``clock.now``."""

    number: int
    ticket: Ticket
    name: str
    lease: float
    begin_by: float
    begin_within: float
    launcher: Launcher | None = None  # None: an earlier gateway's, or it could not be started
    failure: str = ""  # why the launcher could not be started
    exited_at: float | None = None
    agent: str = ""  # that has begun the attempt
    seen_at: float = 0.0  # when that agent was last known to be alive
    is_stopping: bool = False
    kill_at: float | None = None
    must_end: bool = False
    is_withdrawing: bool = False  # the ticket may be ours

    def status(self) -> int | None:
        return None if self.launcher is None else self.launcher.status

    def why_lost(self, now: float) -> str:
        """Return why the agent that has begun an attempt counts as dead; empty while it may be alive.

        An agent that lives checks its lease each quarter of it, also if the connection to its launcher broke. One that
        cannot has killed its handler before the lease ends.
        """
        status, host = self.status(), self.agent.split(":")[0]
        is_silent = self.exited_at is not None and self.seen_at <= self.exited_at
        if self.launcher is not None and status and is_silent and now - (self.exited_at or now) > self._quarter():
            return f"its agent on {host} was lost, and {self.launcher.title} has ended: {self.launcher.describe()}"
        if now - self.seen_at > self.lease + SLACK_SECONDS:
            return f"its agent on {host} was lost: it has not checked its lease for {self.lease:.0f} s"
        return ""

    def _quarter(self) -> float:
        """Return the seconds within which a living agent checks its lease."""
        return self.lease / 4 + SLACK_SECONDS
