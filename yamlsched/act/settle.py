"""Settling an effect in doubt, after an operator has looked up whether it happened."""

from __future__ import annotations

from typing import Any

import psycopg

from yamlsched import jsonb
from yamlsched.act.audit import ActionRecord, record
from yamlsched.ask import runs
from yamlsched.errors import Refused
from yamlsched.runs import effects
from yamlsched.runs.lifecycle import Status
from yamlsched.timetable.times import rfc3339


def settle(
    connection: psycopg.Connection[Any],
    namespace: str,
    key: str,
    who: str,
    happened: bool,
    result: Any = None,
) -> str:
    """Record whether the effect ``key`` happened, with its ``result``; return a sentence with the
    next step.

    Raises Refused if there is nothing to settle: the effect is unknown, done, or being performed by
    an attempt.
    """
    encoded = jsonb.encode_result(result, "the result")
    with connection.transaction():
        of = effects.settle_effect(connection, namespace, key, happened, encoded)
        if of is not None:
            detail = {"effect": key, "as": "done" if happened else "not done"}
            action = ActionRecord(namespace, f"run:{of.run_id}", of.job_type, detail)
            record(connection, who, "settle", [action])
    if of is None:
        raise Refused(_nothing_to_settle(namespace, key, effects.find(connection, namespace, key)))
    then = (
        "is done: no attempt repeats it" if happened else "is reset: the next attempt performs it"
    )
    run = runs.run(connection, of.run_id)
    is_over = run is not None and run.status in (Status.DEAD, Status.CANCELLED)
    next_step = (
        f"; run {run.id} is {run.status}: yamlsched retry {run.id}" if run and is_over else ""
    )
    return f'effect "{key}" {then}' + next_step


def find(connection: psycopg.Connection[Any], namespace: str, key: str) -> effects.EffectStatus:
    """Return an effect that can be settled. Raises Refused if there is nothing to settle."""
    effect = effects.find(connection, namespace, key)
    if effect is None or not effect.can_be_settled:
        raise Refused(_nothing_to_settle(namespace, key, effect))
    return effect


def _nothing_to_settle(namespace: str, key: str, effect: effects.EffectStatus | None) -> str:
    if effect is None:
        return (
            f'there is no effect "{key}" in namespace "{namespace}": it was not started, or an'
            " error proved that it did not happen. yamlsched show RUN lists a run's effects"
        )
    if effect.done_at is not None:
        return f'effect "{key}" is not in doubt: it was done at ' + rfc3339(
            effect.done_at, "seconds"
        )
    return (
        f'effect "{key}" is not in doubt: attempt {effect.attempt} of run {effect.run_id} is'
        f" performing it. Wait until it ends; yamlsched cancel {effect.run_id} ends it, at the"
        " latest when its lease ends"
    )
