"""An ETL in five steps: each gets what the steps before it have returned."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from yamlsched import Run

ORDERS = {"EUR": [120, 80], "USD": [50]}
"""What a shop would have in a database."""


def day_before(run: Run) -> str:
    """Return the day that a run is about: it comes from its slot, so that a late retry is about the same day."""
    assert run.scheduled_for is not None
    return f"{run.scheduled_for.date() - timedelta(days=1)}"


def extract_orders(run: Run) -> dict[str, Any]:
    return {"day": day_before(run), "orders": ORDERS}


def fetch_rates() -> dict[str, float]:
    return {"EUR": 1.0, "USD": 0.9}


def load_orders(run: Run) -> dict[str, Any]:
    extracted = run.upstream["extract_orders"].result
    return {
        "day": extracted["day"],
        "sums": {currency: sum(found) for currency, found in extracted["orders"].items()},
    }


def daily_report(run: Run) -> dict[str, Any]:
    loaded, rates = run.upstream["load_orders"].result, run.upstream["fetch_rates"].result
    total = sum(amount * rates[currency] for currency, amount in loaded["sums"].items())
    return {"day": loaded["day"], "euros": round(total, 2)}
