-- What happened to a job over time. Every statement reads a bounded number of rows, however many
-- runs have finished.

-- name: days
-- For each job and each span of its time zone, the ends of its runs: those that died, those that
-- succeeded after a failed attempt, and whether any succeeded; and why slots were skipped. At most
-- `limit` runs of each kind are read. Calls of on_dead do not count, as in job_health.
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
            and coalesce(r.idempotency_key not like 'on\_dead:%%', true)
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

-- name: job
-- What a job is, for its page.
select d.id, d.job_type, d.description, d.owner, d.tags, d.handler, d.command, d.schedule,
       d.timezone, d.max_attempts,
       d.backoff, d.timeout, d.overlap, d.catchup, d.catchup_window, d.spread, d.start_within,
       d.finish_within, d.on_dead, d.enabled,
       (array['high', 'normal', 'low'])[d.priority] as priority, d.queue,
       d.created_at, d.updated_at,
       d.after, array(select f.job_type from yamlsched.job_definitions f
                      where f.namespace = d.namespace and d.job_type = any (f.after)
                        and f.retired_at is null
                      order by f.job_type) as followers
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.job_type = %(job)s;

-- name: runs_of_slots
-- The runs of slots, found by the keys that these may have: a job may have millions of finished
-- runs, and no index is by slot. Those of a former cron expression have ended soon after their
-- slots: with `former`, they are found by their end.
select r.id
from yamlsched.job_runs r
where r.namespace = %(namespace)s and r.idempotency_key = any (%(keys)s)
  and r.definition_id = %(id)s
  and r.scheduled_for is not null
union
select r.id
from (
    select r.id, r.scheduled_for
    from yamlsched.job_runs r
    where %(former)s and r.definition_id = %(id)s
      and r.finished_at >= %(start)s and r.finished_at < %(end)s + interval '1 day'
    order by r.finished_at
    limit %(limit)s
) r
where r.scheduled_for >= %(start)s and r.scheduled_for < %(end)s;

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
where g.definition_id = %(id)s and g.last_slot >= %(start)s and g.first_slot < %(end)s
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
select d.job_type, r.id, r.status, r.attempts > 1 and r.status = 'succeeded' as retried,
       r.finished_at,
       case when r.status <> 'cancelled' then r.finished_at - r.started_at end as took,
       r.error_type, r.last_error
from yamlsched.job_definitions d
cross join lateral (
    select r.id, r.status, r.attempts, r.finished_at, r.started_at, r.error_type,
           left(r.last_error, 100) as last_error
    from yamlsched.job_runs r
    where r.definition_id = d.id and r.finished_at is not null
    order by r.finished_at desc
    limit %(limit)s
) r
where d.namespace = %(namespace)s and d.job_type = any (%(jobs)s)
order by d.job_type, r.finished_at desc, r.id desc;
