"""What the pages show, over the demonstration and over hostile text."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from support.command_line import yamlsched
from support.rows import a_job, a_place, a_run
from yamlsched import db as store
from yamlsched.ask import attention, health
from yamlsched.ask.problem import Thresholds
from yamlsched.extras import web
from yamlsched.extras.web.pages import home
from yamlsched.extras.web.render import Clock, visible

Visit = Callable[..., TestClient]
JOBS = (
    "sync_inventory",
    "refresh_cache",
    "loyalty_points",
    "send_welcome_mail",
    "archive_orders",
    "sync_old_crm",
)
PATHS = (
    "/",
    "/?q=mail",
    "/?state=retired",
    "/why",
    "/calendar",
    "/files",
    "/workers",
    "/calendar?span=1d&q=team-finance&tz=America/New_York",
    "/why?job=nightly_backup&at=yesterday",
    *(f"/jobs/{j}" for j in JOBS),
    "/runs",
    "/runs?job=refresh_cache&error=lock",
    "/runs/1200",
    "/dead",
    "/graph",
    "/actions",
    "/actions?verb=retry&who=jonas",
)
HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}\x1b[31mred\u202egnp.exe\u200b"
SHOWN = r"\x1b[31mred\u202egnp.exe\u200b"


def words(page: str) -> str:
    """Return the text that a page shows."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2])).split())


@pytest.fixture(scope="module")
def shared_pages(demo_dsn: str) -> Any:
    with TestClient(
        web.app(demo_dsn, namespace="shop", auth="none"), base_url="http://localhost"
    ) as client:
        yield client


@pytest.fixture
def pages(shared_pages: TestClient) -> TestClient:
    shared_pages.cookies.clear()  # another test may have chosen a time zone
    return shared_pages


@pytest.fixture
def own_page(db: Any, reader: TestClient) -> tuple[Any, TestClient]:
    """An empty database, and the page on it."""
    return db, reader


@pytest.fixture(scope="module")
def texts(demo_dsn: str) -> dict[str, str]:
    """The text of each of PATHS, with the buttons of actions."""
    app = web.app(demo_dsn, actions_dsn=demo_dsn, namespace="shop", auth="none")
    with TestClient(app, base_url="http://localhost") as client:
        answers = {path: client.get(path) for path in PATHS}
    assert {path: answer.status_code for path, answer in answers.items() if answer.is_error} == {}
    return {path: answer.text for path, answer in answers.items()}


# -- every page


def assert_valid(text: str, path: str) -> None:
    """Check that a page has nothing that its policy blocks, and no element that cannot be found."""
    assert re.findall(r"<[^>]*\s(?:style|on\w+)\s*=", text) == [], path
    assert re.findall(r"<script(?![^>]* src=\"/static/)", text) == [], path
    assert "<style" not in text, path
    assert re.findall(r'(?:href|src|action)="(?!/|#)[^"]*"', text) == [], path
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), path
    # and what is refreshed has an id
    for tag in re.findall(r"<[^>]*\sdata-refresh[\s>][^>]*", text):
        assert ' id="' in tag, path


def kind(link: str) -> tuple[str, ...]:
    """Return what links of one kind have in common: the page, and the names of the parameters."""
    path, _, query = link.partition("?")
    page = path if path.startswith("/actions") else "/".join(path.split("/")[:2])
    return page, *(part.partition("=")[0] for part in query.split("&"))


def test_no_page_has_inline_scripts_or_styles_or_foreign_addresses(texts: dict[str, str]) -> None:
    for path, text in texts.items():
        assert_valid(text, path)


