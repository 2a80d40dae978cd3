"""Every action, from where somebody finds it to the audit trail: with a mouse, and on a phone without JavaScript by
keyboard alone.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import psycopg
import pytest

from support.database import temporary_database
from support.page_checks import PHONE, barriers, small_targets, too_wide
from support.rows import a_job, a_run, row
from support.web_server import serving
from yamlsched.act import pause as pausing
from yamlsched.db.connection import connect_for_handler
from yamlsched.extras.web.actions import ACTIONS

pytestmark = pytest.mark.browser

Db = psycopg.Connection[Any]
USER = {"username": "maria", "password": "secret"}
MAX_TABS = 300


class Mouse:
    """A reader at a desk, with eyes that axe checks."""

    options: ClassVar[dict[str, Any]] = {
        "bypass_csp": True
    }  # for axe; the other reader does not bypass it

    def __init__(self, tab: Any) -> None:
        self.tab = tab

    def follow(self, target: Any) -> None:
        target.click()

    def field(self, label: str) -> Any:
        return self.tab.get_by_label(re.compile(f"^{label}( optional)?$"))

    def write(self, label: str, text: str) -> None:
        self.field(label).fill(text)

    def choose(self, label: str, option: str) -> None:
        self.field(label).select_option(label=option)

    def tick(self, label: str) -> None:
        self.tab.get_by_label(label).check()

    def look(self) -> None:
        assert barriers(self.tab) == ""
        desk = self.tab.viewport_size
        self.tab.set_viewport_size(PHONE["viewport"])
        assert too_wide(self.tab) == []
        assert small_targets(self.tab) == []
        self.tab.set_viewport_size(desk)


class Keyboard(Mouse):
    """A reader with a phone, a keyboard, and no JavaScript."""

    options: ClassVar = {**PHONE, "java_script_enabled": False, "color_scheme": "dark"}

    def reach(self, target: Any) -> None:
        for _ in range(MAX_TABS):
            if target.evaluate("(element) => element === document.activeElement"):
                return
            self.tab.keyboard.press("Tab")
        raise AssertionError(f"{target} is not reached by the tab key")

    def follow(self, target: Any) -> None:
        self.reach(target)
        with self.tab.expect_navigation():
            self.tab.keyboard.press("Enter")

    def write(self, label: str, text: str) -> None:
        self.reach(self.field(label))
        self.tab.keyboard.press("ControlOrMeta+a")
        self.tab.keyboard.insert_text(text)

    def choose(self, label: str, option: str) -> None:
        self.reach(self.field(label))
        self.tab.keyboard.type(option)

    def tick(self, label: str) -> None:
        # of radio buttons, the tab key reaches one, and the arrows the others
        for _ in range(MAX_TABS):
            self.tab.keyboard.press("Tab")
            if self.tab.evaluate(
                "() => ['radio', 'checkbox'].includes(document.activeElement.type)"
            ):
                break
        self.tab.keyboard.press("Space")
        while not self.tab.get_by_label(label).is_checked():
            self.tab.keyboard.press("ArrowDown")

    def look(self) -> None:
        pass


@pytest.fixture(scope="module")
def shop(chromium: Any, server: str, template: str) -> Iterator[tuple[Db, str]]:
    """A database, and the address of a page that may change it."""
    with temporary_database(server, template) as dsn, connect_for_handler(dsn) as db:
        words = (
            "--namespace",
            "default",
            "--listen",
            "127.0.0.1:0",
            "--actions-dsn",
            dsn,
            "--auth",
            "basic",
        )
        with serving(dsn, *words, YAMLSCHED_WEB_USERS=":".join(USER.values())) as (_, address):
            yield db, address.rstrip("/")


@pytest.fixture
def hand(request: pytest.FixtureRequest, tabs: Any) -> Any:
    tabs.allowed += ["422"]  # forms with mistakes
    return request.param(tabs.open(http_credentials=USER, **request.param.options))


def an_effect_in_doubt(db: Db, run: int) -> None:
    keys = [f"run:{run}:mail", run, f"web-1:1:{uuid.uuid4().hex[:12]}", uuid.uuid4(), uuid.uuid4()]
    db.execute(
        "insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, entry, provider_key, state,"
        " claimed_at, doubted_at) values ('default', %s, %s, 5, %s, %s, %s, 'in_doubt', now(), now())",
        keys,
    )


def link(hand: Any, name: str) -> Any:
    return hand.tab.get_by_role("link", name=name, exact=True)


def ask(hand: Any, site: str, path: str, name: str) -> None:
    """Go to a page, and from there to an action."""
    hand.tab.goto(site + path)
    hand.follow(link(hand, name).first)
    hand.look()


def show(hand: Any) -> None:
    """Send the form."""
    hand.follow(hand.tab.get_by_role("button", name="Show what will happen"))
    hand.tab.get_by_role("heading", name="What will happen").wait_for()


def retry(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    run = a_run(db, definition, "dead")
    ask(hand, site, f"/runs/{run}", "Retry …")
    return lambda: row(db, run).status == "queued"


def cancel(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    run = a_run(db, definition, "queued")
    ask(hand, site, f"/runs/{run}", "Cancel …")
    hand.write("Why", "a mistake")
    return lambda: row(db, run).status == "cancelled"


def retry_dead(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    runs = [a_run(db, definition, "dead") for _ in range(3)]
    ask(hand, site, "/dead", "Retry …")
    assert "3 dead runs" in hand.tab.inner_text("main")
    return lambda: {row(db, run).status for run in runs} == {"queued"}


def cancel_runs(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    runs = [a_run(db, definition, "queued") for _ in range(3)]
    ask(hand, site, f"/runs?job={job}", "Cancel runs …")
    hand.choose("Which runs", "all unfinished")
    show(hand)
    return lambda: {row(db, run).status for run in runs} == {"cancelled"}


def pause(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    ask(hand, site, "/actions", "Pause a job")
    hand.write("Job", job)
    hand.write("Why", "the provider is down")
    hand.write("or Until in words", "25:00")
    hand.follow(hand.tab.get_by_role("button", name="Show what will happen"))
    # the form says what is wrong, and keeps what was written
    hand.tab.locator(".wrong .error").wait_for()
    hand.look()
    assert hand.field("Why").input_value() == "the provider is down"
    hand.write("or Until in words", "2h")
    show(hand)
    return lambda: bool(pauses(db, job))


def resume(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    pausing.pause(db, "default", [definition], "jonas", reason="by hand")
    ask(hand, site, "/actions", "Resume")
    return lambda: not pauses(db, job)


def pause_tag(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    db.execute("update yamlsched.job_definitions set tags = %s where id = %s", [[job], definition])
    a_job(db, f"{job}_b", tags=[job])
    ask(hand, site, "/actions", "Pause by tag")
    hand.write("Tag", job)
    hand.write("Why", "the provider is down")
    show(hand)
    assert f"{job}_b" in hand.tab.inner_text("main")
    return lambda: bool(pauses(db, job)) and bool(pauses(db, f"{job}_b"))


def resume_tag(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    other = a_job(db, f"{job}_b", tags=[job])
    db.execute("update yamlsched.job_definitions set tags = %s where id = %s", [[job], definition])
    pausing.pause(db, "default", [definition, other], "jonas", reason="by hand")
    ask(hand, site, "/actions", "Resume by tag")
    hand.write("Tag", job)
    show(hand)
    return lambda: not pauses(db, job) and not pauses(db, f"{job}_b")


def settle(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    run = a_run(db, definition, "dead")
    an_effect_in_doubt(db, run)
    ask(hand, site, f"/runs/{run}", "Settle …")
    hand.tick("It happened")
    show(hand)
    states = "select state from yamlsched.effects where run_id = %s"
    return lambda: db.execute(states, [run]).fetchall() == [("done",)]


def enqueue(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    ask(hand, site, f"/runs?job={job}", "Enqueue …")
    hand.write("Payload", '{"days": ')
    hand.follow(hand.tab.get_by_role("button", name="Show what will happen"))
    hand.tab.locator(".wrong .error").wait_for()
    hand.write("Payload", '{"days": 3}')
    show(hand)
    created = "select payload from yamlsched.job_runs where definition_id = %s"
    return lambda: db.execute(created, [definition]).fetchall() == [({"days": 3},)]


def backfill(hand: Any, db: Db, site: str, job: str, definition: int) -> Callable[[], bool]:
    ask(hand, site, "/actions", "Backfill slots")
    hand.write("Job", job)
    hand.write("or From in words", "yesterday")
    hand.tick("Also slots from before the job was first applied")
    show(hand)
    assert hand.tab.get_by_role("button", name="Create 1 run").is_visible()
    created = "select count(*) from yamlsched.job_runs where definition_id = %s"
    return lambda: db.execute(created, [definition]).fetchall() == [(1,)]


def pauses(db: Db, job: str) -> list[Any]:
    paused = "select 1 from yamlsched.job_definitions where job_type = %s and paused_at is not null"
    return db.execute(paused, [job]).fetchall()


STORIES: dict[str, Callable[..., Callable[[], bool]]] = {
    "retry": retry,
    "cancel": cancel,
    "retry-dead": retry_dead,
    "cancel-runs": cancel_runs,
    "pause": pause,
    "resume": resume,
    "pause-tag": pause_tag,
    "resume-tag": resume_tag,
    "settle": settle,
    "enqueue": enqueue,
    "backfill": backfill,
}


def test_every_action_has_a_story() -> None:
    assert set(STORIES) == set(ACTIONS)


BY_KEYBOARD = ("pause", "cancel-runs", "settle", "retry")
"""One for each kind of field: texts and mistakes, a choice, radio buttons, and none."""


@pytest.mark.parametrize(
    "hand, name",
    [(Mouse, name) for name in STORIES] + [(Keyboard, name) for name in BY_KEYBOARD],
    indirect=["hand"],
)
def test_an_action_says_what_it_will_do_does_it_and_is_recorded(
    hand: Any, shop: tuple[Db, str], name: str
) -> None:
    db, site = shop
    job = f"job_{uuid.uuid4().hex[:8]}"
    definition = a_job(db, job)

    is_done = STORIES[name](hand, db, site, job, definition)
    hand.look()
    assert hand.tab.locator(".outlook li").count() > 0
    assert not is_done()
    hand.follow(hand.tab.locator("button[name=confirm]"))

    hand.tab.locator(".result").wait_for()
    assert is_done()
    hand.look()
    verb, who = db.execute(
        "select verb, who from yamlsched.operator_actions order by id desc limit 1"
    ).fetchall()[0]
    assert who == "maria"
    assert verb == name.partition("-")[0]
    hand.tab.goto(site + "/actions")
    assert job in hand.tab.inner_text("#trail") or str(definition) in hand.tab.inner_text("#trail")
    db.execute(
        "delete from yamlsched.job_runs where definition_id = %s and status = 'dead'", [definition]
    )


def test_a_finger_ticks_a_run_beside_its_box(tabs: Any, shop: tuple[Db, str]) -> None:
    db, site = shop
    a_run(db, a_job(db, "ticked"), "dead")
    tab = tabs.open(f"{site}/runs?job=ticked", http_credentials=USER, **PHONE)
    assert small_targets(tab) == []
    box = tab.get_by_label("Choose run")
    tab.locator(".runs label:has(input[type=checkbox]) .state").tap()
    assert box.is_checked()


def test_a_reader_who_was_slower_is_told_who_did_what(tabs: Any, shop: tuple[Db, str]) -> None:
    db, site = shop
    run = a_run(db, a_job(db, "contested"), "dead")
    tabs.allowed += ["409"]
    first, second = (
        tabs.open(f"{site}/actions/retry?run={run}", http_credentials=USER) for _ in range(2)
    )
    for tab in (first, second):
        tab.get_by_role("heading", name="What will happen").wait_for()
    first.locator("button[name=confirm]").click()
    first.locator(".result").wait_for()
    second.locator("button[name=confirm]").click()
    second.get_by_role("alert").wait_for()
    assert "Nothing was done" in second.inner_text("main")
    second.get_by_role("link", name="Look at it again").click()
    second.locator("h1").wait_for()
    assert row(db, run).status == "queued"


def test_a_button_that_is_clicked_twice_is_carried_out_once(
    tabs: Any, shop: tuple[Db, str]
) -> None:
    db, site = shop
    definition = a_job(db, "twice")
    tab = tabs.open(f"{site}/actions/enqueue?job=twice", http_credentials=USER)
    tab.get_by_role("button", name="Show what will happen").click()
    tab.locator("button[name=confirm]").dblclick()
    tab.locator(".result").wait_for()
    created = "select count(*) from yamlsched.job_runs where definition_id = %s"
    assert db.execute(created, [definition]).fetchall() == [(1,)]


def go_back(tab: Any) -> None:
    """Go back to the answer to a form. The browser has not kept it, and shows an error until it is reloaded."""
    from playwright.sync_api import Error

    before = tab.url
    with contextlib.suppress(Error):
        tab.go_back()
    deadline = time.monotonic() + 60
    while tab.url == before:
        assert time.monotonic() < deadline, tab.url
        tab.wait_for_timeout(50)  # lets the tab report where it is


def test_going_back_to_what_was_confirmed_offers_no_second_time(
    tabs: Any, shop: tuple[Db, str]
) -> None:
    # given a run that was enqueued
    db, site = shop
    definition = a_job(db, "back")
    tabs.allowed += [
        "ERR_CACHE_MISS"
    ]  # the page of the browser that asks whether to send the form again
    tab = tabs.open(f"{site}/actions/enqueue?job=back", http_credentials=USER)
    tab.get_by_role("button", name="Show what will happen").click()
    tab.locator("button[name=confirm]").click()
    tab.locator(".result").wait_for()

    # when the browser goes back, and sends the form for what will happen again
    go_back(tab)
    tab.reload()

    # then it says what was done, and leads to the run
    tab.get_by_text("Done already, and not repeated").wait_for()
    assert tab.locator("button[name=confirm]").count() == 0
    tab.get_by_role("link", name="Show what it did").click()
    tab.wait_for_url("**/runs/*")
    created = "select count(*) from yamlsched.job_runs where definition_id = %s"
    assert db.execute(created, [definition]).fetchall() == [(1,)]
