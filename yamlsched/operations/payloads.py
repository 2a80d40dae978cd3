"""Whether a payload given by hand fits the handler that schedules.yaml names, found by reading its source."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yamlsched.definitions import handlers
from yamlsched.definitions.load import load
from yamlsched.definitions.paths import search_path
from yamlsched.errors import Refused


def check(file: Path, job: str, payload: Mapping[str, Any]) -> None:
    """Check ``payload``, with the job's own below it. Where there is no file, or it does not have the job, all fits.

    Raises Refused where no call of the handler could succeed: a run would end dead at once.
    """
    try:
        loaded = load(file.read_bytes(), str(file), None)
    except OSError:
        return
    found = loaded.jobs.get(job)
    if found is None:
        return
    path = [*search_path(file, loaded.paths), *(Path(entry) for entry in sys.path if entry)]
    if fault := handlers.misfit(found.handler, {**found.payload, **payload}, path):
        raise Refused(f'job "{job}": {fault}')
