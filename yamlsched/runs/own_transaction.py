"""What the transaction of a handler writes about its run: what it enqueued, its last progress, and
its success.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from yamlsched.db.query import execute
from yamlsched.runs.lifecycle import EnqueueBatch
from yamlsched.runs.progress import Progress

MAX_FAN_OUT_RUNS, MAX_FAN_OUT_CHARS = 1_000, 1 << 20
"""Runs, and characters of their payloads, in one statement of a fan-out: so that each statement is
short.
"""


def fan_out(
    namespace: str, run_id: int, enqueued: Sequence[EnqueueBatch]
) -> Iterator[dict[str, Any]]:
    """Yield what the handler of a run has enqueued as parameters of ``enqueue_many``: one statement
    for each part.
    """
    for batch in enqueued:
        start = size = 0
        for end, payload in enumerate(batch.payloads, 1):
            size += len(payload)
            if (
                end == len(batch.payloads)
                or end - start == MAX_FAN_OUT_RUNS
                or size > MAX_FAN_OUT_CHARS
            ):
                part = {
                    "payloads": batch.payloads[start:end],
                    "keys": batch.keys[start:end],
                    "trace_contexts": batch.trace_contexts and batch.trace_contexts[start:end],
                }
                yield {**batch._asdict(), **part, "namespace": namespace, "parent_id": run_id}
                start, size = end, 0


Fence: TypeAlias = tuple[int, int, str]
"""The id of a run, the number of an attempt, and its claim."""


async def succeed_in(
    session: Any, fence: Fence, result: str | None, last: Progress | None = None
) -> bool:
    """Write the success of a run, and its ``last`` progress, inside its handler's own transaction;
    return False if the run was lost.

    ``session`` is asynchronous, or a ``blocking.Session``.
    """
    run_id, attempt, token = fence
    done, total, note = last or (None, None, None)
    claim = {"id": run_id, "attempt": attempt, "token": token, "result": result}
    progress = {"done": done, "total": total, "note": note}
    cursor = await execute(session, "runs.succeed_in", **claim, **progress)
    return bool(cursor.rowcount == 1)
