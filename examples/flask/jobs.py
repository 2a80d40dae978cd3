"""The handlers that schedules.yaml names."""

from shop import create_app
from shop.models import Customer, Order, PointsEntry, db
from sqlalchemy import delete, update

from yamlsched import Run

app = create_app()


def delete_empty(run: Run) -> int:
    """Delete orders of nothing. To do it again does no harm, so it needs nothing else."""
    with app.app_context():
        deleted = db.session.execute(delete(Order).where(Order.total_cents == 0)).rowcount
        db.session.commit()
        return deleted


def add_points(run: Run, order_id: int) -> None:
    """Add the points of an order exactly once: they are committed together with the success of the run."""
    with app.app_context():
        order = db.session.get_one(Order, order_id)
        points = order.total_cents // 100
        db.session.add(PointsEntry(order_id=order.id, points=points))
        db.session.flush()
        db.session.execute(
            update(Customer)
            .where(Customer.id == order.customer_id)
            .values(points=Customer.points + points)
        )
        run.succeed_in(db.session)
        db.session.commit()
