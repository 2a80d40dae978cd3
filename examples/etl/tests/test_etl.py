from datetime import UTC, datetime

import etl

from yamlsched.testing import FakeRun, UpstreamRun, call

SLOT = datetime(2026, 1, 14, 1, tzinfo=UTC)


def test_the_report_adds_up_the_orders_in_euros() -> None:
    loaded = {"day": "2026-01-13", "sums": {"EUR": 200, "USD": 50}}
    upstream = {
        "load_orders": UpstreamRun(result=loaded),
        "fetch_rates": UpstreamRun(result={"EUR": 1.0, "USD": 0.9}),
    }

    report = call(etl.daily_report, FakeRun(scheduled_for=SLOT, upstream=upstream))

    assert report == {"day": "2026-01-13", "euros": 245.0}


def test_the_orders_are_those_of_the_day_before() -> None:
    assert call(etl.extract_orders, FakeRun(scheduled_for=SLOT))["day"] == "2026-01-13"
