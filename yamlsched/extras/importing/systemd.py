"""systemd timers and the services that they start."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from yamlsched import durations
from yamlsched.extras.importing.calendar import SYSTEMD, OnCalendar
from yamlsched.extras.importing.expression import cron_expression, fields_of, interval, number_of
from yamlsched.extras.importing.model import (
    Imported,
    Origin,
    Place,
    Refusal,
    cron_keys,
    known_zone,
    shown,
)
from yamlsched.timetable.cron_fields import DAY_OF_MONTH, DAY_OF_WEEK, FIELDS

ALIASES = {
    "minutely": "*:*",
    "hourly": "*:00",
    "daily": "00:00",
    "weekly": "Mon",
    "monthly": "*-*-01",
    "quarterly": "*-01,04,07,10-01",
    "semiannually": "*-01,07-01",
    "yearly": "*-01-01",
    "annually": "*-01-01",
}
WEEKDAY = FIELDS[DAY_OF_WEEK]
RULES = (*FIELDS[:DAY_OF_WEEK], replace(WEEKDAY, low=1, names={**WEEKDAY.names, "sun": 7}))
LONG_WEEKDAY = re.compile(r"(?i)(mon|tue|wed|thu|fri|sat|sun)[a-z]*")
SPAN = re.compile(r"\s*(\d{1,9})\s*([A-Za-z]*)")
UNITS = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400),
    **dict.fromkeys(("M", "month", "months"), 2_630_016),
    **dict.fromkeys(("y", "year", "years"), 31_557_600),
}
MAX_SPREAD, MAX_TIMEOUT = timedelta(hours=24), timedelta(days=365)
REPEATED = ("OnUnitActiveSec", "OnUnitInactiveSec")
HARMLESS = {
    "Description",
    "Documentation",
    "DefaultDependencies",
    "WantedBy",
    "Alias",
    "Also",
    "Unit",
    "Type",
    "RemainAfterExit",
    "RemainAfterElapse",
    "SyslogIdentifier",
    "StandardOutput",
    "StandardError",
    "AccuracySec",
    "FixedRandomDelay",
}
"""Settings without which a run means the same. Every other one that is not read is reported."""
EVALUATED = re.compile(r"\A~|%[^%]|\\[abfnrtvsxuU0-7]|\$[\w{]")
TRUE = ("1", "yes", "true", "on", "y", "t")
Settings = dict[str, list[tuple[int, str]]]
"""Of a section, by key: the lines and values, in order."""
Unit = dict[str, Settings]
"""By section: systemd ignores a setting in the section of others."""


def read(sources: Iterable[Origin], batch: Imported) -> None:
    """Add the jobs of all timers, with the commands of the services among the sources."""
    units = {PurePath(source.file).name: (source, _parse(source.text)) for source in sources}
    timers = [name for name in units if name.endswith(".timer")]
    if not timers:
        for source, _ in units.values():
            Place(batch, source).refused("no .timer unit among the files")
    for name in timers:
        source, timer = units[name]
        place = Place(batch, source, label=f"{name}: ")
        with place.reporting():
            _timer(place, name, timer, units)


def _parse(text: str) -> Unit:
    """Return the settings of a unit file. An empty assignment resets a list, and a backslash
    continues a line.

    Comments between the lines of a setting are not part of it.
    """
    unit: Unit = defaultdict(lambda: defaultdict(list))
    begun, line, section = 0, "", ""
    for number, raw in enumerate(f"{text}\n".split("\n"), 1):
        part = raw.strip()
        if part[:1] in ("#", ";") or not (line or part):
            continue
        if not line and part[0] == "[":
            section = part.strip("[]")
            continue
        begun = begun if line else number
        line += part
        if line.endswith("\\"):
            line = line[:-1] + " "
            continue
        key, equals, value = map(str.strip, line.partition("="))
        line = ""
        if equals and value:
            unit[section][key].append((begun, value))
        elif equals:
            unit[section][key].clear()
    return unit


def _last(settings: Settings, key: str) -> str:
    """Return the last value of a setting, which then counts as read."""
    return settings.pop(key, [(0, "")])[-1][1]


def _timer(place: Place, name: str, unit: Unit, units: dict[str, tuple[Origin, Unit]]) -> None:
    timer = dict(unit.get("Timer", {}))
    service_name = _last(timer, "Unit") or name.removesuffix(".timer") + ".service"
    if "@" in name or "@" in service_name:
        raise Refusal(
            "template units are not supported: write the timer and its service without @ for each"
            " instance"
        )
    if service_name not in units:
        raise Refusal(f"its service {shown(service_name)} is not among the files: pass it too")
    schedules: list[tuple[int, str, str, OnCalendar]] = []
    has_calendar = "OnCalendar" in timer
    if not has_calendar and not any(key in timer for key in REPEATED):
        raise Refusal("it has no OnCalendar, and there is no start at boot")
    for key in ("OnCalendar", *REPEATED):
        for line, text in timer.pop(key, []):
            with place.at(line, f"{name}: {key}={shown(text)}: ").reporting():
                if key == "OnCalendar":
                    schedule = _calendar(text, place.source.zone)
                else:
                    schedule = interval(_span(text))
                    place.at(line).changed(
                        f"{key} counts from the last run; here it is counted from midnight UTC"
                    )
                schedules.append((line, f"{key}={text}", *schedule))
    if not schedules:
        return
    service_source, service = units[service_name]
    of_service = Place(place.batch, service_source, label=f"{service_name}: ")
    keys = _timer_keys(place, timer, has_calendar) | _service_keys(
        of_service, service_name, service
    )
    _report_others(place, {**unit, "Timer": timer})
    lines, texts, written, times = zip(*schedules, strict=True)
    if len({calendar.zone for calendar in times}) > 1:
        raise Refusal("its schedules have several time zones: write a timer for each", lines[0])
    job = {**cron_keys(written), **keys}
    place.at(lines[0]).add(name.removesuffix(".timer"), "; ".join(texts), job, *times)


def _timer_keys(place: Place, timer: Settings, has_calendar: bool) -> dict[str, Any]:
    # a timer that elapses while its service runs does nothing
    keys: dict[str, Any] = {"overlap": "skip"}
    if _last(timer, "Persistent").lower() in TRUE and has_calendar:
        keys["catchup"] = "latest"
    for line, text in timer.pop("RandomizedDelaySec", [])[-1:]:
        delay = _span(text)
        if delay is None:
            place.at(line).dropped(f"RandomizedDelaySec={shown(text)} is not a time span")
        elif delay:
            keys["spread"] = durations.show(min(delay, MAX_SPREAD))
            place.at(line).changed(
                f"RandomizedDelaySec becomes spread: {keys['spread']}, the same delay each time"
            )
    return keys


def _report_others(place: Place, unit: Unit) -> None:
    """Report the settings that were not read."""
    for name, settings in unit.items():
        for key in settings.keys() - HARMLESS:
            for line, text in settings[key]:
                # to wait for a target such as network-online.target means nothing after the start
                # of the host
                if key not in ("After", "Before", "Wants") or not all(
                    word.endswith(".target") for word in text.split()
                ):
                    place.at(line).dropped(f"[{name}] {key}={shown(text)}")


def _exit_codes(place: Place, service: Settings) -> list[int]:
    """Return the numbers that count as success besides 0."""
    codes: set[int] = set()
    for line, text in service.pop("SuccessExitStatus", []):
        for word in text.split():
            if word.isdecimal() and len(word) < 4 and int(word) < 256:
                codes.add(int(word))
            else:
                place.at(line).dropped(f"SuccessExitStatus={shown(word)}")
    return sorted(codes)


def _service_keys(place: Place, name: str, unit: Unit) -> dict[str, Any]:
    service = dict(unit.get("Service", {}))
    keys: dict[str, Any] = {"command": _command(place, name, service)}
    env: dict[str, str] = {}
    for line, text in service.pop("Environment", []):
        pairs = [word.partition("=") for word in _words(_plain(name, f"Environment={text}")[12:])]
        if not pairs or not all(equals for _, equals, _ in pairs):
            place.at(line).dropped(f"Environment={shown(text)} is not a list of assignments")
        else:
            env |= {variable: value for variable, _, value in pairs}
    if env:
        keys["env"] = env
    if folder := _last(service, "WorkingDirectory").lstrip("-"):
        keys["cwd"] = _plain(name, folder)
    is_oneshot = _last(service, "Type") == "oneshot"
    for line, text in service.pop("TimeoutStartSec" if is_oneshot else "RuntimeMaxSec", [])[-1:]:
        if limit := _span(text):
            keys["timeout"] = durations.show(min(limit, MAX_TIMEOUT))
        elif limit is None and text != "infinity":
            place.at(line).dropped(f"the timeout {shown(text)} is not a time span")
    for key in ("User", "Group"):
        for line, text in service.pop(key, [])[-1:]:
            message = f"{key}={shown(text)}: the command runs as the user of yamlsched tick"
            place.at(line).changed(f"{message}: run a tick as that user, with a file of its own")
    if codes := _exit_codes(place, service):
        keys["exit_codes"] = {"success": sorted({0, *codes})}
    _report_others(place, {**unit, "Service": service})
    return keys


def _plain(name: str, text: str) -> str:
    """Return the string of a setting. Raises Refusal for what only systemd can evaluate."""
    if EVALUATED.search(text.replace("%%", "").replace("$$", "")):
        raise Refusal(
            f"{name}: {shown(text)} uses specifiers (%h), variables or escapes of systemd: write"
            " them out"
        )
    return text.replace("%%", "%")


def _command(place: Place, name: str, service: Settings) -> list[str]:
    """Return the command line; several are joined by a shell, as systemd runs one
    after the other.
    """
    if not service.get("ExecStart"):
        raise Refusal(f"{name} has no ExecStart")
    keys = ("ExecStartPre", "ExecStart", "ExecStartPost")
    lines = [row for key in keys for row in service.pop(key, [])]
    commands: list[list[str]] = []
    parts: list[str] = []
    for line, text in lines:
        stripped = text.lstrip("-")
        words = _words(_plain(name, stripped).replace("$$", "$"))
        if not words or ";" in words or words[0][0] in "@+!:|":
            raise Refusal(
                f"{name}: {shown(text)} is not one plain command: write it without the prefixes and"
                " separators of systemd"
            )
        commands.append(words)
        parts.append(shlex.join(words))
        if stripped != text:
            place.at(line).changed(
                f"a failure of {shown(words[0])} is ignored by || true in a shell"
            )
            parts[-1] = f"{{ {parts[-1]} || true; }}"
    if parts == [shlex.join(commands[0])]:
        return commands[0]
    if len(parts) > 1:
        place.at(lines[0][0]).changed(f"its {len(parts)} commands are joined by && in a shell")
    return ["/bin/sh", "-c", " && ".join(parts)]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _span(text: str) -> timedelta | None:
    """Return a time span of systemd, such as ``1h 30min``; None for infinity and what is not a time
    span.
    """
    total, end = 0, 0
    while match := SPAN.match(text, end):
        unit = match[2] if match[2] in UNITS else match[2].lower()
        if unit not in UNITS:
            return None
        total, end = total + int(match[1]) * UNITS[unit], match.end()
    try:
        return timedelta(seconds=total) if end and not text[end:].strip() else None
    except OverflowError:
        return None


def _calendar(text: str, default_zone: str) -> tuple[str, OnCalendar]:
    """Return the cron expression of a calendar event, and its fire times. Raises Refusal."""
    words = text.split()
    zone_name = default_zone
    if len(words) > 1 and re.match(r"[A-Za-z]", words[-1]) and words[-1].lower() not in ALIASES:
        zone_name = words.pop()
    if len(words) == 1 and words[0].lower() in ALIASES:
        words = ALIASES[words[0].lower()].split()
    weekday = words.pop(0) if words and words[0][0].isalpha() else "*"
    date = words.pop(0) if words and re.search("[-~]", words[0]) else "*-*-*"
    clock = words.pop(0) if words else "00:00"
    date, is_back, last = date.partition("~")
    if words or clock.startswith("@"):
        raise Refusal("it has no cron expression")
    parts = [*date.split("-"), *(["*"] if is_back else [])]
    year, month, day = ["*", *parts][-3:] if len(parts) in (2, 3) else ["?"] * 3
    if year != "*":
        raise Refusal("a year has no field in cron")
    times = clock.split(":")
    if len(times) == 3 and times[2].strip("0."):
        raise Refusal("it fires at seconds, which cron does not have")
    if len(times) not in (2, 3):
        raise Refusal("it has no cron expression")
    weekday = LONG_WEEKDAY.sub(lambda name: name[1].lower(), weekday)
    fields = fields_of([_ranges(part) for part in (times[1], times[0], day, month, weekday)], RULES)
    if is_back:
        fields = fields._replace(days=_days_from_the_end(last))
    calendar = OnCalendar(fields, known_zone(zone_name), SYSTEMD)
    return cron_expression(calendar), calendar


def _days_from_the_end(text: str) -> frozenset[int]:
    """Return the days of ``~03``, the third last, or ``~07/1``, the last seven. Raises Refusal."""
    number, slash, step = text.partition("/")
    first = number_of(number, FIELDS[DAY_OF_MONTH])
    if slash and step.strip("0") != "1":
        raise Refusal("it has no cron expression")
    return frozenset(range(-first, 0 if slash else 1 - first))


def _ranges(text: str) -> str:
    """Return ``text`` with the ranges of cron. Raises Refusal for what cron's syntax has and
    systemd's does not.
    """
    if re.search(r"\*/|/\*", text):
        raise Refusal(f"{shown(text)} is not valid in systemd: write 0/5 for every five")
    return text.replace("..", "-")
