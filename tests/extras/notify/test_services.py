"""What services receive: each one of docs/notifications.md, and some that read markup in other ways."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from aiosmtpd.controller import Controller

from yamlsched.extras.notify import sending
from yamlsched.extras.notify.message import MARKUP, Note, compose
from yamlsched.extras.notify.sending import Message

HOSTILE = (
    '@channel @everyone <!channel> <at user_id="all"></at> @**all** @room '
    "[retry](https://elsewhere.example) ![x](https://elsewhere.example/p.png)"
)
SERVICES = {
    "Slack": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#ops",
    "Microsoft Teams": "workflows://host.example.com/4f3a/c0ffee",
    "PagerDuty": "pagerduty://INTEGRATIONKEY@APIKEY",
    "ntfy": "ntfys://ntfy.example.com/topic",
    "a service of your own": "jsons://example.com/path",
    "Discord": "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    "Mattermost": "mmosts://example.com/3ccdd113474722377935511fc85d3dd4",
    "Zulip": "zulip://bot@example/a8Z6ZXvFYmBfXqaJ9vbqd1rKnmCkSjDP/ops",
    "Lark": "lark://abcdef1234567890abcdef1234567890",
}
NOW = datetime(2026, 1, 14, 2, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the handlers of other tests: what sends has a process of its own, and discards them."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)


def a_message() -> Message:
    """Return a message about a run that died, in which every field that a stranger may write is hostile."""
    note = Note(
        target="ops", subject="backup", is_problem=False, since=NOW, ended_at=None, pause=timedelta(hours=1),
        dead_runs=1, told_runs=0, paused_after=None, late_since=None, events=["dead"], what=None, run_id=7, owner=HOSTILE,
        locked_by=f"{HOSTILE}:1:a", error_type="KeyError", last_error=HOSTILE, changed=HOSTILE, dead_of_job=None,
    )  # fmt: skip
    title, text, is_good = compose([note], "default", "@channel", None)
    return Message("ops", "A_URL", title, text, is_good, [note])


def strings(value: Any) -> Iterator[str]:
    """Yield the strings in a payload."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


@pytest.mark.parametrize("service", SERVICES)
def test_the_payload_of_a_service_has_the_message_without_mentions_and_links(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads: list[Any] = []

    def send(session: requests.Session, method: str, url: str, **request: Any) -> requests.Response:
        body = request.get("json") or request.get("data")
        payloads.append(json.loads(body) if isinstance(body, str | bytes) else body)
        response = requests.Response()
        response.status_code = 200
        response._content = b"ok" if service == "Slack" else b'{"code": 0, "result": "success"}'
        return response

    monkeypatch.setattr(requests.Session, "request", send)
    monkeypatch.setenv("A_URL", SERVICES[service])

    assert sending.send_one(a_message(), time.monotonic() + 60) == ""

    sent = list(strings(payloads))
    assert any("backup: 1 run died" in text for text in sent)
    assert any("KeyError: @ channel @ everyone" in text for text in sent)
    assert [text for text in sent if MARKUP.search(text)] == []


def test_a_mail_has_the_message_without_mentions_and_links(monkeypatch: pytest.MonkeyPatch) -> None:
    mails: list[str] = []

    class Mailbox:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            mails.append(envelope.content.decode())
            return "250 OK"

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(Mailbox(), hostname="127.0.0.1", port=port)
    controller.start()
    try:
        monkeypatch.setenv(
            "A_URL", f"mailto://127.0.0.1:{port}?from=jobs@example.com&to=ops@example.com"
        )
        assert sending.send_one(a_message(), time.monotonic() + 60) == ""
    finally:
        controller.stop()

    [mail] = mails
    assert "Subject: [default/@ channel] backup: 1 run died" in mail
    assert "@channel" not in mail
    assert "](" not in mail


def test_the_address_of_the_page_stays_a_link() -> None:
    note = a_message().notes[0]

    _, text, _ = compose([note], "reports", "", "https://jobs.example.com/")

    assert text.splitlines()[-1] == "https://jobs.example.com/@reports/jobs/backup"
