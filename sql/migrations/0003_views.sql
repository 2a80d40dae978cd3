-- Views for people with psql and for monitors. Creates only.

create view yamlsched.dead_runs as
select r.namespace, r.job_type, r.id as run_id, r.idempotency_key, r.scheduled_for, r.attempts,
       r.finished_at as dead_at, r.error_type, r.last_error, r.locked_by as worker
from yamlsched.job_runs r
where r.status = 'dead' and r.finished_at is not null;

create view yamlsched.stuck_runs as
select r.namespace, r.job_type, r.id as run_id, r.idempotency_key, r.attempts, r.max_attempts,
       r.locked_by as worker, r.started_at, r.locked_until,
       case when r.locked_until < clock_timestamp() then 'past its lease' else 'past its timeout' end as why
from yamlsched.job_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
where r.finished_at is null
  and r.status = 'running'
  and (r.locked_until < clock_timestamp() or r.started_at + d.timeout + interval '1 minute' < clock_timestamp());

create view yamlsched.overdue_jobs as
select d.namespace, d.job_type, d.next_slot_at as due_since, clock_timestamp() - d.next_slot_at as late_by
from yamlsched.job_definitions d
where d.next_slot_at < clock_timestamp() - interval '2 minutes'
  and d.retired_at is null and d.enabled
  and (d.paused_at is null or d.paused_until <= clock_timestamp())
union all
select r.namespace, r.job_type, min(r.run_at), clock_timestamp() - min(r.run_at)
from yamlsched.job_runs r
join yamlsched.job_definitions d on d.id = r.definition_id
where r.finished_at is null
  and r.status in ('queued', 'failed')
  and r.run_at < clock_timestamp() - interval '2 minutes'
  and d.retired_at is null and d.enabled
  and (d.paused_at is null or d.paused_until <= clock_timestamp())
group by r.namespace, r.job_type;

create view yamlsched.job_health as
select d.namespace, d.job_type, d.owner, d.tags, d.schedule, d.timezone, d.enabled, d.retired_at,
       d.next_slot_at, d.last_slot_at, d.paused_at, d.paused_until, d.paused_by, d.paused_reason,
       succeeded.finished_at as last_success_at, failed.failed_at as last_failure_at, failed.last_error,
       (select count(*) from yamlsched.job_runs r
        where r.definition_id = d.id and r.status in ('failed', 'dead')
          and r.id > coalesce(succeeded.id, 0)) as failure_streak,
       coalesce(open.queued, 0) as queued, coalesce(open.running, 0) as running, coalesce(open.failed, 0) as failed,
       open.oldest_due_at
from yamlsched.job_definitions d
left join lateral (select r.id, r.finished_at from yamlsched.job_runs r
                   where r.definition_id = d.id and r.status = 'succeeded' order by r.id desc limit 1) succeeded on true
left join lateral (select r.failed_at, r.last_error from yamlsched.job_runs r
                   where r.definition_id = d.id and r.failed_at is not null order by r.id desc limit 1) failed on true
left join (select r.definition_id,
                  count(*) filter (where r.status = 'queued') as queued,
                  count(*) filter (where r.status = 'running') as running,
                  count(*) filter (where r.status = 'failed') as failed,
                  min(r.run_at) filter (where r.run_at <= clock_timestamp() and r.status <> 'running') as oldest_due_at
           from yamlsched.job_runs r where r.finished_at is null group by r.definition_id) open on open.definition_id = d.id;
