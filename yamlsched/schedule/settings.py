"""Builds what a file says outside of its jobs: environments, limits, queues, targets, retention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from yamlsched.runs.lifecycle import DEFAULT_QUEUE
from yamlsched.schedule.file import NO_QUEUE
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import Limit, Mode, NotifyTarget, Queue, Retention, Start
from yamlsched.schedule.node import Spot
from yamlsched.schedule.reader import Reader
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
    return _entries(root, "limits", reader, _limit)


def build_queues(root: Spot, reader: Reader) -> dict[str, Queue | None]:
    """Return the queues of the file, and ``default``; None for one whose entry is not valid."""
    if spot := root.get("queues", NO_QUEUE):
        message = f"the queue name {quoted(NO_QUEUE)} is reserved: --queue {NO_QUEUE} serves no"
        reader.findings.error(spot.key, "YS106", f"{message} queue", "Choose another name.")
    return {DEFAULT_QUEUE: Queue(), **_entries(root, "queues", reader, _queue)}


def build_targets(root: Spot, reader: Reader) -> dict[str, NotifyTarget | None]:
    """Return the targets of notifications; None for one whose entry is not valid."""
    return _entries(root, "notify", reader, _target)


Entry = TypeVar("Entry")


def _entries(
    root: Spot, key: str, reader: Reader, build: Callable[[Spot, Reader], Entry]
) -> dict[str, Entry | None]:
    """Return what ``build`` makes of each entry of a top-level key; None for an invalid one."""
    return {
        str(entry.path[-1]): build(entry, reader) if reader.findings.is_valid(entry) else None
        for entry in root.entries(key)
    }


def _limit(entry: Spot, reader: Reader) -> Limit:
    keys = entry.get("by")
    return Limit(reader.integer(entry.child("max")), reader.strings(keys) if keys else ())


def _queue(entry: Spot, reader: Reader) -> Queue:
    keys = {key: node.value for key, node in entry.value.items() if key != "start"}
    keys["mode"] = Mode(keys.get("mode", Mode.PROCESS))
    if start := entry.get("start"):
        keys |= {"start": _start(start, reader), "dedicated": True}
    return Queue(**keys)


def _start(spot: Spot, reader: Reader) -> Start | None:
    """Return how workers are started; None if ``start_timeout`` is out of range."""
    most, timeout = reader.integer(spot.child("max_workers")), spot.get("start_timeout")
    command = reader.strings(spot.child("command"))
    if timeout is None:
        return Start(command, most)
    length = reader.duration(timeout)
    return None if length is None else Start(command, most, length)


def _target(entry: Spot, reader: Reader) -> NotifyTarget:
    keys = {"events": reader.strings(events)} if (events := entry.get("events")) else {}
    return NotifyTarget(entry.value["url_env"].value, **keys)


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
