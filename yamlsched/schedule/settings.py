"""Builds what a file says outside of its jobs: environments, limits, queues, targets, retention."""

from __future__ import annotations

from yamlsched.runs.lifecycle import DEFAULT_QUEUE
from yamlsched.schedule.build import Reader
from yamlsched.schedule.file import NO_QUEUE
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import Limit, Mode, NotifyTarget, Queue, Retention, Start
from yamlsched.schedule.node import Spot
from yamlsched.text import quoted


def build_environments(
    spot: Spot | None, environment: str | None, findings: Findings
) -> tuple[str, ...]:
    """Return the names of the environments, and report that ``environment`` is not one of them."""
    if spot is None or not isinstance(spot.value, list):
        return ()
    names = tuple(item.value for item in spot.value if isinstance(item.value, str))
    if environment is not None and environment not in names:
        message = f"environment {quoted(environment)} is not in the environments of the file"
        remedy = findings.source.did_you_mean(
            environment, names, "Add it here, or fix --env or YAMLSCHED_ENV."
        )
        findings.error(spot.key, "YS116", message, remedy)
    return names


def build_limits(root: Spot, reader: Reader) -> dict[str, Limit | None]:
    """Return the limits of the file; None for one whose entry is not valid."""
    spot = root.get("limits")
    built: dict[str, Limit | None] = {}
    for entry in spot.children() if spot is not None and isinstance(spot.value, dict) else ():
        name, keys = str(entry.path[-1]), entry.get("by")
        built[name] = None
        if reader.findings.is_valid(entry):
            by = () if keys is None else reader.strings(keys)
            built[name] = Limit(reader.integer(entry.child("max")), by)
    return built


def build_queues(root: Spot, reader: Reader) -> dict[str, Queue | None]:
    """Return the queues of the file, and ``default``; None for one whose entry is not valid."""
    spot = root.get("queues")
    built: dict[str, Queue | None] = {DEFAULT_QUEUE: Queue()}
    for entry in spot.children() if spot is not None and isinstance(spot.value, dict) else ():
        name = str(entry.path[-1])
        if name == NO_QUEUE:
            message = f"the queue name {quoted(name)} is reserved: --queue {name} serves no queue"
            reader.findings.error(entry.key, "YS106", message, "Choose another name.")
        built[name] = None
        if reader.findings.is_valid(entry):
            keys = {key: node.value for key, node in entry.value.items() if key != "start"}
            keys["mode"] = Mode(keys.get("mode", Mode.PROCESS))
            if start := entry.get("start"):
                keys |= {"start": _build_start(start, reader), "dedicated": True}
            built[name] = Queue(**keys)
    return built


def _build_start(spot: Spot, reader: Reader) -> Start | None:
    """Return how workers are started; None if ``start_timeout`` is out of range."""
    most, timeout = reader.integer(spot.child("max_workers")), spot.get("start_timeout")
    command = reader.strings(spot.child("command"))
    if timeout is None:
        return Start(command, most)
    length = reader.duration(timeout)
    return None if length is None else Start(command, most, length)


def build_targets(root: Spot, reader: Reader) -> dict[str, NotifyTarget | None]:
    """Return the targets of notifications; None for one whose entry is not valid."""
    spot = root.get("notify")
    built: dict[str, NotifyTarget | None] = {}
    for entry in spot.children() if spot is not None and isinstance(spot.value, dict) else ():
        name, events = str(entry.path[-1]), entry.get("events")
        built[name] = None
        if reader.findings.is_valid(entry):
            variable = entry.value["url_env"].value
            built[name] = (
                NotifyTarget(variable, reader.strings(events)) if events else NotifyTarget(variable)
            )
    return built


def build_retention(root: Spot, reader: Reader) -> Retention:
    """Return how long rows are kept."""
    spot = root.get("retention")
    if spot is None or not reader.findings.is_valid(spot):
        return Retention()
    folder = spot.get("archive")
    ages = {
        str(item.path[-1]): reader.duration(item)
        for item in spot.children()
        if item.path[-1] != "archive"
    }
    archive = None if folder is None else folder.value
    return Retention(
        **{key: value for key, value in ages.items() if value is not None}, archive=archive
    )
