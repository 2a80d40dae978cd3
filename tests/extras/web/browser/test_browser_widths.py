"""Every page at every width, from a small phone to a large screen, and zoomed: in each, all can be read.

A browser that is zoomed to 200 % lays a page out as one of half the width: 960 px are a screen of 1,920 px then.
"""

from __future__ import annotations

from typing import Any

import pytest
from extras.web.browser.test_browser_pages import PLACES, address_of  # noqa: F401

from support.page_checks import cannot_be_read, too_wide

pytestmark = pytest.mark.browser

# around each width at which the style changes, and those of usual devices
WIDTHS = (320, 390, 480, 600, 720, 721, 820, 900, 901, 1024, 1140, 1141, 1440, 1920)


@pytest.mark.parametrize("place", PLACES)
def test_a_page_can_be_read_at_every_width(tabs: Any, address_of: Any, place: str) -> None:  # noqa: F811
    tab = tabs.open(address_of(place), viewport={"width": WIDTHS[0], "height": 900})
    for summary in tab.locator("main summary").all():
        summary.click()
    found = {}
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 900})
        if wrong := [*too_wide(tab, width), *cannot_be_read(tab)]:
            found[width] = wrong
    assert found == {}
