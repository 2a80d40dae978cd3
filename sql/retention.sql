-- Pruning in small batches. Unfinished runs are never touched; a key outlives its run. What is to
-- be deleted is locked first, so that it can be archived in between. `ids` are the literal of an
-- array, which is passed on as it is.

-- name: in_use
-- The retention of the file in use; null without one.
select n.retention, :now as now
from (select) one left join yamlsched.namespaces n on n.namespace = %(namespace)s;

-- name: hold_runs
-- Lock the next batch of finished runs that are to be pruned, job by job, oldest first. A batch
-- starts where the previous one ended, at a job and an instant, so that runs that are kept longer
-- (the dead) are skipped once and not once per batch. A run that is locked (an operator retries it)
-- is left for the next time. Of a job that others follow, the run of its latest slot stays. So
-- does what an unfinished run waits for or has waited for, with what that has enqueued, and what an
-- unfinished hook reports: their handlers get it.
select count(*) as rows, array_agg(h.id)::text as ids, max(h.definition_id) as definition,
       (array_agg(h.finished_at order by h.definition_id desc, h.finished_at desc))[1] as last
from (
    select r.id, d.id as definition_id, r.finished_at
    from yamlsched.job_definitions d
    cross join lateral (
        select r.id, r.finished_at
        from yamlsched.job_runs r
        where r.definition_id = d.id
          and r.finished_at < greatest(%(succeeded)s::timestamptz, %(dead)s::timestamptz,
              %(cancelled)s::timestamptz)
          and r.finished_at >= case when d.id = %(definition)s then %(from)s::timestamptz
              else '-infinity' end
          and r.finished_at < case r.status when 'succeeded' then %(succeeded)s::timestamptz
                                            when 'dead' then %(dead)s::timestamptz
                                            else %(cancelled)s::timestamptz end
          and (select h.id from yamlsched.job_runs h      -- a probe for each run
               where h.parent_id = r.id and h.hook is not null and h.finished_at is null
               limit 1) is null
          and (d.is_followed and (r.scheduled_for >= d.last_slot_at or yamlsched.is_awaited(r)))
              is not true
          and not (r.parent_id is not null and r.hook is null and exists (
              select from yamlsched.job_runs p
              where p.id = r.parent_id and yamlsched.is_awaited(p)))
        order by r.finished_at
        limit %(limit)s
        for update skip locked
    ) r
    where d.namespace = %(namespace)s and d.id >= %(definition)s
    order by d.id
    limit %(limit)s
) h;

-- name: delete_runs
-- Delete the runs that are held, and return what `add_days` keeps of them. A trigger deletes what
-- belongs to them; their keys stay.
with gone as (
    delete from yamlsched.job_runs r
    where r.id = any (%(ids)s::bigint[])
    returning r.*
), kept as (
    insert into yamlsched.used_keys (namespace, idempotency_key, run_id, job_type, scheduled_for,
        pruned_at)
    select g.namespace, g.idempotency_key, g.id, g.job_type, g.scheduled_for, %(now)s
    from gone g
    where g.idempotency_key is not null
    on conflict (namespace, idempotency_key) do nothing
)
select g.definition_id, d.timezone, coalesce(g.scheduled_for, g.finished_at) as at, g.status,
       g.failed_at, g.finished_at, g.finished_at - g.started_at as took
from gone g
join yamlsched.job_definitions d on d.id = g.definition_id;

-- name: add_days
-- In the order of the key: two sessions that prune never wait for each other in a circle.
insert into yamlsched.job_days as j
select p.* from jsonb_populate_recordset(null::yamlsched.job_days, %(days)s::jsonb) p
order by p.definition_id, p.day
on conflict (definition_id, day) do update
set succeeded = j.succeeded + excluded.succeeded, retried = j.retried + excluded.retried,
    dead = j.dead + excluded.dead, cancelled = j.cancelled + excluded.cancelled,
    seconds = j.seconds + excluded.seconds, longest = greatest(j.longest, excluded.longest),
    succeeded_at = greatest(j.succeeded_at, excluded.succeeded_at),
    histogram = array(select a + b from unnest(j.histogram, excluded.histogram)
                      with ordinality as u (a, b, n) order by n);

-- name: forget_days
-- Days and gaps that are older than all history that is shown. The gap of the latest slot stays.
with days as (
    delete from yamlsched.job_days j
    using yamlsched.job_definitions d
    where d.namespace = %(namespace)s and j.definition_id = d.id and j.day < %(before)s
)
delete from yamlsched.skipped_slots g
using yamlsched.job_definitions d
where d.namespace = %(namespace)s and g.definition_id = d.id and g.last_slot < %(before)s
  and g.last_slot < d.last_slot_at;

-- name: hold_keys
-- Lock keys that are to be forgotten. Nothing else has their ids: they are found again by their
-- place.
select count(*) as rows, array_agg(h.ctid)::text as ids
from (
    select u.ctid
    from yamlsched.used_keys u
    where u.namespace = %(namespace)s and u.pruned_at < %(before)s
    order by u.pruned_at
    limit %(limit)s
    for update skip locked
) h;

-- name: delete_keys
delete from yamlsched.used_keys u
where u.ctid = any (%(ids)s::tid[]);

-- name: hold_effects
-- An effect outlives its run: as long as the run exists, it can be retried, and must find its
-- effects.
select count(*) as rows, array_agg(h.id)::text as ids
from (
    select o.id
    from yamlsched.effects o
    where o.namespace = %(namespace)s and o.claimed_at < %(before)s
      and not exists (select from yamlsched.job_runs r where r.id = o.run_id)
    order by o.claimed_at
    limit %(limit)s
    for update of o skip locked
) h;

-- name: delete_effects
delete from yamlsched.effects e
where e.id = any (%(ids)s::bigint[]);

-- name: failed
-- Pruning cannot continue before an operator acts. The first such instant is kept until it works
-- again.
update yamlsched.namespaces n
set prune_failing_since = coalesce(n.prune_failing_since, %(now)s), prune_error = %(error)s
where n.namespace = %(namespace)s;

-- name: done
update yamlsched.namespaces n
set housekept_at = %(now)s, prune_failing_since = null, prune_error = null
where n.namespace = %(namespace)s;
