"""The page that shows what a problem of ``yamlsched status --check`` is about."""

from __future__ import annotations

from collections.abc import Callable

from yamlsched import durations
from yamlsched.ask.attention import Problem, Thresholds


def target(problem: Problem, url: Callable[..., str], thresholds: Thresholds) -> str:
    """Return the URL of the page; "" if there is none."""
    if problem.run_id is not None:
        return url("runs", problem.run_id)
    match problem.kind:
        case "stuck":
            return url("runs", status="running")
        case "file":
            return url("files")
        case "failing":
            return url("runs", job=problem.job_type, status="failed")
        case "dead" if problem.job_type is None:
            return url("runs", status="dead", since=durations.show(thresholds.within))
        case "dead":
            return url("runs", job=problem.job_type, status="dead", since=durations.show(thresholds.within))
        case "old":
            return url("runs", job=problem.job_type)
    return url("jobs", problem.job_type) if problem.job_type else ""
