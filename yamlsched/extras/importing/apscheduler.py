"""APScheduler 3: ``add_job`` calls and ``scheduled_job`` decorators in Python source."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from yamlsched import durations
from yamlsched.extras.importing import python_source
from yamlsched.extras.importing.calendar import APSCHEDULER, OnCalendar
from yamlsched.extras.importing.expression import CRON_RULES, FieldRange, cron_expression, fields_of, interval
from yamlsched.extras.importing.model import FAITHFUL, FireTimes, Place, Refusal, known_zone, shown
from yamlsched.extras.importing.python_source import Call, Name
from yamlsched.timetable.zones import zone

MONDAY_FIRST = {name: number for number, name in enumerate(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])}
RULES = (*CRON_RULES[:4], FieldRange("day_of_week", 0, 6, MONDAY_FIRST))
FIELDS = ("minute", "hour", "day", "month", "day_of_week")
LARGEST_FIRST = ("month", "day", "day_of_week", "hour", "minute")
LOWEST = {"minute": "0", "hour": "0", "day": "1", "day_of_week": "*", "month": "1"}
NOT_IN_CRON = ("year", "week", "start_date", "end_date")
INTERVALS = ("weeks", "days", "hours", "minutes", "seconds")
SIGNATURE = ("func", "trigger", "args", "kwargs", "id", "name", "misfire_grace_time", "coalesce", "max_instances")
NO_COUNTERPART = ("executor", "jobstore", "next_run_time", "replace_existing")
ORDINAL_DAY = re.compile(r"(?:1st|2nd|3rd|4th|5th|last)\b", re.IGNORECASE)
MIN_GRACE, MAX_GRACE = timedelta(minutes=1), timedelta(days=365)
HANDLERS = (
    "the functions become handlers: check that each name is the path of its function as Python imports it, and that "
    "importing its module starts no scheduler"
)


def read(whole: Place) -> None:
    """Add the jobs of each ``add_job`` and ``scheduled_job``."""
    tree = python_source.parse(whole.source)
    names = python_source.imports(tree)
    names.pop("self", None)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    module = PurePath(whole.source.file).stem
    names |= {function.name: f"{module}.{function.name}" for function in functions}
    of_decorator = {id(decorator): function.name for function in functions for decorator in function.decorator_list}
    named = [(python_source.written(call.func), call) for call in _calls(tree)]
    configured = [call for name, call in named if _method(call) == "configure" and names.get(name[:-10]) != name[:-10]]
    schedulers = [call for name, call in named if call not in configured and _is_scheduler(names.get(name, name), call)]
    options = [(word.arg, word.value) for call in (*schedulers, *configured) for word in call.keywords]
    settings = {name: node for name, node in options if name in ("timezone", "job_defaults")}
    for several in (schedulers[1:], configured[1:]):
        if several and settings:
            raise Refusal("it has several schedulers with settings: pass a file for each", several[0].lineno)
    defaults = _job_defaults(whole, tree, settings.get("job_defaults"))
    calls = [call for call in _calls(tree) if _method(call) in ("add_job", "scheduled_job")]
    if not calls:
        raise Refusal("no add_job or scheduled_job found")
    before = len(whole.batch.jobs)
    for call in calls:
        with whole.at(call.lineno, f"{python_source.written(call)}: ").reporting():
            read_call = python_source.value(call)
            signature = SIGNATURE if read_call.name == "add_job" else SIGNATURE[1:]
            options = defaults | dict(zip(signature, read_call.args, strict=False)) | read_call.kwargs
            if read_call.name == "scheduled_job":
                options["func"] = Name(of_decorator.get(id(call), ""))
            zone_name = _zone(python_source.value(settings.get("timezone", ast.Constant(None))), whole.source.zone)
            _job(whole.at(call.lineno), options, names, zone_name)
    for call in (*schedulers, *configured):
        others = [word.arg or "**" for word in call.keywords if word.arg not in settings]
        for name in [*others, *("its arguments" for _ in call.args)]:
            whole.at(call.lineno).dropped(f"{shown(name)} of the scheduler has no counterpart, or is not read")
    for call in _calls(tree):
        if _method(call) in ("add_jobstore", "add_executor", "add_listener"):
            whole.at(call.lineno).dropped(f"{_method(call)} of the scheduler has no counterpart")
    if len(whole.batch.jobs) > before:
        whole.changed(HANDLERS)


def _calls(tree: ast.Module) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted(calls, key=lambda node: (node.lineno, node.col_offset))


def _job_defaults(whole: Place, tree: ast.Module, node: ast.expr | None) -> dict[str, Any]:
    """Return the ``job_defaults`` of the scheduler, a dict or its name; report what is not read."""
    if node is None:
        return {}
    with suppress(Refusal):
        assigned = dict(python_source.assignments(tree))
        values = python_source.value(assigned.get(node.id, node) if isinstance(node, ast.Name) else node)
        if isinstance(values, dict):
            return values
    whole.at(node.lineno).dropped("job_defaults are not one dict of constants: write them into each job")
    return {}


def _is_scheduler(name: str, call: ast.Call) -> bool:
    return name.endswith("Scheduler") or any(word.arg == "job_defaults" for word in call.keywords)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _job(place: Place, options: dict[str, Any], names: Mapping[str, str], zone_name: str) -> None:
    handler = _handler(options.get("func"), names)
    kind, arguments = _trigger(options)
    zone_name = _zone(arguments.get("timezone"), zone_name)
    if kind == "cron":
        written, times = _crontab(place, arguments, zone_name)
    elif kind == "interval":
        zone_name = "UTC"
        every = {key: arguments[key] for key in INTERVALS if arguments.get(key) is not None}
        written, times = interval(python_source.interval(every or {"seconds": 1}))
        for key in ("start_date", "end_date"):
            if arguments.get(key) is not None:
                raise Refusal(f"{key}={shown(arguments[key])} has no counterpart: write it as a cron trigger")
        place.changed("the interval is counted from midnight UTC here, from the start in APScheduler")
    elif kind == "date":
        raise Refusal("it runs once: use yamlsched enqueue --at")
    else:
        raise Refusal(f"its trigger {shown(kind)} is not cron or an interval")
    keys: dict[str, Any] = {"cron": written, "timezone": zone_name, "handler": handler}
    keys |= _options(place, options)
    if isinstance(jitter := arguments.get("jitter"), int) and not isinstance(jitter, bool) and 0 < jitter <= 86400:
        keys["spread"] = durations.show(timedelta(seconds=jitter))
        place.changed(f"jitter={jitter} becomes spread: a stable delay, never ahead of the schedule")
    name = options.get("id") if isinstance(options.get("id"), str) else handler.replace(":", ".").rpartition(".")[2]
    place.add(str(name), f"{name}: {handler}", keys, times)


def _handler(function: Any, names: Mapping[str, str]) -> str:
    if isinstance(function, str) and re.fullmatch(r"[A-Za-z_][\w.]*[.:][A-Za-z_]\w*", function, re.ASCII):
        return function
    if not isinstance(function, Name):
        raise Refusal(f"{shown(function)} is not the name of a function")
    first, dot, rest = function.path.partition(".")
    if first not in names:
        name = function.path or "the function"
        raise Refusal(f"{name} is not defined at the top level here, or imported by its full name")
    handler = f"{names[first]}{dot}{rest}"
    if "." not in handler:
        raise Refusal(f"{handler} is a module, not a function")
    return handler


def _trigger(options: dict[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of a trigger, and its arguments."""
    trigger = options.get("trigger", "date")
    if not isinstance(trigger, Call):
        return (trigger.path if isinstance(trigger, Name) else str(trigger)), options
    if trigger.name == "from_crontab":
        parts = str(trigger.args[0]).split() if trigger.args else []
        if len(parts) != len(FIELDS):
            raise Refusal("from_crontab needs five fields")
        # from_crontab does not translate weekdays: 0 is Monday there too
        return "cron", dict(zip(FIELDS, parts, strict=True)) | trigger.kwargs
    if trigger.args:
        raise Refusal(f"{trigger.name} has positional arguments: write their names")
    return trigger.name.removesuffix("Trigger").lower(), trigger.kwargs


