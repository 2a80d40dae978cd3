"""The page of files: what is in use, what other places have, and what was applied."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.rows import a_job, a_place
from yamlsched import db as store
from yamlsched.act.pause import pause
from yamlsched.ask.history import definitions as ids_of
from yamlsched.db.query import load, now
from yamlsched.extras import web
from yamlsched.extras.web.pages import files as deployments
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync

Visit = Callable[..., TestClient]
PATH = "/srv/schedules.yaml"


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2])).split())


def a_file(*jobs: str, crons: str = "0 2 * * *") -> str:
    return "version: 1\njobs:\n" + "".join(
        f'  {job}: {{handler: a.b, cron: "{crons}"}}\n' for job in jobs
    )


def tick_with(
    connection: Any, host: str, text: str, environment: str = "production", **more: Any
) -> None:
    """Let a host tick with a file."""
    data = text.encode()
    sync(connection, ScheduleFile(data, PATH, environment, host=host, handler_path=None, **more))


OLD = a_file("kept", "edited", "removed")
NEW = a_file("kept", "added") + '  edited: {handler: a.b, cron: "0 3 * * *"}\n'
INVALID = a_file("kept", crons="61 * * * *") + '  "\\e[31m<script>": {handler: a.b}\n'


@pytest.fixture(scope="module")
def page(page_dsn: str) -> Iterator[TestClient]:
    """The page after a deploy that has reached two of six hosts."""
    with store.connect(page_dsn) as db:
        tick_with(db, "web-1", OLD)
        tick_with(db, "web-1", NEW, is_manual=True)
        tick_with(db, "web-2", NEW)
        tick_with(db, "web-3", OLD)
        tick_with(db, "web-4", NEW)
        tick_with(db, "web-4", INVALID)
        tick_with(db, "staging-1", NEW, "staging")
        a_place(db, in_use=False, host="web-5", path=PATH, environment="production")
        tick_with(db, "db-7", a_file("local"), namespace_override="db_7", is_manual=True)
    with TestClient(
        web.app(page_dsn, namespace="default", auth="none"), base_url="http://localhost"
    ) as client:
        yield client


def hosts(page: str) -> dict[str, str]:
    """Return what the page says about each host."""
    found = page.partition('<ul class="hosts">')[2].partition(
        '<section class="card" aria-labelledby="history'
    )[0]
    parts = re.split(r"<li>\s*<div class=\"host-state\">", found)[1:]
    return {
        re.findall(r'<b class="mono">([^<]*)', part)[0]: words("<main " + part) for part in parts
    }


def test_the_file_in_use_is_shown_with_its_options(page: TestClient) -> None:
    shown = words(page.get("/files").text)

    assert f"file {PATH} applied by web-1 since" in shown
    assert "environment production --env production" in shown
    assert "jobs 3" in shown


def test_each_host_has_a_state_and_the_reason_that_a_tick_would_report(page: TestClient) -> None:
    found = hosts(page.get("/files").text)

    assert next(iter(found)) == "web-4"  # what needs attention first
    assert "4 hosts have another file" in words(page.get("/files").text)
    assert found["web-1"].startswith("in use web-1")
    assert found["web-2"].startswith("in use web-2")
    assert found["web-3"].startswith("superseded web-3")
    assert "is not applied: another host uses the file that superseded it" in found["web-3"]
    assert found["staging-1"].startswith("other environment staging-1")
    assert (
        'its namespace belongs to environment "production", and this is environment "staging"'
        in found["staging-1"]
    )


def test_a_refused_file_is_shown_with_its_errors_and_hostile_text_is_visible(
    page: TestClient,
) -> None:
    answer = page.get("/files").text
    found = hosts(answer)["web-4"]

    assert found.startswith("refused web-4")
    assert "has 2 errors since" in found
    assert re.search(rf"{PATH}:3:\d+: error\[YS201\]", found)
    assert "minute 61 is not in 0-59" in found
    assert r"\x1b[31m<script>" in found
    assert "\x1b" not in answer
    assert "<script>" not in answer.partition("<main")[2]


def test_how_the_jobs_differ_is_shown_if_the_file_was_in_use_and_said_to_be_unknown_if_not(
    page: TestClient,
) -> None:
    found = hosts(page.get("/files").text)

    assert (
        "Since this file was in use: 1 job added added 1 job changed edited 1 job retired removed"
        in found["web-3"]
    )
    assert "The differences are not known here: this file was never in use" in found["web-5"]
    assert "The differences are not known" not in found["web-4"]  # its last valid file is in use


def test_the_history_has_what_each_file_changed(page: TestClient) -> None:
    shown = words(page.get("/files").text).partition("Edits")[2]

    changed = "1 job added added 1 job changed edited 1 job retired removed cron 0 2 * * * -> 0 3 * * * edited"
    assert changed in shown
    assert "3 jobs added edited , kept , removed" in shown


def test_each_edit_has_its_commit_author_and_subject_and_the_keys_outside_of_jobs(
    own_dsn: str, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.connect(own_dsn) as db:
        tick_with(db, "web-1", OLD)
        monkeypatch.setenv("YAMLSCHED_REVISION", "0123456789abcdef0123456789abcdef01234567")
        monkeypatch.setenv("YAMLSCHED_AUTHOR", "<b>Maria</b>")
        tick_with(db, "web-1", OLD + "retention: {dead: 30d}\n")
        db.execute("update yamlsched.edits set subject = '<script>' where commit is not null")
    answer = visit(own_dsn, namespace="default").get("/files").text
    shown = words(answer).partition("Edits")[2]

    assert (
        "01234567 <b>Maria</b> <script> in use retention.dead 90d -> 30d outside of jobs" in shown
    )
    assert re.search("file [0-9a-f]{8} 3 jobs added edited , kept , removed web-1", shown)
    assert "<script>" not in answer.partition("<main")[2]
    assert "commit 01234567 <b>Maria</b> <script> sha256" in words(answer)


def test_the_row_of_an_edit_has_five_of_the_keys_that_it_changed_and_the_rest_behind_a_line(
    own_dsn: str, visit: Visit
) -> None:
    # given an edit of two jobs in the same way, and of six keys of another one
    more = ", timezone: Europe/Berlin, timeout: 2h, max_attempts: 7, owner: x, tags: [y], description: z"
    old, new = a_file("alike", "same"), a_file("alike", "same", crons="0 4 * * *")
    with store.connect(own_dsn) as db:
        tick_with(db, "web-1", old + '  other: {handler: a.b, cron: "0 1 * * *"}\n')
        tick_with(
            db,
            "web-1",
            new
            + f'  other: {{handler: a.b, cron: "0 1 * * *"{more}}}\n  added: {{handler: a.b}}\n',
        )
    page = visit(own_dsn, namespace="default")

    # then the row says what, from what to what, and of which jobs; a job that was added has no keys in it
    shown = words(page.get("/files").text).partition("Edits")[2]
    assert "cron 0 2 * * * -> 0 4 * * * alike and 1 other job" in shown
    assert "timeout 1h -> 2h other" in shown
    assert "2 more keys" in shown
    [latest, first] = page.get("/files", headers={"Accept": "application/json"}).json()["edits"]
    assert {key["key"]: (key["jobs"], key["first"]) for key in latest["keys"]} == {
        "cron": (2, ["alike", "same"]),
        **dict.fromkeys(
            ("timezone", "timeout", "max_attempts", "owner", "tags", "description"), (1, ["other"])
        ),
    }
    assert first["keys"] == []


def test_edits_of_many_jobs_are_not_read(
    own_dsn: str, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.connect(own_dsn) as db:
        tick_with(db, "web-1", a_file("first", "second"))
        tick_with(db, "web-1", a_file("first", "second", crons="0 4 * * *"))
        tick_with(db, "web-1", a_file("first", "second", crons="0 5 * * *"))
    monkeypatch.setattr(deployments, "MAX_EDITED_JOBS", 3)
    listed = (
        visit(own_dsn, namespace="default")
        .get("/files", headers={"Accept": "application/json"})
        .json()["edits"]
    )
    assert [len(edit["keys"]) for edit in listed] == [1, 0, 0]


def test_a_place_with_an_overridden_namespace_says_so(
    visit: Visit, page_dsn: str, page: TestClient
) -> None:
    shown = words(visit(page_dsn, namespace="db_7").get("/files").text)

    assert "with --namespace db_7" in shown


def places(db: Any) -> list[Any]:
    values = {"namespace": "default", "limit": 10, "now": now(db)}
    return [*db.execute(load("hosts")["places"], values)]


def test_a_valid_file_clears_the_errors_and_a_pause_is_no_change_of_a_file(own_dsn: str) -> None:
    with store.connect(own_dsn) as db:
        tick_with(db, "web-1", OLD)
        tick_with(db, "web-1", INVALID)
        [refused] = places(db)
        pause(db, "default", ids_of(db, "default", ["kept"], ()) or [], "mia")
        tick_with(db, "web-1", OLD)
        [place] = places(db)
        in_use = db.execute(load("hosts")["in_use"], {"namespace": "default"}).fetchone()

    assert len(refused.errors) == 2
    since = in_use.applied_at + timedelta(microseconds=1)
    assert (place.errors, place.refused_at) == ([], None)
    with store.connect(own_dsn) as db:
        assert deployments.changed_since(db, "default", since) == []


def test_many_errors_and_many_hosts_are_bounded(own_dsn: str, db_of: Any, visit: Visit) -> None:
    db = db_of(own_dsn)
    a_job(db)
    a_place(db, host="web-0", environment="production")
    db.execute(
        "insert into yamlsched.hosts (namespace, hash, environment, host, path, yamlsched_version,"
        " tzdata_version, is_named, since, first_seen_at, seen_at, expected_until) select 'default',"
        " md5(n::text), '', 'pod-' || n, '/srv', '0.1.0', '2026a', false, now(), now(), now(),"
        " now() + interval '5 minutes' from generate_series(1, 2000) n"
    )
    with store.connect(own_dsn) as connection:
        data = a_file(*(f"job_{n}" for n in range(300)), crons="61 * * * *")
        tick_with(connection, "bad", data)
        tick_with(connection, "web-0", a_file("fine"))
        tick_with(connection, "web-0", data)

    answer = visit(own_dsn, namespace="default").get("/files")

    assert answer.status_code == 200
    assert len(answer.text) < 200_000
    assert "15 more errors" in words(answer.text)
    assert f"bad:{PATH} has 20 or more errors" in words(answer.text)


def test_without_files_the_page_says_what_to_do_next(
    visit: Visit, page_dsn: str, page: TestClient
) -> None:
    assert "There has been no tick" in words(visit(page_dsn, namespace="nobody").get("/files").text)
