"""Whether handlers exist and accept their payloads, determined from their source: nothing is
imported.

What the source does not determine (see ``lookup``) is not reported.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.load import Calls, Loaded
from yamlsched.schedule.lookup import Function, Sources, split_path
from yamlsched.schedule.node import Spot
from yamlsched.schedule.source import Diagnostic, Finding
from yamlsched.text import did_you_mean, join_words, quoted

MAX_ERROR_CHARS = 200


def check(loaded: Loaded, sources: Sources, only: Calls | None = None) -> list[Diagnostic]:
    """Return what is wrong with the handlers of all jobs, or of one.

    A job with errors in other keys is checked too, so that everything is reported at once.
    """
    findings = Findings(loaded.source)
    for calls in loaded.calls if only is None else (only,):
        if findings.is_full:
            break
        _check_calls(loaded, calls, sources, findings)
    return findings.diagnostics()


def _called(loaded: Loaded, calls: Calls) -> Iterator[tuple[str, str, Spot]]:
    """Yield the keys that name functions, with the dotted path and the position of each."""
    for key, dotted in (("handler", calls.handler), ("on_dead", calls.on_dead)):
        if dotted is not None:
            yield key, dotted, loaded.spot(calls.job, key)


def _check_calls(loaded: Loaded, calls: Calls, sources: Sources, findings: Findings) -> None:
    for key, dotted, spot in _called(loaded, calls):
        function = sources.find(dotted)
        if isinstance(function, Finding):
            findings.report(spot, function)
        elif function is None:
            continue
        elif key == "handler":
            if calls.is_shared:
                _check_shared(dotted, spot, function, findings)
            _check_payload(loaded, calls, spot, Parameters.of(dotted, function), findings)
        elif not _takes_one(function):
            message = f"{spot}: {function.name} must take one argument, the run that is dead"
            findings.error(spot, "YS308", message, f"Write def {function.name}(run): ...")


def _takes_one(function: Function) -> bool:
    args = function.args
    first = [*args.posonlyargs, *args.args][:1]
    return bool(first or args.vararg) and all(arg in first for arg in _required(args))


def _required(args: ast.arguments) -> list[ast.arg]:
    positional = [*args.posonlyargs, *args.args]
    by_name = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return [
        *positional[: len(positional) - len(args.defaults)],
        *(arg for arg, default in by_name if default is None),
    ]


def _check_shared(dotted: str, spot: Spot, function: Function, findings: Findings) -> None:
    """Report a handler that cannot share a process, and one that had better not."""
    if isinstance(function, ast.FunctionDef):
        message = f"{spot}: {dotted} is not an async def, which isolation: shared requires"
        findings.error(
            spot, "YS312", message, f"Write async def {function.name}, or isolation: process."
        )
    elif any(map(_raises_in_doubt, ast.walk(function))):
        message = (
            f'{spot}: {dotted} uses run.once(in_doubt="raise"): another run that ends its process'
            " leaves it dead"
        )
        findings.warning(spot, "YS428", message, "Write isolation: process, or another in_doubt.")


def _raises_in_doubt(node: ast.AST) -> bool:
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "once"
    ):
        return False
    values = (keyword.value for keyword in node.keywords if keyword.arg == "in_doubt")
    return any(isinstance(value, ast.Constant) and value.value == "raise" for value in values)


@dataclass(frozen=True)
class Parameters:
    """The parameters that a handler takes by name, except ``run``.

    ``takes_any``: it has ``**kwargs``. ``by_position_only`` is the first parameter that only works
    by position.
    """

    handler: str
    expected: list[str]
    required: list[str]
    takes_run: bool
    takes_any: bool
    by_position_only: str | None

    @classmethod
    def of(cls, handler: str, function: Function) -> Parameters:
        args = function.args
        names = [arg.arg for arg in (*args.args, *args.kwonlyargs)]
        expected = [name for name in names if name != "run"]
        required = _required(args)
        return cls(
            handler,
            expected,
            [arg.arg for arg in required if arg.arg in expected],
            "run" in names,
            args.kwarg is not None,
            next((arg.arg for arg in required if arg in args.posonlyargs), None),
        )

    def problem(self, key: str) -> Finding | None:
        """Return why a payload cannot have ``key``; None if it can."""
        if key == "run" and self.takes_run:
            return Finding("YS305", "run is passed by the worker", "Rename the key.")
        if key in self.expected or self.takes_any:
            return None
        taken = f"It takes: {', '.join(self.expected)}." if self.expected else "It takes none."
        remedy = did_you_mean(key, self.expected, taken)
        return Finding("YS304", f"{self.handler} has no parameter {quoted(key)}", remedy)

    def missing(self, keys: Collection[str]) -> list[str]:
        return [name for name in self.required if name not in keys]

    def requires(self, missing: list[str]) -> str:
        names = join_words(map(quoted, missing), "and")
        return f"{self.handler} requires {names}, which the payload does not contain"


def parameters(handler: str, path: Sequence[Path]) -> Parameters | None:
    """Return what ``handler`` takes; None if its source does not determine it."""
    function = Sources(path).find(handler)
    return Parameters.of(handler, function) if isinstance(function, Function) else None


def payload_problem(parameters: Parameters | None, payload: Collection[str]) -> str | None:
    """Return why every call with these payload keys fails; None if it may succeed."""
    if parameters is None:
        return None
    for problem in filter(None, map(parameters.problem, payload)):
        return f"{problem.message}. {problem.remedy}"
    missing = parameters.missing(payload)
    return parameters.requires(missing) if missing else None


def _check_payload(
    loaded: Loaded, calls: Calls, handler: Spot, parameters: Parameters, findings: Findings
) -> None:
    """Report payload keys that the handler does not take, and parameters that have no value."""
    if parameters.by_position_only:
        message = (
            f"{handler}: {parameters.handler} takes {quoted(parameters.by_position_only)} by"
            " position only"
        )
        findings.error(
            handler,
            "YS306",
            message,
            "Payload keys are passed by name: remove the / from its parameters.",
        )
        return
    problems = {key: problem for key in calls.payload or () if (problem := parameters.problem(key))}
    for key, problem in problems.items():
        findings.report(loaded.spot(calls.job, "payload", key).key, problem)
    if calls.payload is None or not calls.has_cron or not calls.is_whole or problems:
        # the payload may come with each enqueue, or an unknown key may be a misspelt parameter
        return
    if missing := parameters.missing(calls.payload):
        remedy = f"Add payload: {{{missing[0]}: ...}}, or a default in Python."
        if missing[0] == "self" and "." in parameters.handler.partition(":")[2]:
            remedy = "Make it a static method: a handler is called without an object."
        findings.error(handler, "YS305", f"{handler}: {parameters.requires(missing)}", remedy)


def check_by_import(
    loaded: Loaded, path: Sequence[Path], jobs: Collection[str] | None = None
) -> list[Diagnostic]:
    """Import the handlers, or those of ``jobs``, and bind the payloads to them. Runs the project's
    code.
    """
    findings = Findings(loaded.source)
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in path]
    try:
        for calls in loaded.calls:
            if jobs is not None and calls.job not in jobs:
                continue
            for key, dotted, spot in _called(loaded, calls):
                if reason := _import_and_bind(dotted, calls if key == "handler" else None):
                    findings.error(
                        spot,
                        "YS309",
                        f"{spot}: {reason}",
                        f"To reproduce it, run: yamlsched invoke {calls.job}",
                    )
    finally:
        sys.path[:] = before
    return findings.diagnostics()


def _import_and_bind(dotted: str, calls: Calls | None) -> str:
    """Return why the callable cannot be imported, or cannot take its arguments; "" if it can."""
    module, name = split_path(dotted)
    try:
        handler = pkgutil.resolve_name(f"{module}:{name}")
    except (Exception, SystemExit) as error:
        # any exception that the project's code raises during the import is reported
        reason = " ".join(str(error).split())[:MAX_ERROR_CHARS]
        return f"importing {module} failed: {type(error).__name__}: {reason}"
    if not callable(handler):
        return f"{dotted} is not a function (got a {type(handler).__name__})"
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        return f"{dotted} is a generator: calling it does nothing"
    if (
        calls is not None
        and calls.is_shared
        and not inspect.iscoroutinefunction(inspect.unwrap(handler))
    ):
        return f"{dotted} is not an async def, which isolation: shared requires"
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return ""
    if calls is not None and calls.payload is None:
        return ""
    bind: Callable[..., object] = signature.bind
    args, kwargs = [object()], dict[str, Any]()
    if calls is not None:
        run = {"run": None} if "run" in signature.parameters else {}
        args, kwargs = [], {**(calls.payload or {}), **run}
        bind = signature.bind if calls.has_cron and calls.is_whole else signature.bind_partial
    try:
        bind(*args, **kwargs)
    except TypeError as error:
        return f"{dotted} does not accept its arguments: {error}"
    return ""
