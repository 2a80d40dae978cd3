"""The pages of runs: /runs, /runs/ID and /dead."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from starlette.testclient import TestClient

from support.rows import a_job, a_run
from yamlsched.ask import failures, history, search
from yamlsched.extras import web
from yamlsched.extras.web.pages import dead, run, runs

Visit = Callable[..., TestClient]
NOW = datetime(2026, 1, 14, 12, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b[0m\x1b]0;title\x07\u202egnp.exe"


def words(page: str) -> str:
    """Return the text that a page shows."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2])).split())


def ids(page: str) -> list[int]:
    """Return the runs of the list."""
    return [int(id) for id in re.findall(r'<a class="name" href="/runs/(\d+)"', page)]


def link(page: str, rel: str) -> str | None:
    found = re.search(rf'<a class="button" href="([^"]*)" rel="{rel}"', page)
    return html.unescape(found[1]) if found else None


@pytest.fixture(scope="module")
def pages(demo_dsn: str) -> Any:
    with TestClient(
        web.app(demo_dsn, namespace="shop", auth="none"),
        base_url="http://localhost",
        follow_redirects=False,
    ) as client:
        yield client


@pytest.fixture
def own(db: Any, reader: TestClient) -> tuple[Any, TestClient]:
    return db, reader


# -- /runs


@pytest.mark.parametrize(
    ("query", "filter"),
    [
        ("", {}),
        ("job=send_welcome_mail", {"jobs": ["send_welcome_mail"]}),
        ("status=dead", {"statuses": ["dead"]}),
        (
            "status=queued&job=send_welcome_mail",
            {"statuses": ["queued"], "jobs": ["send_welcome_mail"]},
        ),
        ("key=welcome:1005*", {"key": "welcome:1005*"}),
        ("error=service+UNAVAILABLE", {"error": "Service unavailable"}),
        ("type=ConnectionResetError", {"error_type": "ConnectionResetError"}),
        ("type=-&status=dead", {"error_type": "", "statuses": ["dead"]}),
    ],
)
def test_a_filter_selects_what_the_verb_lists(
    pages: TestClient, demo_db: Any, query: str, filter: Any
) -> None:
    expected = [row.id for row in search.page(demo_db, "shop", search.Filter(**filter), 50).runs]
    assert ids(pages.get(f"/runs?{query}").text) == expected


def test_times_are_read_as_on_the_command_line_in_the_zone_of_the_job(
    own: tuple[Any, TestClient],
) -> None:
    db, page = own
    job = a_job(db, "report", timezone="Asia/Tokyo")
    old = {"created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    early = a_run(
        db, job, "succeeded", finished_at=datetime(2026, 1, 13, 14, 59, tzinfo=UTC), **old
    )
    late = a_run(db, job, "succeeded", finished_at=datetime(2026, 1, 13, 15, 0, tzinfo=UTC), **old)
    assert ids(page.get("/runs?job=report&since=2026-01-14").text) == [late]
    assert ids(page.get("/runs?job=report&until=2026-01-14").text) == [early]
    assert ids(page.get("/runs?job=report&until=2026-01-14T00:00").text) == [early]
    assert ids(page.get("/runs?until=2026-01-13T15:00Z").text) == [early]
    shown = words(page.get("/runs?job=report&since=2026-01-14").text)
    assert "Since is read in Asia/Tokyo: Wed 2026-01-14 00:00 JST." in shown
    assert "yamlsched runs --job report --since 2026-01-14" in shown
    assert ids(page.get("/runs?since=90m").text) == []


@pytest.mark.parametrize(
    "query",
    [
        "status=broken",
        "since=soon",
        "until=2026-13-01",
        "since=0001-01-01",
        "before=x",
        "after=-1",
        "key=%00",
    ],
)
def test_a_filter_that_is_not_valid_is_explained(pages: TestClient, query: str) -> None:
    answer = pages.get(f"/runs?{query}")
    assert answer.status_code == 400
    assert "<h1>" in answer.text


def test_an_unknown_job_gets_a_suggestion(pages: TestClient) -> None:
    answer = pages.get("/runs?job=nightly_bakup")
    assert answer.status_code == 404
    assert "Did you mean &#34;nightly_backup&#34;?" in answer.text


