"""The page of workers: queues, how much there is to do, and who serves them."""

from __future__ import annotations

import html
import re
from typing import Any

from starlette.testclient import TestClient

from support.rows import a_job, a_run

EARLIER = "(now() - interval '1 minute')"


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2])).split())


def test_queues_and_workers_are_shown_with_their_states(db: Any, reader: TestClient) -> None:
    db.execute("insert into yamlsched.namespaces (namespace) values ('default')")
    a_run(db, a_job(db, overlap="allow"), queue="gpu", run_at=EARLIER, created_at=EARLIER)
    for id, seen, leaving, ended in (
        ("a-live", "-59 min", None, None),  # the page may take its time
        ("b-leaving", "-58 min", "now", None),
        ("c-lost", "2 min", None, None),
        ("d-ended", "1 h", None, "now"),
    ):
        db.execute(
            "insert into yamlsched.workers (namespace, id, queue, host, path, reported_at,"
            " seen_at, leaving_at, ended_at, runs) values ('default', %s, 'gpu', 'node-1',"
            " '/srv/schedules.yaml', now() - interval '2 h', now() - %s::interval, %s, %s, 7)",
            [id, seen, leaving, ended],
        )

    shown = words(reader.get("/workers").text)

    assert re.search(r"gpu 1 .* 0 1 – 1 – Workers", shown)
    assert re.findall(r"(live|leaving|lost|ended) [a-d]-(\w+) gpu node-1", shown) == [
        (word, word) for word in ("live", "leaving", "lost", "ended")
    ]
    found = reader.get("/workers", headers={"Accept": "application/json"}).json()
    assert [queue["live"] for queue in found["queues"]] == [1]
    assert [worker["state"] for worker in found["workers"]][2:] == ["lost", "ended"]


def test_starts_are_shown_with_why_they_failed(db: Any, reader: TestClient) -> None:
    for id, start_by, ended, error in (
        ("a-starting", "1 h", None, None),
        ("b-late", "-1 h", None, None),
        ("c-failed", "1 h", "now", "exit code 1"),
    ):
        db.execute(
            "insert into yamlsched.workers (namespace, id, queue, requested_at, start_by,"
            " ended_at, error) values ('default', %s, 'gpu', now() - interval '2 h',"
            " now() + %s::interval, %s, %s)",
            [id, start_by, ended, error],
        )
    db.execute(
        "insert into yamlsched.queue_states (namespace, queue, failed_starts)"
        " values ('default', 'gpu', 1)"
    )

    shown = words(reader.get("/workers").text)

    assert "gpu exit code 1 0 – 0 – 1 – 1 Workers" in shown
    assert re.findall(r"(starting|failed) [a-c]-(\w+)", shown) == [
        ("failed", "late"),
        ("starting", "starting"),
        ("failed", "failed"),
    ]


def test_without_workers_the_page_says_so(db: Any, reader: TestClient) -> None:
    shown = words(reader.get("/workers").text)
    assert "No queue has anything to do" in shown
    assert "No worker" in shown
