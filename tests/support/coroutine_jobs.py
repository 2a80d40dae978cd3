"""Jobs of a queue with mode: async in a project, and what became of their runs."""

from __future__ import annotations

from typing import Any

from support.project import Process, Project


def coroutine(handler: str, **job: Any) -> dict[str, Any]:
    return {
        "handler": f"support.coroutine_handlers.{handler}",
        "queue": "shared",
        "max_attempts": 2,
        **job,
    }


def once(handler: str, **job: Any) -> dict[str, Any]:
    """A shared job without retries."""
    return coroutine(handler, max_attempts=1, **job)


def child_of(project: Project, run: int) -> int:
    """Return the process that has started ``run`` last."""
    lines = [line.split() for line in (project.folder / "calls").read_text().splitlines()]
    return next(
        int(pid)
        for kind, number, _, pid in reversed(lines)
        if kind == "started" and int(number) == run
    )


def error(project: Project, run: int) -> str:
    return str(project.row(run).last_error)


def start(project: Project, *runs: int, more: tuple[str, ...] = ()) -> Process:
    """Start a worker, and wait until all ``runs`` have started."""
    worker = project.start("work", *more)
    for run in runs:
        project.until_started(run)
    return worker
