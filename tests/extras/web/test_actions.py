"""Actions of the page: what they announce, what they do, and what they answer if somebody else was quicker."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from starlette.authentication import SimpleUser, UnauthenticatedUser
from starlette.testclient import TestClient

from support.forms import SAME_ORIGIN, confirm, hidden, result, review, trail, words
from support.rows import a_job, a_run, row
from yamlsched.act import pause as pausing
from yamlsched.act import runs as actions
from yamlsched.db.query import sql_folder
from yamlsched.extras import web
from yamlsched.extras.web import render
from yamlsched.extras.web.visit import url_under
from yamlsched.handler.once import settle_command

Visit = Callable[..., TestClient]
Db = psycopg.Connection[Any]
MARIA = {"X-Forwarded-User": "maria"}
RESULT = '<p class="result" role="status">'


@pytest.fixture(scope="module")
def pages(page_dsn: str) -> Iterator[TestClient]:
    """The page with actions, without authentication."""
    app = web.app(page_dsn, actions_dsn=page_dsn, namespace="default", auth="none")
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:
        yield client


def state_of(db: Db) -> list[Any]:
    """Return everything that an action could change."""
    tables = ("job_runs", "job_definitions", "operator_actions", "effects", "skipped_slots")
    return [
        db.execute(f"select * from yamlsched.{table} order by 1".encode()).fetchall()
        for table in tables
    ]


# -- retry


def test_retry_announces_what_follows_does_it_once_and_says_so_at_the_run(
    page: TestClient, db: Db
) -> None:
    # given a dead run, whose job has a hook
    run = a_run(db, a_job(db, on_dead=["tell"], max_attempts=3), "dead")

    # when maria asks for a retry
    shown = page.get(f"/actions/retry?run={run}")

    # then the page says what will happen, and nothing has
    said = words(shown)
    assert f"Retry run {run} of purge Dead since" in said
    assert "after OSError: no route to host" in said
    assert "It is queued again." in said
    assert "Attempts so far: 5. It gets 3 more" in said
    assert "If it dies, on_dead runs again: tell." in said
    assert row(db, run).status == "dead"

    # when she confirms
    answer = confirm(page, shown)

    # then it is queued, in her name, and the answer leads to the run
    assert result(answer) == (f"/runs/{run}", f"Run {run} is queued again.")
    assert (row(db, run).status, trail(db)) == ("queued", [("maria", "retry", f"run:{run}")])

    # and a second click does nothing, and says so
    assert result(confirm(page, shown)) == (
        f"/runs/{run}",
        f"Done already, and not repeated: you retried run {run} 0s ago.",
    )
    assert len(trail(db)) == 1


def test_a_double_click_retries_once_even_if_the_run_has_died_again_in_between(
    page: TestClient, db: Db
) -> None:
    run = a_run(db, a_job(db), "dead")
    shown = page.get(f"/actions/retry?run={run}")
    confirm(page, shown)
    db.execute(
        "update yamlsched.job_runs set status = 'dead', finished_at = now(), dead_at = now(), attempts = 6"
        " where id = %s",
        [run],
    )
    assert "Done already" in result(confirm(page, shown))[1]
    assert row(db, run).status == "dead"


def test_two_clicks_at_the_same_time_retry_once(page: TestClient, db: Db, page_dsn: str) -> None:
    # given a form whose first click waits for a lock
    run = a_run(db, a_job(db), "dead")
    shown = page.get(f"/actions/retry?run={run}")
    answers: list[Any] = []
    with psycopg.connect(page_dsn) as other:
        other.execute("select from yamlsched.job_runs where id = %s for update", [run])
        clicks = [
            threading.Thread(target=lambda: answers.append(confirm(page, shown))) for _ in range(2)
        ]
        for click in clicks:
            click.start()

        # when a second one arrives, and then the lock is released
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        while db.execute(waiting).fetchone() != (2,):
            pass
        other.rollback()
    for click in clicks:
        click.join()

    # then both lead to the run, which was retried once
    said = sorted(result(answer)[1] for answer in answers)
    assert [text[:4] for text in said] == ["Done", "Run "]
    assert len(trail(db)) == 1


def test_who_is_later_learns_who_was_quicker(page: TestClient, db: Db) -> None:
    run = a_run(db, a_job(db), "dead")
    shown = page.get(f"/actions/retry?run={run}")
    actions.retry(db, [run], "jonas")
    actions.cancel(db, [run], "jonas")

    answer = confirm(page, shown)

    assert answer.status_code == 409
    assert f"Nothing was done jonas cancelled run {run} 0s ago." in words(answer)
    assert f'href="/actions/retry?run={run}"' in answer.text
    assert row(db, run).status == "cancelled"


def test_a_run_that_a_worker_has_claimed_since_is_not_what_was_confirmed(
    page: TestClient, db: Db
) -> None:
    run = a_run(db, a_job(db), "failed")
    shown = page.get(f"/actions/retry?run={run}")
    db.execute(
        "update yamlsched.job_runs set status = 'running', attempts = 2, locked_until = now() + interval '1m'"
        " where id = %s",
        [run],
    )
    answer = confirm(page, shown)
    assert answer.status_code == 409
    assert f"Run {run} is running: cancel it first." in words(answer)


def test_a_succeeded_run_is_retried_only_if_that_is_ticked(page: TestClient, db: Db) -> None:
    run = a_run(db, a_job(db), "succeeded")
    shown = page.get(f"/actions/retry?run={run}")
    assert "What its handler does without run.once() happens twice." in words(shown)

    again = confirm(page, shown)
    assert again.status_code == 422
    assert "Tick this to run it a second time." in words(again)
    assert row(db, run).status == "succeeded"

    assert result(confirm(page, again, force="1"))[1] == f"Run {run} is queued again."
    assert row(db, run).status == "queued"


@pytest.mark.parametrize(
    ("status", "job", "why"),
    [
        ("running", {}, "It is running: cancel it first."),
        ("dead", {"enabled": False}, "is not enabled in schedules.yaml"),
        ("dead", {"retired_at": "2026-01-01"}, "was removed from schedules.yaml"),
    ],
)
def test_what_cannot_be_retried_says_why_and_has_no_button(
    page: TestClient, db: Db, status: str, job: dict[str, Any], why: str
) -> None:
    run = a_run(db, a_job(db, **job), status)
    shown = page.get(f"/actions/retry?run={run}")
    assert why in words(shown)
    assert "<button" not in shown.text.partition("<main")[2]


def test_a_run_can_be_named_by_its_key_and_one_that_does_not_exist_is_reported_at_the_field(
    page: TestClient, db: Db
) -> None:
    run = a_run(db, a_job(db), "dead", idempotency_key="purge:2026-01-14")
    assert f"Retry run {run} of purge" in words(review(page, "retry", {"run": "purge:2026-01-14"}))
    for name in ("999999", "no such key", "9" * 30):
        answer = review(page, "retry", {"run": name})
        assert answer.status_code == 422
        assert '<p class="error" id="e-run">' in answer.text
    assert "This is needed." in words(review(page, "retry", {"run": ""}))


def test_a_run_of_another_namespace_is_not_there(page: TestClient, db: Db) -> None:
    run = a_run(db, a_job(db, namespace="other"), "dead")
    assert page.get(f"/actions/retry?run={run}").status_code == 422
    given = {
        "run": str(run),
        "was": "dead",
        "confirm": "1",
        "seen": "0",
        "request": "0" * 8 + "-0000-4000-8000-" + "0" * 12,
    }
    assert page.post("/actions/retry", data=given, headers=SAME_ORIGIN).status_code == 409
    assert row(db, run).status == "dead"


# -- cancel


def test_cancel_says_when_a_running_handler_is_killed_and_records_the_reason(
    page: TestClient, db: Db
) -> None:
    run = a_run(db, a_job(db), "running")
    shown = page.get(f"/actions/cancel?run={run}")
    assert "It is cancelled; it is stopped at its worker's next heartbeat." in words(shown)
    assert result(confirm(page, shown, reason="<b>wrong customer</b>")) == (
        f"/runs/{run}",
        f"Run {run} is cancelled; it is stopped at its worker's next heartbeat.",
    )
    [(who, detail)] = db.execute("select who, detail from yamlsched.operator_actions").fetchall()
    assert (who, detail) == ("maria", {"was": "running", "reason": "<b>wrong customer</b>"})
    assert "&lt;b&gt;wrong customer&lt;/b&gt;" in page.get("/actions").text


def test_a_run_that_is_over_cannot_be_cancelled(page: TestClient, db: Db) -> None:
    run = a_run(db, a_job(db), "succeeded")
    assert "It is over." in words(page.get(f"/actions/cancel?run={run}"))


# -- pause and resume


def test_a_pause_needs_a_reason_says_how_its_end_was_read_and_which_slots_are_not_run(
    page: TestClient, db: Db
) -> None:
    a_job(db, timezone="Europe/Berlin", schedule="0 2 * * *")

    # given a link to the form: it asks for a reason
    asked = page.get("/actions/pause?job=purge")
    assert "Pause a job: purge" in words(asked)
    assert "This is needed." in words(review(page, "pause", {"job": "purge", "reason": " "}))

    # when an end cannot be read, then the form says what to write, and keeps the reason
    wrong = review(page, "pause", {"job": "purge", "reason": "disk full", "until": "someday"})
    assert wrong.status_code == 422
    assert '"someday" is not a valid time: write a date such as' in words(wrong)
    assert 'value="disk full"' in wrong.text
    assert "has passed: write a later time." in words(
        review(page, "pause", {"job": "purge", "reason": "x", "until": "2020-01-01T00:00Z"})
    )

    # when it is valid, then the page shows its instant and the slots
    shown = review(
        page, "pause", {"job": "purge", "reason": "disk full", "until": "2036-01-14T02:30"}
    )
    assert "It stays paused until Mon 2036-01-14 02:30 CET." in words(shown)
    assert "1,000+ slots of the pause are recorded as skipped, and not run." in words(shown)

    # and confirmed, it pauses until then, and the page of the job says so
    answer = confirm(page, shown)
    assert result(answer)[0] == "/jobs/purge"
    path, _, query = answer.headers["location"].partition("?")
    said = page.get(f"{path}?{query}")
    assert RESULT in said.text
    assert "purge is paused, until Mon 2036-01-14 02:30 CET" in words(said)
    [found] = db.execute(
        "select paused_by, paused_reason, paused_until::text from yamlsched.job_definitions"
    ).fetchall()
    assert tuple(found) == ("maria", "disk full", "2036-01-14 01:30:00+00")


def test_change_leads_back_to_the_form_with_its_values(page: TestClient, db: Db) -> None:
    a_job(db)
    shown = review(page, "pause", {"job": "purge", "reason": "disk full", "until": "2h"})
    form = review(page, "pause", {**hidden(shown), "edit": "1"})
    assert form.status_code == 200
    assert 'value="disk full"' in form.text
    assert 'value="2h"' in form.text


def test_two_people_who_pause_a_job_do_not_replace_each_others_reason(
    page: TestClient, db: Db
) -> None:
    job = a_job(db)
    shown = review(page, "pause", {"job": "purge", "reason": "mine", "until": ""})
    pausing.pause(db, "default", [job], "jonas", reason="the first")
    answer = confirm(page, shown)
    assert answer.status_code == 409
    assert "jonas paused job purge 0s ago." in words(answer)
    form = page.get("/actions/pause?job=purge")
    assert (
        "It is paused by jonas, until it is resumed; reason: the first. This form replaces that."
        in words(form)
    )


def test_resume_names_the_pause_and_ends_it(page: TestClient, db: Db) -> None:
    job = a_job(db)
    a_run(db, job)
    # it creates the run of the slot before
    pausing.pause(db, "default", [job], "jonas", reason="the disk is full")
    shown = page.get("/actions/resume?job=purge")
    assert "Paused by jonas, until it is resumed; reason: the disk is full" in words(shown)
    assert "2 runs that wait can start at once, if due." in words(shown)
    assert result(confirm(page, shown)) == ("/jobs/purge", "purge resumed.")
    assert "It is not paused." in words(page.get("/actions/resume?job=purge"))


def test_a_job_that_does_not_exist_is_reported_with_the_closest_name(
    page: TestClient, db: Db
) -> None:
    a_job(db)
    answer = review(page, "pause", {"job": "purgee", "reason": "x"})
    assert answer.status_code == 422
    assert 'Did you mean "purge"?' in words(answer)


# -- who


def test_without_authentication_the_user_of_the_process_is_recorded(
    pages: TestClient, db: Db
) -> None:
    run = a_run(db, a_job(db), "dead")
    shown = pages.get(f"/actions/retry?run={run}")
    assert f"Recorded in the audit trail as web ({actions.operator()})." in words(shown)
    confirm(pages, shown)
    assert trail(db) == [(f"web ({actions.operator()})", "retry", f"run:{run}")]


# -- what is refused


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"},
        {"Origin": "http://localhost.evil.example"},
        {"Referer": "http://localhost/actions/retry"},
    ],
)
def test_a_forged_form_changes_nothing(page: TestClient, db: Db, headers: dict[str, str]) -> None:
    run = a_run(db, a_job(db), "dead")
    fields = {**hidden(page.get(f"/actions/retry?run={run}")), "confirm": "1"}
    before = state_of(db)
    assert page.post("/actions/retry", data=fields, headers=headers).status_code == 403
    assert state_of(db) == before


def test_no_get_changes_anything(page: TestClient, db: Db) -> None:
    run = a_run(db, a_job(db), "dead")
    fields = {**hidden(page.get(f"/actions/retry?run={run}")), "confirm": "1", "force": "1"}
    before = state_of(db)
    for name, given in {
        "retry": fields,
        "cancel": fields,
        "pause": {"job": "purge", "reason": "x", "confirm": "1"},
    }.items():
        for method in ("GET", "HEAD"):
            assert (
                page.request(
                    method, f"/actions/{name}", params=given, headers=SAME_ORIGIN
                ).status_code
                == 200
            )
    assert state_of(db) == before


@pytest.mark.parametrize(
    ("body", "kind", "status", "why"),
    [
        (b"run=1&run=2", None, 400, 'the field "run" occurs twice'),
        (b"run=1&was=dead&confirm=1&confirm=1", None, 400, 'the field "confirm" occurs twice'),
        (b"run=1&colour=red", None, 400, 'it has no field "colour"'),
        (b"run=%ff", None, 400, "its fields cannot be read"),
        (b"run=\xff", None, 400, "its fields cannot be read"),
        (b"run=%00", None, 400, "NUL"),
        (b"run=" + b"1" * 501, None, 400, "longer than 500 characters"),
        (b"&".join([b"a=b"] * 41), None, 400, "its fields cannot be read"),
        (b"run=" + b"a" * 262_145, None, 413, "over 256 KiB"),
        (b'{"run": 1}', "application/json", 415, "its type is not"),
        (b"run=1", "text/plain", 415, "its type is not"),
        (b"run=1", "application/x-www-form-urlencoded; charset=utf-16", 415, "its type is not"),
        (b"", "multipart/form-data; boundary=x", 415, "its type is not"),
        (b"run=1&was=dead&confirm=1", None, 400, "not a form of a page of yamlsched"),
        (
            b"run=1&was=dead&confirm=1&seen=0&request=x",
            None,
            400,
            "not a form of a page of yamlsched",
        ),
        (
            b"run=1&was=dead&confirm=1&seen=-1&request=00000000-0000-4000-8000-000000000000",
            None,
            400,
            "not a form",
        ),
    ],
)
def test_what_no_form_of_the_page_sends_is_refused_in_words(
    page: TestClient, db: Db, body: bytes, kind: str | None, status: int, why: str
) -> None:
    headers = {**SAME_ORIGIN, "Content-Type": kind or "application/x-www-form-urlencoded"}
    answer = page.post("/actions/retry", content=body, headers=headers)
    assert answer.status_code == status
    assert why in words(answer)


def test_a_body_without_a_length_is_not_read_beyond_the_limit(page: TestClient, db: Db) -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        for _ in range(64):
            read += 1
            yield b"a" * 65_536

    headers = {**SAME_ORIGIN, "Content-Type": "application/x-www-form-urlencoded"}
    assert page.post("/actions/retry", content=endless(), headers=headers).status_code == 413


@pytest.mark.parametrize(
    "fields",
    [{"was": "asleep"}, {"was": ""}, {"run": "x"}, {"run": "9" * 25}, {"was": "dead", "run": "0"}],
)
def test_hidden_fields_that_were_changed_are_refused(
    page: TestClient, db: Db, fields: dict[str, str]
) -> None:
    run = a_run(db, a_job(db), "dead")
    before = state_of(db)
    answer = confirm(page, page.get(f"/actions/retry?run={run}"), **fields)
    assert answer.status_code in (409, 422)
    assert state_of(db) == before


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_a_read_only_page_has_no_buttons_and_no_forms(
    visit: Visit, page_dsn: str, db: Db, options: dict[str, Any]
) -> None:
    a_job(db)
    actions_dsn = page_dsn if options else None
    page = visit(page_dsn, namespace="default", actions_dsn=actions_dsn, **options)
    assert "/actions/" not in page.get("/actions").text
    for method in ("GET", "POST"):
        answer = page.request(method, "/actions/retry", headers=SAME_ORIGIN)
        assert answer.status_code == 403
        assert "This page is read-only" in words(answer)


def test_a_role_that_may_only_read_changes_nothing_whatever_is_sent(
    visit: Visit, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    db = db_of(own_dsn)
    db.execute((sql_folder() / "roles.sql").read_bytes())
    reader = make_conninfo(own_dsn, options="-c role=yamlsched_reader")
    job = a_job(db)
    run = a_run(db, job, "dead")
    waiting = a_run(db, job)
    page = visit(reader, actions_dsn=reader, namespace="default")
    before = state_of(db)
    forms = [
        page.get(f"/actions/retry?run={run}"),
        page.get(f"/actions/cancel?run={waiting}"),
        review(page, "pause", {"job": "purge", "reason": "x"}),
    ]
    for form in forms:
        answer = confirm(page, form)
        assert answer.status_code == 403
        assert "The role of the actions DSN may not do this: permission denied" in words(answer)
        assert "Grant it yamlsched_worker" in words(answer)
    assert state_of(db) == before


def test_the_worker_role_suffices(visit: Visit, own_dsn: str, db_of: Callable[[str], Any]) -> None:
    db = db_of(own_dsn)
    db.execute((sql_folder() / "roles.sql").read_bytes())
    reader, worker = (
        make_conninfo(own_dsn, options=f"-c role=yamlsched_{role}") for role in ("reader", "worker")
    )
    run = a_run(db, a_job(db), "dead")
    page = visit(reader, actions_dsn=worker, namespace="default")
    result(confirm(page, page.get(f"/actions/retry?run={run}")))
    result(confirm(page, page.get(f"/actions/cancel?run={run}")))
    result(confirm(page, review(page, "pause", {"job": "purge", "reason": "x"})))
    result(confirm(page, page.get("/actions/resume?job=purge")))
    assert [verb for _, verb, _ in trail(db)] == ["retry", "cancel", "pause", "resume"]


def test_a_lost_session_does_not_do_an_action_twice_or_never(
    visit: Visit, page_dsn: str, db: Db
) -> None:
    run = a_run(db, a_job(db), "dead")
    other = a_run(db, a_job(db, "other"), "dead")
    page = visit(
        page_dsn,
        actions_dsn=make_conninfo(page_dsn, application_name="acting"),
        namespace="default",
    )
    confirm(page, page.get(f"/actions/retry?run={run}"))
    shown = page.get(f"/actions/retry?run={other}")
    db.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'acting'"
    )
    assert result(confirm(page, shown))[1] == f"Run {other} is queued again."
    assert len(trail(db)) == 2


# -- the message


def test_a_message_that_the_page_did_not_sign_or_for_another_page_is_not_shown(
    page: TestClient, db: Db
) -> None:
    a_job(db)
    a_job(db, "other")
    shown = review(page, "pause", {"job": "purge", "reason": "x"})
    parameter = confirm(page, shown).headers["location"].partition("?result=")[2]
    assert RESULT in page.get("/jobs/purge", params={"result": parameter}).text
    for path, given in (
        ("/jobs/other", parameter),
        ("/jobs/purge", parameter[:-1] + ("0" if parameter[-1] != "0" else "1")),
        ("/jobs/purge", "a" + parameter),
        ("/jobs/purge", "é.é"),
        ("/jobs/purge", "."),
        ("/jobs/purge", "x" * 20_000),
    ):
        answer = page.get(path, params={"result": given})
        assert answer.status_code == 200
        assert 'class="result' not in answer.text


def test_hostile_text_in_a_form_is_shown_escaped(page: TestClient, db: Db) -> None:
    a_job(db)
    hostile = "<script>alert(1)</script>\"'\x1b[31m\u202e"
    shown = review(page, "pause", {"job": "purge", "reason": hostile})
    assert "<script>alert" not in shown.text
    assert "\x1b" not in shown.text.partition("<form")[0]
    assert "\\x1b[31m\\u202e" in html.unescape(shown.text)


def test_an_action_that_does_not_exist_has_a_page_that_says_so(page: TestClient) -> None:
    assert page.get("/actions/explode").status_code == 404
    assert page.post("/actions/explode", headers=SAME_ORIGIN).status_code == 404


def test_a_run_can_be_retried_with_another_payload(page: TestClient, db: Db) -> None:
    run = a_run(db, a_job(db), "dead", payload=Jsonb({"customer": "12"}))
    shown = page.get(f"/actions/retry?run={run}")

    form = review(page, "retry", {**hidden(shown), "edit": "1"})
    assert html.escape('"customer": "12"', quote=True).replace("&quot;", "&#34;") in form.text

    wrong = review(page, "retry", {**hidden(form), "payload": '{"customer": 12'})
    assert wrong.status_code == 422
    assert "invalid JSON where it ends" in words(wrong)

    changed = review(page, "retry", {**hidden(form), "payload": '{"customer": 12}'})
    assert 'Its payload is now {"customer": 12}, instead of {"customer": "12"}.' in words(changed)
    assert result(confirm(page, changed))[1] == f"Run {run} is queued again."
    assert row(db, run).payload == {"customer": 12}


class DjangoUser:
    is_authenticated = True

    def __str__(self) -> str:
        return "jörg"


@pytest.mark.parametrize(
    ("user", "recorded"),
    [
        (SimpleUser("jörg"), "jörg"),
        (DjangoUser(), "jörg"),
        (UnauthenticatedUser(), None),
        (SimpleUser("a\x1bb"), None),
    ],
)
def test_in_an_application_that_authenticates_its_user_is_recorded(
    page_dsn: str, db: Db, user: Any, recorded: str | None
) -> None:
    own = web.app(page_dsn, actions_dsn=page_dsn, namespace="default", auth="none")

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await own({**scope, "user": user}, receive, send)

    run = a_run(db, a_job(db), "dead")
    page = TestClient(application, base_url="http://localhost", follow_redirects=False)
    confirm(page, page.get(f"/actions/retry?run={run}"))
    assert trail(db) == [(recorded or f"web ({actions.operator()})", "retry", f"run:{run}")]


@pytest.mark.parametrize("kept", ["/scheduler", ""])
def test_behind_a_proxy_forms_and_results_are_below_the_prefix(
    visit: Visit, page_dsn: str, db: Db, kept: str
) -> None:
    a_job(db)
    page = visit(page_dsn, actions_dsn=page_dsn, namespace="default", base_path="/scheduler")
    shown = page.post(
        f"{kept}/actions/pause", data={"job": "purge", "reason": "disk full"}, headers=SAME_ORIGIN
    )
    assert '<form method="post" action="/scheduler/actions/pause">' in shown.text
    answer = page.post(
        f"{kept}/actions/pause", data={**hidden(shown), "confirm": "1"}, headers=SAME_ORIGIN
    )
    location = answer.headers["location"]
    assert location.startswith("/scheduler/jobs/purge?result=")
    assert RESULT in page.get(location.removeprefix("/scheduler") if not kept else location).text


# -- next steps


CLOCK = render.Clock("UTC", datetime(2026, 1, 14, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "link", "label"),
    [
        (
            "it waits until the job is resumed: yamlsched resume purge.",
            "/actions/resume?job=purge",
            "resume purge",
        ),
        ("Run 7 is dead: yamlsched retry 7.", "/actions/retry?run=7", "retry run 7"),
        ("Wait until it ends; yamlsched cancel 7 ends it", "/actions/cancel?run=7", "cancel run 7"),
        (
            settle_command("shop", "run:7:it's"),
            "/actions/settle?key=run%3A7%3Ait%27s",
            "settle run:7:it's",
        ),
        (settle_command("default", "-x"), "/actions/settle?key=-x", "settle -x"),
        ("see yamlsched show 7", "/runs/7", "show run 7"),
    ],
)
def test_a_command_in_a_message_is_a_link_to_the_page_that_does_the_same(
    text: str, link: str, label: str
) -> None:
    def shown(has_actions: bool) -> str:
        template = render.environment().from_string("{{ text|steps }}")
        return template.render(text=text, url=url_under(""), has_actions=has_actions, clock=CLOCK)

    [linked] = re.findall(r'<a href="([^"]*)" class="command">([^<]*)</a>', shown(True))
    assert tuple(map(html.unescape, linked)) == (link, label)
    assert "yamlsched" not in shown(True)
    # a page that changes nothing names the command
    assert link == "/runs/7" or "<code>yamlsched" in shown(False)


def test_a_message_is_escaped_around_its_commands() -> None:
    template = render.environment().from_string("{{ text|steps }}")
    text = "<b>\u202e; yamlsched retry 7x; yamlsched settle --done '<i>' (or --not-done); yamlsched doctor"
    shown = template.render(text=text, url=url_under(""), has_actions=True, clock=CLOCK)
    assert shown == (
        "&lt;b&gt;\\u202e; yamlsched retry 7x; "
        '<a href="/actions/settle?key=%3Ci%3E" class="command">settle &lt;i&gt;</a>; <code>yamlsched doctor</code>'
    )


def test_a_retry_that_waits_for_a_pause_leads_to_its_end(page: TestClient, db: Db) -> None:
    job = a_job(db)
    run = a_run(db, job, "dead")
    pausing.pause(db, "default", [job], "jonas")
    done = confirm(page, page.get(f"/actions/retry?run={run}"))
    assert (
        '<a href="/actions/resume?job=purge" class="command">resume purge</a>'
        in page.get(done.headers["location"]).text
    )
