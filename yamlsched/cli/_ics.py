"""Slots as a calendar file (RFC 5545), for ``yamlsched next --format ics``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from yamlsched.schedule.job import Job
from yamlsched.text import escape_control
from yamlsched.timetable.upcoming import Upcoming

MAX_LINE_OCTETS = 75


def calendar(
    slots: Iterable[Upcoming], jobs: Mapping[str, Job], namespace: str, now: datetime
) -> bytes:
    """Return an event for each slot; ``jobs``, as far as they are known, have descriptions.

    A calendar that has the file already updates its events: the UID of a slot is always the same.
    """
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//yamlsched//next//EN"]
    for slot in slots:
        description = jobs[slot.job_type].description if slot.job_type in jobs else ""
        about = "\n".join(filter(None, (description, slot.note, f"key {slot.key}")))
        lines += [
            "BEGIN:VEVENT",
            f"UID:{_text(slot.job_type)}-{_instant(slot.scheduled_for)}@{namespace}.yamlsched",
            f"DTSTAMP:{_instant(now)}",
            f"DTSTART:{_instant(slot.scheduled_for)}",
            f"SUMMARY:{_text(slot.job_type)}",
            f"DESCRIPTION:{_text(about)}",
            "TRANSP:TRANSPARENT",
            "END:VEVENT",
        ]
    return b"".join(
        octets for line in [*lines, "END:VCALENDAR"] for octets in _folded(line.encode())
    )


def _instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _text(value: str) -> str:
    r"""Return a value of type TEXT: line breaks as ``\n``, other control characters visible."""
    lines = (escape_control(line).replace("\\", "\\\\") for line in value.splitlines())
    return "\\n".join(lines).replace(";", "\\;").replace(",", "\\,")


def _folded(line: bytes) -> Iterator[bytes]:
    """Yield ``line`` in pieces of at most ``MAX_LINE_OCTETS``; none ends within a character."""
    start, size = 0, MAX_LINE_OCTETS
    while start < len(line):
        end = start + size
        while end < len(line) and line[end] & 0xC0 == 0x80:
            end -= 1
        yield (b" " if start else b"") + line[start:end] + b"\r\n"
        start, size = end, MAX_LINE_OCTETS - 1
