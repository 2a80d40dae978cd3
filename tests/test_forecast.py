"""How many jobs start in each hour and minute of a span: the same as by visiting each start."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from yamlsched.ask.forecast import ForecastSpan, forecast, hours, start_minutes
from yamlsched.timetable.calendars import Calendar
from yamlsched.timetable.cron import parse_cron, without_skipped
from yamlsched.timetable.slots import EPOCH, MINUTE, clock_changes
from yamlsched.timetable.upcoming import ScheduledJob, starts
from yamlsched.timetable.zones import zone

CRONS = (
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0 1-4 * * *",
    "0 0 29 2 *",
    "*/20 1,2 * * *",
    "45 23 * * 0",
)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Santiago",
    "Pacific/Apia",
)
DAY = timedelta(days=1)
CHANGES = (
    datetime(2026, 3, 28, tzinfo=UTC),
    datetime(2026, 10, 24, tzinfo=UTC),
    datetime(2011, 12, 29, tzinfo=UTC),
)
CALENDARS = st.sampled_from(
    [(), (), (Calendar("changes", tuple((at.date(), (at + DAY).date()) for at in CHANGES)),)]
)
MINUTES = st.integers(0, 3 * 1440)

jobs = st.lists(
    st.builds(
        ScheduledJob,
        st.sampled_from(["a", "b", "c", "d", "e", "f"]),
        st.sampled_from([parse_cron(text) for text in CRONS]),
        st.sampled_from(ZONES),
        st.sampled_from(
            [timedelta(0), timedelta(seconds=50), timedelta(minutes=6), timedelta(hours=20)]
        ),
        st.none() | st.sampled_from([at + timedelta(hours=27) for at in CHANGES]),
        st.just(()),
        CALENDARS,
        CALENDARS,
    ),
    unique_by=lambda job: job.name,
)
spans = st.builds(
    lambda start, minutes, length, name: ForecastSpan(
        start + minutes * MINUTE, start + (minutes + length) * MINUTE, name
    ),
    st.sampled_from(CHANGES),
    MINUTES,
    MINUTES,
    st.sampled_from(ZONES),
)


@settings(max_examples=30)
@given(jobs, spans, st.none() | MINUTES)
def test_the_numbers_are_those_of_the_starts(
    jobs: list[ScheduledJob], span: ForecastSpan, passed: int | None
) -> None:
    now = None if passed is None else span.after + passed * MINUTE

    found = forecast(jobs, span, now)

    by_minute: Counter[int] = Counter()
    by_hour: Counter[tuple[object, int]] = Counter()
    for job in jobs:
        at = {slot.run_at.replace(second=0) for slot in starts(job, span.after, span.until)}
        at = {one for one in at if now is None or one > now}
        by_minute.update((one - EPOCH) // MINUTE - span.first_minute for one in at)
        local = [one.astimezone(zone(span.timezone)) for one in at]
        by_hour.update({(one.date(), one.hour) for one in local})
    assert found.jobs_by_minute == [by_minute[minute] for minute in range(span.minutes)]
    assert found.jobs_by_hour == [by_hour[hour.date, hour.hour] for hour in found.hours]
    for nth, hour in enumerate(found.hours):
        assert len(found.jobs(nth)) == by_hour[hour.date, hour.hour]


@settings(max_examples=30)
@given(jobs, spans)
def test_the_fullest_minutes_have_the_jobs_that_start_in_each(
    jobs: list[ScheduledJob], span: ForecastSpan
) -> None:
    found = forecast(jobs, span)

    at: dict[datetime, set[str]] = {}
    for job in jobs:
        for slot in starts(job, span.after, span.until):
            at.setdefault(slot.run_at.replace(second=0), set()).add(job.name)
    most = max(map(len, at.values()), default=0)
    fullest = found.fullest(3)
    assert bool(fullest) == (most > 1)
    assert all(at[instant] == set(one.names) for one in fullest for instant in one.at)
    if fullest:
        assert len(fullest[0].names) == most
        assert [len(one.names) for one in fullest] == sorted(
            (len(one.names) for one in fullest), reverse=True
        )


@settings(max_examples=30)
@given(jobs, spans)
def test_start_minutes_are_those_of_the_runs(jobs: list[ScheduledJob], span: ForecastSpan) -> None:
    for job in jobs:
        fires = without_skipped(job.cron, job.skip_on, job.only_on)
        found = start_minutes(
            fires, job.timezone, job.offset, span.after, span.until, job.not_before
        )
        expected = [(slot.run_at - EPOCH) // MINUTE for slot in starts(job, span.after, span.until)]
        assert list(found) == expected


def test_a_start_at_the_end_of_a_span_belongs_to_it_and_not_to_the_next() -> None:
    rule = (parse_cron("0 2 * * *"), "UTC", 6 * MINUTE)
    day = datetime(2026, 1, 14, tzinfo=UTC)
    start = day + timedelta(hours=2, minutes=6)

    assert list(start_minutes(*rule, day, start)) == [(start - EPOCH) // MINUTE]
    assert list(start_minutes(*rule, start, day + DAY)) == []


def test_minutes_of_one_clock_time_with_other_jobs_are_apart_and_most_jobs_come_first() -> None:
    crons = {"a": "0 2 * * *", "b": "0 2 * * mon", "c": "0 2 * * *"}
    jobs = [ScheduledJob(name, parse_cron(text), "UTC") for name, text in crons.items()]
    monday = datetime(2026, 1, 12, tzinfo=UTC)

    found = forecast(jobs, ForecastSpan(monday, monday + 7 * DAY, "UTC")).fullest(3)

    assert [(one.names, len(one.at)) for one in found] == [(("a", "b", "c"), 1), (("a", "c"), 6)]


def test_an_hour_that_clocks_skip_has_no_minutes_and_one_that_they_repeat_has_twice_as_many() -> (
    None
):
    forward = hours(
        ForecastSpan(
            CHANGES[0] - timedelta(hours=1, microseconds=1), CHANGES[0] + 2 * DAY, "Europe/Berlin"
        )
    )
    back = hours(
        ForecastSpan(
            CHANGES[1] - timedelta(hours=2, microseconds=1), CHANGES[1] + 2 * DAY, "Europe/Berlin"
        )
    )

    assert [hour.end - hour.start for hour in forward[24:29]] == [60, 60, 0, 60, 60]
    assert [hour.end - hour.start for hour in back[24:29]] == [60, 60, 120, 60, 60]


def test_a_removed_day_has_hours_without_minutes() -> None:
    found = hours(ForecastSpan(CHANGES[2], CHANGES[2] + 3 * DAY, "Pacific/Apia"))

    removed = [hour for hour in found if (hour.date.month, hour.date.day) == (12, 30)]
    assert len(removed) == 24
    assert all(hour.start == hour.end for hour in removed)


def test_clock_changes_have_their_instant_and_both_offsets() -> None:
    changes = list(clock_changes(zone("Europe/Berlin"), CHANGES[0], CHANGES[0] + 366 * DAY))

    assert [change.at.isoformat() for change in changes] == [
        "2026-03-29T01:00:00+00:00",
        "2026-10-25T01:00:00+00:00",
        "2027-03-28T01:00:00+00:00",
    ]
    assert changes[0][1:] == (timedelta(hours=1), timedelta(hours=2))
    at = changes[0].at
    assert list(clock_changes(zone("Europe/Berlin"), at, at + DAY)) == []
    assert list(clock_changes(zone("Europe/Berlin"), at - MINUTE, at)) == changes[:1]
    assert list(clock_changes(zone("UTC"), CHANGES[0], CHANGES[0] + 366 * DAY)) == []


def test_jobs_that_start_at_the_same_minutes_are_counted_together() -> None:
    names = [f"job_{n}" for n in range(10_000)]
    span = ForecastSpan(CHANGES[0], CHANGES[0] + 7 * DAY, "UTC")

    found = forecast([ScheduledJob(name, parse_cron("* * * * *"), "UTC") for name in names], span)

    assert set(found.jobs_by_minute[1:]) == {10_000}
    assert found.pile_ups() == 1440
    [first] = found.fullest(1)
    assert (first.clock, len(first.names), len(first.at)) == ("00:00", 10_000, 7)
