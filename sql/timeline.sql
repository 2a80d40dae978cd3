-- What happened to a job over time. Every statement reads a bounded number of rows, however many
-- runs have finished.

-- name: days
-- For each job and each span of its time zone, the ends of its runs: those that died, those that
-- succeeded after a failed attempt, and whether any succeeded; and why slots were skipped. At most
-- `limit` runs of each kind are read.
select d.job_type, s.nth::integer as nth,
       dead.runs as dead, tried.retried, tried.retrying,
       coalesce(ended.succeeded, false) as succeeded, coalesce(ended.cancelled, false) as cancelled,
       coalesce(gap.reasons, '{}') as reasons
from unnest(%(jobs)s::text[], %(zones)s::text[]) as j (job_type, timezone)
join yamlsched.job_definitions d on d.namespace = %(namespace)s and d.job_type = j.job_type
join unnest(%(span_zones)s::text[], %(nths)s::int[], %(starts)s::timestamptz[],
    %(ends)s::timestamptz[])
    as s (timezone, nth, start_at, end_at) on s.timezone = j.timezone
cross join lateral (
    select count(*)::integer as runs
    from (select from yamlsched.job_runs r
          where r.definition_id = d.id and r.dead_at >= s.start_at and r.dead_at < s.end_at
          limit %(limit)s) x
) dead
cross join lateral (
    select (count(*) filter (where x.status = 'succeeded'))::integer as retried,
           (count(*) filter (where x.status in ('failed', 'queued',
               'running')))::integer as retrying
    from (select r.status from yamlsched.job_runs r
          where r.definition_id = d.id and r.failed_at >= s.start_at and r.failed_at < s.end_at
          limit %(limit)s) x
) tried
cross join lateral (
    select bool_or(x.status = 'succeeded') as succeeded,
           bool_or(x.status = 'cancelled') as cancelled
    from (select r.status from yamlsched.job_runs r
          where r.definition_id = d.id and r.finished_at >= s.start_at and r.finished_at < s.end_at
          limit %(limit)s) x
) ended
cross join lateral (
    select array_agg(distinct x.reason order by x.reason) as reasons
    from (select g.reason from yamlsched.skipped_slots g
          where g.definition_id = d.id and g.last_slot >= s.start_at and g.first_slot < s.end_at
          order by g.last_slot
          limit %(limit)s) x
) gap
order by d.job_type, s.nth;

-- name: runs_of_slots
-- The runs of slots; and with `is_span` those of a former cron expression between them, the newest.
select r.id
from yamlsched.job_runs r
where r.definition_id = %(id)s and r.scheduled_for = any (%(slots)s)
union
(select r.id
 from yamlsched.job_runs r
 where %(is_span)s and r.definition_id = %(id)s
   and r.scheduled_for > %(start)s and r.scheduled_for <= %(end)s
 order by r.scheduled_for desc
 limit %(limit)s);

-- name: pruned
-- The runs of slots of which only the keys are left.
select u.scheduled_for as slot, u.run_id, u.pruned_at
from yamlsched.used_keys u
where u.namespace = %(namespace)s and u.idempotency_key = any (%(keys)s)
  and u.job_type = %(job_type)s
  and u.scheduled_for is not null;

-- name: gaps
-- The gaps of a span, oldest first.
select g.first_slot, g.last_slot, g.slots, g.reason, g.recorded_at, g.detail
from yamlsched.skipped_slots g
where g.definition_id = %(id)s and g.last_slot >= %(start)s and g.first_slot <= %(end)s
order by g.last_slot
limit %(limit)s;

-- name: open_slot
-- The earliest unfinished run that the slots of a job wait for.
select o.id, o.scheduled_for
from yamlsched.open_runs o
where o.namespace = %(namespace)s and o.definition_id = %(id)s and o.exclusive
order by o.scheduled_for
limit 1;

-- name: durations
-- How long the successful attempts of jobs took that ended in [since, until): of each job the
-- newest `limit` runs are read.
select d.job_type, d.timezone, count(*)::integer as runs,
       percentile_cont(0.5) within group (order by r.took) as usual,
       percentile_cont(0.95) within group (order by r.took) as p95,
       max(r.took) as longest, (array_agg(r.took order by r.finished_at desc))[1] as last,
       (array_agg(r.id order by r.took desc))[1] as longest_id
from yamlsched.job_definitions d
cross join lateral (
    select r.id, r.finished_at, r.finished_at - r.started_at as took, r.status
    from yamlsched.job_runs r
    where r.definition_id = d.id and r.finished_at >= %(since)s and r.finished_at < %(until)s
    order by r.finished_at desc
    limit %(limit)s
) r
where d.namespace = %(namespace)s and (%(jobs)s::text[] is null or d.job_type = any (%(jobs)s))
  and d.retired_at is null and r.status = 'succeeded' and r.took is not null
group by d.job_type, d.timezone
order by d.job_type;

-- name: latest
-- The newest runs of jobs that have ended, newest first.
select d.job_type, r.id, r.status, r.attempts, r.started_at, r.finished_at, r.error_type,
       left(r.last_error, 100) as last_error
from yamlsched.job_definitions d
cross join lateral (
    select r.*
    from yamlsched.job_runs r
    where r.definition_id = d.id and r.finished_at is not null
    order by r.finished_at desc
    limit %(limit)s
) r
where d.namespace = %(namespace)s and d.job_type = any (%(jobs)s)
order by d.job_type, r.finished_at desc, r.id desc;
