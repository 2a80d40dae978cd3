-- Statements about running runs. Where an index must bound a scan, "now" is a scalar sub-select: it is computed once,
-- and the index takes it as its end. A sub-select in `where` asks a job's definition row by row: with a join, the
-- planner might choose a full scan. The first columns of what a claim returns are the fields of `ClaimedRun`.

-- name: due_levels
-- The priorities at which a claim may find something. A run that is being executed counts: its lease may be over. But with
-- `since`, the answer before, only runs that became due after it and have no worker count: where everything else that is
-- due may not be claimed, no claim is needed. `since` is two seconds early, for runs that are committed after their time.
with clock as materialized (
    select clock_timestamp() as now
)
select (c.now - interval '2 s')::text as since, array(
    select l.priority
    from (values (1::smallint), (2::smallint), (3::smallint)) l (priority)
    where coalesce((select true from yamlsched.job_runs r
                    where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive
                      and r.priority = l.priority and r.run_at <= (select c.now from clock c)
                      and r.run_at >= %(since)s::timestamptz
                      and (%(since)s::timestamptz = '-infinity'
                           or yamlsched.has_no_worker(r, (select c.now from clock c)))
                    order by r.run_at, r.id limit 1),
                   (select true from yamlsched.job_runs r
                    where r.namespace = %(namespace)s and r.finished_at is null and r.exclusive
                      and r.priority = l.priority and r.run_at <= (select c.now from clock c)
                      and r.run_at >= %(since)s::timestamptz
                      and (%(since)s::timestamptz = '-infinity'
                           or yamlsched.has_no_worker(r, (select c.now from clock c)))
                    order by r.run_at, r.definition_id limit 1))) as priorities
from clock c;

