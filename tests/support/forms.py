"""Filling in the forms of actions as a browser does."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.testclient import TestClient

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def words(page: Any) -> str:
    """Return the text that an answer shows, from the result of an action on. Less than a minute ago is "0s ago"."""
    shown = page.text.partition("</header>")[2].partition("<footer")[0]
    return _without_seconds(" ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown)).split()))


def _without_seconds(text: str) -> str:
    """Return ``text`` as on a machine that is fast enough for it to be 0 seconds ago."""
    return re.sub(r"\b[0-9]{1,2}s ago\b", "0s ago", text)


def hidden(page: Any) -> dict[str, str]:
    """Return the hidden fields of the form on a page."""
    fields = {}
    for tag in re.findall(r"<input[^>]*type=\"hidden\"[^>]*>", page.text):
        [name], [value] = re.findall(r'name="([^"]*)"', tag), re.findall(r'value="([^"]*)"', tag)
        fields[name] = html.unescape(value)
    return fields


def review(page: TestClient, action: str, fields: Mapping[str, str]) -> Any:
    """Send the form of an action; the answer shows what will happen."""
    return page.post(f"/actions/{action}", data=fields, headers=SAME_ORIGIN)


def confirm(page: TestClient, shown: Any, **more: str) -> Any:
    """Confirm what a page shows will happen."""
    [action] = set(re.findall(r'<form method="post" action="([^"]*)"', shown.text))
    return page.post(action, data={**hidden(shown), "confirm": "1", **more}, headers=SAME_ORIGIN)


def trail(db: Any) -> list[tuple[str, str, str]]:
    """Return who did what to what, in that order."""
    rows = db.execute(
        "select who, verb, target from yamlsched.operator_actions order by id"
    ).fetchall()
    return [tuple(row) for row in rows]


def result(answer: Any) -> tuple[str, str]:
    """Return the path to which a confirmed action leads, and what is said there."""
    assert answer.status_code == 303, words(answer)
    path, _, query = answer.headers["location"].partition("?result=")
    encoded = query.partition(".")[0]
    text, _, _ = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    return path, _without_seconds(text)
