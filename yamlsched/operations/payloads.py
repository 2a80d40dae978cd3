"""Whether a payload given by hand fits the handler that schedules.yaml names, found by reading its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yamlsched.definitions import handlers
from yamlsched.definitions.load import load
from yamlsched.definitions.paths import import_path
from yamlsched.errors import Refused


def check(file: Path, namespace: str, job: str, payload: Mapping[str, Any]) -> None:
    """Check ``payload``, with the job's own below it. Where there is no file, or it does not have the job, all fits.

    A job of the same name in another ``namespace`` than the file's may have another handler.

    Raises Refused where no call of the handler could succeed: a run would end dead at once.
    """
    try:
        loaded = load(file.read_bytes(), str(file), None)
    except OSError:
        return
    found = loaded.jobs.get(job)
    if found is None or loaded.namespace != namespace:
        return
    path = import_path(file, loaded.paths)
    if fault := handlers.misfit(found.handler, {**found.payload, **payload}, path):
        raise Refused(f'job "{job}": {fault}')
