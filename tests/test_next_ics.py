"""The coming slots as a calendar file, read with the library icalendar."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icalendar import Calendar

from support.command_line import Cli, CommandResult, command_line
from yamlsched.cli import _ics
from yamlsched.schedule.job import Job
from yamlsched.timetable.cron import parse_cron
from yamlsched.timetable.upcoming import ScheduledJob, Upcoming, merge

FILE = """
version: 1
namespace: shop
timezone: Europe/Berlin
calendars: {freeze: {dates: [2026-03-30]}}
jobs:
  cleanup:
    description: "Delete old; sessions, files\\nand C:\\\\temp"
    cron: "30 2 * * *"
    command: [x]
    skip_on: [freeze]
  refresh: {cron: "0 6 * * 1", timezone: UTC, command: [x]}
  ended: {cron: "0 6 * * *", ends_on: 2026-01-01, command: [x]}
"""
NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
START = "2026-03-28T12:00Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "schedules.yaml").write_text(FILE)
    return tmp_path


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return command_line("", monkeypatch, capsys, folder)


def ics(cli: Cli, *arguments: str) -> CommandResult:
    return cli("next", "--format", "ics", "--from", START, *arguments)


def events(content: str | bytes) -> list[dict[str, object]]:
    """Return the events as icalendar reads them, which must find nothing wrong."""
    calendar = Calendar.from_ical(content)
    assert not calendar.errors
    found = list(calendar.walk("VEVENT"))
    assert not [event.errors for event in found if event.errors]
    return [{name: getattr(value, "dt", value) for name, value in event.items()} for event in found]


def slots(name: str, number: int) -> Iterator[Upcoming]:
    found = merge([ScheduledJob(name, parse_cron("*/10 * * * *"), "UTC")], NOW)
    return (next(found) for _ in range(number))


def test_slots_are_events_in_utc_without_those_that_a_calendar_skips(cli: Cli) -> None:
    result = ics(cli, "-n", "3")

    assert result.code == 0
    found = events(result.out)
    assert [(event["SUMMARY"], event["DTSTART"]) for event in found] == [
        (
            "cleanup",
            datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
        ),  # 02:30 is skipped by the clocks: 03:00, summer time
        ("refresh", datetime(2026, 3, 30, 6, 0, tzinfo=UTC)),
        ("cleanup", datetime(2026, 3, 31, 0, 30, tzinfo=UTC)),
    ]
    [first, *_] = found
    description = str(first["DESCRIPTION"]).splitlines()
    assert description[:2] == ["Delete old; sessions, files", "and C:\\temp"]
    assert description[-1] == "key cleanup:2026-03-29"
    assert "02:30" in description[2], "the note about the clock change"


def test_off_weeks_have_no_events(folder: Path, cli: Cli) -> None:
    job = "{cron: '0 9 * * mon', every: 2w, starts_on: 2026-03-23, command: [x]}"
    (folder / "schedules.yaml").write_text(f"version: 1\njobs:\n  payroll: {job}\n")

    found = events(ics(cli, "-n", "2").out)

    assert [event["DTSTART"].date() for event in found] == [date(2026, 4, 6), date(2026, 4, 20)]  # type: ignore[attr-defined]


def test_a_second_export_updates_the_events_of_the_first(cli: Cli) -> None:
    first, second = events(ics(cli, "-n", "3").out), events(ics(cli, "-n", "3").out)

    assert [event["UID"] for event in first] == [event["UID"] for event in second]
    assert len({event["UID"] for event in first}) == 3
    assert first[0]["UID"] == "cleanup-20260329T010000Z@shop.yamlsched"
    assert all(event["DTSTAMP"] for event in second)


def test_namespaces_do_not_update_each_others_events(cli: Cli) -> None:
    [one] = events(ics(cli, "-n", "1").out)
    [other] = events(ics(cli, "-n", "1", "--namespace", "host_7").out)

    assert one["UID"] != other["UID"]


def test_an_expression_needs_no_file(folder: Path, cli: Cli) -> None:
    (folder / "schedules.yaml").unlink()
    [event] = events(ics(cli, "--cron", "0 2 * * *", "--timezone", "Asia/Kolkata", "-n", "1").out)

    assert event["DTSTART"] == datetime(2026, 3, 28, 20, 30, tzinfo=UTC)


def test_days_has_all_slots_of_the_days(cli: Cli) -> None:
    assert len(events(ics(cli, "--days", "9").out)) == 10


def test_no_slots_are_an_error_because_a_calendar_file_has_an_event(cli: Cli) -> None:
    result = ics(cli, "ended")

    assert (result.code, result.out) == (1, "")
    assert "no slots" in result.err


def test_an_invalid_job_leaves_the_others_and_exits_1(folder: Path, cli: Cli) -> None:
    (folder / "schedules.yaml").write_text(FILE + '  broken: {cron: "0 6 * * *"}\n')

    result = ics(cli, "-n", "3")

    assert (result.code, len(events(result.out))) == (1, 3)


def test_what_is_printed_has_the_line_ends_of_the_format_in_any_locale(
    folder: Path,
) -> None:
    text = FILE.replace("Delete old", "Lösche alte")
    (folder / "schedules.yaml").write_text(text, "utf-8")
    command = [sys.executable, "-m", "yamlsched", "next", "cleanup", "-n", "1", "--format", "ics"]

    out = subprocess.run(
        command, cwd=folder, env={"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    ).stdout

    assert "DESCRIPTION:Lösche alte\\; sessions".encode() in out
    assert out.count(b"\n") == out.count(b"\r\n") == len(out.split(b"\r\n")) - 1


def test_no_other_verb_has_the_format(cli: Cli) -> None:
    assert cli("--format", "ics", "validate").code == 2


@given(description=st.text(max_size=300), number=st.integers(1, 3))
def test_any_text_gives_lines_of_75_octets_and_reads_back(description: str, number: int) -> None:
    content = _ics.calendar(
        slots("tidy_up", number),
        {"tidy_up": Job("tidy_up", description=description)},
        "default",
        NOW,
    )

    assert content.endswith(b"END:VCALENDAR\r\n")
    lines = content.split(b"\r\n")
    assert all(len(line) <= _ics.MAX_LINE_OCTETS for line in lines)
    for line in lines:
        line.decode()  # no line ends within a character
    assert not re.search(rb"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)", content)
    found = events(content)
    assert [event["SUMMARY"] for event in found] == ["tidy_up"] * number
    if description.isprintable():
        assert str(found[0]["DESCRIPTION"]).startswith(description)


@pytest.mark.parametrize(
    "description",
    [
        "END:VEVENT\r\nEND:VCALENDAR\r\nBEGIN:VCALENDAR",
        "x\nBEGIN:VALARM\nACTION:AUDIO\nEND:VALARM",
        "\x00\x07\u2028\u0085\ud800 \u202edelivery",
        "ß" * 200,
        "\U0001f4a3" * 100,
        "\\n\\;\\,",
    ],
)
def test_hostile_text_stays_a_description(description: str) -> None:
    content = _ics.calendar(
        slots("tidy_up", 2), {"tidy_up": Job("tidy_up", description=description)}, "default", NOW
    )

    assert len(events(content)) == 2
    assert content.count(b"BEGIN:VCALENDAR\r\n") == 1
    assert b"\r\nBEGIN:VALARM" not in content
