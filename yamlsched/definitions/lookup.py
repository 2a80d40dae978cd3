"""From a dotted path to the function it names, by reading source files: nothing is imported.

Importing would run the project's code, and ``importlib.util.find_spec("a.b")`` runs that of ``a``. What the source
does not determine is unknown, not wrong.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from os.path import isdir, isfile  # these do not raise where a folder cannot be read
from pathlib import Path

from yamlsched.definitions import bindings
from yamlsched.definitions.bindings import Bindings, Function
from yamlsched.definitions.wording import did_you_mean, quoted

MAX_IMPORT_HOPS = 8
"""How many re-exports are followed."""
MAX_SOURCE_BYTES = 4 << 20
"""Larger files are not read; what they hold is unknown."""
MAX_CANDIDATES = 300
"""How many names a misspelt one is compared with."""
MAX_LISTED = 12


@dataclass(frozen=True)
class Missing:
    """A path that leads to no callable: the code, what is wrong, and what to do."""

    code: str
    message: str
    remedy: str


def forget() -> None:
    """Drop what has been read: files may have changed."""
    for cached in (look_up, _find, _modules, _listed, _parsed, _bindings, _members, _public):
        cached.cache_clear()


def split(dotted: str) -> tuple[str, str]:
    """Return module and name of ``pkg.mod.func``, ``pkg.mod:func`` or ``pkg.mod:Class.method``."""
    module, _, name = dotted.partition(":") if ":" in dotted else dotted.rpartition(".")
    return module, name


@cache
def look_up(dotted: str, path: tuple[Path, ...]) -> Function | Missing | None:
    """Return the function that a dotted path names, why there is none, or None if the source does not say."""
    module, name = split(dotted)
    file = _find(module, path)
    if isinstance(file, Missing):
        return file
    return _named(file, module, name, path, MAX_IMPORT_HOPS)


@cache
def _find(module: str, path: tuple[Path, ...]) -> Path | Missing | None:
    """Return the source file of a module, or the folder of a package without one.

    None if the module exists without source, or may exist.
    """
    parts = module.split(".")
    if parts[0] in sys.builtin_module_names:
        return None
    folders, parents = list(path), list[Path]()
    for depth, part in enumerate(parts):
        step = _step(part, folders)
        if depth == 0 and (step is None or (isinstance(step, list) and not _inits(step[0]))):
            # an editable install has no folder in the path; a package without __init__.py has folders anywhere
            known, elsewhere = _installed(part)
            if step is None and known and not elsewhere:
                return None
            step = [*(step or ()), *elsewhere] or None
        if step is None:
            return None if any(map(_is_dynamic, parents)) else _no_module(parts, depth, folders, path)
        if isinstance(step, list):
            folders = step
            parents.append(folders[0] / "__init__.py")
        elif step.suffix != ".py":
            return None
        elif depth < len(parts) - 1:
            return _inside_module(step, parts, depth)
        else:
            return step
    inits = _inits(folders[0])
    if not inits:
        return folders[0]
    return folders[0] / "__init__.py" if inits[0] == "__init__.py" else None


def _step(part: str, folders: list[Path]) -> Path | list[Path] | None:
    """Return the file of a module, or the folders of a package, as the import system would choose."""
    portions = []
    for folder in folders:
        package = folder / part
        if _inits(package):
            return [package]
        if files := _files(part, folder):
            return folder / files[0]
        if isdir(package):
            portions.append(package)
    return portions or None


def _inits(package: Path) -> list[str]:
    return _files("__init__", package) if isdir(package) else []


def _files(part: str, folder: Path) -> list[str]:
    """Return the files of a module in the import system's order: compiled, source, byte code."""
    compiled = [name for name in _listed(folder) if name.startswith(f"{part}.") and name.endswith((".so", ".pyd"))]
    return compiled + [name for name in (f"{part}.py", f"{part}.pyc") if isfile(folder / name)]


