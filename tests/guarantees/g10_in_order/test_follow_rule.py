"""The rule for runs that are not released: properties of ``decide``, and each sentence of docs/follow.md."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamlsched.runs.follow import (
    Decision,
    Rules,
    SlotDecision,
    State,
    UnreleasedRun,
    Upstream,
    decide,
)

T = datetime(2026, 1, 14, 2, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NEVER = timedelta(days=365)


def a_run(
    number: int, *states: str, run_at: datetime | None = None, by_hand: bool = False
) -> UnreleasedRun:
    """Build the run of slot ``number``, which waits for a run of its own of each of several jobs."""
    slot = T + number * HOUR
    upstreams = tuple(
        Upstream(
            nth, f"up_{nth}", state, 100 * number + nth, slot if state != State.WAITING else None
        )
        for nth, state in enumerate(states)
    )
    return UnreleasedRun(number, slot, run_at or slot, upstreams, by_hand)


def verdicts(
    rules: Rules, *runs: UnreleasedRun, is_busy: bool = False, now: datetime = T + 24 * HOUR
) -> list[str]:
    return [one.reason or str(one.verdict) for one in decide(rules, runs, is_busy, now)]


@pytest.mark.parametrize(
    "policy, state, expected",
    [
        ("wait", "succeeded", "release"),
        ("wait", "waiting", "wait"),
        ("wait", "dead", "wait"),
        ("wait", "cancelled", "wait"),
        ("wait", "skipped", "upstream"),
        ("skip", "dead", "upstream"),
        ("skip", "cancelled", "upstream"),
        ("skip", "skipped", "upstream"),
        ("skip", "waiting", "wait"),
        ("run", "dead", "release"),
        ("run", "cancelled", "release"),
        ("run", "skipped", "release"),
        ("run", "waiting", "wait"),
    ],
)
def test_on_upstream_failure_decides_about_what_has_not_succeeded(
    policy: str, state: str, expected: str
) -> None:
    assert verdicts(Rules(on_upstream_failure=policy), a_run(0, state, "succeeded")) == [expected]


def test_one_failure_decides_although_another_job_is_still_waited_for() -> None:
    [decision] = decide(
        Rules(on_upstream_failure="skip"), [a_run(3, "waiting", "dead")], False, T + 9 * HOUR
    )

    assert (decision.verdict, decision.reason, decision.detail) == (
        SlotDecision.SKIP,
        "upstream",
        "up_1:301",
    )


def test_a_slot_is_due_from_its_time_on_and_since_the_last_of_what_it_waited_for_has_ended() -> (
    None
):
    upstreams = (
        Upstream(1, "a", "succeeded", 1, T + HOUR),
        Upstream(2, "b", "succeeded", 2, T + 3 * HOUR),
    )
    run = UnreleasedRun(1, T, T + 2 * HOUR, upstreams)

    before = decide(Rules(), [run._replace(run_at=T + 5 * HOUR)], False, T + 4 * HOUR)
    after = decide(Rules(), [run], False, T + 4 * HOUR)

    assert [one.verdict for one in before] == [SlotDecision.NOT_YET]
    assert [(one.verdict, one.run_at) for one in after] == [(SlotDecision.RELEASE, T + 3 * HOUR)]


def test_a_slot_that_is_due_supersedes_all_older_ones() -> None:
    runs = [a_run(0, "waiting"), a_run(1, "succeeded"), a_run(2, "succeeded"), a_run(3, "waiting")]

    assert verdicts(Rules(), *runs) == ["superseded", "superseded", "release", "wait"]


def test_a_slot_that_waits_for_nothing_else_supersedes_an_older_one_before_it_is_due() -> None:
    both = Upstream(0, "up", "waiting", 7), Upstream(1, "other", "waiting", 8)
    runs = [UnreleasedRun(0, T, T, both), UnreleasedRun(1, T + HOUR, T + HOUR, both[:1])]

    assert verdicts(Rules(), *runs) == ["superseded", "wait"]
    assert verdicts(Rules(), *runs[::-1]) == ["superseded", "wait"]
    assert verdicts(
        Rules(), runs[0], runs[1]._replace(upstreams=(Upstream(0, "up", "waiting", 9),))
    ) == [
        "wait",
        "wait",
    ]


def test_a_slot_that_is_recorded_as_upstream_or_late_or_made_by_hand_supersedes_none() -> None:
    for newer in (a_run(1, "skipped"), a_run(1, "succeeded", by_hand=True)):
        assert verdicts(Rules(), a_run(0, "waiting"), newer)[0] == "wait"


def test_with_catchup_all_each_slot_runs_when_it_is_due_one_at_a_time() -> None:
    runs = [a_run(0, "waiting"), a_run(1, "succeeded"), a_run(2, "succeeded")]

    assert verdicts(Rules(catchup="all"), *runs) == ["wait", "release", "wait"]
    assert verdicts(Rules("allow", "all"), *runs) == ["wait", "release", "release"]
    assert verdicts(Rules(catchup="all"), *runs, is_busy=True) == ["wait", "wait", "wait"]


@pytest.mark.parametrize(
    "overlap, expected", [("wait", "wait"), ("skip", "overlap"), ("allow", "release")]
)
def test_overlap_applies_once_a_slot_is_due(overlap: str, expected: str) -> None:
    assert verdicts(Rules(overlap), a_run(0, "succeeded"), is_busy=True) == [expected]
    assert verdicts(Rules(overlap), a_run(0, "waiting"), is_busy=True) == ["wait"]


def test_a_slot_is_late_after_its_window_whatever_it_waits_for_but_not_one_made_by_hand() -> None:
    rules = Rules(catchup_window=HOUR)

    for state in State:
        assert verdicts(rules, a_run(0, state), now=T + HOUR + MINUTE)[0] == "late"
        assert verdicts(rules, a_run(0, state), now=T + HOUR)[0] != "late"
    assert verdicts(rules, a_run(0, "succeeded", by_hand=True), now=T + 2 * HOUR) == ["release"]


def test_a_superseded_slot_names_the_dead_run_that_it_waited_for() -> None:
    superseded, _ = decide(
        Rules(), [a_run(0, "succeeded", "dead"), a_run(1, "succeeded")], False, T + 2 * HOUR
    )

    assert (superseded.reason, superseded.detail) == ("superseded", "up_1:1")


def test_a_slot_without_upstreams_is_due_at_once() -> None:
    assert verdicts(Rules(), a_run(0)) == ["release"]


def test_a_run_made_by_hand_is_cancelled_where_a_slot_would_be_a_gap() -> None:
    [decision] = decide(Rules(), [a_run(0, "skipped", by_hand=True)], False, T)

    assert (decision.verdict, decision.reason) == (SlotDecision.CANCEL, "upstream")


RULES = st.builds(
    Rules,
    overlap=st.sampled_from(["wait", "skip", "allow"]),
    catchup=st.sampled_from(["latest", "all"]),
    catchup_window=st.sampled_from([2 * HOUR, NEVER]),
    on_upstream_failure=st.sampled_from(["wait", "skip", "run"]),
)
STATES = st.lists(st.sampled_from([str(state) for state in State]), max_size=3)
RUNS = st.lists(st.tuples(STATES, st.booleans()), max_size=5).map(
    lambda found: [
        a_run(number, *states, by_hand=by_hand) for number, (states, by_hand) in enumerate(found)
    ]
)


def expected(
    rules: Rules, run: UnreleasedRun, runs: list[UnreleasedRun], is_busy: bool, now: datetime
) -> set[str]:
    """Return what may become of a run, by the sentences of DESIGN: a model that looks at one run at a time."""

    def open_ones(one: UnreleasedRun) -> set[int]:
        ended = set() if rules.on_upstream_failure != "wait" else {"dead", "cancelled"}
        return {u.run_id or 0 for u in one.upstreams if u.state == "waiting" or u.state in ended}

    def is_ruled_out(one: UnreleasedRun) -> bool:
        bad = {"wait": {"skipped"}, "skip": {"dead", "cancelled", "skipped"}, "run": set()}[
            rules.on_upstream_failure
        ]
        return any(u.state in bad for u in one.upstreams)

    def is_late(one: UnreleasedRun) -> bool:
        return not one.is_backfilled and now - one.run_at > rules.catchup_window

    if is_late(run):
        return {"late"}
    newer = [
        o
        for o in runs
        if o.slot > run.slot and not (o.is_backfilled or is_late(o) or is_ruled_out(o))
    ]
    if not run.is_backfilled and rules.catchup != "all":
        for one in newer:
            if (not open_ones(one) and one.run_at <= now) or open_ones(one) <= open_ones(run):
                return {"superseded"}
    if is_ruled_out(run):
        return {"upstream"}
    if open_ones(run):
        return {"wait"}
    if run.run_at > now:
        return {"not_yet"}
    if run.is_backfilled or rules.overlap == "allow":
        return {"release"}
    if is_busy:
        return {"overlap" if rules.overlap == "skip" else "wait"}
    return {
        "release",
        "overlap" if rules.overlap == "skip" else "wait",
    }  # one of those that are due is released


@given(rules=RULES, runs=RUNS, is_busy=st.booleans(), hours=st.integers(0, 8))
def test_each_run_becomes_what_the_model_says(
    rules: Rules, runs: list[UnreleasedRun], is_busy: bool, hours: int
) -> None:
    now = T + hours * HOUR

    decisions = decide(rules, runs, is_busy, now)

    assert [one.run.id for one in decisions] == [run.id for run in runs]
    for one in decisions:
        assert (one.reason or str(one.verdict)) in expected(rules, one.run, runs, is_busy, now)
    released = [
        one
        for one in decisions
        if one.verdict is SlotDecision.RELEASE and not one.run.is_backfilled
    ]
    if rules.overlap != "allow":
        assert len(released) <= (0 if is_busy else 1)
    undecided = [
        one
        for one in decisions
        if one.verdict is SlotDecision.WAIT and "wait" not in _waits(rules, one)
    ]
    assert not undecided or is_busy or any(one.verdict is SlotDecision.RELEASE for one in decisions)
    if rules.catchup != "all" and released:
        assert not [
            one
            for one in decisions
            if one.run.slot < released[-1].run.slot
            and one.verdict is SlotDecision.WAIT
            and not one.run.is_backfilled
        ]


def _waits(rules: Rules, one: Decision) -> list[str]:
    ended = {"dead", "cancelled"} if rules.on_upstream_failure == "wait" else set()
    return [
        "wait"
        for upstream in one.run.upstreams
        if upstream.state == "waiting" or upstream.state in ended
    ]
