"""The protocol of a contender, and the contender that is a script."""

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
    """A contender cannot be measured; the message is the reason."""


@dataclass(frozen=True)
class Drained:
    """The result of a drain. ``seconds`` runs from the start of the first handler to the end of the last."""

    runs: int
    seconds: float


class Contender(Protocol):
    """``max_jobs`` limits a drain if 20,000 jobs would take minutes. ``single_worker``: it does not support two."""

    name: str
    note: str
    needs: str
    max_jobs: int | None
    single_worker: bool

    def check(self) -> None: ...
    def prepare(self, dsn: str, count: int) -> None: ...
    def drain(
        self, dsn: str, workers: int, concurrency: int | None = None, ms: int = 0
    ) -> Drained: ...
    def start_loop(self, dsn: str, file: Path) -> subprocess.Popen[str]: ...
    def send(self, dsn: str, count: int, gap_ms: float) -> None: ...
    def once_command(self, dsn: str) -> list[str]: ...


@dataclass(frozen=True)
class Script:
    """A contender that is a script in this folder."""

    name: str
    script: str
    note: str
    needs: str = ""
    max_jobs: int | None = None
    single_worker: bool = False
    polls_own_jobs_only: bool = False
    once: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise NotMeasured if it is not installed."""
        if self.needs == "pip" and not (PEERS / "venv/ready").exists():
            raise NotMeasured("the Python peers are not installed")
        if self.needs == "npm" and not (PEERS / "node_modules/.ready").exists():
            raise NotMeasured("node or the npm peers are not installed")

    def prepare(self, dsn: str, count: int) -> None:
        run(self._command("prepare", count), env=self._environment(dsn))

    def drain(self, dsn: str, workers: int, concurrency: int | None = None, ms: int = 0) -> Drained:
        processes = [self._start(dsn, "work", concurrency or 0, ms) for _ in range(workers)]
        results = [json.loads(output.splitlines()[-1]) for output in finish(processes)]
        active = [result for result in results if result["runs"]]
        if not active:
            raise RuntimeError(f"{self.name} executed nothing")
        seconds = max(r["last"] for r in active) - min(r["first"] for r in active)
        return Drained(sum(r["runs"] for r in active), seconds)

    def start_loop(self, dsn: str, file: Path) -> subprocess.Popen[str]:
        if self.polls_own_jobs_only:
            raise NotMeasured("jobs from another process do not wake it")
        return self._start(dsn, "loop", file)

    def send(self, dsn: str, count: int, gap_ms: float) -> None:
        run(self._command("send", count, gap_ms), env=self._environment(dsn))

    def once_command(self, dsn: str) -> list[str]:
        """Return the command line that polls once for due work and exits."""
        if not self.once:
            raise NotMeasured("it has no one-shot command")
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
    """Return the contenders that can be measured, and the others with their reasons."""
    available: list[Contender] = []
    missing: list[tuple[Contender, str]] = []
    for contender in contenders:
        try:
            contender.check()
            available.append(contender)
        except NotMeasured as error:
            missing.append((contender, str(error)))
    return available, missing