def test_an_id_or_a_key_leads_to_its_run(pages: TestClient, demo_db: Any) -> None:
    [run] = search.page(demo_db, "shop", search.Filter(key="welcome:100500"), 1).runs
    for name in ("welcome:100500", str(run.id)):
        answer = pages.get("/runs", params={"key": name})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run.id}")
    answer = pages.get("/runs?key=welcome:1005")
    assert answer.status_code == 200
    assert "No run has the key &#34;welcome:1005&#34;" in answer.text
    assert ids(pages.get("/runs?key=welcome:1005*").text)
    assert 'href="/runs?key=welcome%3A1005%2A"' in answer.text


def test_one_can_page_forward_and_back(
    own: tuple[Any, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE_RUNS", 4)
    db, page = own
    job = a_job(db)
    expected = [a_run(db, job, "succeeded", idempotency_key=f"k:{nth}") for nth in range(10)][::-1]

    texts = [page.get("/runs?key=k:*").text]
    while older := link(texts[-1], "next"):
        assert "key=k" in older
        texts.append(page.get(older).text)
    assert [ids(text) for text in texts] == [expected[:4], expected[4:8], expected[8:]]
    assert link(texts[0], "prev") is None

    newer = link(texts[2], "prev")
    assert newer is not None
    back = page.get(newer).text
    assert ids(back) == expected[4:8]
    newest = link(back, "prev")
    assert newest is not None
    assert ids(page.get(newest).text) == expected[:4]
    assert link(page.get(newest).text, "prev") is None


def test_a_search_without_an_index_stops_and_can_be_continued(
    own: tuple[Any, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_SEARCHED_IDS", 30)
    db, page = own
    job = a_job(db)
    wanted = a_run(db, job, "dead", last_error="disk full")
    for _ in range(50):
        a_run(db, job, "succeeded")
    first = page.get("/runs?error=disk").text
    assert "No match so far" in first
    older = link(first, "next")
    assert older is not None
    assert ids(page.get(older).text) == [wanted]
    assert "No run matches" in page.get("/runs?error=tape&before=10").text


def test_a_namespace_without_runs_says_how_to_get_some(own: tuple[Any, TestClient]) -> None:
    db, page = own
    assert "No runs yet" in page.get("/runs").text
    assert "No dead runs" in page.get("/dead").text
    assert "No run died in the last 24h" in page.get("/dead?span=24h").text
    a_job(db, "mail")
    assert "yamlsched enqueue JOB" in words(page.get("/runs").text)


# -- /runs/ID


def a_failed_attempt(
    db: Any, run: int, number: int, error: str = "no route", stack: str | None = None
) -> None:
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error, error_type, stack)"
        " values (%s, %s, 'web-1:4711:c0ffee', %s, %s, %s, 'OSError', %s)",
        [run, number, NOW, NOW + timedelta(seconds=90), error, stack],
    )


def an_output(
    db: Any, run: int, number: int, text: str, omitted: int = 0, worker: str = "web-1:4711:c0ffee"
) -> None:
    db.execute(
        "insert into yamlsched.attempt_outputs (run_id, attempt, worker, ended_at, omitted_bytes, output)"
        " values (%s, %s, %s, %s, %s, %s)",
        [run, number, worker, NOW, omitted, text],
    )


def test_a_run_shows_what_the_verb_shows(own: tuple[Any, TestClient]) -> None:
    db, page = own
    job = a_job(db, "mail", owner="team-crm", handler="shop.mail.send")
    parent = a_run(db, job, "succeeded")
    run = a_run(
        db,
        job,
        "dead",
        attempts=2,
        max_attempts=2,
        parent_id=parent,
        idempotency_key="mail:7",
        payload=Jsonb({"customer": 7, "name": "Zoë"}),
        result=Jsonb([1, None]),
    )
    child, hook = a_run(db, job, parent_id=run), a_run(db, job, parent_id=run, hook="dead")
    a_failed_attempt(db, run, 1, "first error", "Traceback 1")
    a_failed_attempt(db, run, 2, "second error", "Traceback 2")
    an_output(db, run, 2, "reading\n\x1b[32mdone\x1b[0m\n", omitted=70_000)
    db.execute(
        "insert into yamlsched.operator_actions (namespace, who, verb, target, detail)"
        " values ('default', 'maria', 'retry', %s, %s)",
        [f"run:{run}", Jsonb({"was": "dead"})],
    )

    shown = words(page.get(f"/runs/{run}").text)

    assert f"Run {run} dead attempt 2 of 2" in shown
    assert "The latest error OSError: no route to host" in shown
    assert f"Next: yamlsched retry {run}" in shown
    assert shown.index("second error") < shown.index("Traceback 2") < shown.index("first error")
    assert "took 1m30s" in shown
    assert "the end; 68.4 KiB before it were not kept reading done" in shown
    assert '{ "name": "Zoë", "customer": 7 }' in shown
    assert "[ 1, null ]" in shown
    assert f"Enqueued by succeeded run {parent} of mail" in shown
    assert f"Its hooks queued run {hook} of mail" in shown
    assert f"It enqueued 1 run queued run {child} of mail" in shown
    assert "retry by maria was: dead" in shown
    assert "mail:7" in shown
    assert "team-crm" in shown
    assert "shop.mail.send" in shown
    assert "enqueued, not by a slot" in shown
    assert f"It reports the death of run {run} of mail." in words(page.get(f"/runs/{hook}").text)


def test_a_slot_leads_to_its_explanation(pages: TestClient, demo_db: Any) -> None:
    [run] = search.page(demo_db, "shop", search.Filter(jobs=["nightly_backup"]), 1).runs
    page = pages.get(f"/runs/{run.id}").text
    [href] = re.findall(r'<dt>Slot</dt><dd><a href="([^"]*)"', page)
    answer = pages.get(html.unescape(href))
    assert answer.status_code == 200
    assert f'href="/runs/{run.id}"' in answer.text


def test_an_effect_in_doubt_says_what_to_do(pages: TestClient, demo_db: Any) -> None:
    [run] = search.page(
        demo_db, "shop", search.Filter(jobs=["charge_subscriptions"], statuses=["dead"]), 1
    ).runs
    shown = words(pages.get(f"/runs/{run.id}").text)
    assert "unknown whether 2 effects of it happened" in shown
    assert (
        f"yamlsched settle --done --namespace shop run:{run.id}:charge:812 (or --not-done)" in shown
    )
    assert f"then yamlsched retry {run.id}" in shown


@pytest.mark.parametrize(
    "status", ["queued", "running", "failed", "succeeded", "dead", "cancelled"]
)
def test_every_state_has_its_next_step(own: tuple[Any, TestClient], status: str) -> None:
    db, page = own
    run = a_run(
        db,
        a_job(db),
        status,
        **({"run_at": "(now() + interval '1 hour')"} if status == "queued" else {}),
    )
    details = history.run_details(db, run)
    shown = words(page.get(f"/runs/{run}").text)
    assert f"Run {run} {status}" in shown
    assert (history.next_step(details.run) or "Attempt") in shown or status in (
        "queued",
        "cancelled",
    )
    assert {
        "running": "running: on web-1:4711:c0ffee, lease until",
        "failed": "failed: due",
        "queued": "It has not been attempted yet",
        "cancelled": "It has not been attempted yet",
    }.get(status, "1 attempt" if status == "succeeded" else "The latest error") in shown


def test_of_many_attempts_only_the_first_and_newest_are_read_and_others_by_link(
    own: tuple[Any, TestClient],
) -> None:
    db, page = own
    job = a_job(db)
    run_id = a_run(db, job, "dead", attempts=100, max_attempts=100)
    db.execute(
        "insert into yamlsched.job_failures (run_id, attempt, worker, failed_at, error, stack)"
        " select %s, n, 'h:1:' || n, now() - interval '1 day' + n * interval '1 s', 'boom',"
        " repeat(format('S<%%s>', n), 10000) from generate_series(1, 100) n",
        [run_id],
    )
    db.execute(
        "insert into yamlsched.attempt_outputs (run_id, attempt, worker, ended_at, omitted_bytes, output)"
        " select %s, n, 'h:1:' || n, now(), 0, E'\x1b[31mO' || n || repeat('<&\"', 16000)"
        " from generate_series(1, 100) n",
        [run_id],
    )

    answer = page.get(f"/runs/{run_id}").text
    assert len(answer) < 1_500_000
    assert [n for n in range(1, 101) if f"S&lt;{n}&gt;" in answer] == [1, 100]
    assert (
        f'<a href="/runs/{run_id}?attempt=7#attempts">Stack and output of attempt 7</a>' in answer
    )

    # the link reads the texts of the one that is asked for, and opens it
    chosen = page.get(f"/runs/{run_id}", params={"attempt": "7"}).text
    assert [n for n in range(1, 101) if f"S&lt;{n}&gt;" in chosen] == [1, 7, 100]
    assert re.findall(r'<details id="(a\d+-\w+)" open>', chosen) == ["a7-stack", "a7-output"]
    assert page.get(f"/runs/{run_id}", params={"attempt": "x"}).status_code == 400

    # its output is a file, as it was printed
    file = page.get(f"/runs/{run_id}", params={"attempt": "7", "download": "output"})
    assert file.text == "\x1b[31mO7" + '<&"' * 16000
    assert file.headers["content-type"] == "text/plain; charset=utf-8"
    assert (
        file.headers["content-disposition"] == f'attachment; filename="run-{run_id}-attempt-7.txt"'
    )
    assert file.headers["x-content-type-options"] == "nosniff"
    assert (
        page.get(f"/runs/{run_id}", params={"attempt": "101", "download": "output"}).status_code
        == 404
    )
    # the verb prints all of them
    details = history.run_details(db, run_id)
    assert all(
        failure.stack and output.output
        for failure, output in zip(details.failures, details.outputs, strict=True)
    )


def test_a_run_that_was_cancelled_on_purpose_needs_nothing(own: tuple[Any, TestClient]) -> None:
    db, page = own
    run_id = a_run(db, a_job(db), "cancelled")
    assert "What to do" not in page.get(f"/runs/{run_id}").text


def test_a_released_attempt_has_left_its_output(own: tuple[Any, TestClient]) -> None:
    db, page = own
    run = a_run(db, a_job(db), "succeeded", locked_by="w:2")
    an_output(db, run, 1, "of the released one", worker="w:1")
    shown = words(page.get(f"/runs/{run}").text)
    assert "released" in shown
    assert "of the released one" in shown
    assert "2 attempts" in shown


A_REPORT = "insert into yamlsched.attempt_progress values (%s, %s, now() - interval '3 minutes', %s, %s, %s, %s)"


def test_a_running_run_shows_how_far_it_is_and_since_when_it_stands_still(
    own: tuple[Any, TestClient],
) -> None:
    db, page = own
    job = a_job(db)
    counted, unknown = a_run(db, job, "running", attempts=2), a_run(db, job, "running")
    a_failed_attempt(db, counted, 1, "no route to host", "Traceback 1")
    db.execute(A_REPORT, [counted, 1, 7, 9, "web-1:4711:c0ffee", ""])
    db.execute(A_REPORT, [counted, 2, 12_000, 50_000, "web-1:4711:c0ffee", HOSTILE])
    db.execute(A_REPORT, [unknown, 1, 3, None, "web-1:4711:c0ffee", ""])

    shown, listed = page.get(f"/runs/{counted}").text, page.get("/runs").text

    for text in (shown, listed):
        assert '<progress max="100" value="24" aria-label="Progress"></progress>' in text
        assert "12,000 of 50,000 (24 %), <script>alert(1)</script>\\x1b[31mred" in words(text)
        assert re.search(r"\d+m ago", words(text))
        assert "<script>alert" not in text
    assert "It had reached 7 of 9 (77 %), at" in words(shown)
    assert re.search(r"\b3, \d+m ago", words(listed))
    assert "<progress" not in page.get(f"/runs/{unknown}").text


@pytest.mark.parametrize(
    "path", ["/runs/999999999", "/runs/9999999999999999999999", "/runs/no:such:key", "/runs/a/b"]
)
def test_a_run_that_does_not_exist_is_explained(pages: TestClient, path: str) -> None:
    answer = pages.get(path)
    assert answer.status_code == 404
    assert "<h1>" in answer.text


def test_a_run_of_another_namespace_is_not_shown(own: tuple[Any, TestClient]) -> None:
    db, page = own
    run = a_run(db, a_job(db, namespace="billing"), "dead", last_error="secret of billing")
    answer = page.get(f"/runs/{run}")
    assert answer.status_code == 404
    assert "secret of billing" not in answer.text


def test_hostile_text_in_every_part_of_a_run_is_shown_and_does_nothing(
    own: tuple[Any, TestClient],
) -> None:
    db, page = own
    job = a_job(db, "mail", owner=HOSTILE)
    run = a_run(
        db,
        job,
        "dead",
        idempotency_key=HOSTILE,
        last_error=HOSTILE,
        error_type=HOSTILE,
        locked_by=HOSTILE,
    )
    db.execute(
        "update yamlsched.job_runs set payload = %s, result = %s",
        [Jsonb({HOSTILE: HOSTILE}), Jsonb(HOSTILE)],
    )
    a_failed_attempt(db, run, 5, HOSTILE, HOSTILE)
    an_output(db, run, 5, HOSTILE)
    db.execute(
        "insert into yamlsched.effects"
        " (namespace, key, run_id, attempt, locked_by, entry, provider_key, state, result, doubted_at)"
        " values ('default', %s, %s, 1, 'x', gen_random_uuid(), gen_random_uuid(), 'in_doubt', %s, now())",
        [HOSTILE, run, Jsonb(HOSTILE)],
    )
    for path in (
        f"/runs/{run}",
        "/runs",
        "/dead",
        "/runs?key=x*&error=" + "%3Cscript%3Ealert(1)%3C/script%3E",
    ):
        answer = page.get(path)
        assert answer.status_code == 200, answer.text
        assert "<script>alert" not in answer.text
        assert "&lt;script&gt;alert(1)" in answer.text
        assert not {"\x1b", "\x07", "\u202e"} & set(answer.text)
    shown = page.get(f"/runs/{run}").text
    # the output, without its colours
    assert r"&lt;/script&gt;red\x1b]0;title\x07\u202egnp.exe" in shown
    assert r"\x1b[31mred" in shown


def test_long_values_are_cut_and_say_so(own: tuple[Any, TestClient]) -> None:
    db, page = own
    run = a_run(db, a_job(db), "succeeded", payload=Jsonb({"text": "y" * 200_000}))
    an_output(db, run, 1, "z" * 65_536, omitted=1 << 30)
    text = page.get(f"/runs/{run}").text
    assert "z" * 12_000 in text
    assert "z" * 12_001 not in text
    assert "53,536 characters before it are in the download." in text
    assert "1.0 GiB before it were not kept" in text
    assert "y" * 11_900 in text
    assert "y" * 12_001 not in text
    assert (
        f"{len(json.dumps({'text': 'y' * 200_000}, indent=2)) - 12_000:,} characters more" in text
    )


# -- actions


def test_buttons_lead_to_what_the_action_will_do(demo_dsn: str, demo_db: Any, visit: Visit) -> None:
    page = visit(demo_dsn, actions_dsn=demo_dsn, namespace="shop")
    [dead] = search.page(
        demo_db, "shop", search.Filter(jobs=["charge_subscriptions"], statuses=["dead"]), 1
    ).runs
    found = set()
    for path in ("/dead", f"/runs/{dead.id}", "/runs?status=running", "/runs?job=sync_inventory"):
        for href in re.findall(r'href="(/actions/[^"?]*\?[^"]*)"', page.get(path).text):
            answer = page.get(html.unescape(href))
            assert answer.status_code == 200, href
            found.add(href.partition("?")[0])
    assert found >= {
        "/actions/retry",
        "/actions/retry-dead",
        "/actions/settle",
        "/actions/cancel-runs",
    }


def test_a_retry_of_a_group_is_about_as_many_runs_as_the_group_has(
    demo_dsn: str, demo_db: Any, visit: Visit
) -> None:
    page = visit(demo_dsn, actions_dsn=demo_dsn, namespace="shop")
    links = re.findall(r'href="(/actions/retry-dead\?job[^"]*)"', page.get("/dead").text)
    groups = sorted(
        failures.groups(demo_db, "shop", None, only_dead=True).groups,
        key=lambda group: group.last_at,
        reverse=True,
    )
    assert len(links) == len(groups)
    for href, group in zip(links, groups, strict=True):
        assert re.search(
            rf"\b{group.runs} dead runs?\b", words(page.get(html.unescape(href)).text)
        ), group


def test_without_actions_there_are_no_buttons(pages: TestClient) -> None:
    for path in ("/dead", "/runs/1200", "/runs?job=sync_inventory"):
        assert 'href="/actions/' not in pages.get(path).text


# -- groups of failures


def test_runs_that_wait_to_be_retried_are_grouped_by_type_of_error(
    own: tuple[Any, TestClient],
) -> None:
    db, page = own
    job = a_job(db, "purge", overlap="allow", timezone="Europe/Berlin")
    runs = [
        a_run(db, job, "failed", error_type=kind, last_error="<b>")
        for kind in ("OSError", "OSError", "KeyError")
    ]
    a_run(db, job, "succeeded", failed_at=datetime.now(UTC), error_type="Recovered")
    a_run(db, job, "failed", failed_at=datetime.now(UTC) - timedelta(hours=25), error_type="Old")

    shown = page.get("/runs?status=failed").text

    groups = re.findall(r'<a class="large" href="([^"]*)"[^>]*>(\d+)</a>', shown)
    assert [number for _, number in groups] == ["2", "1"]
    assert "<b>OSError</b>: &lt;b&gt;" in shown
    assert f'href="/runs/{runs[1]}"' in shown
    assert sorted(ids(page.get(html.unescape(groups[0][0])).text), reverse=True) == [
        runs[1],
        runs[0],
    ]
    for path in (
        "/runs",
        "/runs?status=dead",
        "/runs?status=failed&error=x",
        "/runs?status=failed&before=9999999",
    ):
        assert "by job and type of error" not in page.get(path).text
    assert "by job and type of error" in page.get("/runs?status=failed&job=purge").text


# -- /dead


def test_each_group_leads_to_its_runs_and_to_an_example(pages: TestClient, demo_db: Any) -> None:
    page = pages.get("/dead").text
    rows = re.findall(r'<a class="large" href="([^"]*)"[^>]*>([\d,+]+)</a>', page)
    groups = sorted(
        failures.groups(demo_db, "shop", None, only_dead=True).groups,
        key=lambda group: group.last_at,
        reverse=True,
    )
    assert [int(number) for _, number in rows] == [group.runs for group in groups]
    for (href, number), group in zip(rows, groups, strict=True):
        listed = ids(pages.get(html.unescape(href)).text)
        assert len(listed) == int(number)
        assert group.example_id == max(listed)
        assert f'href="/runs/{group.example_id}"' in page


def test_groups_are_ordered_and_limited_in_time(pages: TestClient) -> None:
    def numbers(query: str) -> list[int]:
        return [
            int(n)
            for n in re.findall(
                r'<a class="large"[^>]*>(\d+)</a>', pages.get(f"/dead?{query}").text
            )
        ]

    assert numbers("sort=largest") == sorted(numbers(""), reverse=True)
    assert 0 < sum(numbers("span=24h")) < sum(numbers("span=7d")) <= sum(numbers("span=all"))
    assert pages.get("/dead?span=1y").status_code == 400


def test_counts_of_dead_runs_are_bounded(
    own: tuple[Any, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, page = own
    job = a_job(db)
    for nth in range(4):
        a_run(db, job, "dead", error_type=f"E{nth % 2}")
    monkeypatch.setattr(failures, "MAX_OF_JOB", 3)
    monkeypatch.setattr(dead, "MAX_OF_JOB", 3)
    assert sorted(re.findall(r'<a class="large"[^>]*>([^<]*)</a>', page.get("/dead").text)) == [
        "1+",
        "2+",
    ]
    monkeypatch.setattr(dead, "MAX_GROUPS", 1)
    assert "and 1 older group" in page.get("/dead").text
    monkeypatch.setattr(failures, "MAX_FAILED", 2)
    assert "There are more dead runs than one page reads" in page.get("/dead").text


def test_json_is_indented_and_keeps_letters() -> None:
    assert run.pretty({"a": ["é"]}) == run.Cut(
        json.dumps({"a": ["é"]}, ensure_ascii=False, indent=2), 0
    )
