-- Jobs that follow others: what a slot waits for, and what becomes of the runs that are not
-- released. The rule is that of runs/follow.py, which decides about all such runs of a job
-- together: under the gates of the job and of those that it waits for, and by statements after that
-- of the locks.

-- name: await
-- What new runs wait for: the latest slot of each job at or before their own. `slot` is null if the
-- job's current expression has none since it counts: then it is the last one before that was owed.
-- A backfilled run waits only for slots that have a run.
with a as (
    select r.id, u.upstream, r.by_hand,
           coalesce(u.waits_for, yamlsched.owed_slot(u.upstream, r.scheduled_for)) as slot
    from unnest(%(key)s::text[], %(upstream)s::bigint[], %(slot)s::timestamptz[]) as u (key,
        upstream, waits_for)
    cross join lateral (
        select * from yamlsched.job_runs o
        where o.namespace = %(namespace)s and o.idempotency_key = u.key offset 0) r
), awaited as (
    insert into yamlsched.awaits (run_id, definition_id, slot, outcome)
    select a.id, a.upstream, a.slot,
           case when a.by_hand and (select u.run_id
               from yamlsched.upstream(a.upstream, a.slot, %(now)s) u) is null
                then 'skipped' end
    from a
    -- an earlier run has the key; see _write in sync/due.py
    on conflict (run_id, definition_id) do nothing
    returning run_id, outcome
)
update yamlsched.job_runs r
set unreleased = r.id in (select w.run_id from awaited w where w.outcome is null),
    late_at = case when r.id not in (select w.run_id from awaited w where w.outcome is null)
                   then r.late_at end
where r.id = any (array(select w.run_id from awaited w));

-- name: without_run
-- Those of the slots that would wait for a slot without a run, and for which job. The rows are
-- those of `await`.
select s.key, d.job_type as upstream
from unnest(%(key)s::text[], %(upstream)s::bigint[], %(slot)s::timestamptz[], %(at)s::timestamptz[])
    as s (key, upstream, waits_for, at)
join yamlsched.job_definitions d on d.id = s.upstream
cross join lateral yamlsched.upstream(
    s.upstream, coalesce(s.waits_for, yamlsched.owed_slot(s.upstream, s.at)), %(now)s) u
where u.run_id is null;

-- name: free
-- Runs of edited jobs no longer wait for jobs that an edit took out of `after`, or out of the file.
-- Executed under the gates of these jobs.
delete from yamlsched.awaits a
using yamlsched.job_runs r, yamlsched.job_definitions d, yamlsched.job_definitions f
where d.id = any (%(ids)s::bigint[]) and r.namespace = d.namespace and r.definition_id = d.id
  and r.unreleased and r.finished_at is null and a.run_id = r.id and f.id = a.definition_id
  and (f.job_type <> all (d.after) or f.retired_at is not null);

-- name: wake
-- Have the next claim look again at what waits for slots of these jobs, which have a run or a gap
-- now.
select yamlsched.promote(%(namespace)s, array(
    select distinct 'after/' || a.definition_id from yamlsched.awaits a
    where a.outcome is null and a.definition_id = any (%(ids)s::bigint[])), 0, %(now)s);

-- name: jobs
-- The jobs that have due runs that are not released.
select distinct r.definition_id as id from yamlsched.job_runs r
where r.namespace = %(namespace)s and r.unreleased and r.finished_at is null
  and r.run_at <= :now;

-- name: hold
-- Lock the runs of these jobs that are not released. One that may be executed was cancelled.
select r.id from yamlsched.job_runs r
where r.namespace = %(namespace)s and r.unreleased and r.finished_at is null
  and r.definition_id = any (%(jobs)s::bigint[]) and r.locked_until is null
order by r.id for no key update skip locked;

-- name: gates
-- Lock the gates that decide about runs; those that another session has are not returned.
select n.name
from (select k.kind || r.definition_id as name
      from yamlsched.job_runs r cross join unnest(array['after/', 'closed/']) as k (kind)
      where r.id = any (%(ids)s::bigint[])
      union
      select 'after/' || a.definition_id from yamlsched.awaits a
      where a.run_id = any (%(ids)s::bigint[]) and a.outcome is null) n
cross join lateral (
    select from yamlsched.gates g
    where g.namespace = %(namespace)s and g.name = n.name for no key update skip locked) g;

-- name: facts
-- What decides about the runs: a row for each job that a run waits for, at least one for each run.
-- Runs of a job whose slots exclude each other are not released while one that was released is
-- unfinished. What a run waits for is found by its id ("offset 0"), whatever the statistics are.
with job as materialized (
    select d.*, exists (
               select from yamlsched.permits p
               where p.namespace = d.namespace and p.name = 'job/' || d.id) or exists (
               select from yamlsched.job_runs o
               where o.namespace = d.namespace and o.definition_id = d.id
                 and o.finished_at is null and o.exclusive and not o.unreleased) as is_busy,
           yamlsched.is_closed(d, c.now) as is_closed, c.now
    from (select :now as now) c
    cross join yamlsched.job_definitions d
    where d.id = any (array(select r.definition_id from yamlsched.job_runs r
                            where r.id = any (%(ids)s::bigint[])))
)
select r.id, r.definition_id, r.scheduled_for as slot, r.run_at, r.by_hand, r.blocked_on,
       j.job_type, j.overlap, j.catchup, j.catchup_window, j.on_upstream_failure, j.schedule,
       j.timezone, j.effective_from, j.is_closed, j.is_busy, a.definition_id as upstream_id,
       coalesce((select o.job_type from yamlsched.job_runs o where o.id = u.run_id), f.job_type)
           as upstream,
       u.*, j.now
