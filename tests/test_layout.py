"""The size of the package: what each part has at most, in tokens, because lines can be packed.

A token is one of Python's ``tokenize``, without comments, docstrings and layout. SQL is counted in characters,
without comments, blank lines and indentation. Nobody raises a number: who needs room removes something.
``python tests/test_layout.py`` prints the numbers of the day.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "yamlsched"
ROOMS = {
    "engine": ("schedule", "timetable", "sync", "runs", "worker", "handler", "service", "db"),
    "tools": ("ask", "act", "show", "cli"),
}
"""Modules at the top of the package count for the engine. `show` is a tool."""
MAX_COLUMNS = 100

CAPS = {
    "engine": 130_000,
    "tools": 57_000,
    "extras": 117_000,
    "web": 49_000,
    "importing": 22_500,
    "preview": 13_000,
    "embedded": 7_000,
    "doctor": 4_500,
    "monitors": 4_500,
    "mcp": 4_500,
    "notify": 4_500,
    "metrics": 4_500,
    "scaffold": 4_500,
    "otel": 4_500,
    "testing": 4_500,
    "modules over 300 lines": 0,
    "modules under 40 lines": 0,
    "long lines": 0,
    "sql": 200_000,
    "longest statement": 60,
    "templates, script and style": 2_200,
}
"""The most that each part may have. Never raise a cap: remove something instead."""

SMALL = {
    "act/audit.py": "the trail of what operators do, for all actions",
    "entry_points.py": "whether a plugin is installed, without pluggy: for the tick that finds nothing",
    "db/blocking.py": "whose session another one waits for",
    "__main__.py": "what `python -m yamlsched` executes",
    "act/notes.py": "the writer of what targets of notifications are to receive",
    "handler/detached.py": "yamlsched.detached, for handlers",
    "runs/backoff.py": "the rule that users look up",
    "schedule/catalog.py": "the page of a code, for explain and SARIF",
    "schedule/paths.py": "the key `paths`, also for children, which read no file",
    "templates/hello.py": "a file that init writes",
    "timetable/keys.py": "the rule of idempotency keys",
    "timetable/zones.py": "where time zones come from",
    "testing.py": "the import path of helpers for users' own tests",
    "web.py": "the import path yamlsched.web of applications that mount the page",
    "worker/clock.py": "the one clock of a worker",
    "worker/local/usage.py": "what attempts use, as the child and its parent measure it",
}
"""Why a module has under 40 lines. Verbs (cli, cli*.py, service) and __init__ need no reason."""

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings that are statements of their own at the start of a module, a class or a function."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str()) as constant), *_]:
                yield constant
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from docstrings(child)


@lru_cache(maxsize=1)
def tokens(source: str) -> list[tokenize.TokenInfo]:
    """Return the tokens of ``source`` that count."""
    left_out = {(node.lineno, node.col_offset) for node in docstrings(ast.parse(source))}
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token for token in found if token.type not in NOT_CODE and token.start not in left_out]


def code_lines(source: str) -> int:
    """Return how many lines of ``source`` have a token that counts."""
    return len(
        {line for token in tokens(source) for line in range(token.start[0], token.end[0] + 1)}
    )


def sql_lines(source: str) -> list[str]:
    """Return the lines of a file of SQL without comments, blank lines and indentation."""
    without = (re.sub(r"--.*", "", line).strip() for line in source.splitlines())
    return [line for line in without if line]


def part(path: Path) -> str:
    """Return what a module counts for: the engine, the tools, or an extra."""
    names = path.relative_to(PACKAGE).parts
    if names[0] == "extras":
        return names[1] if len(names) > 2 else "engine"
    return next((room for room, folders in ROOMS.items() if names[0] in folders), "engine")


def statements(source: str) -> Iterator[str]:
    """Yield the named statements of a file, and its functions, views and tables."""
    yield from re.split(
        r"^(?=-- name: |create (?:or replace )?(?:function|view|table)|alter table|do \$\$)",
        source,
        flags=re.MULTILINE,
    )


def is_too_small(path: Path, lines: int) -> bool:
    """Return whether a module has so few lines that it needs a reason in SMALL."""
    is_verb = path.name.startswith(("__init__", "cli")) or path.parent.name in ("cli", "service")
    return lines < 40 and not is_verb and str(path.relative_to(PACKAGE)) not in SMALL


def offenders() -> Iterator[str]:
    """Yield the modules, statements and lines that are too long, and modules that are too short."""
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "sql").rglob("*.sql")]:
        source, name = path.read_text("utf-8"), path.relative_to(ROOT)
        for number, line in enumerate(source.splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                yield f"{name}:{number} has {len(line)} columns"
        if path.suffix == ".py":
            lines = code_lines(source)
            if lines > 300 or is_too_small(path, lines):
                yield f"{name} has {lines} lines of code"
            continue
        for statement in statements(source):
            if (lines := len(sql_lines(statement))) > CAPS["longest statement"]:
                yield f"{name} has {lines} lines in: {statement.splitlines()[0]}"


def measured() -> dict[str, int]:
    sizes: Counter[str] = Counter(dict.fromkeys(CAPS, 0))
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text("utf-8")
        lines = code_lines(source)
        name = part(path)
        sizes[name] += len(tokens(source))
        sizes["extras"] += len(tokens(source)) if name not in ("engine", "tools") else 0
        sizes["modules over 300 lines"] += lines > 300
        sizes["modules under 40 lines"] += is_too_small(path, lines)
        sizes["long lines"] += sum(len(line) > MAX_COLUMNS for line in source.splitlines())
    for path in (ROOT / "sql").rglob("*.sql"):
        source = path.read_text("utf-8")
        sizes["sql"] += sum(map(len, sql_lines(source)))
        sizes["longest statement"] = max(
            sizes["longest statement"], *(len(sql_lines(one)) for one in statements(source))
        )
        sizes["long lines"] += sum(len(line) > MAX_COLUMNS for line in source.splitlines())
    for pattern in ("*.html", "*.css", "*.js"):
        for path in PACKAGE.rglob(pattern):
            sizes["templates, script and style"] += sum(
                1 for line in path.read_text("utf-8").splitlines() if line.strip()
            )
    return dict(sizes)


def test_no_part_is_larger_than_its_cap() -> None:
    # one test, because each process that has one of several would measure the whole package
    sizes = measured()
    too_large = {name: sizes[name] for name in sizes if sizes[name] > CAPS.get(name, 0)}
    assert not too_large, (
        f"make it smaller, or move what does not belong there: {too_large} {list(offenders())}"
    )
    assert all(code_lines((PACKAGE / name).read_text("utf-8")) < 40 for name in SMALL)


if __name__ == "__main__":
    for name, size in measured().items():
        print(f'    "{name}": {size:_},')