def test_every_button_leads_to_a_form_of_its_own(
    texts: dict[str, str], demo_dsn: str, demo_db: Any, visit: Visit
) -> None:
    page = visit(demo_dsn, actions_dsn=demo_dsn, namespace="shop")
    [[gap]] = demo_db.execute(
        "select g.last_slot from yamlsched.skipped_slots g join yamlsched.job_definitions d"
        " on d.id = g.definition_id where d.job_type = 'loyalty_points'"
    ).fetchall()
    why = page.get(f"/why?job=loyalty_points&at={gap:%Y-%m-%dT%H:%M}Z").text
    found = {
        html.unescape(link)
        for text in (*texts.values(), why)
        for link in re.findall(r'href="(/actions/[^"]*)"', text)
    }
    names = {link.partition("?")[0].removeprefix("/actions/") for link in found}
    assert names >= {"retry", "retry-dead", "pause", "resume", "enqueue", "backfill"}
    for link in {kind(link): link for link in sorted(found)}.values():
        answer = page.get(link)
        assert answer.status_code == 200, link
        assert '<form method="post" action="/actions/' in answer.text
        assert_valid(answer.text, link)


def test_every_link_of_a_page_leads_to_a_page(texts: dict[str, str], pages: TestClient) -> None:
    links = {
        html.unescape(link)
        for text in texts.values()
        for link in re.findall(r'<a [^>]*href="(/[^"#]*)"', text)
        if not link.startswith("/actions/")
    }
    assert len(links) > 100
    kinds = {kind(link): link for link in sorted(links)}
    assert len(kinds) > 20
    for link in kinds.values():
        assert pages.get(link).status_code == 200, link


def test_every_time_is_machine_readable(pages: TestClient) -> None:
    found = re.findall(r'<time datetime="([^"]*)"', pages.get("/").text)
    assert len(found) > 20
    assert all(datetime.fromisoformat(time).tzinfo == UTC for time in found)


# -- the list of jobs


def test_the_first_page_shows_what_status_reports(
    pages: TestClient, demo_db: Any, demo_dsn: str
) -> None:
    shown = words(pages.get("/").text)
    with store.connect(demo_dsn) as connection:
        now = health.read(connection, "shop", timedelta(hours=1))
    found = attention.problems(now, Thresholds())
    assert f"{len(found)} problems need attention" in shown
    for problem in found:
        what = Clock("Europe/Berlin", now.now).words(problem.what)
        assert " ".join(re.sub(r"\d+[smh]\b", "", what).split()) in " ".join(
            re.sub(r"\d+[smh]\b", "", shown).split()
        )
        # a command only of what no page can do
        is_shown = "".join(problem.remedy.split()) in "".join(shown.split())
        assert is_shown == (problem.kind in ("tick", "file")), problem
        assert problem.owner in shown


def test_every_job_is_listed_with_its_state_in_a_word_the_urgent_ones_first(
    pages: TestClient,
) -> None:
    rows = re.findall(
        r'<td><span class="state (\w+)">.*?</svg>(\w+)</span></td>\s*<th scope="row"><a class="name"[^>]*>(\w+)</a>',
        pages.get("/").text,
    )
    assert len(rows) == 23
    assert all(style == word for style, word, _ in rows)
    states = [state for _, state, _ in rows]
    assert states[:3] == ["stuck", "late", "dead"]
    assert set(states[4:]).isdisjoint({"stuck", "late", "dead", "failing", "held_up", "retired"})


def test_the_list_is_filtered_by_text_and_state(pages: TestClient) -> None:
    def names(query: str) -> list[str]:
        return re.findall(r'<a class="name"[^>]*>(\w+)</a>', pages.get(f"/?{query}").text)

    assert names("q=MAIL") == ["send_invoice_reminder", "send_welcome_mail"]
    assert names("q=team-crm+customer") == ["loyalty_points", "send_welcome_mail"]
    assert names("q=critical&state=ok") == ["charge_subscriptions", "nightly_backup"]
    assert names("state=retired") == ["sync_old_crm"]
    assert names("q=nothing+like+this") == []
    assert "No job matches" in pages.get("/?q=nothing").text


@pytest.mark.parametrize(
    ("text", "to"),
    [
        ("", "/"),
        ("nightly_backup", "/jobs/nightly_backup"),
        ("welcome:100500", r"/runs/\d+"),
        ("team-crm", r"/\?q=team-crm"),
        ("critical", r"/\?q=critical"),
    ],
)
def test_what_the_box_names_exactly_is_shown_at_once(pages: TestClient, text: str, to: str) -> None:
    answer = pages.get("/find", params={"q": text}, follow_redirects=False)
    assert answer.status_code == 303
    assert re.fullmatch(to, answer.headers["location"])


