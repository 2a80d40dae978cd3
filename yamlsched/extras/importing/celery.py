"""Celery beat: a ``beat_schedule`` in Python source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from yamlsched import durations
from yamlsched.extras.importing import python_source
from yamlsched.extras.importing.calendar import EVERY_MATCH, OnCalendar
from yamlsched.extras.importing.expression import (
    SUNDAY_IS_0,
    cron_expression,
    fields_of,
    interval,
)
from yamlsched.extras.importing.model import Place, Refusal, known_zone, shown
from yamlsched.extras.importing.python_source import Call, last_name

ARGUMENTS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
SCHEDULES = ("beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE")
PERIODIC = "add_periodic_task"
TIMEZONES = ("timezone", "CELERY_TIMEZONE")
READ_METHODS = ("get", "items", "keys", "values", "copy")
READ_OR_HARMLESS = {
    "task",
    "schedule",
    "args",
    "kwargs",
    "options",
    "enabled",
    "description",
    "expire_seconds",
    "name",
    "crontab",
    "interval",
    "last_run_at",
    "total_run_count",
    "date_changed",
}
"""Keys of an entry that are imported or reported one by one, or mean nothing for a job. Every other
one is reported.
"""
MAX_WINDOW = timedelta(days=365)
LONG_NAMES = re.compile(r"([a-z]{3})[a-z]+", re.IGNORECASE)
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
HANDLERS = (
    "the tasks become handlers, which the worker calls itself, without Celery's broker: check that"
    " each is the path of its function, that no task uses self.request or .delay, and that"
    " importing it configures what it needs"
)
COUNTS_FROM = (
    "its interval of {} is counted from midnight UTC here, from the start of beat in Celery"
)


def read(whole: Place) -> None:
    """Add the jobs of a beat_schedule."""
    tree = python_source.parse(whole.source)
    whole = replace(whole, source=replace(whole.source, zone=_time_zone(whole, tree)))
    schedules = sorted(_schedules(tree), key=lambda node: node.lineno)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    periodic = [call for call in calls if last_name(call.func) == PERIODIC]
    if not schedules and not periodic:
        raise Refusal("no beat_schedule found")
    for call in periodic:
        whole.at(call.lineno).refused(
            f"{python_source.written(call)}: write it as an entry of beat_schedule"
        )
    for schedule in schedules:
        if not isinstance(schedule, ast.Dict):
            written = python_source.written(schedule)
            whole.at(schedule.lineno).refused(f"beat_schedule is {written}: write it as a dict")
            continue
        for key, node in zip(schedule.keys, schedule.values, strict=True):
            label = str(key.value) if isinstance(key, ast.Constant) else python_source.written(key)
            line = key.lineno if key is not None else node.lineno
            place = whole.at(line, f"{shown(label)}: ")
            with place.reporting():
                _entry(place, label, python_source.value(node))


def _time_zone(whole: Place, tree: ast.Module) -> str:
    """Return the time zone of the file, or that of the import. Raises Refusal if only execution
    gives it.
    """
    assigned = list(python_source.assignments(tree))
    zones: dict[str, int] = {}
    for name, node in assigned:
        if name in TIMEZONES:
            zone_name = python_source.constant(assigned, node)
            if zone_name is None:
                continue
            if not isinstance(zone_name, str):
                written = python_source.written(node)
                reason = f"its time zone {written} is not a constant, and nothing is executed"
                raise Refusal(
                    f'{reason}: write its name, such as "Europe/Berlin", and import again',
                    node.lineno,
                )
            zones.setdefault(zone_name, node.lineno)
    if len(zones) > 1:
        raise Refusal(
            f"it has several time zones, {' and '.join(zones)}: pass a file for each",
            max(zones.values()),
        )
    if zones:
        return known_zone(next(iter(zones))).key
    whole.changed(
        f"it sets no {' or '.join(TIMEZONES)}: {whole.source.zone} is used. Pass --timezone if"
        " Celery uses another one (enable_utc, TIME_ZONE, another file)"
    )
    return whole.source.zone


def _schedules(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """Yield each dict of entries that is assigned or added to a beat_schedule, and what cannot be
    read as one.
    """
    yield from (node for name, node in python_source.assignments(tree) if name in SCHEDULES)
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(target=owner, value=value) if last_name(owner) in SCHEDULES:
                yield value
            case ast.Subscript(value=owner, ctx=ast.Store()) if last_name(owner) in SCHEDULES:
                yield node
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if (
                last_name(owner) in SCHEDULES and method not in READ_METHODS
            ):
                is_update = method == "update" and not node.keywords
                yield from node.args if is_update else [node]


def _entry(place: Place, name: str, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise Refusal("its entry is not a dict")
    schedule = entry.get("schedule")
    match schedule:
        case Call(name="crontab", args=args, kwargs=kwargs):
            written, times = crontab(
                dict(zip(ARGUMENTS, args, strict=False)) | kwargs, place.source.zone
            )
            add_job(place, name, written, times, entry)
        case Call(name="timedelta", args=args, kwargs=kwargs):
            add_interval(place, name, python_source.interval(kwargs, args), entry)
        case int() | float() if not isinstance(schedule, bool):
            add_interval(place, name, python_source.interval({"seconds": schedule}), entry)
        case _:
            name_or_value = getattr(schedule, "path", None) or getattr(schedule, "name", schedule)
            raise Refusal(
                f"its schedule {shown(name_or_value)} is not written as a crontab or an interval"
            )


def crontab(arguments: Mapping[str, Any], zone_name: str) -> tuple[str, OnCalendar]:
    """Return the fields of Celery's crontab as a cron expression, and its fire times."""
    if unknown := sorted(set(arguments) - set(FIELDS)):
        raise Refusal(f"crontab has the argument {unknown[0]}, which only execution can evaluate")
    parts = [_field(arguments.get(name, "*")) for name in FIELDS]
    fields = fields_of(parts, SUNDAY_IS_0, is_celery=True)
    calendar = OnCalendar(fields, known_zone(zone_name), EVERY_MATCH, is_vague=True)
    return cron_expression(calendar, parts), calendar


