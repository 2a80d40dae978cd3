"""The exceptions that handlers raise to end an attempt."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from yamlsched import RetryAfter, Snooze

LATER = pytest.mark.parametrize("later", [RetryAfter, Snooze])


@LATER
@pytest.mark.parametrize("delay", [timedelta(seconds=90), 90, 90.0, "90s", "1m30s"])
def test_a_delay_is_a_timedelta_seconds_or_a_duration_as_in_the_schedule(later: Any, delay: Any):
    assert later(delay).delay == timedelta(seconds=90)


@LATER
def test_the_message_is_the_reason_or_else_the_delay_as_written(later: Any):
    assert str(later("90s", "too many requests")) == "too many requests"
    assert str(later("90s")) == "asked for a retry after 90s"


@LATER
@pytest.mark.parametrize(
    "delay, message",
    [
        ("90", '90 has no unit: write "90s" for seconds or "90m" for minutes'),
        ("soon", '"soon" is not a duration: write for example 90s, 5m, 1h30m or 2d'),
        (float("nan"), "delay is nan seconds, which is out of range: write for example 90"),
        (float("inf"), "delay is inf seconds, which is out of range: write for example 90"),
        (10**400, f"delay is {10**400} seconds, which is out of range: write for example 90"),
    ],
)
def test_an_invalid_duration_raises_an_error_with_the_expected_format(
    later: Any, delay: Any, message: str
):
    with pytest.raises(ValueError) as raised:
        later(delay)
    assert str(raised.value) == message


@LATER
@pytest.mark.parametrize(
    "delay, kind",
    [
        ([90], "[90]"),
        (None, "None"),
        (True, "True"),
        (Decimal(90), "Decimal('90')"),
    ],
)
def test_any_other_type_raises_a_clear_error(later: Any, delay: Any, kind: str):
    with pytest.raises(TypeError) as raised:
        later(delay)
    assert str(raised.value) == f'delay is {kind}: write a timedelta, seconds, or "90s"'
