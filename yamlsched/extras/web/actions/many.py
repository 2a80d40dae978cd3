"""Retry or cancel many runs, of one job or of all; see ``yamlsched retry --dead`` and ``cancel
--job``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from yamlsched.act import runs
from yamlsched.act.pause import pausable_jobs
from yamlsched.act.runs import BATCH_RUNS, ActionResult
from yamlsched.ask import history
from yamlsched.ask.runs import jobs as all_jobs
from yamlsched.ask.search import Filter
from yamlsched.db.query import fetch, load
from yamlsched.errors import Refused
from yamlsched.extras.web import flow
from yamlsched.extras.web.actions.retry import REASON
from yamlsched.extras.web.ask.audit import of_request
from yamlsched.extras.web.ask.outlook import find
from yamlsched.extras.web.flow import Action, Asking, Doing, Field, Given, Invalid, Redirect, Review
from yamlsched.extras.web.render import bounded, count, sentence
from yamlsched.extras.web.visit import Result, Visit
from yamlsched.runs.lifecycle import Status
from yamlsched.timetable import times
from yamlsched.timetable.times import rfc3339
from yamlsched.timetable.zones import zone_or_utc

MAX_RUNS = 5_000
"""Runs of one form. Of more, the oldest are taken."""
MAX_LISTED = 50
NO_TYPE = "-"
"""In a link: runs that died without an error_type."""
CALLS = {"": None, "no": False, "only": True}
STATES = {
    "waiting": (Status.QUEUED, Status.FAILED),
    "running": (Status.RUNNING,),
    "unfinished": (Status.QUEUED, Status.FAILED, Status.RUNNING),
}
FILTERS = ("job", "tag", "owner", "error_type", "calls", "since", "until", "runs", "all")
"""A link without any of these leads to the form. ``all`` filters nothing."""
LIMITS = {"runs": 2_000}
TIME_HINT = "Such as 2h (ago), 18:00, yesterday or 2026-01-14T02:00Z."


class MatchingRun(NamedTuple):
    """A run that an action is about."""

    id: int
    job_type: str


def ask_retry(visit: Visit, values: Given) -> Asking:
    choices = [("", "included"), ("no", "left out"), ("only", "only these")]
    return _ask(
        visit, "Retry dead runs", Field("calls", "Calls of on_dead", "select", choices=choices)
    )


def ask_cancel(visit: Visit, values: Given) -> Asking:
    choices = [
        ("waiting", "waiting: queued, or waiting to retry"),
        ("running", "running: their handlers are killed"),
        ("unfinished", "all unfinished"),
    ]
    return _ask(
        visit,
        "Cancel runs",
        Field("state", "Which runs", "select", choices=choices, is_required=True),
    )


def _ask(visit: Visit, title: str, more: Field) -> Asking:
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
        Field("since", "Since", hint=f"When a run ended, else started, else is due. {TIME_HINT}"),
        Field("until", "Until", hint=TIME_HINT),
    ]
    return Asking(title, [more, *fields], ["What is empty does not filter."])


def review_retry(visit: Visit, values: Given) -> Review:
    rows, span = _reviewed(visit, values, _to_retry(values), visit.now)
    lines, warnings, refusal = _outlook(visit, rows)
    review = _review(
        "Retry",
        "chosen" if values["runs"] else "dead",
        values,
        rows,
        [*lines, *_left_out(values, rows)],
    )
    return review(back="/dead", warnings=warnings, refusal=refusal, carried=span)


def _outlook(visit: Visit, rows: Sequence[MatchingRun]) -> tuple[list[str], list[str], str]:
    """Return what happens to runs that are retried, warnings, and why that is refused."""
    if not rows:
        return [], [], ""
    names = {row.job_type for row in rows}
    jobs = [job for job in all_jobs(visit.connection, visit.namespace) if job.job_type in names]
    off = {job.job_type for job in jobs if job.retired_at is not None or not job.enabled}
    paused = sum(
        job.is_paused for job in pausable_jobs(visit.connection, [job.id for job in jobs], None)
    )
    outlook = find(visit.connection, visit.namespace, rows[0].id) if len(names) == 1 else None
    attempts, on_dead = "the attempts of its job", "on_dead of its job"
    if outlook is not None:
        attempts, on_dead = count(outlook.budget, "more attempt"), outlook.on_dead or ""
    lines = [
        f"They run again as workers become free. Each gets {attempts}, and the delays between them"
        " start over."
    ]
    if on_dead:
        lines.append(f"For each that dies, {on_dead} is called again.")
    lines.append("Effects that are done already (run.once) are not repeated.")
    warnings = (
        [f"{count(paused, 'job')} of these {_is(paused)} paused: the runs wait for its end."]
        if paused
        else []
    )
    effects = visit.connection.execute(
        load("health")["in_doubt"], {"namespaces": [visit.namespace], "limit": MAX_RUNS}
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
    rows, span = _reviewed(visit, values, statuses, None)
    lines = [
        "They count as neither succeeded nor dead: on_dead is not called. A retry makes a cancelled"
        " run due again."
    ]
    if Status.QUEUED in statuses:
        lines.insert(
            0, "Waiting runs are cancelled at once, and do not run. Slots to come are not affected."
        )
    if Status.RUNNING in statuses:
        lines.insert(
            0,
            "Running handlers are killed at the next heartbeat of their worker. What is done stays"
            " done.",
        )
    review = _review("Cancel", values["state"], values, rows, [*lines, *_left_out(values, rows)])
    upto = str(max((row.id for row in rows), default=0))
    return review(
        back=_page(values, "/runs"), asks=[REASON], carried={**span, "upto": upto}, is_final=True
    )


def _review(
    verb: str, state: str, values: Given, rows: Sequence[MatchingRun], lines: Sequence[str]
) -> Callable[..., Review]:
    """Return the function that makes the review of ``rows`` with what else it has."""
    names = {row.job_type for row in rows}
    of = (
        f" of {values['job']}"
        if values["job"]
        else f" of {count(len(names), 'job')}"
        if rows
        else ""
    )
    what = f"{state} {'run' if len(rows) == 1 else 'runs'}{of}{_condition(values)}"
    if len(rows) > MAX_RUNS:
        number = (
            f"There are more than {MAX_RUNS:,} {what}. The oldest {MAX_RUNS:,} are taken: do it"
            " again for the rest."
        )
    else:
        number = f"{len(rows):,} {what}."

    def review(refusal: str = "", **more: Any) -> Review:
        return Review(
            title=f"{verb} {bounded(len(rows), MAX_RUNS, state + ' run')}{of}",
            button=f"{verb} {count(min(len(rows), MAX_RUNS), 'run')}",
            lines=[number, *lines],
            refusal=refusal or ("" if rows else f"There are no {what}."),
            heading="The runs",
            listed=[
                f"run {row.id}{' of ' + row.job_type if len(names) > 1 else ''}"
                for row in rows[:MAX_LISTED]
            ],
            total=min(len(rows), MAX_RUNS),
            change="" if values["runs"] else "Change the filter",
            **more,
        )

    return review


def _left_out(values: Given, rows: Sequence[MatchingRun]) -> list[str]:
    number = len(_ids(values)) - len(rows)
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
        since, until = (_instant(values, name, "UTC", None) for name in ("since", "until"))
        ids = [
            row.id for row in _select(connection, doing.namespace, values, statuses, since, until)
        ][:MAX_RUNS]
    others: Counter[str] = Counter()
    for start in range(0, len(ids), BATCH_RUNS):
        with doing.transaction(is_whole=False) as connection:
            results = act(connection, ids[start : start + BATCH_RUNS])
            others.update(result.what for result in results if not result.changed)
    with doing.transaction(is_whole=False) as connection:
        entries = of_request(connection, doing.request, MAX_RUNS)
    changed, jobs = len(entries), {entry.job_type for entry in entries}
    of = values["job"] or (count(len(jobs), "job") if len(jobs) != 1 else jobs.pop())
    text = f"{count(changed, 'run')} of {of} {_is(changed)} {done}."
    if skipped := max(0, len(ids) - changed):
        why = others.most_common(1)[0][0]
        text += (
            f" {count(skipped, 'run')} {'was' if skipped == 1 else 'were'} not changed: each {why}."
        )
    return Redirect(path, Result(text, is_partial=bool(skipped) or not changed))


def _reviewed(
    visit: Visit, values: Given, statuses: Sequence[str], newest: datetime | None
) -> tuple[list[MatchingRun], dict[str, str]]:
    """Return the runs of a review, and its span as the form carries it: up to ``newest``, if there
    is one.
    """
    jobs = [values["job"]] if values["job"] else []
    timezone = history.timezone_of(visit.connection, visit.namespace, jobs, visit.file)
    since, until = (_instant(values, name, timezone, visit.now) for name in ("since", "until"))
    until = min(until, newest) if until and newest else until or newest
    rows = _select(visit.connection, visit.namespace, values, statuses, since, until)
    return rows, {
        "since": rfc3339(since) if since else "",
        "until": rfc3339(until) if until else "",
    }


def _select(
    connection: Any,
    namespace: str,
    values: Given,
    statuses: Sequence[str],
    since: datetime | None,
    until: datetime | None,
) -> list[MatchingRun]:
    """Return the runs that a form is about, the oldest first; one more than ``MAX_RUNS`` if there
    are more.
    """
    if values["job"]:
        flow.job_for(connection, namespace, values["job"])
    filter = Filter(
        jobs=[values["job"]] if values["job"] else [],
        tags=[values["tag"]] if values["tag"] else [],
        owner=values["owner"],
        statuses=statuses,
        since=since,
        until=until,
        error_type={"": None, NO_TYPE: ""}.get(values["error_type"], values["error_type"]),
        on_dead=CALLS[values.choice("calls", tuple(CALLS))],
    )
    upto = values.number("upto") if values["upto"] else 10**18
    try:
        jobs = history.definitions(connection, namespace, filter.jobs, filter.tags, filter.owner)
    except Refused as error:
        raise Invalid(
            "owner" if "the owner" in str(error) else "tag", sentence(str(error))
        ) from None
    ids = _ids(values) or None
    only = {
        "only_dead": set(statuses) == {"dead"},
        "only_open": {"queued", "running", "failed"}.issuperset(statuses),
    }
    parameters = {
        **filter.parameters(jobs),
        **only,
        "namespace": namespace,
        "ids": ids,
        "limit": MAX_RUNS + 1,
    }
    rows = fetch(connection, MatchingRun, load("actions")["matching"], parameters)
    return [row for row in rows if row.id <= upto]


def _instant(values: Given, name: str, timezone: str, now: datetime | None) -> datetime | None:
    """Return a time of the form; without ``now``, as the review has written it."""
    if not values[name]:
        return None
    try:
        value = times.parse(values[name])
        if now is not None:
            return times.resolve(value, lambda: zone_or_utc(timezone), now, is_future=False)
    except (ValueError, OverflowError) as error:
        raise Invalid(name, sentence(str(error))) from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Invalid(name, "This is not an instant.")
    return value


def _ids(values: Given) -> list[int]:
    words = values["runs"].split()
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise Invalid("runs", "These are not ids of runs.")
    return [int(word) for word in dict.fromkeys(words)]


def _to_retry(values: Given) -> Sequence[str]:
    return (Status.DEAD, Status.CANCELLED, Status.FAILED) if values["runs"] else (Status.DEAD,)


def _to_cancel(values: Given) -> Sequence[str]:
    return STATES[values.choice("state", tuple(STATES))]


def _page(values: Given, otherwise: str) -> str:
    return f"/jobs/{values['job']}" if values["job"] else otherwise


def _condition(values: Given) -> str:
    names = {"": "", NO_TYPE: " without an error class"}
    calls = {"": "", "no": ", without calls of on_dead", "only": ", calls of on_dead only"}
    parts = [
        names.get(values["error_type"], f" that died of {values['error_type']}"),
        calls[values["calls"]],
    ]
    parts += [
        f", {name} {values[name]}" for name in ("tag", "owner", "since", "until") if values[name]
    ]
    return "".join(parts)


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


RETRY = Action(
    "retry-dead", "Retry dead runs", FILTERS, (), ask_retry, review_retry, perform_retry, LIMITS,
    asks_first=True, one_of=FILTERS,
)  # fmt: skip
CANCEL = Action(
    "cancel-runs", "Cancel runs", (*FILTERS, "state", "upto", "reason"), ("state",),
    ask_cancel, review_cancel, perform_cancel, LIMITS, asks_first=True, one_of=FILTERS,
)  # fmt: skip
