"""Retry or cancel many runs, of one job or of all; see ``yamlsched retry --dead`` and ``cancel
--job``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from yamlsched.act import runs
from yamlsched.act.runs import BATCH_RUNS, ActionResult
from yamlsched.ask.runs import RunRow
from yamlsched.ask.runs import jobs as all_jobs
from yamlsched.ask.trail import trail
from yamlsched.db.query import execute
from yamlsched.extras.web import flow
from yamlsched.extras.web.actions import selection
from yamlsched.extras.web.actions.retry import REASON
from yamlsched.extras.web.ask.outlook import find
from yamlsched.extras.web.flow import Action, Asking, Doing, Field, Given, Invalid, Redirect, Review
from yamlsched.extras.web.render import bounded, count
from yamlsched.extras.web.visit import Result, Visit
from yamlsched.runs.lifecycle import Status, error_text, one_line
from yamlsched.sync import definitions
from yamlsched.timetable import times

MAX_LISTED = 50
STATES = {
    "waiting": (Status.QUEUED, Status.FAILED),
    "running": (Status.RUNNING,),
    "unfinished": (Status.QUEUED, Status.FAILED, Status.RUNNING),
}
TIME_HINT = "Words are 2h (ago), 18:00, yesterday or 2026-01-14T02:00Z."


def ask_retry(visit: Visit, values: Given) -> Asking:
    return _ask(visit)


def ask_cancel(visit: Visit, values: Given) -> Asking:
    choices = [
        ("waiting", "waiting: queued, or waiting to retry"),
        ("running", "running: their handlers are killed"),
        ("unfinished", "all unfinished"),
    ]
    field = Field("state", "Which runs", "select", choices=choices, is_required=True)
    return _ask(visit, field)


def _ask(visit: Visit, *more: Field) -> Asking:
    jobs = all_jobs(visit.connection, visit.namespace)

    def field(name: str, label: str, values: Iterable[str]) -> Field:
        return Field(
            name,
            label,
            choices=[(word, word) for word in sorted(set(values))[: flow.MAX_OFFERED_JOBS]],
        )

    fields = [
        field("job", "Job", (job.job_type for job in jobs)),
        field("tag", "Tag", (tag for job in jobs for tag in job.tags)),
        field("owner", "Owner", (job.owner for job in jobs if job.owner)),
        Field("error_type", "Error", hint="The class of the error. A minus: runs without one."),
        Field(
            "since", "Since", "time", f"When a run ended, else started, else is due. {TIME_HINT}"
        ),
        Field("until", "Until", "time", TIME_HINT),
    ]
    return Asking([*more, *fields], ["Empty fields do not filter."])


def review_retry(visit: Visit, values: Given) -> Review:
    rows, span = selection.reviewed(visit, values, _to_retry(values), visit.now)
    lines, warnings, refusal = _outlook(visit, rows)
    return _review(
        "Retry",
        "chosen" if values["runs"] else "dead",
        values,
        rows,
        lines,
        refusal,
        back="/dead",
        warnings=warnings,
        carried=span,
    )


def _outlook(visit: Visit, rows: Sequence[RunRow]) -> tuple[list[str], list[str], str]:
    """Return what happens to runs that are retried, warnings, and why that is refused."""
    if not rows:
        return [], [], ""
    names = {row.job_type for row in rows}
    jobs = [job for job in all_jobs(visit.connection, visit.namespace) if job.job_type in names]
    off = {job.job_type for job in jobs if job.retired_at is not None or not job.enabled}
    paused = sum(
        job.is_paused(visit.now)
        for job in definitions.read(visit.connection, [job.id for job in jobs])
    )
    outlook = find(visit.connection, visit.namespace, rows[0].id) if len(names) == 1 else None
    attempts, on_dead = "the attempts of its job", ["the jobs in on_dead of its job"]
    if outlook is not None:
        attempts, on_dead = count(outlook.budget, "more attempt"), outlook.on_dead
    lines = [
        f"They run again as workers become free. Each gets {attempts}, and the backoff starts over."
    ]
    if on_dead:
        lines.append(f"For each that dies, these run again: {', '.join(on_dead)}.")
    lines.append("Effects that are done already (run.once) are not repeated.")
    warnings = (
        [
            f"{count(paused, 'job')} of these {_is(paused)} paused: the runs wait until the pause"
            " ends."
        ]
        if paused
        else []
    )
    effects = execute(
        visit.connection, "health.in_doubt", namespaces=[visit.namespace], limit=selection.MAX_RUNS
    )
    if doubtful := len(
        {row.id for row in rows} & {each.run_id for each in effects if each.waits_for == "person"}
    ):
        text = (
            f"{doubtful:,} of these runs {'has' if doubtful == 1 else 'have'} effects in doubt:"
            " settle them first."
        )
        warnings.append(
            f'{text} With in_doubt="raise" {"it" if doubtful == 1 else "they"} will be dead again.'
        )
    if off and len(off) < len(names):
        left = count(sum(row.job_type in off for row in rows), "run")
        warnings.append(
            f"{left} of jobs that are not enabled, or were removed, will not change: no worker"
            " claims it."
        )
    which = f"{next(iter(off))} is" if len(names) == 1 and off else "Their jobs are"
    refusal = f"{which} not enabled in schedules.yaml, or removed, so no worker would claim them."
    return lines, warnings, refusal if len(off) == len(names) else ""


def review_cancel(visit: Visit, values: Given) -> Review:
    statuses = _to_cancel(values)
    rows, span = selection.reviewed(visit, values, statuses, None)
    lines = [
        "They count as neither succeeded nor dead: no hook runs. A retry makes a cancelled run due"
        " again."
    ]
    if Status.QUEUED in statuses:
        lines.insert(
            0, "Waiting runs are cancelled at once, and do not run. Slots to come are not affected."
        )
    if Status.RUNNING in statuses:
        lines.insert(
            0,
            "Running handlers are killed at the next heartbeat of their worker. Finished work"
            " stays done.",
        )
    upto = str(max((row.id for row in rows), default=0))
    return _review(
        "Cancel",
        values["state"],
        values,
        rows,
        lines,
        back=_page(values, "/runs"),
        asks=[REASON],
        carried={**span, "upto": upto},
        is_final=True,
    )


def _review(
    verb: str,
    state: str,
    values: Given,
    rows: Sequence[RunRow],
    lines: Sequence[str],
    refusal: str = "",
    **more: Any,
) -> Review:
    """Return the review of ``rows``; ``more`` are further fields of it."""
    names = {row.job_type for row in rows}
    of = (
        f" of {values['job']}"
        if values["job"]
        else f" of {count(len(names), 'job')}"
        if rows
        else ""
    )
    what = f"{state} {'run' if len(rows) == 1 else 'runs'}{of}{selection.condition(values)}"
    if len(rows) > selection.MAX_RUNS:
        number = (
            f"There are more than {selection.MAX_RUNS:,} {what}. The oldest {selection.MAX_RUNS:,}"
            " are taken: do it again for the rest."
        )
    else:
        number = f"{len(rows):,} {what}."
    return Review(
        title=f"{verb} {bounded(len(rows), selection.MAX_RUNS, state + ' run')}{of}",
        button=f"{verb} {count(min(len(rows), selection.MAX_RUNS), 'run')}",
        lines=[number, *lines, *_left_out(values, rows)],
        refusal=refusal or ("" if rows else f"There are no {what}."),
        heading="The runs",
        listed=[_listed(row) for row in rows[:MAX_LISTED]],
        total=min(len(rows), selection.MAX_RUNS),
        change="" if values["runs"] else "Change the filter",
        **more,
    )


def _listed(row: RunRow) -> str:
    """Return a run in words, of which the page makes a link, with when it ended and its error."""
    at = f", {times.short_utc(row.finished_at)}" if row.finished_at else ""
    error = error_text(row.error_type, row.last_error) if row.has_error else ""
    return f"yamlsched show {row.id}: {row.job_type}{at}" + (
        f", {one_line(error)}" if error else ""
    )


def _left_out(values: Given, rows: Sequence[RunRow]) -> list[str]:
    number = len(selection.chosen_ids(values)) - len(rows)
    return (
        [f"{count(number, 'chosen run')} {_is(number)} in another state, and not changed."]
        if number > 0
        else []
    )


def perform_retry(doing: Doing, values: Given) -> Redirect:
    statuses = _to_retry(values)
    if not values["until"]:
        raise Invalid("until", "This is not an instant.")

    def act(connection: Any, ids: Sequence[int]) -> list[ActionResult]:
        return runs.retry(connection, ids, doing.who, expected=statuses)

    return _perform(doing, values, statuses, act, "queued again", "/dead")


def perform_cancel(doing: Doing, values: Given) -> Redirect:
    statuses, _ = _to_cancel(values), values.number("upto")

    def act(connection: Any, ids: Sequence[int]) -> list[ActionResult]:
        return runs.cancel(
            connection, ids, doing.who, reason=values["reason"] or None, expected=statuses
        )

    return _perform(doing, values, statuses, act, "cancelled", _page(values, "/runs"))


def _perform(
    doing: Doing,
    values: Given,
    statuses: Sequence[str],
    act: Callable[[Any, Sequence[int]], list[ActionResult]],
    done: str,
    path: str,
) -> Redirect:
    """Change the runs in transactions that no worker waits long for. Sent again, a form continues
    where it stopped.
    """
    with doing.transaction(is_whole=False) as connection:
        since, until = (selection.instant(values, name, "UTC", None) for name in ("since", "until"))
        ids = [
            row.id
            for row in selection.select(connection, doing.namespace, values, statuses, since, until)
        ][: selection.MAX_RUNS]
    others: Counter[str] = Counter()
    for start in range(0, len(ids), BATCH_RUNS):
        with doing.transaction(is_whole=False) as connection:
            results = act(connection, ids[start : start + BATCH_RUNS])
            others.update(result.what for result in results if not result.changed)
    with doing.transaction(is_whole=False) as connection:
        entries = trail(
            connection, doing.namespace, request=doing.request, limit=selection.MAX_RUNS
        )
    changed, jobs = len(entries), {entry.job_type for entry in entries}
    of = values["job"] or (count(len(jobs), "job") if len(jobs) != 1 else jobs.pop())
    text = f"{count(changed, 'run')} of {of} {_is(changed)} {done}."
    if skipped := max(0, len(ids) - changed):
        why = others.most_common(1)[0][0]
        text += (
            f" {count(skipped, 'run')} {'was' if skipped == 1 else 'were'} not changed: each {why}."
        )
    return Redirect(path, Result(text, is_partial=bool(skipped) or not changed))


def _to_retry(values: Given) -> Sequence[str]:
    return (Status.DEAD, Status.CANCELLED, Status.FAILED) if values["runs"] else (Status.DEAD,)


def _to_cancel(values: Given) -> Sequence[str]:
    return STATES[values.choice("state", tuple(STATES))]


def _page(values: Given, otherwise: str) -> str:
    return f"/jobs/{values['job']}" if values["job"] else otherwise


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


RETRY = Action(
    "retry-dead",
    "Retry dead runs",
    selection.FILTERS,
    (),
    ask_retry,
    review_retry,
    perform_retry,
    selection.LIMITS,
    asks_first=True,
    one_of=selection.FILTERS,
)
CANCEL = Action(
    "cancel-runs",
    "Cancel runs",
    (*selection.FILTERS, "state", "upto", "reason"),
    ("state",),
    ask_cancel,
    review_cancel,
    perform_cancel,
    selection.LIMITS,
    asks_first=True,
    one_of=selection.FILTERS,
)
