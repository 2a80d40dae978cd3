"""Finds the function that a dotted path names, by reading source files: nothing is imported.

Importing would run the project's code, and ``importlib.util.find_spec("a.b")`` runs the code of
``a``. A function is known if its module has one ``def`` with its name, without a decorator, and
binds the name nowhere else. What is imported, decorated, assigned or made by a call is unknown, and
not an error.
"""

from __future__ import annotations

import ast
import dis
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from os.path import isdir, isfile  # unlike Path's, these do not raise if a folder cannot be read
from pathlib import Path
from pkgutil import iter_modules
from types import CodeType, FunctionType
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
BINDINGS = {"STORE_NAME", "STORE_GLOBAL", "DELETE_NAME"}
"""The instructions of a module or a class that bind its names, or end that."""
DYNAMIC = {"__getattr__", "__path__", "declare_namespace", "exec", "globals", "locals", "modules"}
DYNAMIC |= {"setattr", "vars"}
"""A module that names one of these may have more than it defines, submodules too."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Function(NamedTuple):
    """A function of the project: ``stub`` has its parameters, and defaults of None."""

    stub: FunctionType
    node: ast.AST


class Code(NamedTuple):
    """What the body of a module or a class defines, and how often it binds each name."""

    definitions: dict[str, Definition]
    codes: dict[int, CodeType]  # by lines: those of branches that are never executed are left
    bound: Counter[str]
    is_dynamic: bool

    @classmethod
    def of(cls, body: list[ast.stmt]) -> Code:
        code = compile(ast.Module(body, []), "", "exec", dont_inherit=True)
        names = {name for part in _parts(code) for name in part.co_names}
        return cls(
            {node.name: node for node in body if isinstance(node, Definition)},
            {
                part.co_firstlineno: part
                for part in code.co_consts
                if isinstance(part, CodeType) and not part.co_name.startswith("<")
            },
            Counter(step.argval for step in dis.get_instructions(code) if step.opname in BINDINGS),
            ("*",) in code.co_consts or not names.isdisjoint(DYNAMIC),
        )

    def find(self, name: str, owner: str) -> Function | Code | Finding | None:
        """Return the only definition of a name, why there is none, or None if that is unknown."""
        node = self.definitions.get(name)
        if self.is_dynamic or self.bound[name] > 1 or (self.bound[name] and node is None):
            return None
        if node is None:
            functions = sorted(
                each
                for each, other in self.definitions.items()
                if not isinstance(other, ast.ClassDef) and not each.startswith("_")
            )
            known = f"It has: {', '.join(functions[:MAX_LISTED])}." if functions else "It has none."
            remedy = did_you_mean(name, functions[:MAX_CANDIDATES], known)
            return Finding("YS302", f"{owner} has no function {quoted(name)}", remedy)
        if node.decorator_list or (code := self.codes.get(node.lineno)) is None:
            return None
        if isinstance(node, ast.ClassDef):
            return None if node.bases or node.keywords else _body(node)
        args = node.args
        stub = FunctionType(code, {}, argdefs=(None,) * len(args.defaults))
        by_name = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        stub.__kwdefaults__ = {arg.arg: None for arg, default in by_name if default is not None}
        return Function(stub, node)


@lru_cache(64)
def _body(definition: ast.ClassDef) -> Code:
    return Code.of(definition.body)


def _parts(code: CodeType) -> Iterator[CodeType]:
    """Yield a body, and those of the functions and classes in it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _parts(part)


class Sources:
    """The source files in the folders of ``path``, first to last. Each is read once."""

    def __init__(self, path: Iterable[Path]) -> None:
        PathFinder.invalidate_caches()  # files may have changed
        self._path = list(map(str, path))
        self._read: dict[Path, Code | Finding | None] = {}

    def find(self, dotted: str) -> Function | Finding | None:
        """Return the function that a dotted path names, why there is none, or None if that is
        unknown.
        """
        module, name = split_path(dotted)
        file = self._shadowed(module.partition(".")[0]) or self.module(module)
        if not isinstance(file, Path):
            return file
        found: Function | Code | Finding | None = self._code(file)
        owner = module
        for part in name.split("."):
            if not isinstance(found, Code):
                return None if isinstance(found, Function) else found
            found, owner = found.find(part, owner), f"{owner}:{part}"
        if (
            isinstance(found, Finding)
            and (file.stem == "__init__" or isdir(file))
            and not isinstance(self.module(f"{module}.{name}"), Finding)
        ):
            message = f"{module}.{name} is a module, not a function"
            remedy = f"Add the name of a function: {module}.{name}.function."
            return Finding("YS306", message, remedy)
        return None if isinstance(found, Code) else found

    def _code(self, file: Path) -> Code | Finding | None:
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


def _parse(file: Path) -> Code | Finding | None:
    """Return what a file defines, why it cannot be read, or None if its source is not there or too
    large.
    """
    if isdir(file):
        return Code.of([])  # a package without __init__.py
    if file.suffix != ".py" or not isfile(file):
        return None
    try:
        with open(file, "rb") as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about escapes in the project's strings
            data = source.read(MAX_SOURCE_BYTES + 1)
            return None if len(data) > MAX_SOURCE_BYTES else Code.of(ast.parse(data).body)
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        return Finding("YS307", f"{file.name}{line} is not valid Python", "Fix the file.")
    except (OSError, ValueError, RecursionError, MemoryError):
        return Finding("YS307", f"{file.name} cannot be read as Python", "Fix the file.")
