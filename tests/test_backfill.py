"""backfill and why: past slots created by hand, and the result of a slot."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from support.schedules import (
    DAY,
    HOUR,
    MINUTE,
    a_file,
    at,
    definition,
    finish,
    gaps,
    prune,
    runs,
    slots,
    sync_by_hand,
)
from yamlsched import db as store
from yamlsched.act.backfill import BackfillResult, backfill, definition_for
from yamlsched.ask.why import SlotReport, explain_day, explain_slot
from yamlsched.cli import main
from yamlsched.errors import Refused
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.timetable import times
from yamlsched.timetable.zones import zone

Db = psycopg.Connection[Any]
Cli = Callable[..., tuple[int, str, str]]
NIGHTLY = {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}
HOURLY = {"cron": "0 * * * *"}
NOW = at("2026-01-20 12:00")


def read(text: str, where: ZoneInfo) -> tuple[datetime, datetime]:
    value = times.parse(text)
    assert isinstance(value, date)
    return times.bounds(value, where)


def fill(
    db: Db, first: str, last: str | None = None, now: datetime = NOW, dry_run: bool = False
) -> BackfillResult:
    job = definition_for(db, "default", "x")
    start, end = read(first, zone(job.timezone))
    end = read(last, zone(job.timezone))[1] if last else end
    return backfill(db, "default", job, start, end, "ann", dry_run=dry_run, now=now)


def explain(db: Db, text: str) -> SlotReport:
    return explain_slot(db, "default", definition_for(db, "default", "x"), at(text))


# -- backfill ----------------------------------------------------------------------------------------------------------


def test_a_date_is_the_local_date_of_the_job_and_its_slot_gets_its_own_key(db: Db) -> None:
    sync(db, a_file(x=NIGHTLY), NOW)
    before = definition(db)

    result = fill(db, "2026-01-14")

    assert runs(db) == [("x:2026-01-14", at("2026-01-14 01:00"))]
    assert [slot.key for slot in result.made] == ["x:2026-01-14"]
    after = definition(db)
    assert (after.last_slot_at, after.next_slot_at) == (before.last_slot_at, before.next_slot_at)


def test_a_range_includes_both_ends_and_its_runs_are_created_in_order_and_due_now(db: Db) -> None:
    sync(db, a_file(x=HOURLY), NOW)

    fill(db, "2026-01-14T03:00Z", "2026-01-14T06:00Z")

    assert slots(db) == ["01-14 03:00", "01-14 04:00", "01-14 05:00", "01-14 06:00"]
    rows = db.execute("select distinct run_at, exclusive from yamlsched.job_runs").fetchall()
    assert [(row.run_at, row.exclusive) for row in rows] == [(NOW, True)]


def test_existing_and_pruned_runs_are_reported_and_not_created_again(db: Db) -> None:
    sync(db, a_file(x=NIGHTLY), NOW)
    fill(db, "2026-01-13", "2026-01-14")
    prune(db, "idempotency_key = 'x:2026-01-13'")

    again = fill(db, "2026-01-13", "2026-01-15")

    assert [slot.key for slot in again.made] == ["x:2026-01-15"]
    assert [slot.key for slot in again.existing] == ["x:2026-01-14"]
    assert [slot.key for slot in again.used] == ["x:2026-01-13"]


def test_a_dry_run_changes_nothing(db: Db) -> None:
    sync(db, a_file(x=NIGHTLY), NOW)

    result = fill(db, "2026-01-14", "2026-01-16", dry_run=True)

    assert len(result.made) == 3
    assert runs(db) == []
    assert db.execute("select 1 from yamlsched.operator_actions").fetchone() is None


def test_future_slots_are_left_to_sync(db: Db) -> None:
    sync(db, a_file(x=NIGHTLY), NOW)

    result = fill(db, "2026-01-20", "2026-01-25")

    assert ([slot.key for slot in result.made], result.future) == (["x:2026-01-20"], True)


def test_a_skipped_slot_can_be_backfilled_and_keeps_its_gap(db: Db) -> None:
    file = a_file(x=HOURLY)
    sync(db, file, at("2026-01-20 08:30"))
    sync(db, file, NOW)
    assert gaps(db) == [("01-20 09:00", "01-20 11:00", 3, "superseded")]

    fill(db, "2026-01-20T10:00Z")

    assert sorted(slots(db)) == ["01-20 10:00", "01-20 12:00"]
    assert gaps(db) == [("01-20 09:00", "01-20 11:00", 3, "superseded")]


def test_a_backfilled_slot_is_not_created_again_by_sync(db: Db) -> None:
    file = a_file(x={**HOURLY, "catchup": "all"})
    sync(db, file, at("2026-01-20 08:30"))

    fill(db, "2026-01-20T10:00Z")
    finish(db, NOW)
    sync(db, file, NOW)

    assert sorted(slots(db)) == ["01-20 09:00", "01-20 10:00", "01-20 11:00", "01-20 12:00"]
    assert gaps(db) == []


def test_a_long_range_is_created_in_several_transactions_and_recorded(db: Db) -> None:
    sync(db, a_file(x={"cron": "* * * * *"}), NOW)
    steps: list[int] = []

    backfill(
        db,
        "default",
        definition_for(db, "default", "x"),
        NOW - DAY,
        NOW - MINUTE,
        "ann",
        progress=steps.append,
        now=NOW,
    )

    assert steps == [1000, 1440]
    rows = db.execute(
        "select who, verb, target, detail from yamlsched.operator_actions order by id"
    ).fetchall()
    assert [(row.who, row.verb, row.target, row.detail["runs"]) for row in rows] == [
        ("ann", "backfill", "job:x", 1000),
        ("ann", "backfill", "job:x", 440),
    ]


@pytest.mark.parametrize(
    "job, message",
    [
        ({"cron": "0 2 * * *", "enabled": False}, "is disabled"),
        ({}, "has no cron"),
        (None, "is retired"),
    ],
)
def test_a_job_without_slots_is_refused(db: Db, job: dict[str, Any] | None, message: str) -> None:
    sync(db, a_file(x=NIGHTLY), NOW - HOUR)
    sync_by_hand(db, a_file(**({"x": job} if job is not None else {})), NOW)

    with pytest.raises(Refused, match=message):
        fill(db, "2026-01-14")


def test_a_job_that_is_disabled_meanwhile_gets_no_more_runs(
    db: Db, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a backfill that has committed its first chunk
    monkeypatch.setattr("yamlsched.act.backfill.CHUNK_SLOTS", 1)
    sync(db, a_file(x=NIGHTLY), NOW - HOUR)
    job = definition_for(db, "default", "x")

    def disable(done: int) -> None:
        with store.connect(dsn) as other:
            sync(other, a_file(x={**NIGHTLY, "enabled": False}), NOW)

    # when the job is disabled before the next chunk
    with pytest.raises(Refused, match="is disabled in schedules"):
        backfill(
            db,
            "default",
            job,
            at("2026-01-13 00:00"),
            at("2026-01-15 12:00"),
            "ann",
            progress=disable,
            now=NOW,
        )

    # then the first run is kept, and no other was created
    assert len(runs(db)) == 1


def test_a_job_that_its_environments_disable_is_not_called_disabled_in_the_file(db: Db) -> None:
    job = {**NIGHTLY, "environments": ["production"]}
    sync(
        db,
        a_file(environment="staging", top="environments: {staging: {}, production: {}}", x=job),
        NOW,
    )

    with pytest.raises(Refused, match='job "x" is not enabled in environment "staging": enable it'):
        fill(db, "2026-01-14")
    assert (
        explain(db, "2026-01-14 02:00").job_is_off
        == 'the job is not enabled in environment "staging"'
    )


def test_an_unknown_job_is_refused_with_the_nearest_name(db: Db) -> None:
    sync(db, a_file(cleanup=NIGHTLY), NOW)

    with pytest.raises(Refused, match='Did you mean "cleanup"'):
        definition_for(db, "default", "claenup")


# -- why ---------------------------------------------------------------------------------------------------------------


def test_why_finds_the_run_of_a_slot(db: Db) -> None:
    file = a_file(x=HOURLY)
    sync(db, file, at("2026-01-20 08:30"))
    sync(db, file, at("2026-01-20 09:00"))

    explained = explain(db, "2026-01-20 09:00")

    assert (explained.verdict, explained.key, explained.status) == (
        "run",
        "x:2026-01-20T09:00Z",
        "queued",
    )
    assert f"run {explained.run_id} queued, attempt 0" in explained.lines[0]


@pytest.mark.parametrize(
    "job, reason, words",
    [
        (HOURLY, "superseded", "catchup: latest"),
        ({**HOURLY, "catchup_window": "30m"}, "late", "too old"),
        ({**HOURLY, "catchup": "none"}, "late", "too old"),
    ],
)
def test_why_finds_the_gap_of_a_slot_and_explains_its_reason(
    db: Db, job: dict[str, Any], reason: str, words: str
) -> None:
    file = a_file(x=job)
    sync(db, file, at("2026-01-20 08:30"))
    sync(db, file, NOW)

    explained = explain(db, "2026-01-20 10:00")

    assert (explained.verdict, explained.reason) == ("skipped", reason)
    assert words in explained.lines[0]
    assert "the 3 slots from 2026-01-20T09:00Z to 2026-01-20T11:00Z" in explained.lines[0]


def test_why_names_the_field_that_does_not_match_and_the_closest_slots(db: Db) -> None:
    sync(db, a_file(x=NIGHTLY), NOW)

    explained = explain(db, "2026-01-14 02:30")

    assert (explained.verdict, explained.is_slot) == ("no_slot", False)
    assert "minute 30 is not in 0" in explained.lines[0]
    assert (explained.previous_slot, explained.next_slot) == (
        at("2026-01-14 01:00"),
        at("2026-01-15 01:00"),
    )


def test_why_names_the_run_that_a_slot_waits_for(db: Db) -> None:
    file = a_file(x=HOURLY)
    for now in ("2026-01-20 08:30", "2026-01-20 09:00", "2026-01-20 10:00"):
        sync(db, file, at(now))

    explained = explain(db, "2026-01-20 10:00")

    assert explained.verdict == "due"
    assert "of slot 2026-01-20T09:00Z is unfinished, and overlap: wait" in explained.lines[0]


def test_why_reports_that_a_slot_is_before_the_first_application_of_the_job(db: Db) -> None:
    sync(db, a_file(x=HOURLY), NOW)

    explained = explain(db, "2026-01-20 10:00")

    assert explained.verdict == "unknown"
    assert "added, enabled or rescheduled at 2026-01-20T12:00Z" in explained.lines[0]


def test_why_explains_future_slots(db: Db) -> None:
    sync(db, a_file(x=HOURLY))

    assert explain(db, "2096-01-20 10:00").verdict == "future"


@pytest.mark.parametrize(
    "edit, words", [({**HOURLY, "enabled": False}, "is disabled"), (None, "has been retired")]
)
def test_why_explains_what_happens_to_slots_of_a_paused_disabled_or_retired_job(
    db: Db, edit: dict[str, Any] | None, words: str
) -> None:
    sync(db, a_file(x=HOURLY), at("2026-01-20 08:30"))
    sync_by_hand(db, a_file(**({"x": edit} if edit else {})), at("2026-01-20 08:40"))

    explained = explain(db, "2026-01-20 10:00")

    assert explained.verdict == "due"
    assert words in explained.lines[0]


def test_why_finds_a_run_that_was_pruned(db: Db) -> None:
    sync(db, a_file(x=NIGHTLY), NOW)
    fill(db, "2026-01-14")
    prune(db, "true")

    assert explain(db, "2026-01-14 01:00").verdict == "pruned"


def test_a_date_means_all_of_its_slots_and_omitted_slots_are_counted(db: Db) -> None:
    sync(db, a_file(x={"cron": "*/10 * * * *", "timezone": "America/New_York"}), NOW)

    day = explain_day(db, "default", definition_for(db, "default", "x"), date(2026, 3, 8))

    assert [day.slots[0].at, day.slots[-1].at] == [at("2026-03-08 05:00"), at("2026-03-08 13:10")]
    assert (len(day.slots), day.more) == (50, 23 * 6 - 50)
    assert day.next_slot == at("2026-03-09 04:00")


@pytest.mark.parametrize(
    "edit, words",
    [
        (None, "the job has been retired since 2026-01-20T10:40Z"),
        (
            {**HOURLY, "enabled": False},
            "the job is disabled in schedules.yaml, and its last slot before that was",
        ),
    ],
)
def test_why_reports_that_a_job_is_paused_disabled_or_retired_also_for_slots_that_ran(
    db: Db, edit: dict[str, Any] | None, words: str
) -> None:
    for now, job in (("08:30", HOURLY), ("09:00", HOURLY), ("10:40", edit)):
        sync_by_hand(db, a_file(**({"x": job} if job else {})), at(f"2026-01-20 {now}"))

    explained = explain(db, "2026-01-20 09:00")

    assert explained.verdict == "run"
    assert (explained.job_is_off or "").startswith(words)


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, dsn: str
) -> Callable[..., Any]:
    """Run the command line in a folder with a schedules.yaml; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    Path("schedules.yaml").write_bytes(
        a_file(x={"cron": "0 2 * * *", "timezone": "Europe/Berlin"}).data
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["yamlsched", *arguments, "--dsn", dsn])
        with pytest.raises(SystemExit) as exit:
            main()
        captured = capsys.readouterr()
        return int(str(exit.value.code)), captured.out, captured.err

    return run


