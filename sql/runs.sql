-- Statements about running runs. Where an index must bound a scan, "now" is a scalar sub-select: it is computed once,
-- and the index takes it as its end. A sub-select in `where` asks a job's definition row by row: a join would leave
-- the planner the choice of a full scan.

-- name: claim_waiting
-- Take what `claim` takes most often, and nothing else: runs that may execute side by side and have no worker. It goes
-- on behind (`past_run_at`, `past_id`), where the last one ended, and does not step again over what is in somebody's
-- hands, or finished and still in the index because some old transaction might look at it. Answers with where it ended
-- itself in the last two columns.
-- The condition is one `case`, which the planner expects to hold for half of the rows: it knows too little about its
-- parts, and would read and sort all that is due. The lock is on the version that is read: a row that has moved on is
-- left.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), picked as materialized (
    select w.ctid, w.run_at, w.id
    from yamlsched.job_runs w
    where w.namespace = %(namespace)s and w.finished_at is null and not w.exclusive
      and w.run_at <= (select c.now from clock c)
      and (w.run_at, w.id) > (%(past_run_at)s::timestamptz, %(past_id)s::bigint)
      and case when w.status = 'running' or w.definition_id > %(newest)s::bigint
                    or w.definition_id in (select unnest(%(others)s::bigint[])) then false
               when w.attempts >= w.max_attempts then false   -- edited by hand: `claim` marks it dead
               else w.definition_id not in (
                    select d.id from yamlsched.job_definitions d
                    where d.namespace = %(namespace)s
                      and (not d.enabled or d.retired_at is not null or d.paused_at is not null)
                      and (not d.enabled or d.retired_at is not null
                           or coalesce(d.paused_until > (select c.now from clock c), true))) end
    order by w.run_at, w.id
    limit %(limit)s
    for no key update skip locked
)
update yamlsched.job_runs r
set status = 'running', attempts = r.attempts + 1, locked_by = %(token)s,
    locked_until = (select c.now from clock c)
                   + (select d.lease from yamlsched.job_definitions d where d.id = r.definition_id),
    held_until = null, started_at = (select c.now from clock c), updated_at = (select c.now from clock c)
where r.ctid = any (array(select p.ctid from picked p))
returning r.id, r.job_type, r.idempotency_key, r.scheduled_for::text, r.attempts, r.max_attempts, r.payload::text,
          r.scheduled_for is not null and r.scheduled_for < r.created_at - interval '2 minutes',
          date_part('epoch', r.locked_until - r.started_at), r.locked_by, r.prior_attempts,
          r.sessions_lost,
          (select p.run_at::text from picked p order by p.run_at desc, p.id desc limit 1),
          (select p.id from picked p order by p.run_at desc, p.id desc limit 1);

