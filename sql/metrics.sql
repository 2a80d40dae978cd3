-- What `metrics` reads besides the health of a namespace.

-- name: jobs
-- Every job: its unfinished runs by status, its dead runs that retention has not pruned, and the
-- values of its gauges. Instants are seconds since 1970, by date_part, which computes no numeric,
-- and strings, because they are only printed. Columns that are not listed are not computed: of the
-- latest failure only the index is read. `now` is the instant of the other metrics.
select h.definition_id, h.job_type, h.owner, h.enabled and h.retired_at is null as is_active,
       h.retired_at is null or h.queued + h.running + h.failed + coalesce(dead.runs,
           0) > 0 as has_runs,
       h.queued, h.running, h.failed, coalesce(dead.runs, 0) as dead,
       coalesce(extract(epoch from %(now)s - h.overdue_since), 0)::float8 as late_seconds,
       coalesce(extract(epoch from %(now)s - u.since), 0)::float8 as held_up_seconds,
       h.paused::integer as paused, h.failure_streak, h.attempt_streak::bigint as attempt_streak,
       h.failing,
       date_part('epoch', h.last_success_at)::text as last_success_at,
       date_part('epoch', h.last_failure_at)::text as last_failure_at,
       date_part('epoch', h.next_slot_at)::text as next_slot_at,
       case when not h.paused then extract(epoch
           from %(now)s - h.oldest_due_at)::float8 end as waits_seconds,
       h.last_end_at > %(now)s::timestamptz - interval '1 hour' as has_ended,
       h.last_failure_at >= %(now)s::timestamptz - interval '1 hour' as has_failed
from yamlsched.job_health h
left join (
    select r.definition_id, count(*) as runs
    from yamlsched.dead_runs r
    where r.namespace = %(namespace)s and not r.is_call
    group by r.definition_id
) dead on dead.definition_id = h.definition_id
left join (
    select r.definition_id, min(r.run_at) as since
    from yamlsched.job_runs r
    where r.namespace = %(namespace)s and r.unreleased and r.finished_at is null
      and r.run_at <= %(now)s
    group by r.definition_id
) u on u.definition_id = h.definition_id
where h.namespace = %(namespace)s
order by h.job_type;

-- name: repairs
select coalesce(max(n.repairs), 0)::float8 from yamlsched.namespaces n
where n.namespace = %(namespace)s;

-- name: ended
-- Runs that ended within the hour before `now`, by job, status and bucket: the number of bounds
-- that the duration of the latest attempt exceeds. Instants are whole microseconds; subtracting
-- half of one puts a duration equal to a bound into the bucket below it. Calls of on_dead are
-- counted by themselves. Only runs of `definitions` are read: the jobs of which any ended. `now` is
-- given, so that the planner sees that an hour is a small part of the history.
select e.job_type, e.status, e.is_call, width_bucket(e.took - 0.0000005,
    %(bounds)s::float8[]) as bucket,
       count(*) as runs, sum(e.took) as seconds
from (
    select d.job_type, r.status, coalesce(r.idempotency_key like 'on\_dead:%%', false) as is_call,
           coalesce(extract(epoch from r.finished_at - r.started_at), 0)::float8 as took
    from yamlsched.job_definitions d
    join yamlsched.job_runs r
      on r.definition_id = d.id and r.finished_at > %(now)s::timestamptz - interval '1 hour'
    where d.id = any (%(definitions)s)
) e
group by e.job_type, e.status, e.is_call, bucket
order by e.job_type, e.status, e.is_call, bucket;
