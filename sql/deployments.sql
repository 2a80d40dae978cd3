-- name: places
-- The latest file of each place: those that are presented now first, then those that were presented
-- last.
select f.id, f.host, f.path, f.environment, f.hash, f.overrides_namespace, f.yamlsched_version,
       f.tzdata_version,
       f.presented_since_at, f.last_presented_at, f.applied_at, f.refused_at, f.mistakes,
       coalesce(f.errors, '{}') as errors, f.presented_until > clock_timestamp() as is_presented
from yamlsched.presented_files f where f.namespace = %(namespace)s
order by is_presented desc, f.refused_at, f.last_presented_at desc, f.host, f.path
limit %(limit)s;

-- name: applied
-- The files that were applied, the one in force first. A place that applied a file again has one
-- row for it.
select f.id, f.host, f.path, f.environment, f.hash, f.applied_at, f.overrides_namespace,
       f.yamlsched_version,
       f.tzdata_version, f.retention
from yamlsched.schedule_files f
where f.namespace = %(namespace)s and f.applied_at is not null
order by f.applied_at desc, f.id desc
limit %(limit)s;

-- name: changed_since
-- How jobs were changed after a file was applied, and the first names. What an operator paused was
-- not changed by a file.
with changed as materialized (
    select d.job_type,
           case when d.retired_at is not null then 'retired'
               when d.created_at > %(since)s then 'added'
                else 'changed' end as change
    from yamlsched.job_definitions d
    where d.namespace = %(namespace)s
      and (d.applied_at > %(since)s or d.retired_at > %(since)s)
      and not (d.created_at > %(since)s and d.retired_at is not null)
)
select c.change, count(*)::integer as jobs,
       (array_agg(c.job_type order by c.job_type))[:20] as first
from changed c
group by c.change
order by c.change;

-- name: jobs
-- How many jobs the file in force has.
select count(*)::integer as jobs, count(*) filter (where not d.enabled)::integer as disabled
from yamlsched.job_definitions d where d.namespace = %(namespace)s and d.retired_at is null;

-- name: timezone
-- The time zone that most jobs with a cron have.
select mode() within group (order by d.timezone) from yamlsched.job_definitions d
where d.namespace = %(namespace)s and d.retired_at is null and d.schedule is not null;

-- name: namespaces
-- The namespaces of this database with the file in force of each.
select n.namespace, f.environment, f.host, f.path, f.hash, f.applied_at
from yamlsched.namespaces n
left join yamlsched.files_in_force f on f.namespace = n.namespace
order by n.namespace
limit %(limit)s;
