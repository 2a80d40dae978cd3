"""What a shell completes: the names of jobs and tags, from the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


def jobs(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the file's jobs that start with ``incomplete``. A file with errors has those that load."""
    return sorted(name for name in _jobs(context) if name.startswith(incomplete))


def tags(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the tags of the file's jobs that start with ``incomplete``."""
    found: set[str] = set()
    for job in _jobs(context).values():
        if isinstance(job, dict) and isinstance(given := job.get("tags"), list):
            found.update(tag for tag in given if isinstance(tag, str))
    return sorted(tag for tag in found if tag.startswith(incomplete))


def _jobs(context: click.Context) -> dict[str, Any]:
    """Return the jobs of the file as YAML has them; none if it cannot be read: a shell has no place for an error."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    file = context.params.get("file") or context.find_root().params.get("file") or Path("schedules.yaml")
    try:
        loaded = yaml.load(Path(file).read_bytes(), loader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    found = loaded.get("jobs") if isinstance(loaded, dict) else None
    return {name: job for name, job in found.items() if isinstance(name, str)} if isinstance(found, dict) else {}
