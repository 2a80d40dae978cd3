"""Are the handlers there, and do the payloads fit them? Found out by reading their files: nothing is imported.

Importing would run code of the project, and ``importlib.util.find_spec("a.b")`` runs that of ``a``. What a file does
not say, because a name comes from a star import, a decorator or an extension module, is taken to be right.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from os.path import isdir, isfile  # these do not raise where a folder cannot be looked into
from pathlib import Path
from typing import Any

from yamlsched.definitions.diagnostic import Diagnostic, Findings, did_you_mean, quoted, where
from yamlsched.definitions.diagnostic import Path as KeyPath
from yamlsched.definitions.load import Calls, Loaded
from yamlsched.definitions.tree import Node

MOST_HOPS = 8
"""How many re-exports are followed."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Missing:
    """A path that leads to no function; the code, what is wrong, and what to do."""

    code: str
    message: str
    remedy: str


def check(loaded: Loaded, path: Sequence[Path]) -> list[Diagnostic]:
    """Return what is wrong with the handlers of the jobs, looked for in the folders of ``path``, first to last.

    A mistake in another key of a job hides nothing: all is told at once.
    """
    found = Findings(loaded.source)
    _forget()
    for calls in loaded.calls():
        for key, dotted in (("handler", calls.handler), ("on_dead", calls.on_dead)):
            if dotted is None:
                continue
            node, place, use = loaded.value(calls.job, key)
            result = look_up(dotted, tuple(path))
            if isinstance(result, Missing):
                found.add(result.code, node, place, use, f"{where(place)}: {result.message}", result.remedy)
            elif isinstance(result, (ast.FunctionDef, ast.AsyncFunctionDef)) and not result.decorator_list:
                if key == "handler":
                    _check_payload(loaded, calls, result, found)
                else:
                    _check_on_dead(result, node, place, use, found)
    return found.diagnostics()


def missing(loaded: Loaded, path: Sequence[Path]) -> Iterator[tuple[str, str, str]]:
    """Yield job, dotted path and reason for each handler of a sound job that is not there or is no function."""
    _forget()
    for job in loaded.jobs.values():
        result = look_up(job.handler, tuple(path))
        if isinstance(result, Missing):
            yield job.name, job.handler, result.message


def _forget() -> None:
    """Files may have changed since the last look at them."""
    look_up.cache_clear()
    _parsed.cache_clear()
    _listed.cache_clear()


@cache
def look_up(dotted: str, path: tuple[Path, ...]) -> Definition | Missing | None:
    """Return the function that a dotted path names, why there is none, or None if its file does not say."""
    module, _, name = dotted.partition(":") if ":" in dotted else dotted.rpartition(".")
    file = _find(module, path)
    if isinstance(file, Missing):
        return file
    return _function(file, module, name, path, MOST_HOPS)


def _find(module: str, path: tuple[Path, ...]) -> Path | Missing | None:
    """Return the source file of a module; None if it is there but has no source."""
    parts = module.split(".")
    if parts[0] in sys.builtin_module_names:
        return None
    folders = list(path)
    for depth, part in enumerate(parts):
        step = _step(part, folders)
        if step is None and depth == 0 and _is_installed(part):
            return None
        if step is None:
            return _no_module(parts, depth, folders, path)
        if isinstance(step, list):
            folders = step
        elif depth < len(parts) - 1:
            return _not_a_package(".".join(parts[: depth + 1]))
        else:
            return step if step.suffix == ".py" else None
    init = folders[0] / "__init__.py"
    return init if isfile(init) else None


def _step(part: str, folders: list[Path]) -> Path | list[Path] | None:
    """Return the file of a module, or the folders of a package, as the import system would choose."""
    portions = []
    for folder in folders:
        package = folder / part
        if isfile(package / "__init__.py"):
            return [package]
        if isfile(module := folder / f"{part}.py"):
            return module
        if isdir(package):
            portions.append(package)
        elif extensions := [name for name in _listed(folder) if name.startswith(f"{part}.") and name.endswith(".so")]:
            return folder / extensions[0]
    return portions or None


