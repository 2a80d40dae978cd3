"""Pages about much: they stay small, say first what needs a person, and offer the rest."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from extras.web.test_pages import words
from starlette.testclient import TestClient

from support.rows import a_job, a_run

MAX_PAGE_BYTES = 300_000
LINE = "File <&\"'>, line 7\n"


def test_the_page_of_a_run_with_many_long_stacks_and_outputs_is_small_and_they_are_downloads(
    page: TestClient, db: Any
) -> None:
    # given a run whose ten attempts left as much as is kept
    run = a_run(db, a_job(db), "dead", attempts=10, max_attempts=10)
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, stack)"
        " select %(id)s, n, 'h:1:' || n, now(), repeat('e', 500), repeat(%(line)s, 3600) || 'the end of ' || n"
        " from generate_series(1, 10) n",
        {"id": run, "line": LINE},
    )
    db.execute(
        "insert into yamlsched.attempt_outputs (run_id, attempt, worker, ended_at, omitted_bytes, output)"
        " select %(id)s, n, 'h:1:' || n, now(), 0, repeat(%(line)s, 3600) || 'printed by ' || n"
        " from generate_series(1, 10) n",
        {"id": run, "line": LINE},
    )

    # then the page has their ends, and the whole is a download
    shown = page.get(f"/runs/{run}")
    assert len(shown.content) < MAX_PAGE_BYTES
    assert "the end of 10" in shown.text
    assert "printed by 10" in shown.text
    assert "characters before it are in the download" in words(shown.text)
    stack = page.get(f"/runs/{run}?attempt=7&download=stack")
    assert stack.text == LINE * 3600 + "the end of 7"
    assert (
        stack.headers["Content-Disposition"]
        == f'attachment; filename="run-{run}-attempt-7-stack.txt"'
    )
    assert page.get(f"/runs/{run}?attempt=11&download=stack").status_code == 404


def test_a_long_timeline_is_small_and_its_table_is_on_request(page: TestClient, db: Any) -> None:
    job = a_job(db, "busy", schedule="*/5 * * * *")
    db.execute(
        "insert into yamlsched.job_runs (namespace, job_type, definition_id, idempotency_key, scheduled_for, run_at,"
        " max_attempts, exclusive, status, attempts, started_at, finished_at)"
        " select 'default', 'busy', %s, 'busy:' || n, at, at, 5, false, 'succeeded', 1, at, at"
        " from (select n, date_trunc('hour', now()) - n * interval '5 minutes' as at from generate_series(1, 288) n) s",
        [job],
    )
    shown = page.get("/jobs/busy?span=24h").text
    assert len(shown) < MAX_PAGE_BYTES
    assert '<svg class="timeline"' in shown
    [link] = re.findall(r'<p id="as-table"><a href="([^"]*)#as-table">', shown)
    table = page.get(link.replace("&amp;", "&")).text
    assert len(table) < MAX_PAGE_BYTES
    assert table.count('<th scope="row"') > 250


def test_a_fan_out_shows_how_its_runs_ended_and_the_dead_ones_first(
    page: TestClient, db: Any
) -> None:
    # given a run that enqueued 240, of which the last 7 died
    parent, job = a_run(db, a_job(db, "send"), "succeeded"), a_job(db, "mail")
    for nth in range(240):
        a_run(db, job, "dead" if nth >= 233 else "succeeded", parent_id=parent)

    shown = page.get(f"/runs/{parent}").text
    related = words(shown).partition("Related runs")[2]
    assert "It enqueued 240 runs" in related
    assert "dead 7" in related
    assert "succeeded 233" in related
    assert "and 213 more runs" in related
    listed = re.findall(
        r'<span class="state (\w+)">[^/]*/?></svg>\w+</span> <a href="/runs/\d+">run', shown
    )
    assert listed == ["dead"] * 7 + ["succeeded"] * 20
    [retry] = re.findall(r'href="(/actions/retry-dead\?runs=[^"]*)">Retry the 7 dead', shown)
    assert "Retry 7 chosen runs of 1 job" in words(page.get(retry).text)


def timed_run(db: Any, job: int, seconds: int) -> int:
    started = f"(now() - interval '{seconds} seconds')"
    return a_run(db, job, "succeeded", started_at=started, finished_at="(now())")


def test_jobs_and_runs_are_sorted_by_how_long_they_take(page: TestClient, db: Any) -> None:
    slow, quick = a_job(db, "slow"), a_job(db, "a_quick_one")
    ids = [timed_run(db, slow, 300), timed_run(db, quick, 2), timed_run(db, slow, 900)]

    def names(path: str, pattern: str) -> list[str]:
        return re.findall(pattern, page.get(path).text)

    listed = r'<th scope="row"><a class="name" href="/jobs/(\w+)"'
    assert names("/", listed) == ["a_quick_one", "slow"]
    assert names("/?sort=usual", listed) == ["slow", "a_quick_one"]
    runs = names("/runs?sort=took", r'<a class="name" href="/runs/(\d+)"')
    assert [int(run) for run in runs] == [ids[2], ids[0], ids[1]]
    assert "The slowest of the newest 1,000 that match." in words(page.get("/runs?sort=took").text)


def test_the_box_in_the_head_finds_a_job_a_run_and_a_key(page: TestClient, db: Any) -> None:
    run = a_run(db, a_job(db, "purge"), idempotency_key="purge:7")
    for text, path in (
        ("purge", "/jobs/purge"),
        (str(run), f"/runs/{run}"),
        ("purge:7", f"/runs/{run}"),
    ):
        answer = page.get("/find", params={"q": text})
        assert (answer.status_code, answer.headers["Location"]) == (303, path)


def test_a_problem_has_a_button_for_what_helps(page: TestClient, db: Any) -> None:
    job = a_job(db, "purge")
    run = a_run(
        db, job, "dead", finished_at="(now())", error_type="OSError", last_error="disk full"
    )
    shown = page.get("/").text
    assert f'<a class="button" href="/actions/retry?run={run}">Retry …</a>' in shown

    a_run(db, job, "dead", finished_at="(now())", error_type="OSError", last_error="disk full")
    shown = page.get("/").text
    [retry] = re.findall(
        r'<a class="button" href="(/actions/retry-dead\?[^"]*)">Retry …</a>', shown
    )
    assert "Retry 2 dead runs of purge" in words(page.get(retry.replace("&amp;", "&")).text)


def test_a_calendar_that_has_ended_is_edited_in_the_file(page: TestClient, db: Any) -> None:
    ended = '[{"name": "closed", "dates": ["2020-01-01"], "until": "2020-12-31"}]'
    a_job(db, "purge", skip_on=ended)

    shown = words(page.get("/").text)

    assert "In schedules.yaml: add the next dates and a later until to the calendar" in shown


def test_dead_runs_are_counted_by_the_hour_in_which_they_died(page: TestClient, db: Any) -> None:
    # given an outage between two and three, and what died around it
    purge, mail = a_job(db, "purge", owner="shop"), a_job(db, "mail", owner="crm")
    [[day]] = db.execute("select date_trunc('day', now()) - interval '2 days'").fetchall()
    for job, hour, minute, type in (
        *((purge, 2, minute, "OSError") for minute in (0, 10, 59)),
        (mail, 2, 30, "TimeoutError"),
        (mail, 3, 0, "TimeoutError"),
        (purge, 1, 59, None),
    ):
        a_run(
            db,
            job,
            "dead",
            finished_at=day + timedelta(hours=hour, minutes=minute),
            error_type=type,
        )

    def hours(**query: str) -> list[tuple[int, int, int, str, str]]:
        answer = page.get(
            "/dead", params={"by": "hour", **query}, headers={"Accept": "application/json"}
        ).json()
        names = ("runs", "jobs", "job_type", "error_type")
        return [
            (datetime.fromisoformat(one["at"]).hour, *(one[name] for name in names))
            for one in answer["hours"]
        ]

    # then each hour has what died in it: the latest first, or the worst
    assert hours() == [
        (3, 1, 1, "mail", "TimeoutError"),
        (2, 4, 2, "purge", "OSError"),
        (1, 1, 1, "purge", ""),
    ]
    assert [hour for hour, *_ in hours(sort="largest")] == [2, 3, 1]
    assert [runs for _, runs, *_ in hours(owner="shop")] == [3, 1]
    assert [runs for _, runs, *_ in hours(type="TimeoutError")] == [1, 1]
    assert [hour for hour, *_ in hours(type="-")] == [1]
    assert hours(span="24h") == []

    # and its row says so in words, and leads to exactly these runs, also to retry them
    shown = page.get("/dead?by=hour&clock=UTC").text
    assert "6 dead runs in 3 hours" in words(shown)
    assert re.search(r" 02:00 UTC \S+ ago purge and 1 other job OSError Retry", words(shown))
    [runs] = re.findall(r'<a class="large" href="([^"]*)">4</a>', shown)
    assert page.get(runs.replace("&amp;", "&")).text.count('<a class="name" href="/runs/') == 4
    retries = re.findall(r'<td><a class="button" href="([^"]*)">Retry …</a>', shown)
    assert "4 dead runs of 2 jobs" in words(page.get(retries[1].replace("&amp;", "&")).text)
    assert "No run died in the last 24h" in words(page.get("/dead?by=hour&span=24h").text)


def test_the_page_of_symptoms_leads_to_pages_that_exist(page: TestClient) -> None:
    shown = page.get("/help").text
    links = set(re.findall(r'<dd><a href="([^"]*)"', shown))
    assert len(links) > 10
    assert {page.get(link).status_code for link in links} == {200}
