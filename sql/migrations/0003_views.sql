-- Views for psql and for monitoring. Creates only. Each is fast with millions of finished runs: unfinished, dead and
-- newest runs are found by index, without reading the history.

-- Unfinished runs. Two branches, because each has its own index.
create view yamlsched.open_runs as
select r.id, r.namespace, r.definition_id, r.job_type, r.idempotency_key, r.scheduled_for, r.run_at, r.status,
       r.attempts, r.max_attempts, r.exclusive, r.locked_by, r.locked_until, r.started_at, r.failed_at, r.last_error,
       r.created_at, r.prior_attempts
from yamlsched.job_runs r
where r.finished_at is null and not r.exclusive
union all
select r.id, r.namespace, r.definition_id, r.job_type, r.idempotency_key, r.scheduled_for, r.run_at, r.status,
       r.attempts, r.max_attempts, r.exclusive, r.locked_by, r.locked_until, r.started_at, r.failed_at, r.last_error,
       r.created_at, r.prior_attempts
from yamlsched.job_runs r
where r.finished_at is null and r.exclusive;

-- Runs whose retries are exhausted. They need `yamlsched retry`, or are pruned after retention.dead.
create view yamlsched.dead_runs as
select r.namespace, r.job_type, r.id as run_id, r.idempotency_key, r.scheduled_for, r.attempts,
       r.dead_at, r.error_type, r.last_error, r.locked_by as worker
from yamlsched.job_runs r
where r.dead_at is not null;

-- Runs that are past their lease (no worker claimed them again) or past their timeout (their worker did not stop them).
-- A healthy worker does each within a minute, so a run is stuck after one more minute.
create view yamlsched.stuck_runs as
select r.namespace, r.job_type, r.id as run_id, r.idempotency_key, r.attempts, r.max_attempts,
       r.locked_by as worker, r.started_at, r.locked_until,
       case when r.locked_until < clock_timestamp() - interval '1 minute' then 'past its lease'
            else 'past its timeout' end as why,
       r.definition_id
from yamlsched.open_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
where r.status = 'running'
  and (r.locked_until < clock_timestamp() - interval '1 minute'
       or r.started_at + d.timeout + interval '1 minute' < clock_timestamp());

-- Effects for which it is unknown whether they happened: an exception left the block without a proof that nothing
-- happened, or the process died inside it. waits_for: 'retry' if the run's next attempt applies in_doubt, else 'person':
-- find out whether it happened, then run `yamlsched settle KEY`. provider_key is the key that the provider received.
create view yamlsched.effects_in_doubt as
select e.namespace, e.key, e.provider_key, e.run_id, r.job_type, r.status as run_status, e.attempt, e.claimed_at,
       e.doubted_at,
       case when r.status in ('queued', 'failed', 'running') then 'retry' else 'person' end as waits_for
from yamlsched.effects e
left join yamlsched.job_runs r on r.id = e.run_id
where e.state <> 'done'
  and (e.state = 'in_doubt'
       or (r.locked_by = e.locked_by and r.attempts = e.attempt
           and (r.status = 'running' or r.held_until > clock_timestamp())) is not true);

-- One row per job: its unfinished runs, and whether it is overdue. No finished run is read.
-- overdue_since: a slot has passed and no sync has created its run, or a run is due and no worker has claimed it. A slot
-- or a run that waits for another slot's run of its job is not overdue.
-- failing: runs with a failed attempt, since an operator's retry and without the attempt that is running.
create view yamlsched.job_queues as
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
           count(*) filter (where r.failed_attempts > 0) as failing,
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

-- One row per job: its state in one word; if several apply, the most severe. Of its finished runs only the latest one is
-- read, unless that is no success. Calls of on_dead do not describe the job's own health: they are left out of the last
-- success and the streak.
create view yamlsched.job_states as
select q.namespace, q.job_type, q.definition_id,
       case when q.retired_at is not null then 'retired'
            when stuck.definition_id is not null then 'stuck'
            when q.overdue_since is not null then 'late'
            when failure.is_failing then 'failing'
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
    -- a run has died since the last success, or waits after a failed attempt; the order makes the planner use the index
    select coalesce(q.failed_at > coalesce(success.finished_at, '-infinity'), false)
           or (not latest.is_success
               and (select r.dead_at
                    from yamlsched.job_runs r
                    where r.definition_id = q.definition_id and r.dead_at > coalesce(success.finished_at, '-infinity')
                      and coalesce(r.idempotency_key not like 'on\_dead:%', true)
                    order by r.dead_at desc limit 1) is not null) as is_failing
) failure;

-- One row per job: its state, its last results, its unfinished runs, and whether it is overdue.
-- attempt_streak: the failed attempts of the runs of the streak; it rises while a run is retried.
create view yamlsched.job_health as
select s.namespace, s.job_type, s.definition_id, d.description, d.owner, d.tags, d.schedule, d.timezone,
       d.enabled, d.retired_at, d.effective_from, d.next_slot_at, d.last_slot_at,
       d.paused_at, d.paused_until, d.paused_by, d.paused_reason, s.paused, s.state,
       s.last_end_at, s.last_worker, s.last_success_at, s.last_success_run_id,
       failed.failed_at as last_failure_at, failed.run_id as last_failure_run_id, failed.last_error, failed.error_type,
       streak.dead + case when s.failed_at > coalesce(s.last_success_at, '-infinity') then s.failed_runs else 0 end
           as failure_streak,
       streak.attempts + case when s.failed_at > coalesce(s.last_success_at, '-infinity') then s.failed_attempts else 0 end
           as attempt_streak,
       s.failing, s.queued, s.running, s.failed, s.oldest_due_at, s.slot_run_id as open_slot_run_id, s.overdue_since, s.overdue_why
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
    select count(*) as dead, coalesce(sum(greatest(latest.attempts, 1)), 0) as attempts
    from (select r.attempts - r.prior_attempts as attempts
          from yamlsched.job_runs r
          where s.is_failing and r.definition_id = s.definition_id
            and r.dead_at > coalesce(s.last_success_at, '-infinity')
            and coalesce(r.idempotency_key not like 'on\_dead:%', true)
          order by r.dead_at desc limit 1000) latest
) streak on true;

-- Jobs with a slot or a run that is overdue.
create view yamlsched.overdue_jobs as
select q.namespace, q.job_type, q.overdue_since as due_since, clock_timestamp() - q.overdue_since as late_by,
       q.overdue_why as why
from yamlsched.job_queues q
where q.overdue_since is not null;

-- Every change of a job by a file: what changed, field by field, and in which commit. Values that look like secrets are
-- '***'. An edit that changes no job has a row in yamlsched.edits only.
create view yamlsched.definition_changes as
select e.namespace, e.environment, d.job_type, c.change, c.before, c.after, e.hash, e.commit, e.is_dirty, e.author, e.subject,
       e.host, e.path, e.applied_at, e.id as edit_id
from yamlsched.edited_jobs c
join yamlsched.edits e on e.id = c.edit_id
join yamlsched.job_definitions d on d.id = c.definition_id;
