"""The page in surroundings of all kinds: empty, huge and hostile databases, proxies, passwords, other sites."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from docs import demo_data
from support.page_checks import PHONE, barriers, too_wide
from support.rows import a_job, a_place, a_run
from yamlsched.act import pause as pausing
from yamlsched.extras.web.pages import NAVIGATION, PAGES

pytestmark = pytest.mark.browser

PLAIN = [
    page.path
    for page in PAGES
    if "{" not in page.path and page.path not in ("/namespaces", "/find")
]
HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>\"'&\x1b[31mred\u202egnp.exe\u200b🎉"
    + "w" * 120
)
Site = Callable[..., str]
UNREADABLE = """() => {
  const narrow = [...document.querySelectorAll('.list tbody th:has(.name)')].filter((th) => {
    const ruler = document.createElement('div');
    ruler.style.width = '18ch';
    th.append(ruler);
    const [least, width] = [ruler.offsetWidth, th.clientWidth];
    ruler.remove();
    return th.checkVisibility() && width < least;
  });
  const sideways = document.documentElement.scrollWidth - innerWidth;
  const covered = [...document.querySelectorAll('.list td')].filter((td) =>
    td.checkVisibility() && td.scrollWidth > td.clientWidth + 1);
  const outside = [...document.querySelectorAll('.card .button')].filter((button) =>
    button.getBoundingClientRect().right > button.closest('.card').getBoundingClientRect().right);
  return [sideways > 0 ? `scrolls sideways by ${sideways}` : '',
    narrow.length ? `${narrow.length} names in ${narrow[0].clientWidth} px` : '',
    covered.length ? `${covered.length} cells are wider than their columns: ${covered[0].textContent.trim()}` : '',
    outside.length ? `${outside[0].textContent} is outside of its card` : ''].filter(Boolean).join(', ');
}"""
"""What a reader of this width would find wrong; "" if nothing is."""


def test_an_empty_namespace_says_on_each_page_how_to_start(
    tabs: Any, site: Site, own_dsn: str
) -> None:
    address = site(own_dsn, "--namespace", "default")
    tab = tabs.open(bypass_csp=True)
    for path in PLAIN:
        tab.goto(address + path)
        assert tab.locator("h1").count() == 1
        assert barriers(tab) == ""


def test_a_namespace_with_a_long_name_leaves_the_navigation_in_one_line(
    tabs: Any, site: Site, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    namespace = "n" * 40
    for name in (namespace, "other"):
        a_job(db_of(own_dsn), namespace=name, timezone="America/Argentina/Buenos_Aires")
    path = f"/@{namespace}/jobs/purge"
    tab = tabs.open(site(own_dsn) + path, viewport={"width": 1280, "height": 800})
    assert "Buenos_Aires" in tab.inner_text(".clock summary")
    assert tab.locator(".top").bounding_box()["height"] < 60


def test_a_reader_chooses_one_of_several_namespaces(
    tabs: Any, site: Site, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    db = db_of(own_dsn)
    for namespace in ("billing", "shop"):
        a_job(db, f"{namespace}_job", namespace=namespace)
    tab = tabs.open(site(own_dsn), **PHONE, bypass_csp=True)
    assert (too_wide(tab), barriers(tab)) == ([], "")
    tab.get_by_role("main").get_by_role("link", name="shop", exact=True).click()
    tab.get_by_role("link", name="shop_job").wait_for()
    assert "/@shop/" in tab.url
    assert (too_wide(tab), barriers(tab)) == ([], "")
    tab.get_by_role("link", name="shop_job").click()
    tab.wait_for_url("**/@shop/jobs/shop_job")


def test_a_healthy_demonstration_with_hundreds_of_jobs_is_turned_page_by_page(
    tabs: Any, site: Site, own_dsn: str
) -> None:
    demo_data.fill(own_dsn, is_healthy=True, more_jobs=300)
    address = site(own_dsn, "--namespace", "shop")
    tab = tabs.open(address, **PHONE)
    tab.get_by_text("Everything is healthy").wait_for()
    assert too_wide(tab) == []
    tab.get_by_role("link", name="more are healthy").click()
    tab.get_by_role("link", name="Next", exact=True).click()
    tab.get_by_text(re.compile(r"page 2 of \d")).wait_for()
    tab.locator("#find").fill("tenant_0299")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**q=tenant_0299**")
    assert tab.locator("a.name").first.inner_text() == "tenant_0299_statement"
    for path in PLAIN:
        tab.goto(address + path)
        assert too_wide(tab) == []


def test_hostile_text_is_shown_does_nothing_and_fits_a_phone(
    tabs: Any, site: Site, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    db = db_of(own_dsn)
    a_place(db, host=HOSTILE, path=HOSTILE)
    words = {"description": HOSTILE, "owner": HOSTILE, "tags": [HOSTILE], "handler": HOSTILE}
    job = a_job(db, HOSTILE, schedule="0 * * * *", **words)
    at = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    key = f"{HOSTILE}:{at:%Y-%m-%dT%H:%MZ}"
    error = {"last_error": HOSTILE * 200, "error_type": HOSTILE}
    run = a_run(db, job, "dead", idempotency_key=key, scheduled_for=at, **error)
    db.execute(
        "insert into yamlsched.attempt_outputs (run_id, attempt, worker, ended_at, omitted_bytes, output)"
        " values (%s, 5, %s, now(), 0, %s)",
        [run, HOSTILE, HOSTILE * 300],
    )
    pausing.pause(db, "default", [a_job(db, "paused")], HOSTILE, reason=HOSTILE)
    address = site(own_dsn, "--namespace", "default")
    name = quote(HOSTILE, safe="")
    places = [
        *PLAIN,
        f"/jobs/{name}",
        f"/why?job={name}&at={at:%Y-%m-%dT%H:%MZ}",
        f"/runs/{run}",
        f"/runs?job={name}",
    ]
    tab = tabs.open(**PHONE)
    wide = {}
    for path in places:
        tab.goto(address + path)
        assert tab.locator("main script, main img").count() == 0
        wide[path.partition("%")[0]] = too_wide(tab)
    assert {path: found for path, found in wide.items() if found} == {}
    tab.goto(f"{address}/runs/{run}")
    assert r"\x1b[31mred\u202egnp.exe\u200b🎉" in tab.inner_text("main")


def test_links_forms_and_the_script_stay_below_the_base_path(
    tabs: Any, site: Site, own_dsn: str
) -> None:
    demo_data.fill(own_dsn)
    address = site(own_dsn, "--namespace", "shop", "--base-path", "/scheduler")
    tab = tabs.open(address)
    pages = tab.get_by_role("navigation", name="Pages", exact=True)
    for group, titles in NAVIGATION.items():
        for path, title in titles.items():
            if len(titles) > 1:
                pages.get_by_text(group, exact=True).first.click()
            pages.get_by_role("link", name=title, exact=True).click()
            tab.wait_for_load_state()
            assert tab.url == address + path
    tab.goto(f"{address}/")
    tab.locator("#find").press_sequentially("backup")
    tab.wait_for_selector("#found option[value=nightly_backup]", state="attached")
    tab.locator("#find").press("Enter")
    tab.get_by_role("link", name="nightly_backup").first.click()
    tab.wait_for_url(f"{address}/jobs/nightly_backup")
    assert all("/scheduler" in request.url for request in tabs.requests)


def test_every_page_can_be_read_at_every_width(
    tabs: Any, site: Site, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    demo_data.fill(own_dsn)
    db = db_of(own_dsn)
    ids = [
        id for (id,) in db.execute("select id from yamlsched.job_definitions order by id limit 3")
    ]
    pausing.pause(db, "shop", ids, "maria", reason="the disk of the backup host is being replaced")
    [dead] = db.execute("select max(id) from yamlsched.job_runs where status = 'dead'").fetchone()
    address = site(own_dsn, "--namespace", "shop", "--actions-dsn", own_dsn)
    places = [
        *PLAIN,
        "/jobs/nightly_backup",
        "/why?job=nightly_backup",
        "/runs?status=dead",
        f"/runs/{dead}",
    ]
    tab = tabs.open()
    wrong = []
    for path in places:
        tab.goto(address + path)
        tab.evaluate(
            "() => document.querySelectorAll('details').forEach((details) => { details.open = true; })"
        )
        for width in (320, 400, 560, 720, 721, 900, 901, 1140, 1141, 1600):
            tab.set_viewport_size({"width": width, "height": 900})
            if found := tab.evaluate(UNREADABLE):
                wrong.append((path, width, found))
    assert wrong == []


def test_a_page_of_an_error_has_no_barrier_and_leads_on(tabs: Any, demo_site: str) -> None:
    tabs.allowed += ["40[034]"]
    tab = tabs.open(bypass_csp=True, color_scheme="dark")
    # one for each status: no page, no such job in a form, and no actions here
    for path in ("/nothing", "/why?job=x", "/actions/x"):
        tab.goto(demo_site + path)
        assert barriers(tab) == ""
        tab.keyboard.press("Tab")
        tab.keyboard.press("Enter")
        tab.get_by_role("link", name="yamlsched").click()
        tab.wait_for_url(f"{demo_site}/")


def test_another_site_can_neither_frame_the_page_nor_send_its_forms(
    tabs: Any, site: Site, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    db = db_of(own_dsn)
    run = a_run(db, a_job(db), "dead")
    address = site(own_dsn, "--namespace", "default", "--actions-dsn", own_dsn)
    tabs.allowed += [
        "foreign: http://other.example",
        "403",
        "frame-ancestors",
        "ERR_BLOCKED",
        "favicon",
    ]
    forged = f"""<iframe src="{address}/"></iframe><form method="post" action="{address}/actions/retry">
        <input name="run" value="{run}"><input name="confirm" value="1"><button>Win a prize</button></form>"""
    tab = tabs.open()
    tab.route(
        "http://other.example/**",
        lambda route: route.fulfill(content_type="text/html", body=forged),
    )
    tab.goto("http://other.example/")
    assert [frame.url for frame in tab.frames if frame.url.startswith(address)] == []

    tab.get_by_role("button").click()
    tab.get_by_text("does not come from a page of yamlsched").wait_for()
    assert db.execute("select status from yamlsched.job_runs").fetchall() == [("dead",)]


def test_a_reader_who_is_asked_for_a_password_is_named(tabs: Any, site: Site, own_dsn: str) -> None:
    address = site(
        own_dsn, "--namespace", "default", "--auth", "basic", YAMLSCHED_WEB_USERS="maria:secret"
    )
    right = tabs.open(address, http_credentials={"username": "maria", "password": "secret"})
    assert right.inner_text(".user") == "maria"
