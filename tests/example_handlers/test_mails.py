"""The example handlers that mail: each reader gets one mail about one thing, whatever fails in between."""

from __future__ import annotations

import mailbox
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller
from hypothesis import given
from hypothesis import strategies as st

from handlers import alerts, billing, mail, reports, signup
from support.rows import value
from yamlsched import Discard
from yamlsched.testing import Enqueue, FakeRun, Trigger, provider_key

MONDAY = datetime(2026, 1, 19, 5, 0, tzinfo=UTC)


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


# reports


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_the_week_before_a_time_is_the_last_complete_week(instant: datetime):
    start = reports.first_day(reports.week_before(instant))

    assert start.weekday() == 0
    assert timedelta(days=7) <= instant - start < timedelta(days=14)


def test_weekly_activity_enqueues_one_report_for_each_active_user_for_the_week_before_its_slot(
    run: FakeRun, tables
):
    tables.execute("update app.users set active = (id <= 2)")

    run.scheduled_for = MONDAY

    reports.weekly_activity(run)

    assert run.result == {"week": "2026-W03", "users": 2}
    assert run.enqueued == [
        Enqueue(
            "send_weekly_report", {"user_id": 1, "week": "2026-W03"}, "weekly_report:1:2026-W03"
        ),
        Enqueue(
            "send_weekly_report", {"user_id": 2, "week": "2026-W03"}, "weekly_report:2:2026-W03"
        ),
    ]


def test_weekly_activity_by_hand_uses_the_given_week_or_the_last_one_by_the_databases_clock(
    run: FakeRun, tables
):
    reports.weekly_activity(run, week="2025-W52")
    assert run.result["week"] == "2025-W52"

    before = reports.week_before(value(tables, "select now()"))
    run = run.next_attempt()
    reports.weekly_activity(run)
    assert run.result["week"] in (before, reports.week_before(value(tables, "select now()")))


def test_every_active_user_of_the_sample_rows_has_something_to_report(run: FakeRun, tables):
    reports.weekly_activity(run)

    assert all(
        reports.activity(tables, payload["user_id"], payload["week"])
        for _, payload, *_ in run.enqueued
    )


def test_a_report_is_mailed_with_the_users_figures_and_recorded(
    run: FakeRun, tables, smtp: Mailbox
):
    # given three events in the week, one before it and one after it
    tables.execute("delete from app.events")
    for kind, at in (
        ("login", "2026-01-11 23:59:59Z"),
        ("login", "2026-01-12 00:00:00Z"),
        ("upload", "2026-01-14 12:00:00Z"),
        ("login", "2026-01-18 23:59:59Z"),
        ("upload", "2026-01-19 00:00:00Z"),
    ):
        tables.execute(
            "insert into app.events (user_id, kind, happened_at) values (1, %s, %s)", [kind, at]
        )

    reports.send_weekly_report(run, user_id=1, week="2026-W03")

    [envelope] = smtp.mails
    message_id = f"<{provider_key('weekly_report:1:2026-W03')}@example.org>"
    assert run.result == {"message_id": message_id}
    assert f"Message-ID: {message_id}" in envelope.content.decode()
    text = envelope.content.decode()
    assert envelope.rcpt_tos == ["ada@example.org"]
    assert "Subject: Your activity in week 2026-W03" in text
    assert re.findall(r"^(\w+) +(\d+)\r$", text, re.MULTILINE) == [("login", "2"), ("upload", "1")]
    assert (
        value(tables, "select week || message_id from app.sent_reports where user_id = 1")
        == f"2026-W03{message_id}"
    )


def test_without_a_mail_server_a_report_goes_into_the_maildir(run: FakeRun, var: Path):
    reports.send_weekly_report(run, user_id=2, week="2026-W03")

    [message] = mailbox.Maildir(var / "mail", create=False)
    assert message["To"] == "Alan <alan@example.org>"


def test_a_sent_mail_is_not_sent_again_if_the_next_commit_fails(
    run: FakeRun, tables, smtp: Mailbox
):
    with pytest.raises(psycopg.OperationalError):
        reports.send_weekly_report(replace(run, commit_fails=True), user_id=1, week="2026-W03")
    assert value(tables, "select count(*) from app.sent_reports") == 0

    second = run.next_attempt()
    reports.send_weekly_report(second, user_id=1, week="2026-W03")

    assert second.result["message_id"] is not None
    assert len(smtp.mails) == 1
    assert value(tables, "select count(*) from app.sent_reports") == 1


def test_a_second_run_for_the_same_user_and_week_sends_nothing(run: FakeRun, smtp: Mailbox):
    reports.send_weekly_report(run, user_id=1, week="2026-W03")

    other = replace(run.next_attempt(), id=119)
    reports.send_weekly_report(other, user_id=1, week="2026-W03")

    assert other.result == run.result
    assert len(smtp.mails) == 1


