"""The handlers that schedules.yaml names."""

import asyncio
from pathlib import Path

from sqlalchemy import delete, update
from sqlalchemy.orm import joinedload

from app.database import Session, async_session
from app.models import Customer, Order, PointsEntry
from yamlsched import Run

MAIL = Path("var/mail")


def add_points(run: Run, order_id: int) -> None:
    """Add the points of an order exactly once: they are committed together with the success of the run."""
    with Session.begin() as session:
        order = session.get_one(Order, order_id)
        points = order.total_cents // 100
        session.add(PointsEntry(order_id=order.id, points=points))
        session.execute(
            update(Customer)
            .where(Customer.id == order.customer_id)
            .values(points=Customer.points + points)
        )
        run.succeed_in(session)


async def send_receipt(run: Run, order_id: int) -> None:
    """Mail a receipt at most once: a mail cannot be rolled back."""
    async with async_session() as session:
        order = await session.get_one(Order, order_id, options=[joinedload(Order.customer)])
    async with run.once("mail", in_doubt="skip") as effect:
        if effect.first:
            await asyncio.to_thread(deliver, f"Receipt {order.id} for {order.customer.email}")


def delete_empty(run: Run) -> int:
    """Delete orders of nothing. To do it again does no harm, so it needs nothing else."""
    with Session.begin() as session:
        return session.execute(delete(Order).where(Order.total_cents == 0)).rowcount


def deliver(text: str) -> None:
    MAIL.mkdir(parents=True, exist_ok=True)
    (MAIL / f"{text}.txt").write_text(text)
