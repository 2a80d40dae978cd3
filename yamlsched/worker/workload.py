"""What a worker may claim, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from yamlsched.definitions.job import Job
from yamlsched.store.runs import Scope


@dataclass(frozen=True)
class Limits:
    """Limits of one worker; None: unlimited."""

    max_seconds: float | None = None  # after which it claims no more
    max_runs: int | None = None
    grace: timedelta = timedelta(seconds=30)  # for handlers, after SIGTERM


@dataclass(frozen=True)
class Workload:
    """The jobs that a worker may claim, and where their handlers are imported from."""

    dsn: str
    namespace: str
    jobs: Mapping[str, Job]
    scope: Scope
    file: Path
    path: tuple[str, ...] = ()  # of --path
