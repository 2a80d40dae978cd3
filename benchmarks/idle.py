"""What a look costs that finds nothing to do: a whole ``tick``, beside peers' one-shots and the least that any program
with this driver costs. Time from start to exit, and the largest resident set.
"""

from __future__ import annotations

from benchmarks.contenders.base import NotMeasured, usable
from benchmarks.harness import PYTHON, Bench, alternate, cost

PART = "idle"
CASE = "nothing due"
FLOOR = "psycopg, select 1"
SELECT_1 = "import sys, psycopg; print(psycopg.connect(sys.argv[1]).execute('select 1').fetchone())"


def run(bench: Bench) -> None:
    there, missing = usable(c for c in bench.contenders if c.name != "bare loop")
    for contender, why in missing:
        bench.not_measured(PART, why, contender=contender.name)
    measures = []
    with bench.database() as dsn:
        measures.append(lambda: _add(bench, FLOOR, [PYTHON, "-c", SELECT_1, dsn], {}))
        for contender in there:
            try:
                command = contender.once_command(dsn)
            except NotMeasured as error:
                bench.not_measured(PART, str(error), CASE, contender.name)
                continue
            contender.prepare(dsn, 0)
            options = {"env": contender.environment(dsn)}
            measures.append(lambda n=contender.name, c=command, o=options: _add(bench, n, c, o))
            cost(command, **options)  # the first one fills caches
        alternate(bench.repeat * bench.sizes.ticks, *measures)


def _add(bench: Bench, name: str, command: list[str], options: dict) -> None:
    took = cost(command, **options)
    bench.add(PART, CASE, name, "ms", took.seconds * 1000, more_is_better=False)
    bench.add(PART, CASE, name, "MiB", took.memory, more_is_better=False)
