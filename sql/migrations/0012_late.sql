-- When a job is late, as its file says. Adds columns with constant defaults, which writes no row: job_definitions and job_runs
-- are locked for a moment. Replaces functions and views.
-- oldest_supported: 3

alter table yamlsched.job_definitions
    add column start_within interval not null default '15 minutes',
    add column finish_within interval, add column resumed_at timestamptz,  -- null: no limit; when an operator resumed the job last
    add column slots_error text;  -- why its due slots could not be written; null: they could
create index job_definitions_slots_error on yamlsched.job_definitions (namespace) where slots_error is not null;

-- Since when a run could begin: its slot or run_at, without the time in which it waited for a pause, its turn or other jobs. A
-- retry moves run_at, so a retried run counts from its slot, at the earliest from its creation or release: it may be of a backfill.
create function yamlsched.could_begin_at(r yamlsched.job_runs, spread interval) returns timestamptz
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select greatest(r.ready_at, case when r.attempts > 1 or r.status = 'failed' then greatest(r.scheduled_for + spread, r.created_at, r.released_at)
                                     when r.scheduled_for is null then greatest(r.run_at, r.created_at) else r.run_at end)
$$;

-- Since when and why a job is late, and the slot that is; null: it is not. The one definition. Late is
-- 1. a slot or a due run that has not begun for longer than start_within since it could: since its slot or run_at, without
--    the time in which it waited for a pause, for a run of its own job, or for the jobs that it follows;
-- 2. a slot of which no run has succeeded within finish_within, unless it was skipped, cancelled or backfilled;
-- 3. for an hour, a slot that was not run because it was too old, or because a run died that it waited for.
-- A finished run is read only where it may decide: the latest of the job, by index, until one does.
create function yamlsched.late(d yamlsched.job_definitions, out since timestamptz, out why text, out slot timestamptz)
    language plpgsql stable strict set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan set enable_sort = off set enable_bitmapscan = off  -- planning takes longer than all else
as $$
declare
    now     timestamptz := clock_timestamp();
    slot_at timestamptz := case when d.next_slot_at <= now then d.next_slot_at end;  -- a slot without a run
    runs    record;
begin
    select min(r.due_at) filter (where r.status = 'running') as engine_at, min(r.due_at) filter (where not r.in_turn) as free_at,
           case when not bool_or(r.in_turn and r.status = 'running') then min(r.due_at) filter (where r.in_turn) end as turn_at,
           max(r.failed_at) filter (where r.in_turn) as failed_at, bool_or(r.in_turn) as has_turns,
           min(r.scheduled_for) as slot, min(r.scheduled_for) filter (where not r.by_hand) as unfinished into runs
    from (select o.status, o.failed_at, o.scheduled_for, o.by_hand, o.exclusive and not o.unreleased as in_turn,
                 case when not o.unreleased and least(o.run_at, t.withdrawn_at) <= now and (o.status <> 'running' or not t.has_begun)
                      then greatest(least(o.run_at, t.withdrawn_at), o.created_at, o.released_at, o.ready_at) end as due_at
          from yamlsched.job_runs o
          left join lateral (  -- of an executor: what it has never begun has waited since it was withdrawn first
              select coalesce(bool_or(b.locked_by = o.locked_by and b.agent is not null), false) as has_begun,
                     case when bool_or(b.agent is not null) is not true then min(b.begun_at) end as withdrawn_at
              from yamlsched.attempt_begins b where b.run_id = o.id) t on o.lane not in ('local', 'shared')
          where o.definition_id = d.id and o.finished_at is null) r;
    -- of a job that follows others it gets a run at once
    slot_at := case when (d.overlap = 'wait' and d.after = '{}' and runs.has_turns) is not true then slot_at end;
    slot := least(runs.turn_at, slot_at);
    if slot < now - d.start_within then
        slot := greatest(slot, runs.failed_at, (
            select e.finished_at from (select r.finished_at, r.exclusive from yamlsched.job_runs r
                                       where r.definition_id = d.id and r.finished_at > slot order by r.finished_at desc limit 100) e
            where e.exclusive limit 1));
    end if;
    since := least(runs.free_at, runs.engine_at, slot);
    why := case when since = runs.engine_at then 'its executor has not begun its run'
                when slot_at <= coalesce(least(runs.free_at, runs.turn_at), 'infinity') then 'no sync has created the run of its slot'
                else 'no worker has claimed its run' end;
    since := case when since is not null then greatest(since, d.resumed_at, d.paused_until) end;
    since := case when since < now - d.start_within then since end;
    slot := coalesce(runs.slot, d.next_slot_at);
    if since is null and d.finish_within is not null then
        slot := (select max(x.scheduled_for) from (select r.scheduled_for, r.by_hand from yamlsched.job_runs r
                 where r.definition_id = d.id and r.dead_at is not null order by r.dead_at desc limit 100) x
                 where x.scheduled_for < now - d.finish_within and not x.by_hand);
        slot := least(runs.unfinished, d.next_slot_at, case when not exists (
            select from (select r.status, r.scheduled_for from yamlsched.job_runs r
                         where r.definition_id = d.id and r.finished_at >= slot order by r.finished_at desc limit 1000) e
            where e.status = 'succeeded' and e.scheduled_for >= slot) then slot end);
        since := case when slot < now - d.finish_within then slot end;
        why := 'not finished: the run of its slot has not succeeded';
    end if;
    if since is null then
        select min(s.first_slot), max(s.last_slot), case bool_or(s.reason = 'late') when true then 'its slot was not run'
                                                    when false then 'a run died that it waited for' end into since, slot, why
        from yamlsched.skipped_slots s
        where s.definition_id = d.id and s.recorded_at > now - interval '1 hour' and (s.reason = 'late' or s.reason = 'upstream' and (
            select r.dead_at from yamlsched.job_runs r where r.id = substring(s.detail, ':([0-9]{1,18})$')::bigint) is not null);
    end if;
