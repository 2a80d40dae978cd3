"""What a clock change does to slots, in words, and which jobs have slots to come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from yamlsched.ask.forecast import ForecastSpan, forecast
from yamlsched.extras.web.ask.calendar import (
    CalendarJob,
    agenda,
    clock_change_nights,
    effect,
    scheduled,
)
from yamlsched.timetable import slots
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.zones import zone

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
AUTUMN = datetime(2026, 10, 20, 12, tzinfo=UTC)
SEPTEMBER, OCTOBER = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)
SAMOA = datetime(2011, 12, 29, tzinfo=UTC)
DAY = timedelta(days=1)
BERLIN = "Europe/Berlin"
GONE = "does not exist on"


def a_job(
    name: str = "purge",
    cron: str | None = "30 2 * * *",
    timezone: str = "Europe/Berlin",
    **more: object,
) -> CalendarJob:
    columns = {
        "spread": timedelta(0), "enabled": True, "paused_at": None, "paused_until": None, "paused_by": None,
        "paused_reason": None, "description": "", "owner": "", "tags": [],
    }  # fmt: skip
    return CalendarJob(name, cron, timezone, **(columns | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "cron, timezone, now, words",
    [
        ("30 2 * * *", BERLIN, NOW, f"02:30 {GONE} 2026-03-29 (clocks go forward): runs at 03:00"),
        (
            *("0,30 2 * * *", BERLIN, NOW),
            f"02:30 {GONE} 2026-03-29 (clocks go forward): runs at 03:00; 02:00 and 02:30 become one slot",
        ),
        ("0 2,3 * * *", BERLIN, NOW, "02:00 does not exist: the slot at 03:00 counts for both"),
        ("*/10 * * * *", BERLIN, NOW, "02:00 to 03:00 does not exist: no slot, instead of 6"),
        ("0 3 * * *", BERLIN, NOW, ""),
        ("59 1 * * *", BERLIN, NOW, ""),
        ("30 2 1 * *", BERLIN, NOW, ""),
        ("30 2 * * *", BERLIN, AUTUMN, "02:30 happens twice: runs in the first pass only"),
        (
            *("*/30 2 * * *", BERLIN, AUTUMN),
            "02:00 to 03:00 happens twice: 2 slots in the first pass, and again in the second",
        ),
        ("0 3 * * *", BERLIN, AUTUMN, ""),
        (
            "0 0 * * *",
            "America/Santiago",
            SEPTEMBER,
            f"00:00 {GONE} 2026-09-06 (clocks go forward): runs at 01:00",
        ),
        (
            "30 23 * * *",
            "America/Santiago",
            NOW,
            "23:30 happens twice: runs in the first pass only",
        ),
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            OCTOBER,
            f"02:15 {GONE} 2026-10-04 (clocks go forward): runs at 02:30",
        ),
        (
            "0 2 * * *",
            "Pacific/Apia",
            SAMOA,
            "Fri 30 Dec 00:00 to Sat 31 Dec 00:00 does not exist: no slot, instead of 1",
        ),
    ],
)
def test_what_a_clock_change_does_to_slots_is_said_in_words(
    cron: str, timezone: str, now: datetime, words: str
) -> None:
    where = zone(timezone)
    change = next(slots.clock_changes(where, now, now + 30 * DAY))

    assert effect(parse_cron(cron), where, change) == words


@pytest.mark.parametrize(
    "cron", ["30 2 * * *", "*/10 * * * *", "0 2,3 * * *", "0 0-4 * * *", "5 2 29 3 *"]
)
@pytest.mark.parametrize("now", [NOW, AUTUMN])
def test_a_job_is_affected_if_its_slots_differ_from_those_without_the_change(
    cron: str, now: datetime
) -> None:
    where, expression = zone("Europe/Berlin"), parse_cron(cron)
    change = next(slots.clock_changes(where, now, now + 30 * DAY))
    begin, end = change.at - timedelta(hours=1), change.at + timedelta(hours=3)

    clock = [slot.at + change.after for slot in slots.slots(expression, where, begin, end)]
    named = [
        slot.at
        for slot in slots.slots(expression, zone("UTC"), begin + change.after, end + change.after)
    ]

    if clock != named:
        assert effect(expression, where, change)


def test_jobs_without_slots_are_listed_by_their_reason() -> None:
    later = NOW + 2 * DAY
    found = scheduled(
        [
            a_job("a"),
            a_job("disabled", enabled=False),
            a_job("enqueued", None),
            a_job("paused", paused_at=NOW),
            a_job("paused_until", paused_at=NOW, paused_until=later),
            a_job("resumed", paused_at=NOW - DAY, paused_until=NOW - timedelta(minutes=1)),
            a_job("unreadable", timezone="Mars/Olympus"),
        ],
        "default",
        NOW,
    )

    assert list(found.coming) == ["a", "paused_until", "resumed"]
    assert found.coming["paused_until"].not_before == later
    assert found.coming["resumed"].not_before is None
    assert [job.job_type for job in found.paused] == ["paused", "paused_until"]
    assert [job.job_type for job in found.disabled] == ["disabled"]
    assert [job.job_type for job in found.enqueued] == ["enqueued"]
    [(job, why)] = found.unreadable
    assert job.job_type == "unreadable"
    assert 'no time zone "Mars/Olympus"' in why


def test_a_job_that_is_paused_until_a_time_has_the_slots_after_it() -> None:
    found = scheduled(
        [a_job(paused_at=NOW, paused_until=datetime(2026, 3, 22, 1, 30, tzinfo=UTC))],
        "default",
        NOW,
    )

    shown = forecast(found.coming.values(), ForecastSpan(NOW, NOW + 4 * DAY, "UTC"), NOW)

    assert [
        hour.date.day for hour, jobs in zip(shown.hours, shown.jobs_by_hour, strict=True) if jobs
    ] == [23, 24]


def test_a_night_names_the_affected_jobs_by_what_happens_to_them() -> None:
    jobs = [
        a_job("a"),
        a_job("b"),
        a_job("minutely", "* * * * *"),
        a_job("noon", "0 12 * * *"),
        a_job("utc", timezone="UTC"),
    ]
    paused = a_job("later", paused_at=NOW, paused_until=NOW + 20 * DAY)

    [night] = clock_change_nights(scheduled([*jobs, paused], "default", NOW), NOW)

    assert (night.timezone, str(night.date)) == ("Europe/Berlin", "2026-03-29")
    assert night.sentence == "clocks go forward from 02:00 to 03:00"
    assert night.effects == [
        ("02:30 does not exist on 2026-03-29 (clocks go forward): runs at 03:00", ["a", "b"]),
        ("02:00 to 03:00 does not exist: no slot, instead of 60", ["minutely"]),
    ]
    assert (night.affected, night.unaffected) == (3, 2)


def test_the_list_of_coming_slots_is_bounded_by_jobs_and_by_slots_of_an_hour() -> None:
    schedule = scheduled([a_job(f"job_{n:02}", "* * * * *") for n in range(30)], "default", NOW)
    shown = forecast(schedule.coming.values(), ForecastSpan(NOW, NOW + DAY, "UTC"), NOW)

    [(hour, rows)], more = agenda(shown, schedule, NOW, slice(0, None), 10)

    assert hour.hour == 12
    assert (len(rows), more) == (10, 20)
    assert [slot.scheduled_for.minute for slot in rows[0].first] == [1, 2, 3]
    assert (rows[0].more, rows[0].last.scheduled_for.minute) == (56, 59)
