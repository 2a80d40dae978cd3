"""Reads the values of a job's keys, which match the schema, and checks what no schema can
express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from enum import Enum
from typing import Any

from yamlsched import durations
from yamlsched.jsonb import stored_bytes
from yamlsched.runs.backoff import Backoff
from yamlsched.runs.lifecycle import Keep
from yamlsched.schedule import timezones
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import (
    ENUMS,
    TYPES,
    ExitCodes,
    Limit,
    NotifyTarget,
    Output,
    Queue,
)
from yamlsched.schedule.node import Spot
from yamlsched.schedule.source import Finding
from yamlsched.schedule.when import day, expression
from yamlsched.text import quoted
from yamlsched.timetable.calendars import Calendar, Calendars
from yamlsched.timetable.cron import Cron

MAX_DURATION = timedelta(days=3650)
"""The maximum of every duration, so that no instant overflows."""
MAX_PAYLOAD_BYTES = 65_536
"""The maximum size of a payload as JSON, as a constraint of the tables also enforces."""
MAX_LISTED_NAMES = 12
"""At most this many names are listed in a remedy."""
RETRY_DELAYS = ("delay", "max_delay", "delays", "retry_after")
LIMITS = {
    **dict.fromkeys(
        (*RETRY_DELAYS, "timeout", "start_within", "finish_within"),
        (timedelta(seconds=1), MAX_DURATION),
    ),
    "lease": (timedelta(seconds=2), MAX_DURATION),
    "catchup_window": (timedelta(minutes=1), MAX_DURATION),
    "spread": (timedelta(0), timedelta(hours=24)),
    "kill_after": (timedelta(0), timedelta(hours=1)),
    "start_timeout": (timedelta(seconds=10), MAX_DURATION),
}


class Reader:
    """Turns nodes that match the schema into values. It reports errors and returns
    None for them.
    """

    def __init__(self, root: Spot, findings: Findings, environments: tuple[str, ...]) -> None:
        self.root = root
        self.findings = findings
        self.environments = environments
        self.limits: dict[str, Limit | None] = {}  # of the file; None: its entry is not valid
        self.queues: dict[str, Queue | None] = {}  # the same
        self.calendars: dict[str, Calendar | None] = {}  # the same
        self.targets: dict[str, NotifyTarget | None] = {}  # the same
        self.timezone_errors: dict[str, Finding] = {}

    def read(self, spot: Spot) -> Any:
        """Return the value of a job's key, None if it is invalid."""
        if not self.findings.is_valid(spot):
            self.findings.mark_invalid(spot.path)
            return None
        reader = READERS.get(str(spot.path[-1]))
        return spot.value if reader is None else reader(self, spot)

    def duration(self, spot: Spot) -> timedelta | None:
        value = durations.parse(spot.value)
        path = spot.path[:-1] if "retry_after" in spot.path else spot.path
        name = next(key for key in reversed(path) if isinstance(key, str))
        low, high = LIMITS.get(name, (timedelta(0), MAX_DURATION))
        if low <= value <= high:
            return value
        if value < low:
            is_delay, least = name in RETRY_DELAYS, durations.show(low)
            reason = (
                f"is too short; {'retries are never immediate, ' * is_delay}at least {least} is"
                " needed"
            )
            bound = f"{least} or more{', such as 1m' * is_delay}"
        else:
            reason, bound = (
                f"is too long; at most {durations.show(high)} is allowed",
                f"{durations.show(high)} or less",
            )
        self.findings.error(spot, "YS111", f"{spot}: {spot.value} {reason}", f"Write {bound}.")
        return None

    def cron(self, spot: Spot) -> Cron | None:
        return expression(spot, self.findings)

    def crons(self, spot: Spot) -> tuple[Cron, ...] | None:
        expressions = [expression(item, self.findings) for item in spot.children()]
        return tuple(cron for cron in expressions if cron) if all(expressions) else None

    def date(self, spot: Spot) -> date | None:
        return day(spot.value, spot, self.findings)

    def timezone(self, spot: Spot) -> str | None:
        name: str = spot.value
        if name in timezones.names():
            return name
        if name not in self.timezone_errors:
            self.timezone_errors[name] = timezones.explain(name, self.findings.source.closest_match)
        self.findings.report(spot, self.timezone_errors[name])
        return None

    def job_environments(self, spot: Spot) -> tuple[str, ...]:
        listed = self.root.get("environments")
        is_unknown = (listed is not None and not self.findings.is_valid(listed)) or (
            "environments",
        ) in self.findings.intended
        for item in spot.children():
            if item.value not in self.environments and not is_unknown:
                message = f"{spot}: {quoted(item.value)} is not in the environments of the file"
                known = f"Known: {', '.join(self.environments[:MAX_LISTED_NAMES])}."
                remedy = self.findings.source.did_you_mean(item.value, self.environments, known)
                if listed is None:
                    remedy = f"List it at the top level: environments: [{item.value}]"
                self.findings.error(item, "YS112", message, remedy)
        return self.strings(spot)

    def strings(self, spot: Spot) -> tuple[str, ...]:
        return tuple(item.value for item in spot.value)

    def integer(self, spot: Spot) -> int:
        return int(spot.value)

    def payload(self, spot: Spot) -> Any:
        value = spot.node.plain()
        size = stored_bytes(value)
        if size > MAX_PAYLOAD_BYTES:
            message = f"{spot} has {size:,} bytes as JSON, more than {MAX_PAYLOAD_BYTES:,}"
            self.findings.error(
                spot.key, "YS117", message, "Store the data elsewhere and pass a reference."
            )
        return value

    def backoff(self, spot: Spot) -> Backoff | None:
        values: dict[str, Any] = {key: item.value for key, item in spot.value.items()}
        for key in ("delay", "max_delay"):
            if key in values:
                values[key] = self.duration(spot.child(key))
        if "jitter" in values:
            values["jitter"] = float(values["jitter"])
        if "delays" in values:
            values["delays"] = tuple(map(self.duration, spot.child("delays").children()))
        return Backoff(**values) if self.findings.is_valid(spot) else None

    def mapping(self, spot: Spot) -> dict[str, Any]:
        return {name: item.value for name, item in spot.value.items()}

    def exit_codes(self, spot: Spot) -> ExitCodes | None:
        listed: dict[int, Spot] = {}
        for child in spot.children():
            for item in child.children():
                code = int(item.path[-1] if child.path[-1] == "retry_after" else item.value)
                first = listed.setdefault(code, item)
                if first is not item:
                    notes = [(first.key.node.start, "the first one is here")]
                    message = f"{spot}: exit code {code} is listed twice"
                    self.findings.error(
                        item.key, "YS120", message, "Remove one of the two.", notes=notes
                    )
                elif code == 0 and "success" not in spot.value:
                    message = (
                        f"{spot}: exit code 0 is in {child.path[-1]}, and success is [0] by default"
                    )
                    self.findings.error(
                        item.key, "YS120", message, "Write success: too, without 0."
                    )
        default = ExitCodes()
        values = {
            key: tuple(item.value for item in spot.child(key).children()) for key in spot.value
        }
        delays = {code: delay for code, delay in default.retry_after.items() if code not in listed}
        if "retry_after" in spot.value:
            items = spot.child("retry_after").children()
            delays = {int(item.path[-1]): self.duration(item) or timedelta(0) for item in items}
        codes = ExitCodes(values.get("success", default.success), values.get("discard", ()), delays)
        return codes if self.findings.is_valid(spot) else None

    def limit(self, spot: Spot) -> str | None:
        return self.declared(
            spot, self.limits, "YS123", "limits", "Declare it at the top level under limits."
        )

    def queue(self, spot: Spot) -> str | None:
        remedy = f"Declare it at the top level: queues: {{{spot.value}: {{}}}}"
        return self.declared(spot, self.queues, "YS121", "queues", remedy)

    def declared(
        self,
        spot: Spot,
        declared: Mapping[str, Any],
        code: str,
        kind: str,
        remedy: str,
    ) -> str | None:
        """Return the name in ``spot`` if it is ``declared`` at the top level; None for an entry
        that is not valid.
        """
        name: str = spot.value
        if declared.get(name) is not None:
            return name
        if name in declared:
            self.findings.mark_invalid(spot.path)  # its entry is reported
            return None
        if declared:
            known = f"Known: {', '.join([*declared][:MAX_LISTED_NAMES])}."
            remedy = self.findings.source.did_you_mean(name, declared, known)
        self.findings.error(
            spot, code, f"{spot}: {quoted(name)} is not one of the {kind} of the file", remedy
        )
        return None

    def used_calendars(self, spot: Spot) -> Calendars | None:
        remedy = "Declare it at the top level under calendars."
        used = []
        for item in spot.children():
            name = self.declared(item, self.calendars, "YS126", "calendars", remedy)
            if name is None or (calendar := self.calendars[name]) is None:
                continue
            if spot.path[-1] == "only_on" and calendar.until is None:
                message = (
                    f"{item}: calendar {quoted(calendar.name)} has no until, and nothing runs after"
                    " its last date"
                )
                self.findings.error(
                    item, "YS127", message, "Add until: to it, the date up to which it is complete."
                )
            used.append(calendar)
        return tuple(used) if self.findings.is_valid(spot) else None

    def notify(self, spot: Spot) -> tuple[str, ...] | None:
        remedy = "Declare it at the top level under notify."
        names = [
            self.declared(item, self.targets, "YS128", "targets", remedy)
            for item in spot.children()
        ]
        return tuple(name for name in names if name) if self.findings.is_valid(spot) else None

    def output(self, spot: Spot) -> Output:
        return Output(Keep(spot.value["keep"].value))