end
$$;

-- Whether an unfinished run fails again and again: 3 failed attempts, or, of a budget below 4, all but the last one.
-- Counted since an operator's retry, and without the attempt that is running.
create function yamlsched.is_failing(r yamlsched.job_runs) returns boolean
    language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select r.finished_at is null and r.failed_at is not null
       and r.attempts - r.prior_attempts - (r.status = 'running')::integer
           >= greatest(1, least(3, r.max_attempts - r.prior_attempts - 1))
$$;

-- One row per job: its unfinished runs, and whether it is late. Without a job that may be late, no finished run is read.
-- failing: runs that fail again and again, by the rule of is_failing, which would take too long here; no calls of on_dead.
create or replace view yamlsched.job_queues as
select d.namespace, d.job_type, d.id as definition_id, d.tags, d.enabled, d.retired_at, d.effective_from, state.paused,
       coalesce(open.queued, 0) as queued, coalesce(open.running, 0) as running, coalesce(open.failed, 0) as failed,
       coalesce(open.failing, 0) as failing, coalesce(open.failed_runs, 0) as failed_runs,
       coalesce(open.failed_attempts, 0) as failed_attempts, open.failed_at, open.oldest_due_at, open.slot_run_id,
       l.since as overdue_since, l.why as overdue_why, l.slot as overdue_slot
from yamlsched.job_definitions d
left join (
    select r.definition_id,
           count(*) filter (where r.status = 'queued') as queued,
           count(*) filter (where r.status = 'running') as running,
           count(*) filter (where r.status = 'failed') as failed,
           count(*) filter (where r.failed_attempts >= r.failing_from and not r.is_call) as failing,
           count(*) filter (where r.failed_at is not null) as failed_runs, max(r.failed_at) as failed_at,
           coalesce(sum(r.failed_attempts) filter (where not r.is_call), 0) as failed_attempts,
           least(min(r.late_from) filter (where not r.exclusive),
                 case when bool_or(r.exclusive and r.status = 'running') is not true
                      then min(r.late_from) filter (where r.exclusive) end) as oldest_due_at,
           min(r.id) filter (where r.exclusive) as slot_run_id
    from (select o.definition_id, o.id, o.status, o.failed_at, o.exclusive and not o.unreleased as exclusive,
                 -- a run is late at the earliest from its creation on, even if its run_at is earlier
                 case when o.status <> 'running' and o.run_at <= clock_timestamp() and not o.unreleased
                      then greatest(o.run_at, o.created_at) end as late_from,
                 coalesce(o.idempotency_key like 'on\_dead:%', false) as is_call,
                 greatest(1, least(3, o.max_attempts - o.prior_attempts - 1)) as failing_from,
                 case when o.failed_at is not null
                      then greatest(o.attempts - o.prior_attempts - (o.status = 'running')::integer, 0)
                      else 0 end as failed_attempts
          from yamlsched.open_runs o) r
    group by r.definition_id
) open on open.definition_id = d.id
cross join lateral (
    select d.paused_at is not null and coalesce(d.paused_until > clock_timestamp(), true) as paused
) state
cross join lateral yamlsched.late(case  -- asked only where a job may be late, because it reads more
    when d.enabled and d.retired_at is null and not state.paused
         and (least(open.oldest_due_at, d.next_slot_at) < clock_timestamp() - d.start_within
              or d.executor <> 'local'
              or d.finish_within is not null
                 and (open.definition_id is not null or d.next_slot_at < clock_timestamp() - d.finish_within
                      or exists (select from yamlsched.job_runs r where r.definition_id = d.id and r.dead_at is not null))
              or exists (select from yamlsched.skipped_slots s where s.definition_id = d.id
                           and s.reason in ('late', 'upstream') and s.recorded_at > clock_timestamp() - interval '1 hour'))
    then d end) l;