-- name: claim
-- Take due runs of every kind, in two ways. Runs that may execute side by side: oldest first. Slot runs of jobs with
-- overlap wait or skip, of which one executes at a time: of each job at most the run at its head, and none while one is
-- running under a lease, job by job from `after` on, so that no job starves. Two claimers may still meet on one job by
-- way of a run that was made meanwhile: the unique index refuses one of them (23505), which tries again.
-- Of both kinds together `limit` runs are taken, half and half where there are so many, so that neither starves the
-- other; of which kind the odd one is, is left to chance, so that this holds for claims of one run. The jobs that a
-- worker may claim are those up to `newest` without `others`: the few ids cost less than the many.
-- Neither what waits for its time nor what nobody may claim (paused, foreign, behind its head) may slow a claim down,
-- however much of it there is. So of each kind only the first that is due is read by time. Only if that is not all
-- that is due, and is not enough, an index is walked from job to job: `jobs` for heads; `around` for the others, from a
-- random job on, so that none starves.
-- A run whose lease is over is taken from its worker, which costs the attempt; after its last attempt it is marked
-- dead. So is a waiting run without attempts left, which only an edit by hand can make.
-- Answers with rows of four kinds: claimed, lost (the attempts that are given up), dead, and one row `cut` if the front
-- was not all that is due and not enough.
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now, (random() < 0.5)::int as odd,
           floor(random() * %(newest)s::bigint)::bigint as start
), due_exclusive as materialized (
    select r.definition_id
    from yamlsched.job_runs r
    where r.namespace = %(namespace)s and r.finished_at is null and r.exclusive
      and r.run_at <= (select c.now from clock c)
    order by r.run_at, r.definition_id
    limit %(limit)s + 1000
), few_jobs as materialized (
    select distinct u.definition_id as id
    from due_exclusive u
    where u.definition_id > %(after)s and (select count(*) from due_exclusive) < %(limit)s + 1000
    order by 1
), all_jobs (id, run_at) as (
    (select r.definition_id, r.run_at from yamlsched.job_runs r
     where (select count(*) from due_exclusive) = %(limit)s + 1000
       and r.namespace = %(namespace)s and r.finished_at is null and r.exclusive and r.definition_id > %(after)s
     order by r.definition_id, r.run_at limit 1)
    union all
    select r.definition_id, r.run_at
    from all_jobs j
    cross join lateral (
        select r.definition_id, r.run_at from yamlsched.job_runs r
        where r.namespace = %(namespace)s and r.finished_at is null and r.exclusive and r.definition_id > j.id
        order by r.definition_id, r.run_at limit 1
    ) r
), heads as materialized (
    select coalesce(running.id, waiting.id) as id
    from (select f.id from few_jobs f
          union all
          select a.id from all_jobs a where a.run_at <= (select c.now from clock c)) j
    left join lateral (
        select r.id, r.locked_until < (select c.now from clock c) as is_over, r.attempts >= r.max_attempts as is_last
        from yamlsched.job_runs r where r.exclusive_of = j.id
        offset 0                          -- not to be joined in another order: the walk's order is what `after` means
    ) running on true
    left join lateral (
        select r.id from yamlsched.job_runs r
        where running.id is null
          and (select h.id from yamlsched.job_runs h
               where h.definition_id = j.id and h.held_until >= (select c.now from clock c) and h.exclusive
               limit 1) is null
          and r.namespace = %(namespace)s and r.definition_id = j.id and r.finished_at is null and r.exclusive
          and r.run_at <= (select c.now from clock c)
          and (r.status <> 'running' or r.locked_until < (select c.now from clock c))
        order by r.run_at, r.id limit 1
    ) waiting on true
    where (running.is_over or waiting.id is not null)
      and (select d.enabled and d.retired_at is null
                  and (d.paused_at is null or d.paused_until <= (select c.now from clock c))
                  and d.id <= %(newest)s and d.id not in (select unnest(%(others)s::bigint[]))
                  or coalesce(running.is_last, false)
           from yamlsched.job_definitions d where d.id = j.id)
    limit %(limit)s
), from_heads as materialized (
    select r.id, r.status = 'running' as lost, r.attempts >= r.max_attempts as is_last,
           r.attempts, r.locked_by, r.started_at, r.job_type, r.idempotency_key
    from yamlsched.job_runs r
    where r.id = any (array(select h.id from heads h))
      -- asked again of the locked row: it may have been claimed, finished and put off since the walk
      and case when r.status = 'running' then r.locked_until < (select c.now from clock c)
               else r.finished_at is null and r.run_at <= (select c.now from clock c) end
    for no key update of r skip locked
), front as materialized (
    -- the first run that is not read by time; none if that is all that is due
    select r.run_at, r.id
    from yamlsched.job_runs r
    where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive
      and r.run_at <= (select c.now from clock c)
    order by r.run_at, r.id
    offset %(limit)s + 32 limit 1
), from_front as materialized (
    select r.id, r.status = 'running' as lost, r.attempts >= r.max_attempts as is_last,
           r.attempts, r.locked_by, r.started_at, r.job_type, r.idempotency_key
    from yamlsched.job_runs r
    where r.namespace = %(namespace)s
      and r.finished_at is null
      and not r.exclusive
      -- one bound, in place of two: PostgreSQL 18 ends the scan at one of them only
      and (r.run_at, r.id) <= (coalesce((select f.run_at from front f), (select c.now from clock c)),
                               coalesce((select f.id - 1 from front f), 9223372036854775807))
      and (r.status <> 'running' or r.locked_until < (select c.now from clock c))
      and (select d.enabled and d.retired_at is null
                  and (d.paused_at is null or d.paused_until <= (select c.now from clock c))
                  and d.id <= %(newest)s and d.id not in (select unnest(%(others)s::bigint[]))
                  or r.status = 'running' and r.attempts >= r.max_attempts
           from yamlsched.job_definitions d where d.id = r.definition_id)
    order by r.run_at, r.id
    limit greatest((%(limit)s + 1 - (select c.odd from clock c)) / 2, %(limit)s - (select count(*) from heads))
    for no key update of r skip locked
), cut as materialized (
    select greatest((%(limit)s + 1 - (select c.odd from clock c)) / 2, %(limit)s - (select count(*) from heads))
           - (select count(*) from from_front) as missing
    from front f
), around (id, is_again) as (
    select c.start, false from clock c where (select u.missing from cut u) > 0
    union all
    select n.id, n.is_again
    from around a
    cross join lateral (
        (select r.definition_id as id, a.is_again from yamlsched.job_runs r
         where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive and r.definition_id > a.id
           and (not a.is_again or r.definition_id < (select c.start from clock c))
         order by r.definition_id limit 1)
        union all
        (select r.definition_id, true from yamlsched.job_runs r
         where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive
           and not a.is_again and r.definition_id < (select c.start from clock c)
         order by r.definition_id limit 1)
        limit 1
    ) n
), from_around as materialized (
    select r.id, r.lost, r.is_last, r.attempts, r.locked_by, r.started_at, r.job_type, r.idempotency_key
    from around a
    cross join lateral (
        select r.id, r.status = 'running' as lost, r.attempts >= r.max_attempts as is_last,
               r.attempts, r.locked_by, r.started_at, r.job_type, r.idempotency_key
        from yamlsched.job_runs r
        where (select d.enabled and d.retired_at is null
                      and (d.paused_at is null or d.paused_until <= (select c.now from clock c))
                      and d.id <= %(newest)s and d.id not in (select unnest(%(others)s::bigint[]))
               from yamlsched.job_definitions d where d.id = a.id)
          and r.namespace = %(namespace)s and r.definition_id = a.id and r.finished_at is null and not r.exclusive
          and r.run_at <= (select c.now from clock c)
          and (r.run_at, r.id) >= ((select f.run_at from front f), (select f.id from front f))
          and (r.status <> 'running' or r.locked_until < (select c.now from clock c))
        order by r.run_at, r.id
        limit (select u.missing from cut u)
        for no key update skip locked
    ) r
    limit (select u.missing from cut u)
), from_others as materialized (
    select f.* from from_front f union all select a.* from from_around a
), picked as materialized (
    (select h.* from from_heads h
     limit greatest((%(limit)s + (select c.odd from clock c)) / 2, %(limit)s - (select count(*) from from_others)))
    union all
    select o.* from from_others o
), lost as (
    insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error, error_type)
    select p.id, p.attempts, p.locked_by, p.started_at, (select c.now from clock c), 'lost its worker', 'LostWorker'
    from picked p where p.lost
    on conflict (run_id, attempt) do nothing
), buried as (
    update yamlsched.job_runs r
    set status = 'dead', locked_until = null, exclusive_of = null, held_until = null,
        finished_at = (select c.now from clock c), dead_at = (select c.now from clock c),
        failed_at = (select c.now from clock c), updated_at = (select c.now from clock c),
        last_error = case when r.status = 'running' then 'lost its worker'
                          else 'no attempts are left: attempts or max_attempts was edited by hand' end,
        error_type = case when r.status = 'running' then 'LostWorker' else 'AttemptsExhausted' end
    where r.id = any (array(select p.id from picked p where p.is_last))
    returning r.id, r.namespace, r.definition_id, r.exclusive, r.job_type, r.idempotency_key, r.attempts,
              r.max_attempts, r.finished_at, r.locked_by
), reports as (
    insert into yamlsched.job_runs (namespace, definition_id, job_type, idempotency_key, run_at, max_attempts)
    select b.namespace, b.definition_id, b.job_type, yamlsched.on_dead_key(b.namespace, b.id, b.attempts), b.finished_at,
           (select d.max_attempts from yamlsched.job_definitions d where d.id = b.definition_id)
    from buried b
    where (select d.on_dead is not null from yamlsched.job_definitions d where d.id = b.definition_id)
      and coalesce(b.idempotency_key, '') not like 'on\_dead:%%'
    on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing
), claimed as (
    update yamlsched.job_runs r
    set status = 'running', attempts = r.attempts + 1, locked_by = %(token)s,
        exclusive_of = case when r.exclusive then r.definition_id end, held_until = null,
        locked_until = (select c.now from clock c)
                       + (select d.lease from yamlsched.job_definitions d where d.id = r.definition_id),
        started_at = (select c.now from clock c), updated_at = (select c.now from clock c),
        failed_at = case when r.status = 'running' then (select c.now from clock c) else r.failed_at end,
        last_error = case when r.status = 'running' then 'lost its worker' else r.last_error end,
        error_type = case when r.status = 'running' then 'LostWorker' else r.error_type end
    where r.id = any (array(select p.id from picked p where not p.is_last))
    returning r.id, r.definition_id, r.exclusive, r.job_type, r.idempotency_key, r.scheduled_for, r.attempts,
              r.max_attempts, r.payload, r.created_at, r.locked_until, r.started_at, r.locked_by, r.prior_attempts,
              r.sessions_lost
)
select 'claimed' as kind, (select count(*) from heads) as heads, c.exclusive, c.definition_id,
       c.id, c.job_type, c.idempotency_key, c.scheduled_for::text, c.attempts, c.max_attempts, c.payload::text,
       c.scheduled_for is not null and c.scheduled_for < c.created_at - interval '2 minutes',
       date_part('epoch', c.locked_until - c.started_at), c.locked_by, c.prior_attempts, c.sessions_lost
