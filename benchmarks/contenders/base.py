"""What a contender is to the parts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.harness import PYTHON, finish, run, url

HERE = Path(__file__).parent
PEERS = HERE.parent / ".peers"


class NotMeasured(Exception):
    """Says why a contender has no number."""


@dataclass(frozen=True)
class Drained:
    """What workers did together. ``inside`` is from the first handler's start to the last one's end; in seconds."""

    runs: int
    inside: float


class Contender(Protocol):
    """``most``: jobs of a drain, where 20,000 would take minutes; ``lone``: two workers are not for it."""

    name: str
    note: str
    needs: str
    most: int | None
    lone: bool

    def check(self) -> None: ...
    def prepare(self, dsn: str, count: int) -> None: ...
    def drain(self, dsn: str, workers: int, slots: int | None = None, ms: int = 0) -> Drained: ...
    def start_loop(self, dsn: str, file: Path) -> subprocess.Popen[str]: ...
    def send(self, dsn: str, count: int, gap_ms: float) -> None: ...
    def once_command(self, dsn: str) -> list[str]: ...


@dataclass(frozen=True)
class Script:
    """A contender that is a script beside this module."""

    name: str
    script: str
    note: str
    needs: str = ""
    most: int | None = None
    lone: bool = False
    is_deaf: bool = False
    once: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise NotMeasured where it is not installed."""
        if self.needs == "pip" and not (PEERS / "venv/ready").exists():
            raise NotMeasured("the Python peers are not installed")
        if self.needs == "npm" and not (PEERS / "node_modules/.ready").exists():
            raise NotMeasured("node or the npm peers are not installed")

    def prepare(self, dsn: str, count: int) -> None:
        run(self._command("prepare", count), env=self._environment(dsn))

    def drain(self, dsn: str, workers: int, slots: int | None = None, ms: int = 0) -> Drained:
        processes = [self._start(dsn, "work", slots or 0, ms) for _ in range(workers)]
        found = [json.loads(output.splitlines()[-1]) for output in finish(processes)]
        at_work = [f for f in found if f["runs"]]
        if not at_work:
            raise RuntimeError(f"{self.name} carried out nothing")
        inside = max(f["last"] for f in at_work) - min(f["first"] for f in at_work)
        return Drained(sum(f["runs"] for f in at_work), inside)

    def start_loop(self, dsn: str, file: Path) -> subprocess.Popen[str]:
        if self.is_deaf:
            raise NotMeasured("what another process adds does not wake it")
        return self._start(dsn, "loop", file)

    def send(self, dsn: str, count: int, gap_ms: float) -> None:
        run(self._command("send", count, gap_ms), env=self._environment(dsn))

    def once_command(self, dsn: str) -> list[str]:
        """Return the command line that looks once for due work and leaves."""
        if not self.once:
            raise NotMeasured("it has no one-shot")
        return [word.format(url=url(dsn), here=HERE, peers=PEERS) for word in self.once]

    def environment(self, dsn: str) -> dict[str, str]:
        return self._environment(dsn)

    def _start(self, dsn: str, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command(*words),
            env=self._environment(dsn),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _command(self, *words: object) -> list[str]:
        programs = {"npm": "node", "pip": str(PEERS / "venv/bin/python"), "": PYTHON}
        return [programs[self.needs], str(HERE / self.script), *map(str, words)]

    def _environment(self, dsn: str) -> dict[str, str]:
        return {**os.environ, "BENCH_URL": url(dsn), "NODE_PATH": str(PEERS / "node_modules")}


def usable(contenders: Iterable[Contender]) -> tuple[list[Contender], list[tuple[Contender, str]]]:
    """Return the contenders that can be measured, and the others with the reason."""
    there: list[Contender] = []
    missing: list[tuple[Contender, str]] = []
    for contender in contenders:
        try:
            contender.check()
            there.append(contender)
        except NotMeasured as error:
            missing.append((contender, str(error)))
    return there, missing