def _is_installed(name: str) -> bool:
    """Ask the import system for a top-level name, which runs no code: an editable install has no folder in the path."""
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _no_module(parts: list[str], depth: int, folders: list[Path], path: tuple[Path, ...]) -> Missing:
    name = ".".join(parts[: depth + 1])
    near = folders if depth else list(path[:1])
    siblings = sorted({sibling for folder in near for sibling in _modules(folder)})
    if depth:
        message = f"{'.'.join(parts[:depth])} has no module {quoted(parts[depth])}"
        known = f"It has: {', '.join(siblings[:12])}." if siblings else "The package is empty."
    else:
        message = f"no module {quoted(name)} beside the file, in --path or installed"
        known = f"Beside the file: {', '.join(siblings[:12])}." if siblings else "Check the spelling, or give --path."
    return Missing("YS303", message, did_you_mean(parts[depth], siblings, known))


def _modules(folder: Path) -> Iterator[str]:
    for name in _listed(folder):
        stem, _, suffix = name.partition(".")
        if suffix == "py" and stem.isidentifier() and not stem.startswith("__"):
            yield stem
        elif isfile(folder / name / "__init__.py"):
            yield name


@cache
def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _not_a_package(module: str) -> Missing:
    return Missing("YS303", f"{module} is a module, not a package", f"Name a function of {module} itself.")


@cache
def _parsed(file: Path) -> ast.Module | Missing:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        return Missing("YS307", f"{file.name}{line} is not Python", "Correct the file.")
    except (OSError, ValueError, RecursionError, MemoryError):
        return Missing("YS307", f"{file.name} cannot be read as Python", "Correct the file.")


def _function(
    file: Path | None, module: str, name: str, path: tuple[Path, ...], hops: int
) -> Definition | Missing | None:
    if file is None or hops == 0:
        return None
    tree = _parsed(file)
    if isinstance(tree, Missing):
        return tree
    names = _names(tree)
    statement = names.get(name)
    if statement is None:
        if "*" in names or "__getattr__" in names:
            return None
        functions = sorted(key for key, value in names.items() if _is_function(value) and not key.startswith("_"))
        known = f"It has: {', '.join(functions[:12])}." if functions else "It has none."
        message = f"{module} has no function {quoted(name)}"
        return Missing("YS302", message, did_you_mean(name, functions, known))
    if isinstance(statement, ast.ImportFrom):
        return _imported(statement, file, module, name, path, hops)
    return _callable(statement, module, name)


def _callable(statement: ast.stmt, module: str, name: str) -> Definition | Missing | None:
    """Say whether the statement that binds a name makes a handler of it."""
    if isinstance(statement, ast.ClassDef):
        return Missing("YS306", f"{name} of {module} is a class", "Name a function; it may make the object.")
    if isinstance(statement, ast.Import):
        return Missing("YS306", f"{name} of {module} is a module", "Name a function of that module.")
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        if isinstance(statement.value, (ast.Constant, ast.List, ast.Dict, ast.Tuple, ast.Set, ast.JoinedStr)):
            return Missing("YS306", f"{name} of {module} is no function but a value", "Name a function.")
        return None
    if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    if not statement.decorator_list and any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in _own_nodes(statement)):
        remedy = "Do the work without yield, or call it from a function that consumes it."
        return Missing("YS306", f"{name} of {module} is a generator: calling it would do nothing", remedy)
    return statement


def _imported(
    statement: ast.ImportFrom, file: Path, module: str, name: str, path: tuple[Path, ...], hops: int
) -> Definition | Missing | None:
    """Follow ``from x import name`` as far as files tell; what lies beyond is taken to be right."""
    alias = next(alias for alias in statement.names if (alias.asname or alias.name) == name)
    base = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    if statement.level:
        base = base[: len(base) - statement.level + 1]
        source = ".".join([*base, *([statement.module] if statement.module else [])])
    else:
        source = statement.module or ""
    found = _find(source, path) if source else None
    result = None if isinstance(found, Missing) else _function(found, source, alias.name, path, hops - 1)
    # a missing name may be a submodule; only what is surely no handler counts
    return None if isinstance(result, Missing) and result.code != "YS306" else result


