"""``diff`` of an edit of jobs that fire every minute, and of as many nightly jobs."""

from __future__ import annotations

import json

from benchmarks.contenders.yamlsched_ import Yamlsched, command
from benchmarks.harness import Bench, alternate, measure_command

PART = "diff"
EDITS = {
    "nightly": ("{} 2 * * *", "{} 3 * * *"),
    "every minute": ("{}-59 * * * *", "* * * * *"),
}


def run(bench: Bench) -> None:
    folder = bench.folder / "diff"
    folder.mkdir()
    environment = Yamlsched().environment("")

    def measure(name: str) -> None:
        files = []
        for side, cron in zip(("before", "after"), EDITS[name], strict=True):
            files.append(folder / f"{name}-{side}.yaml")
            jobs = {
                f"j{n}": {"cron": cron.format(n % 50), "handler": "a.b"}
                for n in range(bench.sizes.busy_jobs)
            }
            files[-1].write_text(json.dumps({"version": 1, "jobs": jobs}))
        result = measure_command(command("diff", *map(str, files)), env=environment, cwd=folder)
        case = f"{bench.sizes.busy_jobs:,} jobs, {name}"
        bench.add(
            PART, case, "yamlsched", "s", result.seconds, "whole process", more_is_better=False
        )
        bench.add(PART, case, "yamlsched", "MiB", result.memory, more_is_better=False)

    alternate(bench.repeat, *(lambda name=name: measure(name) for name in EDITS))
