"""Handlers: imported by their path, and checked against the payload that they are to be called with."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from yamlsched.errors import Discard

decode = json.JSONDecoder().raw_decode  # of JSON as PostgreSQL writes it: without white space around it


def resolve(path: str) -> Callable[..., Any]:
    """Import and return the callable that ``pkg.mod.func`` or ``pkg.mod:func`` names."""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{path} is not a function (got a {type(found).__name__})")
    return found  # type: ignore[no-any-return]


def read_payload(text: str) -> dict[str, Any]:
    """Return the payload. Raises Discard where Python cannot read what PostgreSQL stores: no retry changes that."""
    try:
        payload = decode(text)[0]
    except RecursionError as error:
        raise _unreadable("it is nested too deeply") from error
    except ValueError as error:
        raise _unreadable("it contains a number with too many digits") from error
    if not isinstance(payload, dict):
        raise Discard(f"the payload is a {type(payload).__name__}, not an object: its keys become keyword arguments")
    return payload


def _unreadable(why: str) -> Discard:
    return Discard(f"the payload cannot be read: {why}. Enqueue the run again with another payload")


@lru_cache(1024)
def payload_mismatch(handler: Callable[..., Any], path: str, names: tuple[str, ...], passes_run: bool) -> str:
    """Return why a payload with keys ``names`` cannot be passed to ``handler``; empty if it can.

    A decorator may pass on other arguments than it gets: of a decorated handler its own signature counts.
    """
    try:
        parameters = inspect.signature(handler, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return ""  # some builtins have none
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    given = {*names, "run"} if passes_run else {*names}
    unknown = sorted(given - {p.name for p in named})
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        unknown = []
    missing = [p.name for p in named if p.default is p.empty and p.name not in given]
    missing += [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    faults = [f'it has no parameter "{name}"' for name in unknown] + [f'"{name}" is missing' for name in missing]
    if "run" in names and passes_run:
        faults.append('"run" is the run itself')
    if not faults:
        return ""
    takes = ", ".join(p.name for p in named if p.name != "run") or "no parameters"
    return f"the payload does not fit {path}: {', '.join(faults)}. It takes: {takes}"


@cache
def takes_run(handler: Callable[..., Any]) -> bool:
    """Return whether ``handler`` has a parameter ``run``."""
    try:
        return "run" in inspect.signature(handler).parameters
    except (TypeError, ValueError):
        return False
