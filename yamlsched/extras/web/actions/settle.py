"""Record whether an effect in doubt happened; see ``yamlsched settle``."""

from __future__ import annotations

import json
from typing import Any

from yamlsched.act import settle
from yamlsched.errors import Refused
from yamlsched.extras.web.ask import outlook
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
from yamlsched.jsonb import encode_result
from yamlsched.runs.effects import EffectStatus
from yamlsched.runs.lifecycle import Status
from yamlsched.timetable import times

ANSWERS = ("done", "not-done")
HAPPENED = Field(
    "happened",
    "Did it happen?",
    "radio",
    choices=[
        ("done", "It happened: no attempt repeats it"),
        ("not-done", "It did not happen: the next attempt performs it"),
    ],
    is_required=True,
)
RESULT = Field(
    "result",
    "Its result",
    "area",
    "JSON, only if it happened: the effect.result that a later attempt reads.",
)


def ask(visit: Visit, values: Given) -> Asking:
    key = Field("key", "Effect", "subject", "Its key, for example run:118:mail.", is_required=True)
    if not values["key"]:
        return Asking([key])
    effect = _effect(visit, values)
    lines = [
        (
            f"Attempt {effect.attempt} of run {effect.run_id} started it at"
            f" {times.short_utc(effect.claimed_at)}, and did not report its end. It is unknown"
            " whether it happened."
        ),
        (
            "Look it up first, at the mail server or the provider. The idempotency key that it"
            f" got: {effect.provider_key}"
        ),
    ]
    return Asking([key, HAPPENED, RESULT], lines)


def review(visit: Visit, values: Given) -> Review:
    effect = _effect(visit, values)
    happened = _happened(values)
    result = _result(values)
    run = outlook.find(visit.connection, visit.namespace, effect.run_id)
    lines = []
    if happened:
        lines.append("It is recorded as done. No attempt performs it again.")
        if values["result"]:
            lines.append(
                "A later attempt reads this effect.result:"
                f" {json.dumps(result, ensure_ascii=False)[:2000]}"
            )
    else:
        lines.append("It is reset. The next attempt performs it, as if it had not been started.")
    if run is None:
        lines.append("Its run was pruned, so no attempt follows.")
    elif run.status in (Status.DEAD, Status.CANCELLED):
        lines.append(
            f"Run {run.id} is {run.status}, and stays so: retry it afterwards to have the rest"
            " done."
        )
    elif run.finished_at is None:
        lines.append(f"Run {run.id} continues: {outlook.state(run)}.")
    return Review(
        title=f"Settle the effect {values['key']}",
        button="Record that it happened" if happened else "Record that it did not happen",
        back=f"/runs/{effect.run_id}",
        lines=lines,
        warnings=[] if happened else ["If it did happen after all, it happens twice."],
        carried={"run": str(effect.run_id)},
        target=f"run:{effect.run_id}",
        is_final=not happened,
        change="Change",
    )


def perform(doing: Doing, values: Given) -> Redirect:
    happened, result, id = _happened(values), _result(values), values.number("run")
    with doing.transaction(f"run:{id}") as connection:
        try:
            what = settle.settle(
                connection, doing.namespace, values["key"], doing.who, happened, result
            )
        except Refused as error:
            raise Conflict(sentence(str(error))) from None
    return Redirect(f"/runs/{id}", Result(sentence(what)))


def _effect(visit: Visit, values: Given) -> EffectStatus:
    try:
        return settle.find(visit.connection, visit.namespace, values["key"])
    except Refused as error:
        raise Invalid("key", sentence(str(error))) from None


def _happened(values: Given) -> bool:
    return values.choice("happened", ANSWERS) == "done"


def _result(values: Given) -> Any:
    if not values["result"]:
        return None
    if values["happened"] != "done":
        raise Invalid("result", "An effect that did not happen has no result.")
    try:
        value = json.loads(values["result"])
        encode_result(value, "the result")
    except (ValueError, RecursionError):
        raise Invalid(
            "result",
            'This is not valid JSON: write for example "<id@example.org>", with its quotes.',
        ) from None
    except Refused as error:
        raise Invalid("result", sentence(str(error))) from None
    return value


ACTION = Action(
    "settle",
    "Settle an effect in doubt",
    ("key", "happened", "result", "run"),
    ("key", "happened"),
    ask,
    review,
    perform,
    limits={"key": 600, "result": 131_072},
)
