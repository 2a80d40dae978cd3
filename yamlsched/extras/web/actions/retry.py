"""Retry a run, also with another payload, or cancel it; see ``yamlsched retry`` and ``cancel``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from yamlsched.act import payloads, runs
from yamlsched.act.runs import ActionResult, RunState
from yamlsched.errors import Refused
from yamlsched.extras.web import flow
from yamlsched.extras.web.actions.enqueue import MAX_PAYLOAD_CHARS, parse_payload, shown_payload
from yamlsched.extras.web.ask import outlook
from yamlsched.extras.web.ask.outlook import Outlook
from yamlsched.extras.web.flow import (
    Action,
    Asking,
    Conflict,
    Doing,
    Field,
    Given,
    Invalid,
    Redirect,
    Review,
)
from yamlsched.extras.web.render import sentence
from yamlsched.extras.web.visit import Result, Visit
from yamlsched.runs.enqueue import encode_payload
from yamlsched.runs.lifecycle import Status

REASON = Field("reason", "Why", hint="Recorded with the action. May be empty.")
FORCE = Field("force", "Run it again although it has succeeded", "check")
PAYLOAD = Field(
    "payload",
    "Payload",
    "area",
    "A JSON object, merged over the payload of the job. Empty: as before.",
)


def ask(visit: Visit, values: Given) -> Asking:
    if not values["run"]:
        return Asking([flow.RUN])
    run = flow.run_of(visit, values)
    defaults = (
        {"payload": json.dumps(run.payload, ensure_ascii=False, indent=2)} if run.payload else {}
    )
    return Asking([flow.RUN, PAYLOAD], [f"{run.job_type}: {outlook.state(run)}"], defaults)


def review(visit: Visit, values: Given) -> Review:
    run = flow.run_of(visit, values)
    expected = outlook.of_retry(visit.connection, run)
    if values["payload"]:
        payload = _payload(visit, run, values)
        if payload == run.payload:
            expected.lines.append("Its payload stays as it is.")
        else:
            expected.lines.append(
                f"Its payload is now {shown_payload(payload)}, instead of"
                f" {shown_payload(run.payload)}."
            )
    return _review(
        "Retry",
        run,
        expected,
        asks=[FORCE] if run.status == Status.SUCCEEDED else [],
        change="" if expected.refusal else "With another payload",
    )


def _review(verb: str, run: RunState, expected: Outlook, **more: Any) -> Review:
    """Return the review of an action on one run; ``more`` are further fields of it."""
    return Review(
        title=f"{verb} run {run.id} of {run.job_type}",
        button=f"{verb} run {run.id}",
        back=f"/runs/{run.id}",
        state=expected.state,
        lines=expected.lines,
        warnings=expected.warnings,
        refusal=expected.refusal,
        carried={"run": str(run.id), "was": run.status},
        target=f"run:{run.id}",
        **more,
    )


def _payload(visit: Visit, run: RunState, values: Given) -> dict[str, Any]:
    """Return the payload that replaces the run's. Raises Invalid if no call of the handler can
    succeed with it.
    """
    payload = parse_payload(values)
    try:
        encode_payload("", payload)
        payloads.check(visit.connection, visit.file, visit.namespace, run.job_type, payload)
    except Refused as error:
        raise Invalid("payload", sentence(str(error))) from None
    return payload


def perform(doing: Doing, values: Given) -> Redirect:
    was = values.choice("was", list(Status))
    if was == Status.SUCCEEDED and not values["force"]:
        raise Invalid("force", "Tick this to run it a second time.")

    def act(connection: Any, run: RunState) -> list[ActionResult]:
        payload = parse_payload(values) if values["payload"] else None
        return runs.retry(
            connection,
            [run.id],
            doing.who,
            force=bool(values["force"]),
            expected=[was],
            payload=None if payload == run.payload else payload,
        )

    return _perform(doing, values, act)


def _perform(
    doing: Doing, values: Given, act: Callable[[Any, RunState], list[ActionResult]]
) -> Redirect:
    id = values.number("run")
    target = f"run:{id}"
    with doing.transaction(target) as connection:
        run = outlook.find(connection, doing.namespace, id)
        if run is None:
            raise Conflict(f"Run {id} does not exist any more: it was pruned.")
        [result] = act(connection, run)
        if not result.changed:
            raise Conflict(f"Run {id} {result.what}{doing.since(connection, target)}.")
    return Redirect(f"/runs/{id}", Result(f"Run {id} {result.what}."))


ACTION = Action(
    "retry", "Retry a run", ("run", "payload", "was", "force"), ("run",), ask, review, perform,
    limits={"payload": MAX_PAYLOAD_CHARS},
)  # fmt: skip


def ask_cancel(visit: Visit, values: Given) -> Asking:
    return Asking([flow.RUN])


def review_cancel(visit: Visit, values: Given) -> Review:
    run = flow.run_of(visit, values)
    expected = outlook.of_cancel(visit.connection, run)
    return _review("Cancel", run, expected, asks=[REASON], is_final=True)


def perform_cancel(doing: Doing, values: Given) -> Redirect:
    was = values.choice("was", list(Status))

    def act(connection: Any, run: RunState) -> list[ActionResult]:
        return runs.cancel(
            connection, [run.id], doing.who, reason=values["reason"] or None, expected=[was]
        )

    return _perform(doing, values, act)


CANCEL = Action(
    "cancel",
    "Cancel a run",
    ("run", "was", "reason"),
    ("run",),
    ask_cancel,
    review_cancel,
    perform_cancel,
)
