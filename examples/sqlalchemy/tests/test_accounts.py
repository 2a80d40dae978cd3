import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import jobs
import other_drivers
import psycopg
import psycopg2
import pytest
from accounts import open_account
from database import DSN, Session
from models import Account
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session as AnySession

from yamlsched.testing import FakeRun, call


def runs() -> int:
    with Session() as session:
        return session.execute(text("select count(*) from yamlsched.job_runs")).scalar_one()


def test_an_account_that_is_rolled_back_has_no_run_and_one_that_commits_has_one() -> None:
    before = runs()
    with Session() as session:
        open_account(session, f"{uuid4()}@example.com")
        session.rollback()
    assert runs() == before

    with Session.begin() as session:
        open_account(session, f"{uuid4()}@example.com")
    assert runs() == before + 1


def test_a_bonus_is_booked_once_if_the_first_commit_fails() -> None:
    with Session.begin() as session:
        account = open_account(session, f"{uuid4()}@example.com").id
    run = FakeRun(payload={"account_id": account}, commit_fails=True)

    with pytest.raises(psycopg.OperationalError):
        call(jobs.book_bonus, run)
    call(jobs.book_bonus, run.next_attempt())

    with Session() as session:
        assert session.get_one(Account, account).balance == 500


def test_with_psycopg2_a_run_is_enqueued_by_the_sql_function() -> None:
    before = runs()
    engine = create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(DSN))
    with AnySession(engine) as session:
        other_drivers.enqueue(session, "book_bonus", {"account_id": 1})
        session.rollback()
        other_drivers.enqueue(session, "book_bonus", {"account_id": 1}, key=f"bonus:{uuid4()}")
        session.commit()

    assert runs() == before + 1


def test_with_asyncpg_a_run_is_enqueued_by_the_sql_function() -> None:
    before, parts = runs(), conninfo_to_dict(DSN)
    names = {
        "host": "host",
        "port": "port",
        "user": "user",
        "password": "password",
        "dbname": "database",
    }
    given: dict[str, Any] = {name: parts[key] for key, name in names.items() if key in parts}

    async def enqueue() -> None:
        engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(**given)
        )
        async with AsyncSession(engine) as session:
            await other_drivers.enqueue_async(session, "book_bonus", {"account_id": 1})
            await session.rollback()
            await other_drivers.enqueue_async(
                session, "book_bonus", {"account_id": 1}, key=f"bonus:{uuid4()}"
            )
            await session.commit()
        await engine.dispose()

    asyncio.run(enqueue())

    assert runs() == before + 1
