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


def ok(name: str, what: str) -> Check:
    return Check(name, "ok", what)


def warn(name: str, what: str, remedy: str) -> Check:
    return Check(name, "warn", what, remedy)


def fail(name: str, what: str, remedy: str) -> Check:
    return Check(name, "fail", what, remedy)