def _installed(name: str) -> tuple[bool, list[Path]]:
    """Return whether the import system knows a top-level name, and its folders if it is a package without a file.

    Asking for a top-level name runs no code.
    """
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return False, []
    is_namespace = spec.origin is None and spec.submodule_search_locations is not None
    return True, [Path(folder) for folder in spec.submodule_search_locations or ()] if is_namespace else []


def _no_module(parts: list[str], depth: int, folders: list[Path], path: tuple[Path, ...]) -> Missing:
    name = ".".join(parts[: depth + 1])
    searched = folders if depth else list(path[:1])
    siblings = sorted({sibling for folder in searched for sibling in _modules(folder)})
    if depth:
        message = f"{'.'.join(parts[:depth])} has no module {quoted(parts[depth])}"
        known = f"It has: {', '.join(siblings[:MAX_LISTED])}." if siblings else "The package is empty."
    else:
        message = f"no module {quoted(name)} in paths, beside the file or installed"
        known = f"Modules there: {', '.join(siblings[:MAX_LISTED])}." if siblings else "Check the spelling and paths."
    return Missing("YS303", message, _suggestion(parts[depth], siblings, known))


@cache
def _modules(folder: Path) -> list[str]:
    """Return the names of the modules and packages in a folder."""
    found = []
    for name in _listed(folder):
        stem, _, suffix = name.partition(".")
        if stem.isidentifier() and not stem.startswith("__"):
            is_package = not suffix and isfile(folder / name / "__init__.py")
            found += [stem] * (is_package or suffix == "py")
    return found


@cache
def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _inside_module(file: Path, parts: list[str], depth: int) -> Missing | None:
    """Return why a path goes on behind a module, which holds no modules."""
    if _is_dynamic(file):
        return None
    module, name = ".".join(parts[: depth + 1]), parts[depth + 1]
    names = _bindings(file)
    if isinstance(names, Bindings) and isinstance(names.statements.get(name), ast.ClassDef):
        remedy = f"Write a colon after the module, as in {module}:{name}.method."
        return Missing("YS303", f"{name} of {module} is a class, not a module", remedy)
    return Missing("YS303", f"{module} is a module, not a package", f"Name a function of {module} itself.")


@cache
def _parsed(file: Path) -> ast.Module | Missing | None:
    """Return the syntax tree of a file, why it has none, or None if it is too large to be read."""
    try:
        with open(file, "rb") as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about escapes in the project's strings
            data = source.read(MAX_SOURCE_BYTES + 1)
            return ast.parse(data, filename=file.name) if len(data) <= MAX_SOURCE_BYTES else None
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        return Missing("YS307", f"{file.name}{line} is not valid Python", "Fix the file.")
    except (OSError, ValueError, RecursionError, MemoryError):
        return Missing("YS307", f"{file.name} cannot be read as Python", "Fix the file.")


@cache
def _bindings(file: Path) -> Bindings | Missing | None:
    if isdir(file):
        return Bindings()  # a package without __init__.py
    tree = _parsed(file)
    own_name = file.parent.name if file.stem == "__init__" else file.stem
    return bindings.read(tree.body, own_name) if isinstance(tree, ast.Module) else tree


def _is_dynamic(file: Path) -> bool:
    """Return whether the source does not determine what a module holds. A file that does not exist holds nothing."""
    if not isfile(file):
        return False
    names = _bindings(file)
    return names.is_dynamic if isinstance(names, Bindings) else names is None


@cache
def _public(file: Path) -> list[str]:
    names = _bindings(file)
    return names.functions() if isinstance(names, Bindings) else []


def _named(file: Path | None, module: str, name: str, path: tuple[Path, ...], hops: int) -> Function | Missing | None:
    """Return the function that ``name`` of a module is, why it is none, or None if the source does not say."""
    if file is None or hops == 0:
        return None
    names = _bindings(file)
    if not isinstance(names, Bindings):
        return names
    first, _, rest = name.partition(".")
    if names.is_unknown(first):
        return None
    statement = names.statements.get(first)
    if file.stem == "__init__" or isdir(file):
        submodule = _find(f"{module}.{first}", path)
        if not isinstance(submodule, Missing):
            return None if statement or rest else _submodule(submodule, module, first)
    if statement is None:
        return _no_function(module, name, _public(file))
    if isinstance(statement, ast.ImportFrom):
        return _imported(statement, file, module, first, rest, path, hops)
    if rest:
        return _method(statement, module, first, rest)
    return _callable(statement, module, name, path)


