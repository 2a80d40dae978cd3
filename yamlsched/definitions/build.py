"""What valid values mean together: defaults merged in, the rules that no schema can state, and the jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any

from yamlsched import durations
from yamlsched.backoff import Backoff
from yamlsched.cron.expression import ALIASES, Cron, parse_cron
from yamlsched.definitions import timezones
from yamlsched.definitions.findings import Findings
from yamlsched.definitions.job import ENUMS, TYPES, Catchup, Job, Overlap, Retention
from yamlsched.definitions.node import Node
from yamlsched.definitions.schema import SCHEMA
from yamlsched.definitions.wording import Path, quoted, where
from yamlsched.errors import CronError
from yamlsched.jsonb import stored_bytes

Use = int | None

MAX_DURATION = timedelta(days=3650)
"""No duration is longer, so that no instant overflows."""
MAX_PAYLOAD_BYTES = 65_536
"""Bytes of a payload as JSON: what the tables take."""
MAX_LISTED_NAMES = 12
"""Names that a remedy lists."""
MAX_UNMEASURED_SIZE = 160
"""Size of a node that cannot exceed that: one unit is 64 characters at most, each 6 bytes at most as JSON."""
LIMITS = {
    "timeout": (timedelta(seconds=1), MAX_DURATION),
    "lease": (timedelta(seconds=2), MAX_DURATION),
    "catchup_window": (timedelta(minutes=1), MAX_DURATION),
    "spread": (timedelta(0), timedelta(minutes=59, seconds=59)),
    "delay": (timedelta(seconds=1), MAX_DURATION),
    "max_delay": (timedelta(seconds=1), MAX_DURATION),
    "delays": (timedelta(seconds=1), MAX_DURATION),
}
RETRY_DELAYS = ("delay", "max_delay", "delays")
CRON_ONLY = ("overlap", "catchup", "catchup_window", "spread", "timezone")
"""Keys that say nothing about a job without cron."""

INHERITABLE = frozenset(SCHEMA["properties"]["defaults"]["properties"])

parse_duration = lru_cache(maxsize=4096)(durations.parse)


class Reader:
    """Turns nodes that match the schema into values. What is wrong is reported and None returned."""

    def __init__(self, found: Findings, environments: tuple[str, ...]) -> None:
        self.found = found
        self.environments = environments
        self.has_environment_list = True
        self.is_environment_list_closed = True
        self.timezone_errors: dict[str, tuple[str, str, str]] = {}

    def read(self, name: str, node: Node, path: Path, use: Use) -> Any:
        """Return the value of a job's key, None if there is a mistake in it."""
        if node.flawed or path in self.found.wrong:
            self.found.spoil(path)
            return None
        reader = READERS.get(name)
        return node.value if reader is None else reader(self, node, path, node.use if use is None else use)

    def duration(self, node: Node, path: Path, use: Use) -> timedelta | None:
        value = parse_duration(node.value)
        name = next(key for key in reversed(path) if isinstance(key, str))
        low, high = LIMITS.get(name, (timedelta(0), MAX_DURATION))
        if low <= value <= high:
            return value
        if value < low and name in RETRY_DELAYS:
            reason = f"is too short; retries are never immediate, at least {durations.show(low)} is needed"
            bound = f"{durations.show(low)} or more, such as 1m"
        elif value < low:
            reason, bound = f"is too short; at least {durations.show(low)} is needed", f"{durations.show(low)} or more"
        else:
            reason, bound = f"is too long; at most {durations.show(high)} is allowed", f"{durations.show(high)} or less"
        self.found.add("YS111", node, path, use, f"{where(path)}: {node.value} {reason}", f"Write {bound}.")
        return None

    def cron(self, node: Node, path: Path, use: Use) -> Cron | None:
        text: str = node.value
        try:
            return parse_cron(text.rstrip("\n") if node.style in (">", "|") else text)
        except CronError as error:
            written = text[error.start : error.end]
            if text.strip().startswith("@"):
                code = "YS203"
            elif len(text.split()) != 5:
                code = "YS202"
            else:
                code = "YS204" if " " in written.strip() else "YS201"
            remedy = error.remedy[:1].upper() + error.remedy[1:]
            remedy += "" if remedy[-1:] in ("", ".", "?") else "."
            if code == "YS203" and "@reboot" not in text:
                remedy = self.found.source.did_you_mean(text.strip(), ALIASES, remedy)
            span = self.found.source.within(node.value, node.at, node.end, node.style, error.start, error.end)
            self.found.add(code, node, path, use, f"{where(path)}: {error.message}", remedy, span)
            return None

    def timezone(self, node: Node, path: Path, use: Use) -> str | None:
        if node.value in timezones.names():
            return str(node.value)
        if node.value not in self.timezone_errors:
            self.timezone_errors[node.value] = timezones.explain(node.value, self.found.source.closest_match)
        code, reason, remedy = self.timezone_errors[node.value]
        self.found.add(code, node, path, use, f"{where(path)}: {reason}", remedy)
        return None

    def job_environments(self, node: Node, path: Path, use: Use) -> tuple[str, ...]:
        for number, item in enumerate(node.value):
            if item.value not in self.environments and self.is_environment_list_closed:
                message = f"{where(path)}: {quoted(item.value)} is not in the environments of the file"
                known = f"Known: {', '.join(self.environments[:MAX_LISTED_NAMES])}."
                remedy = self.found.source.did_you_mean(item.value, self.environments, known)
                if not self.has_environment_list:
                    remedy = f"List it at the top level: environments: [{item.value}]"
                self.found.add("YS112", item, (*path, number), item.use or use, message, remedy)
        return tuple(item.value for item in node.value)

    def strings(self, node: Node, path: Path, use: Use) -> tuple[str, ...]:
        return tuple(item.value for item in node.value)

    def integer(self, node: Node, path: Path, use: Use) -> int:
        return int(node.value)

    def payload(self, node: Node, path: Path, use: Use) -> Any:
        value = node.plain()
        if node.size > MAX_UNMEASURED_SIZE:
            size = stored_bytes(value)
            if size > MAX_PAYLOAD_BYTES:
                message = f"{where(path)} has {size:,} bytes as JSON, more than {MAX_PAYLOAD_BYTES:,}"
                remedy = "Store the data elsewhere and pass a reference."
                self.found.add("YS117", key_of(node), path, use, message, remedy)
        return value

    def backoff(self, node: Node, path: Path, use: Use) -> Backoff | None:
        given: dict[str, Node] = node.value
        policy = given["policy"].value if "policy" in given else Backoff().policy
        values: dict[str, Any] = {"policy": policy}
        for key in ("delay", "max_delay"):
            if key in given:
                values[key] = self.duration(given[key], (*path, key), use)
        if "jitter" in given:
            values["jitter"] = float(given["jitter"].value)
        if "delays" in given:
            values["delays"] = tuple(
                self.duration(item, (*path, "delays", number), use) for number, item in enumerate(given["delays"].value)
            )
        return Backoff(**values) if path not in self.found.wrong else None


