"""The example handlers, called as functions, with a real database, SMTP server and HTTP servers."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import mailbox
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parseaddr
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from aiosmtpd.controller import Controller
from hypothesis import given
from hypothesis import strategies as st

from handlers import alerts, app, billing, cache, cleanup, flaky, mail, payment, reports, sales, signup, web, webhook
from support.http_server import QuietHandler, http_server
from yamlsched import Discard, RetryAfter, Snooze
from yamlsched.testing import Enqueue, FakeRun, provider_key

ROOT = Path(__file__).resolve().parent.parent
MONDAY = datetime(2026, 1, 19, 5, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EXAMPLE_SMTP", "EXAMPLE_PAYMENTS", "EXAMPLE_DSN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(app, "VAR", tmp_path / "var")
    return tmp_path / "var"


@pytest.fixture
def app_dsn(dsn: str) -> Iterator[str]:
    """A database without the tables of the example application."""
    yield dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop schema if exists app cascade")


@pytest.fixture
def run(app_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRun]:
    """A run for calling handlers."""
    monkeypatch.setenv("EXAMPLE_DSN", app_dsn)
    # so that a test fails instead of hanging
    with psycopg.connect(app_dsn, autocommit=True, options="-c lock_timeout=10s") as connection:
        yield FakeRun(id=118, connection=connection)


@pytest.fixture
def tables(app_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session on the database of the example application, with all tables."""
    with psycopg.connect(app_dsn, autocommit=True) as connection:
        with connection.transaction():
            app.ensure_tables(connection)
        yield connection


def ask(connection: psycopg.Connection[Any], query: str) -> Any:
    [(answer,)] = connection.execute(query.encode()).fetchall()
    return answer


# the example application


def test_two_handlers_that_miss_the_tables_at_once_create_them_once(app_dsn: str):
    # given one handler that has created the tables without committing
    with psycopg.connect(app_dsn) as one, psycopg.connect(app_dsn) as other, psycopg.connect(app_dsn) as watch:
        watch.autocommit = True
        app.ensure_tables(one)

        # when another one also misses them, and waits
        second = threading.Thread(target=app.ensure_tables, args=[other])
        second.start()
        waiting = "select count(*) from pg_stat_activity where wait_event = 'advisory' and pid = %d"
        while not ask(watch, waiting % other.info.backend_pid):
            assert second.is_alive()
        one.commit()
        second.join()

        # then it finds them with one set of rows
        assert ask(other, "select count(*) from app.users") == 10


# cleanup


def test_cleanup_deletes_only_expired_rows_and_files(run: FakeRun, tables, var: Path):
    expired = ask(tables, "select count(*) from app.sessions where expires_at < now()")
    kept = ask(tables, "select count(*) from app.sessions where expires_at >= now()")

    cleanup.run(run, older_than_days=30)

    assert run.result == {"sessions": expired, "files": 2}
    assert expired > 2 * cleanup.BATCH_ROWS
    assert ask(tables, "select count(*) from app.sessions") == kept > 0
    assert [path.name for path in (var / "tmp").iterdir()] == ["upload-3.part"]
    again = run.next_attempt()
    cleanup.run(again, older_than_days=30)
    assert again.result == {"sessions": 0, "files": 0}


def test_cleanup_skips_a_locked_session_without_waiting(run: FakeRun, tables, app_dsn: str):
    with psycopg.connect(app_dsn) as other:
        held = ask(other, "select id from app.sessions where expires_at < now() order by id limit 1 for update")

        cleanup.run(run, older_than_days=30)

        assert ask(tables, "select min(id) from app.sessions where expires_at < now()") == held


def test_cleanup_keeps_sessions_whose_deletion_was_not_committed(run: FakeRun, tables):
    before = ask(tables, "select count(*) from app.sessions")

    with pytest.raises(psycopg.OperationalError):
        cleanup.run(replace(run, commit_fails=True), older_than_days=30)

    assert ask(tables, "select count(*) from app.sessions") == before


