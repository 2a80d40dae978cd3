"""What sync tidies up behind itself, every few minutes."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from yamlsched import log
from yamlsched.store import definitions, files

if TYPE_CHECKING:
    from psycopg import Connection


def cancel_retired(connection: Connection[Any], namespace: str, now: datetime | None = None) -> int:
    """Cancel what jobs that left the file a day ago have left undone; return how many runs that were."""
    cancelled = definitions.cancel_retired(connection, namespace, now)
    for run in cancelled:
        log.warning("run.cancelled", job=run.job_type, run=run.id, key=run.idempotency_key, reason="job retired")
    return len(cancelled)


def forget_presentations(connection: Connection[Any], namespace: str, now: datetime | None = None) -> int:
    """Forget files that were never applied by their host and that it has not presented for a day."""
    return files.forget(connection, namespace, now)
