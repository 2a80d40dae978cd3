"""Every check that can reject a schedule: what ``validate``, ``sync`` and ``plan`` agree on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from yamlsched.definitions import handlers, lookup, paths, suppressions
from yamlsched.definitions.diagnostic import ERROR, Diagnostic
from yamlsched.definitions.job import Job
from yamlsched.definitions.load import Calls, Loaded


@dataclass(frozen=True)
class Checked:
    """The errors of a file, and the jobs whose own entry is valid, handler and payload included."""

    errors: list[Diagnostic]
    jobs: dict[str, Job]


def check(loaded: Loaded, file: Path, given: Sequence[str] | None) -> Checked:
    """Return the errors of a file. Handlers are looked for in ``given`` (--path) first; None: they are not checked."""
    path: list[Path] = []
    by_reading: list[Diagnostic] = []
    if given is not None:
        path = [*paths.search_path(file, loaded.paths, given), *(Path(entry) for entry in sys.path if entry)]
        by_reading = [*paths.check(loaded, file), *handlers.check(loaded, path)]
    found = suppressions.apply_suppressions([*loaded.diagnostics, *by_reading], loaded.source)
    wrong = {calls.job for calls in loaded.calls() if _is_wrong(loaded, calls, path)} if by_reading else set()
    lookup.forget()  # a worker runs for weeks, and the syntax trees of all handlers are large
    return Checked(
        [one for one in found if one.severity == ERROR],
        {name: job for name, job in loaded.jobs.items() if name not in wrong},
    )


def _is_wrong(loaded: Loaded, calls: Calls, path: Sequence[Path]) -> bool:
    return any(not suppressions.is_suppressed(one) for one in handlers.check_again(loaded, calls, path))
