"""The idempotency key of a slot. Never change it: a slot with another key would get a second run. See docs/time.md."""

from __future__ import annotations

from datetime import datetime

from yamlsched.cron.expression import Cron
from yamlsched.slots import Slot
from yamlsched.times import rfc3339


def slot_key(job_name: str, cron: Cron, slot: Slot) -> str:
    """Return the key of a slot: ``job:YYYY-MM-DD`` for a daily job, else ``job:YYYY-MM-DDTHH:MMZ``.

    The date is the local one that the expression names, so that a clock change does not move it. The minute is UTC, so
    that the two passes of a repeated hour have different keys.
    """
    return date_key(job_name, slot.nominal) if is_daily(cron) else minute_key(job_name, slot.at)


def date_key(job_name: str, local: datetime) -> str:
    return f"{job_name}:{local.date().isoformat()}"


def minute_key(job_name: str, at: datetime) -> str:
    return f"{job_name}:{rfc3339(at, 'minutes')}"


def is_daily(cron: Cron) -> bool:
    """Return whether ``cron`` can fire at most once per local date."""
    return not cron.wildcard and len(cron.times) == 1
