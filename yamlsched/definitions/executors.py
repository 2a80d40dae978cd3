"""The entries of ``executors`` in schedules.yaml: where attempts run besides this host."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from yamlsched import durations


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What every executor has. ``concurrency`` counts attempts in flight, of all workers of one host."""

    name: str
    concurrency: int = 16
    begin_within: timedelta = timedelta(minutes=15)

    def _to_yaml(self, kind: str, **own: Any) -> dict[str, Any]:
        """Return its keys as a file with everything written out has them."""
        within = durations.show(self.begin_within)
        return {"type": kind, **own, "concurrency": self.concurrency, "begin_within": within}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandExecutor(Limits):
    """An executor of ``type: command``: ``command``, followed by the agent, is started for each attempt."""

    command: tuple[str, ...]

    def to_yaml(self) -> dict[str, Any]:
        return self._to_yaml("command", command=list(self.command))


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskExecutor(Limits):
    """An executor of ``type: dask``: the scheduler at ``address`` has a worker of its cluster start each agent."""

    address: str

    def to_yaml(self) -> dict[str, Any]:
        return self._to_yaml("dask", address=self.address)


Engine: TypeAlias = CommandExecutor | DaskExecutor