def test_the_box_finds_parts_of_jobs_owners_tags_keys_and_errors(pages: TestClient) -> None:
    def found(text: str) -> str:
        return words(pages.get("/find", params={"q": text}).text)

    assert "2 jobs" in found("MAIL")
    assert "send_welcome_mail" in found("MAIL")
    assert "loyalty_points" in found("team-cr")
    assert "dead import_supplier_prices" in re.sub(r"\d+ ", "", found("nordwind-textil"))
    assert "Keys" in found("welcome:1005")
    assert "Nothing contains qwertz" in found("qwertz")


def test_while_one_types_jobs_owners_tags_and_errors_are_offered(pages: TestClient) -> None:
    def offered(text: str) -> Any:
        headers = {"Accept": "application/json"}
        return pages.get("/find", params={"q": text}, headers=headers).json()["suggestions"]

    assert offered("mail") == [["send_invoice_reminder", "job"], ["send_welcome_mail", "job"]][1:]
    assert ["team-crm", "owner"] in offered("crm")
    assert ["critical", "tag"] in offered("criti")
    assert ["HTTPStatusError", "error"] in offered("HTTPStat")


@pytest.mark.parametrize(
    "query", ["state=broken", "page=0", "page=x", "page=-1", "q=" + "a" * 201, "q=%00"]
)
def test_a_parameter_that_is_not_valid_is_explained(pages: TestClient, query: str) -> None:
    answer = pages.get(f"/?{query}")
    assert answer.status_code == 400
    assert "not valid" in answer.text


def test_a_strip_says_in_words_what_it_draws(pages: TestClient) -> None:
    strips = re.findall(
        r'class="strip"[^>]*aria-label="([^"]*)"', pages.get("/?q=import_supplier_prices").text
    )
    assert len(strips) == 1
    assert sum(map(int, re.findall(r"(\d+) dead", strips[0]))) >= 3


