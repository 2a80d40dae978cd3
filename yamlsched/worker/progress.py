"""Writes the progress that handlers report: of all attempts at once, each second, and last with their outcomes."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

import psycopg

from yamlsched.store import progress as store
from yamlsched.worker import clock
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.sessions import Connection, Session, Unanswered

INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0

T = TypeVar("T")


class ProgressWriter:
    """Writes what is new of the progress of ``attempts``, the set of all that are held, which changes in between."""

    def __init__(self, attempts: Collection[Attempt]) -> None:
        self._attempts = attempts
        self._next_at = 0.0

    def is_due(self) -> bool:
        """Return whether there is something to write, and the last time was a second ago."""
        return clock.now() >= self._next_at and any(
            attempt.progress != attempt.written_progress and attempt.took is None and not attempt.is_lost
            for attempt in self._attempts
        )

    async def write(self, session: Session) -> None:
        """Write it. What the server does not take is written the next time, or with the outcome."""
        self._next_at = clock.now() + INTERVAL_SECONDS
        reporting = [attempt for attempt in _reporting(self._attempts) if attempt.took is None]
        reported = [attempt.progress for attempt in reporting]
        with contextlib.suppress(Unanswered, psycopg.OperationalError):
            written = await session.run(lambda connection: _write(connection, reporting), TIMEOUT_SECONDS)
            for attempt, progress in zip(reporting, reported, strict=True):
                if attempt.run.id in written:
                    attempt.written_progress = progress


async def write_with(connection: Connection, attempts: Sequence[Attempt], write: Callable[[], Awaitable[T]]) -> T:
    """Call ``write``, which writes the outcomes of ``attempts``; in the same transaction, first their last progress."""
    if not _reporting(attempts):
        return await write()
    async with connection.transaction():
        await write_last(connection, attempts)
        return await write()


async def write_last(connection: Connection, attempts: Iterable[Attempt]) -> None:
    """Write the last progress of ``attempts`` in the transaction that is about to write their outcomes."""
    if reporting := _reporting(attempts):
        await store.hold(connection, [attempt.run for attempt in reporting])
        await _write(connection, reporting)


async def _write(connection: Connection, attempts: Sequence[Attempt]) -> set[int]:
    reports = [(attempt.run, attempt.progress) for attempt in attempts if attempt.progress is not None]
    return await store.report(connection, reports)


def _reporting(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return those of ``attempts`` whose progress is not in the database yet."""
    return [attempt for attempt in attempts if attempt.progress != attempt.written_progress and not attempt.is_lost]
