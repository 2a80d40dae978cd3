"""``/durations``, and how long runs take on the other pages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from extras.web.test_pages import words
from psycopg.types.json import Jsonb
from starlette.testclient import TestClient

from support.rows import a_job, a_place, a_run, value
from yamlsched.act.prune import housekeep


def runs(
    db: Any,
    job: int,
    seconds: float,
    days_ago: float = 0,
    number: int = 3,
    status: str = "succeeded",
) -> None:
    for nth in range(number):
        ended = f"now() - interval '{days_ago} days {nth} minutes'"
        a_run(
            db,
            job,
            status,
            finished_at=f"({ended})",
            started_at=f"({ended} - interval '{seconds} seconds')",
        )


def listed(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a class="name"[^>]*>(\w+)</a>', page)


def test_jobs_are_sorted_by_what_became_slower_and_by_how_long_they_take(
    page: TestClient, db: Any
) -> None:
    # given a slow job that stays as it was, and a quick one that takes four times as long as in the week before
    slow, quick = a_job(db, "slow"), a_job(db, "quick")
    runs(db, slow, 600)
    runs(db, slow, 600, days_ago=9)
    runs(db, quick, 20)
    runs(db, quick, 5, days_ago=9)

    shown = page.get("/durations").text
    assert listed(shown) == ["quick", "slow"]
    assert "quick 20s × 4.00 slower was 5s 20s 20s 20s" in words(shown)
    assert "slow 10m × 1.00 was 10m" in words(shown)
    for sort in ("longest", "usual"):
        assert listed(page.get(f"/durations?sort={sort}").text) == ["slow", "quick"]
    assert listed(page.get("/durations?sort=name&q=slo").text) == ["slow"]


def test_the_bars_of_all_jobs_have_one_scale(page: TestClient, db: Any) -> None:
    # given jobs of 10 s and of 10 m, of which the page lists one
    runs(db, a_job(db, "quick"), 10)
    runs(db, a_job(db, "slow"), 600)

    for path in ("/durations", "/durations?q=quick"):
        shown = page.get(path).text
        assert 'aria-label="From 1s to 10m, logarithmic"' in shown
        assert '<rect y="4" width="36.0%" height="12" class="usual"/>' in shown
    assert '<rect y="4" width="100.0%" height="12" class="usual"/>' in page.get("/durations").text


def test_jobs_that_all_take_days_have_a_scale(page: TestClient, db: Any) -> None:
    runs(db, a_job(db), 5 * 86_400)

    assert "purge 5d 5d 5d 5d" in words(page.get("/durations").text)


def test_failed_runs_and_runs_of_other_weeks_do_not_count(page: TestClient, db: Any) -> None:
    job = a_job(db)
    runs(db, job, 5)
    runs(db, job, 900, status="dead")
    runs(db, job, 900, days_ago=20)
    assert "purge 5s 5s 5s 5s" in words(page.get("/durations").text)


def test_the_page_says_that_the_newest_runs_of_a_job_count(page: TestClient, db: Any) -> None:
    # given a long run, and more runs after it than count
    job = a_job(db)
    runs(db, job, 900, days_ago=1, number=1)
    runs(db, job, 5, number=20)

    shown = words(page.get("/durations").text)
    assert "How long the newest 20 runs of each job took within 7 days" in shown
    assert "purge 5s 5s 5s 5s" in shown


def test_runs_that_were_pruned_still_say_how_long_is_usual_and_whether_a_job_became_slower(
    page: TestClient, db: Any
) -> None:
    # given a job that takes eight times as long as the week before, and one that is as it was
    for name, before in (("quick", 5), ("same", 40)):
        job = a_job(db, name)
        runs(db, job, 40, number=4)
        runs(db, job, before, days_ago=9, number=5)
        runs(db, job, 70, days_ago=3, number=1)

    # when all but the newest are pruned
    a_place(db, retention=Jsonb({"succeeded": "2d"}))
    housekeep(db, "default", 60)

    # then the histogram stands for them
    assert value(db, "select count(*) from yamlsched.job_runs") == 8
    shown = words(page.get("/durations").text)
    assert "quick ≈ 45s × 9.05 slower was ≈ 5s 40s 1m10s 1m10s" in shown
    assert "same ≈ 45s was ≈ 40s 40s 1m10s 1m10s" in shown
    assert 'href="/runs/' not in page.get("/durations").text

    # and also where none is left of the last week
    db.execute("delete from yamlsched.job_runs")
    assert "same ≈ 1m10s was ≈ 40s – 1m10s 1m10s" in words(page.get("/durations").text)
    for path in ("/", "/jobs/same", "/runs"):
        assert page.get(path).status_code == 200


def test_a_week_without_runs_says_so(page: TestClient, db: Any) -> None:
    runs(db, a_job(db), 5, days_ago=20)
    assert "Nothing to compare" in page.get("/durations").text


@pytest.mark.parametrize(("minutes", "is_slow"), [(8, True), (0, False)])
def test_a_running_run_says_how_long_is_usual(
    page: TestClient, db: Any, minutes: int, is_slow: bool
) -> None:
    job = a_job(db)
    runs(db, job, 20)
    a_run(db, job, "running", started_at=f"(now() - interval '{minutes} minutes 5 seconds')")
    answer = page.get("/runs?status=running").text
    assert ", usually 20s" in words(answer)
    assert ('class="amber">running' in answer) is is_slow


def test_the_lists_of_jobs_and_the_page_of_a_job_say_what_is_usual(
    page: TestClient, db: Any
) -> None:
    job = a_job(db)
    runs(db, job, 80)
    assert "1m20s last 1m20s" in words(page.get("/").text)
    assert "Usually takes 1m20s 95 % within 1m20s; last 1m20s" in words(
        page.get("/jobs/purge").text
    )
