-- name: start_batch
-- The start of a batch's transaction: its instant, its lock timeout, and no plan that reads a whole
-- table for a few hundred rows.
select :now as now,
       set_config('lock_timeout', coalesce(%(timeout)s, current_setting('lock_timeout')),
           true) as lock_timeout,
       set_config('enable_seqscan', 'off', true) as seqscan,
       set_config('enable_hashjoin', 'off', true) as hashjoin,
       set_config('enable_mergejoin', 'off', true) as mergejoin;

-- name: due_jobs
-- Jobs with a slot to account for, the longest due first. A job that waits for its own unfinished
-- run is left out by one index probe: a scalar subquery, which no plan can turn into a scan.
select d.id
from yamlsched.job_definitions d
where d.namespace = %(namespace)s
  and d.next_slot_at <= :now
  and (d.overlap <> 'wait' or d.after <> '{}' or (
      select r.id
      from yamlsched.job_runs r
      where r.namespace = d.namespace and r.definition_id = d.id and r.finished_at is null
        and r.exclusive
      order by r.priority, r.run_at, r.id
      limit 1
  ) is null)
order by d.next_slot_at, d.id;

-- name: lock_due_jobs
-- Jobs that another sync has locked are skipped, and jobs that it has processed are no longer due.
select d.id
from yamlsched.job_definitions d
where d.id = any (%(ids)s::bigint[]) and d.next_slot_at <= %(now)s
order by d.id
for no key update skip locked;

-- name: earliest_open_slots
-- The earliest slot of each job that has an unfinished run, and that run. A separate statement,
-- after the lock: it must see the runs that the previous holder of the lock created.
select s.id, o.slot, o.run_id
from unnest(%(ids)s::bigint[]) as s (id)
cross join lateral (
    select r.scheduled_for as slot, r.id as run_id
    from yamlsched.job_runs r
    where r.namespace = %(namespace)s and r.definition_id = s.id and r.finished_at is null
      and r.exclusive
    order by r.scheduled_for
    limit 1
) o;

-- name: key_holders
-- Which runs these keys belong to, now or before; a pruned run has no status.
select k.key, h.job_type, h.scheduled_for, h.run_id, h.status, h.pruned_at
from unnest(%(keys)s::text[]) as k (key)
cross join lateral (
    select r.job_type, r.scheduled_for, r.id as run_id, r.status, null::timestamptz as pruned_at
    from yamlsched.job_runs r
    where r.namespace = %(namespace)s and r.idempotency_key = k.key
    union all
    select u.job_type, u.scheduled_for, u.run_id, null, u.pruned_at
    from yamlsched.used_keys u
    where u.namespace = %(namespace)s and u.idempotency_key = k.key
    limit 1
) h;

-- name: create_runs
-- The unique index on the key makes a second run impossible, however many ticks race. A key remains
-- used after its run was pruned. A statement that reads both tables finds the key of a run that is
-- being pruned in one of them; the index alone would wait for the prune, and then accept the key
-- again. The caller compares the row count.
insert into yamlsched.job_runs
    (namespace, definition_id, job_type, payload, idempotency_key, scheduled_for, run_at, late_at,
     finish_by, priority, max_attempts, exclusive, queue, by_hand, created_at, updated_at)
select d.namespace, d.id, d.job_type, d.payload, s.key, s.slot, s.run_at,
       greatest(s.run_at, e.turn_at, case when %(by_hand)s then %(now)s::timestamptz end)
           + d.start_within,
       case when not %(by_hand)s then s.slot + d.finish_within end, d.priority, d.max_attempts,
       d.overlap <> 'allow', d.queue, %(by_hand)s, %(now)s, %(now)s
from unnest(%(definition_id)s::bigint[], %(key)s::text[], %(slot)s::timestamptz[],
    %(run_at)s::timestamptz[])
    with ordinality as s (id, key, slot, run_at, nth)
cross join lateral (
    select j.*
    from yamlsched.job_definitions j
    where j.id = s.id
    offset 0
) d
left join lateral (  -- a slot that waited for a run of its job could begin when that ended
    select max(x.finished_at) as turn_at
    from (select r.finished_at, r.exclusive from yamlsched.job_runs r
          where r.definition_id = d.id and r.finished_at > s.run_at
          order by r.finished_at desc limit 100) x
    where x.exclusive) e on d.overlap = 'wait' and d.after = '{}'
where (select u.run_id from yamlsched.used_keys u where u.namespace = %(namespace)s
    and u.idempotency_key = s.key) is null
  and (select r.id from yamlsched.job_runs r where r.namespace = %(namespace)s
      and r.idempotency_key = s.key) is null
order by s.nth
on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing;

-- name: record_gaps
-- A gap that starts where the last one of its job and reason ended is the same gap.
with g as materialized (
    select u.*
    from unnest(%(definition_id)s::bigint[], %(first)s::timestamptz[], %(last)s::timestamptz[],
        %(slots)s::int[],
                %(reason)s::text[], %(follows)s::timestamptz[], %(detail)s::text[])
        as u (id, first, last, slots, reason, follows, detail)
), extended as (
    update yamlsched.skipped_slots s
    set last_slot = g.last, slots = s.slots + g.slots
    from g
    where s.definition_id = g.id and s.last_slot = g.follows and s.reason = g.reason
      and s.detail is not distinct from g.detail
      -- what an outage cost has a row of its own, with the time at which it was found
      and (s.reason not in ('late', 'superseded')
          or s.recorded_at > %(now)s::timestamptz - interval '1 hour')
    returning s.definition_id, s.last_slot
)
insert into yamlsched.skipped_slots (definition_id, first_slot, last_slot, slots, reason, detail,
    recorded_at)
select g.id, g.first, g.last, g.slots, g.reason, g.detail, %(now)s
from g
where not exists (select from extended e where e.definition_id = g.id and e.last_slot = g.last);

-- name: move_cursors
-- The caller has locked the definitions. A cursor other than the one that was read is not moved.
update yamlsched.job_definitions d
set last_slot_at = m.last_slot_at, next_slot_at = m.next_slot_at
from unnest(%(definition_id)s::bigint[], %(before)s::timestamptz[], %(last_slot_at)s::timestamptz[],
            %(next_slot_at)s::timestamptz[])
    as m (id, before, last_slot_at, next_slot_at)
where d.id = m.id and d.last_slot_at is not distinct from m.before;

-- name: note_failures
-- Store why the slots of jobs could not be written, and that those of the others could: see
-- job_definitions.slots_error.
update yamlsched.job_definitions d
set slots_error = j.error
from (select n.id, f.error
      from yamlsched.job_definitions n
      left join unnest(%(names)s::text[], %(errors)s::text[]) as f (name, error)
        on f.name = n.job_type
      where n.namespace = %(namespace)s and n.slots_error is distinct from f.error
        and (f.name is not null or coalesce(n.next_slot_at > %(now)s, true))) j
where d.id = j.id;
