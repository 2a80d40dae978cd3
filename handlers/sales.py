"""The sales of a day, in a file whose name contains the date."""

from __future__ import annotations

import csv
import io
from datetime import date, timedelta
from typing import TYPE_CHECKING

from handlers import app, cache

if TYPE_CHECKING:
    from yamlsched import Run


def report(run: Run, day: str | None = None) -> dict[str, str | int]:
    """Write ``var/reports/sales-2026-01-13.csv``: of ``day``, or else of the day before this run's slot.

    The slot decides which day it is and not the clock: a report that is late, retried or backfilled is of its own
    day. To write the same file twice does no harm, so nothing else is needed for that.
    """
    with app.connect(run) as connection:
        of = date.fromisoformat(day) if day else app.day_of(run, connection) - timedelta(days=1)
        rows = connection.execute(
            """
            select i.id, u.name, i.amount_cents
            from app.invoices i
            join app.users u on u.id = i.user_id
            where i.issued_on = %s
            order by i.id
            """,
            [of],
        ).fetchall()
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["invoice", "customer", "amount_cents"])
    writer.writerows(rows)
    name = f"sales-{of}.csv"
    cache.write_atomically(app.VAR / "reports" / name, text.getvalue().encode())
    return {"file": name, "invoices": len(rows), "amount_cents": sum(amount for _, _, amount in rows)}
