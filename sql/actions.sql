-- Actions of operators. Every statement that changes a run or a job states its whole precondition:
-- what was read before may have changed.

-- name: lock_jobs
-- The jobs of the runs, locked against a sync that edits them: its changes to unfinished runs would
-- miss a run that becomes unfinished at the same time. Executed before runs.lock, in the order in
-- which a sync locks.
select d.id
from yamlsched.job_definitions d
where d.id = any (array(select r.definition_id from yamlsched.job_runs r
    where r.id = any (%(ids)s::bigint[])))
order by d.id
for share;

-- name: run_states
-- Runs, and what decides whether they can be retried and what a retry or a cancel leads to. What
-- waits for a run, or for all that its parent has enqueued, and what was skipped because of it, is
-- looked for if it has ended.
select r.id, r.namespace, r.job_type, r.status, r.attempts,
       r.max_attempts, r.run_at, r.started_at, r.finished_at, r.locked_by as worker, r.locked_until,
       r.last_error, r.error_type, r.payload,
       d.max_attempts as budget, d.on_dead, d.enabled, d.retired_at,
       d.paused_at is not null and coalesce(d.paused_until > c.now, true) as paused,
       (select count(*) from yamlsched.effects e
        where e.run_id = r.id and e.state = 'done') as effects_done,
       array(select e.key from yamlsched.effects_in_doubt e
             where e.run_id = r.id and e.waits_for = 'person' order by e.key
             limit 20) as effects_in_doubt,
       case when r.finished_at is not null and i.is_awaited then array(
           select w.job_type || ' (run ' || w.id || ')'
           from yamlsched.awaits a
           join yamlsched.job_runs w on w.id = a.run_id and w.unreleased and w.finished_at is null
           join yamlsched.job_definitions f on f.id = w.definition_id
           cross join lateral yamlsched.upstream(a.definition_id, a.slot, c.now) u
           where a.definition_id in (r.definition_id, p.definition_id) and a.outcome is null
             and (u.run_id = r.id or u.run_id = p.id and f.after_enqueued = 'succeeded')
           order by w.job_type, w.id) end as holds_up,
       case when r.finished_at is not null and i.is_awaited then array(
           select distinct f.job_type
           from yamlsched.job_definitions f
           join yamlsched.skipped_slots s on s.definition_id = f.id and s.reason = 'upstream'
           where f.namespace = r.namespace and f.after && array[r.job_type, p.job_type]
             and s.detail = r.job_type || ':' || r.id) end as skipped,
       (select o.id from yamlsched.job_runs o
        where o.unique_key = yamlsched.retry_key(r, d, r.payload) and o.finished_at is null
          and o.id <> r.id) as beside,
       c.now
from yamlsched.job_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
left join lateral (
    select o.* from yamlsched.job_runs o where o.id = r.parent_id offset 0) p on r.hook is null
cross join lateral (select d.is_followed or exists (
    select from yamlsched.awaited_parents(array[p.id])) as is_awaited) i
cross join (select :now as now) c
where r.id = any (%(ids)s::bigint[]);

-- name: retry
-- A finished run gets a new budget in addition to the attempts made, which stay counted; a waiting
-- run is made due. A cancelled run that somebody may execute keeps locked_until, and is not claimed
-- before. Whether it excludes other runs of its job depends on the current definition. `payload`,
-- unless null, replaces the one of the enqueue; it is merged over the job's own. `expected` are the
-- states in which the runs were selected. Of a job with `unique`, one beside an unfinished run is
-- not retried, and of several only the newest: `beside` is the other run.
with clock as (
    select :now as now
), picked as materialized (
    select r.id, p.payload, yamlsched.retry_key(r, d, p.payload) as unique_key
    from yamlsched.job_runs r
    join yamlsched.job_definitions d on d.id = r.definition_id
    cross join lateral (
        select coalesce(d.payload || %(payload)s::text::jsonb, r.payload) as payload) p
    where r.id = any (%(ids)s::bigint[])
      and (r.status in ('dead', 'cancelled', 'failed') or %(force)s
          or (r.status = 'queued' and not r.unreleased))
      and r.status <> 'running'
      and r.status = any (%(expected)s::text[])
      and d.enabled and d.retired_at is null
), judged as materialized (
    select p.*, coalesce(o.id, nullif(case when p.unique_key is not null then first_value(p.id)
               over (partition by p.unique_key, o.id is null order by p.id desc) end, p.id))
               as beside
    from picked p
    left join yamlsched.job_runs o
      on o.unique_key = p.unique_key and o.finished_at is null and o.id <> p.id
), retried as (
    update yamlsched.job_runs r
    set status       = case when r.finished_at is null then r.status else 'queued' end,
        max_attempts = case when r.finished_at is null then r.max_attempts
                            else r.attempts + d.max_attempts end,
        prior_attempts = case when r.finished_at is null then r.prior_attempts else r.attempts end,
        releases     = case when r.finished_at is null then r.releases else 0 end,
        run_at       = case when r.finished_at is null then least(r.run_at, c.now) else c.now end,
        exclusive    = r.scheduled_for is not null and d.overlap <> 'allow',
        payload      = j.payload,
        unique_key   = j.unique_key,
        result       = null,
        blocked_on   = null,
        by_hand      = r.by_hand or r.begun_at is null,
        unreleased   = r.unreleased and not %(force)s,
        late_at      = case when %(force)s or not r.unreleased then c.now + d.start_within end,
        finish_by    = case when r.begun_at is not null then r.finish_by end,
        finished_at  = null,
        dead_at      = null,
        updated_at   = c.now
    from judged j, yamlsched.job_definitions d, clock c
    where r.id = j.id and d.id = r.definition_id
      and r.id = any (array(select w.id from judged w where w.beside is null))
)
select j.id, j.beside from judged j;

