"""What pages answer to ``Accept: application/json``: the document of the verb that says the same,
where there is one.

Their keys are stable, as those of the verbs are. ``format_version`` is that of the verbs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from yamlsched.ask.namespaces import summary
from yamlsched.ask.problem import Thresholds
from yamlsched.cli import report

Document = dict[str, Any]


def _why(view: Any) -> Document:
    found = view.condition or view.day or (view.answers and view.answers[0].report)
    return dict(vars(found)) if found else {"not_run": view.not_run}


def _job(view: Any) -> Document:
    slots = view.timeline.cells if view.timeline else ()
    return {
        "job": view.facts,
        "health": view.health,
        "problems": [problem for problem, _ in view.problems],
        "durations": view.durations,
        "slots": [
            {"at": row.at, "state": row.state, "run_id": row.run and row.run.id, "took": row.took}
            for row in slots
        ],
        "gaps": view.timeline.gaps if view.timeline else (),
        "actions": view.actions,
    }


def _nights(view: Any) -> Document:
    rows = [
        {"job_type": job.job_type, "marks": [mark._asdict() for mark in marks]}
        for job, marks in view.rows
    ]
    return {"by": view.query["by"], "jobs": rows, "page": view.number, "pages": view.pages}


def _calendar(view: Any) -> Document:
    names = ("job_type", "scheduled_for", "key", "note")
    starts = [slot for _, rows, _ in view.agenda for row in rows for slot in row.first]
    hours = [
        {"at": cell.hour.date.isoformat(), "hour": cell.hour.hour, "jobs": cell.jobs}
        for day in view.days
        for cell in day
    ]
    slots = [
        {name: getattr(slot, name) for name in names} | {"local": slot.local.isoformat()}
        for slot in starts
    ]
    return {"timezone": view.timezone, "hours": hours, "slots": slots}


def _namespaces(view: Any) -> Document:
    summaries = [summary(namespace.health, Thresholds()) for namespace in view.found]
    return {
        "healthy": not view.problems,
        "namespaces": summaries,
        "unused": view.others,
        "pages": view.pages,
    }


DOCUMENTS: dict[str, Callable[[Any], Document]] = {
    "/": (
        lambda view: (
            summary(view.health, Thresholds())
            | {
                "page": view.number,
                "pages": view.pages,
            }
        )
    ),
    "/report": lambda view: {**report.document(view.found), "not_run": view.not_run},
    "/nights": _nights,
    "/durations": lambda view: {
        "jobs": [
            vars(row) | {"week_before": before and before.usual, "factor": factor or None}
            for row, before, factor in view.rows
        ]
    },
    "/jobs/{job:path}": _job,
    "/runs": lambda view: {"runs": view.page.runs, "next_before": view.page.older},
    "/runs/{run:path}": lambda view: vars(view.details),
    "/dead": lambda view: {
        ("hours" if view.by == "hour" else "groups"): view.hours or view.groups,
        "more_groups": view.hidden,
        "is_complete": view.found.is_complete,
    },
    "/why": _why,
    "/graph": lambda view: {"jobs": [row.job for _, lines in view.chains for row in lines]},
    "/calendar": _calendar,
    "/files": lambda view: {
        "places": view.places,
        "edits": [{**vars(edit), "keys": keys} for edit, _, keys in view.history],
    },
    "/workers": lambda view: {
        "queues": view.queues,
        "unserved": view.unserved,
        "workers": [{**vars(worker), "state": word} for worker, word in view.workers],
    },
    "/actions": lambda view: {
        "pauses": view.pauses,
        "actions": [entry for group in view.groups for entry in group.entries],
        "next_before": view.older,
    },
    "/namespaces": _namespaces,
    "/find": lambda view: {
        "jobs": [job.job_type for job in view.jobs],
        "runs": [*view.runs, *view.keys],
        "suggestions": view.suggestions,
    },
    "/help": lambda view: {},
}
"""By the path of the page. ``namespace`` is added where it is missing."""


FRAGMENT_HEADER = "Yamlsched-Fragment"
"""The refresh script asks with it for the page without its frame."""


def wants_json(request: Request) -> bool:
    """Return whether a request prefers JSON to a page, as no browser does."""
    accepted = [
        kind.partition(";")[0].strip()
        for kind in request.headers.get("accept", "").lower().split(",")
    ]
    return "application/json" in accepted and "text/html" not in accepted


def if_changed(request: Request, content: bytes, caching: str, kind: str = "text/html") -> Response:
    """Return the page, or 304 if the browser has it: the script that refreshes it keeps the tag by
    itself.
    """
    etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": caching, "Vary": f"Accept, Cookie, {FRAGMENT_HEADER}"}
    known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if etag in known:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(content, media_type=kind, headers=headers)
