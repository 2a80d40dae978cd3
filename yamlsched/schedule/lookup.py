"""Finds the function that a dotted path names, by reading source files: nothing is imported.

Importing would run the project's code, and ``importlib.util.find_spec("a.b")`` runs the code of
``a``. A function is known if its module has one ``def`` with its name, without a decorator, and
binds the name nowhere else. What is imported, decorated, assigned or made by a call is unknown, and
not an error.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from os.path import isdir, isfile  # unlike Path's, these do not raise if a folder cannot be read
from pathlib import Path
from pkgutil import iter_modules

from yamlsched.schedule.source import Finding
from yamlsched.text import did_you_mean, quoted

MAX_CANDIDATES = 300
"""A misspelt name is compared with at most this many others."""
MAX_LISTED = 12
DYNAMIC = {"*", "__getattr__", "__path__", "declare_namespace", "exec", "globals", "locals"}
DYNAMIC |= {"modules", "setattr", "vars"}
"""A module that names one of these may have more than it defines, submodules too."""

Handler = Callable[..., object]


class Module:
    """What a module defines at its top level, and how often a name is bound in it, at any depth."""

    def __init__(self, source: ast.Module) -> None:
        self.bound: Counter[str] = Counter()
        self.is_dynamic = False
        for node in ast.walk(source):
            used = [getattr(node, field, None) for field in ("id", "attr", "name", "asname")]
            self.is_dynamic = self.is_dynamic or not DYNAMIC.isdisjoint(used)
            if not isinstance(getattr(node, "ctx", None), ast.Load):
                self.bound.update(filter(None, used))
        functions = [
            node for node in source.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        self.names = sorted(node.name for node in functions if not node.name.startswith("_"))
        self.known = _stubs([node for node in functions if not node.decorator_list])

    def find(self, name: str, module: str) -> Handler | Finding | None:
        """Return the only definition of a name, why there is none, or None if that is unknown."""
        if self.is_dynamic or self.bound[name] > 1:
            return None
        if self.bound[name]:
            return self.known.get(name)
        known = f"It has: {', '.join(self.names[:MAX_LISTED])}." if self.names else "It has none."
        remedy = did_you_mean(name, self.names[:MAX_CANDIDATES], known)
        return Finding("YS302", f"{module} has no function {quoted(name)}", remedy)


def _stubs(nodes: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> dict[str, Handler]:
    """Return functions with the same bodies and parameters. Without annotations, and with None for
    each default, nothing of the project is executed.
    """
    for node in nodes:
        args, none = node.args, ast.copy_location(ast.Constant(None), node)
        for arg in ast.walk(args):
            if isinstance(arg, ast.arg):
                arg.annotation = None
        args.defaults = [none for _ in args.defaults]
        args.kw_defaults = [default and none for default in args.kw_defaults]
        node.returns = None
    names: dict[str, Handler] = {}
    exec(compile(ast.Module([*nodes], []), "", "exec", dont_inherit=True), names)
    return names


class Sources:
    """The source files in the folders of ``path``, first to last. Each is read once."""

    def __init__(self, path: Iterable[Path]) -> None:
        PathFinder.invalidate_caches()  # files may have changed
        self.path = list(map(str, path))
        self._read: dict[Path, Module | Finding | None] = {}

    def find(self, dotted: str) -> Handler | Finding | None:
        """Return the function that a dotted path names, why there is none, or None if that is
        unknown.
        """
        module, name = split_path(dotted)
        file = self.module(module)
        source = self._source(file) if isinstance(file, Path) else file
        if not isinstance(source, Module):
            return source
        if "." in name:
            return None  # a method
        found = source.find(name, module)
        if isinstance(found, Finding) and not isinstance(self.module(f"{module}.{name}"), Finding):
            message = f"{module}.{name} is a module, not a function"
            remedy = f"Add the name of a function: {module}.{name}.function."
            return Finding("YS306", message, remedy)
        return found

    def _source(self, file: Path) -> Module | Finding | None:
        if file not in self._read:
            self._read[file] = _parse(file)
        return self._read[file]

    def module(self, name: str) -> Path | Finding | None:
        """Return the file of a module, or the folder of a package without one, or why there is
        none. None if its place is unknown.
        """
        parts = name.split(".")
        folders: list[str] | None = self.path
        file, parents = None, list[Path | None]()
        for depth, part in enumerate(parts):
            if folders is None:
                parent = ".".join(parts[:depth])
                message = f"{parent} is a module, not a package"
                remedy = f"Write a function of {parent}, or for a method {parent}:Class.method."
                problem = Finding("YS303", message, remedy)
                break
            spec = PathFinder.find_spec(part, folders) or (None if depth else _installed(part))
            if spec is None:
                problem = self._no_module(parts, depth, folders)
                break
            locations = spec.submodule_search_locations
            folders = None if locations is None else list(locations)
            file = _place(spec)
            parents.append(file)
        else:
            return file
        return None if any(map(self._is_dynamic, parents)) else problem

    def _is_dynamic(self, file: Path | None) -> bool:
        source = self._source(file) if file else None
        return not isinstance(source, Module) or source.is_dynamic

    def _no_module(self, parts: list[str], depth: int, folders: list[str]) -> Finding:
        part = parts[depth]
        if not depth and PathFinder.find_spec(part, [f"{folder}/src" for folder in folders]):
            remedy = "It is in the folder src: write paths: [src] at the top level."
        else:
            modules = iter_modules(folders if depth else folders[:1])
            names = sorted(
                {each.name for each in modules if each.name.isidentifier()} - {"__main__"}
            )
            known = f"{'It has' if depth else 'Modules there'}: {', '.join(names[:MAX_LISTED])}."
            otherwise = known if names else "Check the spelling and paths."
            remedy = did_you_mean(part, names[:MAX_CANDIDATES], otherwise)
        parent = ".".join(parts[:depth])
        message = (
            f"{parent} has no module {quoted(part)}"
            if parent
            else f"no module {quoted(part)} in paths, next to this file or installed"
        )
        return Finding("YS303", message, remedy)


def split_path(dotted: str) -> tuple[str, str]:
    """Return module and name of ``pkg.mod.func``, ``pkg.mod:func`` or ``pkg.mod:Class.method``."""
    module, _, name = dotted.partition(":") if ":" in dotted else dotted.rpartition(".")
    return module, name


def _installed(name: str) -> ModuleSpec | None:
    """Return what the import system knows of a top-level name, which runs no code.

    An editable install has no folder in the path.
    """
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _place(spec: ModuleSpec) -> Path | None:
    """Return the file of a module, or the folder of a package without one."""
    place = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    return Path(place) if place else None


def _parse(file: Path) -> Module | Finding | None:
    """Return what a file defines, why it cannot be read, or None if its source is not there."""
    if isdir(file):
        return Module(ast.Module([], []))  # a package without __init__.py
    if file.suffix != ".py" or not isfile(file):
        return None
    try:
        with open(file, "rb") as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about escapes in the project's strings
            return Module(ast.parse(source.read()))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file.name} line {line}" if line else file.name
        return Finding("YS307", f"{where} cannot be read as Python", "Fix the file.")
