"""Whether handlers exist and accept their payloads, determined from their source: nothing is
imported.

What the source does not determine (see ``lookup``) is not reported.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.job import Job
from yamlsched.schedule.load import Loaded
from yamlsched.schedule.lookup import Handler, Sources, split_path
from yamlsched.schedule.node import Spot
from yamlsched.schedule.source import Finding
from yamlsched.text import did_you_mean, join_words, quoted

MAX_ERROR_CHARS = 200


def check(loaded: Loaded, sources: Sources, findings: Findings, imports: bool = False) -> None:
    """Report what is wrong with the handlers of all jobs.

    ``imports``: import what can be found, which runs the project's code.
    """
    before = sys.path.copy()
    if imports:
        sys.path[:] = sources.path
    for job in loaded.served_jobs:
        if (dotted := job.handler) is None:
            continue
        spot, function = loaded.spot(job.name, "handler"), sources.find(dotted)
        if imports and not isinstance(function, Finding):
            function = _import(dotted, job.name)
        if isinstance(function, Finding):
            findings.report(spot, function)
        elif function is not None:
            _check_function(loaded, job, dotted, spot, function, findings)
    sys.path[:] = before


def _import(dotted: str, job: str) -> Handler | Finding:
    module, name = split_path(dotted)
    try:
        handler = pkgutil.resolve_name(f"{module}:{name}")
    except (Exception, SystemExit) as error:
        # any exception that the project's code raises during the import is reported
        reason = " ".join(str(error).split())[:MAX_ERROR_CHARS]
        message = f"importing {module} failed: {type(error).__name__}: {reason}"
        return Finding("YS309", message, f"To reproduce it, run: yamlsched invoke {job}")
    if callable(handler):
        return handler  # type: ignore[no-any-return]
    kind = type(handler).__name__
    return Finding("YS306", f"{dotted} is not a function (got a {kind})", "Name a function.")


def _check_function(
    loaded: Loaded,
    job: Job,
    dotted: str,
    spot: Spot,
    function: Handler,
    findings: Findings,
) -> None:
    """Report why a handler cannot be called. It has been read, or imported."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"{spot}: {dotted} is a generator: calling it does nothing"
        remedy = "Do the work without yield, or call it from a function that consumes it."
        findings.error(spot, "YS306", message, remedy)
        return
    if job.is_async:
        _check_async(job.queue, dotted, spot, function, findings)
    if _enqueues(function):
        _check_followers(loaded, job.name, findings)
    try:
        parameters = Parameters.of(dotted, function)
    except (TypeError, ValueError):
        return  # some builtins have no signature
    _check_payload(loaded, job, spot, parameters, findings)


def _name(dotted: str) -> str:
    return re.split("[.:]", dotted)[-1]


def _enqueues(handler: Handler) -> bool:
    """Return whether the body of a handler calls ``run.enqueue``, as far as that is seen there."""
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return (
        code is not None
        and "run" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        and not {"enqueue", "enqueue_many"}.isdisjoint(code.co_names)
    )


def _check_followers(loaded: Loaded, name: str, findings: Findings) -> None:
    """Report jobs that follow one which enqueues, and do not wait for that."""
    for job in loaded.jobs.values():
        if name in job.after and job.after_enqueued is None:
            spot = loaded.spot(job.name, "after")
            message = f"job {quoted(job.name)}: it does not wait for the runs that {name} enqueues"
            remedy = "Add after_enqueued: ended, or suppress this warning."
            findings.warning(spot, "YS470", message, remedy)


def _check_async(
    queue: str, dotted: str, spot: Spot, function: Handler, findings: Findings
) -> None:
    """Report a handler that cannot share a process, and one that had better not."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if not inspect.iscoroutinefunction(function):
        message = (
            f"{spot}: {dotted} is not an async def, which queue {quoted(queue)} requires"
            " (mode: async)"
        )
        remedy = f"Write async def {_name(dotted)}, or choose another queue."
        findings.error(spot, "YS312", message, remedy)
    elif code and "once" in code.co_names and "raise" in code.co_consts:
        message = (
            f'{spot}: {dotted} uses run.once(in_doubt="raise"): it dies if another run ends the'
            " process that they share"
        )
        remedy = "Use a queue with mode: process, or another in_doubt."
        findings.warning(spot, "YS428", message, remedy)


class Parameters(NamedTuple):
    """The parameters that a handler takes by name, except ``run``.

    ``takes_any``: it has ``**kwargs``.
    """

    handler: str
    expected: list[str]
    required: list[str]
    takes_run: bool
    takes_any: bool

    @classmethod
    def of(cls, dotted: str, handler: Handler, follow_wrapped: bool = True) -> Parameters:
        signature = inspect.signature(handler, follow_wrapped=follow_wrapped)
        every = signature.parameters.values()
        named = [
            one.name for one in every if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]
        positional = [one.name for one in every if one.kind is one.POSITIONAL_ONLY]
        optional = {one.name for one in every if one.default is not one.empty} | {"run"}
        return cls(
            dotted,
            [name for name in named if name != "run"],
            [name for name in (*positional, *named) if name not in optional],
            "run" in named,
            any(one.kind is one.VAR_KEYWORD for one in every),
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

    def fault(self, payload: Collection[str]) -> str:
        """Return why every call with these payload keys fails; "" if one may succeed."""
        for problem in filter(None, map(self.problem, payload)):
            return f"{problem.message}. {problem.remedy}"
        missing = self.missing(payload)
        return self.requires(missing) if missing else ""


def parameters(handler: str, path: Sequence[Path]) -> Parameters | None:
    """Return what ``handler`` takes; None if its source does not determine it."""
    function = Sources(path).find(handler)
    if function is None or isinstance(function, Finding):
        return None
    return Parameters.of(handler, function)


def _check_payload(
    loaded: Loaded, job: Job, handler: Spot, parameters: Parameters, findings: Findings
) -> None:
    """Report payload keys that the handler does not take, and parameters that have no value."""
    _check_values(loaded, job, parameters, findings)
    problems = {key: problem for key in job.payload if (problem := parameters.problem(key))}
    for key, problem in problems.items():
        findings.report(loaded.spot(job.name, "payload", key).key, problem)
    if problems or not (job.cron or job.after or job.name in loaded.hooks):
        return  # an unknown key may be a misspelt parameter, or the payload comes with each enqueue
    if missing := parameters.missing(job.payload):
        remedy = f"Add payload: {{{missing[0]}: ...}}, or a default in Python."
        findings.error(handler, "YS305", f"{handler}: {parameters.requires(missing)}", remedy)


def _check_values(loaded: Loaded, job: Job, parameters: Parameters, findings: Findings) -> None:
    """Report a limit that counts, or a job whose runs are unique, by a key that no run has."""
    limit = loaded.spot(job.name, "limit")
    keys = [(key, limit, f"{limit}: {quoted(str(limit.value))}", "YS436") for key in job.limit_by]
    if job.unique:
        unique = loaded.spot(job.name, "unique")
        by = loaded.spot(job.name, "unique", "by").children()
        keys += [(spot.value, spot, str(unique), "YS456") for spot in by]
    for key, spot, what, code in keys:
        if parameters.problem(key) and key not in job.payload:
            message = (
                f"{what} counts by {quoted(key)}, which is not a parameter of"
                f" {parameters.handler}: it is null in every run"
            )
            names = ", ".join(parameters.expected)
            remedy = did_you_mean(key, parameters.expected, f"It takes: {names or 'nothing'}.")
            findings.warning(spot, code, message, remedy)
