"""The size of the package: what each part has at most. Lower a number when its part has become smaller. Only a
feature raises one.

A code line has a token other than a comment and is not part of a docstring. The core is what is not in extras/.
``python tests/test_layout.py`` prints the numbers of the day.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "yamlsched"

BUDGETS = {
    "core": 20_975,
    "web": 5_200,
    "importing": 2_251,
    "preview": 1_382,
    "remote": 1_426,
    "embedded": 947,
    "monitors": 387,
    "notify": 263,
    "doctor": 505,
    "mcp": 265,
    "metrics": 261,
    "scaffold": 255,
    "otel": 251,
    "words": 45,
    "shared": 1_192,
    "sql": 4_437,
    "templates, script and style": 2_119,
    "modules over 300 lines": 0,
    "modules under 40 lines": 0,
    "imports in functions": 0,
    "longest statement": 110,
}

SMALL = {
    "__main__.py": "what `python -m yamlsched` executes",
    "act/notes.py": "the writer of what targets of notifications are to receive",
    "act/settle.py": "an action that operators name",
    "durations.py": "the form of a duration, for all layers",
    "handler/detached.py": "yamlsched.detached, for handlers",
    "runs/backoff.py": "the rule that users look up",
    "schedule/catalog.py": "the page of a code, for explain and SARIF",
    "schedule/file.py": "what may be read as a file at all",
    "schedule/paths.py": "the key `paths`, also for children, which read no file",
    "show/tables.py": "all that needs rich, imported on demand",
    "sync/lacks.py": "the statements of sql/lacks.sql",
    "templates/hello.py": "a file that init writes",
    "timetable/keys.py": "the rule of idempotency keys",
    "timetable/zones.py": "where time zones come from",
    "web.py": "the import path yamlsched.web of applications that mount the page",
    "worker/clock.py": "the one clock of a worker",
}
"""Why a module has under 40 lines. Verbs (cli, cli*.py, service) and __init__ need no reason."""

FROZEN = {"0001_tables.sql", "0002_enqueue.sql", "0003_views.sql", "0004_repairs.sql"}
"""Migrations that databases have: whatever their functions look like, they are not edited."""
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Return how many lines of ``source`` have a token other than a comment, without docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def text_lines(source: str) -> int:
    """Return how many lines of ``source`` are neither blank nor a comment of SQL."""
    return sum(1 for line in source.splitlines() if line.strip() and not line.lstrip().startswith("--"))


def part(path: Path) -> str:
    """Return the extra that a module belongs to, or the core."""
    names = path.relative_to(PACKAGE).parts
    return names[1] if names[0] == "extras" and len(names) > 2 else "core"


def lazy_imports(tree: ast.Module) -> int:
    """Return how many imports stand inside functions."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return len(
        {inner for node in functions for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom)}
    )


def statements(source: str) -> Iterator[str]:
    """Yield the named statements of a file, and the functions and views of a migration."""
    yield from re.split(
        r"^-- name: .*$|^(?=create (?:or replace )?(?:function|view|table)|do \$\$)", source, flags=re.MULTILINE
    )


def measured() -> dict[str, int]:
    sizes: Counter[str] = Counter(dict.fromkeys(BUDGETS, 0))
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text("utf-8")
        lines = code_lines(source)
        sizes[part(path)] += lines
        if part(path) == "core" and path.parent.name not in ("service", "cli"):
            sizes["imports in functions"] += lazy_imports(ast.parse(source))
        sizes["modules over 300 lines"] += lines > 300
        is_verb = path.name.startswith(("__init__", "cli")) or path.parent.name in ("cli", "service")
        sizes["modules under 40 lines"] += lines < 40 and not is_verb and str(path.relative_to(PACKAGE)) not in SMALL
    for path in (ROOT / "sql").rglob("*.sql"):
        source = path.read_text("utf-8")
        sizes["sql"] += text_lines(source)
        if path.name not in FROZEN:
            sizes["longest statement"] = max(sizes["longest statement"], *map(text_lines, statements(source)))
    for pattern in ("*.html", "*.css", "*.js"):
        sizes["templates, script and style"] += sum(
            text_lines(path.read_text("utf-8")) for path in PACKAGE.rglob(pattern) if "docs" not in path.parts
        )
    return dict(sizes)


def test_no_part_is_larger_than_its_budget() -> None:
    # one test, because each process that has one of several would measure the whole package
    sizes = measured()
    too_large = {name: sizes[name] for name in BUDGETS if sizes[name] > BUDGETS[name]}
    assert not too_large, "make it smaller, or move what does not belong there"
    assert all(code_lines((PACKAGE / name).read_text("utf-8")) < 40 for name in SMALL)


if __name__ == "__main__":
    for name, size in measured().items():
        print(f'    "{name}": {size:_},')