-- name: claim_waiting
-- The fast path: claim waiting runs of one priority that may execute side by side, and nothing else. With the `priority` 0
-- it is the highest one with due runs after `past_run_at`: a worker that is woken needs no other statement before this.
-- It starts after (`past_run_at`, `past_id`), where the last one stopped, so that it does not step again over runs that
-- are being executed, or that are finished and still in the index because an old transaction might see them. Its last
-- two columns say where it stopped.
-- The condition is one `case`, which the planner expects to be true for half of the rows: it knows too little about the
-- parts, and would read and sort all that is due. The lock is on the version that is read: a run that has changed since
-- is left out.
-- The jobs that a worker may claim are given as ranges of ids, `firsts` to `lasts`: few, since jobs that one file adds
-- have ids in a row.
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
), excluded (id) as materialized (
    -- in these ranges, the jobs whose runs may not be claimed
    select d.id
    from unnest(%(firsts)s::bigint[], %(lasts)s::bigint[]) g (first, last)
    cross join lateral (
        select d.id from yamlsched.job_definitions d
        where (d.namespace, d.id) >= (%(namespace)s, g.first) and (d.namespace, d.id) <= (%(namespace)s, g.last)
          and (not d.enabled or d.retired_at is not null or d.paused_at is not null)  -- the index has these
          and yamlsched.is_withheld(d, (select c.now from clock c))
        order by d.namespace, d.id  -- or the planner might prefer the primary key, which has all jobs
        limit 101
    ) d
    limit 101
), withheld as materialized (
    select count(*) > 100 as are_many from excluded  -- then each run's job is looked at, and not all of these
), level as materialized (
    select coalesce(nullif(%(priority)s::smallint, 0), (
        select l.priority
        -- sorted first, so that no level below the first one found is looked at
        from (select v.priority from (values (1::smallint), (2::smallint), (3::smallint)) v (priority)
              order by v.priority offset 0) l
        where coalesce((select true from yamlsched.job_runs r
                        where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive
                          and r.priority = l.priority and r.run_at <= (select c.now from clock c)
                          and (r.run_at, r.id) > (%(past_run_at)s::timestamptz, %(past_id)s::bigint)
                        order by r.run_at, r.id limit 1),
                       (select true from yamlsched.job_runs r
                        where r.namespace = %(namespace)s and r.finished_at is null and r.exclusive
                          and r.priority = l.priority and r.run_at <= (select c.now from clock c)
                          and r.run_at >= %(past_run_at)s::timestamptz
                        order by r.run_at, r.definition_id limit 1))
        order by l.priority
        limit 1)) as priority
), start as materialized (
    -- A large claim starts where no other worker claims: each run that it finds locked or claimed costs it time.
    select s.run_at, s.id
    from level l
    cross join lateral yamlsched.claim_start(
        %(namespace)s, l.priority, (select c.now from clock c), %(past_run_at)s::timestamptz, %(past_id)s::bigint, %(limit)s::integer) s
    where %(limit)s >= 100
), picked as materialized (
    select w.ctid, w.run_at, w.id
    from yamlsched.job_runs w
    where w.namespace = %(namespace)s and w.finished_at is null and not w.exclusive
      and w.priority = (select l.priority from level l)
      and w.run_at <= (select c.now from clock c)
      and (w.run_at, w.id) > (coalesce((select s.run_at from start s), %(past_run_at)s::timestamptz),
                              coalesce((select s.id from start s), %(past_id)s::bigint))
      and case when w.status = 'running' or w.attempts >= w.max_attempts    -- the latter: `claim` marks them dead
                    then false
               else w.definition_id <= (%(lasts)s::bigint[])[width_bucket(w.definition_id, %(firsts)s::bigint[])]
                    and case when (select h.are_many from withheld h)
                             then (select not yamlsched.is_withheld(d, (select c.now from clock c))
                                   from yamlsched.job_definitions d where d.id = w.definition_id)
                             else w.definition_id not in (select x.id from excluded x) end end
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
returning r.id, r.job_type, r.idempotency_key as key, r.scheduled_for::text, r.attempts as attempt, r.max_attempts,
          r.payload::text, r.scheduled_for is not null and r.scheduled_for < r.created_at - interval '2 minutes' as is_catchup,
          date_part('epoch', r.locked_until - r.started_at) as lease, r.locked_by, r.prior_attempts, r.sessions_lost,
          r.error_type, r.trace_context, r.priority,
          (select p.run_at::text from picked p order by p.run_at desc, p.id desc limit 1) as past_run_at,
          (select p.id from picked p order by p.run_at desc, p.id desc limit 1) as past_id;

-- name: claim
-- Claim due runs of one priority and of every kind, in two ways.
-- Side by side: runs that may execute beside others of their job, oldest first.
-- Exclusive: slot runs of jobs with overlap wait or skip, of which one executes at a time. Of each job at most the run
-- at its head is claimed, and none while another is running under a lease. The jobs are taken in order of their ids,
-- starting after `after`, so that no job starves. Two workers may still claim two runs of one job, if one of the runs
-- was created in between: the unique index rejects the second claim (23505), and its worker tries again.
-- Each kind gets half of `limit` where both have enough, so that neither starves the other. Chance decides which kind
-- gets the odd one, so that this holds for claims of one run. The jobs that a worker may claim are given as in
-- `claim_waiting`.
-- What may not be claimed (not due yet, paused, unknown here, behind its job's head) must not slow a claim down, however
-- many runs that are. So only the first due runs of each kind are read by time. If more are due, and these are not
-- enough, an index is walked from job to job, through the jobs that this worker may claim: `all_jobs` for exclusive runs,
-- `around` for the others. `around` starts at a random job, so that none starves. Runs that other workers hold are passed
-- over in the index: in a spike they are many, and each is looked at by every worker that claims.
-- A run whose lease is over is taken from its worker. The attempt is lost, and after the last attempt the run is dead.
-- A waiting run without attempts left, which only an edit by hand can create, is marked dead too.
-- Returns rows of these kinds: claimed; lost, the attempts whose lease was over; dead; one row `cut` if more runs were
-- due than were read by time, and those were not enough: what is claimable of these is taken too, so that only runs that
-- became due after `read_until` can follow; and one row `locked` if they would be enough, had not others locked them: what
-- follows these is found by `claim_waiting`.
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now, (random() < 0.5)::int as odd
), ranges (first, last) as materialized (
    select u.first, u.last from unnest(%(firsts)s::bigint[], %(lasts)s::bigint[]) u (first, last)
), excluded (id) as materialized (
    -- in these ranges, the jobs whose runs may not be claimed
    select d.id
    from ranges g
    cross join lateral (
        select d.id from yamlsched.job_definitions d
        where (d.namespace, d.id) >= (%(namespace)s, g.first) and (d.namespace, d.id) <= (%(namespace)s, g.last)
          and (not d.enabled or d.retired_at is not null or d.paused_at is not null)  -- the index has these
          and yamlsched.is_withheld(d, (select c.now from clock c))
        order by d.namespace, d.id  -- or the planner might prefer the primary key, which has all jobs
        limit 101
    ) d
    limit 101
), withheld as materialized (
    select count(*) > 100 as are_many from excluded  -- then each run's job is looked at, and not all of these
), resumed as materialized (
    -- the jobs whose pause is over
    select array_agg(p.id order by p.id) as ids
    from (select d.id from yamlsched.job_definitions d
          where d.paused_until is not null and (d.namespace, d.paused_until) > (%(namespace)s, '-infinity'::timestamptz)
            and (d.namespace, d.paused_until) <= (%(namespace)s, (select c.now from clock c))
            and d.enabled and d.retired_at is null
          order by d.namespace, d.paused_until
          offset 0) p
), due_exclusive as materialized (
    select r.definition_id
    from yamlsched.job_runs r
    where r.namespace = %(namespace)s and r.finished_at is null and r.exclusive and r.priority = %(priority)s
      and r.run_at <= (select c.now from clock c) and yamlsched.has_no_worker(r, (select c.now from clock c))
    order by r.run_at, r.definition_id
    limit least(%(limit)s, 500) + 500
), few_jobs as materialized (
    select distinct u.definition_id as id
    from due_exclusive u
    where u.definition_id > %(after)s and (select count(*) from due_exclusive) < least(%(limit)s, 500) + 500
    order by 1
), all_jobs (id) as (
    select w.id
    from ranges g
    cross join lateral (
        with recursive walk (position, id) as (
            select greatest(g.first, %(after)s + 1), null::bigint where (select count(*) from due_exclusive) = least(%(limit)s, 500) + 500
            union all
            select case when a.id > r.id then a.id else r.id + 1 end, case when a.id = r.id then r.id end
            from walk w
            cross join lateral (
                select r.definition_id as id from yamlsched.job_runs r
                where r.namespace = %(namespace)s and r.finished_at is null and r.exclusive
                  and r.definition_id >= w.position and r.definition_id <= g.last
                  and yamlsched.has_no_worker(r, (select c.now from clock c))
                order by r.definition_id limit 1
            ) r
            cross join lateral (
                -- the first job from there on that is not withheld
                select case when not (select h.are_many from withheld h) then r.id
                            else least((select d.id from yamlsched.job_definitions d
                                        where (d.namespace, d.id) >= (%(namespace)s, r.id)
                                          and (d.namespace, d.id) <= (%(namespace)s, g.last)
                                          and d.enabled and d.retired_at is null and d.paused_at is null
                                        order by d.namespace, d.id limit 1),
                                       (select e.ids from resumed e)[width_bucket(r.id - 1, (select e.ids from resumed e)) + 1])
                       end as id
                offset 0
            ) a
            where a.id is not null
        )
        select k.id from walk k where k.id is not null
    ) w
), heads as materialized (
    select coalesce(running.ctid, waiting.ctid) as ctid
    from (select f.id from few_jobs f
          union all
          select a.id from all_jobs a
          where (select r.run_at from yamlsched.job_runs r
                 where r.namespace = %(namespace)s and r.definition_id = a.id and r.finished_at is null and r.exclusive
                   and r.priority = %(priority)s
                 order by r.run_at limit 1) <= (select c.now from clock c)) j
    left join lateral (
        select r.ctid, r.priority = %(priority)s and r.locked_until < (select c.now from clock c) as is_over,
               r.attempts >= r.max_attempts as is_last
        from yamlsched.job_runs r where r.exclusive_of = j.id
        offset 0                          -- keeps the planner from changing the order of jobs, which `after` relies on
    ) running on true
    left join lateral (
        select r.ctid from yamlsched.job_runs r
        where running.ctid is null
          and (select h.id from yamlsched.job_runs h
               where h.definition_id = j.id and h.held_until >= (select c.now from clock c) and h.exclusive
               limit 1) is null
          and r.namespace = %(namespace)s and r.definition_id = j.id and r.finished_at is null and r.exclusive
          and r.priority = %(priority)s and r.run_at <= (select c.now from clock c) and yamlsched.has_no_worker(r, (select c.now from clock c))
        order by r.run_at, r.id limit 1
    ) waiting on true
    where (running.is_over or waiting.ctid is not null)
      and (j.id <= (%(lasts)s::bigint[])[width_bucket(j.id, %(firsts)s::bigint[])]
           and case when (select h.are_many from withheld h)
                then (select not yamlsched.is_withheld(d, (select c.now from clock c))
                      from yamlsched.job_definitions d where d.id = j.id)
                else j.id not in (select x.id from excluded x) end
           or coalesce(running.is_last, false))
    limit %(limit)s
), quotas as materialized (
    select greatest((%(limit)s + c.odd) / 2, %(limit)s - (select count(*) from heads)) as side_by_side from clock c
), from_heads as materialized (
    select r.ctid, r.id, r.definition_id, r.exclusive, r.status, r.attempts, r.max_attempts, r.locked_by, r.started_at,
           r.job_type, r.idempotency_key, r.scheduled_for, r.prior_attempts
    from yamlsched.job_runs r
    where r.ctid = any (array(select h.ctid from heads h))
      -- checked again on the locked row: it may have been claimed, finished or postponed since the walk
      and case when r.status = 'running' then r.locked_until < (select c.now from clock c)
               else r.finished_at is null and r.run_at <= (select c.now from clock c) end
    for no key update of r skip locked
), extent as materialized (
    -- How many runs are read by time. Some more than are asked for: to read some that may not be claimed is cheaper than
    -- the walk. Where the claim before has found many of those, there is a walk anyway.
    select %(limit)s + case when %(was_truncated)s then 0 else 32 end as count
), front as materialized (
    -- These, and the next one, where there is one. Runs that workers hold do not count: they come first in every large
    -- backlog, and are no more than the workers can hold.
    select r.ctid, r.run_at, r.id, row_number() over (order by r.run_at, r.id) > (select e.count from extent e) as is_next,
           r.definition_id <= (%(lasts)s::bigint[])[width_bucket(r.definition_id, %(firsts)s::bigint[])]
           and case when (select h.are_many from withheld h)
                then (select not yamlsched.is_withheld(d, (select c.now from clock c))
                      from yamlsched.job_definitions d where d.id = r.definition_id)
                else r.definition_id not in (select x.id from excluded x) end
           or r.status = 'running' and r.attempts >= r.max_attempts as is_claimable
    from yamlsched.job_runs r
    where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive and r.priority = %(priority)s
      and r.run_at <= (select c.now from clock c) and yamlsched.has_no_worker(r, (select c.now from clock c))
    order by r.run_at, r.id
    limit (select e.count + 1 from extent e)
), next as materialized (
    select f.run_at, f.id from front f where f.is_next
), from_front as materialized (
    -- checked again on the locked row, as above
    select r.ctid, r.id, r.definition_id, r.exclusive, r.status, r.attempts, r.max_attempts, r.locked_by, r.started_at,
           r.job_type, r.idempotency_key, r.scheduled_for, r.prior_attempts
    from yamlsched.job_runs r
    where r.ctid = any (array(select f.ctid from front f where f.is_claimable and not f.is_next))
      and case when r.status = 'running' then r.locked_until < (select c.now from clock c)
               else r.finished_at is null and r.run_at <= (select c.now from clock c) end
    order by r.run_at, r.id
    limit (select q.side_by_side from quotas q)
    for no key update of r skip locked
), start as materialized (
    select g.first + floor(random() * (least(g.last, %(newest)s::bigint) - g.first + 1))::bigint as start
    from (select 1 + floor(random() * cardinality(%(firsts)s::bigint[]))::int as nth) n
    join unnest(%(firsts)s::bigint[], %(lasts)s::bigint[]) with ordinality g (first, last, nth) on g.nth = n.nth
), claimable as materialized (
    -- Whether the front has as many runs as are asked for, but others have locked some of them. If the claim before has
    -- found many that may not be claimed, there is a walk anyway.
    select not %(was_truncated)s and count(*) >= (select q.side_by_side from quotas q)
           and (select count(*) from from_front) < (select q.side_by_side from quotas q, next) as are_locked
    from front f
    where f.is_claimable and not f.is_next
), cut as materialized (
    select q.side_by_side - (select count(*) from from_front) as missing
    from quotas q, next, claimable a
    where not a.are_locked
), laps (first, last) as materialized (
    -- the ranges from a random job on, then those before it
    select greatest(g.first, p.start), g.last from start p, ranges g where g.last >= p.start
    union all
    select g.first, least(g.last, p.start - 1) from start p, ranges g where g.first < p.start
), around (id) as (
    select w.id
    from laps g
    cross join lateral (
        with recursive walk (position, id) as (
            select g.first, null::bigint where (select u.missing from cut u) > 0
            union all
            select case when a.id > r.id then a.id else r.id + 1 end, case when a.id = r.id then r.id end
            from walk w
            cross join lateral (
                select r.definition_id as id from yamlsched.job_runs r
                where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive
                  and r.definition_id >= w.position and r.definition_id <= g.last
                order by r.definition_id limit 1
            ) r
            cross join lateral (
                -- the first job from there on that is not withheld
                select case when not (select h.are_many from withheld h) then r.id
                            else least((select d.id from yamlsched.job_definitions d
                                        where (d.namespace, d.id) >= (%(namespace)s, r.id)
                                          and (d.namespace, d.id) <= (%(namespace)s, g.last)
                                          and d.enabled and d.retired_at is null and d.paused_at is null
                                        order by d.namespace, d.id limit 1),
                                       (select e.ids from resumed e)[width_bucket(r.id - 1, (select e.ids from resumed e)) + 1])
                       end as id
                offset 0
            ) a
            where a.id is not null
        )
        select k.id from walk k where k.id is not null
    ) w
    where (select h.are_many from withheld h) or w.id not in (select x.id from excluded x)
), from_around as materialized (
    select r.*
    from around a
    cross join lateral (
        select r.ctid, r.id, r.definition_id, r.exclusive, r.status, r.attempts, r.max_attempts, r.locked_by, r.started_at,
               r.job_type, r.idempotency_key, r.scheduled_for, r.prior_attempts
        from yamlsched.job_runs r
        where r.finished_at is null and not r.exclusive
          -- whole rows: with `definition_id = a.id`, another index has the same order, and reads the runs of all jobs
          and (r.namespace, r.definition_id, r.priority, r.run_at, r.id)
              >= (%(namespace)s, a.id, %(priority)s::smallint, (select n.run_at from next n), (select n.id from next n))
          and (r.namespace, r.definition_id, r.priority, r.run_at)
              <= (%(namespace)s, a.id, %(priority)s::smallint, (select c.now from clock c))
          and yamlsched.has_no_worker(r, (select c.now from clock c))
        order by r.namespace, r.definition_id, r.priority, r.run_at, r.id
        limit (select u.missing from cut u)
        for no key update skip locked
    ) r
    limit (select u.missing from cut u)
), from_others as materialized (
    select f.* from from_front f union all select a.* from from_around a
), picked as materialized (
    select p.*, p.status = 'running' as is_lost, p.attempts >= p.max_attempts as is_last
    from ((select h.* from from_heads h
           limit greatest((%(limit)s + 1 - (select c.odd from clock c)) / 2,
                          %(limit)s - (select count(*) from from_others)))
          union all
          select o.* from from_others o) p
), lost as (
    insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error, error_type)
    select p.id, p.attempts, p.locked_by, p.started_at, (select c.now from clock c), %(lost_error)s, %(lost_type)s
    from picked p where p.is_lost
    on conflict (run_id, attempt) do nothing
), died as (
    update yamlsched.job_runs r
    set status = 'dead', locked_until = null, exclusive_of = null, held_until = null,
        finished_at = (select c.now from clock c), dead_at = (select c.now from clock c),
        failed_at = (select c.now from clock c), updated_at = (select c.now from clock c),
        last_error = case when r.status = 'running' then %(lost_error)s
                          else 'no attempts are left: attempts or max_attempts was edited by hand' end,
        error_type = case when r.status = 'running' then %(lost_type)s else 'AttemptsExhausted' end
    where r.ctid = any (array(select p.ctid from picked p where p.is_last))
    returning r.id, r.namespace, r.definition_id, r.idempotency_key, r.attempts, r.finished_at, r.trace_context
), on_dead_calls as (
    insert into yamlsched.job_runs (namespace, definition_id, job_type, idempotency_key, run_at, priority,
                                    max_attempts, trace_context)
    select b.namespace, d.id, d.job_type, yamlsched.on_dead_key(b.namespace, b.id, b.attempts), b.finished_at,
           d.priority, d.max_attempts, b.trace_context
    from died b
    cross join lateral (
        select j.id, j.job_type, j.priority, j.max_attempts, j.on_dead from yamlsched.job_definitions j
        where j.id = b.definition_id
        offset 0
    ) d
    where d.on_dead is not null and coalesce(b.idempotency_key, '') not like 'on\_dead:%%'
    on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing
), claimed as (
    update yamlsched.job_runs r
    set status = 'running', attempts = r.attempts + 1, locked_by = %(token)s,
        exclusive_of = case when r.exclusive then r.definition_id end, held_until = null,
        locked_until = (select c.now from clock c)
                       + (select d.lease from yamlsched.job_definitions d where d.id = r.definition_id),
        started_at = (select c.now from clock c), updated_at = (select c.now from clock c),
        failed_at = case when r.status = 'running' then (select c.now from clock c) else r.failed_at end,
        last_error = case when r.status = 'running' then %(lost_error)s else r.last_error end,
        error_type = case when r.status = 'running' then %(lost_type)s else r.error_type end
    where r.ctid = any (array(select p.ctid from picked p where not p.is_last))
    returning r.id, r.job_type, r.idempotency_key as key, r.scheduled_for::text, r.attempts as attempt, r.max_attempts,
              r.payload::text, r.scheduled_for is not null and r.scheduled_for < r.created_at - interval '2 minutes' as is_catchup,
              date_part('epoch', r.locked_until - r.started_at) as lease, r.locked_by, r.prior_attempts, r.sessions_lost,
              r.error_type, r.trace_context, r.exclusive, r.definition_id
)
select c.*, 'claimed' as kind, (select count(*) from heads) as heads, null as read_until
from claimed c
union all
select p.id, p.job_type, p.idempotency_key, p.scheduled_for::text, p.attempts, p.max_attempts, '{}', false, 0,
       p.locked_by, p.prior_attempts, 0, null, null,
       p.exclusive, p.definition_id, k.kind, (select count(*) from heads), null
