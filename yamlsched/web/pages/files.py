"""``/files``: the file in force, the files that hosts present, and what was applied before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yamlsched.operations import deployments
from yamlsched.operations.deployments import Deployments
from yamlsched.store.deployments import ChangedJobs
from yamlsched.web.visit import Page, Visit

STYLES = {
    "in force": "ok",
    "to be applied": "queued",
    "held back": "due",
    "another file": "due",
    "other environment": "failing",
    "other namespace": "failing",
    "refused": "failing",
}
"""The style of each state of a file."""
NO_ENVIRONMENT = "none"


@dataclass(frozen=True)
class Files:
    """The page. ``problems`` counts the hosts whose file is not the one in force."""

    found: Deployments
    problems: int
    history: Sequence[tuple[object, Sequence[ChangedJobs] | None]]
    styles = STYLES


def show(visit: Visit) -> Files:
    found = deployments.read(visit.connection, visit.namespace, visit.now)
    return Files(
        found=found,
        problems=sum(one.state != "in force" for one in found.presented),
        history=[(file, _changes(file.changes)) for file in found.applied],
    )


def _changes(stored: dict[str, dict[str, object]] | None) -> list[ChangedJobs] | None:
    """Return what applying a file changed; None if that was not recorded."""
    if stored is None:
        return None
    return [ChangedJobs(kind, **found) for kind, found in stored.items()]  # type: ignore[arg-type]


PAGE = Page("/files", "files.html", show, title="Files")
