import psycopg
from django.core import mail
from django.db import connection
from django.test import TestCase
from jobs import orders

from orders.models import Customer, Order, PointsEntry, Product
from yamlsched.testing import FakeRun, assert_enqueued, call


def runs() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from yamlsched.job_runs")
        return cursor.fetchone()[0]


class OrderTest(TestCase):
    def setUp(self) -> None:
        self.customer = Customer.objects.create(email="ada@example.com")
        self.product = Product.objects.create(name="Book", stock=1)

    def place_order(self):
        return self.client.post(
            "/orders/", {"email": self.customer.email, "product": self.product.pk}
        )

    def test_an_order_enqueues_its_runs(self) -> None:
        order = self.place_order().json()["order"]

        assert_enqueued(connection, "send_receipt", {"order_id": order})
        assert_enqueued(connection, "add_points", {"order_id": order})

    def test_an_order_that_is_rolled_back_enqueues_nothing(self) -> None:
        Product.objects.update(stock=0)

        self.assertEqual(self.place_order().status_code, 409)
        self.assertEqual(runs(), 0)

    def test_points_are_added_once_if_the_first_commit_fails(self) -> None:
        order = Order.objects.create(customer=self.customer, product=self.product, total_cents=4900)
        run = FakeRun(payload={"order_id": order.pk}, commit_fails=True)

        with self.assertRaises(psycopg.OperationalError):
            call(orders.add_points, run)
        call(orders.add_points, run.next_attempt())

        self.customer.refresh_from_db()
        self.assertEqual((self.customer.points, PointsEntry.objects.count()), (49, 1))

    def test_a_receipt_is_not_sent_again_by_a_second_attempt(self) -> None:
        order = Order.objects.create(customer=self.customer, product=self.product, total_cents=4900)
        run = FakeRun(payload={"order_id": order.pk})

        call(orders.send_receipt, run)
        call(orders.send_receipt, run.next_attempt())

        self.assertEqual([message.to for message in mail.outbox], [["ada@example.com"]])
