"""``/nights``: jobs by their last 30 days or runs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from starlette.testclient import TestClient

from support.rows import a_job, a_place, a_run, value
from yamlsched.act.prune import housekeep
from yamlsched.extras.web.pages import nights


def marks(page: str, job: str) -> list[tuple[str, str]]:
    """Return the states and the words of the marks of a job, oldest first."""
    [row] = re.findall(rf'<tr><th scope="row"><a [^>]*>{job}</a>.*?</tr>', page, re.DOTALL)
    return re.findall(r'<[ai] class="(\w+)"[^>]* ?title="([^"]*)"', row)


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a class="mono"[^>]*>(\w+)</a>', page)


def failed(page: str) -> dict[str, str]:
    """Return the number in the column "Failed" of each job."""
    return dict(re.findall(r'<a class="mono"[^>]*>(\w+)</a></th><td>(\d*)</td>', page))


def test_a_job_has_a_mark_for_each_of_its_last_30_days(page: TestClient, db: Any) -> None:
    job = a_job(db)
    for days, state in ((0, "dead"), (3, "succeeded"), (40, "dead")):
        a_run(db, job, state, finished_at=f"(now() - interval '{days} days')")
    found = marks(page.get("/nights").text, "purge")
    assert len(found) == 30
    assert [state for state, _ in found if state != "none"] == ["ok", "dead"]
    assert found[29][1].endswith("1 dead")


def test_a_night_whose_runs_were_pruned_is_not_empty(page: TestClient, db: Any) -> None:
    job = a_job(db)
    for days, state in ((2, "dead"), (3, "succeeded"), (4, "cancelled")):
        a_run(db, job, state, finished_at=f"(now() - interval '{days} days')")
    shown = page.get("/nights").text
    before = marks(shown, "purge")
    assert failed(shown) == {"purge": "1"}
    strip = re.findall(r'<span class="strip" role.*?</span>', page.get("/").text)

    every = dict.fromkeys(("succeeded", "dead", "cancelled"), "1h")
    a_place(db, retention=Jsonb(every))
    housekeep(db, "default", 60)

    assert value(db, "select count(*) from yamlsched.job_runs") == 0
    shown = page.get("/nights").text
    assert marks(shown, "purge") == before
    assert failed(shown) == {"purge": "1"}
    assert names(page.get("/nights?only=failing").text) == ["purge"]
    assert [state for state, _ in marks(shown, "purge") if state != "none"] == [
        "cancelled",
        "ok",
        "dead",
    ]
    assert re.findall(r'<span class="strip" role.*?</span>', page.get("/").text) == strip
    assert "no earlier run is kept" in page.get("/nights?by=runs").text


def test_a_job_has_a_mark_for_each_of_its_last_30_runs_that_leads_to_it(
    page: TestClient, db: Any
) -> None:
    job = a_job(db)
    for nth in range(32):
        a_run(db, job, "succeeded", finished_at=f"(now() - interval '{nth} hours')")
    dead = a_run(db, job, "dead", finished_at="(now() - interval '90 minutes')")
    answer = page.get("/nights?by=runs").text
    found = marks(answer, "purge")
    assert len(found) == 30
    assert [nth for nth, (state, _) in enumerate(found) if state == "dead"] == [27]
    assert "OSError: no route to host" in found[27][1]
    assert f'href="/runs/{dead}"' in answer


def test_only_failing_jobs_are_listed_and_those_with_most_failures_first(
    page: TestClient, db: Any
) -> None:
    for name, dead in (("a_few", 1), ("b_none", 0), ("c_many", 3)):
        job = a_job(db, name)
        a_run(db, job, "succeeded")
        for _ in range(dead):
            a_run(db, job, "dead")
    assert names(page.get("/nights?sort=name").text) == ["a_few", "b_none", "c_many"]
    assert names(page.get("/nights").text) == ["c_many", "a_few", "b_none"]
    assert names(page.get("/nights?only=failing").text) == ["c_many", "a_few"]
    assert names(page.get("/nights?q=none").text) == ["b_none"]
    assert "No job matches" in page.get("/nights?q=none&only=failing").text


def test_many_jobs_are_turned_page_by_page(
    page: TestClient, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nights, "PAGE_JOBS", 2)
    for nth in range(5):
        a_job(db, f"job_{nth}")
    assert names(page.get("/nights?page=3").text) == ["job_4"]
    assert names(page.get("/nights?page=99").text) == ["job_4"]


@pytest.mark.parametrize("query", ["by=weeks", "sort=x", "only=x", "page=0"])
def test_what_the_grid_does_not_have_is_refused(page: TestClient, db: Any, query: str) -> None:
    assert page.get(f"/nights?{query}").status_code == 400


def test_a_day_is_that_of_the_jobs_own_time_zone(page: TestClient, db: Any) -> None:
    # given a run of 23:30 UTC, which is the next day in Auckland
    for name, zone in (("utc", "UTC"), ("auckland", "Pacific/Auckland")):
        ended = "(date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' - interval '3 days 30 minutes')"
        a_run(db, a_job(db, name, timezone=zone), "succeeded", finished_at=ended)
    shown = page.get("/nights").text
    days = {
        name: next(text for state, text in marks(shown, name) if state == "ok")
        for name in ("utc", "auckland")
    }
    [[utc, auckland]] = db.execute(
        "select to_char(at, 'FMDD') as utc, to_char(at + interval '1 day', 'FMDD') as auckland from"
        " (select date_trunc('day', now() at time zone 'UTC') - interval '3 days 30 minutes' as at) x"
    ).fetchall()
    assert (days["utc"].split()[1], days["auckland"].split()[1]) == (utc, auckland)


def test_the_grid_stays_small(page: TestClient, db: Any, page_dsn: str) -> None:
    for nth in range(50):
        job = a_job(db, f"job_with_a_long_name_of_sixty_three_letters_as_the_longest_{nth:04}")
        a_run(db, job, "dead", last_error="x" * 5_000)
    for by in ("nights", "runs"):
        assert len(page.get(f"/nights?by={by}").content) < 300_000


def test_durations_of_timedelta_are_words(page: TestClient, db: Any) -> None:
    a_run(db, a_job(db), "succeeded", started_at="(now() - interval '90 seconds')")
    assert f"took {timedelta(seconds=90).seconds // 60}m30s" in page.get("/nights?by=runs").text
