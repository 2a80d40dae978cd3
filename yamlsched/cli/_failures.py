"""Failures by job and type of error, as ``status -v`` and ``runs --group-by error_type`` list them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from yamlsched.cli import _output

if TYPE_CHECKING:
    from yamlsched.operations.failures import Failures
    from yamlsched.store.failures import FailureGroup

HEADINGS = ("RUNS", "JOB", "NOW", "ATTEMPTS", "FIRST", "LAST", "EXAMPLE", "ERROR")
CSV_COLUMNS = (
    *("job_type", "error_type", "is_call", "runs", "dead", "failing", "recovered", "attempts", "first_at", "last_at"),
    *("example_id", "example_key", "example_error"),
)


def table(found: Failures, groups: Sequence[FailureGroup]) -> str:
    """Return a table of ``groups``, which are some of those ``found``."""
    return _output.table(HEADINGS, [_line(found, group) for group in groups], free_text="ERROR")


def comma_separated(groups: Sequence[FailureGroup]) -> str:
    return _output.comma_separated(CSV_COLUMNS, [[getattr(group, name) for name in CSV_COLUMNS] for group in groups])


def _line(found: Failures, group: FailureGroup) -> tuple[str, ...]:
    from yamlsched.operations.failures import example, how_they_ended

    more = "+" if found.is_bounded(group) else ""
    worst = "dead" if group.dead else "failing" if group.failing else "succeeded"
    return (
        f"{group.runs}{more}",
        f"{group.job_type} (on_dead)" if group.is_call else group.job_type,
        _output.coloured(worst, how_they_ended(group)),
        f"{group.attempts}{more}",
        _output.instant(group.first_at),
        _output.instant(group.last_at),
        str(group.example_id),
        example(group),
    )