def test_cleanup_of_files_does_not_follow_links_or_enter_folders(var: Path):
    # given old entries that are not regular files of the folder
    folder = app.temporary_folder()
    outside = var / "precious.txt"
    outside.write_text("precious")
    (folder / "link").symlink_to(outside)
    (folder / "deeper").mkdir()
    inside = folder / "deeper" / "old.txt"
    inside.write_text("old")
    for path in (outside, inside, folder / "deeper"):
        os.utime(path, (0, 0))
    os.utime(folder / "link", (0, 0), follow_symlinks=False)

    cleanup.delete_old_files(folder, 30)

    assert outside.exists()
    assert inside.exists()
    assert (folder / "link").is_symlink()


@pytest.mark.parametrize("days", [0, -1])
def test_cleanup_refuses_an_age_that_would_delete_files_in_use(run: FakeRun, var: Path, days: int):
    files = sorted(app.temporary_folder().iterdir())

    with pytest.raises(Discard, match=f"older_than_days is {days}"):
        cleanup.run(run, older_than_days=days)

    assert sorted((var / "tmp").iterdir()) == files


# reports


@dataclass
class Mailbox:
    """A mail server. ``refuse`` maps a step to the responses that it gives before it accepts mail."""

    mails: list[Any] = field(default_factory=list)
    refuse: dict[str, list[str]] = field(default_factory=lambda: {"RCPT": [], "DATA": []})
    quits: list[str] = field(default_factory=list)

    async def handle_RCPT(self, server, session, envelope, address, options) -> str:
        if self.refuse["RCPT"]:
            return self.refuse["RCPT"].pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope) -> str:
        if self.refuse["DATA"]:
            return self.refuse["DATA"].pop(0)
        self.mails.append(envelope)
        return "250 OK"

    async def handle_QUIT(self, server, session, envelope) -> str:
        return self.quits.pop(0) if self.quits else "221 Bye"


@pytest.fixture
def smtp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    received = Mailbox()
    controller = Controller(received, hostname="127.0.0.1", port=port)
    controller.start()
    monkeypatch.setenv("EXAMPLE_SMTP", f"127.0.0.1:{port}")
    yield received
    controller.stop()


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_the_week_before_a_time_is_the_last_complete_week(instant: datetime):
    start = reports.first_day(reports.week_before(instant))

    assert start.weekday() == 0
    assert timedelta(days=7) <= instant - start < timedelta(days=14)


def test_weekly_activity_enqueues_one_report_for_each_active_user_for_the_week_before_its_slot(run: FakeRun, tables):
    tables.execute("update app.users set active = (id <= 2)")

    run.scheduled_for = MONDAY

    reports.weekly_activity(run)

    assert run.result == {"week": "2026-W03", "users": 2}
    assert run.enqueued == [
        Enqueue("send_weekly_report", {"user_id": 1, "week": "2026-W03"}, "weekly_report:1:2026-W03"),
        Enqueue("send_weekly_report", {"user_id": 2, "week": "2026-W03"}, "weekly_report:2:2026-W03"),
    ]


def test_weekly_activity_by_hand_uses_the_given_week_or_the_last_one_by_the_databases_clock(run: FakeRun, tables):
    reports.weekly_activity(run, week="2025-W52")
    assert run.result["week"] == "2025-W52"

    before = reports.week_before(ask(tables, "select now()"))
    run = run.next_attempt()
    reports.weekly_activity(run)
    assert run.result["week"] in (before, reports.week_before(ask(tables, "select now()")))


def test_every_active_user_of_the_sample_rows_has_something_to_report(run: FakeRun, tables):
    reports.weekly_activity(run)

    assert all(reports.activity(tables, payload["user_id"], payload["week"]) for _, payload, *_ in run.enqueued)


def test_a_report_is_mailed_with_the_users_figures_and_recorded(run: FakeRun, tables, smtp: Mailbox):
    # given three events in the week, one before it and one after it
    tables.execute("delete from app.events")
    for kind, at in (
        ("login", "2026-01-11 23:59:59Z"),
        ("login", "2026-01-12 00:00:00Z"),
        ("upload", "2026-01-14 12:00:00Z"),
        ("login", "2026-01-18 23:59:59Z"),
        ("upload", "2026-01-19 00:00:00Z"),
    ):
        tables.execute("insert into app.events (user_id, kind, happened_at) values (1, %s, %s)", [kind, at])

    reports.send_weekly_report(run, user_id=1, week="2026-W03")

    [envelope] = smtp.mails
    message_id = f"<{provider_key('weekly_report:1:2026-W03')}@example.org>"
    assert run.result == {"message_id": message_id}
    assert f"Message-ID: {message_id}" in envelope.content.decode()
    text = envelope.content.decode()
    assert envelope.rcpt_tos == ["ada@example.org"]
    assert "Subject: Your activity in week 2026-W03" in text
    assert re.findall(r"^(\w+) +(\d+)\r$", text, re.MULTILINE) == [("login", "2"), ("upload", "1")]
    assert ask(tables, "select week || message_id from app.sent_reports where user_id = 1") == f"2026-W03{message_id}"


