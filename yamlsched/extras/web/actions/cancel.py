"""Cancel a run; see ``yamlsched cancel``."""

from __future__ import annotations

from yamlsched.act import runs
from yamlsched.extras.web.actions import subjects
from yamlsched.extras.web.ask import outlook
from yamlsched.extras.web.flow import Action, Asking, Conflict, Doing, Field, Given, Redirect, Review
from yamlsched.extras.web.results import Result
from yamlsched.extras.web.visit import Visit
from yamlsched.runs.lifecycle import Status

REASON = Field("reason", "Why", hint="Recorded with the action. May be empty.")


def ask(visit: Visit, given: Given) -> Asking:
    return Asking("Cancel a run", [subjects.RUN])


def review(visit: Visit, given: Given) -> Review:
    run = subjects.run(visit, given)
    found = outlook.of_cancel(visit.connection, run)
    return Review(
        title=f"Cancel run {run.id} of {run.job_type}",
        button=f"Cancel run {run.id}",
        back=f"/runs/{run.id}",
        state=found.state,
        lines=found.lines,
        warnings=found.warnings,
        refusal=found.refusal,
        asks=[REASON],
        carried={"run": str(run.id), "was": run.status},
        target=f"run:{run.id}",
        is_final=True,
    )


def perform(doing: Doing, given: Given) -> Redirect:
    id, was = given.number("run"), given.choice("was", list(Status))
    target = f"run:{id}"
    with doing.transaction(target) as connection:
        if outlook.find(connection, doing.namespace, id) is None:
            raise Conflict(f"Run {id} does not exist any more: it was pruned.")
        [result] = runs.cancel(connection, [id], doing.who, reason=given["reason"] or None, expected=[was])
        if not result.changed:
            raise Conflict(f"Run {id} {result.what}{doing.since(connection, target)}.")
    return Redirect(f"/runs/{id}", Result(f"Run {id} {result.what}."))


ACTION = Action("cancel", "Cancel a run", ("run", "was", "reason"), ("run",), ask, review, perform)
