"""Runs the tests of an engine one after the other in one process, so that it is started once."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class ByEngine(LoadScopeScheduling):
    """Tests that name an engine in brackets belong together."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("[")[2] or "ssh]"  # the engine whose tests take least


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    """Schedule them so; xdist's marks of groups do nothing with pytest 9."""
    return ByEngine(config, log)
