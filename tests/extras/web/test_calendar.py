"""The calendar of coming slots."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from starlette.testclient import TestClient

from support.rows import a_job
from yamlsched.extras import web
from yamlsched.extras.web.ask.calendar import effect
from yamlsched.timetable import slots
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.zones import zone

Visit = Callable[..., TestClient]
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp"
DAY = timedelta(days=1)


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2])).split())


def cells(page: str) -> list[tuple[str, str]]:
    """Return the hours of the grid that have jobs: what they are, and the number in them."""
    return re.findall(r'<td class="level[^"]*" title="([^"]*)"><a [^>]*>([\d,]+)</a>', page)


@pytest.fixture(scope="module")
def few(page_dsn: str) -> Iterator[TestClient]:
    """The page on a namespace with jobs of every kind."""
    now = datetime.now(UTC)
    with closing(psycopg.connect(page_dsn, autocommit=True)) as db:
        a_job(
            db,
            "nightly",
            schedule="30 2 * * *",
            timezone="Europe/Berlin",
            owner="team-a",
            tags=["critical"],
        )
        a_job(db, "minutely", schedule="* * * * *", owner="team-b")
        a_job(db, "off", enabled=False)
        a_job(db, "by_hand", schedule=None)
        a_job(db, "held", paused_at=now, paused_by="mia", paused_reason=HOSTILE)
        a_job(
            db,
            "held_until",
            paused_at=now,
            paused_until=now + 2 * DAY,
            schedule="0 * * * *",
            owner="team-c",
        )
        a_job(db, "strange", timezone="Mars/Olympus")
        a_job(db, "gone", retired_at=now)
        for n in range(6):
            a_job(db, f"pile_{n}", schedule="0 12 * * *", owner="team-d")
        a_job(db, "only_off", namespace="off", enabled=False)
    with TestClient(
        web.app(page_dsn, namespace="default", auth="none"), base_url="http://localhost"
    ) as client:
        yield client


def test_each_hour_has_the_number_of_jobs_that_start_in_it(few: TestClient) -> None:
    tomorrow = datetime.now(UTC).date() + DAY

    page = few.get(f"/calendar?span=1d&q=team-d&tz=UTC&from={tomorrow}").text

    assert cells(page) == [(f"{tomorrow:%a %-d %b} 12:00: 6 jobs, with a pile-up", "6")]
    assert "6 jobs, once, on" in words(page)
    assert "Jobs that start in each hour of UTC, of 6 matching jobs." in words(page)


def test_a_job_of_every_minute_is_one_cell_an_hour_and_one_line(few: TestClient) -> None:
    tomorrow = datetime.now(UTC).date() + DAY

    page = few.get(f"/calendar?q=team-b&from={tomorrow}&tz=UTC").text

    assert len(cells(page)) == 7 * 24
    assert "60 slots: 00:00 , 00:01 , 00:02 … 00:59" in words(page)
    assert len(page) < 150_000


def test_only_hours_and_days_that_have_far_more_or_fewer_runs_than_usual_are_marked(
    visit: Visit, page_dsn: str
) -> None:
    # given seven jobs in each hour, which rest on one day, and twenty more in one hour of another
    first = datetime.now(UTC).date() + DAY
    busy, calm = first + 2 * DAY, first + 4 * DAY
    with closing(psycopg.connect(page_dsn, autocommit=True)) as db:
        for n in range(7):
            days = f"* * {','.join(str((calm + d * DAY).isoweekday() % 7) for d in (1, 2, 3, 4, 5, 6))}"
            a_job(db, f"hourly_{n}", namespace="far", schedule=f"0 * {days}")
        for n in range(120):
            a_job(db, f"more_{n}", namespace="far", schedule=f"0 5 * * {busy.isoweekday() % 7}")

    page = visit(page_dsn, namespace="far").get(f"/calendar?tz=UTC&from={first}").text

    piled = [title for title, _ in cells(page) if "pile-up" in title]
    assert piled == [f"{busy:%a %-d %b} 05:00: 127 jobs, with a pile-up"]
    marks = re.findall(r'<td class="runs( far)?" title="([^"]*)">(.?)<', page)
    assert len(marks) == 7
    assert marks[2] == (" far", "288 runs, 168 are usual", "▲")
    assert marks[4] == (" far", "0 runs, 168 are usual", "▼")
    assert {mark for nth, mark in enumerate(marks) if nth not in (2, 4)} == {("", "168 runs", "")}


def test_an_hour_lists_its_slots_with_links_to_their_explanations(few: TestClient) -> None:
    tomorrow = datetime.now(UTC).date() + DAY

    page = few.get(f"/calendar?q=team-d&tz=UTC&from={tomorrow}&at={tomorrow}T12:00Z").text

    assert "Slots of one hour" in words(page)
    agenda = page.partition('id="agenda"')[2].partition("</section>")[0]
    assert re.findall(r'href="/jobs/(\w+)"', agenda) == [f"pile_{n}" for n in range(6)]
    links = re.findall(r'href="(/why[^"]*)"', agenda)
    assert len(links) == 6
    assert "verdict" not in (answer := words(few.get(html.unescape(links[0])).text))
    assert "it is in the future" in answer


def test_the_night_in_which_clocks_change_is_explained_for_each_job(few: TestClient) -> None:
    where, cron = zone("Europe/Berlin"), parse_cron("30 2 * * *")
    now = datetime.now(UTC)
    change = next(slots.clock_changes(where, now, now + 366 * DAY))

    far = words(few.get("/calendar?q=nightly").text)
    near = words(few.get(f"/calendar?q=nightly&from={change.at.date()}").text)

    sentence = effect(cron, where, change)
    if change.at - now < 200 * DAY:
        assert f"nightly {sentence}" in far
        assert f"nightly {sentence}" in near
        assert "It affects 1 job." in near


def test_a_later_clock_change_is_explained_on_the_days_around_it(few: TestClient) -> None:
    where, cron = zone("Europe/Berlin"), parse_cron("30 2 * * *")
    now = datetime.now(UTC)
    *_, change = slots.clock_changes(where, now, now + 700 * DAY)

    page = few.get(f"/calendar?q=nightly&from={change.at.date() - DAY}").text

    assert f"nightly {effect(cron, where, change)}" in words(page)
    assert "It affects 1 job." in words(page)
    minutes = "does not exist" if change.after > change.before else "has 120 minutes"
    assert f"{change.at.date():%a %-d %b} 02:00" in page
    assert f"{change.at.date():%a %-d %b} 02:00" in (
        hour := page.partition(minutes)[0].rpartition("title=")[2]
    )
    assert "this hour" in hour


def test_jobs_without_coming_slots_are_listed_with_the_reason(few: TestClient) -> None:
    shown = words(few.get("/calendar").text)

    assert r"held until it is resumed, by mia: <script>alert(1)</script>\x1b[31m\u202egnp" in shown
    assert "its slots after that are shown above" in shown
    assert "disabled 1 off" in shown
    assert "no cron 1 run when they are enqueued: by_hand" in shown
    assert 'strange : no time zone "Mars/Olympus"' in shown
    assert "gone" not in shown


def test_a_job_that_is_paused_until_a_time_has_the_slots_after_it(few: TestClient) -> None:
    listed = [title for title, _ in cells(few.get("/calendar?q=team-c&tz=UTC").text)]

    assert listed
    until = datetime.now(UTC) + 2 * DAY
    assert listed[0].startswith((f"{until:%a %-d %b}", f"{until + DAY:%a %-d %b}"))


def test_an_empty_calendar_says_what_to_do_next(
    visit: Visit, page_dsn: str, few: TestClient
) -> None:
    assert "yamlsched sync" in words(visit(page_dsn, namespace="nobody").get("/calendar").text)
    assert "Each of these jobs is paused or disabled" in words(
        visit(page_dsn, namespace="off").get("/calendar").text
    )
    assert "No job matches" in words(few.get("/calendar?q=zzz").text)


@pytest.mark.parametrize(
    "query, message",
    [
        ("span=2d", "Write one of: 1d, 7d."),
        ("from=soon", '"soon" is not a valid date.'),
        ("from=1999-01-01", '"1999-01-01" is out of range.'),
        ("from=9999-12-31", '"9999-12-31" is out of range.'),
        ("tz=Mars/Olympus", 'There is no time zone "Mars/Olympus".'),
        ("tz=../../etc/passwd", "There is no time zone"),
        ("at=noon", '"noon" is not a valid time.'),
        ("at=2026-01-14T01:00", "is not a valid time"),
        ("q=" + "x" * 201, "The parameter q is not valid."),
    ],
)
def test_a_parameter_that_is_not_valid_is_refused_with_what_to_write(
    few: TestClient, query: str, message: str
) -> None:
    answer = few.get(f"/calendar?{query}")

    assert answer.status_code == 400
    assert message in words(answer.text)


def test_ten_thousand_jobs_of_every_minute_are_a_page_of_bounded_size(
    visit: Visit, own_dsn: str, db_of: Any
) -> None:
    db = db_of(own_dsn)
    a_job(db, "first", schedule="* * * * *")
    columns = "handler, schedule, timezone, max_attempts, backoff, timeout, lease, overlap, catchup, catchup_window, spread"
    db.execute(
        f"insert into yamlsched.job_definitions (namespace, job_type, enabled, effective_from, {columns}) "
        f"select 'default', 'job_' || n, true, effective_from, {columns} "
        "from yamlsched.job_definitions, generate_series(2, 10000) n"
    )

    page = visit(own_dsn, namespace="default").get("/calendar").text

    assert len(cells(page)) <= 7 * 24
    assert cells(page)[-1][1] == "10,000"
    assert len(page) < 300_000
    assert "9,980 more jobs in this hour" in words(page)