def _zone(zone_name: Any, default: str) -> str:
    if isinstance(zone_name, Call) and zone_name.args:  # ZoneInfo("..."), pytz.timezone("...")
        zone_name = zone_name.args[0]
    if isinstance(zone_name, Name) and zone_name.path.rpartition(".")[2].lower() == "utc":
        zone_name = "UTC"
    if zone_name is not None and not isinstance(zone_name, str):
        raise Refusal("its time zone is not a constant")
    return known_zone(zone_name or default)


def _crontab(place: Place, arguments: Mapping[str, Any], zone_name: str) -> tuple[str, FireTimes]:
    for key in NOT_IN_CRON:
        if arguments.get(key) is not None:
            raise Refusal(f"{key}={shown(arguments[key])} has no field in cron")
    parts = _fields(arguments)
    if ORDINAL_DAY.search(parts[2]):
        raise Refusal(f'day="{shown(parts[2])}": import it without, then write L as the day, or fri#2 as day of week')
    fields = fields_of(parts, RULES)
    fields = fields._replace(weekdays=frozenset((day + 1) % 7 for day in fields.weekdays))  # Monday was 0
    calendar = OnCalendar(fields, zone(zone_name), APSCHEDULER)
    weekday = parts[4] if re.fullmatch(r"[a-z*]{1,3}([-,][a-z]{3})*", parts[4]) else ""
    written = cron_expression(calendar, [*parts[:4], weekday])
    if parts[4] != "*" and not weekday:
        place.changed(f"day_of_week={shown(parts[4])} counts from Monday = 0: it is {written.split()[-1]} in cron")
    return written, calendar


