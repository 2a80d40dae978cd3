-- name: namespaces
-- The first namespaces that have jobs; without a `limit` all of them, and those of places.
(select distinct d.namespace from yamlsched.job_definitions d order by d.namespace limit %(limit)s)
union
select h.namespace from yamlsched.hosts h where %(limit)s::bigint is null
order by namespace;

-- name: namespace_of_file
-- The namespace of a file: the one that an option named in the latest tick of this place, else that
-- of its content, else that of this place.
select coalesce((
    select p.namespace
    from (
        select h.namespace, h.is_named
        from yamlsched.hosts h
        where h.host = %(host)s and h.path = %(path)s
        order by h.seen_at desc limit 1) p
    where p.is_named
), (
    select h.namespace
    from yamlsched.hosts h
    where not h.is_named and (h.hash = %(hash)s or h.host = %(host)s and h.path = %(path)s)
    order by (h.hash = %(hash)s) desc, h.seen_at desc limit 1
)) as namespace;

-- name: place
-- Whether an option names this namespace for this place, and the environment of the file in use.
select exists (
    select
    from yamlsched.hosts h
    where h.host = %(host)s and h.path = %(path)s and h.namespace = n.name and h.is_named
) as is_named, coalesce(i.environment, '') as environment
from (select %(namespace)s::text as name) n
left join yamlsched.namespaces i on i.namespace = n.name;

-- name: jobs
-- Every job of a namespace by name, retired ones included, with all columns: definitions.job knows
-- which of them make up a job.
select d.*
from yamlsched.job_definitions d
where d.namespace = %(namespace)s
order by d.job_type;

-- name: unfinished
-- The unfinished runs of these jobs.
select r.definition_id, count(*) as runs, count(*) filter (where r.status = 'running') as running
from yamlsched.job_runs r
where r.namespace = %(namespace)s and r.definition_id = any (%(ids)s::bigint[])
  and r.finished_at is null
group by r.definition_id;

-- name: id_range
select coalesce(min(r.id), 1) as oldest, coalesce(max(r.id), 0) as newest
from yamlsched.job_runs r;

-- name: indexed_ids
-- The ids of runs, among them those that a filter selects, through one index (`by`): of the
-- dead, of the unfinished, or by job and end (with the unfinished ones). Null if there are `limit`
-- or more: they would be of no use.
select case when count(*) < %(limit)s then coalesce(array_agg(x.id), '{}') end as ids
from (
    (select r.id from yamlsched.job_runs r
     where %(by)s = 'dead' and r.namespace = %(namespace)s and r.dead_at is not null
       and (%(definitions)s::bigint[] is null or r.definition_id = any (%(definitions)s))
     limit %(limit)s)
    union all
    (select o.id from yamlsched.open_runs o
     where %(by)s in ('open', 'end') and o.namespace = %(namespace)s
       and (%(definitions)s::bigint[] is null or o.definition_id = any (%(definitions)s))
     limit %(limit)s)
    union all
    (select e.id
     from yamlsched.job_definitions d
     cross join lateral (
         select r.id
         from yamlsched.job_runs r
         where r.definition_id = d.id
           and r.finished_at >= coalesce(%(since)s::timestamptz, '-infinity')
           and r.finished_at < coalesce(%(until)s::timestamptz, 'infinity')
         order by r.finished_at desc
         limit %(limit)s
     ) e
     where %(by)s = 'end' and d.namespace = %(namespace)s
       and (%(definitions)s::bigint[] is null or d.id = any (%(definitions)s))
     limit %(limit)s)
    limit %(limit)s
) x;

-- name: runs
-- The runs with an id in [low, high), newest or oldest first. The time of a run is when it ended,
-- else when its latest attempt started, else when it is due. A null parameter does not filter. The
-- planner sees the parameters: it reads the primary key in order, up to the limit, unless an index
-- of few runs has them, or there are `ids`, which may be far from the end at which it starts.
select r.id, r.job_type, r.idempotency_key as key, r.status, r.attempts, r.max_attempts,
       r.scheduled_for, r.run_at,
       (array['high', 'normal', 'low'])[r.priority] as priority,
       r.started_at, r.finished_at, r.created_at, r.locked_by as worker, r.last_error, r.error_type,
       r.hook, r.parent_id, yamlsched.waits_for(r) as waits
from yamlsched.job_runs r
where r.namespace = %(namespace)s
  and r.id >= %(low)s and r.id < %(high)s
  and (%(ids)s::bigint[] is null or r.id = any (%(ids)s))
  and (%(definitions)s::bigint[] is null or r.definition_id = any (%(definitions)s))
  and (%(statuses)s::text[] is null or r.status = any (%(statuses)s))
  -- the same for the indexes of dead and of unfinished runs
  and (not %(only_dead)s or r.dead_at is not null)
  and (not %(only_open)s or r.finished_at is null)
  and (%(since)s::timestamptz is null
      or coalesce(r.finished_at, r.started_at, r.run_at) >= %(since)s)
  and (%(until)s::timestamptz is null
      or coalesce(r.finished_at, r.started_at, r.run_at) < %(until)s)
  and (%(key)s::text is null or r.idempotency_key = %(key)s)
  and (%(key_like)s::text is null or r.idempotency_key like %(key_like)s)
  and (%(worker)s::text is null or r.locked_by like %(worker)s)
  and (%(error_type)s::text is null or coalesce(r.error_type, '') = %(error_type)s)
  and (%(error_like)s::text is null or (r.error_type is not null or r.last_error is not null)
       and concat_ws(': ', r.error_type, r.last_error) ilike %(error_like)s)
