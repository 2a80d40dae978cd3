"""The reference: psycopg with the same guarantees. A lease, a fence, rows kept; nothing else.

One connection; claims and finishes alternate. The handler is called in this process, so its crash ends the worker.
"""

import time
import uuid

import psycopg
from common import ATTEMPTS, URL, HandlerCalls, serve

BATCH = 1_000
TABLE = """
create table bare_jobs (
    id           bigint generated always as identity primary key,
    job_type     text not null,
    payload      jsonb not null,
    run_at       timestamptz not null default clock_timestamp(),
    status       text not null default 'queued',
    attempts     integer not null default 0,
    locked_by    text,
    locked_until timestamptz,
    started_at   timestamptz,
    finished_at  timestamptz,
    last_error   text
) with (fillfactor = 70);
create index bare_jobs_open on bare_jobs (run_at, id) where finished_at is null;
"""
ENQUEUE = "insert into bare_jobs (job_type, payload) select 'noop', jsonb_build_object('n', n) from generate_series(1, %s) n"
CLAIM = """
update bare_jobs r
set status = 'running', attempts = attempts + 1, locked_by = %s, started_at = clock_timestamp(),
    locked_until = clock_timestamp() + interval '2 minutes'
where id = any (array(
    select id from bare_jobs
    where finished_at is null and run_at <= clock_timestamp()
      and (status <> 'running' or locked_until < clock_timestamp())
    order by run_at, id limit %s for no key update skip locked))
returning id, attempts, payload
"""
FINISH = """
update bare_jobs r
set status = 'succeeded', locked_until = null, finished_at = clock_timestamp()
where r.id = any (%s) and r.status = 'running'
  and ((r.id, r.attempts, r.locked_by) in (select * from unnest(%s::bigint[], %s::int[], %s::text[]))) is true
"""
FAIL = """
update bare_jobs r
set status = case when r.attempts < %s then 'failed' else 'dead' end, locked_until = null, last_error = %s,
    run_at = clock_timestamp(), finished_at = case when r.attempts >= %s then clock_timestamp() end
where r.id = any (%s) and r.status = 'running'
  and ((r.id, r.attempts, r.locked_by) in (select * from unnest(%s::bigint[], %s::int[], %s::text[]))) is true
"""


def prepare(count):
    with psycopg.connect(URL) as connection:
        connection.execute(TABLE)
        connection.execute(ENQUEUE, (count,))


def work(concurrency, ms):
    calls = HandlerCalls()

    def handler(payload):
        calls.start()
        if ms:
            time.sleep(ms / 1000)
        calls.end(payload["n"])

    with psycopg.connect(URL, autocommit=True, prepare_threshold=0) as connection:
        connection.execute("set plan_cache_mode = force_generic_plan")
        connection.execute("set jit = off")
        while True:
            token = str(uuid.uuid4())
            claimed = connection.execute(CLAIM, (token, BATCH)).fetchall()
            if not claimed:
                break
            failed = []
            for row in claimed:
                try:
                    handler(row[2])
                except ValueError:
                    failed.append(row)
            if failed:
                ids = [row[0] for row in failed]
                known = set(ids)
                claimed = [row for row in claimed if row[0] not in known]
                fence = (ids, ids, [row[1] for row in failed], [token] * len(ids))
                connection.execute(FAIL, (ATTEMPTS, "no route to host", ATTEMPTS, *fence))
            if claimed:
                ids = [row[0] for row in claimed]
                connection.execute(
                    FINISH, (ids, ids, [row[1] for row in claimed], [token] * len(ids))
                )
            calls.last = time.time()
    calls.print()


serve(prepare=prepare, work=work)
