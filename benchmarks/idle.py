"""The cost of finding nothing to do: a whole ``tick``, the peers' one-shot commands, and the minimum for any program
with this driver. Time from start to exit, and the largest resident set.
"""

from __future__ import annotations

from benchmarks.contenders.base import NotMeasured, usable
from benchmarks.harness import PYTHON, Bench, alternate, measure_command

PART = "idle"
CASE = "nothing due"
MINIMUM = "psycopg, select 1"
SELECT_1 = "import sys, psycopg; print(psycopg.connect(sys.argv[1]).execute('select 1').fetchone())"


def run(bench: Bench) -> None:
    available, missing = usable(c for c in bench.contenders if c.name != "bare loop")
    for contender, reason in missing:
        bench.not_measured(PART, reason, contender=contender.name)
    measures = []
    with bench.database() as dsn:
        measures.append(lambda: _add(bench, MINIMUM, [PYTHON, "-c", SELECT_1, dsn], {}))
        for contender in available:
            try:
                command = contender.once_command(dsn)
            except NotMeasured as error:
                bench.not_measured(PART, str(error), CASE, contender.name)
                continue
            contender.prepare(dsn, 0)
            options = {"env": contender.environment(dsn)}
            measures.append(lambda n=contender.name, c=command, o=options: _add(bench, n, c, o))
            measure_command(command, **options)  # the first execution fills caches
        alternate(bench.repeat * bench.sizes.ticks, *measures)


def _add(bench: Bench, name: str, command: list[str], options: dict) -> None:
    result = measure_command(command, **options)
    bench.add(PART, CASE, name, "ms", result.seconds * 1000, more_is_better=False)
    bench.add(PART, CASE, name, "MiB", result.memory, more_is_better=False)