from claimed c
union all
select 'dead', (select count(*) from heads), b.exclusive, b.definition_id,
       b.id, b.job_type, b.idempotency_key, null, b.attempts, b.max_attempts, '{}', false, 0,
       b.locked_by, 0, 0
from buried b
union all
select 'lost', null, null, null, p.id, p.job_type, p.idempotency_key, null, p.attempts, 0, '{}', false, 0,
       p.locked_by, 0, 0
from picked p where p.lost
union all
select 'cut', null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from cut u where u.missing > 0;

-- name: heartbeat
-- Renew leases that are still ours, by the lease of their claim: their worker reckons with that, also if the answer is
-- lost and the job has a shorter one by now. A row that a handler's own transaction has locked is passed over: it is
-- about to finish. `is true` makes the planner hash the list instead of walking it once per row.
update yamlsched.job_runs r
set locked_until = coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => %(lease)s::float8),
    held_until   = case when r.held_until is not null
                        then coalesce(%(now)s::timestamptz, clock_timestamp())
                             + make_interval(secs => %(lease)s::float8) end
where r.id = any (array(
    select m.id from yamlsched.job_runs m
    where m.id = any (%(ids)s::bigint[])
      and m.status = 'running'
      and ((m.id, m.attempts, m.locked_by) in
           (select * from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]))) is true
    for no key update of m skip locked))