def test_without_a_mail_server_a_report_goes_into_the_maildir(run: FakeRun, var: Path):
    reports.send_weekly_report(run, user_id=2, week="2026-W03")

    [message] = mailbox.Maildir(var / "mail", create=False)
    assert message["To"] == "Alan <alan@example.org>"


def test_a_sent_mail_is_not_sent_again_if_the_next_commit_fails(run: FakeRun, tables, smtp: Mailbox):
    with pytest.raises(psycopg.OperationalError):
        reports.send_weekly_report(replace(run, commit_fails=True), user_id=1, week="2026-W03")
    assert ask(tables, "select count(*) from app.sent_reports") == 0

    second = run.next_attempt()
    reports.send_weekly_report(second, user_id=1, week="2026-W03")

    assert second.result["message_id"] is not None
    assert len(smtp.mails) == 1
    assert ask(tables, "select count(*) from app.sent_reports") == 1


def test_a_second_run_for_the_same_user_and_week_sends_nothing(run: FakeRun, smtp: Mailbox):
    reports.send_weekly_report(run, user_id=1, week="2026-W03")

    other = replace(run.next_attempt(), id=119)
    reports.send_weekly_report(other, user_id=1, week="2026-W03")

    assert other.result == run.result
    assert len(smtp.mails) == 1


@pytest.mark.parametrize(
    "step, answer", [("RCPT", "450 greylisted, come back"), ("DATA", "451 try again later"), ("DATA", "554 no spam")]
)
def test_a_mail_that_the_server_refuses_is_sent_by_the_next_attempt(
    run: FakeRun, tables, smtp: Mailbox, step: str, answer: str
):
    smtp.refuse[step] = [answer]
    with pytest.raises(mail.NotSent, match="the mail server refuses"):
        reports.send_weekly_report(run, user_id=1, week="2026-W03")
    assert ask(tables, "select count(*) from app.sent_reports") == 0

    reports.send_weekly_report(run.next_attempt(), user_id=1, week="2026-W03")

    assert len(smtp.mails) == 1
    assert ask(tables, "select count(*) from app.sent_reports") == 1


def test_a_mail_to_an_unreachable_server_is_released(run: FakeRun, tables, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mail, "TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for server in (f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{taken.getsockname()[1]}"):
            monkeypatch.setenv("EXAMPLE_SMTP", server)
            with pytest.raises(mail.NotSent, match=f"no mail server at {server}"):
                reports.send_weekly_report(run, user_id=1, week="2026-W03")

    assert run.effects == {}


def test_a_permanently_refused_recipient_is_not_retried(run: FakeRun, smtp: Mailbox):
    smtp.refuse["RCPT"] = ["550 no such user"]

    with pytest.raises(Discard, match=r"refuses Ada <ada@example.org> permanently"):
        reports.send_weekly_report(run, user_id=1, week="2026-W03")

    assert (smtp.mails, run.effects) == ([], {})


def test_a_response_after_the_mail_was_accepted_changes_nothing(run: FakeRun, smtp: Mailbox):
    smtp.quits = ["421 going down"]

    reports.send_weekly_report(run, user_id=1, week="2026-W03")

    assert len(smtp.mails) == 1
    assert run.result["message_id"] is not None


def test_a_mail_in_doubt_is_not_sent_again_and_not_recorded_as_sent(run: FakeRun, tables, smtp: Mailbox):
    run.leave_in_doubt("weekly_report:1:2026-W03", scope="namespace")

    reports.send_weekly_report(run.next_attempt(), user_id=1, week="2026-W03")

    assert smtp.mails == []
    assert ask(tables, "select count(*) from app.sent_reports") == 0


def test_a_deleted_user_gets_no_report_and_no_dead_run(run: FakeRun, smtp: Mailbox):
    result = reports.send_weekly_report(run, user_id=999, week="2026-W03")

    assert result == {"message_id": None, "why": "the user does not exist"}
    assert smtp.mails == []


