"""``/namespaces``: the health of each namespace, worst first, as ``yamlsched status
--all-namespaces`` prints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yamlsched.ask.namespaces import NamespaceHealth, read_all
from yamlsched.ask.problem import Thresholds
from yamlsched.extras.web.visit import NotFound, Page, Visit, finder

PAGE_NAMESPACES = 100
"""Namespaces on one page."""


@dataclass(frozen=True)
class Namespaces:
    """The page: ``found`` are one page of the ``matching`` namespaces. ``total`` and ``problems``
    count those in use.

    ``others`` have neither jobs nor unfinished runs nor hosts. Any page shows this one where its
    address has no namespace; the links lead on to that page.
    """

    found: Sequence[NamespaceHealth]
    total: int
    matching: int
    problems: int
    others: Sequence[str]
    text: str
    number: int
    pages: int
    max_problems = 3


def show(visit: Visit) -> Namespaces:
    if not visit.namespaces:
        raise NotFound(
            "This page shows one namespace.",
            "It was started with --namespace, or no namespace has jobs.",
        )
    text = visit.text("name")
    in_use, others = read_all(visit.connection, Thresholds())
    finds = finder(text)
    matching = [namespace for namespace in in_use if finds(namespace.health.namespace)]
    listed, number, pages = visit.page_of(matching, PAGE_NAMESPACES)
    return Namespaces(
        found=listed,
        total=len(in_use),
        matching=len(matching),
        problems=sum(bool(namespace.problems) for namespace in in_use),
        others=[name for name in others if finds(name)],
        text=text,
        number=number,
        pages=pages,
    )


PAGE = Page("/namespaces", "namespaces.html", show)
