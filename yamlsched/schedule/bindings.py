"""What a Python module binds at its top level, read from its source.

A name is *known* if exactly one statement binds it and nothing in the module can rebind it at run time. Every other
name is *unknown*: it may be a handler, so it must not be reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from inspect import Parameter, Signature

DYNAMIC = {
    *("globals", "exec", "eval", "builtins", "__builtins__", "modules", "__globals__", "f_globals", "getmodule"),
    *("update_wrapper", "__path__", "extend_path", "declare_namespace", "meta_path", "path_hooks"),
}
"""A module that uses one of these names can change its own names, replace itself, or find submodules elsewhere."""
DYNAMIC_ATTRIBUTES = DYNAMIC - {"exec", "eval"}
"""The same for attributes: ``frame.eval`` is harmless."""
DYNAMIC_AT_IMPORT = {"setattr", "delattr", "vars", "locals", "__dict__"}
"""The same for code that runs while the module is imported. Inside functions they affect other objects."""
SIGNATURE = {"__signature__", "__wrapped__", "__defaults__", "__kwdefaults__", "__code__"}
IMPORTERS = {"import_module", "__import__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class CodeScope(Enum):
    """The scope of code. Only names in the module's own scope are its attributes."""

    MODULE = "module"
    CLASS = "class"
    FUNCTION = "function"


@dataclass
class Bindings:
    """The names that a module or a class body binds.

    ``statements`` has each bound name; its value is None where more than one statement binds it or where the
    statement does not determine the value. ``is_dynamic``: the names can change in ways that its source does not show.
    """

    statements: dict[str, ast.stmt | None] = field(default_factory=dict)
    is_dynamic: bool = False
    last_star_import: int = 0
    """The line of the last ``from x import *``, which may rebind all names above it; 0 without one."""
    top: frozenset[int] = frozenset()
    """The ids of the unconditional statements."""

    def is_unknown(self, name: str) -> bool:
        """Return whether the source does not determine what ``name`` is bound to."""
        if self.is_dynamic or (name.startswith("__") and name.endswith("__")):
            return True
        has_others = bool(self.last_star_import) or "__getattr__" in self.statements
        if name not in self.statements:
            return has_others
        statement = self.statements[name]
        if statement is None:
            return True
        is_certain = id(statement) in self.top and statement.lineno > self.last_star_import
        return has_others and not is_certain

    @cached_property
    def functions(self) -> list[str]:
        """Return the names of the public functions, sorted."""
        return sorted(
            name
            for name, statement in self.statements.items()
            if isinstance(statement, Function) and not name.startswith("_")
        )

    def bind(self, name: str, statement: ast.stmt | None) -> None:
        """Record that ``statement`` binds ``name``; None if it does not determine the value."""
        self.statements[name] = None if name in self.statements else statement


def read(body: list[ast.stmt], module: str = "") -> Bindings:
    """Return the bindings of the body of a module or a class. ``module`` is the last part of the module's name."""
    bindings = Bindings(top=frozenset(map(id, body)))
    todo: list[tuple[ast.AST, CodeScope]] = [(statement, CodeScope.MODULE) for statement in body]
    while todo:
        node, scope = todo.pop()
        todo.extend(_visit(node, scope, bindings, module))
    return bindings


def _visit(node: ast.AST, scope: CodeScope, bindings: Bindings, module: str) -> Iterable[tuple[ast.AST, CodeScope]]:
    """Record what a node binds; return the nodes to visit inside it, with their scope."""
    match node:
        case ast.Constant() | ast.expr_context():
            return ()
        case ast.Name():
            _name(node, scope, bindings)
            return ()
        case ast.Attribute():
            _attribute(node, scope, bindings)
            return ((node.value, scope),)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            if scope is CodeScope.MODULE:
                bindings.bind(node.name, node)
            of_class = CodeScope.CLASS if scope is CodeScope.MODULE else scope
            inner = of_class if isinstance(node, ast.ClassDef) else CodeScope.FUNCTION
            body = set(node.body)
            return [(each, inner if each in body else scope) for each in ast.iter_child_nodes(node)]
        case ast.Lambda():
            return ((node.args, scope), (node.body, CodeScope.FUNCTION))
        case ast.comprehension():
            return [(each, scope) for each in (node.iter, *node.ifs)]  # its targets are names of their own scope
        case ast.Import() | ast.ImportFrom():
            _import(node, scope, bindings, module)
            return ()
        case ast.Global():
            bindings.statements.update(dict.fromkeys(node.names))
            return ()
        case ast.Call():
            if _imports_itself(node, module):
                bindings.is_dynamic = True
        case _ if scope is CodeScope.MODULE:
            return [(each, scope) for each in _bind(node, bindings)]
    return [(each, scope) for each in ast.iter_child_nodes(node)]


