"""The cost of a sync with 10 to 100,000 definitions: nothing due, all due in the same minute, one job edited.

Measured inside one process with one session, so that start-up is not included. "Nothing due" is the poll of an idle
tick, and a complete sync. Each repetition is the next hour of a virtual clock. An edit includes reading the whole file.
A poll immediately after everything was due skips, once, the index entries that this left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from benchmarks.harness import Bench
from yamlsched import db as store
from yamlsched import log
from yamlsched.schedule.job import Job
from yamlsched.sync import hosts
from yamlsched.sync.converge import converge
from yamlsched.sync.files import ScheduleFile
from yamlsched.sync.flow import sync
from yamlsched.sync.hosts import poll
from yamlsched.timetable.cron import parse_cron

PART = "sync"
NOON = datetime(2026, 1, 14, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
FINISH = "update yamlsched.job_runs set status = 'succeeded', finished_at = now() where finished_at is null"


def run(bench: Bench) -> None:
    few, many = bench.sizes.definitions
    counts = sorted({few, 1_000, bench.sizes.jobs, many}) if many > 1_000 else [few, many]
    log.configure(verbosity=-2)
    for count in counts:
        with bench.database() as dsn, store.connect(dsn) as connection:
            store.migrations.migrate(connection)
            file = _apply(connection, count)
            bench.vacuum(dsn)
            now = NOON
            for _ in range(bench.repeat):
                idle = now + HOUR / 2
                _add(
                    bench,
                    count,
                    "nothing due, poll",
                    _seconds(partial(poll, connection, file, idle)),
                )
                _add(
                    bench,
                    count,
                    "nothing due, sync",
                    _seconds(partial(sync, connection, file, idle)),
                )
                now += HOUR
                seconds = _seconds(partial(sync, connection, file, now))
                case = f"{count:,} definitions, all due"
                bench.add(PART, case, "yamlsched", "s", seconds, more_is_better=False)
                bench.add(PART, case, "yamlsched", "runs/s", count / seconds)
                connection.execute(FINISH)
        _edits(bench, count)


def _edits(bench: Bench, count: int) -> None:
    for number in range(bench.repeat):
        with bench.database() as dsn, store.connect(dsn) as connection:
            store.migrations.migrate(connection)
            _apply(connection, count)
            edited = _file(count, f"edit {number}")
            seconds = _seconds(
                partial(sync, connection, replace(edited, is_manual=True), NOON + HOUR / 2)
            )
            _add(bench, count, "one job edited", seconds)


def _add(bench: Bench, count: int, what: str, seconds: float) -> None:
    bench.add(
        PART,
        f"{count:,} definitions, {what}",
        "yamlsched",
        "ms",
        seconds * 1000,
        more_is_better=False,
    )


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _file(count: int, description: str) -> ScheduleFile:
    first = f"  job_0: {{handler: a.b, cron: '0 * * * *', description: {description}}}\n"
    others = "".join(f"  job_{n}: {{handler: a.b, cron: '0 * * * *'}}\n" for n in range(1, count))
    return ScheduleFile(
        f"version: 1\njobs:\n{first}{others}".encode(), "/bench/schedules.yaml", "", "bench"
    )


def _apply(connection: Any, count: int) -> ScheduleFile:
    """Write the definitions as a sync of the file would, without the time to read 100,000 jobs."""
    file = _file(count, "first")
    cron = parse_cron("0 * * * *")
    jobs = {
        f"job_{n}": Job(f"job_{n}", cron=cron, handler="a.b", description="first" * (n == 0))
        for n in range(count)
    }
    with connection.transaction():
        converge(connection, "default", jobs, {}, NOON, recompute=False, is_behind=False)
        hosts.poll(connection, file, NOON, "default", is_valid=True)
        hosts.use(connection, file, "default", {}, None, NOON)
    return file
