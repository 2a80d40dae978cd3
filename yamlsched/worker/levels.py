"""The priorities of runs as a worker sees them, and how many runs of a claim each may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yamlsched.runs import Priority
from yamlsched.store import runs as store

LOWER_SHARE = 1 / 8
"""Of the claimed runs, what each level with due runs below the highest one is owed, so that it never starves."""


@dataclass
class Level:
    """What a worker knows about the runs of one priority.

    The first claim asks for all kinds of runs, as a short-lived worker may have no second one; that of a continuous
    worker does not. Later claims take the fast path, which asks only for runs that may execute side by side. They ask
    for all kinds when the fast path runs short and at least once a second, or every other time while some runs had lost
    their worker; but never twice in a row.
    """

    priority: Priority
    owed: float = 0.0  # runs that may be claimed although a higher level has more
    is_exhausted: bool = False  # nothing is due, or the last claim found less than it asked for
    after: int = 0
    past: tuple[str, int] = store.BEFORE_ALL  # where the last claim on the fast path stopped
    starts_over: bool = False  # a run was released, which may be before `past`
    is_fast: bool = False  # the next claim takes the fast path
    was_fast: bool = True
    complete_at: float = 0.0  # when all kinds of runs are asked for again
    had_runs: bool = False  # the last claim found some, or marked some dead
    is_blocked: bool = False  # the last claims found only runs that others had locked
    read_until: tuple[str, int] = store.BEFORE_ALL  # many runs up to here may not be claimed; the others were


def reserve(levels: Sequence[Level], limit: int) -> list[tuple[Level, int]]:
    """Return each of ``levels``, the highest first, with how many of ``limit`` runs are reserved for those below it."""
    shares = [max(0, int(level.owed + limit * LOWER_SHARE)) for level in levels]
    return [(level, min(limit, sum(shares[nth + 1 :]))) for nth, level in enumerate(levels)]
