"""CronJobs of Kubernetes, as YAML documents or JSON, also in a List.

The command of the container becomes the command of the job. Its image and volumes are not part of
it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from yamlsched import durations
from yamlsched.extras.importing.calendar import EVERY_MATCH, OnCalendar
from yamlsched.extras.importing.expression import (
    SUNDAY_IS_0,
    cron_expression,
    fields_of,
    interval,
)
from yamlsched.extras.importing.model import Place, Refusal, known_zone, shown
from yamlsched.schedule.findings import decode
from yamlsched.schedule.node import Node
from yamlsched.schedule.parse import parse
from yamlsched.timetable.cron import ALIASES

OVERLAP = {"Allow": "allow", "Forbid": "wait"}
"""Forbid does not forget a start: it comes when the running job has ended, like overlap: wait."""
MIN_CATCHUP_WINDOW, MAX_DURATION = timedelta(minutes=1), timedelta(days=365)
MAX_ATTEMPTS = 100
DEFAULT_BACKOFF_LIMIT = 6
BACKOFF = {"policy": "exponential", "delay": "10s", "max_delay": "6m"}
HARMLESS = {
    "successfulJobsHistoryLimit",
    "failedJobsHistoryLimit",
    "completionMode",
    "restartPolicy",
    "ttlSecondsAfterFinished",
    "imagePullSecrets",
    "schedulerName",
    "enableServiceLinks",
    "name",
    "imagePullPolicy",
    "terminationMessagePath",
    "terminationMessagePolicy",
}
"""Keys without which a run means the same. Every other one that is not read is reported."""
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")
WORKFLOW = "CronWorkflow"
NO_WORKFLOW = (
    "CronWorkflows of Argo are not imported: write a job for each step, with the command of its"
    " container, and after for the steps before it"
)
DOCUMENT = re.compile(r"^---(?=\s|$)", re.MULTILINE)
Settings = dict[str, Any]


def read(whole: Place) -> None:
    """Add the jobs of the manifests; objects of other kinds are ignored."""
    is_any = False
    for text in _documents(whole.source.text):
        findings = decode(text.encode(), whole.source.file)
        document = parse(findings)
        for error in findings.diagnostics():
            if document is None and error.code != "YS012":
                whole.at(error.line).refused(f"{error.message}: the document is not read")
                is_any = True
        for manifest in _manifests(document):
            is_any = True
            line = findings.source.position(manifest.start).line
            with whole.at(line, "CronJob (no name): ").reporting():
                name = str(_at(manifest, "metadata", "name") or "")
                place = whole.at(line, f"{_at(manifest, 'kind')} {shown(name or '(no name)')}: ")
                with place.reporting():
                    _job(place, name, manifest)
    if not is_any:
        whole.refused("no CronJob found")


def _documents(text: str) -> Iterator[str]:
    """Yield each document behind as many empty lines as there are lines in front of it, so that
    positions are right.
    """
    edges = [0, *(match.start() for match in DOCUMENT.finditer(text)), len(text)]
    for start, end in itertools.pairwise(edges):
        if text[start:end].strip():
            yield "\n" * text.count("\n", 0, start) + text[start:end]


def _manifests(node: Node | None) -> Iterator[Node]:
    if node is None or not isinstance(node.value, dict):
        return
    kind, items = _at(node, "kind"), node.value.get("items")
    if kind in ("CronJob", WORKFLOW):
        yield node
    elif kind == "List" and items is not None and isinstance(items.value, list):
        for item in items.value:
            yield from _manifests(item)


def _at(node: Node | None, *keys: str) -> Any:
    """Return the plain value at a path of keys; None where one is missing. Raises Refusal if it is
    not valid.
    """
    for key in keys:
        node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
    if node is None:
        return None
    if node.has_errors:
        raise Refusal(f"{'.'.join(keys)} is not valid YAML 1.2")
    return node.plain()


def _mapping(values: Settings, key: str) -> Settings:
    """Return a mapping in another one, which then counts as read. Raises Refusal if it is none."""
    value = values.pop(key, None)
    if value is not None and not isinstance(value, dict):
        raise Refusal(f"{key} is {shown(value)}, and not a mapping")
    return value or {}


def _job(place: Place, name: str, manifest: Node) -> None:
    if _at(manifest, "kind") == WORKFLOW:
        raise Refusal(NO_WORKFLOW)
    cron_job = _mapping({"spec": _at(manifest, "spec")}, "spec")
    job = _mapping(_mapping(cron_job, "jobTemplate"), "spec")
    pod = _mapping(_mapping(job, "template"), "spec")
    schedule = cron_job.pop("schedule", None)
    policy = str(cron_job.pop("concurrencyPolicy", None) or "Allow")
    if not isinstance(schedule, str) or not name:
        raise Refusal("it has no spec.schedule or no metadata.name")
    if policy == "Replace":
        raise Refusal(
            "concurrencyPolicy Replace stops running jobs: choose Forbid or Allow, and"
            " activeDeadlineSeconds"
        )
    if policy not in OVERLAP:
        raise Refusal(f"concurrencyPolicy {shown(policy)} is unknown")
    written, times = _timing(place, schedule, cron_job.pop("timeZone", None))
    container = _only_container(pod)
    keys = {"cron": written, **_command(place, container)}
    for key in ("parallelism", "completions"):
        if (pods := job.pop(key, None)) not in (None, 0, 1):
            raise Refusal(
                f"{key} {shown(pods)} starts several pods: write one command that does the work"
                " of all"
            )
    for value in (cron_job.pop("suspend", None), job.pop("suspend", None)):
        if value not in (None, True, False):
            raise Refusal(f"suspend is {shown(value)}: write true or false")
        if value:
            keys["enabled"] = False
    keys["overlap"], keys["catchup"] = OVERLAP[policy], "latest"
    _limits(place, cron_job, job, pod, keys)
    parts = {"CronJob": cron_job, "job": job, "pod": pod, "container": container}
    for part, settings in parts.items():
        for key in sorted(map(str, settings.keys() - HARMLESS)):
            if settings.get(key) not in (None, [], {}):
                place.dropped(f"{shown(key)} of the {part}")
    place.add(name, f"CronJob {name}", keys, times)


def _timing(place: Place, schedule: str, zone_name: Any) -> tuple[str, OnCalendar]:
    """Return the cron expression and the fire times of a schedule, as Kubernetes reads it
    (robfig/cron).
    """
    words = schedule.split()
    if words and words[0].startswith(("TZ=", "CRON_TZ=")):
        zone_name = words.pop(0).partition("=")[2]
    if zone_name is None:
        place.changed("it has no timeZone: UTC is used, as by most clusters")
    where = known_zone(zone_name or "UTC")
    expression = " ".join(words)
    alias = expression.lower()
    if alias.startswith("@every "):
        return interval(_go_duration(alias[7:]))
    parts = ALIASES.get(alias, expression.replace("?", "*")).split()
    fields = fields_of(parts, SUNDAY_IS_0)
    is_unrestricted = [
        any(item in ("*", "*/1") for item in parts[index].split(",")) for index in (2, 4)
    ]
    times = OnCalendar(fields, where, EVERY_MATCH, either_day=not any(is_unrestricted))
    written = alias if alias in ALIASES else cron_expression(times, parts)
    return written, times


def _go_duration(text: str) -> timedelta:
    try:
        return durations.parse(text.strip())
    except ValueError as error:
        raise Refusal(f"@every {shown(text)} is not an interval of whole seconds") from error


def _only_container(pod: Settings) -> Settings:
    match pod.pop("containers", None), pod.pop("initContainers", None):
        case [dict() as container], None | []:
            return container
        case [_, *_], _:
            raise Refusal("it has several containers: write one command that does the work of all")
    raise Refusal("it has no container")


def _command(place: Place, container: Settings) -> Settings:
    image = shown(container.pop("image", None))
    command, args = container.pop("command", None), container.pop("args", None) or []
    if not command:
        remedy = "add its command (docker inspect shows it), and import again"
        raise Refusal(
            f"it runs the entry point of the image {image}, which the manifest does not name:"
            f" {remedy}"
        )
    entries = container.pop("env", None) or []
    if not all(isinstance(value, list) for value in (command, args, entries)):
        raise Refusal("command, args or env is not a list")
    env: dict[str, str] = {}
    elsewhere: set[str] = set()
    for entry in entries:
        match entry:
            case {"name": str(variable), "valueFrom": origin}:
                elsewhere.add(variable)
                what = ", ".join(map(str, origin)) if isinstance(origin, dict) else "elsewhere"
                place.dropped(
                    f"{shown(variable)} comes from {shown(what)}: set it in the environment of the"
                    " worker"
                )
            case {"name": str(variable)}:
                env[variable] = _expanded(str(entry.get("value") or ""), env)
    words = [str(word) for word in (*command, *args)]
    for reference in REFERENCE.finditer("\n".join(words)):
        variable = reference[1]
        if variable in elsewhere or (variable and variable not in env and "envFrom" in container):
            what = f"{shown(reference[0])} in its command has no value in the manifest"
            raise Refusal(
                f'{what}: run a shell that reads "${variable}", and set it in the environment of'
                " the worker"
            )
    keys: Settings = {"command": [_expanded(word, env) for word in words]}
    if env:
        keys["env"] = env
    if isinstance(folder := container.pop("workingDir", None), str):
        keys["cwd"] = folder
    if image != "null":
        message = f"its command runs on the worker's host, without the image {image}"
        place.changed(f"{message}: run the worker in this image, or install the program there")
    return keys


def _expanded(text: str, env: dict[str, str]) -> str:
    """Return ``text`` with each ``$(NAME)`` replaced that has a value, as Kubernetes does it."""
    return REFERENCE.sub(
        lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text
    )


def _limits(place: Place, cron_job: Settings, job: Settings, pod: Settings, keys: Settings) -> None:
    if window := _seconds(place, cron_job, "startingDeadlineSeconds"):
        keys["catchup_window"] = durations.show(max(window, MIN_CATCHUP_WINDOW))
        if window < MIN_CATCHUP_WINDOW:
            place.changed(
                f"startingDeadlineSeconds {window.seconds} becomes catchup_window: 1m, the shortest"
            )
    retries = _number(place, job, "backoffLimit")
    if place.source.is_faithful:
        keys["backoff"] = BACKOFF
        retries = DEFAULT_BACKOFF_LIMIT if retries is None else retries
    if retries is not None:
        keys["max_attempts"] = min(MAX_ATTEMPTS, max(0, retries) + 1)
    if limit := _seconds(place, job, "activeDeadlineSeconds"):
        keys["timeout"] = durations.show(limit)
        if keys.get("max_attempts") != 1:
            place.changed(
                "activeDeadlineSeconds limits all attempts together, timeout limits each of them"
            )
    # that of the pod is of each attempt, like timeout
    if limit := _seconds(place, pod, "activeDeadlineSeconds"):
        keys["timeout"] = durations.show(min(limit, durations.parse(keys.get("timeout") or "365d")))
    if grace := _seconds(place, pod, "terminationGracePeriodSeconds"):
        keys["kill_after"] = durations.show(min(grace, timedelta(hours=1)))


def _seconds(place: Place, values: Settings, key: str) -> timedelta | None:
    number = _number(place, values, key)
    return (
        min(timedelta(seconds=min(number, 10**9)), MAX_DURATION) if number and number > 0 else None
    )


def _number(place: Place, values: Settings, key: str) -> int | None:
    """Return the number of a key. Another value, such as that of a template, is reported."""
    value = values.pop(key, None)
    if value is None or type(value) is int:
        return value
    place.dropped(f"{key} {shown(value)} is not a number")
    return None
