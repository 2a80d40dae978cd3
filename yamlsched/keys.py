"""The idempotency key of a slot. Never change it: a slot with another key would get a second run. See docs/time.md."""

from __future__ import annotations

from yamlsched.cron.expression import Cron
from yamlsched.slots import Slot
from yamlsched.times import rfc3339


def slot_key(job_name: str, cron: Cron, slot: Slot) -> str:
    """Return the key of a slot: ``job:YYYY-MM-DD`` for a daily job, else ``job:YYYY-MM-DDTHH:MMZ``.

    The date is the local one that the expression names, so that a clock change does not move it. The minute is UTC, so
    that the two passes of a repeated hour have different keys.
    """
    if is_daily(cron):
        return f"{job_name}:{slot.nominal.date().isoformat()}"
    return f"{job_name}:{rfc3339(slot.at, 'minutes')}"


def is_daily(cron: Cron) -> bool:
    """Return whether ``cron`` can fire at most once per local date."""
    return not cron.wildcard and len(cron.times) == 1
