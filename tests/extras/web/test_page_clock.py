"""The time zone in which a page shows instants."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from extras.web.test_pages import words
from starlette.testclient import TestClient

from support.rows import a_job, a_run
from yamlsched.extras.web.render import Clock

NOW = datetime(2026, 1, 14, 12, tzinfo=UTC)


@pytest.fixture
def shop(db: Any) -> None:
    for name, timezone in (
        ("berlin", "Europe/Berlin"),
        ("tokyo", "Asia/Tokyo"),
        ("also_berlin", "Europe/Berlin"),
    ):
        job = a_job(db, name, timezone=timezone, schedule="0 3 * * *")
        a_run(db, job, "dead", finished_at=datetime(2026, 1, 14, 2, tzinfo=UTC))


def zones(page: TestClient, path: str) -> set[str]:
    """Return the time zones of the instants that a page shows."""
    return {text.split()[-1] for text in re.findall("<time[^>]*>(.*?)</time>", page.get(path).text)}


@pytest.mark.usefixtures("shop")
def test_a_page_shows_all_instants_in_one_time_zone(page: TestClient) -> None:
    # a page of a job has that of the job, another page that of most jobs
    assert zones(page, "/jobs/tokyo") == {"JST"}
    assert zones(page, "/dead") == zones(page, "/runs") == {"CET"}


@pytest.mark.usefixtures("shop")
def test_the_time_zone_that_a_viewer_chooses_is_kept_for_all_pages(page: TestClient) -> None:
    assert zones(page, "/dead?clock=Asia/Kolkata") == {"IST"}
    assert zones(page, "/jobs/tokyo") == zones(page, "/runs") == {"IST"}
    assert zones(page, "/runs?clock=job") == {"CET"}
    assert zones(page, "/dead") == {"CET"}


@pytest.mark.usefixtures("shop")
def test_an_unknown_time_zone_is_refused_and_not_kept(page: TestClient) -> None:
    answer = page.get("/dead?clock=Mars/Phobos")
    assert answer.status_code == 400
    assert 'There is no time zone "Mars/Phobos"' in words(answer.text)
    assert zones(page, "/dead") == {"CET"}
    assert page.get("/dead", headers={"Cookie": "yamlsched_clock=../etc/passwd"}).status_code == 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("late since 2026-01-14T01:30Z", "late since Wed 14 Jan 10:30 JST"),
        ("lease until 2026-01-14T01:30:09Z (in 2m)", "lease until Wed 14 Jan 10:30 JST (in 2m)"),
        ("until 2036-01-14T01:30Z", "until Mon 14 Jan 2036 10:30 JST"),
        (
            "slot before: 2026-01-14T01:30Z (Wed 2026-01-14 02:30 CET)",
            "slot before: Wed 14 Jan 10:30 JST",
        ),
        ("Wed 2026-01-14 02:30 CET (2026-01-14T01:30Z)", "Wed 14 Jan 10:30 JST"),
        ("run purge:2026-01-14T01:30Z died", "run purge:2026-01-14T01:30Z died"),
        (
            "yamlsched backfill a --from 2026-01-14T01:30Z",
            "yamlsched backfill a --from 2026-01-14T01:30Z",
        ),
        ("no instant: 2026-99-99T99:99Z", "no instant: 2026-99-99T99:99Z"),
    ],
)
def test_instants_in_messages_are_shown_in_the_time_zone_of_the_page(text: str, shown: str) -> None:
    assert Clock("Asia/Tokyo", NOW, is_chosen=True).words(text) == shown


def test_without_a_choice_a_message_about_a_job_keeps_its_local_time() -> None:
    said = Clock("Asia/Tokyo", NOW).words(
        "until 2026-01-14T01:30Z (Wed 2026-01-14 02:30 CET), by maria"
    )
    assert said == "until Wed 2026-01-14 02:30 CET, by maria"


@pytest.mark.usefixtures("shop")
def test_the_choice_is_a_cookie_below_the_prefix_that_no_script_reads(
    visit: Callable[..., TestClient], page_dsn: str
) -> None:
    page = visit(page_dsn, namespace="default", base_path="/scheduler")
    cookie = page.get("/scheduler/dead?clock=UTC").headers["Set-Cookie"]
    assert cookie.startswith("yamlsched_clock=UTC;")
    assert {"HttpOnly", "Path=/scheduler", "SameSite=lax"} <= set(cookie.split("; "))
