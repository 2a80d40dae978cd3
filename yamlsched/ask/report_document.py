"""The parts of a report in words. The strings are not escaped: each format does that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

from yamlsched import durations
from yamlsched.ask import edits, failures
from yamlsched.ask.queues import by_run, held_up_in_words
from yamlsched.ask.report import Report
from yamlsched.show.document import Document, Facts, Problems, Section, and_more
from yamlsched.show.terminal import count
from yamlsched.text import join_first, show_bytes, truncate
from yamlsched.timetable import times
from yamlsched.timetable.zones import zone_or_utc

MAX_PROBLEMS, MAX_GROUPS, MAX_SKIPPED, MAX_LATE, MAX_LONGEST, MAX_EDITS = 10, 8, 6, 5, 5, 5
"""Rows of each list, so that the report fits on one screen."""
MAX_TYPES = 4
DAYS_WITH_NAMES = timedelta(days=6)
"""In a longer span a weekday would not be enough: times have dates."""


def document(report: Report, screens: int = 1) -> Document:
    """Return the report in words, with lists as long as so many screens have room for."""
    most, number = MAX_PROBLEMS * screens, len(report.problems)
    listed = [(truncate(each.what, 300), each.remedy) for each in report.problems[:most]]
    problems = Problems(
        _verdict(report), not number, listed, and_more(number - most, _all_problems(report))
    )
    sections = [section for section in _sections(report, screens) if section.rows]
    return Document(
        f"yamlsched report: {report.namespace}",
        [problems, Facts(list(_facts(report))), *sections],
        _span(report),
    )


def _verdict(report: Report) -> str:
    number = len(report.problems)
    if number:
        return f"{count(number, 'problem')} {'needs' if number == 1 else 'need'} attention"
    if not report.jobs and report.is_empty:
        return "No jobs yet: yamlsched sync applies schedules.yaml"
    return "Nothing needs attention"


def _all_problems(report: Report) -> str:
    until = "" if report.is_current else f" --until {times.short_utc(report.until)}"
    return f"yamlsched report --format json --since {times.short_utc(report.since)}{until}"


def _span(report: Report) -> str:
    where = zone_or_utc(report.timezone)
    length = durations.approximate(report.until - report.since)
    since, until = (
        f"{at.astimezone(where):%a %Y-%m-%d %H:%M %Z}" for at in (report.since, report.until)
    )
    if report.clock or report.timezone == "UTC":
        return f"{since} to {until} ({length})"
    utc = f"{times.rfc3339(report.since, 'minutes')} to {times.rfc3339(report.until, 'minutes')}"
    return f"{since} to {until} ({length}; {utc})"


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    if report.ran["runs"]:
        yield "ran", _ran(report)
    elif report.is_empty:
        jobs = f"; {count(report.jobs, 'job')}" if report.jobs else ""
        yield "ran", f"nothing: no run ended or failed, and no slot was skipped{jobs}"
    else:
        yield "ran", "nothing: no run ended"
    dead: Counter[str] = Counter()
    for group in report.failures.groups:
        dead[group.error_type or failures.NO_TYPE] += group.dead
    if dead := +dead:
        types = [f"{name} {number:,}" for name, number in dead.most_common()]
        yield (
            "dead",
            (f"{dead.total():,}, by type of error: {join_first(types, MAX_TYPES)}"),
        )
    if report.skipped:
        by_reason: dict[str, int] = {}
        for gap in report.skipped:
            by_reason[gap.reason] = by_reason.get(gap.reason, 0) + gap.slots
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in by_reason.items())
        yield "skipped", f"{count(sum(by_reason.values()), 'slot')}: {reasons}"
    if report.in_doubt:
        waiting = Counter(effect.waits_for for effect in report.in_doubt)
        effects = count(waiting["person"], "effect")
        yield (
            "in doubt",
            f"{effects} for you to settle, {waiting['retry']} that the run's retry resolves",
        )
    if report.is_current:
        queue = report.queue
        yield (
            "now",
            (
                f"{queue['running']} running, {queue['queued']} queued, {queue['failed']} waiting"
                " to retry"
            ),
        )
        if report.held_up:
            waits = [held_up_in_words(held_up, report.now) for held_up in by_run(report.held_up)]
            yield "held up", join_first(waits, MAX_TYPES)
        if report.next_slot is not None:
            slot = report.next_slot
            yield "next slot", f"{slot.job_type}, {_time(report, slot.at, slot.timezone)}"


def _ran(report: Report) -> str:
    ran, more = report.ran, "+" if report.ran["is_bounded"] else ""
    retried = f" ({ran['retried']:,} after a retry)" if ran["retried"] else ""
    expired = f" ({ran['expired']:,} expired)" if ran["expired"] else ""
    parts = (
        (ran["succeeded"], f"{more} succeeded{retried}"),
        (ran["dead"], " died"),
        (ran["cancelled"], f" cancelled{expired}"),
    )
    runs = f"{ran['runs']:,}{more} {'run' if ran['runs'] == 1 else 'runs'}"
    ended = ", ".join(f"{number:,}{what}" for number, what in parts if number)
    return f"{runs} of {count(ran['jobs'], 'job')}: {ended}"


def _sections(report: Report, screens: int) -> Iterator[Section]:
    yield _failures(report, screens)
    yield Section(
        "Skipped slots",
        ("slots", "job", "reason", "from", "to"),
        [
            (
                f"{gap.slots:,}",
                gap.job_type,
                f"{gap.reason}: {gap.why}",
                _time(report, gap.first_at, gap.timezone),
                _time(report, gap.last_at, gap.timezone),
            )
            for gap in report.skipped[: MAX_SKIPPED * screens]
        ],
        and_more(len(report.skipped) - MAX_SKIPPED * screens, _all_problems(report)),
    )
    for kind in ("started", "finished"):
        late = [job for job in report.late if job.kind == kind]
        yield Section(
            f"{kind.capitalize()} late",
            ("runs", "job", "latest", kind, "run"),
            [
                (
                    str(job.runs),
                    job.job_type,
                    durations.approximate(job.late_by),
                    _time(report, job.at, job.timezone) if job.at else "not by then",
                    str(job.run_id),
                )
                for job in late[: MAX_LATE * screens]
            ],
            and_more(len(late) - MAX_LATE * screens, _all_problems(report)),
        )
    yield Section(
        "Longest",
        ("took", "job", "ended", "run"),
        [
            (
                (
                    durations.approximate(run.took)
                    if run.took >= timedelta(seconds=10)
                    else durations.show(run.took)
                ),
                run.job_type,
                _time(report, run.ended_at, run.timezone) if run.ended_at else "still running",
                str(run.run_id),
            )
            for run in report.longest[: MAX_LONGEST * screens]
        ],
    )
    yield Section(
        "Most memory",
        ("memory", "a week ago", "job", "run"),
        [
            (show_bytes(run.peak), _growth(run.week_ago, run.peak), run.job_type, str(run.run_id))
            for run in report.largest[: MAX_LONGEST * screens]
        ],
    )
    yield Section(
        "Edits applied",
        ("applied", "jobs", "edit"),
        [
            (
                _time(report, edit.applied_at, report.timezone),
                edits.counts(edit.jobs),
                edits.label(edit),
            )
            for edit in report.edits[: MAX_EDITS * screens]
        ],
        and_more(
            len(report.edits) - MAX_EDITS * screens,
            f"yamlsched log --since {times.short_utc(report.since)}",
        ),
    )


def _growth(before: int | None, now: int) -> str:
    return (
        "-" if before is None else f"{show_bytes(before)} ({100 * (now - before) / before:+.0f} %)"
    )


def _failures(report: Report, screens: int) -> Section:
    groups, most = report.failures.groups, MAX_GROUPS * screens
    command = f"yamlsched runs --group-by error_type --since {times.short_utc(report.since)}"
    return failures.section(
        report.failures,
        groups[:most],
        partial(_time, report),
        "Failures",
        and_more(len(groups) - most, command),
    )


def _time(report: Report, at: datetime, timezone: str) -> str:
    """Return an instant on the clock of the report; else on that of a job and in UTC: ``Sun 02:13
    CET (01:13Z)``.
    """
    form = "%a %H:%M" if report.now - min(report.since, at) <= DAYS_WITH_NAMES else "%Y-%m-%d %H:%M"
    local = f"{at.astimezone(zone_or_utc(report.clock or timezone)):{form} %Z}"
    return local if report.clock or timezone == "UTC" else f"{local} ({at:%H:%MZ})"
