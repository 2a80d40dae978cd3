"""Every check that can reject a schedule: what ``validate``, ``sync`` and ``plan`` agree on."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from yamlsched.definitions import handlers, paths, silence
from yamlsched.definitions.diagnostic import ERROR, Diagnostic, Source
from yamlsched.definitions.job import Job
from yamlsched.definitions.load import Calls, Loaded
from yamlsched.definitions.tree import Node


@dataclass(frozen=True)
class Checked:
    """The errors of a file, and the jobs whose own entry is valid, handler and payload included."""

    errors: list[Diagnostic]
    jobs: dict[str, Job]


def check(loaded: Loaded, file: Path, given: Sequence[str] | None) -> Checked:
    """Return the errors of a file. Handlers are looked for in ``given`` (--path) first; None: they are not checked."""
    by_reading: list[Diagnostic] = []
    if given is not None:
        path = [*paths.search_path(file, loaded.paths, given), *(Path(entry) for entry in sys.path if entry)]
        by_reading = [*paths.check(loaded, file), *handlers.check(loaded, path)]
    found = silence.heed([*loaded.diagnostics, *by_reading], loaded.source)
    errors = [one for one in found if one.severity == ERROR]
    known = set(loaded.diagnostics)
    places = sorted((one.line, one.column) for one in errors if one not in known)
    return Checked(errors, _without(loaded, places) if places else dict(loaded.jobs))


def _without(loaded: Loaded, places: list[tuple[int, int]]) -> dict[str, Job]:
    """Return the valid jobs that no error at ``places`` (sorted) concerns."""
    source = loaded.source
    wrong = {
        calls.job for calls in loaded.calls() if any(_is_in(node, places, source) for node in _nodes(loaded, calls))
    }
    return {name: job for name, job in loaded.jobs.items() if name not in wrong}


def _nodes(loaded: Loaded, calls: Calls) -> Iterator[Node]:
    """Yield what is written about a job's calls: its entry, and values that it inherits or reaches by an alias."""
    entry = loaded.entries[calls.job]
    yield entry
    for key in ("handler", "on_dead", "payload"):
        node, _, _ = loaded.value(calls.job, key)
        if node is not entry:
            yield node


def _is_in(node: Node, places: list[tuple[int, int]], source: Source) -> bool:
    nearest = bisect_left(places, source.place(node.at))
    return nearest < len(places) and places[nearest] < source.place(node.end)
