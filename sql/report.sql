-- What happened in a span of time, over all jobs. Every statement reads a bounded number of rows,
-- however long the history.

-- name: jobs
-- How many jobs are enabled, and how many there are, retired ones included; and the next slot of
-- one that is not paused.
select number.jobs, number.in_all, coming.job_type, coming.timezone, coming.next_slot_at
from (
    select (count(*) filter (where d.enabled and d.retired_at is null))::integer as jobs,
           count(*)::integer as in_all
    from yamlsched.job_definitions d
    where d.namespace = %(namespace)s
) number
left join lateral (
    select d.job_type, d.timezone, d.next_slot_at
    from yamlsched.job_definitions d
    where d.namespace = %(namespace)s and d.next_slot_at is not null
      and not yamlsched.is_closed(d, clock_timestamp())
    order by d.next_slot_at, d.job_type limit 1
) coming on true;

-- name: ended
-- How the runs of each job ended in [since, until): at most `of_job` of one job are read, those
-- that ended last; and the longest attempt. Of all jobs, or of `of`. Calls of on_dead do not count,
-- as in job_health: they have no status here.
select d.job_type, d.timezone, e.succeeded + e.dead + e.cancelled as runs, e.succeeded, e.retried,
       e.dead, e.cancelled, e.took,
       e.examined, e.largest[1] as peak, -e.largest[2] as peak_id
from yamlsched.job_definitions d
cross join lateral (
    select (count(*) filter (where x.status = 'succeeded'))::integer as succeeded,
           (count(*) filter (where x.status = 'succeeded' and x.attempts > 1))::integer as retried,
           (count(*) filter (where x.status = 'dead'))::integer as dead,
           (count(*) filter (where x.status = 'cancelled'))::integer as cancelled,
           max(x.finished_at - x.started_at) filter (where x.status <> 'cancelled') as took,
           count(*)::integer as examined,
           max(array[x.peak_memory_bytes, -x.id]) filter (where x.peak_memory_bytes > 0) as largest
    from (
        select r.id, case when coalesce(r.idempotency_key not like 'on\_dead:%%', true)
            then r.status end as status,
               r.attempts - r.prior_attempts as attempts, r.started_at, r.finished_at,
               r.peak_memory_bytes
        from yamlsched.job_runs r
        where r.definition_id = d.id and r.finished_at >= %(since)s and r.finished_at < %(until)s
        order by r.finished_at desc
        limit %(of_job)s
    ) x
) e
where d.namespace = %(namespace)s and (%(of)s::text[] is null or d.job_type = any (%(of)s))
  and e.succeeded + e.dead + e.cancelled > 0
order by d.job_type;

-- name: late
-- The runs of each job that began or succeeded in [since, until) later than start_within and
-- finish_within allow: how many, and the latest. At the end of a span that is past (`is_past`) also
-- those that had not by then; `at` is null. Among those that `ended` reads, a hundred that ended
-- after the span, and `of_job` that have not ended. What waits for a pause, its turn or other jobs
-- has not begun late; one that died or was cancelled, and a backfill, have not finished late. Calls
-- of on_dead do not count.
select d.job_type, d.timezone, l.kind, l.runs, l.late_by, l.run_id, l.at
from yamlsched.job_definitions d
cross join lateral (
    select distinct on (v.kind) v.kind, (count(*) over (partition by v.kind))::integer as runs,
           coalesce(v.at, %(until)s) - v.since as late_by, r.id as run_id, v.at
    from (
        (select r.*, false as is_open from yamlsched.job_runs r
         where r.definition_id = d.id and r.finished_at >= %(since)s and r.finished_at < %(until)s
         order by r.finished_at desc
         limit %(of_job)s)
        union all
        (select r.*, true from yamlsched.job_runs r
         where r.definition_id = d.id and r.finished_at >= %(until)s
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
    cross join lateral (select p.kind, p.by - p.within as since, p.at) v
    where coalesce(p.at, %(until)s) > p.by
      and coalesce(p.at >= %(since)s, %(is_past)s)
      and coalesce(r.idempotency_key not like 'on\_dead:%%', true)
    order by v.kind, late_by desc, r.id
) l
where d.namespace = %(namespace)s
order by l.late_by desc, d.job_type;

-- name: longest
-- The longest attempt of each of the jobs `of`, among the runs that `ended` reads.
select d.job_type, d.timezone, r.id as run_id, r.took, r.finished_at as ended_at
from yamlsched.job_definitions d
cross join lateral (
    select r.id, r.finished_at - r.started_at as took, r.finished_at
    from (
        select r.id, r.status, r.started_at, r.finished_at, r.idempotency_key
        from yamlsched.job_runs r
        where r.definition_id = d.id and r.finished_at >= %(since)s and r.finished_at < %(until)s
        order by r.finished_at desc
        limit %(of_job)s
    ) r
    where r.status <> 'cancelled' and r.started_at is not null
      and coalesce(r.idempotency_key not like 'on\_dead:%%', true)
    order by took desc, r.id limit 1
) r
where d.namespace = %(namespace)s and d.job_type = any (%(of)s)
order by r.took desc, d.job_type;

-- name: skipped
-- The gaps of each job that overlap [since, until), and those that were recorded in it for earlier
-- slots: at most `of_job` of one job of both kinds, those that ended last. Of a gap that was
-- recorded before, only slots of the span count.
select d.job_type, d.timezone, d.schedule, g.reason, g.first_slot, g.last_slot, g.slots,
       g.recorded_at, g.detail,
       g.recorded_at >= %(since)s and g.recorded_at < %(until)s as is_new
from yamlsched.job_definitions d
cross join lateral (
    (select g.reason, g.first_slot, g.last_slot, g.slots, g.recorded_at, g.detail
     from yamlsched.skipped_slots g
     where g.definition_id = d.id and g.last_slot >= %(since)s and g.first_slot < %(until)s
     order by g.last_slot desc limit %(of_job)s)
    union all
    (select g.reason, g.first_slot, g.last_slot, g.slots, g.recorded_at, g.detail
     from yamlsched.skipped_slots g
     where g.definition_id = d.id and g.recorded_at >= %(since)s and g.recorded_at < %(until)s
       and g.last_slot < %(since)s
     order by g.recorded_at desc limit %(of_job)s)
) g
where d.namespace = %(namespace)s
order by d.job_type, g.last_slot;

-- name: unaccounted
-- The jobs with a slot up to `until` that no sync has recorded: they are paused or not enabled,
-- which is recorded at its end, or no sync has come by.
select d.job_type, d.timezone, d.schedule, d.enabled, d.paused_at, d.paused_until, d.paused_by,
       d.paused_reason,
       greatest(d.effective_from, coalesce(d.last_slot_at, d.effective_from)) as accounted_to,
       d.overlap
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.retired_at is null and d.schedule is not null
  and (not d.enabled or d.paused_at is not null or d.next_slot_at < %(until)s)
order by d.job_type limit %(limit)s;

-- name: running
-- The runs that have been running longest.
select o.job_type, d.timezone, o.id as run_id, clock_timestamp() - o.started_at as took,
       null::timestamptz as ended_at
from yamlsched.open_runs o
join yamlsched.job_definitions d on d.id = o.definition_id
where o.namespace = %(namespace)s and o.status = 'running'
order by o.started_at, o.id limit %(limit)s;
