"""systemd timers and the services that they start."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from yamlsched import durations
from yamlsched.extras.importing.calendar import SYSTEMD, OnCalendar
from yamlsched.extras.importing.expression import (
    CRON_RULES,
    WEEKDAYS,
    FieldRange,
    cron_expression,
    fields_of,
    interval,
)
from yamlsched.extras.importing.model import (
    FAITHFUL,
    AnyOf,
    FireTimes,
    Imported,
    Origin,
    Place,
    Refusal,
    cron_keys,
    known_zone,
    shown,
)
from yamlsched.timetable.zones import zone

ALIASES = {
    "minutely": "*:*",
    "hourly": "*:00",
    "daily": "00:00",
    "weekly": "Mon",
    "monthly": "*-*-01",
}
ALIASES |= {
    "quarterly": "*-01,04,07,10-01",
    "semiannually": "*-01,07-01",
    "yearly": "*-01-01",
    "annually": "*-01-01",
}
RULES = (
    *CRON_RULES[:3],
    FieldRange("month", 1, 12),
    FieldRange("weekday", 1, 7, {**WEEKDAYS, "sun": 7}),
)
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
MAX_SPREAD, MAX_TIMEOUT, MINUTE = timedelta(hours=24), timedelta(days=365), timedelta(minutes=1)
REPEATED = ("OnUnitActiveSec", "OnUnitInactiveSec")
ONCE = ("OnActiveSec", "OnBootSec", "OnStartupSec")
HARMLESS = {
    *("Description", "Documentation", "DefaultDependencies", "WantedBy", "Alias", "Also"),
    *(
        "Type",
        "RemainAfterExit",
        "RemainAfterElapse",
        "SyslogIdentifier",
        "StandardOutput",
        "StandardError",
    ),
}
"""Settings without which a run means the same. Every other one that is not imported is reported."""
OF_TIMERS = {
    *("Unit", "OnCalendar", "Persistent", "RandomizedDelaySec", "FixedRandomDelay", "AccuracySec"),
    *("WakeSystem", "OnClockChange", "OnTimezoneChange", *REPEATED, *ONCE),
}
OF_SERVICES = {
    *(
        "ExecStart",
        "ExecStartPre",
        "ExecStartPost",
        "Environment",
        "WorkingDirectory",
        "User",
        "Group",
    ),
    *("TimeoutStartSec", "RuntimeMaxSec", "SuccessExitStatus"),
}
SPECIFIER = re.compile(r"%(?!%)")
ESCAPE = re.compile(r"\\[abfnrtvsxuU0-7]")
TRUE = ("1", "yes", "true", "on", "y", "t")
Unit = dict[str, list[tuple[int, str]]]
"""By key: the lines and values, in order."""


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

    Comments between the lines of a setting are not part of it. systemd ignores a setting in the
    section of others: it has the section in its name here, and is reported.
    """
    settings: Unit = defaultdict(list)
    begun, line, section = 0, "", ""
    for number, raw in enumerate(f"{text}\n".split("\n"), 1):
        part = raw.strip()
        if not line and (not part or part[0] in "#;["):
            section = part if part[:1] == "[" else section
            continue
        if part[:1] in ("#", ";"):
            continue
        begun = begun if line else number
        line += part
        if line.endswith("\\"):
            line = line[:-1] + " "
            continue
        key, equals, value = map(str.strip, line.partition("="))
        line = ""
        expected = (
            "[Timer]"
            if key in OF_TIMERS
            else "[Service]"
            if key in (*OF_SERVICES, "Type")
            else section
        )
        key = key if section == expected else f"{section} {key}"
        if equals and value:
            settings[key].append((begun, value))
        elif equals:
            settings[key].clear()
    return settings


def _last(unit: Unit, key: str, default: str = "") -> str:
    values = unit.get(key)
    return values[-1][1] if values else default


