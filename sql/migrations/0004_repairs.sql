-- Privileges, figures and claims after the reviews of 0003. Replaces functions and views and creates small tables and
-- an index of skipped_slots; locks and rewrites nothing that may be large.
-- oldest_supported: 3

-- Privileges

-- What depends on runs goes with them. Only the trigger of job_runs may call it: it acts with its owner's privileges,
-- and who attached it to a table of their own could choose the ids.
create or replace function yamlsched.delete_of_runs() returns trigger
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off  -- a plan that was made for empty tables
as $$
declare
    ids bigint[];
begin
    if tg_relid <> 'yamlsched.job_runs'::regclass then
        raise exception 'yamlsched.delete_of_runs is the trigger of yamlsched.job_runs only' using errcode = 'insufficient_privilege';
    end if;
    ids := array(select g.id from gone g);
    if ids <> '{}' then
        delete from yamlsched.job_failures f where f.run_id = any (ids);
        delete from yamlsched.attempt_outputs o where o.run_id = any (ids);
        delete from yamlsched.attempt_progress p where p.run_id = any (ids);
        delete from yamlsched.attempt_begins b where b.run_id = any (ids);
    end if;
    return null;
end
$$;

-- Figures

-- Runs whose retries are exhausted. They need `yamlsched retry`, or are pruned after retention.dead. Calls of on_dead are
-- no runs of the job: every figure counts them by themselves, or not at all.
create or replace view yamlsched.dead_runs as
select r.namespace, r.job_type, r.id as run_id, r.idempotency_key, r.scheduled_for, r.attempts,
       r.dead_at, r.error_type, r.last_error, r.locked_by as worker, r.definition_id,
       coalesce(r.idempotency_key like 'on\_dead:%', false) as is_call
from yamlsched.job_runs r
where r.dead_at is not null;

-- One row per job: its unfinished runs, and whether it is overdue. No finished run is read.
-- overdue_since: a slot has passed and no sync has created its run, or a run is due and no worker has claimed it. A slot
-- or a run that waits for another slot's run of its job is not overdue.
-- failing: runs with a failed attempt, since an operator's retry and without the attempt that is running; no calls of
-- on_dead.
create or replace view yamlsched.job_queues as
select d.namespace, d.job_type, d.id as definition_id, d.tags, d.enabled, d.retired_at, d.effective_from, state.paused,
       coalesce(open.queued, 0) as queued, coalesce(open.running, 0) as running, coalesce(open.failed, 0) as failed,
       coalesce(open.failing, 0) as failing, coalesce(open.failed_runs, 0) as failed_runs,
       coalesce(open.failed_attempts, 0) as failed_attempts, open.failed_at, open.oldest_due_at, open.slot_run_id,
       case when least(state.due_slot_at, open.oldest_due_at) < clock_timestamp() - interval '2 minutes'
                 and d.enabled and d.retired_at is null and not state.paused
            then least(state.due_slot_at, open.oldest_due_at) end as overdue_since,
       case when state.due_slot_at <= coalesce(open.oldest_due_at, 'infinity') then 'no sync has created the run of its slot'
            else 'no worker has claimed its run' end as overdue_why
from yamlsched.job_definitions d
left join (
    select r.definition_id,
           count(*) filter (where r.status = 'queued') as queued,
           count(*) filter (where r.status = 'running') as running,
           count(*) filter (where r.status = 'failed') as failed,
           count(*) filter (where r.failed_attempts > 0 and not r.is_call) as failing,
           count(*) filter (where r.failed_at is not null) as failed_runs, max(r.failed_at) as failed_at,
           coalesce(sum(r.failed_attempts) filter (where not r.is_call), 0) as failed_attempts,
           least(min(r.late_from) filter (where not r.exclusive),
                 case when bool_or(r.exclusive and r.status = 'running') is not true
                      then min(r.late_from) filter (where r.exclusive) end) as oldest_due_at,
           min(r.id) filter (where r.exclusive) as slot_run_id
    from (select o.definition_id, o.id, o.status, o.failed_at, o.exclusive,
                 -- a run is late at the earliest from its creation on, even if its run_at is earlier
                 case when o.status <> 'running' and o.run_at <= clock_timestamp()
                      then greatest(o.run_at, o.created_at) end as late_from,
                 coalesce(o.idempotency_key like 'on\_dead:%', false) as is_call,
                 case when o.failed_at is not null
                      then greatest(o.attempts - o.prior_attempts - (o.status = 'running')::integer, 0)
                      else 0 end as failed_attempts
          from yamlsched.open_runs o) r
    group by r.definition_id
) open on open.definition_id = d.id
cross join lateral (
    select d.paused_at is not null and coalesce(d.paused_until > clock_timestamp(), true) as paused,
           case when d.overlap <> 'wait' or open.slot_run_id is null then d.next_slot_at end as due_slot_at
) state;

