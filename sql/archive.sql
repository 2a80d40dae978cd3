-- The lines of the archive: what pruning is about to delete, one JSON object each. Their fields are
-- documented in docs/archive.md, and stable: new ones may be added.

-- name: runs
select row_to_json(line)::text as line
from (
    select 1 as format_version, 'run' as type, i.identity as database,
           %(now)s::timestamptz as archived_at,
           r.namespace, r.id, r.job_type, r.idempotency_key as key, r.status,
           (array['high', 'normal', 'low'])[r.priority] as priority, r.attempts, r.max_attempts,
           r.prior_attempts,
           r.scheduled_for, r.run_at, r.created_at, r.started_at, r.finished_at, r.failed_at,
           r.updated_at,
           r.locked_by as worker, r.error_type, r.last_error, r.last_stack, r.payload, r.result,
           r.parent_id, r.exclusive,
           r.trace_context, r.by_hand, r.begun_at, r.late_at, r.finish_by, r.revision,
           r.cpu_seconds, r.peak_memory_bytes,
           (select coalesce(jsonb_agg(to_jsonb(x) order by x.job_type), '[]')
            from (select d.job_type, a.slot, a.upstream_run_id as run_id, a.outcome
                  from yamlsched.awaits a join yamlsched.job_definitions d on d.id = a.definition_id
                  where a.run_id = r.id) x) as upstreams,
           (select coalesce(jsonb_agg(to_jsonb(f) - 'run_id' order by f.attempt), '[]')
            from yamlsched.job_failures f where f.run_id = r.id) as failures,
           (select coalesce(jsonb_agg(to_jsonb(x) order by x.ended_at), '[]')
            from (select o.attempt, o.worker, o.ended_at, o.omitted_bytes, o.output
                  from (select a.* from yamlsched.attempt_outputs a where a.run_id = r.id
                        union all select a.* from yamlsched.running_outputs a
                        where a.run_id = r.id) o) x) as outputs,
           (select coalesce(jsonb_agg(to_jsonb(p) - 'run_id' order by p.attempt), '[]')
            from yamlsched.attempt_progress p where p.run_id = r.id) as progress,
           (select coalesce(jsonb_agg(to_jsonb(x) order by x.claimed_at), '[]')
            from (select e.key, e.state, e.provider_key, e.attempt, e.claimed_at, e.doubted_at,
                e.done_at, e.result
                  from yamlsched.effects e where e.run_id = r.id) x) as effects
    from yamlsched.job_runs r
    cross join yamlsched.database_identity i
    where r.id = any (%(ids)s::bigint[])
    order by r.id
) line;

-- name: keys
select row_to_json(line)::text as line
from (
    select 1 as format_version, 'key' as type, i.identity as database,
           %(now)s::timestamptz as archived_at,
           u.namespace, u.idempotency_key as key, u.run_id, u.job_type, u.scheduled_for, u.pruned_at
    from yamlsched.used_keys u
    cross join yamlsched.database_identity i
    where u.ctid = any (%(ids)s::tid[])
) line;

-- name: effects
select row_to_json(line)::text as line
from (
    select 1 as format_version, 'effect' as type, i.identity as database,
           %(now)s::timestamptz as archived_at,
           e.namespace, e.id, e.key, e.run_id, e.state, e.provider_key, e.attempt,
           e.locked_by as worker, e.claimed_at,
           e.doubted_at, e.done_at, e.result
    from yamlsched.effects e
    cross join yamlsched.database_identity i
    where e.id = any (%(ids)s::bigint[])
    order by e.id
) line;
