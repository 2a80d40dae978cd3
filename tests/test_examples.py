"""The example handlers in real workers that are killed at named points; real servers count what arrives."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller

from handlers import app, signup
from support.command_line import yamlsched
from support.example_crashes import POINTS
from support.http_server import QuietHandler, http_server
from support.project import Process, Project, a_project, until
from yamlsched import db as store

pytestmark = pytest.mark.story

ROOT = Path(__file__).resolve().parent.parent
WEEK = "2026-W03"


@dataclass
class MailServer:
    """Accepts every mail. ``on_mail`` is called with each accepted mail before the response is sent."""

    address: str = ""
    mails: list[Message] = field(default_factory=list)
    on_mail: Callable[[int], None] = lambda number: None

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(message_from_bytes(envelope.content))
        self.on_mail(len(self.mails))
        return "250 OK"

    def by_recipient(self) -> Counter[str]:
        return Counter(str(mail["To"]) for mail in self.mails)


@pytest.fixture
def smtp() -> Iterator[MailServer]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = MailServer(f"127.0.0.1:{port}")
    controller = Controller(server, hostname="127.0.0.1", port=port)
    controller.start()
    yield server
    controller.stop()


@pytest.fixture
def posts() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The address of an HTTP server, and the posted requests: event id and Idempotency-Key."""
    received: list[tuple[str, str]] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = json.loads(self.read_body())
            received.append((body["id"], self.headers["Idempotency-Key"]))
            self.send_response(204)
            self.end_headers()

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

    with http_server(Handler) as url:
        yield f"{url}/hook", received


@pytest.fixture
def project(own_dsn: str, tmp_path: Path) -> Iterator[Project]:
    with a_project(tmp_path, own_dsn) as project:
        (tmp_path / "marks").mkdir()
        project.sync(
            report={"handler": "support.example_crashes.report", "max_attempts": 20},
            hook={"handler": "support.example_crashes.hook", "max_attempts": 20},
        )
        with psycopg.connect(own_dsn) as connection:
            app.ensure_tables(connection)
        yield project


def worker(project: Project, smtp: MailServer | None = None, concurrency: int = 1) -> Process:
    """Start a worker with one handler at a time, so that a kill affects only one run."""
    return project.start(
        "work", "--path", str(ROOT), "--concurrency", str(concurrency),
        before=f"import sys; sys.path.insert(0, {str(ROOT)!r}); import support.example_crashes",
        MARKS=str(project.folder / "marks"), EXAMPLE_SMTP=smtp.address if smtp else "",
    )  # fmt: skip


def work_to_the_end(project: Project, smtp: MailServer | None = None) -> None:
    """Start workers, which are killed, until every run has ended."""
    while project.db.execute(
        "select 1 from yamlsched.job_runs where finished_at is null limit 1"
    ).fetchone():
        project.end_leases()
        # runs that snoozed
        project.db.execute("update yamlsched.job_runs set run_at = now() where status = 'queued'")
        worker(project, smtp).wait()


def kill(process: Process) -> None:
    """Kill a worker and its children, as when their host fails."""
    for pid in (process.pid, *process.children()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_user_gets_at_most_one_mail_at_whatever_point_the_worker_is_killed(
    project: Project, smtp: MailServer
) -> None:
    # given two runs for each user, and a kill of the worker at one point for each
    users = [1, 2, 3, 4, 5, 6]
    for user, point in zip(users, POINTS, strict=True):
        for _ in range(2):
            project.enqueue("report", {"user_id": user, "week": WEEK, "point": point})

    work_to_the_end(project, smtp)

    # then all runs succeeded, no user got two mails, and the mails that are missing are in doubt
    assert project.statuses() == {"succeeded": 2 * len(users)}
    assert len(list((project.folder / "marks").iterdir())) >= len(users)  # the kills
    effects = project.db.execute(
        "select key, result, doubted_at from yamlsched.effects order by key"
    ).fetchall()
    names = dict(
        project.db.execute("select id, name || ' <' || email || '>' from app.users").fetchall()
    )
    sent = smtp.by_recipient()
    for user, effect in zip(users, effects, strict=True):
        assert effect.key == f"weekly_report:{user}:{WEEK}"
        assert sent[names[user]] == 1 or (
            sent[names[user]] == 0 and effect.doubted_at is not None
        ), (user, effect)
    for user in (1, 5, 6):  # killed before the effect, or after its record
        assert sent[names[user]] == 1
    recorded = project.db.execute("select count(*) as n from app.sent_reports").fetchone()
    assert recorded.n == sum(effect.result is not None for effect in effects)  # type: ignore[union-attr]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_mail_that_was_accepted_by_a_server_that_becomes_silent_is_sent_once(
    project: Project, smtp: MailServer, is_killed: bool
) -> None:
    # given a server that accepts the mail and does not respond until the sender has disconnected
    gone, states = threading.Event(), []
    query = "select state from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'"

    def on_mail(number: int) -> None:
        with store.connect(project.dsn) as connection:
            states.extend(connection.execute(query.encode()).fetchall())
        if is_killed:
            kill(process)
        assert gone.wait(60)

    smtp.on_mail = on_mail
    [run] = project.enqueue("report", {"user_id": 1, "week": WEEK})

    # when the sender gives up, or is killed
    process = worker(project, smtp)
    if is_killed:
        process.wait()
    else:
        until(lambda: project.failures(run), "the attempt has failed")
    gone.set()
    process.wait()
    work_to_the_end(project, smtp)

    # then this was the only mail, and no transaction was open during the sending
    assert len(smtp.mails) == 1
    assert states == []
    assert (project.row(run).status, project.row(run).attempts) == ("succeeded", 2)
    assert project.row(run).result == {"message_id": None}


