"""An idle tick with 10 and with 100,000 definitions: both must cost the same."""

from __future__ import annotations

from pathlib import Path

from benchmarks import harness
from benchmarks.contenders.yamlsched_ import HANDLERS, Yamlsched, command
from benchmarks.harness import Bench, alternate, measure_command

PART = "definitions"


def schedule(count: int, cron: str = '"0 3 1 1 *"') -> str:
    jobs = "".join(
        f"  j{n}: {{cron: {cron}, handler: bench_handlers.noop, payload: {{n: 1}}}}\n"
        for n in range(count)
    )
    return f"version: 1\njobs:\n{jobs}"


def run(bench: Bench) -> None:
    few, many = bench.sizes.definitions
    environment = Yamlsched().environment("")
    with bench.database() as one, bench.database() as other:
        commands = {}
        for count, dsn in ((few, one), (many, other)):
            folder = bench.folder / f"definitions-{count}"
            folder.mkdir()
            (folder / "bench_handlers.py").write_text(HANDLERS)
            file = folder / "schedules.yaml"
            file.write_text(schedule(count))
            harness.run(command("migrate", "--dsn", dsn, "--file", str(file)), env=environment)
            harness.run(command("sync", "--dsn", dsn, "--file", str(file)), env=environment)
            bench.vacuum(dsn)
            commands[count] = command("tick", "--dsn", dsn, "--file", str(file))
        times: dict[int, float] = {}

        def measure(count: int) -> None:
            times[count] = measure_command(commands[count], env=environment).seconds * 1000
            bench.add(
                PART,
                f"idle tick, {count:,} definitions",
                "yamlsched",
                "ms",
                times[count],
                more_is_better=False,
            )

        def compare() -> None:
            ratio = times[many] / times[few]
            note = f"target 1.1; the file has {_mib(bench.folder / f'definitions-{many}')} MiB"
            bench.add(
                PART,
                f"idle tick, {many:,} definitions",
                "yamlsched",
                f"x that with {few}",
                ratio,
                note,
                False,
            )

        alternate(
            bench.repeat * bench.sizes.ticks, lambda: measure(few), lambda: measure(many), compare
        )


def _mib(folder: Path) -> str:
    return f"{(folder / 'schedules.yaml').stat().st_size / 2**20:.1f}"