@pytest.mark.parametrize("week", ["last", "2026-03", "2026-W54", ""])
def test_an_invalid_week_is_discarded(run: FakeRun, smtp: Mailbox, week: str):
    with pytest.raises(Discard, match="write for example 2026-W03"):
        reports.send_weekly_report(run, user_id=1, week=week)

    assert smtp.mails == []


# cache


def test_a_refresh_writes_and_records_the_file(run: FakeRun, tables, var: Path):
    cache.refresh(run)

    path = var / "cache" / "activity.json"
    figures = [entry["events"] for entry in json.loads(path.read_text())["most_active"]]
    assert figures == sorted(figures, reverse=True)
    assert sum(figures) == ask(tables, "select count(*) from app.events where happened_at > now() - interval '7 days'")
    assert run.result["sha256"] == ask(tables, "select sha256 from app.cached_files where name = 'activity.json'")
    assert run.result["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_second_refresh_replaces_the_file_and_the_record(run: FakeRun, tables, var: Path):
    cache.refresh(run)
    tables.execute("delete from app.events")

    cache.refresh(run.next_attempt())

    assert json.loads((var / "cache" / "activity.json").read_text()) == {"most_active": []}
    assert ask(tables, "select count(*) from app.cached_files") == 1


def test_an_interrupted_write_leaves_the_old_content_and_a_file_for_the_cleanup(
    var: Path, monkeypatch: pytest.MonkeyPatch
):
    path = var / "cache" / "activity.json"
    cache.write_atomically(path, b"old")
    before = set((var / "tmp").iterdir())

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        cache.write_atomically(path, b"new")

    assert path.read_bytes() == b"old"
    [left] = set((var / "tmp").iterdir()) - before
    os.utime(left, (0, 0))
    cleanup.delete_old_files(var / "tmp", 30)
    assert not left.exists()


# flaky


def test_the_flaky_job_fails_twice_and_then_succeeds():
    run = FakeRun()

    for attempt in (1, 2):
        with pytest.raises(ConnectionError, match="until attempt 3"):
            flaky.fetch_rates(replace(run, attempt=attempt))
    assert flaky.fetch_rates(replace(run, attempt=3)) == {"attempts": 3}


# webhook


@dataclass
class Receiver:
    """An HTTP server that gives ``answers`` (status, headers) in turn, then 204."""

    url: str = ""
    requests: list[tuple[str, str | None, Any]] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)

    def respond(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        self.requests.append((request.path, request.headers["Idempotency-Key"], body))
        status, headers = self.answers.pop(0) if self.answers else (204, {})
        answer(request, status, headers)


def answer(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body))) if status != 204 else None
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def answering(respond: Any) -> Iterator[str]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.read_body()
            respond(self, json.loads(body) if body else None)

        do_GET = do_POST

    with http_server(Handler) as url:
        yield url


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with answering(receiver.respond) as receiver.url:
        yield receiver


def send(run: FakeRun, receiver: Receiver) -> dict[str, int]:
    return webhook.send(run, url=f"{receiver.url}/hook", event_id="evt_7", event="user.created", data={"id": 7})


def name_of(url: str) -> str:
    return webhook.effect_name("evt_7", url)


def test_a_webhook_is_posted_with_the_key_of_its_effect(receiver: Receiver):
    result = send(FakeRun(id=118), receiver)

    assert result == {"status": 204}
    body = {"id": "evt_7", "event": "user.created", "data": {"id": 7}}
    assert receiver.requests == [("/hook", provider_key(name_of(f"{receiver.url}/hook")), body)]


def test_an_event_is_posted_once_to_each_receiver_by_any_number_of_runs(receiver: Receiver):
    run = FakeRun(id=118)
    for attempt, url in ((run, "/hook"), (replace(run.next_attempt(), id=119), "/hook"), (run, "/other")):
        webhook.send(attempt, url=receiver.url + url, event_id="evt_7", event="user.created", data={})

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

    assert [key for _, key, _ in receiver.requests] == [provider_key(name_of(f"{receiver.url}/hook"))] * 2


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

    def respond(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        if request.command == "POST":
            key = request.headers["Idempotency-Key"]
            reply = self.charges.setdefault(key, {"id": f"ch_{len(self.charges) + 1}", **body})
            if self.lose:
                self.lose -= 1
                return
        else:
            reply = {"status": self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]}
        answer(request, 200, {"Content-Type": "application/json"}, json.dumps(reply).encode())


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
        ask(tables, "select charge_id || ' ' || amount_cents from app.payments where invoice_id = 812") == "ch_1 4900"
    )


