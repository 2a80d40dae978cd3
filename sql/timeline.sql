-- What happened to a job over time. Every statement reads a bounded number of rows, however many
-- runs have finished.

-- name: days
-- For each job and day of its time zone, the ends of its runs, pruned ones too: those that died or
-- succeeded after a failed attempt, and whether any succeeded, else died or was cancelled; and why
-- slots were skipped. A run belongs to the day of its slot, else of its end. Read are the `most`
-- runs of a job that failed last, and the first `limit` of a day.
with s as materialized (
    select s.timezone, s.nth, s.day, s.start_at, s.end_at
    from unnest(%(span_zones)s::text[], %(nths)s::int[], %(days)s::date[],
        %(starts)s::timestamptz[], %(ends)s::timestamptz[])
        as s (timezone, nth, day, start_at, end_at)
), j as materialized (
    select d.id, d.job_type, j.timezone
    from unnest(%(jobs)s::text[], %(zones)s::text[]) as j (job_type, timezone)
    join yamlsched.job_definitions d on d.namespace = %(namespace)s and d.job_type = j.job_type
), troubled as materialized (
    select j.id, n.nth, count(*) filter (where r.status = 'dead') as dead,
           count(*) filter (where r.status = 'succeeded') as retried,
           count(*) filter (where r.status in ('failed', 'queued', 'running')) as retrying
    from j
    join (select s.timezone, array_agg(s.start_at order by s.nth) as starts
          from s group by s.timezone) z on z.timezone = j.timezone
    cross join lateral (
        (select r.status, r.failed_at, coalesce(r.scheduled_for, r.dead_at) as at
         from yamlsched.job_runs r
         where r.definition_id = j.id and r.dead_at >= z.starts[1]
         order by r.dead_at desc
         limit %(most)s)
        union all
        (select r.status, r.failed_at, coalesce(r.scheduled_for, r.finished_at, r.failed_at)
         from yamlsched.job_runs r
         where r.definition_id = j.id and r.failed_at >= z.starts[1] and r.dead_at is null
         order by r.failed_at desc
         limit %(most)s)
    ) r
    cross join lateral (select width_bucket(r.at, z.starts) - 1 as nth) n
    where r.status = 'dead' or r.failed_at >= z.starts[n.nth + 1]
    group by j.id, n.nth
)
select j.job_type, s.nth, coalesce(t.retrying, 0) as retrying,
       greatest(coalesce(t.dead, 0) + coalesce(p.dead, 0), (x.status = 'dead')::integer) as dead,
       coalesce(t.retried, 0) + coalesce(p.retried, 0) as retried,
       coalesce(x.status = 'succeeded' or p.succeeded > 0, false) as succeeded,
       coalesce(x.status = 'cancelled' or p.cancelled > 0, false) as cancelled,
       array(select distinct g.reason from yamlsched.skipped_slots g
             where g.definition_id = j.id and g.last_slot >= s.start_at
               and g.first_slot < s.end_at order by g.reason) as reasons
from j
join s on s.timezone = j.timezone
left join yamlsched.job_days p on p.definition_id = j.id and p.day = s.day
left join troubled t on t.id = j.id and t.nth = s.nth
left join lateral (
    -- in this order: the next is only looked for if there is none before it
    select w.status
    from unnest(array['succeeded', 'dead', 'cancelled']) w (status)
    cross join lateral (
        select
        from ((select r.status from yamlsched.job_runs r
               where r.definition_id = j.id and r.scheduled_for >= s.start_at
                 and r.scheduled_for < s.end_at limit %(limit)s)
              union all (select case when r.scheduled_for is null then r.status end
               from yamlsched.job_runs r where r.definition_id = j.id
                 and r.finished_at >= s.start_at and r.finished_at < s.end_at limit %(limit)s)) e
        where e.status = w.status limit 1) y
    limit 1
) x on true
order by j.job_type, s.nth;

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

-- name: gaps
-- The gaps of a span, oldest first.
select g.first_slot, g.last_slot, g.slots, g.reason, g.recorded_at, g.detail
from yamlsched.skipped_slots g
where g.definition_id = %(id)s and g.last_slot >= %(start)s and g.first_slot <= %(end)s
order by g.last_slot
limit %(limit)s;

-- name: job_days
-- How the pruned runs of a job ended, day by day.
select p.day, p.succeeded - p.retried as succeeded, p.retried, p.dead, p.cancelled
from yamlsched.job_days p
where p.definition_id = %(id)s and p.day between %(start)s::date - 1 and %(end)s::date + 1;

-- name: failed
-- How many runs of each job died since an instant, pruned ones too, or have failed and are
-- unfinished: of both kinds at most `limit` are read.
select d.job_type,
       (select count(*)
        from (select from yamlsched.job_runs r
              where r.definition_id = d.id and r.dead_at >= %(since)s limit %(limit)s) x)
       + (select count(x.failed_at)
          from (select r.failed_at from yamlsched.job_runs r
                where r.definition_id = d.id and r.finished_at is null limit %(limit)s) x)
       + coalesce((select sum(p.dead) from yamlsched.job_days p
                   where p.definition_id = d.id and p.day >= %(since)s::date), 0) as runs
from yamlsched.job_definitions d
where d.namespace = %(namespace)s;

-- name: durations
-- How long the successful attempts of jobs took that ended in [since, until), the newest first: of
-- each job the newest `limit` runs are read. And the histograms of those of these days that were
-- pruned.
select d.job_type, d.timezone, live.took, live.ids, live.examined, pruned.histograms,
       pruned.longest
from yamlsched.job_definitions d
cross join lateral (
    select coalesce(array_agg(r.took order by r.finished_at desc)
               filter (where r.status = 'succeeded' and r.took is not null), '{}') as took,
           array_agg(r.id order by r.finished_at desc)
               filter (where r.status = 'succeeded' and r.took is not null) as ids,
           count(*) as examined
    from (select r.id, r.finished_at, r.finished_at - r.started_at as took, r.status
          from yamlsched.job_runs r
          where r.definition_id = d.id and r.finished_at >= %(since)s and r.finished_at < %(until)s
          order by r.finished_at desc
          limit %(limit)s) r
) live
cross join lateral (
    select coalesce(array_agg(p.histogram), '{}') as histograms,
           make_interval(secs => max(p.longest)) as longest
    from yamlsched.job_days p
    where p.definition_id = d.id and p.longest > 0
      and p.day >= %(since)s::timestamptz and p.day < %(until)s::timestamptz
) pruned
where d.namespace = %(namespace)s and (%(jobs)s::text[] is null or d.job_type = any (%(jobs)s))
  and d.retired_at is null and (live.took <> '{}' or pruned.longest is not null)
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
