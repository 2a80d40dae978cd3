"""``yamlsched report``: what happened in a span of time, over all jobs."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from markdown_it import MarkdownIt

from support.command_line import Cli, command_line
from support.documents import HOSTILE, Page, assert_harmless
from support.rows import a_job, a_long_history, a_place, a_run, rows_read
from yamlsched.ask import gaps, report
from yamlsched.ask.report import Report
from yamlsched.db.query import load

START, END = datetime(2026, 1, 13, 20, tzinfo=UTC), datetime(2026, 1, 14, 8, tzinfo=UTC)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
NIGHT = ("report", "--since", "2026-01-13T20:00Z", "--until", "2026-01-14T08:00Z")
LIMIT = timedelta(minutes=15)
Db = psycopg.Connection[Any]


@pytest.fixture
def cli(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Cli:
    return command_line(dsn, monkeypatch, capsys, tmp_path)


def night(db: Db) -> Report:
    return report.read(db, "default", START, END)


def ended(
    db: Db, job: int, status: str, at: datetime, took: timedelta = MINUTE, **more: Any
) -> int:
    """Insert a run that ended at an instant, by default one that was due when it started."""
    given = {
        "finished_at": at,
        "started_at": at - took,
        "run_at": at - took,
        "created_at": at - took,
        **more,
    }
    if status == "dead":
        given.setdefault("failed_at", at)
    return a_run(db, job, status, **given)


def a_gap(db: Db, job: int, first: datetime, last: datetime, slots: int, reason: str) -> None:
    db.execute(
        "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason)"
        " values (%s, %s, %s, %s, %s)",
        [job, first, last, slots, reason],
    )


# -- what is counted


def test_runs_count_by_how_they_ended_within_the_span(db: Db) -> None:
    purge, mail, _ = a_job(db, overlap="allow"), a_job(db, "mail"), a_job(db, "idle")
    ended(db, purge, "succeeded", START)
    ended(db, purge, "succeeded", START - SECOND)
    ended(db, purge, "succeeded", END)
    ended(db, mail, "succeeded", END - SECOND, attempts=3)
    # an operator retried it
    ended(db, mail, "succeeded", END - SECOND, attempts=4, prior_attempts=3)
    # an exception of its handler has the name that yamlsched gives to runs that expired
    ended(db, mail, "dead", START + HOUR, error_type="Expired")
    ended(db, mail, "cancelled", START + HOUR)
    ended(db, mail, "cancelled", START + HOUR, error_type="Expired")
    ended(db, a_job(db, "mail", namespace="billing"), "dead", START + HOUR)

    ran = night(db).ran

    names = ("runs", "jobs", "succeeded", "retried", "dead", "cancelled", "expired")
    assert [ran[name] for name in names] == [6, 2, 3, 1, 1, 2, 1]
    assert not ran["is_bounded"]


def test_what_happened_in_another_namespace_changes_nothing(db: Db) -> None:
    def happened(namespace: str) -> None:
        limits = {"start_within": MINUTE, "finish_within": MINUTE}
        job = a_job(db, namespace=namespace, applied_at=START, **limits)
        slot = {"scheduled_for": START, "run_at": START, "created_at": START}
        ended(db, job, "succeeded", START + HOUR, HOUR / 2, peak_memory_bytes=1_000_000, **slot)
        ended(db, job, "dead", START + 2 * HOUR)
        a_run(db, job, **(slot | {"scheduled_for": START + HOUR}))
        a_gap(db, job, START, START + HOUR, 2, "late")
        a_place(db, namespace=namespace, applied_at=START, hash="b" * 64)
        db.execute(
            "insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, entry,"
            " provider_key, state, doubted_at) values (%s, 'k', 1, 1, 'A', %s, %s, 'in_doubt', %s)",
            [namespace, *["00000000-0000-4000-8000-000000000001"] * 2, START],
        )

    happened("default")
    before = night(db)
    assert (before.ran["runs"], len(before.late), len(before.skipped)) == (2, 2, 1)

    happened("elsewhere")

    assert replace(night(db), now=before.now) == before


@pytest.mark.parametrize(
    ("limit", "runs", "is_bounded"),
    [(2, 2, True), (4, 3, True), (6, 6, True), (7, 6, False), (8, 6, False)],
)
def test_the_runs_that_are_read_are_bounded_and_quiet_jobs_leave_their_share_to_busy_ones(
    db: Db, monkeypatch: pytest.MonkeyPatch, limit: int, runs: int, is_bounded: bool
) -> None:
    # given a job with five runs, one with one, and one without any
    busy, quiet, _ = a_job(db, "busy", overlap="allow"), a_job(db, "quiet"), a_job(db, "none")
    for nth in range(5):
        ended(db, busy, "succeeded", START + nth * HOUR)
    ended(db, quiet, "succeeded", START)
    monkeypatch.setattr(report, "MAX_RUNS", limit)
    monkeypatch.setattr(report, "MIN_OF_JOB", 1)

    ran = night(db).ran

    assert (ran["runs"], ran["is_bounded"]) == (runs, is_bounded)


def test_of_many_busy_jobs_a_few_runs_of_each_are_read(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        job = a_job(db, name, overlap="allow")
        for nth in range(3):
            ended(db, job, "succeeded", START + nth * HOUR)
    monkeypatch.setattr(report, "MAX_RUNS", 1)
    monkeypatch.setattr(report, "MIN_OF_JOB", 2)

    assert (night(db).ran["runs"], night(db).ran["is_bounded"]) == (4, True)


def test_dead_runs_count_by_type_of_error_over_all_jobs(db: Db, cli: Cli) -> None:
    for name, error_type in (("a", "OSError"), ("b", "OSError"), ("c", "KeyError")):
        ended(db, a_job(db, name), "dead", START + HOUR, error_type=error_type)
    ended(db, a_job(db, "d"), "dead", START - SECOND)

    assert "dead  3, by type of error: OSError 2, KeyError 1\n" in cli(*NIGHT).out


def test_failures_of_one_type_on_several_hosts_name_these(db: Db, cli: Cli) -> None:
    job, other = a_job(db), a_job(db, "other")
    for host in ("web-2", "web-1", "web-1"):
        ended(db, job, "dead", START + HOUR, locked_by=f"{host}:1:x")
    ended(db, other, "dead", START + HOUR, locked_by="web-1:1:x")

    out = cli(*NIGHT).out

    assert "purge: 3 runs died: OSError: no route to host (on web-1, web-2)" in out
    assert "other: 1 run died: OSError: no route to host\n" in out


def test_slots_that_were_recorded_within_the_span_count_however_old_they_are(
    db: Db, cli: Cli
) -> None:
    # given gaps of days before that were recorded in the night, one that reaches into it, and one of before
    for name, first, last, recorded in (
        ("outage", START - 72 * HOUR, START + HOUR, START + 2 * HOUR),
        ("old", START - 72 * HOUR, START - 48 * HOUR, START),
        ("before", START - 72 * HOUR, START - 48 * HOUR, START - MINUTE),
        ("after", START - 72 * HOUR, START - 48 * HOUR, END),
    ):
        job = a_job(db, name, schedule="0 * * * *")
        a_gap(db, job, first, last, 7, "late")
        db.execute(
            "update yamlsched.skipped_slots set recorded_at = %s where definition_id = %s",
            [recorded, job],
        )

    found = night(db).skipped

    assert {(one.job_type, one.slots, one.first_at, one.last_at) for one in found} == {
        ("outage", 7, START - 72 * HOUR, START + HOUR),
        ("old", 7, START - 72 * HOUR, START - 48 * HOUR),
    }
    assert (
        "yamlsched backfill old --from 2026-01-10T20:00Z --to 2026-01-11T20:00Z" in cli(*NIGHT).out
    )


def test_gaps_after_the_span_take_the_place_of_none_within_it(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "MAX_GAPS_OF_JOB", 1)
    hourly = a_job(db, "hourly", schedule="0 * * * *")
    a_gap(db, hourly, START, START + HOUR, 2, "late")
    a_gap(db, hourly, END, END + HOUR, 2, "late")
    old = a_job(db, "old", schedule="0 * * * *")
    for last, recorded in ((START - 48 * HOUR, START), (START - 24 * HOUR, END)):
        a_gap(db, old, last - HOUR, last, 2, "late")
        db.execute(
            "update yamlsched.skipped_slots set recorded_at = %s where last_slot = %s",
            [recorded, last],
        )

    found = night(db).skipped

    assert {(one.job_type, one.last_at) for one in found} == {
        ("hourly", START + HOUR),
        ("old", START - 48 * HOUR),
    }


def test_slots_of_a_gap_that_extends_beyond_the_span_count_only_within_it(db: Db) -> None:
    # given a job paused for a week, and one whose cron was changed since
    hourly = a_job(db, "hourly", schedule="0 * * * *", timezone="Europe/Berlin")
    a_gap(db, hourly, START - 72 * HOUR, END + 72 * HOUR, 157, "paused")
    edited = a_job(db, "edited", schedule=None)
    a_gap(db, edited, START - HOUR, START + HOUR, 7, "disabled")
    inside = a_job(db, "inside")
    a_gap(db, inside, START, END - MINUTE, 5, "late")
    a_gap(db, inside, START - HOUR, START - MINUTE, 9, "late")
    a_gap(db, inside, END, END + HOUR, 9, "late")
    daily = a_job(db, "daily", schedule="0 12 * * *")
    a_gap(db, daily, START - 72 * HOUR, END + 72 * HOUR, 6, "paused")  # none of its slots is within

    found = night(db).skipped

    assert [(one.job_type, one.reason, one.slots, one.first_at, one.last_at) for one in found] == [
        ("inside", "late", 5, START, END - MINUTE),
        ("hourly", "paused", 12, START, END - HOUR),
        ("edited", "disabled", 7, START, START + HOUR),
    ]
    assert found[0].why == "it was too old when its run could have started"


@pytest.mark.parametrize(
    ("late_by", "found"), [(LIMIT - SECOND, 0), (LIMIT, 0), (LIMIT + SECOND, 1)]
)
@pytest.mark.parametrize("kind", ["slot", "enqueued"])
def test_a_run_is_late_if_it_started_later_than_tolerated(
    db: Db, late_by: timedelta, found: int, kind: str
) -> None:
    job = a_job(db)
    slot = START + HOUR if kind == "slot" else None
    due = {
        "run_at": START + HOUR,
        "created_at": START + HOUR,
        "scheduled_for": slot,
        "exclusive": kind == "slot",
    }
    ended(db, job, "succeeded", START + 3 * HOUR, took=2 * HOUR - late_by, **due)

    assert [(one.runs, one.late_by) for one in night(db).late] == [(1, late_by)] * found


def test_a_run_is_late_at_the_earliest_from_its_creation_on_if_it_was_enqueued(db: Db) -> None:
    job = a_job(db, schedule=None)
    ended(
        db, job, "succeeded", START + 3 * HOUR, run_at=START, created_at=START + 3 * HOUR - MINUTE
    )

    assert night(db).late == []


def test_a_run_that_waited_for_another_slot_of_its_job_is_late_from_then_on(db: Db) -> None:
    # given a slot's run that waited two hours for the one before, and one of a job with overlap: allow that did not
    for name, overlap in (("waits", "wait"), ("allows", "allow")):
        job = a_job(db, name, overlap=overlap)
        due = {"run_at": START + HOUR, "created_at": START + HOUR, "scheduled_for": START + HOUR}
        ready = (
            {"late_at": START + 3 * HOUR + 15 * MINUTE, "exclusive": True}
            if overlap == "wait"
            else {}
        )
        ended(db, job, "succeeded", START + 4 * HOUR, took=HOUR, **due, **ready)

    assert [(one.job_type, one.late_by) for one in night(db).late] == [("allows", 2 * HOUR)]


def test_a_retried_run_is_late_if_its_first_attempt_was(db: Db) -> None:
    job = a_job(db, overlap="allow")
    for slot, first_start in (
        (START, START + 16 * MINUTE),
        (START + HOUR, START + HOUR + 15 * MINUTE),
    ):
        due = {"run_at": END - HOUR, "created_at": slot, "scheduled_for": slot}
        times = {"late_at": slot + 15 * MINUTE, "begun_at": first_start}
        ended(db, job, "succeeded", END - MINUTE, attempts=2, failed_at=END - HOUR, **due, **times)

    assert [(one.runs, one.late_by) for one in night(db).late] == [(1, 16 * MINUTE)]


def test_each_job_says_how_late_its_runs_may_start(db: Db) -> None:
    for name, limit in (("less", SECOND), ("more", 2 * HOUR), ("usual", 15 * MINUTE)):
        job = a_job(db, name, start_within=limit)
        ended(db, job, "succeeded", START + HOUR, run_at=START + 39 * MINUTE, created_at=START)

    assert [one.job_type for one in night(db).late] == ["less", "usual"]


def test_a_run_that_waited_for_a_pause_counts_from_its_end_on(db: Db) -> None:
    job, due = a_job(db, overlap="allow"), {"run_at": START, "created_at": START}
    for minutes in (14, 16):
        ended(
            db,
            job,
            "succeeded",
            START + 3 * HOUR,
            late_at=START + 3 * HOUR + (15 - minutes - 1) * MINUTE,
            **due,
        )

    assert [(one.runs, one.late_by) for one in night(db).late] == [(1, 16 * MINUTE)]


def late(db: Db) -> list[tuple[str, str, int, timedelta, datetime | None]]:
    return [(job.job_type, job.kind, job.runs, job.late_by, job.at) for job in night(db).late]


def late_jobs(db: Db) -> dict[str, tuple[str, timedelta, datetime | None]]:
    """Return what is late of each job that has one run."""
    found = night(db).late
    assert {job.runs for job in found} <= {1}
    return {job.job_type: (job.kind, job.late_by, job.at) for job in found}


def test_a_run_finished_late_if_it_succeeded_later_after_its_slot_than_the_job_says(
    db: Db,
) -> None:
    cases: list[tuple[str, datetime | None, dict[str, Any], tuple[timedelta, Any] | None]] = [
        ("succeeded", START + 4 * HOUR, {}, None),
        (
            "succeeded",
            START + 4 * HOUR + SECOND,
            {},
            (4 * HOUR + SECOND, START + 4 * HOUR + SECOND),
        ),
        ("succeeded", END - SECOND, {}, (12 * HOUR - SECOND, END - SECOND)),
        ("succeeded", END - SECOND, {"attempts": 3}, (12 * HOUR - SECOND, END - SECOND)),
        ("succeeded", END - SECOND, {"by_hand": True}, None),
        ("succeeded", END - SECOND, {"scheduled_for": None}, None),
        ("succeeded", END - SECOND, {"scheduled_for": END - 2 * HOUR}, None),
        ("succeeded", START, {"scheduled_for": START - 5 * HOUR}, (5 * HOUR, START)),
        (
            "succeeded",
            START - SECOND,
            {"scheduled_for": START - 5 * HOUR},
            None,
        ),  # in the report of the day before
        ("dead", END - SECOND, {}, None),
        ("cancelled", END - SECOND, {}, None),
        # at the end of the night it had not succeeded, whatever came then
        ("succeeded", END, {}, (12 * HOUR, None)),
        ("dead", END + HOUR, {}, (12 * HOUR, None)),
        ("succeeded", END, {"scheduled_for": END - 4 * HOUR}, None),
        ("succeeded", END, {"by_hand": True}, None),
        ("queued", None, {}, (12 * HOUR, None)),
        ("failed", None, {}, (12 * HOUR, None)),
        ("running", None, {}, (12 * HOUR, None)),
        ("queued", None, {"unreleased": True, "exclusive": True}, (12 * HOUR, None)),
        ("queued", None, {"scheduled_for": END}, None),
    ]
    limits = {"start_within": timedelta(days=9), "finish_within": 4 * HOUR}
    a_job(db, "idle", **limits)
    expected = {}
    for status, ended_at, values, found in cases:
        name = f"{status}_{ended_at}_{values}"
        times = {"scheduled_for": START, "created_at": START, "run_at": START, "started_at": START}
        times |= {"finished_at": ended_at} if ended_at else {}
        a_run(db, a_job(db, name, **limits), status, **{**times, **values})
        if found:
            expected[name] = ("finished", *found)

    assert late_jobs(db) == expected


def test_a_run_that_has_not_ended_by_the_end_of_the_night_started_late_or_had_not_started(
    db: Db,
) -> None:
    cases: list[tuple[str, dict[str, Any], tuple[timedelta, datetime | None] | None]] = [
        ("queued", {}, (12 * HOUR, None)),
        ("queued", {"blocked_on": "limit/x"}, (12 * HOUR, None)),
        ("queued", {"blocked_on": "('closed/' || d.id)"}, None),
        ("queued", {"blocked_on": "('job/' || d.id)", "exclusive": True}, None),
        ("queued", {"unreleased": True, "exclusive": True}, None),
        ("queued", {"late_at": END}, None),
        ("queued", {"late_at": END + HOUR}, None),
        ("queued", {"run_at": END, "created_at": END}, None),
        ("running", {"started_at": START + HOUR}, (HOUR, START + HOUR)),
        ("running", {"started_at": START + MINUTE}, None),
        ("running", {"started_at": END}, (12 * HOUR, None)),
        (
            "failed",
            {"started_at": START + HOUR, "run_at": END, "late_at": START + 15 * MINUTE},
            (HOUR, START + HOUR),
        ),
        ("succeeded", {"started_at": START + HOUR, "finished_at": END}, (HOUR, START + HOUR)),
        ("succeeded", {"started_at": END, "finished_at": END}, (12 * HOUR, None)),
        ("cancelled", {"finished_at": END}, (12 * HOUR, None)),
        ("cancelled", {"finished_at": END - SECOND}, None),
    ]
    expected = {}
    for status, values, found in cases:
        name = f"{status}_{values}"
        a_run(
            db,
            a_job(db, name, overlap="allow"),
            status,
            **{"created_at": START, "run_at": START, **values},
        )
        if found:
            expected[name] = ("started", *found)

    assert late_jobs(db) == expected

    # a pause that came later excuses what has not ended
    db.execute("update yamlsched.job_definitions set paused_at = %s", [END + HOUR])
    ended = ("succeeded", "cancelled")
    assert late_jobs(db) == {
        name: what for name, what in expected.items() if name.startswith(ended)
    }


def test_what_began_late_before_the_night_is_in_the_report_of_then(db: Db) -> None:
    ended(
        db,
        a_job(db),
        "succeeded",
        START + HOUR,
        took=2 * HOUR,
        run_at=START - 3 * HOUR,
        created_at=START - 3 * HOUR,
    )

    assert late(db) == []
    before = report.read(db, "default", START - 12 * HOUR, START).late
    assert [(job.kind, job.at) for job in before] == [("started", START - HOUR)]


def test_a_report_of_now_leaves_what_is_late_now_to_the_state_of_the_job(db: Db, cli: Cli) -> None:
    # given a run that began late and is late by finish_within, one that has not begun, and a host that ticks
    a_place(db)
    now = datetime.now(UTC)
    slow, stuck = a_job(db, "slow", finish_within=HOUR, timeout=9 * HOUR), a_job(db, "waits")
    slot = now - 3 * HOUR
    due = {"run_at": slot, "created_at": slot, "scheduled_for": slot}
    run = a_run(db, slow, "running", started_at=now - 2 * HOUR, **due)
    a_run(db, stuck, **due)

    shown = [
        problem
        for problem in report.read(db, "default", now - 4 * HOUR).problems
        if problem.kind != "old"
    ]

    # a minute may begin meanwhile
    assert [(problem.kind, problem.what.replace("3h1m", "3h")) for problem in shown] == [
        ("late", "slow: late by 3h: not finished: the run of its slot has not succeeded"),
        ("late", "waits: late by 3h: its run has not started"),
        ("started_late", "slow: 1 run started late, 1h after its due time"),
    ]
    assert shown[-1].remedy == f"yamlsched show {run}"


def test_of_several_late_runs_the_number_and_the_latest_are_said(db: Db, cli: Cli) -> None:
    load = a_job(db, "load", finish_within=HOUR, overlap="allow")
    done = []
    for nth, hours in enumerate((2, 4, 3)):
        slot = START + nth * MINUTE
        due = {"scheduled_for": slot, "run_at": slot, "created_at": slot}
        done.append(
            ended(db, load, "succeeded", slot + hours * HOUR, took=hours * HOUR - 5 * MINUTE, **due)
        )
    begun = {"run_at": START, "created_at": START, "started_at": START, "scheduled_for": START}
    running = a_run(db, a_job(db, "one", finish_within=2 * HOUR), "running", **begun)
    waits = a_job(db, "waits")
    first, _ = (a_run(db, waits, run_at=START, created_at=START) for _ in range(2))

    lines = cli(*NIGHT).out.splitlines()

    assert lines[3:10] == [
        "3 problems need attention",
        "  waits: 2 runs had not started in time, up to 12h after its due time",
        f"      yamlsched show {first}",
        "  one: 1 run had not finished in time, 12h after its slot",
        f"      yamlsched show {running}",
        "  load: 3 runs finished late, up to 4h after its slot",
        f"      yamlsched show {done[1]}",
    ]
    assert re.sub(" {2,}", "  ", "\n".join(lines[13:])).split("\n\n")[:2] == [
        f"Started late\nRUNS  JOB  LATEST  STARTED  RUN\n2  waits  12h  not by then  {first}",
        "Finished late\nRUNS  JOB  LATEST  FINISHED  RUN\n"
        f"1  one  12h  not by then  {running}\n3  load  4h  2026-01-14 00:01 UTC  {done[1]}",
    ]


def test_the_longest_run_of_each_job_is_listed_and_those_that_still_run(db: Db, cli: Cli) -> None:
    now = datetime.now(UTC)
    purge, mail = a_job(db), a_job(db, "mail", schedule=None)
    ended(db, purge, "succeeded", now - HOUR, took=3 * HOUR)
    ended(db, purge, "succeeded", now - 2 * HOUR, took=2 * HOUR)
    ended(db, purge, "cancelled", now - 2 * HOUR, took=9 * HOUR)
    a_run(db, mail, "running", started_at="(now() - interval '4 hours')")
    a_run(db, mail, "failed", started_at="(now() - interval '5 hours')")
    billing = a_job(db, "mail", namespace="billing")
    a_run(db, billing, "running", started_at="(now() - interval '6 hours')")
    ended(db, mail, "succeeded", now - HOUR, took=1.5 * SECOND)

    shown = cli("report", "--namespace", "default").out

    longest = [line.split() for line in shown.partition("Longest\n")[2].splitlines()[1:]]
    assert [line[:2] for line in longest] == [["4h", "mail"], ["3h", "purge"], ["1.5s", "mail"]]
    assert longest[0][2:4] == ["still", "running"]


# -- what needs attention


def test_dead_runs_need_attention(db: Db, cli: Cli) -> None:
    assert (cli(*NIGHT).code, night(db).problems) == (0, [])
    job = a_job(db)
    for error_type in ("OSError", "KeyError"):
        ended(db, job, "dead", START + HOUR, error_type=error_type)

    assert (cli(*NIGHT).code, len(night(db).problems)) == (1, 2)


@pytest.mark.parametrize("jobs", [3, 4, 5])
def test_many_jobs_that_died_of_one_type_of_error_are_one_problem(
    db: Db, cli: Cli, jobs: int
) -> None:
    for nth in range(jobs):
        run = ended(
            db, a_job(db, f"job_{nth}"), "dead", START + nth * HOUR, error_type="DatabaseDown"
        )
    ended(db, a_job(db, "other"), "dead", START + HOUR, error_type=None)

    shown = cli(*NIGHT).out.partition("attention\n")[2].partition("\n\n")[0].splitlines()

    if jobs < 4:
        assert [line.split(":")[0] for line in shown[::2]] == [
            "  job_2",
            "  job_1",
            "  job_0",
            "  other",
        ]
    else:
        names = ", ".join(f"job_{jobs - nth}" for nth in (1, 2, 3))
        assert shown == [
            f"  {jobs} runs of {jobs} jobs died: DatabaseDown: no route to host ({names} and {jobs - 3} more)",
            f"      yamlsched show {run}; then "
            "yamlsched retry --dead --error-type DatabaseDown --since 2026-01-13T20:00Z",
            "  other: 1 run died: no route to host",
            f"      yamlsched show {run + 1}; then yamlsched retry {run + 1}",
        ]


def test_dead_runs_are_retried_by_their_type_of_error_and_not_those_of_before(
    db: Db, cli: Cli
) -> None:
    a_place(db)
    job = a_job(db, next_slot_at=datetime.now(UTC) + HOUR)
    now = datetime.now(UTC)
    for at in (now - HOUR, now - HOUR, now - 48 * HOUR):
        ended(db, job, "dead", at, error_type="Weird; Type")
    one = ended(db, job, "dead", now - HOUR, error_type="Other")

    [of_runs, of_one] = [
        problem.remedy for problem in report.read(db, "default", now - 12 * HOUR).problems
    ]

    assert of_one == f"yamlsched show {one}; then yamlsched retry {one}"
    words = shlex.split(of_runs.partition("; then yamlsched ")[2])
    assert words[:6] == ["retry", "--dead", "--job", "purge", "--error-type", "Weird; Type"]
    assert "2 runs" in cli(*words, "--dry-run").out


def test_a_dead_run_that_was_retried_and_succeeded_needs_no_attention(db: Db, cli: Cli) -> None:
    job = a_job(db)
    ended(
        db,
        job,
        "succeeded",
        START + 2 * HOUR,
        failed_at=START + HOUR,
        attempts=6,
        prior_attempts=5,
        max_attempts=10,
    )

    assert cli(*NIGHT).code == 0
    assert [group.recovered for group in night(db).failures.groups] == [1]


@pytest.mark.parametrize(
    "reason", ["late", "key_taken", "overlap", "superseded", "paused", "disabled", "retired"]
)
def test_of_skipped_slots_those_that_were_late_need_attention(
    db: Db, cli: Cli, reason: str
) -> None:
    a_gap(db, a_job(db), START + HOUR, START + 2 * HOUR, 3, reason)

    shown = cli(*NIGHT)

    assert shown.code == int(reason == "late")
    assert f"skipped  3 slots: 3 {reason}\n" in shown.out
    if reason == "late":
        assert (
            "  purge: 3 slots were not run: too old when a run could start\n"
            "      yamlsched backfill purge --from 2026-01-13T21:00Z --to 2026-01-13T22:00Z runs those you still need\n"
        ) in shown.out


def test_the_gaps_of_a_job_are_one_row_for_each_reason_and_those_that_were_late_are_never_left_out(
    db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_LISTED", 3)
    for nth in range(4):
        a_gap(db, a_job(db, f"late_{nth}"), START + HOUR, START + HOUR, nth + 1, "late")
    mail = a_job(db, "mail", schedule="0 * * * *")
    a_gap(db, mail, START + 5 * HOUR, START + 6 * HOUR, 2, "paused")
    # of which one slot lies before the span
    a_gap(db, mail, START - HOUR, START + 2 * HOUR, 4, "paused")
    a_gap(db, mail, START + 3 * HOUR, START + 3 * HOUR, 1, "overlap")

    few = night(db)
    monkeypatch.setattr(report, "MAX_LISTED", 10)
    whole = night(db)

    assert [one.job_type for one in few.skipped] == ["late_3", "late_2", "late_1"]
    assert [problem.job_type for problem in few.problems] == [
        "late_3",
        "late_2",
        "late_1",
        "late_0",
    ]
    found = [
        (one.job_type, one.reason, one.slots, one.first_at, one.last_at)
        for one in whole.skipped[4:]
    ]
    assert found == [
        ("mail", "overlap", 1, START + 3 * HOUR, START + 3 * HOUR),
        ("mail", "paused", 5, START, START + 6 * HOUR),
    ]


def test_problems_that_exist_now_belong_to_a_report_that_ends_now(db: Db, cli: Cli) -> None:
    # given a namespace in which no host ticks
    job = a_job(db, next_slot_at=datetime.now(UTC) - HOUR)
    ended(db, job, "succeeded", START + HOUR)

    shown = cli("report")

    assert shown.code == 1
    assert "  there has been no tick in namespace" in shown.out
    assert "  purge: late by 1h: no sync has created the run of its slot\n" in shown.out
    assert cli(*NIGHT).code == 0


@pytest.mark.parametrize(("doubted", "code"), [(START - HOUR, 1), (END - SECOND, 1), (END, 0)])
def test_effects_in_doubt_since_before_the_end_need_attention(
    db: Db, cli: Cli, doubted: datetime, code: int
) -> None:
    run = ended(db, a_job(db), "succeeded", START - 2 * HOUR)
    db.execute(
        "insert into yamlsched.effects (namespace, key, run_id, attempt, locked_by, entry, provider_key, state,"
        " claimed_at, doubted_at) values ('default', 'mail:1', %s, 1, 'w', gen_random_uuid(), gen_random_uuid(),"
        " 'in_doubt', %s, %s)",
        [run, doubted, doubted],
    )

    shown = cli(*NIGHT)

    assert shown.code == code
    assert ("yamlsched settle --done mail:1" in shown.out) == bool(code)
    assert (
        "in doubt  1 effect for you to settle, 0 that the run's retry resolves\n" in shown.out
    ) == bool(code)


def test_the_most_urgent_problems_come_first_and_the_rest_is_counted(db: Db, cli: Cli) -> None:
    for nth in range(11):
        a_gap(db, a_job(db, f"job_{nth:02}"), START, START, 1, "late")
    ended(db, a_job(db, "died"), "dead", START + HOUR)

    lines = cli(*NIGHT).out.splitlines()

    assert lines[3:5] == [
        "12 problems need attention",
        "  died: 1 run died: OSError: no route to host",
    ]
    assert (
        "  and 2 more: yamlsched report --format json --since 2026-01-13T20:00Z --until 2026-01-14T08:00Z"
        in lines
    )
    assert (
        "and 5 more: yamlsched report --format json --since 2026-01-13T20:00Z --until 2026-01-14T08:00Z"
        in lines
    )
    document = json.loads(cli(*NIGHT, "--format", "json").out)
    assert (len(document["problems"]), len(document["skipped"]), document["healthy"]) == (
        12,
        11,
        False,
    )


# -- how it is shown


def a_bad_night(db: Db) -> dict[str, int]:
    """Insert something of everything; return the ids of the runs by what happened to them."""
    purge = a_job(db, timezone="Europe/Berlin")
    runs = {"ok": ended(db, purge, "succeeded", START + 5 * HOUR, took=90 * MINUTE)}
    runs["dead"] = ended(db, purge, "dead", START + HOUR, last_error="disk full | `x` <b>")
    mail = a_job(db, "mail")
    runs["late"] = ended(
        db, mail, "succeeded", END - HOUR, run_at=END - 3 * HOUR, created_at=END - 3 * HOUR
    )
    runs["recovered"] = ended(
        db, mail, "succeeded", END - HOUR, took=SECOND, failed_at=END - 2 * HOUR, attempts=2, error_type="Timeout",
        last_error="took too long",
    )  # fmt: skip
    a_gap(db, purge, START + 6 * HOUR, START + 7 * HOUR, 2, "overlap")
    load = a_job(db, "load", timezone="Europe/Berlin", finish_within=4 * HOUR)
    runs["finished"] = ended(
        db, load, "succeeded", START + 10 * HOUR, scheduled_for=START + 5 * HOUR
    )
    return runs


def test_the_text_of_a_bad_night(db: Db, cli: Cli) -> None:
    runs = a_bad_night(db)

    shown = cli(*NIGHT)

    assert (shown.code, shown.err) == (1, "")
    expected = """\