def test_two_concurrent_runs_for_one_user_and_week_send_one_mail(
    project: Project, smtp: MailServer
) -> None:
    # given two runs, one of which waits for the server while the other reaches the same mail
    runs = project.enqueue("report", {"user_id": 1, "week": WEEK}, count=2)
    snoozed = "select id from yamlsched.job_runs where status = 'queued' and attempts = 0 and run_at > now()"
    smtp.on_mail = lambda number: until(
        lambda: watch.execute(snoozed).fetchone(), "the other run snoozes"
    )

    with store.connect(project.dsn) as watch:
        worker(project, smtp, concurrency=2).wait()
        work_to_the_end(project, smtp)

    assert len(smtp.mails) == 1
    results = [project.row(run).result for run in runs]
    assert results == [{"message_id": smtp.mails[0]["Message-ID"]}] * 2
    assert [project.row(run).attempts for run in runs] == [1, 1]


def test_an_event_that_is_enqueued_twice_is_posted_under_one_key_at_whatever_point_the_worker_is_killed(
    project: Project, posts: tuple[str, list[tuple[str, str]]]
) -> None:
    url, received = posts
    for nth, point in enumerate((None, *POINTS[:4])):
        for _ in range(2):
            project.enqueue(
                "hook",
                {
                    "point": point,
                    "url": url,
                    "event_id": f"evt_{nth}",
                    "event": "paid",
                    "data": {"n": nth},
                },
            )

    work_to_the_end(project)

    assert project.statuses() == {"succeeded": 10}
    events = Counter(event for event, _ in received)
    assert set(events) == {f"evt_{nth}" for nth in range(5)}
    assert events["evt_0"] == 1
    assert len(set(received)) == 5  # one key for each event
    assert len({key for _, key in received}) == 5


# -- the example schedule


@pytest.fixture
def example(own_dsn: str, tmp_path: Path, smtp: MailServer) -> Callable[..., int]:
    """Run a verb on the example schedule without its cron expressions."""
    text = (ROOT / "schedules.yaml").read_text()
    (tmp_path / "schedules.yaml").write_text(text)
    os.symlink(ROOT / "handlers", tmp_path / "handlers")

    def verb(*words: str) -> int:
        there = {"cwd": tmp_path, "EXAMPLE_SMTP": smtp.address}
        return yamlsched(*words, "--dsn", own_dsn, **there).returncode

    assert verb("sync") == 0
    return verb


def test_two_runs_of_reminders_on_one_day_send_one_mail_for_each_invoice(
    example: Callable[..., int], smtp: MailServer, own_dsn: str
) -> None:
    for _ in range(2):
        assert example("enqueue", "invoice_reminders") == 0
        assert example("work") == 0

    with psycopg.connect(own_dsn) as connection:
        keys = connection.execute("select key from yamlsched.effects").fetchall()
    assert len(smtp.mails) == len(keys) > 2
    assert all(str(mail["Subject"]).startswith("Invoice 8") for mail in smtp.mails)


def test_a_payment_that_differs_from_its_invoice_makes_the_check_dead_and_mails_the_operator(
    example: Callable[..., int], smtp: MailServer, db_of: Callable[[str], Any], own_dsn: str
) -> None:
    assert example("enqueue", "billing_check") == 0
    assert example("work") == 0
    db = db_of(own_dsn)
    db.execute("update app.payments set amount_cents = 1 where invoice_id = 803")

    assert example("enqueue", "billing_check") == 0
    assert example("work") == 1

    rows = db.execute(
        "select status, attempts from yamlsched.job_runs where idempotency_key is null order by id"
    )
    assert rows.fetchall() == [("succeeded", 1), ("dead", 1)]
    [mail] = smtp.mails
    assert mail["To"] == "operator@example.org"
    assert "1 payments differ from their invoices: 803" in str(mail.get_payload())


def test_a_sign_up_that_is_rolled_back_sends_no_mail_and_a_committed_one_sends_one(
    example: Callable[..., int], smtp: MailServer, db_of: Callable[[str], Any], own_dsn: str
) -> None:
    db = db_of(own_dsn)
    with db.transaction():
        app.ensure_tables(db)
    with db.transaction(force_rollback=True):
        signup.sign_up(db, 70, "Emmy", "emmy@example.org")
    signup.sign_up(db, 71, "Grete", "grete@example.org")

    # it waits for three days
    [run] = db.execute(
        "select idempotency_key, run_at - now() as wait from yamlsched.job_runs"
    ).fetchall()
    assert run.idempotency_key == "follow_up:71"
    assert timedelta(days=2, hours=23) < run.wait <= timedelta(days=3)
    assert example("work") == 0
    assert smtp.mails == []

    # then the mail is sent once, although the worker runs twice
    db.execute("update yamlsched.job_runs set run_at = now()")
    assert example("work") == 0
    assert example("work") == 0
    assert [mail["To"] for mail in smtp.mails] == ["Grete <grete@example.org>"]