def _submodule(file: Path | None, package: str, name: str) -> Missing | None:
    if file is None or _is_dynamic(file):
        return None
    remedy = f"Name a function of it: {package}.{name}.function."
    return Missing("YS306", f"{package}.{name} is a module, not a function", remedy)


def _no_function(owner: str, name: str, functions: list[str]) -> Missing:
    known = f"It has: {', '.join(functions[:MAX_LISTED])}." if functions else "It has none."
    return Missing("YS302", f"{owner} has no function {quoted(name)}", _suggestion(name, functions, known))


def _suggestion(name: str, known: list[str], otherwise: str) -> str:
    """Return the remedy for a misspelt name. Of many names only those with the same first letters are compared."""
    if len(known) > MAX_CANDIDATES:
        known = [other for other in known if other[:2] == name[:2]][:MAX_CANDIDATES]
    return did_you_mean(name, known, otherwise)


def _callable(statement: ast.stmt, module: str, name: str, path: tuple[Path, ...]) -> Function | Missing | None:
    """Return what the only statement that binds a name makes of it."""
    if isinstance(statement, ast.Import):
        return _a_module(statement, module, name, path)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        if isinstance(statement.value, ast.Constant | ast.List | ast.Dict | ast.Tuple | ast.Set | ast.JoinedStr):
            return Missing("YS306", f"{name} of {module} is a value, not a function", "Name a function.")
        return None
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    if not statement.decorator_list and any(isinstance(n, ast.Yield | ast.YieldFrom) for n in _own_nodes(statement)):
        remedy = "Do the work without yield, or call it from a function that consumes it."
        return Missing("YS306", f"{name} of {module} is a generator: calling it does nothing", remedy)
    return statement


def _a_module(statement: ast.Import, module: str, name: str, path: tuple[Path, ...]) -> Missing | None:
    """Return that a name is a module, unless that module may have replaced itself by something callable."""
    alias = next(one for one in statement.names if (one.asname or one.name.partition(".")[0]) == name)
    source = alias.name if alias.asname else alias.name.partition(".")[0]
    if source not in sys.stdlib_module_names:
        file = _find(source, path)
        if not isinstance(file, Path) or _is_dynamic(file):
            return None
    return Missing("YS306", f"{name} of {module} is a module, not a function", "Name a function of that module.")


@cache
def _members(statement: ast.ClassDef) -> Bindings:
    return bindings.read(statement.body)


def _method(statement: ast.stmt, module: str, name: str, rest: str) -> Function | Missing | None:
    """Return the method that ``rest`` names in a class whose body says everything about it."""
    if not isinstance(statement, ast.ClassDef) or "." in rest:
        return None
    if statement.bases or statement.keywords or statement.decorator_list:
        return None
    names = _members(statement)
    if names.is_unknown(rest):
        return None
    method = names.statements.get(rest)
    owner = f"{module}:{name}"
    return _no_function(owner, rest, names.functions()) if method is None else _callable(method, owner, rest, ())


def _imported(
    statement: ast.ImportFrom, file: Path, module: str, name: str, rest: str, path: tuple[Path, ...], hops: int
) -> Function | Missing | None:
    """Follow ``from x import name``; what cannot be read is unknown."""
    alias = next(alias for alias in statement.names if (alias.asname or alias.name) == name)
    base = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    if statement.level:
        base = base[: len(base) - statement.level + 1]
        source = ".".join([*base, *([statement.module] if statement.module else [])])
    else:
        source = statement.module or ""
    found = _find(source, path) if source else None
    wanted = f"{alias.name}.{rest}" if rest else alias.name
    result = None if isinstance(found, Missing) else _named(found, source, wanted, path, hops - 1)
    # a missing name may be a submodule; only what is certainly no handler counts
    return None if isinstance(result, Missing) and result.code != "YS306" else result


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions and classes inside it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))
