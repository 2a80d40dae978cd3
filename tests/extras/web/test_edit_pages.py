"""Edits on the pages of a job and of a run."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.schedules import a_file, sync_by_hand
from yamlsched.db.query import now
from yamlsched.extras.web.pages import job

Visit = Callable[..., TestClient]
DAY = timedelta(days=1)


@pytest.fixture
def page(demo_dsn: str, visit: Visit) -> TestClient:
    return visit(demo_dsn, namespace="shop")


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2])).split())


def test_the_page_of_a_job_lists_its_edits_and_marks_them_in_the_timeline(page: TestClient) -> None:
    answer = page.get("/jobs/nightly_backup").text
    shown = words(answer).partition(" Edits of this job")[2]

    assert (
        "Maria Keller Give the backup two hours: it did not end in time changed timeout 1h30m -> 2h"
        in shown
    )
    assert "Schedule the jobs of the shop added 8 keys cron 15 1 * * *" in shown
    assert "old CRM" not in shown
    marks = re.findall(r'<g class="edit"><title>([^<]*)</title>', answer)
    assert len(marks) >= 1
    assert 'by Maria Keller: "Give the backup two hours: it did not end in time"' in html.unescape(
        marks[0]
    )
    assert re.search(
        r"edits?", re.findall(r'<svg class="timeline"[^>]*aria-label="([^"]*)"', answer)[0]
    )


def test_the_page_of_a_run_names_the_edit_in_use_when_it_was_created(
    demo_db: Any, page: TestClient
) -> None:
    def run_of(job: str, before: str) -> int:
        [[id]] = demo_db.execute(
            "select r.id from yamlsched.job_runs r where r.job_type = %s"
            " and r.created_at < clock_timestamp() - %s::interval order by r.created_at desc limit 1",
            [job, before],
        ).fetchall()
        return int(id)

    new = words(page.get(f"/runs/{run_of('nightly_backup', '1 hour')}").text)
    old = words(page.get(f"/runs/{run_of('nightly_backup', '4 days')}").text)

    assert "Maria Keller Give the backup two hours" in new.partition("file then")[2][:120]
    assert "last edit before" not in new
    assert "Jonas Wirth The old CRM is gone" in old.partition("file then")[2][:120]
    assert "Maria Keller Schedule the jobs" in old.partition("last edit before")[2][:120]


def test_a_job_with_many_edits_lists_the_latest_and_hostile_text_is_escaped(
    db: Any, reader: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "MAX_MARKS", 3)
    monkeypatch.setattr(job, "MAX_EDITS", 2)
    start = now(db) - DAY
    for nth in range(5):
        payload = {"<script>alert(1)</script>": f"\x1b[31m{nth}"}
        file = a_file(x={"cron": "0 * * * *", "payload": payload})
        sync_by_hand(db, file, start + timedelta(minutes=nth))
    db.execute(
        "update yamlsched.edits set commit = 'v<i>1', author = '<u>', subject = '</title><script>'"
    )

    answer = reader.get("/jobs/x?span=3d").text

    assert answer.count('<g class="edit">') == 3
    assert "Earlier ones: yamlsched log x" in words(answer)
    assert not re.search("<script|<u>|<i>|\x1b", answer.partition("<main")[2])
