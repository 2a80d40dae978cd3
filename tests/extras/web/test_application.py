"""Pages under all circumstances: errors in words, ETags, fragments, static files, sessions."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from support.forms import SAME_ORIGIN, confirm, hidden, review
from support.project import until
from support.rows import a_job, a_place, a_run
from yamlsched.db import migrations
from yamlsched.db.query import sql_folder
from yamlsched.errors import EnvironmentFailed
from yamlsched.extras import web
from yamlsched.extras.web import pool
from yamlsched.extras.web.pages import PAGES, home, namespaces
from yamlsched.extras.web.pool import READER_SETTINGS, Pool

Visit = Callable[..., TestClient]
OWN = migrations.latest_version()


def next_minute() -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)


def test_a_database_that_cannot_be_reached_is_reported_without_the_password(visit: Visit) -> None:
    answer = visit("postgresql://reader:hunter2hunter2@127.0.0.1:1/app", namespace="default").get(
        "/"
    )
    assert answer.status_code == 503
    assert "No connection to the database" in answer.text
    assert "Connection refused" in answer.text
    # and the page says what happened, keeps its menu, and asks again by itself
    assert "<h1>The database is down or cannot be reached.</h1>" in answer.text
    assert 'href="/nights"' in answer.text
    assert 'action="/find"' in answer.text
    assert '<div id="unavailable" data-refresh>' in answer.text
    assert "This page tries again every 10 seconds." in answer.text
    assert answer.headers["Retry-After"] == "10"
    assert "hunter2" not in answer.text


def test_a_dsn_that_is_not_valid_is_reported_without_showing_it(visit: Visit) -> None:
    answer = visit("postgresql://reader:hunter2hunter2@[app", namespace="default").get("/")
    assert answer.status_code == 503
    assert "the DSN cannot be parsed" in answer.text.replace("The DSN", "the DSN")
    assert "hunter2" not in answer.text


def test_a_database_without_tables_says_which_command_creates_them(
    visit: Visit, empty_dsn: str
) -> None:
    answer = visit(empty_dsn).get("/")
    assert answer.status_code == 503
    assert "yamlsched migrate" in answer.text
    assert "The database is down" not in answer.text


@pytest.mark.parametrize(
    ("made_for", "change", "said"),
    [
        (
            OWN + 1,
            "drop view yamlsched.job_queues cascade",
            f"The database has tables of version {OWN} of {OWN + 1}: run &#34;yamlsched migrate&#34;.",
        ),
        (
            OWN,
            "insert into yamlsched.migrations (version, name, checksum) "
            f"values ({OWN + 1}, '9_x', ''); "
            "alter view yamlsched.job_health rename column queued to waiting",
            f"and this one works with version {OWN}: upgrade yamlsched on this host.",
        ),
        (
            OWN,
            "update yamlsched.migrations set checksum = 'other' where version = 1; "
            "alter view yamlsched.job_health rename column queued to waiting",
            "migration 0001_schema was applied from a different file",
        ),
        (
            OWN,
            "drop schema yamlsched cascade",
            "has no tables of yamlsched yet: run &#34;yamlsched migrate&#34;.",
        ),
    ],
)
def test_tables_of_another_version_are_named_with_what_to_do(
    visit: Visit,
    own_dsn: str,
    db_of: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    made_for: int,
    change: str,
    said: str,
) -> None:
    running = visit(own_dsn, namespace="default")
    assert running.get("/").status_code == 200
    monkeypatch.setattr(migrations, "latest_version", lambda: made_for)
    db_of(own_dsn).execute(change.encode())
    for page in (
        running,
        visit(own_dsn, namespace="default"),
    ):  # with a session from before, and a new one
        answer = page.get("/")
        assert answer.status_code == 503
        assert said.lower() in answer.text.lower()
        assert "once the database answers" not in answer.text
        assert "column" not in answer.text.lower()


def test_several_namespaces_must_be_told_apart(visit: Visit, page_dsn: str, db: Any) -> None:
    a_job(db, namespace="billing")
    a_job(db, namespace="shop")
    page = visit(page_dsn, actions_dsn=page_dsn)
    as_json = page.get("/runs", headers={"Accept": "application/json"})
    for answer in (as_json, page.get("/actions/retry?run=1")):
        assert answer.status_code == 400
        assert "several namespaces (billing, shop): pass --namespace" in answer.text
    assert visit(page_dsn, namespace="shop").get("/").status_code == 200


def test_a_search_from_an_error_page_without_a_namespace_goes_on_in_the_one_that_is_chosen(
    visit: Visit, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    # given an error page that belongs to no namespace
    db = db_of(own_dsn)
    for name in ("billing", "shop"):
        a_job(db, "stock_report", namespace=name)
    page = visit(own_dsn, base_path="/scheduler")
    lost = page.get("/scheduler/nothing").text
    [box] = re.findall(r'<form role="search" method="get" action="([^"]*)"', lost)

    # when somebody searches in its box
    found = page.get(box, params={"q": "stock & more"})

    # then there is a link for each namespace, which keeps the words
    assert found.status_code == 200
    assert "2 namespaces, 2 with problems: choose the one to look in" in found.text
    links = [html.unescape(link) for link in re.findall(r'class="name" href="([^"]*)"', found.text)]
    assert links == [f"/scheduler/@{name}/find?q=stock+%26+more" for name in ("billing", "shop")]
    assert "Nothing contains stock &amp; more" in page.get(links[1]).text
    # and likewise for the pages of the menu
    assert '"/scheduler/@shop/runs?status=dead"' in page.get("/scheduler/runs?status=dead").text


def test_one_of_several_namespaces_is_chosen_by_the_url(
    visit: Visit, page_dsn: str, db: Any
) -> None:
    a_job(db, "invoice", namespace="billing")
    a_job(db, "stock", namespace="shop")
    a_place(db, namespace="shop")
    page = visit(page_dsn, base_path="/scheduler")

    # given none, the list, worst first: there was no tick for billing
    for path in ("/scheduler/", "/scheduler/namespaces"):
        shown = page.get(path).text
        listed = re.findall(r'class="name" href="([^"]*)"', shown)
        assert listed == ["/scheduler/@billing/", "/scheduler/@shop/"]
        assert "there has been no tick" in shown
    # then the pages of one keep it in their links, and lead to the others
    home_page = page.get("/scheduler/@shop/").text
    assert "stock" in home_page
    assert "invoice" not in home_page
    links = re.findall(r'<a [^>]*href="([^"#]*)"', home_page)
    assert {"/scheduler/@billing/", "/scheduler/@shop/runs", "/scheduler/namespaces"} <= set(links)
    for link in links:
        assert page.get(html.unescape(link)).status_code == 200, link
    assert '"/scheduler/@billing/runs"' in page.get("/scheduler/@shop/runs").text
    redirect = page.get("/scheduler/@shop")
    assert redirect.headers["location"].endswith("/scheduler/@shop/")
    # an unknown one, and one that is not valid
    assert "no namespace &#34;nothing&#34;" in page.get("/scheduler/@nothing/").text
    assert page.get("/scheduler/@Shop/").status_code == 404


def test_all_namespaces_are_found_page_by_page_and_by_name(
    visit: Visit, page_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given seven namespaces on pages of three, of which the last by name has a problem
    monkeypatch.setattr(namespaces, "PAGE_NAMESPACES", 3)
    names = [f"web{number}" for number in range(7)]
    for name in names:
        a_job(db, "report", namespace=name)
        a_place(db, namespace=name, host=name)
    a_run(db, a_job(db, "purge", namespace="web6"), "dead")
    a_job(db, "report", namespace="web4_old", retired_at=next_minute())
    page = visit(page_dsn)

    # when each page is followed by the link to the next one
    shown, path = [], "/namespaces"
    while True:
        text = page.get(path).text
        assert "7 namespaces, 1 with problems" in text
        shown += re.findall(r'class="name" href="/@([^/"]*)/"', text)
        following = re.search(r'href="([^"]*)" rel="next"', text)
        if following is None:
            break
        path = html.unescape(following[1])

    # then each is shown once, the worst first
    assert shown == ["web6", *names[:6]]
    # and a search finds those that are not in use as well
    found = page.get("/namespaces?name=WEB4").text
    assert re.findall(r'class="name" href="/@([^/"]*)/"', found) == ["web4"]
    assert "1 namespace without jobs, unfinished runs and hosts: web4_old" in found
    assert "No namespace matches" in page.get("/namespaces?name=nothing").text


def test_a_page_of_a_given_namespace_shows_no_other(visit: Visit, page_dsn: str, db: Any) -> None:
    a_job(db, "invoice", namespace="billing")
    a_job(db, "stock", namespace="shop")
    page = visit(page_dsn, namespace="shop")
    assert "billing" not in page.get("/").text
    for path in ("/@billing/", "/@shop/", "/namespaces"):
        assert page.get(path).status_code == 404


def test_an_action_stays_in_the_namespace_of_its_page(visit: Visit, page_dsn: str, db: Any) -> None:
    for namespace in ("billing", "shop"):
        a_job(db, "report", namespace=namespace)
    page = visit(page_dsn, actions_dsn=page_dsn)
    form = page.get("/@shop/actions/pause?job=report")
    [path] = re.findall(r'<form method="post" action="([^"]*)"', form.text)
    review = page.post(
        path, data={**hidden(form), "job": "report", "reason": "stocktaking"}, headers=SAME_ORIGIN
    )
    done = confirm(page, review)
    assert done.headers["location"].startswith("/@shop/jobs/report?result=")
    assert "stocktaking" in page.get(done.headers["location"]).text
    assert db.execute(
        "select namespace from yamlsched.job_definitions where paused_at is not null"
    ).fetchall() == [("shop",)]


@pytest.mark.parametrize(
    "limit", ["statement_timeout=150ms -c lock_timeout=0", "lock_timeout=50ms"]
)
def test_a_statement_that_takes_too_long_is_cancelled_and_the_page_says_so(
    visit: Visit, page_dsn: str, limit: str
) -> None:
    page = visit(make_conninfo(page_dsn, options=f"-c {limit}"))
    with psycopg.connect(page_dsn) as other:
        other.execute("lock table yamlsched.job_definitions")
        answer = page.get("/")
        other.rollback()
    assert answer.status_code == 504
    assert "longer than the time limit" in answer.text
    assert page.get("/").status_code == 200


def test_the_time_limit_is_two_seconds(page_dsn: str) -> None:
    with Pool(page_dsn, 1, READER_SETTINGS).transaction() as session:
        [[limit]] = session.execute("select current_setting('statement_timeout')").fetchall()
    assert limit == "2s"


def test_tables_that_no_longer_support_this_page_end_the_use_of_open_sessions(
    own_dsn: str, db_of: Callable[[str], Any], visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given sessions that have answered and acted, and a form that is ready to be confirmed
    db = db_of(own_dsn)
    for name in ("first", "second"):
        a_job(db, name)
    page = visit(own_dsn, namespace="default", actions_dsn=own_dsn)
    first, second = (
        review(page, "pause", {"job": name, "reason": "x"}) for name in ("first", "second")
    )
    assert confirm(page, first).status_code == 303

    # when a newer yamlsched migrates the tables, so that this one stops
    db.execute(
        "insert into yamlsched.migrations (version, name, checksum) values (9999, '9999_x', '')"
    )

    # then nothing is done, and nothing is shown
    assert confirm(page, second).status_code == 503
    assert db.execute("select target from yamlsched.operator_actions").fetchall() == [
        ("job:first",)
    ]
    answer = page.get("/")
    assert answer.status_code == 503
    assert "upgrade yamlsched on this host" in answer.text


def test_a_page_survives_the_restart_of_the_server(visit: Visit, page_dsn: str) -> None:
    page = visit(make_conninfo(page_dsn, application_name="restarted"))
    assert page.get("/").status_code == 200
    with psycopg.connect(page_dsn, autocommit=True) as other:
        ended = other.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'restarted'"
        ).fetchall()
    assert ended == [(True,)]
    assert page.get("/").status_code == 200


def test_the_role_of_readers_suffices_for_each_page(
    visit: Visit, own_dsn: str, db_of: Callable[[str], Any]
) -> None:
    db = db_of(own_dsn)
    db.execute((sql_folder() / "roles.sql").read_bytes())
    job = a_job(db, notify=["chat"])
    run = a_run(db, job, "dead")
    page = visit(make_conninfo(own_dsn, options="-c role=yamlsched_reader"))
    paths = [each.path for each in PAGES if "{" not in each.path and each.path != "/find"]
    for path in (*paths, "/jobs/purge", f"/runs/{run}", "/find?q=pur", "/why?job=purge"):
        assert page.get(path).status_code == 200, path

    answer = visit(
        make_conninfo(own_dsn, options="-c role=yamlsched_enqueuer"), namespace="default"
    ).get("/")
    assert answer.status_code == 503
    assert "Grant it yamlsched_reader" in answer.text


def test_the_session_of_a_page_cannot_write_even_with_an_owner_role(page_dsn: str) -> None:
    with (
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        Pool(page_dsn, 1, READER_SETTINGS).transaction() as session,
    ):
        session.execute("insert into yamlsched.namespaces values ('x')")


def test_requests_share_a_bounded_number_of_sessions(
    page_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Pool(page_dsn, 2, READER_SETTINGS)
    with shared.transaction() as first, shared.transaction() as second:
        monkeypatch.setattr(pool, "WAIT_SECONDS", 0.05)
        with pytest.raises(EnvironmentFailed, match="all 2 sessions"), shared.transaction():
            pass
    monkeypatch.undo()
    with shared.transaction() as again:
        assert again in (first, second)
    shared.close()
    assert first.closed
    assert second.closed


def test_sessions_that_nobody_needs_are_closed(
    page_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.02)
    shared = Pool(page_dsn, 2, READER_SETTINGS)
    with shared.transaction() as first, shared.transaction():
        monkeypatch.setattr(first, "close", lambda close=first.close: (close(), closed.set()))
    assert closed.wait(10)
    assert first.closed
    with shared.transaction() as another:
        assert another is not first
    shared.close()


def test_a_request_that_waits_for_a_session_gets_it_before_one_that_comes_later(
    page_dsn: str,
) -> None:
    shared = Pool(page_dsn, 1, READER_SETTINGS)
    order = []

    def request() -> None:
        with shared.transaction():
            order.append("waiting")

    with ThreadPoolExecutor(1) as threads:
        with shared.transaction():
            waiting = threads.submit(request)
            until(lambda: shared._sessions.get_stats()["requests_waiting"] == 1)
        with shared.transaction():
            order.append("later")
        waiting.result()
    shared.close()
    assert order == ["waiting", "later"]


def test_sessions_that_the_server_has_ended_are_replaced_in_one_request(page_dsn: str) -> None:
    shared = Pool(page_dsn, 3, READER_SETTINGS)
    with ExitStack() as stack:
        sessions = [stack.enter_context(shared.transaction()) for _ in range(3)]
    with psycopg.connect(page_dsn, autocommit=True) as other:
        for session in sessions:
            other.execute("select pg_terminate_backend(%s, 5000)", (session.info.backend_pid,))
    with shared.transaction() as session:
        assert session.execute("select 1").fetchall() == [(1,)]
    shared.close()


def test_open_sessions_are_used_while_no_more_can_be_opened(
    page_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server whose limit of connections is reached with the first session
    shared = Pool(page_dsn, 2, READER_SETTINGS)
    with shared.transaction() as first:
        monkeypatch.setattr(
            pool.db, "connect", Mock(side_effect=EnvironmentFailed("too many clients"))
        )
        with pytest.raises(EnvironmentFailed, match="too many clients"), shared.transaction():
            pass

    # then requests that come one by one have it, in whatever order the pool keeps what it has
    for _ in range(4):
        with shared.transaction() as session:
            assert session is first
    shared.close()


def test_a_failed_connection_is_not_tried_again_by_each_waiting_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def connect(dsn: str, settings: Any) -> Any:
        tried.append(dsn)
        raise EnvironmentFailed("no connection to the database: refused")

    monkeypatch.setattr(pool.db, "connect", connect)
    shared = Pool("dbname=x", 2, READER_SETTINGS)
    for _ in range(3):
        with pytest.raises(EnvironmentFailed, match="refused"), shared.transaction():
            pass
    assert len(tried) == 1


def stop_clock(monkeypatch: pytest.MonkeyPatch, at: datetime) -> None:
    """Let `/` be a page of this instant: with the next minute, it would be another one."""
    read = home.health.read
    monkeypatch.setattr(home.health, "read", lambda *given: replace(read(*given), now=at))


def test_a_page_that_the_browser_has_is_not_sent_again(
    visit: Visit, page_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch, next_minute())
    page, fragment = (
        visit(page_dsn),
        {"Yamlsched-Fragment": "1"},
    )  # without the footer, which has the time
    first = page.get("/", headers=fragment)
    again = page.get("/", headers={**fragment, "If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]

    a_job(db, "fresh")
    changed = page.get(
        "/", headers={**fragment, "If-None-Match": f'W/"other", {first.headers["etag"]}'}
    )
    assert changed.status_code == 200
    assert "fresh" in changed.text


def test_a_page_that_only_grows_older_is_not_sent_again(
    visit: Visit, page_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given runs that ended minutes ago, and a tick a few seconds ago
    start = next_minute()
    a_place(db, seen_at=start)
    for number in range(20):
        a_run(
            db,
            a_job(db, f"job_{number}"),
            "succeeded",
            finished_at=start - timedelta(seconds=83 * number + 122),
        )

    def read_at(seconds: int) -> Any:
        stop_clock(monkeypatch, start + timedelta(seconds=seconds))
        return visit(page_dsn).get("/", headers={"Yamlsched-Fragment": "1"}).headers["etag"]

    # then what a minute of the clock shows is one page
    assert len({read_at(seconds) for seconds in range(0, 60, 10)}) == 1
    assert read_at(59) != read_at(60)


def test_the_refresh_script_gets_the_page_without_its_frame(
    visit: Visit, page_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch, next_minute())
    page = visit(page_dsn)
    whole, fragment = page.get("/"), page.get("/", headers={"Yamlsched-Fragment": "1"})
    assert "<html" not in fragment.text
    assert fragment.text.strip() in whole.text
    assert fragment.headers["etag"] != whole.headers["etag"]
    assert "Yamlsched-Fragment" in fragment.headers["vary"]


def test_static_files_are_kept_for_ever_because_their_links_change_with_their_content(
    visit: Visit, page_dsn: str
) -> None:
    page = visit(page_dsn)
    found = re.findall(
        r'(?:href|src)="(/static/\w+\.(css|js|svg)\?[0-9a-f]{12})"', page.get("/").text
    )
    assert sorted(kind for _, kind in found) == ["css", "js", "svg"]
    for path, kind in found:
        answer = page.get(path)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert {"css": "css", "js": "javascript", "svg": "svg"}[kind] in answer.headers[
            "content-type"
        ]
    assert page.get("/static/nothing.css").status_code == 404
    assert page.get("/static/..%2foptions.py").status_code == 404


def test_a_path_that_is_no_page_has_a_page_that_says_so(visit: Visit, page_dsn: str) -> None:
    answer = visit(page_dsn).get("/nothing")
    assert answer.status_code == 404
    assert "There is no such page" in answer.text
    assert '<a class="button" href="/">' in answer.text


def test_a_bug_in_a_page_does_not_show_its_traceback(
    visit: Visit, page_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(home.health, "read", broken)
    answer = visit(page_dsn).get("/")
    assert answer.status_code == 500
    assert "This is a bug in yamlsched" in answer.text
    assert "secret" not in answer.text


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "find_spec", lambda name: None if name == "jinja2" else True)
    with pytest.raises(EnvironmentFailed, match=r"needs jinja2: .* pip install 'yamlsched\[web\]'"):
        web.app("dbname=x")


def test_pages_are_compressed_for_those_who_look_from_afar(visit: Visit, page_dsn: str) -> None:
    page = visit(page_dsn)
    packed = page.get("/", headers={"Accept-Encoding": "gzip"})
    plain = page.get("/", headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["vary"]
    assert "content-encoding" not in plain.headers
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    digits = re.compile("[0-9]")  # of the clock, which the page shows
    assert digits.sub("", packed.text) == digits.sub("", plain.text)
