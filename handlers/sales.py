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
    """Write ``var/reports/sales-2026-01-13.csv`` for ``day``, by default the day before this run's slot.

    The slot, not the clock, determines the day: a report that is late, retried or backfilled is still about its day.
    Writing the same file twice does no harm, so nothing else is needed.
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
    return {
        "file": name,
        "invoices": len(rows),
        "amount_cents": sum(amount for _, _, amount in rows),
    }
