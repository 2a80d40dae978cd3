"""``/files``: the file in force, the files that hosts present, and what was applied before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yamlsched.ask import edits
from yamlsched.ask.edits import Edit
from yamlsched.extras.web.ask import deployments
from yamlsched.extras.web.ask.deployments import ChangedJobs, Deployments
from yamlsched.extras.web.visit import Page, Visit


@dataclass(frozen=True)
class Files:
    """The page. ``problems`` counts the hosts whose file is not the one in force."""

    found: Deployments
    problems: int
    history: Sequence[tuple[Edit, Sequence[ChangedJobs], Sequence[str]]]  # with the keys outside of jobs that changed
    commit = staticmethod(edits.commit)


def show(visit: Visit) -> Files:
    found = deployments.read(visit.connection, visit.namespace, visit.now)
    return Files(
        found=found,
        problems=sum(one.state != "in force" for one in found.presented),
        history=[
            (
                edit,
                [ChangedJobs(kind, **jobs) for kind, jobs in edit.jobs.items()],
                [one.field for one in edits.fields(edit.before, edit.after)],
            )
            for edit in found.edits
        ],
    )


PAGE = Page("/files", "files.html", show, title="Files")
