"""How the end of an attempt changes its run, and what is stored of an error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
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
    one_line,
    storable,
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


@pytest.mark.parametrize(
    "end, attempt, status, refund",
    [
        (EndKind.RETURNED, 3, Status.SUCCEEDED, False),
        (EndKind.COMMITTED, 3, Status.SUCCEEDED, False),
        (EndKind.RAISED, 2, Status.FAILED, False),
        (EndKind.RAISED, 3, Status.DEAD, False),
        (EndKind.DISCARDED, 1, Status.DEAD, False),
        (EndKind.RETRY_AFTER, 2, Status.FAILED, False),
        (EndKind.RETRY_AFTER, 3, Status.DEAD, False),
        (EndKind.SNOOZED, 3, Status.QUEUED, True),
        (EndKind.RELEASED, 3, Status.QUEUED, True),
    ],
)
def test_the_end_of_an_attempt_determines_the_outcome_of_the_run(
    end: EndKind, attempt: int, status: Status, refund: bool
) -> None:
    outcome = after_attempt(a_claim(attempt=attempt), AttemptEnd(end, "why"), Backoff(), 0.0)

    assert (outcome.status, outcome.refund) == (status, refund)


@pytest.mark.parametrize("most", [2, 9])
def test_from_the_fourth_release_in_a_row_on_each_costs_an_attempt(most: int) -> None:
    stopped = AttemptEnd(EndKind.RELEASED, "stopped by a shutdown")
    unstarted = stopped._replace(has_begun=False)
    run = a_claim(max_attempts=most)
    costs = []

    for end in (stopped, unstarted, stopped, stopped, unstarted, stopped, unstarted, stopped):
        outcome = after_attempt(run, end, Backoff(), 0.0)
        costs.append(not outcome.refund)
        run = run._replace(attempt=run.attempt + costs[-1], releases=outcome.releases)

    assert costs == [False] * 5 + [True, False, True]
    assert outcome.error == (
        "stopped by a shutdown, and it had been released 3 times in a row before"
    )
    assert outcome.status is (Status.DEAD if most == 2 else Status.FAILED)
    assert after_attempt(run, AttemptEnd(EndKind.RAISED, "why"), Backoff(), 0.0).releases == 0


def test_retry_after_overrides_the_backoff() -> None:
    end = AttemptEnd(EndKind.RETRY_AFTER, "too many requests", delay=timedelta(seconds=7))

    assert after_attempt(a_claim(), end, Backoff(), 0.0).delay == timedelta(seconds=7)


def test_secrets_are_removed_from_stored_errors_and_output() -> None:
    end = AttemptEnd(
        EndKind.RAISED, "s3cret in error", "OSError", "s3cret in stack", output="s3cret in output"
    )

    outcome = after_attempt(
        a_claim(), end, Backoff(), 0.0, lambda text: text.replace("s3cret", "***")
    )

    assert (outcome.error, outcome.stack, outcome.output) == (
        "*** in error",
        "*** in stack",
        "*** in output",
    )


@given(texts, st.integers(1, 600))
def test_one_line_returns_one_line_and_does_not_change_a_single_line(
    text: str, longest: int
) -> None:
    line = one_line(text, longest)

    assert line.isprintable()
    assert len(line) <= longest
    assert one_line(line, longest) == line


@given(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00")))
def test_a_storable_string_is_stored_unchanged(text: str) -> None:
    assert storable(text) == text


@pytest.mark.parametrize(
    "key, is_on_dead_call, dead",
    [
        ("on_dead:118", True, 118),
        ("on_dead:118:10", True, 118),
        ("on_dead:boom", True, None),
        ("on_dead:", True, None),
        ("on_dead:²", True, None),
        ("on_dead:" + 5000 * "1", True, None),
        ("purge:2026-01-14", False, None),
        (None, False, None),
    ],
)
def test_the_key_of_an_on_dead_call_contains_the_dead_run(
    key: str | None, is_on_dead_call: bool, dead: int | None
) -> None:
    run = a_claim(key=key)

    assert (run.is_on_dead_call, run.dead_run_id) == (is_on_dead_call, dead)


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
