"""``python -m benchmarks [PART...]``: measure, print a table, write results/."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks import contenders, peers, report
from benchmarks.harness import Bench, Sizes

# Each module describes what it measures. `drain` comes first because its plot comes first in the report.
PARTS = [
    "drain",
    "backlog",
    "held",
    "failures",
    "slots",
    "limits",
    "io",
    "enqueue",
    "fanout",
    "latency",
    "long",
    "start",
    "idle",
    "definitions",
    "sync",
    "spike",
    "validate",
    "diff",
    "prune",
    "web",
]
LONG = ["history", "soak"]  # run only if named
HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"one of {', '.join(PARTS)} (default: all), or {', '.join(LONG)}",
    )
    parser.add_argument(
        "--dsn", help="the PostgreSQL to use; its role must be allowed to create databases"
    )
    parser.add_argument(
        "--repeat", type=int, default=5, help="how often each contender is measured (5)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes, once: checks that it works, measures nothing",
    )
    parser.add_argument("--only", help="contenders to measure, separated by commas")
    parser.add_argument(
        "--results", type=Path, help="folder for results (benchmarks/results; with --quick: none)"
    )
    parser.add_argument(
        "--minutes", type=float, default=Sizes.soak_minutes, help="duration of the soak (60)"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - {*PARTS, *LONG}:
        parser.error(
            f"no part {', '.join(sorted(unknown))}; there are {', '.join([*PARTS, *LONG])}"
        )
    only = arguments.only.split(",") if arguments.only else None
    if only and (unknown := set(only) - {c.name for c in contenders.ALL}):
        parser.error(
            f"no contender {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in contenders.ALL)}"
        )

    sizes = Sizes.quick() if arguments.quick else Sizes(soak_minutes=arguments.minutes)
    chosen = [c for c in contenders.ALL if only is None or c.name in only]
    if any(c.needs for c in chosen):
        peers.install(HERE / ".peers", chosen)
    with Bench.started(
        arguments.dsn, 1 if arguments.quick else arguments.repeat, sizes, chosen
    ) as bench:
        bench.results = arguments.results or (None if arguments.quick else HERE / "results")
        for name in arguments.parts or PARTS:
            try:
                part = importlib.import_module(f"benchmarks.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"benchmarks.{name}":
                    raise
                bench.not_measured(name, "this part does not exist")
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            part.run(bench)
            print(report.table([row for row in bench.rows if row.part == name]), flush=True)
        if bench.results:
            report.write(bench, bench.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
