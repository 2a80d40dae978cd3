"""``/graph``: the chains of jobs that follow others, with the run of the latest slot
of each job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from itertools import groupby

from yamlsched.ask.queues import HeldUp
from yamlsched.db.query import fetch, fetch_grouped
from yamlsched.extras.web.visit import Page, Visit

MAX_DEPTH = 8
"""Deeper jobs are not indented further."""

STATES = ("dead", "failed", "waits", "running", "queued", "cancelled", "new", "succeeded")
"""The worst first: that of a chain is the worst of its jobs."""


@dataclass(frozen=True)
class ChainedJob:
    """A job, the jobs that it follows, and the run of its latest slot; None: it has had none."""

    job_type: str
    after: list[str]
    timezone: str
    run_id: int | None
    status: str | None
    scheduled_for: datetime | None
    waits: str | None


@dataclass(frozen=True)
class ChainLine:
    """A line of the page. ``depth`` is how many jobs are before it, counted along its longest
    chain; ``chain`` is the first name of what is connected with it.
    """

    job: ChainedJob
    depth: int
    chain: str

    @property
    def state(self) -> str:
        """One of ``STATES``."""
        return "waits" if self.job.waits else self.job.status or "new"


@dataclass(frozen=True)
class Graph:
    """The worst chain first, each with its worst state and its jobs, each job behind those that it
    follows.
    """

    chains: Sequence[tuple[str, Sequence[ChainLine]]]
    jobs: int
    max_chains = 100


def show(visit: Visit) -> Graph:
    jobs = fetch(visit.connection, ChainedJob, "follow.chains", namespace=visit.namespace)
    held_up = fetch_grouped(
        visit.connection, HeldUp, "health.held_up", namespaces=[visit.namespace]
    )
    roots = {
        each.job_type: f"held up by {each.because(visit.now)}"
        for each in reversed(held_up[visit.namespace])
    }
    jobs = [
        replace(job, waits=f"{job.waits}; {root}")
        if job.waits and (root := roots.get(job.job_type))
        else job
        for job in jobs
    ]
    lines = in_order({job.job_type: job for job in jobs})
    chains = [list(chain) for _, chain in groupby(lines, key=lambda line: line.chain)]
    states = [(min((line.state for line in chain), key=STATES.index), chain) for chain in chains]
    states.sort(key=lambda chain: STATES.index(chain[0]))
    return Graph(states, len(jobs))


def in_order(jobs: dict[str, ChainedJob]) -> Iterator[ChainLine]:
    """Yield the jobs of each chain together, each after those that it follows."""
    depths: dict[str, int] = {}
    chains: dict[str, str] = {}  # by job: the first name of what is connected with it
    try:
        order = list(
            TopologicalSorter(
                {name: sorted(jobs[name].after) for name in sorted(jobs)}
            ).static_order()
        )
    except CycleError:  # no file has one; an edit by hand may
        order = sorted(jobs)
    for name in (name for name in order if name in jobs):
        before = [other for other in jobs[name].after if other in depths]
        depths[name] = max((depths[other] + 1 for other in before), default=0)
        joined = {chains[other] for other in before}
        chains[name] = first = min(joined, default=name)
        if len(joined) > 1:
            chains |= {other: first for other, chain in chains.items() if chain in joined}
    for name in sorted(depths, key=lambda name: (chains[name], depths[name], name)):
        yield ChainLine(jobs[name], min(depths[name], MAX_DEPTH), chains[name])


PAGE = Page("/graph", "graph.html", show)
