"""The timeline of a job: each slot is a cell or lies in a gap, as ``why`` explains it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from docs import demo_data
from support.database import temporary_database
from support.rows import a_job, a_long_history, a_place, a_run, rows_read
from yamlsched import db as store
from yamlsched.act.prune import housekeep
from yamlsched.ask import search, why
from yamlsched.ask.why import explain_slot
from yamlsched.db import query
from yamlsched.db.query import load
from yamlsched.extras.web.ask import timeline
from yamlsched.extras.web.ask.timeline import SPANS
from yamlsched.extras.web.pages.nights import strips
from yamlsched.sync import definitions
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.slots import slots
from yamlsched.timetable.times import short_utc
from yamlsched.timetable.zones import zone

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
STATE_OF_VERDICT = {
    "future": {"future"},
    "due": {"due"},
    "unknown": {"unknown", "pruned"},
    "pruned": {"pruned"},
}


@pytest.fixture(scope="module")
def demo(server: str, template: str) -> Iterator[Any]:
    with temporary_database(server, template) as dsn:
        demo_data.fill(dsn)
        with store.connect(dsn) as connection:
            yield connection


def of(
    db: Any, name: str, span: str = "", until: datetime | None = None, namespace: str = "default"
) -> Any:
    job = definitions.find(db, namespace, name)
    assert job is not None
    return timeline.timeline(db, namespace, job, query.now(db), span, until)


def hour(ago: int) -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - ago * HOUR


def test_every_slot_of_every_job_is_one_cell_or_in_one_gap_and_why_agrees(demo: Any) -> None:
    names = [
        name
        for name in definitions.names(demo, "shop")
        if definitions.find(demo, "shop", name).schedule
    ]  # type: ignore[union-attr]
    for name in names:
        job = definitions.find(demo, "shop", name)
        assert job is not None
        shown = of(demo, name, namespace="shop")
        cells = {cell.at: cell for cell in shown.cells}
        for slot in slots(
            parse_cron(str(job.schedule)), zone(job.timezone), shown.start, shown.end
        ):
            gaps = [gap for gap in shown.gaps if gap.first <= slot.at <= gap.last]
            assert (slot.at in cells) + len(gaps) == 1, (name, slot)
        for cell in list(cells.values())[::7]:
            report = explain_slot(demo, "shop", job, cell.at)
            if cell.run:
                assert (report.verdict, report.run_id) == ("run", cell.run.id)
            else:
                assert cell.state in STATE_OF_VERDICT[report.verdict], (name, report)
        for gap in shown.gaps:
            report = explain_slot(demo, "shop", job, gap.first)
            assert report.reason == gap.reason
            assert gap.sentence in report.lines


def test_a_run_shows_in_its_state(db: Any) -> None:
    job = a_job(db, "hourly", schedule="0 * * * *", last_slot_at=hour(0))
    wanted = ["queued", "running", "failed", "dead", "cancelled", "succeeded"]
    for ago, state in enumerate(wanted, start=1):
        a_run(
            db,
            job,
            state,
            scheduled_for=hour(ago),
            idempotency_key=f"hourly:{hour(ago):%Y-%m-%dT%H:%MZ}",
        )
    a_run(
        db,
        job,
        "succeeded",
        scheduled_for=hour(7),
        attempts=3,
        idempotency_key=f"hourly:{hour(7):%Y-%m-%dT%H:%MZ}",
    )

    cells = {cell.at: cell for cell in of(db, "hourly", "24h").cells}

    assert [cells[hour(ago)].state for ago in range(1, 8)] == [*wanted, "retried"]
    assert cells[hour(6)].took == timedelta(seconds=3)
    assert cells[hour(5)].took is None
    assert cells[hour(4)].error == "OSError: no route to host"


def test_a_slot_without_a_run_is_coming_or_due_or_pruned_or_before_the_definition(db: Any) -> None:
    a_job(db, "hourly", schedule="0 * * * *", last_slot_at=hour(2))
    db.execute("update yamlsched.job_definitions set effective_from = %s", [hour(5)])
    cells = {cell.at: cell.state for cell in of(db, "hourly", "24h").cells}
    assert [cells[hour(ago)] for ago in (-1, 0, 1, 2, 4, 5, 6)] == [
        *("future", "due", "due", "pruned", "pruned", "unknown", "unknown")
    ]


def test_a_slot_to_come_that_a_calendar_skips_is_not_shown_as_coming(db: Any) -> None:
    ends = datetime.now(UTC).date() + timedelta(days=400)
    never = Jsonb([{"name": "paydays", "dates": [], "until": str(ends)}])
    a_job(db, "hourly", schedule="0 * * * *", last_slot_at=hour(0))
    a_job(db, "skipped", schedule="0 * * * *", last_slot_at=hour(0), only_on=never)

    assert "future" in {cell.state for cell in of(db, "hourly").cells}
    assert "future" not in {cell.state for cell in of(db, "skipped").cells}


def test_runs_of_a_former_cron_expression_are_shown(db: Any) -> None:
    job = a_job(db, "daily", schedule="0 5 * * *", last_slot_at=None)
    former = hour(30).replace(minute=17)
    a_run(
        db,
        job,
        "succeeded",
        scheduled_for=former,
        idempotency_key=f"daily:{former:%Y-%m-%dT%H:%MZ}",
        started_at=former,
        finished_at=former + HOUR,
    )
    db.execute("update yamlsched.job_definitions set effective_from = now() - interval '1 hour'")
    assert [cell.state for cell in of(db, "daily", "7d").cells if cell.at == former] == [
        "succeeded"
    ]


@pytest.mark.parametrize(
    ("cron", "usual", "longest"),
    [
        ("* * * * *", "1h", "1h"),
        ("*/5 * * * *", "6h", "24h"),
        ("0 * * * *", "3d", "7d"),
        ("0 3 * * *", "30d", "90d"),
        ("0 3 * * mon", "1y", "5y"),
        ("0 3 1 1 *", "5y", "5y"),
    ],
)
def test_spans_suit_how_often_a_job_runs(db: Any, cron: str, usual: str, longest: str) -> None:
    a_job(db, "x", schedule=cron)
    shown = of(db, "x")
    assert (shown.span, shown.spans[-1]) == (usual, longest)
    assert of(db, "x", longest).span == longest
    too_long = list(SPANS)[list(SPANS).index(longest) + 1 :]
    assert not too_long or of(db, "x", too_long[0]).span == usual


def test_an_earlier_span_ends_where_it_is_asked_to(db: Any) -> None:
    a_job(db, "hourly", schedule="0 * * * *")
    shown = of(db, "hourly", "24h", hour(48))
    assert (shown.start, shown.end) == (hour(72), hour(48))
    assert [shown.cells[0].at, shown.cells[-1].at] == [hour(71), hour(48)]


def test_a_gap_reads_as_in_the_answer_of_why(db: Any) -> None:
    job = a_job(db, "hourly", schedule="0 * * * *", last_slot_at=hour(1))
    db.execute(
        "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason) "
        "values (%s, %s, %s, 3, 'paused')",
        [job, hour(9), hour(7)],
    )
    shown = of(db, "hourly", "24h")
    [gap] = shown.gaps
    assert (gap.first, gap.last, gap.slots, gap.reason) == (hour(9), hour(7), 3, "paused")
    assert gap.sentence.startswith(
        "skipped (paused): the job was paused; the same holds for the 3 slots"
    )
    assert not {hour(9), hour(8), hour(7)} & {cell.at for cell in shown.cells}
    definition = definitions.find(db, "default", "hourly")
    assert definition is not None
    assert gap.sentence in explain_slot(db, "default", definition, hour(8)).lines


def test_a_slot_of_a_pause_names_who_paused_the_job_why_and_until_when(db: Any) -> None:
    name = "hourly"
    job = a_job(db, name, schedule="0 * * * *", last_slot_at=hour(1))
    for at, who, verb, detail in (
        (hour(20), "kim", "pause", {"reason": "a first one", "until": hour(18).isoformat()}),
        (
            hour(9) - timedelta(minutes=20),
            "jonas",
            "pause",
            {"reason": "disk is replaced", "until": None},
        ),
        (hour(7) + timedelta(minutes=20), "maria", "resume", {"was": "disk is replaced"}),
        (hour(3), "kim", "pause", {"reason": None, "until": None}),
    ):
        db.execute(
            "insert into yamlsched.operator_actions (at, namespace, who, verb, target, job_type, detail)"
            " values (%s, 'default', %s, %s, %s, %s, %s)",
            [at, who, verb, f"job:{name}", name, Jsonb(detail)],
        )
    for first, last, number in (
        (hour(19), hour(18), 2),
        (hour(9), hour(7), 3),
        (hour(2), hour(2), 1),
    ):
        db.execute(
            "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, recorded_at)"
            " values (%s, %s, %s, %s, 'paused', %s)",
            [job, first, last, number, last + timedelta(minutes=1)],
        )

    gaps = [gap.sentence for gap in of(db, name, "24h").gaps]
    assert [sentence.partition("; ")[0] for sentence in gaps] == [
        f"skipped (paused): kim had paused the job at {short_utc(hour(20))}, until {short_utc(hour(18))}: a first one",
        f"skipped (paused): jonas had paused the job at {short_utc(hour(9) - timedelta(minutes=20))}: disk is replaced",
        f"skipped (paused): kim had paused the job at {short_utc(hour(3))}",
    ]
    definition = definitions.find(db, "default", name)
    assert definition is not None
    report = why.explain(db, "default", definition, hour(8))
    assert isinstance(report, why.SlotReport)
    assert gaps[1] in report.lines


def test_a_job_without_slots_has_a_timeline_of_its_runs(db: Any) -> None:
    job = a_job(db, "mail", schedule=None)
    assert timeline.of_runs([], query.now(db)) is None
    a_run(db, job, "dead")
    a_run(db, job, "queued")
    rows = search.page(db, "default", search.Filter(jobs=["mail"]), 10).runs
    shown = timeline.of_runs(rows, query.now(db))
    assert shown is not None
    assert sorted(cell.state for cell in shown.cells) == ["dead", "queued"]
    assert all(shown.start < cell.at < shown.end for cell in shown.cells)


def test_a_cell_of_a_run_that_was_cancelled_has_no_duration(db: Any) -> None:
    job = a_job(db, "mail", schedule=None)
    for status in ("cancelled", "succeeded"):
        a_run(db, job, status, started_at=hour(1), finished_at=hour(0))
    shown = timeline.of_runs(search.page(db, "default", search.Filter(), 10).runs, query.now(db))
    assert shown is not None
    assert {cell.state: cell.took for cell in shown.cells} == {"cancelled": None, "succeeded": HOUR}


def test_a_timeline_reads_no_more_runs_than_it_shows(db: Any) -> None:
    a_long_history(db)
    [id] = [
        row.id
        for row in db.execute("select id from yamlsched.job_definitions where job_type = 'job_0'")
    ]
    given = {
        "id": id,
        "slots": [hour(ago) for ago in range(300)],
        "start": hour(60),
        "end": hour(20),
        "limit": 300,
    }
    assert rows_read(db, load("timeline")["runs_of_slots"], {**given, "is_span": False}) <= 300
    assert rows_read(db, load("timeline")["runs_of_slots"], {**given, "is_span": True}) <= 600


def test_a_slot_whose_run_was_pruned_has_the_state_of_all_pruned_runs_of_its_day(db: Any) -> None:
    job = a_job(db, "hourly", schedule="0 * * * *", timezone="Asia/Kolkata")
    db.execute(
        "update yamlsched.job_definitions set effective_from = now() - interval '9 days', "
        "last_slot_at = now()"
    )
    # given days of successes, of retries, and one on which a run died
    today = hour(0).astimezone(zone("Asia/Kolkata")).date()
    expected = {}
    for ago in range(24, 24 * 5):
        slot = hour(ago) - HOUR / 2
        day = (today - slot.astimezone(zone("Asia/Kolkata")).date()).days
        expected[slot] = {2: "succeeded", 3: "retried"}.get(day, "pruned" if day == 4 else "")
        failed_at = slot if day == 3 else None
        status = "dead" if slot.hour == 12 and day == 4 else "succeeded"
        a_run(db, job, status, scheduled_for=slot, finished_at=slot + HOUR, failed_at=failed_at)

    a_place(db, retention=Jsonb({"succeeded": "1h", "dead": "1h"}))
    housekeep(db, "default", 60)

    cells = {cell.at: cell.state for cell in of(db, "hourly", "7d").cells}
    for slot, state in expected.items():
        if state:
            assert cells[slot] == state, slot
    # and before the latest edit, a day may have been another one
    db.execute("update yamlsched.job_definitions set effective_from = now()")
    states = {cell.state for cell in of(db, "hourly", "7d").cells if cell.at in expected}
    assert states == {"unknown"}


# -- strips of days


def test_a_day_is_the_worst_that_happened_on_it(db: Any) -> None:
    job = a_job(db, "x", timezone="Europe/Berlin")
    now = datetime(2026, 1, 20, 12, tzinfo=UTC)

    def end(day: int, status: str, **more: Any) -> None:
        at = datetime(2026, 1, day, 10, tzinfo=UTC)
        if status == "dead":
            more["failed_at"] = at
        a_run(db, job, status, started_at=at - timedelta(minutes=1), finished_at=at, **more)

    end(19, "succeeded")
    end(18, "succeeded", failed_at=datetime(2026, 1, 18, 9, tzinfo=UTC), attempts=2)
    end(17, "dead")
    end(17, "succeeded")
    end(16, "cancelled")
    db.execute(
        "insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason) "
        "values (%s, '2026-01-14 22:59+00', '2026-01-15 23:30+00', 3, 'late')",
        [job],
    )

    [days] = strips(db, "default", [("x", "Europe/Berlin")], now).values()

    assert [day.date.day for day in days] == list(range(7, 21))
    shown = {day.date.day: (day.state, day.text) for day in days if day.state != "none"}
    assert shown == {
        14: ("skipped", "slots skipped (late)"),
        15: ("skipped", "slots skipped (late)"),
        16: ("cancelled", "cancelled, slots skipped (late)"),
        17: ("dead", "1 dead, succeeded"),
        18: ("retried", "1 succeeded after a retry"),
        19: ("ok", "succeeded"),
    }


def test_strips_of_many_days_read_a_bounded_number_of_runs(db: Any) -> None:
    a_long_history(db)
    now = query.now(db)
    given = {
        "namespace": "default",
        "jobs": ["job_0"],
        "zones": ["UTC"],
        "span_zones": ["UTC"] * 14,
        "nths": list(range(14)),
        "days": [(now - n * DAY).date() for n in range(14)],
        "starts": [now - (n + 1) * DAY for n in range(14)],
        "ends": [now - n * DAY for n in range(14)],
        "limit": 100,
        "most": 1400,
    }
    assert rows_read(db, load("timeline")["days"], given) <= 14 * 3 * 100


def test_the_answer_of_why_finds_a_run_by_its_key_whatever_time_zone_the_job_had_then(
    db: Any,
) -> None:
    job = a_job(db, "daily", schedule="30 23 * * *", timezone="UTC")
    slot = datetime(2026, 1, 14, 11, 30, tzinfo=UTC)
    for key in (
        "daily:2026-01-13",
        "daily:2026-01-14",
        "daily:2026-01-15",
        "daily:2026-01-14T11:30Z",
    ):
        run = a_run(db, job, "succeeded", scheduled_for=slot, idempotency_key=key)
        definition = definitions.find(db, "default", "daily")
        assert definition is not None
        assert explain_slot(db, "default", definition, slot).run_id == run
        db.execute("delete from yamlsched.job_runs")


def test_the_answer_of_why_reads_few_runs_of_a_long_history(db: Any) -> None:
    a_long_history(db)
    job = definitions.find(db, "default", "job_0")
    assert job is not None
    keys = ["job_0:2026-01-14", "job_0:2026-01-14T02:00Z"]
    given = {"id": job.id, "namespace": "default", "job_type": "job_0", "keys": keys, "limit": 300}
    given |= {"start": hour(3), "end": hour(3), "slots": [hour(3)], "is_span": False}
    given["ids"] = [job.id]
    for file, name in (
        ("timeline", "runs_of_slots"),
        ("timeline", "gaps"),
        ("slots", "key_holders"),
        ("slots", "earliest_open_slots"),
    ):
        assert rows_read(db, load(file)[name], given) <= 20
