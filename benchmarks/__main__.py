"""``python -m benchmarks [PART...]``: measure, print a table, write results/."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks import contenders, peers, report
from benchmarks.harness import Bench, Sizes

# What each part measures is told by its module. `drain` comes first: its plot heads the report.
PARTS = [
    "drain",
    "backlog",
    "slots",
    "enqueue",
    "latency",
    "idle",
    "definitions",
    "sync",
    "spike",
    "validate",
    "diff",
    "prune",
]
LONG = ["soak"]  # only by their own name
HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}: all by default; or {', '.join(LONG)}"
    )
    parser.add_argument("--dsn", help="a PostgreSQL to measure on; its role must be allowed to create databases")
    parser.add_argument("--repeat", type=int, default=5, help="how often each contender is measured (5)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once: shows that it works, measures nothing")
    parser.add_argument("--only", help="contenders, separated by commas")
    parser.add_argument("--results", type=Path, help="where results are written (benchmarks/results; --quick: nowhere)")
    parser.add_argument("--minutes", type=float, default=Sizes.soak_minutes, help="how long the soak is (60)")
    given = parser.parse_args()
    if unknown := set(given.parts) - {*PARTS, *LONG}:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join([*PARTS, *LONG])}")
    only = given.only.split(",") if given.only else None
    if only and (unknown := set(only) - {c.name for c in contenders.ALL}):
        parser.error(
            f"no contender {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in contenders.ALL)}"
        )

    sizes = Sizes.quick() if given.quick else Sizes(soak_minutes=given.minutes)
    wanted = [c for c in contenders.ALL if only is None or c.name in only]
    if any(c.needs for c in wanted):
        peers.install(HERE / ".peers", wanted)
    with Bench.started(given.dsn, 1 if given.quick else given.repeat, sizes, wanted) as bench:
        bench.results = given.results or (None if given.quick else HERE / "results")
        for name in given.parts or PARTS:
            try:
                part = importlib.import_module(f"benchmarks.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"benchmarks.{name}":
                    raise
                bench.not_measured(name, "there is no such part yet")
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            part.run(bench)
            print(report.table([row for row in bench.rows if row.part == name]), flush=True)
        if bench.results:
            report.write(bench, bench.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
