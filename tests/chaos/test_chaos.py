"""Every guarantee under random faults. CI runs this beside long stories; ``make chaos`` uses random seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from .scenario import run_scenario

# A seed always chooses the same faults, but their timing varies. Keep the seeds that have found an error.
SEEDS = [
    63,  # locked rows: a worker whose statements were refused twice ended with an error
]


@pytest.mark.chaos
@pytest.mark.parametrize("seed", SEEDS)
def test_every_guarantee_holds_under_faults_of_processes_server_network_and_file(
    seed: int, tmp_path: Path
) -> None:
    report = run_scenario(seed, 40, tmp_path)

    print(report)
    assert report.violations == []
    assert report.counts["kills"] > 0
    assert report.counts["attempts started"] > 100
