"""The example handlers that send requests: each has one effect, and one key for all its attempts."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from handlers import payment, web, webhook
from support.http_server import QuietHandler, http_server
from support.rows import value
from yamlsched import Discard, RetryAfter, Snooze
from yamlsched.testing import FakeRun, provider_key


@contextmanager
def answering(respond: Any) -> Iterator[str]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.read_body()
            respond(self, json.loads(body) if body else None)

        do_GET = do_POST

    with http_server(Handler) as url:
        yield url


# webhook


@dataclass
class Receiver:
    """An HTTP server that gives ``answers`` (status, headers) in turn, then 204."""

    url: str = ""
    requests: list[tuple[str, str | None, Any]] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)

    def respond(self, request: QuietHandler, body: Any) -> None:
        self.requests.append((request.path, request.headers["Idempotency-Key"], body))
        status, headers = self.answers.pop(0) if self.answers else (204, {})
        request.answer(status, headers)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with answering(receiver.respond) as receiver.url:
        yield receiver


def send(run: FakeRun, receiver: Receiver) -> dict[str, int]:
    return webhook.send(
        run, url=f"{receiver.url}/hook", event_id="evt_7", event="user.created", data={"id": 7}
    )


def name_of(url: str) -> str:
    return webhook.effect_name("evt_7", url)


def test_a_webhook_is_posted_with_the_key_of_its_effect(receiver: Receiver):
    result = send(FakeRun(id=118), receiver)

    assert result == {"status": 204}
    body = {"id": "evt_7", "event": "user.created", "data": {"id": 7}}
    assert receiver.requests == [("/hook", provider_key(name_of(f"{receiver.url}/hook")), body)]


def test_an_event_is_posted_once_to_each_receiver_by_any_number_of_runs(receiver: Receiver):
    run = FakeRun(id=118)
    for attempt, url in (
        (run, "/hook"),
        (replace(run.next_attempt(), id=119), "/hook"),
        (run, "/other"),
    ):
        webhook.send(
            attempt, url=receiver.url + url, event_id="evt_7", event="user.created", data={}
        )

    assert [path for path, *_ in receiver.requests] == ["/hook", "/other"]
    assert len({key for _, key, _ in receiver.requests}) == 2


def test_a_webhook_that_was_received_is_not_posted_by_a_later_attempt(receiver: Receiver):
    run = FakeRun()
    send(run, receiver)

    assert send(run.next_attempt(), receiver) == {"status": 204}

    assert len(receiver.requests) == 1


def test_a_webhook_in_doubt_is_posted_again_with_the_same_key(receiver: Receiver):
    run = FakeRun(id=118)
    name = name_of(f"{receiver.url}/hook")
    run.leave_in_doubt(name, scope="namespace")

    send(run.next_attempt(), receiver)

    assert [key for _, key, _ in receiver.requests] == [provider_key(name)]


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
def test_a_temporary_error_status_is_retried_with_the_same_key(receiver: Receiver, status: int):
    receiver.answers = [(status, {})]
    run = FakeRun(id=118)

    with pytest.raises(urllib.error.HTTPError):
        send(run, receiver)
    send(run.next_attempt(), receiver)

    assert [key for _, key, _ in receiver.requests] == [
        provider_key(name_of(f"{receiver.url}/hook"))
    ] * 2


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_of_a_server_is_respected(receiver: Receiver, status: int):
    receiver.answers = [(status, {"Retry-After": "7"})]

    with pytest.raises(RetryAfter) as raised:
        send(FakeRun(), receiver)

    assert raised.value.delay == timedelta(seconds=7)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_a_permanent_error_status_is_not_retried(receiver: Receiver, status: int):
    receiver.answers = [(status, {"Retry-After": "7"})]

    with pytest.raises(Discard, match=f"the server refused the request: {status}"):
        send(FakeRun(), receiver)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, status: int):
    receiver.answers = [(status, {"Location": f"{receiver.url}/elsewhere"})]

    with pytest.raises(Discard, match=f"the server refused the request: {status}"):
        send(FakeRun(), receiver)

    assert [path for path, *_ in receiver.requests] == ["/hook"]


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://example.org/x", "example.org", ""])
def test_an_address_that_is_not_http_is_discarded(url: str):
    with pytest.raises(Discard, match="is not an http or https URL"):
        web.call("POST", url, {})


# payment


@dataclass
class Provider:
    """A payment provider that supports idempotency keys. ``lose`` responses are lost after the charge."""

    charges: dict[str, dict[str, Any]] = field(default_factory=dict)  # by idempotency key
    statuses: list[str] = field(default_factory=lambda: ["succeeded"])
    lose: int = 0

    def respond(self, request: QuietHandler, body: Any) -> None:
        if request.command == "POST":
            key = request.headers["Idempotency-Key"]
            reply = self.charges.setdefault(key, {"id": f"ch_{len(self.charges) + 1}", **body})
            if self.lose:
                self.lose -= 1
                return
        else:
            reply = {"status": self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]}
        request.answer(200, {"Content-Type": "application/json"}, json.dumps(reply).encode())


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    provider = Provider()
    with answering(provider.respond) as url:
        monkeypatch.setenv("EXAMPLE_PAYMENTS", url)
        yield provider


def test_an_invoice_is_charged_and_recorded(run: FakeRun, tables, provider: Provider):
    payment.charge_invoice(run, invoice_id=812, amount_cents=4900)

    assert run.result == {"charge_id": "ch_1"}
    [(key, charge)] = provider.charges.items()
    assert key == provider_key("invoice_charge:812")
    assert charge == {"id": "ch_1", "invoice_id": 812, "amount_cents": 4900}
    assert (
        value(
            tables,
            "select charge_id || ' ' || amount_cents from app.payments where invoice_id = 812",
        )
        == "ch_1 4900"
    )


def test_a_charge_whose_response_was_lost_is_not_made_twice(
    run: FakeRun, tables, provider: Provider
):
    provider.lose = 1
    with pytest.raises(OSError):
        payment.charge_invoice(run, invoice_id=812, amount_cents=4900)

    payment.charge_invoice(run.next_attempt(), invoice_id=812, amount_cents=4900)

    assert len(provider.charges) == 1
    assert value(tables, "select count(*) from app.payments where invoice_id = 812") == 1


def test_a_charge_in_doubt_after_a_crash_is_requested_again_with_its_key(
    run: FakeRun, provider: Provider
):
    # given a charge that was made immediately before the worker died
    payment.charge_invoice(run, invoice_id=812, amount_cents=4900)
    run.leave_in_doubt("invoice_charge:812", scope="namespace")

    second = run.next_attempt()
    payment.charge_invoice(second, invoice_id=812, amount_cents=4900)

    assert second.result == {"charge_id": "ch_1"}
    assert len(provider.charges) == 1


def test_a_pending_charge_snoozes_and_is_not_made_twice(run: FakeRun, tables, provider: Provider):
    provider.statuses = ["pending", "succeeded"]
    with pytest.raises(Snooze) as raised:
        payment.charge_invoice(run, invoice_id=812, amount_cents=4900)
    assert raised.value.delay == timedelta(seconds=payment.POLL_INTERVAL_SECONDS)

    payment.charge_invoice(run, invoice_id=812, amount_cents=4900)

    assert len(provider.charges) == 1
    assert value(tables, "select count(*) from app.payments where invoice_id = 812") == 1


def test_two_runs_for_one_invoice_charge_it_once(run: FakeRun, tables, provider: Provider):
    payment.charge_invoice(run, invoice_id=812, amount_cents=4900)

    payment.charge_invoice(replace(run.next_attempt(), id=119), invoice_id=812, amount_cents=4900)

    assert len(provider.charges) == 1
    assert value(tables, "select count(*) from app.payments where invoice_id = 812") == 1


def test_a_failed_charge_is_discarded_and_not_recorded(run: FakeRun, tables, provider: Provider):
    provider.statuses = ["declined"]

    with pytest.raises(Discard, match="charge ch_1 of invoice 812 ended as declined"):
        payment.charge_invoice(run, invoice_id=812, amount_cents=4900)

    assert value(tables, "select count(*) from app.payments where invoice_id = 812") == 0


def test_a_payment_without_a_provider_raises_an_error_that_names_the_variable():
    with pytest.raises(LookupError, match="EXAMPLE_PAYMENTS is not set"):
        payment.charge_invoice(FakeRun(), invoice_id=812, amount_cents=4900)