def _names(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return what the module binds at its top level, branches of ``if`` and ``try`` included; the last one counts."""
    names: dict[str, ast.stmt] = {}
    todo: list[ast.stmt] = list(reversed(tree.body))
    while todo:
        statement = todo.pop()
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[statement.name] = statement
        elif isinstance(statement, ast.Import):
            names.update({(alias.asname or alias.name.partition(".")[0]): statement for alias in statement.names})
        elif isinstance(statement, ast.ImportFrom):
            names.update({(alias.asname or alias.name): statement for alias in statement.names})
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names.update({n.id: statement for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)})
        else:
            inner = [part for key in ("body", "orelse", "finalbody") for part in getattr(statement, key, [])]
            inner += [part for handler in getattr(statement, "handlers", []) for part in handler.body]
            inner += [part for case in getattr(statement, "cases", []) for part in case.body]
            todo.extend(reversed(inner))
    return names


def _is_function(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))


def _own_nodes(function: Definition) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions and classes inside of it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))


def _check_payload(loaded: Loaded, calls: Calls, function: Definition, found: Findings) -> None:
    """Report payload keys that the function does not take, and parameters that nothing gives."""
    handler, place, use = loaded.value(calls.job, "handler")
    args = function.args
    required = args.posonlyargs[: max(0, len(args.posonlyargs) + len(args.args) - len(args.defaults))]
    if required:
        message = f"{where(place)}: {calls.handler} takes {required[0].arg} by position only"
        remedy = "Payload keys arrive by name: remove the / from its parameters."
        found.add("YS306", handler, place, use, message, remedy)
        return
    if calls.payload is None:
        return
    names = [a.arg for a in [*args.args, *args.kwonlyargs]]
    optional = [a.arg for a in args.args[len(args.args) - min(len(args.defaults), len(args.args)) :]]
    optional += [a.arg for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is not None]
    expected = [name for name in names if name != "run"]
    for key in calls.payload:
        node, key_place, key_use = loaded.value(calls.job, "payload", key)
        spot: Node = node.key or node
        if key == "run" and "run" in names:
            message = f"{where(key_place)}: run is given by the worker"
            found.add("YS305", spot, key_place, key_use, message, "Give the key another name.")
        elif key not in expected and args.kwarg is None:
            taken = f"It takes: {', '.join(expected)}." if expected else "It takes none."
            message = f"{where(key_place)}: {calls.handler} has no parameter {quoted(key)}"
            found.add("YS304", spot, key_place, key_use, message, did_you_mean(key, expected, taken))
    if calls.has_cron and calls.is_whole:
        # without cron the payload may come with each enqueue; in place of a misspelt key it may be there
        given = {*calls.payload, *optional}
        guessed = {name for key in calls.payload if key not in expected for name in expected if name not in given}
        missing = [name for name in expected if name not in given]
        if missing and not (guessed and args.kwarg is None):
            message = f"{where(place)}: {calls.handler} needs {', '.join(missing)}, which no payload gives"
            remedy = f"Add payload: {{{missing[0]}: ...}}, or a default in Python."
            found.add("YS305", handler, place, use, message, remedy)


def _check_on_dead(function: Definition, node: Node, place: KeyPath, use: int | None, found: Findings) -> None:
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    required = len(positional) - len(args.defaults)
    lonely = [a for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    if required > 1 or lonely or (not positional and args.vararg is None):
        message = f"{where(place)}: {function.name} must take one argument, the run that is dead"
        found.add("YS308", node, place, use, message, f"Write def {function.name}(run): ...")


def check_by_import(loaded: Loaded, path: Sequence[Path]) -> list[Diagnostic]:
    """Import the handlers for real and bind the payloads to them. Runs the project's code."""
    found = Findings(loaded.source)
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in path]
    try:
        for calls in loaded.calls():
            for key, dotted in (("handler", calls.handler), ("on_dead", calls.on_dead)):
                if dotted is not None and (reason := _import_and_bind(dotted, calls if key == "handler" else None)):
                    node, place, use = loaded.value(calls.job, key)
                    found.add("YS309", node, place, use, f"{where(place)}: {reason}", "Run it with: yamlsched invoke")
    finally:
        sys.path[:] = before
    return found.diagnostics()


def _import_and_bind(dotted: str, calls: Calls | None) -> str:
    """Return why the callable cannot be had, or cannot take its arguments; "" if all is well."""
    import importlib
    import inspect

    module, _, name = dotted.partition(":") if ":" in dotted else dotted.rpartition(".")
    try:
        handler: Any = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        # whatever the project's code raises while it is imported is the finding
        return f"importing {module} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if not callable(handler):
        return f"{dotted} is no function but a {type(handler).__name__}"
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return ""
    try:
        if calls is None:
            signature.bind(object())
        elif calls.payload is not None:
            given = {**calls.payload, **({"run": None} if "run" in signature.parameters else {})}
            (signature.bind if calls.has_cron and calls.is_whole else signature.bind_partial)(**given)
    except TypeError as error:
        return f"{dotted} does not take what it is given: {error}"
    return ""
