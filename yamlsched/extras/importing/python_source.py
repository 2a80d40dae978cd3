"""Values and calls in Python source, read as syntax: nothing is executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from yamlsched.extras.importing.model import Origin, Refusal, shown

SETTING_CALLS = ("update", "dict", "Celery")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a name, such as ``crontab(minute=0)``: its last name and its arguments, which may
    be calls too.
    """

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
        line = getattr(error, "lineno", 0) or 0
        reason = getattr(error, "msg", "nested too deeply, or with NUL characters")
        raise Refusal(f"it is not valid Python: {reason}", line) from error


def value(node: ast.AST | None) -> Any:
    """Return constants as they are, names and calls as Name and Call, and collections of them.

    Raises Refusal for everything whose value only execution would give.
    """
    match node:
        case ast.Constant(value=None | bool() | str() | float() | int() as constant):
            return constant
        case ast.UnaryOp(op=ast.USub(), operand=operand) if _is_number(number := value(operand)):
            return -number
        case ast.BinOp(op=ast.Mult() | ast.Add() as operator, left=left, right=right):
            first, second = value(left), value(right)
            if _is_number(first) and _is_number(second):
                return first * second if isinstance(operator, ast.Mult) else first + second
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return [value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            names = [value(key) for key in keys if key is not None]
            if len(names) == len(values) and all(isinstance(name, str | int) for name in names):
                return dict(zip(names, map(value, values), strict=True))
        case ast.Name() | ast.Attribute():
            return Name(dotted(node))
        case ast.Call(func=function, args=args, keywords=words) if all(word.arg for word in words):
            name = dotted(function).rpartition(".")[2]
            return Call(
                name, tuple(map(value, args)), {str(word.arg): value(word.value) for word in words}
            )
    raise Refusal(f"{written(node)} is not a constant, and nothing is executed")


def payload(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key ``payload`` for the arguments of a task, if it has any. Raises Refusal."""
    if values.get("args"):
        raise Refusal(
            f"it has positional arguments {shown(values['args'])}: a payload has names, write them"
            " as kwargs"
        )
    kwargs = values.get("kwargs") or {}
    if not isinstance(kwargs, dict):
        raise Refusal(f"its kwargs {shown(kwargs)} are not a dict of constants")
    return {"payload": kwargs} if kwargs else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def written(node: ast.AST | None) -> str:
    """Return an expression for a message."""
    try:
        return (
            shown(" ".join(ast.unparse(node).split()))
            if isinstance(node, ast.expr)
            else "an expression"
        )
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


def interval(days: dict[str, Any], args: tuple[Any, ...] = ()) -> timedelta | None:
    """Return what ``timedelta(*args, **days)`` says; None if it is not valid."""
    if not all(_is_number(item) for item in (*args, *days.values())):
        return None
    try:
        return timedelta(*args, **days)
    except (OverflowError, TypeError, ValueError):
        return None


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that gets a value, with the value: in an assignment, by a keyword of a call
    such as ``update``, and as a key of a dict that either has.
    """
    for node in ast.walk(tree):
        named: list[tuple[str, ast.expr]] = []
        match node:
            case ast.Assign(targets=targets, value=value):
                named = [(last_name(target), value) for target in targets]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                named = [(last_name(target), value)]
            case ast.Call(func=function, args=args, keywords=words) if (
                last_name(function) in SETTING_CALLS
            ):
                named = [(word.arg or "", word.value) for word in words]
                named += [("", argument) for argument in args]
        for name, value in named:
            yield name, value
            if isinstance(value, ast.Dict):
                for key, item in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant):
                        yield str(key.value), item


def last_name(node: ast.expr) -> str:
    """Return the last name of a dotted path, or the key of a subscript; empty for others."""
    match node:
        case (
            ast.Attribute(attr=name)
            | ast.Name(id=name)
            | ast.Subscript(slice=ast.Constant(value=str(name)))
        ):
            return name
    return ""


def constant(assigned: Sequence[tuple[str, ast.expr]], node: ast.expr) -> Any:
    """Return the value of a constant, or of a name that is assigned one once; else an Ellipsis."""
    if isinstance(node, ast.Name):
        values = [value for name, value in assigned if name == node.id]
        node = values[0] if len(values) == 1 else node
    return node.value if isinstance(node, ast.Constant) else ...