def test_a_charge_whose_response_was_lost_is_not_made_twice(run: FakeRun, tables, provider: Provider):
    provider.lose = 1
    with pytest.raises(OSError):
        payment.charge_invoice(run, invoice_id=812, amount_cents=4900)

    payment.charge_invoice(run.next_attempt(), invoice_id=812, amount_cents=4900)

    assert len(provider.charges) == 1
    assert ask(tables, "select count(*) from app.payments where invoice_id = 812") == 1


def test_a_charge_in_doubt_after_a_crash_is_requested_again_with_its_key(run: FakeRun, provider: Provider):
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
    assert ask(tables, "select count(*) from app.payments where invoice_id = 812") == 1


def test_two_runs_for_one_invoice_charge_it_once(run: FakeRun, tables, provider: Provider):
    payment.charge_invoice(run, invoice_id=812, amount_cents=4900)

    payment.charge_invoice(replace(run.next_attempt(), id=119), invoice_id=812, amount_cents=4900)

    assert len(provider.charges) == 1
    assert ask(tables, "select count(*) from app.payments where invoice_id = 812") == 1


def test_a_failed_charge_is_discarded_and_not_recorded(run: FakeRun, tables, provider: Provider):
    provider.statuses = ["declined"]

    with pytest.raises(Discard, match="charge ch_1 of invoice 812 ended as declined"):
        payment.charge_invoice(run, invoice_id=812, amount_cents=4900)

    assert ask(tables, "select count(*) from app.payments where invoice_id = 812") == 0


def test_a_payment_without_a_provider_raises_an_error_that_names_the_variable():
    with pytest.raises(LookupError, match="EXAMPLE_PAYMENTS is not set"):
        payment.charge_invoice(FakeRun(), invoice_id=812, amount_cents=4900)


# invoices


def test_each_overdue_invoice_gets_at_most_three_reminders_one_per_week(run: FakeRun, tables):
    # given invoices that were due before 14 January, one of them paid
    tables.execute("delete from app.payments")
    tables.execute("delete from app.invoices")
    for invoice, due_on in enumerate(
        ["2026-01-14", "2026-01-13", "2026-01-07", "2026-01-06", "2025-12-24", "2025-12-23"]
    ):
        tables.execute(
            "insert into app.invoices (id, user_id, amount_cents, issued_on, due_on) values (%s, 1, 100, %s, %s)",
            [invoice, due_on, due_on],
        )
    tables.execute("insert into app.invoices values (9, 1, 100, '2025-12-01', '2026-01-01')")
    tables.execute("insert into app.payments (invoice_id, charge_id, amount_cents) values (9, 'ch', 100)")
    run.scheduled_for = datetime(2026, 1, 14, 7, 0, tzinfo=UTC)

    billing.remind_of_invoices(run)

    assert [(e.payload["invoice_id"], e.payload["number"], e.key) for e in run.enqueued] == [
        (1, 1, "invoice_reminder:1:1"),
        (2, 1, "invoice_reminder:2:1"),
        (3, 2, "invoice_reminder:3:2"),
        (4, 3, "invoice_reminder:4:3"),
    ]
    assert run.result == {"day": "2026-01-14", "overdue": 5, "reminders": 4}


def test_a_reminder_is_mailed_once_and_not_after_the_invoice_was_paid(run: FakeRun, tables, smtp: Mailbox):
    tables.execute("delete from app.payments where invoice_id in (801, 802)")

    first = billing.send_invoice_reminder(run, invoice_id=801, number=1)
    again = billing.send_invoice_reminder(replace(run.next_attempt(), id=119), invoice_id=801, number=1)
    billing.send_invoice_reminder(run, invoice_id=801, number=2)
    tables.execute("insert into app.payments (invoice_id, charge_id, amount_cents) values (802, 'ch', 1)")
    paid = billing.send_invoice_reminder(run, invoice_id=802, number=1)

    assert first == again
    assert paid == {"message_id": None, "why": "the invoice was paid or deleted"}
    subjects = re.findall("^Subject: (.*)\r$", "".join(m.content.decode() for m in smtp.mails), re.MULTILINE)
    assert subjects == ["Invoice 801: reminder 1", "Invoice 801: reminder 2"]