-- One row per job: its state, its last results, its unfinished runs, and whether it is overdue.
-- failure_streak: the runs whose latest failed attempt is later than the job's last success: dead, waiting for a retry or
-- running again, but not cancelled. attempt_streak: their attempts that failed after it, since an operator's retry.
create or replace view yamlsched.job_health as
select s.namespace, s.job_type, s.definition_id, d.description, d.owner, d.tags, d.schedule, d.timezone,
       d.enabled, d.retired_at, d.effective_from, d.next_slot_at, d.last_slot_at,
       d.paused_at, d.paused_until, d.paused_by, d.paused_reason, s.paused, s.state,
       s.last_end_at, s.last_worker, s.last_success_at, s.last_success_run_id,
       failed.failed_at as last_failure_at, failed.run_id as last_failure_run_id, failed.last_error, failed.error_type,
       streak.runs as failure_streak, streak.attempts as attempt_streak,
       s.failing, s.queued, s.running, s.failed, s.oldest_due_at, s.slot_run_id as open_slot_run_id, s.overdue_since, s.overdue_why,
       d.overlap
from yamlsched.job_states s
join yamlsched.job_definitions d on d.id = s.definition_id
left join lateral (
    select r.id as run_id, r.failed_at, r.last_error, r.error_type
    from yamlsched.job_runs r
    where r.definition_id = s.definition_id and r.failed_at is not null
    order by r.failed_at desc limit 1
) failed on true
left join lateral (
    -- a streak is counted up to a thousand
    select count(*) as runs, coalesce(sum(x.attempts), 0) as attempts
    from (select case when r.created_at <= s.last_success_at
                      then (select count(*)::integer from yamlsched.job_failures f
                            where f.run_id = r.id and f.failed_at > s.last_success_at and f.attempt > r.prior_attempts)
                      else greatest(r.attempts - r.prior_attempts - (r.status = 'running')::integer,
                                    (r.status = 'dead')::integer) end as attempts
          from yamlsched.job_runs r
          where s.is_failing and r.definition_id = s.definition_id
            and r.failed_at > coalesce(s.last_success_at, '-infinity')
            and r.status <> 'cancelled' and coalesce(r.idempotency_key not like 'on\_dead:%', true)
          order by r.failed_at desc limit 1000) x
) streak on true;

-- The hosts that executed runs within the hour, and when each was last seen: when it claimed a run, or ended an attempt
-- itself. Who ends a run after its worker was lost, or cancels it, did not see that host. Of each job the runs that ended
-- last are read: 10,000 in all, but at least three of a job. A claim is named host:pid:random.
create view yamlsched.seen_hosts as
select w.namespace, w.host, sum(w.running)::integer as running, max(w.seen_at) as seen_at
from (
    select r.namespace, regexp_replace(r.locked_by, ':[^:]*:[^:]*$', '') as host,
           (r.status = 'running')::integer as running,
           case when r.status = 'succeeded' then r.finished_at
                when r.status = 'failed' or r.status = 'dead' and r.error_type not in ('LostWorker', 'AttemptsExhausted')
                then r.failed_at
                else r.started_at end as seen_at
    from (
        select o.namespace, o.locked_by, o.status, o.started_at, o.failed_at, null::timestamptz as finished_at,
               null::text as error_type
        from yamlsched.open_runs o
        where o.locked_by is not null
        union all
        select d.namespace, r.locked_by, r.status, r.started_at, r.failed_at, r.finished_at, r.error_type
        from yamlsched.job_definitions d
        cross join lateral (
            select e.locked_by, e.status, e.started_at, e.failed_at, e.finished_at, e.error_type
            from yamlsched.job_runs e
            where e.definition_id = d.id and e.finished_at > (select clock_timestamp() - interval '1 hour')
            order by e.finished_at desc
            limit (select greatest(3, 10000 / greatest(count(*), 1)) from yamlsched.job_definitions n)
        ) r
        where r.locked_by is not null
    ) r
) w
where w.running > 0 or w.seen_at > (select clock_timestamp() - interval '1 hour')
group by w.namespace, w.host;

-- Slots that were lost in an outage are recorded after it: reports look for gaps by that time, too. Skipped slots are few
-- beside runs; a sync that records some waits while this index is created.
create index skipped_slots_recorded on yamlsched.skipped_slots (definition_id, recorded_at);

-- Claims

-- The variables that a host needs to start the job. A default that does not change: no row is written.
alter table yamlsched.job_definitions add column requires_env text[] not null default '{}';

-- Jobs that a place cannot start: a host, and the path of its schedules.yaml. Its workers do not claim their runs. A place
-- is asked only while it ticks, and writes only while something is due.
create table yamlsched.lacks (
    definition_id bigint not null references yamlsched.job_definitions (id) on delete cascade,
    host          text not null,
    path          text not null,
    reason        text not null,
    waits         boolean not null,      -- for what requires_env asks, or an executor: the run is late, and never dead
    executor      text,                  -- whose fault it is: it may end at any time, and workers try
    since         timestamptz not null,
    checked_at    timestamptz not null,
    primary key (host, path, definition_id)
);
create index lacks_of_definition on yamlsched.lacks (definition_id);