def _field(value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
        raise Refusal(f"{shown(value)} is not a field of a crontab")
    text = LONG_NAMES.sub(r"\1", ",".join("".join(str(item).split()) for item in items))
    if "," in text and "*" in text.split(","):
        return "*"
    return text


def add_interval(
    place: Place, name: str, every: timedelta | None, entry: Mapping[str, Any]
) -> None:
    written, times = interval(every)
    add_job(place, name, written, times, entry)
    place.changed(COUNTS_FROM.format(durations.show(every or timedelta(0))))


def add_job(
    place: Place, name: str, cron: str, times: OnCalendar, entry: Mapping[str, Any]
) -> None:
    task = entry.get("task")
    if not isinstance(task, str) or not DOTTED.fullmatch(task):
        what = f"the task {shown(getattr(task, 'path', task))}"
        raise Refusal(
            f"{what} is not the dotted path of a function: write the job with its handler"
        )
    keys = {
        "cron": cron,
        "handler": task,
        **python_source.payload(entry),
    }
    enabled, description, options = (
        entry.get("enabled", True),
        entry.get("description"),
        entry.get("options") or {},
    )
    if not isinstance(enabled, bool):
        raise Refusal(f"enabled is {shown(getattr(enabled, 'path', enabled))}: write True or False")
    if not enabled:
        keys["enabled"] = False
    if isinstance(description, str) and description.strip():
        keys["description"] = " ".join(description.split())
    elif description:
        place.dropped("its description is not a constant")
    if place.source.is_faithful:
        keys["catchup"] = "latest"  # beat starts what was due while it was down, once
    if not isinstance(options, dict):
        place.dropped(
            f"its options {shown(getattr(options, 'path', options))} are not a dict of constants"
        )
        options = {}
    for option, value in sorted(options.items(), key=str):
        if option == "expires":
            _expires(place, option, value, keys)
        else:
            place.dropped(f"the option {shown(str(option))} of the task")
    if entry.get("expire_seconds") is not None:
        _expires(place, "expire_seconds", entry["expire_seconds"], keys)
    place.add(name, f"{name}: {task}", keys, times)
    for key in sorted(set(map(str, entry)) - READ_OR_HARMLESS):
        if entry.get(key) is not None and entry[key] is not False and entry[key] not in ("", "{}"):
            place.dropped(f"{shown(key)} has no counterpart")


def _expires(place: Place, option: str, value: Any, keys: dict[str, Any]) -> None:
    """Write what a task expires after as the window in which a missed slot is made up for."""
    every = (
        value.kwargs
        if isinstance(value, Call) and value.name == "timedelta"
        else {"seconds": value}
    )
    window = python_source.interval(every)
    if window is None or not timedelta(0) < window <= MAX_WINDOW:
        place.dropped(
            f"{option} of the task: write catchup_window, the age at which a missed slot is skipped"
        )
        return
    keys["catchup_window"] = durations.show(
        timedelta(seconds=max(60, round(window.total_seconds())))
    )
    written = f"{option} becomes catchup_window: {keys['catchup_window']}"
    place.changed(
        f"{written}: an older slot is skipped, but a run never expires while it waits for a worker"
    )
