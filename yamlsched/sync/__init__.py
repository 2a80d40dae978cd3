"""Sync: due slots in, rows of job_runs out. The first of the two main flows; see docs/catchup.md.

An idle tick imports this, so nothing here imports what reads schedules.yaml or cron.
"""

from yamlsched.sync.flow import is_current, needs_sync, poll, sync
from yamlsched.sync.model import FileVersion, ScheduleFile, SyncResult, Verdict

__all__ = ["FileVersion", "ScheduleFile", "SyncResult", "Verdict", "is_current", "needs_sync", "poll", "sync"]
