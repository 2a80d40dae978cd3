"""``/namespaces``: the health of each namespace, worst first, as ``yamlsched status --all-namespaces`` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yamlsched.operations import namespaces
from yamlsched.operations.health import Thresholds
from yamlsched.operations.namespaces import NamespaceHealth
from yamlsched.store import history
from yamlsched.web.visit import NotFound, Page, Visit

MAX_LISTED = 100
"""Namespaces whose health one page reads."""


@dataclass(frozen=True)
class Namespaces:
    """The page. ``others`` have neither jobs nor unfinished runs nor hosts; ``omitted`` were not read."""

    found: Sequence[NamespaceHealth]
    others: Sequence[str]
    omitted: int
    max_problems = 3


def show(visit: Visit) -> Namespaces:
    if not visit.namespaces:
        raise NotFound("This page shows one namespace.", "It was started with --namespace, or no namespace has jobs.")
    found, others = namespaces.read_all(visit.connection, Thresholds(), MAX_LISTED)
    total = len(history.namespaces(visit.connection))
    return Namespaces(found, others, max(0, total - MAX_LISTED))


PAGE = Page("/namespaces", "namespaces.html", show)
