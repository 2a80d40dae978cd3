"""Enqueue a run of a job; see ``yamlsched enqueue``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from yamlsched.act import enqueue as act_enqueue
from yamlsched.act import payloads
from yamlsched.act.payloads import Taken
from yamlsched.ask.runs import id_of_key
from yamlsched.errors import Refused
from yamlsched.extras.web import flow
from yamlsched.extras.web.ask import outlook
from yamlsched.extras.web.flow import Action, Asking, Doing, Field, Given, Invalid, Redirect, Review
from yamlsched.extras.web.render import sentence
from yamlsched.extras.web.visit import Result, Visit
from yamlsched.runs import enqueue
from yamlsched.sync.definitions import Definition
from yamlsched.timetable import times
from yamlsched.timetable.zones import zone

MAX_PAYLOAD_CHARS = enqueue.MAX_PAYLOAD_BYTES * 2
"""Of what is written; the payload itself is limited in bytes."""
MAX_SHOWN_CHARS = 2_000
PRIORITY = Field(
    "priority",
    "Priority",
    "select",
    choices=[("", "that of the job"), *((name, name) for name in enqueue.PRIORITIES)],
)
AT = Field(
    "at",
    "Not before",
    "time",
    "Words are 90m (from now), 17:30 or mon 08:00 (the next one), tomorrow 08:00, or"
    " 2026-01-14T01:00Z. Empty: at once.",
)


def ask(visit: Visit, values: Given) -> Asking:
    lines, defaults = [], {}
    hint = "A JSON object: its keys become keyword arguments of the handler."
    if values["job"]:
        job = flow.job_of(visit, values)
        accepted = _taken(visit, job)
        if accepted is not None:
            hint = f"{hint} {_describe(accepted)}"
            if own := dict(accepted.payload):
                defaults["payload"] = json.dumps(own, ensure_ascii=False, indent=2)
                hint += " It is merged over that of the job: a key that you remove keeps its value."
        lines += _state_lines(visit, job)
    fields = [
        flow.job_field(visit, values),
        Field("payload", "Payload", "area", hint),
        Field("key", "Key", hint="One run per key: if a run has or had it, none is created."),
        AT,
        PRIORITY,
    ]
    return Asking(fields, lines, defaults)


def review(visit: Visit, values: Given) -> Review:
    job = flow.job_of(visit, values)
    payload = parse_payload(values)
    accepted = _taken(visit, job)
    try:
        payloads.check(visit.connection, visit.file, visit.namespace, job.job_type, payload)
        enqueue.make_batch(job.job_type, [payload], None)
    except Refused as error:
        raise Invalid("payload", sentence(str(error))) from None
    try:
        enqueue.make_batch(job.job_type, [{}], [values["key"] or None])
    except Refused as error:
        raise Invalid("key", sentence(str(error))) from None
    run_at, due = _due(visit, values, job)
    refusal = ""
    if job.retired_at is not None:
        refusal = f"{job.job_type} was removed from schedules.yaml: restore it there to enqueue it."
    elif not job.enabled:
        refusal = (
            f"{job.job_type} is not enabled in schedules.yaml, so no worker would claim a run."
        )
    elif values["key"] and (taken := id_of_key(visit.connection, visit.namespace, values["key"])):
        id, pruned_at = taken
        when = f", which was pruned on {pruned_at:%Y-%m-%d}" if pruned_at else ""
        refusal = (
            f'The key "{values["key"]}" was used by run {id}{when}. Nothing would be created: use'
            " another key."
        )
    lines = [f"A run is created. It is due {due}.", *_state_lines(visit, job)]
    merged = {**accepted.payload, **payload} if accepted else payload
    lines.append(f"Payload: {shown_payload(merged)}" if merged else "It has no payload.")
    if values["key"]:
        lines.append(
            f'Its key is "{values["key"]}". Another enqueue with this key creates nothing.'
        )
    if values["priority"]:
        lines.append(f"Its priority is {values['priority']}.")
    warnings = []
    if accepted is None and payload:
        warnings.append(
            "The page cannot check the payload: its host has no schedules.yaml with this job."
        )
    return Review(
        title=f"Enqueue a run of {job.job_type}",
        button="Create the run",
        back=f"/jobs/{job.job_type}",
        lines=lines,
        warnings=warnings,
        refusal=refusal,
        carried={"instant": times.rfc3339(run_at) if run_at else ""},
        change="Change",
    )


def perform(doing: Doing, values: Given) -> Redirect:
    payload = parse_payload(values)
    at = values.instant("instant")
    with doing.transaction() as connection:
        job = flow.job_for(connection, doing.namespace, values["job"])
        run = act_enqueue.enqueue(
            connection,
            doing.namespace,
            job.job_type,
            payload,
            key=values["key"] or None,
            at=at,
            priority=_priority(values),
            who=doing.who,
        )
    if not run.created:
        path = (
            f"/runs/{run.run_id}" if run.run_id and not run.pruned_at else f"/jobs/{job.job_type}"
        )
        return Redirect(
            path,
            Result(f"Nothing was created: {run.why}.", is_partial=True),
        )
    due = f", due at {run.due}" if run.due else ""
    waits = f"; {run.note}" if run.note else ""
    return Redirect(
        f"/runs/{run.run_id}",
        Result(f"Run {run.run_id} of {job.job_type} was created{due}{waits}."),
    )


def parse_payload(values: Given) -> dict[str, Any]:
    """Return the field ``payload``; {} if it is empty."""
    try:
        return payloads.parse(values["payload"]) if values["payload"] else {}
    except ValueError as error:
        raise Invalid("payload", sentence(str(error))) from None


def _priority(values: Given) -> Any:
    return values.choice("priority", enqueue.PRIORITIES) if values["priority"] else None


def _due(visit: Visit, values: Given, job: Definition) -> tuple[datetime | None, str]:
    _priority(values)
    if (at := values.time("at")) is None:
        return None, "at once"
    try:
        run_at, due = act_enqueue.due_at(at, zone(job.timezone), visit.now)
        enqueue.make_batch(job.job_type, [{}], [None], run_at)
    except (ValueError, Refused) as error:
        raise Invalid("at", sentence(str(error))) from None
    return run_at, f"at {due}"


def _taken(visit: Visit, job: Definition) -> Taken | None:
    return payloads.taken(visit.connection, visit.file, visit.namespace, job.job_type)


def _describe(accepted: Taken) -> str:
    if accepted.parameters is None:
        return f"The parameters of {accepted.handler} cannot be read from its source."
    required = accepted.parameters.missing(accepted.payload)
    names = [
        f"{name} (required)" if name in required else name for name in accepted.parameters.expected
    ]
    more = ["any others"] if accepted.parameters.takes_any else []
    return f"{accepted.handler} takes: {', '.join([*names, *more]) or 'none'}."


def _state_lines(visit: Visit, job: Definition) -> list[str]:
    if not job.is_paused(visit.now):
        return []
    return [f"The job is paused {outlook.words(job)}. The run waits until the pause ends."]


def shown_payload(payload: Any) -> str:
    """Return a payload as JSON for people, cut if it is long."""
    text = json.dumps(dict(payload), ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + " …"


ACTION = Action(
    "enqueue", "Enqueue a run", ("job", "payload", "key", "at", "priority", "instant"), ("job",),
    ask, review, perform, limits={"payload": MAX_PAYLOAD_CHARS}, asks_first=True,
)  # fmt: skip