def _bind(node: ast.AST, bindings: Bindings) -> Iterable[ast.AST]:
    """Record what a node in the module's scope binds; return the nodes to visit inside it."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Name):
                    bindings.bind(target.id, node)
                    bindings.is_dynamic |= target.id in DYNAMIC
            return [value, *(target for target in targets if not isinstance(target, ast.Name))]
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            bindings.bind(name, node if value is not None else None)
            return [node.annotation, value] if value is not None else [node.annotation]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            bindings.bind(name, None)
        case ast.MatchMapping(rest=str(name)):
            bindings.bind(name, None)
    return ast.iter_child_nodes(node)


def _name(node: ast.Name, scope: CodeScope, bindings: Bindings) -> None:
    if not isinstance(node.ctx, ast.Load) and scope is CodeScope.MODULE:
        bindings.bind(node.id, None)
    if node.id in DYNAMIC or (node.id in DYNAMIC_AT_IMPORT and scope is not CodeScope.FUNCTION):
        bindings.is_dynamic = True


def _attribute(node: ast.Attribute, scope: CodeScope, bindings: Bindings) -> None:
    at_import = scope is not CodeScope.FUNCTION
    if node.attr in DYNAMIC_ATTRIBUTES or (node.attr in DYNAMIC_AT_IMPORT and at_import):
        bindings.is_dynamic = True
    is_stored = not isinstance(node.ctx, ast.Load)
    if is_stored and isinstance(node.value, ast.Name) and (at_import or node.attr in SIGNATURE):
        bindings.statements[node.value.id] = None  # the object changes: its definition may no longer describe it


def _import(node: ast.Import | ast.ImportFrom, scope: CodeScope, bindings: Bindings, module: str) -> None:
    for alias in node.names:
        last = alias.name.rpartition(".")[2]
        if last in DYNAMIC or last == module:
            bindings.is_dynamic = True  # a module that imports itself can set its own attributes
        if alias.name == "*":
            bindings.last_star_import = max(bindings.last_star_import, node.lineno)
        elif scope is CodeScope.MODULE:
            bound = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
            bindings.bind(bound, node)


def _imports_itself(call: ast.Call, module: str) -> bool:
    """Return whether a call gets the module's own name, with which it can set attributes of the module."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if "logger" in function.lower() or function[:1].isupper():
        return False  # logging.getLogger(__name__), Flask(__name__)
    for argument in call.args:
        if isinstance(argument, ast.Name) and argument.id == "__name__":
            return True
        if isinstance(argument, ast.Constant) and function in IMPORTERS:
            return str(argument.value).rpartition(".")[2] == module
    return False


def signature(function: Function) -> Signature:
    """Return what ``inspect.signature`` would, with None for every default."""
    args = function.args
    by_position = [*args.posonlyargs, *args.args]
    required = len(by_position) - len(args.defaults)
    parameters = []
    for number, arg in enumerate(by_position):
        kind = Parameter.POSITIONAL_ONLY if number < len(args.posonlyargs) else Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(Parameter(arg.arg, kind, default=Parameter.empty if number < required else None))
    if args.vararg:
        parameters.append(Parameter(args.vararg.arg, Parameter.VAR_POSITIONAL))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        parameters.append(Parameter(arg.arg, Parameter.KEYWORD_ONLY, default=None if default else Parameter.empty))
    if args.kwarg:
        parameters.append(Parameter(args.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters, __validate_parameters__=False)


def is_generator(function: Function) -> bool:
    """Return whether a function contains ``yield``, outside of nested functions and classes."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))
    return False
