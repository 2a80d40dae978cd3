"""Reads the values of keys, which match the schema, and checks what no schema can express."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

from yamlsched import jsonb
from yamlsched.schedule import timezones
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import TYPES, ExitCodes
from yamlsched.schedule.node import Spot
from yamlsched.schedule.schema import HOOKS
from yamlsched.schedule.values import parse
from yamlsched.schedule.when import day, expression
from yamlsched.text import quoted
from yamlsched.timetable.calendars import Calendars
from yamlsched.timetable.cron import Cron

MAX_PAYLOAD_BYTES = 65_536
"""The maximum size of a payload as JSON, as a constraint of the tables also enforces."""
MAX_LISTED_NAMES = 12
"""At most this many names are listed in a remedy."""
DECLARED = {
    "environments": ("environments", "YS112"),
    "limit": ("limits", "YS123"),
    "notify": ("notify", "YS128"),
    **dict.fromkeys(HOOKS, ("jobs", "YS160")),
    "only_on": ("calendars", "YS126"),
    "queue": ("queues", "YS121"),
    "skip_on": ("calendars", "YS126"),
}
"""By key of a job: the top-level key that declares its names, and the code of others."""


class Reader:
    """Turns nodes that match the schema into values. It reports errors and returns
    None for them.
    """

    def __init__(
        self, root: Spot, findings: Findings, names: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.root = root
        self.findings = findings
        self.names = names
        """By top-level key: what it declares, by name; None for an entry that is not valid."""

    def read(self, spot: Spot) -> Any:
        """Return the value of a key, None if it is invalid."""
        key = str(spot.path[-1])
        if key in DECLARED:
            self._check_names(spot, *DECLARED[key])
        if not self.findings.is_valid(spot):
            self.findings.mark_invalid(spot.path)
            return None
        if reader := READERS.get(key):
            return reader(self, spot)
        return parse(TYPES.get(key, tuple[str, ...] if key in DECLARED else Any), spot.node.plain())

    def _check_names(self, spot: Spot, kind: str, code: str) -> None:
        remedy = f"Declare it at the top level under {kind}."
        for item in spot.children() if isinstance(spot.value, list) else (spot,):
            if isinstance(item.value, str) and self.findings.is_valid(item):
                self.check_name(item, self.names[kind], code, kind, remedy)

    def check_name(
        self, spot: Spot, declared: Mapping[str, Any], code: str, kind: str, remedy: str
    ) -> None:
        """Report the name at ``spot`` unless the top-level key ``kind`` declares it."""
        name: str = spot.value
        if declared.get(name) is not None:
            return
        if name in declared or (kind,) in self.findings.intended:
            self.findings.mark_invalid(spot.path)  # the entry, or the key, is reported
            return
        if declared:
            known = f"Known: {', '.join([*declared][:MAX_LISTED_NAMES])}."
            remedy = self.findings.source.did_you_mean(name, declared, known)
        message = f"{spot}: {quoted(name)} is not in {kind} of the file"
        self.findings.error(spot, code, message, remedy)

    def cron(self, spot: Spot) -> Cron | None:
        return expression(spot, self.findings)

    def crons(self, spot: Spot) -> tuple[Cron, ...] | None:
        expressions = [expression(item, self.findings) for item in spot.children()]
        return tuple(cron for cron in expressions if cron) if all(expressions) else None

    def date(self, spot: Spot) -> date | None:
        return day(spot.value, spot, self.findings)

    def every(self, spot: Spot) -> int:
        return int(spot.value.removesuffix("w"))

    def timezone(self, spot: Spot) -> str | None:
        name: str = spot.value
        if name in timezones.names():
            return name
        self.findings.report(spot, timezones.explain(name, self.findings.source.closest_match))
        return None

    def payload(self, spot: Spot) -> Any:
        value = spot.node.plain()
        size = len(jsonb.encode(value).encode())
        if size > MAX_PAYLOAD_BYTES:
            message = f"{spot} has {size:,} bytes as JSON, more than {MAX_PAYLOAD_BYTES:,}"
            remedy = "Store the data elsewhere and pass a reference."
            self.findings.error(spot.key, "YS117", message, remedy)
        return value

    def exit_codes(self, spot: Spot) -> ExitCodes:
        listed: dict[int, Spot] = {}
        for child in spot.children():
            for item in child.children():
                code = int(item.path[-1] if child.path[-1] == "retry_after" else item.value)
                first = listed.setdefault(code, item)
                if first is not item or (code == 0 and "success" not in spot.value):
                    message = f"{spot}: exit code {code} is listed twice"
                    remedy = "Remove one of the two. The default of success is [0]."
                    self.findings.error(item.key, "YS120", message, remedy)
        delays = ExitCodes().retry_after
        default = {code: delays[code] for code in delays if code not in listed}
        codes: ExitCodes = parse(ExitCodes, spot.node.plain())
        return codes if "retry_after" in spot.value else replace(codes, retry_after=default)

    def calendars(self, spot: Spot) -> Calendars | None:
        calendars = [self.names["calendars"][item.value] for item in spot.children()]
        for item, calendar in zip(spot.children(), calendars, strict=True):
            if spot.path[-1] == "only_on" and calendar.until is None:
                message = (
                    f"{item}: calendar {quoted(calendar.name)} has no until, so nothing would run"
                    " after its last date"
                )
                remedy = "Add until: the date up to which the calendar is complete."
                self.findings.error(item, "YS127", message, remedy)
        return tuple(calendars)


READERS: dict[str, Callable[[Reader, Spot], Any]] = {
    "cron": Reader.cron,
    "crons": Reader.crons,
    "ends_on": Reader.date,
    "every": Reader.every,
    "exit_codes": Reader.exit_codes,
    "only_on": Reader.calendars,
    "payload": Reader.payload,
    "skip_on": Reader.calendars,
    "starts_on": Reader.date,
    "timezone": Reader.timezone,
}
"""The readers of keys with rules of their own; of others the type of the field decides."""
