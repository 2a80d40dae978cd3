"""``python -m tests.chaos``: run scenarios and print their reports."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for tests/support, as pytest does


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of the first scenario (default: random)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=40,
        help="duration of the faults in each scenario (%(default)s)",
    )
    parser.add_argument(
        "--times",
        type=int,
        default=1,
        help="number of scenarios, each with the next seed (%(default)s)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the evidence of scenarios without violations"
    )
    arguments = parser.parse_args()

    from .scenario import run_scenario

    first = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    has_failed = False
    for seed in range(first, first + arguments.times):
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        folder.chmod(0o755)
        report = run_scenario(seed, arguments.seconds, folder)
        print(report, flush=True)
        has_failed = has_failed or bool(report.violations)
        if not report.violations and not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
