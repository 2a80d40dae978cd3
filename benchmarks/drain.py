"""The rate at which 20,000 and 100,000 runs that do nothing are executed, by one worker and by two.

Each contender measures from the start of the first handler to the end of the last. For yamlsched the time runs from the
first claim to the last written outcome, by the database's timestamps. Start-up is not included.
The rate of the whole command, from start to exit, is measured as well. So is the rate of 20,000 runs that one run has
enqueued, without a job that waits for them and with one.
"""

from __future__ import annotations

import psycopg

from benchmarks.contenders.base import Contender, usable
from benchmarks.contenders.yamlsched_ import SCHEDULES, Yamlsched
from benchmarks.harness import Bench, alternate

PART = "drain"
FAN_OUT = (
    SCHEDULES
    + """\
  fan_out: {cron: "0 0 1 1 *", handler: bench_handlers.noop, payload: {n: 0}}
  summary: {after: [fan_out], handler: bench_handlers.noop, payload: {n: 0}}
"""
)
AWAITED = FAN_OUT.replace("[fan_out]", "[fan_out], after_enqueued: ended")
ENQUEUED = """
with run as (
    insert into yamlsched.job_runs (namespace, definition_id, job_type, run_at, max_attempts, scheduled_for, payload,
                                    unreleased, status, finished_at)
    select namespace, id, job_type, '2026-01-01', 5, '2026-01-01', payload, job_type = 'summary',
           case job_type when 'summary' then 'queued' else 'succeeded' end,
           case job_type when 'fan_out' then clock_timestamp() end
    from yamlsched.job_definitions where job_type in ('fan_out', 'summary') returning id, definition_id, job_type
), waits as (
    insert into yamlsched.awaits (run_id, definition_id, slot)
    select w.id, u.definition_id, '2026-01-01' from run w, run u where w.job_type = 'summary' and u.job_type = 'fan_out'
)
update yamlsched.job_runs r set parent_id = u.id from run u where u.job_type = 'fan_out' and r.job_type = 'noop'
"""


class FanOut(Yamlsched):
    """Runs that one run has enqueued, and a run of a job that follows it."""

    def prepare(self, dsn: str, count: int) -> None:
        super().prepare(dsn, count - 1)
        with psycopg.connect(dsn) as connection:
            connection.execute(ENQUEUED)


FAN_OUTS = [
    FanOut("enqueued by a run", schedules=FAN_OUT),
    FanOut("enqueued by a run, awaited", schedules=AWAITED),
]


def run(bench: Bench) -> None:
    available, missing = usable(bench.contenders)
    for contender, reason in missing:
        bench.not_measured(PART, reason, contender=contender.name)
    for count in bench.sizes.drain:
        for workers in (1, 2):
            alternate(
                bench.repeat,
                *[
                    _measure(bench, c, count, workers)
                    for c in available
                    if _is_measured(c, count, workers)
                ],
            )

    for workers in (1, 2):
        count = bench.sizes.drain[0]
        alternate(bench.repeat, *[_measure(bench, each, count, workers) for each in FAN_OUTS])


def _is_measured(contender: Contender, count: int, workers: int) -> bool:
    """Return whether to measure a contender: slow ones have fewer jobs, and are not measured on 100,000."""
    return (contender.max_jobs is None or count <= 20_000) and (
        workers == 1 or not contender.single_worker
    )


def _measure(bench: Bench, contender: Contender, count: int, workers: int):
    jobs = min(count, contender.max_jobs or count)
    case = f"{count:,} runs, {workers} worker{'s' if workers > 1 else ''}"
    note = contender.note + (f"; measured on {jobs:,} runs" if jobs < count else "")

    def measure() -> None:
        with bench.database() as dsn:
            contender.prepare(dsn, jobs)
            bench.vacuum(dsn)
            drained = contender.drain(dsn, workers)
            if drained.runs != jobs:
                raise RuntimeError(f"{contender.name} executed {drained.runs} of {jobs} jobs")
            bench.add(PART, case, contender.name, "jobs/s", drained.runs / drained.seconds, note)
            if isinstance(contender, Yamlsched):
                whole = jobs / contender.command_seconds
                bench.add(
                    PART, case, contender.name, "jobs/s whole command", whole, "from start to exit"
                )

    return measure
