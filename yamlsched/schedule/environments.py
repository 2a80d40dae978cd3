"""The environments of a file, and the file as it is in one of them."""

from __future__ import annotations

from collections.abc import Collection

from yamlsched.schedule import schema_check
from yamlsched.schedule.node import DEFAULTS, Node, Path, Spot
from yamlsched.schedule.reader import Reader
from yamlsched.schedule.schema import HOOKS, NEEDED_KEYS, SCHEMA, WHOLE_JOB, Schema
from yamlsched.text import join_words, quoted

REPLACED = {"cron": "crons", "crons": "cron", "handler": "command", "command": "handler"}
"""By key: the one that leaves when an environment sets it."""


def declared(root: Spot) -> tuple[str, ...]:
    """Return the names of the environments; also those of a list, which is not valid."""
    spot = root.get("environments")
    if spot is None:
        return ()
    if isinstance(spot.value, dict):
        return tuple(spot.value)
    return tuple(item.value for item in spot.children() if isinstance(item.value, str))


def check(reader: Reader, environment: str | None) -> None:
    """Report that ``environment`` is not one of the file, and values for jobs that cannot have
    them.
    """
    root, findings, names = reader.root, reader.findings, reader.names["environments"]
    spot = root.get("environments")
    if spot is not None and environment and environment not in names:
        message = f"environment {quoted(environment)} is not in the environments of the file"
        remedy = findings.source.did_you_mean(
            environment, names, "Add it here, or fix --env or YAMLSCHED_ENV."
        )
        findings.error(spot.key, "YS116", message, remedy)
    for entry in root.entries("environments"):
        for defaults in filter(None, [entry.get("defaults")]):
            _refuse_environments(defaults, reader)
        for override in entry.entries("jobs"):
            _check_override(override, reader)


def _check_override(override: Spot, reader: Reader) -> None:
    """Report values of an environment for a job that does not exist, or is not enabled there."""
    environment, job = str(override.path[1]), str(override.path[-1])
    entries, findings = reader.root.get("jobs"), reader.findings
    if entries is None or not isinstance(entries.value, dict):
        return
    if job not in entries.value:
        spot = Spot(override.key.node, override.path[:-1])
        reader.check_name(spot, entries.value, "YS150", "jobs", "There are no jobs.")
        findings.mark_invalid(override.path)
        return
    _refuse_environments(override, reader)
    listed = reader.root.written(job, "environments")
    names = [str(item.value) for item in listed.children()] if listed else []
    if listed and findings.is_valid(listed) and environment not in names:
        message = f"{override}: the job is enabled in {join_words(names)} only"
        remedy = f"Remove it, or add {environment} to environments of the job."
        notes = [(listed.key.node.start, "environments is here")]
        findings.error(override.key, "YS151", message, remedy, notes=notes)


def _refuse_environments(spot: Spot, reader: Reader) -> None:
    if listed := spot.get("environments"):
        message = f"{spot} cannot set environments"
        remedy = "Set it in the job, or write enabled: false here."
        reader.findings.error(listed.key, "YS152", message, remedy)


def merge(reader: Reader, environment: str | None) -> tuple[Reader, Collection[str]]:
    """Return a reader of the file as it is in ``environment``, and the jobs that may differ there.

    The nodes keep their positions. What is merged is checked again: two keys may be valid, and not
    together.
    """
    root, findings = reader.root, reader.findings.copy()
    values = root.get("environments", environment) if environment else None
    top: dict[str, Node] = {**root.value}
    checks: list[tuple[Path, Schema]] = []
    defaults = values and values.get("defaults")
    if defaults and isinstance(defaults.value, dict):
        for key in {DEFAULTS, *(str(spot.path[-1]) for spot in root.layers())}:
            top[key] = _merge(top.get(key), defaults.node)
            checks.append(((key,), SCHEMA["properties"][DEFAULTS]))
    overrides = {
        str(spot.path[-1]): spot.node
        for spot in (values.entries("jobs") if values else ())
        if root.get("jobs", spot.path[-1]) and isinstance(spot.value, dict)
    }
    if overrides:
        entries = dict(top["jobs"].value)
        for name, override in overrides.items():
            entries[name] = _merge(entries[name], override)
            checks.append((("jobs", name), WHOLE_JOB))
        top["jobs"] = top["jobs"].merged(entries)
    merged = Spot(root.node.merged(top))
    paths = {path for path, _ in checks}
    findings.invalid = {
        path for path in findings.invalid if path[:1] not in paths and path[:2] not in paths
    }
    for path, schema in checks:
        if spot := merged.get(*path):
            schema_check.check(spot, findings, schema)
    has_hooks = any(not node.value.keys().isdisjoint(HOOKS) for node in overrides.values())
    # a hook does not inherit hooks: any job may be one there, and not elsewhere
    changed = reader.names["jobs"] if defaults or has_hooks else overrides
    return Reader(merged, findings, reader.names), changed


def _merge(base: Node | None, override: Node) -> Node:
    """Return a mapping with the values of another one over its own."""
    if base is None or not isinstance(base.value, dict):
        return override
    values, new = base.value, override.value
    gone = {REPLACED[key] for key in new if key in REPLACED}
    gone |= {key for key, needed in NEEDED_KEYS.items() if gone.issuperset(needed)}
    kept = {key: node for key, node in values.items() if key not in gone}
    return base.merged({**kept, **new})
