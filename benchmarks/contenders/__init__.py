"""The contenders. Each peer is a script with these verbs:

    prepare COUNT            create its tables, and enqueue COUNT jobs that do nothing
    work CONCURRENCY MS      execute everything that is due; handlers sleep MS; print {"runs", "first", "last"} as JSON:
                             the number of runs, the start of the first handler and the end of the last
    loop FILE                work until SIGTERM; the handler appends its delay, in microseconds, to FILE
    send COUNT GAP_MS        enqueue COUNT jobs for ``loop``, one each GAP_MS, each with the time of its enqueue

With BENCH_FAILS, the handlers of ``work`` raise: see common.py.
The database is in BENCH_URL. The scripts share the module ``common``.
"""

from __future__ import annotations

from benchmarks.contenders.base import Contender, Drained, NotMeasured, Script
from benchmarks.contenders.yamlsched_ import Yamlsched

ALL: list[Contender] = [
    Yamlsched(),
    Script("bare loop", "bare_loop.py", "one connection, batches of 1,000, handler called in the loop, rows kept"),
    Script("graphile-worker", "graphile.cjs", "24 jobs at once, local queue of 500, outcomes batched; rows deleted",
           needs="npm", once=["node", "{here}/graphile.cjs", "once"]),
    Script("pg-boss", "pgboss.cjs", "fetch and complete in batches of 1,000; rows kept", needs="npm",
           once=["node", "{here}/pgboss.cjs", "once"]),
    Script("pgqueuer", "pgqueuer_.py", "asyncpg, uvloop, batches of 500; rows deleted, log kept", needs="pip",
           once=["{peers}/venv/bin/python", "{here}/pgqueuer_.py", "once"]),
    Script("chancy", "chancy_.py", "async executor, 500 at once, eager polling; rows kept", needs="pip",
           max_jobs=5_000),
    Script("apscheduler", "apscheduler_.py", "SQLAlchemy job store, 20 threads; rows deleted", needs="pip",
           max_jobs=2_000, single_worker=True, polls_own_jobs_only=True),
    Script("procrastinate", "procrastinate_.py", "20 at once; rows kept", needs="pip", max_jobs=2_000,
           once=["{peers}/venv/bin/python", "{here}/procrastinate_.py", "once"]),
    Script("dbos", "dbos_.py", "workflows on a queue, 100 at once; rows kept", needs="pip", max_jobs=1_000,
           single_worker=True),
]  # fmt: skip

__all__ = ["ALL", "Contender", "Drained", "NotMeasured", "Script"]
