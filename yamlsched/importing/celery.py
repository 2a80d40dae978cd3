"""Celery beat: a ``beat_schedule`` in Python source, or django-celery-beat's ``dumpdata`` as JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from yamlsched import durations
from yamlsched.importing import python_source
from yamlsched.importing.calendar import EVERY_MATCH, Calendar
from yamlsched.importing.expression import (
    DAYS,
    HOURS,
    MINUTES,
    MONTHS,
    WEEKDAYS,
    Rule,
    cron_expression,
    fields_of,
    interval,
)
from yamlsched.importing.model import FAITHFUL, FireTimes, Imported, Refusal, Source, known_zone, shown
from yamlsched.importing.python_source import Call
from yamlsched.zones import zone

RULES = (MINUTES, HOURS, DAYS, Rule("month", 1, 12, MONTHS), Rule("day of week", 0, 6, WEEKDAYS))
ARGUMENTS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
SCHEDULES = ("beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE")
TIMEZONES = ("timezone", "CELERY_TIMEZONE")
PERIODIC = "add_periodic_task"
READS = ("get", "items", "keys", "values", "copy")
"""Methods of a beat_schedule that add nothing."""
PERIODS = ("days", "hours", "minutes", "seconds")
LONG_NAMES = re.compile(r"([a-z]{3})[a-z]+", re.IGNORECASE)
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
HANDLERS = (
    "the tasks become handlers, which the worker calls itself, without Celery's broker: check that each is the path of "
    "its function, that no task uses self.request or .delay, and that importing it configures what it needs"
)
COUNTS_FROM = "its interval of {} is counted from midnight UTC here, from the start of beat in Celery"


def read(source: Source, found: Imported) -> None:
    """Add the jobs of a beat_schedule or a dump."""
    before = len(found.jobs)
    if source.text.lstrip()[:1] in ("[", "{"):
        _read_dump(source, found)
    else:
        _read_python(source, found)
    if len(found.jobs) > before:
        found.changed(source, 0, HANDLERS)


def _read_python(source: Source, found: Imported) -> None:
    tree = python_source.parse(source)
    assigned = list(python_source.assignments(tree))
    for name, node in assigned:
        if name in TIMEZONES and isinstance(node, ast.Constant) and isinstance(node.value, str):
            source = replace(source, zone=node.value)
    schedules = [node for name, node in assigned if name in SCHEDULES]
    schedules += _added(found, source, tree)
    if not schedules and not found.notes:
        raise Refusal("no beat_schedule found")
    for schedule in schedules:
        if not isinstance(schedule, ast.Dict):
            found.refused(
                source, schedule.lineno, f"beat_schedule is {python_source.written(schedule)}: write it as a dict"
            )
            continue
        for key, node in zip(schedule.keys, schedule.values, strict=True):
            if key is None:
                found.refused(source, node.lineno, f"**{python_source.written(node)}: write its entries as a dict")
                continue
            label = str(key.value) if isinstance(key, ast.Constant) else python_source.written(key)
            try:
                _entry(found, source, key.lineno, label, python_source.value(node))
            except Refusal as error:
                found.refused(source, key.lineno, f"{shown(label)}: {error}")


def _added(found: Imported, source: Source, tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what is added to a beat_schedule after it was assigned: ``[...] =``, ``|=`` and ``update``.

    ``add_periodic_task`` is reported: its task is a signature, which only execution would give.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Subscript) and _is_schedule(target.value):
                        added = ast.Dict(keys=[target.slice], values=[value])
                        yield ast.copy_location(added, node)
            case ast.AugAssign(target=target, value=value) if _is_schedule(target):
                yield value
            case ast.Call(func=ast.Attribute(attr="update", value=called)) if _is_schedule(called):
                yield from node.args
                if node.keywords:
                    found.refused(source, node.lineno, f"{python_source.written(node)}: write its entries as a dict")
            case ast.Call(func=ast.Attribute(attr=method, value=called)) if method == PERIODIC or (
                _is_schedule(called) and method not in READS
            ):
                found.refused(source, node.lineno, f"{python_source.written(node)}: write the job by hand")


def _is_schedule(node: ast.expr) -> bool:
    """Return whether an expression names a beat_schedule: ``app.conf.beat_schedule``, ``conf["beat_schedule"]``."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in SCHEDULES
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name in SCHEDULES
    return False