yamlsched report: default
Tue 2026-01-13 20:00 UTC to Wed 2026-01-14 08:00 UTC (12h)

3 problems need attention
  purge: 1 run died: OSError: disk full | `x` <b>
  yamlsched show <dead>; then yamlsched retry <dead>
  mail: 1 run started late, 1h59m after its due time
  yamlsched show <late>
  load: 1 run finished late, 5h after its slot
  yamlsched show <finished>

ran  5 runs of 3 jobs: 4 succeeded (1 after a retry), 1 died
dead  1, by type of error: OSError 1
skipped  2 slots: 2 overlap

Failures
RUNS  JOB  NOW  ATTEMPTS  FIRST  LAST  EXAMPLE  ERROR
1  purge  1 dead  1  2026-01-13 22:00 CET (21:00Z)  2026-01-13 22:00 CET (21:00Z)  <dead>  OSError: disk full | `x` <b>
1  mail  1 recovered  1  2026-01-14 06:00 UTC  2026-01-14 06:00 UTC  <recovered>  Timeout: took too long

Skipped slots
SLOTS  JOB  REASON  FROM  TO
2  purge  overlap: a run of an earlier slot was unfinished, and overlap: skip does not wait for it  \
2026-01-14 03:00 CET (02:00Z)  2026-01-14 04:00 CET (03:00Z)

