"""Checking a payload from the command line against the handler in schedules.yaml, by reading its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yamlsched.definitions import handlers
from yamlsched.definitions.load import load
from yamlsched.definitions.paths import import_path
from yamlsched.errors import Refused


def check(
    file: Path,
    namespace: str,
    job: str,
    payload: Mapping[str, Any],
    paths: Sequence[str | Path] = (),
    is_own: bool = False,
) -> None:
    """Check ``payload``, merged over the job's own. Without the file, or the job in it, every payload is accepted.

    So it is for a job of another ``namespace`` than the file's, unless this host presents the file for it (``is_own``):
    its handler may be another one. ``paths`` are further
    folders with handlers. Raises Refused if no call of the handler could succeed: the run would be dead at once.
    """
    try:
        loaded = load(file.read_bytes(), str(file), None)
    except OSError:
        return
    found = loaded.jobs.get(job)
    if found is None or found.handler is None or (loaded.namespace != namespace and not is_own):
        return
    path = import_path(file, loaded.paths, paths)
    if error := handlers.payload_problem(found.handler, {**found.payload, **payload}, path):
        raise Refused(f'job "{job}": {error}')
