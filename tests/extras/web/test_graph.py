"""The page of chains: each job behind those that it follows."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from yamlsched.extras import web
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
    jobs = {
        f"j{n}": a_chained_job(f"j{n}", *(f"j{other}" for one, other in edges if one == n))
        for n in range(12)
    }

    assert sorted(row.job.job_type for row in in_order(jobs)) == sorted(jobs)


def test_no_template_has_a_character_that_a_page_would_show_as_an_escape() -> None:
    templates = sorted((Path(web.__file__).parent / "templates").glob("*.html"))

    assert len(templates) > 10
    odd = {
        path.name: [c for c in path.read_text("utf-8") if not c.isprintable() and c != "\n"]
        for path in templates
    }
    assert {name: found for name, found in odd.items() if found} == {}
