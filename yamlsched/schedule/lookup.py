"""Finds the function that a dotted path names, by reading source files: nothing is imported.

Importing would run the project's code, and ``importlib.util.find_spec("a.b")`` runs the code of ``a``. What the source
does not determine is unknown, and not an error.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
import warnings
from functools import cache
from importlib import machinery
from importlib.util import find_spec, resolve_name
from inspect import Signature
from os.path import isdir, isfile  # unlike Path's, these do not raise if a folder cannot be read
from pathlib import Path
from pkgutil import iter_modules

from yamlsched.schedule import bindings
from yamlsched.schedule.bindings import Bindings, Function
from yamlsched.schedule.source import Finding
from yamlsched.text import did_you_mean, quoted

MAX_IMPORT_HOPS = 8
"""At most this many re-exports are followed."""
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
"""What yamlsched imports, perhaps before a handler: another module of that name cannot be imported any more."""


def clear_caches() -> None:
    """Clear the caches: files may have changed."""
    for cached in (look_up, find, _find, _finder, _modules, _bindings, _members):
        cached.cache_clear()


def split_path(dotted: str) -> tuple[str, str]:
    """Return module and name of ``pkg.mod.func``, ``pkg.mod:func`` or ``pkg.mod:Class.method``."""
    module, _, name = dotted.partition(":") if ":" in dotted else dotted.rpartition(".")
    return module, name


def source_hash(dotted: str, path: tuple[Path, ...]) -> str | None:
    """Return a short hash of the source file of the module in a dotted path; None if there is no such file."""
    file = _find(split_path(dotted)[0], path)
    if not isinstance(file, Path) or not isfile(file):
        return None
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def module_problem(dotted: str, path: tuple[Path, ...]) -> Finding | None:
    """Return why the module in a dotted path cannot be imported; None if it exists, or may exist."""
    file = _find(split_path(dotted)[0], path)
    return file if isinstance(file, Finding) else None


@cache
def look_up(dotted: str, path: tuple[Path, ...]) -> Signature | Finding | None:
    """Return the signature of the function that a dotted path names, or why there is none.

    None if the source does not determine it.
    """
    function = find(dotted, path)
    if function is None or isinstance(function, Finding):
        return function
    return None if function.decorator_list else bindings.signature(function)  # a decorator may change the parameters


@cache
def find(dotted: str, path: tuple[Path, ...]) -> Function | Finding | None:
    """Return the definition of the function that a dotted path names, as ``look_up`` does."""
    module, name = split_path(dotted)
    file = _shadowed(module.partition(".")[0], path) or _find(module, path)
    return file if isinstance(file, Finding) else _named(file, module, name, path, MAX_IMPORT_HOPS)


def _shadowed(name: str, path: tuple[Path, ...]) -> Finding | None:
    """Return the error for a top-level module of the project that has the name of a library's."""
    is_of_python = name in sys.stdlib_module_names
    if not is_of_python and name not in OWN_PACKAGES:
        return None
    file, folders = _step(name, list(path))
    place = file or next(iter(folders), None)
    if place is None or (_is_of_python(place) if is_of_python else _is_installed(name, place)):
        return None
    library = "a module of Python" if is_of_python else "a package that yamlsched uses"
    shown = place.name if file and file.stem != "__init__" else f"the folder {name}"
    message = f"{name} is also {library}, which may be imported instead of {shown}"
    return Finding("YS313", message, f"Rename {shown}.")


def _is_of_python(place: Path) -> bool:
    return any(Path(sysconfig.get_path(kind)) in place.parents for kind in ("stdlib", "platstdlib"))


