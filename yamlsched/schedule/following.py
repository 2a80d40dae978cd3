"""Jobs that answer to others: which jobs are hooks, what jobs follow, and the slots that a job has
from those it follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import Job
from yamlsched.schedule.node import Spot
from yamlsched.schedule.reader import MAX_LISTED_NAMES, Reader
from yamlsched.schedule.schema import HOOKS
from yamlsched.schedule.when import limit_spread
from yamlsched.text import quoted

OWN_SLOTS = ("cron", "crons", "after")
"""The keys that a hook does not have: it runs when another job's run ends."""


def follow(jobs: dict[str, Job], reader: Reader) -> dict[str, Job]:
    """Return the jobs with the slots that they have from those they follow. Report what cannot be
    followed.

    A job whose entry has other errors can be followed, too.
    """
    entries = {str(entry.path[-1]): entry for entry in reader.root.entries("jobs")}
    named = {name: _followed(entry, entries, reader) for name, entry in entries.items()}
    done: dict[str, Job] = {}
    what = "the jobs follow each other in a circle"
    for name in in_order(named, reader.findings, "YS131", what, "after"):
        upstreams = [(item, done[other]) for other, item in named[name].items() if other in done]
        job = _resolved(jobs.get(name), entries[name], upstreams, reader.findings)
        if job is not None and reader.findings.is_valid(entries[name]):
            done[name] = job
    for name in {name for job in jobs.values() for name in job.after if name in done}:
        done[name] = replace(done[name], is_followed=True)
    return {name: done[name] for name in jobs if name in done}


def _followed(entry: Spot, entries: dict[str, Spot], reader: Reader) -> dict[str, Spot]:
    """Return the jobs that a job follows, and where it names them. Report names of no job."""
    after = entry.get("after")
    if after is None or not reader.findings.is_valid(after):
        return {}
    for item in after.children():
        if item.value not in entries:
            others = {name: other for name, other in entries.items() if name != entry.path[-1]}
            reader.check_name(item, others, "YS130", "jobs", "There is no other job.")
    return {item.value: item for item in after.children() if item.value in entries}


def in_order(
    named: dict[str, dict[str, Spot]], findings: Findings, code: str, what: str, key: str
) -> list[str]:
    """Return jobs, each after those that it names, which are given with where it names them. Of
    circles that share a job, one is reported.
    """
    while True:
        try:
            return list(TopologicalSorter(named).static_order())
        except CycleError as error:
            circle: list[str] = error.args[1][
                ::-1
            ]  # each names the next one; the last is the first
        first, second = circle[:2]
        item, shown = named[first][second], " -> ".join(circle[:MAX_LISTED_NAMES])
        if len(circle) > MAX_LISTED_NAMES:
            shown += " -> ..."
        findings.error(item, code, f"{item}: {what}: {shown}", f"Remove one of them from {key}.")
        named = named | {name: {} for name in circle}


def _resolved(
    job: Job | None, spot: Spot, upstreams: list[tuple[Spot, Job]], findings: Findings
) -> Job | None:
    """Return a job with its slots, after those that it follows. Report those that do not fit."""
    for item, upstream in upstreams:
        if upstream.cron is None and not upstream.after:
            name = upstream.name
            message = f"{item}: {name} has no slots to wait for: it runs when it is enqueued"
            remedy = f"Give {name} a cron expression, or enqueue {spot.path[-1]} from it."
            findings.error(item, "YS132", message, remedy)
    if job is None or not upstreams or not findings.is_valid(spot):
        return job
    for item, upstream in upstreams:
        own, others = job.environments, upstream.environments
        if own and others and not set(own) & set(others):
            message = (
                f"{item}: {upstream.name} is enabled in {', '.join(others)} only, and {spot} in"
                f" {', '.join(own)}"
            )
            remedy = "Remove it, or enable both in one environment."
            findings.error(item, "YS134", message, remedy)
    is_complete = len(upstreams) == len(job.after)
    return _with_slots(job, spot, upstreams, findings) if job.cron is None and is_complete else job


def _with_slots(job: Job, spot: Spot, upstreams: list[tuple[Spot, Job]], findings: Findings) -> Job:
    """Return a job without a cron with the slots of those that it follows, which must agree."""
    (_, first), *others = upstreams
    for item, other in others:
        if _slots(other) != _slots(first):
            message = (
                f"{spot} has the slots of the jobs it follows, but they differ: {first.name} has"
                f" {_shown_slots(first)}, {other.name} has {_shown_slots(other)}"
            )
            remedy = "Give it its own cron: the earliest time at which it runs."
            findings.error(item, "YS133", message, remedy)
            return job
    values: dict[str, Any] = {"cron": first.cron, "spread": job.spread}
    limit_spread(values, spot, findings)
    return replace(job, timezone=first.timezone, **values)


def _slots(job: Job) -> tuple[object, ...]:
    cron = job.cron
    if cron is None:
        return job.timezone, None
    expressions = {
        (expression.times, expression.date_fields, expression.wildcard)
        for expression in cron.expressions
    }
    weeks = cron.every > 1 and (cron.every, cron.starts_on)
    return job.timezone, expressions, cron.starts_on, cron.ends_on, weeks, bool(cron.parts)


def _shown_slots(job: Job) -> str:
    return f'"{job.cron.source if job.cron else ""}" {job.timezone}'


def hook_names(reader: Reader) -> set[str]:
    """Return the jobs that a list of hooks names. Report those that have slots of their own, and
    hooks in a circle.

    A circle needs jobs' own lists only: what ``defaults`` lists is not inherited by a hook.
    """
    root, findings = reader.root, reader.findings
    entries = {str(entry.path[-1]): entry for entry in root.entries("jobs")}
    own = {
        name: {item.value: item for item in _items(entry, reader) if item.value in entries}
        for name, entry in entries.items()
    }
    inherited = [item for defaults in root.layers() for item in _items(defaults, reader)]
    items = [*inherited, *(item for listed in own.values() for item in listed.values())]
    for item in items:
        if item.value in entries:
            _check_slots(item, entries[item.value], findings)
    in_order(own, findings, "YS162", "the jobs are hooks of each other in a circle", "the list")
    return {item.value for item in items}


def _check_slots(item: Spot, entry: Spot, findings: Findings) -> None:
    """Report a hook that runs at slots."""
    for key in OWN_SLOTS:
        if entry.get(key):
            message = (
                f"{item}: {quoted(item.value)} has {key}, but a hook runs only when a run of"
                " another job ends"
            )
            remedy = f"Remove {key} from {item.value}, or name a job without slots."
            findings.error(item, "YS161", message, remedy)
            return


def _items(place: Spot, reader: Reader) -> Iterator[Spot]:
    """Yield the names in the lists of hooks of a job or of ``defaults``."""
    for key in HOOKS:
        hooks = place.get(key)
        for item in hooks.children() if hooks and isinstance(hooks.value, list) else ():
            if isinstance(item.value, str) and reader.findings.is_valid(item):
                yield item
