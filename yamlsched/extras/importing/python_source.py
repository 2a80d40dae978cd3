"""Values and calls in Python source, read as syntax: nothing is executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from yamlsched.extras.importing.model import MAX_INTEGER_BITS, Origin, Refusal, shown

MAX_DEPTH = 50
INTERVAL_ARGUMENTS = ("days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a name, such as ``crontab(minute=0)``: its last name and its arguments, which may be calls too."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Name:
    """A name or a dotted path."""

    path: str


def parse(source: Origin) -> ast.Module:
    """Return the syntax of ``source``. Raises Refusal if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and such in the source
            return ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deeply, or with NUL characters"
        raise Refusal(f"it is not valid Python: {reason}", line) from error


def value(node: ast.AST | None, depth: int = 0) -> Any:
    """Return constants as they are, names and calls as Name and Call, and collections of them.

    Raises Refusal for everything whose value only execution would give.
    """
    if depth > MAX_DEPTH:
        raise Refusal("it is nested too deeply")

    def inner(node: ast.AST | None) -> Any:
        return value(node, depth + 1)

    match node:
        case ast.Constant(value=None | bool() | str() | float() as constant):
            return constant
        case ast.Constant(value=int() as number) if number.bit_length() <= MAX_INTEGER_BITS:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand) if _is_number(number := inner(operand)):
            return -number
        case ast.BinOp(op=ast.Mult() | ast.Add() as operator, left=left, right=right):
            first, second = inner(left), inner(right)
            if _is_number(first) and _is_number(second):
                return first * second if isinstance(operator, ast.Mult) else first + second
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return [inner(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            names = [inner(key) for key in keys if key is not None]
            if len(names) == len(values) and all(isinstance(name, str | int) for name in names):
                return dict(zip(names, map(inner, values), strict=True))
        case ast.Name() | ast.Attribute():
            return Name(dotted(node))
        case ast.Call(func=function, args=args, keywords=words) if all(word.arg for word in words):
            name = dotted(function).rpartition(".")[2]
            return Call(name, tuple(map(inner, args)), {str(word.arg): inner(word.value) for word in words})
    raise Refusal(f"{written(node)} is not a constant, and nothing is executed")


def payload(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key ``payload`` for the arguments of a task, if it has any. Raises Refusal."""
    if values.get("args"):
        raise Refusal(f"it has positional arguments {shown(values['args'])}: a payload has names, write them as kwargs")
    kwargs = values.get("kwargs") or {}
    if not isinstance(kwargs, dict):
        raise Refusal(f"its kwargs {shown(kwargs)} are not a dict of constants")
    return {"payload": kwargs} if kwargs else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def written(node: ast.AST | None) -> str:
    """Return an expression for a message."""
    try:
        return shown(" ".join(ast.unparse(node).split())) if isinstance(node, ast.expr) else "an expression"
    except (RecursionError, ValueError):
        return "an expression"


def dotted(node: ast.AST) -> str:
    """Return the dotted path that a name or attribute writes. Raises Refusal."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise Refusal(f"{written(node)} is not a name")
    return ".".join([node.id, *reversed(parts)])


def imports(tree: ast.Module) -> dict[str, str]:
    """Return what imported names stand for: ``{"digest": "app.mail.digest"}``."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def interval(days: dict[str, Any], args: tuple[Any, ...] = ()) -> timedelta | None:
    """Return what ``timedelta(*args, **days)`` says; None if it is not valid."""
    if not all(_is_number(item) for item in (*args, *days.values())) or set(days) - set(INTERVAL_ARGUMENTS):
        return None
    try:
        return timedelta(*args, **days)
    except (OverflowError, TypeError, ValueError):
        return None


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the last name of each target that is assigned a value, also by keyword (``update(beat_schedule=...)``)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute | ast.Name):
                    yield (target.attr if isinstance(target, ast.Attribute) else target.id), node.value
                elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    yield str(target.slice.value), node.value
        elif isinstance(node, ast.Call) and written(node.func).rpartition(".")[2] in ("update", "dict", "Celery"):
            yield from ((word.arg, word.value) for word in node.keywords if word.arg)