def _timer(place: Place, name: str, timer: Unit, units: dict[str, tuple[Origin, Unit]]) -> None:
    service_name = _last(timer, "Unit", name.removesuffix(".timer") + ".service")
    if "@" in name or "@" in service_name:
        raise Refusal(
            "template units are not supported: write the timer and its service without @ for each"
            " instance"
        )
    if service_name not in units:
        raise Refusal(f"its service {shown(service_name)} is not among the files: pass it too")
    schedules: list[tuple[int, str, str, str, FireTimes]] = []
    for line, text in timer.get("OnCalendar", []):
        with place.at(line, f"{name}: OnCalendar={shown(text)}: ").reporting():
            schedules.append((line, f"OnCalendar={text}", *_calendar(text, place.source.zone)))
    for key in REPEATED:
        for line, text in timer.get(key, []):
            with place.at(line, f"{name}: {key}={shown(text)}: ").reporting():
                schedules.append((line, f"{key}={text}", "UTC", *interval(_span(text))))
                place.at(line).changed(
                    f"{key} counts from the last run; here it is counted from midnight UTC"
                )
    is_other = any(map(timer.get, ("OnCalendar", *REPEATED)))
    for key in ONCE:
        for line, text in timer.get(key, []):
            report = place.at(line).dropped if is_other else place.at(line).refused
            report(f"{key}={shown(text)}: there is no start at boot")
    if not schedules:
        if not any(map(timer.get, ("OnCalendar", *REPEATED, *ONCE))):
            raise Refusal("it has no OnCalendar")
        return
    service_source, service = units[service_name]
    of_service = Place(place.batch, service_source, label=f"{service_name}: ")
    keys = _timer_keys(place, timer) | _service_keys(of_service, service_name, service)
    zones = list(dict.fromkeys(zone_name for _, _, zone_name, _, _ in schedules))
    if len(zones) > 1:
        what = "its schedules in each time zone are a job: runs of different ones may overlap"
        place.at(schedules[0][0]).changed(what)
    for zone_name in zones:
        lines, texts, _, written, times = zip(
            *(row for row in schedules if row[2] == zone_name), strict=True
        )
        with place.at(lines[0]).reporting():
            job = {**cron_keys(written), "timezone": zone_name, **keys}
            place.at(lines[0]).add(name.removesuffix(".timer"), "; ".join(texts), job, AnyOf(times))


def _timer_keys(place: Place, timer: Unit) -> dict[str, Any]:
    keys: dict[str, Any] = dict(FAITHFUL) if place.source.is_faithful else {}
    keys["overlap"] = "skip"  # a timer that elapses while its service runs does nothing
    if _last(timer, "Persistent").lower() in TRUE and timer.get("OnCalendar"):
        keys["catchup"] = "latest"
    for line, text in timer.get("RandomizedDelaySec", [])[-1:]:
        delay = _span(text)
        if delay is None:
            place.at(line).dropped(f"RandomizedDelaySec={shown(text)} is not a time span")
            continue
        if delay > MAX_SPREAD:
            place.at(line).changed(
                f"RandomizedDelaySec={shown(text)} becomes spread: 24h, the longest"
            )
        if delay != timedelta(0):
            keys["spread"] = durations.show(min(delay, MAX_SPREAD))
            if _last(timer, "FixedRandomDelay").lower() not in TRUE:
                place.at(line).changed(
                    "RandomizedDelaySec becomes spread, which is the same delay each time"
                )
    for line, text in timer.get("AccuracySec", [])[-1:]:
        if (_span(text) or MINUTE) > MINUTE:
            place.at(line).changed(f"AccuracySec={shown(text)}: runs start within a minute")
    for key in ("WakeSystem", "OnClockChange", "OnTimezoneChange"):
        for line, text in timer.get(key, []):
            if text.lower() in TRUE:
                place.at(line).dropped(f"{key} has no counterpart")
    _report_others(place, timer, OF_TIMERS)
    return keys


def _report_others(place: Place, unit: Unit, known: set[str]) -> None:
    for key in unit.keys() - known - HARMLESS:
        for line, text in unit[key]:
            # to wait for a target such as network-online.target means nothing after the start of
            # the host
            if key not in ("After", "Before", "Wants") or not all(
                word.endswith(".target") for word in text.split()
            ):
                place.at(line).dropped(f"{key}={shown(text)}")


def _exit_codes(place: Place, unit: Unit) -> list[int]:
    """Return the codes that count as success besides 0; names are those of sysexits.h."""
    codes: set[int] = set()
    for line, text in unit.get("SuccessExitStatus", []):
        for word in text.split():
            code = int(word) if word.isdecimal() else getattr(os, f"EX_{word}", None)
            if code is None or code > 255:
                place.at(line).dropped(f"SuccessExitStatus={shown(word)}")
            else:
                codes.add(code)
    return sorted(codes)


