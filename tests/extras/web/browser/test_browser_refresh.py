"""The refresh script: what is shown stays current, and a reader is not disturbed. The browser's clock is the test's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from docs import demo_data
from support.database import temporary_database
from support.page_checks import barriers
from support.web_server import serving

pytestmark = pytest.mark.browser

PERIOD_MS = 10_000
JOB = "/jobs/refresh_cache?span=24h"
LIST = "/"
STILL = "/why?job=nightly_backup&at=yesterday"
"""A page that does not change from one second to the next."""


@pytest.fixture(scope="module")
def shop(chromium: Any, server: str, template: str) -> Iterator[tuple[Any, str]]:
    """A database that the tests write to, and the address of its page."""
    with (
        temporary_database(server, template) as dsn,
        psycopg.connect(dsn, autocommit=True) as db,
    ):
        demo_data.fill(dsn)
        with serving(dsn, "--namespace", demo_data.NAMESPACE, "--listen", "127.0.0.1:0") as (
            _,
            address,
        ):
            yield db, address.rstrip("/")


@pytest.fixture
def tab(tabs: Any, shop: tuple[Any, str]) -> Any:
    """A tab whose clock stands still."""
    opened = tabs.open(refreshes=True)
    stop_clock(opened, datetime.now(UTC))
    return opened


def stop_clock(tab: Any, at: datetime) -> None:
    """Let the clock of a tab stand still ``at`` some time: only ``clock.run_for`` moves it."""
    tab.clock.install(time=at - timedelta(hours=1))
    tab.clock.pause_at(at)


def describe(db: Any, text: str) -> None:
    db.execute(
        "update yamlsched.job_definitions set description = %s where job_type = 'refresh_cache'",
        [text],
    )


def refreshes(tabs: Any) -> list[Any]:
    """Return the requests of the script."""
    return [request for request in tabs.requests if "yamlsched-fragment" in request.headers]


def refresh(tab: Any) -> Any:
    """Let a period pass; return the answer. Until its time is shown, the script has not set the timer of the next."""
    from playwright.sync_api import expect

    label = tab.locator("#refresh")
    shown = label.text_content()
    with tab.expect_response(
        lambda response: "yamlsched-fragment" in response.request.headers
    ) as answer:
        tab.clock.run_for(PERIOD_MS)
    expect(label).not_to_have_text(shown, timeout=60_000)
    return answer.value


def wait_for_text(tab: Any, text: str) -> None:
    tab.get_by_text(text).first.wait_for()


def stays_silent(tab: Any, tabs: Any) -> bool:
    """Return whether three periods pass without a request."""
    before = len(refreshes(tabs))
    tab.clock.run_for(3 * PERIOD_MS)
    # whatever was asked has been sent
    tab.evaluate("() => fetch('/why').then((answer) => answer.text())")
    return len(refreshes(tabs)) == before


def test_what_changed_is_shown_after_a_period_without_a_reload(
    tab: Any, shop: tuple[Any, str]
) -> None:
    db, site = shop
    describe(db, "as it was")
    tab.goto(site + JOB)
    tab.evaluate("() => { window.isTheSameDocument = true; }")
    describe(db, "as it became")
    assert refresh(tab).status == 200
    wait_for_text(tab, "as it became")
    assert tab.evaluate("() => window.isTheSameDocument")


def test_a_page_that_did_not_change_is_not_sent_again(tab: Any, shop: tuple[Any, str]) -> None:
    tab.goto(shop[1] + STILL)
    first = refresh(tab)
    again = refresh(tab)
    assert (first.status, again.status) == (200, 304)
    assert again.request.headers["if-none-match"] == first.headers["etag"]


def test_nothing_is_asked_for_in_a_hidden_tab_and_at_once_when_it_is_shown(
    tab: Any, tabs: Any, shop: tuple[Any, str]
) -> None:
    tab.goto(shop[1] + STILL)
    hide = "(is) => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => is}); %s }"
    hide %= "document.dispatchEvent(new Event('visibilitychange'));"
    tab.evaluate(hide, True)
    assert stays_silent(tab, tabs)

    with tab.expect_response(lambda response: "yamlsched-fragment" in response.request.headers):
        tab.evaluate(hide, False)
        tab.clock.run_for(1)


def test_nothing_changes_while_a_dialog_is_open(tab: Any, tabs: Any, shop: tuple[Any, str]) -> None:
    tab.goto(shop[1] + STILL)
    tab.evaluate(
        "() => { const dialog = document.createElement('dialog'); document.body.append(dialog); dialog.showModal(); }"
    )
    assert stays_silent(tab, tabs)
    tab.keyboard.press("Escape")
    assert refresh(tab).status == 200


def test_nothing_changes_while_somebody_types_or_selects(
    tab: Any, tabs: Any, shop: tuple[Any, str]
) -> None:
    db, site = shop
    tab.goto(site + LIST)
    tab.evaluate(
        "() => document.querySelector('main').insertAdjacentHTML('beforeend', '<input id=q>')"
    )
    tab.locator("#q").fill("nightly")
    assert stays_silent(tab, tabs)
    assert tab.locator("#q").input_value() == "nightly"

    tab.locator("#q").blur()
    tab.evaluate(
        "() => document.getSelection().selectAllChildren(document.querySelector('#facts'))"
    )
    assert stays_silent(tab, tabs)

    tab.evaluate("() => document.getSelection().removeAllRanges()")
    describe(db, "after the typing")
    refresh(tab)
    wait_for_text(tab, "after the typing")
    assert tab.locator("#q").input_value() == "nightly"


def test_what_is_open_scrolled_and_focused_stays_so(tab: Any, shop: tuple[Any, str]) -> None:
    db, site = shop
    describe(db, "before")
    tab.set_viewport_size({"width": 700, "height": 500})
    tab.goto(site + JOB)
    tab.locator("details.twin summary").click()
    tab.locator("#timeline .scroll").first.evaluate("(box) => { box.scrollLeft = -60; }")
    link = tab.locator("details.twin tbody a").nth(5)
    link.focus()
    tab.evaluate("() => scrollBy(0, 40)")
    before = tab.evaluate("() => [scrollY, document.querySelector('#timeline .scroll').scrollLeft]")
    assert before[0] > 100
    assert before[1] == -60
    href = link.get_attribute("href")

    describe(db, "afterwards")
    db.execute(
        "update yamlsched.job_runs set attempts = 2 where id = (select max(id) from yamlsched.job_runs where "
        "job_type = 'refresh_cache' and status = 'succeeded')"
    )  # the part with the chart changes, too
    refresh(tab)
    wait_for_text(tab, "afterwards")
    assert tab.locator("details.twin").evaluate("(details) => details.open")
    assert tab.evaluate("() => document.activeElement.getAttribute('href')") == href
    assert (
        tab.evaluate("() => [scrollY, document.querySelector('#timeline .scroll').scrollLeft]")
        == before
    )


def test_the_stack_that_somebody_reads_stays_open_and_scrolled_when_another_attempt_fails(
    tab: Any, shop: tuple[Any, str]
) -> None:
    db, site = shop
    [run] = db.execute("select max(id) from yamlsched.job_runs where status = 'dead'").fetchone()
    db.execute("delete from yamlsched.job_failures where run_id = %s", [run])
    db.execute("delete from yamlsched.attempt_outputs where run_id = %s", [run])
    db.execute("update yamlsched.job_runs set attempts = 2, max_attempts = 9 where id = %s", [run])
    fail = (
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, stack)"
        " values (%s, %s, 'h:1:1', now(), 'boom', repeat(E'line of a stack\n', 200))"
    )
    for attempt in (1, 2):
        db.execute(fail, [run, attempt])
    tab.goto(f"{site}/runs/{run}")
    opened = "() => [...document.querySelectorAll('#attempts details[open]')].map((one) => one.id)"
    assert tab.evaluate(opened) == ["a2-stack"]
    for summary in tab.locator("#attempts summary").all():
        summary.click()
    tab.evaluate("() => { document.getElementById('a1-stack-text').scrollTop = 300; }")
    tab.locator("#a1-stack-text").focus()

    db.execute(fail, [run, 3])
    db.execute("update yamlsched.job_runs set attempts = 3 where id = %s", [run])
    refresh(tab)
    tab.locator("#a3-stack").wait_for()
    assert tab.evaluate(opened) == ["a1-stack"]
    assert tab.evaluate("() => document.getElementById('a1-stack-text').scrollTop") == 300
    assert tab.evaluate("() => document.activeElement.id") == "a1-stack-text"


def test_a_login_of_the_proxy_that_has_ended_is_not_called_a_silent_server(
    tab: Any, tabs: Any, shop: tuple[Any, str]
) -> None:
    tab.goto(shop[1] + STILL)
    tab.route(
        "**/why**",
        lambda route: route.fulfill(status=302, headers={"Location": "http://127.0.0.1:9/login"}),
    )
    tab.clock.run_for(PERIOD_MS)
    wait_for_text(tab, "signed out")
    assert "does not answer" not in tab.inner_text("#refresh")
    assert tab.get_by_role("link", name="reload the page").get_attribute("href") == tab.url
    tab.unroute("**/why**")
    tab.clock.run_for(PERIOD_MS)  # after a failure it waits twice as long
    refresh(tab)
    tab.locator("#refresh:not(.bad)").wait_for()
    assert tab.get_by_role("link", name="reload the page").count() == 0


def test_a_password_that_was_replaced_opens_no_dialog_in_a_tab_that_is_open(
    tabs: Any, site: Any, shop: tuple[Any, str], tmp_path: Path
) -> None:
    # given a tab of a page whose users are in a file
    users = tmp_path / "users"
    users.write_text("mia:grün: ja\n")
    words = ("--namespace", demo_data.NAMESPACE, "--auth", "basic", "--users-file", str(users))
    address = site(shop[0].info.dsn, *words)
    credentials = {"username": "mia", "password": "grün: ja"}
    tab = tabs.open(refreshes=True, http_credentials=credentials)
    stop_clock(tab, datetime.now(UTC))
    tab.goto(address + STILL)
    tabs.allowed += ["401"]

    # when the password is replaced, and a box has words in it
    users.write_text("mia:rot\n")
    os.utime(users, ns=(1, 1))
    tab.locator("#find").fill("night")
    tab.clock.run_for(PERIOD_MS)

    # then the tab says so, and nothing that was written is lost
    wait_for_text(tab, "signed out")
    assert tab.get_by_role("link", name="reload the page").is_visible()
    assert tab.locator("#find").input_value() == "night"


def test_a_focus_on_what_has_no_link_stays_too(tab: Any, shop: tuple[Any, str]) -> None:
    db, site = shop
    tab.goto(site + JOB)
    tab.locator("details.twin summary").focus()
    db.execute(
        "update yamlsched.job_runs set attempts = 3 where id = (select max(id) from yamlsched.job_runs where "
        "job_type = 'refresh_cache' and status = 'succeeded')"
    )
    describe(db, "once more")
    refresh(tab)
    wait_for_text(tab, "once more")
    assert tab.evaluate("() => document.activeElement.localName") == "summary"


def test_a_reader_can_pause_and_resume_by_keyboard(
    tab: Any, tabs: Any, shop: tuple[Any, str]
) -> None:
    tab.goto(shop[1] + STILL)
    tab.get_by_role("button", name="Pause").focus()
    tab.keyboard.press("Enter")
    assert "paused at" in tab.inner_text("#refresh")
    assert stays_silent(tab, tabs)

    with tab.expect_response(lambda response: "yamlsched-fragment" in response.request.headers):
        tab.keyboard.press("Space")
        tab.clock.run_for(1)
    wait_for_text(tab, "updated")


def test_the_time_of_the_last_update_is_in_the_time_zone_of_the_page(
    tabs: Any, shop: tuple[Any, str]
) -> None:
    for clock, shown in (("Asia/Kolkata", "08:30:00"), ("America/St_Johns", "23:30:00")):
        tab = tabs.open(refreshes=True, timezone_id="Asia/Tokyo")
        stop_clock(tab, datetime(2026, 1, 14, 3, tzinfo=UTC))
        tab.goto(f"{shop[1]}{STILL}&clock={clock}")
        assert shown in tab.inner_text("#refresh")


def test_a_server_that_does_not_answer_is_reported_and_asked_less_often(
    tab: Any, tabs: Any, shop: tuple[Any, str]
) -> None:
    tabs.allowed += ["ERR_FAILED", "failed: .*nightly_backup"]
    tab.goto(shop[1] + STILL)
    tab.route("**/why**", lambda route: route.abort())
    tab.clock.run_for(PERIOD_MS)
    wait_for_text(tab, "not updated since")
    assert "the server does not answer" in tab.inner_text("#refresh")
    assert "nightly_backup" in tab.inner_text("main")

    asked = len(refreshes(tabs))
    tab.clock.run_for(PERIOD_MS)
    assert len(refreshes(tabs)) == asked

    tab.unroute("**/why**")
    refresh(tab)
    tab.locator("#refresh:not(.bad)").wait_for()


def test_a_page_that_was_opened_while_the_database_is_down_tries_again_until_it_is_back(
    tab: Any, tabs: Any, shop: tuple[Any, str]
) -> None:
    db, site = shop
    tabs.allowed += ["503"]
    db.execute("alter schema yamlsched rename to gone")
    try:
        tab.goto(site + STILL)
        assert "503" in tab.inner_text("main")
        assert tab.locator("nav[aria-label=Pages] a").count() > 5
        assert tab.locator("#find").is_visible()
        assert barriers(tabs.open(site + STILL, bypass_csp=True)) == ""
        tab.clock.run_for(1000)
        assert refresh(tab).status == 503
        assert "tried at" in tab.inner_text("#refresh")
    finally:
        db.execute("alter schema gone rename to yamlsched")
    tab.clock.run_for(PERIOD_MS)
    wait_for_text(tab, "nightly_backup")
    assert tab.locator("#unavailable").count() == 0


def test_an_error_of_the_server_is_named_and_what_was_shown_stays(
    tab: Any, tabs: Any, shop: tuple[Any, str]
) -> None:
    db, site = shop
    tabs.allowed += ["504", "statement timeout|lock"]
    tab.goto(site + LIST)
    with psycopg.connect(db.info.dsn, password=db.info.password) as other:
        other.execute("lock table yamlsched.job_definitions")
        assert refresh(tab).status == 504
        tab.locator("#refresh.bad").wait_for()
        other.rollback()
    assert "The database needed longer" in tab.inner_text("#refresh")
    assert "nightly_backup" in tab.inner_text("main")
