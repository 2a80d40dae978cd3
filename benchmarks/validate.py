"""``validate`` of 10,000 jobs, compared with a program that only reads the same file with PyYAML's C loader.

The files have one handler for all jobs; 10,000 handlers in one module and in modules of 100; different expressions in
300 time zones; a tag for each job and one for each pair.

The files are valid. A file with errors would take less time, because the number of reported errors is limited.
``measure_command`` raises an error in this case.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders.yamlsched_ import HANDLERS, Yamlsched, command
from benchmarks.definitions import schedule
from benchmarks.harness import PYTHON, Bench, alternate, measure_command
from yamlsched.schedule import timezones

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
        compare(
            bench, f"{bench.sizes.jobs:,} handlers, {name}", many_handlers(bench, name, handlers)
        )
    names = sorted(zone for zone in timezones.names() if "/" in zone)[:ZONES]
    times = [
        f'cron: "{n % 60} {n // 60 % 24} * * {n % 7}", timezone: {names[n % ZONES]}'
        for n in range(bench.sizes.jobs)
    ]
    compare(bench, f"{bench.sizes.jobs:,} jobs, {ZONES} zones", one_handler(bench, "zones", times))
    tags = [f"tags: [customer-{n}, pair-{n // 2}]" for n in range(bench.sizes.jobs)]
    compare(bench, f"{bench.sizes.jobs:,} jobs, a tag each", one_handler(bench, "tags", tags))


def one_handler(bench: Bench, name: str, keys: list[str]) -> Path:
    """Write a file whose jobs share a handler and have these keys; return its path."""
    folder = bench.folder / f"validate {name}"
    folder.mkdir()
    (folder / "bench_handlers.py").write_text(HANDLERS)
    jobs = "".join(
        f"  j{n}: {{{key}, handler: bench_handlers.noop, payload: {{n: 1}}}}\n"
        for n, key in enumerate(keys)
    )
    (folder / "schedules.yaml").write_text(f"version: 1\njobs:\n{jobs}")
    return folder / "schedules.yaml"


def many_handlers(bench: Bench, name: str, per_module: int) -> Path:
    """Write a file whose jobs have one handler each, ``per_module`` of them in a module; return its path."""
    folder = bench.folder / f"validate {name}"
    folder.mkdir()
    handler = "def run_{}(n: int, region: str = 'eu') -> dict:\n    return {{'n': n, 'region': region}}\n\n\n"
    for start in range(0, bench.sizes.jobs, per_module):
        names = range(start, min(start + per_module, bench.sizes.jobs))
        (folder / f"handlers_{start}.py").write_text("".join(map(handler.format, names)))
    jobs = "".join(
        f'  j{n}: {{cron: "*/10 2 * * *", handler: handlers_{n - n % per_module}.run_{n}, payload: {{n: 1}}}}\n'
        for n in range(bench.sizes.jobs)
    )
    (folder / "schedules.yaml").write_text(f"version: 1\njobs:\n{jobs}")
    return folder / "schedules.yaml"


def compare(bench: Bench, case: str, file: Path) -> None:
    environment = Yamlsched().environment("")

    def measure(name: str, argv: list[str]) -> None:
        result = measure_command(argv, env=environment, cwd=file.parent)
        bench.add(PART, case, name, "s", result.seconds, "whole process", more_is_better=False)
        bench.add(PART, case, name, "MiB", result.memory, more_is_better=False)

    alternate(
        bench.repeat,
        lambda: measure("yamlsched", command("validate", str(file))),
        lambda: measure(LOADER, [PYTHON, "-c", READ, str(file)]),
    )
