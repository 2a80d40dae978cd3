"""A payment through a provider that supports idempotency keys, charged once despite failures."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from handlers import app, web
from yamlsched import Discard, Snooze

if TYPE_CHECKING:
    from yamlsched import Run

POLL_INTERVAL_SECONDS = 30


def charge_invoice(run: Run, invoice_id: int, amount_cents: int) -> None:
    """Charge one invoice at the provider at the address EXAMPLE_PAYMENTS, and record it once it is paid."""
    provider = os.environ.get("EXAMPLE_PAYMENTS")
    if not provider:
        raise LookupError(
            "EXAMPLE_PAYMENTS is not set: set it to the address of the payment provider"
        )
    # a business key: the invoice is charged once, even if it is enqueued again. Repeating it in doubt is safe, because
    # the provider recognizes the key and returns the existing charge.
    with run.once(f"invoice_charge:{invoice_id}", scope="namespace", in_doubt="repeat") as effect:
        if effect.first:
            order = {"invoice_id": invoice_id, "amount_cents": amount_cents}
            _, answer = web.call("POST", f"{provider}/charges", order, key=effect.key)
            effect.result = json.loads(answer)["id"]
    charge_id = effect.result
    _, answer = web.call("GET", f"{provider}/charges/{charge_id}")
    status = json.loads(answer)["status"]
    if status == "pending":
        raise Snooze(POLL_INTERVAL_SECONDS, f"charge {charge_id} is pending")
    if status != "succeeded":
        raise Discard(f"charge {charge_id} of invoice {invoice_id} ended as {status}")
    with run.transaction() as connection:
        app.ensure_tables(connection)
        connection.execute(
            """
            insert into app.payments (invoice_id, charge_id, amount_cents) values (%s, %s, %s)
            on conflict (invoice_id) do nothing
            """,
            [invoice_id, charge_id, amount_cents],
        )
        run.result = {"charge_id": charge_id}
