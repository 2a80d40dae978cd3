from collections.abc import MutableMapping
from typing import Any, NamedTuple

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from starlette.authentication import SimpleUser
from starlette.responses import PlainTextResponse

import yamlsched
import yamlsched.web
from app.database import DSN, async_session
from app.models import Order, Product

app = FastAPI()


class NewOrder(BaseModel):
    customer_id: int
    product_id: int


@app.post("/orders", status_code=201)
async def place_order(new: NewOrder) -> dict[str, int]:
    try:
        async with async_session.begin() as session:
            order = Order(customer_id=new.customer_id, product_id=new.product_id, total_cents=4900)
            session.add(order)
            await session.flush()  # gives it an id
            await yamlsched.enqueue(
                session, "send_receipt", {"order_id": order.id}, key=f"send_receipt:{order.id}"
            )
            await yamlsched.enqueue(
                session, "add_points", {"order_id": order.id}, key=f"add_points:{order.id}"
            )
            await session.execute(
                update(Product).where(Product.id == new.product_id).values(stock=Product.stock - 1)
            )
    except IntegrityError as error:
        # the stock would be negative: neither the order nor the runs are committed
        raise HTTPException(409, "sold out") from error
    return {"order": order.id}


class User(NamedTuple):
    name: str
    is_operator: bool


TOKENS = {
    "token of ada": User("ada", is_operator=True),
    "token of eve": User("eve", is_operator=False),
}


def current_user(request: Request) -> User | None:
    """Return the user of a request, as the application knows it; its endpoints write Depends(current_user)."""
    return TOKENS.get(request.cookies.get("token", ""))


page = yamlsched.web.app(DSN, hosts=["shop.example.com"])


async def operators_only(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        user = current_user(Request(scope))
        if user is None or not user.is_operator:
            await PlainTextResponse("Not Found", 404)(scope, receive, send)
            return
        scope["user"] = SimpleUser(user.name)  # who is recorded with actions
    await page(scope, receive, send)


app.mount("/scheduler", operators_only)
