"""Advice about what the keys of a job mean together."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

from yamlsched import backoff as delays
from yamlsched import durations
from yamlsched.definitions.advice.shared import Advice, interval
from yamlsched.definitions.diagnostic import WARNING, where
from yamlsched.definitions.job import Catchup, Job, Overlap
from yamlsched.definitions.load import Calls
from yamlsched.definitions.zones import ABBREVIATIONS

FREQUENT = timedelta(minutes=5)
SECRET = re.compile(
    r"(^|_)(password|passwd|pwd|secret|token|credentials?|api_?key|access_?key|private_?key|dsn)($|_)", re.I
)


def retries(advice: Advice, job: Job) -> None:
    keys = [key for key in ("backoff", "max_attempts") if advice.is_written(job, key)]
    if job.cron is None or job.overlap is Overlap.ALLOW or not keys:
        return
    longest = replace(job.backoff, jitter=0.0)
    total = sum((delays.delay(longest, attempt, 0.0) for attempt in range(1, job.max_attempts)), timedelta(0))
    if total > interval(job.cron):
        fate = "skips slots" if job.overlap is Overlap.SKIP else "holds up later slots"
        message = f"{where(('jobs', job.name))}: retries go on for {durations.show(total)}, slots come every "
        message += f"{durations.show(interval(job.cron))}: a failing run {fate}"
        advice.add("YS406", job, keys[0], message, "Retry less often or sooner, or write overlap: allow.")


def timeout(advice: Advice, job: Job) -> None:
    if job.cron is None or job.overlap is not Overlap.WAIT or not advice.is_written(job, "timeout"):
        return
    apart = durations.show(interval(job.cron))
    if job.timeout > interval(job.cron):
        message = f"{where(('jobs', job.name))}: an attempt may take {durations.show(job.timeout)}, slots come every "
        remedy = f"Write a timeout of at most {apart}, or overlap: skip."
        advice.add("YS407", job, "timeout", f"{message}{apart}: later ones wait", remedy)


def catchup(advice: Advice, job: Job) -> None:
    if job.cron is not None and job.catchup is Catchup.ALL and interval(job.cron) < FREQUENT:
        message = f"{where(('jobs', job.name))}: a day of downtime is made up for by {len(job.cron.times):,} runs"
        advice.add("YS408", job, "catchup", message, "Write catchup: latest, or a short catchup_window.")


def secrets(advice: Advice, calls: Calls) -> None:
    def look(value: Any, keys: tuple[str, ...]) -> None:
        for key, inner in value.items() if isinstance(value, dict) else ():
            if SECRET.search(key) and isinstance(inner, str) and inner:
                node, path, use = advice.loaded.value(calls.job, *keys, key)
                message = f"{where(path)} looks like a secret: payloads are stored in the database as they are"
                remedy = "Let the handler read it from its environment."
                advice.found.add("YS409", node.key or node, path, use, message, remedy, severity=WARNING)
            look(inner, (*keys, key))

    look(calls.payload, ("payload",))


def zone_names(advice: Advice, job: Job) -> None:
    if job.cron is None:
        return
    name = job.timezone
    if name in ABBREVIATIONS:
        reason, remedy = f"{name} is an abbreviation", f'Write a place, such as "{ABBREVIATIONS[name]}".'
    elif re.fullmatch(r"Etc/GMT[-+][1-9][0-9]*", name):
        hours, side = name[8:], "behind" if "+" in name else "ahead of"
        reason, remedy = f"{name} is {hours} h {side} UTC: its sign is the other way round", "Write a place."
    else:
        return
    if advice.is_written(job, "timezone"):
        advice.add("YS412", job, "timezone", f"{where(('jobs', job.name))}: timezone {reason}", remedy)
    else:
        assert advice.loaded.root is not None
        node = advice.loaded.root.value["timezone"]
        advice.found.add("YS412", node, ("timezone",), None, f"timezone {reason}", remedy, severity=WARNING)


def backoff(advice: Advice, job: Job) -> None:
    if not advice.is_written(job, "backoff"):
        return
    node, path, use = advice.loaded.value(job.name, "backoff")
    written, given = node.value, job.backoff

    def add(key: str, message: str, remedy: str) -> None:
        spot = written[key].key or written[key]
        message = f"{where(path)}: {message}"
        advice.found.add("YS414", spot, (*path, key), use, message, remedy, severity=WARNING)

    if given.policy == "steps":
        for key in ("delay", "max_delay"):
            if key in written:
                add(key, f"{key} has no effect with the policy steps", "Remove it.")
        if len(given.delays) > max(1, job.max_attempts - 1):
            message = f"{job.max_attempts} attempts use {job.max_attempts - 1} of the {len(given.delays)} delays"
            add("delays", message, f"Write max_attempts: {len(given.delays) + 1}, or fewer delays.")
    elif given.max_delay < given.delay:
        delay = durations.show(given.delay)
        message = f"the delay {delay} is cut to max_delay {durations.show(given.max_delay)}"
        add("max_delay" if "max_delay" in written else "delay", message, f"Write max_delay: {delay} or more.")
