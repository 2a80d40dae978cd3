"""The output of running attempts: its end is written with the renewals of their leases, and deleted
when they end.

So a run that is lost with its host keeps its last words. Once a second while somebody watches would
need a channel from who watches to the worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial

import psycopg

from yamlsched.db.query import AsyncConnection, execute
from yamlsched.runs.lifecycle import Keep, storable
from yamlsched.worker.attempt import Attempt
from yamlsched.worker.sessions import Unanswered, WorkerSession
from yamlsched.worker.statements import fence

MAX_BYTES = 8_192
TIMEOUT_SECONDS = 5.0


class LiveOutput:
    """Writes what is new of the output of attempts. ``redact`` removes secrets from a string."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    async def write(self, session: WorkerSession, attempts: Iterable[Attempt]) -> None:
        """Write the output of ``attempts``, whose leases were renewed. What the server does not
        take is left out.
        """
        if changed := list(filter(self._note_change, attempts)):
            with contextlib.suppress(Unanswered, psycopg.Error):
                await session.run(partial(_write, changed), TIMEOUT_SECONDS)

    def _note_change(self, attempt: Attempt) -> bool:
        """Set the last whole lines of its output, and return whether they are new.

        In a line that has not ended, a secret may be cut, and would not be found.
        """
        may_print = (
            attempt.took is None
            and not attempt.is_lost
            and attempt.job.output.keep is not Keep.NEVER
        )
        if attempt.output is None or not may_print:
            return False
        content, total = attempt.output.tail()
        whole = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
        kept = (
            storable(self._redact(whole.decode("utf-8", "replace")))
            .encode()[-MAX_BYTES:]
            .decode("utf-8", "ignore")
        )
        omitted_bytes = max(0, total - len(content) + len(whole) - len(kept.encode()))
        is_new = bool(kept) and attempt.live_output != (kept, omitted_bytes)
        if is_new:
            attempt.live_output = (kept, omitted_bytes)
        return is_new


async def _write(attempts: list[Attempt], connection: AsyncConnection) -> None:
    texts, omitted = zip(*[attempt.live_output or ("", 0) for attempt in attempts], strict=True)
    await execute(
        connection,
        "progress.write_outputs",
        **fence(attempt.run for attempt in attempts),
        outputs=list(texts),
        omitted=list(omitted),
    )


async def forget(connection: AsyncConnection, attempts: Iterable[Attempt]) -> None:
    """Delete what was written of ``attempts``, which have ended: what is kept of their output is
    elsewhere.
    """
    if written := [attempt.run for attempt in attempts if attempt.live_output is not None]:
        await execute(connection, "progress.forget_outputs", **fence(written))
