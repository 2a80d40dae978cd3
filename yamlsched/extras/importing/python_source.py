"""Values and calls in Python source, read as syntax: nothing is executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from yamlsched.extras.importing.model import Origin, Refusal, shown

MAX_DEPTH = 50
SETTING_CALLS = ("update", "dict", "Celery")
INTERVAL_ARGUMENTS = (
    "days",
    "seconds",
    "microseconds",
    "milliseconds",
    "minutes",
    "hours",
    "weeks",
)


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
        line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
        reason = (
            error.msg
            if isinstance(error, SyntaxError)
            else "nested too deeply, or with NUL characters"
        )
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
        case ast.Constant(value=None | bool() | str() | float() | int() as constant):
            return constant
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
            return Call(
                name, tuple(map(inner, args)), {str(word.arg): inner(word.value) for word in words}
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
    if not all(_is_number(item) for item in (*args, *days.values())) or set(days) - set(
        INTERVAL_ARGUMENTS
    ):
        return None
    try:
        return timedelta(*args, **days)
    except (OverflowError, TypeError, ValueError):
        return None


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the last name of each target that is assigned a value, also by keyword
    (``update(beat_schedule=...)``).
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute | ast.Name):
                    yield (
                        (target.attr if isinstance(target, ast.Attribute) else target.id),
                        node.value,
                    )
                elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    yield str(target.slice.value), node.value
        elif isinstance(node, ast.Call) and _last_name(node.func) in SETTING_CALLS:
            yield from ((word.arg, word.value) for word in node.keywords if word.arg)


def settings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is set at the top level, in a class, on an object ``conf``, and by keyword or key
    of a call.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body):
                yield from _plain_assignments(body)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    match target:
                        case ast.Attribute(value=owner, attr=name) if _is_settings(owner):
                            yield name, value
                        case ast.Subscript(value=owner, slice=ast.Constant(value=str(name))) if (
                            _is_settings(owner)
                        ):
                            yield name, value
            case ast.Call(func=function, keywords=words, args=args) if (
                _last_name(function) in SETTING_CALLS
            ):
                yield from ((word.arg, word.value) for word in words if word.arg)
                for argument in args:
                    yield from _items(argument)


def _items(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Dict):
        for key, item in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), item


def _plain_assignments(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for statement in body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                yield from (
                    (target.id, value) for target in targets if isinstance(target, ast.Name)
                )
                yield from _items(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.If() | ast.Try() | ast.With():
                inner = [
                    *statement.body,
                    *getattr(statement, "orelse", []),
                    *getattr(statement, "finalbody", []),
                ]
                inner += [
                    line for handler in getattr(statement, "handlers", []) for line in handler.body
                ]
                yield from _plain_assignments(inner)


def _is_settings(owner: ast.expr) -> bool:
    return "conf" in _last_name(owner).lower()


def _last_name(node: ast.expr) -> str:
    return written(node).rpartition(".")[2]


def constant(settings: Sequence[tuple[str, ast.expr]], node: ast.expr) -> Any:
    """Return the value of a constant, of a name that is set to one once, or of ZoneInfo with one;
    else an Ellipsis.
    """
    match node:
        case ast.Name(id=name):
            values = [item for key, item in settings if key == name]
            is_known = len(values) == 1 and not isinstance(values[0], ast.Name)
            return constant(settings, values[0]) if is_known else ...
        case ast.Call(
            func=ast.Name() | ast.Attribute(), args=[ast.Constant(value=str(name))], keywords=[]
        ):
            is_zone = _last_name(node.func) in ("ZoneInfo", "timezone", "gettz")
            return name if is_zone else ...
        case ast.Constant(value=value):
            return value
    return ...
