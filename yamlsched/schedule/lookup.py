"""Finds the function that a dotted path names, by reading source files: nothing is imported.

Importing would run the project's code, and ``importlib.util.find_spec("a.b")`` runs the code of
``a``. A function is known if its module has one ``def`` with its name, without a decorator, and
binds the name nowhere else. What is imported, decorated, assigned or made by a call is unknown, and
not an error.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
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

MAX_SOURCE_BYTES = 4 << 20
"""Larger files are not read: their names are unknown."""
MAX_CANDIDATES = 300
"""A misspelt name is compared with at most this many others."""
MAX_LISTED = 12
OWN_PACKAGES = {
    "click",
    "cron_descriptor",
    "croniter",
    "dateutil",
    "pluggy",
    "psycopg",
    "psycopg_binary",
    "rich",
    "typing_extensions",
    "tzdata",
    "yaml",
    "yamlsched",
}
"""What yamlsched imports, perhaps before a handler: no other module of that name can be imported.
"""
DYNAMIC = {"*", "__getattr__", "__path__", "declare_namespace", "exec", "globals", "locals"}
DYNAMIC |= {"modules", "setattr", "vars"}
"""A module that names one of these may have more than it defines, submodules too."""

Handler = Callable[..., object]


class Body:
    """What the body of a module or a class defines, and how often a name is bound in it, at any
    depth.
    """

    def __init__(self, body: list[ast.stmt]) -> None:
        self.bound: Counter[str] = Counter()
        self.is_dynamic = False
        for node in ast.walk(ast.Module(body, [])):
            used = [getattr(node, field, None) for field in ("id", "attr", "name", "asname")]
            self.is_dynamic = self.is_dynamic or not DYNAMIC.isdisjoint(used)
            if not isinstance(getattr(node, "ctx", None), ast.Load):
                self.bound.update(filter(None, used))
        functions = [
            node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        self.functions = {node.name for node in functions}
        self.known: dict[str, Handler | Body] = {
            node.name: Body(node.body)
            for node in body
            if isinstance(node, ast.ClassDef)
            and not (node.bases or node.keywords or node.decorator_list)
        }
        self.known |= _stubs([node for node in functions if not node.decorator_list])

    def find(self, name: str, owner: str) -> Handler | Body | Finding | None:
        """Return the only definition of a name, why there is none, or None if that is unknown."""
        if self.is_dynamic or self.bound[name] > 1:
            return None
        if self.bound[name]:
            return self.known.get(name)
        functions = sorted(each for each in self.functions if not each.startswith("_"))
        known = f"It has: {', '.join(functions[:MAX_LISTED])}." if functions else "It has none."
        remedy = did_you_mean(name, functions[:MAX_CANDIDATES], known)
        return Finding("YS302", f"{owner} has no function {quoted(name)}", remedy)


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
        self._path = list(map(str, path))
        self._read: dict[Path, Body | Finding | None] = {}

    def find(self, dotted: str) -> Handler | Finding | None:
        """Return the function that a dotted path names, why there is none, or None if that is
        unknown.
        """
        module, name = split_path(dotted)
        file = self._shadowed(module.partition(".")[0]) or self.module(module)
        if not isinstance(file, Path):
            return file
        found: Handler | Body | Finding | None = self._body(file)
        owner = module
        for part in name.split("."):
            if not isinstance(found, Body):
                return None if callable(found) else found
            found, owner = found.find(part, owner), f"{owner}:{part}"
        if (
            isinstance(found, Finding)
            and (file.stem == "__init__" or isdir(file))
            and not isinstance(self.module(f"{module}.{name}"), Finding)
        ):
            message = f"{module}.{name} is a module, not a function"
            remedy = f"Add the name of a function: {module}.{name}.function."
            return Finding("YS306", message, remedy)
        return None if isinstance(found, Body) else found

    def _body(self, file: Path) -> Body | Finding | None:
        if file not in self._read:
            self._read[file] = _parse(file)
        return self._read[file]

    def module(self, name: str) -> Path | Finding | None:
        """Return the file of a module, or the folder of a package without one, or why there is
        none. None if its place is unknown.
        """
        parts = name.split(".")
        folders: list[str] | None = self._path
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
        body = self._body(file) if file else None
        return not isinstance(body, Body) or body.is_dynamic

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

    def _shadowed(self, name: str) -> Finding | None:
        """Return the error for a top-level module of the project that has the name of
        a library's.
        """
        is_of_python = name in sys.stdlib_module_names
        if not is_of_python and name not in OWN_PACKAGES:
            return None
        place = _place(PathFinder.find_spec(name, self._path))
        if place is None:
            return None
        if _is_of_python(place) if is_of_python else _place(_installed(name)) in (None, place):
            return None
        library = "a module of Python" if is_of_python else "a package that yamlsched uses"
        shown = place.name if place.stem == name and isfile(place) else f"the folder {name}"
        message = f"{name} is also {library}, which may be imported instead of {shown}"
        return Finding("YS313", message, f"Rename {shown}.")


def split_path(dotted: str) -> tuple[str, str]:
    """Return module and name of ``pkg.mod.func``, ``pkg.mod:func`` or ``pkg.mod:Class.method``."""
    module, _, name = dotted.partition(":") if ":" in dotted else dotted.rpartition(".")
    return module, name


def _is_of_python(place: Path) -> bool:
    return any(Path(sysconfig.get_path(kind)) in place.parents for kind in ("stdlib", "platstdlib"))


def _installed(name: str) -> ModuleSpec | None:
    """Return what the import system knows of a top-level name, which runs no code.

    An editable install has no folder in the path.
    """
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _place(spec: ModuleSpec | None) -> Path | None:
    """Return the file of a module, or the folder of a package without one."""
    locations = (spec and spec.submodule_search_locations) or ()
    place = spec and (spec.origin or next(iter(locations), None))
    return Path(place) if place else None


def _parse(file: Path) -> Body | Finding | None:
    """Return what a file defines, why it cannot be read, or None if its source is not there or too
    large.
    """
    if isdir(file):
        return Body([])  # a package without __init__.py
    if file.suffix != ".py" or not isfile(file):
        return None
    try:
        with open(file, "rb") as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about escapes in the project's strings
            data = source.read(MAX_SOURCE_BYTES + 1)
            return None if len(data) > MAX_SOURCE_BYTES else Body(ast.parse(data).body)
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        return Finding("YS307", f"{file.name}{line} is not valid Python", "Fix the file.")
    except (OSError, ValueError, RecursionError, MemoryError):
        return Finding("YS307", f"{file.name} cannot be read as Python", "Fix the file.")
