"""Retry a run; see ``yamlsched retry``."""

from __future__ import annotations

from yamlsched.operations import actions, outlook
from yamlsched.runs import Status
from yamlsched.web.actions import subjects
from yamlsched.web.flow import Action, Asking, Conflict, Doing, Done, Field, Given, Invalid, Review
from yamlsched.web.results import Result
from yamlsched.web.visit import Visit

FORCE = Field("force", "Run it again although it has succeeded", "check")


def ask(visit: Visit, given: Given) -> Asking:
    return Asking("Retry a run", [subjects.RUN])


def review(visit: Visit, given: Given) -> Review:
    run = subjects.run(visit, given)
    found = outlook.of_retry(visit.connection, run)
    return Review(
        title=f"Retry run {run.id} of {run.job_type}",
        button=f"Retry run {run.id}",
        back=f"/runs/{run.id}",
        state=found.state,
        lines=found.lines,
        warnings=found.warnings,
        refusal=found.refusal,
        asks=[FORCE] if run.status == Status.SUCCEEDED else [],
        carried={"run": str(run.id), "was": run.status},
        target=f"run:{run.id}",
    )


def perform(doing: Doing, given: Given) -> Done:
    id, was = given.number("run"), given.choice("was", list(Status))
    if was == Status.SUCCEEDED and not given["force"]:
        raise Invalid("force", "Tick this to run it a second time.")
    target = f"run:{id}"
    with doing.transaction(target) as connection:
        if outlook.find(connection, doing.namespace, id) is None:
            raise Conflict(f"Run {id} does not exist any more: it was pruned.")
        [result] = actions.retry(connection, [id], doing.who, force=bool(given["force"]), expected=[was])
        if not result.changed:
            raise Conflict(f"Run {id} {result.what}{doing.since(connection, target)}.")
    return Done(f"/runs/{id}", Result(f"Run {id} {result.what}."))


ACTION = Action("retry", "Retry a run", ("run", "was", "force"), ("run",), ask, review, perform)