@pytest.mark.parametrize(
    "step, answer",
    [
        ("RCPT", "450 greylisted, come back"),
        ("DATA", "451 try again later"),
        ("DATA", "554 no spam"),
    ],
)
def test_a_mail_that_the_server_refuses_is_sent_by_the_next_attempt(
    run: FakeRun, tables, smtp: Mailbox, step: str, answer: str
):
    smtp.refuse[step] = [answer]
    with pytest.raises(mail.NotSent, match="the mail server refuses"):
        reports.send_weekly_report(run, user_id=1, week="2026-W03")
    assert value(tables, "select count(*) from app.sent_reports") == 0

    reports.send_weekly_report(run.next_attempt(), user_id=1, week="2026-W03")

    assert len(smtp.mails) == 1
    assert value(tables, "select count(*) from app.sent_reports") == 1


def test_a_mail_to_an_unreachable_server_is_released(
    run: FakeRun, tables, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mail, "TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for server in (
            f"127.0.0.1:{silent.getsockname()[1]}",
            f"127.0.0.1:{taken.getsockname()[1]}",
        ):
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


def test_a_mail_in_doubt_is_not_sent_again_and_not_recorded_as_sent(
    run: FakeRun, tables, smtp: Mailbox
):
    run.leave_in_doubt("weekly_report:1:2026-W03", scope="namespace")

    reports.send_weekly_report(run.next_attempt(), user_id=1, week="2026-W03")

    assert smtp.mails == []
    assert value(tables, "select count(*) from app.sent_reports") == 0


def test_a_deleted_user_gets_no_report_and_no_dead_run(run: FakeRun, smtp: Mailbox):
    result = reports.send_weekly_report(run, user_id=999, week="2026-W03")

    assert result == {"message_id": None, "why": "the user does not exist"}
    assert smtp.mails == []


@pytest.mark.parametrize("week", ["last", "2026-03", "2026-W54", ""])
def test_an_invalid_week_is_discarded(run: FakeRun, smtp: Mailbox, week: str):
    with pytest.raises(Discard, match="write for example 2026-W03"):
        reports.send_weekly_report(run, user_id=1, week=week)

    assert smtp.mails == []


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
    tables.execute(
        "insert into app.payments (invoice_id, charge_id, amount_cents) values (9, 'ch', 100)"
    )
    run.scheduled_for = datetime(2026, 1, 14, 7, 0, tzinfo=UTC)

    billing.remind_of_invoices(run)

    assert [(e.payload["invoice_id"], e.payload["number"], e.key) for e in run.enqueued] == [
        (1, 1, "invoice_reminder:1:1"),
        (2, 1, "invoice_reminder:2:1"),
        (3, 2, "invoice_reminder:3:2"),
        (4, 3, "invoice_reminder:4:3"),
    ]
    assert run.result == {"day": "2026-01-14", "overdue": 5, "reminders": 4}


def test_a_reminder_is_mailed_once_and_not_after_the_invoice_was_paid(
    run: FakeRun, tables, smtp: Mailbox
):
    tables.execute("delete from app.payments where invoice_id in (801, 802)")

    first = billing.send_invoice_reminder(run, invoice_id=801, number=1)
    again = billing.send_invoice_reminder(
        replace(run.next_attempt(), id=119), invoice_id=801, number=1
    )
    billing.send_invoice_reminder(run, invoice_id=801, number=2)
    tables.execute(
        "insert into app.payments (invoice_id, charge_id, amount_cents) values (802, 'ch', 1)"
    )
    paid = billing.send_invoice_reminder(run, invoice_id=802, number=1)

    assert first == again
    assert paid == {"message_id": None, "why": "the invoice was paid or deleted"}
    subjects = re.findall(
        "^Subject: (.*)\r$", "".join(m.content.decode() for m in smtp.mails), re.MULTILINE
    )
    assert subjects == ["Invoice 801: reminder 1", "Invoice 801: reminder 2"]


# sign-up


def test_an_inactive_user_gets_one_mail(run: FakeRun, tables, smtp: Mailbox):
    tables.execute(
        "insert into app.users (id, name, email, active) values (77, 'Grete', 'grete@example.org', true)"
    )

    first = signup.send_follow_up(run, user_id=77)
    again = signup.send_follow_up(replace(run.next_attempt(), id=119), user_id=77)

    assert first == again
    assert [envelope.rcpt_tos for envelope in smtp.mails] == [["grete@example.org"]]
    assert signup.send_follow_up(run, user_id=1)["message_id"] is None  # an active user
    assert signup.send_follow_up(run, user_id=999)["message_id"] is None


# alerts


def test_the_mail_to_the_operator_names_the_dead_run_and_what_to_do(var: Path):
    dead = Trigger(job_type="cleanup_nightly", run_id=118, error="the disk is full")

    alerts.mail_operator(FakeRun(trigger=dead))
    alerts.mail_operator(FakeRun())  # enqueued by hand: there is nothing to tell

    [message] = mailbox.Maildir(var / "mail", create=False)
    assert message["Subject"] == "cleanup_nightly: run 118 is dead"
    assert "The last error: the disk is full" in message.get_payload()
    assert "yamlsched retry 118" in message.get_payload()