def _entry(found: Imported, source: Source, line: int, name: str, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise Refusal("its entry is not a dict")
    schedule = entry.get("schedule")
    if isinstance(schedule, Call) and schedule.name == "schedule":  # celery.schedules.schedule(run_every)
        schedule = schedule.args[0] if schedule.args else schedule.kwargs.get("run_every")
    match schedule:
        case Call(name="crontab", args=args, kwargs=kwargs):
            written, times = _crontab(dict(zip(ARGUMENTS, args, strict=False)) | kwargs, source.zone)
            _job(found, source, line, name, written, times, entry)
        case Call(name="timedelta", args=args, kwargs=kwargs):
            _interval(found, source, line, name, python_source.interval(kwargs, args), entry)
        case int() | float() if not isinstance(schedule, bool):
            _interval(found, source, line, name, python_source.interval({"seconds": schedule}), entry)
        case Call(name="solar"):
            raise Refusal("a solar schedule follows the sun: write a time of day instead")
        case _:
            name_or_value = getattr(schedule, "path", None) or getattr(schedule, "name", schedule)
            raise Refusal(f"its schedule {shown(name_or_value)} is not written as a crontab or an interval")


def _crontab(arguments: Mapping[str, Any], zone_name: str) -> tuple[str, FireTimes]:
    """Return the fields of Celery's crontab as a cron expression, and its fire times."""
    if unknown := sorted(set(arguments) - set(FIELDS)):
        raise Refusal(f"crontab has the argument {unknown[0]}, which only execution can evaluate")
    parts = [_field(arguments.get(name, "*")) for name in FIELDS]
    fields = fields_of(parts, RULES, may_wrap=True)
    calendar = Calendar(fields, zone(known_zone(zone_name)), EVERY_MATCH, is_vague=True)
    return cron_expression(calendar, parts), calendar


def _field(given: Any) -> str:
    items = given if isinstance(given, list) else [given]
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
        raise Refusal(f"{shown(given)} is not a field of a crontab")
    text = LONG_NAMES.sub(r"\1", ",".join("".join(str(item).split()) for item in items))
    if "," in text and "*" in text.split(","):
        return "*"
    return text


def _interval(
    found: Imported, source: Source, line: int, name: str, every: timedelta | None, entry: Mapping[str, Any]
) -> None:
    written, times = interval(every)
    _job(found, replace(source, zone="UTC"), line, name, written, times, entry)
    found.changed(source, line, f"{shown(name)}: {COUNTS_FROM.format(durations.show(every or timedelta(0)))}")


def _job(
    found: Imported, source: Source, line: int, name: str, cron: str, times: FireTimes, entry: Mapping[str, Any]
) -> None:
    task = entry.get("task")
    if not isinstance(task, str) or not DOTTED.fullmatch(task):
        raise Refusal(f"the task {shown(task)} is not the dotted path of a function: write the job with its handler")
    if entry.get("args"):
        raise Refusal(f"it has positional arguments {shown(entry['args'])}: a payload has names, write them as kwargs")
    payload = entry.get("kwargs") or {}
    if not isinstance(payload, dict):
        raise Refusal(f"its kwargs {shown(payload)} are not a mapping")
    keys: dict[str, Any] = {"cron": cron, "timezone": source.zone, "handler": task}
    if payload:
        keys["payload"] = payload
    if entry.get("enabled") is False:
        keys["enabled"] = False
    if isinstance(entry.get("description"), str) and entry["description"].strip():
        keys["description"] = " ".join(entry["description"].split())
    if source.is_faithful:
        keys |= FAITHFUL | {"catchup": "latest"}  # beat starts what was due while it was down, once
    found.add(source, line, name, f"{name}: {task}", keys, times)
    options = entry.get("options")
    for option in sorted(map(str, options)) if isinstance(options, dict) else ():
        found.dropped(source, line, f"{shown(name)}: the option {shown(option)} of the task")


def _read_dump(source: Source, found: Imported) -> None:
    try:
        rows = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 0
        raise Refusal("it is not valid JSON", line) from error
    rows = rows if isinstance(rows, list) else []
    rows = [row for row in rows if isinstance(row, dict) and isinstance(row.get("fields"), dict)]
    by_key = {(str(row.get("model")), str(row.get("pk"))): row["fields"] for row in rows}
    tasks = [row["fields"] for row in rows if row.get("model") == "django_celery_beat.periodictask"]
    if not tasks:
        raise Refusal("no django_celery_beat.periodictask in this dump: dumpdata django_celery_beat writes them")
    lines = _lines(source.text)
    for fields in tasks:
        name = str(fields.get("name") or "")
        line = lines.get(name, 0)
        try:
            _periodic_task(found, source, line, name, fields, by_key)
        except Refusal as error:
            found.refused(source, line, f"{shown(name)}: {error}")


def _lines(text: str) -> dict[str, int]:
    """Return the line of each name; dumps of one line have none."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.fullmatch(r'\s*"name": ("[^"]*"),?\s*', line):
            with suppress(ValueError):  # an escape that is cut off
                found.setdefault(json.loads(match[1], strict=False), number)
    return found


def _periodic_task(
    found: Imported,
    source: Source,
    line: int,
    name: str,
    fields: Mapping[str, Any],
    by_key: Mapping[tuple[str, str], Mapping[str, Any]],
) -> None:
    if fields.get("task") == "celery.backend_cleanup":
        found.dropped(source, line, f"{shown(name)}: retention prunes results")
        return
    if fields.get("one_off"):
        raise Refusal("it runs once: use yamlsched enqueue --at")
    for kind in ("solar", "clocked"):
        if fields.get(kind) is not None:
            raise Refusal(f"a {kind} schedule has no cron expression")
    try:
        entry = {
            **fields,
            "args": json.loads(fields.get("args") or "[]"),
            "kwargs": json.loads(fields.get("kwargs") or "{}"),
            "options": {
                key: 1 for key in ("queue", "exchange", "routing_key", "priority", "expires") if fields.get(key)
            },
        }
    except (TypeError, ValueError, RecursionError) as error:
        raise Refusal("its args or kwargs are not JSON") from error
    if fields.get("crontab") is not None:
        row = by_key.get(("django_celery_beat.crontabschedule", str(fields["crontab"])))
        if row is None:
            raise Refusal(f"its crontab schedule {shown(fields['crontab'])} is not in this dump")
        source = replace(source, zone=str(row.get("timezone") or source.zone))
        written, times = _crontab({key: row[key] for key in FIELDS if key in row}, source.zone)
        _job(found, source, line, name, written, times, entry)
    elif fields.get("interval") is not None:
        row = by_key.get(("django_celery_beat.intervalschedule", str(fields["interval"]))) or {}
        period = row.get("period")
        every = python_source.interval({str(period): row.get("every")}) if period in PERIODS else None
        _interval(found, source, line, name, every, entry)
    else:
        raise Refusal("it has no schedule")
