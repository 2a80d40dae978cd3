"""Calendars: which slots they skip, how these are accounted for, and where they are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from support.database import temporary_database
from support.project import Project, a_project
from yamlsched.cli import cli
from yamlsched.sync.definitions import Definition
from yamlsched.sync.slot_plan import MAX_CATCHUP_RUNS, owed_slots
from yamlsched.timetable.calendars import Calendar, skipped_by, to_rows
from yamlsched.timetable.cron import parse_schedule, without_skipped
from yamlsched.timetable.slots import next_slot, slots

PLACES = [
    ("Europe/Berlin", date(2026, 10, 25)),
    ("America/Santiago", date(2026, 9, 6)),
    ("UTC", date(2026, 12, 31)),
]
SCHEDULES = [
    "0 9 * * *",
    "30 0 * * *",
    "*/20 * * * *",
    "0 0,12 * * 1-5",
    "0 9 * * 1; 0 12 * * *",
    "0 9 1 * *",
    "0 9 LW * *",
    "*/20 8 * * * every 2w from 2026-08-30",
    "0 9 * * 1; 0 12 * * * every 3w from 2026-08-12",
]
RANGES = st.lists(st.tuples(st.integers(-8, 8), st.integers(0, 3)), max_size=4)


def calendars(
    names: str, around: date, ranges: list[list[tuple[int, int]]]
) -> tuple[Calendar, ...]:
    found = []
    for name, own in zip(names, ranges, strict=False):
        dates = sorted(
            (around + timedelta(days=at), around + timedelta(days=at + length))
            for at, length in own
        )
        found.append(Calendar(name, tuple(dates)))
    return tuple(found)


@settings(max_examples=200)
@given(
    schedule=st.sampled_from(SCHEDULES),
    place=st.sampled_from(PLACES),
    skip=st.lists(RANGES, max_size=2),
    only=st.lists(RANGES, max_size=2),
    catchup=st.sampled_from(["latest", "all", "none"]),
    follows=st.booleans(),
    hours=st.tuples(st.integers(0, 200), st.integers(0, 200)),
    paused=st.none() | st.integers(0, 200),
    window=st.sampled_from([10, 100, 9999]),
)
def test_each_slot_is_run_or_recorded_once_and_a_calendar_skips_those_of_its_dates(
    schedule, place, skip, only, catchup, follows, hours, paused, window
):
    zone, around = ZoneInfo(place[0]), place[1]
    skip_on, only_on = calendars("ab", around, skip), calendars("cd", around, only)
    middle = datetime.combine(around, datetime.min.time(), UTC)
    base, now = middle - timedelta(hours=hours[0]), middle + timedelta(hours=hours[1])
    cron = parse_schedule(schedule)
    every = {
        slot.at: skipped_by(skip_on, only_on, slot.nominal.date())
        for slot in slots(cron, zone, base, now)
    }
    run = [at for at, why in every.items() if not why]

    # the slots that are left are those of the other dates
    assert [
        slot.at for slot in slots(without_skipped(cron, skip_on, only_on), zone, base, now)
    ] == run

    # when they are accounted for
    definition = Definition(
        id=1,
        job_type="job",
        schedule=schedule,
        timezone=place[0],
        enabled=True,
        overlap="wait",
        catchup=catchup,
        catchup_window=timedelta(hours=window),
        spread=timedelta(0),
        after=["other"] if follows else [],
        created_at=base,
        effective_from=base,
        skip_on=to_rows(skip_on),
        only_on=to_rows(only_on),
        paused_at=None if paused is None else base,
        paused_until=None if paused is None else base + timedelta(hours=paused),
    )
    owed = owed_slots(definition, now)

    # then each has one account, up to a point from which a later sync goes on
    candidates = [one.slot.at for one in owed.candidates]
    end = owed.last_slot_at or base
    accounted = [at for at in every if at <= end]
    within = {gap: [at for at in accounted if gap.first <= at <= gap.last] for gap in owed.gaps}
    assert sorted([*candidates, *(at for found in within.values() for at in found)]) == accounted
    assert all(len(found) == gap.slots for gap, found in within.items())
    assert all(one.last < other.first for one, other in pairwise(owed.gaps))
    late = [gap for gap in owed.gaps if gap.reason in ("late", "paused")]
    for gap, found in within.items():
        if gap.reason == "calendar":
            assert {every[at] for at in found} == {gap.detail}
        elif gap.reason != "paused":
            assert not any(every[at] for at in found)
    left = [at for at in run if not any(gap.first <= at <= gap.last for gap in late)]
    if catchup == "latest" and not follows:
        assert candidates == left[-1:]
    else:
        assert candidates in (left, left[:MAX_CATCHUP_RUNS], left[-MAX_CATCHUP_RUNS:])
    if len(accounted) == len(every) and paused is None:
        following = next_slot(cron, zone, max(now, end))
        assert owed.next_slot_at == (following.at if following else None)
    # a gap continues the one before only if no slot is in between
    if owed.gaps and owed.gaps[0].follows is not None:
        assert not candidates or candidates[0] > owed.gaps[0].first


def test_no_date_is_left_of_none() -> None:
    cron = without_skipped(parse_schedule("0 9 * * *"), (), (Calendar("empty", ()),))
    assert next_slot(cron, ZoneInfo("UTC"), datetime(2026, 1, 1, tzinfo=UTC)) is None


UNREADABLE = [
    ("skip_on", '[{"name": "later", "dates": ["2026-99-99"]}]'),
    ("only_on", '[{"name": "later", "rule": "last working day"}]'),
    ("schedule", "* * * * * until 2026-99-99"),
]


@pytest.mark.parametrize("column, value", UNREADABLE)
def test_a_row_that_this_release_cannot_read_keeps_no_other_job_from_its_slots(
    project: Project, column: str, value: str
) -> None:
    project.sync(nothing={"cron": "* * * * *"}, nap={"cron": "* * * * *"})
    project.db.execute(
        f"update yamlsched.job_definitions set {column} = %s where job_type = 'nothing'",  # a name of UNREADABLE
        [value],
    )
    project.db.execute("update yamlsched.job_definitions set next_slot_at = clock_timestamp() - interval '1 minute', "
        "effective_from = clock_timestamp() - interval '2 minutes'")  # fmt: skip

    tick = project.start("tick")
    tick.wait()

    rows = project.db.execute("select distinct job_type from yamlsched.job_runs").fetchall()
    assert [row.job_type for row in rows] == ["nap"], tick.text
    assert "Traceback" not in tick.text
    assert "nothing" in tick.text


@pytest.fixture
def project(server: str, template: str, tmp_path: Path) -> Iterator[Project]:
    with temporary_database(server, template) as dsn, a_project(tmp_path, dsn) as project:
        yield project


def write(project: Project, calendars: dict[str, Any], **jobs: Any) -> None:
    project.write(**jobs)
    file = project.folder / "schedules.yaml"
    content = json.loads(file.read_text())
    for job in content["jobs"].values():
        job.pop("backoff", None)
    file.write_text(json.dumps({**content, "defaults": {}, "calendars": calendars}))


def sync(project: Project) -> None:
    verb(project, "sync", "--file", str(project.file))


def verb(project: Project, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*words, "--dsn", project.dsn, "--namespace", "default"])
    assert result.exit_code == code, result.output
    return result.output


def test_a_slot_on_a_date_of_a_calendar_is_skipped_and_why_names_the_calendar(
    project: Project,
) -> None:
    today, day = datetime.now(UTC).date(), timedelta(days=1)
    dates = [f"{today - 3 * day}/{today - 2 * day}"]
    write(
        project,
        {"holidays": {"dates": dates, "until": str(today + 400 * day)}},
        nothing={"cron": "0 0 * * *", "skip_on": ["holidays"], "catchup": "all"},
    )
    sync(project)
    project.db.execute(
        "update yamlsched.job_definitions set effective_from = %s, last_slot_at = null, next_slot_at = %s",
        [datetime.combine(today - 5 * day, datetime.min.time(), UTC)] * 2,
    )

    tick = project.start("tick")
    tick.wait()

    assert "slots=2 reason=calendar detail=holidays" in tick.text
    rows = project.db.execute(
        "select idempotency_key as key from yamlsched.job_runs order by 1"
    ).fetchall()
    assert [row.key for row in rows] == [f"nothing:{today - days * day}" for days in (4, 1, 0)]
    [gap] = project.db.execute(
        "select reason, detail, slots from yamlsched.skipped_slots"
    ).fetchall()
    assert (gap.reason, gap.detail, gap.slots) == ("calendar", "holidays", 2)
    said = verb(project, "why", "nothing", "--at", f"{today - 2 * day}T00:00Z")
    assert "skipped (calendar): its date is skipped (holidays)" in said
    # and of a slot to come
    write(
        project,
        {"holidays": {"dates": [str(today + day)], "until": str(today + 400 * day)}},
        nothing={"cron": "0 0 * * *", "skip_on": ["holidays"]},
    )
    sync(project)
    said = verb(project, "why", "nothing", "--at", f"{today + day}T00:00Z")
    assert "; then its date is skipped (holidays)" in said


def test_a_backfill_of_a_range_leaves_out_what_a_calendar_skips_and_one_of_a_date_does_not(
    project: Project,
) -> None:
    # given a job that a calendar skips on two of five days
    today, day = datetime.now(UTC).date(), timedelta(days=1)
    first, last, skipped = today - 5 * day, today - day, today - 2 * day
    calendar = {"dates": [f"{today - 3 * day}/{skipped}"], "until": str(today + 400 * day)}
    write(project, {"holidays": calendar}, nothing={"cron": "0 0 * * *", "skip_on": ["holidays"]})
    sync(project)
    words = ("backfill", "nothing", "--before-first", "--from")
    days = [first, first + day, last]

    # when a range is filled, the runs are those of the other days
    dry = verb(project, *words, str(first), "--to", str(last), "--dry-run")
    made = verb(project, *words, str(first), "--to", str(last))
    for said, did in ((dry, "would create"), (made, "created")):
        assert "2 slots are left out by calendars. To run one, pass its date without --to" in said
        lines = [line.split(" for ")[0] for line in said.splitlines() if line.startswith(did)]
        assert lines == [f"{did} nothing:{each}" for each in days]

    # and one date that is named gets its run
    assert f"created nothing:{skipped}" in verb(project, *words, str(skipped))
    rows = project.db.execute(
        "select idempotency_key as key from yamlsched.job_runs order by 1"
    ).fetchall()
    assert [row.key for row in rows] == [f"nothing:{each}" for each in sorted([*days, skipped])]


def test_status_shows_the_next_slot_that_no_calendar_skips(project: Project) -> None:
    today, day = datetime.now(UTC).date(), timedelta(days=1)
    until = str(today + 400 * day)
    write(
        project,
        {"holidays": {"dates": [f"{today}/{today + 2 * day}"], "until": until}},
        nothing={"cron": "0 0 * * *", "skip_on": ["holidays"]},
    )
    sync(project)

    shown = json.loads(verb(project, "status", "--format", "json"))["jobs"]

    assert [job["next_slot_at"] for job in shown] == [f"{today + 3 * day}T00:00:00Z"]


def test_a_calendar_that_has_ended_is_a_problem_and_one_that_ends_soon_is_shown(
    project: Project,
) -> None:
    today, day = datetime.now(UTC).date(), timedelta(days=1)
    jobs = {"nothing": {"cron": "0 0 1 1 *", "skip_on": ["holidays"]}}
    ends = {}
    for until in (today + 100 * day, today + 30 * day, today - day):
        write(project, {"holidays": {"dates": [str(today)], "until": str(until)}}, **jobs)
        sync(project)
        said = verb(project, "status")
        line = next((line.strip() for line in said.splitlines() if "the calendar" in line), "")
        ends[until] = (
            line,
            CliRunner().invoke(cli, ["status", "--check", "--dsn", project.dsn]).output,
        )

    (_, soon), (_, ended) = list(ends.items())[1:]
    assert next(iter(ends.values()))[0] == ""
    assert soon[0] == f"the calendar holidays, which 1 job uses, ends on {today + 30 * day}"
    assert "the calendar" not in soon[1]
    assert f"the calendar holidays, which 1 job uses, ended on {today - day}" in ended[1]


def test_next_shows_what_a_calendar_skips_and_says_when_its_list_ends(tmp_path: Path) -> None:
    today, day = datetime.now(UTC).date(), timedelta(days=1)
    file = tmp_path / "schedules.yaml"
    calendar = {"dates": [str(today + day)], "until": str(today + 30 * day)}
    jobs = {"list": {"cron": "0 0 * * *", "command": ["ls"], "skip_on": ["holidays"]}}
    file.write_text(json.dumps({"version": 1, "calendars": {"holidays": calendar}, "jobs": jobs}))

    result = CliRunner().invoke(cli, ["next", "list", "-n", "2", "--file", str(file)])

    *_, first, second = result.stdout.splitlines()
    assert first.split("  ")[-1] == "skipped: holidays"
    assert second.rstrip().endswith(f"list:{today + 2 * day}")
    assert f'calendar "holidays" ends on {today + 30 * day}' in result.stderr


def test_an_edit_of_the_dates_of_a_calendar_is_an_edit_of_the_jobs_that_use_it(
    project: Project,
) -> None:
    calendars = [
        {"holidays": {"dates": dates}} for dates in (["2030-12-25"], ["2030-12-25", "2030-12-26"])
    ]
    jobs = {"nothing": {"cron": "0 0 * * *", "skip_on": ["holidays"]}, "nap": {"cron": "0 0 * * *"}}
    write(project, calendars[0], **jobs)
    sync(project)
    write(project, calendars[1], **jobs)

    planned = verb(project, "plan", "--file", str(project.folder / "schedules.yaml"))
    sync(project)

    assert "~ nothing" in planned
    assert (
        "calendars.holidays  {dates: [2030-12-25]} -> {dates: [2030-12-25, 2030-12-26]}" in planned
    )
    assert "~ nap" not in planned
    edit = project.db.execute(
        "select e.before, e.after from yamlsched.edited_jobs e order by edit_id desc"
    ).fetchone()
    assert edit.before == {"calendars.holidays": {"dates": ["2030-12-25"]}}
    assert edit.after == {"calendars.holidays": {"dates": ["2030-12-25", "2030-12-26"]}}
