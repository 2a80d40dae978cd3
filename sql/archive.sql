-- The lines of the archive: what pruning is about to delete, one JSON object each: the columns of
-- the table, and for a run what belongs to it. They are documented in docs/archive.md.

-- name: runs
select row_to_json(line)::text as line
from (
    select 1 as format_version, 'run' as type, i.identity as database,
           %(now)s::timestamptz as archived_at, r.*,
           (select coalesce(jsonb_agg(to_jsonb(x) order by x.job_type), '[]')
            from (select d.job_type, a.slot, a.upstream_run_id as run_id, a.outcome,
                         a.enqueued
                  from yamlsched.awaits a join yamlsched.job_definitions d on d.id = a.definition_id
                  where a.run_id = r.id) x) as upstreams,
           (select coalesce(jsonb_agg(to_jsonb(f) - 'run_id' order by f.attempt), '[]')
            from yamlsched.job_failures f where f.run_id = r.id) as failures,
           (select coalesce(jsonb_agg(to_jsonb(o) - 'run_id' order by o.ended_at), '[]')
            from (select a.* from yamlsched.attempt_outputs a where a.run_id = r.id
                  union all
                  select a.* from yamlsched.running_outputs a where a.run_id = r.id) o) as outputs,
           (select coalesce(jsonb_agg(to_jsonb(p) - 'run_id' order by p.attempt), '[]')
            from yamlsched.attempt_progress p where p.run_id = r.id) as progress,
           (select coalesce(jsonb_agg(to_jsonb(e) - 'run_id' - 'namespace' order by e.id), '[]')
            from yamlsched.effects e where e.run_id = r.id) as effects
    from yamlsched.job_runs r
    cross join yamlsched.database_identity i
    where r.id = any (%(ids)s::bigint[])
    order by r.id
) line;

-- name: keys
select row_to_json(line)::text as line
from (
    select 1 as format_version, 'key' as type, i.identity as database,
           %(now)s::timestamptz as archived_at, u.*
    from yamlsched.used_keys u
    cross join yamlsched.database_identity i
    where u.ctid = any (%(ids)s::tid[])
) line;

-- name: effects
select row_to_json(line)::text as line
from (
    select 1 as format_version, 'effect' as type, i.identity as database,
           %(now)s::timestamptz as archived_at, e.*
    from yamlsched.effects e
    cross join yamlsched.database_identity i
    where e.id = any (%(ids)s::bigint[])
    order by e.id
) line;
