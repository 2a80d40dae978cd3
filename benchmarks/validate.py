"""``validate`` of ten thousand jobs, beside a program that only reads the same file with PyYAML's C loader.

The file is sound: a report of mistakes is bounded, and would be a shorter run. ``cost`` sees to that.
"""

from __future__ import annotations

from benchmarks.contenders.ours import HANDLERS, Ours, command
from benchmarks.definitions import schedule
from benchmarks.harness import PYTHON, Bench, alternate, cost

PART = "validate"
LOADER = "yaml.CSafeLoader"
READ = "import sys, yaml; yaml.load(open(sys.argv[1], 'rb'), yaml.CSafeLoader)"


def run(bench: Bench) -> None:
    folder = bench.folder / "validate"
    folder.mkdir()
    file = folder / "schedules.yaml"
    file.write_text(schedule(bench.sizes.jobs, '"*/10 2 * * mon-fri"'))
    (folder / "bench_handlers.py").write_text(HANDLERS)
    environment = Ours().environment("")
    case = f"{bench.sizes.jobs:,} jobs"

    def measure(name: str, words: list[str]) -> None:
        took = cost(words, env=environment, cwd=folder)
        bench.add(PART, case, name, "s", took.seconds, "whole process", more_is_better=False)
        bench.add(PART, case, name, "MiB", took.memory, more_is_better=False)

    alternate(
        bench.repeat,
        lambda: measure("yamlsched", command("validate", str(file))),
        lambda: measure(LOADER, [PYTHON, "-c", READ, str(file)]),
    )