-- name: end_waits
-- Store what became of that for which runs waited until they were started by force: their handlers
-- get it.
update yamlsched.awaits a
set outcome = w.outcome, upstream_run_id = w.upstream_run_id,
    enqueued = case when w.after_enqueued is not null and w.upstream_run_id is not null
                    then yamlsched.enqueued(w.upstream_run_id) end
from (select o.run_id, o.definition_id, u.outcome, u.upstream_run_id, d.after_enqueued
      from yamlsched.awaits o
      join yamlsched.job_runs r on r.id = o.run_id and not r.unreleased
      join yamlsched.job_definitions d on d.id = r.definition_id
      cross join lateral yamlsched.awaited(o, :now) u
      where o.run_id = any (%(ids)s::bigint[]) and o.outcome is null) w
where (a.run_id, a.definition_id) = (w.run_id, w.definition_id);

-- name: cancel
-- The writes of a running run's worker fail by the fence from now on, and its handler is killed at
-- the next heartbeat. Until then it keeps locked_until and its permits: what waits for it starts
-- when the worker has killed the handler. A slot run keeps others from starting, whatever the
-- overlap becomes, and `reclaim` finds every one by its permit. `release` follows for the others.
with cancelled as (
    update yamlsched.job_runs r
    set status = 'cancelled', finished_at = :now,
        blocked_on = null, updated_at = :now
    where r.id = any (%(ids)s::bigint[])
      and r.status in ('queued', 'failed', 'running')
      and r.status = any (%(expected)s::text[])
    returning r.id, r.namespace, r.definition_id, r.scheduled_for, r.locked_until
), marked as (
    insert into yamlsched.permits (namespace, name, n, run_id)
    select c.namespace, k.kind || c.definition_id, -c.id, c.id
    from cancelled c
    cross join lateral (values ('job/', c.scheduled_for is not null), ('after/', true))
        as k (kind, is_held)
    where c.locked_until is not null and k.is_held
    on conflict do nothing
)
select c.id, c.namespace, c.locked_until is not null as is_executed from cancelled c;

-- name: set_pauses
-- Write pauses, or null for jobs that are resumed. The jobs are locked. `nexts` are the slots to
-- account for next: null for a pause without an end, because resume then computes them.
update yamlsched.job_definitions d
set paused_at = n.paused_at, paused_until = n.paused_until, paused_by = n.paused_by,
    paused_reason = n.paused_reason, paused_after = null, next_slot_at = n.next_slot_at,
    resumed_at = case when n.paused_at is null then %(now)s::timestamptz else d.resumed_at end,
    updated_at = %(now)s
from unnest(%(ids)s::bigint[], %(starts)s::timestamptz[], %(ends)s::timestamptz[],
            %(whos)s::text[], %(reasons)s::text[], %(nexts)s::timestamptz[])
  as n (id, paused_at, paused_until, paused_by, paused_reason, next_slot_at)
where d.id = n.id and (d.retired_at is null or n.paused_at is null);

-- name: block_closed
-- Block a batch of the runs of a closed job; see the function.
select yamlsched.block_closed(%(namespace)s, %(job)s, %(past)s, %(most)s, :now) as last;

-- name: record
-- The audit trail, written in the transaction of the action.
insert into yamlsched.operator_actions (at, namespace, who, verb, target, job_type, detail)
select :now, t.namespace, %(who)s, %(verb)s, t.target, t.job_type, jsonb_strip_nulls(t.detail)
from jsonb_to_recordset(%(records)s::jsonb)
  as t (namespace text, target text, job_type text, detail jsonb);
