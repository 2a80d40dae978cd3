"""From the start of a worker's process to the first line of the handler of a job that is waiting.

The handlers of peers are in their own process. yamlsched's are in a child process, which is forked after the claim.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.contenders.base import Contender, NotMeasured, usable
from benchmarks.contenders.yamlsched_ import Yamlsched
from benchmarks.harness import Bench, alternate
from benchmarks.latency import stop

PART = "start"
CASE = "one job is waiting"
TIMEOUT_SECONDS = 20.0


def run(bench: Bench) -> None:
    available, missing = usable(c for c in bench.contenders if c.name != "bare loop")
    for contender, reason in missing:
        bench.not_measured(PART, reason, contender=contender.name)
    measures = [_measure(bench, c, c.name, c.start_loop) for c in available]
    for contender in available:
        if isinstance(contender, Yamlsched):
            measures.append(_measure(bench, contender, "yamlsched work", contender.start_once))
    alternate(bench.repeat * bench.sizes.starts, *measures)


def _measure(
    bench: Bench,
    contender: Contender,
    name: str,
    start: Callable[[str, Path], subprocess.Popen[str]],
) -> Callable[[], None]:
    def measure() -> None:
        file = bench.folder / "delays"
        file.unlink(missing_ok=True)
        with bench.database() as dsn:
            contender.prepare(dsn, 0)
            try:
                if getattr(contender, "polls_own_jobs_only", False):
                    raise NotMeasured("jobs of another process do not wake it")
                contender.send(dsn, 1, 0)
                started = time.time()
                worker = start(dsn, file)
            except NotMeasured as error:
                bench.not_measured(PART, str(error), CASE, name)
                return
            try:
                while not file.exists() or not file.stat().st_size:
                    if time.time() - started > TIMEOUT_SECONDS:
                        bench.not_measured(PART, "the job was not executed in time", CASE, name)
                        return
                    time.sleep(0.005)
            finally:
                stop(worker)
        # the handler writes to the file, and nothing else does
        bench.add(
            PART, CASE, name, "ms", (file.stat().st_mtime - started) * 1000, more_is_better=False
        )

    return measure