def test_the_billing_check_passes_equal_payments_and_names_different_ones(run: FakeRun, tables):
    assert billing.check_billing(run) == {"payments": ask(tables, "select count(*) from app.payments")}

    tables.execute("update app.payments set amount_cents = 1 where invoice_id = 803")
    tables.execute("insert into app.payments (invoice_id, charge_id, amount_cents) values (7, 'of none', 1)")

    with pytest.raises(Discard, match="2 payments differ from their invoices: 7, 803"):
        billing.check_billing(run)


# the sales report


def test_a_sales_report_covers_the_day_before_its_slot_whenever_it_runs(run: FakeRun, tables, var: Path):
    tables.execute("update app.invoices set issued_on = '2026-01-13' where id in (801, 802)")
    run.scheduled_for = datetime(2026, 1, 14, 5, 30, tzinfo=UTC)

    for attempt in (run, run.next_attempt()):
        result = sales.report(attempt)
        amount = ask(tables, "select sum(amount_cents)::bigint from app.invoices where id in (801, 802)")
        assert result == {"file": "sales-2026-01-13.csv", "invoices": 2, "amount_cents": amount}

    [path] = (var / "reports").iterdir()
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["invoice", "801", "802"]
    assert sales.report(run, day="2020-02-29")["file"] == "sales-2020-02-29.csv"


@pytest.mark.parametrize("slot, day", [("2026-03-28T23:30Z", "2026-03-28"), ("2026-03-28T22:30Z", "2026-03-27")])
def test_the_day_of_a_slot_is_in_the_time_zone_of_the_business(run: FakeRun, slot: str, day: str):
    run.scheduled_for = datetime.fromisoformat(slot)

    assert sales.report(run)["file"] == f"sales-{day}.csv"


# sign-up


def test_an_inactive_user_gets_one_mail(run: FakeRun, tables, smtp: Mailbox):
    tables.execute("insert into app.users (id, name, email, active) values (77, 'Grete', 'grete@example.org', true)")

    first = signup.send_follow_up(run, user_id=77)
    again = signup.send_follow_up(replace(run.next_attempt(), id=119), user_id=77)

    assert first == again
    assert [envelope.rcpt_tos for envelope in smtp.mails] == [["grete@example.org"]]
    assert signup.send_follow_up(run, user_id=1)["message_id"] is None  # an active user
    assert signup.send_follow_up(run, user_id=999)["message_id"] is None


# alerts


def test_the_mail_to_the_operator_names_the_dead_run_and_what_to_do(var: Path):
    alerts.mail_operator(FakeRun(id=118, job_type="cleanup_nightly", last_error="the disk is full"))

    [message] = mailbox.Maildir(var / "mail", create=False)
    assert message["Subject"] == "cleanup_nightly: run 118 is dead"
    assert "The last error: the disk is full" in message.get_payload()
    assert "yamlsched retry 118" in message.get_payload()


# all handlers, in the worker


def test_the_examples_work_in_a_worker(own_dsn: str, tmp_path: Path):
    # given the project's file and handlers on a new database, and a weekly activity that is enqueued twice
    shutil.copytree(ROOT / "handlers", tmp_path / "handlers", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "schedules.yaml", tmp_path)

    def yamlsched(*arguments: str) -> None:
        command = [sys.executable, "-m", "yamlsched", "--dsn", own_dsn, "--file", str(tmp_path / "schedules.yaml")]
        subprocess.run([*command, *arguments], check=True, timeout=100, cwd=tmp_path)

    yamlsched("sync")
    for job in ("cleanup_nightly", "refresh_cache", "weekly_activity", "weekly_activity"):
        yamlsched("enqueue", job)

    # when the worker has drained the queue
    yamlsched("work")

    # then each active user has one mail, old rows and files are deleted, and every run succeeded
    with psycopg.connect(own_dsn) as connection:
        assert ask(connection, "select count(*) from yamlsched.job_runs where status <> 'succeeded'") == 0
        assert ask(connection, "select count(*) from yamlsched.job_runs where job_type = 'send_weekly_report'") == 8
        assert ask(connection, "select count(*) from app.sent_reports") == 8
        assert ask(connection, "select count(*) from app.sessions where expires_at < now() - interval '1 hour'") == 0
        users = {email for (email,) in connection.execute("select email from app.users where active")}
    mails = mailbox.Maildir(tmp_path / "var" / "mail", create=False)
    assert {parseaddr(message["To"])[1] for message in mails} == users
    assert len(mails) == 8
    assert json.loads((tmp_path / "var" / "cache" / "activity.json").read_text())["most_active"]
    assert [path.name for path in (tmp_path / "var" / "tmp").iterdir()] == ["upload-3.part"]