from picked p
join lateral (values ('lost', p.is_lost), ('dead', p.is_last)) k (kind, holds) on k.holds
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, 'cut', null,
       (select c.now::text from clock c)
from cut u where u.missing > 0
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, 'locked', null, null
from claimable a where a.are_locked;

-- name: heartbeat
-- Renew leases, each only if its run is still ours. The duration is that of the claim, which the worker computes with,
-- also if the job has a shorter lease now. A row that a handler's own transaction has locked is skipped: it is about to
-- finish. `is true` makes the planner hash the list instead of reading it once per row.
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
-- What decides whose runs are: still ours (also while a row is locked), finished by our claim, or another worker's.
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
-- every name and operator is qualified, so that it cannot resolve to anything else.
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
-- Write outcomes of any kind, each only if its run is still ours; for a failed attempt also its row in the audit trail,
-- and for a dead run the run that calls the job's on_dead. Strings are sent in binary: as text, each is searched for what
-- has to be escaped.
with outcome as materialized (
    select o.*, coalesce(%(now)s::timestamptz, clock_timestamp()) as now
    from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)b::text[], %(statuses)b::text[],
                %(delays)s::float8[], %(refunds)s::boolean[], %(errors)b::text[], %(error_types)b::text[],
                %(stacks)b::text[], %(results)b::text[], %(outputs)b::text[], %(omitted)s::bigint[],
                %(sessions_lost)s::int[])
      as o (id, attempt, token, status, delay, refund, error, error_type, stack, result, output, omitted_bytes,
            sessions_lost)
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
      and r.status = 'running'
      and r.attempts = o.attempt
      and r.locked_by = o.token
    returning r.id, r.namespace, r.definition_id, r.idempotency_key, r.status, r.run_at, r.started_at,
              r.trace_context, o.attempt, o.token, o.error, o.error_type as type, o.stack, o.output, o.omitted_bytes, o.now
), failures as (
    insert into yamlsched.job_failures (run_id, attempt, worker, started_at, failed_at, error, error_type, stack)
    select f.id, f.attempt, f.token, f.started_at, f.now, f.error, f.type, f.stack
    from finished f where f.error is not null
    on conflict (run_id, attempt) do nothing
), outputs as (
    insert into yamlsched.attempt_outputs (run_id, attempt, worker, ended_at, omitted_bytes, output)
    select f.id, f.attempt, f.token, f.now, f.omitted_bytes, f.output
    from finished f where f.output is not null
    on conflict (run_id, attempt) do update
    set worker = excluded.worker, ended_at = excluded.ended_at, omitted_bytes = excluded.omitted_bytes,
        output = excluded.output
), on_dead_calls as (
    insert into yamlsched.job_runs (namespace, definition_id, job_type, idempotency_key, run_at, priority,
                                    max_attempts, trace_context)
    select f.namespace, d.id, d.job_type, yamlsched.on_dead_key(f.namespace, f.id, f.attempt), f.now,
           d.priority, d.max_attempts, f.trace_context
    from finished f
    cross join lateral (
        select j.id, j.job_type, j.priority, j.max_attempts, j.on_dead from yamlsched.job_definitions j
        where j.id = f.definition_id
        offset 0
    ) d
    where f.status = 'dead' and d.on_dead is not null and coalesce(f.idempotency_key, '') not like 'on\_dead:%%'
    on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing
)
select f.id, f.run_at from finished f;

