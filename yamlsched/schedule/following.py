"""Jobs that follow others: the rules that concern several jobs, and the slots that a job has from those it follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from yamlsched.schedule.build import MAX_LISTED_NAMES, Reader, limit_spread
from yamlsched.schedule.job import Job
from yamlsched.schedule.node import Spot
from yamlsched.text import quoted


def follow(jobs: dict[str, Job], root: Spot, reader: Reader) -> dict[str, Job]:
    """Return the jobs with the slots that they have from those they follow. Report what cannot be followed."""
    followed = {name for job in jobs.values() for name in job.after}
    if not followed:
        return jobs
    edges = _Edges(jobs, root, reader)
    done: dict[str, Job] = {}
    for name in edges.in_order():
        if (job := edges.resolve(jobs[name], done)) is not None:
            done[name] = job
    return {name: replace(done[name], is_followed=name in followed) for name in jobs if name in done}


class _Edges:
    """Which job follows which, and where that is written."""

    def __init__(self, jobs: Mapping[str, Job], root: Spot, reader: Reader) -> None:
        self.jobs, self.found = jobs, reader.found
        self.source = reader.found.source
        self.entries = root.child("jobs")
        self.defaults = root.get("defaults")
        self.items = {job.name: self._items(job) for job in jobs.values()}

    def _items(self, job: Job) -> list[Spot]:
        """Return where the jobs are written that a job follows. Report those that do not exist."""
        items = list(self.entries.child(job.name).child("after").children()) if job.after else []
        names = [name for name in self.entries.value if name != job.name]
        known = f"Known: {', '.join(names[:MAX_LISTED_NAMES])}." if names else "There is no other job."
        for item in items:
            if item.value not in self.entries.value:
                remedy = self.source.did_you_mean(item.value, names, known)
                self.found.error(
                    item, "YS130", f"{item}: {quoted(item.value)} is not one of the jobs of the file", remedy
                )
        return items

    def in_order(self) -> list[str]:
        """Return the jobs, each after those that it follows. Report circles."""
        graph = {name: [item.value for item in items if item.value in self.jobs] for name, items in self.items.items()}
        while True:
            try:
                return list(TopologicalSorter(graph).static_order())
            except CycleError as error:
                circle: list[str] = error.args[1][::-1]
                name, other = circle[:2]
                item = next(item for item in self.items[name] if item.value == other)
                message = f"{item}: the jobs follow each other in a circle: {' -> '.join(circle)}"
                self.found.error(item, "YS131", message, "Remove one of them from after.")
                graph[name].remove(other)

    def resolve(self, job: Job, done: Mapping[str, Job]) -> Job | None:
        """Return a job with its slots, after those that it follows; None if it cannot follow one of them."""
        spot, items = self.entries.child(job.name), self.items[job.name]
        upstreams = [(item, done[item.value]) for item in items if item.value in done]
        for item, upstream in upstreams:
            if self.jobs[upstream.name].cron is None and not upstream.after:
                message = f"{item}: {quoted(upstream.name)} has no slots to wait for: it runs when it is enqueued"
                remedy = f"Give {upstream.name} a cron expression, or enqueue {job.name} from it."
                self.found.error(item, "YS132", message, remedy)
        if items and self.found.is_valid(spot):
            if job.cron is None and len(upstreams) == len(items):
                job = self._with_slots(job, spot, upstreams)
            self._check_environments(spot, upstreams)
        return job if self.found.is_valid(spot) else None

    def _with_slots(self, job: Job, spot: Spot, upstreams: list[tuple[Spot, Job]]) -> Job:
        """Return a job without a cron with the slots of those that it follows, which must agree."""
        (_, first), *others = upstreams
        for item, other in others:
            if _slots(other) != _slots(first):
                message = f"{spot} has the slots of those that it follows, and they differ: {first.name} has " + (
                    f"{_shown_slots(first)}, {other.name} has {_shown_slots(other)}"
                )
                remedy = "Give it a cron of its own: the time before which it does not run."
                self.found.error(item, "YS133", message, remedy)
                return job
        values: dict[str, Any] = {"cron": first.cron, "spread": job.spread}
        limit_spread(values, spot, self.found)
        return replace(job, timezone=first.timezone, **values)

    def _check_environments(self, spot: Spot, upstreams: list[tuple[Spot, Job]]) -> None:
        own = self._environments(spot)
        for item, upstream in upstreams:
            others = self._environments(self.entries.child(upstream.name))
            if own and others and not set(own) & set(others):
                message = (
                    f"{item}: {upstream.name} is enabled in {', '.join(others)} only, and {spot} in {', '.join(own)}"
                )
                self.found.error(item, "YS134", message, "Remove it, or enable both in one environment.")

    def _environments(self, spot: Spot) -> list[str]:
        listed = spot.get("environments") or (self.defaults and self.defaults.get("environments"))
        return [str(item.value) for item in listed.children()] if listed is not None else []


def _slots(job: Job) -> tuple[object, ...]:
    return job.cron, job.timezone


def _shown_slots(job: Job) -> str:
    return f'"{job.cron.source if job.cron else ""}" {job.timezone}'