def _fields(arguments: Mapping[str, Any]) -> list[str]:
    """Return the five fields: those below the largest that is given have their lowest value, as in APScheduler."""
    fields = {
        key: "".join(str(arguments[key]).lower().split()) for key in LARGEST_FIRST if arguments.get(key) is not None
    }
    second = arguments.get("second")
    if str(second if second is not None else 0 if fields else "*") != "0":
        raise Refusal("it fires at seconds, which cron does not have")
    if not fields:
        return ["*"] * len(FIELDS)
    largest = min(map(LARGEST_FIRST.index, fields))
    parts = {key: fields.get(key, "*" if index < largest else LOWEST[key]) for index, key in enumerate(LARGEST_FIRST)}
    return [parts[key] for key in FIELDS]


def _options(place: Place, options: Mapping[str, Any]) -> dict[str, Any]:
    keys = python_source.payload(options)
    if isinstance(options.get("name"), str):
        keys["description"] = " ".join(options["name"].split()) or "-"
    if place.source.is_faithful:
        keys |= FAITHFUL
    keys["overlap"] = "skip" if options.get("max_instances", 1) == 1 else "allow"
    grace = options.get("misfire_grace_time", 1)  # in seconds; None: no limit
    if grace is None:
        keys["catchup"] = "latest"
    elif isinstance(grace, int) and timedelta(seconds=min(abs(grace), 10**7)) > MIN_GRACE:
        window = timedelta(seconds=abs(grace)) if abs(grace) <= MAX_GRACE.total_seconds() else MAX_GRACE
        keys |= {"catchup": "latest", "catchup_window": durations.show(window)}
    if keys.get("catchup") == "latest" and options.get("coalesce") is not True:
        place.changed("coalesce is off in APScheduler: here only the latest missed run is made up for")
    for key in NO_COUNTERPART:
        if options.get(key) is not None:
            place.dropped(f"{key}: it has no counterpart")
    return keys
