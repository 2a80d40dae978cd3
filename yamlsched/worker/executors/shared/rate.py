"""How many attempts end per second."""

from __future__ import annotations

WINDOW_SECONDS = 0.1


class Rate:
    """Counts what ends, in windows of a tenth of a second."""

    def __init__(self) -> None:
        self._started_at = 0.0
        self._count = 0
        self._last = 0.0  # per second, in the last whole window

    def count(self, ended: int, now: float) -> None:
        self._turn(now)
        self._count += ended

    def per_second(self, now: float) -> float:
        self._turn(now)
        return self._last

    def _turn(self, now: float) -> None:
        seconds = now - self._started_at
        if seconds >= WINDOW_SECONDS:
            self._last = self._count / seconds
            self._started_at, self._count = now, 0