def test_many_jobs_are_shown_page_by_page(
    own_page: tuple[Any, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "PAGE_JOBS", 5)
    db, page = own_page
    for number in range(13):
        a_job(db, f"job_{number:03}")
    seen: list[str] = []
    for number in (1, 2, 3, 9):
        names = re.findall(
            r'<a class="name"[^>]*>(\w+)</a>', page.get(f"/?state=all&page={number}").text
        )
        assert len(names) == (5 if number < 3 else 3)
        seen += names if number < 9 else []
    assert seen == [f"job_{number:03}" for number in range(13)]


def test_of_many_jobs_the_healthy_ones_are_only_counted(
    own_page: tuple[Any, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "MAX_UNFOLDED", 3)
    db, page = own_page
    for number in range(4):
        a_job(db, f"job_{number:02}")
    a_run(db, a_job(db, "broken"), "dead")

    shown = page.get("/").text

    assert re.findall(r'<a class="name"[^>]*>(\w+)</a>', shown) == ["broken"]
    assert '<a href="/?state=all">4 more are healthy</a>' in shown


def test_the_pulse_has_the_runs_that_ended_and_died_in_each_hour(
    own_page: tuple[Any, TestClient],
) -> None:
    db, page = own_page
    now = datetime.now(UTC)
    job, other = a_job(db, "job"), a_job(db, "other")
    elsewhere = a_job(db, "job", namespace="elsewhere")
    for of, ago, status in (
        (job, 1, "dead"),
        (elsewhere, 1, "dead"),
        (job, 3, "succeeded"),
        (other, 3, "succeeded"),
        (job, 30, "succeeded"),
    ):
        a_run(db, of, status, finished_at=now - timedelta(hours=ago))
    # and a run that fails: five attempts, of which one is too old
    failing = a_run(db, job, "failed", failed_at=now)
    for attempt, ago in enumerate((30, 5, 5, 3, 1), 1):
        db.execute(
            "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error)"
            " values (%s, %s, 'a:1:2', %s, 'x')",
            [failing, attempt, now - timedelta(hours=ago)],
        )

    pulse = page.get("/").text.partition('class="pulse"')[2].partition("</div>")[0]

    assert 'aria-label="3 runs ended, 4 attempts failed, 1 run died"' in pulse
    assert pulse.count("<g>") == 24
    assert "2 runs, 1 attempt failed, 0 died" in pulse
    assert "1 run, 1 attempt failed, 1 died" in pulse
    assert "0 runs, 2 attempts failed, 0 died" in pulse


def test_an_empty_namespace_says_how_to_start(own_page: tuple[Any, TestClient]) -> None:
    db, page = own_page
    assert "No jobs yet" in page.get("/").text
    assert "yamlsched sync" in page.get("/").text

    a_place(db)
    a_job(db, "fresh")
    shown = words(page.get("/").text)
    assert "Everything is healthy" in shown
    assert "fresh" in shown


def test_each_problem_leads_to_the_page_that_shows_what_it_is_about(pages: TestClient) -> None:
    listed = pages.get("/").text.partition('<ul class="problems">')[2].partition("</section>")[0]
    found = re.findall(
        r'<span class="what" title="[^"]*"><a href="([^"]*)">([^<]*)</a></span>', listed
    )
    links = {html.unescape(what): html.unescape(link) for link, what in found}
    for what, link in links.items():
        if "effect" in what or "is stuck" in what:
            assert re.fullmatch(rf"/runs/{re.search(r'run (?:run:)?([0-9]+)', what)[1]}", link), (
                what
            )  # type: ignore[index]
        elif "died within" in what:
            assert re.fullmatch(
                r"/runs/\d+" if ": 1 run" in what else r"/runs\?job=\w+&status=dead&since=1h", link
            )
        elif "another file" in what or "has 2 errors" in what:
            assert link == "/files"
        elif ": late by" in what:
            assert link.startswith("/why?job=")
        else:
            assert link.startswith("/jobs/") or ("no tick" in what and link == "/workers")
    kinds = {link.split("/")[1].split("?")[0] for link in links.values()}
    assert kinds - {"workers"} == {"runs", "why", "files"}


def test_numbers_lead_to_their_runs(pages: TestClient) -> None:
    facts = pages.get("/").text.partition('<dl id="facts"')[2].partition("</dl>")[0]
    found = re.findall(r'<a href="(/[^"]*)">(\d+)</a>', facts)
    assert [link for link, _ in found] == [
        *("/runs?status=running", "/runs?status=queued", "/runs?status=failed", "/dead?span=24h")
    ]
    for link, number in found[:3]:
        assert pages.get(link).text.partition('<div id="runs"')[2].count('<a class="name"') == int(
            number
        )


# -- a job


def test_every_slot_and_gap_leads_to_the_answer_of_the_verb(
    pages: TestClient, demo_dsn: str
) -> None:
    page = pages.get("/jobs/refresh_cache?span=24h").text
    links = re.findall(
        r'<a href="(/why\?job=refresh_cache&amp;at=([^"]*))"',
        page.partition('<svg class="timeline"')[2].partition("</svg>")[0],
    )
    assert len(links) > 100
    gap = next(
        found
        for found in links
        if re.search(rf'href="{re.escape(found[0])}" aria-label="\d+ skipped', page)
    )
    for link, at in (links[0], gap):
        options = ("--dsn", demo_dsn, "--namespace", "shop", "--at", at.replace("%3A", ":"))
        verb = yamlsched("why", "refresh_cache", *options)
        assert verb.returncode == 0, verb.stderr
        shown = words(pages.get(html.unescape(link)).text)
        lines = [line.strip() for line in verb.stdout.splitlines()[1:]]
        assert lines
        for line in lines:
            assert Clock("Europe/Berlin", datetime.now(UTC)).words(line) in shown


def test_the_table_has_a_row_for_each_slot_and_the_list_one_for_each_gap(pages: TestClient) -> None:
    page = pages.get("/jobs/refresh_cache?span=24h").text
    chart = page.partition('<svg class="timeline"')[2].partition("</svg>")[0]
    table = page.partition('<details class="twin">')[2].partition("</details>")[0]
    assert chart.count('class="slot ') == table.count("<tr>") - 1
    gaps = page.partition('<ul class="gaps">')[2].partition("</ul>")[0]
    assert chart.count('class="gap"') == gaps.count("<li>") > 0
    assert "overlap: skip does not wait for it" in gaps


def test_one_can_go_back_in_time_and_forward_again(pages: TestClient) -> None:
    [earlier] = re.findall(
        r'rel="prev" href="([^"]*)"', pages.get("/jobs/nightly_backup?span=7d").text
    )
    back = pages.get(html.unescape(earlier)).text
    assert 'rel="next"' in back
    assert 'class="now"' not in back
    [later] = re.findall(r'rel="next" href="([^"]*)"', back)
    assert pages.get(html.unescape(later)).status_code == 200


@pytest.mark.parametrize(
    "query", ["span=2d", "until=yesterday", "until=2026-01-14T02:00", "until=9999-12-31T23:59:59Z"]
)
def test_a_span_that_is_not_valid_is_explained(pages: TestClient, query: str) -> None:
    answer = pages.get(f"/jobs/nightly_backup?{query}")
    assert answer.status_code == 400
    assert "Write" in answer.text


@pytest.mark.parametrize("path", ["/jobs/nightly_bakup", "/why?job=nightly_bakup"])
def test_a_job_that_does_not_exist_gets_a_suggestion(pages: TestClient, path: str) -> None:
    answer = pages.get(path)
    assert answer.status_code == 404
    assert "Did you mean &#34;nightly_backup&#34;?" in answer.text
    assert 'href="/jobs/nightly_backup">nightly_backup</a>' in answer.text


def test_a_job_that_is_enqueued_has_its_runs_and_no_slots(pages: TestClient) -> None:
    shown = words(pages.get("/jobs/send_welcome_mail").text)
    assert "none: runs when it is enqueued" in shown
    assert "queued 15" in shown


def test_a_job_without_runs_says_how_to_enqueue_one(own_page: tuple[Any, TestClient]) -> None:
    db, page = own_page
    a_job(db, "mail", schedule=None)
    assert "yamlsched enqueue mail" in words(page.get("/jobs/mail").text)


def test_a_job_shows_where_its_attempts_run_if_that_is_not_the_default(
    own_page: tuple[Any, TestClient],
) -> None:
    db, page = own_page
    a_job(db, "plain")
    a_job(db, "fetch", queue="shared")

    assert "queue" not in words(page.get("/jobs/plain").text).split()
    assert "queue shared" in words(page.get("/jobs/fetch").text)


def test_a_job_shows_whom_it_notifies_of_what_without_the_address(
    own_page: tuple[Any, TestClient],
) -> None:
    db, page = own_page
    a_job(db, "purge", notify=["chat"])
    for name in ("chat", "mail"):
        db.execute(
            "insert into yamlsched.notify_targets (namespace, name, url_env, events)"
            " values ('default', %s, 'CHAT_URL', '{dead,late}')",
            [name],
        )

    shown = page.get("/jobs/purge").text

    assert '<dt>notify</dt><dd class="mono">chat: dead, late (address in CHAT_URL)</dd>' in shown


def test_a_run_shows_its_queue_and_the_value_of_the_limit_that_it_waits_for(
    own_page: tuple[Any, TestClient],
) -> None:
    db, page = own_page
    job = a_job(db, "fetch", queue="shared", limit_name="api", limit_by=["tenant"])
    holder = a_run(db, job, "running", queue="shared")
    gate = 'limit/api/["<b>ACME</b>"]'
    db.execute("insert into yamlsched.permits values ('default', %s, 1, %s)", [gate, holder])
    waits = a_run(db, job, queue="shared", blocked_on=gate, payload='{"tenant": "<b>ACME</b>"}')

    shown = page.get(f"/runs/{waits}").text

    assert f'waits for limit api for ["<b>ACME</b>"], held by run {holder}' in words(shown)
    assert "<b>ACME" not in shown
    assert "queue shared" in words(shown)


# -- why


def test_a_day_has_the_answer_for_each_of_its_slots(pages: TestClient) -> None:
    page = pages.get("/why?job=rebuild_search_index&at=yesterday").text
    assert page.count('<article class="card answer">') == 6


@pytest.mark.parametrize("at", ["soon", "2026-13-01", "99999999d", "0001-01-01", "25:00"])
def test_a_time_that_cannot_be_read_is_explained_as_on_the_command_line(
    pages: TestClient, at: str
) -> None:
    answer = pages.get("/why", params={"job": "nightly_backup", "at": at})
    assert answer.status_code == 400
    assert "<h1>" in answer.text


def test_the_heading_and_the_counts_of_states_follow_the_filter(pages: TestClient) -> None:
    everything, found = pages.get("/").text, pages.get("/?q=nightly").text

    names = re.findall(r'<th scope="row"><a class="name"[^>]*>([^<]*)', found)
    heading = re.findall(r'<h2 id="jobs-title">([^<]*)', found)
    counted = re.findall(r'aria-label="States">(.*?)</ul>', found, re.S)[0]
    assert heading[0] == f"{len(names)} of 23 jobs with “nightly”"
    assert re.findall(r'<h2 id="jobs-title">([^<]*)', everything)[0] == "23 jobs"
    assert sum(map(int, re.findall(r" (\d+)</a>", counted))) == len(names) > 0


def test_a_job_without_slots_says_how_it_is_and_has_none_to_ask_about(pages: TestClient) -> None:
    assert "it runs when it is enqueued" in pages.get("/why?job=send_welcome_mail").text
    answer = pages.get("/why?job=send_welcome_mail&at=yesterday")
    assert answer.status_code == 400
    assert "has no cron" in answer.text


@pytest.mark.parametrize(
    ("reason", "success_days_ago", "is_noted"),
    [("paused", 2, True), ("paused", 0, False), ("late", 2, False)],
)
def test_a_job_whose_latest_slots_a_pause_skipped_has_a_note_until_it_runs(
    own_page: tuple[Any, TestClient], reason: str, success_days_ago: int, is_noted: bool
) -> None:
    db, page = own_page
    job = a_job(db, "backup", schedule="0 1 * * *")
    at = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    finished = at - timedelta(days=success_days_ago)
    a_run(db, job, "succeeded", finished_at=finished)
    columns = "definition_id, first_slot, last_slot, slots, reason"
    db.execute(
        f"insert into yamlsched.skipped_slots ({columns}) values (%s, %s, %s, 1, %s)",
        (job, at, at, reason),
    )

    assert (
        f"the latest slots, of {at:%Y-%m-%d}, were skipped: the job was paused"
        in page.get("/").text
    ) is is_noted


def test_a_job_that_its_pause_after_has_paused_says_why_and_can_be_resumed(
    own_page: tuple[Any, TestClient],
) -> None:
    db, page = own_page
    reason = "3 dead runs in a row, the last is run 7: OSError: no route to host"
    values = {"paused_by": "yamlsched", "paused_reason": reason, "paused_after": 3}
    a_job(db, "charge", pause_after=3, paused_at=datetime.now(UTC), **values)

    home, job = (words(page.get(path).text) for path in ("/", "/jobs/charge"))

    for shown in (home, job):
        assert f"by yamlsched: {reason}" in shown
        assert "yamlsched resume charge" in shown
    assert "pause_after 3 dead runs in a row" in job
    assert f"{reason} yamlsched" in words(page.get("/actions").text)


# -- hostile text


def test_hostile_text_is_shown_and_does_nothing(own_page: tuple[Any, TestClient]) -> None:
    db, page = own_page
    a_place(db, host=HOSTILE, path=HOSTILE)
    job = a_job(
        db,
        HOSTILE,
        description=HOSTILE,
        owner=HOSTILE,
        tags=[HOSTILE],
        handler=HOSTILE,
        schedule="0 * * * *",
    )
    at = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    key = f"{HOSTILE}:{at:%Y-%m-%dT%H:%MZ}"
    a_run(
        db,
        job,
        "dead",
        last_error=HOSTILE,
        error_type=HOSTILE,
        idempotency_key=key,
        scheduled_for=at,
    )
    a_job(db, "paused", paused_at=at, paused_by=HOSTILE, paused_reason=HOSTILE)

    for path in (
        "/",
        f"/jobs/{quote(HOSTILE)}",
        f"/why?job={quote(HOSTILE)}&at={at:%Y-%m-%dT%H:%MZ}",
        f"/?q={quote(HOSTILE)}",
        f"/jobs/{quote(HOSTILE + 'x')}",
    ):
        answer = page.get(path)
        assert answer.status_code in (200, 404), answer.text
        assert "<script>alert" not in answer.text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
        assert "\x1b" not in answer.text
        assert "\u202e" not in answer.text
        assert "\u200b" not in answer.text
        assert SHOWN in answer.text
        assert "{{7*7}}" in answer.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 🎉", "plain é 日本 🎉"),
        ("a\nb\tc", "a\nb\tc"),
        ("a\r\x00\x7f\x9b", r"a\r\x00\x7f\x9b"),
        ("\u2066\u2067\u200f\ufeff", r"\u2066\u2067\u200f\ufeff"),
    ],
)
def test_characters_that_hide_or_reorder_text_are_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