-- name: keep_outputs
-- The outputs of attempts whose outcome is not written by `finish`: the run was cancelled, another claim has it, or the
-- handler's own transaction has finished it. No fence, because no run changes. What a later attempt of the same number
-- has printed stays.
insert into yamlsched.attempt_outputs (run_id, attempt, worker, ended_at, omitted_bytes, output)
select r.id, o.attempt, o.token, coalesce(%(now)s::timestamptz, clock_timestamp()), o.omitted_bytes, o.output
from unnest(%(ids)s::bigint[], %(attempts)s::int[], %(tokens)s::text[], %(omitted)s::bigint[], %(outputs)s::text[])
  as o (id, attempt, token, omitted_bytes, output)
join yamlsched.job_runs r on r.id = o.id
where o.output is not null
for key share of r  -- or a prune might leave the output
on conflict (run_id, attempt) do nothing;

-- name: running_under
-- What runs under a claim. Looked for among the unfinished runs, of which each kind has an index of its own.
select r.id, r.attempts as attempt, r.sessions_lost
from yamlsched.job_runs r
where r.namespace = %(namespace)s and r.finished_at is null and not r.exclusive
  and r.status = 'running' and r.locked_by = %(token)s
union all
select r.id, r.attempts, r.sessions_lost
from yamlsched.job_runs r
where r.namespace = %(namespace)s and r.finished_at is null and r.exclusive
  and r.status = 'running' and r.locked_by = %(token)s;

