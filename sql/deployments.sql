-- name: places
-- The latest file of each place: those that are presented now first, then those that were presented last.
select f.id, f.host, f.path, f.environment, f.hash, f.overrides_namespace, f.yamlsched_version, f.tzdata_version,
       f.presented_since_at, f.last_presented_at, f.applied_at, f.refused_at, f.mistakes,
       coalesce(f.errors, '{}') as errors,
       f.last_presented_at + least(f.presented_for, interval '2 hours') > clock_timestamp() as is_presented
from yamlsched.schedule_files f
where f.namespace = %(namespace)s
  and not exists (
      select from yamlsched.schedule_files g
      where g.host = f.host and g.path = f.path and g.environment = f.environment
        and (g.last_presented_at, g.id) > (f.last_presented_at, f.id))
order by is_presented desc, f.refused_at, f.last_presented_at desc, f.host, f.path
limit %(limit)s;

-- name: applied
-- The files that were applied, the one in force first. A place that applied a file again has one row for it.
select f.id, f.host, f.path, f.environment, f.hash, f.applied_at, f.overrides_namespace, f.yamlsched_version,
       f.tzdata_version, f.retention
from yamlsched.schedule_files f
where f.namespace = %(namespace)s and f.applied_at is not null
order by f.applied_at desc, f.id desc
limit %(limit)s;

-- name: changed_since
-- How jobs were changed after a file was applied, and the first names. What an operator paused was not changed by a file.
with changed as materialized (
    select d.job_type,
           case when d.retired_at is not null then 'retired' when d.created_at > %(since)s then 'added'
                else 'changed' end as change
    from yamlsched.job_definitions d
    where d.namespace = %(namespace)s
      and (d.applied_at > %(since)s or d.retired_at > %(since)s)
      and not (d.created_at > %(since)s and d.retired_at is not null)
)
select c.change, count(*)::integer as jobs, (array_agg(c.job_type order by c.job_type))[:20] as first
from changed c
group by c.change
order by c.change;

-- name: jobs
-- How many jobs the file in force has.
select count(*)::integer as jobs, count(*) filter (where not d.enabled)::integer as disabled
from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.retired_at is null;

-- name: namespaces
-- The namespaces of this database with the file in force of each.
select n.namespace, f.environment, f.host, f.path, f.hash, f.applied_at
from yamlsched.namespaces n
left join lateral (
    select i.environment, i.host, i.path, i.hash, i.applied_at
    from yamlsched.schedule_files i
    where i.namespace = n.namespace and i.applied_at is not null
    order by i.applied_at desc, i.id desc
    limit 1
) f on true
order by n.namespace
limit %(limit)s;
