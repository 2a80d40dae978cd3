"""``/calendar``: the coming slots of all jobs by hour, pile-ups, and what clock changes do to
slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import median

from yamlsched.ask.forecast import MIN_PILE_UP_JOBS, Forecast, ForecastSpan, Hour, PileUp, forecast
from yamlsched.errors import ScheduleError
from yamlsched.extras.web.ask import calendar
from yamlsched.extras.web.ask.calendar import ClockChangeNight, Coming, Schedule
from yamlsched.extras.web.render import count
from yamlsched.extras.web.visit import BadRequest, Page, Visit, finder
from yamlsched.timetable import times
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.zones import zone

SPANS = {"1d": 1, "7d": 7}
DEFAULT_SPAN = "7d"
MAX_LISTED_STARTS = 20
"""The list of coming slots ends with the hour in which it reaches this number of jobs."""
MAX_STARTS_OF_HOUR = 200
"""The same for the list of one hour."""
MAX_PILE_UPS = 7
MAX_DAYS_AHEAD = 366 * 3
LEVELS = 4
FAR = 1.5
"""By this factor, an hour or a day that is marked has more than usual, or a day less."""
REGULAR_MINUTES = 60
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Cell:
    """An hour, how many jobs start in it, the level of that, and whether it has a pile-up or has
    passed.
    """

    hour: Hour
    jobs: int
    level: int
    href: str
    has_pile_up: bool
    is_past: bool

    @property
    def is_skipped(self) -> bool:
        """Whether clocks skip the hour."""
        return self.hour.start == self.hour.end

    @property
    def clock_change(self) -> str:
        """What clocks do in the hour; "" if nothing."""
        minutes = self.hour.end - self.hour.start
        if minutes == REGULAR_MINUTES:
            return ""
        if minutes == 0:
            return "does not exist: clocks go forward"
        return (
            f"has {minutes} minutes: clocks go {'back' if minutes > REGULAR_MINUTES else 'forward'}"
        )

    @property
    def text(self) -> str:
        """What the cell shows in words."""
        words = (
            [count(self.jobs, "job")] if self.jobs else ["no job" if not self.is_past else "past"]
        )
        if self.has_pile_up:
            words.append("with a pile-up")
        if self.clock_change:
            words.append(f"this hour {self.clock_change}")
        return f"{self.hour.date:%a %-d %b} {self.hour.hour:02}:00: {', '.join(words)}"


@dataclass(frozen=True)
class CalendarPage:
    """The page. ``coming`` has the jobs of the filter; ``agenda`` lists their slots from the chosen
    hour on.
    """

    jobs: int
    matching: int
    coming: Schedule
    text: str
    span: str
    day: date
    timezone: str
    timezones: Sequence[str]
    days: Sequence[Sequence[Cell]]
    runs: Sequence[tuple[int, str, str]]  # of each of ``days``, as ``_runs`` has them
    nights: Sequence[ClockChangeNight]
    pile_ups: Sequence[PileUp]
    more_pile_ups: int
    agenda: Sequence[tuple[Hour, Sequence[Coming], str]]
    agenda_more: int
    chosen: datetime | None
    earlier: date | None
    later: date
    spans = tuple(SPANS)

    @property
    def nights_shown(self) -> list[ClockChangeNight]:
        """The clock changes on the days of the grid."""
        days = {cells[0].hour.date for cells in self.days}
        return [night for night in self.nights if night.date in days]


def show(visit: Visit) -> CalendarPage:
    text, name = visit.text("q"), visit.choice("span", tuple(SPANS), DEFAULT_SPAN)
    jobs = calendar.jobs(visit.connection, visit.namespace)
    matching = jobs
    if text:
        finds = finder(text)
        matching = [
            job for job in jobs if finds(job.job_type, job.description, job.owner, *job.tags)
        ]
    schedule = calendar.scheduled(matching, visit.namespace, visit.now)
    timezones = schedule.timezones
    timezone = _timezone(visit, timezones)
    where = zone(timezone)
    today = visit.now.astimezone(where).date()
    day = _day(visit, today)
    end = day + timedelta(days=SPANS[name] - 1)
    span = ForecastSpan(
        times.bounds(day, where)[0] - MICROSECOND, times.bounds(end, where)[1], timezone
    )
    outlook = forecast(schedule.coming.values(), span, visit.now)
    chosen = _chosen(visit, span)
    nights = calendar.clock_change_nights(schedule, max(visit.now, span.after))
    pile_ups = outlook.pile_ups()
    fullest = outlook.fullest(min(pile_ups, MAX_PILE_UPS))
    days = _days(visit, outlook)
    first = max(chosen or visit.now, span.instant(0))
    hours = slice(_place(outlook, first), _place(outlook, first) + 1 if chosen else None)
    limit = MAX_STARTS_OF_HOUR if chosen else MAX_LISTED_STARTS
    listed, more = calendar.agenda(outlook, schedule, visit.now, hours, limit)
    return CalendarPage(
        jobs=len(jobs),
        matching=len(matching),
        coming=schedule,
        text=text,
        span=name,
        day=day,
        timezone=timezone,
        timezones=timezones if timezone in timezones else [timezone, *timezones],
        days=days,
        runs=_runs(days, outlook),
        nights=nights,
        pile_ups=fullest,
        more_pile_ups=pile_ups - len(fullest),
        agenda=[(hour, rows, _link(visit, outlook, hour)) for hour, rows in listed],
        agenda_more=more,
        chosen=chosen,
        earlier=max(day - timedelta(days=SPANS[name]), today) if day > today else None,
        later=end + timedelta(days=1),
    )


def _timezone(visit: Visit, timezones: Sequence[str]) -> str:
    name = visit.text("tz") or visit.clock or (timezones[0] if timezones else "UTC")
    try:
        zone(name)
    except ScheduleError:
        raise BadRequest(
            f'There is no time zone "{name}".', "Write a name such as Europe/Berlin."
        ) from None
    return name


def _day(visit: Visit, today: date) -> date:
    text = visit.text("from")
    if not text:
        return today
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise BadRequest(
            f'"{text}" is not a valid date.', "Write a date such as 2026-03-29."
        ) from None
    if not today <= day <= today + timedelta(days=MAX_DAYS_AHEAD):
        if day < today and today - day <= timedelta(days=7):
            return today  # a page that was left open over midnight
        raise BadRequest(
            f'"{text}" is out of range.',
            f"Write a date from {today} to {today + timedelta(days=MAX_DAYS_AHEAD)}.",
        )
    return day


def _chosen(visit: Visit, span: ForecastSpan) -> datetime | None:
    """Return the start of the hour whose slots are listed; None: of all hours from now on."""
    hour = visit.instant("at")
    return hour if hour and span.after < hour <= span.until else None


def _place(outlook: Forecast, at: datetime) -> int:
    """Return the place of the hour that has an instant."""
    minute = (at - outlook.span.instant(0)) // timedelta(minutes=1)
    return next(
        (nth for nth, hour in enumerate(outlook.hours) if hour.start <= minute < hour.end),
        len(outlook.hours),
    )


def _days(visit: Visit, outlook: Forecast) -> list[list[Cell]]:
    piled, numbers = _piled(outlook), [jobs for jobs in outlook.jobs_by_hour if jobs] or [0]
    least, most = min(numbers), max(numbers)
    cells = []
    for nth, (hour, jobs) in enumerate(zip(outlook.hours, outlook.jobs_by_hour, strict=True)):
        level = 1 + (LEVELS - 1) * (jobs - least) // max(most - least, 1) if jobs else 0
        is_past = hour.start < hour.end and outlook.span.instant(hour.end) <= visit.now
        cells.append(
            Cell(
                hour,
                jobs,
                level,
                _link(visit, outlook, hour) if jobs else "",
                nth in piled,
                is_past,
            )
        )
    return [cells[nth : nth + 24] for nth in range(0, len(cells), 24)]


def _piled(outlook: Forecast) -> set[int]:
    """Return the hours that have a minute in which many jobs start, and far more than usual."""
    most = [max(outlook.jobs_by_minute[hour.start : hour.end], default=0) for hour in outlook.hours]
    limit = max(MIN_PILE_UP_JOBS, FAR * median(most))
    return {nth for nth, jobs in enumerate(most) if jobs >= limit}


def _runs(days: Sequence[Sequence[Cell]], outlook: Forecast) -> list[tuple[int, str, str]]:
    """Return how many runs start on each day, a mark if these are far more or fewer than usual, and
    both in words. The current day is not compared.
    """
    numbers = [
        sum(outlook.jobs_by_minute[cells[0].hour.start : cells[-1].hour.end]) for cells in days
    ]
    usual, runs = median(numbers[1:] or numbers), []
    for number, cells in zip(numbers, days, strict=True):
        mark, text = "", count(number, "run")
        if abs(number - usual) >= MIN_PILE_UP_JOBS and not cells[0].is_past:
            mark = "▲" if number >= FAR * usual else "▼" if number * FAR <= usual else ""
        runs.append((number, mark, f"{text}, {usual:,.0f} are usual" if mark else text))
    return runs


def _link(visit: Visit, outlook: Forecast, hour: Hour) -> str:
    query = {name: visit.text(name) for name in ("q", "span", "from", "tz")}
    return (
        visit.url("calendar", **query, at=rfc3339(outlook.span.instant(hour.start), "minutes"))
        + "#list"
    )


PAGE = Page("/calendar", "calendar.html", show)
