import os
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from billing import jobs, orders

from yamlsched.testing import FakeRun, call


@pytest.fixture
def connection() -> Iterator[psycopg.Connection]:
    with psycopg.connect(os.environ["YAMLSCHED_DSN"]) as connection:
        connection.execute(orders.TABLES)
        connection.execute(
            "insert into billing.orders (customer, cents, ordered_on) "
            "values ('ada', 100, '2026-01-07'), ('ada', 200, '2026-01-31'), ('bob', 300, '2026-02-01')"
        )
        yield connection
        connection.rollback()  # of all that the test has written


def test_the_month_before_the_slot_is_billed_once(connection: psycopg.Connection) -> None:
    run = FakeRun(
        connection=connection, scheduled_for=datetime(2026, 2, 1, 3, tzinfo=UTC), commit_fails=True
    )

    with pytest.raises(psycopg.OperationalError):
        call(jobs.bill_month, run)
    assert call(jobs.bill_month, run.next_attempt()) == {"month": "2026-01-01", "invoices": 1}

    assert connection.execute("select customer, cents from billing.invoices").fetchall() == [
        ("ada", 300)
    ]


def test_a_month_can_be_billed_by_hand(connection: psycopg.Connection) -> None:
    run = FakeRun(connection=connection, payload={"month": "2026-02-01"})

    assert call(jobs.bill_month, run) == {"month": "2026-02-01", "invoices": 1}