def _enum_reader(kind: type[StrEnum]) -> Callable[[Reader, Node, Path, Use], StrEnum]:
    return lambda reader, node, path, use: kind(node.value)


READERS_BY_TYPE: dict[Any, Callable[[Reader, Node, Path, Use], Any]] = {
    int: Reader.integer,
    timedelta: Reader.duration,
    tuple[str, ...]: Reader.strings,
    Backoff: Reader.backoff,
    **{kind: _enum_reader(kind) for kind in ENUMS},
}
READERS: dict[str, Callable[[Reader, Node, Path, Use], Any]] = {
    **{key: READERS_BY_TYPE[kind] for key, kind in TYPES.items() if kind in READERS_BY_TYPE},
    "cron": Reader.cron,
    "timezone": Reader.timezone,
    "environments": Reader.job_environments,
    "payload": Reader.payload,
}
"""By key of a job: by the type of its field, but for those that have rules of their own."""


def key_of(node: Node) -> Node:
    """Return the node to point at when the key, not the value, is what is wrong."""
    return node.key or node


def build_retention(root: Node, reader: Reader) -> Retention:
    node = root.value.get("retention")
    if node is None or node.flawed or ("retention",) in reader.found.wrong:
        return Retention()
    values = {key: reader.duration(item, ("retention", key), node.use) for key, item in node.value.items()}
    return Retention(**{key: value for key, value in values.items() if value is not None})