def _enum_reader(kind: type[Enum]) -> Callable[[Reader, Spot], Enum]:
    return lambda reader, spot: kind[spot.value.upper()]


READERS_BY_TYPE: dict[Any, Callable[[Reader, Spot], Any]] = {
    int: Reader.integer,
    timedelta: Reader.duration,
    timedelta | None: Reader.duration,
    tuple[str, ...]: Reader.strings,
    dict[str, str]: Reader.mapping,
    ExitCodes: Reader.exit_codes,
    Backoff: Reader.backoff,
    Output: Reader.output,
    **{kind: _enum_reader(kind) for kind in ENUMS},
}
READERS: dict[str, Callable[[Reader, Spot], Any]] = {
    **{key: READERS_BY_TYPE[kind] for key, kind in TYPES.items() if kind in READERS_BY_TYPE},
    "cron": Reader.cron,
    "crons": Reader.crons,
    "starts_on": Reader.date,
    "ends_on": Reader.date,
    "skip_on": Reader.used_calendars,
    "only_on": Reader.used_calendars,
    "timezone": Reader.timezone,
    "environments": Reader.job_environments,
    "payload": Reader.payload,
    "limit": Reader.limit,
    "queue": Reader.queue,
    "notify": Reader.notify,
}
"""The reader of each key of a job: by the type of its field, except for keys with rules of their
own.
"""
