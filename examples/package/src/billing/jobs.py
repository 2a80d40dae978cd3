"""The handlers that schedules.yaml names."""

from datetime import date, timedelta

from billing import orders
from yamlsched import Run


def bill_month(run: Run, month: str | None = None) -> None:
    """Bill ``month``, such as 2026-01-01, or the month before the slot, exactly once."""
    if month is not None:
        billed = date.fromisoformat(month)
    else:
        assert run.scheduled_for is not None, "a run without a slot needs a month"
        billed = (run.scheduled_for.date().replace(day=1) - timedelta(days=1)).replace(day=1)
    with run.transaction() as connection:
        count = orders.bill(connection, billed)
        run.result = {"month": str(billed), "invoices": count}
