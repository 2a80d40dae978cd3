"""What the transaction of a handler writes about its run: what it enqueued, its last progress, and
its success.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from yamlsched.db.query import load
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


def last_report(fence: tuple[int, int, str], progress: Progress) -> tuple[bytes, dict[str, Any]]:
    """Return the statement that writes the progress of an attempt inside its handler's own
    transaction.
    """
    run_id, attempt, token = fence
    values = {"id": run_id, "attempt": attempt, "token": token, **progress._asdict()}
    return load("progress")["report_in"], values


def success(fence: tuple[int, int, str], result: str | None) -> tuple[bytes, dict[str, Any]]:
    """Return the statement that writes the success of a run inside its handler's own
    transaction.
    """
    run_id, attempt, token = fence
    return load("runs")["succeed_in"], {
        "id": run_id,
        "attempt": attempt,
        "token": token,
        "result": result,
    }


def succeed_in(
    connection: psycopg.Connection[Any], fence: tuple[int, int, str], result: str | None
) -> bool:
    """Write the success of a run inside its handler's own transaction; return False if the run was
    lost.
    """
    return connection.execute(*success(fence, result)).rowcount == 1