def test_the_verbs_work_together(cli: Cli) -> None:
    code, out, _ = cli("sync")
    assert (code, out) == (0, "added: x\n")
    assert cli("sync")[:2] == (0, "nothing to do\n")

    code, out, _ = cli("backfill", "x", "--before-first", "--from", "2026-01-14", "--dry-run")
    assert (code, out) == (0, "would create x:2026-01-14 for 2026-01-14T01:00Z\n")
    code, out, _ = cli("backfill", "x", "--before-first", "--from", "2026-01-14")
    assert (code, out) == (0, "created x:2026-01-14 for 2026-01-14T01:00Z\n")
    code, out, _ = cli(
        "backfill", "x", "--before-first", "--from", "2026-01-14", "--format", "json"
    )
    document = json.loads(out)
    assert (code, document["made"], document["existing"][0]["key"]) == (0, [], "x:2026-01-14")

    code, out, _ = cli("why", "x", "--at", "2026-01-14T02:00")
    assert code == 0
    assert out.startswith(
        "x at 2026-01-14T01:00Z (Wed 2026-01-14 02:00 CET), key x:2026-01-14\n  run "
    )
    code, out, _ = cli("why", "x", "--at", "2026-01-14T01:00Z", "--format", "json")
    assert (code, json.loads(out)["verdict"]) == (0, "run")


