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
    CRON_RULES,
    WEEKDAYS,
    FieldRange,
    cron_expression,
    fields_of,
    interval,
)
from yamlsched.extras.importing.model import FAITHFUL, FireTimes, Place, Refusal, known_zone, shown
from yamlsched.schedule.findings import decode
from yamlsched.schedule.node import Node
from yamlsched.schedule.parse import parse
from yamlsched.timetable.cron import ALIASES
from yamlsched.timetable.zones import zone

RULES = (*CRON_RULES[:4], FieldRange("day of week", 0, 6, WEEKDAYS))
OVERLAP = {"Allow": "allow", "Forbid": "wait"}
"""Forbid does not forget a start: it comes when the running job has ended, like overlap: wait."""
MIN_CATCHUP_WINDOW, MAX_DURATION = timedelta(minutes=1), timedelta(days=365)
MAX_ATTEMPTS = 100
DEFAULT_BACKOFF_LIMIT = 6
BACKOFF = {"policy": "exponential", "delay": "10s", "max_delay": "6m"}
HISTORY = ("successfulJobsHistoryLimit", "failedJobsHistoryLimit")
KNOWN = {
    "CronJob": (
        *(
            "schedule",
            "timeZone",
            "jobTemplate",
            "suspend",
            "concurrencyPolicy",
            "startingDeadlineSeconds",
        ),
        *HISTORY,
    ),
    "job": (
        *(
            "template",
            "suspend",
            "completions",
            "parallelism",
            "completionMode",
            "podFailurePolicy",
        ),
        *("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"),
    ),
    "pod": (
        *(
            "containers",
            "initContainers",
            "restartPolicy",
            "activeDeadlineSeconds",
            "terminationGracePeriodSeconds",
        ),
        *("imagePullSecrets", "schedulerName", "enableServiceLinks"),
    ),
    "container": (
        *("name", "image", "command", "args", "env", "workingDir"),
        *("imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"),
    ),
}
"""Keys of each specification that are imported, or without which a run means the same. All others
are reported.
"""
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")
JOB = ("spec", "jobTemplate", "spec")
POD = (*JOB, "template", "spec")
OF_SERVICES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)")
"""Variables that Kubernetes sets for each service."""
OUR_FORMAT = (
    "it is a schedules.yaml already, and there is nothing to import: yamlsched validate checks it"
)
TRUE, FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n", "none")
"""Kubernetes reads YAML 1.1, where yes is true. None: the key is missing."""
WORKFLOW = "CronWorkflow"
NO_WORKFLOW = (
    "CronWorkflows of Argo are not imported: write a job for each step, with the command of its"
    " container, and after for the steps before it"
)
DOCUMENT = re.compile(r"^---(?=\s|$)", re.MULTILINE)


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
        keys = document.value if document is not None and isinstance(document.value, dict) else {}
        if {"version", "jobs"} <= keys.keys():
            whole.refused(OUR_FORMAT)
            is_any = True
        for manifest in _manifests(document):
            is_any = True
            line = findings.source.position(manifest.start)[0]
            with whole.at(line, "CronJob (no name): ").reporting():
                if _at(manifest, "kind") == WORKFLOW:
                    whole.at(line, "CronWorkflow: ").refused(NO_WORKFLOW)
                    continue
                name = str(_at(manifest, "metadata", "name") or "")
                place = whole.at(line, f"CronJob {shown(name or '(no name)')}: ")
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
    kind = _at(node, "kind")
    if kind in ("CronJob", WORKFLOW) and node is not None:
        yield node
    elif kind in ("List", "CronJobList") and node is not None and "items" in node.value:
        items = node.value["items"].value
        for item in items if isinstance(items, list) else ():
            if kind == "CronJobList" or _at(item, "kind") in ("CronJob", WORKFLOW):
                yield item


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


