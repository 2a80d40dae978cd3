-- name: differences
-- What a file would change: one row per job that is new, removed, or different. `jobs` are objects
-- whose keys are columns, and columns that they do not have are those of `defaults`. The row that a
-- job would have is compared with the row that it has, by the types of the columns: 1 and true
-- differ, 1.0 and 1 do not, and neither do '1 day' and '24:00:00'.
with file as materialized (
    select f.job ->> 'job_type' as job_type, f.job
    from jsonb_array_elements(%(jobs)s) as f (job)
), compared as (
    select d.stored, f.job, coalesce(f.job_type, d.job_type) as job_type, f.job is null as is_gone,
           (d.stored).retired_at is not null as is_retired,
           jsonb_populate_record(d.stored, %(defaults)s || f.job) is distinct
           from d.stored as is_changed
    from (select s.job_type, s as stored from yamlsched.job_definitions s
        where s.namespace = %(namespace)s) d
    full join file f on f.job_type = d.job_type
)
select (c.stored).id, c.job_type,
       case when (c.stored).id is null then 'added' when c.is_gone then 'retired'
            when c.is_retired then 'returned' else 'changed' end as change
from compared c
where case when c.is_gone then not c.is_retired else c.is_retired or (c.stored).id is null
  or c.is_changed end
order by c.job_type;

-- name: read
-- What decides the slots of jobs: by their ids, or by their names if these are null. Locked
-- before, if at all: this sees the rows as they are then.
select d.id, d.job_type, d.schedule, d.timezone, d.enabled, d.overlap, d.catchup, d.catchup_window,
       d.spread,
       d.after, d.created_at, d.effective_from, d.last_slot_at, d.next_slot_at, d.paused_at,
       d.paused_until, d.retired_at, d.skip_on, d.only_on, d.paused_by, d.paused_reason
from yamlsched.job_definitions d
where d.id = any (coalesce(%(ids)s::bigint[], array(
    select n.id from yamlsched.job_definitions n
    where n.namespace = %(namespace)s and n.job_type = any (%(names)s::text[]))))
order by d.id;

-- name: lock
-- Wait for syncs that are creating runs of these jobs. Other work on runs continues: a foreign key
-- needs a weaker lock.
select d.id
from yamlsched.job_definitions d
where d.id = any (%(ids)s)
order by d.id
for no key update;

-- name: ids_with_next_slot
-- The jobs that have a next slot, to compute it again.
select d.id
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.next_slot_at is not null;

-- name: same_programs
-- The jobs whose attempts would execute the same, and in the same queue, by their definitions.
-- `jobs` and `defaults` are as in `differences`.
select d.job_type
from jsonb_array_elements(%(jobs)s) as f (job)
join yamlsched.job_definitions d
  on d.namespace = %(namespace)s and d.job_type = f.job ->> 'job_type' and d.retired_at is null
cross join lateral jsonb_populate_record(d, %(defaults)s || f.job) p
where (p.handler, p.command, p.env, p.cwd, p.stdin, p.exit_codes, p.queue)
  is not distinct from (d.handler, d.command, d.env, d.cwd, d.stdin, d.exit_codes, d.queue)
order by d.job_type;

-- name: names
-- The jobs of a namespace that are in its file.
select d.job_type
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.retired_at is null
order by d.job_type;

-- name: put
-- Write jobs as the file has them, in place: ids, and with them history and pauses, stay.
select yamlsched.put_definitions(%(jobs)s);

-- name: retire
-- Retire jobs that left the file: no slots, no claims. Their unfinished runs are cancelled a day
-- later (cancel_retired).
update yamlsched.job_definitions d
set retired_at = %(now)s, next_slot_at = null, updated_at = %(now)s
where d.id = any (%(ids)s) and d.retired_at is null;

-- name: apply_overlap
-- Write the overlap of jobs on their unfinished slot runs, if it is another. Executed before the
-- gates of the jobs are locked: who holds a gate waits for no run.
update yamlsched.job_runs r
set exclusive = d.overlap <> 'allow', updated_at = %(now)s
from yamlsched.job_definitions d
where d.id = any (%(ids)s)
  and r.definition_id = d.id
  and r.finished_at is null
  and r.scheduled_for is not null
  and r.exclusive <> (d.overlap <> 'allow');

-- name: grant_turns
-- What executes of these jobs, whose gates are locked, and excludes others from now on gets a
-- permit. Permits stay when overlap becomes allow: at a gate without a capacity they do not matter.
insert into yamlsched.permits (namespace, name, n, run_id)
select r.namespace, 'job/' || r.definition_id, -r.id, r.id
from yamlsched.job_runs r
where r.definition_id = any (%(ids)s::bigint[]) and r.finished_at is null and r.exclusive
  and r.status = 'running'
  and (select p.n from yamlsched.permits p
       where p.run_id = r.id and p.name = 'job/' || r.definition_id limit 1) is null