def test_a_large_backfill_asks_for_confirmation_with_the_number_of_slots(db: Db, cli: Cli) -> None:
    Path("schedules.yaml").write_bytes(a_file(x=HOURLY).data)
    assert cli("sync")[0] == 0
    days = ("--before-first", "--from", "2026-01-14", "--to", "2026-01-18")

    code, _, err = cli("backfill", "x", *days)

    assert code == 2
    assert "this would create up to 120 runs of x: pass --yes" in err
    assert runs(db) == []
    assert cli("backfill", "x", *days, "--dry-run")[0] == 0
    assert cli("backfill", "x", *days, "--yes")[0] == 0
    assert len(runs(db)) == 120


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--downstream",)])
def test_a_backfill_of_more_than_ten_thousand_slots_is_refused_without_yes_and_counted_before_it_is_listed(
    db: Db, cli: Cli, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    # given a range of 26 years, each of whose slots cannot be listed
    Path("schedules.yaml").write_bytes(
        a_file(x={"cron": "* * * * *"}, follower={"after": ["x"]}).data
    )
    assert cli("sync")[0] == 0
    monkeypatch.setattr("yamlsched.act.backfill._chunks", None)

    code, out, err = cli(
        "backfill", "x", "--before-first", "--from", "2000-01-01", "--to", "2025-12-31", *options
    )

    number = 13_675_680 if "--downstream" not in options else 2 * 13_675_680
    assert (code, out) == (1, "")
    assert (
        f"these are {number:,} slots, more than 10,000: choose a smaller range, or pass --yes"
        in err
    )


def test_with_yes_more_than_ten_thousand_slots_are_listed(cli: Cli) -> None:
    Path("schedules.yaml").write_bytes(a_file(x={"cron": "* * * * *"}).data)
    assert cli("sync")[0] == 0
    week = ("--before-first", "--from", "2026-01-01", "--to", "2026-01-07")

    assert cli("backfill", "x", *week, "--dry-run")[0] == 1
    code, out, _ = cli("backfill", "x", *week, "--dry-run", "--yes")

    assert code == 0
    assert "would create 10060 more" in out


def test_a_backfill_starts_on_the_day_of_the_first_application(db: Db, cli: Cli) -> None:
    Path("schedules.yaml").write_bytes(a_file(x={**NIGHTLY, "cron": "0 23 * * *"}).data)
    assert cli("sync")[0] == 0
    # 23:59 in Berlin
    db.execute("update yamlsched.job_definitions set created_at = '2026-01-14T22:59Z'")

    before = cli("backfill", "x", "--from", "2026-01-12", "--to", "2026-01-13")
    across = cli("backfill", "x", "--from", "2026-01-12", "--to", "2026-01-15")
    earlier = cli("backfill", "x", "--from", "2026-01-13", "--before-first")

    assert before[:2] == (1, "")
    assert (
        'job "x" was first applied on 2026-01-14: pass --before-first to create runs of earlier slots'
        in before[2]
    )
    assert "slots before 2026-01-14, when the job was first applied, are skipped" in across[2]
    assert (across[0], earlier[0]) == (0, 0)
    assert [key for key, _ in runs(db)] == ["x:2026-01-14", "x:2026-01-15", "x:2026-01-13"]


def test_a_backfill_of_future_slots_says_that_sync_creates_their_runs(cli: Cli) -> None:
    cli("sync")

    code, out, err = cli(
        "backfill", "x", "--from", "2096-01-01T00:00Z", "--to", "2096-01-03T00:00Z"
    )

    assert (code, out) == (0, "")
    assert err == "slots after 2096-01-01T00:00Z are in the future: sync creates those runs\n"


def test_an_interrupted_backfill_reports_how_many_runs_it_created_and_can_be_continued(
    own_dsn: str, tmp_path: Path
) -> None:
    # given a backfill of 4,321 slots whose second transaction waits for a lock
    file = tmp_path / "schedules.yaml"
    file.write_bytes(a_file(x={"cron": "* * * * *"}).data)
    days = ("--before-first", "--from", "2026-01-14T00:00Z", "--to", "2026-01-17T00:00Z", "--yes")
    arguments = [
        sys.executable,
        "-m",
        "yamlsched",
        "backfill",
        "x",
        *days,
        "--file",
        str(file),
        "--dsn",
        own_dsn,
    ]
    with store.connect(own_dsn) as db, store.connect(own_dsn) as holder:
        sync(db, ScheduleFile(file.read_bytes(), str(file), "", "web-1"), NOW)
        holder.execute(
            "create function public.hold() returns trigger language plpgsql as $$ begin "
            "if new.scheduled_for >= '2026-01-15T12:00Z' then perform pg_advisory_xact_lock(4711); end if; "
            "return new; end $$"
        )
        holder.execute(
            "create trigger hold before insert on yamlsched.job_runs for each row execute function public.hold()"
        )
        holder.execute("select pg_advisory_lock(4711)")
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while not db.execute(
            "select 1 from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
        ).fetchone():
            assert process.poll() is None

        # when it is interrupted
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        holder.execute("drop trigger hold on yamlsched.job_runs")

        # then it reports how many runs it created, and how to continue
        assert process.returncode == 1
        assert "interrupted: at least 2000 of up to 4321 runs created. To resume, run" in err
        assert len(runs(db)) == 2000
        again = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
        assert (again.returncode, len(runs(db))) == (0, 4321)


def test_why_of_a_time_of_day_is_about_the_latest_one(cli: Cli) -> None:
    cli("sync")
    code, out, _ = cli("why", "x", "--at", "02:00", "--format", "json")
    found = json.loads(out)
    at = datetime.fromisoformat(found["at"])
    assert code == 0
    assert found["is_slot"]
    assert timedelta(0) < datetime.now(UTC) - at < timedelta(hours=25)

    assert cli("why", "x", "--at", "now")[0] == 0
    assert cli("why", "x", "--at", "24:00")[0] == 2


def test_why_of_a_date_shows_its_slots_and_that_the_job_is_paused(cli: Cli) -> None:
    cli("sync")
    cli("pause", "x", "--by", "ann")
    cli("backfill", "x", "--before-first", "--from", "2026-01-14")

    code, out, _ = cli("why", "x", "--at", "2026-01-14")
    first, second, waits, third = out.splitlines()
    assert (code, first) == (
        0,
        "x at 2026-01-14T01:00Z (Wed 2026-01-14 02:00 CET), key x:2026-01-14",
    )
    assert second.startswith("  run ")
    assert waits.strip() == "it waits until its job is resumed or enabled"
    assert third.startswith("the job has been paused since ")

    code, out, _ = cli("why", "x", "--at", "2026-01-14", "--format", "json")
    document = json.loads(out)
    assert (code, document["date"], document["more"]) == (0, "2026-01-14", 0)
    assert [slot["verdict"] for slot in document["slots"]] == ["run"]


def test_why_of_a_date_says_once_what_many_slots_share(cli: Cli) -> None:
    Path("schedules.yaml").write_bytes(a_file(x=HOURLY).data)
    cli("sync")

    code, out, _ = cli("why", "x", "--at", "2026-01-14")

    [first, *others] = out.splitlines()
    assert code == 0
    assert first.startswith("x at 2026-01-14T00:00Z (Wed 2026-01-14 00:00 UTC) to ")
    assert first.endswith(": 24 slots")
    assert len(others) == 2
    assert others[0].startswith("  not run: the job was added, enabled or rescheduled")


def test_why_of_a_date_without_slots_names_the_closest_slots(cli: Cli) -> None:
    Path("schedules.yaml").write_bytes(a_file(x={"cron": "0 2 1 * *"}).data)
    cli("sync")

    code, out, _ = cli("why", "x", "--at", "2026-01-14")

    assert code == 0
    assert [line.split("Z")[0] for line in out.splitlines()] == [
        "x has no slot on 2026-01-14 in UTC",
        "  slot before: 2026-01-01T02:00",
        "  slot after:  2026-02-01T02:00",
    ]


def test_why_of_a_time_that_clocks_skip_is_about_the_slot_that_ran_after_the_gap(cli: Cli) -> None:
    Path("schedules.yaml").write_bytes(
        a_file(x={"cron": "30 2 * * *", "timezone": "Europe/Berlin"}).data
    )
    cli("sync")

    code, out, err = cli("why", "x", "--at", "2026-03-29T02:30")

    assert code == 0
    assert out.startswith("x at 2026-03-29T01:00Z (Sun 2026-03-29 03:00 CEST), key x:2026-03-29\n")
    assert err == ""


def test_why_without_a_time_names_the_next_slot_if_there_was_none(cli: Cli) -> None:
    # the only 29 February on a Monday in this half of the century, apart from that of 2016
    Path("schedules.yaml").write_bytes(a_file(x={"cron": "30 2 * 2 1#5"}).data)
    cli("sync")

    code, out, _ = cli("why", "x")

    assert code == 0
    assert out.splitlines() == [
        "x: new",
        "  no run has succeeded yet",
        "  next slot: 2044-02-29T02:30Z (Mon 2044-02-29 02:30 UTC)",
    ]


def test_why_of_a_run_that_waits_for_its_spread_time_says_so(cli: Cli, db: Db) -> None:
    Path("schedules.yaml").write_bytes(a_file(x={"cron": "0 2 * * *", "spread": "24h"}).data)
    cli("sync")
    db.execute(
        "insert into yamlsched.job_runs (namespace, definition_id, job_type, idempotency_key, scheduled_for, run_at, "
        "max_attempts) "
        "select 'default', d.id, 'x', 'x:2036-01-14', '2036-01-14T02:00Z', '2036-01-14T13:04:36Z', 5 "
        "from yamlsched.job_definitions d"
    )

    _, waiting, _ = cli("why", "x", "--at", "2036-01-14T02:00Z")
    _, future, _ = cli("why", "x", "--at", "2036-01-15T02:00Z")

    assert "queued, attempt 0 of 5, due at 2036-01-14T13:04:36Z (spread)" in waiting
    assert "; spread starts its run at 2036-01-15T13:04:36Z (Tue 2036-01-15 13:04 UTC)" in future


def test_why_accepts_a_duration_before_now(cli: Cli) -> None:
    Path("schedules.yaml").write_bytes(a_file(x={"cron": "* * * * *"}).data)
    cli("sync")

    code, out, _ = cli("why", "x", "--at", "2m")

    assert code == 0
    assert ", key x:" in out
    assert "not run: the job was added" in out


def test_sync_of_an_invalid_file_shows_the_error_with_its_position_and_exits_1(cli: Cli) -> None:
    Path("schedules.yaml").write_text("version: 1\njobs:\n  x: {hanlder: a.b}\n")

    code, out, err = cli("sync")

    assert (code, out) == (1, "")
    assert "schedules.yaml:3:7: error[YS" in err


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["backfill", "x", "--from", "2026-01-14", "--to", "2026-01-13"], 2, "is before"),
        (["backfill", "x", "--from", "14.1.2026"], 2, "write a date such as 2026-01-14"),
        (["why", "x", "--at", "noon"], 2, "write a date"),
        (
            ["backfill", "x", "--from", "2026-01-14", "--to", "9999-12-31"],
            2,
            "write a year from 1900 to 9900",
        ),
        (["why", "x", "--at", "0001-01-01T00:00+14:00"], 2, "write a year from 1900"),
        (["why", "x", "--at", "1h1h"], 2, "1h1h"),
        (["why", "x", "--at", "-"], 2, "write a date"),
        (["backfill", "x"], 2, "--from"),
        (["why", "y", "--at", "2026-01-14"], 1, 'no job "y"'),
    ],
)
def test_invalid_arguments_are_refused_with_a_remedy(
    cli: Cli, arguments: list[str], code: int, message: str
) -> None:
    cli("sync")

    got, out, err = cli(*arguments)

    assert (got, out) == (code, "")
    assert message in err


# -- local times -------------------------------------------------------------------------------------------------------


def test_a_date_is_a_complete_local_day_also_when_clocks_change() -> None:
    start, end = read("2026-03-29", zone("Europe/Berlin"))

    assert (start, end) == (
        at("2026-03-28 23:00"),
        at("2026-03-29 22:00") - timedelta(microseconds=1),
    )


def test_a_time_that_occurs_twice_means_the_first_occurrence() -> None:
    assert read("2026-11-01T01:30", zone("America/New_York"))[0] == at("2026-11-01 05:30")
