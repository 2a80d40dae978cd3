"""Retry the dead runs of a job, or cancel its unfinished ones; see ``yamlsched retry --dead`` and ``cancel --job``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from yamlsched.act import runs, statements
from yamlsched.act.runs import BATCH_RUNS, ActionResult
from yamlsched.act.statements import ANY_TYPE
from yamlsched.extras.web.actions import subjects
from yamlsched.extras.web.actions.cancel import REASON
from yamlsched.extras.web.ask.audit import of_request
from yamlsched.extras.web.flow import Action, Asking, Doing, Field, Given, Invalid, Redirect, Review
from yamlsched.extras.web.render import bounded, count
from yamlsched.extras.web.results import Result
from yamlsched.extras.web.visit import Visit
from yamlsched.runs.lifecycle import Status
from yamlsched.timetable import times
from yamlsched.timetable.times import rfc3339

MAX_RUNS = 5_000
"""Runs of one form. Of more, the oldest are taken."""
MAX_LISTED = 50
NO_TYPE = "-"
"""In a link: runs that died without an error_type."""
CALLS = {"": None, "no": False, "only": True}
CALLS_FIELD = Field(
    "calls",
    "Calls of on_dead",
    "select",
    choices=[("", "included"), ("no", "left out"), ("only", "only these")],
)
STATES = {
    "waiting": (Status.QUEUED, Status.FAILED),
    "running": (Status.RUNNING,),
    "unfinished": (Status.QUEUED, Status.FAILED, Status.RUNNING),
}


def ask_retry(visit: Visit, given: Given) -> Asking:
    hint = "Only runs that died of this class of error. Empty: all dead runs of the job."
    fields = [subjects.job_field(visit, given), Field("error_type", "Error", hint=hint), CALLS_FIELD]
    return Asking("Retry dead runs", fields)


def review_retry(visit: Visit, given: Given) -> Review:
    job = subjects.job(visit, given)
    until = visit.now
    ids = statements.dead_ids(visit.connection, job.id, _error_type(given), _calls(given), until, MAX_RUNS + 1)
    what = f"dead {'run' if len(ids) == 1 else 'runs'} of {job.job_type}{_of_error(given)}"
    refusal = "" if ids else f"There are no {what}."
    lines = [_number(ids, what)]
    if ids:
        outlook = statements.outlook(visit.connection, visit.namespace, ids[0])
        assert outlook is not None
        wait = "wait until the job is resumed: it is paused" if outlook.paused else "run again as workers become free"
        more = count(outlook.budget, "more attempt")
        lines.append(f"They {wait}. Each gets {more}, and the delays between them start over.")
        if outlook.on_dead:
            lines.append(f"For each that dies, {outlook.on_dead} is called again (on_dead).")
        lines.append("Effects that are done already (run.once) are not repeated.")
        if outlook.retired_at is not None:
            refusal = f"{job.job_type} was removed from schedules.yaml, so no worker would claim them."
        elif not outlook.enabled:
            refusal = f"{job.job_type} is not enabled in schedules.yaml, so no worker would claim them."
    return Review(
        title=f"Retry {bounded(len(ids), MAX_RUNS, 'dead run')} of {job.job_type}",
        button=f"Retry {count(min(len(ids), MAX_RUNS), 'run')}",
        back="/dead",
        lines=lines,
        refusal=refusal,
        carried={"until": rfc3339(until)},
        heading="The runs",
        listed=[f"run {id}" for id in ids[:MAX_LISTED]],
        total=min(len(ids), MAX_RUNS),
    )


def perform_retry(doing: Doing, given: Given) -> Redirect:
    until = _instant(given)

    def select(connection: Any, definition: int) -> list[int]:
        return statements.dead_ids(connection, definition, _error_type(given), _calls(given), until, MAX_RUNS)

    def act(connection: Any, ids: Sequence[int]) -> list[ActionResult]:
        return runs.retry(connection, ids, doing.who, expected=[Status.DEAD])

    return _perform(doing, given["job"], select, act, "queued again", "/dead")


def ask_cancel(visit: Visit, given: Given) -> Asking:
    choices = [
        ("waiting", "waiting: queued, or waiting to retry"),
        ("running", "running: their handlers are killed"),
        ("unfinished", "all unfinished"),
    ]
    return Asking(
        f"Cancel runs of {given['job']}" if given["job"] else "Cancel runs",
        [subjects.job_field(visit, given), Field("state", "Which runs", "select", choices=choices, is_required=True)],
    )


def review_cancel(visit: Visit, given: Given) -> Review:
    job = subjects.job(visit, given)
    statuses = STATES[given.choice("state", tuple(STATES))]
    ids = statements.open_ids(visit.connection, visit.namespace, job.id, statuses, None, MAX_RUNS + 1)
    what = f"{given['state']} {'run' if len(ids) == 1 else 'runs'} of {job.job_type}"
    lines = [_number(ids, what)]
    if Status.RUNNING in statuses:
        lines.append(
            "Running handlers are killed at the next heartbeat of their worker. What they have done stays done."
        )
    if Status.QUEUED in statuses:
        lines.append(
            "Waiting runs are cancelled at once, and do not run. Slots that are still to come are not affected."
        )
    lines.append(
        "They count as neither succeeded nor dead: on_dead is not called. A retry makes a cancelled run due again."
    )
    return Review(
        title=f"Cancel {bounded(len(ids), MAX_RUNS, given['state'] + ' run')} of {job.job_type}",
        button=f"Cancel {count(min(len(ids), MAX_RUNS), 'run')}",
        back=f"/jobs/{job.job_type}",
        lines=lines,
        refusal="" if ids else f"There are no {what}.",
        asks=[REASON],
        carried={"upto": str(max(ids, default=0))},
        heading="The runs",
        listed=[f"run {id}" for id in ids[:MAX_LISTED]],
        total=min(len(ids), MAX_RUNS),
        is_final=True,
    )


def perform_cancel(doing: Doing, given: Given) -> Redirect:
    statuses, last = STATES[given.choice("state", tuple(STATES))], given.number("upto")

    def select(connection: Any, definition: int) -> list[int]:
        return statements.open_ids(connection, doing.namespace, definition, statuses, last, MAX_RUNS)

    def act(connection: Any, ids: Sequence[int]) -> list[ActionResult]:
        return runs.cancel(connection, ids, doing.who, reason=given["reason"] or None, expected=statuses)

    return _perform(doing, given["job"], select, act, "cancelled", f"/jobs/{given['job']}")


def _perform(
    doing: Doing,
    name: str,
    select: Callable[[Any, int], list[int]],
    act: Callable[[Any, Sequence[int]], list[ActionResult]],
    done: str,
    path: str,
) -> Redirect:
    """Change the runs in transactions that no worker waits long for. Sent again, a form continues where it stopped."""
    with doing.transaction(is_whole=False) as connection:
        ids = select(connection, subjects.job_for(connection, doing.namespace, name).id)
    others: Counter[str] = Counter()
    for start in range(0, len(ids), BATCH_RUNS):
        with doing.transaction(is_whole=False) as connection:
            results = act(connection, ids[start : start + BATCH_RUNS])
            others.update(result.what for result in results if not result.changed)
    with doing.transaction(is_whole=False) as connection:
        changed = len(of_request(connection, doing.request, MAX_RUNS))
    text = f"{count(changed, 'run')} of {name} {'is' if changed == 1 else 'are'} {done}."
    if skipped := max(0, len(ids) - changed):
        why = others.most_common(1)[0][0]
        text += f" {count(skipped, 'run')} {'was' if skipped == 1 else 'were'} not changed: each {why}."
    return Redirect(path, Result(text, is_partial=bool(skipped) or not changed))


def _number(ids: Sequence[int], what: str) -> str:
    if len(ids) > MAX_RUNS:
        return f"There are more than {MAX_RUNS:,} {what}. The oldest {MAX_RUNS:,} are taken: do it again for the rest."
    return f"{len(ids):,} {what}."


def _error_type(given: Given) -> str | None:
    return {"": ANY_TYPE, NO_TYPE: None}.get(given["error_type"], given["error_type"])


def _calls(given: Given) -> bool | None:
    return CALLS[given.choice("calls", tuple(CALLS))]


def _of_error(given: Given) -> str:
    names = {"": "", NO_TYPE: " without an error class"}
    calls = {"": "", "no": ", without calls of on_dead", "only": ", calls of on_dead only"}
    return names.get(given["error_type"], f" that died of {given['error_type']}") + calls[given["calls"]]


def _instant(given: Given) -> datetime:
    try:
        found = times.parse(given["until"])
    except ValueError as error:
        raise Invalid("until", str(error)) from None
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise Invalid("until", "This is not an instant.")
    return found


RETRY = Action(
    "retry-dead",
    "Retry dead runs",
    ("job", "error_type", "calls", "until"),
    ("job",),
    ask_retry,
    review_retry,
    perform_retry,
)
CANCEL = Action(
    "cancel-runs",
    "Cancel runs",
    ("job", "state", "upto", "reason"),
    ("job", "state"),
    ask_cancel,
    review_cancel,
    perform_cancel,
)
