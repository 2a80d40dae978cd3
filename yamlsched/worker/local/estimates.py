"""How long attempts take, and so how many may be claimed before others have ended."""

from __future__ import annotations

MAX_MESSAGE_SECONDS = 0.02  # of expected work in one message to a child
MAX_MESSAGE_RUNS = 200
LOOKAHEAD_SECONDS = 0.08  # of expected work that may be claimed ahead for one place
MAX_AHEAD_SECONDS = 0.2  # what takes longer is not claimed ahead: it could wait for long
# an attempt that takes less may have others waiting behind it in the same child
QUICK_SECONDS = 0.04
SHORTEST_SECONDS = 1e-7


class Estimates:
    """Moving averages of the seconds that attempts take."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # by job
        self._typical: float | None = None  # of all jobs

    def learn(self, job: str, seconds: float) -> None:
        """Note how long an attempt took."""
        self._seconds[job] = _average(self._seconds.get(job), seconds)
        self._typical = _average(self._typical, seconds)

    def is_quick(self, job: str) -> bool:
        """Return whether an attempt of ``job`` ends within some tens of milliseconds."""
        return self._seconds.get(job, QUICK_SECONDS) < QUICK_SECONDS

    def message_size(self, job: str) -> int:
        """Return how many runs of ``job`` make one message: 1 while nothing is known of the job."""
        seconds = self._seconds.get(job, MAX_MESSAGE_SECONDS)
        return max(
            1, min(MAX_MESSAGE_RUNS, int(MAX_MESSAGE_SECONDS / max(seconds, SHORTEST_SECONDS)))
        )

    def ahead(self) -> float:
        """Return how many runs start in one place within some tens of milliseconds, after the
        present one.
        """
        if self._typical is None or self._typical > MAX_AHEAD_SECONDS:
            return 0.0
        return min(4.0 * MAX_MESSAGE_RUNS, LOOKAHEAD_SECONDS / max(self._typical, SHORTEST_SECONDS))


def _average(known: float | None, seconds: float) -> float:
    """Return the new average. It falls faster than it rises, so that a slow first run is soon
    forgotten.
    """
    if known is None:
        return seconds
    return known + (0.5 if seconds < known else 0.2) * (seconds - known)
