"""How the end of an attempt changes its run, and what is stored of an error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from yamlsched.runs.backoff import MAX_DELAY, MIN_DELAY, Backoff
from yamlsched.runs.lifecycle import (
    MAX_ERROR_CHARS,
    MAX_OUTPUT_BYTES,
    MAX_STACK_CHARS,
    AttemptEnd,
    ClaimedRun,
    EndKind,
    Status,
    after_attempt,
)

texts = st.text(st.characters(), max_size=3_000)
ends = st.builds(
    AttemptEnd,
    kind=st.sampled_from(EndKind),
    error=texts,
    error_type=texts,
    stack=st.text(st.characters(), max_size=100).map(lambda text: text * 400),
    delay=st.none() | st.timedeltas(),
    enqueued=st.just(()),
    output=st.text(st.characters(), max_size=100).map(lambda text: text * 1_000),
)
randoms = st.floats(0, 1, exclude_max=True)


def a_claim(**values: Any) -> ClaimedRun:
    usual: dict[str, Any] = {
        "id": 118,
        "job_type": "purge",
        "key": None,
        "scheduled_for": None,
        "attempt": 1,
        "max_attempts": 3,
        "payload": "{}",
        "is_catchup": False,
        "lease": 120.0,
        "locked_by": "web-1:4711:c0ffee",
    }
    return ClaimedRun(**{**usual, **values})


claims = st.integers(1, 100).flatmap(
    lambda most: st.integers(1, most).map(
        lambda attempt: a_claim(attempt=attempt, max_attempts=most)
    )
)


@given(claims, ends, randoms)
def test_a_run_waits_for_another_attempt_only_if_one_is_left(
    run: ClaimedRun, end: AttemptEnd, random: float
) -> None:
    outcome = after_attempt(run, end, Backoff(), random)

    assert outcome.status in (Status.SUCCEEDED, Status.FAILED, Status.DEAD, Status.QUEUED)
    if outcome.status is Status.FAILED:
        assert run.attempt < run.max_attempts
    if outcome.status is Status.QUEUED:
        assert outcome.refund  # or retries could be exhausted without a failure
    if outcome.status is Status.DEAD:
        assert end.kind is EndKind.DISCARDED or run.attempt >= run.max_attempts


@given(claims, ends, randoms)
def test_a_stored_error_is_storable_printable_and_bounded(
    run: ClaimedRun, end: AttemptEnd, random: float
) -> None:
    outcome = after_attempt(run, end, Backoff(), random)

    assert (outcome.error is not None) == (outcome.status in (Status.FAILED, Status.DEAD))
    for text, longest in (
        (outcome.error, MAX_ERROR_CHARS),
        (outcome.error_type, 200),
        (outcome.stack, MAX_STACK_CHARS),
        (outcome.output, MAX_OUTPUT_BYTES),
    ):
        if text is not None:
            assert text.encode()  # no lone surrogate
            assert "\x00" not in text
            assert 0 < len(text) <= longest
    assert outcome.output is None or len(outcome.output.encode()) <= MAX_OUTPUT_BYTES
    assert outcome.error is None or outcome.error.isprintable()


@given(
    claims,
    st.sampled_from([EndKind.RETRY_AFTER, EndKind.SNOOZED]),
    st.none() | st.timedeltas(),
    randoms,
)
def test_a_delay_of_a_handler_is_limited(
    run: ClaimedRun, end: EndKind, delay: timedelta | None, random: float
) -> None:
    outcome = after_attempt(run, AttemptEnd(end, delay=delay), Backoff(), random)

    if outcome.delay is not None:
        assert MIN_DELAY <= outcome.delay <= MAX_DELAY
        assert outcome.delay == delay or outcome.delay in (MIN_DELAY, MAX_DELAY)


def test_backoff_starts_over_when_an_operator_retries_a_dead_run() -> None:
    # given a job of 5 attempts, and a run of it that died, was given 5 more, and fails the first of these
    run = a_claim(attempt=6, max_attempts=10, prior_attempts=5)

    outcome = after_attempt(run, AttemptEnd(EndKind.RAISED, "again"), Backoff(jitter=0), 0.0)

    assert outcome.delay == timedelta(minutes=1)


def test_backoff_does_not_depend_on_how_many_attempts_are_allowed() -> None:
    # given a run from before max_attempts of its job was lowered
    run = a_claim(attempt=4, max_attempts=10)

    outcome = after_attempt(run, AttemptEnd(EndKind.RAISED, "again"), Backoff(jitter=0), 0.0)

    assert outcome.delay == timedelta(minutes=8)