def _is_installed(name: str, place: Path) -> bool:
    """Return whether the package is the one that this process imports. Asking for a top-level name runs no code."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    return spec is None or spec.origin is None or Path(spec.origin) == place


@cache
def _find(module: str, path: tuple[Path, ...]) -> Path | Finding | None:
    """Return the source file of a module, or a folder of a package without one.

    None if the module exists without source, or may exist.
    """
    parts = module.split(".")
    if parts[0] in sys.builtin_module_names:
        return None
    folders, parents, file = list(path), list[Path](), None
    for depth, part in enumerate(parts):
        file, inside = _step(part, folders)
        if depth == 0 and file is None:
            # an editable install has no folder in the path; a package without __init__.py has folders anywhere
            is_known, elsewhere = _installed(part)
            inside += elsewhere
            if is_known and not inside:
                return None
        if file is None and not inside:
            return None if any(map(_is_dynamic, parents)) else _no_module(parts, depth, folders, path)
        if inside:
            folders = inside
            parents += [file] if file else []
        elif file and file.suffix == ".py" and depth < len(parts) - 1:
            return _inside_module(file, parts, depth)
        else:
            break
    if file is None:
        return folders[0]
    return file if file.suffix == ".py" else None


@cache
def _finder(folder: Path) -> machinery.FileFinder:
    """Return the finder that the import system uses for a folder. It runs no code."""
    return machinery.FileFinder(
        str(folder),
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )


def _step(part: str, folders: list[Path]) -> tuple[Path | None, list[Path]]:
    """Return the file of a module or a package, and the folders of its submodules if it is a package.

    A package without ``__init__.py`` has no file.
    """
    portions: list[Path] = []
    for folder in folders:
        spec = _finder(folder).find_spec(part)
        inside = [Path(location) for location in (spec and spec.submodule_search_locations) or ()]
        if spec and spec.origin:
            return Path(spec.origin), inside
        portions += inside
    return None, portions


def _installed(name: str) -> tuple[bool, list[Path]]:
    """Return whether the import system knows a top-level name, and its folders if it is a package without a file.

    Asking for a top-level name runs no code.
    """
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return False, []
    is_namespace = spec.origin is None and spec.submodule_search_locations is not None
    return True, [Path(folder) for folder in spec.submodule_search_locations or ()] if is_namespace else []


def _no_module(parts: list[str], depth: int, folders: list[Path], path: tuple[Path, ...]) -> Finding:
    siblings = _modules(tuple(folders if depth else path[:1]))
    known = ", ".join(siblings[:MAX_LISTED])
    if depth:
        message = f"{'.'.join(parts[:depth])} has no module {quoted(parts[depth])}"
        known = f"It has: {known}." if siblings else "The package is empty."
    else:
        message = f"no module {quoted(parts[0])} in paths, next to this file or installed"
        known = f"Modules there: {known}." if siblings else "Check the spelling and paths."
        if any(isdir(folder / "src" / parts[0]) or isfile(folder / "src" / f"{parts[0]}.py") for folder in path):
            return Finding("YS303", message, "It is in the folder src: write paths: [src] at the top level.")
    return Finding("YS303", message, _suggestion(parts[depth], siblings, known))


@cache
def _modules(folders: tuple[Path, ...]) -> list[str]:
    """Return the names of the modules and packages in folders."""
    names = {module.name for module in iter_modules(map(str, folders))}
    return sorted(name for name in names if name.isidentifier() and not name.startswith("__"))


def _inside_module(file: Path, parts: list[str], depth: int) -> Finding | None:
    """Return the error for a path that continues after a module, which contains no modules."""
    if _is_dynamic(file):
        return None
    module, name = ".".join(parts[: depth + 1]), parts[depth + 1]
    names = _bindings(file)
    if isinstance(names, Bindings) and isinstance(names.statements.get(name), ast.ClassDef):
        remedy = f"Write a colon after the module, as in {module}:{name}.method."
        return Finding("YS303", f"{name} of {module} is a class, not a module", remedy)
    return Finding("YS303", f"{module} is a module, not a package", f"Write the name of a function in {module}.")


@cache
def _bindings(file: Path) -> Bindings | Finding | None:
    """Return the names that a file binds, why it cannot be read, or None if it is too large."""
    if isdir(file):
        return Bindings()  # a package without __init__.py
    try:
        with open(file, "rb") as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about escapes in the project's strings
            data = source.read(MAX_SOURCE_BYTES + 1)
            if len(data) > MAX_SOURCE_BYTES:
                return None
            tree = ast.parse(data, filename=file.name)
    except SyntaxError as error:
        line = f" line {error.lineno}" if error.lineno else ""
        return Finding("YS307", f"{file.name}{line} is not valid Python", "Fix the file.")
    except (OSError, ValueError, RecursionError, MemoryError):
        return Finding("YS307", f"{file.name} cannot be read as Python", "Fix the file.")
    return bindings.read(tree.body, file.parent.name if file.stem == "__init__" else file.stem)


def _is_dynamic(file: Path) -> bool:
    """Return whether the source does not determine the names of a module. A file that does not exist has none."""
    if not isfile(file):
        return False
    names = _bindings(file)
    return names.is_dynamic if isinstance(names, Bindings) else names is None


def _named(file: Path | None, module: str, name: str, path: tuple[Path, ...], hops: int) -> Function | Finding | None:
    """Return the function that ``name`` of a module is, why it is not one, or None if it is unknown."""
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
        if not isinstance(submodule, Finding):
            return None if statement or rest else _submodule(submodule, module, first)
    if statement is None:
        return _no_function(module, name, names.functions)
    if isinstance(statement, ast.ImportFrom):
        return _imported(statement, file, module, first, rest, path, hops)
    if rest:
        return _method(statement, module, first, rest)
    return _callable(statement, module, name, path)


def _submodule(file: Path | None, package: str, name: str) -> Finding | None:
    if file is None or _is_dynamic(file):
        return None
    remedy = f"Add the name of a function: {package}.{name}.function."
    return Finding("YS306", f"{package}.{name} is a module, not a function", remedy)


def _no_function(owner: str, name: str, functions: list[str]) -> Finding:
    known = f"It has: {', '.join(functions[:MAX_LISTED])}." if functions else "It has none."
    return Finding("YS302", f"{owner} has no function {quoted(name)}", _suggestion(name, functions, known))


def _suggestion(name: str, known: list[str], otherwise: str) -> str:
    """Return the remedy for a misspelt name. Of many names, only those with the same two first letters are compared."""
    if len(known) > MAX_CANDIDATES:
        known = [other for other in known if other[:2] == name[:2]][:MAX_CANDIDATES]
    return did_you_mean(name, known, otherwise)


def _callable(statement: ast.stmt, module: str, name: str, path: tuple[Path, ...]) -> Function | Finding | None:
    """Return the function that the only statement that binds a name defines, or why it defines none."""
    if isinstance(statement, ast.Import):
        return _a_module(statement, module, name, path)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        if isinstance(statement.value, ast.Constant | ast.List | ast.Dict | ast.Tuple | ast.Set | ast.JoinedStr):
            return Finding("YS306", f"{name} of {module} is a value, not a function", "Write the name of a function.")
        return None
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    if not statement.decorator_list and bindings.is_generator(statement):
        remedy = "Do the work without yield, or call it from a function that consumes it."
        return Finding("YS306", f"{name} of {module} is a generator: calling it does nothing", remedy)
    return statement


def _a_module(statement: ast.Import, module: str, name: str, path: tuple[Path, ...]) -> Finding | None:
    """Return the error for a name that is a module, unless the module may have replaced itself by a callable."""
    alias = next(alias for alias in statement.names if (alias.asname or alias.name.partition(".")[0]) == name)
    source = alias.name if alias.asname else alias.name.partition(".")[0]
    if source not in sys.stdlib_module_names:
        file = _find(source, path)
        if not isinstance(file, Path) or _is_dynamic(file):
            return None
    remedy = "Write the name of a function in that module."
    return Finding("YS306", f"{name} of {module} is a module, not a function", remedy)


@cache
def _members(statement: ast.ClassDef) -> Bindings:
    return bindings.read(statement.body)


def _method(statement: ast.stmt, module: str, name: str, rest: str) -> Function | Finding | None:
    """Return the method ``rest`` of a class, if the body of the class determines it."""
    if not isinstance(statement, ast.ClassDef) or "." in rest:
        return None
    if statement.bases or statement.keywords or statement.decorator_list:
        return None
    names = _members(statement)
    if names.is_unknown(rest):
        return None
    method = names.statements.get(rest)
    owner = f"{module}:{name}"
    return _no_function(owner, rest, names.functions) if method is None else _callable(method, owner, rest, ())


def _imported(
    statement: ast.ImportFrom, file: Path, module: str, name: str, rest: str, path: tuple[Path, ...], hops: int
) -> Function | Finding | None:
    """Follow ``from x import name``. What cannot be followed is unknown."""
    alias = next(alias for alias in statement.names if (alias.asname or alias.name) == name)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    try:
        source = resolve_name("." * statement.level + (statement.module or ""), package)
    except ImportError:
        return None
    target = _find(source, path)
    wanted = f"{alias.name}.{rest}" if rest else alias.name
    result = None if isinstance(target, Finding) else _named(target, source, wanted, path, hops - 1)
    # a missing name may be a submodule: only what is certainly not a handler is reported
    return None if isinstance(result, Finding) and result.code != "YS306" else result
