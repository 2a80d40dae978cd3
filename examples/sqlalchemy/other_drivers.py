"""Enqueue with psycopg2 or asyncpg: by the SQL function, in the session's transaction."""

import json
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

ENQUEUE = text(
    "select run_id, created from yamlsched.enqueue("
    "cast(:job as text), cast(:payload as jsonb), idempotency_key => cast(:key as text))"
)


def enqueue(
    session: Session, job: str, payload: dict[str, Any], key: str | None = None
) -> int | None:
    return session.execute(
        ENQUEUE, {"job": job, "payload": json.dumps(payload), "key": key}
    ).scalar_one()


async def enqueue_async(
    session: AsyncSession, job: str, payload: dict[str, Any], key: str | None = None
) -> int | None:
    result = await session.execute(
        ENQUEUE, {"job": job, "payload": json.dumps(payload), "key": key}
    )
    return result.scalar_one()
