"""A job that fails at first, as a request to an external server may do. It demonstrates retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yamlsched import Run


def fetch_rates(run: Run, succeeds_at: int = 3) -> dict[str, int]:
    """Fail every attempt before number ``succeeds_at``; the result is deterministic."""
    if run.attempt < succeeds_at:
        raise ConnectionError(
            f"the rates server did not answer (on purpose, until attempt {succeeds_at})"
        )
    run.log.info("the rates server answered attempt %d", run.attempt)
    return {"attempts": run.attempt}
