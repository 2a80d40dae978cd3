"""Which jobs this host can start: their module, program and directory exist, and the variables that
they require.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from yamlsched.schedule import commands, paths
from yamlsched.schedule.commands import Obstacle
from yamlsched.schedule.job import Job
from yamlsched.schedule.lookup import Sources, split_path
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
    host = _Host(file, environment)
    reasons: dict[str, str] = {}
    for name, job in jobs.items():
        if not job.enabled:
            continue
        reason = missing_variables(job, environment)
        if not reason and folders is not None:
            reason = host.obstacle(job, folders)
        if reason:
            reasons[name] = reason
    return reasons


def missing_variables(job: Job, environment: Mapping[str, str]) -> str:
    """Return which variables that a job requires are not set; "" if all are."""
    missing = [name for name in job.requires_env if name not in environment]
    if len(missing) > 1:
        return f"the variables {', '.join(missing)} are not set"
    return f"the variable {missing[0]} is not set" if missing else ""


class _Host:
    """What this host has, each asked for once."""

    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        self.file, self.folder = file, str(file.resolve().parent)
        self.search_path = environment.get("PATH") or os.defpath
        self.directory, self.program = (
            cache(commands.directory_obstacle),
            cache(commands.program_obstacle),
        )
        self.sources = cache(
            lambda of_file, folders: Sources(paths.import_path(file, of_file, folders))
        )

    def obstacle(self, job: Job, folders: Sequence[str]) -> str:
        """Return why a job cannot be started; "" if nothing is known against it."""
        if job.command:
            folder = os.path.join(self.folder, job.cwd or "")
            return _text(
                self.directory(folder, job.cwd or folder)
                or self.program(job.command[0], folder, job.env.get("PATH") or self.search_path)
            )
        module = split_path(job.handler or "")[0]
        problem = self.sources(job.paths, tuple(folders)).module(module)
        return problem.message if isinstance(problem, Finding) else ""


def _text(obstacle: Obstacle | None) -> str:
    return obstacle.message if obstacle else ""