Started late
RUNS  JOB  LATEST  STARTED  RUN
1  mail  1h59m  2026-01-14 06:59 UTC  <late>

Finished late
RUNS  JOB  LATEST  FINISHED  RUN
1  load  5h  2026-01-14 07:00 CET (06:00Z)  <finished>

Longest
TOOK  JOB  ENDED  RUN
1h30m  purge  2026-01-14 02:00 CET (01:00Z)  <ok>
1m  load  2026-01-14 07:00 CET (06:00Z)  <finished>
1m  mail  2026-01-14 07:00 UTC  <late>
"""
    for name, run in runs.items():
        expected = expected.replace(f"<{name}>", str(run))
    assert re.sub(" {2,}", "  ", shown.out) == expected


def test_markdown_shows_the_same_and_nothing_in_it_is_markup(db: Db, cli: Cli) -> None:
    runs = a_bad_night(db)

    shown = cli(*NIGHT, "--format", "markdown")
    html = MarkdownIt("commonmark").enable("table").render(shown.out)

    assert shown.code == 1
    assert html.count("<h3>") == 5
    finished = (
        html.partition("<h3>Finished late</h3>")[2].partition("<tbody>")[2].partition("</tbody>")[0]
    )
    assert re.findall("<td.*?>(.*?)</td>", finished) == [
        "1",
        "load",
        "5h",
        "2026-01-14 07:00 CET (06:00Z)",
        str(runs["finished"]),
    ]
    assert "disk full | `x` &lt;b&gt;" in html
    assert re.search(
        r"<code>yamlsched show \d+</code>; then <code>yamlsched retry \d+</code>", html
    )
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    assert {row.count("<t") for row in rows} == {8, 5, 4}


def test_the_html_is_one_file_that_loads_nothing(db: Db, cli: Cli) -> None:
    a_bad_night(db)

    shown = cli(*NIGHT, "--format", "html")
    page = Page(shown.out)

    assert shown.code == 1
    assert page.open == []
    assert {"script", "link", "img", "iframe", "a"} & set(page.elements) == set()
    assert {"src", "href", "srcset", "background", "action"} & {
        name for name, _ in page.attributes
    } == set()
    assert "url(" not in shown.out
    assert "@import" not in shown.out
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert "prefers-color-scheme: dark" in shown.out
    assert "purge: 1 run died: OSError: disk full | `x` <b>" in page.text
    for words in (
        "3 problems need attention",
        "1h59m",
        "Started late",
        "Finished late",
        "2026-01-13 22:00 CET (21:00Z)",
    ):
        assert words in page.text


@pytest.mark.parametrize("form", ["text", "markdown", "html", "json"])
def test_no_error_controls_what_shows_the_report(db: Db, cli: Cli, form: str) -> None:
    job = a_job(db, timezone="Europe/Berlin")
    ended(db, job, "dead", START + HOUR, last_error=HOSTILE, error_type=HOSTILE)
    ended(db, job, "dead", START + HOUR, last_error="x" * 65_536, error_type="Long")

    out = cli(*NIGHT, "--format", form).out

    assert_harmless(out, form)
    if form != "json":
        assert len(out) < 40_000


def test_an_empty_night_says_so(db: Db, cli: Cli) -> None:
    soon = datetime.now(UTC) + HOUR
    a_place(db)
    assert cli("report").out.splitlines()[3] == "No jobs yet: yamlsched sync applies schedules.yaml"

    a_job(db, next_slot_at=soon, timezone="Europe/Berlin")
    shown = cli("report")

    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[3] == "Nothing needs attention"
    assert lines[5] == "ran        nothing: no run ended or failed, and no slot was skipped; 1 job"
    assert lines[6] == "now        0 running, 0 queued, 0 waiting to retry"
    assert re.fullmatch(rf"next slot  purge, \w{{3}} \d\d:\d\d CES?T \({soon:%H:%M}Z\)", lines[7])
    assert len(lines) == 8
    # and in the title
    assert Page(cli("report", "--format", "html").out).text.count("Nothing needs attention") == 2


def test_edits_that_were_applied_are_listed_with_who_made_them(
    db: Db, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YAMLSCHED_REVISION", "4f1c0de4f1c0de4f1c0de4f1c0de4f1c0de4f1c0")
    monkeypatch.setenv("YAMLSCHED_AUTHOR", "Ann <ann@example.com>")
    for jobs in ("purge", "purge mail"):
        lines = "".join(f"  {name}: {{handler: gc.collect}}\n" for name in jobs.split())
        (tmp_path / "schedules.yaml").write_text(f"version: 1\njobs:\n{lines}")
        assert cli("tick").code == 0

    shown = cli("report")

    assert shown.code == 0
    rows = shown.out.partition("Edits applied\n")[2].splitlines()
    assert rows[0].split() == ["APPLIED", "JOBS", "EDIT"]
    for row in rows[1:]:
        assert re.fullmatch(r"\w{3} \d\d:\d\d UTC +1 job added +commit 4f1c0de\w* by Ann.*", row), (
            row
        )
    assert len(rows) == 3
    assert "ran  nothing: no run ended\n" in shown.out
    document = json.loads(cli("report", "--format", "json").out)
    assert [edit["jobs"]["added"]["first"] for edit in document["edits"]] == [["mail"], ["purge"]]


def test_json_has_everything(db: Db, cli: Cli) -> None:
    runs = a_bad_night(db)

    document = json.loads(cli(*NIGHT, "--format", "json").out)

    assert (document["format_version"], document["since"], document["until"]) == (
        1,
        "2026-01-13T20:00:00Z",
        "2026-01-14T08:00:00Z",
    )
    assert [(one["kind"], one["run_id"]) for one in document["problems"]] == [
        ("dead", runs["dead"]),
        ("started_late", runs["late"]),
        ("finished_late", runs["finished"]),
    ]
    assert document["ran"] == {
        "runs": 5, "jobs": 3, "succeeded": 4, "retried": 1, "dead": 1, "cancelled": 0, "expired": 0,
        "is_bounded": False,
    }  # fmt: skip
    assert [group["error_type"] for group in document["failures"]["groups"]] == [
        "OSError",
        "Timeout",
    ]
    assert [(one["reason"], one["slots"]) for one in document["skipped"]] == [("overlap", 2)]
    assert [one["late_by"] for one in document["late"] if one["kind"] == "started"] == [7140.0]
    assert [one for one in document["late"] if one["kind"] == "finished"] == [
        {"job_type": "load", "timezone": "Europe/Berlin", "kind": "finished", "runs": 1, "late_by": 18000.0,
         "run_id": runs["finished"], "at": "2026-01-14T06:00:00Z"}
    ]  # fmt: skip
    assert document["longest"][0]["took"] == 5400.0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            ("--since", "2026-01-14T08:00Z", "--until", "2026-01-14T08:00Z"),
            "--until 2026-01-14T08:00Z is not after",
        ),
        (("--since", "tomorrow"), "is not in the past"),
        (("--since", "now"), "is not in the past"),
        (("--since", "soon"), '"soon" is not a valid time'),
        (("--format", "csv"), "'csv' is not one of 'text', 'markdown', 'json', 'html'"),
    ],
)
def test_a_span_without_a_length_is_refused(cli: Cli, options: tuple[str, ...], what: str) -> None:
    shown = cli("report", *options)

    assert (shown.code, shown.out) == (2, "")
    assert what in shown.err


def test_local_times_are_read_in_the_time_zone_of_the_file(
    db: Db, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "schedules.yaml").write_text("version: 1\ntimezone: Europe/Berlin\njobs: {}\n")

    shown = cli(
        "report", "--since", "2026-01-13T21:00", "--until", "2026-01-14T09:00", "--format", "json"
    )

    assert (
        "--since is read in Europe/Berlin: 2026-01-13T20:00Z (Tue 2026-01-13 21:00 CET)\n"
        in shown.err
    )
    document = json.loads(shown.out)
    assert (document["since"], document["until"]) == (
        "2026-01-13T20:00:00Z",
        "2026-01-14T08:00:00Z",
    )
    text = cli(*NIGHT).out.splitlines()[1]
    assert text == (
        "Tue 2026-01-13 21:00 CET to Wed 2026-01-14 09:00 CET (12h; 2026-01-13T20:00Z to 2026-01-14T08:00Z)"
    )


def test_an_end_in_the_future_is_now(db: Db, cli: Cli) -> None:
    document = json.loads(
        cli("report", "--since", "1h", "--until", "tomorrow", "--format", "json").out
    )

    assert document["until"] == document["now"]


# -- speed


def test_a_report_reads_only_what_ended_within_its_span(own_dsn: str) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as db:
        a_long_history(db)  # a run of each of four jobs in each minute
        now = datetime.now(UTC)
        given: dict[str, Any] = {"namespace": "default", "until": now}
        given |= {"of_job": 1_000, "limit": 20, "of": None}
        for minutes, most in ((90, 4 * 91 + 12), (4_000, 4 * 1_000 + 8)):
            span = {**given, "since": now - minutes * MINUTE}
            assert rows_read(db, load("report")["ended"], span) <= most
            for until, is_past in ((now, False), (now - 10 * MINUTE, True)):
                late = {**span, "until": until, "now": now, "is_past": is_past}
                assert 0 < rows_read(db, load("report")["late"], late) <= most + 10 + 4 * 11
        assert rows_read(db, load("report")["running"], given) <= 20
