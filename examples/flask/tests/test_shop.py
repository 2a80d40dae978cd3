import jobs
import psycopg
import pytest
from jobs import app
from shop.models import Customer, Order, PointsEntry, Product, db
from sqlalchemy import func, select, text

from yamlsched.testing import FakeRun, call


@pytest.fixture
def new() -> dict[str, int]:
    with app.app_context():
        customer, product = Customer(), Product(stock=1)
        db.session.add_all([customer, product])
        db.session.commit()
        return {"customer_id": customer.id, "product_id": product.id}


def runs() -> int:
    with app.app_context():
        return db.session.execute(text("select count(*) from yamlsched.job_runs")).scalar_one()


def test_an_order_that_commits_has_its_run_and_one_that_is_rolled_back_has_none(
    new: dict[str, int],
) -> None:
    before, client = runs(), app.test_client()

    assert client.post("/orders", json=new).status_code == 201
    assert client.post("/orders", json=new).status_code == 409

    assert runs() == before + 1


def test_points_are_added_once_if_the_first_commit_fails(new: dict[str, int]) -> None:
    with app.app_context():
        order = Order(**new, total_cents=4900)
        db.session.add(order)
        db.session.commit()
        run = FakeRun(payload={"order_id": order.id}, commit_fails=True)

    with pytest.raises(psycopg.OperationalError):
        call(jobs.add_points, run)
    call(jobs.add_points, run.next_attempt())

    with app.app_context():
        entries = select(func.count()).where(PointsEntry.order_id == run.payload["order_id"])
        assert db.session.get_one(Customer, new["customer_id"]).points == 49
        assert db.session.execute(entries).scalar_one() == 1
