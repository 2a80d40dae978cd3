"""The delay before the next attempt (docs/schedules.md, "Backoff"). Pure: the random number is an
argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

MIN_DELAY = timedelta(seconds=1)
"""Retries are never immediate."""
MAX_DELAY = timedelta(days=365)
"""An upper limit for every policy, so that adding a delay never overflows."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The backoff of a job. Only the policy ``steps`` uses ``delays``, and it ignores
    ``max_delay``.
    """

    policy: str = "exponential"
    delay: timedelta = timedelta(minutes=1)
    max_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.1
    delays: tuple[timedelta, ...] = ()


POLICIES: dict[str, Callable[[Backoff, int], float]] = {
    "exponential": (
        lambda backoff, attempt: backoff.delay.total_seconds() * 2.0 ** min(attempt - 1, 64)
    ),
    "fixed": lambda backoff, attempt: backoff.delay.total_seconds(),
    "linear": lambda backoff, attempt: backoff.delay.total_seconds() * attempt,
    "quadratic": lambda backoff, attempt: backoff.delay.total_seconds() * attempt**2,
    "steps": (
        lambda backoff, attempt: backoff.delays[
            min(attempt, len(backoff.delays)) - 1
        ].total_seconds()
    ),
}
"""The delay after a failed attempt, in seconds, before its limits and jitter."""


def delay(backoff: Backoff, attempt: int, random: float) -> timedelta:
    """Return the delay after failed attempt number ``attempt`` (counted from 1).

    ``random`` is in [0, 1). Jitter shortens the delay by at most the fraction ``backoff.jitter``.

    >>> delay(Backoff(jitter=0), 3, random=0.5)
    datetime.timedelta(seconds=240)
    """
    seconds = POLICIES[backoff.policy](backoff, attempt)
    most = MAX_DELAY if backoff.policy == "steps" else min(backoff.max_delay, MAX_DELAY)
    return timedelta(seconds=min(seconds, most.total_seconds()) * (1 - backoff.jitter * random))
