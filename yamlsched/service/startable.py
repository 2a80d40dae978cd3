"""Which jobs this host can start: their module, program and directory exist, and the variables that
they require.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from yamlsched.schedule.commands import directory_obstacle, program_obstacle
from yamlsched.schedule.job import Job
from yamlsched.schedule.lookup import Sources, split_path
from yamlsched.schedule.paths import import_path
from yamlsched.schedule.source import Finding


def unstartable(
    jobs: Mapping[str, Job],
    file: Path,
    folders: Sequence[str] | None,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """Return why this host cannot start enabled jobs of ``file``, by name. No code is imported.

    ``folders`` are those of --path; None skips the checks of modules, programs and directories.
    """
    sources: Sources | None = None  # all jobs of a file have its paths
    reasons: dict[str, str] = {}
    for name, job in jobs.items():
        reason = missing_variables(job, environment) if job.enabled else ""
        if job.enabled and not reason and folders is not None:
            if job.command:
                reason = _missing_program(job, file, environment)
            else:
                sources = sources or Sources(import_path(file, job.paths, folders))
                problem = sources.module(split_path(job.handler or "")[0])
                reason = problem.message if isinstance(problem, Finding) else ""
        if reason:
            reasons[name] = reason
    return reasons


def missing_variables(job: Job, environment: Mapping[str, str]) -> str:
    """Return which variables that a job requires are not set; "" if all are."""
    missing = [name for name in job.requires_env if name not in environment]
    if len(missing) > 1:
        return f"the variables {', '.join(missing)} are not set"
    return f"the variable {missing[0]} is not set" if missing else ""


def _missing_program(job: Job, file: Path, environment: Mapping[str, str]) -> str:
    """Return why the program of a command cannot be started; "" if nothing is known against it."""
    folder = os.path.join(file.resolve().parent, job.cwd or "")
    search_path = job.env.get("PATH") or environment.get("PATH") or os.defpath
    obstacle = directory_obstacle(folder, job.cwd or folder) or program_obstacle(
        job.command[0], folder, search_path
    )
    return obstacle.message if obstacle else ""