def _service_keys(place: Place, name: str, unit: Unit) -> dict[str, Any]:
    keys: dict[str, Any] = {"command": _command(place, name, unit)}
    env: dict[str, str] = {}
    for line, text in unit.get("Environment", []):
        try:
            for word in shlex.split(text):
                variable, equals, value = word.partition("=")
                if not equals:
                    raise ValueError
                if SPECIFIER.search(value.replace("%%", "")) or ESCAPE.search(text):
                    setting = shown(f"Environment={text}")
                    raise Refusal(
                        f"{name}: {setting} uses specifiers (%h) or escapes of systemd: write"
                        " them out"
                    )
                env[variable] = value.replace("%%", "%")
        except ValueError as error:
            if isinstance(error, Refusal):
                raise
            place.at(line).dropped(f"Environment={shown(text)} is not a list of assignments")
    if env:
        keys["env"] = env
    if folder := _last(unit, "WorkingDirectory").lstrip("-"):
        if "%" in folder or folder == "~":
            raise Refusal(f"WorkingDirectory={shown(folder)} in {name}: write the path out")
        keys["cwd"] = folder
    is_oneshot = _last(unit, "Type") == "oneshot"
    for line, text in unit.get("TimeoutStartSec" if is_oneshot else "RuntimeMaxSec", [])[-1:]:
        if limit := _span(text):
            keys["timeout"] = durations.show(min(limit, MAX_TIMEOUT))
        elif limit is None and text != "infinity":
            place.at(line).dropped(f"the timeout {shown(text)} is not a time span")
    for key in ("User", "Group"):
        for line, text in unit.get(key, [])[-1:]:
            message = f"{key}={shown(text)}: the command runs as the user of yamlsched tick"
            place.at(line).changed(f"{message}: run a tick as that user, with a file of its own")
    if codes := _exit_codes(place, unit):
        keys["exit_codes"] = {"success": sorted({0, *codes})}
    _report_others(place, unit, OF_SERVICES)
    return keys


def _command(place: Place, name: str, unit: Unit) -> list[str]:
    """Return the command line; several are joined by a shell, as systemd runs one
    after the other.
    """
    lines = [
        *unit.get("ExecStartPre", []),
        *unit.get("ExecStart", []),
        *unit.get("ExecStartPost", []),
    ]
    if not unit.get("ExecStart"):
        raise Refusal(f"{name} has no ExecStart")
    commands = []
    for line, text in lines:
        if ESCAPE.search(text):
            raise Refusal(f"{name}: {shown(text)} uses escapes of systemd: write the characters")
        stripped = text.lstrip("-@+!:|")
        words, prefix = _words(stripped), text[: len(text) - len(stripped)]
        if not words or ";" in words:
            raise Refusal(f"{name}: {shown(text)} cannot be split into words")
        if any(character in prefix for character in "@:|"):
            raise Refusal(
                f"{name}: {shown(text)} has the prefix {shown(prefix)}: write the command"
                " without it"
            )
        if any(
            re.search(r"%[^%]|\$\w|\$\{", word.replace("%%", "").replace("$$", ""))
            for word in words
        ):
            raise Refusal(
                f"{name}: {shown(text)} uses specifiers (%h) or variables of systemd: write"
                " them out"
            )
        words = [word.replace("%%", "%").replace("$$", "$") for word in words]
        commands.append((words, "-" in prefix))
        if other := prefix.strip("-"):
            place.at(line).dropped(
                f"the prefix {other} of {shown(words[0])}, which changes its privileges"
            )
        if commands[-1][1]:
            place.at(line).changed(
                f"a failure of {shown(words[0])} is ignored by || true in a shell"
            )
    if len(commands) == 1 and not commands[0][1]:
        return commands[0][0]
    if len(commands) > 1:
        place.at(lines[0][0]).changed(f"its {len(commands)} commands are joined by && in a shell")
    parts = [(shlex.join(words), is_ignored) for words, is_ignored in commands]
    return [
        "/bin/sh",
        "-c",
        " && ".join(f"{{ {cmd} || true; }}" if is_ignored else cmd for cmd, is_ignored in parts),
    ]


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


def _calendar(text: str, default_zone: str) -> tuple[str, str, FireTimes]:
    """Return the time zone of a calendar event, its cron expression, and its fire times. Raises
    Refusal.
    """
    words = text.split()
    zone_name = default_zone
    if len(words) > 1 and re.match(r"[A-Za-z]", words[-1]) and words[-1].lower() not in ALIASES:
        zone_name = words.pop()
    if len(words) == 1 and words[0].lower() in ALIASES:
        words = ALIASES[words[0].lower()].split()
    weekday = words.pop(0) if words and words[0][0].isalpha() else "*"
    date = words.pop(0) if words and "-" in words[0] else "*-*-*"
    clock = words.pop(0) if words else "00:00"
    if words or "~" in date or clock.startswith("@"):
        raise Refusal("it has no cron expression")
    parts = date.split("-")
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
    calendar = OnCalendar(fields, zone(known_zone(zone_name)), SYSTEMD)
    return zone_name, cron_expression(calendar), calendar


def _ranges(text: str) -> str:
    """Return ``text`` with the ranges of cron. Raises Refusal for what cron's syntax has and
    systemd's does not.
    """
    if re.search(r"\*/|/\*", text):
        raise Refusal(f"{shown(text)} is not valid in systemd: write 0/5 for every five")
    return text.replace("..", "-")
