-- What happened in a span of time, over all jobs. Every statement reads a bounded number of rows,
-- however long the history.

-- name: ended
-- How the runs of each job, or of those in `of`, ended in [since, until): the last `of_job` of each
-- and all that were pruned, of the days that begin in it. And the run whose latest attempt took
-- longest, and the one that took most memory.
select d.job_type, d.timezone, e.examined + p.runs as runs, e.succeeded + p.succeeded as succeeded,
       e.retried + p.retried as retried, e.dead + p.dead as dead,
       e.cancelled + p.cancelled as cancelled, e.expired, e.examined,
       long.finished_at - long.started_at as took,
       long.id as longest_id, long.finished_at as longest_ended_at,
       large.peak_memory_bytes as peak, large.id as peak_id
from yamlsched.job_definitions d
cross join lateral (
    select count(*) filter (where x.status = 'succeeded') as succeeded,
           count(*) filter (where x.status = 'succeeded' and x.attempts > 1) as retried,
           count(*) filter (where x.status = 'dead') as dead,
           count(*) filter (where x.status = 'cancelled') as cancelled,
           count(*) filter (where x.status = 'cancelled' and x.error_type = 'Expired') as expired,
           count(*) as examined,
           (array_agg(x.id order by x.took desc nulls last, x.id)
                filter (where x.status <> 'cancelled'))[1] as longest_id,
           (array_agg(x.id order by x.peak_memory_bytes desc, x.id)
                filter (where x.peak_memory_bytes > 0))[1] as largest_id
    from (
        select r.id, r.attempts - r.prior_attempts as attempts, r.peak_memory_bytes,
               r.finished_at - r.started_at as took, r.error_type, r.status
        from yamlsched.job_runs r
        where r.definition_id = d.id and r.finished_at >= %(since)s and r.finished_at < %(until)s
        order by r.finished_at desc
        limit %(of_job)s
    ) x
) e
cross join lateral (
    select coalesce(sum(x.succeeded + x.dead + x.cancelled), 0) as runs,
           coalesce(sum(x.succeeded), 0) as succeeded,
           coalesce(sum(x.retried), 0) as retried,
           coalesce(sum(x.dead), 0) as dead,
           coalesce(sum(x.cancelled), 0) as cancelled
    from yamlsched.job_days x
    where x.definition_id = d.id and x.day >= %(since)s::timestamptz
      and x.day < %(until)s::timestamptz
) p
left join yamlsched.job_runs long on long.id = e.longest_id
left join yamlsched.job_runs large on large.id = e.largest_id
where d.namespace = %(namespace)s and (%(of)s::text[] is null or d.job_type = any (%(of)s))
  and e.examined + p.runs > 0
order by d.job_type;

-- name: late
-- The runs of each job that began or succeeded in [since, until) later than start_within and
-- finish_within allow: how many, and the latest. At the end of a span that is past (`is_past`) also
-- those that had not by then; `at` is null. Among those that `ended` reads, a hundred that ended
-- after the span, and `of_job` that have not ended. What waits for a pause, its turn or other jobs
-- has not begun late; one that died or was cancelled, and a backfill, have not finished late.
select d.job_type, d.timezone, l.*
from yamlsched.job_definitions d
cross join lateral (
    select distinct on (p.kind) p.kind, count(*) over (partition by p.kind) as runs,
           coalesce(p.at, %(until)s) - p.by + p.within as late_by, r.id as run_id, p.at
    from (
        (select r.*, false as is_open from yamlsched.job_runs r
         where r.definition_id = d.id and r.finished_at >= %(since)s and r.finished_at < %(until)s
         order by r.finished_at desc
         limit %(of_job)s)
        union all
        (select r.*, true from yamlsched.job_runs r
         where %(is_past)s and r.definition_id = d.id and r.finished_at >= %(until)s
         order by r.finished_at
         limit 100)
        union all
        (select r.*, true from yamlsched.job_runs r
         where r.definition_id = d.id and r.finished_at is null
           and not yamlsched.is_closed(d, %(now)s)
         limit %(of_job)s)
    ) r
    cross join lateral (values
        ('started', case when r.is_open or r.begun_at is not null then r.late_at end,
         d.start_within, case when r.begun_at < %(until)s then r.begun_at end),
        ('finished', case when r.is_open or r.status = 'succeeded' then r.finish_by end,
         r.finish_by - r.scheduled_for, case when not r.is_open then r.finished_at end)
    ) p (kind, by, within, at)
    where (coalesce(r.begun_at, %(until)s) > r.late_at
           or coalesce(r.finished_at, %(until)s) > r.finish_by)
      and coalesce(p.at, %(until)s) > p.by
      and coalesce(p.at >= %(since)s, %(is_past)s)
    order by p.kind, late_by desc, r.id
) l
where d.namespace = %(namespace)s
order by l.late_by desc, d.job_type;

-- name: skipped
-- The gaps of each job that overlap [since, until), and those recorded in it for earlier slots: the
-- last `of_job` of both kinds. Of a gap that was recorded before, only slots of the span count.
select d.job_type, d.timezone, d.schedule, g.reason, g.first_slot, g.last_slot, g.slots,
       g.recorded_at, g.detail,
       g.recorded_at >= %(since)s and g.recorded_at < %(until)s as is_new
from yamlsched.job_definitions d
cross join lateral (
    (select g.* from yamlsched.skipped_slots g
     where g.definition_id = d.id and g.last_slot >= %(since)s and g.first_slot < %(until)s
     order by g.last_slot desc limit %(of_job)s)
    union all
    (select g.* from yamlsched.skipped_slots g
     where g.definition_id = d.id and g.recorded_at >= %(since)s and g.recorded_at < %(until)s
       and g.last_slot < %(since)s
     order by g.recorded_at desc limit %(of_job)s)
) g
where d.namespace = %(namespace)s
order by d.job_type, g.last_slot;

-- name: running
-- The runs that have been running longest.
select o.job_type, d.timezone, o.id as run_id, clock_timestamp() - o.started_at as took,
       null::timestamptz as ended_at
from yamlsched.open_runs o
join yamlsched.job_definitions d on d.id = o.definition_id
where o.namespace = %(namespace)s and o.status = 'running'
order by o.started_at, o.id limit %(limit)s;

-- name: pulse
-- How many runs ended in each of the last 24 hours: counted to a thousand, by an index alone.
select h.at,
       (select count(*)
        from (select from yamlsched.job_definitions d
              cross join lateral (select from yamlsched.job_runs r
                  where r.definition_id = d.id and r.finished_at >= h.at
                    and r.finished_at < h.at + interval '1 hour' limit 1000) e
              where d.namespace = %(namespace)s limit 1000) x) as runs
from generate_series(date_trunc('hour', statement_timestamp()) - interval '23 hours',
                     statement_timestamp(), interval '1 hour') as h (at);
