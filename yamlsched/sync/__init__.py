"""Sync: due slots in, rows of job_runs out. The first of the two main flows starts in flow.py; see docs/catchup.md.

An idle tick imports this: see model.py.
"""

from yamlsched.sync.files import (
    REFUSED,
    FileVersion,
    ScheduleFile,
    SyncResult,
    Verdict,
    current,
    is_current,
    needs_sync,
    poll,
)

__all__ = [
    "REFUSED",
    "FileVersion",
    "ScheduleFile",
    "SyncResult",
    "Verdict",
    "current",
    "is_current",
    "needs_sync",
    "poll",
]
