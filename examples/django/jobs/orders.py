from datetime import timedelta

from django.core.mail import EmailMessage
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone
from orders.models import Customer, Order, PointsEntry

from yamlsched import Run


def delete_unpaid(run: Run, days: int) -> int:
    """Delete old unpaid orders. To do it again does no harm, so it needs nothing else."""
    deleted, _ = Order.objects.filter(
        paid_at=None, created_at__lt=timezone.now() - timedelta(days=days)
    ).delete()
    run.log.info("deleted %d rows", deleted)
    return deleted


def add_points(run: Run, order_id: int) -> None:
    """Add the points of an order exactly once: they are committed together with the success of the run."""
    with transaction.atomic():
        order = Order.objects.select_related("customer").get(pk=order_id)
        points = order.total_cents // 100
        PointsEntry.objects.create(order=order, points=points)
        Customer.objects.filter(pk=order.customer_id).update(points=F("points") + points)
        run.succeed_in(connection)


def send_receipt(run: Run, order_id: int) -> None:
    """Mail a receipt at most once: a mail cannot be rolled back."""
    order = Order.objects.select_related("customer").get(pk=order_id)
    message = EmailMessage(
        f"Receipt {order.pk}", "Thank you!", "shop@example.com", [order.customer.email]
    )
    with run.once("mail", in_doubt="skip") as effect:
        if effect.first:
            message.send()