order by case when %(ids)s::bigint[] is null and %(oldest_first)s then r.id end,
         case when %(ids)s::bigint[] is null and not %(oldest_first)s then r.id end desc,
         case when %(ids)s::bigint[] is null then 0 when %(oldest_first)s then r.id + 0
             else -r.id end
limit %(limit)s;

-- name: run
-- `waits_since`: since when a run may be claimed that waits for no pause, no run of its job and no
-- other jobs.
select r.id, r.namespace, r.job_type, r.idempotency_key as key, r.status, r.attempts,
       r.max_attempts,
       (array['high', 'normal', 'low'])[r.priority] as priority, r.queue,
       r.scheduled_for, r.run_at, r.started_at, r.finished_at, r.failed_at, r.created_at,
       r.updated_at,
       r.locked_by as worker, r.locked_until, r.exclusive, r.payload, r.result, r.last_error,
       r.error_type, r.parent_id, r.hook, yamlsched.waits_for(r) as waits, r.revision,
       r.cpu_seconds, abs(r.peak_memory_bytes) as peak_memory_bytes,
       r.peak_memory_bytes < 0 as peak_memory_is_bound, d.handler, d.command,
       d.output ->> 'keep' as keeps_output,
       d.owner, d.timezone, d.enabled, d.retired_at, d.start_within,
       r.begun_at, r.late_at, r.finish_by,
       case when r.begun_at is null and r.scheduled_for is null and not r.by_hand
            then r.run_at + d.expires_after end as expires_at,
       r.finished_at is null and yamlsched.is_closed(d, clock_timestamp()) as is_closed,
       d.paused_at is not null and coalesce(d.paused_until > clock_timestamp(), true) as paused
from yamlsched.job_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
where r.id = %(id)s;

-- name: expired
-- The run of a job that expired last within a day, of the last thousand that have ended.
select e.id
from (select r.id, r.error_type from yamlsched.job_runs r
      where r.definition_id = %(id)s and r.finished_at > clock_timestamp() - interval '1 day'
      order by r.finished_at desc limit 1000) e
where e.error_type = 'Expired' limit 1;

-- name: failures
-- With `texts`, only the stacks of these attempts are read: those of others are empty, or null if
-- there is none.
select f.attempt, f.worker, f.started_at, f.failed_at, f.error, f.error_type,
       case when %(texts)s::integer[] is null or f.attempt = any (%(texts)s) then f.stack else
       left(f.stack, 0) end as stack,
       f.revision, f.cpu_seconds, abs(f.peak_memory_bytes) as peak_memory_bytes,
       f.peak_memory_bytes < 0 as peak_memory_is_bound
from yamlsched.job_failures f
where f.run_id = %(id)s
order by f.attempt;

-- name: outputs
-- What the attempts printed, in the order in which they ended; of those that run or were lost,
-- until their leases were renewed last. With `texts`, only the output of these attempts is read.
select o.attempt, o.worker, o.ended_at, o.omitted_bytes, o.is_final,
       case when %(texts)s::integer[] is null or o.attempt = any (%(texts)s) then o.output
           else '' end as output
from (select a.*, true as is_final from yamlsched.attempt_outputs a where a.run_id = %(id)s
      union all
      select a.*, false from yamlsched.running_outputs a where a.run_id = %(id)s) o
order by o.ended_at, o.attempt;

-- name: effects
-- An effect that was claimed by an attempt that has ended is in doubt, even before another attempt
-- reaches it.
select e.key,
       case when e.state = 'claimed' and not yamlsched.is_inside(e)
            then 'in_doubt' else e.state end as state,
       e.provider_key::text, e.attempt, e.result, e.claimed_at, e.doubted_at, e.done_at
from yamlsched.effects e
where e.run_id = %(id)s
order by e.id;

-- name: children
-- The runs that the run's handler enqueued, or those of its hooks; the dead ones first.
select r.id, r.job_type, r.idempotency_key as key, r.status
from yamlsched.job_runs r
where r.parent_id = %(id)s and (r.hook is not null) = %(of_hooks)s
order by r.status <> 'dead', r.id
limit %(limit)s;

-- name: chain
-- The first unfinished runs of a job, and the runs that these wait for, hop by hop, down to the
-- root.
with recursive hop (run_id, depth) as (
    (select r.id, 0
     from yamlsched.job_runs r
     where r.definition_id = %(id)s and r.finished_at is null
     order by r.run_at, r.id
     limit 3)
    union
    select u.run_id, h.depth + 1
    from hop h
    join yamlsched.awaits a on a.run_id = h.run_id and a.outcome is null
    cross join lateral yamlsched.awaited(a, clock_timestamp()) u
    join yamlsched.job_runs x on x.id = u.run_id and x.status <> 'succeeded'
    where u.state in ('waiting', 'dead', 'cancelled') and h.depth < %(limit)s
)
select h.run_id
from hop h
group by h.run_id
order by min(h.depth), h.run_id
limit %(limit)s;
