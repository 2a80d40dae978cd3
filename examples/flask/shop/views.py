from typing import Any

from flask import Blueprint, request
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

import yamlsched
from shop.models import Order, Product, db

orders = Blueprint("orders", __name__)


@orders.post("/orders")
def place_order() -> tuple[dict[str, Any], int]:
    new = request.get_json()
    order = Order(customer_id=new["customer_id"], product_id=new["product_id"], total_cents=4900)
    db.session.add(order)
    try:
        db.session.flush()  # gives it an id
        yamlsched.enqueue(
            db.session, "add_points", {"order_id": order.id}, key=f"add_points:{order.id}"
        )
        db.session.execute(
            update(Product).where(Product.id == order.product_id).values(stock=Product.stock - 1)
        )
        db.session.commit()
    except IntegrityError:
        # the stock would be negative: neither the order nor the run is committed
        db.session.rollback()
        return {"error": "sold out"}, 409
    return {"order": order.id}, 201
