"""Jobs that follow others: the rules that concern several jobs, and the slots that a job has from those it follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    pass_ = _Pass(jobs, root, reader)
    done = {name: job for name in jobs if (job := pass_.resolve(name)) is not None}
    return {name: replace(job, is_followed=True) if name in followed else job for name, job in done.items()}


class _Pass:
    """One walk over the jobs of a file, each after those that it follows."""

    def __init__(self, jobs: Mapping[str, Job], root: Spot, reader: Reader) -> None:
        self.jobs, self.reader, self.found = jobs, reader, reader.found
        self.entries = root.child("jobs")
        self.defaults = root.get("defaults")
        self.done: dict[str, Job | None] = {}
        self.path: list[str] = []

    def resolve(self, name: str) -> Job | None:
        """Return a job with its slots; None if it is invalid, or follows one that is and has no cron of its own."""
        if name in self.done or name not in self.jobs:
            return self.done.get(name)
        job, spot = self.jobs[name], self.entries.child(name)
        self.path.append(name)
        items = spot.child("after").children() if job.after else ()
        upstreams = [(item, self._upstream(job, item)) for item in items]
        self.path.pop()
        if job.after and self.found.is_valid(spot):
            known = [(item, one) for item, one in upstreams if one is not None]
            if job.cron is None and len(known) == len(upstreams):
                job = self._with_slots(job, spot, known)
            self._check_environments(spot, known)
        self.done[name] = job if self.found.is_valid(spot) else None
        return self.done[name]

    def _upstream(self, job: Job, item: Spot) -> Job | None:
        name = str(item.value)
        if name not in self.entries.value:
            names = [other for other in self.entries.value if other != job.name]
            known = f"Known: {', '.join(names[:MAX_LISTED_NAMES])}."
            remedy = self.found.source.did_you_mean(name, names, known if names else "There is no other job.")
            self.found.error(item, "YS130", f"{item}: {quoted(name)} is not one of the jobs of the file", remedy)
            return None
        if name in self.path:
            circle = " -> ".join([*self.path[self.path.index(name) :], name])
            message = f"{item}: the jobs follow each other in a circle: {circle}"
            self.found.error(item, "YS131", message, "Remove one of them from after.")
            return None
        upstream = self.resolve(name)
        if upstream is not None and upstream.cron is None and not upstream.after:
            message = f"{item}: {quoted(name)} has no slots to wait for: it runs when it is enqueued"
            self.found.error(item, "YS132", message, f"Give {name} a cron expression, or enqueue {job.name} from it.")
        return upstream

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
                message = f"{item}: it is enabled in {', '.join(others)} only, and {spot} in {', '.join(own)}"
                self.found.error(item, "YS134", message, "Remove it, or enable both in one environment.")

    def _environments(self, spot: Spot) -> list[str]:
        listed = spot.get("environments") or (self.defaults and self.defaults.get("environments"))
        return [str(item.value) for item in listed.children()] if listed is not None else []


def _slots(job: Job) -> tuple[object, ...]:
    return job.cron, job.timezone


def _shown_slots(job: Job) -> str:
    return f'"{job.cron.source if job.cron else ""}" {job.timezone}'
