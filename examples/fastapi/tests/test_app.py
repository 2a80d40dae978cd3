from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from app import jobs
from app.database import Session
from app.main import app
from app.models import Customer, Order, PointsEntry, Product
from fastapi.testclient import TestClient
from sqlalchemy import text

from yamlsched.testing import FakeRun, assert_enqueued, call


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(app, base_url="http://shop.example.com") as client:
        yield client


@pytest.fixture
def new() -> dict[str, int]:
    with Session.begin() as session:
        customer, product = Customer(email=f"{uuid4()}@example.com"), Product(stock=1)
        session.add_all([customer, product])
        session.flush()
        return {"customer_id": customer.id, "product_id": product.id}


def runs() -> int:
    with Session() as session:
        return session.execute(text("select count(*) from yamlsched.job_runs")).scalar_one()


def test_an_order_that_commits_has_its_runs_and_one_that_is_rolled_back_has_none(
    client: TestClient, new: dict[str, int]
) -> None:
    before = runs()

    order = client.post("/orders", json=new).json()["order"]
    assert client.post("/orders", json=new).status_code == 409

    assert runs() == before + 2
    with Session() as session:
        assert_enqueued(session, "send_receipt", {"order_id": order})


def test_points_are_added_once_if_the_first_commit_fails(new: dict[str, int]) -> None:
    with Session.begin() as session:
        order = Order(**new, total_cents=4900)
        session.add(order)
        session.flush()
        run = FakeRun(payload={"order_id": order.id}, commit_fails=True)

    with pytest.raises(psycopg.OperationalError):
        call(jobs.add_points, run)
    call(jobs.add_points, run.next_attempt())

    with Session() as session:
        assert session.get_one(Customer, new["customer_id"]).points == 49
        assert session.query(PointsEntry).filter_by(order_id=run.payload["order_id"]).count() == 1


def test_a_receipt_is_not_sent_again_by_a_second_attempt(
    new: dict[str, int], monkeypatch: Any
) -> None:
    with Session.begin() as session:
        order = Order(**new, total_cents=4900)
        session.add(order)
        session.flush()
        run = FakeRun(payload={"order_id": order.id})
    sent: list[str] = []
    monkeypatch.setattr(jobs, "deliver", sent.append)

    call(jobs.send_receipt, run)
    call(jobs.send_receipt, run.next_attempt())

    assert len(sent) == 1


@pytest.mark.parametrize(("user", "status"), [("nobody", 404), ("eve", 404), ("ada", 200)])
def test_only_operators_see_the_page(client: TestClient, user: str, status: int) -> None:
    client.cookies.set("token", f"token of {user}")

    assert client.get("/scheduler/").status_code == status
    assert client.get("/scheduler/runs").status_code == status
