"""How long to wait before the next attempt: rules that hold for every policy, and what each of them says."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamlsched.runs.backoff import MAX_DELAY, POLICIES, Backoff, delay

SECOND, YEAR = timedelta(seconds=1), timedelta(days=365)
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=100_000))
backoffs = st.builds(
    Backoff,
    policy=st.sampled_from(sorted(POLICIES)),
    delay=durations,
    max_delay=durations,
    jitter=st.floats(0, 1),
    delays=st.lists(durations, min_size=1, max_size=5).map(tuple),
)
attempts = st.integers(1, 10_000)
randoms = st.floats(0, 1, exclude_max=True)


@given(backoffs, attempts, randoms)
def test_no_delay_is_negative_or_longer_than_its_bound_or_overflows_an_instant(
    backoff: Backoff, attempt: int, random: float
) -> None:
    wait = delay(backoff, attempt, random)

    assert (
        timedelta(0)
        <= wait
        <= (MAX_DELAY if backoff.policy == "steps" else min(MAX_DELAY, backoff.max_delay))
    )
    assert datetime(9000, 1, 1) + wait


@given(backoffs, attempts, randoms)
def test_jitter_only_shortens_and_by_no_more_than_its_fraction(
    backoff: Backoff, attempt: int, random: float
) -> None:
    whole = delay(backoff, attempt, 0.0)
    wait = delay(backoff, attempt, random)

    assert wait <= whole
    assert wait >= whole * (1 - backoff.jitter) - timedelta(microseconds=1)


@given(backoffs.filter(lambda b: b.policy != "steps"), attempts)
def test_but_for_steps_no_later_attempt_waits_less(backoff: Backoff, attempt: int) -> None:
    assert delay(backoff, attempt + 1, 0.0) >= delay(backoff, attempt, 0.0)


@pytest.mark.parametrize(
    "policy, seconds",
    [
        ("fixed", [10, 10, 10, 10]),
        ("linear", [10, 20, 30, 40]),
        ("quadratic", [10, 40, 90, 160]),
        ("exponential", [10, 20, 40, 80]),
        ("steps", [1, 5, 60, 60]),
    ],
)
def test_each_policy_waits_as_it_is_written(policy: str, seconds: list[int]) -> None:
    backoff = Backoff(policy, 10 * SECOND, YEAR, jitter=0, delays=(SECOND, 5 * SECOND, 60 * SECOND))

    assert [delay(backoff, attempt, 0.5).total_seconds() for attempt in (1, 2, 3, 4)] == seconds


def test_steps_ignore_max_delay() -> None:
    backoff = Backoff("steps", max_delay=SECOND, jitter=0, delays=(60 * SECOND,))

    assert delay(backoff, 1, 0.0) == 60 * SECOND
