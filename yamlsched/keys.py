"""The idempotency key of a slot. Frozen: another key for the same slot would be a second run. See docs/time.md."""

from __future__ import annotations

import re

from yamlsched.cron import Cron
from yamlsched.slots import Slot

_SLOT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}Z)?")


def slot_key(job_name: str, cron: Cron, slot: Slot) -> str:
    """Return the key of a slot: ``job:YYYY-MM-DD`` for a daily job, else ``job:YYYY-MM-DDTHH:MMZ``.

    The date is the local one that the expression names, so that a clock change does not move it. The minute is UTC,
    so that both passes of a repeated hour have a key of their own.
    """
    if is_daily(cron):
        return f"{job_name}:{slot.nominal.date().isoformat()}"
    return f"{job_name}:{slot.at.replace(tzinfo=None).isoformat(timespec='minutes')}Z"


def is_daily(cron: Cron) -> bool:
    """Say whether ``cron`` can fire at most once per local date."""
    return not cron.wildcard and len(cron.times) == 1


def looks_like_slot_key(job_name: str, key: str) -> bool:
    """Say whether ``key`` has a form that a slot of the job has, had or could have after an edit of its cron."""
    prefix, _, rest = key.partition(":")
    return prefix == job_name and _SLOT.fullmatch(rest) is not None
