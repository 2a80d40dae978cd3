"""The page of chains: each job behind those that it follows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from yamlsched.extras.web.pages.graph import ChainedJob, in_order


def a_chained_job(name: str, *after: str) -> ChainedJob:
    return ChainedJob(name, list(after), "UTC", None, None, None, None)


def test_a_chain_stays_together_and_a_fan_in_is_behind_its_longest_chain() -> None:
    jobs = [
        a_chained_job("a"), a_chained_job("b", "a"), a_chained_job("c", "b", "x"), a_chained_job("x"),
        a_chained_job("m"), a_chained_job("n", "m"),
    ]  # fmt: skip

    rows = [(row.job.job_type, row.depth) for row in in_order({job.job_type: job for job in jobs})]

    assert rows == [("a", 0), ("x", 0), ("b", 1), ("c", 2), ("m", 0), ("n", 1)]


@given(edges=st.sets(st.tuples(st.integers(0, 12), st.integers(0, 12))))
def test_every_job_is_shown_once_whatever_follows_what(edges: set[tuple[int, int]]) -> None:
    jobs = {f"j{n}": a_chained_job(f"j{n}", *(f"j{other}" for one, other in edges if one == n)) for n in range(12)}

    assert sorted(row.job.job_type for row in in_order(jobs)) == sorted(jobs)
