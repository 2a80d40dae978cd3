"""Whether handlers exist and payloads fit them, found by reading their source: nothing is imported.

What the source does not determine (see ``bindings``) is not reported.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yamlsched.definitions import lookup
from yamlsched.definitions.bindings import Function
from yamlsched.definitions.diagnostic import Diagnostic
from yamlsched.definitions.findings import Findings
from yamlsched.definitions.load import Calls, Loaded
from yamlsched.definitions.lookup import Missing
from yamlsched.definitions.node import Spot
from yamlsched.definitions.wording import did_you_mean, quoted


def check(loaded: Loaded, path: Sequence[Path]) -> list[Diagnostic]:
    """Return what is wrong with the jobs' handlers, looked for in the folders of ``path``, first to last.

    An error in another key of a job hides nothing: everything is reported at once.
    """
    found = Findings(loaded.source)
    folders = tuple(path)
    lookup.forget()
    for calls in loaded.calls():
        if found.is_full:
            break
        _check_calls(loaded, calls, folders, found)
    return found.diagnostics()


def check_again(loaded: Loaded, calls: Calls, path: Sequence[Path]) -> list[Diagnostic]:
    """Return what is wrong with one job's handlers, as far as it was looked up before by ``check``."""
    found = Findings(loaded.source)
    _check_calls(loaded, calls, tuple(path), found)
    return found.diagnostics()


def _check_calls(loaded: Loaded, calls: Calls, folders: tuple[Path, ...], found: Findings) -> None:
    for key, dotted in (("handler", calls.handler), ("on_dead", calls.on_dead)):
        if dotted is None:
            continue
        spot = loaded.spot(calls.job, key)
        result = lookup.look_up(dotted, folders)
        if isinstance(result, Missing):
            found.error(spot, result.code, f"{spot}: {result.message}", result.remedy)
        elif result is None or result.decorator_list:
            continue  # a decorator may change the parameters
        elif key == "handler":
            _check_payload(loaded, calls, result, found)
        else:
            _check_on_dead(result, spot, found)


class Parameters(NamedTuple):
    """What a handler takes by name, besides ``run``."""

    expected: list[str]
    optional: set[str]
    takes_run: bool
    takes_any: bool  # **kwargs
    by_position_only: str | None  # the first that must be given by position

    @classmethod
    def of(cls, function: Function) -> Parameters:
        args = function.args
        by_position = args.posonlyargs[: max(0, len(args.posonlyargs) + len(args.args) - len(args.defaults))]
        names = [a.arg for a in [*args.args, *args.kwonlyargs]]
        optional = {a.arg for a in args.args[len(args.args) - min(len(args.defaults), len(args.args)) :]}
        optional |= {a.arg for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is not None}
        return cls(
            [name for name in names if name != "run"],
            optional,
            "run" in names,
            args.kwarg is not None,
            by_position[0].arg if by_position else None,
        )

    def unknown(self, key: str) -> str | None:
        """Return the remedy for a payload key that the handler does not take; None for one that it does."""
        if key == "run" and self.takes_run:
            return "Give the key another name: run is given by the worker."
        if key in self.expected or self.takes_any:
            return None
        taken = f"It takes: {', '.join(self.expected)}." if self.expected else "It takes none."
        return did_you_mean(key, self.expected, taken)

    def missing(self, given: Collection[str]) -> list[str]:
        return [name for name in self.expected if name not in given and name not in self.optional]


def misfit(handler: str, payload: Collection[str], path: Sequence[Path]) -> str | None:
    """Return why no call of ``handler`` with these payload keys can succeed; None where the source does not say so."""
    found = lookup.look_up(handler, tuple(path))
    if found is None or isinstance(found, Missing) or found.decorator_list:
        return None
    parameters = Parameters.of(found)
    for key in payload:
        if remedy := parameters.unknown(key):
            return f"{handler} has no parameter {quoted(key)}. {remedy}"
    if missing := parameters.missing(payload):
        return f"{handler} needs {', '.join(missing)}, which the payload does not give"
    return None


def _check_payload(loaded: Loaded, calls: Calls, function: Function, found: Findings) -> None:
    """Report payload keys that the function does not take, and parameters that nothing gives."""
    handler = loaded.spot(calls.job, "handler")
    parameters = Parameters.of(function)
    if parameters.by_position_only:
        message = f"{handler}: {calls.handler} takes {parameters.by_position_only} by position only"
        found.error(handler, "YS306", message, "Payload keys arrive by name: remove the / from its parameters.")
        return
    if calls.payload is None:
        return
    for key in calls.payload:
        spot = loaded.spot(calls.job, "payload", key)
        if key == "run" and parameters.takes_run:
            found.error(spot.key, "YS305", f"{spot}: run is given by the worker", "Give the key another name.")
        elif remedy := parameters.unknown(key):
            message = f"{spot}: {calls.handler} has no parameter {quoted(key)}"
            found.error(spot.key, "YS304", message, remedy)
    if calls.has_cron and calls.is_whole:
        # without cron the payload may come with each enqueue; in place of a misspelt key it may be there
        expected, missing = parameters.expected, parameters.missing(calls.payload)
        guessed = any(name in missing for key in calls.payload if key not in expected for name in expected)
        if missing and not (guessed and not parameters.takes_any):
            message = f"{handler}: {calls.handler} needs {', '.join(missing)}, which no payload gives"
            is_method = missing[0] == "self" and "." in (calls.handler or "").partition(":")[2]
            remedy = f"Add payload: {{{missing[0]}: ...}}, or a default in Python."
            remedy = "Make it a static method: a handler is called without an object." if is_method else remedy
            found.error(handler, "YS305", message, remedy)


def _check_on_dead(function: Function, spot: Spot, found: Findings) -> None:
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    required = len(positional) - len(args.defaults)
    lonely = [a for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    if required > 1 or lonely or (not positional and args.vararg is None):
        message = f"{spot}: {function.name} must take one argument, the run that is dead"
        found.error(spot, "YS308", message, f"Write def {function.name}(run): ...")


def check_by_import(loaded: Loaded, path: Sequence[Path]) -> list[Diagnostic]:
    """Import the handlers for real and bind the payloads to them. Runs the project's code."""
    found = Findings(loaded.source)
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in path]
    try:
        for calls in loaded.calls():
            for key, dotted in (("handler", calls.handler), ("on_dead", calls.on_dead)):
                if dotted is not None and (reason := _import_and_bind(dotted, calls if key == "handler" else None)):
                    spot = loaded.spot(calls.job, key)
                    found.error(spot, "YS309", f"{spot}: {reason}", "Run it with: yamlsched invoke")
    finally:
        sys.path[:] = before
    return found.diagnostics()


def _import_and_bind(dotted: str, calls: Calls | None) -> str:
    """Return why the callable cannot be imported, or cannot take its arguments; "" if it can."""
    import importlib

    module, name = lookup.split(dotted)
    try:
        handler: Any = importlib.import_module(module)
        for part in name.split("."):
            handler = getattr(handler, part)
    except (Exception, SystemExit) as error:
        # whatever the project's code raises while it is imported is the finding
        return f"importing {module} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if not callable(handler):
        return f"{dotted} is not a function (got a {type(handler).__name__})"
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        return f"{dotted} is a generator: calling it does nothing"
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return ""
    try:
        if calls is None:
            signature.bind(object())
        elif calls.payload is not None:
            run = {"run": None} if "run" in signature.parameters else {}
            (signature.bind if calls.has_cron and calls.is_whole else signature.bind_partial)(**calls.payload, **run)
    except TypeError as error:
        return f"{dotted} does not accept its arguments: {error}"
    return ""
