"""Doctests of all modules."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import yamlsched

MODULES = [
    module.name
    for module in pkgutil.walk_packages(yamlsched.__path__, "yamlsched.")
    if not module.ispkg and not module.name.startswith(("yamlsched.__main__", "yamlsched.templates"))
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_correct(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
