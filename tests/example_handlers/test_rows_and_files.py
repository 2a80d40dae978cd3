"""The example handlers that change rows and files: they write all of it or nothing, and delete nothing in use."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from handlers import app, billing, cache, cleanup, flaky, sales
from support.rows import value
from yamlsched import Discard
from yamlsched.testing import FakeRun


def test_two_handlers_that_miss_the_tables_at_once_create_them_once(app_dsn: str):
    # given one handler that has created the tables without committing
    with (
        psycopg.connect(app_dsn) as one,
        psycopg.connect(app_dsn) as other,
        psycopg.connect(app_dsn) as watch,
    ):
        watch.autocommit = True
        app.ensure_tables(one)

        # when another one also misses them, and waits
        second = threading.Thread(target=app.ensure_tables, args=[other])
        second.start()
        waiting = "select count(*) from pg_stat_activity where wait_event = 'advisory' and pid = %d"
        while not value(watch, waiting % other.info.backend_pid):
            assert second.is_alive()
        one.commit()
        second.join()

        # then it finds them with one set of rows
        assert value(other, "select count(*) from app.users") == 10


# cleanup


def test_cleanup_deletes_only_expired_rows_and_files(run: FakeRun, tables, var: Path):
    expired = value(tables, "select count(*) from app.sessions where expires_at < now()")
    kept = value(tables, "select count(*) from app.sessions where expires_at >= now()")

    cleanup.run(run, older_than_days=30)

    assert run.result == {"sessions": expired, "files": 2}
    assert expired > 2 * cleanup.BATCH_ROWS
    assert value(tables, "select count(*) from app.sessions") == kept > 0
    assert [path.name for path in (var / "tmp").iterdir()] == ["upload-3.part"]
    again = run.next_attempt()
    cleanup.run(again, older_than_days=30)
    assert again.result == {"sessions": 0, "files": 0}


def test_cleanup_skips_a_locked_session_without_waiting(run: FakeRun, tables, app_dsn: str):
    with psycopg.connect(app_dsn) as other:
        held = value(
            other,
            "select id from app.sessions where expires_at < now() order by id limit 1 for update",
        )

        cleanup.run(run, older_than_days=30)

        assert value(tables, "select min(id) from app.sessions where expires_at < now()") == held


def test_cleanup_keeps_sessions_whose_deletion_was_not_committed(run: FakeRun, tables):
    before = value(tables, "select count(*) from app.sessions")

    with pytest.raises(psycopg.OperationalError):
        cleanup.run(replace(run, commit_fails=True), older_than_days=30)

    assert value(tables, "select count(*) from app.sessions") == before


def test_cleanup_of_files_does_not_follow_links_or_enter_folders(var: Path):
    # given old entries that are not regular files of the folder
    folder = app.temporary_folder()
    outside = var / "precious.txt"
    outside.write_text("precious")
    (folder / "link").symlink_to(outside)
    (folder / "deeper").mkdir()
    inside = folder / "deeper" / "old.txt"
    inside.write_text("old")
    for path in (outside, inside, folder / "deeper"):
        os.utime(path, (0, 0))
    os.utime(folder / "link", (0, 0), follow_symlinks=False)

    cleanup.delete_old_files(folder, 30)

    assert outside.exists()
    assert inside.exists()
    assert (folder / "link").is_symlink()


@pytest.mark.parametrize("days", [0, -1])
def test_cleanup_refuses_an_age_that_would_delete_files_in_use(run: FakeRun, var: Path, days: int):
    files = sorted(app.temporary_folder().iterdir())

    with pytest.raises(Discard, match=f"older_than_days is {days}"):
        cleanup.run(run, older_than_days=days)

    assert sorted((var / "tmp").iterdir()) == files


# cache


def test_a_refresh_writes_and_records_the_file(run: FakeRun, tables, var: Path):
    cache.refresh(run)

    path = var / "cache" / "activity.json"
    figures = [entry["events"] for entry in json.loads(path.read_text())["most_active"]]
    assert figures == sorted(figures, reverse=True)
    assert sum(figures) == value(
        tables, "select count(*) from app.events where happened_at > now() - interval '7 days'"
    )
    assert run.result["sha256"] == value(
        tables, "select sha256 from app.cached_files where name = 'activity.json'"
    )
    assert run.result["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_second_refresh_replaces_the_file_and_the_record(run: FakeRun, tables, var: Path):
    cache.refresh(run)
    tables.execute("delete from app.events")

    cache.refresh(run.next_attempt())

    assert json.loads((var / "cache" / "activity.json").read_text()) == {"most_active": []}
    assert value(tables, "select count(*) from app.cached_files") == 1


def test_an_interrupted_write_leaves_the_old_content_and_a_file_for_the_cleanup(
    var: Path, monkeypatch: pytest.MonkeyPatch
):
    path = var / "cache" / "activity.json"
    cache.write_atomically(path, b"old")
    before = set((var / "tmp").iterdir())

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        cache.write_atomically(path, b"new")

    assert path.read_bytes() == b"old"
    [left] = set((var / "tmp").iterdir()) - before
    os.utime(left, (0, 0))
    cleanup.delete_old_files(var / "tmp", 30)
    assert not left.exists()


# flaky


def test_the_flaky_job_fails_twice_and_then_succeeds():
    run = FakeRun()

    for attempt in (1, 2):
        with pytest.raises(ConnectionError, match="until attempt 3"):
            flaky.fetch_rates(replace(run, attempt=attempt))
    assert flaky.fetch_rates(replace(run, attempt=3)) == {"attempts": 3}


# invoices


def test_the_billing_check_passes_equal_payments_and_names_different_ones(run: FakeRun, tables):
    assert billing.check_billing(run) == {
        "payments": value(tables, "select count(*) from app.payments")
    }

    tables.execute("update app.payments set amount_cents = 1 where invoice_id = 803")
    tables.execute(
        "insert into app.payments (invoice_id, charge_id, amount_cents) values (7, 'of none', 1)"
    )

    with pytest.raises(Discard, match="2 payments differ from their invoices: 7, 803"):
        billing.check_billing(run)


# the sales report


def test_a_sales_report_covers_the_day_before_its_slot_whenever_it_runs(
    run: FakeRun, tables, var: Path
):
    tables.execute("update app.invoices set issued_on = '2026-01-13' where id in (801, 802)")
    run.scheduled_for = datetime(2026, 1, 14, 5, 30, tzinfo=UTC)

    for attempt in (run, run.next_attempt()):
        result = sales.report(attempt)
        amount = value(
            tables, "select sum(amount_cents)::bigint from app.invoices where id in (801, 802)"
        )
        assert result == {"file": "sales-2026-01-13.csv", "invoices": 2, "amount_cents": amount}

    [path] = (var / "reports").iterdir()
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == [
        "invoice",
        "801",
        "802",
    ]
    assert sales.report(run, day="2020-02-29")["file"] == "sales-2020-02-29.csv"


@pytest.mark.parametrize(
    "slot, day", [("2026-03-28T23:30Z", "2026-03-28"), ("2026-03-28T22:30Z", "2026-03-27")]
)
def test_the_day_of_a_slot_is_in_the_time_zone_of_the_business(run: FakeRun, slot: str, day: str):
    run.scheduled_for = datetime.fromisoformat(slot)

    assert sales.report(run)["file"] == f"sales-{day}.csv"
