"""Builds what a file says outside of its jobs: limits, queues, targets, retention."""

from __future__ import annotations

from typing import TypeVar

from yamlsched.runs.lifecycle import DEFAULT_QUEUE
from yamlsched.schedule.file import NO_QUEUE
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import Queue, Retention
from yamlsched.schedule.node import Spot
from yamlsched.schedule.values import parse
from yamlsched.text import quoted

Entry = TypeVar("Entry")


def build_entries(
    root: Spot, key: str, kind: type[Entry], findings: Findings
) -> dict[str, Entry | None]:
    """Return the entries of a top-level key, by name; None for one that is not valid."""
    return {
        str(entry.path[-1]): parse(kind, entry.node.plain()) if findings.is_valid(entry) else None
        for entry in root.entries(key)
    }


def build_queues(root: Spot, findings: Findings) -> dict[str, Queue | None]:
    """Return the queues of the file, and ``default``; None for one whose entry is not valid."""
    if spot := root.get("queues", NO_QUEUE):
        message = f"the queue name {quoted(NO_QUEUE)} is reserved: --queue {NO_QUEUE} serves no"
        findings.error(spot.key, "YS106", f"{message} queue", "Choose another name.")
    return {DEFAULT_QUEUE: Queue(), **build_entries(root, "queues", Queue, findings)}


def build_retention(root: Spot, findings: Findings) -> Retention:
    """Return how long rows are kept."""
    spot = root.get("retention")
    if spot is None or not findings.is_valid(spot):
        return Retention()
    retention: Retention = parse(Retention, spot.node.plain())
    return retention