def _job(place: Place, name: str, manifest: Node) -> None:
    schedule = _at(manifest, "spec", "schedule")
    if not isinstance(schedule, str) or not name:
        raise Refusal("it has no spec.schedule or no metadata.name")
    policy = _at(manifest, "spec", "concurrencyPolicy") or "Allow"
    if policy == "Replace":
        raise Refusal(
            "concurrencyPolicy Replace stops running jobs: choose Forbid or Allow, and"
            " activeDeadlineSeconds"
        )
    if policy not in OVERLAP:
        raise Refusal(f"concurrencyPolicy {shown(policy)} is unknown")
    keys, times = _timing(place, schedule, manifest)
    pod = _at(manifest, *POD)
    keys |= _container(place, _only_container(manifest))
    for key in ("parallelism", "completions"):
        if (pods := _at(manifest, *JOB, key)) not in (None, 0, 1):
            raise Refusal(
                f"{key} {shown(pods)} starts several pods: write one command that does the work"
                " of all"
            )
    suspended = [_at(manifest, "spec", "suspend"), _at(manifest, *JOB, "suspend")]
    if unclear := [value for value in suspended if str(value).lower() not in (*TRUE, *FALSE)]:
        raise Refusal(f"suspend is {shown(unclear[0])}: write true or false")
    if any(str(value).lower() in TRUE for value in suspended):
        keys["enabled"] = False
    if codes := _exit_codes(place, _at(manifest, *JOB, "podFailurePolicy")):
        keys["exit_codes"] = {"discard": codes}
    parts = {"CronJob": _at(manifest, "spec"), "job": _at(manifest, *JOB), "pod": pod}
    for part, settings in parts.items():
        _report_others(place, part, settings)
    keys["overlap"], keys["catchup"] = OVERLAP[policy], "latest"
    _limits(place, manifest, pod, keys)
    place.add(name, f"CronJob {name}", keys, times)


def _timing(place: Place, schedule: str, manifest: Node) -> tuple[dict[str, Any], FireTimes]:
    """Return the keys and the fire times of an expression."""
    words, zone_name = schedule.split(), _at(manifest, "spec", "timeZone")
    if words and words[0].startswith(("TZ=", "CRON_TZ=")):
        zone_name = words.pop(0).partition("=")[2]
    if zone_name is None:
        place.changed("it has no timeZone: UTC is used, as by most clusters")
    zone_name = known_zone(zone_name or "UTC")
    cron, times = _schedule(" ".join(words), zone_name)
    return {"cron": cron, "timezone": zone_name}, times


def _exit_codes(place: Place, policy: Any) -> list[int]:
    """Return the exit codes that fail a job without a retry."""
    codes: set[int] = set()
    rules = policy.get("rules") if isinstance(policy, dict) else None
    for rule in rules if isinstance(rules, list) else ():
        match rule:
            case {
                "action": "FailJob",
                "onExitCodes": {"operator": "In", "values": [*values]},
            } if all(type(value) is int and 0 < value < 256 for value in values):
                codes.update(values)
            case _:
                action = shown(rule.get("action")) if isinstance(rule, dict) else shown(rule)
                place.dropped(f"the rule of podFailurePolicy {action}")
    return sorted(codes)


def _schedule(expression: str, zone_name: str) -> tuple[str, FireTimes]:
    """Return an expression as Kubernetes reads it (robfig/cron), and its fire times."""
    alias = expression.lower()
    if alias.startswith("@every "):
        return interval(_go_duration(alias[7:]))
    parts = ALIASES.get(alias, expression.replace("?", "*")).split()
    fields = fields_of(parts, RULES)
    is_unrestricted = [
        any(item in ("*", "*/1") for item in parts[index].split(",")) for index in (2, 4)
    ]
    calendar = OnCalendar(fields, zone(zone_name), EVERY_MATCH, either_day=not any(is_unrestricted))
    written = cron_expression(calendar, parts)
    return (alias if alias in ALIASES else written), calendar


def _go_duration(text: str) -> timedelta:
    try:
        return durations.parse(text.strip())
    except ValueError as error:
        raise Refusal(f"@every {shown(text)} is not an interval of whole seconds") from error


def _only_container(manifest: Node) -> dict[str, Any]:
    containers = _at(manifest, *POD, "containers")
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], dict):
        raise Refusal("it has no container")
    if len(containers) > 1 or _at(manifest, *POD, "initContainers"):
        raise Refusal("it has several containers: write one command that does the work of all")
    return containers[0]


def _container(place: Place, container: dict[str, Any]) -> dict[str, Any]:
    image = shown(container.get("image"))
    command, args = container.get("command") or [], container.get("args") or []
    if not command:
        remedy = "add its command (docker inspect shows it), and import again"
        raise Refusal(
            f"it runs the entry point of the image {image}, which the manifest does not name:"
            f" {remedy}"
        )
    if not isinstance(command, list) or not isinstance(args, list):
        raise Refusal("command and args are not lists")
    env: dict[str, str] = {}
    entries = container.get("env")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue
        if "valueFrom" in entry:
            origin = (
                ", ".join(map(str, entry["valueFrom"]))
                if isinstance(entry["valueFrom"], dict)
                else "elsewhere"
            )
            place.dropped(
                f"{shown(entry['name'])} comes from {shown(origin)}: set it in the environment of"
                " the worker"
            )
        else:
            env[entry["name"]] = _expanded(str(entry.get("value") or ""), env)
    keys: dict[str, Any] = {
        "command": [_argument(place, str(word), env, container) for word in (*command, *args)]
    }
    if env:
        keys["env"] = env
    if isinstance(container.get("workingDir"), str):
        keys["cwd"] = container["workingDir"]
    if container.get("image"):
        message = f"its command runs on the worker's host, without the image {image}"
        place.changed(f"{message}: run the worker in this image, or install the program there")
    _report_others(place, "container", container)
    return keys