-- name: scope
-- A worker may claim the jobs that its own file maps to a handler: those up to `newest`, without the `others`. A job
-- that another host's file adds later has a greater id.
select coalesce(max(d.id), 0) as newest,
       coalesce(array_agg(d.id) filter (where n.name is null), '{}') as others
from yamlsched.job_definitions d
left join (select distinct u.name from unnest(%(names)s::text[]) as u (name)) n on n.name = d.job_type
where d.namespace = %(namespace)s;

-- name: due
-- How many runs are due, counted up to a limit: shown as progress.
select count(*) as runs
from (
    select r.id
    from (values (1::smallint), (2::smallint), (3::smallint)) l (priority)  -- so that the index bounds run_at
    cross join lateral (
        (select w.id from yamlsched.job_runs w
         where w.namespace = %(namespace)s and w.finished_at is null and not w.exclusive and w.priority = l.priority
           and w.run_at <= clock_timestamp() and w.status <> 'running' limit %(most)s)
        union all
        (select w.id from yamlsched.job_runs w
         where w.namespace = %(namespace)s and w.finished_at is null and w.exclusive and w.priority = l.priority
           and w.run_at <= clock_timestamp() and w.status <> 'running' limit %(most)s)
    ) r
    limit %(most)s
) d;

-- name: listen
-- Enqueues and syncs notify this channel; the payload is the namespace.
listen yamlsched;

-- name: dead_run
-- The dead run that a call of on_dead gets.
select r.id, r.job_type, r.idempotency_key as key, r.scheduled_for, r.attempts as attempt, r.max_attempts,
       r.payload::text as payload, r.last_error, r.error_type
from yamlsched.job_runs r
where r.id = %(id)s;
