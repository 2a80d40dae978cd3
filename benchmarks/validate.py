"""``validate`` of ten thousand jobs, beside a program that only reads the same file with PyYAML's C loader.

One handler for all jobs; then 10,000 handlers in one module, and in modules of 100; expressions that differ, in 300
time zones; a tag for each job and one for each two.

The file is sound: a report of mistakes is bounded, and would be a shorter run. ``cost`` sees to that.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders.ours import HANDLERS, Ours, command
from benchmarks.definitions import schedule
from benchmarks.harness import PYTHON, Bench, alternate, cost
from yamlsched.definitions import timezones

PART = "validate"
LOADER = "yaml.CSafeLoader"
ZONES = 300
READ = "import sys, yaml; yaml.load(open(sys.argv[1], 'rb'), yaml.CSafeLoader)"


def run(bench: Bench) -> None:
    folder = bench.folder / "validate"
    folder.mkdir()
    file = folder / "schedules.yaml"
    file.write_text(schedule(bench.sizes.jobs, '"*/10 2 * * mon-fri"'))
    (folder / "bench_handlers.py").write_text(HANDLERS)
    compare(bench, f"{bench.sizes.jobs:,} jobs", file)
    for name, handlers in (("one module", bench.sizes.jobs), ("modules of 100", 100)):
        compare(bench, f"{bench.sizes.jobs:,} handlers, {name}", many_handlers(bench, name, handlers))
    names = sorted(zone for zone in timezones.names() if "/" in zone)[:ZONES]
    times = [
        f'cron: "{n % 60} {n // 60 % 24} * * {n % 7}", timezone: {names[n % ZONES]}' for n in range(bench.sizes.jobs)
    ]
    compare(bench, f"{bench.sizes.jobs:,} jobs, {ZONES} zones", one_handler(bench, "zones", times))
    tags = [f"tags: [customer-{n}, pair-{n // 2}]" for n in range(bench.sizes.jobs)]
    compare(bench, f"{bench.sizes.jobs:,} jobs, a tag each", one_handler(bench, "tags", tags))


def one_handler(bench: Bench, name: str, keys: list[str]) -> Path:
    """Write a file whose jobs share a handler and have the given keys; return it."""
    folder = bench.folder / f"validate {name}"
    folder.mkdir()
    (folder / "bench_handlers.py").write_text(HANDLERS)
    jobs = "".join(
        f"  j{n}: {{{key}, handler: bench_handlers.noop, payload: {{n: 1}}}}\n" for n, key in enumerate(keys)
    )
    (folder / "schedules.yaml").write_text(f"version: 1\njobs:\n{jobs}")
    return folder / "schedules.yaml"


def many_handlers(bench: Bench, name: str, in_each: int) -> Path:
    """Write a file whose jobs have a handler each, ``in_each`` of them in a module; return it."""
    folder = bench.folder / f"validate {name}"
    folder.mkdir()
    handler = "def run_{}(n: int, region: str = 'eu') -> dict:\n    return {{'n': n, 'region': region}}\n\n\n"
    for start in range(0, bench.sizes.jobs, in_each):
        names = range(start, min(start + in_each, bench.sizes.jobs))
        (folder / f"handlers_{start}.py").write_text("".join(map(handler.format, names)))
    jobs = "".join(
        f'  j{n}: {{cron: "*/10 2 * * *", handler: handlers_{n // in_each * in_each}.run_{n}, payload: {{n: 1}}}}\n'
        for n in range(bench.sizes.jobs)
    )
    (folder / "schedules.yaml").write_text(f"version: 1\njobs:\n{jobs}")
    return folder / "schedules.yaml"


def compare(bench: Bench, case: str, file: Path) -> None:
    environment = Ours().environment("")

    def measure(name: str, words: list[str]) -> None:
        took = cost(words, env=environment, cwd=file.parent)
        bench.add(PART, case, name, "s", took.seconds, "whole process", more_is_better=False)
        bench.add(PART, case, name, "MiB", took.memory, more_is_better=False)

    alternate(
        bench.repeat,
        lambda: measure("yamlsched", command("validate", str(file))),
        lambda: measure(LOADER, [PYTHON, "-c", READ, str(file)]),
    )
