"""A self-check of the setup: each check says what was found and, if that is not ok, what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """The result of one check. ``level`` is ok, warn or fail; only fail makes the
    setup unhealthy.
    """

    name: str
    level: str
    what: str
    remedy: str = ""
