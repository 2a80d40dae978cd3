"""Every page, as people with different eyes, hands and devices see it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.routing import compile_path

from support.page_checks import PHONE, barriers, small_targets, too_wide
from yamlsched.extras.web.pages import PAGES

pytestmark = pytest.mark.browser

PATTERNS = {page.path: compile_path(page.path)[0] for page in PAGES}
VARIANTS = (
    "/?state=failing",
    "/?q=nothing+like+this",
    "/jobs/refresh_cache?span=24h",
    "/jobs/send_welcome_mail",
    "/jobs/sync_old_crm",
    "/jobs/warm_edge_caches_of_all_storefronts_regions_and_currencies",
    "/why?job=rebuild_search_index&at=yesterday",
    "/why?job=nightly_backup",
    "/runs?status=dead",
    "/dead?span=all",
    "/dead?by=hour",
)
PLACES = [
    *PATTERNS,
    *(path for path in VARIANTS if any(p.match(urlsplit(path).path) for p in PATTERNS.values())),
]
TABBABLE = """() => [...document.querySelectorAll(
    'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]')]
  .filter((e) => e.checkVisibility({visibilityProperty: true}) && !e.disabled && e.tabIndex >= 0)"""
NAME_OF = """const nameOf = (e) => [e.localName, e.id && '#' + e.id, e.getAttribute('href'),
    (e.textContent || '').trim().slice(0, 40)].filter(Boolean).join(' ');"""
FOCUSED = """() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  const inside = Math.min(box.bottom, innerHeight) - Math.max(box.top, 0) > 0 && box.right > 0 && box.left < innerWidth;
  const hit = document.elementFromPoint(
    Math.min(Math.max(box.left + box.width / 2, 1), innerWidth - 2),
    Math.min(Math.max(box.top + box.height / 2, 1), innerHeight - 2));
  return {
    nth: window.tabbable.indexOf(e),
    name: nameOf(e),
    outlined: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1,
    inside,
    covered: !(e instanceof SVGElement || (hit && (e.contains(hit) || hit.contains(e)))),  // bars may touch
  };
}"""


@pytest.fixture(scope="module")
def address_of(demo_site: str, chromium: Any) -> Any:
    """A function that returns a URL of the page with this path: of a parametrized one, the first that is linked to."""
    links: list[str] = []
    with chromium.new_context() as context:
        tab = context.new_page()
        for path in [path for path in PATTERNS if "{" not in path] + [
            "/jobs/import_supplier_prices"
        ]:
            tab.goto(demo_site + path)
            links += tab.eval_on_selector_all(
                "a[href]", "all => all.map((link) => link.getAttribute('href'))"
            )

    def find(place: str) -> str:
        if place not in PATTERNS or "{" not in place:
            return demo_site + place
        found = next((link for link in links if PATTERNS[place].match(urlsplit(link).path)), None)
        assert found, f"no page has a link to {place}"
        return demo_site + found

    return find


def words(tab: Any) -> str:
    """Return what a page says, without what changes with time."""
    return " ".join(
        re.sub(r"<?(\d+ ?(ms|[smhd]) ?)+|\bjust now\b", "", tab.inner_text("main")).split()
    )


def brightness(tab: Any) -> float:
    """Return that of the background, from 0 to 255."""
    color = tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
    parts = [float(part) for part in re.findall(r"[0-9.]+", color)[:3]]
    return sum(parts) / 3


def everything_is_reached_by_the_tab_key_in_order_and_shows_the_focus(tab: Any) -> None:
    tab.evaluate(f"() => {{ {NAME_OF} window.nameOf = nameOf; window.tabbable = ({TABBABLE})(); }}")
    expected = tab.evaluate("() => window.tabbable.map(nameOf)")
    assert expected[0].startswith("a #main Skip")
    reached: list[dict[str, Any]] = []
    for _ in range(2 * len(expected) + 10):
        tab.keyboard.press("Tab")
        focused = tab.evaluate(FOCUSED)
        if focused is None:
            break
        # a date has several fields
        if not reached or focused["nth"] < 0 or focused["nth"] != reached[-1]["nth"]:
            reached.append(focused)
    assert [one["name"] for one in reached if one["nth"] >= 0] == expected
    assert [one["nth"] for one in reached if one["nth"] >= 0] == list(range(len(expected)))
    assert [
        one for one in reached if not one["outlined"] or not one["inside"] or one["covered"]
    ] == []


@pytest.mark.parametrize("place", PLACES)
def test_a_page_says_the_same_without_javascript_and_in_another_time_zone_and_is_used_by_keyboard(
    tabs: Any, address_of: Any, place: str
) -> None:
    url = address_of(place)
    plain = tabs.open(url, java_script_enabled=False, timezone_id="Asia/Kolkata")
    scripted = tabs.open(url, timezone_id="America/St_Johns")
    if words(plain) != words(scripted):  # a slot may have become due between the two
        plain.reload()
        scripted.reload()
    assert words(plain) == words(scripted)
    assert not plain.is_visible("#refresh")
    if place in PATTERNS:
        everything_is_reached_by_the_tab_key_in_order_and_shows_the_focus(scripted)


@pytest.mark.parametrize("place", PLACES)
def test_a_page_fits_a_phone(tabs: Any, address_of: Any, place: str) -> None:
    tab = tabs.open(address_of(place), **PHONE)
    for summary in tab.locator("summary").all():
        summary.click()
    assert too_wide(tab) == []
    assert small_targets(tab) == []


def test_a_phone_shows_which_of_the_pages_one_is_on(tabs: Any, demo_site: str) -> None:
    tab = tabs.open(f"{demo_site}/files", **PHONE)
    place = tab.locator(".top nav summary[aria-current]").bounding_box()
    assert place["x"] >= 0
    assert place["x"] + place["width"] <= PHONE["viewport"]["width"]
    assert tab.evaluate("scrollY") == 0


@pytest.mark.parametrize("place", PLACES)
def test_a_page_has_no_serious_barrier_in_light_and_dark(
    tabs: Any, address_of: Any, place: str
) -> None:
    tab = tabs.open(address_of(place), bypass_csp=True)
    assert tab.locator("h1").count() == 1
    assert tab.title()
    for summary in tab.locator("summary").all():
        summary.click()
    assert brightness(tab) > 200
    assert barriers(tab) == ""

    tab.emulate_media(color_scheme="dark")
    assert brightness(tab) < 60
    assert barriers(tab, only="color-contrast") == ""


TIMES = "all => [...new Set(all.map((time) => time.textContent.trim().split(' ').pop()))]"


def test_a_viewer_elsewhere_sees_all_pages_in_the_own_time_zone(tabs: Any, demo_site: str) -> None:
    tab = tabs.open(f"{demo_site}/jobs/nightly_backup", timezone_id="Asia/Tokyo")
    assert tab.eval_on_selector_all("main time", TIMES) == ["CET"]

    tab.click("summary:text('Europe/Berlin')")
    with tab.expect_navigation():
        tab.click("text=mine: Asia/Tokyo")
    assert tab.eval_on_selector_all("main time", TIMES) == ["JST"]
    assert "clock" not in tab.url
    for path in ("/", "/runs", "/dead", "/why", "/files", "/calendar", "/report", "/actions"):
        tab.goto(demo_site + path)
        assert not {"CET", "UTC"} & set(tab.eval_on_selector_all("main time", TIMES))
        assert not re.search(r"(?<!T)\d\d:\d\d(Z| CET| UTC)", tab.inner_text("main"))
    tab.goto(f"{demo_site}/files")
    assert re.search(r"since \w+ \d+ \w+ \d\d:\d\d JST", tab.inner_text("main"))


def test_a_time_zone_is_chosen_without_javascript(tabs: Any, demo_site: str) -> None:
    tab = tabs.open(f"{demo_site}/runs?status=dead", java_script_enabled=False)
    tab.click("summary:text('Europe/Berlin')")
    assert not tab.is_visible("#mine")
    with tab.expect_navigation():
        tab.click(".clock >> text=UTC")
    assert tab.eval_on_selector_all("main time", TIMES) == ["UTC"]
    tab.goto(f"{demo_site}/jobs/nightly_backup")
    assert tab.eval_on_selector_all("main time", TIMES) == ["UTC"]
