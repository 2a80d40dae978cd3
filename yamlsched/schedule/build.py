"""Builds jobs from values that match the schema: merges defaults, and checks the rules that no
schema can express. Also what a file says outside of its jobs: limits, queues, targets, retention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from yamlsched.runs.lifecycle import DEFAULT_QUEUE, Keep
from yamlsched.schedule.file import NO_QUEUE
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.following import hook_names
from yamlsched.schedule.job import (
    Catchup,
    Job,
    Mode,
    Output,
    Overlap,
    Queue,
    Retention,
)
from yamlsched.schedule.node import Spot
from yamlsched.schedule.reader import Reader
from yamlsched.schedule.schema import HOOKS, NEEDED_KEYS, SCHEMA
from yamlsched.schedule.values import parse
from yamlsched.schedule.when import combine_cron, limit_spread
from yamlsched.text import quoted

Entry = TypeVar("Entry")
INHERITABLE = frozenset(SCHEMA["properties"]["defaults"]["properties"])


def build_jobs(
    reader: Reader,
    timezone: str | None,
    paths: tuple[str, ...],
    built: Mapping[str, Job | None],
) -> dict[str, Job | None]:
    """Return the jobs with the values that they inherit, and None for invalid ones, whose errors
    are reported: hooks inherit no hooks. Those that are ``built`` are taken from there.
    """
    hooks = hook_names(reader)
    inherited = {spot.path[-1]: _inherited(spot, reader) for spot in reader.root.layers()}
    jobs: dict[str, Job | None] = {}
    for job in reader.root.entries("jobs"):
        name = str(job.path[-1])
        if name in built:
            jobs[name] = built[name]
            continue
        values = inherited.get(job.node.defaults, {})
        if name in hooks:
            values = {key: value for key, value in values.items() if key not in HOOKS}
        jobs[name] = _build_job(job, reader, values, timezone, paths)
    return jobs


def _inherited(defaults: Spot, reader: Reader) -> dict[str, Any]:
    """Return the values of ``defaults``."""
    if not isinstance(defaults.value, dict):
        return {}
    values = {key: reader.read(defaults.child(key)) for key in defaults.value if key in INHERITABLE}
    _check_combinations(values, defaults, reader.findings)
    return values


def _build_job(
    spot: Spot,
    reader: Reader,
    inherited: dict[str, Any],
    timezone: str | None,
    paths: tuple[str, ...],
) -> Job | None:
    if not isinstance(spot.value, dict):
        return None

    def has(key: str) -> bool:
        return key in spot.value or (*spot.path, key) in reader.findings.intended

    output = Output(Keep.ALWAYS if has("command") else Keep.FAILED)
    values = {"timezone": timezone, "output": output, **inherited}
    unused = [key for key, needed in NEEDED_KEYS.items() if not any(map(has, needed))]
    for key in spot.value:
        if key not in unused:
            values[key] = reader.read(spot.child(key))
    for key in unused:
        values.pop(key, None)
    values["queue_rules"] = reader.names["queues"].get(values.get("queue", DEFAULT_QUEUE))
    _refuse_command(values, spot, reader.findings)
    if has("cron") or has("crons") or has("after"):
        combine_cron(values, spot, reader.findings)
        _check_combinations(values, spot, reader.findings)
        limit_spread(values, spot, reader.findings)
    if not reader.findings.is_valid(spot) or any(values[key] is None for key in values):
        return None
    if limit := reader.names["limits"].get(values.get("limit", "")):
        values["limit_by"] = limit.by
    targets = tuple((name, target) for name, target in reader.names["notify"].items() if target)
    return Job(str(spot.path[-1]), paths=paths, targets=targets, **values)


def _refuse_command(values: dict[str, Any], own: Spot, findings: Findings) -> None:
    """Report a command in a queue whose runs are coroutines."""
    queue = values["queue_rules"]
    if queue is None or queue.mode is not Mode.ASYNC or "command" not in own.value:
        return
    spot, name = own.get("queue") or own.child("command").key, values.get("queue", DEFAULT_QUEUE)
    what = f"{own}: queue {quoted(name)} has mode: async, and a command is a process of its own"
    findings.error(spot, "YS122", what, "Write queue: with the name of one with mode: process.")


def _check_combinations(values: dict[str, Any], own: Spot, findings: Findings) -> None:
    """Report keys that contradict each other, at one that the job sets itself."""
    if values.get("after") and values.get("catchup") is Catchup.NONE:
        if "catchup" in own.value:
            message = (
                f"{own}: catchup: none cannot be combined with after: its slots wait for other jobs"
            )
            remedy = "Write catchup_window: the time after which a slot does not run any more."
            findings.error(own.child("catchup"), "YS115", message, remedy)
        else:
            values["catchup"] = Catchup.LATEST
    if values.get("catchup") is Catchup.ALL and values.get("overlap") is Overlap.SKIP:
        at = "catchup" if "catchup" in own.value else "overlap"
        if at not in own.value:
            # both are inherited, and reported there
            findings.mark_invalid(own.path)
            return
        message = f"{own}: catchup: all cannot be combined with overlap: skip"
        remedy = (
            "Runs that are created together would skip each other: write overlap: wait, or catchup:"
            " latest."
        )
        findings.error(own.child(at), "YS115", message, remedy)


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
