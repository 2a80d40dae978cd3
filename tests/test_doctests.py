"""Doctests of all modules."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_examples_of_all_modules_are_correct() -> None:
    files = [
        path for path in (ROOT / "yamlsched").rglob("*.py") if ">>> " in path.read_text("utf-8")
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}

    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 50
