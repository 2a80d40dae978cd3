"""Doctests of all modules."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import yamlsched

MODULES = [
    module.name
    for module in pkgutil.walk_packages(yamlsched.__path__, "yamlsched.")
    if not module.ispkg
    and not module.name.startswith(("yamlsched.__main__", "yamlsched.templates"))
]


def test_the_examples_of_all_modules_are_correct() -> None:
    results = {name: doctest.testmod(importlib.import_module(name)) for name in MODULES}

    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 50