# -- what another release wrote


def test_a_job_that_this_release_cannot_compute_does_not_hide_the_others(
    own_page: tuple[Any, TestClient],
) -> None:
    db, page = own_page
    a_job(db, "good")
    a_job(db, "bad_zone", timezone="Mars/Phobos", last_slot_at=datetime(2026, 1, 14, tzinfo=UTC))
    a_job(db, "bad_cron", schedule="every day")

    assert {"good", "bad_zone", "bad_cron"} <= set(words(page.get("/").text).split())
    for name, why in (("bad_zone", 'no time zone "Mars/Phobos"'), ("bad_cron", "every")):
        shown = words(page.get(f"/jobs/{name}").text)
        assert "The slots cannot be computed here:" in shown
        assert why in shown
        assert page.get(f"/why?job={name}").status_code == 400


@pytest.mark.parametrize("path", ["/jobs/%00", "/jobs/a%00b", "/why/", "/jobs/", "/jobs/%ff"])
def test_a_path_that_no_page_can_have_is_not_found(pages: TestClient, path: str) -> None:
    assert pages.get(path).status_code == 404


def test_the_chains_show_what_each_job_waits_for(own_page: tuple[Any, TestClient]) -> None:
    db, page = own_page
    assert "No job follows another" in words(page.get("/graph").text)
    extract, load = a_job(db, "extract", is_followed=True), a_job(db, "load", after=["extract"])
    slot = {"scheduled_for": "2026-01-14 02:00+0", "run_at": "2026-01-14 02:00+0"}
    died = a_run(db, extract, "dead", **slot)
    waiting = a_run(db, load, unreleased=True, blocked_on=f"after/{extract}", **slot)
    db.execute(
        "insert into yamlsched.awaits (run_id, definition_id, slot) values (%s, %s, '2026-01-14 02:00+0')",
        [waiting, extract],
    )
    a_job(db, "a_good_one", is_followed=True)
    a_job(db, "behind_it", after=["a_good_one"])

    shown = words(page.get("/graph").text)

    assert f"waits for extract: run {died} is dead" in shown
    assert re.search(
        r"2 chains of 4 jobs .*dead 2 jobs: extract … load dead extract .* waits └ load", shown
    )
    assert re.search(r"load .*new 2 jobs: a_good_one … behind_it new a_good_one", shown)


def test_the_page_of_a_job_says_in_words_when_it_runs_or_shows_its_next_slots(
    own_page: tuple[Any, TestClient],
) -> None:
    db, page = own_page
    a_job(db, "backup", schedule="0 9 * * 1-5")
    a_job(db, "refresh", schedule="*/35 * * * *")

    assert "At 09:00, Monday through Friday (UTC)" in words(page.get("/jobs/backup").text)
    assert re.search(
        r"next (\w{3} \d{4}-\d\d-\d\d \d\d:(00|35)(, )?){5} \(UTC\)",
        words(page.get("/jobs/refresh").text),
    )