from yamlsched.job_runs r
join job j on j.id = r.definition_id
left join lateral (
    select w as awaits, w.* from yamlsched.awaits w where w.run_id = r.id offset 0) a
  on a.outcome is null
left join yamlsched.job_definitions f on f.id = a.definition_id
left join lateral yamlsched.awaited(a.awaits, j.now) u on a.run_id is not null
where r.id = any (%(ids)s::bigint[])
order by r.definition_id, r.scheduled_for, r.id, f.job_type;

-- name: release
with released as (
    update yamlsched.job_runs r
    set unreleased = false, run_at = d.run_at, blocked_on = null, updated_at = %(now)s,
        late_at = greatest(d.run_at, %(now)s) + j.start_within
    from unnest(%(ids)s::bigint[], %(run_at)s::timestamptz[]) as d (id, run_at),
         yamlsched.job_definitions j
    where r.id = d.id and r.unreleased and r.finished_at is null and j.id = r.definition_id
    returning r.id, j.after_enqueued
)
update yamlsched.awaits a
set outcome = e.outcome, upstream_run_id = e.upstream_run_id,
    enqueued = case when r.after_enqueued is not null and e.upstream_run_id is not null
                    then yamlsched.enqueued(e.upstream_run_id) end
from unnest(%(run_id)s::bigint[], %(upstream_id)s::bigint[], %(upstream_run_id)s::bigint[],
    %(outcome)s::text[])
    as e (run_id, upstream_id, upstream_run_id, outcome)
join released r on r.id = e.run_id
where a.run_id = e.run_id and a.definition_id = e.upstream_id;

-- name: block
-- Store at which gates runs wait that are not released; null: for their time only.
update yamlsched.job_runs r set blocked_on = b.gate
from unnest(%(ids)s::bigint[], %(gates)s::text[]) as b (id, gate)
where r.id = b.id and r.unreleased and r.finished_at is null
  and r.blocked_on is distinct from b.gate;

-- name: remove
-- The runs of slots that have become gaps. Their keys are free for a backfill.
delete from yamlsched.job_runs r
where r.id = any (%(ids)s::bigint[]) and r.status = 'queued';

-- name: cancel
update yamlsched.job_runs r
set status = 'cancelled', finished_at = %(now)s, updated_at = %(now)s, blocked_on = null,
    last_error = c.reason
from unnest(%(ids)s::bigint[], %(reasons)s::text[]) as c (id, reason)
where r.id = c.id and r.unreleased and r.finished_at is null;

-- name: followers
-- The jobs that follow these, also by way of others.
with recursive f as (
    select d.id, d.job_type from yamlsched.job_definitions d
    where d.namespace = %(namespace)s and d.id = any (%(ids)s::bigint[])
    union
    select d.id, d.job_type from f
    join yamlsched.job_definitions d on d.namespace = %(namespace)s and f.job_type = any (d.after)
      and d.retired_at is null
)
select f.id from f where f.id <> all (%(ids)s::bigint[]);

-- name: mark_followed
update yamlsched.job_definitions d set is_followed = true, updated_at = clock_timestamp()
where d.namespace = %(namespace)s and d.job_type = any (%(names)s::text[]) and not d.is_followed;

-- name: chains
-- The jobs that follow others or are followed, with the run of the latest slot of each.
select d.job_type, d.after, d.timezone, r.id as run_id, r.status, r.scheduled_for,
       yamlsched.waits_for(r) as waits
from yamlsched.job_definitions d
left join lateral (
    select * from yamlsched.job_runs l
    where l.definition_id = d.id and l.scheduled_for is not null
    order by l.finished_at desc, l.id desc limit 1
) r on true
where d.namespace = %(namespace)s and d.retired_at is null and (d.after <> '{}' or d.job_type in (
    select unnest(f.after) from yamlsched.job_definitions f where f.namespace = %(namespace)s
      and f.retired_at is null));

-- name: late
-- Lock runs of slots that have not begun and are older than the catchup_window of their job. Those
-- that wait for other jobs are decided about by `decide`. While a job is paused, nothing of it is
-- late. What this sync has created is left to the next one.
select r.id, r.definition_id, d.job_type, d.schedule, d.timezone, d.effective_from,
       r.scheduled_for as slot, r.gates, c.now
from (select :now as now) c
cross join yamlsched.job_definitions d
cross join lateral (
    select w.id, w.definition_id, w.scheduled_for, yamlsched.gates_of(w, c.now) as gates
    from yamlsched.job_runs w
    where w.definition_id = d.id and w.finished_at is null and w.status = 'queued'
      and w.begun_at is null
      and least(w.run_at, w.scheduled_for + d.spread) < c.now - d.catchup_window
      and w.created_at < c.now - interval '10 seconds'
      and w.scheduled_for is not null and not w.by_hand and not w.unreleased
    order by w.id
    for no key update skip locked) r
where d.namespace = %(namespace)s and d.catchup_window < interval '365 days'
  and not yamlsched.is_closed(d, c.now)
order by r.definition_id, r.scheduled_for
limit 10000;
