"""Finds the function that a dotted path names, by reading source files: nothing is imported.

Importing would run the project's code, and ``importlib.util.find_spec("a.b")`` runs the code of
``a``. A function is known if its module has one ``def`` with its name, without a decorator, and
binds the name nowhere else. All else that a module may contain is unknown, and not an error.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from os.path import isdir, isfile  # unlike Path's, these do not raise if a folder cannot be read
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

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
    "jsonschema",
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
DYNAMIC = re.compile(
    rb"\b(exec|eval|vars|setattr|delattr|(f_)?(globals|locals)|builtins|modules|update_wrapper"
    rb"|extend_path|declare_namespace|meta_path|path_hooks"
    rb"|__(path|getattr|dict|globals|builtins|signature|wrapped|defaults|kwdefaults|code)__)\b"
)
"""With one of these words, a module may change its names or its submodules unseen."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


class Code(NamedTuple):
    """What the body of a module or a class defines, and how often it binds each name."""

    definitions: dict[str, Definition]
    bound: Counter[str]
    is_dynamic: bool = False

    def find(self, name: str, owner: str) -> Definition | Finding | None:
        """Return the only definition of a name, why there is none, or None if that is unknown."""
        if self.is_dynamic or name.startswith("__"):
            return None
        if self.bound[name]:
            only = self.definitions.get(name) if self.bound[name] == 1 else None
            return None if only is None or only.decorator_list else only
        definitions = sorted(self.definitions.items())
        functions = [each for each, node in definitions if isinstance(node, Function)]
        functions = [each for each in functions if not each.startswith("_")]
        known = f"It has: {', '.join(functions[:MAX_LISTED])}." if functions else "It has none."
        remedy = did_you_mean(name, functions[:MAX_CANDIDATES], known)
        return Finding("YS302", f"{owner} has no function {quoted(name)}", remedy)


class Sources:
    """The source files in the folders of ``path``, first to last. Each is read once."""

    def __init__(self, path: Iterable[Path]) -> None:
        PathFinder.invalidate_caches()  # files may have changed
        self._path = list(map(str, path))
        self._read: dict[Path, Code | Finding | None] = {}
        self._classes: dict[ast.ClassDef, Code] = {}

    def find(self, dotted: str) -> Function | Finding | None:
        """Return the function that a dotted path names, why there is none, or None if that is
        unknown.
        """
        module, name = split_path(dotted)
        file = self._shadowed(module.partition(".")[0]) or self.module(module)
        if not isinstance(file, Path):
            return file
        code = self._code(file)
        if not isinstance(code, Code):
            return code
        first, _, method = name.partition(".")
        if file.stem == "__init__" or isdir(file):
            submodule = self.module(f"{module}.{first}")
            if not isinstance(submodule, Finding):
                if first in code.bound or method or self._is_dynamic(submodule):
                    return None
                message = f"{module}.{name} is a module, not a function"
                remedy = f"Add the name of a function: {module}.{name}.function."
                return Finding("YS306", message, remedy)
        result = code.find(first, module)
        if method and isinstance(result, ast.ClassDef):
            if result.bases or result.keywords or "." in method:
                return None
            result = self._members(result).find(method, f"{module}:{first}")
        elif method and isinstance(result, Function):
            return None
        if isinstance(result, Function) and _is_generator(result):
            message = f"{name} of {module} is a generator: calling it does nothing"
            remedy = "Do the work without yield, or call it from a function that consumes it."
            return Finding("YS306", message, remedy)
        return None if isinstance(result, ast.ClassDef) else result

    def module(self, name: str) -> Path | Finding | None:
        """Return the file of a module, or the folder of a package without one, or why there is
        none.

        None if it may exist.
        """
        parts = name.split(".")
        folders: list[str] | None = self._path
        file, parents = None, list[Path | None]()
        for depth, part in enumerate(parts):
            if folders is None:
                parent = ".".join(parts[:depth])
                message = f"{parent} is a module, not a package"
                remedy = f"Write a function of {parent}, or for a method {parent}:Class.method."
                is_unknown = self._is_dynamic(file)
                return None if is_unknown else Finding("YS303", message, remedy)
            spec = PathFinder.find_spec(part, folders) or (None if depth else _installed(part))
            if spec is None:
                is_unknown = any(map(self._is_dynamic, parents))
                return None if is_unknown else self._no_module(parts, depth, folders)
            locations = spec.submodule_search_locations
            folders = None if locations is None else list(locations)
            file = _place(spec)
            parents.append(file)
        return file

    def _code(self, file: Path) -> Code | Finding | None:
        if file not in self._read:
            self._read[file] = _parse(file)
        return self._read[file]

    def _members(self, definition: ast.ClassDef) -> Code:
        if definition not in self._classes:
            self._classes[definition] = _body(definition.body)
        return self._classes[definition]

    def _is_dynamic(self, file: Path | None) -> bool:
        code = self._code(file) if file else None
        return not isinstance(code, Code) or code.is_dynamic

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


def _is_of_python(place: Path) -> bool:
    return any(Path(sysconfig.get_path(kind)) in place.parents for kind in ("stdlib", "platstdlib"))


def _parse(file: Path) -> Code | Finding | None:
    """Return what a file defines, why it cannot be read, or None if its source is not there or too
    large.
    """
    if isdir(file):
        return Code({}, Counter())  # a package without __init__.py
    if file.suffix != ".py" or not isfile(file):
        return None
    try:
        with open(file, "rb") as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about escapes in the project's strings
            data = source.read(MAX_SOURCE_BYTES + 1)
            if len(data) > MAX_SOURCE_BYTES:
                return None
            return _body(ast.parse(data).body, bool(DYNAMIC.search(data)))
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        return Finding("YS307", f"{file.name}{line} is not valid Python", "Fix the file.")
    except (OSError, ValueError, RecursionError, MemoryError):
        return Finding("YS307", f"{file.name} cannot be read as Python", "Fix the file.")


def _walk(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the nodes of a body, each with whether it is inside a function or a class."""
    todo: list[tuple[ast.AST, bool]] = [(statement, False) for statement in body]
    while todo:
        node, is_inside = todo.pop()
        yield node, is_inside
        is_inside = is_inside or isinstance(node, Definition | ast.Lambda)
        todo += [(child, is_inside) for child in ast.iter_child_nodes(node)]


def _body(body: Sequence[ast.stmt], is_dynamic: bool = False) -> Code:
    nodes = list(_walk(body))
    bound = Counter(name for node, is_inside in nodes for name in _bound(node, is_inside))
    own = (node for node, is_inside in nodes if not is_inside)
    definitions = {node.name: node for node in own if isinstance(node, Definition)}
    return Code(definitions, bound, is_dynamic or "*" in bound)


def _bound(node: ast.AST, is_inside: bool) -> Iterable[str]:
    """Return the names of a module or a class that a node may bind."""
    match node:
        case ast.Global(names=names):
            return names
        case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del(), value=owner):
            # the owner may be the module itself, or a function with another signature from here on
            return (name, owner.id) if isinstance(owner, ast.Name) else (name,)
        case _ if is_inside:
            return ()
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return (name,)
        case ast.alias(name=name, asname=other):
            return (other or name.partition(".")[0],)
    found: str | None = getattr(node, "name", None) or getattr(node, "rest", None)
    return (found,) if found else ()  # by a definition, except or case


def _is_generator(function: Function) -> bool:
    own = (node for node, is_inside in _walk(function.body) if not is_inside)
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own)
