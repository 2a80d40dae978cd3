"""A real Chromium on a real ``yamlsched web``.

Every test that opens a tab fails on what a developer would see in the console: errors, warnings, exceptions, violations
of the Content-Security-Policy, failed requests, requests to other hosts, and dialogs. A test that fails leaves a
screenshot of each tab, and says where. Without a browser these tests are skipped; with YAMLSCHED_REQUIRE_BROWSER=1 they
fail.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from docs import demo_data
from support.chromium import NoBrowser, launched, new_context
from support.database import temporary_database
from support.web_server import serving

IS_REQUIRED = bool(os.environ.get("YAMLSCHED_REQUIRE_BROWSER"))
REPORT_VIOLATIONS = (
    "document.addEventListener('securitypolicyviolation', (event) =>"
    " console.error(`violates ${event.effectiveDirective}: ${event.blockedURI} ${event.sourceFile}`))"
)

HIDE = "Object.defineProperty(document, 'hidden', { get: () => true })"
"""Lets a page believe that nobody sees it."""
TIMEOUT_MS = 60_000


class Tabs:
    """The tabs that a test opens, and what went wrong in them. ``allowed`` are patterns of what is expected to."""

    def __init__(self, browser: Any) -> None:
        self.problems: list[str] = []
        self.allowed: list[str] = []
        self.requests: list[Any] = []
        self._browser = browser
        self._contexts: list[Any] = []

    def open(self, url: str = "", refreshes: bool = False, **options: Any) -> Any:
        """Return a new tab, with a profile of its own, which shows ``url``.

        Its pages refresh themselves only if asked to: on a slow machine they would while a test looks at them.
        """
        context = new_context(self._browser, **options)
        context.set_default_timeout(TIMEOUT_MS)
        self._contexts.append(context)
        context.add_init_script(REPORT_VIOLATIONS)
        if not refreshes:
            context.add_init_script(HIDE)
        context.on("console", self._console)
        context.on("weberror", lambda error: self._note(f"exception: {error.error}"))
        context.on("dialog", self._dialog)
        context.on("request", lambda request: self._request(request))
        context.on("requestfailed", self._request_failed)
        context.on("response", self._response)
        tab = context.new_page()
        if url:
            tab.goto(url)
        return tab

    def unexpected(self) -> list[str]:
        return [
            problem
            for problem in self.problems
            if not any(re.search(known, problem) for known in self.allowed)
        ]

    def photograph(self, folder: Path) -> list[Path]:
        """Write a screenshot of each tab."""
        shots = []
        for tab in [tab for context in self._contexts for tab in context.pages]:
            shots.append(folder / f"tab{len(shots) + 1}.png")
            tab.screenshot(path=shots[-1], full_page=True)
        return shots

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _note(self, problem: str) -> None:
        self.problems.append(problem)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self._note(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _dialog(self, dialog: Any) -> None:
        self._note(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        self.requests.append(request)
        host = urlsplit(request.url).hostname
        if host not in ("127.0.0.1", "localhost"):
            self._note(f"foreign: {request.url}")

    def _request_failed(self, request: Any) -> None:
        """Note a failed request, unless the tab itself ended it by leaving the page before the answer came.

        Chromium calls that ERR_ABORTED; a server that refuses, breaks off or answers nothing has an error of its own.
        """
        if request.failure != "net::ERR_ABORTED":
            self._note(f"failed: {request.url} {request.failure}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self._note(f"answer {response.status}: {response.url}")


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A browser for the tests of this folder."""
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(launched())
        except NoBrowser as error:
            if IS_REQUIRED:
                pytest.fail(
                    f"YAMLSCHED_REQUIRE_BROWSER is set, and there is no browser: {error}",
                    pytrace=False,
                )
            pytest.skip(f"no browser: {error}")
        yield browser


@pytest.fixture
def tabs(chromium: Any) -> Iterator[Tabs]:
    opened = Tabs(chromium)
    yield opened
    opened.close()


@pytest.fixture(scope="package")
def demo_site(
    chromium: Any, server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a page that changes nothing, over the demonstration. No file decides about its namespace."""
    with temporary_database(server, template) as dsn:
        demo_data.fill(dsn)
        with serving(dsn, "--listen", "127.0.0.1:0", cwd=tmp_path_factory.mktemp("empty")) as (
            _,
            address,
        ):
            yield address.rstrip("/")


@pytest.fixture
def site(chromium: Any) -> Iterator[Callable[..., str]]:
    """A function that starts a server for one test: ``site(dsn, "--base-path", "/scheduler")``."""
    with ExitStack() as stack:

        def start(dsn: str, *words: str, **env: str) -> str:
            _, address = stack.enter_context(serving(dsn, "--listen", "127.0.0.1:0", *words, **env))
            return address.rstrip("/")

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test on what its tabs report; photograph them when it fails."""
    tabs = getattr(item, "funcargs", {}).get("tabs")
    try:
        yield
        if tabs is not None:
            assert tabs.unexpected() == []
    except Exception:
        if tabs is not None:
            shots = tabs.photograph(item.funcargs["tmp_path"])  # type: ignore[attr-defined]
            item.add_report_section("call", "screenshots", "\n".join(map(str, shots)))
        raise
