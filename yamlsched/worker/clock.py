"""The clock of a worker: it includes the time for which the host was suspended, and is
never set.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return seconds since some fixed instant."""
    return time.clock_gettime(_CLOCK)