def _report_others(place: Place, part: str, keys: Any) -> None:
    for key in sorted(map(str, keys)) if isinstance(keys, dict) else ():
        if key not in KNOWN[part] and keys.get(key) not in (None, [], {}):
            place.dropped(f"{shown(key)} of the {part}")


def _expanded(text: str, env: dict[str, str]) -> str:
    """Return ``text`` with each ``$(NAME)`` replaced that has a value, as Kubernetes does it."""
    return REFERENCE.sub(
        lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text
    )


def _argument(place: Place, text: str, env: dict[str, str], container: dict[str, Any]) -> str:
    """Return a word of the command. Raises Refusal for a variable that has its value in the cluster
    only.
    """
    entries = container.get("env")
    names = (
        [entry.get("name") for entry in entries if isinstance(entry, dict)]
        if isinstance(entries, list)
        else []
    )
    for reference in REFERENCE.finditer(text):
        name = reference[1]
        if name is None or name in env:
            continue
        if name in names or container.get("envFrom") or OF_SERVICES.search(name):
            what = f"{shown(reference[0])} in its command has no value in the manifest"
            raise Refusal(
                f'{what}: run a shell that reads "${name}", and set it in the environment of the'
                " worker"
            )
        place.advise(
            f"{shown(reference[0])} names no variable of the manifest: it is kept, as by Kubernetes"
        )
    return _expanded(text, env)


def _limits(place: Place, manifest: Node, pod: dict[str, Any], keys: dict[str, Any]) -> None:
    is_faithful = place.source.is_faithful
    if (window := _seconds(place, _at(manifest, "spec"), "startingDeadlineSeconds")) is not None:
        if window < MIN_CATCHUP_WINDOW:
            place.changed(
                f"startingDeadlineSeconds {window.seconds} becomes catchup_window: 1m, the shortest"
            )
        keys["catchup_window"] = durations.show(max(window, MIN_CATCHUP_WINDOW))
    retries = _at(manifest, *JOB, "backoffLimit")
    is_given = isinstance(retries, int) and not isinstance(retries, bool)
    if retries is not None and not is_given:
        place.dropped(f"backoffLimit {shown(retries)} is not a number")
    if is_faithful:
        keys |= {"timeout": FAITHFUL["timeout"], "backoff": BACKOFF}
    if is_given or is_faithful:
        keys["max_attempts"] = min(
            MAX_ATTEMPTS, max(0, retries if is_given else DEFAULT_BACKOFF_LIMIT) + 1
        )
    if (limit := _seconds(place, _at(manifest, *JOB), "activeDeadlineSeconds")) is not None:
        keys["timeout"] = durations.show(limit)
        if keys.get("max_attempts") != 1:
            place.changed(
                "activeDeadlineSeconds limits all attempts together, timeout limits each of them"
            )
    if (
        limit := _seconds(place, pod, "activeDeadlineSeconds")
    ) is not None:  # of each attempt, like timeout
        keys["timeout"] = durations.show(min(limit, durations.parse(keys.get("timeout") or "365d")))
    if (grace := _seconds(place, pod, "terminationGracePeriodSeconds")) is not None:
        keys["kill_after"] = durations.show(min(grace, timedelta(hours=1)))
    for key in HISTORY:
        if _at(manifest, "spec", key) is not None:
            place.dropped(f"{key}: retention keeps all runs for its time")


def _seconds(place: Place, values: Any, key: str) -> timedelta | None:
    """Return the seconds of a key. A value that is not a number, such as that of a template, is
    reported.
    """
    value = values.get(key) if isinstance(values, dict) else None
    if isinstance(value, bool) or not isinstance(value, int):
        if value is not None:
            place.dropped(f"{key} {shown(value)} is not a number")
        return None
    return timedelta(seconds=min(value, int(MAX_DURATION.total_seconds()))) if value > 0 else None