def build_jobs(
    root: Node, reader: Reader, timezone: str | None, environment: str | None, paths: tuple[str, ...]
) -> dict[str, Job]:
    """Return the jobs that are valid, with what they inherit; report what is wrong with the others."""
    nodes: Node | None = root.value.get("jobs")
    node: Node | None = root.value.get("defaults")
    defaults: dict[str, Node] = {}
    use = None
    if node is not None and isinstance(node.value, dict):
        defaults = {key: item for key, item in node.value.items() if key in INHERITABLE}
        use = node.use
    inherited = {key: reader.read(key, item, ("defaults", key), use) for key, item in defaults.items()}
    _check_combinations(inherited, defaults, {}, ("defaults",), use, reader.found)
    if nodes is None or not isinstance(nodes.value, dict):
        return {}
    valid = {}
    for name, node in nodes.value.items():
        job = _build_job(name, node, nodes.use, reader, inherited, defaults, timezone, environment, paths)
        if job is not None:
            valid[name] = job
    return valid


def _build_job(
    name: str,
    node: Node,
    use: Use,
    reader: Reader,
    inherited: dict[str, Any],
    defaults: dict[str, Node],
    timezone: str | None,
    environment: str | None,
    paths: tuple[str, ...],
) -> Job | None:
    path = ("jobs", name)
    if not isinstance(node.value, dict):
        return None
    use = use if node.use is None else node.use
    own: dict[str, Node] = node.value
    values = {"timezone": timezone, **inherited}
    is_enqueued_only = "cron" not in own and (*path, "cron") not in reader.found.meant
    for key, item in own.items():
        if not (is_enqueued_only and key in CRON_ONLY):
            values[key] = reader.read(key, item, (*path, key), use)
    if is_enqueued_only:
        for key in CRON_ONLY:
            values.pop(key, None)
    else:
        _check_combinations(values, own, defaults, path, use, reader.found)
    if node.flawed or path in reader.found.wrong or any(values[key] is None for key in values):
        return None
    environments = values.pop("environments", None)
    if environments is not None:
        values["enabled"] = values.get("enabled", True) and environment in environments
    return Job(name, paths=paths, **values)


def _check_combinations(
    values: dict[str, Any], own: dict[str, Node], defaults: dict[str, Node], path: Path, use: Use, found: Findings
) -> None:
    """Report keys that contradict each other, at one that is the job's own."""
    if values.get("catchup") is Catchup.ALL and values.get("overlap") is Overlap.SKIP:
        at, other = ("catchup", "overlap") if "catchup" in own else ("overlap", "catchup")
        if at not in own:
            # both are inherited, and reported there
            found.spoil(path)
            return
        node = own[at]
        elsewhere = own.get(other) or defaults.get(other)
        notes = [(key_of(elsewhere).at, f"{other}: {values[other]} is here")] if elsewhere else []
        message = f"{where(path)}: catchup: all cannot be combined with overlap: skip"
        remedy = "Runs that are created together would skip each other: write overlap: wait, or catchup: latest."
        found.add("YS115", node, (*path, at), node.use or use, message, remedy, notes=notes)
