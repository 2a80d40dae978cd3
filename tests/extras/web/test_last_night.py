"""``/report`` and ``/why`` without a job: what happened last night, and what did not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from extras.web.test_pages import words
from starlette.testclient import TestClient

from support.rows import a_job, a_run
from yamlsched.act import pause

HOUR = timedelta(hours=1)


def a_gap(
    db: Any, job: int, reason: str, hours_ago: float, slots: int = 1, detail: str | None = None
) -> datetime:
    """Record ``slots`` hourly slots as skipped; return the last one."""
    last = datetime.now(UTC).replace(second=0, microsecond=0) - hours_ago * HOUR
    db.execute(
        "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, recorded_at, detail)"
        " values (%s, %s, %s, %s, %s, now(), %s)",
        [job, last - (slots - 1) * HOUR, last, slots, reason, detail],
    )
    return last


def test_why_without_a_job_lists_what_did_not_run_and_who_paused_it(
    page: TestClient, db: Any
) -> None:
    # given slots that were skipped for reasons of all kinds, one of them long ago
    backup, prices = a_job(db, "backup"), a_job(db, "prices")
    db.execute(
        "insert into yamlsched.operator_actions (namespace, at, who, verb, target, job_type, detail) values"
        " ('default', now() - interval '9 hours', 'jonas', 'pause', 'job:backup', 'backup',"
        '  \'{"reason": "the disk is replaced"}\'),'
        " ('default', now() - interval '1 hour', 'maria', 'resume', 'job:backup', 'backup', '{}')"
    )
    a_gap(db, backup, "paused", hours_ago=3, slots=4)
    a_gap(db, prices, "upstream", hours_ago=2, detail="backup:118")
    a_gap(db, a_job(db, "old"), "late", hours_ago=40)

    # then the slots of the last day are listed, with the person and the reason
    shown = words(page.get("/why").text)
    assert "backup paused jonas had paused the job at" in shown
    assert ": the disk is replaced" in shown
    assert (
        "a job that it follows has not succeeded, or had no run to wait for (backup, run 118)"
        in shown
    )
    assert "old" not in shown.split()


def test_the_slots_of_a_pause_that_lasts_are_listed_before_a_sync_records_them(
    page: TestClient, db: Any
) -> None:
    job = a_job(db, "backup", schedule="0 * * * *")
    pause.pause(db, "default", [job], "jonas", reason="the disk is replaced")
    db.execute(
        "update yamlsched.job_definitions set last_slot_at = now() - interval '5 hours', next_slot_at = null"
    )

    shown = words(page.get("/why").text)

    assert "5 backup paused the job has been paused since" in shown
    assert ": the disk is replaced" in shown


def test_slots_that_no_sync_has_processed_are_listed_first(page: TestClient, db: Any) -> None:
    a_gap(db, a_job(db, "skipped"), "overlap", hours_ago=2)
    a_job(
        db, "owed", schedule="0 * * * *", next_slot_at=datetime.now(UTC) - 3 * HOUR, catchup="all"
    )

    shown = words(page.get("/why").text)

    assert shown.index("owed due no sync has processed it") < shown.index("skipped overlap")


def test_jobs_that_run_are_not_listed(page: TestClient, db: Any) -> None:
    a_job(db, next_slot_at=datetime.now(UTC) + HOUR)
    assert "Each slot had its run." in words(page.get("/why").text)


def test_last_night_is_one_click_from_the_first_page_and_has_what_the_report_has(
    page: TestClient, db: Any
) -> None:
    # given a night with a success, a dead run and a skipped slot
    job = a_job(db)
    a_run(db, job, "succeeded")
    dead = a_run(db, job, "dead", last_error="no route to host")
    a_gap(db, job, "overlap", hours_ago=2)
    slot = datetime.now(UTC) - 2 * HOUR
    load = a_job(db, "load", finish_within=HOUR)
    late = a_run(
        db, load, "succeeded", scheduled_for=slot, run_at=slot, created_at=slot, started_at=slot
    )

    # then the first link of the content of / leads to it
    home = page.get("/").text.partition("<main")[2]
    assert home.partition("<a ")[2].partition('href="')[2].startswith("/report")

    # and it says what ran, what died and what did not run, with links
    answer = page.get("/report").text
    shown = words(answer)
    assert "3 runs of 2 jobs: 2 succeeded, 1 died" in shown
    assert "load: 1 run finished late, 2h after its slot" in shown
    assert "Finished late runs job latest finished run 1 load 2h" in shown
    assert f'href="/runs/{late}"' in answer
    assert "OSError: no route to host" in shown
    assert "overlap a run of an earlier slot was unfinished" in shown
    assert f'href="/runs/{dead}"' in answer
    assert 'href="/jobs/purge"' in answer


def test_last_night_is_whole_on_the_evening_after_it(page: TestClient, db: Any) -> None:
    # given jobs of a time zone where it is ten in the evening, and slots that were skipped around 18:00 of yesterday
    now = datetime.now(UTC)
    ahead = (22 - now.hour + 9) % 24 - 9
    zone = f"Etc/GMT{-ahead:+}"
    since = (now + ahead * HOUR).replace(hour=18, minute=0, second=0, microsecond=0) - (
        24 + ahead
    ) * HOUR
    for name, at in (("backup", since), ("before", since - timedelta(minutes=1))):
        db.execute(
            "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, recorded_at)"
            " values (%s, %s, %s, 1, 'overlap', now())",
            [a_job(db, name, timezone=zone, next_slot_at=now + HOUR), at, at],
        )

    # then the page has the night since then, as the command line that it names
    answer = page.get("/report").text
    assert "<h1>Last night</h1>" in answer
    assert 'href="/jobs/backup"' in answer
    assert 'href="/jobs/before"' not in answer
    assert 'yamlsched report --since "yesterday 18:00"' in words(answer)
    assert 'href="/jobs/backup"' not in page.get("/report?since=24h").text


def test_a_night_without_anything_says_so(page: TestClient, db: Any) -> None:
    assert "nothing: no run ended or failed" in words(page.get("/report").text)


def test_a_span_that_the_page_does_not_have_is_refused(page: TestClient, db: Any) -> None:
    assert page.get("/report?since=1y").status_code == 400
    assert page.get("/report?since=7d").status_code == 200
