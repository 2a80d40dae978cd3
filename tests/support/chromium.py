"""The Chromium of this machine, which tests and screenshots drive. None is ever downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",  # the tests run as root in CI, and the pages are our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTH, HEIGHT = 1280, 900


class NoBrowser(Exception):
    """There is no Chromium, or it does not start."""


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield a headless Chromium. Raises NoBrowser."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise NoBrowser("apt-get install chromium")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise NoBrowser(str(error)) from error
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        except Error as error:
            raise NoBrowser(error.message.splitlines()[0]) from error
        yield browser
        browser.close()


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """Return a profile of its own: no cookies, no cache, a fixed size."""
    options = {
        "viewport": {"width": WIDTH, "height": HEIGHT},
        "locale": "en-GB",
        "reduced_motion": "reduce",
    } | options
    return browser.new_context(**options)
