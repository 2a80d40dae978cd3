"""``yamlsched resume``: end a pause."""

from __future__ import annotations

from typing import Any

from yamlsched.act import pause
from yamlsched.cli import _bulk
from yamlsched.cli._settings import Settings, verb


@verb("Resume paused jobs. The slots of the pause are not run: see backfill.")
@_bulk.job_options
def command(settings: Settings, /, **selection: Any) -> int:
    return _bulk.change_jobs(settings, "resume", pause.resume, **selection, among=pause.paused)