-- One row per job: its state in one word; if several apply, the most severe. Of its finished runs only the latest one is
-- read, unless that is not a success. Calls of on_dead do not count for the job's own health.
create or replace view yamlsched.job_states as
select q.namespace, q.job_type, q.definition_id,
       case when q.retired_at is not null then 'retired'
            when stuck.definition_id is not null then 'stuck'
            when q.overdue_since is not null then 'late'
            when failure.has_died then 'dead'
            when q.failing > 0 then 'failing'
            when failure.is_failing then 'retrying'
            when q.paused then 'paused'
            when not q.enabled then 'disabled'
            when q.running > 0 then 'running'
            when success.finished_at is not null then 'ok'
            else 'new' end as state,
       failure.is_failing, success.finished_at as last_success_at, success.run_id as last_success_run_id,
       latest.finished_at as last_end_at, latest.locked_by as last_worker, q.paused, q.queued, q.running, q.failed,
       q.failing, q.failed_runs, q.failed_attempts, q.failed_at, q.oldest_due_at, q.slot_run_id, q.overdue_since, q.overdue_why
from yamlsched.job_queues q
left join (select distinct s.definition_id from yamlsched.stuck_runs s) stuck on stuck.definition_id = q.definition_id
left join lateral (
    select r.id as run_id, r.finished_at, r.locked_by,
           r.status = 'succeeded' and coalesce(r.idempotency_key not like 'on\_dead:%', true) as is_success
    from yamlsched.job_runs r
    where r.definition_id = q.definition_id and r.finished_at is not null
    order by r.finished_at desc limit 1
) latest on true
left join lateral (
    select r.id as run_id, r.finished_at
    from yamlsched.job_runs r
    where not latest.is_success and r.definition_id = q.definition_id and r.finished_at is not null
      and r.status = 'succeeded' and coalesce(r.idempotency_key not like 'on\_dead:%', true)
    order by r.finished_at desc limit 1
) earlier on true
cross join lateral (
    select case when latest.is_success then latest.run_id else earlier.run_id end as run_id,
           case when latest.is_success then latest.finished_at else earlier.finished_at end as finished_at
) success
cross join lateral (
    -- is_failing: the streak of job_health is not empty; has_died: a run died since the last success. What is known
    -- already spares most jobs the look. The order makes the planner use the index
    select coalesce(q.failed_at > coalesce(success.finished_at, '-infinity') or not latest.is_success, false)
           and (select r.failed_at
                from yamlsched.job_runs r
                where r.definition_id = q.definition_id and r.failed_at > coalesce(success.finished_at, '-infinity')
                  and r.status <> 'cancelled' and coalesce(r.idempotency_key not like 'on\_dead:%', true)
                order by r.failed_at desc limit 1) is not null as is_failing,
           coalesce(not latest.is_success, false)
           and (select r.dead_at
                from yamlsched.job_runs r
                where r.definition_id = q.definition_id and r.dead_at > coalesce(success.finished_at, '-infinity')
                  and coalesce(r.idempotency_key not like 'on\_dead:%', true)
                order by r.dead_at desc limit 1) is not null as has_died
) failure;

-- The jobs with targets of notifications that are late, with the slot that is, and whether that was skipped.
create view yamlsched.late_jobs as
select q.namespace, q.definition_id, q.overdue_since as late_since, q.overdue_slot as slot,
       q.overdue_why in ('its slot was not run', 'a run died that it waited for') as was_skipped
from yamlsched.job_queues q join yamlsched.job_definitions d on d.id = q.definition_id where q.overdue_since is not null and d.notify <> '{}';

-- The unfinished run of a job that fails again and again, looked for among its last 1,000 failures; null: there is none.
create function yamlsched.failing_run(job bigint) returns bigint
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select f.id
    from (select r.id, yamlsched.is_failing(r) as is_failing from yamlsched.job_runs r
          where r.definition_id = job and r.failed_at is not null order by r.failed_at desc limit 1000) f
    where f.is_failing limit 1
$$;

-- What is so now of a job, of the events that a target has.
create function yamlsched.events_now(n yamlsched.notifications, events text[], now timestamptz) returns text[]
    language sql stable set search_path = pg_catalog, pg_temp
as $$
    select array(
        select e.event from unnest(events) as e (event)
        where case e.event
              when 'dead' then n.dead_runs > n.told_runs or yamlsched.is_still_dead(n.run_id, n.dead_at, now)
              when 'failing' then yamlsched.failing_run(n.definition_id) is not null
              when 'late' then n.late_since is not null else false end)
$$;

-- Note that runs, which this transaction has ended or which it retries, are dead or fail again and again.
create function yamlsched.note_runs(of_namespace text, runs bigint[], now timestamptz) returns void
    language sql set search_path = pg_catalog, pg_temp
as $$
    select yamlsched.note(of_namespace, e.event, e.jobs, now)
    from (select j.event, jsonb_agg(to_jsonb(j)) as jobs
          from (select case when r.dead_at is null then 'failing' else 'dead' end as event,
                       r.definition_id, max(r.scheduled_for) as slot, max(r.dead_at) as dead_at,
                       count(r.dead_at) as dead_runs,
                       (array_agg(r.id order by r.dead_at desc, r.id desc)
                            filter (where r.dead_at is not null))[1] as run_id
                from yamlsched.job_runs r
                join yamlsched.job_definitions d on d.id = r.definition_id and d.notify <> '{}'
                where r.id = any (runs) and (r.dead_at is not null or yamlsched.is_failing(r))
                group by 1, 2) j
          group by j.event) e
$$;
