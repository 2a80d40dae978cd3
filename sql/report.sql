-- What happened in a span of time, over all jobs. Every statement reads a bounded number of rows, however long the history.

-- name: jobs
-- How many jobs are enabled, and how many there are, retired ones included; and the next slot of one that is not paused.
select number.jobs, number.in_all, coming.job_type, coming.timezone, coming.next_slot_at
from (
    select (count(*) filter (where d.enabled and d.retired_at is null))::integer as jobs, count(*)::integer as in_all
    from yamlsched.job_definitions d
    where d.namespace = %(namespace)s
) number
left join lateral (
    select d.job_type, d.timezone, d.next_slot_at
    from yamlsched.job_definitions d
    where d.namespace = %(namespace)s and d.next_slot_at is not null
      and not yamlsched.is_withheld(d, clock_timestamp())
    order by d.next_slot_at, d.job_type limit 1
) coming on true;

-- name: limits
-- The jobs with a limit of their own.
select d.job_type, d.tags
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.tags::text like '%%max-%%'
order by d.job_type;

-- name: ended
-- How the runs of each job ended in [since, until): at most `of_job` of one job are read, those that ended last. The
-- longest attempt, and the latest start. Of all jobs, or of `of`. A run is late if its first attempt started more than
-- start_within after it was due. A retry moves run_at, so a retried run counts from its slot, at the earliest from its
-- creation or release: it may be of a backfill, or have waited for other jobs. A run that waited for a pause or its turn
-- counts from ready_at on. `latest` is microseconds, an id below zero, and an instant in microseconds: the greatest array
-- has the lowest id of those that were latest; sorting takes as long as the rest. Calls of on_dead do not count, as in
-- job_health: they have no status here. `offset 0` keeps the planner from computing late_by once for each column that uses it.
select d.job_type, d.timezone, e.succeeded + e.dead + e.cancelled as runs, e.succeeded, e.retried, e.dead, e.cancelled, e.took,
       e.late, e.late_by, -e.latest[2] as late_id, to_timestamp(e.latest[3] / 1e6) as late_at, e.examined, e.largest[1] as peak, -e.largest[2] as peak_id
from yamlsched.job_definitions d
cross join lateral (
    select (count(*) filter (where x.status = 'succeeded'))::integer as succeeded,
           (count(*) filter (where x.status = 'succeeded' and x.attempts > 1))::integer as retried,
           (count(*) filter (where x.status = 'dead'))::integer as dead,
           (count(*) filter (where x.status = 'cancelled'))::integer as cancelled,
           max(x.finished_at - x.started_at) filter (where x.status <> 'cancelled') as took,
           (count(*) filter (where x.late_by is not null))::integer as late,
           max(x.late_by) as late_by,
           max(case when x.late_by is not null
                    then array[(date_part('epoch', x.late_by) * 1e6)::bigint, -x.id,
                               (date_part('epoch', x.first_start) * 1e6)::bigint] end) as latest,
           count(*)::integer as examined,
           max(array[x.peak_memory_bytes, -x.id]) filter (where x.peak_memory_bytes > 0) as largest
    from (
        select w.id, w.status, w.attempts, w.started_at, w.finished_at, w.first_start, w.peak_memory_bytes,
               case when w.first_start > w.due + d.start_within and w.status is not null then w.first_start - w.due end as late_by
        from (
            select r.id, case when coalesce(r.idempotency_key not like 'on\_dead:%%', true) then r.status end as status,
                   r.attempts - r.prior_attempts as attempts, r.started_at, r.finished_at, r.peak_memory_bytes,
                   case when r.attempts <= 1 then r.started_at
                        else (select f.started_at from yamlsched.job_failures f where f.run_id = r.id and f.attempt = 1)
                        end as first_start,
                   greatest(r.ready_at, case when r.attempts > 1 then greatest(r.scheduled_for + d.spread, r.created_at, r.released_at)
                                             when r.scheduled_for is null then greatest(r.run_at, r.created_at)
                                             else r.run_at end) as due
            from yamlsched.job_runs r
            where r.definition_id = d.id and r.finished_at >= %(since)s and r.finished_at < %(until)s
            order by r.finished_at desc
            limit %(of_job)s
        ) w
        offset 0
    ) x
) e
where d.namespace = %(namespace)s and (%(of)s::text[] is null or d.job_type = any (%(of)s))
  and e.succeeded + e.dead + e.cancelled > 0
order by d.job_type;

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
-- The gaps of each job that overlap [since, until), and those that were recorded in it for earlier slots: at most `of_job`
-- of one job of both kinds, those that ended last. Of a gap that was recorded before, only slots of the span count.
select d.job_type, d.timezone, d.schedule, g.reason, g.first_slot, g.last_slot, g.slots, g.recorded_at, g.detail,
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
     where g.definition_id = d.id and g.recorded_at >= %(since)s and g.recorded_at < %(until)s and g.last_slot < %(since)s
     order by g.recorded_at desc limit %(of_job)s)
) g
where d.namespace = %(namespace)s
order by d.job_type, g.last_slot;

-- name: unaccounted
-- The jobs with a slot up to `until` that no sync has recorded: they are paused or not enabled, which is recorded at its
-- end, or no sync has come by.
select d.job_type, d.timezone, d.schedule, d.enabled, d.paused_at, d.paused_until, d.paused_by, d.paused_reason,
       greatest(d.effective_from, coalesce(d.last_slot_at, d.effective_from)) as accounted_to, d.overlap
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.retired_at is null and d.schedule is not null
  and (not d.enabled or d.paused_at is not null or d.next_slot_at < %(until)s)
order by d.job_type limit %(limit)s;

-- name: held_up
-- How many runs of each job wait for a dead or cancelled run, among the first thousand that wait for jobs that they follow.
select w.job_type, f.job_type as upstream, count(*)::integer as runs
from (select r.id, r.job_type from yamlsched.job_runs r
      where r.namespace = %(namespace)s and r.unreleased and r.finished_at is null
      order by r.run_at limit 1000) w
join yamlsched.awaits a on a.run_id = w.id and a.outcome is null
join yamlsched.job_definitions f on f.id = a.definition_id
cross join lateral yamlsched.upstream(a.definition_id, a.slot, clock_timestamp()) u
where u.state in ('dead', 'cancelled')
group by w.job_type, f.job_type
order by runs desc, w.job_type, f.job_type;

-- name: running
-- The runs that have been running longest.
select o.job_type, d.timezone, o.id as run_id, clock_timestamp() - o.started_at as took, null::timestamptz as ended_at
from yamlsched.open_runs o
join yamlsched.job_definitions d on d.id = o.definition_id
where o.namespace = %(namespace)s and o.status = 'running'
order by o.started_at, o.id limit %(limit)s;
