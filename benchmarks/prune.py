"""A drain while a million finished runs are pruned, as a share of its rate without the prune."""

from __future__ import annotations

import subprocess
import time

import psycopg

from benchmarks import harness
from benchmarks.backlog import add_finished
from benchmarks.contenders.yamlsched_ import Yamlsched, command
from benchmarks.harness import Bench, alternate

PART = "prune"


def run(bench: Bench) -> None:
    ours = Yamlsched()
    if "prune" not in harness.run(command("--help")):
        bench.not_measured(PART, "this version has no `prune`")
        return
    rates: dict[bool, float] = {}
    case = f"{bench.sizes.backlog:,} due runs beside {bench.sizes.finished:,} finished ones"

    def measure(is_pruning: bool) -> None:
        with bench.database() as dsn:
            ours.create(dsn)
            add_finished(dsn, bench.sizes.finished)
            with psycopg.connect(dsn) as connection:
                connection.execute(
                    "update yamlsched.job_runs set finished_at = finished_at - interval '60 days', "
                    "created_at = created_at - interval '60 days'"
                )
            ours.enqueue(dsn, "noop", bench.sizes.backlog)
            bench.vacuum(dsn)
            pruning = _prune(ours, dsn) if is_pruning else None
            drained = ours.drain(dsn, 1)
            if pruning is not None:
                pruning.terminate()
                pruning.communicate()
                with psycopg.connect(dsn) as connection:
                    [remaining] = connection.execute(
                        "select count(*) from yamlsched.job_runs where finished_at < now() - interval '30 days'"
                    ).fetchone()
        rates[is_pruning] = drained.runs / drained.seconds
        if pruning is not None:
            pruned = bench.sizes.finished - remaining
            note = f"{pruned:,} runs were pruned at the same time"
            bench.add(
                PART, case, ours.name, "of itself without a prune", rates[True] / rates[False], note
            )
            bench.add(PART, case, ours.name, "pruned/s", pruned / drained.seconds)

    alternate(bench.repeat, lambda: measure(False), lambda: measure(True))


def _prune(ours: Yamlsched, dsn: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command("prune", "--dsn", dsn),
        cwd=ours.folder / "0",
        env=ours.environment(dsn),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.7)  # so that it prunes when the worker starts
    return process