on conflict do nothing;

-- name: apply_queue
-- What waits of jobs is moved to the queue where the job executes now.
select yamlsched.move_runs(array(
    select w.id
    from yamlsched.job_runs w join yamlsched.job_definitions d on d.id = w.definition_id
    where d.id = any (%(ids)s::bigint[]) and w.finished_at is null and w.queue <> d.queue));

-- name: apply_priority
-- Before the definitions are written: what waits of jobs follows an edit of their priority, but not
-- what was enqueued with another one.
with waiting as materialized (
    select w.id, e.priority
    from unnest(%(ids)s::bigint[], %(priorities)s::smallint[]) as e (id, priority)
    join yamlsched.job_definitions d on d.id = e.id and d.priority <> e.priority
    join yamlsched.job_runs w on w.definition_id = d.id
    where w.priority = d.priority and w.finished_at is null and w.locked_until is null
    for no key update of w skip locked
)
update yamlsched.job_runs r set priority = w.priority from waiting w where r.id = w.id;

-- name: leave_gates
-- What waits at a gate at which it does not stand any more looks again; see the function.
select yamlsched.leave_gates(%(namespace)s, %(ids)s::bigint[], %(now)s::timestamptz);

-- name: gates
-- The gates of jobs, and of limits with those of their values.
select k.kind || d.id as name
from yamlsched.job_definitions d cross join unnest(array['after/', 'closed/', 'job/']) as k (kind)
where d.namespace = %(namespace)s and d.job_type = any (%(names)s::text[])
union all
select 'limit/' || l.name from unnest(%(limits)s::text[]) as l (name)
union all
select g.name from yamlsched.gates g
where g.namespace = %(namespace)s and g.name like 'limit/%%/%%'
  and split_part(g.name, '/', 2) = any (%(limits)s::text[]);

-- name: lock_gates
-- Lock gates, from after the definitions were written until the end of the transaction.
select yamlsched.lock_gates(%(namespace)s, %(gates)s::text[]);

-- name: limits
-- The limits of the file in use: how many runs may execute under each.
select substr(g.name, 7) as name, g.capacity from yamlsched.gates g
where g.namespace = %(namespace)s and g.name like 'limit/%%' and g.capacity is not null;

-- name: put_limits
-- Write limits, whose gates are locked. A limit that has left the file has none.
update yamlsched.gates g
set capacity = l.n
from unnest(%(names)s::text[], %(numbers)s::int[]) as l (name, n)
where g.namespace = %(namespace)s and g.name = 'limit/' || l.name
  and g.capacity is distinct from l.n;

-- name: apply_spread
-- Runs that have not been claimed and wait for their spread time get the one of the edited job,
-- before its next slot: a run that waited for an old, longer spread would delay or skip the slots
-- of the new cron expression.
update yamlsched.job_runs r
set (run_at, late_at) = (
        select n.run_at, case when r.late_at is not null then n.run_at + d.start_within end
        from (select least(r.scheduled_for + make_interval(secs => s.seconds),
                           d.next_slot_at - interval '1 second') as run_at) n),
    updated_at = %(now)s
from unnest(%(ids)s::bigint[], %(seconds)s::float8[]) as s (id, seconds)
join yamlsched.job_definitions d on d.id = s.id
where r.definition_id = d.id
  and r.finished_at is null
  and r.scheduled_for is not null
  and r.status = 'queued'
  and r.begun_at is null
  and r.run_at > %(now)s;

-- name: cancel_retired
-- Cancel the unfinished runs of jobs that were retired a day ago: a rolling deploy has ended by
-- then. One batch, in the order of definitions and runs.
-- Locked runs are left to the next batch, and those of a worker that died to `reclaim`.
with clock as materialized (
    select :now as now
), undone as materialized (
    select r.id, d.retired_at
    from yamlsched.job_definitions d
    cross join lateral (
        select w.id
        from yamlsched.job_runs w
        where w.definition_id = d.id
          and w.finished_at is null
          and w.locked_until is null
        -- the order of job_runs_history: no sort, and no other job's runs are read
        order by w.finished_at, w.id
        limit %(limit)s
        for no key update of w skip locked
    ) r
    where d.namespace = %(namespace)s
      and d.retired_at <= (select c.now from clock c) - interval '1 day'
    order by d.id
    limit %(limit)s
)
update yamlsched.job_runs r
set status       = 'cancelled',
    finished_at  = c.now,
    blocked_on   = null,
    error_type   = null,
    last_error   = 'job retired: it was removed from schedules.yaml at '
                   || to_char(u.retired_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
    updated_at   = c.now
from undone u
cross join clock c
where r.id = u.id
  and r.id = any (array(select w.id from undone w))  -- or a plan might read the whole table
returning r.id, r.job_type;