# schedules.yaml and docs/handlers.md

JOBS = yaml.safe_load((ROOT / "schedules.yaml").read_text())
DOCUMENT = (ROOT / "docs" / "handlers.md").read_text()


def callable_named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_file_is_valid_and_gets_no_advice():
    command = [sys.executable, "-m", "yamlsched", "validate", "--strict", "schedules.yaml"]
    found = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", [name for name, job in JOBS["jobs"].items() if "handler" in job])
def test_the_payload_of_every_job_fits_its_handler(name: str):
    job = JOBS["jobs"][name]
    signature = inspect.signature(callable_named(job["handler"]))

    bind = (
        signature.bind if "cron" in job else signature.bind_partial
    )  # other jobs get their payload when they are enqueued

    assert "run" in bind(run=None, **job.get("payload", {})).arguments


def test_every_on_dead_callable_takes_only_a_run():
    handler = callable_named(JOBS["defaults"]["on_dead"])

    assert list(inspect.signature(handler).parameters) == ["run"]


def test_every_fan_out_fits_a_job_of_the_file(run: FakeRun):
    reports.weekly_activity(run)

    for job, payload, *_ in run.enqueued:
        inspect.signature(callable_named(JOBS["jobs"][job]["handler"])).bind(run=run, **payload)


def test_the_first_line_names_the_schema_for_editors():
    first = (ROOT / "schedules.yaml").read_text().splitlines()[0]

    assert first == "# yaml-language-server: $schema=./schedules.schema.json"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


PYTHON = blocks("python")
QUOTED = [block.split("\n", 1) for block in PYTHON if block.startswith("# handlers/")]
OWN = [block for block in PYTHON if not block.startswith("# handlers/")]


@pytest.mark.parametrize("place, code", QUOTED, ids=[place for place, _ in QUOTED])
def test_code_that_the_page_quotes_is_in_the_examples(place: str, code: str):
    assert code in (ROOT / place.removeprefix("# ")).read_text()


@pytest.mark.parametrize("code", OWN, ids=lambda code: re.findall(r"def (\w+)", code)[-1])
def test_other_code_of_the_page_runs(code: str):
    names: dict[str, Any] = {}
    exec(compile(code, "docs/handlers.md", "exec"), names)

    functions = [value for name, value in names.items() if inspect.isfunction(value)]
    assert functions
    for function in functions:
        if function.__name__.startswith("test_"):
            function()


def test_every_handler_that_the_page_names_exists():
    names = set(re.findall(r"`(handlers(?:\.\w+)+)`", DOCUMENT))

    assert len(names) > 5
    assert all(callable(callable_named(name)) for name in names)


def test_jobs_in_the_page_are_those_of_the_file():
    for block in blocks("yaml"):
        for name, job in yaml.safe_load(block)["jobs"].items():
            assert job.items() <= JOBS["jobs"][name].items()


def test_the_sql_of_the_page_enqueues_once(db: psycopg.Connection[Any]):
    # given the job as a sync stores it
    db.execute(
        """
        insert into yamlsched.job_definitions (
            namespace, job_type, handler, timezone, max_attempts, backoff, timeout, lease, overlap, catchup,
            catchup_window, spread, enabled, effective_from)
        values ('default', 'charge_invoice', 'handlers.payment.charge_invoice', 'UTC', 5, '{}', '2m', '2m', 'wait',
            'latest', '1d', '0s', true, now())
        """
    )
    [statement] = blocks("sql")

    [first] = db.execute(statement.encode()).fetchall()
    [again] = db.execute(statement.encode()).fetchall()

    assert (first.created, again.created) == (True, False)
    assert first.run_id == again.run_id