returning r.id;

-- name: ownership
-- What became of runs: ours still (also one that is locked just now), finished by our claim, or somebody else's.
select r.id, r.status, r.locked_by, r.attempts
from yamlsched.job_runs r
where r.id = any (%(ids)s::bigint[]);

-- name: succeed
-- Write successes without a result, each only if its run is still ours. The fence is the whole `where`.
update yamlsched.job_runs r
set status = 'succeeded', locked_until = null, exclusive_of = null, held_until = null,
    finished_at = coalesce(%(now)s::timestamptz, clock_timestamp()),
    updated_at = coalesce(%(now)s::timestamptz, clock_timestamp())
where r.id = any (%(ids)s::bigint[])
  and r.status = 'running'
  and ((r.id, r.attempts, r.locked_by) in
       (select * from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[]))) is true
returning r.id;

-- name: succeed_claim
-- The same for runs of one claim.
update yamlsched.job_runs r
set status = 'succeeded', locked_until = null, exclusive_of = null, held_until = null,
    finished_at = coalesce(%(now)s::timestamptz, clock_timestamp()),
    updated_at = coalesce(%(now)s::timestamptz, clock_timestamp())
where r.id = any (%(ids)s::bigint[]) and r.status = 'running' and r.locked_by = %(token)s and r.attempts = %(attempt)s;

-- name: succeed_in
-- The same for one run, as the last statement of its handler's own transaction. It runs with the handler's search_path:
-- every name and operator is qualified, so that nothing else takes its place.
update yamlsched.job_runs r
set status = 'succeeded', locked_until = null, exclusive_of = null, held_until = null,
    result = %(result)s::pg_catalog.jsonb,
    finished_at = pg_catalog.clock_timestamp(), updated_at = pg_catalog.clock_timestamp()
where r.id operator(pg_catalog.=) %(id)s::pg_catalog.int8
  and r.status operator(pg_catalog.=) 'running'::pg_catalog.text
  and r.locked_by operator(pg_catalog.=) %(token)s::pg_catalog.text
  and r.attempts operator(pg_catalog.=) %(attempt)s::pg_catalog.int4
returning r.id;

