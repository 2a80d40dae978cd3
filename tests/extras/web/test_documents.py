"""Pages as JSON: the documents of the verbs, under the same rules as the pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.command_line import yamlsched
from support.rows import a_job, a_run
from yamlsched.extras.web.documents import DOCUMENTS
from yamlsched.extras.web.pages import PAGES

Visit = Callable[..., TestClient]
JSON = {"Accept": "application/json"}
VERBS = {
    "/": ["status"],
    "/report?since=12h": ["report", "--since", "12h"],
    "/runs?status=dead": ["runs", "--status", "dead"],
    "/runs/1200": ["show", "1200"],
    "/why?job=nightly_backup": ["why", "nightly_backup"],
    "/why?job=nightly_backup&at=yesterday": ["why", "nightly_backup", "--at", "yesterday"],
    "/dead": ["runs", "--group-by", "error_type", "--status", "dead"],
}


@pytest.fixture(scope="module")
def shop(demo_dsn: str) -> Any:
    from yamlsched.extras import web

    with TestClient(
        web.app(demo_dsn, namespace="shop", auth="none"), base_url="http://localhost"
    ) as client:
        yield client


def test_every_page_has_a_document() -> None:
    assert DOCUMENTS.keys() == {page.path for page in PAGES}


@pytest.mark.parametrize("path", VERBS)
def test_a_page_answers_with_the_document_of_its_verb(
    shop: TestClient, demo_dsn: str, path: str, tmp_path: Path
) -> None:
    options = ("--dsn", demo_dsn, "--namespace", "shop", "--format", "json")
    verb = yamlsched(*options, *VERBS[path], cwd=tmp_path)
    answer = shop.get(path, headers=JSON)
    assert answer.headers["content-type"] == "application/json"
    found, expected = answer.json(), json.loads(verb.stdout)
    assert found["format_version"] == expected["format_version"]
    assert expected.keys() <= found.keys()
    moving = {
        "now",
        "since",
        "until",
        "queue",
        "problems",
        "jobs",
        "longest",
        "job_is_off",
        "groups",
        "texts",  # the page has the stacks and outputs of some attempts, and says of which
    }
    for name in expected.keys() - moving:
        assert found[name] == expected[name], name
    groups = [
        sorted((one["job_type"], one["dead"]) for one in each.get("groups", ()))
        for each in (found, expected)
    ]
    assert groups[0] == groups[1]  # in the order of the page
    expected.pop("texts", None)
    assert [type(found[name]) for name in expected] == [type(expected[name]) for name in expected]


@pytest.mark.parametrize(
    "path", ["/nights", "/nights?by=runs", "/durations", "/jobs/nightly_backup", "/jobs/send_welcome_mail", "/graph",
             "/calendar", "/files", "/workers", "/actions", "/why"],
)  # fmt: skip
def test_a_page_without_a_verb_answers_with_what_it_shows(shop: TestClient, path: str) -> None:
    found = shop.get(path, headers=JSON).json()
    assert (found["format_version"], found["namespace"]) == (1, "shop")
    assert len(found) > 2


def test_browsers_get_a_page_and_caches_are_told_the_difference(shop: TestClient) -> None:
    for accept in (
        "text/html,application/xhtml+xml,*/*;q=0.8",
        "*/*",
        "text/html, application/json",
        "",
    ):
        answer = shop.get("/", headers={"Accept": accept})
        assert answer.headers["content-type"].startswith("text/html")
        assert "Accept" in answer.headers["vary"]
    etag = shop.get("/durations", headers=JSON).headers["etag"]
    assert shop.get("/durations", headers={**JSON, "If-None-Match": etag}).status_code == 304


def test_errors_are_documents_too(shop: TestClient) -> None:
    answer = shop.get("/jobs/nightly_bakup", headers=JSON)
    assert answer.status_code == 404
    assert answer.json()["error"] == 'There is no job "nightly_bakup" in namespace "shop".'
    assert 'Did you mean "nightly_backup"?' in answer.json()["remedy"]
    assert shop.get("/runs?since=soon", headers=JSON).json()["error"]


def test_the_rules_of_the_pages_hold(demo_dsn: str, visit: Visit) -> None:
    # a stranger, another namespace, and a form
    page = visit(demo_dsn, namespace="shop", auth="basic", users={"maria": "secret"})
    assert page.get("/", headers=JSON).status_code == 401
    assert page.get("/", headers=JSON).json().keys() == {"format_version", "error", "remedy"}
    assert page.get("/", headers=JSON, auth=("maria", "secret")).json()["namespace"] == "shop"
    assert page.get("/@other/", headers=JSON, auth=("maria", "secret")).status_code == 404
    assert page.post("/runs", headers=JSON, auth=("maria", "secret")).status_code in (403, 405)


def test_the_pages_of_a_list_are_followed_to_its_end(page: TestClient, db: Any) -> None:
    job = a_job(db)
    created = [a_run(db, job) for _ in range(120)]
    found: list[int] = []
    before = None
    while before is not None or not found:
        answer = page.get("/runs" + (f"?before={before}" if before else ""), headers=JSON).json()
        found += [run["id"] for run in answer["runs"]]
        before = answer["next_before"]
    assert found == created[::-1]
    assert not re.search("<", json.dumps(answer))
