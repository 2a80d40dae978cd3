"""Jobs that answer to others: which jobs are hooks, what jobs follow, and the slots that a job has
from those it follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """
    entries = reader.root.get("jobs")
    edges = _Edges(jobs, entries, reader) if entries else None
    if edges is None or not edges.items:
        return jobs
    done: dict[str, Job] = {}
    for name in edges.in_order():
        if (job := edges.resolve(name, done)) is not None:
            done[name] = job
    followed = {name for job in jobs.values() for name in job.after}
    return {
        name: replace(done[name], is_followed=name in followed) for name in jobs if name in done
    }


def in_order(
    named: dict[str, dict[str, Spot]], findings: Findings, code: str, what: str, key: str
) -> list[str]:
    """Return jobs, each after those that it names, which are given with where it names them. Of
    circles that share a job, one is reported.
    """
    place = {name: number for number, name in enumerate(named)}
    while True:
        try:
            return list(TopologicalSorter(named).static_order())
        except CycleError as error:
            circle: list[str] = error.args[1][:0:-1]  # each names the next one
        start = circle.index(min(circle, key=place.__getitem__))
        circle = circle[start:] + circle[:start]
        first, second = circle[0], (circle * 2)[1]
        item, shown = named[first][second], [*circle, first]
        if len(shown) > MAX_LISTED_NAMES:
            shown[MAX_LISTED_NAMES - 2 : -2] = [f"({len(shown) - MAX_LISTED_NAMES} more)"]
        message = f"{item}: {what}: {' -> '.join(shown)}"
        findings.error(item, code, message, f"Remove one of them from {key}.")
        named = named | {name: {} for name in circle}


class _Edges:
    """Which job follows which, and where that is written. A job whose entry has other errors is one
    of them.
    """

    def __init__(self, jobs: Mapping[str, Job], entries: Spot, reader: Reader) -> None:
        self.jobs, self.entries, self.findings = jobs, entries, reader.findings
        self.items = {
            str(entry.path[-1]): list(after.children())
            for entry in entries.children()
            if (after := entry.get("after")) is not None and self.findings.is_valid(after)
        }
        for name, items in self.items.items():
            for item in items:
                if item.value not in entries.value:
                    others = {
                        other: entry for other, entry in entries.value.items() if other != name
                    }
                    reader.check_name(item, others, "YS130", "jobs", "There is no other job.")

    def in_order(self) -> list[str]:
        """Return the jobs, each after those that it follows. Report circles."""
        followed = {
            name: {
                item.value: item
                for item in self.items.get(name, ())
                if item.value in self.entries.value
            }
            for name in self.entries.value
        }
        what = "the jobs follow each other in a circle"
        return in_order(followed, self.findings, "YS131", what, "after")

    def resolve(self, name: str, done: Mapping[str, Job]) -> Job | None:
        """Return a job with its slots, after those that it follows; None if it is not valid."""
        spot, items, job = self.entries.child(name), self.items.get(name, []), self.jobs.get(name)
        upstreams = [(item, done[item.value]) for item in items if item.value in done]
        for item, upstream in upstreams:
            if self.jobs[upstream.name].cron is None and not upstream.after:
                message = (
                    f"{item}: {quoted(upstream.name)} has no slots to wait for: it runs when it is"
                    " enqueued"
                )
                remedy = f"Give {upstream.name} a cron expression, or enqueue {name} from it."
                self.findings.error(item, "YS132", message, remedy)
        if job and items and self.findings.is_valid(spot):
            if job.cron is None and len(upstreams) == len(items):
                job = self._with_slots(job, spot, upstreams)
            self._check_environments(job, spot, upstreams)
        return job if self.findings.is_valid(spot) else None

    def _with_slots(self, job: Job, spot: Spot, upstreams: list[tuple[Spot, Job]]) -> Job:
        """Return a job without a cron with the slots of those that it follows, which must agree."""
        (_, first), *others = upstreams
        for item, other in others:
            if _slots(other) != _slots(first):
                message = (
                    f"{spot} has the slots of those that it follows, and they differ: {first.name}"
                    " has " + f"{_shown_slots(first)}, {other.name} has {_shown_slots(other)}"
                )
                remedy = "Give it a cron of its own: the time before which it does not run."
                self.findings.error(item, "YS133", message, remedy)
                return job
        values: dict[str, Any] = {"cron": first.cron, "spread": job.spread}
        limit_spread(values, spot, self.findings)
        return replace(job, timezone=first.timezone, **values)

    def _check_environments(self, job: Job, spot: Spot, upstreams: list[tuple[Spot, Job]]) -> None:
        own = job.environments
        for item, upstream in upstreams:
            others = upstream.environments
            if own and others and not set(own) & set(others):
                message = (
                    f"{item}: {upstream.name} is enabled in {', '.join(others)} only, and {spot} in"
                    f" {', '.join(own)}"
                )
                self.findings.error(
                    item, "YS134", message, "Remove it, or enable both in one environment."
                )


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
                f"{item}: {quoted(item.value)} has {key}, and a hook runs only when the run of"
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