-- name: finish
-- Write any outcomes, each only if its run is still ours, with the failure's row in the audit trail and, when the run
-- is dead, the run that calls the job's on_dead. To be used for at most a hundred runs at once.
with outcome as materialized (
    select o.*, coalesce(%(now)s::timestamptz, clock_timestamp()) as now
    from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[], %(statuses)s::text[],
                %(delays)s::float8[], %(refunds)s::boolean[], %(errors)s::text[], %(error_types)s::text[],
                %(stacks)s::text[], %(results)s::text[], %(outputs)s::text[], %(sessions_lost)s::int[])
      as o (id, attempt, token, status, delay, refund, error, error_type, stack, result, output, sessions_lost)
), finished as (
    update yamlsched.job_runs r
    set status       = o.status,
        attempts     = r.attempts - o.refund::int,
        sessions_lost = o.sessions_lost,
        run_at       = case when o.delay is null then r.run_at else o.now + make_interval(secs => o.delay) end,
        locked_until = null,          -- locked_by stays: the last owner, and the proof for a lost commit answer
        exclusive_of = null,
        held_until   = null,
        finished_at  = case when o.status in ('succeeded', 'dead', 'cancelled') then o.now end,
        dead_at      = case when o.status = 'dead' then o.now end,
        failed_at    = case when o.error is null then r.failed_at else o.now end,
        last_error   = coalesce(o.error, r.last_error),
        error_type   = case when o.error is null then r.error_type else o.error_type end,
        last_stack   = case when o.error is null then r.last_stack else o.stack end,
        result       = coalesce(o.result::jsonb, r.result),
        updated_at   = o.now
    from outcome o
    where r.id = o.id
      and r.id = any (%(ids)s::bigint[])
      and r.status = 'running'
      and r.attempts = o.attempt
      and r.locked_by = o.token
    returning r.id, r.namespace, r.definition_id, r.job_type, r.idempotency_key, r.status, r.run_at,
              r.started_at, o.attempt, o.token, o.error, o.error_type as type, o.stack, o.output, o.now
), failures as (
    insert into yamlsched.job_failures
        (run_id, attempt, worker, started_at, failed_at, error, error_type, stack, output)
    select f.id, f.attempt, f.token, f.started_at, f.now, f.error, f.type, f.stack, f.output
    from finished f where f.error is not null
    on conflict (run_id, attempt) do nothing
), reports as (
    insert into yamlsched.job_runs (namespace, definition_id, job_type, idempotency_key, run_at, max_attempts)
    select f.namespace, f.definition_id, f.job_type, yamlsched.on_dead_key(f.namespace, f.id, f.attempt), f.now,
           (select d.max_attempts from yamlsched.job_definitions d where d.id = f.definition_id)
    from finished f
    where f.status = 'dead'
      and (select d.on_dead is not null from yamlsched.job_definitions d where d.id = f.definition_id)
      and coalesce(f.idempotency_key, '') not like 'on\_dead:%%'
    on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing
)
select f.id, f.run_at from finished f;

-- name: release_claim
-- A claim whose answer was lost may have happened: nothing of it was begun. The claim's runs are looked for among the
-- unfinished ones, of which each kind has its own index.
update yamlsched.job_runs r
set status = 'queued', attempts = r.attempts - 1, locked_until = null, exclusive_of = null, held_until = null,
    updated_at = coalesce(%(now)s::timestamptz, clock_timestamp())
where r.id = any (array(
    select o.id from yamlsched.job_runs o
    where o.namespace = %(namespace)s and o.finished_at is null and not o.exclusive
      and o.status = 'running' and o.locked_by = %(token)s
    union all
    select o.id from yamlsched.job_runs o
    where o.namespace = %(namespace)s and o.finished_at is null and o.exclusive
      and o.status = 'running' and o.locked_by = %(token)s))
  and r.status = 'running' and r.locked_by = %(token)s
returning r.id;

-- name: scope
-- What a worker may claim is what its own file maps to a handler: the jobs up to `newest`, but the `others`. A job that
-- another host's file adds later has a greater id.
select coalesce(max(d.id), 0) as newest,
       coalesce(array_agg(d.id) filter (where n.name is null), '{}') as others
from yamlsched.job_definitions d
left join (select distinct u.name from unnest(%(names)s::text[]) as u (name)) n on n.name = d.job_type
where d.namespace = %(namespace)s;

-- name: due
-- How many runs are due, counted up to a bound: for the eyes of who watches.
select count(*) as runs from (
    (select r.id from yamlsched.job_runs r
     where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive
       and r.run_at <= clock_timestamp() and r.status <> 'running' limit %(most)s)
    union all
    (select r.id from yamlsched.job_runs r
     where r.namespace = %(namespace)s and r.finished_at is null and r.exclusive
       and r.run_at <= clock_timestamp() and r.status <> 'running' limit %(most)s)
) d;

-- name: listen
-- Enqueues and syncs notify this channel, with the namespace.
listen yamlsched;

-- name: dead_run
-- The run that is handed to on_dead.
select r.id, r.job_type, r.idempotency_key as key, r.scheduled_for, r.attempts as attempt, r.max_attempts,
       r.payload::text as payload, r.last_error, r.error_type, r.last_stack
from yamlsched.job_runs r
where r.id = %(id)s;
